"""Search space, and which of its settings a search tries next.

Models say which settings need a solve and which share one (`Recommender._solve_settings`). A
linear autoencoder needs a solve for each beta, l2 and dropout; family, alpha, gamma, diag_bound
and the low-pass companion share it. A session regression shares a fit between values of alpha and
decay_inference. Any other model is fitted anew for every point.

`GridProposals` covers a grid: `walk` visits it outwards from a first guess and skips directions
whose score keeps dropping; `propose` picks single points of a grid that is too large to try.
`RangeProposals` searches continuous ranges, `WeightingProposals` compares weightings of the events
first. All begin near a first guess and then ask Optuna.
"""

from __future__ import annotations

import itertools
import json
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from equipoise.data.interactions import Interactions
from equipoise.data.signals import SETTINGS, Signals
from equipoise.errors import MissingExtraError, SettingError
from equipoise.evaluation.metrics import nearest
from equipoise.models import Recommender
from equipoise.models.saving import model_classes
from equipoise.models.trend import Trend

TRANSFORMS = ("binary", "log1p", "sum")  # weightings that are compared
# The ranges of the paper: alpha and beta in steps of 0.1, 25 penalties.
PAPER = {
    "alpha": tuple(step / 10 for step in range(6)),
    "beta": tuple(step / 10 for step in range(11)),
    "l2": (5.0, 20.0, 50.0, 100.0, 300.0),
    "dropout": (0.1, 0.3, 0.5, 0.6, 0.7),
}
FALLS = 2  # steps in a row with a lower score, after which a direction is abandoned
PLATEAU = 0.003  # share of the best score; a smaller drop does not count
L2_REACH = 100.0  # largest factor between the first l2 and a proposed one
STEP = 0.05  # of beta and dropout
TIME_SETTINGS = ("decay", "history_decay", "trend")  # chosen where the data have times
EVENT_WEIGHTS = "event_weights"  # in a point, the name of weights for the types of events
LARGEST_WEIGHT = 10.0  # of a rare type of event, relative to the most frequent one
STEPPED = ("l2", "dropout", "beta")  # in the order of a search in steps
DECAY_FLOOR = 0.05  # smallest factor of an old event in a search over decays
LARGEST = {"beta": 1.0, "dropout": 0.9}
ATTEMPTS = 20  # questions to Optuna before a search gives up on new settings

Point = dict[str, Any]
Values = dict[str, tuple[Any, ...]]  # values of each axis
Places = dict[str, int]  # position on each axis
Past = Sequence[tuple[Point, float]]  # settings that were tried, and their scores
Best = tuple[float, Places]


def key_of(outer: Point) -> str:
    """Return a key for the settings of a solve; 10 and 10.0 are the same setting."""
    same = {name: float(value) if type(value) is int else value for name, value in outer.items()}
    return json.dumps(same, sort_keys=True)


@dataclass(frozen=True, eq=False)
class Space:
    """Models and the values of their settings to try."""

    models: list[Recommender]  # prototypes, which share their solves
    values: Values  # the grid; other settings stay as the prototypes have them
    origin: Recommender  # the first prototype, "auto" settings included
    in_ranges: bool  # whether solve settings are searched in ranges instead of on the grid
    fixed: tuple[str, ...] = ()  # names of settings that are not searched
    transforms: tuple[str, ...] = ()  # values of `Signals.transform` to compare first
    half_lives: tuple[str, ...] = ()  # values of `Signals.decay` to try, where time is searched
    event_weights: Mapping[str, Any] = field(default_factory=dict)  # of `Signals.weights`, by name
    time_settings: tuple[str, ...] = ()  # those of `TIME_SETTINGS` that are searched

    @classmethod
    def of(
        cls,
        requested: Any,
        grid: Any,
        train: Interactions,
        fixed: Sequence[str] = (),
        half_lives: Sequence[str] = (),
    ) -> Space:
        """Check the models, the grid and the fixed settings of `tune`.

        With `half_lives` the decay of the events, that of the histories and the trend are
        searched too, except for those that the models set or that are fixed.
        """
        listed = list(requested) if isinstance(requested, (list, tuple)) else [requested]
        if not listed:
            raise SettingError("tune needs a model, such as eq.EASE")
        models = [_prototype(model) for model in listed]
        if isinstance(grid, Mapping) and set(grid) & set(SETTINGS):
            # a model without signals starts from neutral ones
            models = [
                model if model.signals is not None else model._vary({"signals": Signals()})
                for model in models
            ]
        transforms: tuple[str, ...] = ()
        if grid is None and "transform" not in fixed and can_compare_weightings(models, train):
            transforms = TRANSFORMS
            models = [model._vary({"signals": Signals()}) for model in models]
        if grid is not None or not _can_search_time(models):
            half_lives = ()
        time_settings: list[str] = []
        event_weights: dict[str, Any] = {}
        if half_lives:
            time_settings = _searched_time_settings(models[0], fixed)
            if EVENT_WEIGHTS not in fixed:
                event_weights = _event_weights(models[0], train)
            models = [_with_time(model, train, time_settings) for model in models]
        searches_dropout = "dropout" in grid if isinstance(grid, Mapping) else True
        if searches_dropout and "dropout" not in fixed:
            models = [_with_searched_dropout(model) for model in models]
        first = models[0]
        names = list(dict.fromkeys(name for model in models for name in model._tunable()))
        if not all(model._in_ranges for model in models) and len(models) > 1:
            raise SettingError(
                "only linear autoencoders can be tuned several at a time; pass one model"
            )
        if grid is None and not first.search_space:
            raise SettingError(
                f"tuning {type(first).__name__} needs a grid over its settings, which are "
                f"{', '.join(names) or 'none'}"
            )
        _check_fixed(fixed, grid, names)
        if grid is not None:
            values = _checked_grid(grid, names)
        else:
            free = [name for name in names if name not in fixed]
            values = {name: axis for name, axis in first.search_space.items() if name in free}
        if not first._solve_settings:
            return cls(models, values, first, in_ranges=False, fixed=tuple(fixed))
        resolved = _resolve_normalizers(models, values, train)
        if grid is not None:
            _check_penalties(resolved, values, train)
        return cls(
            resolved,
            values,
            first,
            first._in_ranges and grid is None,
            tuple(fixed),
            transforms,
            tuple(half_lives),
            event_weights,
            tuple(time_settings),
        )

    @property
    def axes(self) -> Values:
        """Values of each axis that needs a solve; the outermost axis changes the Gram matrix."""
        names = self.models[0]._solve_settings or self.values
        return {name: self.values[name] for name in names if name in self.values}

    @property
    def size(self) -> int:
        """Number of solves of the grid."""
        return math.prod(map(len, self.axes.values()))

    def _start(self, train: Interactions, model: Recommender | None = None) -> Point:
        """Return the settings of the solve that a search begins with, "auto" as numbers."""
        settings = (model or self.origin)._search_start(train)
        return {
            name: value
            for name, value in settings.items()
            if name in self.axes or (self.in_ranges and name in STEPPED)
        }

    def grid(self, train: Interactions, seed: int = 0) -> GridProposals:
        """Return the grid of solves, around the settings that a search begins with."""
        return GridProposals(self.axes, self._start(train), seed)

    def proposals(
        self, train: Interactions, seed: int
    ) -> RangeProposals | GridProposals | WeightingProposals | StepProposals:
        """Return the object that proposes settings of solves."""
        if not self.in_ranges:
            return self.grid(train, seed)
        if self.half_lives:
            signals = self.origin.signals
            start = {"decay": signals and signals.decay, **self._start(train)}
            if self.event_weights:
                start = {EVENT_WEIGHTS: next(iter(self.event_weights)), **start}
            if self.transforms:
                start = {"transform": self.transforms[0], **start}
            longest_first = tuple(reversed(self.half_lives))
            decays = longest_first if "decay" in self.time_settings else ()
            axes = {
                "transform": self.transforms,
                EVENT_WEIGHTS: tuple(self.event_weights),
                "decay": decays,
            }
            return StepProposals(
                start, {name: axis for name, axis in axes.items() if axis}, seed, self.fixed
            )
        if not self.transforms:
            return RangeProposals(self._start(train), seed, self.fixed)
        searches = {}
        for transform in self.transforms:
            start = self._start(train, self.origin._vary({"transform": transform}))
            searches[transform] = RangeProposals(start, seed, self.fixed)
        return WeightingProposals(searches)

    @property
    def solve_names(self) -> list[str]:
        """Names of the settings that a solve of this search depends on."""
        if not self.in_ranges:
            return list(self.axes)
        free = [name for name in self.models[0]._solve_settings if name not in SETTINGS]
        names = [name for name in free if name in self.models[0]._tunable()]
        if self.half_lives:
            names = ["decay", *names]
        if self.event_weights:
            names = [EVENT_WEIGHTS, *names]
        return ["transform", *names] if self.transforms else names

    def outer(self) -> list[Point]:
        """Return the settings of every solve of the grid, the last axis running fastest."""
        return _product(self.axes)

    def variants(self, outer: Point) -> list[tuple[int, Recommender]]:
        """Return every unfitted model that one solve serves, with the number of its prototype."""
        out = []
        for number, prototype in enumerate(self.models):
            inner = {*prototype._tunable()} & self.values.keys() - self.axes.keys()
            order = dict.fromkeys([*prototype.search_space, *self.values])
            axes = {name: self.values[name] for name in order if name in inner}
            points = [{**outer, **point} for point in _product(axes)]
            out += [(number, self._varied(prototype, point)) for point in points]
        return out

    def named(self, outer: Point) -> Point:
        """Return what a point has under a name of the search instead of a setting's."""
        return {EVENT_WEIGHTS: outer[EVENT_WEIGHTS]} if self.event_weights else {}

    def _varied(self, prototype: Recommender, point: Point) -> Recommender:
        """Return a prototype with the settings of a point, and its weights of types of events."""
        if not self.event_weights:
            return prototype._vary(point)
        settings = {name: value for name, value in point.items() if name != EVENT_WEIGHTS}
        model = prototype._vary(settings)
        signals = model.signals or Signals()
        weights = self.event_weights[point[EVENT_WEIGHTS]]
        return model._vary({"signals": replace(signals, weights=weights)})

    def model(self, point: Point) -> Recommender:
        """Return the unfitted model with the settings of a point."""
        prototype = self.models[point["prototype"]]
        names = prototype._tunable() if prototype._in_ranges else self.values
        if self.event_weights:
            names = [*names, EVENT_WEIGHTS]
        return self._varied(prototype, {name: point[name] for name in names})

    def identity(self) -> dict[str, Any]:
        """Return what a storage file must agree on: the space and all fixed settings.

        It does not depend on the order of a grid.
        """
        values: dict[str, Any] = {}
        if self.in_ranges:
            free = [name for name in self.solve_names if name not in (*self.fixed, "transform")]
            values = dict.fromkeys(free, "range")
        values |= {"transform": list(self.transforms)} if self.transforms else {}
        values |= {name: list(in_order(axis)) for name, axis in self.values.items()}
        values |= {EVENT_WEIGHTS: dict(self.event_weights)} if self.event_weights else {}
        return {
            "values": values,
            "models": [_without(model.settings(), self.values) for model in self.models],
        }


def can_compare_weightings(models: Sequence[Recommender], data: Interactions) -> bool:
    """Whether `tune` compares weightings: weights differ, and no model has `Signals` for them.

    >>> import equipoise as eq
    >>> data = eq.Interactions([[5.0, 1.0], [0.0, 2.0]])
    >>> can_compare_weightings([eq.EASE()], data)
    True
    """
    if data.signed or not all(model._in_ranges and model.signals is None for model in models):
        return False
    weights = data.matrix.data
    return len(weights) > 0 and bool(weights.min() != weights.max())


def _can_search_time(models: Sequence[Recommender]) -> bool:
    """Whether the decays of events and the trend can be chosen for these models together."""
    first = models[0]
    return all(
        model._in_ranges and (model.signals, model.trend) == (first.signals, first.trend)
        for model in models
    )


def _searched_time_settings(model: Recommender, fixed: Sequence[str]) -> list[str]:
    """Return the settings about time that neither the model nor the caller sets."""
    signals = model.signals or Signals()
    is_unset = {
        "decay": signals.decay is None,
        "history_decay": signals.history_decay == "decay",
        "trend": model.trend is None,
    }
    return [name for name in TIME_SETTINGS if is_unset[name] and name not in fixed]


def _event_weights(model: Recommender, train: Interactions) -> dict[str, Any]:
    """Return weights to try for the types of events, by name; none if there is nothing to choose.

    A type that is rarer than another one, such as a purchase beside views, is often the stronger
    sign of interest.
    """
    events = train.events
    has_weights = model.signals is not None and model.signals.weights is not None
    if has_weights or events is None or events.types is None:
        return {}
    counts = np.bincount(events.types[events.types >= 0], minlength=len(events.type_names))
    if (counts > 0).sum() < 2:
        return {}
    rarity = counts.max() / np.maximum(counts, 1)
    out: dict[str, Any] = {"equal": None}
    for name, weights in (("by root of rarity", np.sqrt(rarity)), ("by rarity", rarity)):
        rounded = [float(f"{weight:.2g}") for weight in np.minimum(weights, LARGEST_WEIGHT)]
        out[name] = dict(zip(events.type_names, rounded, strict=True))
    return out


def _with_time(
    model: Recommender, train: Interactions, time_settings: Sequence[str]
) -> Recommender:
    """Return a model whose decays and trend can be varied, and that scores as before."""
    if model.signals is None:
        weights = train.matrix.data
        is_weighted = len(weights) > 0 and bool(weights.min() != weights.max())
        signals = Signals(
            transform="sum" if is_weighted else "binary",
            returns="negative" if train.signed else "net",
        )
        model = model._vary({"signals": signals})
    signals = model.signals or Signals()
    if "decay" in time_settings and signals.floor == Signals().floor:
        signals = replace(signals, floor=DECAY_FLOOR)
    if "history_decay" in time_settings:
        signals = replace(signals, history_decay=None)
    return model._vary({"signals": signals, "trend": model.trend or Trend(power=0.0, share=0.0)})


def _product(axes: Values) -> list[Point]:
    """Return every combination of values, the last axis running fastest."""
    combinations = itertools.product(*axes.values())
    return [dict(zip(axes, combination, strict=True)) for combination in combinations]


def _prototype(model: Any) -> Recommender:
    """Return a model to vary: an instance as it is, a class or its name with its defaults."""
    if isinstance(model, str):
        classes = {
            name.lower(): kind
            for name, kind in model_classes.items()
            if kind.__module__.startswith("equipoise.models")
        }
        plain = model.lower().replace("-", "")
        if plain not in classes:
            raise SettingError(f"there is no model {model!r}; {nearest(plain, classes)}")
        model = classes[plain]
    if isinstance(model, type) and issubclass(model, Recommender):
        try:
            return model._prototype()
        except TypeError as error:
            raise SettingError(f"{model.__name__} cannot be made: {error}") from None
    if isinstance(model, Recommender):
        return model
    raise SettingError(f"tune needs a model or its class, such as eq.EASE, got {model!r}")


def _with_searched_dropout(model: Recommender) -> Recommender:
    """Return a linear autoencoder whose search begins at the automatic dropout, not at none."""
    if model._in_ranges and getattr(model, "dropout", None) == 0:
        return model._vary({"dropout": "auto"})
    return model


def _check_fixed(fixed: Sequence[str], grid: Any, names: Sequence[str]) -> None:
    for name in fixed:
        if name not in (*names, "transform", EVENT_WEIGHTS, *TIME_SETTINGS):
            raise SettingError(
                f"fixed names {name!r}, which the models do not have; they have {', '.join(names)}"
            )
        if isinstance(grid, Mapping) and name in grid:
            raise SettingError(f"{name!r} is both fixed and in the grid; leave out one of the two")


def _checked_grid(grid: Any, names: Sequence[str]) -> Values:
    """Return a grid as a tuple of values per name; raise for names that no model has."""
    if isinstance(grid, str) and grid == "paper":
        grid = {name: PAPER[name] for name in PAPER if name in names}
        if not grid:
            raise SettingError(
                f"the grid 'paper' is over {', '.join(PAPER)}, and the models have none of these; "
                f"there are {', '.join(names) or 'none'}"
            )
    if not isinstance(grid, Mapping) or not grid:
        raise SettingError("grid must map names to values, as in {'l2': [10, 100]}, or be 'paper'")
    out: Values = {}
    for name, values in grid.items():
        if name not in names:
            raise SettingError(
                f"the models have no {name!r} to tune; there are {', '.join(names)}"
            )
        axis = [values] if isinstance(values, (str, int, float)) else list(values)
        axis = [value.item() if isinstance(value, np.generic) else value for value in axis]
        if not axis:
            raise SettingError(f"grid has no values for {name!r}; add one, or leave it out")
        for value in axis:
            if not isinstance(value, (str, int, float, type(None))):
                raise SettingError(
                    f"the values of {name!r} in a grid must be numbers or strings, got {value!r}; "
                    "set the object on the model, and call tune once for each"
                )
        out[name] = tuple(dict.fromkeys(axis))
    return out


def _resolve_normalizers(
    models: Sequence[Any], values: Values, train: Interactions
) -> list[Recommender]:
    """Return the models with numbers in place of "auto" in their normalizer."""
    norms = [model.normalizer for model in models]
    if len({(type(norm), getattr(norm, "beta", norm)) for norm in norms}) > 1:
        raise SettingError(
            "models that are tuned together need the same normalizer; tune one at a time"
        )
    out = []
    for model in models:
        first = {name: axis[0] for name, axis in values.items() if name in model._tunable()}
        varied = model._vary(first)
        out.append(model._vary({"normalizer": varied.normalizer.resolve(varied._weighed(train))}))
    return out


def _check_penalties(models: list[Recommender], values: Values, train: Interactions) -> None:
    first: Point = {name: values[name][0] for name in ("l2", "dropout") if name in values}
    starts = [model._vary(first)._search_start(train) for model in models]
    if any(start != starts[0] for start in starts):
        raise SettingError(
            "models that are tuned together need the same l2 and dropout, or a grid with both"
        )


def _without(settings: Point, searched: Values) -> Point:
    """Return settings, nested ones included, without those that are searched."""
    return {
        name: _without(value, searched) if isinstance(value, dict) else value
        for name, value in settings.items()
        if name not in searched
    }


def is_ordered(axis: tuple[Any, ...]) -> bool:
    """Whether the values of an axis are numbers."""
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in axis)


def in_order(axis: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of an axis, numbers sorted."""
    return tuple(sorted(axis)) if is_ordered(axis) else axis


def nearest_place(axis: tuple[Any, ...], target: Any) -> int:
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
    """Proposes settings. The same seed and past give the same proposal, also after a restart.

    `free` has the names of the settings that are searched; `starts` are the first proposals, which
    do not depend on any score.
    """

    def __init__(self, free: Sequence[str], starts: list[Point], seed: int) -> None:
        self.free, self.starts, self.n_starts, self.seed = free, starts, len(starts), seed

    @abstractmethod
    def advice(self, past: Past, seed: int) -> Point:
        """Return Optuna's proposal."""

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
        self.axes = {name: in_order(axis) for name, axis in values.items()}
        self.first = {
            name: nearest_place(axis, start.get(name)) for name, axis in self.axes.items()
        }
        self.n_skipped = 0  # points that `walk` will certainly not visit
        places = [self.first]  # and their neighbours
        for name, axis in self.axes.items():
            steps = (self.first[name] + 1, self.first[name] - 1)
            places += [{**self.first, name: step} for step in steps if 0 <= step < len(axis)]
        super().__init__(list(values), [self._point(place) for place in places], seed)

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
        centre = {name: nearest_place(axis, best.get(name)) for name, axis in self.axes.items()}
        places = _product({name: tuple(range(len(axis))) for name, axis in self.axes.items()})
        places.sort(key=lambda place: sum(abs(place[name] - centre[name]) for name in centre))
        return next((point for point in map(self._point, places) if point not in tried), None)

    def _point(self, places: Places) -> Point:
        return {name: axis[places[name]] for name, axis in self.axes.items()}


class RangeProposals(Proposals):
    """Proposes beta (if the model has one), l2 and dropout in ranges around a first guess.

    Settings in `fixed` keep the value of the first guess.
    """

    def __init__(self, first: Point, seed: int, fixed: Collection[str] = ()) -> None:
        free = [name for name in first if name not in fixed]
        self._stepped = [name for name in LARGEST if name in free]
        first = {**first, **{name: _rounded(first[name], name) for name in self._stepped}}
        if "l2" in free:
            first["l2"] = max(first["l2"], 1e-3)
        self.bounds = first["l2"] / L2_REACH, first["l2"] * L2_REACH
        starts = [first]  # the automatic settings, and a step away in each direction
        if "l2" in free:
            starts += [{**first, "l2": first["l2"] * 5}, {**first, "l2": first["l2"] / 5}]
        for name in self._stepped:
            steps = (_rounded(first[name] + move, name) for move in (0.25, -0.25))
            starts += [{**first, name: value} for value in steps]
        starts = [start for place, start in enumerate(starts) if start not in starts[:place]]
        super().__init__(free, starts, seed)

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
        return self.starts[0] | {name: _rounded(params[name], name) for name in self.free}

    def _is_within(self, outer: Point) -> bool:
        """Whether settings lie in the ranges; settings from a grid may not."""
        low, high = self.bounds
        is_stepped = all(outer[name] == _rounded(outer[name], name) for name in self._stepped)
        return is_stepped and ("l2" not in self.free or low <= outer["l2"] <= high)


class StepProposals(Proposals):
    """Improves one setting after the other, each from the best of those before it.

    First the settings of `axes`, in the order of their values, until two values in a row are no
    better; then l2, dropout and beta by one step up or, if that is no better, down. After that
    Optuna searches around the best point.
    """

    def __init__(
        self, first: Point, axes: Mapping[str, Sequence[Any]], seed: int, fixed: Collection[str]
    ) -> None:
        self.axes = {name: tuple(axis) for name, axis in axes.items() if name not in fixed}
        numbers: Point = {name: first[name] for name in STEPPED if name in first}
        self._numbers = RangeProposals(numbers, seed, fixed)
        free = [*self.axes, *self._numbers.free]
        super().__init__(free, [{**first, **self._numbers.starts[0]}], seed)
        # the largest number of steps
        self.n_starts = 1 + sum(map(len, self.axes.values())) + 2 * len(self._numbers.free)

    def propose(self, past: Past, *, starts_only: bool = False) -> Point | None:
        """Return untried settings, or None if there are none; `starts_only` never asks Optuna."""
        scores = {key_of(outer): score for outer, score in past}
        best = self.starts[0]
        if key_of(best) not in scores:
            return best
        for name in self.free:
            start, falls = best, 0
            for value in self._values(name, start):
                point = {**start, name: value}
                if falls >= FALLS or (name not in self.axes and best is not start):
                    break
                if key_of(point) not in scores:
                    return point
                is_better = scores[key_of(point)] > scores[key_of(best)]
                best, falls = (point, 0) if is_better else (best, falls + 1)
        if starts_only or not self._numbers.free:
            return None
        steady = {name: value for name, value in best.items() if name not in self._numbers.free}
        near = [
            ({name: outer[name] for name in self._numbers.starts[0]}, score)
            for outer, score in past
            if all(outer[name] == value for name, value in steady.items())
        ]
        proposal = self._numbers.propose(near)
        return None if proposal is None else {**best, **proposal}

    def advice(self, past: Past, seed: int) -> Point:
        """Return Optuna's proposal."""
        return self._numbers.advice(past, seed)

    def _values(self, name: str, start: Point) -> tuple[Any, ...]:
        """Return the values of a setting to try, the current one left out."""
        if name in self.axes:
            return tuple(value for value in self.axes[name] if value != start[name])
        if name == "l2":
            steps = (start[name] * 5, start[name] / 5)
        else:
            steps = (start[name] + 0.25, start[name] - 0.25)
        values = (_rounded(value, name) for value in steps)
        return tuple(value for value in values if value != start[name])


class WeightingProposals:
    """Tries each weighting of the events at its automatic settings, then searches with the best.

    `searches` has the proposals for each value of `Signals.transform`.
    """

    def __init__(self, searches: Mapping[str, RangeProposals]) -> None:
        self.searches = searches
        self.free = next(iter(searches.values())).free
        most = max(search.n_starts for search in searches.values())
        self.n_starts = len(searches) + most - 1  # including those of the best weighting

    def propose(self, past: Past, *, starts_only: bool = False) -> Point | None:
        """Return untried settings, or None if there are none; `starts_only` never asks Optuna."""
        scores = {key_of(outer): score for outer, score in past}
        start_scores = {}
        for name, search in self.searches.items():
            start = {"transform": name, **search.starts[0]}
            if key_of(start) not in scores:
                return start
            start_scores[name] = scores[key_of(start)]
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
