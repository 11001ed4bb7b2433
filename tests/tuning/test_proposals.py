"""Walks over grids that skip hopeless directions, and proposals of new settings."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import equipoise as eq
from equipoise.data.split import Split
from equipoise.tuning import SearchProgress
from equipoise.tuning.space import GridProposals, RangeProposals, nearest_place

GRID = {
    "alpha": [0.0, 0.3],
    "beta": [0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
    "dropout": [0.0, 0.2, 0.4, 0.6, 0.8],
    "l2": [0.1, 1.0, 10.0, 100.0, 1e3, 1e4],
}


def keys(points: Any) -> list[tuple[Any, ...]]:
    return [tuple(point.values()) for point in points]


@pytest.mark.parametrize("top", [(0, 0), (3, 7), (9, 9), (5, 0)])
@pytest.mark.parametrize("start", [(0, 0), (9, 9), (4, 6)])
def test_hill_is_climbed_from_anywhere(top: tuple[int, int], start: tuple[int, int]) -> None:
    axes = {"a": tuple(range(10)), "b": tuple(range(10))}
    grid = GridProposals(axes, dict(zip(axes, start, strict=True)))
    visited = keys(
        grid.walk(lambda point: -((point["a"] - top[0]) ** 2) - (point["b"] - top[1]) ** 2)
    )
    assert top in visited
    assert len(set(visited)) == len(visited)
    assert len(visited) + grid.n_skipped == 100


def test_a_direction_is_abandoned_after_two_drops() -> None:
    grid = GridProposals({"a": (6, 5, 4, 3, 2, 1)}, {"a": 4})
    visited = keys(grid.walk(lambda point: -abs(point["a"] - 4)))
    assert visited == [(4,), (5,), (6,), (3,), (2,)]
    assert grid.n_skipped == 1


def test_one_drop_does_not_stop_the_walk() -> None:
    values = dict(enumerate([5, 4, 6, 3, 7, 1, 0, 9]))
    grid = GridProposals({"a": tuple(values)}, {"a": 0})
    assert keys(grid.walk(lambda point: values[point["a"]])) == [(n,) for n in range(7)]


@pytest.mark.parametrize("shift", [0.0, -20.0])  # metrics to minimise are negated
def test_plateau_is_crossed(shift: float) -> None:
    values = [10.0, 9.999, 9.998, 9.997, 12.0, 9.0, 8.0, 99.0]
    grid = GridProposals({"a": tuple(range(8))}, {"a": 0})
    assert keys(grid.walk(lambda point: values[point["a"]] + shift)) == [(n,) for n in range(7)]


def test_neighbours_begin_where_the_last_line_was_best() -> None:
    # the best b moves with a: a line of a begins at the best b of the line before
    axes = {"a": tuple(range(8)), "b": tuple(range(30))}
    grid = GridProposals(axes, {"a": 0, "b": 0})
    visited = keys(grid.walk(lambda point: point["a"] - abs(point["b"] - 3 * point["a"])))
    assert (7, 21) in visited
    assert len(visited) < 80


def test_values_without_an_order_are_all_visited() -> None:
    worth = {"x": 3, "y": 2, "z": 1, "w": 0}
    grid = GridProposals({"a": ("w", "z", "y", "x")}, {"a": "y"})
    visited = keys(grid.walk(lambda point: worth[point["a"]]))
    assert sorted(visited) == [("w",), ("x",), ("y",), ("z",)]
    assert grid.n_skipped == 0


@pytest.mark.parametrize(
    ("axis", "target", "place"),
    [
        ((1.0, 10.0, 100.0), 40.0, 2),  # in ratio: 40 is nearer to 100 than to 10
        ((0.1, 0.3, 0.5), 0.39, 1),
        ((0.0, 10.0, 100.0), 40.0, 1),
        ((1, 2, 3), None, 1),
        (("early", "late"), "late", 1),
        (("early", "late"), None, 0),
    ],
)
def test_walk_begins_at_the_nearest_value(axis: Any, target: Any, place: int) -> None:
    assert nearest_place(axis, target) == place


def test_search_follows_the_walk_and_is_exact_where_it_went(split: Split) -> None:
    complete = eq.tune(eq.EASE, split, grid=GRID)
    short = eq.tune(eq.EASE, split, grid=GRID, early_stop=True)
    names = ("beta", "dropout", "l2")
    best: dict[Any, float] = {}
    for row in complete.trials.iter_rows(named=True):
        key = tuple(row[name] for name in names)
        best[key] = max(best.get(key, 0.0), row["ndcg@20"])
    auto = eq.EDLAE(normalizer=eq.DAN()).fit(split.train)
    start = {"beta": auto.normalizer_.beta, "dropout": auto.dropout_, "l2": auto.l2_}
    axes = {name: tuple(GRID[name]) for name in names}
    grid = GridProposals(axes, start)
    expected = keys(grid.walk(lambda point: best[tuple(point.values())]))
    solved = short.trials.unique("solve", maintain_order=True)
    assert list(solved.select(names).iter_rows()) == expected
    assert short.solves == len(expected) < complete.solves
    assert short.complete
    columns = ["alpha", *names, "ndcg@20"]
    assert short.trials.join(complete.trials, on=columns).height == short.trials.height


def test_an_interrupted_walk_continues_identically(split: Split, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(progress: SearchProgress) -> None:
        if progress.done == 9:
            raise Stop

    storage = tmp_path / "search.jsonl"
    options: dict[str, Any] = {"grid": GRID, "early_stop": True}
    with pytest.raises(Stop):
        eq.tune(eq.EASE, split, **options, storage=storage, progress=stop)
    resumed = eq.tune(eq.EASE, split, **options, storage=storage)
    uninterrupted = eq.tune(eq.EASE, split, **options)
    assert (resumed.resumed, resumed.solves) == (9, uninterrupted.solves - 9)
    assert resumed.trials.equals(uninterrupted.trials)
    lines = [json.loads(line) for line in storage.read_text().splitlines()]
    assert (
        len({json.dumps(line["outer"]) for line in lines if "outer" in line})
        == uninterrupted.solves
    )


def test_models_that_are_fitted_apart_are_walked_too(split: Split) -> None:
    grid = {"neighbours": [1, 2, 5, 10, 20, 40, 79], "shrink": [0.0, 1.0, 10.0, 100.0, 1e3]}
    complete = eq.tune(eq.ItemKNN, split, grid=grid)
    short = eq.tune(eq.ItemKNN, split, grid=grid, early_stop=True)
    assert short.solves < complete.solves == len(list(itertools.product(*grid.values())))
    columns = [*grid, "ndcg@20"]
    assert short.trials.join(complete.trials, on=columns).height == short.trials.height


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


def test_search_of_a_grid_begins_with_the_settings_of_the_model() -> None:
    sampler = GridProposals(
        eq.BSPM.search_space, {"n_factors": 256, "strength": 0.3, "time": 1.0}, seed=0
    )
    first = sampler.propose([])
    assert first == {"n_factors": 256, "strength": 0.3, "time": 1.0, "merge": "early"}
    neighbours = sampler.starts[1:]
    assert all(
        sum(neighbour[name] != first[name] for name in first) == 1 for neighbour in neighbours
    )


def test_sampler_of_a_grid_never_repeats_and_ends() -> None:
    pytest.importorskip("optuna")
    sampler = GridProposals({"a": (1, 2, 3), "b": ("x", "y")}, {}, seed=1)
    past: list[tuple[dict[str, Any], float]] = []
    while (outer := sampler.propose(past)) is not None:
        assert outer not in [one for one, _ in past]
        past.append((outer, float(len(past) % 3)))
    assert len(past) == 6
