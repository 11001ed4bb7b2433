"""The frontier between two goals: points that no other point beats in both, and their picture.

What a search reports while it runs and when it is done.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.machine import duration

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 420, 80, 60, 40, 24


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


def frontier_svg(points: pl.DataFrame, front: pl.DataFrame, names: tuple[str, str]) -> str:
    """Return a picture of all points and the frontier, as SVG.

    Parameters
    ----------
    points, front
        All points, and those of the frontier.
    names
        What runs to the right and what runs up.
    """
    across, up = (points[name].to_numpy() for name in names)
    scales = [_scale(across, LEFT, WIDTH - RIGHT), _scale(up, HEIGHT - BOTTOM, TOP)]

    def place(frame: pl.DataFrame) -> list[tuple[float, float]]:
        columns = (frame[name].to_list() for name in names)
        return [(_at(x, scales[0]), _at(y, scales[1])) for x, y in zip(*columns, strict=True)]

    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2"/>' for x, y in place(points))
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in sorted(place(front)))
    marks = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in place(front))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="13" role="img">'
        f"<title>{_text(names[1])} against {_text(names[0])}</title>"
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
        f"{_axes(names, scales)}"
        f'<g fill="#b8c0cc">{dots}</g>'
        f'<polyline points="{line}" fill="none" stroke="#0b6e4f" stroke-width="1.5"/>'
        f'<g fill="#0b6e4f">{marks}</g>'
        f'<text x="{LEFT}" y="24">{points.height:,} settings, {front.height} on the frontier'
        "</text></svg>\n"
    )


Scale = tuple[
    float, float, float, float
]  # value and place of the start, value and place of the end


def _scale(values: npt.NDArray[Any], start: float, stop: float) -> Scale:
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - room, start, high + room, stop


def _at(value: float | None, scale: Scale) -> float:
    low, start, high, stop = scale
    known = low if value is None or not np.isfinite(value) else value
    return start + (known - low) / (high - low) * (stop - start)


def _axes(names: tuple[str, str], scales: list[Scale]) -> str:
    base, edge = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = [f'<path d="M{LEFT} {TOP} V{base} H{edge}" fill="none" stroke="#444"/>']
    for step in range(5):
        for axis, scale in enumerate(scales):
            value = scale[0] + (scale[2] - scale[0]) * (step + 0.5) / 5
            at = _at(value, scale)
            x, y = (at, base + 18) if axis == 0 else (LEFT - 8, at + 4)
            anchor = "middle" if axis == 0 else "end"
            parts.append(
                f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{value:.3g}</text>'
            )
    middle = (LEFT + edge) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 16}" text-anchor="middle">{_text(names[0])}</text>'
    )
    parts.append(
        f'<text transform="translate(20 {(TOP + base) / 2}) rotate(-90)" '
        f'text-anchor="middle">{_text(names[1])}</text>'
    )
    return "".join(parts)


def _text(name: str) -> str:
    return html.escape(name)


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
