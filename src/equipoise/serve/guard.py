"""ASGI middleware around all routes: request ids, tokens, limits, errors, logs and metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote_to_bytes

from equipoise.errors import EquipoiseError, NotFittedError, UnknownIdError
from equipoise.serve.config import Config
from equipoise.serve.security import HEADERS, PAGE_HEADERS, Gate, Refused
from equipoise.serve.store import StoreError
from equipoise.serve.telemetry import Telemetry

logger = logging.getLogger("equipoise.serve")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
BODIED = ("POST", "PUT", "PATCH")


def problem(status: int, kind: str, detail: str, instance: str) -> dict[str, Any]:
    """Return the problem details of an error (RFC 9457)."""
    title = HTTPStatus(status).phrase
    kind = f"urn:equipoise:problem:{kind}"
    return {"type": kind, "title": title, "status": status, "detail": detail, "instance": instance}


def as_refused(error: Exception) -> Refused:
    """Return the answer to an error, without paths, traces or data of other users."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, StoreError):
        return Refused(503, "store-unavailable", str(error), {"retry-after": "1"})
    if isinstance(error, UnknownIdError):
        return Refused(404, "unknown-id", str(error))
    if isinstance(error, EquipoiseError) and not isinstance(error, NotFittedError):
        return Refused(422, "invalid", str(error))
    return Refused(500, "internal", "Internal error; see the server log.")


class Guard:
    """Middleware; it puts the id of the request into ``scope["state"]``."""

    def __init__(self, app: App, config: Config, telemetry: Telemetry) -> None:
        self._app = app
        self._config, self._limits = config, config.limits
        self._gate, self.telemetry = Gate(config), telemetry
        self._open = 0
        self._metrics: dict[tuple[str, int], Any] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        call = Call(scope, receive, send, self._limits.body, self._limits.timeout)
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
        names = ("authorization", "host", "origin")
        values = {name: headers.get(name.encode(), b"").decode("latin-1") for name in names}
        scope.setdefault("state", {})["request"] = call.id
        bearer = self._gate.enter(scope["method"], scope["path"], client, **values)
        call.bearer = bearer.name if bearer is not None else ""
        if scope["method"] in BODIED:
            length = headers.get(b"content-length", b"0")
            if length.isdigit() and int(length) > self._limits.body:
                raise too_large(self._limits.body)
            kind = headers.get(b"content-type", b"application/json").split(b";")[0].strip()
            if (
                kind.lower() != b"application/json"
            ):  # HTML forms of other sites can send other types
                raise Refused(415, "media-type", "send application/json")

    def _count(self, call: Call, seconds: float) -> None:
        route = getattr(call.scope.get("route"), "path", "other")
        status = call.status or 499  # the client went away
        key = (route, status)
        if key not in self._metrics:
            counter = self.telemetry.requests.labels(route, str(status))
            self._metrics[key] = counter, self.telemetry.seconds.labels(route)
        counter, times = self._metrics[key]
        counter.inc()
        times.observe(seconds)
        if self._config.access_log:
            fields = {
                "request": call.id,
                "method": call.scope["method"],
                "route": route,
                "status": status,
                "ms": round(1000 * seconds, 2),
                "token": call.bearer,
            }
            logger.info("request", extra={"fields": fields})


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
    """One request: enforces the limits on its body and adds headers to its answer."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, limit: int, timeout: float
    ) -> None:
        self.scope = scope
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        name = self.headers.get(b"x-request-id", b"").decode("latin-1")
        is_valid = 8 <= len(name) <= 64 and name.isascii() and name.replace("-", "").isalnum()
        self.id = name if is_valid else secrets.token_hex(8)
        self.bearer = ""
        self.status = 0
        self._receive, self._send = receive, send
        self._limit, self._size, self._is_complete = limit, 0, False
        self._end = asyncio.get_running_loop().time() + timeout

    async def receive(self) -> Message:
        """Return the next part of the body."""
        if self._is_complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._end):
                message = await self._receive()
        except TimeoutError:
            raise Refused(408, "timeout", "the body did not arrive in time") from None
        self._size += len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)
        if self._size > self._limit:
            raise too_large(self._limit)
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer, with further headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message["headers"], (b"x-request-id", self.id.encode()), HEADERS[0]]
            if not any(name == b"cache-control" for name, _ in headers):
                headers.append(HEADERS[1])
            if any(v.startswith(b"text/html") for n, v in headers if n == b"content-type"):
                headers += PAGE_HEADERS
            message = {**message, "headers": headers}
        await self._send(message)

    async def refuse(self, refused: Refused) -> None:
        """Answer with problem details."""
        details = problem(refused.status_code, refused.kind, refused.detail, self.id)
        body = json.dumps(details).encode()
        headers = [
            (b"content-type", b"application/problem+json"),
            (b"content-length", str(len(body)).encode()),
            *((name.encode(), value.encode()) for name, value in (refused.headers or {}).items()),
        ]
        if refused.status_code in (408, 413):
            headers.append((b"connection", b"close"))  # the rest of the body is not read
        start = {"type": "http.response.start", "status": refused.status_code, "headers": headers}
        await self.send(start)
        await self.send({"type": "http.response.body", "body": body})
