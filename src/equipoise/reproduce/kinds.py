"""What runs a config: one entry per kind, loaded when it is needed.

A runner has the signature of `tables.run_table` and writes its results after every step, so that a
run that is cut short goes on where it was.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from equipoise.errors import DataError
from equipoise.reproduce.cells import complete
from equipoise.reproduce.config import Config

Runner = Callable[..., pl.DataFrame]


@dataclass(frozen=True)
class Kind:
    """Where the functions of a kind are.

    Parameters
    ----------
    module
        Inside `equipoise.reproduce`.
    run
        Name of the runner in it.
    cells
        Whether its results are cells of a table; a figure's are points.
    """

    module: str
    run: str
    cells: bool = True


KINDS = {
    "table": Kind("tables", "run_table"),
    "statistics": Kind("statistics", "run_statistics"),
    "efficiency": Kind("efficiency", "run_efficiency"),
    "sessions": Kind("sessions", "run_sessions"),
    "figure": Kind("figures", "run_figure", cells=False),
}


def kind_of(config: Config) -> Kind:
    """Return the kind of a config, or say which there are."""
    if config.kind not in KINDS:
        known = ", ".join(KINDS)
        raise DataError(f"{config.name} has the unknown kind {config.kind!r}; known: {known}")
    return KINDS[config.kind]


def runner(config: Config) -> Runner:
    """Return the function that runs a config."""
    kind = kind_of(config)
    found: Runner = getattr(
        importlib.import_module(f"equipoise.reproduce.{kind.module}"), kind.run
    )
    return found


def completed(config: Config, done: pl.DataFrame) -> pl.DataFrame:
    """Return all cells of a table, those that were not run too, as its kind judges them."""
    module = importlib.import_module(f"equipoise.reproduce.{kind_of(config).module}")
    judge: Runner = getattr(module, "complete", complete)
    return judge(config, done)


def results_file(paper: Path, config: Config) -> Path:
    """Return where the results of a config are kept."""
    return paper / "results" / f"{config.name}.csv"
