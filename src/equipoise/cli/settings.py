"""Options that describe a model, and the model they describe.

Options that say how a fit is to run.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.cli.output import note, working
from equipoise.errors import SettingError

if TYPE_CHECKING:
    from equipoise.interactions import Interactions
    from equipoise.models import LowPass, Recommender
    from equipoise.normalize import Normalizer


class Model(StrEnum):
    """Families and their denoising forms, yardsticks, session models, filters, neural models."""

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
    gf_cf = "gf-cf"
    bspm = "bspm"
    turbo_cf = "turbo-cf"
    svd_ae = "svd-ae"
    sgfcf = "sgfcf"
    multvae = "multvae"
    lightgcn = "lightgcn"
    xsimgcl = "xsimgcl"


class Norm(StrEnum):
    """Normalizers."""

    none = "none"
    rw = "rw"
    sym = "sym"
    col = "col"
    user = "user"
    item = "item"
    dan = "dan"


# Options that 0 or "none" switches off.
SWITCHED = ("row_norm", "decay_inference", "decay_time", "decay_position")


# Which exponents a normalizer takes; the others have none of their own.
EXPONENTS = {"col": ("gamma",), "user": ("beta",), "item": ("alpha",), "dan": ("alpha", "beta")}


def option(help: str, *names: str, panel: str = "Model") -> Any:
    """Declare an option in a panel of the help text."""
    return typer.Option(*names, help=help, rich_help_panel=panel)


@dataclass(frozen=True)
class Recipe:
    """A model family, its hyper-parameters and its normalization."""

    model: Annotated[Model | None, option("What to fit. [ease]", "--model", "-m")] = None
    l2: Annotated[str | None, option("Ridge penalty, lambda: a number or auto.", "--l2")] = None
    dropout: Annotated[str | None, option("Denoising, p: 0 (none) to 0.9, or auto.")] = None
    diag_bound: Annotated[float | None, option("For rlae and rdlae, xi: 0 to 1.")] = None
    normalizer: Annotated[Norm, option("Weights of users and items.", "--normalizer", "-n")] = (
        Norm.none
    )
    alpha: Annotated[
        str | None, option("Items (item, dan): larger favours the tail; a number or auto.")
    ] = None
    beta: Annotated[
        str | None, option("Users (user, dan): larger discounts active ones; or auto.")
    ] = None
    gamma: Annotated[float | None, option("Target items (col).")] = None
    neighbours: Annotated[int | None, option("For item-knn.")] = None
    shrink: Annotated[float | None, option("For item-knn.")] = None
    mix: Annotated[float | None, option("For slist: share of whole sessions, 0 to 1.")] = None
    decay_position: Annotated[
        float | None, option("For slit, slist: clicks until a later one weighs 1/e; 0: none.")
    ] = None
    decay_inference: Annotated[
        float | None, option("Sessions: clicks until an earlier one weighs 1/e; 0: none.")
    ] = None
    decay_time: Annotated[
        float | None, option("Sessions: days until an older one weighs 1/e; 0: none.")
    ] = None
    direction: Annotated[
        str | None, option("For slit, slist: the past, sr (last click), part or all.")
    ] = None
    row_norm: Annotated[str | None, option("Sessions: inputs scaled by l1, l2 or none.")] = None
    setting: Annotated[
        list[str] | None,
        option(
            "Any setting by its name in Python: n_factors=256, lowpass.n_factors=512. Repeatable.",
            "--set",
        ),
    ] = None

    @property
    def given(self) -> bool:
        """Whether any of these options was used."""
        return dataclasses.replace(self, setting=self.setting or None) != Recipe()

    def build(self) -> Recommender:
        """Return the unfitted model; options that it would ignore are refused."""
        name = str(self.model or "ease")
        kind = model_class(name)
        taken = [each.name for each in dataclasses.fields(kind) if each.init]
        asked = {key: value for key, value in self._options() if value is not None}
        for key in asked:
            if key not in taken:
                raise SettingError(f"--model {name} has no --{key.replace('_', '-')}; leave it")
        for key, value in _settings(self.setting or []).items():
            if key not in taken:
                raise SettingError(f"--model {name} has no setting {key}; it has {_listed(taken)}")
            asked[key] = value
        chosen = {
            key: None if key in SWITCHED and value in (0, "none") else value
            for key, value in asked.items()
        }
        if "normalizer" in taken:
            chosen["normalizer"] = self._normalizer()
        built: Recommender = kind(**chosen)
        return built

    def _options(self) -> Iterator[tuple[str, Any]]:
        """Yield the options that are settings of a model by the same name."""
        yield "l2", _number("l2", self.l2)
        yield "dropout", _number("dropout", self.dropout)
        yield "normalizer", None if self.normalizer == "none" else self.normalizer
        for key in ("diag_bound", "neighbours", "shrink", "mix", "direction", *SWITCHED):
            yield key, getattr(self, key)

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
    from equipoise.models.saving import plain

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


def model_class(name: str) -> Any:
    """Return the class of a model by its name here: "gf-cf" is `GFCF`."""
    from equipoise import models

    known = {each.lower(): getattr(models, each) for each in models.__all__}
    return known[name.replace("-", "")]


def _settings(given: Iterable[str]) -> dict[str, Any]:
    """Read NAME=VALUE; a value is a number, true, false, null, or else a word."""
    out = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise SettingError(f"--set needs NAME=VALUE, such as n_factors=256, got {text!r}")
        try:
            out[name.replace("-", "_")] = json.loads(value)
        except ValueError:
            out[name.replace("-", "_")] = value
    inner = {key.removeprefix("lowpass."): out.pop(key) for key in [*out] if "lowpass." in key}
    return {**out, "lowpass": _low_pass(inner)} if inner else out


def _low_pass(fields: dict[str, Any]) -> LowPass:
    from equipoise.models import LowPass

    known = [each.name for each in dataclasses.fields(LowPass)]
    for key in fields:
        if key not in known:
            raise SettingError(f"lowpass has no {key}; it has {', '.join(known)}")
    return LowPass(**fields)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(name for name in names if name not in ("normalizer", "lowpass")) or "none"


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


@dataclass(frozen=True)
class Where:
    """Where and how precisely to solve; as for `equipoise.plan`."""

    dtype: Annotated[DType, option("Precision of the solve.", panel="Run")] = DType.float32
    engine: Annotated[Engine, option("Where the solve runs.", panel="Run")] = Engine.auto
    device: Annotated[str, option("cpu, or a card such as cuda.", panel="Run")] = "cpu"
    memory: Annotated[str | None, option("Budget, such as 6GB.", panel="Run")] = None
    scratch: Annotated[
        Path | None, option("Folder for the tiled engine; a fit goes on from there.", panel="Run")
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

    threads: Annotated[int | None, option("At most this many.", panel="Run")] = None
    refine: Annotated[bool, option("Refine the solve (four times the cost).", panel="Run")] = False

    def fit(self, model: Recommender, data: Interactions) -> Recommender:
        """Fit with a progress line whose estimate comes from `equipoise.plan`."""
        from equipoise.models import LinearAutoencoder
        from equipoise.solve.plan import plan

        if not isinstance(model, LinearAutoencoder):
            options = {"device": self.device, "threads": self.threads}
            known = inspect.signature(model.fit).parameters
            with working(f"fitting {type(model).__name__}"):
                fit: Any = model.fit
                fitted: Recommender = fit(data, **{k: v for k, v in options.items() if k in known})
                return fitted
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
