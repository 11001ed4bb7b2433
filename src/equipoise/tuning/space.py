"""Search space: settings that need a solve of their own, and settings that share one.

Models say which are which (`Recommender.solve_settings`). A linear autoencoder needs a solve for
each beta, l2 and dropout; family, alpha, gamma, diag_bound and the low-pass companion share it. A
session regression shares a fit between values of alpha and decay_inference. Any other model is
fitted anew for every point.
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

TRANSFORMS = ("binary", "log1p", "sum")  # weightings that are compared
# The ranges of the paper: alpha and beta in steps of 0.1, 25 penalties.
PAPER = {
    "alpha": tuple(step / 10 for step in range(6)),
    "beta": tuple(step / 10 for step in range(11)),
    "l2": (5.0, 20.0, 50.0, 100.0, 300.0),
    "dropout": (0.1, 0.3, 0.5, 0.6, 0.7),
}


@dataclass(frozen=True, eq=False)
class Space:
    """Models and the values of their settings to try."""

    models: list[Recommender]  # prototypes, which share their solves
    values: Values  # the grid; other settings stay as the prototypes have them
    origin: Recommender  # the first prototype, "auto" settings included
    in_ranges: bool  # whether solve settings are searched in ranges instead of on the grid
    fixed: tuple[str, ...] = ()  # names of settings that are not searched
    transforms: tuple[str, ...] = ()  # values of `Signals.transform` to compare first

    @classmethod
    def of(
        cls, requested: Any, grid: Any, train: Interactions, fixed: Sequence[str] = ()
    ) -> Space:
        """Check the models, the grid and the fixed settings of `tune`."""
        listed = list(requested) if isinstance(requested, (list, tuple)) else [requested]
        if not listed:
            raise SettingError("tune needs a model, such as eq.EASE")
        models = [_prototype(model) for model in listed]
        if isinstance(grid, Mapping) and set(grid) & set(SETTINGS):
            # a model without signals starts from neutral ones
            models = [
                model if model.signals is not None else model.vary({"signals": Signals()})
                for model in models
            ]
        transforms: tuple[str, ...] = ()
        if grid is None and "transform" not in fixed and can_compare_weightings(models, train):
            transforms = TRANSFORMS
            models = [model.vary({"signals": Signals()}) for model in models]
        searches_dropout = "dropout" in grid if isinstance(grid, Mapping) else True
        if searches_dropout and "dropout" not in fixed:
            models = [_with_searched_dropout(model) for model in models]
        first = models[0]
        names = list(dict.fromkeys(name for model in models for name in model.tunable()))
        if not all(model.in_ranges for model in models) and len(models) > 1:
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
        if not first.solve_settings:
            return cls(models, values, first, in_ranges=False, fixed=tuple(fixed))
        resolved = _resolve_normalizers(models, values, train)
        if grid is not None:
            _check_penalties(resolved, values, train)
        in_ranges = first.in_ranges and grid is None
        return cls(resolved, values, first, in_ranges, tuple(fixed), transforms)

    @property
    def axes(self) -> Values:
        """Values of each axis that needs a solve; the outermost axis changes the Gram matrix."""
        names = self.models[0].solve_settings or self.values
        return {name: self.values[name] for name in names if name in self.values}

    @property
    def size(self) -> int:
        """Number of solves of the grid."""
        return math.prod(map(len, self.axes.values()))

    def _start(self, train: Interactions, model: Recommender | None = None) -> Point:
        """Return the settings of the solve that a search begins with, "auto" as numbers."""
        settings = (model or self.origin).search_start(train)
        return {
            name: value
            for name, value in settings.items()
            if name in self.axes or (self.in_ranges and name not in SETTINGS)
        }

    def grid(self, train: Interactions, seed: int = 0) -> GridProposals:
        """Return the grid of solves, around the settings that a search begins with."""
        return GridProposals(self.axes, self._start(train), seed)

    def proposals(
        self, train: Interactions, seed: int
    ) -> RangeProposals | GridProposals | WeightingProposals:
        """Return the object that proposes settings of solves."""
        if not self.in_ranges:
            return self.grid(train, seed)
        if not self.transforms:
            return RangeProposals(self._start(train), seed, self.fixed)
        searches = {}
        for transform in self.transforms:
            start = self._start(train, self.origin.vary({"transform": transform}))
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
        return _product(self.axes)

    def variants(self, outer: Point) -> list[tuple[int, Recommender]]:
        """Return every unfitted model that one solve serves, with the number of its prototype."""
        out = []
        for number, prototype in enumerate(self.models):
            inner = {*prototype.tunable()} & self.values.keys() - self.axes.keys()
            order = dict.fromkeys([*prototype.search_space, *self.values])
            axes = {name: self.values[name] for name in order if name in inner}
            out += [(number, prototype.vary({**outer, **point})) for point in _product(axes)]
        return out

    def model(self, point: Point) -> Recommender:
        """Return the unfitted model with the settings of a point."""
        prototype = self.models[point["prototype"]]
        names = prototype.tunable() if prototype.in_ranges else self.values
        return prototype.vary({name: point[name] for name in names})

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
    if data.signed or not all(model.in_ranges and model.signals is None for model in models):
        return False
    weights = data.matrix.data
    return len(weights) > 0 and bool(weights.min() != weights.max())


def _product(axes: Values) -> list[Point]:
    """Return every combination of values, the last axis running fastest."""
    combinations = itertools.product(*axes.values())
    return [dict(zip(axes, combination, strict=True)) for combination in combinations]


def _prototype(model: Any) -> Recommender:
    """Return a model to vary: an instance as it is, a class or its name with its defaults."""
    if isinstance(model, str):
        classes = {
            name.lower(): kind
            for name, kind in Recommender.registry.items()
            if kind.__module__.startswith("equipoise.models")
        }
        plain = model.lower().replace("-", "")
        if plain not in classes:
            raise SettingError(f"there is no model {model!r}; {nearest(plain, classes)}")
        model = classes[plain]
    if isinstance(model, type) and issubclass(model, Recommender):
        try:
            return model.prototype()
        except TypeError as error:
            raise SettingError(f"{model.__name__} cannot be made: {error}") from None
    if isinstance(model, Recommender):
        return model
    raise SettingError(f"tune needs a model or its class, such as eq.EASE, got {model!r}")


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
        first = {name: axis[0] for name, axis in values.items() if name in model.tunable()}
        varied = model.vary(first)
        out.append(model.vary({"normalizer": varied.normalizer.resolve(varied._weighed(train))}))
    return out


def _check_penalties(models: list[Recommender], values: Values, train: Interactions) -> None:
    first: Point = {name: values[name][0] for name in ("l2", "dropout") if name in values}
    starts = [model.vary(first).search_start(train) for model in models]
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
