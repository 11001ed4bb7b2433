"""The loop of a search: propose, solve, read off, judge, keep."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from equipoise.errors import SettingError
from equipoise.machine import duration
from equipoise.split.parts import Split
from equipoise.tuning.judge import Judge
from equipoise.tuning.ledger import Ledger, key_of
from equipoise.tuning.readoff import read_off
from equipoise.tuning.sampling import GridSampler, RangeSampler, import_optuna
from equipoise.tuning.separate import Space
from equipoise.tuning.space import Shared, describe
from equipoise.tuning.tuned import Progress
from equipoise.tuning.walk import Walk

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
    split, space, judge, ledger
        The data, what is searched, how it is judged and where it is kept.
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
    judge: Judge
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
        history, depth = self.judge.part.history, self.judge.depth
        found = read_off(
            [model for _, model in models], history, depth, exclude_seen=self.judge.exclude_seen
        )
        points = [
            {**describe(model), **self.judge.measure(lists), "prototype": number}
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
        goal = self.judge.objectives[0]
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
        goal = self.judge.objectives[0]
        last, best = self.of(outer), self.best()
        spent = time.perf_counter() - self.started
        done, total = self._count(trials)
        left = spent / self.solves * max(total - done, 0) + self.fit_seconds
        if self.limit is not None:
            left = min(left, self.limit - spent)
        self.progress(
            Progress(done, total, last, last[goal.name], best, best[goal.name], spent, left)
        )
