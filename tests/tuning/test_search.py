"""`tune`: every point equals a fit of its own, at the price of few solves; what is refused."""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp
from tests.tolerance import assert_close

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.data.split import Split
from equipoise.errors import DataError, SettingError, SolveError
from equipoise.evaluation.evaluator import ListMetrics
from equipoise.solve import dense, gpu
from equipoise.solve.engine import Solver
from equipoise.solve.gpu import DeviceMatrix
from equipoise.tuning import SearchProgress
from equipoise.tuning.search import Solves

GRID = {"alpha": [0.0, 0.3], "beta": [0.0, 0.5], "l2": [2.0, 20.0], "dropout": [0.0, 0.4]}


def separate(split: Split, family: Any, settings: dict[str, float]) -> eq.EASE:
    """Fit one point by itself."""
    solve_settings = {n: v for n, v in settings.items() if n not in ("alpha", "beta")}
    normalizer = eq.DAN(settings["alpha"], settings["beta"])
    return family(normalizer=normalizer, **solve_settings).fit(split.train)


def test_grid_equals_separate_fits_in_every_point(split: Split) -> None:
    families = [eq.LAE, eq.EASE, eq.RLAE]
    tuned = eq.tune(families, split, grid={**GRID, "diag_bound": [0.1, 0.4]})
    rows = tuned.trials.to_dicts()
    assert len(rows) == 16 * 2 + 16 * 2
    for row in rows[::7]:
        names = [n for n in ("alpha", "beta", "l2", "dropout", "diag_bound") if row[n] is not None]
        model = separate(split, getattr(eq, row["family"]), {n: row[n] for n in names})
        result = eq.evaluate(model, split.valid, bootstrap=0)
        # the sums are the same bit for bit, so the numbers are equal, not close
        assert result["ndcg@20"] == row["ndcg@20"]
        assert result["tail_ndcg@20"] == row["tail_ndcg@20"]


def test_best_of_the_grid_is_the_best_of_separate_fits(split: Split) -> None:
    tuned = eq.tune(eq.EASE, split, grid=GRID, metric="recall@10")
    values = {}
    for point in itertools.product(*GRID.values()):
        model = separate(split, eq.EASE, dict(zip(GRID, point, strict=True)))
        values[point] = eq.evaluate(model, split.valid, k=10, bootstrap=0)["recall@10"]
    best = max(values.values())
    assert tuned.best["recall@10"] == best
    assert values[tuple(tuned.best[name] for name in GRID)] == best
    fitted = eq.evaluate(tuned.model, split.valid, k=10, bootstrap=0)
    assert fitted["recall@10"] == best


def test_one_solve_serves_every_alpha_family_and_bound(split: Split, solves: list[int]) -> None:
    tuned = eq.tune(
        [eq.LAE, eq.EASE, eq.RLAE],
        split,
        grid={**GRID, "diag_bound": [0.1, 0.2, 0.5]},
    )
    assert tuned.solves == 8
    assert len(solves) == 8 + 1  # and the last fit
    assert tuned.trials.height == 8 * 2 * (1 + 1 + 3)


def test_gram_matrix_is_kept_for_all_penalties_of_a_beta(
    split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    real = dense.weighted_gram

    def counting(*args: Any) -> Any:
        calls.append(1)
        return real(*args)

    monkeypatch.setattr(dense, "weighted_gram", counting)
    with_memory = eq.tune(eq.EASE, split, grid=GRID)
    assert len(calls) == len(GRID["beta"]) + 1  # and the last fit
    calls.clear()
    n = split.train.n_items
    tight = eq.plan(split.train).peak_bytes + n * n * 2  # room for half a second buffer
    without = eq.tune(eq.EASE, split, grid=GRID, memory=tight)
    assert len(calls) == with_memory.solves + 1
    assert without.trials.equals(with_memory.trials)


@pytest.mark.parametrize("engine", ["gpu", "tiled"], ids=["device", "disk"])
def test_every_engine_finds_the_same(split: Split, tmp_path: Path, engine: str) -> None:
    if engine == "gpu":
        pytest.importorskip("torch")
    grid = {"alpha": [0.0, 0.3], "diag_bound": [0.2], "l2": [2.0, 20.0]}
    options: dict[str, Any] = {"grid": grid, "dtype": "float64"}
    host = eq.tune([eq.EASE, eq.RLAE], split, **options)
    scratch = {"scratch": tmp_path / "tiles"} if engine == "tiled" else {}
    there = eq.tune([eq.EASE, eq.RLAE], split, engine=engine, **scratch, **options)
    assert there.solves == host.solves == 2
    names = ["family", *grid, "solve"]
    assert there.trials.select(names).equals(host.trials.select(names))
    metrics = list(host.objectives)
    assert_close(there.trials[metrics].to_numpy(), host.trials[metrics].to_numpy(), "float64")
    if engine == "tiled":
        assert not (tmp_path / "tiles" / "search").exists()  # the tiles of the solves are gone
    else:
        assert isinstance(there.model.inverse_, DeviceMatrix)


def test_gram_matrix_stays_on_the_card_between_penalties(
    split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    calls = []
    real = gpu.Gram.fill
    monkeypatch.setattr(gpu.Gram, "fill", lambda *args: (calls.append(1), real(*args))[1])
    eq.tune(eq.EASE, split, grid=GRID, engine="gpu")
    assert len(calls) == len(GRID["beta"]) + 1  # and the last fit


@pytest.mark.parametrize("protocol", ["strong", "weak"])
@pytest.mark.parametrize(
    "metric", ["ndcg@5", "recall@20", "unbiased_ndcg@10", "map@5", "coverage@5", "novelty@5"]
)
def test_metrics_are_those_of_evaluate(
    synthetic: Interactions, protocol: str, metric: str
) -> None:
    split = getattr(eq.split, protocol)(synthetic, valid=0.2, test=0.2)
    tuned = eq.tune(eq.EASE(l2=5.0, dropout=0.2), split, grid={"l2": [5]}, metric=metric)
    name, _, k = metric.partition("@")
    result = eq.evaluate(tuned.model, split.valid, k=int(k), metrics=[name], bootstrap=0)
    assert tuned.best[metric] == result[metric]


def test_metrics_to_minimise_are_minimised(split: Split) -> None:
    tuned = eq.tune(eq.EASE, split, grid=GRID, metric="popularity@10", objectives=["lift@10"])
    assert tuned.best["popularity@10"] == tuned.trials["popularity@10"].min()


def test_frontier_is_not_dominated_and_complete(split: Split) -> None:
    tuned = eq.tune([eq.LAE, eq.EASE], split, grid=GRID, objectives=["tail_ndcg@20"])
    names = ["ndcg@20", "tail_ndcg@20"]
    assert tuned.objectives == tuple(names)
    front = tuned.frontier.select(names).to_numpy()
    every = tuned.trials.select(names).to_numpy()
    for row in front:
        better = (every >= row).all(axis=1) & (every > row).any(axis=1)
        assert not better.any()
    for row in every:
        assert (front >= row).all(axis=1).any()
    assert front[0, 0] == tuned.best["ndcg@20"]


def test_search_is_the_same_for_the_same_seed(split: Split) -> None:
    pytest.importorskip("optuna")
    one, two, other = (eq.tune(eq.EASE, split, trials=12, seed=seed) for seed in (0, 0, 1))
    assert one.trials.equals(two.trials)
    assert not one.trials.equals(other.trials)
    assert one.solves == 12
    assert one.trials.select("l2", "beta", "dropout").unique().height == 12


def test_search_begins_with_the_automatic_settings(split: Split) -> None:
    automatic = eq.EDLAE(normalizer=eq.DAN()).fit(split.train)
    for model in (eq.EASE, eq.EASE(normalizer=eq.DAN())):
        trials = eq.tune(model, split, trials=1).trials
        assert trials["l2"][0] == pytest.approx(automatic.l2_, rel=1e-3)
        assert trials["beta"][0] == pytest.approx(automatic.normalizer_.beta, abs=0.025)
        assert trials["dropout"][0] == pytest.approx(automatic.dropout_, abs=0.025)
    without = eq.tune(eq.EASE, split, trials=1, fixed=["dropout"])
    assert without.best["dropout"] == 0


def test_models_decide_which_exponents_are_searched(split: Split) -> None:
    plain = eq.tune(eq.EASE(), split, trials=3)
    assert not {"alpha", "beta", "gamma"} & set(plain.trials.columns)
    column = eq.tune(eq.EASE(normalizer=eq.ColumnNorm()), split, trials=2)
    assert column.trials["gamma"].n_unique() > 2
    assert column.model.normalizer.gamma == column.best["gamma"]


def test_lowpass_companion_is_kept_and_measured(split: Split) -> None:
    model = eq.EASE(l2=5.0, dropout=0.2, lowpass=eq.LowPass(rank=4, strength=0.3))
    tuned = eq.tune(model, split, grid={"l2": [5.0, 10.0]})
    assert tuned.model.lowpass == model.lowpass
    result = eq.evaluate(tuned.model, split.valid, bootstrap=0)
    assert result["ndcg@20"] == tuned.best["ndcg@20"]


@pytest.mark.parametrize("kind", [eq.DLAE, eq.EDLAE, eq.RDLAE])
def test_denoising_forms_are_tuned_like_their_families(split: Split, kind: Any) -> None:
    grid = {"l2": [2.0, 20.0], "dropout": [0.2, 0.5], "alpha": [0.0, 0.3]}
    tuned = eq.tune(kind, split, grid=grid)
    named = eq.tune(kind.__name__.lower(), split, grid=grid)
    family = eq.tune(kind.__base__, split, grid=grid)
    assert tuned.trials.equals(named.trials)
    assert tuned.trials.drop("family").equals(family.trials.drop("family"))
    assert type(tuned.model) is kind
    assert tuned.best["family"] == kind.__name__


def test_search_without_a_grid_begins_at_the_dropout_of_the_model(split: Split) -> None:
    model = eq.EDLAE(dropout=0.3, normalizer=eq.DAN())
    assert eq.tune(model, split, trials=1).trials["dropout"][0] == 0.3


def test_progress_tells_the_best_so_far(split: Split) -> None:
    seen: list[SearchProgress] = []
    tuned = eq.tune(eq.EASE, split, grid=GRID, progress=seen.append)
    assert [progress.done for progress in seen] == list(range(1, 9))
    assert {progress.total for progress in seen} == {8}
    values = [progress.best_value for progress in seen]
    assert values == sorted(values)
    assert values[-1] == tuned.best["ndcg@20"]


@pytest.fixture
def shallow(rng: np.random.Generator) -> Split:
    """More items than users, so that a solve with a tiny penalty fails."""
    return eq.split.strong(eq.Interactions(rng.random((40, 60)) < 0.3), valid=0.2, test=0.2)


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "dense"},
        {"engine": "dense", "early_stop": True},
        {"engine": "neighbourhood", "neighbours": 40},
    ],
)
def test_a_solve_that_fails_is_a_trial_with_its_reason(
    shallow: Split, options: dict[str, Any], tmp_path: Path
) -> None:
    seen: list[SearchProgress] = []
    grid = {"l2": [1e-12, 1.0, 10.0], "alpha": [0.0, 0.2]}
    path = tmp_path / "search.jsonl"
    tuned = eq.tune(eq.EASE, shallow, grid=grid, progress=seen.append, storage=path, **options)
    failed = tuned.trials.filter(pl.col("failed").is_not_null())
    assert failed["l2"].to_list() == [1e-12]
    assert "raise l2" in failed["failed"][0]
    assert failed["ndcg@20"].to_list() == [None]
    assert (tuned.solves, tuned.n_failed, tuned.trials.height) == (3, 1, 5)
    assert "4 settings from 3 solves (1 failed)" in repr(tuned)
    assert tuned.best["l2"] in (1.0, 10.0)
    assert set(tuned.frontier["l2"]) <= {1.0, 10.0}
    assert sum(progress.failed is not None for progress in seen) == 1
    again = eq.tune(eq.EASE, shallow, grid=grid, storage=path, **options)
    assert (again.solves, again.resumed) == (0, 3)
    assert again.trials.equals(tuned.trials)


def test_proposals_continue_after_a_failed_solve(
    split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    real = Solves._solve

    def fails_at_first(self: Solves, outer: dict[str, Any]) -> Any:
        if outer["l2"] > 10:
            raise SolveError("the residual is too large; raise l2")
        return real(self, outer)

    monkeypatch.setattr(Solves, "_solve", fails_at_first)
    tuned = eq.tune(eq.EASE, split, trials=10)
    assert tuned.solves == 10
    assert 0 < tuned.n_failed < 10
    assert tuned.best["l2"] <= 10


def test_a_search_whose_solves_all_fail_says_why(shallow: Split) -> None:
    with pytest.raises(SolveError, match=r"all 2 solves of the search failed: .*raise l2"):
        eq.tune(eq.EASE, shallow, grid={"l2": [1e-12, 2e-12]}, engine="dense")


def test_progress_of_a_search_by_leave_one_out_never_decreases(synthetic: Interactions) -> None:
    seen: list[SearchProgress] = []
    eq.tune(synthetic, users=60, prefer="tail", progress=seen.append)
    values = [progress.best_value for progress in seen]
    assert values == sorted(values)
    assert all(progress.best_value == progress.best["ndcg@20"] for progress in seen)
    assert all(progress.best_value >= progress.last_value for progress in seen)


def test_no_solve_is_begun_that_would_outlast_the_budget(
    split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, solve = [0.0], Solver.solve

    def slow(solver: Solver, *arguments: Any, **options: Any) -> Any:
        now[0] += 1.0  # time passes only in solves
        return solve(solver, *arguments, **options)

    monkeypatch.setattr(Solver, "solve", slow)
    stopped = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr("equipoise.tuning.search.time", stopped)
    model, grid = eq.EASE(), {"l2": [1.0, 2.0, 3.0, 4.0, 5.0]}
    one = eq.tune(model, split, grid={"l2": [1.0]}).seconds
    for budget in [2 * one, 3 * one, 4 * one, 20 * one]:
        tuned = eq.tune(model, split, grid=grid, budget=budget)
        assert tuned.seconds <= budget < tuned.seconds + one or tuned.complete
    assert tuned.complete


def test_progress_ends_at_its_total(split: Split) -> None:
    seen: list[SearchProgress] = []
    tuned = eq.tune(eq.EASE, split, grid=GRID, early_stop=True, progress=seen.append)
    assert [progress.done for progress in seen] == list(range(1, tuned.solves + 1))
    totals = [progress.total for progress in seen]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] <= 180
    assert totals[-1] == tuned.solves


def test_order_of_the_search_does_not_decide_between_equals(split: Split) -> None:
    # lists of all items in order of l2 this large are equal, so all points tie on coverage
    grid = {"beta": [0.0, 0.5], "l2": [1.0, 2.0, 3.0], "dropout": [0.1, 0.2]}
    options: dict[str, Any] = {"grid": grid, "metric": "coverage@80", "objectives": ()}
    complete = eq.tune(eq.EASE, split, **options)
    short = eq.tune(eq.EASE, split, **options, early_stop=True)
    assert complete.trials["coverage@80"].n_unique() == 1
    first = {name: grid[name][0] for name in grid}
    assert {name: complete.best[name] for name in grid} == first
    assert short.best == complete.best


def test_a_budget_accounts_for_the_measured_fits() -> None:
    """A dense solve of this many items would take hours; item neighbourhoods take no time."""

    def wide(*rows: list[int]) -> Interactions:
        lengths = [len(row) for row in rows]
        matrix = (np.ones(sum(lengths)), np.concatenate(rows), np.cumsum([0, *lengths]))
        return Interactions(sp.csr_array(matrix, shape=(len(rows), 200_000)))

    train = wide([0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [0, 5, 199_999])
    parts = [
        eq.split.Part(wide([0, 1], [3, 4]), wide([2], [5]), "strong", name)
        for name in ("valid", "test")
    ]
    split = Split(train, *parts, "strong")
    grid = {"neighbours": [2, 5]}
    tuned = eq.tune(eq.ItemKNN, split, grid=grid, budget="5m", objectives=())
    assert (tuned.solves, tuned.complete) == (2, True)
    with pytest.raises(SettingError, match="too small: one fit takes about"):
        eq.tune(eq.EASE, split, grid={"l2": [1.0]}, budget="5m", objectives=(), engine="dense")


class Recorded(eq.GFCF):
    """A GFCF that remembers how it was fitted."""

    seen: ClassVar[list[tuple[str, int | None]]] = []

    def fit(
        self, interactions: Interactions, *, dtype: str = "float32", threads: int | None = None
    ) -> Self:
        self.seen.append((dtype, threads))
        return super().fit(interactions, dtype=dtype, threads=threads)


def test_run_options_reach_every_fit(split: Split) -> None:
    Recorded.seen.clear()
    grid = {"n_factors": [4, 8]}
    tuned = eq.tune(Recorded, split, grid=grid, dtype="float64", threads=1)
    assert Recorded.seen == [("float64", 1)] * 3  # both points and the last fit
    assert tuned.model.dtype_ == "float64"


@pytest.mark.parametrize("kind", [eq.GFCF, eq.TurboCF, eq.SVDAE])
def test_filters_are_tuned_in_the_precision_asked_for(split: Split, kind: Any) -> None:
    name, values = next(iter(kind.search_space.items()))
    tuned = eq.tune(kind, split, grid={name: values[-1]}, dtype="float64")
    assert tuned.model.dtype_ == "float64"
    result = eq.evaluate(tuned.model, split.valid, bootstrap=0)
    assert result["ndcg@20"] == tuned.best["ndcg@20"]


def test_part_without_tail_targets_is_refused(split: Split) -> None:
    head = np.argsort(-split.train.item_counts)[:10]
    target = split.valid.target
    in_head = np.isin(target.matrix.indices, head)
    rows = target.entries(in_head)
    has_targets = rows.user_counts > 0
    part = dataclasses.replace(
        split.valid, history=split.valid.history.rows(has_targets), target=rows.rows(has_targets)
    )
    with pytest.raises(DataError, match="no target of the valid part is in the tail"):
        ListMetrics.of(part, split.train.item_counts, ["tail_ndcg@20"])


def test_optuna_is_asked_for_before_the_first_solve(
    split: Split, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    storage = tmp_path / "search.jsonl"
    with pytest.raises(eq.EquipoiseError, match=r"equipoise\[tune\]"):
        eq.tune(eq.EASE, split, trials=20, storage=storage)
    assert not storage.exists()


STRONG = {"grid": {"l2": [2.0, 20.0]}}
MIXED = "need the same l2 and dropout"
REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (eq.EASE, {**STRONG, "metric": "ndgc@20"}, "unknown metric"),
    (eq.EASE, {**STRONG, "metric": "ndcg"}, "a metric must look like"),
    (eq.EASE, {**STRONG, "metric": "ndcg@0"}, "a metric must look like"),
    (eq.EASE, {**STRONG, "metric": 3}, "a metric must look like"),
    (eq.EASE, {**STRONG, "metric": "diversity@20"}, "cannot be the metric of a search"),
    (eq.EASE, {**STRONG, "metric": "active_ndcg@5"}, "cannot be the metric of a search"),
    (eq.EASE, {**STRONG, "budget": "0.000001s"}, "too small: one fit takes about"),
    (eq.EASE, {"budget": "soon"}, "budget must look like"),
    (eq.ItemKNN, {"budget": "0.000001s"}, "too small: it was spent before the first fit"),
    (eq.EASE, {"trials": 0}, "trials must be a whole number >= 1"),
    (eq.EASE, {"grid": {"gamma": [0.1]}}, "no 'gamma' to tune"),
    (eq.EASE, {"grid": {"strength": [0.1]}}, "no 'strength' to tune"),
    (eq.EASE, {"grid": {"l2": []}}, "no values for 'l2'"),
    (eq.EASE, {"grid": "all"}, "grid must map names to values"),
    (eq.GFCF, {"grid": "paper"}, "the models have none of these; there are n_factors"),
    (
        eq.SLIS,
        {"grid": {"normalizer": [eq.DAN(0.1, 0.1)]}},
        "have no 'normalizer' to tune; there are l2, dropout",
    ),
    ([], {}, "tune needs a model"),
    (3, {}, "tune needs a model or its class"),
    ("eas", {}, "there is no model 'eas'"),
    (eq.Popularity, {}, "Popularity needs a grid over its settings"),
    ([eq.ItemKNN, eq.GFCF], {}, "only linear autoencoders can be tuned several"),
    ([eq.EASE(), eq.LAE(normalizer=eq.DAN())], {}, "same normalizer"),
    ([eq.LAE(l2=1.0), eq.EASE(l2=100.0)], {"grid": {"dropout": [0.5]}}, MIXED),
    ([eq.EASE(l2=1.0), eq.EDLAE(l2=1.0)], {"grid": {"l2": [1.0]}}, MIXED),
    ([eq.EASE, eq.DLAE], {"grid": {"alpha": [0.0, 0.2]}}, MIXED),
    (eq.ItemKNN, {"dtype": "float64"}, "ItemKNN does not support dtype; leave"),
    (eq.ItemKNN, {"memory": "2GB"}, "ItemKNN does not support memory; leave"),
    (eq.GFCF, {"memory": "2GB"}, "GFCF does not support memory; leave"),
    (eq.GFCF, {"engine": "tiled"}, "GFCF does not support engine; leave"),
    (eq.MultVAE, {"dtype": "float64", "grid": {"epochs": [1]}}, "MultVAE does not support dtype"),
]


@pytest.mark.parametrize(("model", "options", "sentence"), REFUSED)
def test_contradictory_settings_are_refused(
    split: Split, model: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SettingError, match=re.escape(sentence)):
        eq.tune(model, split, **options)


def test_a_split_with_a_valid_part_is_needed(split: Split, synthetic: Interactions) -> None:
    with pytest.raises(DataError, match=r"no valid part .* valid=0\.1"):
        eq.tune(eq.EASE, dataclasses.replace(split, valid=None))
    with pytest.raises(SettingError, match="needs a split"):
        eq.tune(eq.EASE, synthetic.matrix)  # type: ignore[arg-type]
