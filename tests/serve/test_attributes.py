"""Attributes of items: changed one by one and in bulk, and what lists make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serve.conftest import Api, Serve
from tests.serve.test_api import items

from equipoise.serve.state import Catalogue, Served
from equipoise.serve.store import ATTRIBUTES_KEY, Store, attributes, meta

LINES = {"content-type": "application/x-ndjson"}
VALUES = [None, True, False, 1, 0, 2.5, "tea", "salt", "1", ["tea", 1], [], ["jam"]]
IDS = ["3", "13", "23", "33", "no item of the model"]
CHANGE = st.dictionaries(
    st.sampled_from(["available", "kind", "price", "tags"]), st.sampled_from(VALUES)
)
CHANGES = st.lists(st.dictionaries(st.sampled_from(IDS), CHANGE), max_size=4)
RULES: list[dict[str, Any]] = [
    {"exclude": {"kind": "tea"}},
    {"include": {"price": [1, "1"]}},
    {"at_most": {"tags": 1, "kind": 3}},
    {"boost": {"kind": {"salt": 2.0}}},
    {"users": {"u5": {"exclude": {"tags": "jam"}}}},
    {"pin": [13]},
]


def send(api: Api, rows: list[Any]) -> Any:
    content = "\n".join(json.dumps(row) for row in rows).encode()
    return api.request("POST", "/v1/items", content=content, headers=LINES)


@pytest.fixture(scope="module")
def loaded(saved: Path) -> Served:
    return Served.open("dan", str(saved / "dan"))


def outcome(catalogue: Catalogue, work: Any) -> Any:
    try:
        return work(catalogue)
    except Exception as error:
        return str(error)


# values of one type each, which are changed item by item
ONE_KIND = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["tea", "salt", "tea|jam", None]),
        "price": st.sampled_from([0, 1, 2]),
        "tags": st.sampled_from([["jam"], ["tea", "jam"], ["salt", "tea", "jam"]]),
    },
)
CHANGES_OF_ONE_KIND = st.lists(
    st.dictionaries(st.sampled_from(IDS), ONE_KIND, min_size=1), min_size=1, max_size=4
)


@settings(max_examples=60, deadline=None)
@given(changes=CHANGES | CHANGES_OF_ONE_KIND, first=CHANGE | ONE_KIND)
def test_a_changed_catalogue_equals_a_new_one(
    loaded: Served, changes: list[dict[str, Any]], first: dict[str, Any]
) -> None:
    stored: dict[str, dict[str, Any]] = {"3": first}
    catalogue = Catalogue(loaded, stored)
    looks: list[Any] = [lambda c, r=rules: c.rules(r, "u5") for rules in RULES]
    for name in ("kind", "price", "tags", "available"):
        for value in (None, True, 1, "1", "tea", "jam", 2.5):
            looks.append(lambda c, n=name, v=value: c.mask(n, (v, "salt")))
    for change in changes:
        for look in looks:
            outcome(catalogue, look)  # fills the columns that the change has to carry over
        stored = {**stored, **change}
        catalogue, fresh = catalogue.changed(stored, change), Catalogue(loaded, stored)
        assert catalogue.names() == fresh.names()
        assert catalogue.available.tolist() == fresh.available.tolist()
        assert catalogue.data.n_items == fresh.data.n_items
        for look in looks:
            one, other = outcome(catalogue, look), outcome(fresh, look)
            if isinstance(one, np.ndarray):
                assert one.tolist() == other.tolist()
            else:
                np.testing.assert_equal(_arrays(one), _arrays(other))


def _arrays(rules: Any) -> Any:
    """Return resolved rules as arrays and plain values."""
    if rules is None or isinstance(rules, str):
        return rules
    boost = None if rules.boost is None else (rules.boost.factor, rules.boost.bonus)
    quotas = [(quota.codes, quota.most) for quota in rules.quotas]
    return rules.allowed, rules.users, boost, quotas, rules.pins


def test_many_items_are_described_at_once(api: Api) -> None:
    rows: list[Any] = [{"item": n, "available": n != 13, "shelf": f"s{n}"} for n in range(3, 3000)]
    rows += [{"item": "made up", "category": "new"}, {"item": 23, "shelf": "last"}]
    assert send(api, rows).json() == {"items": len(rows)}
    assert api.get("/v1/items/23").json()["attributes"]["shelf"] == "last"
    assert api.state.store.all_attributes()["made up"]["category"] == "new"
    listed = items(api.post("/v1/recommend", {"user": "nobody", "k": 80, "exclude_seen": False}))
    assert 13 not in listed
    assert 23 in listed
    chosen = {"user": "nobody", "filters": {"shelf": ["s33", "last", "s23"]}, "k": 80}
    assert sorted(items(api.post("/v1/recommend", chosen))) == [23, 33]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"item": 3}\n{"item": 4', "line 2 is not a JSON object"),
        (b'{"item": 3}\n[]', "line 2 is not a JSON object"),
        (b'{"item": 3}\n{"shelf": 1}', "item 2: item"),
        (b'{"item": 3}\n{"item": 4, "available": "no"}', "item 2: available"),
        (b'{"item": 3}\n{"item": 4, "shelf": {"a": 1}}', "item 2: shelf"),
        (b'{"item": "\\u0000"}', "NUL"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_stored(api: Api, content: bytes, words: str) -> None:
    answer = api.request("POST", "/v1/items", content=content, headers=LINES)
    assert answer.status_code == 422
    assert words in answer.json()["detail"]
    assert api.state.store.all_attributes() == {}


def test_lines_after_a_stored_part_say_what_is_stored(api: Api) -> None:
    rows: list[Any] = [{"item": n} for n in range(2500)]
    answer = send(api, [*rows, {"item": None}])
    assert "item 2,501 (2,000 items before it are stored)" in answer.json()["detail"]
    assert len(api.state.store.all_attributes()) == 2000


def test_changes_are_read_by_their_numbers(url: str) -> None:
    store = Store(url)
    assert store.attribute_version() == "0"
    store.do(store.describe("a", {"n": 1}))
    store.do(store.describe_all({"b": {"n": 2}, "c": {"n": 3}}))
    assert store.attribute_version() == "2"
    store.do(store.describe("a", {"n": 4}))
    assert store.all_attributes(2) == {"a": {"n": 4}}
    assert set(store.all_attributes(1)) == {"a", "b", "c"}
    assert store.all_attributes(3) == {}
    store.close()


def test_changes_of_an_earlier_version_of_the_service_are_seen(
    served: Serve, tmp_path: Path
) -> None:
    api, other = served(), served()
    api.put("/v1/items/3", {"shelf": 1})
    store = api.state.store
    for number, shelf in enumerate(("old", "older")):  # as it writes a row: without a number
        row = {"item": "13", "data": json.dumps({"shelf": shelf})}
        version = meta.update().where(meta.c.name == ATTRIBUTES_KEY).values(value=f"ab{number}")

        def write(connection: sa.Connection, row: Any = row, version: Any = version) -> None:
            connection.execute(attributes.delete().where(attributes.c.item == "13"))
            connection.execute(attributes.insert(), row)
            connection.execute(version)

        store.do(write)
        api.put("/v1/items/23", {"shelf": number})
        other.put("/v1/items/33", {"shelf": number})
        for one in (api, other):
            assert one.get("/v1/items/13").json()["attributes"]["shelf"] == shelf
            assert one.get("/v1/items/3").json()["attributes"]["shelf"] == 1
            one.state.renew_attributes(at_once=True)
            assert one.get("/v1/items/23").json()["attributes"]["shelf"] == number


def test_a_change_of_one_attribute_keeps_what_rules_of_others_looked_up(api: Api) -> None:
    rules = {"exclude": {"shelf": "low"}}
    send(api, [{"item": n, "shelf": "low" if n % 2 else "high"} for n in range(3, 800, 10)])
    catalogue = api.state.catalogue(api.state.model(None))
    before = catalogue.rules(rules)
    api.put("/v1/items/3", {"shelf": "low", "available": False})
    after = api.state.catalogue(api.state.model(None))
    assert after is not catalogue
    assert after.rules(rules) is before
    api.put("/v1/items/3", {"shelf": "high"})
    assert api.state.catalogue(api.state.model(None)).rules(rules) is not before
