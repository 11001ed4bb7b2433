"""A backtest: models fitted before several cuts, judged by what came after each."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest

import equipoise as eq
from equipoise.evaluation.backtest import (
    Cut,
    best_half_life,
    folds_of,
    forecast_error,
    half_lives,
    verdict,
)

DAY = 86400.0
START = 1_600_000_000.0


def log(seed: int = 0, n_events: int = 1500, days: int = 60) -> eq.Interactions:
    """Events of users whose taste drifts: item j is in demand around its own day."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.random(n_events)) * days * DAY
    demand = np.arange(25) / 25 * days * DAY
    rows = []
    for time in times:
        chances = np.exp2(-np.abs(time - demand) / (10 * DAY))
        item = rng.choice(25, p=chances / chances.sum())
        rows.append((f"u{rng.integers(50)}", f"i{item}", 1.0, START + float(time)))
    rows.append(("u0", "i0", 1.0, START + days * DAY))
    return eq.read(rows)


STRANGERS = eq.read([("ann", "tea", 1.0, 0), ("bob", "tea", 1.0, 9), ("dan", "tea", 1.0, 99)])


def test_folds_end_with_the_data_one_horizon_apart() -> None:
    data = log()
    times = data.events.times
    folds = folds_of(data, "7d", 3)
    assert len(folds) == 3
    assert folds[-1].cut.end == np.nextafter(times.max(), math.inf)
    for fold, later in pairwise(folds):
        assert fold.cut.end == later.cut.start
    for fold in folds:
        assert fold.cut.end - fold.cut.start == pytest.approx(7 * DAY)
        assert fold.train.events.times.max() < fold.cut.start
        assert fold.part.target.events.times.min() >= fold.cut.start
        assert fold.part.target.events.times.max() < fold.cut.end
        # targets are new to their user
        assert fold.part.history.matrix.multiply(fold.part.target.matrix).nnz == 0
    assert folds[0].cut.days.count("-") == 4


def test_short_periods_are_named_with_the_time_of_day() -> None:
    """Three periods of one day must not have the same name."""
    day = 1_700_006_400.0  # midnight
    names = [Cut(day, day + 7 * DAY).days, Cut(day, day + DAY / 2).days]
    names += [Cut(day + DAY / 2, day + 1.5 * DAY).days, Cut(day, day + 90).days]
    assert names == [
        "2023-11-15 to 2023-11-22",
        "2023-11-15 00:00 to 12:00",
        "2023-11-15 12:00 to 11-16 12:00",
        "2023-11-15 00:00:00 to 00:01:30",
    ]


def test_without_a_horizon_each_fold_has_a_tenth_of_the_events() -> None:
    data = log()
    times = data.events.times
    for fold in folds_of(data, folds=4):
        inside = (times >= fold.cut.start) & (times < fold.cut.end)
        assert inside.sum() == pytest.approx(0.1 * len(times), abs=2)


def test_fewer_folds_are_made_where_the_data_do_not_reach_back() -> None:
    data = log()
    assert len(folds_of(data, "25d", 9)) == 2
    assert len(folds_of(data, folds=30)) < 11


def test_folds_count_items_and_users_that_are_new() -> None:
    day = [0, 0, 1, 1, 2, 2, 11, 11, 11, 12, 12]
    users = ["ann", "bob", "ann", "cleo", "bob", "cleo", "ann", "ann", "dan", "bob", "cleo"]
    items = ["tea", "tea", "jam", "jam", "oil", "tea", "oil", "new", "tea", "oil", "oil"]
    rows = zip(users, items, [1.0] * 11, [START + n * DAY for n in day], strict=True)
    (fold,) = folds_of(eq.read([*rows]), "5d", 1, again=True)
    assert fold.n_pairs == 5
    assert fold.unknown_items == pytest.approx(1 / 5)
    assert fold.unknown_users == pytest.approx(1 / 5)
    assert fold.repeated == pytest.approx(1 / 5)
    assert sorted(fold.part.target.users.tolist()) == ["ann", "cleo"]
    assert fold.repeats is not None
    assert fold.repeats.target.users.tolist() == ["bob"]


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (eq.Interactions([[1, 1]]), {}, "a backtest needs times"),
        (eq.Interactions([[1, 1]], times=[5, 5]), {}, "all events have the same time"),
        (log(), {"horizon": "90d"}, "no longer than the horizon; use a shorter one"),
        (
            STRANGERS,
            {"horizon": "1s", "folds": 1},
            "no period to test on: .*; use a longer horizon",
        ),
        (pl.DataFrame(), {}, "backtest needs Interactions with times"),
    ],
)
def test_data_without_a_period_to_test_on_are_refused(
    data: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(eq.DataError, match=message):
        eq.backtest(eq.EASE(l2=1.0), data, **options)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (eq.EASE, {}, "backtest needs a model, such as eq.EASE"),
        (eq.EASE(l2=1.0), {"folds": 0}, "folds must"),
        (eq.EASE(l2=1.0), {"horizon": "soon"}, "horizon must"),
        (eq.EASE(l2=1.0), {"horizon": -1}, "horizon must"),
        (eq.EASE(l2=1.0), {"repeats": "some"}, "repeats must"),
        (eq.EASE(l2=1.0), {"update": 1}, "update must"),
        (eq.EASE(l2=1.0), {"progress": 3}, "progress must"),
        (eq.EASE(l2=1.0), {"metrics": "bleu"}, "bleu"),
        (eq.EASE(l2=1.0), {"engine": "warp"}, "engine must"),
        (eq.EASE(l2=1.0), {"valid": 3}, "does not support valid"),
        (eq.SLIS(), {}, "SLIS ranks the next click of a session; evaluate it on eq.split.sess"),
    ],
)
def test_wrong_arguments_are_refused(model: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(eq.SettingError, match=message):
        eq.backtest(model, log(), **options)


def test_each_period_is_a_fit_before_it_and_an_evaluation_after() -> None:
    data = log()
    model = eq.EASE(l2=20.0, normalizer=eq.DAN(0.2, 0.3))
    tested = eq.backtest(model, data, "7d", 2, k=[5, 20], metrics=["recall", "mrr"], bootstrap=50)
    assert not hasattr(model, "interactions_")
    for number, fold in enumerate(folds_of(data, "7d", 2)):
        split = eq.split.time_cut(
            data._only_events(data.events.times < fold.cut.end),
            test_from=fold.cut.start,
            valid=0,
        )
        fitted = eq.EASE(l2=20.0, normalizer=eq.DAN(0.2, 0.3)).fit(split.train)
        expected = eq.evaluate(fitted, split.test, k=[5, 20], bootstrap=0)
        for metric in ("recall@5", "mrr@20", "ndcg@20"):
            assert tested.values(metric)[number] == expected[metric]
    assert tested["ndcg@20"] == pytest.approx(np.mean(tested.values()))
    assert tested.value("recall@5") == tested["recall@5"]
    interval = tested.results["EASE+DAN"][0].interval("ndcg@20")
    assert interval.low < tested.values()[0] < interval.high


def test_the_model_is_shown_beside_yardsticks_by_the_same_protocol() -> None:
    data = log()
    calls: list[tuple[int, int]] = []
    tested = eq.backtest(
        eq.EASE(l2=20.0), data, "7d", 2, bootstrap=0, progress=lambda *done: calls.append(done)
    )
    assert calls == [(number, 8) for number in range(1, 9)]
    assert list(tested.results) == ["EASE", "popular", "popular lately", "item-kNN"]
    for number, fold in enumerate(folds_of(data, "7d", 2)):
        for name, model in (("popular", eq.Popularity()), ("item-kNN", eq.ItemKNN())):
            expected = eq.evaluate(model.fit(fold.train), fold.part, bootstrap=0)["ndcg@20"]
            assert tested.values("ndcg@20", name)[number] == expected
    # demand drifts, so what is popular lately is ahead of what ever was
    assert tested.value("ndcg@20", "popular lately") > tested.value("ndcg@20", "popular")
    assert "popular lately" in tested.verdict
    with pytest.raises(eq.UnknownIdError, match="has no 'popullar'"):
        tested.value("ndcg@20", "popullar")
    alone = eq.backtest(eq.EASE(l2=20.0), data, "7d", 2, bootstrap=0, yardsticks=False)
    assert list(alone.results) == ["EASE"]
    assert alone.values() == tested.values()
    assert alone.verdict == f"EASE has ndcg@20 {alone['ndcg@20']:.4f}"


def test_the_lower_model_is_ahead_by_a_metric_to_minimise() -> None:
    periods = {"EASE": [3.0, 3.2], "popular": [6.0, 6.4], "item-kNN": [4.0, 4.4]}
    ahead = "EASE (popularity@20 3.1000) is ahead of item-kNN (4.2000) by 26%"
    assert verdict(periods, "EASE", "popularity@20") == ahead
    assert verdict(periods, "popular", "popularity@20").startswith("do not deploy popular")
    assert "EASE (popularity@20 3.1000)" in verdict(periods, "popular", "popularity@20")


def test_periods_without_a_value_of_a_metric_do_not_count() -> None:
    periods = {"EASE": [0.2, math.nan, 0.3], "popular": [0.19, math.nan, 0.32]}
    assert "differ no more than by chance" in verdict(periods, "EASE", "tail_ndcg@20")
    rows = [(f"u{user}", "tea", 1.0, 0.0) for user in range(40)]
    rows += [(f"u{user}", f"x{user}", 1.0, 1.0) for user in range(40)]
    rows += [(f"v{user}", f"x{user}", 1.0, 2.0) for user in range(20)]
    rows += [(f"v{user}", "tea", 1.0, 12.0) for user in range(20)]  # no target is in the tail
    rows += [(f"u{user}", f"x{user + 1}", 1.0, 22.0) for user in range(20)]
    tested = eq.backtest(
        eq.EASE(l2=1.0), eq.read(rows), 10, 2, metrics="tail_ndcg", bootstrap=0, yardsticks=False
    )
    first, second = tested.values("tail_ndcg@20")
    assert math.isnan(first)
    assert tested["tail_ndcg@20"] == second
    assert tested.error("tail_ndcg@20") >= 0


def test_the_verdict_names_a_yardstick_that_is_ahead() -> None:
    data = log()
    behind = eq.backtest(eq.Popularity(), data, "7d", 2, bootstrap=0)
    assert behind.verdict.startswith("do not deploy Popularity as it is: ")
    trend = eq.Trend(half_life="7d", power=1.0, share=1.0)
    ahead = eq.backtest(eq.EASE(l2=20.0, trend=trend), data, "7d", 2, bootstrap=0)
    assert ahead["ndcg@20"] > ahead.value("ndcg@20", "popular")
    assert ahead["ndcg@20"] > eq.backtest(eq.EASE(l2=20.0), data, "7d", 2, bootstrap=0)["ndcg@20"]


def test_the_half_life_of_a_yardstick_is_chosen_before_the_cut() -> None:
    data = log()
    (fold,) = folds_of(data, "7d", 1)
    (before,) = folds_of(fold.train, "7d", 1)
    candidates = half_lives(fold.train)
    assert len(candidates) > 2
    best = best_half_life(before.train, before.part, candidates)
    values = {
        text: eq.evaluate(
            eq.Popularity(signals=eq.Signals(decay=text, floor=0.0)).fit(before.train),
            before.part,
            bootstrap=0,
        )["ndcg@20"]
        for text in candidates
    }
    assert values[best] == max(values.values())
    tested = eq.backtest(eq.EASE(l2=20.0), data, "7d", 1, bootstrap=0)
    assert f"decay={best}" in tested.models["popular lately"]


def test_a_half_life_is_chosen_even_from_little_data() -> None:
    data = log()
    tested = eq.backtest(eq.EASE(l2=20.0), data, "28d", 2, bootstrap=0)
    assert len(tested.folds) == 2  # only 4 days are before the first cut
    assert tested.value("ndcg@20", "popular lately") > 0


@pytest.mark.parametrize(
    "model",
    [
        eq.EASE(l2=20.0, dropout=0.2, normalizer=eq.DAN(0.2, 0.3)),
        eq.EASE(l2=20.0, trend=eq.Trend(half_life="7d")),
        eq.EASE(l2=20.0, signals=eq.Signals(transform="log1p", decay="9d", history_decay="3d")),
        eq.ItemKNN(neighbours=10, shrink=1.0, trend=eq.Trend(form="add")),
    ],
    ids=["DAN", "trend", "signals", "kNN"],
)
def test_updated_models_have_the_figures_of_refitted_ones(model: Any) -> None:
    data = log()
    options: dict[str, Any] = {"horizon": "9d", "folds": 3, "bootstrap": 0, "yardsticks": False}
    if isinstance(model, eq.EASE):
        options["dtype"] = "float64"
    refitted = eq.backtest(model, data, **options)
    updated = eq.backtest(model, data, **options, update=True)
    assert len(updated.folds) == 3
    assert updated.values() == pytest.approx(refitted.values(), rel=1e-9)


@pytest.mark.parametrize("repeats", ["new", "all", "again"])
def test_repeated_items_are_reported_apart_or_are_the_targets(repeats: Any) -> None:
    data = log(n_events=3000)
    options: dict[str, Any] = {"horizon": "7d", "folds": 2, "bootstrap": 0, "yardsticks": False}
    tested = eq.backtest(eq.EASE(l2=20.0), data, **options, repeats=repeats)
    shown = tested.periods()
    for number, fold in enumerate(folds_of(data, "7d", 2, repeats=repeats)):
        fitted = eq.EASE(l2=20.0).fit(fold.train)
        assert tested.values()[number] == eq.evaluate(fitted, fold.part, bootstrap=0)["ndcg@20"]
        again = tested.again[number]
        if repeats != "new":
            assert again is None
            assert math.isnan(shown["repeated_ndcg@20"][number])
            continue
        (part,) = [f.part for f in folds_of(data, "7d", 2, repeats="again") if f.cut == fold.cut]
        assert again is not None
        assert again["ndcg@20"] == eq.evaluate(fitted, part, bootstrap=0)["ndcg@20"]
        assert shown["repeated_ndcg@20"][number] == again["ndcg@20"]
    word = {"new": "new", "all": "all", "again": "repeated"}[repeats]
    assert f"ndcg@20 of {word} pairs in 2 periods" in repr(tested)


def test_models_without_fold_in_and_rules_can_be_backtested() -> None:
    data = log()
    options: dict[str, Any] = {"horizon": "7d", "folds": 2, "bootstrap": 0, "yardsticks": False}
    assert eq.backtest(eq.SGFCF(n_factors=4), data, **options)["ndcg@20"] > 0
    hidden = eq.Rules(exclude=["i20", "i21", "i22", "i23", "i24"])
    ruled = eq.backtest(eq.EASE(l2=20.0), data, **options, rules=hidden)
    assert ruled["ndcg@20"] != eq.backtest(eq.EASE(l2=20.0), data, **options)["ndcg@20"]


def test_the_error_of_a_forecast_includes_users_and_periods() -> None:
    assert forecast_error([0.2], [0.03]) == pytest.approx(0.03 * math.sqrt(2))
    assert forecast_error([0.1, 0.1], [0.03, 0.04]) == pytest.approx(
        math.sqrt((0.03**2 + 0.04**2) / 2) * math.sqrt(1.5)
    )
    assert forecast_error([0.1, 0.3], [0.01, 0.01]) == pytest.approx(
        np.std([0.1, 0.3], ddof=1) / math.sqrt(2 / math.pi) * math.sqrt(1.5)
    )
    tested = eq.backtest(eq.EASE(l2=20.0), log(), "7d", 3, bootstrap=0)
    sampling = [
        result.per_user["ndcg@20"].std() / math.sqrt(result.n_users)
        for result in tested.results["EASE"]
    ]
    assert tested.error() == pytest.approx(forecast_error(tested.values(), sampling))


def test_a_backtest_is_a_table_plain_values_text_and_a_plot() -> None:
    tested = eq.backtest(eq.EASE(l2=20.0), log(), "7d", 2, bootstrap=20)
    frame = tested.to_frame()
    assert frame.columns[:4] == ["model", "period", "start", "end"]
    rows = frame.filter(model="EASE", period=2, metric="ndcg", k=20)
    assert tested.values()[1] in rows["value"].to_list()
    assert set(frame["model"]) == set(tested.results)
    periods = tested.periods()
    assert periods.height == 2
    assert periods["users"].to_list() == [fold.part.n_users for fold in tested.folds]
    values = json.loads(json.dumps(tested.to_dict(), allow_nan=False))
    assert values["model"] == "EASE"
    assert values["values"]["EASE"]["ndcg@20"] == tested["ndcg@20"]
    assert values["errors"]["ndcg@20"] == tested.error()
    assert len(values["periods"]) == 2
    assert values["verdict"] == tested.verdict
    text = repr(tested)
    assert text.startswith("Backtest of EASE: ndcg@20 of new pairs in 2 periods")
    assert tested.verdict in text
    assert "item-kNN" in tested._repr_html_()
    pytest.importorskip("matplotlib")
    axes = tested.plot()
    labels = {text.get_text() for text in axes.get_legend().get_texts()} | {
        line.get_label() for line in axes.get_lines()
    }
    assert set(tested.results) <= labels


def test_unknown_items_are_noted() -> None:
    data = log()
    late = [("u1", "brand new", 1.0, START + 59 * DAY), ("u2", "brand new", 1.0, START + 59 * DAY)]
    late += [("stranger", "i3", 1.0, START + 59.5 * DAY)]
    grown = data.union(eq.read(late))
    tested = eq.backtest(eq.EASE(l2=20.0), grown, "7d", 1, bootstrap=0, yardsticks=False)
    share = tested.folds[0].unknown_items
    assert share > 0.005
    notes = " ".join(tested.notes)
    assert f"{share:.0%} of the pairs after a cut are on items that did not exist" in notes
    assert "are of users without any event before it" in notes
    assert tested.notes[0] in repr(tested)


def test_half_lives_suit_the_time_span() -> None:
    data = eq.Interactions(np.ones((1, 3)), times=[0, 5, 10])
    assert half_lives(data) == ["1s"]
    assert half_lives(log())[-1] == "7d"
    assert half_lives(log(), least=DAY) == ["3d", "7d"]
    with pytest.raises(eq.DataError, match="a half-life needs times"):
        half_lives(eq.Interactions([[1, 1]]))


def test_a_fitted_model_with_features_lends_its_catalogue() -> None:
    rng = np.random.default_rng(0)
    log = [(int(rng.integers(40)), int(rng.integers(15)), 1.0, t) for t in range(800)]
    data = eq.read(log)
    kinds = {"item": list(range(15)), "kind": ["even" if n % 2 else "odd" for n in range(15)]}
    described = data.with_catalogue(kinds)
    features = eq.Features(strength=1, map="nearest", rarity=0, mu=1, share=0.3, scale=1)
    model = eq.EASE(l2=5.0, features=features).fit(described)
    columns = model.interactions_.catalogue.columns  # type: ignore[union-attr]
    with_own = eq.backtest(model, described, horizon="80s", folds=2)
    lent = eq.backtest(model, data, horizon="80s", folds=2)
    assert lent["ndcg@20"] == with_own["ndcg@20"]
    assert model.interactions_.catalogue.columns == columns  # type: ignore[union-attr]


def test_models_with_features_do_not_see_items_that_appear_after_the_period() -> None:
    first_half = [(user, item, 1.0, float(item)) for user in range(20) for item in range(10)]
    later = [(user, 10 + user % 2, 1.0, 10.0) for user in range(20)]
    much_later = [(user, 12 + user % 2, 1.0, 20.0) for user in range(20)]
    kinds = {"item": list(range(14)), "kind": ["even" if n % 2 == 0 else "odd" for n in range(14)]}
    features = eq.Features(strength=1, map="nearest", rarity=0, mu=1, share=0.3, scale=1)
    model = eq.EASE(l2=5.0, features=features)
    data = eq.read(first_half + later + much_later, catalogue=kinds)
    tested = eq.backtest(model, data, horizon=10, folds=2, bootstrap=0)
    early, late = tested.folds
    assert early.train.items.tolist() == list(range(12))
    assert late.train.items.tolist() == list(range(14))
    assert (early.train.item_counts[10:] == 0).all()
    alone = eq.backtest(
        model,
        eq.read(first_half + later, catalogue={name: cells[:12] for name, cells in kinds.items()}),
        horizon=10,
        folds=1,
        bootstrap=0,
    )
    assert alone.values("ndcg@20")[0] == tested.values("ndcg@20")[0] > 0
    assert "the figures count them" in tested.notes[0]
