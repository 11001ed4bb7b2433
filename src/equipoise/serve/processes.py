"""Worker processes behind one listening socket: started, watched, reloaded and stopped.

The parent binds the socket and answers nothing itself. A worker that dies is replaced by another
fork of it; SIGHUP lets every worker reload its models; SIGTERM and SIGINT let them finish what
they have begun. After SIGTERM they first say for a while that they are not ready, by SIGUSR1.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import gc
import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from equipoise.checks import period
from equipoise.errors import DataError, EquipoiseError
from equipoise.serve.config import Config
from equipoise.serve.logs import write_lines

logger = logging.getLogger("equipoise.serve")

GRACE = 15.0  # seconds to finish open requests
PAUSE = 1.0  # seconds before a worker that died at once is started again
FOLDERS = "equipoise-server-"  # in the folder for temporary files, one for each server
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
Ready = Callable[[str], None]
# What takes long to import and starts no threads, which would not survive a fork; BLAS is held to
# one thread, and polars, which starts its own, is left to the workers.
PRELOADED = ("numpy", "scipy.sparse", "scipy.linalg", "numba", "fastapi", "sqlalchemy", "uvicorn")


def serve(config: Config, ready: Ready | None = None) -> int:
    """Serve until a signal ends it; `ready` is called with the address once all workers answer."""
    return Supervisor(config, ready).run()


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """Make objects that stay: no garbage is looked for among them, neither now nor later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound and listens; the kernel deals connections to the workers."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise DataError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port"
        ) from error
    found.listen(1024)
    found.set_inheritable(True)
    return found


def make_folder() -> tuple[Path, int]:
    """Make a folder for the numbers of workers; return it and the lock on it.

    Workers inherit the lock, so it is held until the last of them is gone, however that ended.
    Folders of other servers that nobody holds any more are removed.
    """
    root = Path(tempfile.gettempdir())
    for left in root.glob(f"{FOLDERS}*"):
        with contextlib.suppress(OSError):  # another user's
            end = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            if _lock(end):
                shutil.rmtree(left, ignore_errors=True)
            os.close(end)
    new = Path(tempfile.mkdtemp(prefix="equipoise-new-"))
    held = os.open(new, os.O_RDONLY)
    _lock(held)  # before it gets the name by which others find it
    return new.rename(root / new.name.replace("equipoise-new-", FOLDERS)), held


def _lock(end: int) -> bool:
    """Lock a folder; False where another process has, or the file system has no locks."""
    try:
        fcntl.flock(end, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class Supervisor:
    """The parent of the workers."""

    def __init__(self, config: Config, ready: Ready | None) -> None:
        self._config, self._ready = config, ready
        self._workers: dict[int, float] = {}  # when each was started, by process id
        self._fresh: set[int] = set()  # have not said yet that they answer
        self._pipe = os.pipe()
        self._stopping = False
        self._hurried = False  # stop without telling load balancers first
        self._reloaded = 0.0  # when the workers were last told to reload
        self._update: subprocess.Popen[bytes] | None = None
        self._wake_read, self._wake_write = os.pipe()
        self._environment = dict(os.environ)

    def run(self) -> int:
        """Start the workers and watch them until told to stop; return an exit code."""
        config = self._config
        listening = listen(config.host, config.port)
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        folder, held = self._numbers_folder()
        os.environ["EQUIPOISE_SUPERVISOR"] = str(os.getpid())
        os.set_blocking(self._wake_write, False)
        os.set_blocking(self._pipe[0], False)
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        with lasting():
            for name in PRELOADED:
                import_module(name)
        before = {each: signal.signal(each, self._signalled) for each in SIGNALS}
        wake = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        code = 0
        try:
            for _ in range(config.workers):
                self._start(listening)
            code = self._watch(listening, f"http://{shown}:{port}")
        finally:
            signal.set_wakeup_fd(wake)
            for each, handler in before.items():
                signal.signal(each, handler)
            listening.close()
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            for end in (*self._pipe, self._wake_read, self._wake_write, *held):
                os.close(end)
        return code

    def _numbers_folder(self) -> tuple[Path | None, list[int]]:
        """Make the folder of the workers' numbers; without room for it each counts by itself."""
        try:
            folder, lock = make_folder()
        except OSError as error:
            os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
            logger.error(
                "no folder for metrics: %s; /metrics shows the numbers of one worker alone",
                error.strerror or error,
            )
            return None, []
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
        return folder, [lock]

    def _signalled(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._reload()
        elif number in (signal.SIGTERM, signal.SIGINT):
            self._hurried = self._stopping or number == signal.SIGINT
            self._stopping = True

    def _reload(self) -> None:
        self._reloaded = time.monotonic()
        self._tell(signal.SIGHUP)

    def _tell(self, number: int) -> None:
        for process in list(self._workers):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def _start(self, listening: socket.socket) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if process == 0:
            code = 1
            try:
                signal.set_wakeup_fd(-1)
                for each in SIGNALS:
                    signal.signal(each, signal.SIG_DFL)
                for each in (signal.SIGHUP, signal.SIGUSR1):
                    signal.signal(each, signal.SIG_IGN)  # until it can reload
                os.close(self._pipe[0])
                code = work(self._config, listening, functools.partial(_say, self._pipe[1]))
            finally:
                os._exit(code)
        self._workers[process] = time.monotonic()
        self._fresh.add(process)

    def _watch(self, listening: socket.socket, address: str) -> int:
        every = None if self._config.refresh is None else period("refresh", self._config.refresh)
        due = None if every is None else time.monotonic() + every
        started = False
        while not self._stopping:
            select.select([self._wake_read, self._pipe[0]], [], [], 1.0)
            _drain(self._wake_read)
            for process in map(int, _drain(self._pipe[0]).splitlines()):
                self._fresh.discard(process)
                if self._workers.get(process, self._reloaded) < self._reloaded:
                    os.kill(process, signal.SIGHUP)  # it may have loaded what was there before
            for process, code in self._ended():
                quick = time.monotonic() - self._workers.pop(process) < PAUSE
                if process in self._fresh and not started:
                    self._stop(listening)
                    return code or 1  # it has said why
                self._fresh.discard(process)
                fields = {"worker": process, "code": code}
                logger.warning("worker ended", extra={"fields": fields})
                time.sleep(PAUSE if quick else 0.0)
                if not self._stopping:
                    self._start(listening)
            if not self._fresh and not started:
                started = True
                if self._ready is not None:
                    self._ready(address)
            if due is not None and time.monotonic() >= due:
                due = time.monotonic() + (every or 0.0)
                self._refresh()
            self._refreshed()
        self._stop_soon()
        self._stop(listening)
        return 0

    def _ended(self) -> list[tuple[int, int]]:
        found = []
        for process in list(self._workers):
            number, status = os.waitpid(process, os.WNOHANG)
            if number:
                found.append((number, os.waitstatus_to_exitcode(status)))
        return found

    def _stop_soon(self) -> None:
        """Let the workers say that they are not ready, and answer on; a second signal ends it."""
        end = time.monotonic() + self._config.drain
        if self._config.drain and not self._hurried:
            logger.info("not ready any more", extra={"fields": {"seconds": self._config.drain}})
            self._tell(signal.SIGUSR1)
        while not self._hurried and (left := end - time.monotonic()) > 0:
            select.select([self._wake_read], [], [], left)
            _drain(self._wake_read)

    def _stop(self, listening: socket.socket) -> None:
        """Close the socket and let the workers finish; what takes too long is cut short."""
        if self._update is not None:
            self._update.terminate()
            self._update.wait()
        self._tell(signal.SIGTERM)
        listening.close()  # connections are refused from here on, not left waiting
        end = time.monotonic() + GRACE + 5
        while self._workers and time.monotonic() < end:
            for process, _ in self._ended():
                self._workers.pop(process)
            time.sleep(0.02)
        self._tell(signal.SIGKILL)
        for process in self._workers:
            os.waitpid(process, 0)

    def _refresh(self) -> None:
        """Fold the store's events into the models, in another process."""
        if self._update is not None:
            return  # still at it
        words = ["-m", "equipoise.serve.folding", *self._config.models.values()]
        # an address may hold a password, which would be seen among the arguments
        environment = {**self._environment, "EQUIPOISE_STORE": self._config.store}
        self._update = subprocess.Popen([sys.executable, *words], env=environment)

    def _refreshed(self) -> None:
        if self._update is None or self._update.poll() is None:
            return
        code, self._update = self._update.returncode, None
        logger.info("models refreshed", extra={"fields": {"code": code}})
        self._reload()  # also where a model could not be folded: the others may have been


def _say(end: int) -> None:
    os.write(end, f"{os.getpid()}\n".encode())


def _drain(end: int) -> bytes:
    os.set_blocking(end, False)
    try:
        return os.read(end, 65_536)
    except BlockingIOError:
        return b""


def _end_with_parent() -> None:
    """Let the kernel end this process when its parent is gone, where it can do that."""
    parent = os.environ.get("EQUIPOISE_SUPERVISOR")
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if parent != str(os.getppid()):
        raise SystemExit(1)  # it was gone before


def work(config: Config, listening: socket.socket, ready: Callable[[], Any]) -> int:
    """Answer requests until a signal ends it; return an exit code."""
    write_lines()
    _end_with_parent()
    try:
        with lasting():
            from equipoise.runtime.machine import one_blas_thread
            from equipoise.serve.server import prepare

            server = prepare(config, ready)
        with one_blas_thread():
            server.run(sockets=[listening])
    except EquipoiseError as error:
        logger.error("%s", error)
        return 1
    except Exception:
        logger.exception("worker failed")
        return 1
    return 0
