"""What a search reports while it runs and when it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from equipoise.machine import duration
from equipoise.tuning.criterion import Estimate


@dataclass(frozen=True)
class SearchProgress:
    """How far a search is.

    Attributes
    ----------
    done, total
        Solves finished, those of an earlier run included, and planned.
    last, last_value
        Best settings of the last solve and their metric.
    best, best_value
        Best settings of all.
    seconds, left
        Time spent, and about how much is left.
    """

    done: int
    total: int
    last: dict[str, Any]
    last_value: float
    best: dict[str, Any]
    best_value: float
    seconds: float
    left: float


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
        Every point that was measured: family, settings, metrics, and the number of its solve.
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

    def __repr__(self) -> str:
        best = ", ".join(
            f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in self.best.items()
        )
        return (
            f"Tuned: {best}\n  {self.trials.height:,} settings from "
            f"{self.solves + self.resumed} solves in {duration(self.seconds)}"
            + (f"\n  {self.estimate}" if self.estimate else "")
        )


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
