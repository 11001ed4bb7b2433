"""Find and parse raw files that come without a header line or in a layout of their own."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from equipoise.errors import DataError

Columns = Mapping[str, type[pl.DataType]]


def find(path: Path, names: Sequence[str]) -> Path:
    """Return the path itself if it is a file, else the first of these files, or its .gz, in it."""
    wanted = " or ".join(names)
    if path.is_file():
        return path
    if not path.is_dir():
        raise DataError(f"{path} does not exist; give the folder that holds {wanted}")
    for name in names:
        for file in (path / name, path / f"{name}.gz"):
            if file.is_file():
                return file
    raise DataError(f"{path} has no {wanted}; download it or correct the path")


def table(file: Path, columns: Columns, *, separator: str = ",") -> pl.DataFrame:
    """Parse a delimited file into these columns, by position.

    Columns whose name begins with "_" are left out. An empty cell in one of the others is refused.
    Copies of some files have a header line: where the first column should hold integers, a first
    line without one is skipped.
    """
    header = next(iter(columns.values())) is pl.Int64 and _starts_with_name(file)
    kept = [name for name in columns if not name.startswith("_")]
    try:
        frame = pl.read_csv(
            file,
            has_header=False,
            skip_rows=int(header),
            schema=dict(columns),
            separator=separator,
            quote_char=None,
            glob=False,
        ).select(kept)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{file} is not the expected file: {reason}") from error
    for name in kept:
        if frame[name].null_count():
            line = int(frame[name].is_null().arg_max() or 0) + 1 + header
            raise DataError(f"{file}, line {line}: {name} is empty; download the file again")
    return frame


def _starts_with_name(file: Path) -> bool:
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            return stream.read(1).isalpha()
    except (OSError, EOFError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error


def with_seconds(frame: pl.DataFrame, column: str, pattern: str, file: Path) -> pl.DataFrame:
    """Replace a column of text by seconds since 1970."""
    moment = pl.col(column).str.to_datetime(pattern)
    try:
        return frame.with_columns((moment.dt.epoch("ms") / 1000).alias(column))
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{file} has a time that does not look like {pattern}") from error
