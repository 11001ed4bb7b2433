"""Models that share no solve: each point of their search is a fit of its own."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
from dataclasses import dataclass, field
from typing import Any

from equipoise.errors import SettingError
from equipoise.interactions import Interactions
from equipoise.models.base import Recommender
from equipoise.tuning.space import Point, Shared, Values, checked_values, in_orders

# What is searched where no grid is given. Factors fall: a smaller spectrum is cut from a larger
# one, so one SVD serves them all.
FACTORS = (512, 256, 128, 64, 32)
SESSION = {"l2": (1.0, 10.0, 100.0), "decay_inference": (1.0, 2.0, 4.0)}
SPACES: dict[str, Values] = {
    "GFCF": {"factors": FACTORS, "strength": (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)},
    "BSPM": {
        "factors": FACTORS[:4],
        "strength": (0.1, 0.3, 0.5),
        "time": (0.5, 1.0, 2.0),
        "merge": ("early", "late"),
    },
    "TurboCF": {
        "order": (1, 2, 3),
        "user_exponent": (0.3, 0.4, 0.5, 0.6),
        "power": (0.6, 0.8, 1.0, 1.3),
    },
    "SVDAE": {"share": (0.01, 0.02, 0.04, 0.08, 0.16)},
    "SGFCF": {
        "factors": FACTORS[:3],
        "exponent": (0.25, 0.34, 0.43),
        "strength": (0.5, 1.0, 1.6, 2.2),
        "strongest": (1.5, 2.5),
    },
    "ItemKNN": {"neighbours": (20, 50, 100, 200, 500), "shrink": (0.0, 10.0, 50.0, 100.0)},
    "SLIS": {**SESSION, "dropout": (0.0, 0.3, 0.6)},
    "SLIT": {**SESSION, "decay_position": (0.5, 1.0, 2.0, 4.0)},
    "SLIST": {**SESSION, "decay_position": (0.5, 1.0, 2.0), "mix": (0.2, 0.4, 0.6, 0.8)},
}


UNASKED = {"dtype": "float32", "memory": None, "threads": None}  # the defaults of a search


@dataclass(frozen=True, eq=False)
class Separate:
    """Models of any kind, each fitted by itself.

    Parameters
    ----------
    models
        Prototypes of one class.
    values
        The grid over their settings.
    options
        What every fit is given: those options of the search that the model takes.
    """

    models: list[Recommender]
    values: Values
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, models: list[Recommender], grid: Any, **options: Any) -> Separate:
        """Check the options of the run and the grid, or take the model's own."""
        kind: Any = type(models[0])  # a dataclass
        if len(models) > 1:
            raise SettingError("only linear autoencoders can be tuned several at a time")
        fields = [entry.name for entry in dataclasses.fields(kind) if entry.init]
        if grid is None:
            if kind.__name__ not in SPACES:
                raise SettingError(
                    f"tuning {kind.__name__} needs a grid over its settings, which are "
                    f"{', '.join(fields) or 'none'}"
                )
            grid = SPACES[kind.__name__]
        return cls(models, checked_values(grid, fields), taken(models[0], options))

    def searched(self) -> dict[str, Any]:
        """Return what a storage is bound to: the grid, whether it was given or is the model's."""
        return in_orders(self.values)

    @property
    def size(self) -> int:
        """Number of points."""
        return math.prod(len(listed) for listed in self.values.values())

    def axes(self) -> Values:
        """Return the values of each axis of the grid."""
        return self.values

    def outer(self) -> list[Point]:
        """Return every point of the grid."""
        every = itertools.product(*self.values.values())
        return [dict(zip(self.values, values, strict=True)) for values in every]

    def start(self, train: Interactions) -> Point:
        """Return where a search begins: the settings of the prototype."""
        return {name: getattr(self.models[0], name) for name in self.values}

    @property
    def names(self) -> list[str]:
        """What is searched."""
        return list(self.values)

    def seconds(self, train: Interactions) -> float:
        """Return the expected time of a fit: these models have no plan, so the first one tells."""
        return 0.0

    def solver(self, train: Interactions) -> Interactions:
        """Return what `candidates` works with."""
        return train

    def candidates(self, outer: Point, solver: Interactions) -> list[tuple[int, Recommender]]:
        """Fit one model."""
        return [(0, self.fitted(outer, solver))]

    def fitted(self, point: Point, train: Interactions) -> Recommender:
        """Return the model with the settings of a point, fitted."""
        prototype: Any = self.models[0]
        model: Any = dataclasses.replace(prototype, **{name: point[name] for name in self.values})
        fitted: Recommender = model.fit(train, **self.options)
        return fitted


def taken(model: Recommender, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that the fit of a model takes; what it would ignore is refused."""
    known = inspect.signature(model.fit).parameters
    open_ended = any(each.kind is each.VAR_KEYWORD for each in known.values())
    out = {}
    for name, value in options.items():
        asked = value != UNASKED[name]
        if name in known or (open_ended and asked):
            out[name] = value
        elif asked and name != "threads":  # the whole search is limited to those
            raise SettingError(f"{type(model).__name__} is fitted without {name}; leave it out")
    return out


Space = Shared | Separate
