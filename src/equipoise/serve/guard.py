"""ASGI middleware around all routes: request ids, tokens, limits, errors, logs and metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote_to_bytes

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from equipoise.errors import EquipoiseError, NotFittedError, UnknownIdError
from equipoise.serve.config import Config
from equipoise.serve.security import HEADERS, PAGE_HEADERS, Gate, Refused, short_id
from equipoise.serve.store import StoreError
from equipoise.serve.telemetry import RequestEntry, Telemetry

logger = logging.getLogger("equipoise.serve")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
EXCHANGE = "equipoise.exchange"  # extension of our HTTP protocol
BODIED = ("POST", "PUT", "PATCH")
JSON_TYPE = (b"content-type", b"application/json")
JSON, NDJSON = "application/json", "application/x-ndjson"
PARQUET = "application/vnd.apache.parquet"
# media types of the routes whose bodies may have up to limits.bulk bytes; other routes take JSON.
# HTML forms of other sites can send none of them.
BULK: dict[tuple[str, str], tuple[str, ...]] = {
    ("POST", "/v1/events:import"): (NDJSON, PARQUET),
    ("POST", "/v1/items"): (NDJSON,),
}


def problem(status: int, kind: str, detail: str, instance: str) -> dict[str, Any]:
    """Return the problem details of an error (RFC 9457)."""
    title = HTTPStatus(status).phrase
    kind = f"urn:equipoise:problem:{kind}"
    return {"type": kind, "title": title, "status": status, "detail": detail, "instance": instance}


def as_refused(error: Exception) -> Refused:
    """Return the answer to an error, without paths, traces or data of other users."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, (RequestValidationError, ValidationError)):
        # name the wrong fields; their values may be anything and are not repeated
        messages = []
        for entry in error.errors()[:5]:
            field = ".".join(str(part) for part in entry["loc"] if part != "body")[:200]
            messages.append(f"{field}: {entry['msg']}" if field else str(entry["msg"]))
        return Refused(422, "invalid", "; ".join(messages))
    if isinstance(error, HTTPException):
        kind = {404: "not-found", 405: "method"}.get(error.status_code, "bad-request")
        return Refused(error.status_code, kind, str(error.detail), dict(error.headers or {}))
    if isinstance(error, StoreError):
        return Refused(503, "store-unavailable", str(error), {"retry-after": "1"})
    if isinstance(error, UnknownIdError):
        return Refused(404, "unknown-id", str(error))
    if isinstance(error, EquipoiseError) and not isinstance(error, NotFittedError):
        return Refused(422, "invalid", str(error))
    return Refused(500, "internal", "Internal error; see the server log.")


class Guard:
    """Middleware; it puts the request and its id into ``scope["state"]``.

    Our HTTP protocol starts the requests in `at_once` (method and path) without a task.
    """

    at_once: frozenset[tuple[str, str]] = frozenset()

    def __init__(self, app: App, config: Config, telemetry: Telemetry) -> None:
        self._app = app
        self._config, self._limits = config, config.limits
        self._gate, self.telemetry = Gate(config), telemetry
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        is_bulk = (scope["method"], scope["path"]) in BULK
        limit = self._limits.bulk if is_bulk else self._limits.body
        call = Call(scope, receive, send, limit, self._limits.timeout, in_parts=is_bulk)
        self._open += 1
        try:
            self._enter(call)
            await self._app(scope, call.receive, call.send)
        except Exception as error:
            refused = as_refused(error)
            if refused.status_code == 500 and call.status != 500:  # else it is logged already
                logger.exception("request failed", extra={"fields": {"request": call.id}})
            if call.status == 0:
                await call.refuse(refused)
        finally:
            self._open -= 1
            self._count(call, time.perf_counter() - start)

    def _enter(self, call: Call) -> None:
        scope, headers = call.scope, call.headers
        if self._open > self._limits.connections:
            raise Refused(503, "busy", "too many requests at once", {"retry-after": "1"})
        client = (scope.get("client") or ("", 0))[0]
        _check_path(scope)
        state = scope.setdefault("state", {})
        state["request"], state["call"] = call.id, call
        bearer = self._gate.enter(
            scope["method"],
            scope["path"],
            client,
            authorization=headers.get(b"authorization", b"").decode("latin-1"),
            host=headers.get(b"host", b"").decode("latin-1"),
            origin=headers.get(b"origin", b"").decode("latin-1"),
        )
        if bearer is not None:
            call.bearer = bearer.name
        if scope["method"] in BODIED:
            length = headers.get(b"content-length", b"0")
            if length.isdigit() and int(length) > call.limit:
                raise too_large(call.limit)
            kinds = BULK.get((scope["method"], scope["path"]), (JSON,))
            kind = headers.get(b"content-type", kinds[0].encode()).split(b";")[0].strip()
            if kind.decode("latin-1").lower() not in kinds:
                raise Refused(415, "media-type", f"send {' or '.join(kinds)}")

    def _count(self, call: Call, seconds: float) -> None:
        route = getattr(call.scope.get("route"), "path", "other")
        status = call.status or 499  # the client went away
        method = call.scope["method"]
        self.telemetry.request(
            RequestEntry(time.time(), call.id, method, route, status, seconds, call.bearer)
        )


def _check_path(scope: Scope) -> None:
    """Refuse a path that is not UTF-8; all such ids would decode to the same text."""
    if "\ufffd" not in scope["path"]:
        return
    try:
        unquote_to_bytes(scope["raw_path"]).decode()
    except UnicodeDecodeError:
        raise Refused(400, "bad-request", "the path is not UTF-8; encode ids as UTF-8") from None


def too_large(limit: int) -> Refused:
    """Return the answer to a body that is too large."""
    return Refused(413, "too-large", f"a body has at most {limit:,} bytes")


class Call:
    """One request: enforces the limits on its body and adds headers to its answer.

    The body has to arrive within `timeout`, or each part of it with `in_parts`.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        limit: int,
        timeout: float,
        *,
        in_parts: bool = False,
    ) -> None:
        self.scope = scope
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        name = self.headers.get(b"x-request-id", b"").decode("latin-1")
        is_valid = 8 <= len(name) <= 64 and name.isascii() and name.replace("-", "").isalnum()
        self.id = name if is_valid else short_id()
        self.bearer = ""
        self.status = 0
        self._receive, self._send = receive, send
        extensions = scope.get("extensions")
        self._exchange = extensions.get(EXCHANGE) if extensions else None
        self._is_sized = False  # whether the answer has a length and leaves the connection open
        self._start: Message | None = None  # of the answer, held back until its body is known
        self.limit, self._size, self._is_complete = limit, 0, False
        self._timeout, self._in_parts = timeout, in_parts
        self._end = asyncio.get_running_loop().time() + timeout

    async def receive(self) -> Message:
        """Return the next part of the body."""
        if self._is_complete:
            return await self._receive()
        body = self.take_body()
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        if self._in_parts:
            self._end = asyncio.get_running_loop().time() + self._timeout
        try:
            async with asyncio.timeout_at(self._end):
                message = await self._receive()
        except TimeoutError:
            raise Refused(408, "timeout", "the body did not arrive in time") from None
        self._size += len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)
        if self._size > self.limit:
            raise too_large(self.limit)
        return message

    def take_body(self) -> bytes | None:
        """Return the rest of the body if all of it has arrived, else None."""
        if self._exchange is None or self._is_complete:
            return None
        body: bytes | None = self._exchange.take_body()
        if body is not None:
            self._is_complete = True
            if self._size + len(body) > self.limit:
                raise too_large(self.limit)
        return body

    def answer(self, body: bytes) -> bool:
        """Send JSON in one step; False if that has to be done with messages."""
        length = b"content-length", b"%d" % len(body)
        headers = (JSON_TYPE, length, (b"x-request-id", self.id.encode()), *HEADERS)
        if self._exchange is None or not self._exchange.answer(200, headers, body):
            return False
        self.status = 200
        return True

    async def send(self, message: Message) -> None:
        """Send a part of the answer, with further headers; the start goes with the body."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message["headers"], (b"x-request-id", self.id.encode()), HEADERS[0]]
            names = dict(message["headers"])
            if b"cache-control" not in names:
                headers.append(HEADERS[1])
            if names.get(b"content-type", b"").startswith(b"text/html"):
                headers += PAGE_HEADERS
            self._start = {**message, "headers": headers}
            self._is_sized = b"content-length" in names and b"connection" not in names
            return
        start, self._start = self._start, None
        if start is not None:
            is_whole = self._is_sized and not message.get("more_body", False)
            if is_whole and self._exchange is not None:
                body = message.get("body", b"")
                if self._exchange.answer(start["status"], start["headers"], body):
                    return
            await self._send(start)
        await self._send(message)

    async def refuse(self, refused: Refused) -> None:
        """Answer with problem details."""
        details = problem(refused.status_code, refused.kind, refused.detail, self.id)
        headers = [
            (name.encode(), value.encode()) for name, value in (refused.headers or {}).items()
        ]
        if refused.status_code in (408, 413):
            headers.append((b"connection", b"close"))  # the rest of the body is not read
        await send_json(self.send, to_json(details), refused.status_code, headers)


async def send_json(
    send: Send, body: bytes, status: int = 200, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Send an answer; problem details from status 400 on."""
    kind = b"application/problem+json" if status >= 400 else b"application/json"
    start = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})
