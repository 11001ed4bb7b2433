"""The order of a grid when hopeless branches are left out.

Every axis is walked outwards from a first guess, first up, then down. A direction is left once
the best of what lies behind a value fell twice in a row and is clearly below the best of the axis.
What is never reached costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any

FALLS = 2  # steps in a row that got worse, after which a direction is left
PLATEAU = 0.003  # of the best value: a fall by less says nothing

Point = dict[str, Any]
Best = tuple[float, dict[str, int]]  # a value, and the place on each axis where it was found


class Walk:
    """A grid, walked outwards from a first guess.

    Parameters
    ----------
    values
        Values of each axis; the first axis is the outermost. Numbers are walked in their order.
        An axis that holds anything else has no order, and all of it is visited.
    start
        Where to begin on each axis: the nearest value (in ratio where all are positive and they
        span more than a factor of ten). Without it an axis begins in its middle.
    value
        What a finished point is worth; asked for a point after it was yielded.
    """

    def __init__(
        self, values: dict[str, tuple[Any, ...]], start: Point, value: Callable[[Point], float]
    ) -> None:
        self.axes = {name: in_order(listed) for name, listed in values.items()}
        self.names = list(values)
        self.value = value
        self.first = {name: nearest(self.axes[name], start.get(name)) for name in self.names}
        self.size = math.prod(len(axis) for axis in self.axes.values())
        self.skipped = 0  # points that are known never to be visited

    def points(self) -> Generator[Point, None, Best]:
        """Yield the points worth a visit."""
        return self._walk(0, {}, self.first)

    def _walk(
        self, depth: int, fixed: Point, first: dict[str, int]
    ) -> Generator[Point, None, Best]:
        """Walk the axes from `depth` on; return the best value and its places."""
        if depth == len(self.names):
            yield dict(fixed)
            return self.value(fixed), {}
        name = self.names[depth]
        axis, begin = self.axes[name], first[name]
        behind = math.prod(len(self.axes[other]) for other in self.names[depth + 1 :])
        patience = FALLS if is_ordered(axis) else len(axis)

        def visit(place: int, guess: dict[str, int]) -> Generator[Point, None, Best]:
            value, places = yield from self._walk(depth + 1, {**fixed, name: axis[place]}, guess)
            return value, {name: place, **places}

        middle = yield from visit(begin, first)
        best = middle
        for places in (range(begin + 1, len(axis)), range(begin - 1, -1, -1)):
            before, falls = middle, 0
            for passed, place in enumerate(places, start=1):
                found = yield from visit(place, {**first, **before[1]})
                falls = falls + 1 if found[0] < before[0] else 0
                best, before = (found if found[0] > best[0] else best), found
                low = best[0] - PLATEAU * abs(best[0])
                if falls >= patience and found[0] < low:
                    self.skipped += (len(places) - passed) * behind
                    break
        return best


def is_ordered(axis: tuple[Any, ...]) -> bool:
    """Whether the values of an axis are numbers."""
    return all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in axis)


def in_order(axis: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of an axis, numbers sorted."""
    return tuple(sorted(axis)) if is_ordered(axis) else axis


def nearest(axis: tuple[Any, ...], wanted: Any) -> int:
    """Return the place on an axis that is nearest to a value."""
    if wanted in axis:
        return axis.index(wanted)
    if not is_ordered(axis):
        return 0
    if not is_ordered((wanted,)):
        return len(axis) // 2
    by_ratio = axis[0] > 0 and wanted > 0 and axis[-1] > 10 * axis[0]
    scale = math.log if by_ratio else float
    gaps = [abs(scale(each) - scale(wanted)) for each in axis]
    return gaps.index(min(gaps))
