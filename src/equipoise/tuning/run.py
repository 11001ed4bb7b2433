"""The loop of a search: propose, solve, read off, judge, keep."""

from __future__ import annotations

import logging
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
from equipoise.tuning.sampling import Sampler, import_optuna
from equipoise.tuning.solver import Solver
from equipoise.tuning.space import Shared, Space, describe
from equipoise.tuning.tuned import Progress

logger = logging.getLogger(__name__)

FALLS = 2  # values of l2 in a row that got worse, after which a branch is left


def too_small(limit: float, fit_seconds: float) -> SettingError:
    """Return the error for a budget without room for one solve and the last fit."""
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
        Expected time of one fit.
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

    def __post_init__(self) -> None:
        self.resumed = len(self.ledger.solves)
        self.longest = self.fit_seconds

    def search(
        self,
        on_grid: bool,
        trials: int,
        early_stop: bool,
        seed: int,
        dtype: str,
        memory: str | float | None,
    ) -> bool:
        """Make the solves that are missing; return whether all were made."""
        wanted: Iterator[dict[str, Any]]
        if on_grid:
            every = self.space.outer()
            total, wanted = len(every), self._worthwhile(every, early_stop)
        else:
            assert isinstance(self.space, Shared)
            total, wanted = trials, self._proposals(trials, seed)
        solver: Any = None
        for outer in wanted:
            if key_of(outer) in self.ledger.solves:
                continue
            if self._late():
                logger.info("the budget is used up after %d solves", self.solves)
                return False
            if solver is None:
                linear = isinstance(self.space, Shared)
                solver = (
                    Solver(self.split.train, dtype=dtype, memory=memory) if linear else self.split
                )
            self._solve(outer, solver)
            self._report(outer, total)
        return True

    def _solve(self, outer: dict[str, Any], solver: Any) -> None:
        start = time.perf_counter()
        models = self.space.candidates(outer, solver)
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
        """Return the best point; the first one where several are equal."""
        if not self.ledger.solves:
            raise too_small(self.limit or 0.0, self.longest)
        return max(self.ledger.points, key=self.value)

    def of(self, outer: dict[str, Any]) -> dict[str, Any]:
        """Return the best point of a solve."""
        return max(self.ledger.solves[key_of(outer)]["points"], key=self.value)

    def _worthwhile(
        self, every: list[dict[str, Any]], early_stop: bool
    ) -> Iterator[dict[str, Any]]:
        """Yield the grid, l2 ascending; a branch that keeps falling is left."""
        if not early_stop or "l2" not in every[0]:
            yield from every
            return
        branches: dict[str, list[dict[str, Any]]] = {}
        for outer in every:
            rest = {name: value for name, value in outer.items() if name != "l2"}
            branches.setdefault(key_of(rest), []).append(outer)
        for branch in branches.values():
            falls, before = 0, -float("inf")
            for outer in sorted(branch, key=lambda each: float(each["l2"])):
                yield outer
                value = self.value(self.of(outer))
                falls, before = (falls + 1 if value < before else 0), value
                if falls >= FALLS:
                    break

    def _proposals(self, trials: int, seed: int) -> Iterator[dict[str, Any]]:
        """Yield what the sampler proposes until there are enough solves."""
        first = self._first()
        sampler = Sampler(first, seed)
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

    def _first(self) -> dict[str, float]:
        """Return the settings of the first solve: the model's own, or the automatic ones."""
        assert isinstance(self.space, Shared)
        model, train = self.space.models[0], self.split.train
        normalizer = model.normalizer.resolve(train)
        l2, dropout = model._numbers(train, normalizer)
        first = {"l2": l2, "dropout": dropout}
        if "beta" in self.space.names:
            first["beta"] = normalizer.exponents()[1]
        return first

    def _report(self, outer: dict[str, Any], total: int) -> None:
        if self.progress is None:
            return
        goal = self.judge.objectives[0]
        last, best = self.of(outer), self.best()
        spent = time.perf_counter() - self.started
        done = len(self.ledger.solves)
        left = spent / self.solves * max(total - done, 0) + self.fit_seconds
        if self.limit is not None:
            left = min(left, self.limit - spent)
        self.progress(
            Progress(done, total, last, last[goal.name], best, best[goal.name], spent, left)
        )
