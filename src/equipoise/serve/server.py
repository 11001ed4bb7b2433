"""One worker: uvicorn on the shared socket; SIGHUP reloads, slow headers are not waited for."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from equipoise.errors import EquipoiseError
from equipoise.serve.app import create, reloaded
from equipoise.serve.config import Config
from equipoise.serve.processes import GRACE


def prepare(config: Config, ready: Callable[[], Any]) -> Server:
    """Load the models; `run` of what is returned answers requests until SIGTERM."""
    app = create(config)
    options: dict[str, Any] = {"http": protocol(config.limits.timeout), "ws": "none"}
    options |= {"lifespan": "on", "log_config": None, "access_log": False, "server_header": False}
    options |= {"timeout_graceful_shutdown": int(GRACE), "proxy_headers": False}
    settings = uvicorn.Config(app, loop="uvloop", backlog=1024, **options)
    server = Server(settings, ready)
    reload = reloaded(app.state, app._telemetry)

    def hang_up(_: int, __: FrameType | None) -> None:
        def work() -> None:
            with contextlib.suppress(EquipoiseError):  # it is in the log, and the old ones go on
                reload()

        threading.Thread(target=work, name="reload", daemon=True).start()

    signal.signal(signal.SIGHUP, hang_up)
    return server


class Server(uvicorn.Server):
    """A server that tells when it answers."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], Any]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to answer, and say so."""
        await super().startup(sockets)
        if self.started:
            self._ready()


def protocol(timeout: float) -> type[HttpToolsProtocol]:
    """Return the HTTP protocol that closes a connection whose headers do not arrive in time."""

    class Impatient(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._timer = self.loop.call_later(timeout, self._give_up)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if self._timer is None:
                self._timer = self.loop.call_later(timeout, self._give_up)

        def on_headers_complete(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            super().on_headers_complete()

        def connection_lost(self, error: Exception | None) -> None:
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(error)

        def _give_up(self) -> None:
            self._timer = None
            self.transport.close()

    return Impatient
