"""Every route: what it answers, and how it refuses."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp
from tests.serve.conftest import FIRST_WIDE, SCRIPT, Api, Serve, empty
from tests.serve.postgres import Postgres
from tests.serve.test_store import TRICKS

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.serve.app import _follow_models
from equipoise.serve.store import attributes


def items(answer: Any) -> list[Any]:
    """Return the ids of a list as the data have them."""
    assert answer.status_code == 200, answer.text
    return table_ids([item["item"] for item in answer.json()["items"]])


def table_ids(texts: list[str]) -> list[Any]:
    """Return the ids of an answer, which are text, as the data have them."""
    assert all(isinstance(text, str) for text in texts), texts
    return [int(text) if text.lstrip("-").isdigit() else text for text in texts]


def click(api: Api, user: object, *clicked: object, **more: object) -> dict[str, Any]:
    events = [{"user": user, "item": item, **more} for item in clicked]
    answer = api.post("/v1/events", {"events": events})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.fixture(scope="session")
def dan(saved: Path) -> eq.Recommender:
    return eq.load(saved / "dan")


def test_a_list_is_that_of_the_model(standing: Api, dan: eq.Recommender) -> None:
    expected = dan.recommend(["u5"], k=10)
    answer = standing.post("/v1/recommend", {"user": "u5", "k": 10}).json()
    assert table_ids([item["item"] for item in answer["items"]]) == expected.items[0]
    assert [item["score"] for item in answer["items"]] == expected.scores[0].tolist()
    assert [item["rank"] for item in answer["items"]] == list(range(1, 11))
    assert answer["model"] == "default"
    assert answer["source"] == "model"
    assert len(answer["version"]) == 12
    assert items(standing.get("/v1/recommend/u5?k=10")) == expected.items[0]


def ids_in(value: Any, name: str = "") -> list[Any]:
    """Return the ids of users and items anywhere in an answer."""
    if isinstance(value, dict):
        return [one for key, part in value.items() for one in ids_in(part, key)]
    if isinstance(value, list):
        return [one for part in value for one in ids_in(part, f"{name}[]")]
    return [value] if name in ("item", "user", "unknown_items[]", "users[]") else []


def test_ids_of_64_bits_leave_as_text_and_come_in_as_both(served: Serve, wide: Path) -> None:
    api = served(models={"default": str(wide)})
    first, second, third = FIRST_WIDE, FIRST_WIDE + 1, FIRST_WIDE + 2
    for one in (first, str(first)):
        events = {"events": [{"user": one, "item": second}]}
        who = {"user": one, "explain": 2}
        bodies: list[tuple[str, str, Any]] = [
            ("POST", "/v1/events", events),
            ("POST", "/v1/recommend", who),
            ("POST", "/v1/recommend", {"history": [one, third, 2**62], "explain": 2}),
            ("POST", "/v1/recommend", {"session": [one], "exclude": [third]}),
            ("POST", "/v1/recommend", {"user": "new", "candidates": [one, third]}),
            ("POST", "/v1/recommend:batch", {"requests": [who]}),
            ("POST", "/v1/explain", {"history": [one], "item": third}),
            ("POST", "/v1/score", {"history": [one], "items": [second, third]}),
            ("GET", f"/v1/recommend/{one}?explain=2", None),
            ("GET", f"/v1/similar?item={one}", None),
            ("GET", "/v1/items?limit=3", None),
            ("GET", f"/v1/items/{one}", None),
            ("GET", f"/v1/users/{one}", None),
            ("GET", "/v1/users?limit=3", None),
            ("GET", f"/v1/users?q={one}", None),
            ("DELETE", f"/v1/users/{one}", None),
        ]
        for method, path, body in bodies:
            options = {} if body is None else {"json": body}
            answer = api.request(method, path, **options)
            assert answer.status_code == 200, answer.text
            facts = answer.json()
            named = ids_in(facts)
            assert named or path == "/v1/events", path
            assert all(isinstance(name, str) for name in named if name is not None), path
            texts = [name for name in named if name not in (None, "new")]
            assert all(-(2**63) <= int(name) < 2**63 for name in texts), path
            kinds = {facts[name] for name in ("item_ids", "user_ids") if name in facts}
            assert kinds <= {"integer"}, path
    facts = api.get("/v1/models").json()["models"][0]
    assert (facts["user_ids"], facts["item_ids"]) == ("integer", "integer")
    (listed,) = api.post("/v1/recommend", {"user": "new", "candidates": [first]}).json()["items"]
    assert listed["item"] == str(first)
    unknown = api.post("/v1/recommend", {"history": [2**62]}).json()["unknown_items"]
    assert unknown == [str(2**62)]


def test_answers_say_what_the_ids_are_in_the_data(standing: Api) -> None:
    facts = standing.get("/v1/model").json()
    assert (facts["user_ids"], facts["item_ids"]) == ("text", "integer")
    assert standing.get("/v1/users").json()["user_ids"] == "text"
    assert standing.get("/v1/recommend/u5").json()["item_ids"] == "integer"


def test_a_history_and_the_dial_are_those_of_the_model(standing: Api, dan: eq.Recommender) -> None:
    history = [3, 13, 403]
    expected = dan.recommend([history], k=7, alpha=0.9).items[0]
    for name in ("history", "session"):
        body = {name: history, "k": 7, "alpha": 0.9}
        assert items(standing.post("/v1/recommend", body)) == expected
    texts = [str(item) for item in history]
    assert (
        items(standing.post("/v1/recommend", {"history": texts, "k": 7, "alpha": 0.9})) == expected
    )


def test_an_accepted_event_counts_for_the_next_list(api: Api, dan: eq.Recommender) -> None:
    before = api.get("/v1/recommend/new?k=5").json()
    assert before["source"] == "popular"
    assert [item["score"] for item in before["items"]] == [None] * 5
    assert click(api, "new", 3, "13")["accepted"] == 2
    after = api.get("/v1/recommend/new?k=5").json()
    assert after["source"] == "model"
    assert items(api.get("/v1/recommend/new?k=5")) == dan.recommend([[3, 13]], k=5).items[0]
    known = dan.interactions_.history("u5")
    fresh = dan.recommend(["u5"], k=1).items[0][0]
    click(api, "u5", fresh)
    expected = dan.recommend([[*known, fresh]], k=5).items[0]
    assert items(api.get("/v1/recommend/u5?k=5")) == expected


def test_events_of_a_request_keep_their_order(api: Api) -> None:
    items = [str(n % 7) for n in range(30)]
    api.post("/v1/events", {"events": [{"user": "new", "item": item} for item in items]})
    assert [event[0] for event in api.state.store.live("new").events] == items


def test_replays_change_nothing(api: Api) -> None:
    assert click(api, "new", 3, id="one")["accepted"] == 1
    again = click(api, "new", 13, id="one")
    assert (again["accepted"], again["duplicates"]) == (0, 1)
    assert items(api.get("/v1/users/new")) == [3]


def test_seen_items_are_listed_only_on_request(api: Api) -> None:
    first = items(api.get("/v1/recommend/u5?k=5"))
    events = [{"user": "u5", "item": item, "mark": "seen"} for item in first]
    answer = api.post("/v1/events", {"events": events}).json()
    assert (answer["accepted"], answer["seen"]) == (0, 5)
    second = items(api.get("/v1/recommend/u5?k=80"))
    assert not set(first) & set(second)
    body = {"user": "u5", "k": 80, "exclude_seen": False}
    assert len(items(api.post("/v1/recommend", body))) == 80
    page = items(api.post("/v1/recommend", {"user": "u5", "k": 4, "mark": "seen"}))
    assert page == second[:4]
    assert items(api.get("/v1/recommend/u5?k=4")) == second[4:8]


def test_negative_feedback_takes_an_item_away(api: Api, dan: eq.Recommender) -> None:
    click(api, "new", 3, 13)
    disliked = items(api.get("/v1/recommend/new?k=1"))[0]
    click(api, "new", disliked, type="dislike")
    click(api, "new", 13, weight=-1)
    left = items(api.get("/v1/recommend/new?k=80"))
    assert not {disliked, 3, 13} & set(left)
    assert left[:9] == dan.recommend([[3]], k=9, exclude=[disliked, 13]).items[0]


def test_pages_do_not_repeat(standing: Api) -> None:
    ranking = items(standing.get("/v1/recommend/u5?k=30"))
    pages = [items(standing.get(f"/v1/recommend/u5?k=10&offset={at}")) for at in (0, 10, 20)]
    assert [item for page in pages for item in page] == ranking
    third = standing.get("/v1/recommend/u5?k=10&offset=20").json()["items"]
    assert third[0]["rank"] == 21
    assert items(standing.get("/v1/recommend/u5?k=10&offset=100")) == []


def test_exclude_candidates_and_filters(standing: Api) -> None:
    ranking = items(standing.post("/v1/recommend", {"user": "u5", "k": 80}))
    shortened = items(
        standing.post("/v1/recommend", {"user": "u5", "k": 80, "exclude": ranking[:3]})
    )
    assert shortened == ranking[3:]
    chosen = [ranking[7], ranking[2], "unheard of"]
    body = {"user": "u5", "candidates": chosen}
    assert items(standing.post("/v1/recommend", body)) == [ranking[2], ranking[7]]
    tea = items(
        standing.post("/v1/recommend", {"user": "u5", "k": 80, "filters": {"kind": "tea"}})
    )
    assert tea == [item for item in ranking if (item - 3) // 10 % 2]
    both = {"kind": ["tea", "salt"]}
    assert (
        items(standing.post("/v1/recommend", {"user": "u5", "k": 80, "filters": both})) == ranking
    )
    wrong = standing.post("/v1/recommend", {"user": "u5", "filters": {"colour": "red"}})
    assert wrong.status_code == 422
    assert "known are kind, title" in wrong.json()["detail"]


RULES: list[dict[str, Any]] = [
    {"exclude": {"kind": "tea"}},
    {"include": [{"kind": "tea"}, 3]},
    {"at_most": {"kind": 2}},
    {"pin": [793, "783"]},
    {"boost": {"kind": {"tea": 3.0}}, "bonus": {"13": 0.5}},
    {"diversity": 0.4},
    {"seen": "only"},
    {"users": {"u5": {"exclude": {"kind": "salt"}}}},
    {"pin": ["offer", 793, 99, "99"], "at_most": {"kind": 2}},
]


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: next(iter(rules)))
def test_rules_are_those_of_the_model(
    standing: Api, dan: eq.Recommender, rules: dict[str, Any]
) -> None:
    expected = dan.recommend(["u5"], k=8, rules=rules).items[0]
    body = {"user": "u5", "k": 8, "rules": rules}
    assert items(standing.post("/v1/recommend", body)) == expected


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"exlude": [3]}, "did you mean 'exclude'"),
        ({"exclude": {"colour": "red"}}, "colour"),
        ({"exclude": {"kind": [[1]]}}, "must be a value of an attribute"),
        ({"exclude": {"kind": {"max": 1.1}}}, "compare 'kind' with numbers, but it holds text"),
        ({"exclude": {"price": {"min": 2, "max": 1.1}}}, "no value is from 2 to 1.1"),
        ({"diversity": 2}, "diversity"),
        ({"pin": {"a": 1}}, "pin"),
        ("/etc/passwd", "rules"),
    ],
)
def test_invalid_rules_are_refused(standing: Api, rules: Any, words: str) -> None:
    answer = standing.post("/v1/recommend", {"user": "u5", "rules": rules})
    assert answer.status_code == 422, answer.text
    assert words in answer.json()["detail"]


def test_attributes_change_lists_at_once(api: Api) -> None:
    first, second, *_ = items(api.get("/v1/recommend/u5?k=5"))
    assert api.put(f"/v1/items/{first}", {"available": False}).status_code == 200
    assert items(api.get("/v1/recommend/u5?k=1")) == [second]
    assert first not in items(api.get(f"/v1/similar?item={second}&k=80"))
    api.put(f"/v1/items/{second}", {"category": "winter", "tags": ["a", "b"], "weight": 2.5})
    for filters in ({"category": "winter"}, {"tags": "b"}, {"weight": [2.5, 3]}):
        answer = api.post("/v1/recommend", {"user": "u5", "filters": filters})
        assert items(answer) == [second]
    facts = api.get(f"/v1/items/{second}").json()
    assert facts["attributes"]["category"] == "winter"
    assert facts["attributes"]["kind"] in ("tea", "salt")
    api.put(f"/v1/items/{first}", {})
    assert items(api.get("/v1/recommend/u5?k=1")) == [first]


def test_attributes_that_another_worker_changed_are_seen_everywhere(
    served: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.serve.state.FRESH", -1.0)  # looked for at each request
    one, other = served(), served()
    first, second, *_ = items(other.get("/v1/similar?item=13&k=5"))
    one.put(f"/v1/items/{first}", {"available": False})
    assert items(other.get("/v1/similar?item=13&k=1")) == [second]
    one.put(f"/v1/items/{first}", {"category": "winter"})
    assert other.get(f"/v1/items/{first}").json()["attributes"]["category"] == "winter"
    one.put(f"/v1/items/{first}", {"category": "summer"})
    page = other.get("/v1/items?limit=80").json()["items"]
    summer = [i["item"] for i in page if i["attributes"].get("category") == "summer"]
    assert table_ids(summer) == [first]


def test_rules_speak_of_attributes_in_the_store_too(api: Api) -> None:
    first, second, third, fourth, *_ = items(api.get("/v1/recommend/u5?k=8"))
    new = {"category": "new", "tags": ["a", "b"], "shelf": 1}
    api.put(f"/v1/items/{second}", {**new, "kind": "gift"})
    api.put(f"/v1/items/{third}", {**new, "tags": "c", "shelf": 2})

    def listed(**rules: Any) -> list[Any]:
        return items(api.post("/v1/recommend", {"user": "u5", "k": 3, "rules": rules}))

    assert listed(include={"category": "new"}) == [second, third]
    assert listed(exclude={"tags": ["b"]}) == [first, third, fourth]
    assert listed(exclude={"tags": "c"}) == [first, second, fourth]
    assert listed(include={"kind": "gift"}) == [second]  # over the attribute of the model
    assert listed(at_most={"category": 1}) == [first, second, fourth]
    assert listed(boost={"shelf": {"2": 1000.0}})[0] == third
    api.put(f"/v1/items/{third}", {})
    assert listed(include={"category": "new"}) == [second]
    api.put(f"/v1/items/{fourth}", {"organic": True, "price": 1.5, "genre": "Drama|Sport"})
    keys: list[Any] = [("organic", {"true": 99.0}), ("organic", [[True, 99.0]])]
    for name, factors in [*keys, ("price", {"1.5": 99.0}), ("genre", {"Sport": 99.0})]:
        assert listed(boost={name: factors})[0] == fourth
    api.put(f"/v1/items/{third}", {**new, "tags": ["b", "c"]})
    assert listed(at_most={"tags": 1}) == [first, second, fourth]


def test_rules_compare_attributes_of_the_model_and_of_the_store(
    served: Serve, shop_data: Interactions, tmp_path: Path
) -> None:
    today = dt.datetime.now(dt.UTC).date()
    days = [today - dt.timedelta(days=n) for n in range(80)]
    table = {
        "item": [*shop_data.items, 1, 2],
        "title": [f"Title {item}" for item in (*shop_data.items, 1, 2)],
        "price": [float(n) for n in range(80)] + [5.0, 500.0],
        "since": [*days, days[0], days[60]],
        "tags": ["new|old", "old"] * 41,
    }
    data = shop_data.with_catalogue(pl.DataFrame(table, strict=False))
    eq.EASE(l2=5.0).fit(data).save(tmp_path / "m")
    api = served(models={"default": str(tmp_path / "m")})

    def listed(k: int = 80, **rules: Any) -> list[Any]:
        rules["seen"] = "include"
        return items(api.post("/v1/recommend", {"user": "u5", "k": k, "rules": rules}))

    cheap = [item for item, price in zip(table["item"], table["price"], strict=True) if price < 3]
    assert sorted(listed(include={"price": {"max": 2}})) == cheap
    recent = [int(item) for item, day in zip(table["item"][:80], days, strict=True)][:11]
    assert sorted(listed(include={"since": {"within": "11d"}})) == recent
    first, *_ = listed(5)
    facts = api.get(f"/v1/items/{first}").json()["attributes"]
    assert facts["since"] == str(days[(first - 3) // 10])
    assert facts["tags"] in (["new", "old"], ["old"])
    api.put(f"/v1/items/{first}", {"price": 1000.5, "since": "2001-01-01", "tags": ["rare"]})
    assert listed(include={"price": {"min": 100}}) == [first]
    assert listed(include={"since": {"before": "2002-01-01"}}) == [first]
    assert listed(include={"tags": "rare"}) == [first]
    filters = {"user": "u5", "k": 80, "filters": {"tags": "new"}}
    assert 30 < len(items(api.post("/v1/recommend", filters))) <= 40
    assert listed(3, boost=[[{"since": {"half_life": "1d"}}, 1e9]])[0] != first
    assert listed(min_users=1000) == []
    pinned = api.post(
        "/v1/recommend", {"user": "u5", "k": 3, "rules": {"pin": [1, 2], "min_users": 2}}
    ).json()["items"]
    assert [item["title"] for item in pinned[:2]] == ["Title 1", "Title 2"]
    assert [item["score"] for item in pinned[:2]] == [None, None]
    assert listed(1, pin=[1, 2], exclude={"price": {"max": 5}}) == [2]
    api.put("/v1/items/2", {"available": False})
    assert listed(1, pin=[2, 1]) == [1]
    api.put("/v1/items/7777", {"price": 1.0})
    assert listed(1, pin=[7777, 1], include={"price": {"max": 3}}) == [7777]
    assert items(
        api.post(
            "/v1/recommend",
            {"user": "u5", "k": 1, "rules": {"pin": [1]}, "filters": {"tags": "new"}},
        )
    ) == [1]


def test_a_pinned_item_that_the_model_does_not_know_is_listed(api: Api) -> None:
    plain = items(api.post("/v1/recommend", {"user": "u5", "k": 3}))

    def listed(**more: Any) -> list[Any]:
        rules = {"pin": ["offer", plain[2]], **more.pop("rules", {})}
        body = {"user": "u5", "k": 3, "rules": rules, **more}
        return items(api.post("/v1/recommend", body))

    assert listed() == ["offer", plain[2], plain[0]]
    assert listed(k=1, offset=1) == [plain[2]]
    answer = api.post(
        "/v1/recommend", {"user": "u5", "k": 2, "explain": 2, "rules": {"pin": ["offer"]}}
    ).json()
    first, second = answer["items"]
    assert first["item"] == first["title"] == "offer"
    assert first["score"] is None
    assert first["users"] == 0
    assert first["reasons"] == []
    assert len(second["reasons"]) == 2
    assert "offer" not in listed(exclude=["offer"])
    assert "offer" not in listed(candidates=plain)
    assert listed(candidates=[*plain, "offer"])[0] == "offer"
    assert "offer" not in listed(filters={"kind": ["tea", "salt"]})
    assert "offer" not in listed(rules={"exclude": ["offer"]})
    assert "offer" not in listed(rules={"seen": "only"})
    assert listed(user=None, history=[plain[0]])[0] == "offer"
    assert "offer" not in listed(user=None, history=[plain[0], "offer"])
    seen = {"seen": "include"}
    assert listed(user=None, history=[plain[0], "offer"], rules=seen)[0] == "offer"
    api.put("/v1/items/offer", {"kind": "tea", "available": True})
    assert listed(filters={"kind": "tea"})[0] == "offer"
    api.put("/v1/items/offer", {"available": False})
    assert "offer" not in listed()
    api.put("/v1/items/offer", {})
    api.post("/v1/recommend", {"user": "u6", "k": 1, "rules": {"pin": ["offer"]}, "mark": "seen"})
    assert "offer" not in listed(user="u6")


def test_reasons_sum_to_the_score(standing: Api, dan: eq.Recommender) -> None:
    answer = standing.post("/v1/recommend", {"user": "u5", "k": 3, "explain": 2}).json()
    for item in answer["items"]:
        expected = dan.explain("u5", int(item["item"]))
        assert table_ids([reason["item"] for reason in item["reasons"]]) == expected.sources[:2]
        body = {"user": "u5", "item": item["item"]}
        explanation = standing.post("/v1/explain", body).json()
        assert explanation["score"] == item["score"]
        parts = [reason["contribution"] for reason in explanation["reasons"]]
        # sums of numbers given in double precision, in another order
        assert sum(parts) == pytest.approx(item["score"], rel=1e-12)
        assert parts == pytest.approx(expected.contributions, rel=1e-6)


def test_items_that_no_user_has_explain_nothing(
    shop_data: Interactions, served: Serve, tmp_path: Path
) -> None:
    wide = Interactions(
        sp.hstack([shop_data.matrix, sp.csr_array((shop_data.n_users, 1))]).tocsr(),
        shop_data.users,
        [*shop_data.items.tolist(), 999],
    )
    eq.EASE(l2=20.0).fit(wide).save(tmp_path / "wide")
    api = served(models={"default": str(tmp_path / "wide")})
    refused = api.post("/v1/explain", {"history": [999], "item": 3})
    assert refused.status_code == 422
    assert "no user has its items" in refused.json()["detail"]
    answer = api.post("/v1/recommend", {"history": [999], "k": 2, "explain": 2}).json()
    assert answer["source"] == "popular"
    assert [item["reasons"] for item in answer["items"]] == [[], []]
    both = api.post("/v1/explain", {"history": [999, 13], "item": 3}).json()
    assert (
        both["score"]
        == api.post("/v1/score", {"history": [999, 13], "items": [3]}).json()["scores"][0]["score"]
    )


def test_similar_and_score_are_those_of_the_model(standing: Api, dan: eq.Recommender) -> None:
    answer = standing.get("/v1/similar?item=13&k=6").json()
    assert table_ids([item["item"] for item in answer["items"]]) == dan.similar(13, k=6).items[0]
    scores = dan.score([[3, 13]])[0]
    body = {"history": [3, 13], "items": [23, "793", "none"]}
    rows = standing.post("/v1/score", body).json()["scores"]
    assert [row["score"] for row in rows] == [float(scores[2]), float(scores[79]), None]
    empty = standing.post("/v1/score", {"history": [], "items": [23]}).json()
    assert (empty["source"], empty["scores"][0]["score"]) == ("popular", None)


def test_a_batch_answers_and_refuses_entry_by_entry(standing: Api) -> None:
    requests = [
        {"user": "u5", "k": 3},
        {"user": "u5", "history": [3]},
        {"user": "u5", "model": "none"},
        {"history": [3], "k": 2, "model": "plain"},
        {"k": -1},
    ]
    answers = standing.post("/v1/recommend:batch", {"requests": requests}).json()["answers"]
    statuses = [None if a["problem"] is None else a["problem"]["status"] for a in answers]
    assert statuses == [None, 422, 404, None, 422]
    listed = table_ids([item["item"] for item in answers[0]["result"]["items"]])
    assert listed == items(standing.get("/v1/recommend/u5?k=3"))
    assert answers[3]["result"]["model"] == "plain"


def test_items_are_found_by_title_and_id(standing: Api) -> None:
    page = standing.get("/v1/items?q=item 1&limit=3").json()
    assert page["total"] == 11  # 1 and 10 to 19
    assert len(page["items"]) == 3
    users = [item["users"] for item in page["items"]]
    assert users == sorted(users, reverse=True)
    assert standing.get("/v1/items?q=793").json()["items"][0]["item"] == "793"
    pages = [standing.get(f"/v1/items?limit=40&offset={at}").json() for at in (0, 40, 80)]
    assert len({i["item"] for page in pages for i in page["items"]}) == 80
    script = standing.get("/v1/items", params={"q": "<SCRIPT>"}).json()["items"]
    assert [item["title"] for item in script] == [f"{SCRIPT} item"]


def test_attributes_that_are_no_numbers_are_null(served: Serve, tmp_path: Path) -> None:
    catalogue = pl.DataFrame({"title": ["Tea", "Milk"], "price": [float("nan"), float("inf")]})
    data = Interactions(
        sp.csr_array([[1, 1], [1, 0]]), ["a", "b"], ["tea", "milk"], catalogue=catalogue
    )
    eq.EASE(l2=1.0).fit(data).save(tmp_path / "m")
    text = served(models={"default": str(tmp_path / "m")}).get("/v1/items").text

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    listed = json.loads(text, parse_constant=refuse)["items"]
    assert [item["attributes"]["price"] for item in listed] == [None, None]


def test_a_forgotten_user_is_unknown_from_then_on(api: Api) -> None:
    click(api, "u5", 3)
    gone = api.delete("/v1/users/u5").json()
    assert gone == {"user": "u5", "removed": 1, "remains": ["default", "plain"]}
    assert api.get("/v1/recommend/u5").json()["source"] == "popular"
    assert api.get("/v1/users/u5").json()["known"] is False
    click(api, "u5", 13)
    assert items(api.get("/v1/users/u5")) == [13]


def test_models_and_their_facts(standing: Api) -> None:
    answer = standing.get("/v1/models").json()
    assert [model["name"] for model in answer["models"]] == ["default", "plain"]
    assert answer["experiment"] is None
    one = standing.get("/v1/model?name=plain").json()
    assert one["summary"] == "EASE l2=200"
    assert one["items"] == 80
    assert one["curve"] == sorted(one["curve"], reverse=True)
    plain = items(standing.get("/v1/recommend/u5?model=plain"))
    assert plain != items(standing.get("/v1/recommend/u5"))


@pytest.mark.parametrize("trick", TRICKS)
def test_hostile_ids_are_treated_as_data(standing: Api, trick: str) -> None:
    click(standing, trick, trick, 3, type="view", id=trick)
    from urllib.parse import quote

    user = standing.get(f"/v1/users/{quote(trick, safe='')}").json()
    assert user["user"] == trick
    assert user["events"] == 1  # both have one id
    assert standing.get(f"/v1/recommend/{quote(trick, safe='')}").status_code == 200
    assert standing.get("/v1/similar", params={"item": trick}).status_code == 404
    assert (
        standing.put(f"/v1/items/{quote(trick, safe='')}", {"category": trick}).status_code == 200
    )
    assert standing.get("/v1/items", params={"q": trick}).status_code == 200


PROBLEMS: list[tuple[str, str, Any, int, str]] = [
    ("POST", "/v1/recommend", {}, 422, "one of user, history and session"),
    ("POST", "/v1/recommend", {"user": "a", "usr": 1}, 422, "usr"),
    ("POST", "/v1/recommend", {"user": "a", "k": 0}, 422, "k"),
    ("POST", "/v1/recommend", {"user": "a", "k": 5000}, 422, "at most 1000"),
    ("POST", "/v1/recommend", {"user": "a", "k": 2.5}, 422, "k"),
    ("POST", "/v1/recommend", {"user": True}, 422, "user"),
    ("POST", "/v1/recommend", {"user": ""}, 422, "user"),
    ("POST", "/v1/recommend", {"user": "x" * 600}, 422, "user"),
    ("POST", "/v1/recommend", {"user": "nul\0"}, 422, "NUL"),
    ("POST", "/v1/recommend", {"user": "a", "alpha": 7}, 422, "alpha"),
    ("POST", "/v1/recommend", {"history": list(range(6000))}, 422, "at most 5000"),
    ("POST", "/v1/recommend", {"user": "a", "model": "none"}, 404, "known are default, plain"),
    ("POST", "/v1/recommend", [1, 2], 422, ""),
    ("POST", "/v1/recommend:batch", {"requests": [{}] * 1001}, 422, "at most 1,000"),
    ("POST", "/v1/explain", {"history": [], "item": 3}, 422, "empty"),
    ("POST", "/v1/explain", {"history": [3], "item": "none"}, 404, "unknown item 'none'"),
    ("POST", "/v1/score", {"history": [3]}, 422, "items"),
    ("POST", "/v1/events", {"events": []}, 422, "events"),
    ("POST", "/v1/events", {"events": [{"user": "a"}]}, 422, "item"),
    ("POST", "/v1/events", {"events": [{"user": "a", "item": 3, "type": "x"}]}, 422, "weight"),
    ("POST", "/v1/events", {"events": [{"user": "a", "item": 3, "time": 9e10}]}, 422, "a day"),
    ("POST", "/v1/events", {"events": [{"user": 1, "item": 2}] * 1001}, 422, "at most 1000"),
    ("PUT", "/v1/items/3", {"available": "no"}, 422, "available"),
    ("PUT", "/v1/items/3", {str(n): n for n in range(60)}, 422, "50 attributes"),
    ("GET", "/v1/similar?item=none", None, 404, "unknown item"),
    ("GET", "/v1/similar?item=3&k=9999", None, 422, "at most 1000"),
    ("GET", "/v1/items/none", None, 404, "unknown item"),
    ("GET", "/v1/model?name=none", None, 404, "no model"),
    ("GET", "/v1/nothing", None, 404, "Not Found"),
    ("GET", "/page/../config.py", None, 404, ""),
    ("GET", "/page/%2e%2e%2fconfig.py", None, 404, ""),
    ("DELETE", "/v1/models", None, 405, ""),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "words"), PROBLEMS)
def test_every_refusal_is_problem_details(
    standing: Api, method: str, path: str, body: Any, status: int, words: str
) -> None:
    options = {} if body is None else {"json": body}
    answer = standing.request(method, path, **options)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert set(problem) == {"type", "title", "status", "detail", "instance"}
    assert problem["status"] == status
    assert words in problem["detail"]
    assert problem["instance"] == answer.headers["x-request-id"]
    assert "/src/" not in answer.text


def test_bodies_that_cannot_be_read(standing: Api) -> None:
    kind = {"content-type": "application/json"}
    assert standing.request("POST", "/v1/recommend", content=b"{", headers=kind).status_code == 422
    deep = b"[" * 200_000
    assert standing.request("POST", "/v1/recommend", content=deep, headers=kind).status_code < 500
    form = {"content-type": "text/plain"}
    answer = standing.request("POST", "/v1/recommend", content=b"{}", headers=form)
    assert answer.status_code == 415
    large = json.dumps({"history": ["x" * 400] * 3000}).encode()
    assert (
        standing.request("POST", "/v1/recommend", content=large, headers=kind).status_code == 413
    )
    surrogate = b'{"user": "\\ud800"}'
    answer = standing.request("POST", "/v1/recommend", content=surrogate, headers=kind)
    assert answer.status_code == 422


HALF = "\ud800"  # of a surrogate pair: JSON can hold it, UTF-8 and so a database cannot
NO_UNICODE: list[tuple[str, str, Any]] = [
    ("PUT", "/v1/items/3", {"category": HALF}),
    ("PUT", "/v1/items/3", {"colour": HALF}),
    ("PUT", "/v1/items/3", {"tags": ["a", HALF]}),
    ("PUT", "/v1/items/3", {HALF: 1}),
    ("POST", "/v1/recommend", {"user": HALF}),
    ("POST", "/v1/recommend", {"history": [HALF]}),
    ("POST", "/v1/recommend", {"session": [HALF]}),
    ("POST", "/v1/recommend", {"user": "a", "exclude": [HALF]}),
    ("POST", "/v1/recommend", {"user": "a", "model": HALF}),
    ("POST", "/v1/recommend", {"user": "a", "filters": {"kind": HALF}}),
    ("POST", "/v1/recommend", {"user": "a", "filters": {"kind": ["tea", HALF]}}),
    ("POST", "/v1/recommend", {"user": "a", "filters": {HALF: "tea"}}),
    ("POST", "/v1/recommend", {"user": "a", "rules": {"exclude": [HALF]}}),
    ("POST", "/v1/recommend", {"user": "a", "rules": {"exclude": {HALF: "tea"}}}),
    ("POST", "/v1/recommend", {"user": "a", "rules": {"boost": {"kind": {HALF: 2}}}}),
    ("POST", "/v1/recommend", {"user": "a", HALF: 1}),
    ("POST", "/v1/explain", {"user": "a", "item": HALF}),
    ("POST", "/v1/score", {"user": "a", "items": [HALF]}),
    *(
        ("POST", "/v1/events", {"events": [{"user": "a", "item": "b", name: HALF}]})
        for name in ("user", "item", "id", "type", "list_id", HALF)
    ),
]


def test_text_that_is_no_unicode_is_refused_wherever_it_enters(api: Api) -> None:
    kind = {"content-type": "application/json"}
    for method, path, body in NO_UNICODE:
        content = json.dumps(body).encode()
        answer = api.request(method, path, content=content, headers=kind)
        assert answer.status_code == 422, (body, answer.text)
        assert answer.json()["type"].endswith(":invalid")
        if path == "/v1/recommend":
            batch = json.dumps({"requests": [body, {"user": "u5", "k": 2}]}).encode()
            answer = api.request("POST", "/v1/recommend:batch", content=batch, headers=kind)
            first, second = answer.json()["answers"]
            assert first["problem"]["status"] == 422
            assert len(second["result"]["items"]) == 2
    assert api.state.store.counts()["events"] == 0
    assert api.state.store.all_attributes() == {}
    smile = json.dumps({"category": "\U0001f642"}).encode()  # escaped as a whole pair
    assert b"\\ud83d" in smile
    answer = api.request("PUT", "/v1/items/3", content=smile, headers=kind)
    assert answer.json()["category"] == "\U0001f642"


def test_damaged_attributes_in_the_store_fail_no_request(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    store = api.state.store
    bad = {
        "3": '{"category": "\\ud800x", "\\udc00": ["\\ud801"]}',
        "13": "{",
        "23": "[1]",
        "33": '{"size": 123456789012345678901234567890}',
        "63": '{"size": NaN}',
        "43": '{"size": {"a": [1, null]}, "category": "\\ud83d\\ude42"}',
    }
    rows = [{"item": item, "data": text} for item, text in bad.items()]
    store.do(lambda connection: connection.execute(attributes.insert(), rows))
    api.put("/v1/items/53", {"category": "winter"})  # all of them are read again
    rules = {"exclude": {"category": "winter"}, "at_most": {"category": 1}}
    listed = items(api.post("/v1/recommend", {"user": "u5", "k": 80, "rules": rules}))
    assert listed
    assert 53 not in listed
    assert api.post("/v1/recommend", {"user": "u5", "rules": {"exclude": {"size": 1}}}).is_success
    assert len(items(api.get("/v1/recommend/u5?k=5"))) == 5
    assert len(items(api.get("/v1/items?limit=80"))) == 80
    assert api.get("/v1/items/3").json()["attributes"]["category"] == "?x"
    assert api.get("/v1/items/43").json()["attributes"]["category"] == "\U0001f642"
    for item in ("3", "13", "23", "43"):
        assert any(getattr(r, "fields", {}).get("item") == item for r in caplog.records), item


def test_an_experiment_assigns_users_and_records_lists(served: Serve) -> None:
    experiment = {"name": "dial", "models": {"default": 3, "plain": 1}}
    api = served(experiments=[experiment])
    users = [f"v{n}" for n in range(100)]
    dealt = [api.get(f"/v1/recommend/{user}?k=2").json() for user in users]
    again = [api.get(f"/v1/recommend/{user}?k=2").json()["model"] for user in users[:9]]
    assert again == [answer["model"] for answer in dealt[:9]]
    share = np.mean([answer["model"] == "default" for answer in dealt])
    assert 0.62 < share < 0.88  # 3 of 4, within three standard errors
    assert {answer["experiment"] for answer in dealt} == {"dial"}
    assert api.get("/v1/models").json()["experiment"]["shares"] == {"default": 0.75, "plain": 0.25}
    chosen = api.post("/v1/recommend", {"user": "v0", "model": "plain"}).json()
    assert chosen["experiment"] is None
    api.state.store.do(lambda connection: None)  # what was submitted before is written
    assert api.state.store.counts()["lists"] == 109


def test_metrics_and_overview_count_what_was_shown(api: Api) -> None:
    items(api.get("/v1/recommend/u5?k=10"))
    items(api.get("/v1/recommend/nobody?k=5"))
    click(api, "new", 3)
    text = api.get("/metrics").text
    for line in (
        'equipoise_lists_total{model="default",source="model"} 1.0',
        'equipoise_lists_total{model="default",source="popular"} 1.0',
        'equipoise_unknown_total{kind="user"} 1.0',
        'equipoise_events_total{kind="event"} 1.0',
        'equipoise_requests_total{route="/v1/recommend/{user:path}",status="200"} 2.0',
    ):
        assert line in text
    assert 'equipoise_model_age_seconds{model="plain"}' in text
    view = api.get("/v1/admin/overview").json()
    assert sum(view["shown"].values()) == 15
    assert view["coverage"]["default"] > 0
    assert view["store"]["events"] == 1
    assert view["past"] == []
    assert api.get("/v1/admin/overview?past=90000").status_code == 422
    assert api.get("/healthz").json() == api.get("/readyz").json() == {"status": "ok"}


def test_a_reload_leaves_models_alone_that_have_not_changed(models: Path, served: Serve) -> None:
    api = served(models={"default": str(models / "dan"), "plain": str(models / "plain")})
    before = api.get("/v1/models").json()["models"]
    for array in (models / "plain").glob("*.npy"):
        array.unlink()  # it could not be loaded again
    eq.EASE(l2=5.0).fit(eq.load(models / "dan").interactions_).save(models / "dan")
    assert api.post("/v1/admin/reload").status_code == 200
    after = api.get("/v1/models").json()["models"]
    assert after[0]["version"] != before[0]["version"]
    assert after[1] == before[1]


def test_numbers_of_a_replaced_model_leave_the_folder(
    models: Path, served: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "numbers"
    folder.mkdir()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder))
    paths = {"default": str(models / "dan"), "plain": str(models / "plain")}
    one, other = served(models=paths), served(models=paths)
    for l2 in (5.0, 6.0, 7.0):
        for api in (one, other):
            items(api.get("/v1/recommend/u5"))
            items(api.get("/v1/recommend/u5?model=plain&k=8"))
            api.settle()
        assert len(list(folder.glob("shown-*"))) == 2
        eq.EASE(l2=l2).fit(eq.load(models / "dan").interactions_).save(models / "dan")
        for api in (one, other):
            assert api.post("/v1/admin/reload").status_code == 200
        assert [path.name[:11] for path in folder.glob("shown-*")] == ["shown-plain"]
        assert one.get("/v1/model").json()["shown"] == 0
        assert one.get("/v1/model?name=plain").json()["shown"] == 0.1


def test_a_reload_swaps_all_models_or_none(models: Path, served: Serve) -> None:
    api = served(models={"default": str(models / "dan")})
    before = api.get("/v1/model").json()["version"]
    eq.load(models / "plain").save(models / "dan")
    after = api.post("/v1/admin/reload").json()["models"]["default"]
    assert after != before
    assert api.get("/v1/recommend/u5").json()["version"] == after
    assert api.get("/v1/model").json()["summary"] == "EASE l2=200"
    manifest = models / "dan" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("EASE", "EAZE"))
    refused = api.post("/v1/admin/reload")
    assert refused.status_code == 409
    assert str(models) not in refused.text
    assert api.get("/v1/recommend/u5").json()["version"] == after


def test_models_that_another_process_saves_are_loaded(models: Path, served: Serve) -> None:
    api = served(models={"default": str(models / "dan")}, follow="0.01s")
    before = api.get("/v1/model").json()["version"]
    assert not api.state.are_changed()
    eq.load(models / "plain").save(models / "dan")
    assert api.state.are_changed()

    async def until_loaded() -> None:
        following = asyncio.create_task(_follow_models(api.state, api.telemetry))
        while api.state.are_changed():
            await asyncio.sleep(0.01)
        following.cancel()

    asyncio.run(until_loaded())
    assert api.get("/v1/model").json()["version"] != before


def test_a_removed_store_file_is_reported_and_replaced(api: Api, tmp_path: Path) -> None:
    click(api, "new", 3)
    assert api.get("/readyz").status_code == 200
    path = tmp_path / "events.db"
    path.rename(tmp_path / "moved.db")
    event = {"events": [{"user": "new", "item": 13}]}
    for answer in (
        api.post("/v1/events", event),
        api.get("/v1/recommend/new"),
        api.get("/readyz"),
    ):
        assert answer.status_code == 503
        assert (
            answer.json()["detail"] == "the file of the event store was removed; tell its operator"
        )
    assert len(items(api.post("/v1/recommend", {"history": [3], "k": 5}))) == 5
    (tmp_path / "moved.db").rename(path)
    click(api, "new", 13)
    assert api.get("/readyz").status_code == 200
    assert items(api.get("/v1/users/new")) == [3, 13]


SLACK = 10.0  # seconds for a busy machine; without a limit the answer never comes


def test_a_silent_database_keeps_nobody_waiting(served: Serve, postgres: Postgres) -> None:
    empty(postgres.url)
    api = served(store=postgres.url, limits={"timeout": 3.0})
    click(api, "new", 3)
    assert items(api.get("/v1/recommend/new?k=2"))
    batch = {"requests": [{"user": "new"}, {"history": [3], "k": 2}, {"user": "u5"}]}
    with postgres.frozen():
        requests = [("GET", "/v1/recommend/new", None), ("GET", "/readyz", None)]
        requests.append(
            ("POST", "/v1/events", {"events": [{"user": "new", "item": 13, "id": "a"}]})
        )
        for method, path, body in requests:
            start = time.monotonic()
            answer = api.request(method, path, **({} if body is None else {"json": body}))
            assert time.monotonic() - start < 3.0 + SLACK
            assert answer.status_code == 503, answer.text
            assert "store-unavailable" in answer.json()["type"]
        assert items(api.post("/v1/recommend", {"history": [3], "k": 2}))
        answers = api.post("/v1/recommend:batch", batch).json()["answers"]
        statuses = [None if a["problem"] is None else a["problem"]["status"] for a in answers]
        assert statuses == [503, None, 503]
    click(api, "new", 13, id="a")
    assert items(api.get("/v1/users/new")) == [3, 13]
    assert api.get("/readyz").status_code == 200
