"""`equipoise backtest`, and searches of `fit` and `tune` for the time after the last event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Answer, Run

import equipoise as eq

PERIODS = ("--horizon", "30h", "--folds", 2)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 40 days: every ten days other items are in demand; few users come back to one."""
    rng = np.random.default_rng(3)
    lines = ["user,item,time"]
    for day in range(40):
        for user in rng.choice(60, size=25, replace=False):
            season, taste = day // 10, user % 2
            item = 2 * int(rng.integers(6 * season, 6 * season + 12)) + taste
            lines.append(f"u{user},i{item},{1_700_000_000 + 86_400 * day + int(user)}")
    path = tmp_path_factory.mktemp("shelf") / "log.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_backtest_prints_what_the_library_measures(run: Run, shop: Path) -> None:
    done = run("backtest", "events.csv", "--l2", 5, *PERIODS)
    assert done.exit_code == 0, done.output
    data = eq.read(shop / "events.csv")
    result = eq.backtest(eq.EASE(l2=5.0), data, "30h", 2)
    rows = [_cells(line) for line in done.stdout.splitlines()]
    assert ["period", "this model", *list(result.results)[1:]] in rows
    lines = {"mean": [result.value(model=name) for name in result.results]}
    lines["± error"] = [result.error(model=name) for name in result.results]
    for number, fold in enumerate(result.folds):
        lines[fold.cut.days] = [result.values(model=name)[number] for name in result.results]
    for label, figures in lines.items():
        assert [label, *(f"{figure:.4f}" for figure in figures)] in rows
    assert result.verdict in done.stdout
    assert all(sentence in done.stdout for sentence in result.notes)
    for fold in result.folds:
        assert fold.cut.days in done.stdout


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_backtest_in_json_is_the_result_as_plain_values(answer: Answer, shop: Path) -> None:
    document = answer("backtest", "events.csv", "--l2", 5, *PERIODS)
    expected = eq.backtest(eq.EASE(l2=5.0), eq.read(shop / "events.csv"), "30h", 2).to_dict()
    assert document == expected
    assert len(document["periods"]) == 2
    assert {"popular", "popular lately", "item-kNN"} < document["values"].keys()


def test_a_saved_model_is_tested_with_its_settings(answer: Answer, run: Run) -> None:
    saved = answer("backtest", "events.csv", "model", *PERIODS)
    named = answer("backtest", "events.csv", "--l2", 5, "--dropout", 0, *PERIODS)
    assert saved == named
    done = run("backtest", "events.csv", "model", "--l2", 5)
    assert done.exit_code == 2
    assert "a saved model keeps its settings" in done.stderr


def test_repeated_items_are_reported_apart(run: Run, shelf: Path) -> None:
    options = ("--model", "popularity", "--horizon", "4d", "--folds", 2)
    done = run("backtest", shelf, *options)
    assert done.exit_code == 0, done.output
    heads = [line.split() for line in done.stdout.splitlines()]
    assert ["new", "new", "repeated"] in heads
    assert ["period", "users", "pairs", "items", "users", "repeated", "ndcg@20"] in heads
    assert "items new to the user, after each cut" in done.stdout
    again = run("backtest", shelf, *options, "--repeats", "again")
    assert "items used before, after each cut" in again.stdout
    assert "ndcg@20 on repeated" not in again.stdout


def test_another_metric_can_be_shown(run: Run, shop: Path) -> None:
    done = run("backtest", "events.csv", "--l2", 5, *PERIODS, "--metric", "recall@3")
    data = eq.read(shop / "events.csv")
    result = eq.backtest(eq.EASE(l2=5.0), data, "30h", 2, k=3)
    assert f"{result.value('recall@3'):.4f}" in done.stdout
    assert result.verdict_of("recall@3") in done.stdout
    assert "recall@3" in result.verdict_of("recall@3")


def test_backtest_draws_a_plot(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("agg")
    image = tmp_path / "over-time.png"
    done = run("backtest", "events.csv", "--l2", 5, *PERIODS, "--plot", image)
    assert done.exit_code == 0, done.output
    assert image.read_bytes().startswith(b"\x89PNG")
    wrong = run("backtest", "events.csv", "--plot", tmp_path / "over-time.foo")
    assert wrong.exit_code == 2
    assert "--plot must end in .png, .svg or .pdf" in wrong.stderr


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["events.csv", "--horizon", "90d"], 1, "no longer than the horizon; use a shorter one"),
        (["events.csv", "--horizon", "7"], 2, "--horizon 7 has no unit; write 7d for days"),
        (["events.csv", "--time", "none"], 1, "needs times; name the column with --time"),
        (["events.csv", "--metric", "ndgc@20"], 2, "did you mean 'ndcg'?"),
        (["events.csv", "--model", "slist"], 2, "ranks the next click of a session"),
    ],
)
def test_a_backtest_that_cannot_be_made_says_why(
    options: list[Any], code: int, message: str, run: Run
) -> None:
    done = run("backtest", *options)
    assert done.exit_code == code
    assert message in done.stderr


def test_fit_chooses_for_the_time_after_the_last_event(
    answer: Answer, run: Run, shelf: Path, tmp_path: Path
) -> None:
    options = ("--horizon", "4d", "--folds", 2, "--trials", 3)
    document = answer("fit", shelf, tmp_path / "model", *options)
    estimate = document["estimate"]
    assert estimate["protocol"] == "time"
    assert len(estimate["periods"]) == len(estimate["days"]) == 2
    assert estimate["yardsticks"].keys() == {"popular", "popular lately", "item-kNN"}
    assert estimate["verdict"]
    assert document["searched"][-3:] == ["decay", "history_decay", "trend"]
    assert eq.load(tmp_path / "model").data_fingerprint_ == eq.read(shelf).fingerprint
    done = run("fit", shelf, tmp_path / "again", *options)
    assert f"after the last event: ndcg@20 {estimate['value']:.4f} ± " in done.stdout
    assert estimate["verdict"] in done.stdout
    means = [estimate["value"], *estimate["yardsticks"].values()]
    rows = [_cells(line) for line in done.stdout.splitlines()]
    assert ["period", "this model", *estimate["yardsticks"]] in rows
    assert ["mean", *(f"{mean:.4f}" for mean in means)] in rows
    assert all(day in done.stdout for day in estimate["days"])


def test_settings_about_time_that_options_set_are_not_searched(
    answer: Answer, shelf: Path, tmp_path: Path
) -> None:
    search = ("--horizon", "4d", "--folds", 2, "--trials", 1)
    options = ("--trend-half-life", "3d", "--trend-power", 1, "--trend-share", 0)
    document = answer("fit", shelf, tmp_path / "set", *search, *options, "--decay", "5d")
    model = eq.load(tmp_path / "set")
    assert model.trend == eq.Trend(half_life="3d", power=1.0, share=0.0)
    assert model.signals.decay == "5d"
    assert "history_decay" in document["searched"]
    assert not {"decay", "trend"} & set(document["searched"])
    assert document["fixed"]["trend"] == ("--trend-half-life 3d --trend-power 1 --trend-share 0")
    document = answer(
        "fit", shelf, tmp_path / "none", *search, "--trend", "none", "--history-decay", "2d"
    )
    model = eq.load(tmp_path / "none")
    assert model.trend.is_neutral
    assert model.signals.history_decay == "2d"
    assert document["fixed"] == {
        "history_decay": "--history-decay 2d",
        "trend": "--trend none",
    }
    assert "decay" in document["searched"]


def test_a_trend_can_be_set_without_a_search(answer: Answer, run: Run, tmp_path: Path) -> None:
    options = ("--trend-form", "add", "--trend-share", 2, "--history-decay", "none")
    answer("fit", "events.csv", tmp_path / "model", "--no-search", *options)
    model = eq.load(tmp_path / "model")
    assert model.trend == eq.Trend(form="add", share=2.0)
    assert model.signals.history_decay is None
    done = run("fit", "events.csv", tmp_path / "x", "--trend", "none", "--trend-share", 2)
    assert done.exit_code == 2
    assert "--trend none cannot be combined with other trend options" in done.stderr


def test_leave_one_out_is_used_on_request_and_without_times(
    answer: Answer, run: Run, tmp_path: Path
) -> None:
    named = answer(
        "fit", "events.csv", tmp_path / "a", "--criterion", "leave-one-out", "--trials", 1
    )
    assert named["estimate"]["protocol"] == "leave-one-out"
    done = run("fit", "events.csv", tmp_path / "b", "--time", "none", "--trials", 1)
    assert "the data have no times, so settings are chosen by leave-one-out" in done.stderr
    assert "on new users: ndcg@20" in done.stdout
    done = run("fit", "events.csv", tmp_path / "c", "--time", "none", "--criterion", "time")
    assert done.exit_code == 1
    assert "needs times; name the column with --time" in done.stderr


def test_a_split_that_is_not_by_time_is_fitted_by_leave_one_out(
    answer: Answer, run: Run, tmp_path: Path
) -> None:
    done = run("fit", "split", tmp_path / "model", "--trials", 1)
    assert "the strong split hides items at random" in done.stderr
    assert "on new users: ndcg@20" in done.stdout
    document = answer("fit", "split", tmp_path / "time", "--trials", 1, "--criterion", "time")
    assert document["estimate"]["protocol"] == "time"
    run("split", "events.csv", tmp_path / "cut", "--protocol", "time")
    document = answer("fit", tmp_path / "cut", tmp_path / "later", "--trials", 1)
    assert document["estimate"]["protocol"] == "time"


def test_tune_on_data_with_times_measures_the_last_periods(
    answer: Answer, run: Run, shelf: Path, tmp_path: Path
) -> None:
    options = ("--family", "ease", "--horizon", "4d", "--folds", 2, "--trials", 2)
    document = answer("tune", shelf, tmp_path / "tuned", *options)
    assert document["estimate"]["protocol"] == "time"
    assert len(document["estimate"]["days"]) == 2
    done = run("tune", shelf, tmp_path / "other", *options)
    assert "on the last period: ndcg@20" in done.stdout
    assert "after the last event: ndcg@20" in done.stdout
    assert document["estimate"]["verdict"] in done.stdout
