"""What a request may cost: refused before the work, bounded in memory, and no ordinary use."""

from __future__ import annotations

import functools
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from tests.serve.conftest import Api, Serve

import equipoise as eq
from equipoise.ranking.ranker import score_items
from equipoise.ranking.terms import Constant, Dense
from equipoise.serve.answers import count_lookups
from equipoise.serve.config import Limits
from equipoise.serve.state import ByteCache, Catalogue, Served, count_bytes, scoring_steps

MANY_ITEMS = 20_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """Return a model of many items."""
    folder = tmp_path_factory.mktemp("large")
    eq.Popularity().fit(sp.csr_array(np.ones((1, MANY_ITEMS)))).save(folder / "m")
    return Served.open("m", str(folder / "m"))


def peak_of(work: Callable[[], Any]) -> tuple[Any, int]:
    """Return a result and the bytes that were in use at most while it was made."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def users_rules(users: int, first: int = 0) -> dict[str, Any]:
    return {"users": {f"u{n}": {"exclude": [n]} for n in range(first, first + users)}}


def test_rules_of_other_users_are_not_looked_up(large: Served) -> None:
    cache = ByteCache(Limits().cache)
    catalogue = Catalogue(large, {}, cache)
    for first in range(0, 50, 10):
        rules, peak = peak_of(
            functools.partial(catalogue.rules, users_rules(25_000, first), f"u{first + 7}")
        )
        assert list(rules.users) == [f"u{first + 7}"]
        assert peak < 5e6  # the masks of all users would take 500 MB
    assert cache.size < 5 * 2 * MANY_ITEMS
    nobody = catalogue.rules(users_rules(25_000), None)
    assert nobody is not None
    assert nobody.users == {}


def test_rules_for_many_users_are_answered_by_the_rules_of_one(standing: Api) -> None:
    (first, *_), before = listed(standing, {"user": "u5"}), standing.state.cache.size
    body = {"user": "u5", "rules": users_rules(25_000)}
    assert standing.post("/v1/recommend", body).status_code == 200
    body["rules"]["users"]["u5"] = {"exclude": [first]}  # type: ignore[index]
    assert first not in listed(standing, body)
    assert standing.state.cache.size - before < 10_000


def listed(api: Api, body: dict[str, Any]) -> list[Any]:
    answer = api.post("/v1/recommend", body)
    assert answer.status_code == 200, answer.text
    return [item["item"] for item in answer.json()["items"]]


def test_rules_and_filters_keep_to_their_bytes(large: Served) -> None:
    budget = 40 * MANY_ITEMS
    cache = ByteCache(budget)
    catalogue = Catalogue(large, {str(item): {"kind": item} for item in range(3)}, cache)
    for number in range(100):
        catalogue.rules({"boost": {str(number): 2.0}})
        catalogue.mask("kind", (number,))
        assert cache.size <= budget
    assert cache.size > budget / 2
    assert catalogue.mask("kind", (99,)) is catalogue.mask("kind", (99,))
    assert catalogue.mask("kind", (1,)).sum() == 1
    small = ByteCache(10)
    assert small.get("key", lambda: np.zeros(100)).sum() == 0
    assert small.size == 0


def test_catalogues_do_not_share_what_they_looked_up(large: Served) -> None:
    cache = ByteCache(10**6)
    one, other = (Catalogue(large, {"3": {"kind": kind}}, cache) for kind in ("tea", "salt"))
    assert one.mask("kind", ("tea",)).sum() == 1
    assert other.mask("kind", ("tea",)).sum() == 0


def test_bytes_are_counted_through_what_holds_them() -> None:
    array = np.zeros(1000)
    assert 8000 <= count_bytes(array) < 9000
    assert 24_000 <= count_bytes({"a": [array, (array,)], "b": Constant(array)}) < 26_000


REFUSED: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    (
        "/v1/recommend:batch",
        {"requests": [{"user": "u5", "k": 1000, "explain": 20}] * 100},
        ("2,100,000 items and reasons", "limits.rows is 100,000", "reduce k or explain"),
    ),
    (
        "/v1/recommend",
        {"history": [3], "rules": {"boost": {str(n): 1.5 for n in range(50_000)}}},
        ("50,000 entries", "limits.rules is 10,000", "reduce the ids"),
    ),
    (
        "/v1/recommend",
        {"history": [3], "exclude": [3] * 300_000},
        ("300,001 ids", "limits.ids is 200,000", "reduce history, exclude"),
    ),
    (
        "/v1/recommend",
        {"history": [3], "filters": {"kind": [1] * 300_000}},
        ("300,001 ids", "limits.ids is 200,000"),
    ),
    (
        "/v1/recommend:batch",
        {"requests": [{"history": [3], "candidates": [3] * 3000}] * 100},
        ("300,100 ids", "send it in parts"),
    ),
]


@pytest.mark.parametrize(("path", "body", "words"), REFUSED)
def test_large_requests_are_refused_before_any_work(
    standing: Api,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, Any],
    words: tuple[str, ...],
) -> None:
    def work(*_: Any, **__: Any) -> None:
        raise AssertionError("this is what the limit is to keep away")

    for name in ("top", "reasons", "request"):
        monkeypatch.setattr(Served, name, work)
    monkeypatch.setattr(Catalogue, "rules", work)
    monkeypatch.setattr("equipoise.serve.state.as_rules", work)
    answer = standing.post(path, body)
    assert answer.status_code == 422, answer.text
    assert all(word in answer.json()["detail"] for word in words), answer.text


def test_a_refusal_states_the_cost_and_how_to_lower_it(served: Serve) -> None:
    api = served(limits={"cost": 300_000})
    assert api.post("/v1/recommend", {"user": "u5", "k": 5}).status_code == 200
    history = list(range(3, 803, 10))
    for body, remedy in (
        ({"history": history, "k": 80}, "the ids that are named, k or explain"),
        ({"history": history[:40], "k": 15, "explain": 1}, "leave explain out"),
        ({"user": "u5", "k": 80, "rules": {"diversity": 0.5}}, "k + offset (80) or the rules"),
        ({"user": "u5", "k": 5, "rules": {"exclude": [{"kind": "a"}] * 9}}, "the 9 attributes"),
    ):
        answer = api.post("/v1/recommend", body)
        assert answer.status_code == 422, answer.text
        detail = answer.json()["detail"]
        assert "steps and limits.cost is 300,000; reduce " in detail
        assert remedy in detail
    small = served(limits={"cost": 10_000})
    for path, more in (("/v1/explain", {"item": 3}), ("/v1/score", {"items": [3]})):
        answer = small.post(path, {"history": history * 2, **more})
        assert (answer.status_code == 422) is (path == "/v1/explain")
    assert (
        "the history (80 items)"
        in (small.post("/v1/explain", {"history": history, "item": 3}).json()["detail"])
    )
    # a batch has one budget, which its last entries exceed
    requests = [{"user": f"u{n}", "k": 1} for n in range(20)]
    answers = api.post("/v1/recommend:batch", {"requests": requests}).json()["answers"]
    statuses = [None if a["problem"] is None else a["problem"]["status"] for a in answers]
    assert statuses[0] is None
    assert statuses[-1] == 422
    assert statuses == sorted(statuses, key=str, reverse=True)


WRONG: dict[str, tuple[str, dict[str, Any] | list[Any]]] = {
    "empty ids": ("/v1/recommend", {"history": [3], "exclude": [""] * 200_000}),
    "no ids": ("/v1/recommend", {"history": [None] * 160_000}),
    "filters": ("/v1/recommend", {"history": [3], "filters": {"a": [{}] * 200_000}}),
    "names": ("/v1/recommend", {"history": [3], "filters": {str(n): {} for n in range(90_000)}}),
    "fields": ("/v1/recommend", {str(n): 1 for n in range(90_000)}),
    "entries": ("/v1/recommend:batch", {"requests": [1] * 300_000}),
    "scores": ("/v1/score", {"history": [3], "items": [{}] * 200_000}),
    "events": ("/v1/events", {"events": [{}] * 200_000}),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_many_errors_are_reported_as_one(standing: Api, mistake: str) -> None:
    path, body = WRONG[mistake]
    text = json.dumps(body, separators=(",", ":"))
    headers = {"content-type": "application/json"}
    answer, peak = peak_of(lambda: standing.request("POST", path, content=text, headers=headers))
    assert answer.status_code == 422
    assert len(answer.text) < 2000
    assert peak < 60e6  # an error for each takes 200 MB or more


def test_ordinary_requests_are_not_refused(standing: Api) -> None:
    requests = [{"user": f"u{n}", "k": 20} for n in range(1000)]
    answers = standing.post("/v1/recommend:batch", {"requests": requests}).json()["answers"]
    assert len(answers) == 1000
    assert all(answer["problem"] is None for answer in answers)
    bodies: list[dict[str, Any]] = [
        {"history": list(range(3, 503)), "k": 20, "explain": 5},
        {"history": [str(n) for n in range(2000)], "k": 1000, "explain": 1},
        {"history": list(range(5000)), "k": 100},
        {"user": "u5", "exclude": list(range(20_000)), "candidates": list(range(20_000))},
        {"user": "u5", "rules": {"boost": {str(n): 1.5 for n in range(2000)}}},
        {"user": "u5", "rules": {"exclude": {"kind": ["tea"]}, "at_most": {"kind": 5}}},
        {"user": "u5", "k": 100, "rules": {"diversity": 0.3}},
    ]
    for body in bodies:
        answer = standing.post("/v1/recommend", body)
        assert answer.status_code == 200, (json.dumps(body)[:80], answer.text)


def test_a_batch_over_a_large_catalogue_is_ordinary() -> None:
    n_items = 50
    matrix, ones = np.zeros((n_items, n_items), np.float32), np.ones(n_items, np.float32)
    terms = [Dense(matrix, ones, ones), Constant(ones)]
    assert scoring_steps(terms, n_items) == (n_items, n_items)
    # 1,000 users with histories of 100 items over 20,000 items, from a dense matrix
    assert Limits().cost > 1000 * (20_000 + 100 * 20_000)
    # a history of 500 with reasons
    assert Limits().cost > (500 + 500) * 20_000


def test_the_attributes_that_rules_look_at_are_counted() -> None:
    rules = {
        "include": {"kind": "tea", "shelf": [1, 2]},
        "exclude": [3, {"kind": "salt"}],
        "boost": {"13": 2.0, "kind": {"tea": 1.5, "salt": 2.0}},
        "at_most": {"kind": 2},
        "users": {"ann": {"exclude": {"kind": "jam"}}},
    }
    assert count_lookups(rules) == 2 + 1 + 2 + 1 + 1
    pairs = [[{"price": {"max": 3}, "kind": "tea"}, 2.0], [["13", {"kind": "salt"}], 0.5], [13, 3]]
    assert count_lookups({"boost": pairs, "bonus": pairs[:1]}) == 2 + 1 + 2


def test_reasons_of_long_lists_are_worked_out_in_parts(
    standing: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = standing.state.model(None)
    history, places = model.history_of_items([str(n) for n in range(3, 403, 10)]), np.arange(50)
    expected = model.reasons(history, places, None, 3)
    sizes = []

    def count(terms: Any, rows: Any, users: Any, items: Any) -> Any:
        if rows.shape[0] > 1:  # a row for each item of the history
            sizes.append(len(users))
        return score_items(terms, rows, users, items)

    monkeypatch.setattr("equipoise.models.recommendations.score_items", count)
    monkeypatch.setattr("equipoise.models.recommendations.PAIRS", 500)
    assert model.reasons(history, places, None, 3) == expected
    assert max(sizes) <= 500
    assert sum(sizes) == 40 * 50
