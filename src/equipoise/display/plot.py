"""Plots with matplotlib (``pip install 'equipoise[report]'``).

Every function returns the matplotlib axes it drew into, to be changed, shown or saved
(``axes.figure.savefig("plot.png")``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import polars as pl

from equipoise.data.interactions import Interactions
from equipoise.data.statistics import HEAD, popularity_curve
from equipoise.display.notebook import Interval
from equipoise.errors import MissingExtraError, SettingError

if TYPE_CHECKING:
    from equipoise.evaluation.results import Result

MAIN, SOFT = "#0b6e4f", "#b8c0cc"


def popularity(data: Interactions, *, ax: Any = None) -> Any:
    """Plot the cumulative share of interactions of the most popular items.

    Parameters
    ----------
    data
        The interactions.
    ax
        Axes to draw into; default: new axes.
    """
    axes = _axes(ax)
    curve = popularity_curve(data)
    axes.plot(curve["items"], curve["interactions"], color=MAIN)
    axes.plot([0, 1], [0, 1], color=SOFT, linestyle=":", label="all items alike")
    axes.axvline(HEAD, color=SOFT, linestyle="--", label=f"head: {HEAD:.0%} of the items")
    axes.set(xlabel="share of the items, most used first", ylabel="share of the interactions")
    axes.legend(frameon=False)
    return axes


def results(
    evaluations: Sequence[Result] | Mapping[str, Result],
    metric: str = "ndcg@20",
    *,
    ax: Any = None,
) -> Any:
    """Plot one metric of several models with 95% intervals.

    Parameters
    ----------
    evaluations
        Results, or results by name.
    metric
        Metric of all results, such as "tail_ndcg@20".
    ax
        Axes to draw into; default: new axes.
    """
    listed = evaluations.values() if isinstance(evaluations, Mapping) else evaluations
    if not isinstance(listed, Iterable) or not all(hasattr(r, "interval") for r in listed):
        raise SettingError(f"pass results of eq.evaluate, or results by name, got {evaluations!r}")
    names = (
        evaluations if isinstance(evaluations, Mapping) else [result.label for result in listed]
    )
    rows = [r.interval(metric)._replace(label=n) for n, r in zip(names, listed, strict=True)]
    if not rows:
        raise SettingError("there is no result to plot; pass at least one")
    return intervals(rows, metric, ax=ax)


def intervals(rows: Sequence[Interval], axis: str, *, title: str = "", ax: Any = None) -> Any:
    """Plot values with their intervals, the first one on top; `axis` labels the x axis."""
    axes = _axes(ax)
    places = range(len(rows))
    for place, row in zip(places, rows, strict=True):
        if row.low is not None and row.high is not None:
            axes.plot([row.low, row.high], [place, place], color=MAIN)
        axes.plot([row.value], [place], color=MAIN, marker="o")
    axes.set_yticks(list(places), [row.label for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    axes.set(xlabel=axis, title=title)
    return axes


def frontier(
    points: pl.DataFrame, front: pl.DataFrame, names: Sequence[str], *, ax: Any = None
) -> Any:
    """Plot the trials of a search and its frontier by the first two objectives, `names`."""
    if len(names) < 2:
        raise SettingError(
            f"a frontier needs two objectives, the search had only {', '.join(names)}; "
            "tune with objectives=[...]"
        )
    across, up = names[:2]
    axes = _axes(ax)
    best = front.sort(across)
    axes.scatter(points[across], points[up], color=SOFT, s=12, label="tried")
    axes.plot(best[across], best[up], color=MAIN, marker="o", label="frontier")
    axes.set(xlabel=across, ylabel=up)
    axes.legend(frameon=False)
    return axes


def _axes(ax: Any) -> Any:
    if ax is not None:
        if not hasattr(ax, "set_xlabel"):
            raise SettingError(f"ax must be axes of matplotlib, got {type(ax).__name__}")
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise MissingExtraError(
            "plots need matplotlib; install it with `pip install 'equipoise[report]'`"
        ) from error
    return pyplot.subplots(layout="constrained")[1]


def over_time(
    moments: Sequence[datetime],
    lines: Mapping[str, Sequence[float]],
    metric: str,
    *,
    ax: Any = None,
) -> Any:
    """Plot a metric of several models over time, the first model in front.

    Parameters
    ----------
    moments
        The middle of each period.
    lines
        Values of each model, one per period.
    metric
        Label of the y axis.
    ax
        Axes to draw into; default: new axes.
    """
    axes = _axes(ax)
    for number, (name, values) in enumerate(lines.items()):
        style = {"color": MAIN, "linewidth": 2.5} if number == 0 else {"linestyle": "--"}
        axes.plot(moments, values, marker="o", label=name, **style)
    axes.set(xlabel="time", ylabel=metric, ylim=(0, None))
    axes.figure.autofmt_xdate()
    axes.legend(frameon=False)
    return axes
