"""Settings chosen for the time after the last event."""

import copy
import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import equipoise as eq
from equipoise.errors import DataError, SettingError
from equipoise.evaluation.backtest import folds_of, forecast_error
from equipoise.tuning.criterion import Estimate
from equipoise.tuning.slices import Forecast, Lately, OnSlices
from equipoise.tuning.space import StepProposals

DAY = 86400.0


@pytest.fixture(scope="module")
def log() -> eq.Interactions:
    """Users of two tastes in a shop where each item is in demand for about three weeks."""
    rng = np.random.default_rng(3)
    peaks = rng.uniform(-20, 140, 120)
    rows = []
    for user in range(150):
        liked = np.where(np.arange(120) % 2 == user % 2, 1.0, 0.1)
        for day in rng.uniform(0, 100, 30):
            demand = liked * np.exp(-(((day - peaks) / 15) ** 2))
            item = int(rng.choice(120, p=demand / demand.sum()))
            rows.append((user, item, 1.0, float(day) * DAY))
    return eq.read(rows)


@pytest.fixture(scope="module")
def tuned(log: eq.Interactions) -> object:
    return eq.tune(log)


def test_data_with_times_are_tuned_for_the_time_after_the_last_event(log, tuned):
    model = tuned.model
    assert model.data_fingerprint_ == log.fingerprint
    assert model.trend is not None
    assert not model.trend.is_neutral
    assert tuned.estimate.metric == "ndcg@20"
    assert len(tuned.estimate.periods) == len(tuned.estimate.days) == 3
    assert set(tuned.estimate.yardsticks) == {"popular", "popular lately", "item-kNN"}
    assert tuned.estimate.value > tuned.estimate.yardsticks["popular"]
    assert tuned.estimate.name == model.label
    assert model.estimate_["protocol"] == "time"
    assert model.estimate_["values"]["ndcg@20"]["value"] == tuned.estimate.value


def test_settings_for_tomorrow_are_better_tomorrow(log):
    cut = eq.split.time_cut(log, test_from=90 * DAY, valid=0)
    scores = {
        criterion: eq.evaluate(
            eq.tune(cut.train, criterion=criterion).model, cut.test, metrics="ndcg", bootstrap=0
        )["ndcg@20"]
        for criterion in ("time", "leave-one-out")
    }
    assert scores["time"] > scores["leave-one-out"]


def test_the_estimate_is_saved_with_the_model(tuned, tmp_path):
    tuned.model.save(tmp_path / "model")
    loaded = eq.load(tmp_path / "model")
    assert loaded.estimate_ == tuned.model.estimate_
    assert loaded.trend == tuned.model.trend


def test_values_of_options_equal_those_of_evaluate(log):
    criterion = OnSlices(log, {"ndcg@20": 1.0}, None, 2, None, 0)
    criterion.searches_time = True
    fold = criterion.folds[-1]
    signals = eq.Signals(decay="30d", history_decay=None)
    model = eq.EASE(l2=5.0, normalizer=eq.DAN(0.2, 0.3), signals=signals).fit(fold.train)
    options = [
        Lately(),
        Lately("7d"),
        Lately(None, eq.Trend(half_life="3d", power=0.5, share=1.0)),
        Lately("30d", eq.Trend(half_life="7d", share=0.3, form="add")),
    ]
    values, errors = criterion.values_of(copy.copy(model), fold, options)
    for value, error, option in zip(values, errors, options, strict=True):
        twin = eq.EASE(
            l2=5.0,
            normalizer=eq.DAN(0.2, 0.3),
            signals=replace(signals, history_decay=option.history_decay),
            trend=option.trend,
        ).fit(fold.train)
        result = eq.evaluate(twin, fold.part, metrics="ndcg", bootstrap=0)
        per_user = result.per_user["ndcg@20"].to_numpy()
        # scores are rounded in another order, so nearly equal items may change places
        assert value == pytest.approx(result["ndcg@20"], abs=2e-3)
        assert error == pytest.approx(per_user.std() / len(per_user) ** 0.5, rel=0.05)


def test_an_interrupted_search_ends_as_an_uninterrupted_one(log, tmp_path):
    complete = eq.tune(log, trials=4, storage=tmp_path / "complete.jsonl")
    eq.tune(log, trials=2, storage=tmp_path / "part.jsonl")
    resumed = eq.tune(log, trials=4, storage=tmp_path / "part.jsonl")
    assert resumed.resumed == 2
    assert resumed.best == complete.best
    assert resumed.trials.equals(complete.trials)


def test_leave_one_out_is_the_default_without_times():
    data = eq.Interactions(np.random.default_rng(0).random((60, 20)) < 0.3)
    assert eq.tune(data).model.estimate_["protocol"] == "leave-one-out"


def test_times_without_a_period_to_test_on_fall_back_to_leave_one_out(caplog):
    hits = np.random.default_rng(0).random((60, 20)) < 0.3
    data = eq.Interactions(hits, times=np.zeros(int(hits.sum())))
    tuned = eq.tune(data)
    assert tuned.model.estimate_["protocol"] == "leave-one-out"
    assert "chosen by leave-one-out" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"criterion": "days"}, "criterion must be"),
        ({"criterion": "time", "prefer": "tail"}, "prefer is for"),
        ({"prefer": "tail", "folds": 2}, "horizon and folds are for"),
        ({"folds": 0}, "folds must be"),
        ({"horizon": "7"}, "has no unit"),
        ({"metric": "coverage@20"}, "has no value per user"),
    ],
)
def test_options_about_time_are_checked(log, options, message):
    with pytest.raises(SettingError, match=message):
        eq.tune(log, **options)


def test_a_metric_without_a_value_in_one_of_the_periods_is_refused_before_the_search():
    rows = [(f"u{user}", "tea", 1.0, 0.0) for user in range(40)]
    rows += [(f"u{user}", f"x{user}", 1.0, 1.0) for user in range(40)]
    rows += [(f"v{user}", f"x{user}", 1.0, 2.0) for user in range(20)]
    rows += [(f"v{user}", "tea", 1.0, 12.0) for user in range(20)]  # no target is in the tail
    rows += [(f"u{user}", f"x{user + 1}", 1.0, 22.0) for user in range(20)]
    fits = []
    with pytest.raises(DataError, match="no target of the test part is in the tail"):
        eq.tune(eq.read(rows), horizon=10, folds=2, metric="tail_ndcg@20", progress=fits.append)
    assert not fits


def test_a_horizon_longer_than_the_data_is_an_error(log):
    with pytest.raises(DataError, match="no longer than the horizon"):
        eq.tune(log, horizon="365d")


def test_options_about_time_are_refused_for_a_split(log):
    split = eq.split.strong(log, valid=0.2, test=0.2)
    with pytest.raises(SettingError, match="are for Interactions"):
        eq.tune(eq.EASE, split, criterion="time", trials=1)


def test_a_trend_of_the_user_is_not_searched(log):
    trend = eq.Trend(half_life="5d", power=1.0, share=0.2)
    tuned = eq.tune(eq.EASE(normalizer=eq.DAN(), trend=trend), log)
    assert tuned.model.trend == trend
    last = eq.backtest(tuned.model, log, folds=3).values()
    assert tuned.estimate.periods[-1] == pytest.approx(last[-1], abs=2e-3)


def test_other_models_are_measured_on_time_too(log):
    tuned = eq.tune(eq.ItemKNN, log, grid={"neighbours": [5, 20], "shrink": [0.0]})
    assert tuned.solves == 2
    assert tuned.model.data_fingerprint_ == log.fingerprint
    assert math.isfinite(tuned.estimate.value)


def test_steps_continue_from_the_best_point():
    def value(point):
        return -abs(point["l2"] - 100.0) - (0 if point["decay"] == "30d" else 50)

    first = {"decay": None, "l2": 20.0, "dropout": 0.5}
    steps = StepProposals(first, {"decay": ("90d", "30d", "7d", "1d")}, 0, ["dropout"])
    past = []
    while (point := steps.propose(past, starts_only=True)) is not None:
        past.append((point, value(point)))
    assert [point["decay"] for point, _ in past] == [None, "90d", "30d", "7d", "1d", "30d"]
    best = max(past, key=lambda trial: trial[1])[0]
    assert best == {"decay": "30d", "l2": 100.0, "dropout": 0.5}


def test_the_error_of_a_forecast_covers_the_next_period_twice_in_three_times():
    rng = np.random.default_rng(0)
    periods = rng.normal(size=(20_000, 4))
    errors = np.array([forecast_error(row[:3], [0.0] * 3) for row in periods])
    off = np.abs(periods[:, 3] - periods[:, :3].mean(axis=1))
    # the ratio has a t distribution with 2 degrees of freedom, times c4(3) = 0.886
    assert np.mean(off <= 2 * errors) == pytest.approx(0.846, abs=0.01)


def test_a_yardstick_without_hits_does_not_widen_the_error():
    rng = np.random.default_rng(7)
    rows = []
    for user in range(200):
        for time in rng.uniform(0, 60 * DAY, 12):
            age, number = rng.choice([0, 1, 1, 2]), rng.choice([0, 0, 0, 1, 1, 2])
            if rng.random() < 0.01:  # a handful of hits on old articles
                age = rng.integers(60)
            rows.append((user, f"{max(int(time / DAY) - age, 0)}/{number}", 1.0, float(time)))
    criterion = OnSlices(eq.read(rows), {"ndcg@20": 1.0}, None, 3, None, 0)
    folds = folds_of(criterion.data, None, 6)
    values = criterion._values_of_yardstick(eq.Popularity(), folds)
    assert np.std(values) > 0.9 * np.mean(values) > 0
    assert criterion._swing() < 0.3


def test_folds_are_adjacent_and_end_with_the_data(log):
    folds = folds_of(log, "10d", 3)
    times = log.events.times
    assert [fold.cut.end for fold in folds[:-1]] == [fold.cut.start for fold in folds[1:]]
    assert folds[-1].cut.end > times.max() >= folds[-1].cut.start
    for fold in folds:
        assert fold.train.events.times.max() < fold.cut.start
        target = fold.part.target
        assert target.events.times.min() >= fold.cut.start
        assert target.events.times.max() < fold.cut.end


def test_what_a_model_sets_about_time_is_not_searched(log):
    trend = eq.Trend(half_life="7d", power=1.0, share=0.0)
    signals = eq.Signals(decay="30d", floor=0.0)
    tuned = eq.tune(eq.EASE(trend=trend, signals=signals), log, trials=2)
    assert tuned.model.trend == trend
    assert (tuned.model.signals.decay, tuned.model.signals.floor) == ("30d", 0.0)
    assert tuned.trials["power"].unique().to_list() == [1.0]
    # the estimate is that of lists with this trend
    without = replace(trend, power=0.0)
    plain = eq.tune(eq.EASE(trend=without, signals=signals), log, trials=2)
    assert tuned.estimate.periods != plain.estimate.periods


@pytest.fixture(scope="module")
def shop() -> eq.Interactions:
    """Views at random until day 70; purchases, a third as many, of one of two tastes."""
    rng = np.random.default_rng(5)
    rows = []
    for user in range(120):
        liked = np.flatnonzero(np.arange(80) % 2 == user % 2)
        rows += [
            (user, int(rng.integers(80)), float(rng.uniform(0, 70)), "view") for _ in "v" * 24
        ]
        rows += [
            (user, int(rng.choice(liked)), float(rng.uniform(0, 100)), "buy") for _ in "b" * 8
        ]
    frame = pl.DataFrame(rows, schema=["user", "item", "day", "type"], orient="row")
    return eq.read(frame.with_columns(time=pl.col("day") * DAY).drop("day"), type="type")


def test_weights_of_types_of_events_are_searched(shop, tmp_path):
    options = {"fixed": ["l2", "dropout", "beta", "decay"], "storage": tmp_path / "search.jsonl"}
    tuned = eq.tune(eq.EASE(normalizer=eq.DAN(0.2, 0.3)), shop, **options)
    assert tuned.solves == 3
    assert tuned.trials["event_weights"].unique(maintain_order=True).to_list() == [
        "equal",
        "by root of rarity",
        "by rarity",
    ]
    assert tuned.best["event_weights"] != "equal"
    assert tuned.model.signals.weights["buy"] > tuned.model.signals.weights["view"] == 1
    assert any("buy" in note for note in tuned.notes)
    again = eq.tune(eq.EASE(normalizer=eq.DAN(0.2, 0.3)), shop, **options)
    assert (again.solves, again.resumed, again.best) == (0, 3, tuned.best)


def test_weights_of_events_that_are_set_or_fixed_are_not_searched(shop):
    weights = {"view": 1.0, "buy": 2.0}
    tuned = eq.tune(eq.EASE(signals=eq.Signals(weights=weights)), shop, trials=1)
    assert "event_weights" not in tuned.best
    assert tuned.model.signals.weights == weights
    tuned = eq.tune(eq.EASE, shop, trials=1, fixed="event_weights")
    assert "event_weights" not in tuned.best
    assert tuned.model.signals.weights is None


def test_settings_about_time_can_be_fixed_by_name(log):
    fixed = ["trend", "history_decay", "decay"]
    tuned = eq.tune(eq.EASE, log, trials=2, fixed=fixed)
    assert tuned.model.trend.is_neutral
    assert tuned.model.signals.decay is None
    assert {"half_life", "decay"} <= set(tuned.trials.columns)
    assert tuned.trials["share"].unique().to_list() == [0.0]
    left_out = eq.tune(eq.EASE, log, trials=1, fixed=fixed, criterion="leave-one-out")
    assert left_out.model.trend is None


def test_settings_are_not_chosen_on_a_handful_of_users(caplog: pytest.LogCaptureFixture) -> None:
    """In a log of visits almost nobody is active on both sides of a cut."""
    rng = np.random.default_rng(0)
    rows = [
        (f"visit{visit}", int(item), 1.0, 60.0 * visit + 25 * place)
        for visit in range(300)
        for place, item in enumerate(rng.choice(12, 4, replace=False))
    ]
    data = eq.read(rows)
    tuned = eq.tune(data, trials=1)
    assert isinstance(tuned.estimate, Estimate)
    assert "settings are chosen by leave-one-out: only " in caplog.text
    assert isinstance(eq.tune(data, trials=1, criterion="time").estimate, Forecast)


def test_the_stored_interval_has_no_negative_figures() -> None:
    data = eq.read([("ann", "tea", 1.0, 0), ("bob", "tea", 1.0, 9)])
    of_yardsticks = {"popular": (0.1, 0.4)}
    days = ("2024-01-01 to 2024-01-08", "2024-01-08 to 2024-01-15")
    forecast = Forecast("ndcg@20", 0.2, 0.3, (0.1, 0.3), days, of_yardsticks, 0.0, 9, "EASE")
    summary = forecast.summary(data, 0)
    assert summary["values"]["ndcg@20"]["low"] == 0.0
    assert summary["yardstick_periods"] == {"popular": dict(zip(days, (0.1, 0.4), strict=True))}
