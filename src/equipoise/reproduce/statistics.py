"""Table 1: the statistics of each data set, for each of its parts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from functools import reduce
from pathlib import Path

import polars as pl

from equipoise.interactions import Interactions
from equipoise.reproduce.cells import (
    compared,
    complete,
    is_done,
    machine_name,
    merged,
    read_results,
    write_results,
)
from equipoise.reproduce.config import Config
from equipoise.reproduce.data import find_split
from equipoise.reproduce.pace import Pace
from equipoise.split import Split
from equipoise.statistics import describe

STRONG, WEAK, ALL = "strong train", "weak train", "all interactions"


def run_statistics(
    config: Config,
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    device: str = "cpu",
    datasets: Iterable[str] | None = None,
    command: str = "",
    progress: Callable[[str], None] | None = None,
) -> pl.DataFrame:
    """Describe each part of the data sets that are present; what is known is kept.

    Parameters
    ----------
    config
        Its rows name the part in their settings.
    data, out, datasets, command, progress
        As of `run_table`.
    device
        Not used: counting is done on the host.
    """
    target = Path(out)
    done = read_results(target)
    wanted = set(config.datasets if datasets is None else datasets)
    rows = [
        row
        for row in config.rows
        if row.dataset in wanted
        and row.settings is not None
        and _loader(Path(data), row.dataset, row.settings["part"]) is not None
        and not is_done(done, row)
    ]
    pace = Pace(len(rows), progress)
    for row in rows:
        load = _loader(Path(data), row.dataset, (row.settings or {})["part"])
        assert load is not None
        start = time.perf_counter()
        found = describe(load()).to_dict()
        times = (time.perf_counter() - start, 0.0)
        fresh = compared(config, row, found, times, machine_name("cpu"), command)
        done = merged(done, fresh)
        write_results(target, done)
        pace.step(f"{config.name} {row.dataset} {row.name}")
    return complete(config, done)


def _loader(data: Path, dataset: str, part: str) -> Callable[[], Interactions] | None:
    """Return a function that loads a part, None where it is not at hand."""
    strong, weak = (find_split(data, dataset, protocol) for protocol in ("strong", "weak"))
    if part == ALL:
        whole = weak or strong
        return None if whole is None else lambda: everything(whole())
    load = {STRONG: strong, WEAK: weak}[part]
    return None if load is None else lambda: load().train


def everything(split: Split) -> Interactions:
    """Return all interactions of all parts."""
    held = [side for part in split.parts for side in (part.history, part.target)]
    return reduce(Interactions.union, [split.train, *held])
