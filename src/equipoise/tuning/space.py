"""What is searched: settings that need a solve, and settings that are read off it.

A solve depends on beta, l2 and dropout. Family, alpha, gamma and diag_bound are vectors around it,
and a low-pass companion stands beside it.

Models that share no solve: each point of their search is a fit of its own.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

import numpy as np

from equipoise.errors import SettingError
from equipoise.interactions import Interactions
from equipoise.models.base import Recommender
from equipoise.models.linear import LinearAutoencoder
from equipoise.normalize import DAN, Normalizer
from equipoise.solve.engine import Solver
from equipoise.solve.plan import plan
from equipoise.tuning.proposals import in_order

OUTER = ("beta", "l2", "dropout")


COMPANION = ("strength", "exponent")  # of a `LowPass`


INNER = ("alpha", "gamma", "diag_bound", *COMPANION)


EXPONENTS = ("alpha", "beta", "gamma")


ALPHAS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)


FREE = {
    "alpha": ALPHAS,
    "gamma": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
    "diag_bound": (0.0, 0.1, 0.2, 0.3, 0.5, 0.7),
    "strength": (0.0, 0.1, 0.2, 0.4),
    "exponent": (0.2, 0.5),
}


# The ranges of the paper: alpha and beta in steps of 0.1, 25 penalties.
PAPER = {
    "alpha": ALPHAS,
    "beta": tuple(step / 10 for step in range(11)),
    "l2": (5.0, 20.0, 50.0, 100.0, 300.0),
    "dropout": (0.1, 0.3, 0.5, 0.6, 0.7),
}

Point = dict[str, Any]


Values = dict[str, tuple[Any, ...]]


def prototypes(given: Any) -> list[Recommender]:
    """Return models to vary: instances as they are, classes and names with their defaults.

    A linear autoencoder named by its class gets a `DAN`, so that alpha and beta are searched.
    """
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    if not listed:
        raise SettingError("tune needs a model, such as eq.EASE")
    return [_prototype(each) for each in listed]


def _prototype(given: Any) -> Recommender:
    if isinstance(given, str):
        import equipoise.models  # fills the registry

        named = {
            name.lower(): kind
            for name, kind in Recommender.registry.items()
            if kind.__module__.startswith(equipoise.models.__name__)
        }
        plain = given.lower().replace("-", "")
        if plain not in named:
            raise SettingError(f"there is no model {given!r}; tune 'ease', 'lae' or 'rlae'")
        given = named[plain]
    if isinstance(given, type) and issubclass(given, Recommender):
        settings = {"normalizer": DAN()} if issubclass(given, LinearAutoencoder) else {}
        try:
            return given(**settings)
        except TypeError as error:
            raise SettingError(f"{given.__name__} cannot be made: {error}") from None
    if isinstance(given, Recommender):
        return given
    raise SettingError(f"tune needs a model or its class, such as eq.EASE, got {given!r}")


def checked_values(values: Any, names: Sequence[str]) -> Values:
    """Return a grid as a tuple of values per name; a name the models lack is an error."""
    if values == "paper":
        values = {name: PAPER[name] for name in PAPER if name in names}
    if not isinstance(values, Mapping) or not values:
        raise SettingError("grid must map names to values, as in {'l2': [10, 100]}, or be 'paper'")
    out: Values = {}
    for name, given in values.items():
        if name not in names:
            raise SettingError(
                f"the models have no {name!r} to tune; there are {', '.join(names)}"
            )
        listed = [given] if isinstance(given, (str, int, float)) else list(given)
        listed = [each.item() if isinstance(each, np.generic) else each for each in listed]
        if not listed:
            raise SettingError(f"grid has no values for {name!r}")
        for each in listed:
            if not isinstance(each, (str, int, float, NoneType)):
                raise SettingError(
                    f"the values of {name!r} in a grid must be numbers or words, got {each!r}; "
                    "give the model itself the object, and tune once for each"
                )
        out[name] = tuple(dict.fromkeys(listed))
    return out


def in_orders(values: Values) -> dict[str, Any]:
    """Return a grid with its numbers sorted: in whatever order it was written, it is the same."""
    return {name: list(in_order(listed)) for name, listed in values.items()}


def fixed_settings(model: Recommender, searched: Values) -> Point:
    """Return the settings of a model, its parts included, without those that are searched."""

    def kept(settings: Point) -> Point:
        return {
            name: kept(value) if isinstance(value, dict) else value
            for name, value in settings.items()
            if name not in searched
        }

    return kept(model.settings())


@dataclass(frozen=True, eq=False)
class Shared:
    """Linear autoencoders that are read off common solves.

    Parameters
    ----------
    models
        Prototypes; they differ in family, or in settings that are read off a solve.
    values
        What a grid gives; other settings stay as the prototypes have them.
    origin
        The first prototype as it was given, with "auto" where it has that.
    options
        What every solve and the last fit are given: dtype and memory.
    in_ranges
        Whether the solves are searched in ranges instead of on a grid.
    """

    models: list[LinearAutoencoder]
    values: Values
    origin: LinearAutoencoder
    options: dict[str, Any] = field(default_factory=dict)
    in_ranges: bool = False

    @classmethod
    def of(
        cls, models: list[LinearAutoencoder], grid: Any, train: Interactions, **options: Any
    ) -> Shared:
        """Check that the models can share their solves, and the grid."""
        if len({(type(each.normalizer), beta_of(each.normalizer)) for each in models}) > 1:
            raise SettingError("models that are tuned together need the same normalizer")
        names = cls(models, {}, models[0]).names
        if grid is None:
            values: Values = {name: FREE[name] for name in INNER if name in names}
        else:
            values = checked_values(grid, names)
        settled = [_settled(each, values, train) for each in models]
        if grid is not None and len({_penalty(each, values, train) for each in settled}) > 1:
            raise SettingError(
                "models that are tuned together need the same l2 and dropout, or a grid with both"
            )
        return cls(settled, values, models[0], options, in_ranges=grid is None)

    @property
    def names(self) -> list[str]:
        """What can be searched."""
        kind = self.models[0].normalizer
        own = [name for name in EXPONENTS if hasattr(kind, name)]
        bound = ["diag_bound"] if any(hasattr(each, "diag_bound") for each in self.models) else []
        beside = [*COMPANION] if any(each.lowpass is not None for each in self.models) else []
        return [*own, "l2", "dropout", *bound, *beside]

    def searched(self) -> dict[str, Any]:
        """Return what a storage is bound to: the values of each name, or that it has a range."""
        ranges = {name: "range" for name in OUTER if self.in_ranges and name in self.names}
        return {**ranges, **in_orders(self.values)}

    def outer(self) -> list[Point]:
        """Return the settings of every solve of the grid, l2 running fastest."""
        axes = self.axes()
        every = itertools.product(*axes.values())
        return [dict(zip(axes, values, strict=True)) for values in every]

    def axes(self) -> Values:
        """Return the values of each axis of the grid of solves, those of one Gram together."""
        names = ("beta", "dropout", "l2")
        return {name: self.values[name] for name in names if name in self.values}

    def start(self, train: Interactions) -> Point:
        """Return where a search begins: the settings of the prototype, "auto" as numbers."""
        normalizer = self.origin.normalizer.resolve(train)
        l2, dropout = self.origin._numbers(train, normalizer)
        first = {"l2": l2, "dropout": dropout}
        if "beta" in self.names:
            first["beta"] = normalizer.exponents()[1]
        return first

    def seconds(self, train: Interactions) -> float:
        """Return the expected time of a solve, and of the last fit."""
        return plan(train, **self.options).seconds

    def solver(self, train: Interactions) -> Solver:
        """Return what `candidates` works with."""
        return Solver(train, engine="dense", **self.options)

    def fitted(self, point: Point, train: Interactions) -> Recommender:
        """Return the model with the settings of a point, fitted."""
        settings = {name: point[name] for name in self.names if name in point}
        return vary(self.models[point["prototype"]], settings).fit(train, **self.options)

    def candidates(self, outer: Point, solver: Solver) -> list[tuple[int, Recommender]]:
        """Solve once and return every model that can be read off, fitted, by its prototype."""
        train = solver.train
        variants = self._variants(outer)
        first = variants[0][1]
        numbers = first._numbers(train, first.normalizer)
        penalty = first._penalty(train, first.normalizer, *numbers)
        solved = solver.solve(first.normalizer.user_weights(train), penalty)
        companions: dict[Any, Any] = {}
        for _, model in variants:
            # a companion depends on its own settings alone: one serves all variants that share it
            own, known = model.lowpass, model.lowpass in companions
            model.lowpass = None if known else own
            model._take(train, model.normalizer, solved.P, penalty, solved.residual)
            model.l2_, model.dropout_ = numbers
            model.lowpass = own
            model.companion_ = companions.setdefault(own, model.companion_)
        return [*variants]

    def _variants(self, outer: Point) -> list[tuple[int, LinearAutoencoder]]:
        out = []
        for number, prototype in enumerate(self.models):
            names = [name for name in INNER if name in self.values and has(prototype, name)]
            for values in itertools.product(*(self.values[name] for name in names)):
                settings = {**outer, **dict(zip(names, values, strict=True))}
                out.append((number, vary(prototype, settings)))
        return out


def describe(model: Recommender) -> Point:
    """Return a fitted model's settings as plain values, with the numbers behind "auto"."""
    if not isinstance(model, LinearAutoencoder):
        settings = model.settings()
        return {"family": settings.pop("model"), **settings}
    point: Point = {"family": type(model).__name__}
    for name in EXPONENTS:
        if hasattr(model.normalizer_, name):
            point[name] = float(getattr(model.normalizer_, name))
    point |= {"l2": model.l2_, "dropout": model.dropout_}
    if hasattr(model, "diag_bound"):
        point["diag_bound"] = float(model.diag_bound)
    if model.lowpass is not None:
        point |= {name: float(getattr(model.lowpass, name)) for name in COMPANION}
    return point


def _settled(model: LinearAutoencoder, values: Values, train: Interactions) -> LinearAutoencoder:
    """Replace "auto" in the normalizer once, by what is searched or by numbers from the data."""
    given = {name: values[name][0] for name in EXPONENTS if name in values}
    model = vary(model, given)
    return dataclasses.replace(model, normalizer=model.normalizer.resolve(train))


def _penalty(model: LinearAutoencoder, values: Values, train: Interactions) -> tuple[float, float]:
    """Return l2 and dropout of the first solve."""
    given = {name: values[name][0] for name in values if name in ("l2", "dropout")}
    return vary(model, given)._numbers(train, model.normalizer)


def beta_of(normalizer: Normalizer) -> Any:
    """Return beta where it is a setting, or the normalizer where users are weighted otherwise."""
    return getattr(normalizer, "beta", normalizer)


def has(model: LinearAutoencoder, name: str) -> bool:
    """Whether a setting is one of the model or of its normalizer."""
    if name in COMPANION:
        return model.lowpass is not None
    return hasattr(model.normalizer if name in EXPONENTS else model, name)


def vary(prototype: LinearAutoencoder, settings: Point) -> LinearAutoencoder:
    """Return an unfitted copy with other settings, those of the normalizer included."""
    theirs = {name: value for name, value in settings.items() if name in EXPONENTS}
    beside = {name: value for name, value in settings.items() if name in COMPANION}
    own = {name: settings[name] for name in settings if name not in (*EXPONENTS, *COMPANION)}
    if theirs:
        own["normalizer"] = dataclasses.replace(prototype.normalizer, **theirs)
    if beside and prototype.lowpass is not None:
        own["lowpass"] = dataclasses.replace(prototype.lowpass, **beside)
    return dataclasses.replace(prototype, **own)


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
