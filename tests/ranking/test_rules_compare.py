"""Rules compare numbers and dates, and know items without events by their attributes."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, SettingError
from equipoise.ranking import rules as rules_module

ITEMS = [f"i{n}" for n in range(8)]
NOW = "2026-03-01"
TABLE = {
    "item": [*ITEMS, "new", "old"],
    "title": [f"Item {n}" for n in range(8)] + ["New", "Old"],
    "price": [5.0, 10.0, 20.0, 20.5, None, float("nan"), 40.0, -1.0, 7.0, 70.0],
    "published": [
        *("2026-02-28", "2026-01-30", "2026-02-15T12:00", "2026-03-02", None),
        *("2020-01-01", "2026-01-01", "2026-02-01", "2026-02-27", "2019-01-01"),
    ],
    "genres": ["a|b", "a", "b", "c", "", "a|c", "b|c", "c", "a|b", "c"],
}


@pytest.fixture(scope="module")
def data() -> Interactions:
    """Item n has 9 - n users; all items are in the catalogue, and two new ones."""
    pairs = [(f"u{user}", ITEMS[item]) for item in range(8) for user in range(9 - item)]
    return eq.read(pairs, catalogue=TABLE)


@pytest.fixture(scope="module")
def model(data: Interactions) -> eq.Popularity:
    return eq.Popularity().fit(data)


def listed(model: Any, **rules: Any) -> list[int]:
    """Return the numbers of the items that rules leave, in their order."""
    rules = {"now": NOW, "seen": "include", **rules}
    items = model.recommend([[]], k=10, rules=eq.Rules(**rules)).items[0]
    return [int(item[1:]) if item in ITEMS else item for item in items]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"price": {"max": 20}}, [0, 1, 2, 7]),
        ({"price": {"min": 20}}, [2, 3, 6]),
        ({"price": {"min": 10, "max": 20}}, [1, 2]),
        ({"price": {"min": 20, "max": 20}}, [2]),
        ({"price": [{"max": 5}, {"min": 40}]}, [0, 6, 7]),
        ({"price": [{"max": 5}, {"missing": True}, 20]}, [0, 2, 4, 7]),
        ({"price": {"max": 20}, "genres": "a"}, [0, 1]),
        ([{"price": {"max": -1}}, "i3"], [3, 7]),
        ({"published": {"within": "30d"}}, [0, 1, 2, 7]),
        ({"published": {"within": "29d"}}, [0, 2, 7]),
        ({"published": {"within": 86400}}, [0]),
        ({"published": {"after": "2026-02-01"}}, [0, 2, 3, 7]),
        ({"published": {"before": "2026-02-01"}}, [1, 5, 6]),
        ({"published": {"after": "2026-01-01", "before": "2026-02-01"}}, [1, 6]),
        ({"published": {"after": dt.date(2026, 2, 15)}}, [0, 2, 3]),
        ({"published": {"after": dt.datetime(2026, 2, 15, 13)}}, [0, 3]),
        ({"published": {"before": "2026-02-20", "within": "60d"}}, [1, 2, 6, 7]),
    ],
)
def test_comparisons_choose_items(
    model: eq.Popularity, selection: Any, expected: list[int]
) -> None:
    assert listed(model, include=selection) == expected
    others = [n for n in range(8) if n not in expected]
    assert listed(model, exclude=selection) == others
    assert listed(model, users={"u1": {"include": selection}}) == list(range(8))
    by_user = eq.Rules(now=NOW, seen="include", users={"ann": {"include": selection}})
    items = model.recommend({"ann": []}, k=8, rules=by_user).items[0]
    assert [int(item[1:]) for item in items] == expected


def test_the_time_of_the_request_moves_on(
    model: eq.Popularity, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = dt.datetime(2026, 3, 1, tzinfo=dt.UTC).timestamp()
    monkeypatch.setattr(rules_module.clock, "time", lambda: moment)
    rules = eq.Rules(include={"published": {"within": "20d"}})

    def items() -> list[Any]:
        return list(model.recommend([[]], k=8, rules=rules).items[0])

    assert items() == ["i0", "i2"]
    moment += 2 * 86_400
    assert items() == ["i0", "i2", "i3"]
    moment += 15 * 86_400
    assert items() == ["i0", "i3"]
    assert rules.follows_the_clock
    assert not eq.Rules(include={"published": {"within": "30d"}}, now=NOW).follows_the_clock
    assert not eq.Rules(include={"price": {"max": 5}}).follows_the_clock
    assert eq.Rules(boost=[({"published": {"half_life": "1d"}}, 2)]).follows_the_clock
    assert eq.Rules(users={"a": {"exclude": [{"x": {"within": 5}}]}}).follows_the_clock


def scores(model: Any, **rules: Any) -> dict[str, float]:
    lists = model.recommend([["i0", "i5"]], k=8, rules=eq.Rules(now=NOW, seen="include", **rules))
    return dict(zip(lists.items[0], lists.scores[0].tolist(), strict=True))


def test_a_boost_takes_pairs_of_items_and_factors(data: Interactions) -> None:
    model = eq.EASE(l2=1.0).fit(data)
    plain = scores(model)
    pairs = [({"price": {"max": 10}}, 2.0), ({"genres": "b"}, 3.0), (["i3", "i4"], 0.5)]
    factors = {"i0": 6.0, "i1": 2.0, "i2": 3.0, "i6": 3.0, "i7": 2.0, "i3": 0.5, "i4": 0.5}
    boosted, added = scores(model, boost=pairs), scores(model, bonus=pairs)
    for item, score in plain.items():
        factor = factors.get(item, 1.0)
        assert boosted[item] == pytest.approx(score * factor if score > 0 else score / factor)
    assert added["i0"] == pytest.approx(plain["i0"] + 5.0, rel=1e-5)
    assert added["i5"] == pytest.approx(plain["i5"], rel=1e-5)
    expression = [(pl.col("price") < 8, 2.0), (lambda item: item["title"] == "Item 3", 4.0)]
    assert scores(model, bonus=expression)["i3"] == pytest.approx(plain["i3"] + 4.0, rel=1e-5)


def test_a_boost_on_a_date_fades(data: Interactions) -> None:
    model = eq.EASE(l2=1.0).fit(data)
    plain = scores(model)
    fresh = {"published": {"half_life": "14d"}}
    days = {"i0": 1, "i1": 30, "i2": 13.5, "i3": 0, "i6": 59, "i7": 28}
    boosted = scores(model, boost=[(fresh, 2.0)])
    added = scores(model, bonus=[({**fresh, "price": {"max": 20}}, 0.3)])
    for item, score in plain.items():
        share = 0.5 ** (days[item] / 14) if item in days else 0.5 ** ((2251) / 14)
        share = 0.0 if item in ("i4", "i5") else share
        factor = 1 + share
        expected = score * factor if score > 0 else score / factor
        assert boosted[item] == pytest.approx(expected, rel=1e-5)
        is_cheap = item in ("i0", "i1", "i2", "i7")
        assert added[item] == pytest.approx(score + 0.3 * share * is_cheap, rel=1e-4, abs=1e-6)


def test_items_with_few_users_are_listed_only_if_named(model: eq.Popularity) -> None:
    assert listed(model, min_users=5) == [0, 1, 2, 3, 4]
    assert listed(model, min_users=5, include=["i1", "i6", {"genres": "c"}]) == [1, 3, 6]
    assert listed(model, min_users=5, pin=["i7", "i6"]) == [7, 6, 0, 1, 2, 3, 4]
    assert listed(model, min_users=5, exclude=["i1"], pin=["i7", "i1"]) == [7, 0, 2, 3, 4]
    assert listed(model, min_users=2) == list(range(8))


@pytest.mark.parametrize(
    ("rules", "shown"),
    [
        ({}, True),
        ({"include": {"price": {"max": 7}}}, True),
        ({"include": {"price": {"max": 6}}}, False),
        ({"exclude": {"genres": "b"}}, False),
        ({"exclude": {"genres": "c"}}, True),
        ({"include": {"title": "New"}}, True),
        ({"include": lambda item: item["price"] == 7}, True),
        ({"include": pl.col("price") > 7}, False),
        ({"exclude": {"published": {"within": "30d"}}}, False),
        ({"exclude": ["new"]}, False),
        ({"min_users": 3}, True),
    ],
)
def test_rules_see_the_attributes_of_pins_without_events(
    model: eq.Popularity, rules: dict[str, Any], shown: bool
) -> None:
    assert ("new" in listed(model, pin=["new"], **rules)) == shown


def test_pins_without_events_have_titles_and_no_score(
    model: eq.Popularity, caplog: pytest.LogCaptureFixture
) -> None:
    lists = model.recommend([[]], k=3, rules=eq.Rules(pin=["new", "i4"]), reasons=0)
    assert lists.items == [["new", "i4", "i0"]]
    assert lists.titles == [["New", "Item 4", "Item 0"]]
    assert np.isnan(lists.scores[0][0])
    assert not caplog.records
    strange = model.recommend([[]], k=2, rules=eq.Rules(pin=["offer"]))
    assert strange.titles == [["offer", "Item 0"]]
    assert "pinned without a score, as the model does not know them: 'offer'" in caplog.text


def test_values_of_lists_are_named_alone_or_together(model: eq.Popularity) -> None:
    assert listed(model, include={"genres": "a"}) == [0, 1, 5]
    assert listed(model, include={"genres": "a|b"}) == [0]
    assert listed(model, include={"genres": None}) == [4]
    assert listed(model, at_most={"genres": 1}) == [0, 3, 4]
    numbers = model.interactions_.with_catalogue(
        {"item": ITEMS, "sizes": [[1, 2]] * 4 + [[3]] * 4}
    )
    assert listed(eq.Popularity().fit(numbers), include={"sizes": 3}) == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("rules", "error", "message"),
    [
        ({"include": {"title": {"max": 3}}}, DataError, "'title' with numbers, but it holds text"),
        ({"include": {"genres": {"max": 3}}}, DataError, "with numbers, but it holds lists"),
        ({"include": {"price": {"within": "3d"}}}, DataError, "'price' with dates, but it holds"),
        ({"include": {"title": {"after": NOW}}}, DataError, "with dates, but it holds text; name"),
        ({"exclude": {"cost": {"max": 3}}}, DataError, "attribute 'cost', which the items lack"),
        ({"include": {"price": {"min": 2, "max": 1}}}, SettingError, "no value is from 2 to 1"),
        (
            {"include": {"day": {"after": NOW, "before": NOW}}},
            SettingError,
            "no value is from '2026-03-01' to '2026-03-01'; exchange after and before",
        ),
        (
            {"include": {"p": {"min": 2, "before": NOW}}},
            SettingError,
            "mixes 'min', 'before'; num",
        ),
        ({"include": {"p": {"half_life": "2d"}}}, SettingError, "half_life, which is for boost"),
        ({"include": {"p": {"min": "two"}}}, SettingError, "min of include of 'p' must be a num"),
        ({"include": {"p": {"after": "May"}}}, SettingError, "must be an ISO date or time"),
        ({"include": {"p": {"within": "30"}}}, SettingError, "has no unit; write 30d for days"),
        ({"boost": [({"p": {"max": 3}},)]}, SettingError, "boost must be a mapping, or pairs of"),
        ({"boost": [({"p": {"max": 3}}, 0)]}, SettingError, "must be > 0"),
        ({"boost": {"p": {"half_life": "2d"}}}, SettingError, "without a number to apply"),
        ({"min_users": 0}, SettingError, "min_users must be"),
        ({"now": "today"}, SettingError, "now must be an ISO date or time"),
    ],
)
def test_comparisons_that_make_no_sense_are_refused(
    model: eq.Popularity, rules: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        listed(model, **rules)


def test_dates_may_be_text_in_json(model: eq.Popularity) -> None:
    texts = ["2026-02-20", None, "2026-01-01T10:00:00+02:00", *[None] * 5]
    catalogue = pl.DataFrame({"title": ITEMS, "since": texts})
    matrix, items = model.interactions_.matrix, ITEMS
    other = eq.Popularity().fit(Interactions(matrix, None, items, catalogue=catalogue))
    assert listed(other, include={"since": {"after": "2026-02-01"}}) == [0]
    assert listed(other, include={"since": {"before": "2026-01-01T08:00:01"}}) == [2]


def test_comparisons_survive_a_file(model: eq.Popularity, tmp_path: Path) -> None:
    rules = eq.Rules(
        include=[
            {"price": {"min": 1.5, "max": 20}},
            {"published": {"after": dt.date(2026, 1, 1)}},
        ],
        exclude={"published": {"within": "2d"}},
        boost=[({"price": {"max": 10}}, 1.5), ({"published": {"half_life": "14d"}}, 2.0)],
        min_users=2,
        now=dt.datetime(2026, 3, 1, 12),
    )
    rules.save(tmp_path / "rules.toml")
    back = eq.Rules.load(tmp_path / "rules.toml")
    assert back.settings() == rules.settings()
    lists = [
        model.recommend([["i1"]], k=8, rules=some_rules).to_frame() for some_rules in (rules, back)
    ]
    assert lists[0].equals(lists[1])
    (tmp_path / "typed.toml").write_text(
        'include = { price = { max = 20 } }\nboost = [[{ published = { half_life = "14d" } }, 2]]'
        "\nnow = 2026-03-01\nmin_users = 3\n"
    )
    assert eq.Rules.load(tmp_path / "typed.toml").settings()["min_users"] == 3


def test_evaluation_compares_dates_with_now(data: Interactions) -> None:
    split = eq.split.strong(data, valid=0, test=0.3, seed=1)
    model = eq.Popularity().fit(split.train)
    rules = {"include": {"published": {"within": "30d"}}}
    then = eq.evaluate(model, split.test, rules={**rules, "now": NOW}, bootstrap=0)
    later = eq.evaluate(model, split.test, rules={**rules, "now": "2040-01-01"}, bootstrap=0)
    assert then["ndcg@20"] > later["ndcg@20"] == 0
