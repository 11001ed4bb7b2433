"""Cells of tables: published, ours, difference and status, kept in a CSV."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

import equipoise
from equipoise.errors import DataError
from equipoise.reproduce.config import Config, Row

NOT_RUN = "not run here"
SCHEMA = {
    "dataset": pl.String,
    "row": pl.String,
    "column": pl.String,
    "published": pl.Float64,
    "ours": pl.Float64,
    "difference": pl.Float64,
    "status": pl.String,
    "note": pl.String,
    "settings": pl.String,
    "fit_seconds": pl.Float64,
    "evaluate_seconds": pl.Float64,
    "machine": pl.String,
    "versions": pl.String,
    "command": pl.String,
}


def complete(config: Config, done: pl.DataFrame) -> pl.DataFrame:
    """Return one line per cell of the table in its order; what was not run says so."""
    lines = [
        judged(config, row, done) if is_done(done, row) else _not_run(config, row)
        for row in config.rows
    ]
    return pl.concat([pl.DataFrame(schema=SCHEMA), *lines])


def judged(config: Config, row: Row, done: pl.DataFrame) -> pl.DataFrame:
    """Return the lines of a row, compared anew with what was published."""
    lines = done.filter(_same_row(row)).to_dicts()
    for line in lines:
        line.update(comparison(config, row, line["column"], line["ours"]))
    return pl.DataFrame(lines, schema=SCHEMA)


def comparison(config: Config, row: Row, column: str, ours: float) -> dict[str, Any]:
    """Return published value, difference, status and note of a cell."""
    published = config.published_value(row, column)
    difference = None if published is None else round(ours - published, 6)
    note = config.note(row, column, difference or 0.0)
    verdict = status(published, ours, note, config.published_unit(row, column))
    return {
        "published": published,
        "difference": difference,
        "status": verdict,
        "note": note if verdict == "explained" else "",
    }


def compared(
    config: Config,
    row: Row,
    result: Mapping[str, Any] | Any,
    times: tuple[float, float],
    machine: str,
    command: str,
) -> pl.DataFrame:
    """Return one line per column: published, ours, difference, status.

    Parameters
    ----------
    config, row
        What was run.
    result
        Anything that gives a number for each metric of the columns.
    times
        Seconds of the fit and of the evaluation.
    machine, command
        Where and how.
    """
    lines = []
    for column, metric in config.columns.items():
        ours = float(result[metric])
        lines.append(
            {
                "dataset": row.dataset,
                "row": row.name,
                "column": column,
                "ours": round(ours, 6),
                **comparison(config, row, column, ours),
                "settings": json.dumps(row.settings),
                "fit_seconds": round(times[0], 2),
                "evaluate_seconds": round(times[1], 2),
                "machine": machine,
                "versions": versions(),
                "command": command,
            }
        )
    return pl.DataFrame(lines, schema=SCHEMA)


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


def read_results(path: Path) -> pl.DataFrame:
    """Return the results of earlier runs, an empty frame where there are none."""
    return read_table(path, SCHEMA)


def read_table(path: Path, schema: Mapping[str, Any]) -> pl.DataFrame:
    """Return a CSV with these columns; a file that is no such table is refused.

    What a run was stopped in the middle of cannot be seen: the file is replaced whole.
    """
    if not path.exists():
        return pl.DataFrame(schema=schema)
    try:
        if not path.stat().st_size:
            return pl.DataFrame(schema=schema)
        found = pl.read_csv(path, schema_overrides=schema, glob=False)
        if found.columns == list(schema):
            return found
        reason = f"its columns are not {', '.join(schema)}"
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = str(error).partition("\n")[0]
    raise DataError(
        f"{path} cannot be read: {reason}; choose another path, or remove it to begin anew"
    )


def read_kept(path: Path, names: Iterable[str]) -> dict[str, Any] | None:
    """Return what an earlier run kept in a JSON file, None where there is no file.

    Parameters
    ----------
    path
        The file.
    names
        What it must hold; any other file is refused.
    """
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not set(names) <= set(found):
        raise DataError(
            f"{path} is not a file of an earlier run; move it away or choose another path"
        )
    return found


def write_results(path: Path, results: pl.DataFrame) -> None:
    """Replace the results file in one step."""
    write_text(path, results.write_csv())


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)


def merged(old: pl.DataFrame, new: pl.DataFrame) -> pl.DataFrame:
    """Return both, where the new lines take the place of old ones for the same cell."""
    keys = ["dataset", "row", "column"]
    kept = old.join(new.select(keys), on=keys, how="anti")
    return pl.concat([kept, new])


def is_done(done: pl.DataFrame, row: Row) -> bool:
    """Whether a row was run with these settings."""
    return bool(done.filter(_same_row(row)).height)


def machine_name(device: str) -> str:
    """Return the machine in words: the card, or the number of cores."""
    from equipoise import machine

    if device == "cpu":
        return f"{machine.count()} cores, {platform.machine()}"
    from equipoise.solve.torch_backend import device_name

    return device_name(device)


def versions() -> str:
    """Return what made the numbers."""
    return f"equipoise {equipoise.__version__}"


def _same_row(row: Row) -> pl.Expr:
    return (
        (pl.col("dataset") == row.dataset)
        & (pl.col("row") == row.name)
        & (pl.col("settings") == json.dumps(row.settings))
        & pl.col("ours").is_not_null()
    )


def _not_run(config: Config, row: Row) -> pl.DataFrame:
    lines = [
        {
            "dataset": row.dataset,
            "row": row.name,
            "column": column,
            "published": config.published_value(row, column),
            "status": NOT_RUN,
            "note": row.note,
            "settings": json.dumps(row.settings),
        }
        for column in config.columns
    ]
    return pl.DataFrame(lines, schema=SCHEMA)
