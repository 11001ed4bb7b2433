"""Options of commands that read data, and what DATA may be."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.cli.output import note, working
from equipoise.errors import DataError, SettingError

if TYPE_CHECKING:
    from equipoise.interactions import Interactions
    from equipoise.split import Split

DATA = "A file (csv, tsv, jsonl, parquet; gz), folder, saved data or split, or data set name."
COLUMN = "name, or number from 0"
PANEL = "Reading"


class OnBad(StrEnum):
    """What to do with rows that cannot be used."""

    error = "error"
    skip = "skip"


def _option(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=PANEL)


@dataclass(frozen=True)
class Reading:
    """How to read a table of interactions; as for `equipoise.read`."""

    user: Annotated[str | None, _option(f"Column of users ({COLUMN}).", "--user")] = None
    item: Annotated[str | None, _option(f"Column of items ({COLUMN}).", "--item")] = None
    time: Annotated[str | None, _option(f"Column of times ({COLUMN}).", "--time")] = None
    time_unit: Annotated[str | None, _option("Of times in numbers: s, ms, us or ns.")] = None
    rating: Annotated[str | None, _option("Column of ratings.", "--rating")] = None
    weight: Annotated[str | None, _option("Column of weights.", "--weight")] = None
    session: Annotated[str | None, _option("Column of sessions, for data in sessions.")] = None
    gap: Annotated[str | None, _option("Pause that ends a session, such as 30m.")] = None
    min_rating: Annotated[float | None, _option("Keep ratings of at least this.")] = None
    min_user: Annotated[int, _option("Keep users with this many items (k-core).")] = 0
    min_item: Annotated[int, _option("Keep items with this many users (k-core).")] = 0
    labels: Annotated[str | None, _option("File with item titles, for display.")] = None
    separator: Annotated[str | None, _option(r"Between columns, such as ';' or '\t'.")] = None
    header: Annotated[
        bool | None, _option("Whether the first line names the columns.", "--header/--no-header")
    ] = None
    encoding: Annotated[str, _option("Of text files.")] = "utf-8"
    format: Annotated[str | None, _option("Of the file, if its name does not tell.")] = None
    on_bad: Annotated[OnBad, _option("Stop at unusable rows, or skip and count them.")] = (
        OnBad.error
    )

    def load(self, source: str) -> Interactions:
        """Return the interactions that DATA names; what a reader found or left out is noted."""
        with working(f"reading {source}"):
            data = self._load(source)
            if self.min_user or self.min_item:
                data = data.filter(min_user=self.min_user, min_item=self.min_item)
        return data

    def load_change(self, source: str) -> Interactions:
        """Return interactions to add or remove: unlike data to fit on, one user may be all."""
        try:
            return self.load(source)
        except DataError as error:
            # All rows have been checked by then, so there are none that would be skipped.
            if "there is only one" not in str(error):
                raise
            return dataclasses.replace(self, on_bad=OnBad.skip).load(source)

    def _load(self, source: str) -> Interactions:
        from equipoise import readers
        from equipoise.persist import KIND as SAVED
        from equipoise.storage import is_directory_of

        if not Path(source).exists() and not set(source) & set("*?["):
            data = self._named(source)
        elif (split := open_split(source)) is not None:
            self._refuse_options(f"{source} is a saved split")
            note(f"{source}: a split; its train part is used")
            return split.train
        elif is_directory_of(source, SAVED):
            self._refuse_options(f"{source} is saved data")
            return readers.read(source)
        else:
            data = readers.read(source, **self._settings())
        for sentence in data.notes:
            note(f"{source}: {sentence}")
        return data

    def _named(self, source: str) -> Interactions:
        from equipoise import datasets

        if source not in datasets.names():
            raise DataError(
                f"there is no file or folder {source!r} and no data set of that name; "
                "check the path, or choose from `equipoise datasets`"
            )
        if not datasets.info(source).fetched:
            raise DataError(
                f"{source} has to be downloaded by hand; `equipoise datasets show {source}` tells "
                f"where, then `equipoise datasets fetch {source} --raw FOLDER --out {source}`"
            )
        self._refuse_options(f"{source} is a data set with a reader of its own", "min_rating")
        return datasets.load(source, min_rating=self.min_rating)

    def _refuse_options(self, why: str, *allowed: str) -> None:
        """Refuse reading options that would have no effect."""
        for field in dataclasses.fields(self):
            if field.name in ("min_user", "min_item", *allowed):
                continue
            if getattr(self, field.name) != field.default:
                option = field.name.replace("_", "-")
                raise SettingError(f"{why}: leave out --{option}")

    def _settings(self) -> dict[str, Any]:
        return {
            "user": _column(self.user),
            "item": _column(self.item),
            "time": _column(self.time),
            "time_unit": self.time_unit,
            "rating": _column(self.rating),
            "weight": _column(self.weight),
            "session": _column(self.session),
            "gap": self.gap,
            "min_rating": self.min_rating,
            "labels": self.labels,
            "separator": "\t" if self.separator == r"\t" else self.separator,
            "header": self.header,
            "encoding": self.encoding,
            "format": self.format,
            "on_bad": self.on_bad.value,
        }


def _column(text: str | None) -> str | int | None:
    return int(text) if text is not None and text.isdecimal() else text


def check_out(path: Path) -> None:
    """Refuse a folder that could not be saved to, before the work is done rather than after."""
    if path.is_file():
        raise DataError(f"{path} is a file; give the path of a folder to save to")
    if path.is_dir() and any(path.iterdir()) and not (path / "manifest.json").is_file():
        raise DataError(f"{path} exists and is not a saved folder; choose another path")
    parent = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise DataError(f"{parent} cannot be written to; choose another path than {path}")


def open_split(source: str) -> Split | None:
    """Return the split in a folder, or None where there is something else."""
    from equipoise.split import Split
    from equipoise.split.parts import KIND
    from equipoise.storage import is_directory_of

    return Split.load(source) if is_directory_of(source, KIND) else None


def require_split(source: str) -> Split:
    """Return the split in a folder; anything else is an error that says how to make one."""
    split = open_split(source)
    if split is None:
        raise DataError(
            f"{source} is not a saved split; make one with `equipoise split DATA {source}`"
        )
    return split
