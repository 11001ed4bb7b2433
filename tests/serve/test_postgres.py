"""The servers of the tests end with the tests, however these end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.absent import absent
from tests.serve.postgres import PATIENCE, PREFIX, _is_alive, find_programs, new_folder

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import sys
from pathlib import Path
from tests.serve.postgres import Postgres, new_folder
print(Postgres(new_folder(Path(sys.argv[1]))).process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends the children of a process")
def test_a_server_ends_when_the_tests_are_killed() -> None:
    if find_programs() is None:
        absent("no PostgreSQL found; install it with `apt-get install postgresql`")
    root = Path("/tmp") / f"equipoise-killed-{os.getpid()}"  # a socket's path has to be short
    root.mkdir()
    try:
        command = [sys.executable, "-c", TESTS, str(root)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as killed:  # type: ignore[call-overload]
            server = int(killed.stdout.readline())
            assert _is_alive(server)
            killed.kill()
        end = time.monotonic() + PATIENCE
        while _is_alive(server):
            assert time.monotonic() < end, "the server goes on"
            time.sleep(0.02)
        assert [path.name for path in root.iterdir()] == [f"{PREFIX}{killed.pid}"]
        folder = new_folder(root)
        assert list(root.iterdir()) == [folder]
    finally:
        shutil.rmtree(root, ignore_errors=True)


def test_the_folder_of_tests_that_still_run_stays(tmp_path: Path) -> None:
    running = tmp_path / f"{PREFIX}{os.getppid()}"
    running.mkdir()
    assert sorted(tmp_path.iterdir()) == [running]
    new_folder(tmp_path)
    assert running.is_dir()
