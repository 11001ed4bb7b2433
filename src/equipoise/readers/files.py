"""Paths to sources: which kind of file it is, and folders of parts with one schema."""

from __future__ import annotations

import glob
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from typing import TypeVar

import polars as pl

from equipoise.errors import DataError
from equipoise.readers.delimited import delimited_parts
from equipoise.readers.jsonlines import jsonlines_parts
from equipoise.readers.opening import contents, existing_file, first_bytes, is_blank
from equipoise.readers.options import Options
from equipoise.readers.table import Source, Table, located, other_columns, row_of

T = TypeVar("T")
PARQUET = (".parquet", ".pq", ".parq")
JSON = (".jsonl", ".ndjson", ".json")
TEXT = (".csv", ".tsv", ".txt", ".psv", ".dat")


def path_source(path: str | os.PathLike[str], options: Options) -> Source:
    """Open a table file, a folder of parts, or the files a pattern names."""
    text = os.fspath(path)
    place = Path(text)
    if not place.exists() and glob.has_magic(text):
        files = _matching(place)
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
    return OPENERS[_kind(existing_file(place), options)](text, [place], options)


def _matching(pattern: Path) -> list[Path]:
    """Return the files that a pattern names; folders that exist are what they are called."""
    root = next(folder for folder in pattern.parents if folder.is_dir())
    rest = str(pattern.relative_to(root))
    found = sorted(glob.glob(rest, root_dir=root, recursive=True))
    return [root / name for name in found if (root / name).is_file()]


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


def _kind(path: Path, options: Options) -> str:
    """Return which kind of table a file holds: "parquet", "jsonl" or "text"."""
    suffix = {"parquet": ".parquet", "jsonl": ".jsonl", "csv": ".csv", "tsv": ".tsv"}.get(
        options.format or "", _suffix(path)
    )
    if suffix in PARQUET or first_bytes(path, 4) == b"PAR1":
        return "parquet"
    return "jsonl" if suffix in JSON else "text"


def _parts(name: str, files: list[Path], options: Options) -> Source:
    """Put files of one kind and with the same columns one after another."""
    full = [file for file in files if not is_blank(file)]
    if not full:
        raise DataError(f"all {len(files)} parts of {name} are empty; nothing can be read from it")
    kinds = [_kind(existing_file(file), options) for file in full]
    for file, kind in zip(full, kinds, strict=True):
        if kind != kinds[0]:
            raise DataError(f"{full[0]} and {file} are of different kinds; give a pattern of one")
    source = OPENERS[kinds[0]](name, full, options)
    notes = [f"read {len(files)} part{'s' if len(files) > 1 else ''}"]
    if len(full) < len(files):
        notes.append(f"{len(files) - len(full)} of {len(files)} parts are empty")

    def load(ids: Sequence[str], others: Sequence[str]) -> Table:
        table = source.load(ids, others)
        return replace(table, notes=[*notes, *table.notes])

    return replace(source, load=load)


def _parquet_parts(name: str, files: Sequence[Path], options: Options) -> Source:
    opened = [contents(file) for file in files]
    columns = [_unbroken(file, data, _names) for file, data in zip(files, opened, strict=True)]
    for file, names in zip(files, columns, strict=True):
        if sorted(names) != sorted(columns[0]):
            raise other_columns(str(file), names, str(files[0]), columns[0])

    def load(ids: Sequence[str], others: Sequence[str]) -> Table:
        wanted = list(dict.fromkeys([*ids, *others]))
        frames = [
            _unbroken(file, data, lambda stream: pl.read_parquet(stream, columns=wanted))
            for file, data in zip(files, opened, strict=True)
        ]
        kinds = {
            key: _one_type(key, [frame[key].dtype for frame in frames], files, key in ids)
            for key in wanted
        }
        whole = pl.concat(
            frame.select(pl.col(key).cast(kinds[key]) for key in wanted) for frame in frames
        )
        sizes = [frame.height for frame in frames]
        return Table(whole, located(sizes, [row_of(str(file)) for file in files]))

    return Source(name, columns[0], load)


def _names(stream: io.BytesIO | BufferedReader) -> tuple[str, ...]:
    return tuple(pl.read_parquet_schema(stream))


def _unbroken(
    path: Path, data: bytes | Path, action: Callable[[io.BytesIO | BufferedReader], T]
) -> T:
    """Do something with an open Parquet file; a stream has no name that could be a pattern."""
    try:
        with io.BytesIO(data) if isinstance(data, bytes) else data.open("rb") as stream:
            return action(stream)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{path} is not a whole Parquet file; write or fetch it again ({reason})"
        ) from error


def _one_type(
    column: str, kinds: Sequence[pl.DataType], files: Sequence[Path], is_id: bool
) -> pl.DataType:
    """Return the type that holds a column of all parts without loss, or name two that differ."""
    plain = [
        pl.String() if isinstance(kind, (pl.Categorical, pl.Enum)) else kind for kind in kinds
    ]
    known = {kind for kind in plain if kind != pl.Null}
    if len(known) <= 1:
        return next(iter(known), pl.Null())
    if all(kind.is_integer() for kind in known):
        return pl.Int128() if pl.UInt64() in known else pl.Int64()
    if all(kind.is_float() or (kind.is_numeric() and not is_id) for kind in known):
        return pl.Float64()
    first = next(place for place, kind in enumerate(plain) if kind != pl.Null)
    other = next(place for place, kind in enumerate(plain) if kind not in (plain[first], pl.Null))
    raise DataError(
        f"column {column!r} holds {kinds[first]} in {files[first]} and {kinds[other]} in "
        f"{files[other]}; write the parts with one type"
    )


OPENERS = {"parquet": _parquet_parts, "jsonl": jsonlines_parts, "text": delimited_parts}
