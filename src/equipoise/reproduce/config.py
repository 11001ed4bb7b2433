"""A table or figure of the paper as a TOML file: what to run on which data, what was published."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from equipoise.errors import DataError

SCALES = {"": 1.0, "%": 0.01, "K": 1e3, "M": 1e6}


@dataclass(frozen=True)
class Row:
    """One row of a table, or one model of a figure, on one data set.

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
    card
        Left out on a machine without a card, where it would take hours.
    """

    dataset: str
    name: str
    settings: dict[str, Any] | None
    note: str = ""
    card: bool = False


@dataclass(frozen=True)
class Config:
    """A table or figure: its rows, its columns and the published numbers.

    Parameters
    ----------
    name
        File name without ending, "table3".
    title
        What it shows.
    kind
        What runs it, a name of `equipoise.reproduce.kinds`.
    protocol
        "strong" or "weak".
    datasets
        Names of the data sets, those of the paper first.
    columns
        Published column -> metric of `evaluate`.
    rows
        What to run.
    published
        Published numbers as they were printed: dataset, row where rows differ, and the columns.
    tuned_on_test
        Whether the published settings were chosen on the test set.
    reasons
        Column -> why it may differ a little, whatever the row.
    reason_limit
        How large a difference these reasons explain.
    options
        What else its kind wants to know.
    """

    name: str
    title: str
    kind: str
    protocol: str
    datasets: list[str]
    columns: dict[str, str]
    rows: list[Row]
    published: pl.DataFrame = field(repr=False)
    tuned_on_test: bool = False
    reasons: dict[str, str] = field(default_factory=dict)
    reason_limit: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)

    def note(self, row: Row, column: str, difference: float) -> str:
        """Return the reason for a difference: the row's own, or the column's where it suffices."""
        small = abs(difference) <= self.reason_limit
        return row.note or (self.reasons.get(column, "") if small else "")

    def published_value(self, row: Row, column: str) -> float | None:
        """Return the published number of a row and column, None where there is none."""
        printed = self._printed(row, column)
        return None if printed is None else number(printed)[0]

    def published_unit(self, row: Row, column: str) -> float:
        """Return one unit of the last printed digit; of the fourth decimal where none is."""
        printed = self._printed(row, column)
        return 1e-4 if printed is None else number(printed)[1]

    def _printed(self, row: Row, column: str) -> str | None:
        if column not in self.published.columns:
            return None
        found = self.published.filter(pl.col("dataset") == row.dataset)
        if "row" in found.columns:
            found = found.filter(pl.col("row") == row.name)
        return found[0, column] if found.height else None


def number(printed: str) -> tuple[float, float]:
    """Return a printed number and one unit of its last digit.

    >>> number("0.1920"), number("10.0M"), number("29858")
    ((0.192, 0.0001), (10000000.0, 100000.0), (29858.0, 1.0))
    """
    match = re.fullmatch(r"\s*(-?\d+(?:\.(\d+))?)\s*([%KM]?)\s*", printed)
    if match is None:
        raise DataError(f"{printed!r} is no published number; write it as 0.1911, 10.0M or 0.36%")
    scale = SCALES[match[3]]
    return round(float(match[1]) * scale, 12), 10.0 ** -len(match[2] or "") * scale


def load_config(path: str | os.PathLike[str]) -> Config:
    """Read a TOML file and the CSV of published numbers it names."""
    file = Path(path)
    if not file.is_file():
        known = ", ".join(names(file.parent)) or "none"
        raise DataError(f"there is no {file.name} in {file.parent}; known: {known}")
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
        kind = raw.get("kind", "table")
        return Config(
            name=file.stem,
            title=raw["title"],
            kind=kind,
            protocol=raw.get("protocol", "strong"),
            datasets=list(raw["datasets"]),
            columns=dict(raw["columns"] if kind != "figure" else raw.get("columns", {})),
            rows=_rows(raw),
            published=_published(file.parent, raw),
            tuned_on_test=bool(raw.get("tuned_on_test", False)),
            reasons=dict(raw.get("reasons", {})),
            reason_limit=float(raw.get("reason_limit", 0.0)),
            options=dict(raw.get("options", {})),
        )
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise DataError(f"{file} cannot be used: {error!r}") from error


def names(paper: str | os.PathLike[str]) -> list[str]:
    """Return the names of the configs in a folder: tables first, then figures, then the rest."""

    def place(name: str) -> tuple[int, int, str]:
        match = re.fullmatch(r"(table|figure)(\d+)", name)
        return (("table", "figure").index(match[1]), int(match[2]), "") if match else (2, 0, name)

    return sorted((file.stem for file in Path(paper).glob("*.toml")), key=place)


def _rows(raw: dict[str, Any]) -> list[Row]:
    return [
        Row(
            dataset,
            entry["name"],
            settings,
            note=entry.get("note", {}).get(dataset, ""),
            card=bool(entry.get("card", False)),
        )
        for entry in raw["rows"]
        for dataset, settings in _per_dataset(entry, raw["datasets"])
    ]


def _per_dataset(
    entry: dict[str, Any], datasets: list[str]
) -> list[tuple[str, dict[str, Any] | None]]:
    """Settings of a row on each data set: what all share, and what is each one's own."""
    shared = entry.get("settings", {})
    own = entry.get("on", {})
    if entry.get("everywhere"):
        own = {dataset: own.get(dataset, {}) for dataset in datasets}
    return [
        (dataset, {**shared, **own[dataset]} if dataset in own else None) for dataset in datasets
    ]


def _published(folder: Path, raw: dict[str, Any]) -> pl.DataFrame:
    """Return the published numbers as text: how many digits were printed matters."""
    if "published" not in raw:
        return pl.DataFrame(schema={"dataset": pl.String})
    found = pl.read_csv(folder / raw["published"], infer_schema=False, glob=False)
    return found.rename({raw["row_column"]: "row"}) if "row_column" in raw else found
