from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.errors import SettingError
from equipoise.interactions import Interactions
from equipoise.matrix import entry_rows
from equipoise.solve import dense
from equipoise.split import Split
from equipoise.tuning import SearchProgress, frontier_svg
from equipoise.tuning.proposals import RangeProposals
from equipoise.tuning.search import parse_budget
from equipoise.tuning.shared_ranking import rank_together

GRID = {"alpha": [0.0, 0.3], "beta": [0.0, 0.5], "l2": [2.0, 20.0], "dropout": [0.0, 0.4]}


@pytest.fixture(scope="module")
def split(synthetic: Interactions) -> Split:
    return eq.split.strong(synthetic, valid=0.2, test=0.2)


@pytest.fixture
def solves(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts inversions, wherever they are made."""
    counted: list[int] = []
    real = dense.invert_in_place

    def counting(A: Any) -> None:
        counted.append(len(A))
        real(A)

    monkeypatch.setattr(dense, "invert_in_place", counting)
    return counted


def separate(split: Split, family: Any, settings: dict[str, float]) -> eq.EASE:
    """Fit one point by itself."""
    own = {n: v for n, v in settings.items() if n not in ("alpha", "beta")}
    normalizer = eq.DAN(settings["alpha"], settings["beta"])
    return family(normalizer=normalizer, **own).fit(split.train)


def test_grid_equals_separate_fits_in_every_point(split: Split) -> None:
    families = [eq.LAE, eq.EASE, eq.RLAE]
    found = eq.tune(families, split, grid={**GRID, "diag_bound": [0.1, 0.4]})
    rows = found.trials.to_dicts()
    assert len(rows) == 16 * 2 + 16 * 2
    for row in rows[::7]:
        names = [n for n in ("alpha", "beta", "l2", "dropout", "diag_bound") if row[n] is not None]
        model = separate(split, getattr(eq, row["family"]), {n: row[n] for n in names})
        result = eq.evaluate(model, split.valid, bootstrap=0)
        # the sums are the same bit for bit, so the numbers are equal, not close
        assert result["ndcg@20"] == row["ndcg@20"]
        assert result["tail_ndcg@20"] == row["tail_ndcg@20"]


def test_best_of_the_grid_is_the_best_of_separate_fits(split: Split) -> None:
    found = eq.tune(eq.EASE, split, grid=GRID, metric="recall@10")
    values = {}
    for point in itertools.product(*GRID.values()):
        model = separate(split, eq.EASE, dict(zip(GRID, point, strict=True)))
        values[point] = eq.evaluate(model, split.valid, k=10, bootstrap=0)["recall@10"]
    best = max(values.values())
    assert found.best["recall@10"] == best
    assert values[tuple(found.best[name] for name in GRID)] == best
    fitted = eq.evaluate(found.model, split.valid, k=10, bootstrap=0)
    assert fitted["recall@10"] == best


def test_one_solve_serves_every_alpha_family_and_bound(split: Split, solves: list[int]) -> None:
    found = eq.tune(
        [eq.LAE, eq.EASE, eq.RLAE],
        split,
        grid={**GRID, "diag_bound": [0.1, 0.2, 0.5]},
    )
    assert found.solves == 8
    assert len(solves) == 8 + 1  # and the last fit
    assert found.trials.height == 8 * 2 * (1 + 1 + 3)


def test_gram_matrix_is_kept_for_all_penalties_of_a_beta(
    split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    real = dense.weighted_gram

    def counting(*given: Any) -> Any:
        made.append(1)
        return real(*given)

    monkeypatch.setattr(dense, "weighted_gram", counting)
    with_memory = eq.tune(eq.EASE, split, grid=GRID)
    assert len(made) == len(GRID["beta"]) + 1  # and the last fit
    made.clear()
    n = split.train.n_items
    tight = eq.plan(split.train).peak_bytes + n * n * 2  # room for half a second buffer
    without = eq.tune(eq.EASE, split, grid=GRID, memory=tight)
    assert len(made) == with_memory.solves + 1
    assert without.trials.equals(with_memory.trials)


@pytest.mark.parametrize("protocol", ["strong", "weak"])
@pytest.mark.parametrize(
    "metric", ["ndcg@5", "recall@20", "unbiased_ndcg@10", "map@5", "coverage@5", "novelty@5"]
)
def test_metrics_are_those_of_evaluate(
    synthetic: Interactions, protocol: str, metric: str
) -> None:
    split = getattr(eq.split, protocol)(synthetic, valid=0.2, test=0.2)
    found = eq.tune(eq.EASE(l2=5.0, dropout=0.2), split, grid={"l2": [5]}, metric=metric)
    name, _, k = metric.partition("@")
    result = eq.evaluate(found.model, split.valid, k=int(k), metrics=[name], bootstrap=0)
    assert found.best[metric] == result[metric]


def test_metrics_that_should_be_small_are_made_small(split: Split) -> None:
    found = eq.tune(eq.EASE, split, grid=GRID, metric="popularity@10", objectives=["lift@10"])
    assert found.best["popularity@10"] == found.trials["popularity@10"].min()


def test_frontier_is_not_dominated_and_complete(split: Split) -> None:
    found = eq.tune([eq.LAE, eq.EASE], split, grid=GRID, objectives=["tail_ndcg@20"])
    names = ["ndcg@20", "tail_ndcg@20"]
    assert found.objectives == tuple(names)
    front = found.frontier.select(names).to_numpy()
    every = found.trials.select(names).to_numpy()
    for row in front:
        better = (every >= row).all(axis=1) & (every > row).any(axis=1)
        assert not better.any()
    for row in every:
        assert (front >= row).all(axis=1).any()
    assert front[0, 0] == found.best["ndcg@20"]


def test_picture_of_the_frontier_is_well_formed(split: Split) -> None:
    from xml.etree import ElementTree

    found = eq.tune(eq.EASE, split, grid=GRID)
    picture = frontier_svg(found.trials, found.frontier, ("ndcg@20", "tail_ndcg@20"))
    root = ElementTree.fromstring(picture)
    circles = root.findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(circles) == found.trials.height + found.frontier.height
    assert all(0 <= float(each.get("cx", "-1")) <= 640 for each in circles)


def test_paper_grid_has_its_size(split: Split) -> None:
    from equipoise.tuning import PAPER

    sizes = {name: len(values) for name, values in PAPER.items()}
    assert sizes["alpha"] == 6
    assert sizes["beta"] == 11
    assert sizes["l2"] * sizes["dropout"] == 25


def test_search_is_the_same_for_the_same_seed(split: Split) -> None:
    pytest.importorskip("optuna")
    one, two, other = (eq.tune(eq.EASE, split, trials=12, seed=seed) for seed in (0, 0, 1))
    assert one.trials.equals(two.trials)
    assert not one.trials.equals(other.trials)
    assert one.solves == 12
    assert one.trials.select("l2", "beta", "dropout").unique().height == 12


def test_search_begins_with_the_automatic_settings(split: Split) -> None:
    found = eq.tune(eq.EASE, split, trials=1)
    automatic = eq.EASE(normalizer=eq.DAN()).fit(split.train)
    assert found.trials["l2"][0] == pytest.approx(automatic.l2_, rel=1e-3)
    assert found.trials["beta"][0] == pytest.approx(automatic.normalizer_.beta, abs=0.025)


def test_models_decide_which_exponents_are_searched(split: Split) -> None:
    plain = eq.tune(eq.EASE(), split, trials=3)
    assert not {"alpha", "beta", "gamma"} & set(plain.trials.columns)
    column = eq.tune(eq.EASE(normalizer=eq.ColumnNorm()), split, trials=2)
    assert column.trials["gamma"].n_unique() > 2
    assert column.model.normalizer.gamma == column.best["gamma"]


def test_lowpass_is_kept_and_judged(split: Split) -> None:
    model = eq.EASE(l2=5.0, dropout=0.2, lowpass=eq.LowPass(rank=4, strength=0.3))
    found = eq.tune(model, split, grid={"l2": [5.0, 10.0]})
    assert found.model.lowpass == model.lowpass
    result = eq.evaluate(found.model, split.valid, bootstrap=0)
    assert result["ndcg@20"] == found.best["ndcg@20"]


@pytest.mark.parametrize("kind", [eq.DLAE, eq.EDLAE, eq.RDLAE])
def test_denoising_forms_are_tuned_like_their_families(split: Split, kind: Any) -> None:
    grid = {"l2": [2.0, 20.0], "dropout": [0.2, 0.5], "alpha": [0.0, 0.3]}
    found = eq.tune(kind, split, grid=grid)
    named = eq.tune(kind.__name__.lower(), split, grid=grid)
    family = eq.tune(kind.__base__, split, grid=grid)
    assert found.trials.equals(named.trials)
    assert found.trials.drop("family").equals(family.trials.drop("family"))
    assert type(found.model) is kind
    assert found.best["family"] == kind.__name__


def test_denoising_form_without_a_grid_begins_at_its_own_dropout(split: Split) -> None:
    assert eq.tune(eq.EDLAE, split, trials=1).trials["dropout"][0] == 0.5


@pytest.mark.parametrize(
    ("models", "grid"),
    [
        ([eq.LAE(l2=1.0), eq.EASE(l2=100.0)], {"dropout": [0.5]}),
        ([eq.EASE(l2=1.0), eq.EDLAE(l2=1.0)], {"l2": [1.0]}),
        ([eq.EASE, eq.DLAE], {"alpha": [0.0, 0.2]}),
    ],
)
def test_models_that_need_solves_of_their_own_are_not_rank_together_one(
    split: Split, models: list[Any], grid: dict[str, Any]
) -> None:
    with pytest.raises(SettingError, match="need the same l2 and dropout"):
        eq.tune(models, split, grid=grid)
    assert eq.tune(models, split, grid={"l2": [1.0], "dropout": [0.5]}).trials.height == 2


def test_other_models_are_fitted_point_by_point(split: Split) -> None:
    found = eq.tune(eq.ItemKNN, split, grid={"neighbours": [5, 20], "shrink": [0.0, 10.0]})
    assert found.solves == 4
    assert isinstance(found.model, eq.ItemKNN)
    result = eq.evaluate(found.model, split.valid, bootstrap=0)
    assert result["ndcg@20"] == found.trials["ndcg@20"].max()


def test_early_stop_saves_solves_and_leaves_the_rest_exact(split: Split) -> None:
    grid = {**GRID, "l2": [1.0, 10.0, 1e3, 1e4, 1e5, 1e6]}
    whole = eq.tune(eq.EASE, split, grid=grid)
    short = eq.tune(eq.EASE, split, grid=grid, early_stop=True)
    assert short.solves < whole.solves
    columns = ["alpha", "beta", "l2", "dropout", "ndcg@20"]
    assert short.trials.select(columns).join(whole.trials, on=columns).height == (
        short.trials.height
    )


def test_progress_tells_the_best_so_far(split: Split) -> None:
    seen: list[SearchProgress] = []
    found = eq.tune(eq.EASE, split, grid=GRID, progress=seen.append)
    assert [each.done for each in seen] == list(range(1, 9))
    assert {each.total for each in seen} == {8}
    values = [each.best_value for each in seen]
    assert values == sorted(values)
    assert values[-1] == found.best["ndcg@20"]


def test_no_solve_is_begun_that_would_outlast_the_budget(
    split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()
    now = [0.0]

    class Slow(eq.NoNorm):  # time passes only in solves and fits
        def user_weights(self, interactions: eq.Interactions) -> Any:
            now[0] = float(next(clock))
            return super().user_weights(interactions)

    stopped = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr("equipoise.tuning.search.time", stopped)
    monkeypatch.setattr("equipoise.tuning.search.time", stopped)
    model, grid = eq.EASE(normalizer=Slow()), {"l2": [1.0, 2.0, 3.0, 4.0, 5.0]}
    one = eq.tune(model, split, grid={"l2": [1.0]}).seconds
    for budget in [2 * one, 3 * one, 4 * one, 20 * one]:
        found = eq.tune(model, split, grid=grid, budget=budget)
        assert found.seconds <= budget < found.seconds + one or found.complete
    assert found.complete


@pytest.mark.parametrize(("text", "seconds"), [("10m", 600), ("1.5h", 5400), (3, 3), ("2 s", 2)])
def test_budgets_are_read(text: Any, seconds: float) -> None:
    assert parse_budget(text) == seconds


def test_lists_rank_together_are_those_of_the_model(split: Split) -> None:
    first = eq.EASE(l2=3.0, dropout=0.3, normalizer=eq.DAN(0.2, 0.1)).fit(split.train)
    models = [first, eq.LAE(l2=3.0, dropout=0.3, normalizer=eq.DAN(0.4, 0.1)).reuse(first)]
    for seen in (True, False):
        lists = rank_together(models, split.valid.history, 15, exclude_seen=seen)
        for model, found in zip(models, lists, strict=True):
            alone = model.rank(split.valid.history, 15, exclude_seen=seen)
            np.testing.assert_array_equal(found, alone.items)


def test_lists_rank_together_for_an_empty_history_are_those_of_the_model(split: Split) -> None:
    model = eq.EASE(l2=3.0, normalizer=eq.DAN(0.2, 0.1)).fit(split.train)
    some = split.valid.history.rows([0, 1, 2, 3])
    history = some.entries(np.isin(entry_rows(some.matrix), [1, 3]))
    (lists,) = rank_together([model], history, 15)
    np.testing.assert_array_equal(lists, model.rank(history, 15).items)
    best = np.argsort(-split.train.item_counts, kind="stable")[:15]
    np.testing.assert_array_equal(lists[0], best)


def test_sampler_stays_in_its_ranges_and_never_repeats() -> None:
    pytest.importorskip("optuna")
    sampler = RangeProposals({"beta": 0.33, "l2": 12.3456, "dropout": 0.5}, seed=3)
    past: list[tuple[dict[str, float], float]] = []
    for number in range(25):
        outer = sampler.propose(past)
        assert outer is not None
        assert outer not in [one for one, _ in past]
        assert 0 <= outer["beta"] <= 1
        assert 0 <= outer["dropout"] <= 0.9
        assert 0.12 <= outer["l2"] <= 1300
        past.append((outer, float(number % 5)))
