"""How far a run is, and how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Callable

from equipoise.machine import duration


class Pace:
    """Says after each step how many are done and about how much time the rest needs.

    Parameters
    ----------
    total
        Number of steps.
    progress
        Called with a sentence; None for silence.
    clock
        Where the time is read.
    """

    def __init__(
        self,
        total: int,
        progress: Callable[[str], None] | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.total, self.done = total, 0
        self._progress, self._clock = progress, clock
        self._start = clock()

    def step(self, text: str) -> None:
        """Count one step and tell it."""
        self.done += 1
        left = self.total - self.done
        spent = self._clock() - self._start
        rest = f", about {duration(left * spent / self.done)} left" if left else ""
        self.say(f"{text} ({self.done} of {self.total}{rest})")

    def say(self, text: str) -> None:
        """Tell something that is no step."""
        if self._progress is not None:
            self._progress(text)
