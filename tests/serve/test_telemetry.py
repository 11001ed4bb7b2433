"""Numbers of workers where the folder for temporary files is full."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.serve.conftest import Start
from tests.serve.test_processes import ask

from equipoise.serve import telemetry
from equipoise.serve.telemetry import NUMBERS, NumberFile

COUNTING = """
import sys
from pathlib import Path
from equipoise.serve.telemetry import Telemetry

class Model:
    name, version, n_items, fitted = "m", "v", 300_000, 0.0

numbers = Telemetry()
if "fill" in sys.argv:
    with open(Path(sys.argv[1]) / "filler", "wb", 0) as filler:
        try:
            while filler.write(bytes(4096)):
                pass
        except OSError:
            pass
numbers._bitmap(Model())[:] = 1
for number in range(2000):
    numbers.requests.labels(f"/route/{number}", "200").inc()
assert numbers.coverage_of(Model()) == 1.0
print(numbers.exposition([Model()]).decode().count("equipoise_requests_total{"))
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a disk of 512 KB."""
    folder = tmp_path / "small"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(folder)]
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"no small disk could be mounted: {error}")
    if done.returncode:
        pytest.skip(f"no small disk could be mounted, which takes root: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write to a file until the disk is full."""
    with path.open("wb", 0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


@pytest.mark.parametrize("filled", ["", "fill"])
def test_a_full_disk_ends_no_worker(small_disk: Path, filled: str) -> None:
    environment = {**os.environ, telemetry.FOLDER: str(small_disk)}
    words = [sys.executable, "-c", COUNTING, str(small_disk), filled]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2000"]
    assert "no room for metrics" in done.stderr


def test_a_service_on_a_full_disk_goes_on(
    saved: Path, start: Start, small_disk: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(small_disk))
    service = start(saved / "dan", "--store", f"sqlite:///{tmp_path}/x.db", "--workers", 2)
    assert list(small_disk.glob("equipoise-server-*"))
    fill(small_disk / "filler")
    workers = service.workers()
    for user in range(20):
        assert ask(service.address, f"/v1/recommend/u{user}")[0] == 200
        assert ask(service.address, f"/v1/items/{user}")[0] in (200, 404)
    body = {"events": [{"user": "u5", "item": 3}]}
    assert ask(service.address, "/v1/events", body)[0] == 200
    assert ask(service.address, "/v1/admin/overview")[0] == 200
    assert service.workers() == workers
    assert service.stop() == 0


def test_numbers_go_on_in_memory_where_a_file_cannot_grow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(NumberFile, "in_memory", False)
    path = tmp_path / "counter_1.db"
    numbers = NumberFile(str(path))
    for key in range(100):
        numbers.write_value(f"key {key}", float(key), 1.0)
    again = NumberFile(str(path))
    assert again.read_value("key 7") == (7.0, 1.0)
    again.close()
    status = path.stat()
    assert status.st_blocks * 512 >= status.st_size == NUMBERS  # no holes

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(telemetry, "allocate", refuse)
    for key in range(3000):
        numbers.write_value(f"key {key}", float(key), 2.0)
    assert path.stat().st_size == NUMBERS
    assert numbers.read_value("key 2999") == (2999.0, 2.0)
    assert numbers.read_value("key 7") == (7.0, 2.0)
    assert NumberFile.in_memory
    lost = NumberFile(str(tmp_path / "counter_2.db"))
    lost.write_value("a", 1.0, 0.0)
    assert lost.read_value("a") == (1.0, 0.0)
    assert not (tmp_path / "counter_2.db").exists()
    assert [record.message[:19] for record in caplog.records] == ["no room for metrics"]
