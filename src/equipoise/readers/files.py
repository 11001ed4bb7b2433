"""JSON lines: one object per line.

Paths to sources: which kind of file it is, and folders of parts with one schema.
"""

from __future__ import annotations

import glob
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from equipoise.errors import DataError
from equipoise.readers.delimited import delimited_parts
from equipoise.readers.frames import series
from equipoise.readers.opening import contents, existing_file, first_bytes, is_blank, text_contents
from equipoise.readers.options import (
    OnBad,
    Options,
    Source,
    Table,
    bad_row,
    located,
    other_columns,
    row_of,
)

NEWLINE = b"\n"


@dataclass
class JsonLines:
    """The records of one or several files, and which of them could not be parsed.

    Parameters
    ----------
    data
        The content of all files, one after another.
    files
        The offset at which each file starts in the content, and its name.
    frame
        The records.
    starts
        The offset of the line of each record; None where no line was left out.
    skipped
        How many lines could not be parsed, by reason.
    """

    data: bytes
    files: list[tuple[int, str]]
    frame: pl.DataFrame
    starts: list[int] | None
    skipped: dict[str, int]

    def load(self, ids: Sequence[str], others: Sequence[str]) -> Table:
        """Return these columns; ids that are numbers here and text there are refused."""
        for name in ids:
            if self.frame[name].dtype == pl.String and self.starts is None:
                self._refuse_mixture(name)
        wanted = list(dict.fromkeys([*ids, *others]))
        return Table(self.frame.select(wanted), self._locate, self.skipped)

    def _locate(self, row: int) -> str:
        starts = self.starts
        if starts is None:
            starts = [start for start, _ in _lines(self.data)]
        return _line_at(self.data, self.files, starts[row])

    def _refuse_mixture(self, column: str) -> None:
        """Look for numbers in a column of text: polars would turn 1 into "1"."""
        key = re.escape(json.dumps(column).encode())
        for hit in re.finditer(key + rb"\s*:\s*[-0-9tf]", self.data):
            start = self.data.rfind(b"\n", 0, hit.start()) + 1
            stop = self.data.find(b"\n", hit.start())
            record = json.loads(self.data[start : stop if stop >= 0 else None])
            if isinstance(record.get(column), (int, float)):
                raise DataError(
                    f"{_line_at(self.data, self.files, start)}: column {column!r} holds the "
                    f"number {record[column]!r} here and text elsewhere; use one kind of ids"
                )


def jsonlines_parts(name: str, paths: Sequence[Path], options: Options) -> Source:
    """Open files of JSON lines, which are one table as if they were one file."""
    pieces: list[bytes] = []
    files: list[tuple[int, str]] = []
    for path in paths:
        opened = text_contents(path, options.encoding)
        piece = opened if isinstance(opened, bytes) else opened.read_bytes()
        if not piece.strip():
            raise DataError(f"{path} holds only blank lines; it needs at least one row")
        if piece.lstrip()[:1] == b"[":
            raise DataError(f"{path} is one JSON array; write one object per line instead")
        files.append((sum(len(before) for before in pieces), str(path)))
        pieces.append(piece if piece.endswith(b"\n") else piece + b"\n")
    data = b"".join(pieces)
    try:
        frame = pl.read_ndjson(io.BytesIO(data), infer_schema_length=None)
        file = JsonLines(data, files, frame, None, {})
    except pl.exceptions.PolarsError:
        file = _line_by_line(name, data, files, options.on_bad)
    return Source(name, tuple(file.frame.columns), file.load)


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank and where they start."""
    start = 0
    for line in data.split(b"\n"):
        if line.strip():
            yield start, line
        start += len(line) + 1


def _line_at(data: bytes, files: list[tuple[int, str]], start: int) -> str:
    """Name a line by the file it is in and its number there."""
    begin, name = next(entry for entry in reversed(files) if entry[0] <= start)
    return f"{name}, line {data.count(NEWLINE, begin, start) + 1}"


def _line_by_line(
    name: str, data: bytes, files: list[tuple[int, str]], on_bad: OnBad
) -> JsonLines:
    """Parse with the standard library, which says which line is wrong and accepts NaN."""
    records: list[dict[str, Any]] = []
    starts: list[int] = []
    reason = "the line is not a JSON object"
    wrong = 0
    for start, line in _lines(data):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            records.append(record)
            starts.append(start)
            continue
        if on_bad == "error":
            raise bad_row(_line_at(data, files, start), reason)
        wrong += 1
    if not records:
        raise DataError(f"{name}: no line is a JSON object; check that it is a JSON lines file")
    keys = dict.fromkeys(key for record in records for key in record)
    flat = {key: [record.get(key) for record in records] for key in keys}
    columns = [
        series(values, key, lambda row: _line_at(data, files, starts[row]))
        for key, values in flat.items()
        if not _nested(values)
    ]
    frame = pl.DataFrame(columns)
    return JsonLines(data, files, frame, starts, {reason: wrong} if wrong else {})


def _nested(values: list[Any]) -> bool:
    return any(isinstance(value, (list, dict)) for value in values)


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
