"""Table 6: seconds of training and of inference, measured in turns in one run.

The models take turns, in an order that is turned round each time, and the best time of each
counts: other work on the machine then hits all alike. Processor time stands beside wall-clock
time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from equipoise.interactions import Interactions
from equipoise.models.linear import LinearAutoencoder
from equipoise.models.saving import build
from equipoise.reproduce import cells
from equipoise.reproduce.cells import (
    compared,
    is_done,
    machine_name,
    merged,
    read_results,
    write_results,
)
from equipoise.reproduce.config import Config, Row
from equipoise.reproduce.data import find_split
from equipoise.reproduce.pace import Pace
from equipoise.split import Part, Split

BATCH = 4096  # users ranked at a time, as in the paper
WARM_USERS = 200  # of a first fit that is not timed: it compiles and loads
Times = dict[str, float]


def run_efficiency(
    config: Config,
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    device: str = "cpu",
    datasets: Iterable[str] | None = None,
    command: str = "",
    progress: Callable[[str], None] | None = None,
) -> pl.DataFrame:
    """Measure the models whose data are present; what was measured is kept.

    Parameters
    ----------
    config
        Rows have a model with settings and a `device`, or a `ratio` of two other rows. Options:
        `repeats`, how often linear autoencoders are fitted; `items`, only so many most used items.
    data, out, datasets, command, progress
        As of `run_table`.
    device
        Only rows of this device are measured.
    """
    config = _pinned(config)
    target, options = Path(out), config.options
    done = read_results(target)
    wanted = set(config.datasets if datasets is None else datasets)
    for name in [each for each in config.datasets if each in wanted]:
        load = find_split(Path(data), name, config.protocol)
        mine = [row for row in config.rows if row.dataset == name and row.settings is not None]
        mine = [row for row in mine if (row.settings or {}).get("device", "cpu") == device]
        if load is None or all(is_done(done, row) for row in mine):
            continue
        part = limited(load(), options.get("items"))
        models = [row for row in mine if "model" in (row.settings or {})]
        pace = Pace(_count(models, options["repeats"]), progress)
        best: dict[str, Times] = {}
        for row, times in measured(models, part, device, options["repeats"]):
            old = best.get(row.name, times)
            best[row.name] = {key: min(old[key], times[key]) for key in times}
            pace.step(f"{config.name} {name} {row.name}: fit {times['train']:.2f} s")
        best |= {row.name: _ratio(row, best) for row in mine if row.name not in best}
        for row in mine:
            found = best[row.name]
            seconds = (found["train"], found["inference"])
            fresh = compared(config, row, found, seconds, machine_name(device), command)
            done = merged(done, fresh)
        write_results(target, done)
    return complete(config, done)


def measured(
    rows: list[Row], part: Split, device: str, repeats: int
) -> Iterator[tuple[Row, Times]]:
    """Fit and rank in turns; models other than linear autoencoders are measured once."""
    small = part.train.rows(np.arange(min(WARM_USERS, part.train.n_users)))
    small = small.columns(small.item_counts > 0)
    for row in rows:
        _once(row, small, small, device)
    for turn in range(repeats):
        for row in rows if turn % 2 == 0 else rows[::-1]:
            if turn and not _is_linear(row):
                continue
            yield row, _once(row, part.train, part.test.history, device)


def limited(split: Split, items: int | None) -> Split:
    """Return the split with its most used items only, for a quick look."""
    if items is None or items >= split.train.n_items:
        return split
    kept = np.sort(np.argsort(-split.train.item_counts, kind="stable")[:items])
    history, target = (side.columns(kept) for side in (split.test.history, split.test.target))
    rows = (history.user_counts > 0) & (target.user_counts > 0)
    test = Part(history.rows(rows), target.rows(rows), split.test.protocol, "test")
    return Split(split.train.columns(kept), None, test, split.protocol)


def complete(config: Config, done: pl.DataFrame) -> pl.DataFrame:
    """Return one line per cell: seconds of another machine are measured, a ratio has a target."""
    config = _pinned(config)
    target = config.options["target"]
    settings = {(row.dataset, row.name): row.settings or {} for row in config.rows}
    lines = cells.complete(config, done).to_dicts()
    for line in lines:
        parts = settings[line["dataset"], line["row"]].get("ratio")
        if parts:
            line["published"] = _published_ratio(config, line["dataset"], parts, line["column"])
        line["difference"], line["note"] = None, ""
        if line["ours"] is None:
            continue
        line["status"] = "measured"
        if parts and line["column"] == "train_seconds":
            verdict = "reached" if line["ours"] <= target else "missed"
            line["status"] = f"target of {target:g} {verdict}"
    return pl.DataFrame(lines, schema=cells.SCHEMA)


def _published_ratio(config: Config, dataset: str, parts: list[str], column: str) -> float | None:
    above, below = (config.published_value(Row(dataset, name, None), column) for name in parts)
    return None if above is None or not below else round(above / below, 4)


def _pinned(config: Config) -> Config:
    """Return the config with the limit of items among the settings: it decides the numbers."""
    limit = config.options.get("items")
    if limit is None:
        return config
    rows = [
        row if row.settings is None else replace(row, settings={**row.settings, "items": limit})
        for row in config.rows
    ]
    return replace(config, rows=rows)


def _once(row: Row, train: Interactions, history: Interactions, device: str) -> Times:
    about = ("device", "items")
    settings = {key: value for key, value in (row.settings or {}).items() if key not in about}
    model: Any = build(settings)
    options = {"device": device} if isinstance(model, LinearAutoencoder) else {}
    started = _clocks()
    model.fit(train, **options)
    fitted = _clocks()
    for low in range(0, history.n_users, BATCH):
        model.rank(history.rows(np.arange(low, min(low + BATCH, history.n_users))), 20)
    ended = _clocks()
    return {
        "train": fitted[0] - started[0],
        "inference": ended[0] - fitted[0],
        "train_cpu": fitted[1] - started[1],
        "inference_cpu": ended[1] - fitted[1],
    }


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _ratio(row: Row, best: dict[str, Times]) -> Times:
    above, below = (best[name] for name in (row.settings or {})["ratio"])
    return {key: above[key] / max(below[key], 1e-9) for key in above}


def _count(rows: list[Row], repeats: int) -> int:
    return sum(repeats if _is_linear(row) else 1 for row in rows)


def _is_linear(row: Row) -> bool:
    return (row.settings or {})["model"] in ("LAE", "EASE", "RLAE")
