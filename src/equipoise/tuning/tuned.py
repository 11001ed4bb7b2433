"""What a search reports while it runs and when it is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from equipoise.machine import duration


@dataclass(frozen=True)
class Progress:
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
        The best settings, fitted on the train part.
    best
        These settings, with the metric on the valid part.
    trials
        Every point that was judged: family, settings, metrics on the valid part, and the number
        of the solve it was read off.
    frontier
        The points that no other point beats in all objectives.
    objectives
        The metric first, then what the frontier is between.
    solves, resumed
        Solves of this run, and solves taken over from the storage.
    complete
        Whether everything planned was done; False where the budget ran out.
    seconds
        Of this run, the last fit included.
    """

    model: Any
    best: dict[str, Any]
    trials: pl.DataFrame
    frontier: pl.DataFrame
    objectives: tuple[str, ...]
    solves: int
    resumed: int
    complete: bool
    seconds: float

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={_short(value)}" for name, value in self.best.items())
        return (
            f"Tuned: {settings}\n  {self.trials.height:,} settings from "
            f"{self.solves + self.resumed} solves in {duration(self.seconds)}"
        )


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
