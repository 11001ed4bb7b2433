"""Turn the points of a figure into the frame that is drawn, and draw it.

The frame is written even without matplotlib, so that points can be computed on one machine and
drawn on another. Series differ by line style and marker, bars by
hatching, so that a figure can be read in black and white. The same frame gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from reproduce.config import Config
from reproduce.results import write_text

# Dark to light, so that grey levels differ too.
COLOURS = ("#0b3c49", "#b04a12", "#3f7d8c", "#8a6d1a", "#7d8790", "#b3862b")
STYLES = ("-", "--", ":", "-.", (0, (6, 2, 1, 2, 1, 2)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "x")
HATCHES = ("", "///", "...", "\\\\\\", "xx", "--")
PANEL = (3.1, 2.4)  # inches
LINE = 0.21  # inches from one title of a list to the next
WIDTH = 30  # characters of a title; longer ones are cut
LOOK = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "legend.frameon": False,
    "svg.hashsalt": "equipoise",
    "svg.fonttype": "none",
}
NAMES = {
    "all": "all items",
    "head": "head items",
    "tail": "tail items",
    "active": "active users",
    "inactive": "inactive users",
}
# A frame, and arguments of `paint_panels` or, with captions, of `paint_lists`.
Picture = tuple[pl.DataFrame, dict[str, Any]]


def draw(config: Config, points: pl.DataFrame, folder: Path) -> str:
    """Write NAME.csv, and NAME.svg and NAME.png with matplotlib; return a log message."""
    name = config.name
    if not points.height:
        return f"{name}: nothing to draw, none of its data sets is at hand"
    frame, style = picture(config, points)
    write_text(folder / f"{name}.csv", frame.write_csv())
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        remedy = "figures need matplotlib; install it with `pip install 'equipoise[report]'`"
        return f"{name}: the picture was not drawn; {remedy}"
    with matplotlib.rc_context(LOOK):
        figure = Figure()
        FigureCanvasAgg(figure)
        (paint_lists if "captions" in style else paint_panels)(figure, frame, **style)
        # without date and version the same frame gives the same file
        figure.savefig(folder / f"{name}.svg", format="svg", metadata={"Date": None})
        figure.savefig(folder / f"{name}.png", format="png", dpi=200, metadata={"Software": None})
    return f"{name}: drew {name}.svg, {name}.png, {name}.csv"


def picture(config: Config, points: pl.DataFrame) -> Picture:
    """Return the frame that is drawn, and the arguments of the function that draws it."""
    stand_ins = config.options.get("stands_for", {})
    titles = {name: f"{name} (for {other})" for name, other in stand_ins.items()}
    points = points.with_columns(
        title=pl.col("dataset").replace(titles), named=pl.col("group").replace(NAMES)
    )
    return PICTURES[config.options["curves"][0]](config, points)


def _models(config: Config, points: pl.DataFrame) -> Picture:
    """Bars: by group of items, or by group of data sets where the config has such groups."""
    style = {"y": "ndcg@20", "series": "model", "labels": ("", "NDCG@20"), "bars": True}
    columns = {"dataset": "dataset", "model": "series", "group": "group", "ndcg@20": "y"}
    groups = config.options.get("panels")
    if not groups:
        frame = points.filter(pl.col("group") != "all")
        return frame.select(**columns, data="title", items="named"), {**style, "x": "items"}
    home = {name: group for group, names in groups.items() for name in names}
    order = {name: place for place, name in enumerate(groups)}
    panel = pl.col("dataset").replace_strict(home, default="other")
    frame = points.filter(group="all").select(**columns, panel=panel)
    frame = frame.sort(pl.col("panel").replace_strict(order, default=9), maintain_order=True)
    return frame, {**style, "x": "dataset", "panel": "panel"}


def _exponents(config: Config, points: pl.DataFrame) -> Picture:
    """NDCG over alpha or beta; a panel per data set, and per exponent where there are both."""
    both = points["curve"].n_unique() > 1
    when_all_users = pl.when((pl.col("group") == "all") & (pl.col("curve") == "beta"))
    frame = points.select(
        data=pl.concat_str("title", pl.lit(" over "), "curve") if both else "title",
        over=when_all_users.then(pl.lit("all items" if both else "all users")).otherwise("named"),
        value="x",
        **{"ndcg@20": "y"},
    )
    exponents = dict(zip(frame["data"], points["curve"], strict=True))
    style = {"x": "value", "y": "ndcg@20", "series": "over", "x_labels": exponents}
    return frame, {**style, "labels": ("", "NDCG@20")}


def _noise(config: Config, points: pl.DataFrame) -> Picture:
    """Relative drop over noise: mean over the seeds, and from the least to the most."""
    names = points.select("dataset", "group", "title", "named").unique()
    frame = drops(points).join(names, on=["dataset", "group"], maintain_order="left")
    columns = {name: name for name in ("drop", "low", "high", "ndcg@20", "seeds")}
    title = pl.concat_str("title", pl.lit(", "), "named")
    frame = frame.select(data=title, model="series", noise="x", **columns)
    style = {"x": "noise", "y": "drop", "series": "model", "band": ("low", "high"), "per_row": 2}
    return frame, {**style, "labels": ("noise (%)", "drop of NDCG@20 (%)")}


def drops(points: pl.DataFrame) -> pl.DataFrame:
    """Return the loss of NDCG against training without noise in percent, over the seeds."""
    keys = ["dataset", "series", "group"]
    clean = points.filter(x=0).select(*keys, clean="y")
    return (
        points.join(clean, on=keys, maintain_order="left")
        .with_columns(drop=100 * (1 - pl.col("y") / pl.col("clean")))
        .group_by("dataset", "group", "series", "x", maintain_order=True)
        .agg(
            pl.col("drop").mean(),
            low=pl.col("drop").min(),
            high=pl.col("drop").max(),
            seeds=pl.len(),
            **{"ndcg@20": pl.col("y").mean()},
        )
    )


def _weights(config: Config, points: pl.DataFrame) -> Picture:
    title = pl.concat_str("title", pl.lit(": "), "series")
    frame = points.select(data=title, items="named", **{"mean weight": "x"}, density="y")
    style = {"x": "mean weight", "y": "density", "series": "items", "markers": False}
    return frame, {**style, "share_x": "row"}  # a row has the settings of one data set


def _eigenvalues(config: Config, points: pl.DataFrame) -> Picture:
    frame = points.filter(group="").select(data="title", series="series", rank="x", eigenvalue="y")
    style = {"x": "rank", "y": "eigenvalue", "series": "series", "markers": False, "log": True}
    return frame, {**style, "labels": ("rank of the eigenvalue", "eigenvalue of B")}


def _lists(config: Config, points: pl.DataFrame) -> Picture:
    frame = points.filter(pl.col("group") != "").select(
        list="series",
        rank=pl.col("x").cast(pl.Int64),
        title="label",
        users=pl.col("y").cast(pl.Int64),
        tail=pl.col("group") == "tail",
        dataset="dataset",
    )
    users = points.filter(series="user").select("dataset", "label").rows()
    captions = {dataset: f"{dataset}, user {user}" for dataset, user in users}
    return frame, {"captions": captions}


PICTURES: dict[str, Callable[[Config, pl.DataFrame], Picture]] = {
    "models": _models,
    "alpha": _exponents,
    "beta": _exponents,
    "noise": _noise,
    "weights": _weights,
    "eigenvalues": _eigenvalues,
    "lists": _lists,
}


def paint_panels(
    figure: Any,
    frame: pl.DataFrame,
    *,
    x: str,
    y: str,
    series: str,
    panel: str = "data",
    labels: tuple[str, str] | None = None,
    x_labels: Mapping[str, str] | None = None,
    share_x: str | bool = False,
    per_row: int = 4,
    bars: bool = False,
    **look: Any,
) -> None:
    """Make a panel per value of a column, fill them, and name the series below.

    `x_labels` has the name of the horizontal axis of each panel, if they differ.
    """
    parts = _groups(frame, panel)
    height = -(-len(parts) // per_row)
    width = -(-len(parts) // height)  # few empty places
    figure.set_size_inches(PANEL[0] * width, PANEL[1] * height)
    figure.set_layout_engine("constrained")
    grid = figure.subplots(height, width, squeeze=False, sharex=share_x).ravel()
    known: dict[str, Any] = {}  # marks of all series; a panel may lack some
    for place, (axes, (name, part)) in enumerate(zip(grid, parts, strict=False)):
        (paint_bars if bars else paint_lines)(axes, part, x, y, series, **look)
        axes.set_xlabel(x_labels[name] if x_labels else (labels or (x, y))[0])
        axes.set_title(name, fontsize=9, loc="left")
        axes.set_ylabel((labels or (x, y))[1]) if place % width == 0 else None
        handles, names = axes.get_legend_handles_labels()
        known |= dict(zip(names, handles, strict=True))
    for axes in grid[len(parts) :]:
        axes.remove()
    columns = min(len(known), 2 * width)
    below = "outside lower center"
    figure.legend(list(known.values()), list(known), loc=below, fontsize=8, ncols=columns)


def paint_lines(
    axes: Any,
    part: pl.DataFrame,
    x: str,
    y: str,
    series: str,
    *,
    markers: bool = True,
    log: bool = False,
    band: tuple[str, str] | None = None,
) -> None:
    """Draw y over x, a line per value of `series`; `band` names the ends of an interval."""
    for place, (name, rows) in enumerate(_groups(part, series)):
        ordered = rows.sort(x) if markers else rows
        look: dict[str, Any] = {"color": COLOURS[place % 6], "linestyle": STYLES[place % 6]}
        if markers:
            look |= {"marker": MARKERS[place % 6], "markersize": 4}
        where = ordered[x].to_numpy()
        axes.plot(where, ordered[y].to_numpy(), label=name, linewidth=1.4, **look)
        if band is not None:
            ends = (ordered[end].to_numpy() for end in band)
            axes.fill_between(where, *ends, alpha=0.15, color=look["color"])
    if log:
        axes.set_xscale("log")
    else:
        axes.locator_params(axis="x", nbins=6)
        axes.ticklabel_format(axis="x", scilimits=(-2, 4))


def paint_bars(axes: Any, part: pl.DataFrame, x: str, y: str, series: str) -> None:
    """Draw a group of bars per value of x, a bar per value of `series` in it."""
    names = part[x].unique(maintain_order=True).to_list()
    groups = _groups(part, series)
    width = 0.8 / max(len(groups), 1)
    for place, (name, rows) in enumerate(groups):
        where = np.array([names.index(value) for value in rows[x].to_list()])
        colour, hatch = COLOURS[place % 6], HATCHES[place % 6]
        axes.bar(
            where + (place - (len(groups) - 1) / 2) * width,
            rows[y].to_numpy(),
            width,
            label=name,
            color="#f4f1ea" if hatch else colour,  # hatching would not be seen on a dark fill
            edgecolor=colour,
            hatch=hatch,
            linewidth=0.8,
        )
    axes.set_xticks(range(len(names)), [str(name) for name in names])


def paint_lists(figure: Any, frame: pl.DataFrame, *, captions: Mapping[str, str]) -> None:
    """Write lists of titles side by side, a row of lists for each data set.

    Each title stands in a box, dashed for tail items.
    """
    datasets = _groups(frame, "dataset")
    lengths = [rows["rank"].max() + 3 for _, rows in datasets]
    n_lists = frame["list"].n_unique()
    figure.set_size_inches(0.075 * WIDTH * n_lists, LINE * 1.3 * (sum(lengths) + 0.5))
    bands = figure.subfigures(len(datasets), 1, squeeze=False, height_ratios=lengths)[:, 0]
    for band, length, (dataset, lists) in zip(bands, lengths, datasets, strict=True):
        columns = band.subplots(1, n_lists, squeeze=False)[0]
        for axes, (name, rows) in zip(columns, _groups(lists, "list"), strict=True):
            axes.set_axis_off()
            axes.set_title(name, fontsize=9, loc="left")
            for place, (title, tail) in enumerate(rows.select("title", "tail").rows()):
                look = {"boxstyle": "round,pad=0.3", "fill": False, "linewidth": 1.0}
                look |= {"linestyle": "--" if tail else "-"}
                where = (0.02, 1 - (place + 0.7) / (length - 2.5))
                short = title if len(title) <= WIDTH else f"{title[: WIDTH - 1]}…"
                style = "italic" if tail else "normal"
                axes.text(*where, short, fontsize=7.5, style=style, bbox=look)
        top, bottom = 1 - 2 / length, 0.3 / length
        band.subplots_adjust(left=0.01, right=0.99, top=top, bottom=bottom, wspace=0.04)
        band.text(0.01, 1 - 0.8 / length, captions[dataset], fontsize=9, weight="bold")
    figure.text(0.01, 0.004, "Dashed box, italics: tail item; solid: head.", fontsize=7.5)


def _groups(frame: pl.DataFrame, column: str) -> list[tuple[str, pl.DataFrame]]:
    names = frame[column].unique(maintain_order=True).to_list()
    return [(str(name), frame.filter(pl.col(column) == name)) for name in names]
