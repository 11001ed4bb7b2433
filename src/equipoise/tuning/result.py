"""What a search reports while it runs and when it is done."""

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
    """How far a search is.

    Attributes
    ----------
    done, total
        Solves finished, those of an earlier run included, and planned.
    last, last_value
        Best settings of the last solve and their metric; NaN where it failed.
    best, best_value
        Settings with the best metric so far, which never gets worse; by leave-one-out the ones
        that are chosen at the end may be others (`prefer`). Empty and NaN until a solve succeeds.
    seconds, left
        Time spent, and about how much is left: None after the first solve, whose time says little,
        as kernels may have been compiled in it.
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
    """What `tune` found.

    Attributes
    ----------
    model
        The chosen settings, fitted: on the train part, or on what `tune` was told.
    best
        These settings, with their metrics on the valid part or on users that were left out.
    trials
        Every point that was measured: family, settings, metrics, and the number of its solve. A
        solve that failed is one row without metrics, with the reason in the column "failed".
    frontier
        The points that no other point beats in all objectives.
    objectives
        The metric first, then what the frontier is between.
    solves, resumed
        Solves of this run, and solves taken over from the storage.
    complete
        Whether everything planned was done; False where the budget ran out.
    fit_seconds, seconds
        Time of the last fit, and of this run with it.
    estimate
        By leave-one-out: what the model is worth on new users, with its standard error and
        corrected for the choice; None on a split, whose test part tells.
    sentence
        What was chosen, why, and what was given for what.
    notes
        Sentences on what else was decided on the way: how weights were chosen, what failed.
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
        """Draw every point by its first two objectives, and the frontier; needs matplotlib.

        Parameters
        ----------
        ax
            Axes to draw into; new ones if left out. They are returned.
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
        notes = [
            self._cost,
            *(filter(None, (self.sentence, str(self.estimate or "")))),
            *self.notes,
        ]
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
    """Return the points that no other point equals or beats in everything, best first.

    Parameters
    ----------
    points
        One row per point.
    names
        Columns of the goals; the first one orders the result.
    signs
        1 for a goal that should be large, -1 for one that should be small.
    """
    goals = points.select(names).to_numpy() * np.asarray(signs)
    goals = np.where(np.isnan(goals), -np.inf, goals)
    order = np.lexsort(tuple(-goals[:, place] for place in reversed(range(len(names)))))
    kept: list[int] = []
    for row in order:
        # sorted by the first goal, so only rows kept before can be as good in everything
        if not any((goals[other] >= goals[row]).all() for other in kept):
            kept.append(int(row))
    return points[kept]
