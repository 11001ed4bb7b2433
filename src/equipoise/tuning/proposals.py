"""Decide which settings a search tries next.

`GridProposals` covers a grid: `walk` visits it outwards from a first guess and skips directions
whose score keeps dropping; `propose` picks single points of a grid that is too large to try.
`RangeProposals` searches continuous ranges, `WeightingProposals` compares weightings of the events
first. All begin near a first guess and then ask Optuna.
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

FALLS = 2  # steps in a row with a lower score, after which a direction is abandoned
PLATEAU = 0.003  # share of the best score; a smaller drop does not count
L2_REACH = 100.0  # largest factor between the first l2 and a proposed one
STEP = 0.05  # of beta and dropout
LARGEST = {"beta": 1.0, "dropout": 0.9}
ATTEMPTS = 20  # questions to Optuna before a search gives up on new settings

Point = dict[str, Any]
Values = dict[str, tuple[Any, ...]]  # values of each axis
Places = dict[str, int]  # position on each axis
Past = Sequence[tuple[Point, float]]  # settings that were tried, and their scores
Best = tuple[float, Places]


def is_ordered(axis: tuple[Any, ...]) -> bool:
    """Whether the values of an axis are numbers."""
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in axis)


def in_order(axis: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of an axis, numbers sorted."""
    return tuple(sorted(axis)) if is_ordered(axis) else axis


def nearest(axis: tuple[Any, ...], target: Any) -> int:
    """Return the position of the axis value nearest to a target.

    Distances are ratios where all values are positive and span more than a factor of ten. Without
    a numeric target an axis of numbers gives its middle, any other its first value.
    """
    if target in axis:
        return axis.index(target)
    if not is_ordered(axis):
        return 0
    if not is_ordered((target,)):
        return len(axis) // 2
    by_ratio = axis[0] > 0 and target > 0 and axis[-1] > 10 * axis[0]
    scale = math.log if by_ratio else float
    gaps = [abs(scale(value) - scale(target)) for value in axis]
    return gaps.index(min(gaps))


class Proposals(ABC):
    """Proposes settings. The same seed and past give the same proposal, also after a restart."""

    free: Sequence[str]  # names of the settings that are searched

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @property
    @abstractmethod
    def starts(self) -> list[Point]:
        """The first proposals, which do not depend on any score."""

    @abstractmethod
    def advice(self, past: Past, seed: int) -> Point:
        """Return Optuna's proposal."""

    @property
    def n_starts(self) -> int:
        """Number of first proposals."""
        return len(self.starts)

    def propose(self, past: Past, *, starts_only: bool = False) -> Point | None:
        """Return untried settings, or None if there are none; `starts_only` never asks Optuna."""
        tried = [outer for outer, _ in past]
        for start in self.starts:
            if start not in tried:
                return start
        if starts_only or not self.free:
            return None
        for attempt in range(ATTEMPTS):
            proposal = self.advice(past, self.seed + len(past) + 1_000_003 * attempt)
            if proposal not in tried:
                return proposal
        return self.fallback(past)

    def fallback(self, past: Past) -> Point | None:
        """Return untried settings when Optuna only repeats itself, or None."""
        return None


class GridProposals(Proposals):
    """Points of a grid, nearest to a first guess first.

    `values` has the values of each axis, the outermost axis first; `start` is the first guess.
    """

    def __init__(self, values: Values, start: Point, seed: int = 0) -> None:
        super().__init__(seed)
        self.axes = {name: in_order(axis) for name, axis in values.items()}
        self.free = list(values)
        self.first = {name: nearest(axis, start.get(name)) for name, axis in self.axes.items()}
        self.n_skipped = 0  # points that `walk` will certainly not visit

    def walk(self, score: Callable[[Point], float]) -> Generator[Point, None, Best]:
        """Yield points outwards from the first guess, axis by axis, first up, then down.

        A direction is abandoned once the best score behind a value dropped twice in a row and is
        clearly below the best of the axis. Axes without an order are visited completely. `score`
        is asked for a point after it was yielded.
        """
        return self._walk(score, {}, self.first)

    def _walk(
        self, score: Callable[[Point], float], fixed: Point, first: Places
    ) -> Generator[Point, None, Best]:
        """Walk the axes that are not fixed; return the best score and its places."""
        if len(fixed) == len(self.axes):
            yield dict(fixed)
            return score(fixed), {}
        name, *inner = self.free[len(fixed) :]
        axis, begin = self.axes[name], first[name]
        n_inner = math.prod(len(self.axes[other]) for other in inner)
        patience = FALLS if is_ordered(axis) else len(axis)

        def visit(place: int, guess: Places) -> Generator[Point, None, Best]:
            value, places = yield from self._walk(score, {**fixed, name: axis[place]}, guess)
            return value, {name: place, **places}

        middle = yield from visit(begin, first)
        best = middle
        for direction in (range(begin + 1, len(axis)), range(begin - 1, -1, -1)):
            before, falls = middle, 0
            for n_visited, place in enumerate(direction, start=1):
                current = yield from visit(place, {**first, **before[1]})
                falls = falls + 1 if current[0] < before[0] else 0
                best, before = (current if current[0] > best[0] else best), current
                if falls >= patience and current[0] < best[0] - PLATEAU * abs(best[0]):
                    self.n_skipped += (len(direction) - n_visited) * n_inner
                    break
        return best

    @property
    def starts(self) -> list[Point]:
        """The point nearest to the first guess, and its neighbours."""
        places = [self.first]
        for name, axis in self.axes.items():
            steps = (self.first[name] + 1, self.first[name] - 1)
            places += [{**self.first, name: step} for step in steps if 0 <= step < len(axis)]
        return [self._point(place) for place in places]

    def advice(self, past: Past, seed: int) -> Point:
        """Return Optuna's proposal."""
        kinds = import_optuna().distributions
        ranges = {
            name: kinds.IntDistribution(0, len(axis) - 1)
            if is_ordered(axis)
            else kinds.CategoricalDistribution(range(len(axis)))
            for name, axis in self.axes.items()
        }
        known = [
            ({name: axis.index(outer[name]) for name, axis in self.axes.items()}, score)
            for outer, score in past
            if all(outer[name] in axis for name, axis in self.axes.items())
        ]
        return self._point(_ask_optuna(ranges, known, seed, self.n_starts))

    def fallback(self, past: Past) -> Point | None:
        """Return the untried point with the fewest steps to the best one."""
        tried = [outer for outer, _ in past]
        best = max(past, key=lambda trial: trial[1])[0]
        centre = [nearest(axis, best.get(name)) for name, axis in self.axes.items()]
        every = itertools.product(*(range(len(axis)) for axis in self.axes.values()))

        def n_steps(places: tuple[int, ...]) -> int:
            return sum(abs(place - middle) for place, middle in zip(places, centre, strict=True))

        points = (
            self._point(dict(zip(self.axes, places, strict=True)))
            for places in sorted(every, key=n_steps)
        )
        return next((point for point in points if point not in tried), None)

    def _point(self, places: Places) -> Point:
        return {name: axis[places[name]] for name, axis in self.axes.items()}


class RangeProposals(Proposals):
    """Proposes beta (if the model has one), l2 and dropout in ranges around a first guess.

    Settings in `fixed` keep the value of the first guess.
    """

    def __init__(self, first: Point, seed: int, fixed: Collection[str] = ()) -> None:
        super().__init__(seed)
        self.free = [name for name in first if name not in fixed]
        self._stepped = [name for name in LARGEST if name in self.free]
        self.first = {**first, **{name: _rounded(first[name], name) for name in self._stepped}}
        if "l2" in self.free:
            self.first["l2"] = max(first["l2"], 1e-3)
        self.bounds = self.first["l2"] / L2_REACH, self.first["l2"] * L2_REACH

    @property
    def starts(self) -> list[Point]:
        """The automatic settings, and a step away in each direction."""
        first = self.first
        points = [first]
        if "l2" in self.free:
            points += [{**first, "l2": first["l2"] * 5}, {**first, "l2": first["l2"] / 5}]
        for name in self._stepped:
            steps = (_rounded(first[name] + move, name) for move in (0.25, -0.25))
            points += [{**first, name: value} for value in steps]
        return [point for place, point in enumerate(points) if point not in points[:place]]

    def advice(self, past: Past, seed: int) -> Point:
        """Return Optuna's proposal."""
        floats = import_optuna().distributions.FloatDistribution
        ranges = {"l2": floats(*self.bounds, log=True)} if "l2" in self.free else {}
        ranges |= {name: floats(0.0, LARGEST[name], step=STEP) for name in self._stepped}
        known = [
            ({name: outer[name] for name in ranges}, score)
            for outer, score in past
            if self._is_within(outer)
        ]
        params = _ask_optuna(ranges, known, seed, self.n_starts)
        return self.first | {name: _rounded(params[name], name) for name in self.free}

    def _is_within(self, outer: Point) -> bool:
        """Whether settings lie in the ranges; settings from a grid may not."""
        low, high = self.bounds
        is_stepped = all(outer[name] == _rounded(outer[name], name) for name in self._stepped)
        return is_stepped and ("l2" not in self.free or low <= outer["l2"] <= high)


class WeightingProposals:
    """Tries each weighting of the events at its automatic settings, then searches with the best.

    `searches` has the proposals for each value of `Signals.transform`.
    """

    def __init__(self, searches: Mapping[str, RangeProposals]) -> None:
        self.searches = dict(searches)
        self.free = next(iter(searches.values())).free

    @property
    def starts(self) -> list[Point]:
        """The automatic settings of each weighting."""
        return [{"transform": name, **search.first} for name, search in self.searches.items()]

    @property
    def n_starts(self) -> int:
        """Number of first proposals, including those of the best weighting."""
        return len(self.searches) + max(search.n_starts for search in self.searches.values()) - 1

    def propose(self, past: Past, *, starts_only: bool = False) -> Point | None:
        """Return untried settings, or None if there are none; `starts_only` never asks Optuna."""
        scores = {tuple(sorted(outer.items())): score for outer, score in past}
        start_scores = {}
        for start in self.starts:
            key = tuple(sorted(start.items()))
            if key not in scores:
                return start
            start_scores[start["transform"]] = scores[key]
        best = max(start_scores, key=start_scores.__getitem__)
        past_of_best = [
            ({name: value for name, value in outer.items() if name != "transform"}, score)
            for outer, score in past
            if outer["transform"] == best
        ]
        proposal = self.searches[best].propose(past_of_best, starts_only=starts_only)
        return None if proposal is None else {"transform": best, **proposal}


def _ask_optuna(ranges: dict[str, Any], past: Past, seed: int, n_startup: int) -> dict[str, Any]:
    """Return the proposal of a TPE sampler that knows this past and nothing else."""
    optuna = import_optuna()
    lowest = min((score for _, score in past if math.isfinite(score)), default=0.0)
    with _quiet(optuna):
        # a new study for every proposal: there is no state that an interruption could lose
        sampler = optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=n_startup, multivariate=True
        )
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for params, score in past:
            value = max(score, lowest)  # failed solves have minus infinity
            study.add_trial(
                optuna.trial.create_trial(params=params, distributions=ranges, value=value)
            )
        return dict(study.ask(ranges).params)


def import_optuna() -> Any:
    """Return the module optuna, or raise an error that says how to install it."""
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError(
            "a search needs optuna; install it with `pip install 'equipoise[tune]'`, or pass grid="
        ) from error
    return optuna


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Silence Optuna's log line per study; restore the user's verbosity afterwards."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def _rounded(value: float, name: str) -> float:
    """Round beta and dropout to steps within their range, l2 to four digits."""
    if name not in LARGEST:
        return float(f"{value:.4g}")
    return round(min(max(round(value / STEP) * STEP, 0.0), LARGEST[name]), 10)
