"""Everything a report says, as one plain dict: no drawing, no markup, ready for JSON."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

import numpy as np
import numpy.typing as npt

import equipoise
from equipoise import machine
from equipoise.automatic import alpha_from_gini, beta_from_homophily
from equipoise.comparison import compare
from equipoise.evaluation import evaluate
from equipoise.interactions import Interactions
from equipoise.metrics import head_items
from equipoise.models import Recommender
from equipoise.normalize import DAN
from equipoise.report import trials, users
from equipoise.report.trials import Clock, Trial, Watched
from equipoise.results import Result
from equipoise.solve.plan import plan
from equipoise.split import Split, strong
from equipoise.statistics import Statistics, describe

ALPHAS = tuple(step / 20 for step in range(11))
SLICES = ("all", "head", "tail", "unbiased")
BEYOND = ("coverage", "gini", "popularity", "novelty", "lift")
DIAL = ("ndcg", "recall", "head_ndcg", "tail_ndcg", "unbiased_ndcg", "coverage", "popularity")
CURVE = 61  # points of a curve of exposure
STEPS = 7
FEW = 5000  # with fewer people a fifth of them is held out to report on, else a tenth


def collect(
    data: Interactions | Split,
    *,
    name: str = "your data",
    model: Recommender | None = None,
    k: int = 20,
    sample: int = 6,
    persons: Sequence[Any] | None = None,
    seed: int = 0,
    bootstrap: int = 1000,
    command: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Split, fit, judge and explain; return all that a report shows.

    Parameters
    ----------
    data
        Interactions, which are split by people (strong, with this seed), or a split.
    name
        Of the data, for headings.
    model
        A fitted model to report on; left out: EASE with data-adaptive normalization. If it was
        not fitted on the train part, a new one is, with its settings.
    k
        Length of the lists.
    sample
        How many people of the test part to show.
    persons
        Ids of the people to show instead.
    seed
        Of the split and of the sample.
    bootstrap
        Resamples behind the intervals.
    command
        The command line that made the report, to be printed in it.
    progress
        Called with the number of steps done and of all steps.
    """
    clock, done = Clock(), iter(range(1, STEPS + 1))

    def step() -> None:
        if progress is not None:
            progress(next(done), STEPS)

    with clock("split and describe"):
        split = data if isinstance(data, Split) else _split(data, seed)
        found = describe(split.train)
    step()
    tried, notes = trials.yardsticks(split, k, clock, bootstrap, step)
    if model is None:
        normalizer = DAN(alpha_from_gini(found.gini_items), beta_from_homophily(found.homophily))
        main, seconds, note = trials.balanced(split, normalizer, k, clock)
        title = trials.name_of(main)
    else:
        main, seconds, note = trials.own_model(model, split, clock)
        title = f"Your model, {trials.name_of(main)}"
    with clock("judge"):
        tried.append(trials.judged(title, main, split.test, k, seconds, bootstrap))
    step()
    with clock("turn the dial"):
        dial = _dial(main, split, k)
    step()
    with clock("sample people"):
        rows = (
            users.named(split.test, persons)
            if persons is not None
            else users.sampled(split.test, sample, seed)
        )
        alphas = [row["alpha"] for row in dial["rows"]] if dial else [None]
        portraits = users.portraits(main, split.test, rows, alphas)
    step()
    return {
        "name": name,
        "k": k,
        "data": _data(data, split, found),
        "models": [_trial(trial, k) for trial in tried],
        "training_curve": concentration(split.train.item_counts),
        "choices": [*notes, note],
        "tests": _tests(tried, k),
        "dial": dial,
        "people": portraits,
        "costs": _costs(split, clock),
        "definitions": _definitions(tried[-1].result),
        "provenance": _provenance(split, tried[-1].result, seed, command),
    }


def _split(data: Interactions, seed: int) -> Split:
    return strong(data, valid=0.1, test=0.1 if data.n_users >= FEW else 0.2, seed=seed)


def _data(data: Interactions | Split, split: Split, found: Statistics) -> dict[str, Any]:
    facts = found.to_dict()
    whole = data if isinstance(data, Interactions) else None
    facts["whole"] = whole and {
        "n_users": whole.n_users,
        "n_items": whole.n_items,
        "n_interactions": whole.n_interactions,
    }
    facts["alpha"] = alpha_from_gini(found.gini_items)
    facts["beta"] = beta_from_homophily(found.homophily)
    notes = [*(whole or split.train).notes, *split.notes]
    facts["notes"] = list(dict.fromkeys(notes))
    return facts


def _trial(trial: Trial, k: int) -> dict[str, Any]:
    cells = {
        (row["metric"], row["slice"]): {key: row[key] for key in ("value", "low", "high")}
        for row in trial.result.table.iter_rows(named=True)
    }
    return {
        "name": trial.name,
        "settings": trial.settings,
        "fit_seconds": trial.fit_seconds,
        "rank_seconds": trial.result.seconds["rank"],
        "accuracy": {
            metric: {part: cells[metric, part] for part in SLICES} for metric in ("ndcg", "recall")
        },
        "beyond": {name: cells[name, "all"]["value"] for name in BEYOND},
        "curve": concentration(trial.shown),
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


def _tests(tried: list[Trial], k: int) -> list[dict[str, Any]]:
    """Compare the last model with plain EASE, person by person, over all items and the tail."""
    pair = {trial.name: trial.result for trial in tried[-2:]}
    out = []
    for part in ("", "tail_"):
        metric = f"{part}ndcg@{k}"
        if tried[-1].result.per_user[metric].drop_nulls().len():
            (row,) = compare(pair, metric).to_frame().iter_rows(named=True)
            out.append({"metric": metric, "over": part.rstrip("_") or "all", **row})
    return out


def _dial(model: Recommender, split: Split, k: int) -> dict[str, Any] | None:
    """Judge the model at every position of the dial; None where it has no dial."""
    own = trials.own_alpha(model)
    if own is None:
        return None
    tail = ~head_items(model.item_counts_)
    rows = []
    for alpha in _positions(own):
        watched = Watched(model, k, alpha)
        found = evaluate(watched, split.test, k, metrics=DIAL, bootstrap=0)
        values = found.to_dict()["values"]
        row: dict[str, Any] = {name: values[f"{name}@{k}"] for name in DIAL}
        row["alpha"] = alpha
        row["tail_share"] = float(watched.shown[tail].sum() / max(int(watched.shown.sum()), 1))
        rows.append(row)
    return {"own": [row["alpha"] for row in rows].index(own), "rows": rows}


def _positions(own: float) -> list[float]:
    """Return positions of the dial, the model's own among them."""
    near = [alpha for alpha in ALPHAS if abs(alpha - own) > 0.01]
    return sorted([*near, own])


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
