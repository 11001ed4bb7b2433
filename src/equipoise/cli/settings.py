"""Options that choose a model and control its fit."""

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
    from equipoise.models.features import Features
    from equipoise.models.trend import Trend
    from equipoise.normalize import Normalizer

# fmt: off
ModelName = Literal[
    "ease", "lae", "rlae", "edlae", "dlae", "rdlae",
    "popularity", "item-knn",
    "slis", "slit", "slist", "vsknn", "stan", "vstan",
    "gf-cf", "bspm", "turbo-cf", "svd-ae", "sgfcf",
    "multvae", "lightgcn", "xsimgcl",
]
# fmt: on
SignalName = Literal["binary", "count", "sum", "log1p", "bm25", "last"]
EngineName = Literal["auto", "dense", "dual", "tiled", "sparse", "gpu", "neighbourhood"]
Precision = Literal["float32", "float64"]

SIGNAL_SETTINGS = ("transform", "decay", "floor", "history_decay", "reference", "returns")
TREND_OPTIONS = ("trend", "trend_half_life", "trend_power", "trend_share", "trend_form")
DAY = 86400.0
NEVER_LONG = 1e12  # floating-point operations that are quick on any machine
model_option = functools.partial(option, panel="Model")
run_option = functools.partial(option, panel="Run")
search_option = functools.partial(option, panel="Search")


@dataclass(frozen=True)
class ModelOptions:
    """A model, its hyper-parameters and its normalization."""

    model: Annotated[ModelName | None, model_option("Model. [ease]", "--model", "-m")] = None
    l2: Annotated[str | None, model_option("Ridge penalty: a number or auto.", "--l2")] = None
    dropout: Annotated[str | None, model_option("Dropout rate, 0 to 0.9, or auto.")] = None
    diag_bound: Annotated[
        str | None, model_option("Bound of the diagonal (rlae, rdlae), 0 to 1.")
    ] = None
    normalizer: Annotated[
        NormalizerName | None, model_option("Normalization. [none]", "--normalizer", "-n")
    ] = None
    alpha: Annotated[
        str | None, model_option("Item exponent (item, dan), or auto; larger favours the tail.")
    ] = None
    beta: Annotated[
        str | None,
        model_option("User exponent (user, dan), or auto; larger discounts active users."),
    ] = None
    gamma: Annotated[str | None, model_option("Exponent of target items (col).")] = None
    neighbours: Annotated[
        str | None,
        model_option(
            "Neighbours (item-knn, vsknn, stan, --engine neighbourhood): a number or a time."
        ),
    ] = None
    signals: Annotated[
        SignalName | None, model_option("Transform of repeated events and quantities.")
    ] = None
    decay: Annotated[str | None, model_option("Half-life of events, such as 30d.")] = None
    floor: Annotated[str | None, model_option("Minimum weight of old events. [0.1]")] = None
    history_decay: Annotated[
        str | None,
        model_option(
            "Half-life of a history's events in its scores, such as 7d; none: all count the same. "
            "[as --decay]"
        ),
    ] = None
    trend: Annotated[
        Literal["none"] | None, model_option("none: leave recent popularity out of the scores.")
    ] = None
    trend_half_life: Annotated[
        str | None, model_option("Half-life of a use in recent popularity. [7d]")
    ] = None
    trend_power: Annotated[
        str | None, model_option("Exponent of recent popularity (multiply), 0 to 1.5. [0.5]")
    ] = None
    trend_share: Annotated[
        str | None,
        model_option("Weight of recent popularity next to the model's scores, 0 to 10. [0.3]"),
    ] = None
    trend_form: Annotated[
        Literal["multiply", "add"] | None,
        model_option("How recent popularity changes the scores. [multiply]"),
    ] = None
    event_weights: Annotated[
        str | None, model_option("Weight of each event type, such as view=1,buy=10.")
    ] = None
    returns: Annotated[
        Literal["net", "negative", "ignore"] | None,
        model_option("Meaning of negative weights. [net]"),
    ] = None
    features: Annotated[
        str | None,
        model_option(
            "Attributes that describe new items: auto (all in the catalogue), none, or names with "
            "commas. [none; auto where settings are searched]"
        ),
    ] = None
    setting: Annotated[
        list[str] | None,
        model_option(
            "Any Python setting, such as n_factors=256 or decay_time=none; repeatable.", "--set"
        ),
    ] = None

    @property
    def is_used(self) -> bool:
        """Return whether any of these options was used."""
        return dataclasses.replace(self, setting=self.setting or None) != ModelOptions()

    def candidates(self) -> list[Recommender]:
        """Return the unfitted models that a search chooses from.

        Models other than linear autoencoders have no alternatives. `--l2` with `--dropout` means
        ease without a normalizer, unless `--model` or `--normalizer` is used.
        """
        from equipoise.models.linear import LinearAutoencoder

        if self.model is not None and not issubclass(model_class(self.model), LinearAutoencoder):
            return [self.build()]
        is_complete = self.l2 is not None and self.dropout is not None
        names: tuple[ModelName, ...] = ("ease",) if is_complete else ("ease", "rlae", "lae")
        if self.diag_bound is not None:
            names = ("rlae",)
        if self.model is not None:
            names = (self.model,)
        is_plain = is_complete and self.alpha is None and self.beta is None
        completed = dataclasses.replace(
            self,
            normalizer=self.normalizer or ("none" if is_plain else "dan"),
        )
        return [dataclasses.replace(completed, model=name).build() for name in names]

    @property
    def fixed(self) -> dict[str, str]:
        """Return the used options by the name of the model's setting; "trend" is one setting."""
        names = ("l2", "dropout", "diag_bound", "alpha", "beta", "gamma", "signals", "decay")
        out = {}
        for name in (*names, "floor", "history_decay", "event_weights", "returns"):
            if getattr(self, name) is not None:
                setting = "transform" if name == "signals" else name
                out[setting] = self._spelled(name)
        if used := [self._spelled(name) for name in TREND_OPTIONS if getattr(self, name)]:
            out["trend"] = " ".join(used)
        for text in self.setting or []:
            out[_setting_name(text).removeprefix("lowpass.")] = f"--set {text}"
        return out

    def _spelled(self, name: str) -> str:
        """Return an option as it is typed."""
        return f"--{name.replace('_', '-')} {getattr(self, name)}"

    def build(self) -> Recommender:
        """Return the unfitted model; raise on options that it does not have."""
        name = self.model or "ease"
        kind = model_class(name)
        fields = [field.name for field in dataclasses.fields(kind) if field.init]
        settings = self._parsed("l2", "dropout", "diag_bound", "neighbours")
        if self.model is None and self.l2 is None:
            settings.setdefault("dropout", "auto")  # no family named: all settings from the data
        if "neighbours" not in fields and "neighbours" in kind._fit_options():
            settings.pop("neighbours", None)  # an argument of fit(): see `fit_arguments`
        normalizer = self._normalizer()
        if self.normalizer not in (None, "none"):
            settings["normalizer"] = normalizer
        signals = self._signals()
        if signals is not None:
            settings["signals"] = signals
        trend = self._trend()
        if trend is not None:
            settings["trend"] = trend
        features = self._features()
        if features is not None:
            settings["features"] = features
        for key in settings:
            if key not in fields:
                option = f"--{key.replace('_', '-')}"
                raise SettingError(f"--model {name} has no {option}; leave it out")
        texts = [t for t in self.setting or [] if _setting_name(t) not in SIGNAL_SETTINGS]
        for key, value in parse_settings(texts).items():
            if key not in fields:
                parts = ("normalizer", "lowpass", "signals", "trend", "features")
                known = [f for f in fields if f not in parts]
                known += SIGNAL_SETTINGS if "signals" in fields else []
                listed = ", ".join(known) or "none"
                raise SettingError(f"--model {name} has no setting {key}; it has {listed}")
            settings[key] = value
        built: Recommender = kind(**settings)
        return built

    def fit_arguments(self, model: Recommender) -> dict[str, Any]:
        """Return the options that are arguments of this model's fit()."""
        parsed = self._parsed("neighbours")
        return {name: value for name, value in parsed.items() if not hasattr(model, name)}

    def _parsed(self, *names: str) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in names}
        return {name: parse(value) for name, value in values.items() if value is not None}

    def _signals(self) -> Signals | None:
        from equipoise.data.signals import Signals

        settings: dict[str, Any] = {"transform": self.signals, "decay": self.decay}
        settings |= {"floor": parse(self.floor), "returns": self.returns}
        settings |= {"history_decay": self.history_decay}
        if self.event_weights is not None:
            settings["weights"] = parse_weights(self.event_weights)
        for text in self.setting or []:
            name, value = _setting_name(text), text.partition("=")[2]
            if name in SIGNAL_SETTINGS:  # a time keeps its unit, so it stays text
                is_time = name in ("decay", "history_decay", "reference")
                settings[name] = value if is_time and value != "none" else parse(value)
        settings = {name: value for name, value in settings.items() if value is not None}
        if settings.get("history_decay") == "none":
            settings["history_decay"] = None
        return Signals(**settings) if settings else None

    def _trend(self) -> Trend | None:
        from equipoise.models.trend import Trend

        values = {name: getattr(self, name) for name in TREND_OPTIONS[1:]}
        settings = {
            name.removeprefix("trend_"): value if name == "trend_half_life" else parse(value)
            for name, value in values.items()
            if value is not None
        }
        if self.trend is not None and settings:
            raise SettingError(
                "--trend none cannot be combined with other trend options; leave them out"
            )
        return Trend(**settings) if settings else None

    def _features(self) -> Features | None:
        from equipoise.models.features import Features

        if self.features in (None, "none"):
            return None
        if self.features == "auto":
            return Features()
        return Features(attributes=tuple(name.strip() for name in self.features.split(",")))

    def _normalizer(self) -> Normalizer:
        from equipoise import normalize

        kinds = {name: getattr(normalize, kind) for name, kind in NORMALIZERS.items()}
        name = self.normalizer or "none"
        exponents = self._parsed("alpha", "beta", "gamma")
        for key in exponents:
            supporting = [name for name, kind in kinds.items() if hasattr(kind, key)]
            if name not in supporting:
                needed = " or ".join(supporting)
                raise SettingError(f"--{key} needs --normalizer {needed}, got {name}")
        built: Normalizer = kinds[name](**exponents)
        return built


def _setting_name(text: str) -> str:
    """Return the name in NAME=VALUE as spelled in Python."""
    return text.partition("=")[0].replace("-", "_")


def model_class(name: str) -> Any:
    """Return the class of a model by its name here: "gf-cf" is `GFCF`."""
    from equipoise import models

    classes = {name.lower(): getattr(models, name) for name in models.__all__}
    return classes[name.replace("-", "")]


def parse_settings(texts: list[str]) -> dict[str, Any]:
    """Parse NAME=VALUE texts; lowpass.NAME=VALUE become one `LowPass`.

    >>> parse_settings(["mix=0.3", "decay-time=none", "solver=rk4"])
    {'mix': 0.3, 'decay_time': None, 'solver': 'rk4'}
    """
    out: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise SettingError(f"--set needs NAME=VALUE, such as n_factors=256, got {text!r}")
        out[_setting_name(text)] = parse(value)
    prefix = "lowpass."
    lowpass = {key[len(prefix) :]: out.pop(key) for key in [*out] if key.startswith(prefix)}
    if lowpass:
        from equipoise.models import LowPass

        known = [field.name for field in dataclasses.fields(LowPass)]
        for key in lowpass:
            if key not in known:
                raise SettingError(f"lowpass has no {key}; it has {', '.join(known)}")
        out["lowpass"] = LowPass(**lowpass)
    return out


def parse_weights(text: str) -> dict[str, float]:
    """Parse the weights of kinds of events.

    >>> parse_weights("view=1,buy=10")
    {'view': 1.0, 'buy': 10.0}
    """
    out: dict[str, float] = {}
    for pair in text.split(","):
        kind, _, value = pair.rpartition("=")
        try:
            out[kind.strip()] = float(value)
        except ValueError:
            kind = ""
        if not kind.strip():
            raise SettingError(f"--event-weights must look like view=1,buy=10, got {pair!r}")
    return out


def parse(text: Any) -> Any:
    """Return the value of a text: a number, true, false or none, else the text itself."""
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
    """Engine, device and precision of a solve; as for `equipoise.plan`."""

    dtype: Annotated[Precision, run_option("Precision of the solve.")] = "float32"
    engine: Annotated[EngineName, run_option("Solver.")] = "auto"
    device: Annotated[str, run_option("cpu, or a GPU such as cuda.")] = "cpu"
    memory: Annotated[str | None, run_option("Memory budget, such as 6GB.")] = None
    scratch: Annotated[
        Path | None, run_option("Folder for solving on disk; an interrupted solve resumes.")
    ] = None

    def plan_arguments(self) -> dict[str, Any]:
        """Return the arguments of `equipoise.plan`."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(PlanOptions)}


@dataclass(frozen=True)
class RunOptions(PlanOptions):
    """Run options of a search, which are those of its fits."""

    threads: Annotated[int | None, run_option("Maximum number of threads.")] = None


@dataclass(frozen=True)
class SearchOptions:
    """Extent and goal of a search."""

    criterion: Annotated[
        Literal["time", "leave-one-out"] | None,
        search_option(
            "How settings are compared on DATA: time, on the periods after several cuts; "
            "leave-one-out, on training users left out of the fit. [time if DATA has times]"
        ),
    ] = None
    horizon: Annotated[
        str | None,
        search_option(
            "Length of a period (--criterion time), such as 7d. [a tenth of the events]"
        ),
    ] = None
    folds: Annotated[
        int | None, search_option("Number of periods (--criterion time). [3, or as many as fit]")
    ] = None
    prefer: Annotated[
        Literal["tail", "balance", "accuracy"] | None,
        search_option("Goal of --criterion leave-one-out, which this option implies. [balance]"),
    ] = None
    trials: Annotated[
        int | None,
        search_option("Number of solves. [time: about 10; leave-one-out: 7; split: 50]"),
    ] = None
    budget: Annotated[str | None, search_option("Time for the search, such as 10m or 2h.")] = None

    def by_time(self, data: Interactions) -> bool:
        """Return whether settings are measured on the last periods of the data."""
        if self.criterion is not None:
            return self.criterion == "time"
        if self.horizon is not None or self.folds is not None:
            return True
        return _has_times(data) and self.prefer is None

    def n_solves(self, data: Interactions) -> int:
        """Return about how many solves a search makes, the fits of earlier periods included."""
        from equipoise.evaluation.backtest import half_lives
        from equipoise.tuning.search import FEW, FOLDS

        if not (self.by_time(data) and _has_times(data)):
            return self.trials or FEW
        n_periods = FOLDS if self.folds is None else self.folds
        return (self.trials or FEW + len(half_lives(data, least=DAY))) + n_periods

    def refuse(self, reason: str) -> None:
        """Raise if one of these options was used."""
        options = [f"--{name}" for name in vars(self)]
        used = [f"--{name}" for name, value in vars(self).items() if value is not None]
        if used:
            raise SettingError(
                f"{used[0]} is for a search, and nothing is searched: {reason}; leave it out "
                f"(as {', '.join(options[:-1])} and {options[-1]})"
            )


def _has_times(data: Interactions) -> bool:
    return data.events is not None and data.events.times is not None


@dataclass(frozen=True)
class FitOptions(RunOptions):
    """Arguments of `Recommender.fit`, which refuses those that a model does not support."""

    refine: Annotated[bool, run_option("Refine the solve (four times the cost).")] = False

    def confirm(
        self,
        model: Recommender,
        data: Interactions,
        activity: str,
        *,
        solves: int = 1,
        yes: bool,
        **more: Any,
    ) -> None:
        """Ask before long solves."""
        from equipoise.models.linear import LinearAutoencoder

        if isinstance(model, LinearAutoencoder):
            options = self.plan_arguments() | more
            confirm_solve_time(data, activity, options, solves=solves, yes=yes)

    def keywords(self, **more: Any) -> dict[str, Any]:
        """Return the options that differ from their defaults, checked, as arguments of a fit."""
        from equipoise.solve.planning import SolveOptions

        return SolveOptions(**vars(self), **more).keywords()

    def needs_workers(self, model: Recommender, data: Interactions | Partitioned) -> bool:
        """Return whether a cluster should solve: neighbourhoods, and data too big for memory."""
        from equipoise.models.linear import LinearAutoencoder
        from equipoise.solve.planning import plan

        if not isinstance(model, LinearAutoencoder) or self.device != "cpu":
            return False
        if self.engine != "auto":
            return self.engine == "neighbourhood"
        size = {name: getattr(data, name) for name in ("n_users", "n_items", "n_interactions")}
        return plan(**size, dtype=self.dtype, memory=self.memory).outgrown

    def worker_arguments(self) -> dict[str, Any]:
        """Return the arguments of a fit on workers; raise on options that it would ignore."""
        is_local = self.engine == "neighbourhood"  # otherwise --memory selects the workers
        for name in ("threads", "refine", *(["memory"] if is_local else [])):
            if getattr(self, name) not in (None, False):
                raise SettingError(f"a fit on workers does not support --{name}; leave it out")
        arguments = {"dtype": self.dtype, "scratch": self.scratch}
        return arguments | ({"engine": self.engine} if is_local else {})

    def fit(self, model: Recommender, data: Interactions, **more: Any) -> None:
        """Fit with a progress line, and print the library's log lines."""
        options = self.keywords(**more)
        logger = logging.getLogger("equipoise")
        level = logger.level
        with working(f"fitting {model.label} on {data.n_items:,} items") as report:
            if "progress" in model._fit_options():
                # the first two fields are steps done and steps in all, for tiles and epochs
                options["progress"] = lambda state: report(*dataclasses.astuple(state)[:2])
            logger.setLevel(logging.INFO)
            try:
                model.fit(data, **options)
            finally:
                logger.setLevel(level)
        if "auto" in str(model.settings()):
            note(f"automatic settings: {model.summary()}")


def confirm_solve_time(
    data: Interactions, activity: str, options: dict[str, Any], *, solves: int = 1, yes: bool
) -> None:
    """Before long solves: print their time and what would be faster, and ask."""
    from equipoise.runtime.machine import duration
    from equipoise.solve.planning import plan

    cost = plan(data, **options)
    if cost.flops < NEVER_LONG:
        return
    advice = []
    for min_item in (5, 10, 20, 50, 100):
        n_items = int((data.item_counts >= min_item).sum())
        if 1 < n_items < data.n_items:
            n_users, n_interactions = data.n_users, data.n_interactions
            smaller = plan(n_users=n_users, n_items=n_items, n_interactions=n_interactions)
            share = smaller.flops / cost.flops
            if share < 0.5:
                time = duration(solves * share * cost.seconds)
                advice.append(
                    f"--min-item {min_item} leaves {n_items:,} items and takes about {time}"
                )
    if options.get("device", "cpu") == "cpu":
        advice.append("equipoise doctor shows whether there is a GPU, for --device cuda")
    confirm_duration(solves * cost.seconds, f"{activity} on {data.n_items:,} items", advice, yes)
