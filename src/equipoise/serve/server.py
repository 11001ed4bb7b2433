"""The server of one worker: uvicorn with a reload on SIGHUP and limits on request headers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import signal
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from equipoise.errors import EquipoiseError
from equipoise.serve.app import create, reload_models
from equipoise.serve.config import Config, Limits
from equipoise.serve.guard import problem
from equipoise.serve.processes import GRACE

FIELDS = 100  # headers of a request
REFUSALS = {
    HTTPStatus.BAD_REQUEST: "the request is not valid HTTP",
    HTTPStatus.REQUEST_URI_TOO_LONG: "the address has more than {most:,} bytes",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: (
        "a request has at most {fields} headers, and at most {most:,} bytes of them"
    ),
}


def prepare(config: Config, ready: Callable[[], Any]) -> Server:
    """Load the models and return the server; its `run` answers requests until SIGTERM."""
    app = create(config)
    options: dict[str, Any] = {"http": protocol(config.limits), "ws": "none"}
    options |= {"lifespan": "on", "log_config": None, "access_log": False, "server_header": False}
    options |= {"timeout_graceful_shutdown": int(GRACE), "proxy_headers": False}
    settings = uvicorn.Config(app, loop="uvloop", backlog=1024, **options)
    server = Server(settings, ready)

    def reload() -> None:
        with contextlib.suppress(EquipoiseError):  # it is logged, and the old models go on
            reload_models(app.state, app.telemetry)

    def start_reload(_: int, __: FrameType | None) -> None:
        threading.Thread(target=reload, name="reload", daemon=True).start()

    def stop_soon(_: int, __: FrameType | None) -> None:
        app.state.stopping = True

    signal.signal(signal.SIGHUP, start_reload)
    signal.signal(signal.SIGUSR1, stop_soon)
    return server


class Server(uvicorn.Server):
    """A server that calls `ready` once it answers requests."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], Any]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to answer requests and call `ready`."""
        await super().startup(sockets)
        if self.started:
            self._ready()


class TooLargeError(Exception):
    """Raised in a callback of the parser to end the reading of a request."""


def protocol(limits: Limits) -> type[HttpToolsProtocol]:
    """Return an HTTP protocol with limits on the time, bytes and number of request headers.

    The request line and trailers count as well. A connection whose headers do not arrive in time
    is closed; headers that are too large get an answer first.
    """
    timeout, most = limits.timeout, limits.headers

    class Bounded(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None
        _head = 0  # bytes of the head, so far
        _fields = 0  # headers, so far
        _unparsed = 0  # bytes since the last callback of the parser, such as an endless header
        _is_parsing = False
        _refusal = HTTPStatus.BAD_REQUEST

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._timer = self.loop.call_later(timeout, self._give_up)

        def data_received(self, data: bytes) -> None:
            self._is_parsing = False
            super().data_received(data)
            self._unparsed = 0 if self._is_parsing else self._unparsed + len(data)
            if self._unparsed > most and not self.transport.is_closing():
                self._refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                self.send_400_response("")

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._head = self._fields = 0
            if self._timer is None:
                self._timer = self.loop.call_later(timeout, self._give_up)

        def on_url(self, url: bytes) -> None:
            self._count(len(url), HTTPStatus.REQUEST_URI_TOO_LONG)
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._fields += 1
            self._count(len(name) + len(value) + 4, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            super().on_header(name, value)

        def _count(self, size: int, refusal: HTTPStatus) -> None:
            self._is_parsing = True
            self._head += size
            if self._head > most or self._fields > FIELDS:
                self._refusal = refusal
                raise TooLargeError

        def on_headers_complete(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self._is_parsing = True
            super().on_body(body)

        def send_400_response(self, msg: str) -> None:
            """Refuse a request that cannot be read, and close the connection."""
            if self.cycle is None or self.cycle.response_complete:  # else an answer is being sent
                detail = REFUSALS[self._refusal].format(most=most, fields=FIELDS)
                self.transport.write(_refused(self._refusal, detail))
            self.transport.close()

        def connection_lost(self, error: Exception | None) -> None:
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(error)

        def _give_up(self) -> None:
            self._timer = None
            self.transport.close()

    return Bounded


def _refused(status: HTTPStatus, detail: str) -> bytes:
    """Return the full HTTP response that refuses a request before the application sees it."""
    kind = status.phrase.lower().replace(" ", "-")
    body = json.dumps(problem(status, kind, detail, secrets.token_hex(8))).encode()
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "content-type: application/problem+json",
        f"content-length: {len(body)}",
        "connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
