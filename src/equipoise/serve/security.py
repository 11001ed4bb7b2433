"""Who may ask for what: tokens, roles, and what is allowed without any token."""

from __future__ import annotations

import functools
import hashlib
import hmac
import ipaddress
import re
import time
from collections import OrderedDict
from dataclasses import dataclass

from fastapi import HTTPException

from equipoise.serve.config import ROLES, Config, is_loopback

OPEN = {"/healthz", "/readyz", "/", "/docs", "/openapi.json"}
# what the roles "read" and "write" may ask for; anything else needs "admin"
READ_PATHS = {"/v1/similar", "/v1/users", "/v1/items", "/v1/models", "/v1/model"}
READ_PREFIXES = ("/v1/recommend/", "/v1/users/", "/v1/items/")
READ_POSTS = {"/v1/recommend", "/v1/recommend:batch", "/v1/explain", "/v1/score"}
WRITE_PREFIXES = {"PUT": "/v1/items/", "DELETE": "/v1/users/"}
ADDRESSES = 10_000  # clients whose rate is watched
WRONG_BURST, WRONG_RATE = 20.0, 0.5  # wrong tokens of an address: at once, and per second after
HOSTS = re.compile(r"(localhost|127(?:\.\d{1,3}){3}|\[::1\])(:\d+)?", re.IGNORECASE)
# scripts and styles of the page alone; nothing from elsewhere, no frames, no guessing of types
PAGE_HEADERS = (
    (b"content-security-policy", b"default-src 'none'; script-src 'self'; style-src 'self'; "
     b"connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
     b"frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)  # fmt: skip
HEADERS = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


class Refused(HTTPException):
    """A request that is answered by a problem."""

    def __init__(
        self, status: int, kind: str, detail: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(status, detail, headers or {})
        self.kind = kind


@dataclass(frozen=True)
class Bearer:
    """Who asks: a name for the log, and a role."""

    name: str
    role: str


def needed_role(method: str, path: str) -> str:
    """Return the role that a request needs; what is not listed needs the highest.

    >>> needed_role("POST", "/v1/recommend"), needed_role("DELETE", "/v1/users/7")
    ('read', 'write')
    """
    if method in ("GET", "HEAD") and (path in READ_PATHS or path.startswith(READ_PREFIXES)):
        return "read"
    if method == "POST" and path in READ_POSTS:
        return "read"
    if method == "POST" and path == "/v1/events":
        return "write"
    prefix = WRITE_PREFIXES.get(method)
    return "write" if prefix is not None and path.startswith(prefix) else "admin"


class Gate:
    """Lets requests in, or says why not."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._tokens = [
            (hashlib.sha256(each.secret.encode()).digest(), Bearer(each.name, each.role))
            for each in config.tokens
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
        """Return who asks, None for what is open to all; anything else is refused."""
        if not self._tokens:
            # a page of another site could name this machine by a name of its own
            if not is_loopback(client) or not HOSTS.fullmatch(host):
                raise Refused(403, "forbidden", "without tokens only this machine may ask")
            known = ("", f"http://{host}", f"https://{host}", *self._config.cors)
            if origin not in known and "*" not in known:
                raise Refused(403, "forbidden", "without tokens pages of other sites may not ask")
            bearer = Bearer("local", "admin")
        elif path in OPEN or path.startswith("/page/") or method == "OPTIONS":
            return None  # a browser sends no token when it asks whether a page may call
        else:
            bearer = self._bearer(authorization, client)
        if ROLES.index(bearer.role) < ROLES.index(needed_role(method, path)):
            role = needed_role(method, path)
            raise Refused(403, "forbidden", f"this needs a token with the role {role!r}")
        who = client if not self._tokens else bearer.name
        wait = 0.0 if self._requests is None else self._requests.take(who)
        if wait:
            raise too_many("too many requests; wait a little", wait)
        return bearer

    def _bearer(self, authorization: str, client: str) -> Bearer:
        kind, _, secret = authorization.partition(" ")
        digest = hashlib.sha256(secret.strip().encode("utf-8", "replace")).digest()
        found = None
        for known, bearer in self._tokens:  # all of them, so that time tells nothing
            if hmac.compare_digest(known, digest):
                found = bearer
        if kind.lower() != "bearer" or found is None:
            # none that is right waits, so nobody can lock out others behind the same address
            wait = self._wrong_tokens.take(network(client)) if authorization else 0.0
            if wait:
                raise too_many("too many wrong tokens from this address; wait a little", wait)
            header = {"www-authenticate": "Bearer"}
            raise Refused(401, "unauthorized", "send a token: Authorization: Bearer ...", header)
        return found


class Buckets:
    """Counts what each of many clients asks for: `burst` at once, then `rate` per second.

    The clients that have not asked for longest are dropped beyond `ADDRESSES` of them.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, who: str) -> float:
        """Count one request; return 0, or the seconds to wait where there were too many."""
        now = time.monotonic()
        left, last = self._left.pop(who, (self._burst, now))
        left = min(self._burst, left + (now - last) * self._rate)
        self._left[who] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > ADDRESSES:
            self._left.popitem(last=False)
        return 0.0 if left >= 1 else (1 - left) / self._rate


def too_many(detail: str, wait: float) -> Refused:
    """Return the answer to one who has to wait this many seconds."""
    return Refused(429, "too-many-requests", detail, {"retry-after": str(max(1, round(wait)))})


@functools.lru_cache(1024)
def network(client: str) -> str:
    """Return what one client has: an address of IPv4, or a network of IPv6.

    >>> network("192.0.2.7"), network("2001:db8::7")
    ('192.0.2.7', '2001:db8::/64')
    """
    if ":" not in client:
        return client
    try:
        return str(ipaddress.ip_network((client.partition("%")[0], 64), strict=False))
    except ValueError:
        return client
