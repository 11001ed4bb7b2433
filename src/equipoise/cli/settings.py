"""Options that choose a model and say how it is fitted."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from equipoise.cli.framework import confirm_duration, note, option, working
from equipoise.errors import SettingError
from equipoise.names import NORMALIZERS, NormalizerName

if TYPE_CHECKING:
    from equipoise.cluster import Partitioned
    from equipoise.data.interactions import Interactions
    from equipoise.data.signals import Signals
    from equipoise.models import Recommender
    from equipoise.normalize import Normalizer

# fmt: off
ModelName = Literal[
    "ease", "lae", "rlae", "edlae", "dlae", "rdlae",
    "popularity", "item-knn",
    "slis", "slit", "slist", "vsknn",
    "gf-cf", "bspm", "turbo-cf", "svd-ae", "sgfcf",
    "multvae", "lightgcn", "xsimgcl",
]
# fmt: on
SignalName = Literal["binary", "count", "sum", "log1p", "bm25", "last"]
EngineName = Literal["auto", "dense", "dual", "tiled", "sparse", "gpu", "neighbourhood"]
Precision = Literal["float32", "float64"]

SIGNAL_SETTINGS = ("transform", "decay", "floor", "reference", "returns")
SHORT = 1e12  # operations that need no question on any machine, nor a measurement
choosing = functools.partial(option, panel="Model")
running = functools.partial(option, panel="Run")


@dataclass(frozen=True)
class ModelOptions:
    """A model, its hyper-parameters and its normalization."""

    model: Annotated[ModelName | None, choosing("What to fit. [ease]", "--model", "-m")] = None
    l2: Annotated[str | None, choosing("Ridge penalty, lambda: a number or auto.", "--l2")] = None
    dropout: Annotated[str | None, choosing("Denoising, p: 0 (none) to 0.9, or auto.")] = None
    diag_bound: Annotated[str | None, choosing("For rlae and rdlae, xi: 0 to 1.")] = None
    normalizer: Annotated[
        NormalizerName | None,
        choosing("Weights of users and items. [none]", "--normalizer", "-n"),
    ] = None
    alpha: Annotated[
        str | None, choosing("Items (item, dan): larger favours the tail; or auto.")
    ] = None
    beta: Annotated[
        str | None, choosing("Users (user, dan): larger discounts active ones; or auto.")
    ] = None
    gamma: Annotated[str | None, choosing("Target items (col).")] = None
    neighbours: Annotated[
        str | None,
        choosing("Of item-knn, vsknn, and of --engine neighbourhood: a number or a time."),
    ] = None
    signals: Annotated[
        SignalName | None, choosing("What repeats and quantities of a pair are worth.")
    ] = None
    decay: Annotated[str | None, choosing("Half-life of an event, such as 30d.")] = None
    floor: Annotated[str | None, choosing("Least that age leaves of an event, 0 to 1. [0.1]")] = (
        None
    )
    event_weights: Annotated[
        str | None, choosing("What kinds of events count: view=1,buy=10.")
    ] = None
    returns: Annotated[
        Literal["net", "negative", "ignore"] | None, choosing("What negative weights are. [net]")
    ] = None
    setting: Annotated[
        list[str] | None,
        choosing(
            "Any setting by its name in Python: n_factors=256, mix=0.3, decay_time=none. "
            "Repeatable.",
            "--set",
        ),
    ] = None

    @property
    def given(self) -> bool:
        """Whether any of these options was used."""
        return dataclasses.replace(self, setting=self.setting or None) != ModelOptions()

    def candidates(self) -> list[Recommender]:
        """Return the unfitted models that a search chooses from: what no option names is open.

        A model of another kind than linear autoencoders stands alone. So does one whose `--l2` and
        `--dropout` are both given, which is ease without a normalizer unless they are named.
        """
        from equipoise.models.linear import LinearAutoencoder

        if self.model is not None and not issubclass(model_class(self.model), LinearAutoencoder):
            return [self.build()]
        complete = self.l2 is not None and self.dropout is not None
        names: tuple[ModelName, ...] = ("ease",) if complete else ("ease", "rlae", "lae")
        if self.diag_bound is not None:
            names = ("rlae",)
        plain = complete and self.alpha is None and self.beta is None
        filled = dataclasses.replace(
            self,
            normalizer=self.normalizer or ("none" if plain else "dan"),
            dropout=self._open_dropout(),
        )
        models = names if self.model is None else (self.model,)
        return [dataclasses.replace(filled, model=name).build() for name in models]

    def _open_dropout(self) -> str | None:
        """Return the dropout a search begins with: beside a number for l2 it would be 0."""
        own = self.model is not None and model_class(self.model)().dropout is not None
        return self.dropout if own or self.dropout is not None or self.l2 is None else "auto"

    @property
    def fixed(self) -> dict[str, str]:
        """Return the options that name a setting of the model, by the name of the setting."""
        names = ("l2", "dropout", "diag_bound", "alpha", "beta", "gamma")
        out = {
            name: f"--{name.replace('_', '-')} {getattr(self, name)}"
            for name in names
            if getattr(self, name) is not None
        }
        if self.signals is not None:
            out["transform"] = f"--signals {self.signals}"
        for name in ("decay", "floor", "event_weights", "returns"):
            if getattr(self, name) is not None:
                out[name] = f"--{name.replace('_', '-')} {getattr(self, name)}"
        for text in self.setting or []:
            name = text.partition("=")[0].replace("-", "_").removeprefix("lowpass.")
            out[name] = f"--set {text}"
        return out

    def build(self) -> Recommender:
        """Return the unfitted model; options that it would ignore are refused."""
        name = self.model or "ease"
        kind = model_class(name)
        taken = [each.name for each in dataclasses.fields(kind) if each.init]
        chosen = self._given("l2", "dropout", "diag_bound", "neighbours")
        if "neighbours" not in taken and "neighbours" in kind.fit_options:
            chosen.pop("neighbours", None)  # how to solve, not what: see `solving`
        normalizer = self._normalizer()
        if self.normalizer not in (None, "none"):
            chosen["normalizer"] = normalizer
        signals = self._signals()
        if signals is not None:
            chosen["signals"] = signals
        for key in chosen:
            if key not in taken:
                option = f"--{key.replace('_', '-')}"
                raise SettingError(f"--model {name} has no {option}; leave it out")
        for key, value in parse_settings(self._model_settings()).items():
            if key not in taken:
                parts = ("normalizer", "lowpass", "signals")
                others = [each for each in taken if each not in parts]
                others += SIGNAL_SETTINGS if "signals" in taken else []
                has = ", ".join(others) or "none"
                raise SettingError(f"--model {name} has no setting {key}; it has {has}")
            chosen[key] = value
        built: Recommender = kind(**chosen)
        return built

    def _model_settings(self) -> list[str]:
        """Return what `--set` gives, without the settings of signals."""
        return [text for text in self.setting or [] if _name(text) not in SIGNAL_SETTINGS]

    def solving(self, model: Recommender) -> dict[str, Any]:
        """Return those options that say how this model is solved for."""
        given = self._given("neighbours")
        return {name: value for name, value in given.items() if not hasattr(model, name)}

    def _given(self, *names: str) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in names}
        return {name: parse(value) for name, value in values.items() if value is not None}

    def _signals(self) -> Signals | None:
        from equipoise.data.signals import Signals

        found: dict[str, Any] = {"transform": self.signals, "decay": self.decay}
        found |= {"floor": parse(self.floor), "returns": self.returns}
        if self.event_weights is not None:
            found["weights"] = parse_weights(self.event_weights)
        for text in self.setting or []:
            value = text.partition("=")[2]
            if _name(text) in SIGNAL_SETTINGS:  # a time keeps its unit, so it stays a text
                timed = _name(text) in ("decay", "reference") and value != "none"
                found[_name(text)] = value if timed else parse(value)
        given = {name: value for name, value in found.items() if value is not None}
        return Signals(**given) if given else None

    def _normalizer(self) -> Normalizer:
        from equipoise import normalize

        kinds = {name: getattr(normalize, kind) for name, kind in NORMALIZERS.items()}
        chosen = self.normalizer or "none"
        exponents = self._given("alpha", "beta", "gamma")
        for key in exponents:
            takers = [name for name, kind in kinds.items() if hasattr(kind, key)]
            if chosen not in takers:
                named = " or ".join(takers)
                raise SettingError(f"--{key} needs --normalizer {named}, got {chosen}")
        built: Normalizer = kinds[chosen](**exponents)
        return built


def _name(text: str) -> str:
    """Return the name of NAME=VALUE as it is in Python."""
    return text.partition("=")[0].replace("-", "_")


def model_class(name: str) -> Any:
    """Return the class of a model by its name here: "gf-cf" is `GFCF`."""
    from equipoise import models

    known = {each.lower(): getattr(models, each) for each in models.__all__}
    return known[name.replace("-", "")]


def parse_settings(given: list[str]) -> dict[str, Any]:
    """Read texts NAME=VALUE; those of the low-pass companion become one `LowPass`.

    >>> parse_settings(["mix=0.3", "decay-time=none", "solver=rk4"])
    {'mix': 0.3, 'decay_time': None, 'solver': 'rk4'}
    """
    out: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise SettingError(f"--set needs NAME=VALUE, such as n_factors=256, got {text!r}")
        out[_name(text)] = parse(value)
    inner = {key: out.pop(key) for key in [*out] if key.startswith("lowpass.")}
    if inner:
        from equipoise.models import LowPass

        known = [each.name for each in dataclasses.fields(LowPass)]
        fields = {key.removeprefix("lowpass."): value for key, value in inner.items()}
        for key in fields:
            if key not in known:
                raise SettingError(f"lowpass has no {key}; it has {', '.join(known)}")
        out["lowpass"] = LowPass(**fields)
    return out


def parse_weights(text: str) -> dict[str, float]:
    """Read what kinds of events count.

    >>> parse_weights("view=1,buy=10")
    {'view': 1.0, 'buy': 10.0}
    """
    out: dict[str, float] = {}
    for part in text.split(","):
        kind, _, value = part.rpartition("=")
        try:
            out[kind.strip()] = float(value)
        except ValueError:
            kind = ""
        if not kind.strip():
            raise SettingError(
                f"--event-weights needs KIND=NUMBER, as view=1,buy=10, got {part!r}"
            )
    return out


def parse(text: Any) -> Any:
    """Return what a text stands for: a number, true, false, none, or else a word."""
    if text == "none":
        return None
    for read in (json.loads, float):
        try:
            return read(text)
        except (TypeError, ValueError):
            continue
    return text


@dataclass(frozen=True)
class PlanOptions:
    """Where and how precisely to solve; as for `equipoise.plan`."""

    dtype: Annotated[Precision, running("Precision of the solve.")] = "float32"
    engine: Annotated[EngineName, running("Where the solve runs.")] = "auto"
    device: Annotated[str, running("cpu, or a GPU such as cuda.")] = "cpu"
    memory: Annotated[str | None, running("Budget, such as 6GB.")] = None
    scratch: Annotated[Path | None, running("Folder for solving on disk, to resume from.")] = None


@dataclass(frozen=True)
class FitOptions(PlanOptions):
    """How a fit is to run; `Recommender.fit` refuses what means nothing to a model."""

    threads: Annotated[int | None, running("At most this many.")] = None
    refine: Annotated[bool, running("Refine the solve (four times the cost).")] = False

    def agree(self, model: Recommender, data: Interactions, yes: bool, **more: Any) -> None:
        """Ask before a solve that takes long."""
        from equipoise.models.linear import LinearAutoencoder

        if isinstance(model, LinearAutoencoder):
            names = [each.name for each in dataclasses.fields(PlanOptions)]
            options = {name: getattr(self, name) for name in names} | more
            confirm_solve_time(data, f"fitting {type(model).__name__}", options, yes=yes)

    def on_workers(self, model: Recommender, data: Interactions | Partitioned) -> bool:
        """Whether workers of a cluster should solve: neighbourhoods, and what outgrew memory."""
        from equipoise.models.linear import LinearAutoencoder
        from equipoise.solve.planning import plan

        if not isinstance(model, LinearAutoencoder) or self.device != "cpu":
            return False
        if self.engine != "auto":
            return self.engine == "neighbourhood"
        size = {name: getattr(data, name) for name in ("n_users", "n_items", "n_interactions")}
        return plan(**size, dtype=self.dtype, memory=self.memory).outgrown

    def of_workers(self) -> dict[str, Any]:
        """Return what is set for a fit by workers; options that these would ignore are refused."""
        near = self.engine == "neighbourhood"  # else a budget says that workers are needed
        for name in ("threads", "refine", *(["memory"] if near else [])):
            if getattr(self, name) not in (None, False):
                raise SettingError(f"workers solve this one without --{name}; leave it out")
        taken = {"dtype": self.dtype, "scratch": self.scratch}
        return taken | ({"engine": self.engine} if near else {})

    def fit(self, model: Recommender, data: Interactions, **more: Any) -> None:
        """Fit with a progress line; what the library plans and finds on the way is noted."""
        options: dict[str, Any] = {**vars(self), **more}
        logger = logging.getLogger("equipoise")
        level = logger.level
        with working(f"fitting {model.summary()} on {data.n_items:,} items") as report:
            if "progress" in model.fit_options:
                # what is done and how much there is come first, for tiles as for epochs
                options["progress"] = lambda state: report(*dataclasses.astuple(state)[:2])
            logger.setLevel(logging.INFO)
            try:
                model.fit(data, **options)
            finally:
                logger.setLevel(level)
        if "auto" in str(model.settings()):
            note(f"chosen from the data: {model.summary()}")


def confirm_solve_time(
    data: Interactions, what: str, options: dict[str, Any], *, solves: int = 1, yes: bool
) -> None:
    """Tell what solves on these items cost and what would be faster, and ask if that is long."""
    from equipoise.runtime.machine import duration
    from equipoise.solve.planning import plan

    found = plan(data, **options)
    if found.flops < SHORT:
        return
    advice = []
    for least in (5, 10, 20, 50, 100):
        kept = int((data.item_counts >= least).sum())
        if 1 < kept < data.n_items:
            smaller = plan(n_users=data.n_users, n_items=kept, n_interactions=data.n_interactions)
            less = smaller.flops / found.flops
            if less < 0.5:
                about = duration(solves * less * found.seconds)
                advice.append(f"--min-item {least} leaves {kept:,} items and takes about {about}")
    if options.get("device", "cpu") == "cpu":
        advice.append("equipoise doctor tells whether there is a GPU, for --device cuda")
    confirm_duration(solves * found.seconds, f"{what} on {data.n_items:,} items", advice, yes)
