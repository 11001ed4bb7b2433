"""What is searched where no grid is given."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import numpy as np
import pytest
import scipy.sparse as sp

import equipoise as eq
from equipoise.errors import SettingError
from equipoise.interactions import Interactions
from equipoise.matrix import Sequences
from equipoise.models.base import Recommender
from equipoise.split import Split
from equipoise.tuning.proposals import GridProposals
from equipoise.tuning.space import Space


@pytest.fixture(scope="module")
def split(synthetic: Interactions) -> Split:
    return eq.split.strong(synthetic, valid=0.2, test=0.2)


@pytest.fixture(scope="module")
def visits() -> Split:
    """Sessions that walk around one of two loops of six items."""
    rows = [
        [(session + step) % 6 + 6 * (session % 2) for step in range(3 + session % 3)]
        for session in range(60)
    ]
    dense = np.zeros((len(rows), 12))
    for place, row in enumerate(rows):
        dense[place, row] = 1
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    events = Sequences(np.concatenate(rows).astype(np.int32), offsets)
    return eq.split.sessions(Interactions(dense, sequences=events), valid=0.2, test=0.2)


SEARCHED = [
    kind
    for kind in Recommender.registry.values()
    if kind.search_space and not kind.solve_settings and kind.__module__.startswith("equipoise.")
]


@pytest.mark.parametrize("kind", SEARCHED)
def test_every_space_is_one_of_its_model(split: Split, kind: Any) -> None:
    space = Space.of(kind, None, split.train)
    assert space.size == len(space.outer()) > 1
    for point in (space.outer()[0], space.outer()[-1]):
        kind(**point)


@pytest.mark.parametrize("kind", [eq.GFCF, eq.TurboCF, eq.SVDAE, eq.ItemKNN])
def test_small_space_is_judged_as_a_whole(split: Split, kind: Any) -> None:
    found = eq.tune(kind, split)
    assert found.solves == math.prod(map(len, kind.search_space.values()))
    assert isinstance(found.model, kind)
    result = eq.evaluate(found.model, split.valid, bootstrap=0)
    assert result["ndcg@20"] == found.trials["ndcg@20"].max()


@pytest.mark.parametrize("kind", [eq.BSPM, eq.SGFCF])
def test_large_space_is_searched(synthetic: Interactions, kind: Any) -> None:
    pytest.importorskip("optuna")
    # SGFCF ranks only people it was fitted on
    split = eq.split.weak(synthetic, valid=0.2, test=0.2)
    found = eq.tune(kind, split, trials=14)
    again = eq.tune(kind, split, trials=14)
    assert found.solves == 14
    names = list(kind.search_space)
    assert found.trials.select(names).unique().height == 14
    assert again.trials.equals(found.trials)
    for name, listed in kind.search_space.items():
        assert set(found.trials[name]) <= set(listed)


@pytest.mark.parametrize(("kind", "size"), [(eq.SLIS, 27), (eq.SLIT, 36), (eq.SLIST, 108)])
def test_session_models_are_tuned_on_sessions(visits: Split, kind: Any, size: int) -> None:
    assert math.prod(map(len, kind.search_space.values())) == size
    found = eq.tune(kind, visits, metric="mrr@3", objectives=(), trials=6)
    assert found.solves == 6
    result = eq.evaluate(found.model, visits.valid, k=3, bootstrap=0)
    assert result["mrr@3"] == found.best["mrr@3"] == found.trials["mrr@3"].max()


def test_search_of_a_grid_begins_with_the_settings_of_the_model() -> None:
    sampler = GridProposals(
        eq.BSPM.search_space, {"factors": 256, "strength": 0.3, "time": 1.0}, seed=0
    )
    first = sampler.propose([])
    assert first == {"factors": 256, "strength": 0.3, "time": 1.0, "merge": "early"}
    neighbours = sampler.starts[1:]
    assert all(sum(each[name] != first[name] for name in first) == 1 for each in neighbours)


def test_sampler_of_a_grid_never_repeats_and_ends() -> None:
    pytest.importorskip("optuna")
    sampler = GridProposals({"a": (1, 2, 3), "b": ("x", "y")}, {}, seed=1)
    past: list[tuple[dict[str, Any], float]] = []
    while (outer := sampler.propose(past)) is not None:
        assert outer not in [one for one, _ in past]
        past.append((outer, float(len(past) % 3)))
    assert len(past) == 6


def test_companion_is_searched_beside_the_solve(split: Split) -> None:
    model = eq.EASE(normalizer=eq.DAN(), lowpass=eq.LowPass(rank=5))
    found = eq.tune(model, split, trials=2)
    assert found.solves == 2
    assert found.trials.height == 2 * 6 * 4 * 2
    assert found.model.lowpass.rank == 5
    assert found.model.lowpass.strength == found.best["strength"]
    result = eq.evaluate(found.model, split.valid, bootstrap=0)
    assert result["ndcg@20"] == found.best["ndcg@20"]


def test_companion_of_a_grid_equals_separate_fits(split: Split) -> None:
    model = eq.LAE(l2=5.0, dropout=0.2, lowpass=eq.LowPass(rank=4))
    found = eq.tune(model, split, grid={"strength": [0.0, 0.3], "exponent": [0.1, 0.5], "l2": 5.0})
    assert found.solves == 1
    assert found.trials.height == 4
    for row in found.trials.iter_rows(named=True):
        lowpass = eq.LowPass(rank=4, strength=row["strength"], exponent=row["exponent"])
        alone = eq.LAE(l2=5.0, dropout=0.2, lowpass=lowpass).fit(split.train)
        assert eq.evaluate(alone, split.valid, bootstrap=0)["ndcg@20"] == row["ndcg@20"]


def test_a_budget_is_held_against_the_fits_of_the_model_itself() -> None:
    """A solve of this many items would take hours; item neighbourhoods take no time."""

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
    found = eq.tune(eq.ItemKNN, split, grid=grid, budget="5m", objectives=())
    assert (found.solves, found.complete) == (2, True)
    with pytest.raises(SettingError, match="too small: one fit takes about"):
        eq.tune(eq.EASE, split, grid={"l2": [1.0]}, budget="5m", objectives=())


def test_a_budget_that_is_spent_before_the_first_fit_is_refused(split: Split) -> None:
    with pytest.raises(SettingError, match="too small: it was spent before the first fit"):
        eq.tune(eq.ItemKNN, split, budget="0.000001s")


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
    grid = {"factors": [4, 8]}
    found = eq.tune(Recorded, split, grid=grid, dtype="float64", threads=1)
    assert Recorded.seen == [("float64", 1)] * 3  # both points and the last fit
    assert found.model.dtype_ == "float64"


@pytest.mark.parametrize("kind", [eq.GFCF, eq.TurboCF, eq.SVDAE])
def test_filters_are_tuned_in_the_precision_asked_for(split: Split, kind: Any) -> None:
    name, values = next(iter(kind.search_space.items()))
    found = eq.tune(kind, split, grid={name: values[-1]}, dtype="float64")
    assert found.model.dtype_ == "float64"
    result = eq.evaluate(found.model, split.valid, bootstrap=0)
    assert result["ndcg@20"] == found.best["ndcg@20"]


def test_sessions_are_tuned_in_the_precision_asked_for(visits: Split) -> None:
    grid = {"l2": [1.0]}
    found = eq.tune(eq.SLIS, visits, grid=grid, objectives=(), dtype="float64", memory="1GB")
    assert found.model.dtype_ == "float64"


@pytest.mark.parametrize(
    ("model", "options", "name"),
    [
        (eq.ItemKNN, {"dtype": "float64"}, "dtype"),
        (eq.ItemKNN, {"memory": "2GB"}, "memory"),
        (eq.GFCF, {"memory": "2GB"}, "memory"),
        (eq.MultVAE, {"dtype": "float64", "grid": {"epochs": [1]}}, "dtype"),
    ],
)
def test_run_options_a_model_does_not_take_are_refused(
    split: Split, model: Any, options: dict[str, Any], name: str
) -> None:
    with pytest.raises(SettingError, match=f"{model.__name__} is fitted without {name}; leave"):
        eq.tune(model, split, **options)
