"""Access control: tokens, roles, rate limits, and access without tokens."""

from __future__ import annotations

import functools
import hashlib
import hmac
import ipaddress
import re
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass

from fastapi import HTTPException

from equipoise.serve.config import ROLES, Config, is_loopback

OPEN = {"/healthz", "/readyz", "/", "/docs", "/openapi.json"}
# paths for the roles "read" and "write"; anything else needs "admin"
READ_PATHS = {
    *("/v1/similar", "/v1/trending", "/v1/users", "/v1/items", "/v1/models", "/v1/model")
}
READ_PREFIXES = ("/v1/recommend/", "/v1/users/", "/v1/items/")
READ_POSTS = {"/v1/recommend", "/v1/recommend:batch", "/v1/explain", "/v1/score"}
WRITE_POSTS = {"/v1/events", "/v1/items"}
WRITE_PREFIXES = {"PUT": ("/v1/items/",), "DELETE": ("/v1/users/", "/v1/events/")}
ADDRESSES = 10_000  # clients whose rate is tracked
WRONG_BURST, WRONG_RATE = 20.0, 0.5  # wrong tokens per address: at once, then per second
IDS = 256  # random ids made at once
HOSTS = re.compile(r"(localhost|127(?:\.\d{1,3}){3}|\[::1\])(:\d+)?", re.IGNORECASE)
# only scripts and styles of the page itself; no frames, no MIME sniffing
PAGE_HEADERS = (
    (b"content-security-policy", b"default-src 'none'; script-src 'self'; style-src 'self'; "
     b"connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
     b"frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)  # fmt: skip
HEADERS = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


_unused_ids: list[str] = []


def short_id() -> str:
    """Return 16 random hexadecimal digits; the system is asked for many of them at once."""
    try:
        return _unused_ids.pop()
    except IndexError:
        digits = secrets.token_hex(8 * IDS)
        ids = [digits[start : start + 16] for start in range(0, len(digits), 16)]
        _unused_ids.extend(ids[1:])
        return ids[0]


class Refused(HTTPException):
    """Raised to answer a request with problem details."""

    def __init__(
        self, status: int, kind: str, detail: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(status, detail, headers or {})
        self.kind = kind


@dataclass(frozen=True)
class Bearer:
    """Name and role of the sender of a request."""

    name: str
    role: str


def needed_role(method: str, path: str) -> str:
    """Return the role that a request needs; unlisted paths need the highest one.

    >>> needed_role("POST", "/v1/recommend"), needed_role("DELETE", "/v1/users/7")
    ('read', 'write')
    """
    if method in ("GET", "HEAD") and (path in READ_PATHS or path.startswith(READ_PREFIXES)):
        return "read"
    if method == "POST" and path in READ_POSTS:
        return "read"
    if method == "POST" and path in WRITE_POSTS:
        return "write"
    return "write" if path.startswith(WRITE_PREFIXES.get(method, ())) else "admin"


class Gate:
    """Checks tokens, roles and rates of requests."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._tokens = [
            (hashlib.sha256(token.secret.encode()).digest(), Bearer(token.name, token.role))
            for token in config.tokens
        ]
        rate = config.limits.rate / config.workers
        self._requests = Buckets(rate, max(2 * rate, 1.0)) if rate else None
        self._wrong_tokens = Buckets(WRONG_RATE, WRONG_BURST)

    def enter(
        self,
        method: str,
        path: str,
        client: str,
        *,
        authorization: str,
        host: str,
        origin: str,
    ) -> Bearer | None:
        """Return the sender of a request, None for public paths; raise if it is refused."""
        if not self._tokens:
            # a page of another site could resolve its own host name to this machine
            if not is_loopback(client) or not HOSTS.fullmatch(host):
                raise Refused(
                    403, "forbidden", "without tokens only this machine may send requests"
                )
            origins = ("", f"http://{host}", f"https://{host}", *self._config.cors)
            if origin not in origins and "*" not in origins:
                raise Refused(
                    403, "forbidden", "without tokens pages of other sites may not send requests"
                )
            bearer = Bearer("local", "admin")
        elif path in OPEN or path.startswith("/page/") or method == "OPTIONS":
            return None  # browsers send no token in a preflight request
        else:
            bearer = self._bearer(authorization, client)
        if ROLES.index(bearer.role) < ROLES.index(needed_role(method, path)):
            role = needed_role(method, path)
            raise Refused(403, "forbidden", f"this needs a token with the role {role!r}")
        sender = client if not self._tokens else bearer.name
        wait = 0.0 if self._requests is None else self._requests.take(sender)
        if wait:
            raise too_many("too many requests; wait a little", wait)
        return bearer

    def _bearer(self, authorization: str, client: str) -> Bearer:
        kind, _, secret = authorization.partition(" ")
        digest = hashlib.sha256(secret.strip().encode("utf-8", "replace")).digest()
        match = None
        for token_digest, bearer in self._tokens:  # all of them, in constant time
            if hmac.compare_digest(token_digest, digest):
                match = bearer
        if kind.lower() != "bearer" or match is None:
            # valid tokens never wait, so nobody can lock out other clients of an address
            wait = self._wrong_tokens.take(network(client)) if authorization else 0.0
            if wait:
                raise too_many("too many wrong tokens from this address; wait a little", wait)
            header = {"www-authenticate": "Bearer"}
            raise Refused(401, "unauthorized", "send a token: Authorization: Bearer ...", header)
        return match


class Buckets:
    """Token buckets: `burst` requests of a client at once, then `rate` per second.

    Beyond `ADDRESSES` clients the least recent ones are dropped.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> float:
        """Count one request; return the seconds to wait, 0 if it is within the rate."""
        now = time.monotonic()
        left, last = self._left.pop(client, (self._burst, now))
        left = min(self._burst, left + (now - last) * self._rate)
        self._left[client] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > ADDRESSES:
            self._left.popitem(last=False)
        return 0.0 if left >= 1 else (1 - left) / self._rate


def too_many(detail: str, wait: float) -> Refused:
    """Return a refusal that asks to wait this many seconds."""
    return Refused(429, "too-many-requests", detail, {"retry-after": str(max(1, round(wait)))})


@functools.lru_cache(1024)
def network(client: str) -> str:
    """Return the key of a client: its IPv4 address, or its IPv6 network.

    >>> network("192.0.2.7"), network("2001:db8::7")
    ('192.0.2.7', '2001:db8::/64')
    """
    if ":" not in client:
        return client
    try:
        return str(ipaddress.ip_network((client.partition("%")[0], 64), strict=False))
    except ValueError:
        return client
