"""`tune`: search settings with one solve for everything that can be read off it."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from equipoise.errors import DataError, SettingError
from equipoise.evaluation_input import as_count
from equipoise.interactions import Interactions
from equipoise.models.autoencoder import LinearAutoencoder
from equipoise.models.base import Recommender
from equipoise.solve.plan import plan
from equipoise.split.parts import Split
from equipoise.threads import limited
from equipoise.tuning.frontier import frontier
from equipoise.tuning.judge import Judge, Objective
from equipoise.tuning.ledger import Ledger
from equipoise.tuning.run import Run, too_small
from equipoise.tuning.separate import Separate, Space
from equipoise.tuning.space import Shared, prototypes, vary
from equipoise.tuning.tuned import Progress, Tuned

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def tune(
    model: Any,
    split: Split,
    *,
    trials: int = 50,
    metric: str = "ndcg@20",
    objectives: Sequence[str] = ("tail_ndcg@20",),
    grid: Any = None,
    budget: str | float | None = None,
    early_stop: bool = False,
    storage: Any = None,
    resume: bool = True,
    seed: int = 0,
    dtype: str = "float32",
    memory: str | float | None = None,
    threads: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Tuned:
    """Find good settings on the valid part of a split, and fit them on its train part.

    One solve is made for each beta, l2 and dropout; every alpha, gamma, diag_bound and family is
    read off it. The test part is not looked at.

    Parameters
    ----------
    model
        A class or its name (alpha, beta, l2 and dropout are searched), a model (its normalizer
        decides which exponents there are), or a list of either, which share their solves.
    split
        With a valid part.
    trials
        Number of solves, unless a grid says which.
    metric
        What to make large on the valid part, such as "ndcg@20" or "recall@50".
    objectives
        More metrics to report, and the frontier is between them and `metric`.
    grid
        Values per name, as in ``{"l2": [10, 100], "alpha": [0, 0.2]}``: every combination is
        judged. "paper" is the grid of the DAN paper. What is not named stays as the model has it.
        Left out: Optuna searches (needs the extra `tune`), linear autoencoders in ranges around
        the automatic settings, other models on a grid of their own, which is judged as a whole
        where it has no more points than `trials`.
    budget
        Time for everything, such as "10m" or seconds: the search ends when the next solve and the
        last fit would not fit in.
    early_stop
        Walk a grid outwards from the automatic settings (of other models: their own), and leave a
        direction of beta, of dropout or of l2 once the best behind it fell twice in a row, to
        0.3% below the best of its line or more. Off, a grid is exact.
    storage
        A file for finished solves: a search that was killed goes on from there.
    resume
        Whether a storage that exists is gone on with; False refuses it.
    seed
        Of Optuna. The same seed gives the same search, interrupted or not.
    dtype, memory, threads
        As for `fit`.
    progress
        Called with a `Progress` after every solve.

    Examples
    --------
    >>> import equipoise as eq, numpy as np
    >>> data = eq.Interactions(np.random.default_rng(0).random((80, 20)) < 0.3)
    >>> split = eq.split.strong(data, valid=0.2, test=0.2)
    >>> found = eq.tune([eq.EASE, eq.LAE], split, grid={"l2": [1, 10], "alpha": [0, 0.3]})
    >>> found.solves, found.trials.height
    (2, 8)
    """
    started = time.perf_counter()
    if not isinstance(split, Split):
        raise SettingError("tune needs a split; make one with eq.split.strong(data, valid=0.1)")
    if split.valid is None:
        raise DataError(
            "the split has no valid part to tune on; make one with valid=0.1, as in "
            "eq.split.strong(data, valid=0.1)"
        )
    as_count(trials, "trials", 1)
    extra = [objectives] if isinstance(objectives, str) else list(objectives or ())
    goals = [Objective(name) for name in dict.fromkeys([metric, *extra])]
    judge = Judge(split.valid, split.train.item_counts, goals)
    models = prototypes(model)
    space = _space(models, grid, split)
    cost = plan(split.train, dtype=dtype, memory=memory)
    limit = parse_budget(budget)
    if limit is not None and limit < 2 * cost.seconds:
        raise too_small(limit, cost.seconds)
    metrics = [goal.name for goal in goals]
    bound = [space.signature(), metrics, dtype]
    data = f"{split.train.fingerprint}-{split.valid.fingerprint}"
    ledger = Ledger(storage, data, bound, resume=resume, metrics=metrics, models=len(space.models))
    with limited(threads):
        run = Run(split, space, judge, ledger, cost.seconds, limit, started, progress)
        whole = grid is not None or (isinstance(space, Separate) and space.size <= trials)
        complete = run.search(whole, trials, early_stop, seed, dtype, memory)
        best = run.best()
        fitted = _fitted(space, best, split.train, dtype, memory)
    return _tuned(fitted, best, run, goals, complete, time.perf_counter() - started)


def parse_budget(budget: str | float | None) -> float | None:
    """Read a time such as "10m", "90s", "1.5h" or a number of seconds.

    >>> parse_budget("10m"), parse_budget(90)
    (600.0, 90.0)
    """
    if budget is None:
        return None
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:e-?\d+)?)\s*([smhd]?)\s*", str(budget).lower())
    if match is None or float(match[1]) <= 0:
        raise SettingError(f"budget must look like '10m', '90s' or 600, got {budget!r}")
    return float(match[1]) * UNITS[match[2]]


def _space(models: list[Recommender], grid: Any, split: Split) -> Space:
    linear = [each for each in models if isinstance(each, LinearAutoencoder)]
    if len(linear) == len(models):
        return Shared.of(linear, grid, split.train)
    return Separate.of(models, grid)


def _fitted(
    space: Space, best: dict[str, Any], train: Interactions, dtype: str, memory: Any
) -> Recommender:
    """Return the best settings, fitted."""
    prototype = space.models[best["prototype"]]
    if isinstance(prototype, LinearAutoencoder):
        settings = {name: best[name] for name in space.names if name in best}
        return vary(prototype, settings).fit(train, dtype=dtype, memory=memory)
    other: Any = prototype
    model: Recommender = dataclasses.replace(other, **{n: best[n] for n in space.names})
    return model.fit(train)


def _tuned(
    fitted: Recommender,
    best: dict[str, Any],
    run: Run,
    goals: list[Objective],
    complete: bool,
    seconds: float,
) -> Tuned:
    rows = [
        {**{name: value for name, value in point.items() if name != "prototype"}, "solve": number}
        for number, solved in enumerate(run.ledger.solves.values())
        for point in solved["points"]
    ]
    names = [goal.name for goal in goals]
    trials = pl.DataFrame(rows, infer_schema_length=None)
    trials = trials.select(pl.exclude(*names, "solve"), *names, "solve")
    return Tuned(
        model=fitted,
        best={name: value for name, value in best.items() if name != "prototype"},
        trials=trials,
        frontier=frontier(trials, names, [goal.sign for goal in goals]),
        objectives=tuple(names),
        solves=run.solves,
        resumed=run.resumed,
        complete=complete,
        seconds=seconds,
    )
