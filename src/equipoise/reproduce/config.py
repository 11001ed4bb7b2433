"""A table of the paper as a TOML file: which models on which data, and what was published."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from equipoise.errors import DataError


@dataclass(frozen=True)
class Row:
    """One row of a table on one data set.

    Parameters
    ----------
    dataset
        Its name in the paper, "Gowalla".
    name
        The row's name in the paper, "EASE_DAN".
    settings
        Model and hyper-parameters, as `Recommender.settings` writes them; None where the paper
        does not give them and no search found them.
    note
        Why the numbers differ, where they do.
    """

    dataset: str
    name: str
    settings: dict[str, Any] | None
    note: str = ""


@dataclass(frozen=True)
class Config:
    """A table: its rows, its columns and the published numbers.

    Parameters
    ----------
    name
        File name without ending, "table3".
    title
        What the table shows.
    protocol
        "strong" or "weak".
    columns
        Published column -> metric of `evaluate`.
    rows
        What to run.
    published
        Published numbers: dataset, row, and the columns.
    tuned_on_test
        Whether the published settings were chosen on the test set.
    reasons
        Column -> why it may differ a little, whatever the row.
    reason_limit
        How large a difference these reasons explain.
    """

    name: str
    title: str
    protocol: str
    columns: dict[str, str]
    rows: list[Row]
    published: pl.DataFrame = field(repr=False)
    tuned_on_test: bool = False
    reasons: dict[str, str] = field(default_factory=dict)
    reason_limit: float = 0.0

    def note(self, row: Row, column: str, difference: float) -> str:
        """Return the reason for a difference: the row's own, or the column's where it suffices."""
        small = abs(difference) <= self.reason_limit
        return row.note or (self.reasons.get(column, "") if small else "")

    def published_value(self, row: Row, column: str) -> float | None:
        """Return the published number of a row and column, None where there is none."""
        found = self.published.filter(
            (pl.col("dataset") == row.dataset) & (pl.col("row") == row.name)
        )
        return float(found[0, column]) if found.height else None


def load_config(path: str | os.PathLike[str]) -> Config:
    """Read a table's TOML file and the CSV of published numbers it names."""
    file = Path(path)
    if not file.is_file():
        known = ", ".join(sorted(other.stem for other in file.parent.glob("*.toml"))) or "none"
        raise DataError(f"there is no {file.name} in {file.parent}; known: {known}")
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
        published = pl.read_csv(file.parent / raw["published"])
        return Config(
            name=file.stem,
            title=raw["title"],
            protocol=raw["protocol"],
            columns=dict(raw["columns"]),
            rows=[
                Row(dataset, entry["name"], settings, entry.get("note", {}).get(dataset, ""))
                for entry in raw["rows"]
                for dataset, settings in _per_dataset(entry, raw["datasets"])
            ],
            published=published.rename({raw["row_column"]: "row"}),
            tuned_on_test=bool(raw.get("tuned_on_test", False)),
            reasons=dict(raw.get("reasons", {})),
            reason_limit=float(raw.get("reason_limit", 0.0)),
        )
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise DataError(f"{file} cannot be used: {error!r}") from error


def _per_dataset(
    entry: dict[str, Any], datasets: list[str]
) -> list[tuple[str, dict[str, Any] | None]]:
    """Settings of a row on each data set: what all share, and what is each one's own."""
    shared = entry.get("settings", {})
    own = entry.get("on", {})
    return [
        (dataset, {**shared, **own[dataset]} if dataset in own else None) for dataset in datasets
    ]
