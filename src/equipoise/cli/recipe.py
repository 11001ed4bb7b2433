"""Options that describe a model, and the model they describe."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.cli.output import note, working
from equipoise.errors import SettingError

if TYPE_CHECKING:
    from equipoise.interactions import Interactions
    from equipoise.models import Recommender
    from equipoise.normalize import Normalizer


class Model(StrEnum):
    """Families, their denoising forms, and yardsticks."""

    ease = "ease"
    lae = "lae"
    rlae = "rlae"
    edlae = "edlae"
    dlae = "dlae"
    rdlae = "rdlae"
    popularity = "popularity"
    item_knn = "item-knn"
    slis = "slis"
    slit = "slit"
    slist = "slist"


class Norm(StrEnum):
    """Normalizers."""

    none = "none"
    rw = "rw"
    sym = "sym"
    col = "col"
    user = "user"
    item = "item"
    dan = "dan"


class Engine(StrEnum):
    """Exact engines."""

    auto = "auto"
    dense = "dense"
    tiled = "tiled"
    gpu = "gpu"


class DType(StrEnum):
    """Precisions."""

    float32 = "float32"
    float64 = "float64"


BOUNDED = ("rlae", "rdlae")
ANY_SESSION = ("row_norm", "decay_inference", "decay_time")
# Which options of their own the session models take.
SESSION = {
    "slis": ANY_SESSION,
    "slit": (*ANY_SESSION, "decay_position", "direction"),
    "slist": (*ANY_SESSION, "decay_position", "direction", "mix"),
}
# Which exponents a normalizer takes; the others have none of their own.
EXPONENTS = {"col": ("gamma",), "user": ("beta",), "item": ("alpha",), "dan": ("alpha", "beta")}


def _option(help: str, *names: str, panel: str = "Model") -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel)


@dataclass(frozen=True)
class Recipe:
    """A model family, its hyper-parameters and its normalization."""

    model: Annotated[Model | None, _option("Family, or a yardstick.", "--model", "-m")] = None
    l2: Annotated[str | None, _option("Ridge penalty, lambda: a number or auto.", "--l2")] = None
    dropout: Annotated[str | None, _option("Denoising, p: 0 (none) to 0.9, or auto.")] = None
    diag_bound: Annotated[float | None, _option("For rlae and rdlae, xi: 0 to 1.")] = None
    normalizer: Annotated[Norm, _option("Weights of users and items.", "--normalizer", "-n")] = (
        Norm.none
    )
    alpha: Annotated[
        str | None, _option("Items (item, dan): larger favours the tail; a number or auto.")
    ] = None
    beta: Annotated[
        str | None, _option("Users (user, dan): larger discounts active ones; or auto.")
    ] = None
    gamma: Annotated[float | None, _option("Target items (col).")] = None
    neighbours: Annotated[int | None, _option("For item-knn.")] = None
    shrink: Annotated[float | None, _option("For item-knn.")] = None
    mix: Annotated[float | None, _option("For slist: share of whole sessions, 0 to 1.")] = None
    decay_position: Annotated[
        float | None, _option("For slit, slist: clicks until a later one weighs 1/e; 0: none.")
    ] = None
    decay_inference: Annotated[
        float | None, _option("Sessions: clicks until an earlier one weighs 1/e; 0: none.")
    ] = None
    decay_time: Annotated[
        float | None, _option("Sessions: days until an older one weighs 1/e; 0: none.")
    ] = None
    direction: Annotated[
        str | None, _option("For slit, slist: the past, sr (last click), part or all.")
    ] = None
    row_norm: Annotated[str | None, _option("Sessions: inputs scaled by l1, l2 or none.")] = None

    @property
    def given(self) -> bool:
        """Whether any of these options was used."""
        return self != Recipe()

    def build(self) -> Recommender:
        """Return the unfitted model; options that it would ignore are refused."""
        from equipoise import models

        name = str(self.model or "ease")
        linear = {"l2": _number("l2", self.l2), "dropout": _number("dropout", self.dropout)}
        near = {"neighbours": self.neighbours, "shrink": self.shrink}
        bound = {"diag_bound": self.diag_bound}
        norm = {} if self.normalizer == "none" else {"normalizer": self.normalizer}
        taken = SESSION.get(name, ())
        clicks = {key: getattr(self, key) for key in SESSION["slist"]}
        if name in ("popularity", "item-knn"):
            unused = {**linear, **bound, **norm, **({} if name == "item-knn" else near)}
            settings = near if name == "item-knn" else {}
        else:
            unused = {**near, **({} if name in BOUNDED else bound)}
            settings = {**linear, **(bound if name in BOUNDED else {})}
        unused |= {key: value for key, value in clicks.items() if key not in taken}
        settings |= {key: value for key, value in clicks.items() if key in taken}
        for option, value in unused.items():
            if value is not None:
                raise SettingError(f"--model {name} has no --{option.replace('_', '-')}; leave it")
        kinds = {"popularity": models.Popularity, "item-knn": models.ItemKNN}
        make: Any = kinds.get(name) or getattr(models, name.upper())
        chosen: dict[str, Any] = {
            key: None if key in taken and value in (0, "none") and key != "mix" else value
            for key, value in settings.items()
            if value is not None
        }
        if make not in kinds.values():
            chosen["normalizer"] = self._normalizer()
        built: Recommender = make(**chosen)
        return built

    def _normalizer(self) -> Normalizer:
        from equipoise import normalize

        name = str(self.normalizer)
        values = {"alpha": _number("alpha", self.alpha), "beta": _number("beta", self.beta)}
        values["gamma"] = self.gamma
        given = {key: value for key, value in values.items() if value is not None}
        for key in given:
            if key not in EXPONENTS.get(name, ()):
                takers = [norm for norm, taken in EXPONENTS.items() if key in taken]
                raise SettingError(f"--{key} needs --normalizer {' or '.join(takers)}, got {name}")
        kinds = {
            "none": normalize.NoNorm,
            "rw": normalize.RandomWalk,
            "sym": normalize.Symmetric,
            "col": normalize.ColumnNorm,
            "user": normalize.UserNorm,
            "item": normalize.ItemNorm,
            "dan": normalize.DAN,
        }
        make: Any = kinds[name]
        built: Normalizer = make(**given)
        return built


@dataclass(frozen=True)
class Where:
    """Where and how precisely to solve; as for `equipoise.plan`."""

    dtype: Annotated[DType, _option("Precision of the solve.", panel="Run")] = DType.float32
    engine: Annotated[Engine, _option("Where the solve runs.", panel="Run")] = Engine.auto
    device: Annotated[str, _option("cpu, or a card such as cuda.", panel="Run")] = "cpu"
    memory: Annotated[str | None, _option("Budget, such as 6GB.", panel="Run")] = None
    scratch: Annotated[
        Path | None, _option("Folder for the tiled engine; a fit goes on from there.", panel="Run")
    ] = None

    def where(self) -> dict[str, Any]:
        """Return these options for a plan or a fit."""
        return {
            "dtype": self.dtype.value,
            "engine": self.engine.value,
            "device": self.device,
            "memory": self.memory,
            "scratch": self.scratch,
        }


@dataclass(frozen=True)
class Run(Where):
    """How a fit is to run; as for `LinearAutoencoder.fit`."""

    threads: Annotated[int | None, _option("At most this many.", panel="Run")] = None
    refine: Annotated[bool, _option("Refine the solve (four times the cost).", panel="Run")] = (
        False
    )

    def fit(self, model: Recommender, data: Interactions) -> Recommender:
        """Fit with a progress line whose estimate comes from `equipoise.plan`."""
        from equipoise.models import LinearAutoencoder
        from equipoise.solve.plan import plan

        if not isinstance(model, LinearAutoencoder):
            with working(f"fitting {type(model).__name__}"):
                return model.fit(data)
        cost = plan(data, **self.where())
        with working(f"fitting {describe(model)} on {data.n_items:,} items", cost.seconds) as say:
            model.fit(
                data,
                refine=self.refine,
                threads=self.threads,
                progress=lambda progress: say(progress.step, progress.steps),
                **self.where(),
            )
        if "auto" in str(model.settings()):
            note(f"chosen from the data: {describe(model)}")
        return model


def describe(model: Recommender) -> str:
    """Return a short name with the numbers, such as "EASE l2=100 DAN(alpha=0.2, beta=0.3)"."""
    settings = model.settings()
    words = [str(settings.pop("model"))]
    norm = settings.pop("normalizer", None)
    for key, value in settings.items():
        number = getattr(model, f"{key}_", value)
        words += [f"{key}={_short(number)}"] if number else []
    if norm is not None and norm["name"] != "NoNorm":
        words.append(exponents(getattr(model, "normalizer_", None) or vars(model)["normalizer"]))
    return " ".join(words)


def exponents(normalizer: Normalizer) -> str:
    """Return a normalizer with its numbers, such as "DAN(alpha=0.2, beta=0.3)"."""
    from equipoise.models.base import plain

    fields = dict(plain(normalizer))
    name = fields.pop("name")
    inner = ", ".join(f"{key}={_short(value)}" for key, value in fields.items())
    return f"{name}({inner})" if inner else str(name)


def _short(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{key}={_short(part)}" for key, part in value.items() if key != "name")
        return f"{value.get('name', '')}({inner})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _number(name: str, text: str | None) -> Any:
    if text is None or text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise SettingError(f"--{name} must be a number or 'auto', got {text!r}") from None
