"""The section of a report on the time after the last event."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.report.facts import collect
from equipoise.report.page import forecast_sentence, glance, render

QUICK: dict[str, Any] = {"k": 5, "sample": 2, "bootstrap": 0}
DAY = 86400


@pytest.fixture(scope="module")
def log() -> Interactions:
    """60 days of a shop: every 15 days other items are in demand, and some are bought again."""
    rng = np.random.default_rng(4)
    rows = []
    for day in range(60):
        for user in rng.choice(90, size=30, replace=False):
            item = 4 * (day // 15) + 2 * int(rng.integers(12)) + int(user) % 2
            rows.append((f"u{user}", f"i{item}", 1.0, 1_700_000_000 + DAY * day + int(user)))
    return eq.read(rows)


@pytest.fixture(scope="module")
def timed(log: Interactions) -> dict[str, Any]:
    return collect(log, model=eq.EASE(l2=5.0).fit(log), **QUICK)


def test_forecast_of_timed_data_is_a_backtest_of_the_model(
    log: Interactions, timed: dict[str, Any]
) -> None:
    forecast = timed["forecast"]
    tested = eq.backtest(eq.EASE(l2=5.0), log, bootstrap=0)
    assert forecast["value"] == tested["ndcg@20"]
    assert forecast["high"] == tested["ndcg@20"] + 2 * tested.error("ndcg@20")
    assert forecast["verdict"] == tested.verdict
    assert [row["name"] for row in forecast["rows"]] == [
        *("this model", "popular", "popular lately", "item-kNN"),
    ]
    for row, name in zip(forecast["rows"], tested.results, strict=True):
        assert row["periods"] == tested.values("ndcg@20", name)
    assert [period["days"] for period in forecast["periods"]] == [
        fold.cut.days for fold in tested.folds
    ]
    assert [period["repeated"] for period in forecast["periods"]] == [
        fold.repeated for fold in tested.folds
    ]
    assert json.loads(json.dumps(timed, allow_nan=False)) == timed


def test_page_begins_with_the_forecast(timed: dict[str, Any]) -> None:
    html = render(timed)
    assert glance(timed)[0] == forecast_sentence(timed["forecast"])
    assert glance(timed)[0].startswith("After the last event expect NDCG@20 0.")
    assert html.index('id="forecast"') < html.index('id="data"')
    assert all(period["days"] in html for period in timed["forecast"]["periods"])
    assert "an old use counts less than one of the last days" in html
    assert "pairs that the user had before" in html
    assert "compared with four baselines" in html


def test_recent_popularity_stands_beside_the_other_baselines(timed: dict[str, Any]) -> None:
    names = [model["name"] for model in timed["models"][:-1]]
    assert names == ["Popularity", "Popular lately", "Item-kNN", "EASE"]
    assert "decay=" in timed["models"][1]["settings"]


def test_model_chosen_by_time_is_reported_with_its_stored_forecast(log: Interactions) -> None:
    tuned = eq.tune(eq.EASE, log, horizon="5d", folds=2, trials=2)
    collected = collect(log, model=tuned.model, **QUICK)
    forecast, estimate = collected["forecast"], tuned.estimate
    assert forecast["value"] == estimate.value
    assert forecast["verdict"] == estimate.verdict
    assert forecast["rows"][0]["periods"] == list(estimate.periods)
    assert {row["name"]: row["value"] for row in forecast["rows"][1:]} == estimate.yardsticks
    for row in forecast["rows"][1:]:
        assert row["periods"] == list(estimate.of_yardsticks[row["name"]])
    assert any("with your model, " in sentence for sentence in glance(collected))
    assert [period["days"] for period in forecast["periods"]] == list(estimate.days)
    html = render(collected)
    assert estimate.verdict in html
    assert "when the settings were chosen" in html


def test_data_without_times_have_no_forecast(facts: dict[str, Any], html: str) -> None:
    assert facts["forecast"] is None
    assert 'id="forecast"' not in html
    assert "compared with three baselines" in html
    assert glance(facts)[0].startswith("NDCG@10 over all items")


def test_log_in_which_nobody_comes_back_has_no_forecast() -> None:
    rng = np.random.default_rng(0)
    log = [(user, int(item), 1.0, DAY * user) for user in range(80) for item in rng.choice(9, 4)]
    collected = collect(eq.read(log), **QUICK)
    assert collected["forecast"] is None
    assert collected["models"][1]["name"] == "Popular lately"


def test_sessions_have_no_forecast() -> None:
    rows = [
        (visit, (7 * visit + 3 * n) % 11, 1.0, 40 * visit + n)
        for visit in range(90)
        for n in range(4)
    ]
    split = eq.split.sessions(eq.read(rows), test=0.2)
    collected = collect(split, model=eq.VSKNN().fit(split.train), **QUICK)
    assert collected["forecast"] is None
    assert [model["name"] for model in collected["models"][:2]] == ["Popularity", "Item-kNN"]


def test_progress_counts_the_steps_about_time(log: Interactions) -> None:
    steps: list[tuple[int, int]] = []
    collect(log, progress=lambda done, total: steps.append((done, total)), **QUICK)
    assert steps == [(n, 9) for n in range(1, 10)]
