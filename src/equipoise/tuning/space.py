"""What is searched: settings that need a solve or a fit, and settings that are read off it.

Models say which are which (`Recommender.solve_settings`). Of a linear autoencoder a solve depends
on beta, l2 and dropout; family, alpha, gamma and diag_bound are vectors around it, and a low-pass
companion stands beside it. Of a session regression alpha and decay_inference are read off a fit.
Any other model is fitted anew for every point.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.data.interactions import Interactions
from equipoise.data.signals import SETTINGS, Signals
from equipoise.errors import SettingError
from equipoise.evaluation.metrics import nearest
from equipoise.models import Recommender
from equipoise.tuning.proposals import (
    GridProposals,
    Point,
    RangeProposals,
    Values,
    WeightingProposals,
    in_order,
)

# what weights of pairs may be worth: nothing, their logarithm, themselves
TRANSFORMS = ("binary", "log1p", "sum")
# The ranges of the paper: alpha and beta in steps of 0.1, 25 penalties.
PAPER = {
    "alpha": tuple(step / 10 for step in range(6)),
    "beta": tuple(step / 10 for step in range(11)),
    "l2": (5.0, 20.0, 50.0, 100.0, 300.0),
    "dropout": (0.1, 0.3, 0.5, 0.6, 0.7),
}


@dataclass(frozen=True, eq=False)
class Space:
    """Models and the values of their settings that are tried.

    Parameters
    ----------
    models
        Prototypes: one model, or several that share their solves.
    values
        The grid; other settings stay as the prototypes have them.
    origin
        The first prototype as it was given, with "auto" where it has that.
    in_ranges
        Whether what a solve depends on is searched in ranges instead of on the grid.
    fixed
        Names of settings that are not searched.
    transforms
        Weightings of the events (`Signals.transform`) that are compared before the search; empty
        where none are.
    """

    models: list[Recommender]
    values: Values
    origin: Recommender
    in_ranges: bool
    fixed: tuple[str, ...] = ()
    transforms: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Any, grid: Any, train: Interactions, fixed: Sequence[str] = ()) -> Space:
        """Check the models, the grid and the fixed settings of `tune`."""
        listed = list(given) if isinstance(given, (list, tuple)) else [given]
        if not listed:
            raise SettingError("tune needs a model, such as eq.EASE")
        models = [_prototype(each) for each in listed]
        if isinstance(grid, Mapping) and set(grid) & set(SETTINGS):
            # a model without signals is searched from those that change nothing but weights
            models = [
                each if each.signals is not None else each.vary({"signals": Signals()})
                for each in models
            ]
        transforms: tuple[str, ...] = ()
        if grid is None and "transform" not in fixed and can_compare_weightings(models, train):
            transforms = TRANSFORMS
            models = [each.vary({"signals": Signals()}) for each in models]
        searches_dropout = "dropout" in grid if isinstance(grid, Mapping) else True
        if searches_dropout and "dropout" not in fixed:
            models = [_with_searched_dropout(model) for model in models]
        first = models[0]
        names = list(dict.fromkeys(name for each in models for name in each.tunable()))
        if not all(each.in_ranges for each in models) and len(models) > 1:
            raise SettingError("only linear autoencoders can be tuned several at a time; give one")
        if grid is None and not first.search_space:
            raise SettingError(
                f"tuning {type(first).__name__} needs a grid over its settings, which are "
                f"{', '.join(names) or 'none'}"
            )
        _check_fixed(fixed, grid, names)
        if grid is not None:
            values = _checked(grid, names)
        else:
            values = {
                name: each
                for name, each in first.search_space.items()
                if name in names and name not in fixed
            }
        if not first.solve_settings:
            return cls(models, values, first, in_ranges=False, fixed=tuple(fixed))
        settled = _settled(models, values, train)
        if grid is not None:
            _check_penalties(settled, values, train)
        in_ranges = first.in_ranges and grid is None
        return cls(settled, values, first, in_ranges, tuple(fixed), transforms)

    @property
    def axes(self) -> Values:
        """Values of each axis that needs a solve, those of one Gram matrix together."""
        names = self.models[0].solve_settings or self.values
        return {name: self.values[name] for name in names if name in self.values}

    @property
    def size(self) -> int:
        """Number of solves of the grid."""
        return math.prod(map(len, self.axes.values()))

    def start(self, train: Interactions) -> Point:
        """Return the settings of a solve that a search begins with, "auto" as numbers."""
        return self._start_of(self.origin, train)

    def _start_of(self, model: Recommender, train: Interactions) -> Point:
        found = model.search_start(train)
        return {
            name: found[name]
            for name in found
            if name in self.axes or (self.in_ranges and name not in SETTINGS)
        }

    def proposals(
        self, train: Interactions, seed: int
    ) -> RangeProposals | GridProposals | WeightingProposals:
        """Return what proposes settings of solves."""
        if not self.in_ranges:
            return GridProposals(self.axes, self.start(train), seed)
        if not self.transforms:
            return RangeProposals(self.start(train), seed, self.fixed)
        searches = {}
        for transform in self.transforms:
            start = self._start_of(self.origin.vary({"transform": transform}), train)
            searches[transform] = RangeProposals(start, seed, self.fixed)
        return WeightingProposals(searches)

    @property
    def solve_names(self) -> list[str]:
        """Names of the settings that a solve of this search depends on."""
        if not self.in_ranges:
            return list(self.axes)
        free = [name for name in self.models[0].solve_settings if name not in SETTINGS]
        names = [name for name in free if name in self.models[0].tunable()]
        return ["transform", *names] if self.transforms else names

    def outer(self) -> list[Point]:
        """Return the settings of every solve of the grid, the last axis running fastest."""
        return [dict(zip(self.axes, each, strict=True)) for each in product(self.axes)]

    def variants(self, outer: Point) -> list[tuple[int, Recommender]]:
        """Return every model that one solve serves, by the number of its prototype; not fitted."""
        out = []
        for number, prototype in enumerate(self.models):
            own = {*prototype.tunable()} & self.values.keys() - self.axes.keys()
            order = dict.fromkeys([*prototype.search_space, *self.values])
            inner = {name: self.values[name] for name in order if name in own}
            for each in product(inner):
                settings = {**outer, **dict(zip(inner, each, strict=True))}
                out.append((number, prototype.vary(settings)))
        return out

    def model(self, point: Point) -> Recommender:
        """Return the model with the settings of a point, not fitted."""
        prototype = self.models[point["prototype"]]
        names = prototype.tunable() if prototype.in_ranges else self.values
        return prototype.vary({name: point[name] for name in names})

    def identity(self) -> dict[str, Any]:
        """Return what a storage is bound to: what is searched, and all that stays fixed.

        In whatever order a grid is written, it is the same.
        """
        solves = self.models[0].solve_settings if self.in_ranges else ()
        solves = tuple(name for name in solves if name not in SETTINGS)
        names = self.models[0].tunable()
        values: dict[str, Any] = {
            name: "range" for name in solves if name in names and name not in self.fixed
        }
        values |= {"transform": list(self.transforms)} if self.transforms else {}
        values |= {name: list(in_order(listed)) for name, listed in self.values.items()}
        return {
            "values": values,
            "models": [_without(each.settings(), self.values) for each in self.models],
        }


def can_compare_weightings(models: Sequence[Recommender], data: Interactions) -> bool:
    """Whether the pairs have different weights that no `Signals` of the models tell the worth of.

    >>> import equipoise as eq
    >>> data = eq.Interactions([[5.0, 1.0], [0.0, 2.0]])
    >>> can_compare_weightings([eq.EASE()], data)
    True
    """
    if not all(each.in_ranges and each.signals is None for each in models) or data.signed:
        return False
    weights = data.matrix.data
    return len(weights) > 0 and bool(weights.min() != weights.max())


def product(axes: Values) -> itertools.product[tuple[Any, ...]]:
    """Return every combination of values, the last axis running fastest."""
    return itertools.product(*axes.values())


def _prototype(given: Any) -> Recommender:
    """Return a model to vary: an instance as it is, a class or its name with its defaults."""
    if isinstance(given, str):
        ours = {
            name.lower(): kind
            for name, kind in Recommender.registry.items()
            if kind.__module__.startswith("equipoise.models")
        }
        plain = given.lower().replace("-", "")
        if plain not in ours:
            raise SettingError(f"there is no model {given!r}; {nearest(plain, ours)}")
        given = ours[plain]
    if isinstance(given, type) and issubclass(given, Recommender):
        try:
            return given.prototype()
        except TypeError as error:
            raise SettingError(f"{given.__name__} cannot be made: {error}") from None
    if isinstance(given, Recommender):
        return given
    raise SettingError(f"tune needs a model or its class, such as eq.EASE, got {given!r}")


def _with_searched_dropout(model: Recommender) -> Recommender:
    """Return a linear autoencoder whose search begins at the automatic dropout, not at none."""
    if model.in_ranges and getattr(model, "dropout", None) == 0:
        return model.vary({"dropout": "auto"})
    return model


def _check_fixed(fixed: Sequence[str], grid: Any, names: Sequence[str]) -> None:
    for name in fixed:
        if name not in (*names, "transform"):
            raise SettingError(
                f"fixed names {name!r}, which the models do not have; they have {', '.join(names)}"
            )
        if isinstance(grid, Mapping) and name in grid:
            raise SettingError(f"{name!r} is both fixed and in the grid; leave out one of the two")


def _checked(grid: Any, names: Sequence[str]) -> Values:
    """Return a grid as a tuple of values per name; a name the models lack is an error."""
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
    for name, given in grid.items():
        if name not in names:
            raise SettingError(
                f"the models have no {name!r} to tune; there are {', '.join(names)}"
            )
        listed = [given] if isinstance(given, (str, int, float)) else list(given)
        listed = [each.item() if isinstance(each, np.generic) else each for each in listed]
        if not listed:
            raise SettingError(f"grid has no values for {name!r}; give some, or leave it out")
        for each in listed:
            if not isinstance(each, (str, int, float, type(None))):
                raise SettingError(
                    f"the values of {name!r} in a grid must be numbers or words, got {each!r}; "
                    "give the model itself the object, and tune once for each"
                )
        out[name] = tuple(dict.fromkeys(listed))
    return out


def _settled(models: Sequence[Any], values: Values, train: Interactions) -> list[Recommender]:
    """Return the models with numbers in place of "auto" in their normalizer."""
    norms = [each.normalizer for each in models]
    if len({(type(norm), getattr(norm, "beta", norm)) for norm in norms}) > 1:
        raise SettingError(
            "models that are tuned together need the same normalizer; tune one at a time"
        )
    out = []
    for model in models:
        first = {name: listed[0] for name, listed in values.items() if name in model.tunable()}
        varied = model.vary(first)
        out.append(model.vary({"normalizer": varied.normalizer.resolve(varied._weighed(train))}))
    return out


def _check_penalties(models: list[Recommender], values: Values, train: Interactions) -> None:
    first: Point = {name: values[name][0] for name in ("l2", "dropout") if name in values}
    starts = [each.vary(first).search_start(train) for each in models]
    if any(each != starts[0] for each in starts):
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
