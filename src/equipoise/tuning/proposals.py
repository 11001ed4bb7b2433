"""What to try next: a grid walked outwards from a first guess, or Optuna's advice.

`CoordinateSearch` orders a grid so that hopeless branches are left out: every axis is walked
outwards from a first guess, first up, then down, and a direction is left once the best of what
lies behind a value fell twice in a row and is clearly below the best of the axis.
`RangeProposals` and `GridProposals` try a few points around a first guess, then ask Optuna.
`WeightingProposals` first compares what the weights of events may be worth.
"""

from __future__ import annotations

import itertools
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from equipoise.errors import MissingExtraError

FALLS = 2  # steps in a row that got worse, after which a direction is left
PLATEAU = 0.003  # share of the best value: a fall by less says nothing
L2_REACH = 100.0  # how far from the first l2, either way
STEP = 0.05  # of beta and dropout
LARGEST = {"beta": 1.0, "dropout": 0.9}
ATTEMPTS = 20

Point = dict[str, Any]
Values = dict[str, tuple[Any, ...]]  # values of each axis
Past = Sequence[tuple[Point, float]]
Best = tuple[float, dict[str, int]]  # a value, and the place on each axis where it was found


class CoordinateSearch:
    """A grid, walked outwards from a first guess.

    Parameters
    ----------
    values
        The first axis is the outermost. Numbers are walked in their order; an axis that holds
        anything else has no order, and all of it is visited.
    start
        Where to begin on each axis: the nearest value (in ratio where all are positive and they
        span more than a factor of ten). Without it an axis begins in its middle.
    value
        What a finished point is worth; asked for a point after it was yielded.
    """

    def __init__(self, values: Values, start: Point, value: Callable[[Point], float]) -> None:
        self.axes = {name: in_order(listed) for name, listed in values.items()}
        self.names = list(values)
        self.value = value
        self.first = {name: nearest(self.axes[name], start.get(name)) for name in self.names}
        self.skipped = 0  # points that are known never to be visited

    def points(self) -> Generator[Point, None, Best]:
        """Yield the points worth a visit."""
        return self._walk(0, {}, self.first)

    def _walk(
        self, depth: int, fixed: Point, first: dict[str, int]
    ) -> Generator[Point, None, Best]:
        """Walk the axes from `depth` on; return the best value and its places."""
        if depth == len(self.names):
            yield dict(fixed)
            return self.value(fixed), {}
        name = self.names[depth]
        axis, begin = self.axes[name], first[name]
        behind = math.prod(len(self.axes[other]) for other in self.names[depth + 1 :])
        patience = FALLS if is_ordered(axis) else len(axis)

        def visit(place: int, guess: dict[str, int]) -> Generator[Point, None, Best]:
            value, places = yield from self._walk(depth + 1, {**fixed, name: axis[place]}, guess)
            return value, {name: place, **places}

        middle = yield from visit(begin, first)
        best = middle
        for places in (range(begin + 1, len(axis)), range(begin - 1, -1, -1)):
            before, falls = middle, 0
            for passed, place in enumerate(places, start=1):
                found = yield from visit(place, {**first, **before[1]})
                falls = falls + 1 if found[0] < before[0] else 0
                best, before = (found if found[0] > best[0] else best), found
                low = best[0] - PLATEAU * abs(best[0])
                if falls >= patience and found[0] < low:
                    self.skipped += (len(places) - passed) * behind
                    break
        return best


def is_ordered(axis: tuple[Any, ...]) -> bool:
    """Whether the values of an axis are numbers."""
    return all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in axis)


def in_order(axis: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of an axis, numbers sorted."""
    return tuple(sorted(axis)) if is_ordered(axis) else axis


def nearest(axis: tuple[Any, ...], wanted: Any) -> int:
    """Return the place on an axis that is nearest to a value."""
    if wanted in axis:
        return axis.index(wanted)
    if not is_ordered(axis):
        return 0
    if not is_ordered((wanted,)):
        return len(axis) // 2
    by_ratio = axis[0] > 0 and wanted > 0 and axis[-1] > 10 * axis[0]
    scale = math.log if by_ratio else float
    gaps = [abs(scale(each) - scale(wanted)) for each in axis]
    return gaps.index(min(gaps))


class Proposals(ABC):
    """Proposes settings: with the same seed the same for the same past, also after a kill."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @property
    @abstractmethod
    def starts(self) -> list[Point]:
        """The first proposals, before there is anything to learn from."""

    @abstractmethod
    def advice(self, past: Past, seed: int) -> Point:
        """Return what Optuna proposes."""

    @property
    def n_starts(self) -> int:
        """How many first proposals there are."""
        return len(self.starts)

    def propose(self, past: Past, *, starts_only: bool = False) -> Point | None:
        """Return settings that were not tried, or None where nothing new comes to mind.

        With `starts_only` Optuna is not asked.
        """
        tried = [outer for outer, _ in past]
        for start in self.starts:
            if start not in tried:
                return start
        if starts_only:
            return None
        for attempt in range(ATTEMPTS):
            proposal = self.advice(past, self.seed + len(past) + 1_000_003 * attempt)
            if proposal not in tried:
                return proposal
        return self.rest(past)

    def rest(self, past: Past) -> Point | None:
        """Return something new where Optuna only repeats itself, if there is anything."""
        return None


class RangeProposals(Proposals):
    """Proposes beta (where there is one), l2 and dropout in ranges around a first guess.

    Settings whose names are `fixed` keep the value of the first guess.
    """

    def __init__(self, first: Point, seed: int, fixed: Collection[str] = ()) -> None:
        super().__init__(seed)
        self.free = [name for name in first if name not in fixed]
        self.first = {**first, **{n: _stepped(first[n], n) for n in LARGEST if n in self.free}}
        if "l2" in self.free:
            self.first["l2"] = max(first["l2"], 1e-3)
        self.bounds = self.first["l2"] / L2_REACH, self.first["l2"] * L2_REACH

    @property
    def starts(self) -> list[Point]:
        """The automatic settings, and a step away in each direction."""
        first = self.first
        out = [first]
        if "l2" in self.free:
            out += [{**first, "l2": first["l2"] * 5}, {**first, "l2": first["l2"] / 5}]
        for name in (name for name in LARGEST if name in self.free):
            steps = (_stepped(first[name] + move, name) for move in (0.25, -0.25))
            out += [{**first, name: value} for value in steps]
        return [each for place, each in enumerate(out) if each not in out[:place]]

    def propose(self, past: Past, *, starts_only: bool = False) -> Point | None:
        """Return settings that were not tried; where all are fixed there is one proposal."""
        return super().propose(past, starts_only=starts_only or not self.free)

    def advice(self, past: Past, seed: int) -> Point:
        """Return what Optuna proposes."""
        kinds = import_optuna().distributions
        ranges = {}
        if "l2" in self.free:
            ranges["l2"] = kinds.FloatDistribution(*self.bounds, log=True)
        for name, high in LARGEST.items():
            if name in self.free:
                ranges[name] = kinds.FloatDistribution(0.0, high, step=STEP)
        known = [
            ({name: outer[name] for name in ranges}, value)
            for outer, value in past
            if self._within(outer)
        ]
        params = _asked(ranges, known, seed, len(self.starts))
        return self.first | {name: _stepped(params[name], name) for name in self.free}

    def _within(self, outer: Point) -> bool:
        """Whether settings could have been proposed; those of a grid need not."""
        low, high = self.bounds
        stepped = all(
            outer[name] == _stepped(outer[name], name) for name in LARGEST if name in self.free
        )
        return ("l2" not in self.free or low <= outer["l2"] <= high) and stepped


class WeightingProposals:
    """Tries each weighting of the events at its automatic settings, then searches with the best.

    Parameters
    ----------
    searches
        What is proposed for each value of `transform` of `Signals`.
    """

    def __init__(self, searches: Mapping[str, RangeProposals]) -> None:
        self.searches = dict(searches)

    @property
    def starts(self) -> list[Point]:
        """The automatic settings of each weighting."""
        return [{"transform": name, **each.first} for name, each in self.searches.items()]

    @property
    def n_starts(self) -> int:
        """How many first proposals there are, those of the best weighting included."""
        return len(self.searches) + max(each.n_starts for each in self.searches.values()) - 1

    def propose(self, past: Past, *, starts_only: bool = False) -> Point | None:
        """Return settings that were not tried, or None where nothing new comes to mind."""
        values = {_key(outer): value for outer, value in past}
        for start in self.starts:
            if _key(start) not in values:
                return start
        best = max(self.starts, key=lambda start: values[_key(start)])["transform"]
        own = [
            ({name: each for name, each in outer.items() if name != "transform"}, value)
            for outer, value in past
            if outer["transform"] == best
        ]
        found = self.searches[best].propose(own, starts_only=starts_only)
        return None if found is None else {"transform": best, **found}


def _key(outer: Point) -> tuple[Any, ...]:
    return tuple(sorted(outer.items()))


class GridProposals(Proposals):
    """Proposes points of a grid that has too many to try them all, nearest to a guess first."""

    def __init__(self, values: Values, first: Point, seed: int) -> None:
        super().__init__(seed)
        self.axes = {name: in_order(listed) for name, listed in values.items()}
        self.first = {name: nearest(axis, first.get(name)) for name, axis in self.axes.items()}

    @property
    def starts(self) -> list[Point]:
        """The point nearest to the first guess, and its neighbours."""
        places = [self.first]
        for name, axis in self.axes.items():
            steps = (self.first[name] + 1, self.first[name] - 1)
            places += [{**self.first, name: step} for step in steps if 0 <= step < len(axis)]
        return [self._point(each) for each in places]

    def advice(self, past: Past, seed: int) -> Point:
        """Return what Optuna proposes."""
        kinds = import_optuna().distributions
        ranges = {
            name: kinds.IntDistribution(0, len(axis) - 1)
            if is_ordered(axis)
            else kinds.CategoricalDistribution(range(len(axis)))
            for name, axis in self.axes.items()
        }
        known = [
            ({name: axis.index(outer[name]) for name, axis in self.axes.items()}, value)
            for outer, value in past
            if all(outer[name] in axis for name, axis in self.axes.items())
        ]
        return self._point(_asked(ranges, known, seed, len(self.starts)))

    def rest(self, past: Past) -> Point | None:
        """Return the point that was not tried and has the fewest steps to the best one."""
        tried = [outer for outer, _ in past]
        best = max(past, key=lambda each: each[1])[0]
        near = {name: nearest(axis, best.get(name)) for name, axis in self.axes.items()}
        every = itertools.product(*(range(len(axis)) for axis in self.axes.values()))
        places = (dict(zip(self.axes, each, strict=True)) for each in every)
        left = [each for each in places if self._point(each) not in tried]

        def steps(point: dict[str, int]) -> int:
            return sum(abs(point[name] - near[name]) for name in near)

        return self._point(min(left, key=steps)) if left else None

    def _point(self, places: dict[str, int]) -> Point:
        return {name: axis[places[name]] for name, axis in self.axes.items()}


def _asked(ranges: dict[str, Any], past: Past, seed: int, startup: int) -> dict[str, Any]:
    """Return what the TPE sampler advises after this past, and nothing but this past."""
    optuna = import_optuna()
    least = min((value for _, value in past if math.isfinite(value)), default=0.0)
    past = [(params, max(value, least)) for params, value in past]  # some solves have failed
    with _quiet(optuna):
        # a study of its own for every proposal: there is no state that a kill could lose
        advisor = optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=startup, multivariate=True
        )
        study = optuna.create_study(direction="maximize", sampler=advisor)
        for params, value in past:
            study.add_trial(
                optuna.trial.create_trial(params=params, distributions=ranges, value=value)
            )
        return dict(study.ask(ranges).params)


def import_optuna() -> Any:
    """Return the module optuna, or say how to get it."""
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError(
            "a search needs optuna; install it with `pip install 'equipoise[tune]'`, or pass grid="
        ) from error
    return optuna


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Keep optuna from logging every study; what the user set comes back."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def _stepped(value: float, name: str) -> float:
    """Return a value of the ranges: beta and dropout in steps, l2 with four digits."""
    if name not in LARGEST:
        return float(f"{value:.4g}")
    return round(min(max(round(value / STEP) * STEP, 0.0), LARGEST[name]), 10)
