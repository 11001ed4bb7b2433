"""Signals: events become numbers, in training, at serving time, saved, updated and searched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.data.signals import Signals
from equipoise.errors import DataError, SettingError
from equipoise.ranking.ranker import score

TINY = float(np.finfo(np.float32).eps)
DAY = 86400.0
LOG = [
    ("a", "x", 0 * DAY, 4.0, "buy"),
    ("a", "x", 30 * DAY, 2.0, "view"),
    ("a", "y", 60 * DAY, 1.0, "view"),
    ("b", "y", 60 * DAY, 3.0, "buy"),
    ("b", "x", 0 * DAY, 1.0, "view"),
]
NAMES = ["user", "item", "time", "n", "event"]


def shop(log: list[tuple[Any, ...]] = LOG) -> Interactions:
    return eq.read(pl.DataFrame(log, schema=NAMES, orient="row"), weight="n", on_bad="skip")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [[1, 1], [1, 1]]),
        ({"transform": "count"}, [[2, 1], [1, 1]]),
        ({"transform": "sum"}, [[6, 1], [1, 3]]),
        ({"transform": "log1p"}, np.log1p([[6, 1], [1, 3]])),
        ({"transform": "last"}, [[2, 1], [1, 3]]),
        ({"decay": "30d"}, [[0.5, 1], [0.25, 1]]),
        ({"decay": 30 * DAY, "floor": 0.3, "transform": "sum"}, [[2.2, 1], [0.3, 3]]),
        ({"decay": "30d", "transform": "sum"}, [[2, 1], [0.25, 3]]),
        ({"decay": "30d", "reference": 120 * DAY, "floor": 0}, [[0.125, 0.25], [0.0625, 0.25]]),
        ({"decay": "30d", "reference": "1970-01-31"}, [[1, 1], [0.5, 1]]),
        ({"weights": {"view": 1, "buy": 10}}, [[10, 1], [1, 10]]),
        ({"weights": {"view": 0, "buy": 10}, "transform": "sum"}, [[40, 0], [0, 30]]),
        ({"weights": {"view": 1, "buy": 2}, "transform": "count"}, [[3, 1], [1, 2]]),
    ],
)
def test_the_matrix_is_what_the_events_are_worth(options: dict[str, Any], expected: Any) -> None:
    weighted = Signals(**options).apply(shop())
    np.testing.assert_allclose(weighted.matrix.toarray(), np.float32(expected), rtol=4 * TINY)
    assert weighted.to_frame(events=True).equals(shop().to_frame(events=True))


def test_bm25_saturates_and_weighs_rare_items_more() -> None:
    log = [("a", "x", 0, 1.0, ""), ("b", "x", 0, 9.0, ""), ("b", "y", 0, 1.0, "")]
    values = Signals(transform="bm25").apply(shop(log)).matrix.toarray()
    lengths, mean = np.array([1, 10]), 5.5
    rarity = np.log1p((2 - np.array([2, 1]) + 0.5) / (np.array([2, 1]) + 0.5))
    amounts = np.array([[1, 0], [9, 1]])
    scale = 1.2 * (0.25 + 0.75 * lengths / mean)[:, None]
    expected = rarity * amounts * 2.2 / (amounts + scale)
    np.testing.assert_allclose(values, np.float32(expected), rtol=4 * TINY)


RETURNED = [
    ("a", "x", 1, 4.0, "buy"),
    ("a", "x", 2, -1.0, "buy"),
    ("a", "y", 1, 1.0, "buy"),
    ("a", "y", 2, -1.0, "buy"),
    ("b", "y", 1, 2.0, "buy"),
    ("b", "x", 1, -2.0, "buy"),
]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"transform": "sum"}, [[3, 0], [0, 2]]),
        ({}, [[1, 0], [0, 1]]),
        ({"transform": "sum", "returns": "ignore"}, [[4, 1], [0, 2]]),
        ({"transform": "sum", "returns": "negative"}, [[3, -1], [-2, 2]]),
        ({"returns": "negative"}, [[1, -1], [-1, 1]]),
    ],
)
def test_returns_are_netted_ignored_or_negative(options: dict[str, Any], expected: Any) -> None:
    weighted = Signals(**options).apply(shop(RETURNED))
    assert weighted.matrix.toarray().tolist() == expected
    assert weighted.item_counts.tolist() == (np.array(expected) > 0).sum(axis=0).tolist()
    assert weighted.user_counts.tolist() == (np.array(expected) > 0).sum(axis=1).tolist()
    assert weighted.rows([1]).matrix.toarray().tolist() == expected[1:]


def test_negative_feedback_is_for_linear_autoencoders() -> None:
    signals = Signals(returns="negative")
    data = shop([*RETURNED, ("c", "x", 1, 1.0, "buy"), ("c", "z", 1, 1.0, "buy")])
    model = eq.EASE(l2=1.0, dropout=0.2, normalizer=eq.DAN(), signals=signals).fit(data)
    X = model.interactions_.matrix.toarray().astype(float)
    assert (X < 0).any()
    _, beta, _ = model.normalizer_.exponents()
    weight = (X > 0).sum(axis=1) ** -beta
    gram = X.T @ (weight[:, None] * X) + np.diag(1.0 + 0.25 * (X**2).sum(axis=0))
    np.testing.assert_allclose(model.inverse_ @ gram, np.eye(3), atol=200 * TINY)
    with pytest.raises(SettingError, match="cannot learn from negative values"):
        eq.ItemKNN(signals=signals).fit(data)
    with pytest.raises(SettingError, match="takes no negative values"):
        eq.EASE(signals=signals, lowpass=eq.LowPass(rank=1)).fit(data)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"transform": "cube"}, "transform must be"),
        ({"returns": "none"}, "returns must be"),
        ({"decay": "soon"}, "decay must look like"),
        ({"decay": -1}, "decay must be"),
        ({"floor": 2}, "floor must lie"),
        ({"reference": "yesterday"}, "reference must be an ISO date"),
        ({"weights": {}}, "weights must map"),
        ({"weights": {"buy": "much"}}, "must be a number"),
    ],
)
def test_invalid_settings_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(SettingError, match=match):
        Signals(**options)


def test_data_that_lack_what_signals_need_are_refused() -> None:
    plain = eq.read([("a", "x"), ("b", "y")])
    with pytest.raises(DataError, match="decay needs times"):
        Signals(decay="30d").apply(plain)
    with pytest.raises(DataError, match="weights needs types of events"):
        Signals(weights={"buy": 1}).apply(plain)
    with pytest.raises(DataError, match="no number for events of type 'view'"):
        Signals(weights={"buy": 1}).apply(shop())
    with pytest.raises(DataError, match="no event is of type 'bye'; the types are buy, view"):
        Signals(weights={"bye": 1, "view": 1, "buy": 1}).apply(shop())
    with pytest.raises(SettingError, match="SLIS weighs clicks by their order"):
        eq.SLIS(signals=Signals()).fit(shop())
    with pytest.raises(SettingError, match="signals must be Signals or None"):
        eq.EASE(signals="log1p").fit(shop())  # type: ignore[arg-type]


def random_shop(rng: np.random.Generator, users: int = 30, size: int = 300) -> Interactions:
    return shop(
        [
            (
                int(rng.integers(users)),
                int(rng.integers(8)),
                float(rng.integers(100)) * DAY,
                float(rng.integers(1, 6)),
                ["view", "buy"][int(rng.integers(2))],
            )
            for _ in range(size)
        ]
    )


MODELS: list[Any] = [
    eq.EASE(l2=5.0, signals=Signals(transform="log1p", decay="30d")),
    eq.RLAE(l2=5.0, normalizer=eq.DAN(0.2, 0.3), signals=Signals(transform="bm25")),
    eq.ItemKNN(signals=Signals(transform="sum", weights={"view": 1, "buy": 3})),
    eq.Popularity(signals=Signals(transform="sum")),
    eq.GFCF(n_factors=3, signals=Signals(transform="log1p")),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_a_model_is_fitted_on_its_signals_and_saved_with_them(model: Any, tmp_path: Path) -> None:
    data = random_shop(np.random.default_rng(0))
    model = model._vary({})
    model.fit(data)
    weighed = model.signals.apply(data)
    plain = model._vary({"signals": None}).fit(
        Interactions(weighed.matrix, data.users, data.items)
    )
    assert model.data_ is data
    assert model.data_fingerprint_ == data.fingerprint
    if not isinstance(model, (eq.Popularity, eq.ItemKNN)):  # these count users without signals
        rows = weighed.matrix[:5]
        alone = Interactions(rows, items=data.items)
        np.testing.assert_array_equal(model.score(data.users[:5].tolist()), plain.score(alone))
    model.save(tmp_path / "model")
    back = eq.load(tmp_path / "model")
    assert back.signals == model.signals
    assert back.data_fingerprint_ == data.fingerprint
    for users in (data.users[:5].tolist(), [[0, 1, 1], []], data.rows([1, 2])):
        np.testing.assert_array_equal(back.score(users), model.score(users))
    assert "Signals" in model.summary()


def test_lists_of_all_users_weigh_their_histories_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = eq.Interactions((rng.random((30, 12)) < 0.4) * rng.integers(1, 60, (30, 12)))
    model = eq.EASE(l2=5.0, signals=Signals(transform="log1p")).fit(data)
    model.recommend_to(tmp_path / "lists.parquet", k=3)
    by_id = model.recommend(data.users.tolist(), 3).to_frame(details=True)
    assert pl.read_parquet(tmp_path / "lists.parquet").equals(by_id)


def test_histories_are_weighed_as_training_was() -> None:
    data = random_shop(np.random.default_rng(1))
    log1p = eq.EASE(l2=5.0, signals=Signals(transform="log1p")).fit(data)
    users = data.users[:4].tolist()
    # the same events, as known users and as histories
    np.testing.assert_array_equal(log1p.score(users), log1p.score(data.rows(np.arange(4))))
    # a list of ids is one event each, now: an item that is there twice counts log(3)
    once, twice = log1p.score([[0]]), log1p.score([[0, 0]])
    np.testing.assert_allclose(twice, once * np.log(3) / np.log(2), rtol=8 * TINY)
    # the age counts back from the end of each history, whatever else is asked in the same batch
    decayed = eq.EASE(l2=5.0, signals=Signals(decay="10d", transform="sum", floor=0)).fit(data)
    together = decayed.score(data.rows([3, 5]))
    alone = np.concatenate([decayed.score(data.rows([row])) for row in (3, 5)])
    np.testing.assert_array_equal(together, alone)
    events = data.rows([3]).events
    weight = events.weights * 2 ** (-(events.times[-1] - events.times) / (10 * DAY))
    row = np.bincount(events.items, weight, minlength=data.n_items)
    expected = decayed.score(Interactions(np.float32(row)[None], items=data.items))
    np.testing.assert_allclose(together[:1], expected, rtol=1e3 * TINY, atol=1e3 * TINY)


@given(st.integers(0, 1000), st.sampled_from(["sum", "log1p", "binary"]))
@settings(max_examples=10, deadline=None)
def test_an_update_with_events_equals_a_refit(seed: int, transform: Any) -> None:
    rng = np.random.default_rng(seed)
    data, more = random_shop(rng), random_shop(rng, 3, 12)
    for decay in (None, "40d"):
        signals = Signals(transform=transform, decay=decay)
        updated = eq.EASE(l2=5.0, signals=signals).fit(data, dtype="float64").update(more)
        fresh = eq.EASE(l2=5.0, signals=signals).fit(data.union(more), dtype="float64")
        # the condition number is below 1e5, and rounding of float32 values is in both alike
        np.testing.assert_allclose(updated.inverse_, fresh.inverse_, rtol=1e-9, atol=1e-11)
        assert updated.data_fingerprint_ == fresh.data_fingerprint_


def test_weights_add_up_in_an_update_unless_they_replace(tmp_path: Path) -> None:
    data = eq.read([("u", "x", 6.0), ("u", "y", 1.0), ("v", "y", 2.0), ("v", "x", 1.0)])
    more = eq.read([("u", "x", 3.0)], on_bad="skip")
    both = eq.read([("u", "x", 6.0), ("u", "y", 1.0), ("v", "y", 2.0), ("v", "x", 1.0)]).union(
        more
    )
    added = eq.EASE(l2=1.0).fit(data).update(more)
    assert added.interactions_.matrix.toarray()[0].tolist() == [9, 1]
    np.testing.assert_allclose(added.inverse_, eq.EASE(l2=1.0).fit(both).inverse_, rtol=1e-5)
    replaced = eq.EASE(l2=1.0).fit(data).update(more, replace=True)
    assert replaced.interactions_.matrix.toarray()[0].tolist() == [3, 1]


def test_tune_searches_the_signals() -> None:
    data = random_shop(np.random.default_rng(2), 60, 900)
    split = eq.split.strong(data, valid=0.3, test=0.2)
    grid = {"transform": ["binary", "sum"], "decay": [None, "5d"], "l2": [1.0, 50.0]}
    search = eq.tune(eq.EASE(normalizer=eq.NoNorm()), split, grid=grid)
    assert search.solves == 8
    assert set(search.trials["transform"]) == {"binary", "sum"}
    for row in search.trials.iter_rows(named=True):
        signals = Signals(transform=row["transform"], decay=row["decay"])
        model = eq.EASE(l2=row["l2"], signals=signals).fit(split.train)
        expected = eq.evaluate(model, split.valid, bootstrap=0)["ndcg@20"]
        assert row["ndcg@20"] == pytest.approx(expected, abs=1e-12)
    best = search.trials.sort("ndcg@20", descending=True, maintain_order=True).row(0, named=True)
    assert search.model.signals.transform == best["transform"]
    neighbours = eq.tune(eq.ItemKNN(), split, grid={"transform": ["binary", "log1p"]})
    assert neighbours.trials.height == 2


def test_uneven_weights_are_noted(caplog: pytest.LogCaptureFixture) -> None:
    data = eq.read([("a", "x", 500.0), ("a", "y", 1.0), ("b", "y", 1.0), ("b", "z", 2.0)])
    with caplog.at_level("INFO", logger="equipoise"):
        eq.EASE(l2=1.0, signals=Signals()).fit(data)
        assert "are used as they are" not in caplog.text
        eq.EASE(l2=1.0).fit(data)
    assert "weights of pairs go up to 500 and are used as they are" in caplog.text


AGED = [
    *(("ann", "tea", 1.0, 0 * DAY), ("ann", "jam", 1.0, 30 * DAY), ("ann", "oil", 1.0, 40 * DAY)),
    *(
        ("bob", "tea", 1.0, 10 * DAY),
        ("bob", "oil", 1.0, 70 * DAY),
        ("bob", "rice", 1.0, 70 * DAY),
    ),
    *(("cleo", "jam", 2.0, 20 * DAY), ("cleo", "rice", 1.0, 90 * DAY)),
    *(
        ("dan", "milk", 1.0, 60 * DAY),
        ("dan", "tea", 1.0, 62 * DAY),
        ("dan", "jam", 1.0, 63 * DAY),
    ),
]


@pytest.mark.parametrize("decay", [None, "20d"])
def test_histories_have_an_age_of_their_own(decay: str | None) -> None:
    data = eq.read(AGED)
    signals = Signals(decay=decay, floor=0.3, history_decay="10d")
    model = eq.EASE(l2=1.0, signals=signals).fit(data, dtype="float64")
    as_trained = eq.EASE(l2=1.0, signals=Signals(decay=decay, floor=0.3))
    as_trained.fit(data, dtype="float64")
    # training is the same
    np.testing.assert_array_equal(model.weights_, as_trained.weights_)
    # ann's last event is at day 40, whoever has the last event of all; there is no floor
    weights = dict(zip(data.items.tolist(), np.zeros(data.n_items), strict=True))
    weights |= {"tea": 2.0**-4, "jam": 2.0**-1, "oil": 1.0}
    expected = np.array([weights[item] for item in data.items.tolist()]) @ model.weights_
    np.testing.assert_allclose(model.score(["ann"])[0], expected, rtol=1e-6)
    # ... for known users and data alike
    ann = data.select(users=["ann"])
    np.testing.assert_array_equal(model.score(["ann"]), model.score(ann))
    assert model.recommend(data.users.tolist(), k=2).items == model.recommend(data, k=2).items
    # items without times are as old as one another
    bare = model.score([["tea", "jam"]])[0]
    places = model.item_index_.positions(["tea", "jam"])
    np.testing.assert_allclose(bare, model.weights_[places].sum(axis=0), rtol=1e-6)


def test_a_history_without_age_ignores_the_decay_of_training() -> None:
    data = eq.read(AGED)
    signals = Signals(decay="20d", floor=0.0, history_decay=None)
    model = eq.EASE(l2=1.0, signals=signals).fit(data, dtype="float64")
    places = model.item_index_.positions(data.history("ann"))
    np.testing.assert_allclose(
        model.score(["ann"])[0], model.weights_[places].sum(axis=0), rtol=1e-6
    )


def test_very_old_items_stay_in_the_history() -> None:
    data = eq.read(AGED)
    for signals in (
        Signals(history_decay="1s"),
        Signals(decay="1s", floor=0.0),
        Signals(decay="1s", floor=0.0, history_decay="1s", transform="sum"),
    ):
        model = eq.ItemKNN(signals=signals).fit(data)
        lists = model.recommend(["ann"], k=10)
        assert not set(lists.items[0]) & set(data.history("ann"))
        assert set(model.explain("ann", "rice").sources) == set(data.history("ann"))


def test_histories_are_aged_in_evaluation_files_and_other_models(tmp_path: Path) -> None:
    data = eq.read(AGED)
    aged = Signals(decay="20d", history_decay="5d")
    models = [
        eq.EASE(l2=1.0, signals=aged),
        eq.ItemKNN(neighbours=3, signals=aged),
        eq.GFCF(n_factors=2, signals=aged),
    ]
    for model in models:
        model.fit(data)
        rows = model._weigh(data).toarray()
        terms = model._terms()
        np.testing.assert_array_equal(model.score(data), score(terms, model._weigh(data)))
        assert rows.max(axis=1) == pytest.approx(1.0)
        model.save(tmp_path / model.label)
        again = eq.load(tmp_path / model.label)
        assert again.signals == aged
        np.testing.assert_array_equal(again.score(data.users), model.score(data))


def test_a_solve_is_shared_by_histories_of_any_age() -> None:
    data = eq.read(AGED)
    model = eq.EASE(l2=1.0, signals=Signals(decay="20d")).fit(data)
    for age in (None, "3d", "decay"):
        other = eq.EASE(l2=1.0, signals=Signals(decay="20d", history_decay=age))
        fitted = other.clone().fit(data)
        np.testing.assert_array_equal(other.reuse(model).score(data), fitted.score(data))
        assert other.signals.same_training(model.signals)
    assert not Signals(decay="3d").same_training(Signals(decay="20d"))
    with pytest.raises(SettingError, match="reuse needs the same signals"):
        eq.EASE(l2=1.0, signals=Signals(decay="3d")).reuse(model)
    with pytest.raises(SettingError, match="reuse needs the same signals"):
        eq.EASE(l2=1.0, signals=Signals(history_decay="3d")).reuse(model)


@pytest.mark.parametrize("age", ["soon", 0, -3, True])
def test_an_invalid_half_life_is_refused(age: Any) -> None:
    with pytest.raises(SettingError, match="history_decay must"):
        Signals(history_decay=age)
