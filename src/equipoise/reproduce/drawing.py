"""From the points of a figure to the frame that is drawn, and the picture.

The frame is written whether or not matplotlib is there, so that points can be computed on a
machine that has none and drawn on another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from equipoise.errors import MissingExtraError
from equipoise.report.figures import draw_bars, draw_lines, draw_lists
from equipoise.reproduce.cells import write_text
from equipoise.reproduce.config import Config

NAMES = {
    "all": "all items",
    "head": "head items",
    "tail": "tail items",
    "active": "active users",
    "inactive": "inactive users",
}
DRAW: dict[str, Callable[..., list[Path]]] = {
    "lines": draw_lines,
    "bars": draw_bars,
    "lists": draw_lists,
}


@dataclass(frozen=True)
class Picture:
    """What is drawn: a frame, how, and the columns for it."""

    frame: pl.DataFrame
    how: str
    options: dict[str, Any] = field(default_factory=dict)


def draw(config: Config, found: pl.DataFrame, folder: Path) -> str:
    """Write NAME.csv, and NAME.svg and NAME.png where matplotlib is there; say what was done."""
    if not found.height:
        return f"{config.name}: nothing to draw, none of its data sets is at hand"
    shown = picture(config, found)
    write_text(folder / f"{config.name}.csv", shown.frame.write_csv())
    try:
        files = DRAW[shown.how](shown.frame, folder / config.name, **shown.options)
    except MissingExtraError as error:
        return f"{config.name}: the picture was not drawn; {error}"
    return f"{config.name}: drew {', '.join(file.name for file in files)}"


def picture(config: Config, found: pl.DataFrame) -> Picture:
    """Return what is drawn of the points."""
    curves = config.options["curves"]
    if curves == ["models"]:
        return _groups_picture(config, found)
    return PICTURES[curves[0]](config, found)


def _groups_picture(config: Config, found: pl.DataFrame) -> Picture:
    """Bars: by group of items, or by group of data sets where the config has such groups."""
    options = {"y": "ndcg@20", "series": "model", "labels": ("", "NDCG@20")}
    frame = found.select(
        "dataset", pl.col("series").alias("model"), "group", pl.col("y").alias("ndcg@20")
    )
    groups = config.options.get("panels")
    if not groups:
        frame = frame.filter(pl.col("group") != "all").with_columns(_titled(config), _worded())
        return Picture(frame, "bars", {**options, "x": "items", "panel": "data"})
    home = {name: group for group, names in groups.items() for name in names}
    frame = frame.filter(pl.col("group") == "all").with_columns(
        pl.col("dataset").replace_strict(home, default="other").alias("panel")
    )
    order = pl.col("panel").replace_strict({name: i for i, name in enumerate(groups)}, default=9)
    return Picture(
        frame.sort(order, maintain_order=True),
        "bars",
        {**options, "x": "dataset", "panel": "panel"},
    )


def _exponents(config: Config, found: pl.DataFrame) -> Picture:
    """NDCG over alpha or beta; a panel per data set, and per exponent where there are both."""
    both = found["curve"].n_unique() > 1
    title = pl.concat_str(_title(config), pl.lit(" over "), "curve") if both else _title(config)
    whole = pl.when((pl.col("group") == "all") & (pl.col("curve") == "beta")).then(
        pl.lit("all items" if both else "all users")
    )
    frame = found.select(
        title.alias("data"),
        whole.otherwise(pl.col("group").replace(NAMES)).alias("over"),
        pl.col("x").alias("value"),
        pl.col("y").alias("ndcg@20"),
    )
    names = " or ".join(found["curve"].unique(maintain_order=True))
    options = {"x": "value", "y": "ndcg@20", "series": "over", "panel": "data"}
    return Picture(frame, "lines", {**options, "labels": (names, "NDCG@20")})


def _noise(config: Config, found: pl.DataFrame) -> Picture:
    """Relative drop over noise: mean over the seeds, and from the least to the most."""
    frame = drops(found).with_columns(
        pl.concat_str(_title(config), pl.lit(", "), pl.col("group").replace(NAMES)).alias("data")
    )
    frame = frame.select(
        "data",
        pl.col("series").alias("model"),
        pl.col("x").alias("noise"),
        *("drop", "low", "high", "ndcg@20", "seeds"),
    )
    options = {"x": "noise", "y": "drop", "series": "model", "panel": "data"}
    labels = ("noise (%)", "drop of NDCG@20 (%)")
    band = {"low": "low", "high": "high", "per_row": 2}
    return Picture(frame, "lines", {**options, **band, "labels": labels})


def drops(found: pl.DataFrame) -> pl.DataFrame:
    """Return the loss of NDCG against training without noise in percent, over the seeds."""
    keys = ["dataset", "series", "group"]
    clean = found.filter(pl.col("x") == 0).select(*keys, pl.col("y").alias("clean"))
    drop = 100 * (1 - pl.col("y") / pl.col("clean"))
    return (
        found.join(clean, on=keys, maintain_order="left")
        .with_columns(drop=drop)
        .group_by("dataset", "group", "series", "x", maintain_order=True)
        .agg(
            pl.col("drop").mean(),
            pl.col("drop").min().alias("low"),
            pl.col("drop").max().alias("high"),
            pl.col("y").mean().alias("ndcg@20"),
            pl.len().alias("seeds"),
        )
    )


def _weights(config: Config, found: pl.DataFrame) -> Picture:
    frame = found.select(
        pl.concat_str(_title(config), pl.lit(": "), "series").alias("data"),
        pl.col("group").replace(NAMES).alias("items"),
        pl.col("x").alias("mean weight"),
        pl.col("y").alias("density"),
    )
    options = {"x": "mean weight", "y": "density", "series": "items", "panel": "data"}
    return Picture(frame, "lines", {**options, "markers": False})


def _eigenvalues(config: Config, found: pl.DataFrame) -> Picture:
    frame = found.filter(pl.col("group") == "").select(
        _title(config).alias("data"),
        "series",
        pl.col("x").alias("rank"),
        pl.col("y").alias("eigenvalue"),
    )
    options = {"x": "rank", "y": "eigenvalue", "series": "series", "panel": "data"}
    labels = ("rank of the eigenvalue", "eigenvalue of B")
    return Picture(frame, "lines", {**options, "markers": False, "log": ("x",), "labels": labels})


def _lists(config: Config, found: pl.DataFrame) -> Picture:
    frame = found.filter(pl.col("group") != "").select(
        pl.col("series").alias("list"),
        pl.col("x").cast(pl.Int64).alias("rank"),
        pl.col("label").alias("title"),
        pl.col("y").cast(pl.Int64).alias("people"),
        (pl.col("group") == "tail").alias("tail"),
        "dataset",
    )
    # a person at a time: the first data set that is there
    frame = frame.filter(pl.col("dataset") == frame["dataset"][0])
    person = found.filter(pl.col("series") == "user")["label"][0]
    caption = f"{frame['dataset'][0]}, user {person}. Dashed box, italics: tail item; solid: head."
    options = {"text": "title", "panel": "list", "marked": "tail", "caption": caption}
    return Picture(frame, "lists", options)


PICTURES: dict[str, Callable[[Config, pl.DataFrame], Picture]] = {
    "alpha": _exponents,
    "beta": _exponents,
    "noise": _noise,
    "weights": _weights,
    "eigenvalues": _eigenvalues,
    "lists": _lists,
}


def _title(config: Config) -> pl.Expr:
    """The data set, and what it stands in for."""
    stand_ins = config.options.get("stands_for", {})
    titles = {name: f"{name} (for {other})" for name, other in stand_ins.items()}
    return pl.col("dataset").replace(titles)


def _titled(config: Config) -> pl.Expr:
    return _title(config).alias("data")


def _worded() -> pl.Expr:
    return pl.col("group").replace(NAMES).alias("items")
