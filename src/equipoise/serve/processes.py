"""Worker processes behind one listening socket: started, watched, reloaded and stopped.

The parent binds the socket and answers no requests itself. A worker that dies is replaced by a new
fork; SIGHUP makes every worker reload its models; SIGTERM and SIGINT let the workers finish open
requests. After SIGTERM, SIGUSR1 tells them to be not ready for a while first.
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
FOLDERS = "equipoise-server-"  # prefix of the folders of servers, among the temporary files
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
Ready = Callable[[str], None]
# Slow imports that start no threads, which would not survive a fork: BLAS is limited to one, and
# polars, which starts threads, is imported by the workers.
PRELOADED = ("numpy", "scipy.sparse", "scipy.linalg", "numba", "fastapi", "sqlalchemy", "uvicorn")


def serve(config: Config, ready: Ready | None = None) -> int:
    """Serve until a signal; call `ready` with the address once all workers answer."""
    return Supervisor(config, ready).run()


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """Exclude the objects made in this block from garbage collection."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; the kernel distributes connections to the workers."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise DataError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port"
        ) from error
    listening.listen(1024)
    listening.set_inheritable(True)
    return listening


def make_folder() -> tuple[Path, int]:
    """Make a folder for the metrics of workers; return it and the descriptor of its lock.

    Workers inherit the lock, so it lasts until the last of them has ended. Folders of other
    servers without a lock are removed.
    """
    root = Path(tempfile.gettempdir())
    for folder in root.glob(f"{FOLDERS}*"):
        with contextlib.suppress(OSError):  # another user's
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            if _lock(descriptor):
                shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)
    new = Path(tempfile.mkdtemp(prefix="equipoise-new-"))
    lock = os.open(new, os.O_RDONLY)
    _lock(lock)  # before it gets the name that other servers look for
    return new.rename(root / new.name.replace("equipoise-new-", FOLDERS)), lock


def _lock(descriptor: int) -> bool:
    """Lock a folder; return False if another process has, or the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class Supervisor:
    """The parent process, which starts and watches the workers."""

    def __init__(self, config: Config, ready: Ready | None) -> None:
        self._config, self._ready = config, ready
        self._workers: dict[int, float] = {}  # start times by process id
        self._fresh: set[int] = set()  # workers that do not answer yet
        self._pipe = os.pipe()
        self._stopping = False
        self._hurried = False  # stop without a drain
        self._reloaded = 0.0  # when the workers were last told to reload
        self._update: subprocess.Popen[bytes] | None = None
        self._wake_read, self._wake_write = os.pipe()
        self._environment = dict(os.environ)

    def run(self) -> int:
        """Start the workers and watch them until a signal; return an exit code."""
        config = self._config
        listening = listen(config.host, config.port)
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        folder, locks = self._metrics_folder()
        os.environ["EQUIPOISE_SUPERVISOR"] = str(os.getpid())
        os.set_blocking(self._wake_write, False)
        os.set_blocking(self._pipe[0], False)
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        with lasting():
            for name in PRELOADED:
                import_module(name)
        handlers = {number: signal.signal(number, self._signalled) for number in SIGNALS}
        wake = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        code = 0
        try:
            for _ in range(config.workers):
                self._start(listening)
            code = self._watch(listening, f"http://{shown}:{port}")
        finally:
            signal.set_wakeup_fd(wake)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            listening.close()
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            for descriptor in (*self._pipe, self._wake_read, self._wake_write, *locks):
                os.close(descriptor)
        return code

    def _metrics_folder(self) -> tuple[Path | None, list[int]]:
        """Make the folder for metrics; without disk space each worker counts on its own."""
        try:
            folder, lock = make_folder()
        except OSError as error:
            os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
            logger.error(
                "no folder for metrics: %s; /metrics shows the numbers of one worker only",
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
                for number in SIGNALS:
                    signal.signal(number, signal.SIG_DFL)
                for number in (signal.SIGHUP, signal.SIGUSR1):
                    signal.signal(number, signal.SIG_IGN)  # until it can reload
                os.close(self._pipe[0])
                code = work(
                    self._config, listening, functools.partial(_report_ready, self._pipe[1])
                )
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
            _read_all(self._wake_read)
            for process in map(int, _read_all(self._pipe[0]).splitlines()):
                self._fresh.discard(process)
                if self._workers.get(process, self._reloaded) < self._reloaded:
                    os.kill(process, signal.SIGHUP)  # it may have loaded older models
            for process, code in self._ended():
                quick = time.monotonic() - self._workers.pop(process) < PAUSE
                if process in self._fresh and not started:
                    self._stop(listening)
                    return code or 1  # the worker has logged why
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
        ended = []
        for process in list(self._workers):
            number, status = os.waitpid(process, os.WNOHANG)
            if number:
                ended.append((number, os.waitstatus_to_exitcode(status)))
        return ended

    def _stop_soon(self) -> None:
        """Drain: workers answer but are not ready, until `drain` is over or a second signal."""
        end = time.monotonic() + self._config.drain
        if self._config.drain and not self._hurried:
            logger.info("not ready any more", extra={"fields": {"seconds": self._config.drain}})
            self._tell(signal.SIGUSR1)
        while not self._hurried and (remaining := end - time.monotonic()) > 0:
            select.select([self._wake_read], [], [], remaining)
            _read_all(self._wake_read)

    def _stop(self, listening: socket.socket) -> None:
        """Close the socket, let the workers finish, and kill those that take too long."""
        if self._update is not None:
            self._update.terminate()
            self._update.wait()
        self._tell(signal.SIGTERM)
        listening.close()  # refuse new connections
        end = time.monotonic() + GRACE + 5
        while self._workers and time.monotonic() < end:
            for process, _ in self._ended():
                self._workers.pop(process)
            time.sleep(0.02)
        self._tell(signal.SIGKILL)
        for process in self._workers:
            os.waitpid(process, 0)

    def _refresh(self) -> None:
        """Update the models from the store, in another process."""
        if self._update is not None:
            return  # the last update still runs
        words = ["-m", "equipoise.serve.folding", *self._config.models.values()]
        # not an argument: a URL may contain a password, and arguments are public
        environment = {**self._environment, "EQUIPOISE_STORE": self._config.store}
        self._update = subprocess.Popen([sys.executable, *words], env=environment)

    def _refreshed(self) -> None:
        if self._update is None or self._update.poll() is None:
            return
        code, self._update = self._update.returncode, None
        logger.info("models refreshed", extra={"fields": {"code": code}})
        self._reload()  # also after a failure: other models may have been updated


def _report_ready(descriptor: int) -> None:
    os.write(descriptor, f"{os.getpid()}\n".encode())


def _read_all(descriptor: int) -> bytes:
    os.set_blocking(descriptor, False)
    try:
        return os.read(descriptor, 65_536)
    except BlockingIOError:
        return b""


def _end_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends (Linux)."""
    parent = os.environ.get("EQUIPOISE_SUPERVISOR")
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if parent != str(os.getppid()):
        raise SystemExit(1)  # it has ended already


def work(config: Config, listening: socket.socket, ready: Callable[[], Any]) -> int:
    """Answer requests until a signal; return an exit code."""
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
