"""Results in CSV files: cells beside the published numbers, and points of figures.

A file is replaced in one step, so a run that is stopped leaves exactly the rows it finished.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from equipoise.errors import DataError
from equipoise.runtime import machine
from equipoise.solve.torch_backend import device_name
from reproduce.config import Config, Id, Row

NOT_RUN = "not run here"
Line = dict[str, Any]
Lines = dict[Id, list[Line]]
WHERE = ("machine", "versions", "command")


def _schema(*parts: tuple[Any, tuple[str, ...]]) -> dict[str, Any]:
    return {name: kind for kind, names in parts for name in names}


CELLS = _schema(
    (pl.String, ("dataset", "row", "column")),
    (pl.Float64, ("published", "ours", "difference")),
    (pl.String, ("status", "note", "settings")),
    (pl.Float64, ("fit_seconds", "evaluate_seconds")),
    (pl.String, WHERE),
)
POINTS = _schema(
    (pl.String, ("dataset", "curve", "point", "series", "group")),
    (pl.Float64, ("x", "y")),
    (pl.String, ("label", "settings")),
    (pl.Float64, ("seconds",)),
    (pl.String, WHERE),
)


def read_lines(path: Path, schema: Mapping[str, Any]) -> Lines:
    """Return the lines of earlier runs by the row they belong to; refuse any other file."""
    out: Lines = {}
    try:
        if not path.exists() or (path.is_file() and not path.stat().st_size):
            return out
        frame = pl.read_csv(path, schema_overrides=schema, glob=False)
        reason = f"its columns are not {', '.join(schema)}"
    except (OSError, pl.exceptions.PolarsError) as error:
        frame, reason = pl.DataFrame(), str(error).partition("\n")[0]
    if frame.columns != list(schema):
        raise DataError(
            f"{path} cannot be read: {reason}; choose another path, or remove it to begin anew"
        )
    for line in frame.to_dicts():
        name = line["row"] if "row" in line else line["point"]
        row = (line["dataset"], line.get("curve", ""), name, line["settings"])
        out.setdefault(row, []).append(line)
    return out


def put(done: Lines, row: Row, lines: list[Line], where: Line) -> None:
    """Add the lines of a row, in place of those it had with any settings."""
    for old_id in [row_id for row_id in done if row_id[:3] == row.id[:3]]:
        del done[old_id]
    dataset, curve, name, settings = row.id
    shared = {"dataset": dataset, "row": name, "settings": settings, **where}
    if curve:
        shared |= {"curve": curve, "point": name, "series": row.series, "x": row.x, "label": ""}
    done[row.id] = [{**shared, **line} for line in lines]


def as_frame(lines: Lines, schema: Mapping[str, Any]) -> pl.DataFrame:
    """Return all lines as one frame."""
    records = [
        {name: line.get(name) for name in schema}
        for row_lines in lines.values()
        for line in row_lines
    ]
    return pl.DataFrame(records, schema=schema)


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)


def cells(
    config: Config, values: Mapping[str, Any] | Any, times: tuple[float, float]
) -> list[Line]:
    """Return one line per column of a table: ours, and the seconds of fit and evaluation."""
    seconds = {"fit_seconds": round(times[0], 2), "evaluate_seconds": round(times[1], 2)}
    return [
        {"column": column, "ours": round(float(values[metric]), 6), **seconds}
        for column, metric in config.columns.items()
    ]


def judge(config: Config, row: Row, column: str, ours: float | None) -> Line:
    """Return published value, difference, status and note of a cell."""
    published, unit = config.published_number(row.dataset, row.name, column)
    cell = {"published": published, "difference": None, "status": NOT_RUN, "note": row.note}
    if ours is None:
        return cell
    difference = None if published is None else round(ours - published, 6)
    small = abs(difference or 0.0) <= config.reason_limit
    note = row.note or (config.reasons.get(column, "") if small else "")
    verdict = status(published, ours, note, unit)
    note = note if verdict == "explained" else ""
    return {**cell, "difference": difference, "status": verdict, "note": note}


def status(published: float | None, ours: float, note: str, unit: float = 1e-4) -> str:
    """Return "equal" within one unit of the last printed digit, else "explained" or "differs".

    >>> status(0.1911, 0.19114, ""), status(0.1911, 0.1914, ""), status(0.1911, 0.1914, "ties")
    ('equal', 'differs', 'explained')
    """
    if published is None:
        return "not published"
    if abs(round(ours / unit) - published / unit) < 1.5:
        return "equal"
    return "explained" if note else "differs"


def machine_name(device: str) -> str:
    """Return the name of the GPU, or the number of cores."""
    if device == "cpu":
        return f"{machine.count()} cores, {platform.machine()}"
    return device_name(device)
