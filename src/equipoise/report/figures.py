"""Figures for print: drawn from a frame, which is saved beside them.

Each call writes NAME.svg, NAME.png and NAME.csv. Series differ by line style and marker, bars by
hatching, so that a figure can be read in black and white. The same frame gives the same bytes of
SVG. Needs matplotlib: ``pip install equipoise[report]``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from equipoise.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Dark to light, so that grey levels differ too.
COLOURS = ("#0b3c49", "#b04a12", "#3f7d8c", "#8a6d1a", "#7d8790", "#b3862b")
STYLES = ("-", "--", ":", "-.", (0, (6, 2, 1, 2, 1, 2)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "x")
HATCHES = ("", "///", "...", "\\\\\\", "xx", "--")
PANEL = (3.1, 2.4)  # inches
PER_ROW = 4  # panels side by side
LINE = 0.21  # inches from one title of a list to the next
LOOK = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "legend.frameon": False,
    "svg.hashsalt": "equipoise",
    "svg.fonttype": "none",
}


def draw_lines(
    frame: pl.DataFrame,
    path: str | os.PathLike[str],
    *,
    x: str,
    y: str,
    series: str | None = None,
    panel: str | None = None,
    labels: Sequence[str] | None = None,
    markers: bool = True,
    log: Sequence[str] = (),
    low: str | None = None,
    high: str | None = None,
    per_row: int = PER_ROW,
) -> list[Path]:
    """Draw y over x: a line per value of `series`, a panel per value of `panel`.

    Parameters
    ----------
    frame
        One row per point.
    path
        The files to write, without ending.
    x, y, series, panel
        Columns.
    labels
        Of the x axis and the y axis; the columns' names if left out.
    markers
        Whether to mark the points; leave them out for curves of many points.
    log
        "x", "y" or both: which axes are logarithmic.
    low, high
        Columns with the ends of an interval, drawn as a band.
    per_row
        At most this many panels side by side.
    """
    _require(frame, [x, y, series, panel, low, high])

    def draw(axes: Axes, part: pl.DataFrame) -> None:
        for place, (name, rows) in enumerate(_groups(part, series)):
            ordered = rows.sort(x) if markers else rows
            style: Any = STYLES[place % len(STYLES)]
            look: dict[str, Any] = {"color": COLOURS[place % len(COLOURS)], "linestyle": style}
            if markers:
                look |= {"marker": MARKERS[place % len(MARKERS)], "markersize": 4}
            axes.plot(_array(ordered, x), _array(ordered, y), label=name, linewidth=1.4, **look)
            if low is not None and high is not None:
                ends = _array(ordered, low), _array(ordered, high)
                axes.fill_between(_array(ordered, x), *ends, alpha=0.15, color=look["color"])
        for axis in log:
            getattr(axes, f"set_{axis}scale")("log")
        if "x" not in log:
            axes.locator_params(axis="x", nbins=6)
            axes.ticklabel_format(axis="x", scilimits=(-2, 4))

    return _figure(frame, path, panel, labels or (x, y), series, draw, per_row)


def draw_bars(
    frame: pl.DataFrame,
    path: str | os.PathLike[str],
    *,
    x: str,
    y: str,
    series: str | None = None,
    panel: str | None = None,
    labels: Sequence[str] | None = None,
) -> list[Path]:
    """Draw a group of bars per value of x, a bar per value of `series` in it.

    Parameters
    ----------
    frame
        One row per bar.
    path
        The files to write, without ending.
    x, y, series, panel
        Columns.
    labels
        Of the x axis and the y axis; the columns' names if left out.
    """
    _require(frame, [x, y, series, panel])

    def draw(axes: Axes, part: pl.DataFrame) -> None:
        names = part[x].unique(maintain_order=True).to_list()
        groups = _groups(part, series)
        width = 0.8 / max(len(groups), 1)
        for place, (name, rows) in enumerate(groups):
            where = [names.index(value) for value in rows[x].to_list()]
            shift = (place - (len(groups) - 1) / 2) * width
            # a light fill: hatching would not be seen on a dark one
            fill = "#f4f1ea" if HATCHES[place % 6] else COLOURS[place % 6]
            axes.bar(
                np.asarray(where) + shift,
                _array(rows, y),
                width,
                label=name,
                color=fill,
                edgecolor=COLOURS[place % 6],
                hatch=HATCHES[place % 6],
                linewidth=0.8,
            )
        axes.set_xticks(range(len(names)), [str(name) for name in names])

    return _figure(frame, path, panel, labels or (x, y), series, draw)


def draw_lists(
    frame: pl.DataFrame,
    path: str | os.PathLike[str],
    *,
    text: str,
    panel: str,
    marked: str,
    caption: str = "",
    width: int = 30,
) -> list[Path]:
    """Write lists of titles side by side, each title in a box, that of marked ones dashed.

    Parameters
    ----------
    frame
        One row per title, in order.
    path
        The files to write, without ending.
    text, panel
        Columns with the title and the list it belongs to.
    marked
        Column of true and false.
    caption
        A line below, such as what the marks mean.
    width
        Longer titles are cut to this many characters.
    """
    _require(frame, [text, panel, marked])
    matplotlib = _matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(LOOK):
        parts = _groups(frame, panel)
        longest = max(rows.height for _, rows in parts)
        size = (0.075 * width * len(parts), LINE * 1.3 * (longest + 2.5))
        figure = Figure(size)
        FigureCanvasAgg(figure)
        for axes, (name, rows) in zip(
            figure.subplots(1, len(parts), squeeze=False)[0], parts, strict=True
        ):
            axes.set_axis_off()
            axes.set_title(name, fontsize=9, loc="left")
            for place, row in enumerate(rows.iter_rows(named=True)):
                look = {"boxstyle": "round,pad=0.3", "fill": False, "linewidth": 1.0}
                look |= {"linestyle": "--" if row[marked] else "-"}
                style = "italic" if row[marked] else "normal"
                where = (0.02, 1 - (place + 0.7) / (longest + 0.5))
                title = str(row[text])
                short = title if len(title) <= width else f"{title[: width - 1]}…"
                axes.text(*where, short, fontsize=7.5, style=style, bbox=look)
        figure.subplots_adjust(left=0.01, right=0.99, top=0.88, bottom=0.1, wspace=0.04)
        figure.text(0.01, 0.02, caption, fontsize=7.5)
        return _save(figure, frame, Path(path))


def _figure(
    frame: pl.DataFrame,
    path: str | os.PathLike[str],
    panel: str | None,
    labels: Sequence[str],
    series: str | None,
    draw: Any,
    per_row: int = PER_ROW,
) -> list[Path]:
    """Make the panels, let `draw` fill them, and write the three files."""
    matplotlib = _matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(LOOK):
        parts = _groups(frame, panel)
        height, width = _layout(len(parts), per_row)
        figure = Figure((PANEL[0] * width, PANEL[1] * height), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(height, width, squeeze=False).ravel()
        for place, (axes, (name, part)) in enumerate(zip(panels, parts, strict=False)):
            draw(axes, part)
            axes.set_xlabel(labels[0])
            axes.set_title(name, fontsize=9, loc="left") if panel is not None else None
            axes.set_ylabel(labels[1]) if place % width == 0 else None
        for axes in panels[len(parts) :]:
            axes.remove()
        if series is not None:
            known = dict(_named_handles(panels[: len(parts)]))
            look: dict[str, Any] = {"fontsize": 8, "ncols": min(len(known), 2 * width)}
            below: Any = "outside lower center"
            figure.legend(list(known.values()), list(known), loc=below, **look)
        return _save(figure, frame, Path(path))


def _layout(count: int, per_row: int) -> tuple[int, int]:
    """Rows and columns of panels, with few empty places."""
    height = -(-count // per_row)
    return height, -(-count // height)


def _named_handles(panels: Iterable[Axes]) -> Iterator[tuple[str, Any]]:
    """Names and marks of all series; a panel may lack some."""
    for axes in panels:
        handles, names = axes.get_legend_handles_labels()
        yield from zip(names, handles, strict=True)


def _save(figure: Figure, frame: pl.DataFrame, stem: Path) -> list[Path]:
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_name(f"{stem.name}.{ending}") for ending in ("svg", "png", "csv")]
    # without the date the same frame gives the same file
    figure.savefig(files[0], format="svg", metadata={"Date": None})
    figure.savefig(files[1], format="png", dpi=200, metadata={"Software": None})
    frame.write_csv(files[2])
    return files


def _groups(frame: pl.DataFrame, column: str | None) -> list[tuple[str, pl.DataFrame]]:
    if column is None:
        return [("", frame)]
    names = frame[column].unique(maintain_order=True).to_list()
    return [(str(name), frame.filter(pl.col(column) == name)) for name in names]


def _array(frame: pl.DataFrame, column: str) -> Any:
    return frame[column].to_numpy()


def _require(frame: pl.DataFrame, columns: Sequence[str | None]) -> None:
    if not frame.height:
        raise DataError("there is nothing to draw; the frame has no rows")
    missing = [name for name in columns if name is not None and name not in frame.columns]
    if missing:
        have = ", ".join(frame.columns)
        raise DataError(f"the frame has no column {missing[0]!r}; it has {have}")


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError(
            "figures need matplotlib; install it with `pip install equipoise[report]`"
        ) from error
    return matplotlib
