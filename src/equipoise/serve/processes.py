"""Worker processes behind one listening socket: uvicorn's supervisor, with our reload and drain.

The parent binds the socket, starts the workers and replaces those that end. SIGHUP makes every
worker reload its models. After SIGTERM the workers are not ready for a while, then the socket is
closed and open requests finish; SIGINT and a second SIGTERM skip the wait.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from equipoise.checks import period
from equipoise.errors import DataError, EquipoiseError
from equipoise.runtime.locks import try_lock
from equipoise.serve.config import Config
from equipoise.serve.logs import write_lines

logger = logging.getLogger("equipoise.serve")

SWITCH = 0.0005  # seconds that a thread may compute in Python while the event loop waits
GARBAGE = 20_000  # new objects until a worker looks for garbage; requests leave next to none
GRACE = 15  # seconds to finish open requests
HUNG = 30.0  # seconds without a sign of life after which a worker is replaced in any case
WORKER_SIGNALS = (signal.SIGHUP, signal.SIGUSR1)  # reload; be not ready any more
FOLDERS = "equipoise-server-"  # prefix of the folders of servers, among the temporary files
Ready = Callable[[str], None]


def serve(config: Config, ready: Ready) -> int:
    """Serve until a signal; call `ready` with the address once all workers answer."""
    listening = listen(config.host, config.port)
    folder, lock = _metrics_folder()
    os.environ["EQUIPOISE_SUPERVISOR"] = str(os.getpid())
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # in the workers
    try:
        return Supervisor(config, listening, ready).run_until_stopped()
    finally:
        listening.close()
        if folder is not None and lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; the kernel distributes connections to the workers."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            (host, port), family=family, backlog=1024, dualstack_ipv6=is_dual
        )
    except OSError as error:
        reason = str(error.strerror or error).partition(" (while")[0]
        raise DataError(
            f"cannot listen on {host}:{port}: {reason}; choose another --port"
        ) from error


def _metrics_folder() -> tuple[Path | None, int | None]:
    """Make the folder for metrics; without disk space each worker counts on its own."""
    try:
        folder, lock = make_folder()
    except OSError as error:
        os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
        logger.error(
            "no folder for metrics: %s; /metrics shows the numbers of one worker only",
            error.strerror or error,
        )
        return None, None
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    return folder, lock


def make_folder() -> tuple[Path, int]:
    """Make a folder for the metrics of workers; return it and the descriptor of its lock.

    The lock lasts until this process ends. Folders of other servers without a lock are removed.
    """
    root = Path(tempfile.gettempdir())
    for folder in root.glob(f"{FOLDERS}*"):
        with contextlib.suppress(OSError):  # another user's
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            if try_lock(descriptor):
                shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)
    new = Path(tempfile.mkdtemp(prefix="equipoise-new-"))
    lock = os.open(new, os.O_RDONLY)
    try_lock(lock)  # before it gets the name that other servers look for
    return new.rename(root / new.name.replace("equipoise-new-", FOLDERS)), lock


class Supervisor(Multiprocess):
    """The parent process, which starts and watches the workers."""

    config: WorkerConfig

    def __init__(self, config: Config, listening: socket.socket, ready: Ready) -> None:
        super().__init__(WorkerConfig(config), [listening])
        host, port = listening.getsockname()[:2]
        self._address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._ready = ready
        self._is_draining = False
        self._update: subprocess.Popen[bytes] | None = None

    def run_until_stopped(self) -> int:
        """Run the service; return an exit code, 1 if a worker could not start."""
        refresh = self.config.settings.refresh
        if refresh is not None:
            seconds = period("refresh", refresh)
            threading.Thread(target=self._refresh, args=(seconds,), daemon=True).start()
        self.run()
        return int(any(process.exitcode == STARTUP_FAILURE for process in self.processes))

    def init_processes(self) -> None:
        """Start the workers."""
        with _signals_blocked():
            super().init_processes()

    def keep_subprocess_alive(self) -> None:
        """Replace workers that have ended; report once that all of them answer."""
        for process in self.processes:
            process.child_conn.close()  # else the pipe of a dead worker stays open
        with _signals_blocked():
            super().keep_subprocess_alive()
        if not self.config.has_started and all(process.is_ready() for process in self.processes):
            self.config.has_started = True
            self._ready(self._address)

    def handle_hup(self) -> None:
        """Reload the models in every worker."""
        self._signal_workers(signal.SIGHUP)

    def handle_term(self) -> None:
        """Stop after a drain, in which the workers answer but are not ready."""
        drain = self.config.settings.drain
        if self._is_draining or not drain:
            self.should_exit.set()
            return
        self._is_draining = True
        logger.info("not ready any more", extra={"fields": {"seconds": drain}})
        self._signal_workers(signal.SIGUSR1)
        timer = threading.Timer(drain, self.should_exit.set)
        timer.daemon = True
        timer.start()

    def terminate_all(self) -> None:
        """Let the workers finish open requests, and close the socket to new ones."""
        if self._update is not None:
            self._update.terminate()
        super().terminate_all()
        for listening in self.sockets:
            listening.close()

    def join_all(self) -> None:
        """Wait for the workers, and kill those that take too long."""
        end = time.monotonic() + GRACE + 5
        for process in self.processes:
            process.process.join(max(0.0, end - time.monotonic()))
            process.process.kill()
        super().join_all()

    def _signal_workers(self, number: int) -> None:
        for process in self.processes:
            if process.pid is not None and process.process.is_alive():
                os.kill(process.pid, number)

    def _refresh(self, seconds: float) -> None:
        """Update the models from the store again and again, each time in a new process."""
        settings = self.config.settings
        command = [sys.executable, "-m", "equipoise.serve.folding", *settings.models.values()]
        # not an argument: a URL may contain a password, and arguments are public
        environment = {**os.environ, "EQUIPOISE_STORE": settings.store}
        environment.pop("OPENBLAS_NUM_THREADS")
        while not self.should_exit.wait(seconds):
            self._update = subprocess.Popen(command, env=environment)
            code = self._update.wait()
            logger.info("models refreshed", extra={"fields": {"code": code}})
            self.signal_queue.append(signal.SIGHUP)  # also if one of the updates failed


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block the signals to workers; one that is started here gets them when it has loaded."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WORKER_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WORKER_SIGNALS)


class WorkerConfig(uvicorn.Config):
    """The configuration of uvicorn, which loads the models when it is loaded in a worker."""

    def __init__(self, settings: Config) -> None:
        self.settings = settings
        self.has_started = False  # whether all workers have answered once
        super().__init__(
            "",
            loop="uvloop",
            http="equipoise.serve.protocol:LimitedProtocol",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            workers=settings.workers,
            timeout_graceful_shutdown=GRACE,
            timeout_worker_healthcheck=math.ceil(settings.hung_seconds or HUNG),
        )

    def load(self) -> None:
        """Load the models and install the handlers of signals; called in the worker."""
        write_lines(self.settings.log)
        end_with_parent()
        try:
            with lasting():
                self.app = self._create_app()
                super().load()
        except EquipoiseError as error:
            logger.error("%s", error)
            raise self._failure() from error
        except Exception as error:
            logger.exception("worker failed")
            raise self._failure() from error

    def _failure(self) -> SystemExit:
        """Return the end of a worker: the service stops, unless it has answered before."""
        return SystemExit(1 if self.has_started else STARTUP_FAILURE)

    def _create_app(self) -> Any:
        from equipoise.runtime.machine import one_blas_thread
        from equipoise.serve.app import create, reload_models

        one_blas_thread().__enter__()
        sys.setswitchinterval(SWITCH)
        gc.set_threshold(GARBAGE)
        app = create(self.settings)

        def reload() -> None:
            with contextlib.suppress(EquipoiseError):  # it is logged, and the old models go on
                reload_models(app.state, app.telemetry)

        def start_reload(*_: object) -> None:
            threading.Thread(target=reload, name="reload", daemon=True).start()

        def stop_soon(*_: object) -> None:
            app.state.stopping = True

        signal.signal(signal.SIGHUP, start_reload)
        signal.signal(signal.SIGUSR1, stop_soon)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WORKER_SIGNALS)
        return app


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """Exclude the objects made in this block from garbage collection."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def end_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends (Linux)."""
    parent = os.environ.get("EQUIPOISE_SUPERVISOR")
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if parent != str(os.getppid()):
        raise SystemExit(1)  # it has ended already
