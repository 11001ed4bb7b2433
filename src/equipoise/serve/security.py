"""Who may ask for what: tokens, roles, tenants, and what is allowed without any token."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections import OrderedDict
from dataclasses import dataclass

from fastapi import HTTPException

from equipoise.serve.config import DEFAULT, ROLES, Config, is_loopback

TENANT = re.compile(r"/v1/t/([^/]+)(/.*)", re.DOTALL)
OPEN = {"/healthz", "/readyz", "/", "/docs", "/openapi.json"}
# what the roles "read" and "write" may ask for; anything else needs "admin"
READ_PATHS = {"/v1/similar", "/v1/users", "/v1/items", "/v1/models", "/v1/model"}
READ_PREFIXES = ("/v1/recommend/", "/v1/users/", "/v1/items/")
READ_POSTS = {"/v1/recommend", "/v1/recommend:batch", "/v1/explain", "/v1/score"}
WRITE_PREFIXES = {"PUT": "/v1/items/", "DELETE": "/v1/users/"}
ADDRESSES = 10_000  # clients whose rate is watched
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
    """Who asks: a name for the log, a role and a tenant."""

    name: str
    role: str
    tenant: str


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
            (
                hashlib.sha256(each.secret.encode()).digest(),
                Bearer(each.name, each.role, each.tenant),
            )
            for each in config.tokens
        ]
        self._rate = config.limits.rate / config.workers
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def tenant_and_path(self, path: str) -> tuple[str, str]:
        """Return the tenant that a path names, and the path without it."""
        found = TENANT.fullmatch(path)
        if found is None:
            return DEFAULT, path
        return found[1], f"/v1{found[2]}"

    def enter(
        self,
        method: str,
        path: str,
        tenant: str,
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
            bearer = Bearer("local", "admin", tenant)
        elif path in OPEN or path.startswith("/page/") or method == "OPTIONS":
            return None  # a browser sends no token when it asks whether a page may call
        else:
            bearer = self._bearer(authorization)
        # an unknown tenant and another one's look the same
        if tenant not in self._config.folders or bearer.tenant != tenant:
            raise Refused(404, "unknown-tenant", "there is no such tenant for this token")
        if ROLES.index(bearer.role) < ROLES.index(needed_role(method, path)):
            role = needed_role(method, path)
            raise Refused(403, "forbidden", f"this needs a token with the role {role!r}")
        self._count(client if not self._tokens else bearer.name)
        return bearer

    def _bearer(self, authorization: str) -> Bearer:
        kind, _, secret = authorization.partition(" ")
        digest = hashlib.sha256(secret.strip().encode("utf-8", "replace")).digest()
        found = None
        for known, bearer in self._tokens:  # all of them, so that time tells nothing
            if hmac.compare_digest(known, digest):
                found = bearer
        if kind.lower() != "bearer" or found is None:
            header = {"www-authenticate": "Bearer"}
            raise Refused(401, "unauthorized", "send a token: Authorization: Bearer ...", header)
        return found

    def _count(self, who: str) -> None:
        """Let `rate` requests a second through, twice as many at once."""
        if not self._rate:
            return
        now, burst = time.monotonic(), max(2 * self._rate, 1.0)
        left, last = self._buckets.pop(who, (burst, now))
        left = min(burst, left + (now - last) * self._rate)
        self._buckets[who] = (left - 1 if left >= 1 else left, now)
        if len(self._buckets) > ADDRESSES:
            self._buckets.popitem(last=False)
        if left < 1:
            wait = {"retry-after": str(max(1, round((1 - left) / self._rate)))}
            raise Refused(429, "too-many-requests", "too many requests; wait a little", wait)
