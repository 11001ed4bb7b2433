"""Run the rows of a table: models on a published split."""

from __future__ import annotations

import inspect
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import polars as pl

from equipoise.evaluation import evaluate
from equipoise.models.base import Recommender
from equipoise.models.linear import LinearAutoencoder
from equipoise.models.saving import build
from equipoise.reproduce.cells import (
    SCHEMA,
    compared,
    complete,
    is_done,
    machine_name,
    merged,
    read_results,
    status,
    write_results,
)
from equipoise.reproduce.config import Config, Row
from equipoise.reproduce.data import find_split, folder_name, published_split
from equipoise.reproduce.pace import Pace
from equipoise.split import Split

__all__ = [
    "SCHEMA",
    "compared",
    "complete",
    "fitted",
    "folder_name",
    "merged",
    "published_split",
    "read_results",
    "run_table",
    "status",
    "write_results",
]


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
    wanted = set(config.datasets if datasets is None else datasets)
    todo = [row for row in config.rows if row.settings is not None and not is_done(done, row)]
    found = {name: find_split(Path(data), name, config.protocol) for name in sorted(wanted)}
    todo = [row for row in todo if found.get(row.dataset) is not None]
    todo = [row for row in todo if device != "cpu" or not row.card]
    pace = Pace(len(todo), progress)
    for name, load in found.items():
        rows = [row for row in todo if row.dataset == name]
        if load is None or not rows:
            continue
        part = load()
        for row, model, seconds in fitted(rows, part, device):
            start = time.perf_counter()
            result = evaluate(model, part.test, 20, bootstrap=0)
            times = (seconds, time.perf_counter() - start)
            machine = machine_name(device if takes_device(model) else "cpu")
            fresh = compared(config, row, result, times, machine, command)
            done = merged(done, fresh)
            write_results(target, done)
            pace.step(f"{config.name} {name} {row.name}: {result['ndcg@20']:.4f}")
            del model  # frees its inverse before the next one is made
    return complete(config, done)


def fitted(rows: list[Row], part: Split, device: str) -> Iterable[tuple[Row, Recommender, float]]:
    """Fit the rows, those that share a solve one after another so that it is done once."""
    shared: dict[str, LinearAutoencoder] = {}
    for row in sorted(rows, key=solve_key):
        model, key = build(row.settings), solve_key(row)
        start = time.perf_counter()
        if not isinstance(model, LinearAutoencoder):
            fit: Any = model.fit
            fit(part.train, **({"device": device} if takes_device(model) else {}))
        elif key in shared:
            model.reuse(shared[key])
        else:
            shared.clear()  # frees the old inverse before the new one is made
            shared[key] = model.fit(part.train, device=device)
        yield row, model, time.perf_counter() - start


def takes_device(model: Recommender) -> bool:
    """Whether a model can be fitted on a card; the filters run on processors only."""
    return "device" in inspect.signature(model.fit).parameters


def solve_key(row: Row) -> str:
    """Rows with the same key share one solve: l2, dropout and the weights of the users."""
    settings = dict(row.settings or {})
    norm = settings.get("normalizer", {})
    beta = {"RandomWalk": 1.0, "Symmetric": 1.0}.get(norm.get("name", ""), norm.get("beta", 0.0))
    linear = {"LAE", "EASE", "RLAE"}
    kind = "linear" if settings.get("model") in linear else row.name
    return json.dumps([kind, settings.get("l2"), settings.get("dropout", 0.0), beta])
