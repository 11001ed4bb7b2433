"""Tokens, roles, hosts, headers, rates."""

from __future__ import annotations

import logging
import time
from typing import Any
from urllib.parse import quote

import pytest
from tests.serve.conftest import Serve

from equipoise.errors import SettingError
from equipoise.serve.config import Config
from equipoise.serve.security import Buckets, network

SECRETS = {role: f"a-long-secret-for-{role}" for role in ("read", "write", "admin")}
TOKENS = [{"name": role, "secret": secret, "role": role} for role, secret in SECRETS.items()]
ROUTES_BY_ROLE = [
    ("GET", "/v1/recommend/u5", "read"),
    ("POST", "/v1/recommend", "read"),
    ("GET", "/v1/models", "read"),
    ("POST", "/v1/events", "write"),
    ("PUT", "/v1/items/3", "write"),
    ("DELETE", "/v1/users/u5", "write"),
    ("GET", "/v1/events", "admin"),
    ("GET", "/v1/export/events", "admin"),
    ("GET", "/metrics", "admin"),
    ("POST", "/v1/admin/reload", "admin"),
    ("GET", "/v1/admin/overview", "admin"),
    ("GET", "/v1/admin/experiment", "admin"),
]
BODIES: dict[str, Any] = {
    "/v1/recommend": {"user": "u5"},
    "/v1/events": {"events": [{"user": "a", "item": 3}]},
    "/v1/items/3": {},
}


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


@pytest.mark.parametrize(("method", "path", "needed"), ROUTES_BY_ROLE)
def test_a_role_allows_its_routes(served: Serve, method: str, path: str, needed: str) -> None:
    api = served(tokens=TOKENS)
    options = {"json": BODIES[path]} if path in BODIES else {}
    assert api.request(method, path, **options).status_code == 401
    wrong = api.request(method, path, headers=bearer("a-long-secret-for-nobody"), **options)
    assert wrong.status_code == 401
    assert wrong.headers["www-authenticate"] == "Bearer"
    roles = list(SECRETS)
    for role in roles:
        answer = api.request(method, path, headers=bearer(SECRETS[role]), **options)
        allowed = roles.index(role) >= roles.index(needed)
        assert answer.status_code == (200 if allowed else 403), (role, answer.text)


# put after, before or into a path; each must be the same path to the check of roles and the routes
TRICKS = ["%0A", "%0D", "%0D%0A", "%00", "%2F", "/", "//", "%E2%80%A8", "%E2%80%A9", "%C2%85", ";",
          ";a=b", "%3B", "%20", "%09", "?", "%3F", "%23", ".", "/.", "/..", "%2e%2e", "%5C", "%ff",
          "%0A%0A", "%0B", "%1C", "%EF%BF%BD"]  # fmt: skip
METHODS = ["GET", "POST", "PUT", "DELETE"]  # what routes have; others are tried on plain paths


def tricky_paths() -> list[str]:
    """Return paths that look like the ones that need more than the role read."""
    paths = []
    for _, path, needed in ROUTES_BY_ROLE:
        if needed == "read":
            continue
        paths += [path, path.upper(), f"/{path}", f"/v1/t/default{path.removeprefix('/v1')}"]
        for trick in TRICKS:
            head, _, last = path.rpartition("/")
            paths += [path + trick, f"{head}/{trick}{last}", f"{head}{trick}/{last}"]
            paths.append(f"/v1/t/default{path.removeprefix('/v1')}{trick}")
    return paths


def test_paths_of_tenants_are_gone(served: Serve) -> None:
    for path in ("/v1/t/default/models", "/v1/t/other/recommend/u5"):
        answer = served().get(path)
        assert answer.status_code == 404
        assert answer.json()["type"].endswith(":not-found")


def test_no_spelling_of_a_path_gets_past_the_roles(served: Serve) -> None:
    api = served(tokens=TOKENS)
    headers, admin = bearer(SECRETS["read"]), bearer(SECRETS["admin"])
    store = api.state.store
    api.post("/v1/events", {"events": [{"user": "u5", "item": 3}]}, headers=admin)
    versions = api.get("/v1/models", headers=admin).json()["models"]
    plain = [path for _, path, needed in ROUTES_BY_ROLE if needed != "read"]
    requests = [(method, path) for path in tricky_paths() for method in METHODS]
    requests += [
        (method, path) for path in plain for method in ("HEAD", "PATCH", "OPTIONS", "TRACE")
    ]
    for method, path in requests:
        events = {"events": [{"user": "x", "item": 3}]} if "event" in path else {}
        options = {"json": events} if method in ("POST", "PUT", "PATCH") else {}
        answer = api.request(method, path, headers=headers, **options)
        assert answer.status_code < 500, (method, path, answer.text)
        if method != "GET":
            assert answer.status_code >= 400, (method, path)
        assert "equipoise_requests_total" not in answer.text, (method, path)
        assert "buckets" not in answer.text, (method, path)
    assert store.counts() == {"events": 1, "seen": 0, "lists": 0}
    assert store.live("u5").forgotten == 0
    assert store.all_attributes() == {}
    assert api.get("/v1/models", headers=admin).json()["models"] == versions


@pytest.mark.parametrize(
    "name", ["a\n", "\na", "a\nb", "a\r\n", "\n", " a\u2028", "a/", "//a", ";"]
)
def test_an_id_that_is_taken_can_be_read_and_deleted(served: Serve, name: str) -> None:
    api = served()
    api.post("/v1/events", {"events": [{"user": "a", "item": 3}]})
    sent = api.post("/v1/events", {"events": [{"user": name, "item": name}]})
    assert sent.status_code == 200, sent.text
    place = quote(name, safe="")
    user = api.get(f"/v1/users/{place}").json()
    assert (user["user"], user["events"]) == (name, 1)
    assert api.get(f"/v1/recommend/{place}").json()["user"] == name
    assert api.put(f"/v1/items/{place}", {"category": "new"}).status_code == 200
    assert api.get(f"/v1/items/{place}").json()["detail"] == f"unknown item {name!r}"
    assert list(api.state.store.all_attributes()) == [name]
    forgotten = {"user": name, "removed": 1, "remains": []}
    assert api.delete(f"/v1/users/{place}").json() == forgotten
    assert api.get(f"/v1/users/{place}").json()["events"] == 0
    assert api.get("/v1/users/a").json()["events"] == 1


def test_a_path_that_is_not_utf8_is_refused(served: Serve) -> None:
    api = served()
    answer = api.delete("/v1/users/%ff")
    assert answer.status_code == 400
    assert "UTF-8" in answer.json()["detail"]
    assert api.get(f"/v1/users/{quote(chr(0xFFFD))}").status_code == 200


def test_public_routes_need_no_token(served: Serve) -> None:
    api = served(tokens=TOKENS)
    for path in ("/", "/docs", "/openapi.json", "/healthz", "/readyz", "/page/page.js"):
        assert api.get(path).status_code == 200, path


def test_without_tokens_only_this_machine_may_send_requests(served: Serve) -> None:
    api = served(address="192.0.2.7")
    assert api.get("/v1/models").status_code == 403
    assert api.get("/healthz").status_code == 403
    local = served()
    assert local.get("/v1/models", headers={"host": "evil.example"}).status_code == 403
    assert local.get("/v1/models", headers={"host": "localhost:8000"}).status_code == 200


def test_secrets_are_neither_shown_nor_logged(
    served: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    api = served(tokens=TOKENS, access_log=True)
    api.get("/v1/models", headers=bearer(SECRETS["admin"]))
    api.get("/v1/models", headers=bearer("a-long-secret-for-nobody"))
    api.settle()
    logged = " ".join(str(vars(record)) for record in caplog.records)
    assert "'token': 'admin'" in logged
    assert "a-long-secret" not in logged
    config = Config.read(None, {"models": {"default": "x"}, "tokens": TOKENS})
    assert "a-long-secret" not in repr(config)


def test_other_sites_are_refused_unless_named_in_cors(served: Serve) -> None:
    origin = {"origin": "https://shop.example"}
    assert "access-control-allow-origin" not in served().get("/v1/models", headers=origin).headers
    api = served(cors=["https://shop.example"])
    answer = api.get("/v1/models", headers=origin)
    assert answer.headers["access-control-allow-origin"] == "https://shop.example"
    other = api.get("/v1/models", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers


def test_a_page_of_another_site_cannot_write_to_a_local_service(served: Serve) -> None:
    def sent(api: Any, origin: str) -> int:
        # a browser sends this without asking first
        return int(api.post("/v1/admin/reload", headers={"origin": origin}).status_code)

    api = served()
    for origin in ("https://evil.example", "http://127.0.0.1:81", "null"):
        assert sent(api, origin) == 403
    assert sent(api, "http://127.0.0.1") == 200
    assert sent(served(cors=["https://shop.example"]), "https://shop.example") == 200


def test_a_page_of_a_named_site_may_send_tokens(served: Serve) -> None:
    api = served(cors=["https://shop.example"], tokens=TOKENS)
    asks = {"origin": "https://shop.example", "access-control-request-method": "POST"}
    asks["access-control-request-headers"] = "authorization,content-type"
    answer = api.request("OPTIONS", "/v1/recommend", headers=asks)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://shop.example"
    assert api.request("OPTIONS", "/v1/recommend").status_code == 405


def test_the_page_has_headers_that_keep_others_out(served: Serve) -> None:
    headers = served().get("/").headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


def test_a_rate_is_kept_to(served: Serve) -> None:
    api = served(limits={"rate": 0.01})
    assert api.get("/healthz").status_code == 200
    answer = api.get("/v1/models")
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 1


def test_wrong_tokens_of_an_address_are_limited_and_valid_ones_work(served: Serve) -> None:
    api = served(address="192.0.2.7", tokens=TOKENS)
    statuses = []
    for number in range(60):
        wrong = bearer(f"a-long-secret-guess-{number}")
        answer = api.get("/v1/models", headers=wrong)
        statuses.append(answer.status_code)
        assert api.get("/v1/models", headers=bearer(SECRETS["read"])).status_code == 200
        assert api.get("/healthz", headers=wrong).status_code == 200
    first = statuses.index(429)
    assert 5 <= first <= 40
    assert set(statuses[:first]) == {401}
    assert statuses[first:].count(429) > 10
    assert int(answer.headers["retry-after"]) >= 1
    assert "too many wrong tokens" in answer.json()["detail"]
    basic = {"authorization": "Basic YWRtaW46YWRtaW4="}
    assert api.get("/v1/models", headers=basic).status_code == 429
    assert api.get("/v1/models").status_code == 401  # nobody guesses by sending none
    api.address = "192.0.2.8"
    assert api.get("/v1/models", headers=wrong).status_code == 401


def test_the_table_of_addresses_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.serve.security.ADDRESSES", 50)
    buckets = Buckets(1.0, 1.0)
    for number in range(500):
        assert buckets.take(f"192.0.2.{number}") == 0.0
    assert len(buckets._left) == 50
    assert buckets.take("192.0.2.499") > 0
    quick = Buckets(200.0, 1.0)
    assert quick.take("a") == 0.0
    time.sleep(0.01)
    assert quick.take("a") == 0.0
    assert network("2001:db8::1") == network("2001:db8::ffff:1") != network("2001:db8:0:1::1")


def test_an_internal_error_reveals_nothing(served: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    api = served()

    def broken(*_: object) -> None:
        raise RuntimeError("secret path /home/shop")

    monkeypatch.setattr(api.state.store, "live", broken)
    answer = api.get("/v1/recommend/u5")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.json()["type"].endswith(":internal")


def test_a_valid_request_id_is_kept(served: Serve) -> None:
    api = served()
    answer = api.get("/healthz", headers={"x-request-id": "abcd-1234-efgh"})
    assert answer.headers["x-request-id"] == "abcd-1234-efgh"
    other = api.get("/healthz", headers={"x-request-id": "no-sound-id!"})
    assert "!" not in other.headers["x-request-id"]


def test_a_service_for_others_needs_tokens() -> None:
    with pytest.raises(SettingError, match="without tokens"):
        Config.read(None, {"models": {"default": "x"}, "host": "0.0.0.0"})
