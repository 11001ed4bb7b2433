"""Paths to sources: which kind of file it is, and folders of parts with one schema."""

from __future__ import annotations

import glob
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl

from equipoise.errors import DataError
from equipoise.readers.delimited import delimited_source
from equipoise.readers.jsonlines import jsonlines_source
from equipoise.readers.opening import contents, existing_file, first_bytes
from equipoise.readers.options import Options
from equipoise.readers.table import Source, Table, row_of

T = TypeVar("T")
PARQUET = (".parquet", ".pq", ".parq")
JSON = (".jsonl", ".ndjson", ".json")
TEXT = (".csv", ".tsv", ".txt", ".psv", ".dat")


def path_source(path: str | os.PathLike[str], options: Options) -> Source:
    """Open a table file, a folder of parts, or the files a pattern names."""
    text = os.fspath(path)
    place = Path(text)
    if not place.exists() and glob.has_magic(text):
        files = sorted(Path(name) for name in glob.glob(text, recursive=True))
        files = [file for file in files if file.is_file()]
        if not files:
            raise DataError(f"no file matches {text}; check the pattern")
        return _parts(text, files, options)
    if place.is_dir():
        files = part_files(place)
        if not files:
            raise DataError(
                f"{place} is a folder without Parquet, CSV or JSON lines files; "
                "give the path of a file"
            )
        return _parts(text, files, options)
    return _file_source(place, options)


def part_files(folder: Path) -> list[Path]:
    """Return the table files below a folder; names that start with . or _ are not data."""
    found: dict[tuple[str, ...], list[Path]] = {}
    for file in sorted(folder.rglob("*")):
        hidden = any(part[0] in "._" for part in file.relative_to(folder).parts)
        if hidden or not file.is_file():
            continue
        suffix = _suffix(file)
        for family in (PARQUET, JSON, TEXT):
            if suffix in family:
                found.setdefault(family, []).append(file)
    if len(found) > 1:
        kinds = " and ".join(files[0].name for files in found.values())
        raise DataError(
            f"{folder} holds files of several kinds, such as {kinds}; give a pattern like "
            f"{folder / '*.parquet'}"
        )
    return next(iter(found.values()), [])


def _suffix(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix


def _file_source(path: Path, options: Options) -> Source:
    existing_file(path)
    suffix = {"parquet": ".parquet", "jsonl": ".jsonl", "csv": ".csv", "tsv": ".tsv"}.get(
        options.format or "", _suffix(path)
    )
    if suffix in PARQUET or first_bytes(path, 4) == b"PAR1":
        return _parquet_source(path)
    if suffix in JSON:
        return jsonlines_source(path, options)
    return delimited_source(path, options)


def _parquet_source(path: Path) -> Source:
    data = contents(path)

    def opened() -> io.BytesIO | Path:
        return io.BytesIO(data) if isinstance(data, bytes) else data

    names = _unbroken(path, lambda: tuple(pl.read_parquet_schema(opened())))

    def load(ids: Sequence[str], others: Sequence[str]) -> Table:
        wanted = list(dict.fromkeys([*ids, *others]))
        frame = _unbroken(path, lambda: pl.read_parquet(opened(), columns=wanted))
        return Table(frame, row_of(str(path)))

    return Source(str(path), names, load)


def _unbroken(path: Path, action: Callable[[], T]) -> T:
    try:
        return action()
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{path} is not a whole Parquet file; write or fetch it again ({reason})"
        ) from error


def _parts(name: str, files: list[Path], options: Options) -> Source:
    """Put files with the same columns one after another."""
    if len(files) == 1:
        return _file_source(files[0], options)
    sources = [_file_source(file, options) for file in files]
    first = sources[0]
    for source in sources[1:]:
        if sorted(source.columns) != sorted(first.columns):
            raise DataError(
                f"{source.name} has the columns {', '.join(source.columns)} where {first.name} "
                f"has {', '.join(first.columns)}; parts need one schema"
            )

    def load(ids: Sequence[str], others: Sequence[str]) -> Table:
        tables = [source.load(ids, others) for source in sources]
        return _joined(tables, ids, text=_suffix(files[0]) in TEXT)

    return Source(name, first.columns, load, named=first.named)


def _joined(tables: list[Table], ids: Sequence[str], *, text: bool) -> Table:
    frames = [table.frame for table in tables]
    for name in frames[0].columns:
        kinds = {frame[name].dtype for frame in frames}
        if len(kinds) == 1 or (name not in ids and all(kind.is_numeric() for kind in kinds)):
            continue
        whole = name in ids and all(kind.is_integer() for kind in kinds)
        if not text and not whole:
            listed = ", ".join(sorted(str(kind) for kind in kinds))
            raise DataError(f"column {name!r} holds {listed} in different parts; use one type")
        # In text files integers were recognised without loss, so they may be text again.
        kind = pl.Int64 if whole else pl.String
        frames = [frame.with_columns(frame[name].cast(kind)) for frame in frames]
    ends = np.cumsum([frame.height for frame in frames])

    def locate(row: int) -> str:
        part = int(np.searchsorted(ends, row, side="right"))
        return tables[part].locate(row - int(ends[part]) + tables[part].frame.height)

    skipped: dict[str, int] = {}
    for table in tables:
        for reason, count in table.skipped.items():
            skipped[reason] = skipped.get(reason, 0) + count
    notes = [f"read {len(tables)} parts", *(note for table in tables for note in table.notes)]
    return Table(pl.concat(frames, how="vertical_relaxed"), locate, skipped, notes)
