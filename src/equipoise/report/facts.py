"""Everything a report says, as one plain dict: no drawing, no markup, ready for JSON."""

from __future__ import annotations

import datetime
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
CURVE = 61  # points of a curve of exposure
STEPS = 7
FEW = 5000  # with fewer users a fifth of them is held out to report on, else a tenth
# Operations that a search over three settings may take, half a minute on two cores; with more the
# automatic ones are taken. Not a time: the same data must give the same report anywhere.
EFFORT = 2e12
# Tried on the valid part beside the automatic l2, without and with data-adaptive normalization
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
    """Split, fit, evaluate and explain; return all that a report shows.

    Parameters
    ----------
    data
        Interactions, which are split by users (strong, with this seed), or a split.
    name
        What the data are called in headings.
    model
        A fitted model to report on; left out: EASE with data-adaptive normalization. If it was
        not fitted on the train part, a new one is, with its settings.
    k
        Length of the lists.
    sample
        How many users of the test part to show.
    users
        Ids of the users to show instead.
    seed
        For the split and the sample.
    bootstrap
        Resamples behind the intervals.
    command
        The command line that made the report, to be printed in it.
    progress
        Called with the number of steps done and of all steps.
    """
    cutoff("k", k)
    count("sample", sample, 0)
    function("progress", progress)
    clock, done = Clock(), iter(range(1, STEPS + 1))
    models: list[dict[str, Any]] = []
    results: list[Result] = []

    def step() -> None:
        if progress is not None:
            progress(next(done), STEPS)

    def add(title: str, fitted: Recommender, seconds: float) -> None:
        with clock("evaluate"):
            watched = Watched(fitted, k)
            results.append(evaluate(watched, split.test, k, name=title, bootstrap=bootstrap))
            models.append(_model(fitted, results[-1], watched.shown, seconds))
        step()

    with clock("split and describe"):
        split = data if isinstance(data, Split) else _split(data, seed)
        if users is None:
            rows = shown_users.sampled(split.test, sample, seed)
        else:  # an unknown one is told before the work, not after
            rows = shown_users.named(split.test, users)
        found = describe(split.train)
    step()
    for title, baseline in (("Popularity", Popularity()), ("Item-kNN", ItemKNN(neighbours=20))):
        with clock(f"fit {title}"):
            baseline.fit(split.train)
        add(title, baseline, clock.seconds[f"fit {title}"])
    plain, seconds, note = chosen("EASE", EASE(dropout=0.0), L2_PLAIN, split, k, clock)
    add("EASE", plain, seconds)
    choices = [note]
    if model is None:
        adaptive = DAN(alpha_from_gini(found.gini_items), beta_from_homophily(found.homophily))
        prototype = EASE(dropout="auto", normalizer=adaptive)
        main, seconds, note = chosen("EASE + DAN", prototype, L2_ADAPTIVE, split, k, clock)
        title = _title(main)
    else:
        main, seconds, note = _given(model, split, clock)
        title = f"Your model, {_title(main)}"
        choices += _own_figures(model)
    add(title, main, seconds)
    with clock("turn the dial"):
        dial = _dial(main, split, k)
    step()
    with clock("show users"):
        alphas = [row["alpha"] for row in dial["rows"]] if dial else [None]
        portraits = shown_users.portraits(main, split.test, rows, alphas)
    step()
    return {
        "name": name,
        "k": k,
        "data": _data(data, split, found),
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
class Watched:
    """A model as `evaluate` sees it, at one position of the dial; counts what its lists show."""

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
        """Rank with the dial in place and count the items of the lists."""
        found = self.model.rank(history, k, exclude_seen=exclude_seen, alpha=self.alpha)
        self.shown += exposure(found.items, self.k, len(self.shown))
        return found


def chosen(
    name: str, prototype: EASE, l2: Sequence[float], split: Split, k: int, clock: Clock
) -> tuple[Recommender, float, str]:
    """Fit a model with the best l2 on the valid part; return the fit's seconds and a remark too.

    The automatic l2 is taken where there is no valid part, or the solves would take too long.
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
        found = tune(prototype, split, grid={"l2": values}, metric=f"ndcg@{k}", objectives=())
    remark = f"{name}: the best of {len(values)} settings by NDCG@{k} on the valid part"
    return found.model, found.fit_seconds, remark


def _given(model: Recommender, split: Split, clock: Clock) -> tuple[Recommender, float, str]:
    """Return a model fitted on the train part: the given one, or a new fit with its settings."""
    if model.data_fingerprint_ == split.train.fingerprint:
        return model, 0.0, "the given model, as it was fitted on the train part"
    with clock("fit your model"):
        again = model.clone().fit(split.train)
    why = "the given model's settings, fitted anew on the train part: it had seen other users"
    return again, clock.seconds["fit your model"], why


def _own_figures(model: Recommender) -> list[str]:
    """Return the leave-one-out figures that a model carries, as a sentence; none without them."""
    kept = model.estimate_
    if kept is None:
        return []
    words = [
        f"{name} {figure['value']:.4f} [{figure['low']:.4f}, {figure['high']:.4f}]"
        for name, figure in kept["values"].items()
        if "ndcg" in name and figure.keys() == {"value", "low", "high"}
    ]
    users = f"{kept['n_users']:,} of its own users, left out one by one"
    return [f"the given model as it was fitted, on {users}: {', '.join(words)}"]


def _title(model: Recommender) -> str:
    return model.label.replace("+", " + ")


def _split(data: Interactions, seed: int) -> Split:
    return strong(data, valid=0.1, test=0.1 if data.n_users >= FEW else 0.2, seed=seed)


def _data(data: Interactions | Split, split: Split, found: Statistics) -> dict[str, Any]:
    whole = data if isinstance(data, Interactions) else None
    sizes = ("n_users", "n_items", "n_interactions")
    return {
        **found.to_dict(),
        "whole": whole and {size: getattr(whole, size) for size in sizes},
        "alpha": alpha_from_gini(found.gini_items),
        "beta": beta_from_homophily(found.homophily),
        "notes": list(dict.fromkeys([*(whole or split.train).notes, *split.notes])),
    }


def _model(
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
    """Share of all counts that the most counted share of the items holds, as a curve.

    The points lie closer together near 0, where lists differ.

    >>> concentration(np.array([0, 4, 0, 0]))["held"][-1]
    1.0
    """
    ranked = np.sort(counts)[::-1]
    running = np.concatenate([[0], np.cumsum(ranked)]) / max(int(counts.sum()), 1)
    share = np.linspace(0, 1, CURVE) ** 2
    held = np.interp(share * len(counts), np.arange(len(counts) + 1), running)
    return {"items": share.round(5).tolist(), "held": held.round(5).tolist()}


def _tests(results: list[Result], k: int) -> list[dict[str, Any]]:
    """Compare the last model with plain EASE, user by user, over all items and the tail."""
    pair = {result.name: result for result in results[-2:]}
    out = []
    for part in ("", "tail_"):
        metric = f"{part}ndcg@{k}"
        if results[-1].per_user[metric].drop_nulls().len():
            (row,) = compare(pair, metric).to_frame().iter_rows(named=True)
            out.append({"metric": metric, "over": part.rstrip("_") or "all", **row})
    return out


def _dial(model: Recommender, split: Split, k: int) -> dict[str, Any] | None:
    """Evaluate the model at every position of the dial; None where it has no dial."""
    own = model.alpha_
    if own is None:
        return None
    tail = ~head_items(model.item_counts_)
    rows = []
    for alpha in sorted([own, *(alpha for alpha in ALPHAS if abs(alpha - own) > 0.01)]):
        watched = Watched(model, k, alpha)
        found = evaluate(watched, split.test, k, metrics=DIAL, bootstrap=0)
        values = found.to_dict()["values"]
        row: dict[str, Any] = {name: values[f"{name}@{k}"] for name in DIAL}
        row["alpha"] = alpha
        row["tail_share"] = float(watched.shown[tail].sum() / max(int(watched.shown.sum()), 1))
        rows.append(row)
    return {"own": [row["alpha"] for row in rows].index(own), "rows": rows}


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
    """Return the most memory this process ever held, where the system tells."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if platform.system() == "Darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


def _definitions(result: Result) -> dict[str, str]:
    wanted = ("recall", "ndcg", "head_ndcg", "tail_ndcg", "unbiased_ndcg", *BEYOND)
    return {name: result.definitions[name] for name in wanted}


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
