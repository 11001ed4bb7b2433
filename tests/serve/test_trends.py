"""The live trend: recent users are counted with every event, in all workers, each user once."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.serve.conftest import DAY, ITEMS, Api, Serve, Start
from tests.serve.test_store import event

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.serve.folding import fold
from equipoise.serve.security import needed_role
from equipoise.serve.state import Catalogue, Served, State, allowed_items
from equipoise.serve.store import Store, StoreError
from equipoise.serve.trends import Cursor, LiveTrend

FRESH = 1.0  # seconds within which an event counts in the lists of every worker


@pytest.fixture
def store(tmp_path: Path) -> Any:
    opened = Store(f"sqlite:///{tmp_path}/x.db")
    yield opened
    opened.close()


def counts_in(served: Served, store: Store) -> dict[str, float]:
    served.follow(store, completely=True)
    assert served.trend is not None
    return dict(zip(served.ids, served.trend.counts.tolist(), strict=True))


def top(served: Served, items: list[str], k: int = 5) -> list[Any]:
    history = served.history_of_items(items)
    allowed = allowed_items(served, Catalogue(served, {}))
    return [
        served.ids[place]
        for place in served.top(history, k, allowed, hidden=history.hidden).places
    ]


def burst(item: str, n_users: int, name: str = "visitor") -> list[dict[str, Any]]:
    return [{"user": f"{name} {n}", "item": item} for n in range(n_users)]


def rarest(log: Interactions) -> str:
    return str(log.items[int(np.argmin(log.item_counts))])


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + FRESH
    while not is_true():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)


def test_live_counts_are_those_of_the_model_after_an_update(trended: Path, store: Store) -> None:
    now = time.time()
    served = Served.open("m", str(trended), store)
    parts: list[list[Any]] = [
        [
            event(1, "u1", "item 3", time=now - 3 * DAY),
            event(2, "u1", "item 3", time=now - DAY),
            event(3, "u1", "item 3", time=now - 2 * DAY),  # an earlier use arrives later
            event(4, "new", "item 4", time=now),
            event(5, "new", "an item no model knows", time=now),
        ],
        [
            event(6, "u2", "item 5", time=now - 100 * DAY),
            event(7, "u3", "item 11", weight=-1.0, time=now),  # a dislike removes the pair
            event(8, "new", "item 6", time=now),
            event(9, "new", "item 6", weight=-1.0, time=now),
            event(10, "u4", "item 7", weight=0.0, time=now),  # of no value
        ],
        [event(11, "u7", "item 8", time=now), event(12, "u8", "item 8", time=now)],
    ]
    for part in parts:
        store.do(store.add(part))
        counts_in(served, store)
    store.do(store.forget("u7"))
    store.do(store.add([event(13, "u7", "item 9", time=now - DAY)]))
    live = counts_in(served, store)

    model = eq.load(trended)
    assert fold(model, store.since(model.data_fingerprint_))
    after = dict(zip(model.data_.items.tolist(), model.trend_.counts.tolist(), strict=True))
    del after["an item no model knows"]
    assert live == pytest.approx(after, rel=1e-9, abs=1e-12)

    # a service that starts now counts the same, and the updated model counts nothing twice
    again = Served.open("m", str(trended), store)
    assert counts_in(again, store) == pytest.approx(live, rel=1e-9, abs=1e-12)
    store.keep_folded(model.data_fingerprint_, store.since("none"))
    model.save(trended.parent / "updated")
    updated = Served.open("m", str(trended.parent / "updated"), store)
    assert counts_in(updated, store) == dict(
        zip(updated.ids, model.trend_.counts.tolist(), strict=True)
    )
    assert updated.ranking.model is updated.model


def test_a_user_moves_an_item_by_at_most_one(trended: Path, store: Store) -> None:
    served = Served.open("m", str(trended), store)
    before = counts_in(served, store)
    now = time.time()
    flood = [event(n, "flooder", "item 0", time=now - DAY + n) for n in range(500)]
    flood += [event(1000 + n, "flooder", "item 0", time=now + DAY / 2) for n in range(500)]
    store.do(store.add(flood))
    after = counts_in(served, store)
    assert after["item 0"] == pytest.approx(1.0, abs=before["item 0"])
    assert after["item 0"] <= before["item 0"] + 1
    others = [item for item in ITEMS if item != "item 0" and before[item] > 0]
    decay = {after[item] / before[item] for item in others}
    # a time ahead of the clock counts as now, and all items decay alike
    assert min(decay) == pytest.approx(max(decay))
    last_use = served.data.events.times.max()
    assert min(decay) == pytest.approx(2 ** ((last_use - now) / (2 * DAY)), rel=1e-3)


def test_a_burst_is_in_the_next_lists(trended: Path, store: Store, log: Interactions) -> None:
    served = Served.open("m", str(trended), store)
    item = rarest(log)
    history = [str(log.items[int(np.argmax(log.item_counts))])]
    before = top(served, history), top(served, [])
    assert item not in before[0][:3] + before[1][:3]
    explained = served.reasons(served.history_of_items(history), np.array([1]), None)
    now = time.time()
    store.do(store.add([event(n, f"v{n}", item, time=now) for n in range(200)]))
    served.follow(store, completely=True)
    assert top(served, history)[0] == top(served, [])[0] == item
    # the same as of a model whose trend has these counts
    model = copy.copy(served.model)
    model.trend_ = model.trend_.with_counts(served.trend.counts)
    assert top(served, history) == model.recommend([history], k=5).items[0]
    assert top(served, []) == model.recommend([[]], k=5).items[0]
    reasons = served.reasons(served.history_of_items(history), np.array([1]), None)
    assert [place for place, _ in reasons[0]] == [place for place, _ in explained[0]]


def test_nothing_changes_while_nothing_happens(trended: Path, store: Store) -> None:
    served = Served.open("m", str(trended), store)
    ranking = served.ranking
    assert ranking.model is served.model
    assert served.follow(store, completely=False)
    assert served.ranking is ranking
    store.do(store.add([event(1, "v", "item 2", time=time.time())]))
    served.follow(store, completely=False)
    changed = served.ranking
    assert changed is not ranking
    served.follow(store, completely=False)
    assert served.ranking is changed


def test_long_backlogs_are_counted_in_parts(
    trended: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.serve.trends.AT_ONCE", 10)
    served = Served.open("m", str(trended), store)
    before = counts_in(served, store)["item 1"]
    now = time.time()
    store.do(store.add([event(n, f"v{n}", "item 1", time=now) for n in range(25)]))
    assert [served.follow(store, completely=False) for _ in range(3)] == [False, False, True]
    assert served.trend.counts[served.ids.index("item 1")] == pytest.approx(
        25 + before * 2 ** ((served.data.events.times.max() - now) / (2 * DAY))
    )
    fresh = Served.open("m", str(trended), store)
    np.testing.assert_allclose(fresh.trend.counts, served.trend.counts, rtol=1e-12)


def test_memory_of_uses_that_no_longer_matter_is_freed(
    trended: Path, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    monkeypatch.setattr("equipoise.serve.trends.MOST_USES", 10)
    trend = LiveTrend(eq.load(trended))
    now = time.time()
    old = [event(n, f"old {n}", "item 1", time=now - 90 * DAY) for n in range(30)]
    store.do(store.add([*old, *(event(100 + n, f"v{n}", "item 1") for n in range(30))]))
    trend.read(store)
    assert not trend._uses
    store.do(store.add([event(200, "v", "item 1", time=trend.last_use)]))
    before = trend.counts
    trend.read(store)
    assert (trend.counts - before).max() == pytest.approx(1)
    assert list(trend._uses) == ["v"]


def test_rows_whose_transaction_ends_later_are_read(url: str) -> None:
    store = Store(url)
    store.do(store.add([event(n, f"v{n}") for n in range(6)]))
    store.do(store.forget("v0"))
    cursor = Cursor(0)
    cursor.advance([1, 2, 5], has_gaps=True)
    assert cursor.last == 5
    assert cursor.missing == [3, 4]
    rows = store.arrivals(5, 0, cursor.missing, limit=100)
    missing = [] if store.is_local else [3, 4]  # SQLite has one writer at a time
    assert [row.number for row in rows if not row.is_forget] == [*missing, 6]
    assert rows[0].is_forget
    assert rows[0].user == "v0"
    cursor.advance([3, 6], has_gaps=True)
    assert (cursor.last, cursor.missing) == (6, [4])
    cursor.advance([10**9], has_gaps=True)
    assert len(cursor.missing) <= 1_000
    store.close()


def test_the_trend_of_a_store_of_each_kind(trended: Path, url: str) -> None:
    store = Store(url)
    served = Served.open("m", str(trended), store)
    before = counts_in(served, store)
    now = time.time()
    store.do(store.add([event(n, f"v{n}", "item 2", time=now) for n in range(5)]))
    store.do(store.forget("v3"))
    after = counts_in(served, store)
    assert after["item 2"] - before["item 2"] == pytest.approx(4, abs=before["item 2"])
    store.do(store.forget("v4"))
    assert counts_in(served, store)["item 2"] == pytest.approx(after["item 2"] - 1)
    store.close()


@pytest.fixture
def live(served: Serve, trended: Path, saved: Path, tmp_path: Path, log: Interactions) -> Api:
    """Return a service with the models `default`, with a trend, `plain`, and `timeless`."""
    eq.EASE(l2=5.0).fit(log).save(tmp_path / "plain")
    models = {"default": trended, "plain": tmp_path / "plain", "timeless": saved / "dan"}
    return served(models={name: str(folder) for name, folder in models.items()})


def test_trending_counts_users_of_live_events(live: Api, log: Interactions) -> None:
    item = rarest(log)
    for model, half_life in (("default", 2 * DAY), ("plain", 7 * DAY)):
        before = live.get(f"/v1/trending?k=12&model={model}").json()
        assert before["half_life"] == half_life
        users = {entry["item"]: entry["recent_users"] for entry in before["items"]}
        assert list(users.values()) == sorted(users.values(), reverse=True)
        ages = eq.EASE(l2=5.0, trend=eq.Trend(half_life=half_life)).fit(log).trend_.counts
        if model == "default":
            known = dict(zip(log.items.tolist(), ages.tolist(), strict=True))
            assert users == pytest.approx({name: known[name] for name in users})
        sent = burst(item, 60, model)
        assert live.post("/v1/events", {"events": sent * 2}).status_code == 200
        (first,) = live.get(f"/v1/trending?k=1&model={model}").json()["items"]
        assert (first["item"], first["rank"]) == (item, 1)
        assert 60 <= first["recent_users"] <= 61 + 60 * (model == "plain") + users.get(item, 0)
    live.delete(f"/v1/users/{sent[0]['user']}")
    (fewer,) = live.get("/v1/trending?k=1&model=plain").json()["items"]
    assert fewer["recent_users"] == pytest.approx(first["recent_users"] - 1)
    live.put(f"/v1/items/{item}", {"available": False})
    listed = live.get("/v1/trending").json()["items"]
    assert item not in [entry["item"] for entry in listed]
    refused = live.get("/v1/trending?model=timeless")
    assert refused.status_code == 422
    assert "have no times" in refused.json()["detail"]
    assert live.get("/v1/trending?k=1001").status_code == 422


def test_lists_follow_the_events_without_a_reload(live: Api, log: Interactions) -> None:
    item = rarest(log)

    def first(**query: Any) -> str:
        return str(live.post("/v1/recommend", {**query, "k": 1}).json()["items"][0]["item"])

    history = [str(log.items[int(np.argmax(log.item_counts))])]
    assert item not in (first(history=history), first(user="nobody"))
    plain = first(history=history, model="plain")
    similar = live.get(f"/v1/similar?item={history[0]}").json()["items"]
    live.post("/v1/events", {"events": burst(item, 200)})
    wait_until(lambda: first(history=history) == item)
    assert first(user="nobody") == item
    batch = live.post("/v1/recommend:batch", {"requests": [{"user": "nobody", "k": 1}]}).json()
    assert batch["answers"][0]["result"]["items"][0]["item"] == item
    assert first(history=history, model="plain") == plain
    assert live.get(f"/v1/similar?item={history[0]}").json()["items"] == similar
    scored = live.post("/v1/score", {"history": history, "items": ITEMS}).json()["scores"]
    assert max(scored, key=lambda entry: entry["score"])["item"] == item


def test_lists_follow_the_events_in_a_store_of_each_kind(
    served: Serve, trended: Path, url: str, log: Interactions
) -> None:
    api, item = served(models={"default": str(trended)}, store=url), rarest(log)
    assert api.get("/v1/recommend/nobody?k=1").json()["items"][0]["item"] != item
    api.state.store.do(
        api.state.store.add([event(n, f"v{n}", item, time=time.time()) for n in range(200)])
    )
    time.sleep(FRESH)
    assert api.get("/v1/recommend/nobody?k=1").json()["items"][0]["item"] == item
    assert api.get("/v1/trending?k=1").json()["items"][0]["item"] == item


def test_the_role_read_may_see_what_is_trending() -> None:
    assert needed_role("GET", "/v1/trending") == "read"
    assert needed_role("POST", "/v1/trending") == "admin"


def test_a_store_that_fails_leaves_the_trend_as_it_is(
    live: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise StoreError("the event store does not answer; try again")

    state: State = live.state
    ranking = state.model(None).ranking
    monkeypatch.setattr(state.store, "arrivals", fail)
    state._next_look = 0.0
    assert live.post("/v1/recommend", {"history": ["item 1"]}).status_code == 200
    assert state.model(None).ranking is ranking
    assert not state.trends_are_old()  # not tried again with the next request


def test_an_event_changes_the_trend_in_every_worker_within_a_second(
    trended: Path, start: Start, tmp_path: Path, log: Interactions
) -> None:
    item = rarest(log)
    service = start(trended, "--store", f"sqlite:///{tmp_path}/x.db", "--workers", "2")
    assert len(service.workers()) == 2

    def first() -> str:
        """Ask on a new connection, which the kernel gives to one of the workers."""
        answer = httpx.get(f"{service.address}/v1/recommend/nobody?k=1").json()
        return str(answer["items"][0]["item"])

    assert item not in {first() for _ in range(20)}
    with service.client() as client:
        client.add(burst(item, 200))
        accepted = time.monotonic()
        assert client.trending(1)["items"][0]["item"] == item
    time.sleep(max(0.0, accepted + FRESH - time.monotonic()))
    assert {first() for _ in range(40)} == {item}


def test_models_report_their_forecast(served: Serve, log: Interactions, tmp_path: Path) -> None:
    model = eq.EASE(l2=5.0).fit(log)
    model.save(tmp_path / "m")
    api = served(models={"default": str(tmp_path / "m")})
    facts = api.get("/v1/model").json()
    assert facts["forecast"] is None
    assert facts["half_life"] == 7 * DAY
    values = {"ndcg@20": {"value": 0.2, "low": 0.1, "high": 0.3}}
    verdict = "Popular lately is ahead by 0.05."
    estimate = {"protocol": "time", "values": values, "yardsticks": {"popular": 0.1}}
    api.state.model(None).model.estimate_ = {**estimate, "verdict": verdict, "n_users": 40}
    forecast = api.get("/v1/models").json()["models"][0]["forecast"]
    assert forecast == {"values": values, "yardsticks": {"popular": 0.1}, "verdict": verdict}
    api.state.model(None).model.estimate_ = {**estimate, "protocol": "leave-one-out"}
    assert api.get("/v1/model").json()["forecast"] is None
