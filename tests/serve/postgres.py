"""A PostgreSQL server of the tests' own: made in a temporary folder, started and stopped."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.absent import absent

PATIENCE = 60.0  # seconds; a busy machine is no failure
PREFIX = "equipoise-postgres-"
OPTIONS = ("listen_addresses=127.0.0.1", "fsync=on", "max_connections=60")
# As another user, since the server refuses to run as root; it is to end when the tests are killed.
LAUNCH = """
import ctypes, os, signal, sys
parent, uid, gid = map(int, sys.argv[1:4])
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGINT)  # PR_SET_PDEATHSIG
if os.getppid() == parent:
    os.execv(sys.argv[4], sys.argv[4:])
"""


def find_programs() -> Path | None:
    """Return the folder of `initdb` and `postgres`; Debian keeps them out of the path."""
    initdb = shutil.which("initdb")
    if initdb is not None:
        return Path(initdb).parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return folders[-1].parent if folders else None


def new_folder(root: Path) -> Path:
    """Make the folder of this process, and remove those of processes that are gone."""
    for left in root.glob(f"{PREFIX}*"):
        owner = left.name.removeprefix(PREFIX)
        lock = left / "data" / "postmaster.pid"
        server = lock.read_text().split()[0] if lock.is_file() else owner
        if not any(_is_alive(int(process)) for process in (owner, server) if process.isdigit()):
            shutil.rmtree(left, ignore_errors=True)
    folder = root / f"{PREFIX}{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


class Postgres:
    """One server with one empty database."""

    def __init__(self, folder: Path) -> None:
        programs = find_programs()
        if programs is None:
            absent("no PostgreSQL found; install it with `apt-get install postgresql`")
        self._programs, self._data = programs, folder / "data"
        self._account = pwd.getpwnam("postgres") if os.getuid() == 0 else pwd.getpwuid(os.getuid())
        os.chown(folder, self._account.pw_uid, self._account.pw_gid)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._folder = folder
        creation = self._launch("initdb", "-D", self._data, "-U", "shop", "-A", "trust", "-N")
        assert creation.wait(PATIENCE) == 0, self._log_text()
        self.start()
        self.url = f"postgresql://shop@127.0.0.1:{self.port}/postgres"

    def _launch(self, program: str, *words: object) -> subprocess.Popen[bytes]:
        account = (self._account.pw_uid, self._account.pw_gid)
        command = [sys.executable, "-c", LAUNCH, os.getpid(), *account, self._programs / program]
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                [str(word) for word in (*command, *words)],
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )

    def _log_text(self) -> str:
        return (self._folder / "log").read_text()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = [word for setting in OPTIONS for word in ("-c", setting)]
        place = ("-D", self._data, "-p", self.port, "-k", self._folder)
        self.process = self._launch("postgres", *place, *options)
        end = time.monotonic() + PATIENCE
        while not self._is_ready():
            gone = self.process.poll() is not None or time.monotonic() > end
            assert not gone, self._log_text()
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        """Whether it takes connections; the last line of its lock says so, as to `pg_ctl`."""
        lock = self._data / "postmaster.pid"
        return lock.is_file() and lock.read_text().rstrip().endswith("ready")

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all processes of the server where they are; they go on at the end."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        processes = [self.process.pid, *map(int, children.read_text().split())]
        try:
            for process in processes:
                os.kill(process, signal.SIGSTOP)
            yield
        finally:
            for process in reversed(processes):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)

    def stop(self) -> None:
        """End the server and all connections at once."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(PATIENCE) == 0, self._log_text()
