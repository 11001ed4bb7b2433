"""uvicorn's HTTP protocol with limits on the time, bytes and number of request headers.

It also lets the application take a complete body and write a complete answer in one step each
(`Exchange`), where ASGI needs several messages and two packets. Requests that the application
names in `at_once` are answered without a task, unless they have to wait.
"""
# ruff: noqa: D102 (the methods are callbacks of asyncio and httptools)

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Coroutine, Generator, Iterable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from equipoise.serve.guard import EXCHANGE, problem

FIELDS = 100  # headers of a request
REFUSALS = {
    HTTPStatus.BAD_REQUEST: "the request is not valid HTTP",
    HTTPStatus.REQUEST_URI_TOO_LONG: "the address has more than {most:,} bytes",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: (
        "a request has at most {fields} headers, and at most {most:,} bytes of them"
    ),
}


class Exchange:
    """A request and its answer on a connection of uvicorn; an extension of the ASGI scope."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def take_body(self) -> bytes | None:
        """Return the body if all of it has arrived, else None."""
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected:
            return None
        body = bytes(cycle.body)
        cycle.body = bytearray()
        cycle.message_event.clear()
        return body

    def answer(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bool:
        """Write an answer whose headers are valid; return False if it has to be sent by ASGI."""
        cycle = self._cycle
        if not cycle.keep_alive or cycle.flow.write_paused or cycle.scope["method"] == "HEAD":
            return False
        if cycle.response_started or cycle.disconnected:
            return False
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        parts = [STATUS_LINE[status]]
        for name, value in cycle.default_headers:
            parts += (name, b": ", value, b"\r\n")
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
        parts += (b"\r\n", body)
        cycle.transport.write(b"".join(parts))
        cycle.message_event.set()
        cycle.on_response()
        return True


class Started:
    """A coroutine that has run up to its first wait; awaiting it runs the rest.

    Parameters
    ----------
    coroutine
        It was started outside of a task.
    awaited
        What it waits for: a future, or None to be called again soon.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, None], awaited: Any) -> None:
        self._coroutine, self._awaited = coroutine, awaited

    def __await__(self) -> Generator[Any, Any, None]:
        awaited = self._awaited
        while True:
            try:
                try:
                    value = yield awaited
                except BaseException as error:
                    awaited = self._coroutine.throw(error)
                else:
                    awaited = self._coroutine.send(value)
            except StopIteration:
                return

    async def finish(self) -> None:
        """Run the rest."""
        await self


class TooLargeError(Exception):
    """Raised in a callback of the parser to end the reading of a request."""


class LimitedProtocol(HttpToolsProtocol):
    """Answers requests whose headers arrive in time and are not too large.

    The request line and trailers count as well. A connection whose headers do not arrive in time
    is closed; headers that are too large get an answer first. The limits are those of the
    `settings` of its uvicorn configuration.
    """

    _timer: asyncio.TimerHandle | None = None
    _head = 0  # bytes of the head, so far
    _fields = 0  # headers, so far
    _unparsed = 0  # bytes since the last callback of the parser, such as an endless header
    _is_parsing = False
    _refusal = HTTPStatus.BAD_REQUEST
    _is_receiving = False
    _unstarted: tuple[RequestResponseCycle, Any] | None = None  # a request without a task

    def __init__(self, config: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        limits = config.settings.limits
        self._timeout, self._most = limits.timeout, limits.headers
        none: frozenset[tuple[str, str]] = frozenset()
        self._at_once = getattr(config.loaded_app, "at_once", none)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timer = self.loop.call_later(self._timeout, self._give_up)

    def data_received(self, data: bytes) -> None:
        self._is_parsing, self._is_receiving = False, True
        super().data_received(data)
        self._is_receiving = False
        self._unparsed = 0 if self._is_parsing else self._unparsed + len(data)
        if self._unparsed > self._most and not self.transport.is_closing():
            self._refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self.send_400_response("")
        if self._unstarted is not None:
            self._start_at_once(*self._unstarted)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Start a request: the most frequent ones without a task, once the parser has returned."""
        scope = cycle.scope
        if self._is_receiving and (scope["method"], scope["path"]) in self._at_once:
            self._unstarted = cycle, app
        else:
            super()._start_asgi_task(cycle, app)

    def _start_at_once(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Answer a complete request here and now; make a task only if it has to wait."""
        self._unstarted = None
        if cycle.more_body or self.transport.is_closing():
            super()._start_asgi_task(cycle, app)
            return
        coroutine = cycle.run_asgi(app)
        try:
            awaited = coroutine.send(None)
        except StopIteration:
            return
        task = self.loop.create_task(Started(coroutine, awaited).finish())
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head = self._fields = 0
        if self._timer is None:
            self._timer = self.loop.call_later(self._timeout, self._give_up)

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
        if self._head > self._most or self._fields > FIELDS:
            self._refusal = refusal
            raise TooLargeError

    def on_headers_complete(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().on_headers_complete()
        extensions: dict[str, Any] = {EXCHANGE: Exchange(self.cycle)}
        self.scope["extensions"] = extensions

    def on_body(self, body: bytes) -> None:
        self._is_parsing = True
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that cannot be read, and close the connection."""
        if self.cycle is None or self.cycle.response_complete:  # else an answer is being sent
            detail = REFUSALS[self._refusal].format(most=self._most, fields=FIELDS)
            self.transport.write(_refused(self._refusal, detail))
        self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(error)

    def _give_up(self) -> None:
        self._timer = None
        self.transport.close()


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
