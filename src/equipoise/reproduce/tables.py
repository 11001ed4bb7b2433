"""Run the rows of a table, and put ours beside the published numbers."""

from __future__ import annotations

import json
import logging
import os
import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import polars as pl

import equipoise
from equipoise import split as splits
from equipoise.errors import DataError
from equipoise.evaluation import evaluate
from equipoise.models.autoencoder import LinearAutoencoder
from equipoise.models.base import Recommender
from equipoise.models.saving import build
from equipoise.readers.parts import read_strong, read_weak
from equipoise.reproduce.config import Config, Row
from equipoise.split import Split

logger = logging.getLogger(__name__)

DIGITS = 4
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


def run_table(
    config: Config,
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    device: str = "cpu",
    datasets: Iterable[str] | None = None,
    command: str = "",
    progress: Callable[[str], None] | None = None,
) -> pl.DataFrame:
    """Run every row whose data are present and write the comparison; finished rows are kept.

    Parameters
    ----------
    config
        The table.
    data
        Folder with one folder per data set, each with `strong` or `weak` inside.
    out
        CSV of results; rows in it with the same settings are not run again.
    device
        "cpu" or "cuda".
    datasets
        Names of data sets to run; all when left out.
    command
        How this was called, written beside the numbers.
    progress
        Called with a sentence when a row is done.
    """
    target = Path(out)
    done = read_results(target)
    wanted = set(datasets) if datasets is not None else {row.dataset for row in config.rows}
    for name in sorted({row.dataset for row in config.rows} & wanted):
        rows = [row for row in config.rows if row.dataset == name and row.settings is not None]
        todo = [row for row in rows if not _is_done(done, row)]
        folder = Path(data) / folder_name(name) / config.protocol
        if not todo or not folder.is_dir():
            continue
        part = published_split(folder, config.protocol)
        for row, model, seconds in fitted(todo, part, device):
            start = time.perf_counter()
            result = evaluate(model, part.test, 20, bootstrap=0)
            times = (seconds, time.perf_counter() - start)
            fresh = compared(config, row, result, times, _machine(device), command)
            done = merged(done, fresh)
            write_results(target, done)
            if progress:
                progress(f"{config.name} {name} {row.name}: {result['ndcg@20']:.4f}")
    return complete(config, done)


def complete(config: Config, done: pl.DataFrame) -> pl.DataFrame:
    """Return one line per cell of the table in its order; what was not run says so."""
    lines = [
        judged(config, row, done) if _is_done(done, row) else _not_run(config, row)
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
    verdict = status(published, ours, note)
    return {
        "published": published,
        "difference": difference,
        "status": verdict,
        "note": note if verdict == "explained" else "",
    }


def fitted(rows: list[Row], part: Split, device: str) -> Iterable[tuple[Row, Recommender, float]]:
    """Fit the rows, those that share a solve one after another so that it is done once."""
    shared: dict[str, LinearAutoencoder] = {}
    for row in sorted(rows, key=solve_key):
        model, key = build(row.settings), solve_key(row)
        start = time.perf_counter()
        if not isinstance(model, LinearAutoencoder):
            model.fit(part.train)
        elif key in shared:
            model.reuse(shared[key])
        else:
            shared.clear()  # frees the old inverse before the new one is made
            shared[key] = model.fit(part.train, device=device)
        yield row, model, time.perf_counter() - start


def solve_key(row: Row) -> str:
    """Rows with the same key share one solve: l2, dropout and the weights of the users."""
    settings = dict(row.settings or {})
    norm = settings.get("normalizer", {})
    beta = {"RandomWalk": 1.0, "Symmetric": 1.0}.get(norm.get("name", ""), norm.get("beta", 0.0))
    linear = {"LAE", "EASE", "RLAE"}
    kind = "linear" if settings.get("model") in linear else row.name
    return json.dumps([kind, settings.get("l2"), settings.get("dropout", 0.0), beta])


def compared(
    config: Config, row: Row, result: Any, times: tuple[float, float], machine: str, command: str
) -> pl.DataFrame:
    """Return one line per column: published, ours, difference, status."""
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
                "versions": f"equipoise {equipoise.__version__}",
                "command": command,
            }
        )
    return pl.DataFrame(lines, schema=SCHEMA)


def status(published: float | None, ours: float, note: str) -> str:
    """Return "equal" within one unit of the last printed digit, else "explained" or "differs".

    >>> status(0.1911, 0.19114, ""), status(0.1911, 0.1914, ""), status(0.1911, 0.1914, "ties")
    ('equal', 'differs', 'explained')
    """
    if published is None:
        return "not published"
    unit = 10.0**-DIGITS
    if abs(round(ours, DIGITS) - published) < 1.5 * unit:
        return "equal"
    return "explained" if note else "differs"


def published_split(folder: Path, protocol: str) -> Split:
    """Read a split as it was published: the authors' own held-out users or pairs."""
    if protocol == "strong":
        parts = read_strong(folder)
        return splits.from_parts(
            parts["train"],
            valid=(parts["valid_in"], parts["valid_target"]),
            test=(parts["test_in"], parts["test_target"]),
            protocol="strong",
        )
    if protocol != "weak":
        raise DataError(f"no published split is known for the protocol {protocol!r}")
    parts = read_weak(folder)
    return splits.from_parts(parts["train"], test=(parts["train"], parts["test"]), protocol="weak")


def folder_name(dataset: str) -> str:
    """Return the name of a data set's folder: lower case, as in `eq.datasets`."""
    return dataset.lower()


def read_results(path: Path) -> pl.DataFrame:
    """Return the results of earlier runs, an empty frame where there are none."""
    return pl.read_csv(path, schema=SCHEMA) if path.is_file() else pl.DataFrame(schema=SCHEMA)


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


def _same_row(row: Row) -> pl.Expr:
    return (
        (pl.col("dataset") == row.dataset)
        & (pl.col("row") == row.name)
        & (pl.col("settings") == json.dumps(row.settings))
        & pl.col("ours").is_not_null()
    )


def _is_done(done: pl.DataFrame, row: Row) -> bool:
    return bool(done.filter(_same_row(row)).height)


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


def _machine(device: str) -> str:
    from equipoise import threads

    if device == "cpu":
        return f"{threads.count()} cores, {platform.machine()}"
    from equipoise.solve.gpu import device_name

    return device_name(device)
