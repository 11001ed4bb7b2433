"""Progress and result of a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from equipoise.display.drawing import search_frontier
from equipoise.display.notebook import fragment, framed, table
from equipoise.runtime.machine import duration
from equipoise.tuning.criterion import Estimate


@dataclass(frozen=True)
class SearchProgress:
    """Progress of a search.

    Attributes
    ----------
    done, total
        Solves finished, including those of an earlier run, and planned.
    last, last_value
        Best settings of the last solve and their metric; NaN if it failed.
    best, best_value
        Settings with the best metric so far; leave-one-out may choose other ones at the end
        (`prefer`). Empty and NaN until a solve succeeds.
    seconds, left
        Time spent, and the expected remaining time: None after the first solve, which may include
        the compilation of kernels.
    failed
        Why the last solve failed; None if it did not.
    """

    done: int
    total: int
    last: dict[str, Any]
    last_value: float
    best: dict[str, Any]
    best_value: float
    seconds: float
    left: float | None
    failed: str | None = None


@dataclass(frozen=True, eq=False)
class Tuned:
    """Result of `tune`.

    Attributes
    ----------
    model
        The fitted model with the best settings.
    best
        Its settings, with their metrics on the valid part or on the users that were left out.
    trials
        Every measured point: family, settings, metrics, and the number of its solve. A failed
        solve is one row without metrics, with the reason in the column "failed".
    frontier
        The points that no other point beats in all objectives.
    objectives
        The metric first, then the other objectives of the frontier.
    solves, resumed
        Solves of this run, and solves read from the storage.
    complete
        Whether all planned solves were made; False if the budget ran out.
    fit_seconds, seconds
        Time of the last fit, and of the whole run.
    estimate
        By leave-one-out: the expected metric on new users, with its standard error and corrected
        for the choice; None on a split, whose test part measures that.
    sentence
        Which settings were chosen, why, and what they cost in the metric.
    notes
        How weights were chosen, and which solves failed.
    """

    model: Any
    best: dict[str, Any]
    trials: pl.DataFrame
    frontier: pl.DataFrame
    objectives: tuple[str, ...]
    solves: int
    resumed: int
    complete: bool
    fit_seconds: float
    seconds: float
    estimate: Estimate | None = None
    sentence: str = ""
    notes: tuple[str, ...] = ()

    @property
    def n_failed(self) -> int:
        """Number of solves that failed."""
        return self.trials.height - self.trials["failed"].null_count()

    def plot_frontier(self, *, ax: Any = None) -> Any:
        """Plot every point by its first two objectives, and the frontier; needs matplotlib.

        Parameters
        ----------
        ax
            Axes to draw into (default: new ones). They are returned.
        """
        from equipoise.display.plot import frontier as draw

        return draw(self.trials, self.frontier, self.objectives, ax=ax)

    def __repr__(self) -> str:
        best = ", ".join(f"{name}={_text(value)}" for name, value in self.best.items())
        return f"Tuned: {best}\n  {self._cost}" + (f"\n  {self.estimate}" if self.estimate else "")

    def _repr_html_(self) -> str:
        best = table(["setting", "value"], [(n, _text(value)) for n, value in self.best.items()])
        picture = ""
        if len(self.objectives) > 1:
            names = (self.objectives[0], self.objectives[1])
            picture = framed(search_frontier(self.trials, self.frontier, names))
        notes = [*filter(None, (self._cost, self.sentence, str(self.estimate or ""))), *self.notes]
        return fragment(f"Tuned: {self.model.summary()}", best, picture, notes=notes)

    @property
    def _cost(self) -> str:
        solves = self.solves + self.resumed
        failed = f" ({self.n_failed} failed)" if self.n_failed else ""
        points = self.trials.height - self.n_failed
        return f"{points:,} settings from {solves} solves{failed} in {duration(self.seconds)}"


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def frontier(points: pl.DataFrame, names: Sequence[str], signs: Sequence[float]) -> pl.DataFrame:
    """Return the points that no other point equals or beats in every goal, best first.

    `names` are the columns of the goals, and the first one orders the result; `signs` has 1 for a
    goal to maximise, -1 for one to minimise.
    """
    goals = points.select(names).to_numpy() * np.asarray(signs)
    goals = np.where(np.isnan(goals), -np.inf, goals)
    order = np.lexsort(tuple(-goals[:, place] for place in reversed(range(len(names)))))
    front: list[int] = []
    for row in order:
        # sorted by the first goal, so only earlier rows can be as good in every goal
        if not any((goals[other] >= goals[row]).all() for other in front):
            front.append(int(row))
    return points[front]
