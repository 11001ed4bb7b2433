"""Rules: filters, boosts, pins, quotas and diversity, against lists made the slow way."""

from __future__ import annotations

import copy
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.sessions import drawn

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, FileFormatError, SettingError
from equipoise.ranking.mixture import similarity

CATALOGUE = pl.DataFrame(
    {
        "title": [f"item {n}" for n in range(80)],
        "brand": [None if n % 11 == 0 else f"b{n % 6}" for n in range(80)],
        "shelf": [n % 4 for n in range(80)],
        "tags": [["new"] if n % 9 == 0 else ["old", f"t{n % 3}"] for n in range(80)],
    }
)


@pytest.fixture(scope="module")
def data(synthetic: Interactions) -> Interactions:
    matrix, users, items = synthetic.matrix, synthetic.users, synthetic.items
    return Interactions(matrix, users, items, catalogue=CATALOGUE)


@pytest.fixture(scope="module")
def model(data: Interactions) -> eq.EASE:
    return eq.EASE(l2=5.0, normalizer=eq.DAN(0.2, 0.3)).fit(data)


def attribute(name: str, item: Any) -> Any:
    return CATALOGUE[name][(item - 3) // 10]


def full(model: Any, user: Any, **options: Any) -> list[Any]:
    return list(model.recommend([user], k=80, **options).items[0])


@pytest.mark.parametrize(
    ("chosen", "fits"),
    [
        ([13, 23, 43], lambda item: item in (13, 23, 43)),
        (13, lambda item: item == 13),
        ({"brand": "b2"}, lambda item: attribute("brand", item) == "b2"),
        ({"brand": ["b2", "b3"]}, lambda item: attribute("brand", item) in ("b2", "b3")),
        (
            {"brand": "b2", "shelf": [0, 1]},
            lambda item: attribute("brand", item) == "b2" and attribute("shelf", item) in (0, 1),
        ),
        ([{"brand": "b2"}, 13], lambda item: attribute("brand", item) == "b2" or item == 13),
        (lambda item: item["shelf"] == 3, lambda item: attribute("shelf", item) == 3),
        (pl.col("shelf") > 1, lambda item: attribute("shelf", item) > 1),
        ({"tags": "new"}, lambda item: "new" in attribute("tags", item)),
    ],
)
def test_items_are_chosen_by_id_attribute_or_function(
    model: eq.EASE, chosen: Any, fits: Any
) -> None:
    every = full(model, "u3")
    included = [item for item in every if fits(item)]
    assert full(model, "u3", rules=eq.Rules(include=chosen)) == included
    left = [item for item in every if not fits(item)]
    assert full(model, "u3", rules=eq.Rules(exclude=chosen)) == left
    by_user = eq.Rules(users={"u3": {"exclude": chosen}, "u4": {"include": chosen}})
    first, second, third = model.recommend(["u3", "u4", "u5"], k=80, rules=by_user).items
    assert first == left
    assert second == [item for item in full(model, "u4") if fits(item)]
    assert third == full(model, "u5")


def test_an_empty_user_rule_changes_nothing(model: eq.EASE) -> None:
    rules = eq.Rules(users={"u3": {"include": None, "exclude": None}})
    assert full(model, "u3", rules=rules) == full(model, "u3")


def test_rules_add_to_the_callers_lists(model: eq.EASE) -> None:
    rules = eq.Rules(exclude={"brand": "b1"}, users={"u3": {"include": [13, 23, 33, 43]}})
    options = {"rules": rules, "exclude": [13], "candidates": {"u4": [33, 53]}}
    three, four = model.recommend(["u3", "u4"], k=80, exclude_seen=False, **options).items
    assert set(three) == {33, 43, 23} - {i for i in (23, 33, 43) if attribute("brand", i) == "b1"}
    assert set(four) == {33, 53} - {i for i in (33, 53) if attribute("brand", i) == "b1"}


@pytest.mark.parametrize("kind", [eq.EASE(l2=5.0), eq.Popularity()])
def test_boosts_beyond_single_precision_leave_finite_scores(data: Interactions, kind: Any) -> None:
    model = kind.clone().fit(data)
    items = data.items.tolist()
    boost = {items[0]: 1e308, items[1]: 1e-320, "brand": {"b2": 1e200}}
    bonus = {items[2]: 1e300, items[3]: -1e300}
    lists = model.recommend([[items[9]]], k=80, rules=eq.Rules(boost=boost, bonus=bonus))
    assert lists.items[0][-1] == items[3]
    assert np.isfinite(lists.scores[0]).all()


@pytest.mark.parametrize("kind", [eq.EASE, eq.LAE])
def test_boosts_raise_and_lower_scores_whatever_their_sign(data: Interactions, kind: Any) -> None:
    model = kind(l2=5.0).fit(data)
    rules = eq.Rules(
        boost={"brand": {"b1": 2.0, "b2": 0.5}, 13: 4.0},
        bonus={"shelf": {"3": 0.25}},
        seen="include",
    )
    plain = model.score(["u7"])[0]
    assert (plain < 0).any()
    expected = plain.astype(np.float64)
    for n, item in enumerate(data.items.tolist()):
        factor = {"b1": 2.0, "b2": 0.5}.get(attribute("brand", item), 1.0)
        factor *= 4.0 if item == 13 else 1.0
        expected[n] = plain[n] * factor if plain[n] > 0 else plain[n] / factor
        expected[n] += 0.25 if attribute("shelf", item) == 3 else 0.0
    lists = model.recommend(["u7"], k=80, rules=rules)
    place = data.item_index.positions(lists.items[0])
    # factors are powers of 2, and the bonus is rounded once
    np.testing.assert_allclose(lists.scores[0], expected[place], rtol=1e-6)
    assert sorted(lists.items[0]) == data.items.tolist()


def by_hand(model: Any, history: list[Any], rules: eq.Rules, k: int) -> list[Any]:
    """Choose a list from all items, place by place."""
    terms, data = model._terms(), model.interactions_
    plain = eq.Rules(include=rules.include, exclude=rules.exclude)
    lists = model.recommend([history], k=80, rules=plain)
    ranked = data.item_index.positions(lists.items[0])
    score = dict(zip(ranked.tolist(), lists.scores[0].astype(float), strict=True))
    pins = [int(data.item_index.position(item)) for item in rules.pin or []]
    out = [item for item in pins if item in score][:k]
    unpinned = [item for item in ranked.tolist() if item not in pins]
    if not unpinned:
        return data.items[out].tolist()
    best, least = score[unpinned[0]], score[unpinned[min(k, len(unpinned)) - 1]]
    span = best - least if best > least else max(abs(best), 1.0)
    alike = similarity(terms, np.arange(80))
    while len(out) < k:
        worth = {}
        for item in unpinned:
            full_up = any(
                CATALOGUE[name][item] is not None
                and sum(CATALOGUE[name][other] == CATALOGUE[name][item] for other in out) >= most
                for name, most in (rules.at_most or {}).items()
            )
            if item in out or full_up:
                continue
            near = max((alike[other, item] for other in out), default=0.0)
            scaled = (score[item] - least) / span
            worth[item] = (1 - rules.diversity) * scaled - rules.diversity * near
        if not worth:
            break
        out.append(max(worth, key=lambda item: worth[item]))
    return data.items[out].tolist()


@given(
    k=st.integers(1, 30),
    diversity=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    most=st.dictionaries(st.sampled_from(["brand", "shelf"]), st.integers(1, 3)),
    pin=st.lists(st.sampled_from([13, 23, 33, 203, 793]), unique=True, max_size=3),
    exclude=st.sampled_from([None, [23, 33], {"shelf": 1}]),
    history=st.lists(st.integers(0, 79), min_size=1, max_size=6, unique=True),
)
@settings(max_examples=60, deadline=None)
def test_lists_equal_a_choice_from_all_items(
    model: eq.EASE, k: int, diversity: float, most: Any, pin: Any, exclude: Any, history: list[int]
) -> None:
    rules = eq.Rules(at_most=most, pin=pin, diversity=diversity, exclude=exclude)
    items = [place * 10 + 3 for place in history]
    (listed,) = model.recommend([items], k=k, rules=rules).items
    assert listed == by_hand(model, items, rules, k)


def test_a_list_is_full_where_enough_items_may_be_shown(model: eq.EASE) -> None:
    lists = model.recommend(
        [f"u{n}" for n in range(50)], k=6, rules=eq.Rules(at_most={"brand": 1})
    )
    assert all(len(row) == 6 for row in lists.items)  # six brands, or items without one
    for row in lists.items:
        brands = [attribute("brand", item) for item in row if attribute("brand", item) is not None]
        assert len(brands) == len(set(brands))


def test_diversity_makes_neighbours_less_alike(model: eq.EASE, data: Interactions) -> None:
    alike = similarity(model._terms(), np.arange(80))
    means = []
    for diversity in (0.0, 0.3, 0.6):
        lists = model.rank(data, 10, rules=eq.Rules(diversity=diversity)).items
        means.append(np.mean([alike[np.ix_(row, row)].mean() for row in lists]))
    assert means[0] > means[1] > means[2]


def test_lists_under_rules_do_not_depend_on_batches_and_threads(
    model: eq.EASE, data: Interactions
) -> None:
    rules = eq.Rules(at_most={"brand": 2}, diversity=0.4, pin=[13], boost={"brand": {"b1": 1.5}})
    complete = model.recommend(data, k=12, rules=rules, threads=1)
    assert complete.items == model.recommend(data, k=12, rules=rules, threads=2).items
    for start in (0, 1, 2):
        part = model.recommend(data.rows(np.arange(start, 300, 3)), k=12, rules=rules)
        assert part.items == complete.items[start::3]
        for one, two in zip(part.scores, complete.scores[start::3], strict=True):
            np.testing.assert_array_equal(one, two)


def test_pins_never_show_what_may_not_be_shown(model: eq.EASE, data: Interactions) -> None:
    seen = data.history("u3")
    fresh = next(item for item in data.items.tolist() if item not in [*seen, 13])
    rules = eq.Rules(pin=[seen[0], fresh, 13], exclude=[13])
    (listed,) = model.recommend(["u3"], k=5, rules=rules).items
    assert listed[0] == fresh
    assert seen[0] not in listed
    assert 13 not in listed
    again = eq.Rules(pin=[seen[0], fresh], seen="include")
    assert model.recommend(["u3"], k=5, rules=again).items[0][:2] == [seen[0], fresh]


def test_seen_items_are_hidden_shown_or_the_only_ones(model: eq.EASE, data: Interactions) -> None:
    seen = set(data.history("u3"))
    for kind, expected in (
        ("exclude", set(data.items.tolist()) - seen),
        ("include", set(data.items.tolist())),
        ("only", seen),
    ):
        assert set(full(model, "u3", rules=eq.Rules(seen=kind))) == expected
    again = model.recommend(["u3"], k=3, rules=eq.Rules(seen="only"), exclude_seen=True)
    best = model.score(["u3"])[0]
    order = sorted(seen, key=lambda item: -best[(item - 3) // 10])
    assert again.items[0] == order[:3]
    assert model.recommend([[]], k=3, rules=eq.Rules(seen="only")).items == [[]]


def test_popular_items_of_users_without_a_history_obey_the_rules(model: eq.EASE) -> None:
    popular = full(model, "nobody", unknown_users="popular")
    rules = eq.Rules(include={"brand": ["b1", "b2"]}, at_most={"brand": 2})
    lists = model.recommend(["nobody", "u1"], k=9, unknown_users="popular", rules=rules)
    assert lists.source == ["popular", "model"]
    for brand in ("b1", "b2"):
        of_brand = [item for item in popular if attribute("brand", item) == brand]
        assert [i for i in lists.items[0] if attribute("brand", i) == brand] == of_brand[:2]
    assert len(lists.items[0]) == len(lists.items[1]) == 4


@pytest.mark.parametrize(
    "kind", [eq.Popularity(), eq.ItemKNN(), eq.GFCF(n_factors=9), eq.SLIS(l2=2.0)]
)
def test_every_model_obeys_rules(kind: Any) -> None:
    data = drawn(60, 12, seed=3)
    catalogue = pl.DataFrame({"title": list("abcdefghijkl"), "half": ["a", "b"] * 6})
    named = Interactions(data.matrix, None, None, events=data.events, catalogue=catalogue)
    rules = eq.Rules(at_most={"half": 2}, diversity=0.2, exclude=[0])
    lists = kind.fit(named).recommend([4, 5], k=9, rules=rules)
    for row in lists.items:
        assert len(row) == 4
        assert 0 not in row
        assert sum(item % 2 for item in row) == 2


def test_rules_survive_a_file(tmp_path: Path, model: eq.EASE) -> None:
    rules = eq.Rules(
        include=[{"brand": ["b1", "b2", "b3"]}, 13],
        exclude={"shelf": 1},
        users={"u3": {"exclude": [33]}},
        boost={"brand": {'b"1\n': 2.0, "b2": 0.5}, 23: 3.0},
        bonus={"shelf": {3: -0.5}},
        at_most={"brand": 3},
        pin=[793],
        diversity=0.25,
        seen="include",
    )
    rules.save(tmp_path / "rules.toml")
    again = eq.Rules.load(tmp_path / "rules.toml")
    assert again.settings() == rules.settings()
    one = model.recommend(["u3", "u4"], k=9, rules=rules)
    two = model.recommend(["u3", "u4"], k=9, rules=tmp_path / "rules.toml")
    assert one.items == two.items


def test_a_file_of_rules_is_written_by_hand(tmp_path: Path, model: eq.EASE) -> None:
    file = tmp_path / "rules.toml"
    file.write_text('at_most = { brand = 1 }\npin = [13]\n\n[exclude]\nbrand = ["b1", "b2"]\n')
    rules = eq.Rules.load(file)
    same = {"at_most": {"brand": 1}, "pin": [13], "exclude": {"brand": ["b1", "b2"]}}
    assert rules.settings() == same
    assert (
        model.recommend("u3", rules=same).items
        == model.recommend("u3", rules=eq.Rules(**same)).items
    )


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (
            "at_mots = { brand = 1 }",
            SettingError,
            "'at_mots' is not a rule; did you mean 'at_most'",
        ),
        ("at_most = 3", SettingError, "at_most must be a mapping"),
        ("at_most = ", FileFormatError, "is not a TOML file"),
        (
            "users = { ann = { pin = [1] } }",
            SettingError,
            "'pin' is not a rule; there are include",
        ),
        ("diversity = 1.0", SettingError, r"diversity must lie in \[0, 1\)"),
        ("boost = { tea = 0 }", SettingError, "boost of 'tea' must be > 0"),
        ("bonus = { tea = 'much' }", SettingError, "bonus of 'tea' must be a number"),
        ("seen = 'never'", SettingError, "seen must be 'exclude', 'include' or 'only'"),
        ("pin = [[1]]", SettingError, "pin must be item ids"),
        ("include = [[1]]", SettingError, "include takes item ids, attributes or functions"),
        ("pin = [1.5]", SettingError, "pin must be item ids"),
        ("include = { p = { min = 3, max = 2 } }", SettingError, "no value is from 3 to 2; exch"),
        ("users = { a = { include = { p = { min = 'x' } } } }", SettingError, "must be a number"),
        ("boost = { price = { max = 1.1 } }", SettingError, "comparison.*values ..'max', 1.1"),
        ("include = { price = { most = 1.1 } }", SettingError, "must be a value of an attribute"),
        ("include = { price = [[1]] }", SettingError, "must be a value of an attribute"),
        ("boost = { price = [1, 2] }", SettingError, "pairs of value and number"),
        ("boost = { p = [[1, 2], [true, 3]] }", SettingError, "boost of 'p' names True twice"),
    ],
)
def test_an_unknown_rule_is_refused_with_its_place(
    tmp_path: Path, text: str, error: Any, message: str
) -> None:
    (tmp_path / "rules.toml").write_text(text)
    with pytest.raises(error, match=message) as raised:
        eq.Rules.load(tmp_path / "rules.toml")
    assert "rules.toml" in str(raised.value)
    with pytest.raises(DataError, match="cannot be read"):
        eq.Rules.load(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            eq.Rules(exclude={"colour": "red"}),
            "attribute 'colour', which the items lack; they have",
        ),
        (eq.Rules(include=pl.col("price") > 1), "an expression of the rules failed"),
        (eq.Rules(include=pl.col("shelf")), "must be true or false for each item"),
        (eq.Rules(include=lambda item: item["price"]), "failed on item 3: KeyError: 'price'"),
        (eq.Rules(exclude=lambda item: 1 / item["shelf"]), "item 3: ZeroDivisionError"),
        (
            eq.Rules(include=pl.col("shelf").map_elements(divmod, pl.Boolean)),
            "an expression of the rules failed",
        ),
    ],
)
def test_rules_that_do_not_fit_the_attributes_are_refused(
    model: eq.EASE, rules: eq.Rules, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        model.recommend("u3", rules=rules)


def test_attributes_are_needed_only_by_rules_that_look_at_them(synthetic: Interactions) -> None:
    model = eq.Popularity().fit(synthetic)
    assert model.recommend("u3", k=1, rules=eq.Rules(include=[793])).items == [[793]]
    for rules in (eq.Rules(exclude={"brand": "b"}), eq.Rules(exclude=lambda item: True)):
        with pytest.raises(DataError, match="catalogue="):
            model.recommend("u3", rules=rules)


def test_unknown_names_in_rules_are_logged_and_not_refused(
    model: eq.EASE, caplog: pytest.LogCaptureFixture
) -> None:
    rules = eq.Rules(exclude=[{"brand": "b99"}, -7])
    assert model.recommend("u3", k=5, rules=rules).items == model.recommend("u3", k=5).items
    assert "no item has the brand 'b99'" in caplog.text
    assert "the model does not know: -7" in caplog.text
    model.recommend("u3", k=5, rules=eq.Rules(pin=["x"]))
    assert "pinned without a score, as the model does not know them: 'x'" in caplog.text


def test_attributes_are_looked_up_once(model: eq.EASE) -> None:
    calls = []
    rules = eq.Rules(exclude=lambda item: calls.append(item) or False)
    for user in ("u1", "u2"):
        copy.copy(model).recommend(user, rules=rules)
    assert len(calls) == 80


def test_an_object_that_is_not_rules_is_refused(model: eq.EASE) -> None:
    with pytest.raises(SettingError, match=r"rules must be eq\.Rules or the path"):
        model.recommend("u3", rules=3)
    with pytest.raises(SettingError, match="'pins' is not a rule; did you mean 'pin'"):
        model.recommend("u3", rules={"pins": [1]})
    with pytest.raises(SettingError, match="a function cannot be written"):
        eq.Rules(exclude=lambda item: True).to_toml()


@pytest.fixture(scope="module")
def numbered(data: Interactions) -> eq.EASE:
    """A model whose users and items are 0, 1, 2, ..."""
    return eq.EASE(l2=5.0).fit(Interactions(data.matrix, catalogue=CATALOGUE))


def test_rules_of_users_hold_for_users_named_by_id(numbered: eq.EASE, tmp_path: Path) -> None:
    rules = eq.Rules(users={0: {"exclude": lambda item: True}, "1": {"include": [5]}})
    histories = [[1, 0], [2, 3], [4]]
    free = numbered.recommend(histories, k=5).items
    assert numbered.recommend(histories, k=5, rules=rules).items == free
    assert numbered.similar([0, 1], k=5, rules=rules).items == numbered.similar([0, 1], k=5).items
    numbered.similar_to(tmp_path / "ruled.csv", [0, 1], k=5, rules=rules)
    numbered.similar_to(tmp_path / "free.csv", [0, 1], k=5)
    assert (tmp_path / "ruled.csv").read_text() == (tmp_path / "free.csv").read_text()
    numbered.recommend_to(tmp_path / "lists.csv", histories, k=5, batch_size=2, rules=rules)
    written = pl.read_csv(tmp_path / "lists.csv").group_by("user", maintain_order=True)
    assert [group["item"].to_list() for _, group in written] == free
    for first, second in ((0, 1), ("0", "1")):
        for request in ([first, second], {first: [7], second: [8]}):
            lists = numbered.recommend(request, k=5, rules=rules, exclude_seen=False).items
            assert lists == [[], [5]]
    with pytest.raises(SettingError, match="users names the user 3 twice, as 3 and as '3'"):
        eq.Rules(users={3: {"exclude": [1]}, "3": {"exclude": [2]}})


def test_rules_of_users_hold_in_evaluate_by_id(numbered: eq.EASE) -> None:
    split = eq.split.weak(numbered.data_, valid=0, test=0.2)
    model = eq.EASE(l2=5.0).fit(split.train)
    user = int(split.test.target.users[0])
    rules = eq.Rules(users={str(user): {"exclude": lambda item: True}})
    table = eq.evaluate(model, split.test, k=5, rules=rules, bootstrap=0).per_user
    assert table.filter(pl.col("user") == user)["hit@5"].to_list() == [0.0]
    lists = model.rank(split.test.history, 5, rules=rules).lengths
    assert lists.tolist() == [0] + [5] * (len(lists) - 1)


KINDS: dict[str, list[Any]] = {
    "flag": [True, False, None],
    "count": [0, 1, 7],
    "price": [1.5, 2.0, 1e-9],
    "word": ["True", "1", 'a "quoted" \u007f \U0001f600 word'],
    "day": [date(2024, 2, 29), date(2023, 1, 1), None],
}


@pytest.fixture(scope="module")
def kinds(synthetic: Interactions) -> eq.Popularity:
    """A model whose items have attributes of every kind of value."""
    columns = {name: [values[n % 3] for n in range(80)] for name, values in KINDS.items()}
    catalogue = pl.DataFrame({"title": CATALOGUE["title"], **columns})
    matrix, users, items = synthetic.matrix, synthetic.users, synthetic.items
    return eq.Popularity().fit(Interactions(matrix, users, items, catalogue=catalogue))


@pytest.mark.parametrize("name", KINDS)
def test_values_of_every_kind_survive_a_file(
    kinds: eq.Popularity, name: str, tmp_path: Path
) -> None:
    for place, value in enumerate(KINDS[name]):
        fitting = list(range(place, 80, 3)) if value is not None else list(range(2, 80, 3))
        for rules in (
            eq.Rules(boost={name: {value: 2.0}}),
            eq.Rules(bonus={name: [[value, 1000.0]]}),
            eq.Rules(include={name: value}),
            eq.Rules(users={"u3": {"include": [{name: [value]}]}}),
        ):
            rules.save(tmp_path / "rules.toml")
            again = eq.Rules.load(tmp_path / "rules.toml")
            assert again.settings() == rules.settings()
            for field in ("boost", "bonus", "include", "users"):
                assert getattr(again, field) == getattr(rules, field)
            for variant in (rules, again):
                item_rules = variant.on(kinds.interactions_)
                boost, mask = item_rules.boost, item_rules.allowed
                if boost is not None:
                    mask = (boost.factor != 1) | (boost.bonus != 0)
                elif mask is None:
                    mask = item_rules.users["u3"]["include"]
                assert np.flatnonzero(mask).tolist() == fitting


@pytest.mark.parametrize(
    ("name", "key", "place"),
    [
        ("flag", "True", 0),
        ("flag", "false", 1),
        ("count", "7", 2),
        ("price", "1.5", 0),
        ("price", "2", 1),
        ("price", "1e-09", 2),
        ("day", "2024-02-29", 0),
        ("word", "True", 0),
        ("count", "07", None),
        ("count", "1.0", None),
        ("count", "True", None),
        ("flag", "1", None),
        ("flag", "None", None),
    ],
)
def test_a_string_matches_a_value_with_this_spelling(
    kinds: eq.Popularity, name: str, key: str, place: int | None
) -> None:
    """The keys of JSON and TOML are always text."""
    fitting = [] if place is None else list(range(place, 80, 3))
    for rules in (eq.Rules(boost={name: {key: 2.0}}), eq.Rules(bonus={name: {key: 2.0}})):
        boost = rules.on(kinds.interactions_).boost
        assert boost is not None
        changed = np.flatnonzero((boost.factor != 1) | (boost.bonus != 0))
        assert changed.tolist() == fitting
    allowed = eq.Rules(include={name: key}).on(kinds.interactions_).allowed
    assert allowed is not None
    assert np.flatnonzero(allowed).tolist() == fitting


def test_ids_in_rules_are_compared_like_ids(model: eq.EASE) -> None:
    assert model.recommend("u3", k=80, rules=eq.Rules(include=["13"])).items == [[13]]
    for unknown in ("013", "+13", 13.0, " 13"):
        assert model.recommend("u3", k=80, rules=eq.Rules(include=[unknown])).items == [[]]


def test_choices_may_be_iterators(model: eq.EASE) -> None:
    rules = eq.Rules(include=iter([13, 23]), pin=iter([23]))
    assert model.recommend("u3", k=80, exclude_seen=False, rules=rules).items == [[23, 13]]


GENRES = ["Drama|Sport", "Drama", "Sport", "Drama | War", None, "a||b", "|"]


@pytest.fixture(scope="module")
def films(synthetic: Interactions) -> eq.EASE:
    """A model whose items have several genres, as one text and as a list."""
    texts = [GENRES[n % 7] for n in range(80)]
    lists = [
        None if text is None else text.replace(" ", "").split("|") if "||" not in text else [text]
        for text in texts
    ]
    catalogue = pl.DataFrame({"title": CATALOGUE["title"], "genres": texts, "kinds": lists})
    return eq.EASE(l2=5.0).fit(Interactions(synthetic.matrix, catalogue=catalogue))


@pytest.mark.parametrize(
    ("value", "fitting"),
    [
        ("Drama", {0, 1, 3}),
        ("Sport", {0, 2}),
        ("War", {3}),
        ("Drama|Sport", {0}),
        ("Drama | War", {3}),
        (["War", "Sport"], {0, 2, 3}),
        (None, {4}),
        ("a", set()),
        ("a||b", {5}),
        ("|", {6}),
        ("", set()),
    ],
)
def test_rules_match_each_value_of_a_text_with_several(
    films: eq.EASE, value: Any, fitting: set[int]
) -> None:
    every = films.recommend([[0]], k=80, exclude_seen=False).items[0]
    left = [item for item in every if item % 7 not in fitting]
    for choice in ({"genres": value}, [{"genres": value}]):
        rules = eq.Rules(exclude=choice)
        assert films.recommend([[0]], k=80, exclude_seen=False, rules=rules).items == [left]
    chosen = eq.Rules(include={"genres": value})
    included = [item for item in every if item % 7 in fitting]
    assert films.recommend([[0]], k=80, exclude_seen=False, rules=chosen).items == [included]
    if isinstance(value, str):
        boosted = eq.Rules(boost={"genres": {value: 2.0}}).on(films.interactions_).boost
        assert boosted is not None
        assert {n % 7 for n in np.flatnonzero(boosted.factor == 2.0)} == fitting


@pytest.mark.parametrize("attribute", ["genres", "kinds"])
@pytest.mark.parametrize("pin", [None, [3]])
def test_at_most_counts_every_value_of_an_item(films: eq.EASE, attribute: str, pin: Any) -> None:
    most = 2
    for history in ([0], [5, 9], []):
        every = films.recommend([history], k=80, exclude_seen=False).items[0]
        rules = eq.Rules(at_most={attribute: most}, pin=pin)
        listed = films.recommend([history], k=80, exclude_seen=False, rules=rules).items[0]
        values = {0: ["Drama", "Sport"], 1: ["Drama"], 2: ["Sport"], 3: ["Drama", "War"]}
        values |= {4: [], 5: ["a||b"], 6: ["|"] if attribute == "genres" else [""]}
        counts: Counter[str] = Counter()
        expected: list[int] = []
        for item in [*(pin or []), *every]:
            genres = values[item % 7]
            if item not in expected and all(counts[genre] < most for genre in genres):
                expected.append(item)
                counts.update(genres)
        assert listed == expected


@pytest.fixture(scope="module")
def shop() -> eq.EASE:
    titles = pl.DataFrame({"item": ["tea", "milk"], "title": ["Tea", None]})
    rows = [("ann", "tea"), ("ann", "milk"), ("bob", "tea"), ("bob", "rice"), ("cleo", "salt")]
    rows += [("dan", "milk"), ("dan", "rice"), ("dan", "salt")]
    return eq.EASE(l2=1.0).fit(eq.read(rows, catalogue=titles))


def test_a_pinned_item_that_the_model_does_not_know_is_listed(
    shop: eq.EASE, tmp_path: Path
) -> None:
    rules = eq.Rules(pin=["offer", "salt", "gift", "offer"])
    plain = shop.recommend(["ann", "bob"], k=5, rules=eq.Rules(pin=["salt"]), reasons=2)
    lists = shop.recommend(["ann", "bob"], k=5, rules=rules, reasons=2)
    for place in range(2):
        first, *ranked = plain.items[place]
        assert lists.items[place] == ["offer", first, "gift", *ranked]
        scores = lists.scores[place]
        assert np.isnan(scores[[0, 2]]).all()
        assert scores[[1, *range(3, len(scores))]].tolist() == plain.scores[place].tolist()
        assert lists.titles is not None
        assert lists.reasons is not None
        assert plain.reasons is not None
        assert lists.titles[place][:3] == ["offer", "salt", "gift"]
        assert lists.reasons[place][0] == lists.reasons[place][2] == []
        assert lists.reasons[place][1] == plain.reasons[place][0]
        assert lists.reasons[place][3:] == plain.reasons[place][1:]
    assert lists.source == ["model", "model"]
    frame = lists.to_frame(details=True)
    assert frame["score"].null_count() == 4
    assert "offer" in lists._repr_html_()
    for k in (1, 2, 3):
        assert shop.recommend(["ann"], k=k, rules=rules).items == [lists.items[0][:k]]
    count = shop.recommend_to(
        tmp_path / "lists.parquet", ["ann", "bob"], k=5, batch_size=1, rules=rules, reasons=2
    )
    assert count == 2
    assert pl.read_parquet(tmp_path / "lists.parquet").equals(frame)
    for more in (eq.Rules(pin=["offer"], diversity=0.3), eq.Rules(pin="offer", seen="include")):
        assert shop.recommend(["ann"], k=9, rules=more).items[0][0] == "offer"
    assert shop.similar("tea", k=2, rules=rules).items == [["offer", "salt"]]
    popular = shop.recommend([[]], k=3, rules=rules)
    assert popular.items[0][:3] == ["offer", "salt", "gift"]
    assert shop.recommend([[], ["tea"]], k=1, rules=eq.Rules(pin=["offer"])).items == [
        ["offer"],
        ["offer"],
    ]


def test_an_unknown_pin_is_not_shown_where_it_may_not_be(shop: eq.EASE) -> None:
    def listed(request: Any = "ann", rules: Any = (), **options: Any) -> list[Any]:
        with_pins = eq.Rules(pin=["offer", "salt"], **dict(rules))
        options = {"k": 2, "unknown_items": "skip", **options}
        return [
            row[:1] == ["offer"]
            for row in shop.recommend(request, rules=with_pins, **options).items
        ]

    two = ["ann", "bob"]
    assert listed() == [True]
    assert listed(exclude=["offer"]) == [False]
    assert listed(exclude=["tea"]) == [True]
    assert listed(two, exclude=[["offer"], []]) == [False, True]
    assert listed(two, exclude={"bob": ["offer"]}) == [True, False]
    assert listed(["nobody", *two], exclude=[[], ["offer"], []], unknown_users="skip") == [
        False,
        True,
    ]
    assert listed(candidates=["salt", "rice"]) == [False]
    assert listed(candidates=["salt", "offer"]) == [True]
    assert listed(two, candidates={"ann": ["salt"]}) == [False, True]
    assert listed(candidates=[True] * 4) == [False]
    assert listed(exclude=[False] * 4) == [True]
    assert listed(rules={"exclude": ["offer"]}) == [False]
    assert listed(rules={"include": ["salt"]}) == [False]
    assert listed(rules={"include": ["salt", "offer"]}) == [True]
    assert listed(rules={"include": {"title": "Tea"}}) == [False]
    assert listed(rules={"exclude": {"title": "Tea"}}) == [True]
    by_user = {"users": {"bob": {"exclude": ["offer"]}, "ann": {"include": ["offer"]}}}
    assert listed(["ann", "bob", "cleo"], rules=by_user) == [True, False, True]
    histories = {"a": ["tea", "offer"], "b": ["tea"]}
    assert listed(histories) == [False, True]
    assert listed(histories, exclude_seen=False) == [True, True]
    assert listed(histories, rules={"seen": "include"}) == [True, True]
    assert listed(histories, rules={"seen": "only"}) == [True, False]
    data = eq.read([("a", "tea"), ("a", "offer"), ("b", "tea")])
    assert listed(data) == [False, True]


def test_unknown_pins_among_integer_ids(synthetic: Interactions, tmp_path: Path) -> None:
    model = eq.Popularity().fit(synthetic)
    best = model.recommend("u3", k=3).items[0]
    numbers = model.recommend("u3", k=4, rules=eq.Rules(pin=["9", 9, 11]))
    assert numbers.items == [[9, 11, *best[:2]]]
    assert numbers.to_frame()["item"].dtype == pl.Int64
    texts = model.recommend("u3", k=3, rules=eq.Rules(pin=["offer"]), reasons=0)
    assert texts.items == [["offer", *best[:2]]]
    assert texts.to_frame()["item"].to_list() == ["offer", *map(str, best[:2])]
    bare = eq.Recommendations(["u3"], [["offer", 7]], [np.array([np.nan, 1.0])], ["model"])
    assert bare.to_frame()["item"].to_list() == ["offer", "7"]
    rules = eq.Rules(pin=["offer"], users={"u3": {"exclude": ["offer"]}})
    model.recommend_to(tmp_path / "l.parquet", ["u3", "u4"], k=2, batch_size=1, rules=rules)
    written = pl.read_parquet(tmp_path / "l.parquet")["item"].to_list()
    assert written[:3] == [*map(str, best[:2]), "offer"]


def test_unknown_pins_take_a_place_in_evaluate(data: Interactions) -> None:
    split = eq.split.strong(data, valid=0, test=0.2, seed=1)
    model = eq.EASE(l2=5.0).fit(split.train)
    rules = eq.Rules(pin=["offer", 793, "gift"])
    metrics = ["recall", "ndcg", "mrr", "coverage", "popularity", "novelty"]
    result = eq.evaluate(model, split.test, k=[2, 10], rules=rules, metrics=metrics, bootstrap=0)
    lists = model.recommend(split.test.history, k=10, rules=rules).to_frame()
    numbered = lists.with_columns(
        pl.col("item").replace({"offer": "100001", "gift": "100002"}).cast(pl.Int64)
    )
    accuracy = ["recall", "ndcg", "mrr"]
    other = eq.evaluate(numbered, split.test, k=[2, 10], metrics=accuracy, bootstrap=0)
    for name in other:
        assert result[name] == other[name]
    assert result["coverage@2"] < 3 / 80
    ranked = model.rank(split.test.history, 3, rules=rules)
    assert (ranked.items[:, 0] == -1).all()
    assert (ranked.lengths == 3).all()
    assert ((ranked.items == -1).sum(axis=1) == 2).all()
