"""Configs: a TOML file per table or figure of the paper, with data, models, published numbers."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from equipoise.errors import DataError

SCALES = {"": 1.0, "%": 0.01, "K": 1e3, "M": 1e6}
OPTIONAL = ("kind", "protocol", "tuned_on_test", "reasons", "reason_limit", "options")
Settings = dict[str, Any]
Id = tuple[str, str, str, str]


@dataclass(frozen=True)
class Row:
    """One unit of computation: a row of a table, or a point of a figure, on one data set."""

    dataset: str  # as in the paper, "Gowalla"
    name: str  # as in the paper, "EASE_DAN"
    settings: Settings | None  # as `Recommender.settings` writes them; None where not known
    note: str = ""  # why the numbers differ, where they do
    card: bool = False  # left out on a machine without a GPU, where it would take hours
    curve: str = ""  # of a point: the curve and the line it belongs to, and where on the axis
    series: str = ""
    x: float | None = None
    extra: Settings = field(default_factory=dict)  # other inputs of the numbers, such as noise

    @cached_property
    def id(self) -> Id:
        """All inputs of the numbers; rows with the same id are the same row."""
        key = None if self.settings is None else {**self.extra, **self.settings}
        return self.dataset, self.curve, self.name, json.dumps(key)


@dataclass(frozen=True)
class Config:
    """A table or figure: its rows, its columns and the published numbers."""

    name: str  # file name without ending, "table3"
    title: str
    datasets: list[str]  # those of the paper first
    columns: dict[str, str]  # published column -> metric of `evaluate`; none for a figure
    rows: list[Row]
    # (data set, row, column) -> number as it was printed; row "" where rows do not differ
    published: dict[tuple[str, str, str], str] = field(repr=False)
    kind: str = "table"  # a key of `runner.KINDS`
    protocol: str = "strong"  # or "weak" or "session"
    tuned_on_test: bool = False  # whether the published settings were chosen on the test set
    reasons: dict[str, str] = field(default_factory=dict)  # why a column may differ a little
    reason_limit: float = 0.0  # largest difference that these reasons explain
    options: Settings = field(default_factory=dict)  # further options of its kind

    def published_number(self, dataset: str, row: str, column: str) -> tuple[float | None, float]:
        """Return a published number, None where there is none, and one unit of its last digit."""
        printed = self.published.get((dataset, row, column))
        printed = printed or self.published.get((dataset, "", column))
        return (None, 1e-4) if printed is None else number(printed)


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


def load_config(file: Path) -> Config:
    """Read a TOML file and the CSV of published numbers it names."""
    if not file.is_file():
        known = ", ".join(names(file.parent)) or "none"
        raise DataError(f"there is no {file.name} in {file.parent}; known: {known}")
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
        return Config(
            file.stem,
            rows=_rows(raw),
            published=_published(file.parent, raw),
            columns={} if raw.get("kind") == "figure" else raw["columns"],
            title=raw["title"],
            datasets=raw["datasets"],
            **{name: raw[name] for name in OPTIONAL if name in raw},
        )
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise DataError(f"{file} cannot be used: {error!r}") from error


def names(paper: Path) -> list[str]:
    """Return the names of the configs in a folder: tables, then figures, then all further ones."""

    def place(name: str) -> tuple[int, int, str]:
        match = re.fullmatch(r"(table|figure)(\d+)", name)
        return (("table", "figure").index(match[1]), int(match[2]), "") if match else (2, 0, name)

    return sorted((file.stem for file in paper.glob("*.toml")), key=place)


def _rows(raw: dict[str, Any]) -> list[Row]:
    """Return each row on each data set: shared settings, and those of the data set."""
    rows = []
    for entry in raw["rows"]:
        shared, by_dataset, notes = (entry.get(key, {}) for key in ("settings", "on", "note"))
        for dataset in raw["datasets"]:
            has_settings = dataset in by_dataset or entry.get("everywhere")
            settings = {**shared, **by_dataset.get(dataset, {})} if has_settings else None
            note, card = notes.get(dataset, ""), bool(entry.get("card", False))
            rows.append(Row(dataset, entry["name"], settings, note, card))
    return rows


def _published(folder: Path, raw: dict[str, Any]) -> dict[tuple[str, str, str], str]:
    """Return the published numbers as text, since the number of printed digits matters."""
    if "published" not in raw:
        return {}
    lines = pl.read_csv(folder / raw["published"], infer_schema=False, glob=False).to_dicts()
    row = raw.get("row_column", "")
    return {
        (line["dataset"], line.get(row, ""), column): printed
        for line in lines
        for column, printed in line.items()
        if column not in ("dataset", row) and printed is not None
    }
