"""`tune` without a split: points are those of leave-one-out, and the model is the chosen solve."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.data.split import Split
from equipoise.errors import DataError, SettingError
from equipoise.tuning.criterion import OnLeftOut
from equipoise.tuning.search import _sentence

GRID = {"alpha": [0.0, 0.3], "beta": [0.0, 0.5], "l2": [2.0, 20.0], "dropout": [0.3]}


def test_every_point_is_the_leave_one_out_of_its_own_fit(synthetic: Interactions) -> None:
    tuned = eq.tune([eq.EASE, eq.LAE], synthetic, grid=GRID, users=50, seed=2)
    assert tuned.trials.height == 16
    for row in tuned.trials.rows(named=True)[::5]:
        settings = {name: row[name] for name in ("l2", "dropout")}
        kind: Any = getattr(eq, row["family"])
        model = kind(normalizer=eq.DAN(row["alpha"], row["beta"]), **settings).fit(synthetic)
        result = eq.leave_one_out(model, users=50, seed=2, bootstrap=0)
        for name in ("ndcg@20", "tail_ndcg@20"):
            assert result[name] == pytest.approx(row[name], rel=1e-12)


def test_the_chosen_solve_is_the_model(synthetic: Interactions, solves: list[int]) -> None:
    tuned = eq.tune(eq.EASE, synthetic, grid=GRID, users=50, prefer="accuracy")
    assert solves.count(80) == 4  # one for each beta and l2, none for the model
    alone = tuned.model._vary({}).fit(synthetic)
    np.testing.assert_array_equal(tuned.model.inverse_, alone.inverse_)
    best = tuned.trials.sort("ndcg@20", descending=True).row(0, named=True)
    assert tuned.best["ndcg@20"] == best["ndcg@20"]


def test_the_default_search_compares_three_families_in_seven_solves(
    synthetic: Interactions, solves: list[int]
) -> None:
    tuned = eq.tune(synthetic, users=60)
    assert tuned.solves == 7
    assert solves.count(80) in (7, 8)  # the chosen solve may not be the last one that was kept
    assert set(tuned.trials["family"]) == {"EASE", "LAE", "RLAE"}
    assert tuned.model.data_fingerprint_ == synthetic.fingerprint
    assert tuned.best["family"] in tuned.sentence


def test_the_model_keeps_its_figures_when_saved(synthetic: Interactions, tmp_path: Path) -> None:
    model = eq.tune(eq.EASE, synthetic, grid={"l2": [2.0, 20.0]}, users=50).model
    result = eq.leave_one_out(model, users=50)
    figure = model.estimate_["values"]["ndcg@20"]
    assert figure["value"] == result["ndcg@20"]
    assert figure["low"] < figure["value"] < figure["high"]
    assert model.estimate_["n_users"] == 50
    model.save(tmp_path / "model")
    assert eq.load(tmp_path / "model").estimate_ == model.estimate_
    model.update(removed=synthetic.users[:2].tolist())
    assert model.estimate_ is None
    again = eq.load(tmp_path / "model")
    again.fit(synthetic)
    assert again.estimate_ is None


def test_no_model_keeps_figures_of_other_data(synthetic: Interactions) -> None:
    model = eq.Popularity().fit(synthetic)
    model.estimate_ = figures = {"values": {}}
    assert model.update(added=synthetic.rows([0])).estimate_ is figures  # nothing changed
    assert model.update(removed=synthetic.users[:2].tolist()).estimate_ is None


def test_the_estimate_is_that_of_users_who_had_no_part_in_the_choice() -> None:
    rng = np.random.default_rng(0)
    data = eq.Interactions(rng.random((400, 30)) < 0.2)
    goals = {"ndcg@20": 1.0, "tail_ndcg@20": 1.0}
    criterion = OnLeftOut(data, goals, "accuracy", 400, 0)
    # points that differ by chance alone: the best of them looks better than it is
    blocks = 0.3 + 0.05 * rng.standard_normal((200, 20))
    points = [
        {"ndcg@20": row.mean(), "tail_ndcg@20": 0.1}
        | dict(zip(criterion.columns, row.tolist(), strict=True))
        for row in blocks
    ]
    chosen = blocks[criterion.choose(points)].mean()
    estimate = criterion.estimate(points)
    assert estimate is not None
    assert chosen > 0.32
    assert estimate.optimism == pytest.approx(chosen - estimate.value)
    assert abs(estimate.value - 0.3) < 3 * 0.05 / 20**0.5
    assert f"{estimate.n_users} users" in str(estimate)


@pytest.mark.parametrize("metric", ["tail_ndcg@5", "head_recall@5", "unbiased_ndcg@5", "ndcg@5"])
def test_the_estimate_is_over_users_for_whom_the_metric_is_defined(
    synthetic: Interactions, metric: str
) -> None:
    grid = {"l2": [5.0], "dropout": [0.2]}
    model = eq.EASE(l2=5.0, dropout=0.2)
    tuned = eq.tune(model, synthetic, metric=metric, objectives=(), grid=grid, users=200)
    result = eq.leave_one_out(tuned.model, users=200, k=5, metrics=metric[:-2], bootstrap=0)
    values = result.per_user[metric].drop_nulls()
    assert tuned.estimate is not None
    assert tuned.estimate.n_users == len(values)
    # one setting: nothing was chosen; blocks differ in size by one user
    assert tuned.estimate.value == pytest.approx(result[metric], rel=0.02)
    assert tuned.estimate.optimism == pytest.approx(0)
    error = float(values.std()) / len(values) ** 0.5  # type: ignore[arg-type]
    assert tuned.estimate.error == pytest.approx(error, rel=0.5)


@pytest.mark.parametrize(
    ("top", "chosen", "words"),
    [
        ((0.3, 0.1), (0.3, 0.1), ": the best ndcg@20"),
        ((0.3, 0.1), (0.3, 0.2), ": the best ndcg@20"),
        ((0.3, 0.1), (0.297, 0.12), ": ndcg@20 is 1.0% worse than the best"),
        ((0.3, 0.1), (0.297, 0.12), "and tail_ndcg@20 is 20% better"),
        ((0.3, 0.1), (0.29999, 0.1001), "ndcg@20 is less than 0.1% worse than the best"),
        ((0.3, 0.1), (0.29999, 0.1001), "tail_ndcg@20 is less than 1% better"),
    ],
)
def test_the_sentence_describes_the_trade_off(
    top: tuple[float, float], chosen: tuple[float, float], words: str
) -> None:
    names = ("ndcg@20", "tail_ndcg@20")
    points = [{"family": "EASE", **dict(zip(names, pair, strict=True))} for pair in (top, chosen)]
    search: Any = SimpleNamespace(
        goals=dict.fromkeys(names, 1.0),
        space=SimpleNamespace(transforms=()),
        criterion=SimpleNamespace(columns=["ndcg@20/0"]),
        _score=lambda point: point["ndcg@20"],
    )
    assert words in _sentence(search, points[1], points)


@pytest.mark.parametrize(("prefer", "expected"), [("accuracy", 0), ("balance", 1), ("tail", 2)])
def test_preferences_give_accuracy_for_the_tail_within_their_reach(
    prefer: Any, expected: int
) -> None:
    data = eq.Interactions(np.random.default_rng(0).random((100, 30)) < 0.2)
    criterion = OnLeftOut(data, {"ndcg@20": 1.0, "tail_ndcg@20": 1.0}, prefer, 100, 0)
    swing = np.where(np.arange(20) % 2, 0.01, -0.01)  # of the differences, user by user
    error = swing.std(ddof=1) / 20**0.5
    behind = [0.0, 0.9 * error, 1.9 * error, 2.5 * error]
    points = []
    for place, gap in enumerate(behind):
        row = 0.3 - gap + (swing if place else 0)
        columns = dict(zip(criterion.columns, np.broadcast_to(row, 20).tolist(), strict=True))
        points.append({"ndcg@20": 0.3 - gap, "tail_ndcg@20": 0.1 + 0.01 * place} | columns)
    assert criterion.choose(points) == expected


def test_a_search_resumes_from_its_storage(synthetic: Interactions, tmp_path: Path) -> None:
    options: dict[str, Any] = {"users": 40, "storage": tmp_path / "search.jsonl"}
    eq.tune(eq.EASE, synthetic, trials=3, **options)
    tuned = eq.tune(eq.EASE, synthetic, trials=5, **options)
    assert (tuned.resumed, tuned.solves) == (3, 2)
    uninterrupted = eq.tune(eq.EASE, synthetic, trials=5, users=40)
    assert tuned.best == uninterrupted.best
    assert tuned.estimate == uninterrupted.estimate
    np.testing.assert_array_equal(tuned.model.inverse_, uninterrupted.model.inverse_)
    with pytest.raises(DataError, match="other data"):
        eq.tune(eq.EASE, synthetic, trials=5, users=41, storage=tmp_path / "search.jsonl")


def test_a_companion_is_chosen_by_users_it_was_not_fitted_on(synthetic: Interactions) -> None:
    model = eq.EASE(l2=5.0, dropout=0.2, lowpass=eq.LowPass(rank=4, strength=0.3))
    tuned = eq.tune(model, synthetic, grid={"strength": [0.0, 0.3], "l2": [5.0]}, users=30)
    by_strength = dict(tuned.trials.select("strength", "ndcg@20").rows())
    alone = eq.EASE(l2=5.0, dropout=0.2).fit(synthetic)
    expected = eq.leave_one_out(alone, users=30, bootstrap=0)["ndcg@20"]
    assert by_strength[0.0] == pytest.approx(expected)


def test_refit_on_all_uses_train_and_valid(split: Split) -> None:
    grid = {"l2": [2.0, 20.0]}
    train = eq.tune(eq.EASE, split, grid=grid)
    every = eq.tune(eq.EASE, split, grid=grid, refit="all")
    assert every.best == train.best
    assert split.valid is not None
    added = split.valid.history.n_interactions + split.valid.target.n_interactions
    data = every.model.interactions_
    assert data.n_interactions == split.train.n_interactions + added
    assert data.n_users == split.train.n_users + split.valid.n_users
    assert train.model.data_fingerprint_ == split.train.fingerprint
    assert every.estimate is None


def test_refit_on_all_takes_repeats_new_users_and_new_items() -> None:
    log = [("ann", "tea", 1), ("ann", "milk", 2), ("bob", "tea", 3), ("bob", "milk", 4)]
    log += [("eve", "tea", 3), ("eve", "milk", 4)]
    later = [("ann", "tea", 10), ("bob", "milk", 11), ("bob", "salt", 12), ("cleo", "tea", 12)]
    tested = [("ann", "milk", 20), ("bob", "tea", 21)]
    data = eq.read([(*event[:2], 1.0, event[2]) for event in log + later + tested])
    split = eq.split.time_cut(data, valid_from=10, test_from=20, repeats="again")
    tuned = eq.tune(eq.EASE, split, grid={"l2": [2.0]}, objectives=(), refit="all")
    fitted = tuned.model.interactions_
    expected = eq.read([(*event[:2], 1.0, event[2]) for event in log + later])
    assert sorted(fitted.to_frame(events=True).rows()) == sorted(
        expected.to_frame(events=True).rows()
    )
    assert eq.evaluate(tuned.model, split.test, bootstrap=0).n_users == 2


def test_contradictory_settings_are_refused(
    synthetic: Interactions, split: Split, solves: list[int]
) -> None:
    with pytest.raises(SettingError, match="GFCF is tuned on a split"):
        eq.tune(eq.GFCF, synthetic)
    with pytest.raises(SettingError, match="leave out refit"):
        eq.tune(synthetic, refit="all")
    with pytest.raises(SettingError, match="neighbourhood engine; evaluate or tune it on a split"):
        eq.tune(synthetic, engine="neighbourhood", progress=lambda _: pytest.fail("it solved"))
    with pytest.raises(SettingError, match="prefer is for leave-one-out"):
        eq.tune(eq.EASE, split, prefer="tail")
    with pytest.raises(SettingError, match="prefer must be"):
        eq.tune(synthetic, prefer="head")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="no value per user"):
        eq.tune(eq.EASE, synthetic, metric="coverage@20", grid={"l2": [5.0]})
    assert not solves
    with pytest.raises(SettingError, match="needs a split or Interactions"):
        eq.tune(eq.EASE)


@pytest.fixture(scope="session")
def hours(synthetic: Interactions) -> Interactions:
    """Hours per user and item that say nothing about taste: few pairs have nearly all of them."""
    rng = np.random.default_rng(1)
    matrix = synthetic.matrix.copy()
    matrix.data = np.exp(3 * rng.standard_normal(matrix.nnz)).astype(np.float32)
    return eq.Interactions(matrix, synthetic.users, synthetic.items)


def test_weights_are_compared_with_their_logarithm_and_with_none(hours: Interactions) -> None:
    tuned = eq.tune(hours, users=100, prefer="accuracy")
    assert tuned.solves == 9
    at_first = tuned.trials.group_by("solve").agg(
        pl.col("transform").first(), pl.col("ndcg@20").max()
    )
    at_first = at_first.sort("solve").head(3)
    assert at_first["transform"].to_list() == ["binary", "log1p", "sum"]
    chosen = at_first.sort("ndcg@20", descending=True)["transform"][0]
    assert chosen != "sum"
    searched = tuned.trials.filter(pl.col("solve") >= 3)["transform"].unique().to_list()
    assert searched == [chosen]
    assert tuned.model.signals.transform == tuned.best["transform"]
    assert f"{tuned.best['transform']} weights" in tuned.sentence
    assert tuned.notes[0].startswith(f"weights: {tuned.best['transform']} was chosen; ndcg@20")
    alone = tuned.model._vary({}).fit(hours)
    result = eq.leave_one_out(alone, users=100, bootstrap=0)
    assert result["ndcg@20"] == pytest.approx(tuned.best["ndcg@20"], rel=1e-9)


def test_weights_that_are_told_apart_by_the_model_or_all_alike_are_not_compared(
    hours: Interactions, synthetic: Interactions
) -> None:
    model = eq.EASE(normalizer=eq.DAN(), signals=eq.Signals(transform="sum"))
    tuned = eq.tune(model, hours, users=50)
    assert tuned.solves == 7
    assert set(tuned.trials["transform"]) == {"sum"}
    raw = eq.tune(eq.EASE, hours, users=50, trials=1, fixed="transform")
    assert raw.model.signals is None
    assert "transform" not in eq.tune(eq.EASE, synthetic, users=50, trials=1).trials.columns


def test_a_comparison_of_weights_resumes_from_its_storage(
    hours: Interactions, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"users": 40, "storage": tmp_path / "search.jsonl"}
    eq.tune(eq.EASE, hours, trials=2, **options)
    tuned = eq.tune(eq.EASE, hours, **options)
    assert (tuned.resumed, tuned.solves) == (2, 7)
    assert tuned.trials.equals(eq.tune(eq.EASE, hours, users=40).trials)


def test_fixed_settings_stay_and_the_others_are_searched(synthetic: Interactions) -> None:
    model = eq.EASE(l2=3.3, dropout="auto", normalizer=eq.DAN(alpha=0.15))
    tuned = eq.tune(model, synthetic, users=50, fixed=["l2", "alpha"])
    assert tuned.solves == 5
    assert set(tuned.trials["l2"]) == {3.3}
    assert set(tuned.trials["alpha"]) == {0.15}
    assert tuned.trials["dropout"].n_unique() == 3
    assert tuned.trials["beta"].n_unique() == 3
    names = ["l2", "alpha", "beta", "dropout"]
    one = eq.tune(model, synthetic, users=50, fixed=names, trials=5)
    assert (one.solves, one.trials.height) == (1, 1)
    with pytest.raises(SettingError, match="fixed names 'gamma'"):
        eq.tune(model, synthetic, fixed="gamma")
    with pytest.raises(SettingError, match="both fixed and in the grid"):
        eq.tune(model, synthetic, fixed="l2", grid={"l2": [1.0]})


def test_optuna_leaves_fixed_settings_alone(synthetic: Interactions) -> None:
    pytest.importorskip("optuna")
    tuned = eq.tune(eq.EASE(l2=3.3), synthetic, users=50, fixed="l2", trials=6)
    assert tuned.solves == 6
    assert set(tuned.trials["l2"]) == {3.3}
    assert tuned.trials["dropout"].n_unique() == 6


def test_yardsticks_are_measured_on_users_they_have_not_seen(synthetic: Interactions) -> None:
    """A newcomer without times must see whether plain popularity would do."""
    estimate = eq.tune(eq.EASE, synthetic, grid={"l2": [2.0, 20.0]}, users=60).estimate
    assert estimate.yardsticks.keys() == {"popular", "item-kNN"}
    assert estimate.verdict in str(estimate)
    part = OnLeftOut(synthetic, {"ndcg@20": 1.0}, "balance", 60, 0).part
    values = []
    for row in range(part.history.n_users):
        user = part.history.rows([row])
        remaining = synthetic.select(users=[u for u in synthetic.users if u != user.users[0]])
        listed = eq.Popularity().fit(remaining).recommend(user, k=20).items[0]
        hidden = set(part.target.rows([row]).history(user.users[0]))
        gains = [1 / np.log2(rank + 2) for rank, item in enumerate(listed) if item in hidden]
        ideal = sum(1 / np.log2(rank + 2) for rank in range(min(len(hidden), 20)))
        values.append(sum(gains) / ideal)
    # it leaves out up to a twentieth of the users together, not one at a time
    assert estimate.yardsticks["popular"] == pytest.approx(np.mean(values), abs=0.02)
