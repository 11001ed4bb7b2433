"""The loop of a search: propose, solve, read off, judge, keep.

`tune`: search settings with one solve for everything that can be read off it.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from equipoise.errors import DataError, SettingError
from equipoise.evaluation import ListMetrics, as_count
from equipoise.machine import duration, limited
from equipoise.models.base import Recommender
from equipoise.models.linear import LinearAutoencoder
from equipoise.split.parts import Split
from equipoise.tuning.ledger import Ledger, key_of
from equipoise.tuning.proposals import GridSampler, RangeSampler, Walk, import_optuna
from equipoise.tuning.result import Progress, Tuned, frontier
from equipoise.tuning.shared_ranking import Objective, read_off
from equipoise.tuning.space import Separate, Shared, Space, describe, fixed_settings, prototypes

logger = logging.getLogger(__name__)


def too_small(limit: float, fit_seconds: float) -> SettingError:
    """Return the error for a budget without room for one solve and the last fit."""
    if not fit_seconds:
        return SettingError(
            f"a budget of {duration(limit)} is too small: it was spent before the first fit"
        )
    return SettingError(
        f"a budget of {duration(limit)} is too small: one fit takes about "
        f"{duration(fit_seconds)}, and there must be time for a solve and the last fit"
    )


@dataclass
class Run:
    """One search: what is solved, what came of it and when to stop.

    Parameters
    ----------
    split, space, goals, metrics, ledger
        The data, what is searched, what for, how it is measured and where it is kept.
    fit_seconds
        Expected time of one fit; 0 where only a fit can tell.
    limit
        Seconds there are; None for no limit.
    started
        When the clock began.
    progress
        Called after every solve.
    """

    split: Split
    space: Space
    goals: list[Objective]
    metrics: ListMetrics
    ledger: Ledger
    fit_seconds: float
    limit: float | None
    started: float
    progress: Callable[[Progress], None] | None
    solves: int = 0
    longest: float = 0.0
    resumed: int = field(init=False)
    _places: dict[str, int] = field(init=False, default_factory=dict)
    _walk: Walk | None = field(init=False, default=None)
    _passed: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.resumed = len(self.ledger.solves)
        self.longest = self.fit_seconds

    def search(self, on_grid: bool, trials: int, early_stop: bool, seed: int) -> bool:
        """Make the solves that are missing; return whether all were made."""
        wanted: Iterator[dict[str, Any]]
        if not on_grid:
            wanted = self._proposals(trials, seed)
        elif early_stop:
            self._walk = Walk(self.space.axes(), self.space.start(self.split.train), self._worth)
            wanted = self._walk.points()
        else:
            wanted = iter(self.space.outer())
        if on_grid:
            self._places = {key_of(each): place for place, each in enumerate(self.space.outer())}
        solver: Any = None
        outer = next(wanted, None)
        while outer is not None:
            fresh = key_of(outer) not in self.ledger.solves
            if fresh and self._late():
                logger.info("the budget is used up after %d solves", self.solves)
                return False
            if fresh:
                solver = self.space.solver(self.split.train) if solver is None else solver
                self._solve(outer, solver)
            self._passed += 1
            # what comes next is asked for first: by then it is known what is left out
            last, outer = outer, next(wanted, None)
            if fresh:
                self._report(last, trials)
        return True

    def _solve(self, outer: dict[str, Any], solver: Any) -> None:
        start = time.perf_counter()
        models = self.space.candidates(outer, solver)
        self.fit_seconds = max(self.fit_seconds, time.perf_counter() - start)
        history, depth = self.metrics.history, self.metrics.ks[-1]
        seen_out = self.metrics.protocol != "session"
        listed = [model for _, model in models]
        found = read_off(listed, history, depth, exclude_seen=seen_out)
        points = [
            {**describe(model), **self.metrics.measure(lists), "prototype": number}
            for (number, model), lists in zip(models, found, strict=True)
        ]
        seconds = time.perf_counter() - start
        self.longest = max(self.longest, seconds)
        self.ledger.add(outer, {"points": points, "seconds": seconds})
        self.solves += 1

    def _late(self) -> bool:
        if self.limit is None:
            return False
        spent = time.perf_counter() - self.started
        return spent + self.longest + self.fit_seconds > self.limit

    def value(self, point: dict[str, Any]) -> float:
        """Return what is to be made large."""
        goal = self.goals[0]
        return goal.sign * float(point[goal.name])

    def best(self) -> dict[str, Any]:
        """Return the best point; of equal ones the first, on a grid the first of the grid."""
        if not self.ledger.solves:
            raise too_small(self.limit or 0.0, self.longest)
        solved = sorted(  # a grid may have been walked in any order, and in several sittings
            self.ledger.solves.items(), key=lambda each: self._places.get(each[0], math.inf)
        )
        return max((point for _, each in solved for point in each["points"]), key=self.value)

    def of(self, outer: dict[str, Any]) -> dict[str, Any]:
        """Return the best point of a solve."""
        return max(self.ledger.solves[key_of(outer)]["points"], key=self.value)

    def _worth(self, outer: dict[str, Any]) -> float:
        return self.value(self.of(outer))

    def _proposals(self, trials: int, seed: int) -> Iterator[dict[str, Any]]:
        """Yield what the sampler proposes until there are enough solves."""
        first = self.space.start(self.split.train)
        sampler: RangeSampler | GridSampler
        if isinstance(self.space, Shared):
            sampler = RangeSampler(first, seed)
        else:
            sampler = GridSampler(self.space.values, first, seed)
        if trials > len(sampler.starts):
            import_optuna()  # missing is better known before the first solve than after it
        finished = [solved["points"] for solved in self.ledger.solves.values()]
        values = [
            ({name: points[0][name] for name in first}, max(map(self.value, points)))
            for points in finished
        ]
        while len(values) < trials:
            outer = sampler.propose(values)
            if outer is None:
                logger.info("the search has run out of new settings")
                return
            yield outer
            values.append((outer, self.value(self.of(outer))))

    def _count(self, trials: int) -> tuple[int, int]:
        """Return the solves that are done and all that are planned, as far as that is known."""
        if not self._places:
            return len(self.ledger.solves), trials
        left_out = self._walk.skipped if self._walk else 0
        return self._passed, len(self._places) - left_out

    def _report(self, outer: dict[str, Any], trials: int) -> None:
        if self.progress is None:
            return
        goal = self.goals[0]
        last, best = self.of(outer), self.best()
        spent = time.perf_counter() - self.started
        done, total = self._count(trials)
        left = spent / self.solves * max(total - done, 0) + self.fit_seconds
        if self.limit is not None:
            left = min(left, self.limit - spent)
        self.progress(
            Progress(done, total, last, last[goal.name], best, best[goal.name], spent, left)
        )


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
        last fit would not fit in. A solve is expected to take what `plan` says, a fit of any
        other model what the longest one so far took.
    early_stop
        Walk a grid outwards from the automatic settings (of other models: their own), and leave a
        direction of beta, of dropout or of l2 once the best behind it fell twice in a row, to
        0.3% below the best of its line or more. Off, a grid is exact.
    storage
        A file for finished solves: the same search goes on from there after a kill, or with more
        trials. Any other file is refused and not changed. One process at a time may use it.
    resume
        Whether a storage that exists is gone on with; False refuses it.
    seed
        Of Optuna. The same seed gives the same search, interrupted or not.
    dtype, memory, threads
        As for `fit`; a dtype or memory that the model's `fit` does not take is refused.
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
    names = [goal.name for goal in goals]
    metrics = ListMetrics.of(split.valid, split.train.item_counts, names)
    models = prototypes(model)
    space = _space(models, grid, split, dtype=dtype, memory=memory, threads=threads)
    expected = space.seconds(split.train)
    limit = parse_budget(budget)
    if limit is not None and limit < 2 * expected:
        raise too_small(limit, expected)
    search = {
        "data": f"{split.train.fingerprint}-{split.valid.fingerprint}",
        "protocol": split.valid.protocol,
        "metrics": names,
        "values": space.searched(),
        "models": [fixed_settings(each, space.values) for each in space.models],
        "dtype": dtype,
        "seed": seed,
    }
    with Ledger(storage, search, resume=resume) as ledger, limited(threads):
        run = Run(split, space, goals, metrics, ledger, expected, limit, started, progress)
        whole = grid is not None or (isinstance(space, Separate) and space.size <= trials)
        complete = run.search(whole, trials, early_stop, seed)
        best = run.best()
        fitted = space.fitted(best, split.train)
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


def _space(
    models: list[Recommender],
    grid: Any,
    split: Split,
    *,
    dtype: str,
    memory: str | float | None,
    threads: int | None,
) -> Space:
    linear = [each for each in models if isinstance(each, LinearAutoencoder)]
    if len(linear) == len(models):
        return Shared.of(linear, grid, split.train, dtype=dtype, memory=memory)
    return Separate.of(models, grid, dtype=dtype, memory=memory, threads=threads)


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
