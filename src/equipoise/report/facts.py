"""The contents of a report as one plain dict, ready for JSON."""

from __future__ import annotations

import datetime
import itertools
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import numpy as np
import numpy.typing as npt

import equipoise
from equipoise.automatic import alpha_from_gini, beta_from_homophily
from equipoise.checks import count, cutoff, function
from equipoise.data.interactions import Interactions
from equipoise.data.split import Split, strong
from equipoise.data.statistics import Statistics, describe
from equipoise.errors import DataError
from equipoise.evaluation.backtest import (
    Backtest,
    backtest,
    best_half_life,
    folds_of,
    half_lives,
    popular_lately,
)
from equipoise.evaluation.comparison import compare
from equipoise.evaluation.evaluator import evaluate
from equipoise.evaluation.metrics import exposure, head_items
from equipoise.evaluation.results import Result
from equipoise.models import EASE, ItemKNN, Popularity, Recommender
from equipoise.normalize import DAN
from equipoise.ranking.ranker import Ranked
from equipoise.report import users as shown_users
from equipoise.runtime import machine
from equipoise.solve.planning import plan
from equipoise.tuning import tune

ALPHAS = tuple(step / 20 for step in range(11))
SLICES = ("all", "head", "tail", "unbiased")
BEYOND = ("coverage", "gini", "popularity", "novelty", "lift")
DIAL = ("ndcg", "recall", "head_ndcg", "tail_ndcg", "unbiased_ndcg", "coverage", "popularity")
RECENT = "Popular lately"
FORECAST_LENGTH = 20  # of the lists in the last periods
CURVE = 61  # points of an exposure curve
STEPS = 7
TIME_STEPS = 2  # more where the data have times: recent popularity, and the last periods
FOLDS = 3  # of these periods
FEW = 5000  # with fewer users a fifth of them is the test part, else a tenth
# Operations that a search over three settings may take, half a minute on two cores; above it the
# automatic settings are used. Not a time: the same data must give the same report anywhere.
EFFORT = 2e12
# Values tried besides the automatic l2, without and with data-adaptive normalization
L2_PLAIN, L2_ADAPTIVE = (100.0, 400.0), (5.0, 20.0)


def collect(
    data: Interactions | Split,
    *,
    name: str = "your data",
    model: Recommender | None = None,
    k: int = 20,
    sample: int = 6,
    users: Sequence[Any] | None = None,
    seed: int = 0,
    bootstrap: int = 1000,
    command: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Split the data, fit and evaluate models, and return the contents of a report.

    Parameters
    ----------
    data
        A split, or interactions, which are split by users (strong, with this seed).
    name
        Name of the data in headings.
    model
        Fitted model to report on; default: EASE with data-adaptive normalization. It is refitted
        with its settings unless it was fitted on the train part.
    k
        Length of the lists.
    sample
        Number of test users to show.
    users
        Ids of the users to show instead of a sample.
    seed
        Random seed of the split and the sample.
    bootstrap
        Resamples of the intervals.
    command
        Command line to print in the report.
    progress
        Called with steps done and steps in all.
    """
    cutoff("k", k)
    count("sample", sample, 0)
    function("progress", progress)
    clock, done = Clock(), itertools.count(1)
    has_times = _has_times(data)
    n_steps = STEPS + (TIME_STEPS if has_times else 0)
    models: list[dict[str, Any]] = []
    results: list[Result] = []

    def step() -> None:
        if progress is not None:
            progress(next(done), n_steps)

    def add(title: str, fitted: Recommender, seconds: float) -> None:
        with clock("evaluate"):
            counting = CountingModel(fitted, k)
            results.append(evaluate(counting, split.test, k, name=title, bootstrap=bootstrap))
            models.append(_model_facts(fitted, results[-1], counting.shown, seconds))
        step()

    with clock("split and describe"):
        split = data if isinstance(data, Split) else _split(data, seed)
        if users is None:
            rows = shown_users.sample_rows(split.test, sample, seed)
        else:  # raises on unknown users before the work starts
            rows = shown_users.rows_of_users(split.test, users)
        statistics = describe(split.train)
    step()
    baselines: dict[str, Recommender] = {"Popularity": Popularity()}
    if has_times:
        with clock("choose the half-life"):
            baselines[RECENT] = _recent_popularity(split.train)
    baselines["Item-kNN"] = ItemKNN(neighbours=20)
    for title, baseline in baselines.items():
        with clock(f"fit {title}"):
            baseline.fit(split.train)
        add(title, baseline, clock.seconds[f"fit {title}"])
    plain, seconds, note = fit_best_l2("EASE", EASE(dropout=0.0), L2_PLAIN, split, k, clock)
    add("EASE", plain, seconds)
    choices = [note]
    if model is None:
        alpha = alpha_from_gini(statistics.gini_items)
        adaptive = DAN(alpha, beta_from_homophily(statistics.homophily))
        prototype = EASE(dropout="auto", normalizer=adaptive)
        main, seconds, note = fit_best_l2("EASE + DAN", prototype, L2_ADAPTIVE, split, k, clock)
        title = _model_title(main)
    else:
        main, seconds, note = _refit(model, split, clock)
        title = f"Your model, {_model_title(main)}"
        choices += _estimate_sentence(model)
    add(title, main, seconds)
    forecast = None if model is None else _stored_forecast(model)
    if has_times:
        if forecast is None:
            with clock("test the last periods"):
                everything = data if isinstance(data, Interactions) else split.train
                forecast = _measured_forecast(main if model is None else model, everything)
        step()
    with clock("turn the dial"):
        dial = _dial(main, split, k)
    step()
    with clock("show users"):
        alphas = [row["alpha"] for row in dial["rows"]] if dial else [None]
        portraits = shown_users.portraits(main, plain, split.test, rows, alphas)
    step()
    return {
        "name": name,
        "k": k,
        "forecast": forecast,
        "data": _data_facts(data, split, statistics),
        "models": models,
        "training_curve": concentration(split.train.item_counts),
        "choices": [*choices, note],
        "tests": _tests(results, k),
        "dial": dial,
        "users": portraits,
        "costs": _costs(split, clock),
        "definitions": _definitions(results[-1]),
        "provenance": _provenance(split, results[-1], seed, command),
    }


class Clock:
    """Adds up the seconds of named steps."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        """Time a block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            passed = time.perf_counter() - start
            self.seconds[step] = self.seconds.get(step, 0.0) + passed


@dataclass
class CountingModel:
    """A model with the dial at `alpha` that counts how often its lists show each item."""

    model: Recommender
    k: int
    alpha: float | None = None
    shown: npt.NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.item_index_ = self.model.item_index_
        self.item_counts_ = self.model.item_counts_
        self.data_fingerprint_ = self.model.data_fingerprint_
        self.settings = self.model.settings
        self.shown = np.zeros(len(self.item_counts_), np.int64)

    def rank(self, history: Interactions, k: int, *, exclude_seen: bool = True) -> Ranked:
        """Rank with the dial applied and count the listed items."""
        ranked = self.model.rank(history, k, exclude_seen=exclude_seen, alpha=self.alpha)
        self.shown += exposure(ranked.items, self.k, len(self.shown))
        return ranked


def fit_best_l2(
    name: str, prototype: EASE, l2: Sequence[float], split: Split, k: int, clock: Clock
) -> tuple[Recommender, float, str]:
    """Fit with the l2 that is best on the valid part; return model, seconds and a remark.

    Uses the automatic l2 without a valid part, or if the solves would take too long.
    """
    with clock("plan"):
        flops = plan(split.train).flops
    values = ["auto", *l2]
    if split.valid is None or flops * len(values) > EFFORT:
        with clock(f"fit {name}"):
            prototype.fit(split.train)
        remark = f"{name}: the automatic settings, without a search"
        return prototype, clock.seconds[f"fit {name}"], remark
    with clock(f"fit and choose {name}"):
        tuned = tune(prototype, split, grid={"l2": values}, metric=f"ndcg@{k}", objectives=())
    remark = f"{name}: the best of {len(values)} settings by NDCG@{k} on the valid part"
    return tuned.model, tuned.fit_seconds, remark


def _refit(model: Recommender, split: Split, clock: Clock) -> tuple[Recommender, float, str]:
    """Return the user's model, refitted unless it was fitted on the train part."""
    if model.data_fingerprint_ == split.train.fingerprint:
        return model, 0.0, "the given model, as it was fitted on the train part"
    with clock("fit your model"):
        again = model.clone().fit(split.train)
    why = "the given model, refitted on the train part because it was fitted on other users"
    return again, clock.seconds["fit your model"], why


def _estimate_sentence(model: Recommender) -> list[str]:
    """Return the leave-one-out estimate of a model as a sentence, if it has one."""
    estimate = model.estimate_
    if estimate is None or estimate["protocol"] == "time":
        return []
    words = [
        f"{name} {figure['value']:.4f} [{figure['low']:.4f}, {figure['high']:.4f}]"
        for name, figure in estimate["values"].items()
        if "ndcg" in name and figure.keys() == {"value", "low", "high"}
    ]
    users = f"{estimate['n_users']:,} of its training users by leave-one-out"
    return [f"the given model as it was fitted, on {users}: {', '.join(words)}"]


def _has_times(data: Interactions | Split) -> bool:
    """Whether periods at the end of the data can be cut off; sessions are not cut so."""
    if isinstance(data, Split):
        return data.protocol != "session" and _has_times(data.train)
    return data.events is not None and data.events.times is not None


def _recent_popularity(train: Interactions) -> Recommender:
    """Return recent popularity with the half-life that is best in the last period."""
    candidates = half_lives(train)
    try:
        (fold,) = folds_of(train, folds=1)
        return popular_lately(best_half_life(fold.train, fold.part, candidates))
    except DataError:  # nobody from before is active in that period
        return popular_lately(candidates[-1])


def _stored_forecast(model: Recommender) -> dict[str, Any] | None:
    """Return the figures that were stored when the settings of a model were chosen by time."""
    estimate = model.estimate_
    if estimate is None or estimate["protocol"] != "time":
        return None
    ((metric, figure),) = estimate["values"].items()
    periods = estimate["periods"]
    others = estimate["yardsticks"].items()
    of_others = estimate.get("yardstick_periods", {})  # models saved before have none
    return {
        "origin": "measured when the settings were chosen, those of each period on the others",
        "metric": metric,
        **{name: figure[name] for name in ("value", "low", "high")},
        "periods": [{"days": days} for days in periods],
        "rows": [
            {"name": "this model", "value": figure["value"], "periods": list(periods.values())},
            *(
                {"name": name, "value": value, "periods": [*of_others.get(name, {}).values()]}
                for name, value in others
            ),
        ],
        "verdict": estimate["verdict"],
        "notes": [],
    }


def _measured_forecast(model: Recommender, data: Interactions) -> dict[str, Any] | None:
    """Return a backtest on the last periods; None if it takes too long or is not defined."""
    if model.ordered or plan(data).flops * FOLDS > EFFORT:
        return None
    try:
        tested = backtest(model, data, folds=FOLDS, bootstrap=0)
    except DataError:  # nobody from before is active in these periods
        return None
    return _forecast_facts(tested)


def _forecast_facts(tested: Backtest) -> dict[str, Any]:
    metric = f"ndcg@{FORECAST_LENGTH}"
    value, error = tested.value(metric), tested.error(metric)
    shares = ("unknown_items", "unknown_users", "repeated")
    return {
        "origin": "the model with its settings, refitted before each period",
        "metric": metric,
        "value": value,
        "low": max(value - 2 * error, 0.0),
        "high": value + 2 * error,
        "periods": [
            {
                "days": fold.cut.days,
                "users": fold.part.n_users,
                **{name: getattr(fold, name) for name in shares},
            }
            for fold in tested.folds
        ],
        "rows": [
            {
                "name": "this model" if name == tested.name else name,
                "value": tested.value(metric, name),
                "periods": tested.values(metric, name),
            }
            for name in tested.results
        ],
        "verdict": tested.verdict,
        "notes": list(tested.notes),
    }


def _model_title(model: Recommender) -> str:
    return model.label.replace("+", " + ")


def _split(data: Interactions, seed: int) -> Split:
    return strong(data, valid=0.1, test=0.1 if data.n_users >= FEW else 0.2, seed=seed)


def _data_facts(data: Interactions | Split, split: Split, described: Statistics) -> dict[str, Any]:
    interactions = data if isinstance(data, Interactions) else None
    sizes = ("n_users", "n_items", "n_interactions")
    return {
        **described.to_dict(),
        "whole": interactions and {size: getattr(interactions, size) for size in sizes},
        "alpha": alpha_from_gini(described.gini_items),
        "beta": beta_from_homophily(described.homophily),
        "notes": list(dict.fromkeys([*(interactions or split.train).notes, *split.notes])),
    }


def _model_facts(
    model: Recommender, result: Result, shown: npt.NDArray[np.int64], seconds: float
) -> dict[str, Any]:
    cells = {
        (row["metric"], row["slice"]): {key: row[key] for key in ("value", "low", "high")}
        for row in result.table.iter_rows(named=True)
    }
    return {
        "name": result.name,
        "settings": model.summary(),
        "fit_seconds": seconds,
        "rank_seconds": result.seconds["rank"],
        "accuracy": {
            metric: {part: cells[metric, part] for part in SLICES} for metric in ("ndcg", "recall")
        },
        "beyond": {name: cells[name, "all"]["value"] for name in BEYOND},
        "curve": concentration(shown),
    }


def concentration(counts: npt.NDArray[np.int64]) -> dict[str, list[float]]:
    """Return the cumulative share of counts over the share of items, most counted first.

    The points are denser near 0, where lists differ.

    >>> concentration(np.array([0, 4, 0, 0]))["held"][-1]
    1.0
    """
    ranked = np.sort(counts)[::-1]
    running = np.concatenate([[0], np.cumsum(ranked)]) / max(int(counts.sum()), 1)
    share = np.linspace(0, 1, CURVE) ** 2
    cumulative = np.interp(share * len(counts), np.arange(len(counts) + 1), running)
    return {"items": share.round(5).tolist(), "held": cumulative.round(5).tolist()}


def _tests(results: list[Result], k: int) -> list[dict[str, Any]]:
    """Compare the last model with plain EASE per user, over all items and the tail."""
    pair = {result.name: result for result in results[-2:]}
    out = []
    for part in ("", "tail_"):
        metric = f"{part}ndcg@{k}"
        if results[-1].per_user[metric].drop_nulls().len():
            (row,) = compare(pair, metric).to_frame().iter_rows(named=True)
            out.append({"metric": metric, "over": part.rstrip("_") or "all", **row})
    return out


def _dial(model: Recommender, split: Split, k: int) -> dict[str, Any] | None:
    """Evaluate the model at every alpha of the dial; None if it has no dial."""
    fitted_alpha = model.alpha_
    if fitted_alpha is None:
        return None
    tail = ~head_items(model.item_counts_)
    rows = []
    other_alphas = (alpha for alpha in ALPHAS if abs(alpha - fitted_alpha) > 0.01)
    for alpha in sorted([fitted_alpha, *other_alphas]):
        counting = CountingModel(model, k, alpha)
        result = evaluate(counting, split.test, k, metrics=DIAL, bootstrap=0)
        values = result.to_dict()["values"]
        row: dict[str, Any] = {name: values[f"{name}@{k}"] for name in DIAL}
        row["alpha"] = alpha
        row["tail_share"] = float(counting.shown[tail].sum() / max(int(counting.shown.sum()), 1))
        rows.append(row)
    return {"own": [row["alpha"] for row in rows].index(fitted_alpha), "rows": rows}


def _costs(split: Split, clock: Clock) -> dict[str, Any]:
    cost = plan(split.train)
    return {
        "seconds": clock.seconds,
        "total": sum(clock.seconds.values()),
        "fit_bytes": cost.peak_bytes,
        "peak_bytes": _peak_bytes(),
        "cores": machine.count(),
        "machine": platform.machine(),
    }


def _peak_bytes() -> int | None:
    """Return the peak memory of this process, if the system reports it."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if platform.system() == "Darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


def _definitions(result: Result) -> dict[str, str]:
    names = ("recall", "ndcg", "head_ndcg", "tail_ndcg", "unbiased_ndcg", *BEYOND)
    return {name: result.definitions[name] for name in names}


def _provenance(split: Split, result: Result, seed: int, command: str | None) -> dict[str, Any]:
    packages = ("numpy", "scipy", "polars", "numba")
    created = os.environ.get("SOURCE_DATE_EPOCH")
    moment = datetime.datetime.now(datetime.UTC)
    if created is not None and created.isdecimal():
        moment = datetime.datetime.fromtimestamp(int(created), datetime.UTC)
    return {
        "protocol": split.protocol,
        "seed": split.seed if split.seed is not None else seed,
        "bootstrap": result.bootstrap,
        "train": {"users": split.train.n_users, "fingerprint": split.train.fingerprint},
        "valid": split.valid and {"users": split.valid.n_users},
        "test": {"users": split.test.n_users, "fingerprint": split.test.fingerprint},
        "split_fingerprint": split.fingerprint,
        "settings": result.settings,
        "versions": {
            "equipoise": equipoise.__version__,
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in packages},
        },
        "system": platform.system(),
        "command": command,
        "created": moment.strftime("%Y-%m-%d %H:%M UTC"),
    }
