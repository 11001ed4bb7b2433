"""Open files: compression, encodings, JSON lines, Parquet and Excel."""

from __future__ import annotations

import glob
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from equipoise.data.ids import WHOLE
from equipoise.data.readers.frames import series
from equipoise.data.readers.options import (
    OnBad,
    ReadOptions,
    Source,
    Table,
    bad_row,
    check_one_schema,
    located,
    row_of,
)
from equipoise.errors import DataError, MissingExtraError

T = TypeVar("T")

SAMPLE = 1 << 16
NEWLINE, CARRIAGE = b"\n", b"\r"
GZIP = b"\x1f\x8b"
UTF8_BOM = b"\xef\xbb\xbf"
FOREIGN = {
    b"PK\x03\x04": "a zip archive or an Excel workbook; unpack it, or name it .xlsx",
    b"SQLite format 3": "an SQLite database; export the table as CSV or Parquet",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it or use gzip",
    b"BZh": "compressed with bzip2; unpack it or use gzip",
    b"\xfd7zXZ": "compressed with xz; unpack it or use gzip",
}


def existing_file(path: Path) -> Path:
    """Return the path if it is a readable, non-empty file; else raise."""
    if path.is_dir():
        raise DataError(f"{path} is a folder; give the path of a file")
    if not path.exists():
        near = sorted(p.name for p in path.parent.glob(f"{glob.escape(path.stem)}*"))
        hint = f"; did you mean {near[0]!r}?" if near else "; check the path"
        raise DataError(f"there is no file {path}{hint}")
    try:
        empty = not first_bytes(path, 1)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; check its rights") from error
    if empty:
        raise DataError(f"{path} is empty; it needs at least one row")
    return path


def first_bytes(data: bytes | Path, size: int = SAMPLE) -> bytes:
    """Return the first bytes of the content."""
    if isinstance(data, bytes):
        return data[:size]
    with data.open("rb") as stream:
        return stream.read(size)


def all_bytes(data: bytes | Path) -> bytes:
    """Return the content of a path, or the bytes themselves."""
    return data if isinstance(data, bytes) else data.read_bytes()


def is_blank(path: Path) -> bool:
    """Whether a file, gzipped or not, holds only white space; False if it is damaged."""
    sample = first_bytes(path)
    if sample.startswith(GZIP):
        try:
            with gzip.open(path, "rb") as unpacked:
                sample = unpacked.read(SAMPLE)
        except (EOFError, OSError, zlib.error):
            return False
    return len(sample) < SAMPLE and not sample.strip()


def contents(path: Path) -> bytes | Path:
    """Return the path itself, or the decompressed bytes of a gzipped file."""
    head = first_bytes(existing_file(path), 16)
    for magic, description in FOREIGN.items():
        if head.startswith(magic):
            raise DataError(f"{path} is {description}")
    if not head.startswith(GZIP):
        return path
    try:
        with gzip.open(path, "rb") as unpacked:
            data = unpacked.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{path} is a truncated or damaged gzip file; fetch it again ({error})"
        ) from error
    if not data:
        raise DataError(f"{path} is empty; it needs at least one row")
    return data


def text_contents(path: Path, encoding: str) -> bytes | Path:
    r"""Return the content as UTF-8 without byte-order mark; the path itself if it is that already.

    Line ends \r become \n, and \r\r\n become \r\n.
    """
    data = _as_utf8(path, contents(path), encoding)
    sample = first_bytes(data)
    if not sample.strip():
        raise DataError(f"{path} holds only blank lines; it needs at least one row")
    if CARRIAGE + CARRIAGE + NEWLINE in sample:
        return all_bytes(data).replace(CARRIAGE + CARRIAGE + NEWLINE, CARRIAGE + NEWLINE)
    if CARRIAGE in sample and NEWLINE not in sample:
        text = all_bytes(data)
        return data if NEWLINE in text else text.replace(CARRIAGE, NEWLINE)
    return data


def is_utf8(path: Path) -> bool:
    """Whether the file can be read as UTF-8 text."""
    try:
        data = all_bytes(contents(path))
        data.decode("utf-8")
    except (DataError, UnicodeDecodeError):
        return False
    return not (b"\x00" in data or b"\x1b" in data)  # signs of UTF-16 and ISO-2022


def _as_utf8(path: Path, data: bytes | Path, encoding: str) -> bytes | Path:
    head = first_bytes(data, 4)
    plain = encoding.lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig")
    if plain and head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} is UTF-16; save it as UTF-8 or pass encoding='utf-16'")
    if plain and not head.startswith(UTF8_BOM):
        return data
    content = all_bytes(data)
    if plain:
        return content.removeprefix(UTF8_BOM)
    try:
        return content.decode(encoding).encode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: not {encoding}; pass another encoding=") from error


@dataclass
class JsonLines:
    """The records of one or several files of JSON lines."""

    data: bytes  # all files concatenated
    files: list[tuple[int, str]]  # start of each file in the data, and its name
    frame: pl.DataFrame
    starts: list[int] | None  # start of the line of each record; None if none was left out
    skipped: Counter[str]
    as_text: bool = False  # whether numbers may become text ids

    def load(self, names: list[str], ids: Collection[str]) -> Table:
        """Return these columns; ids that are partly numbers and partly text are an error."""
        for name in ids:
            mixed = self.frame[name].dtype == pl.String and self.starts is None
            if mixed and not self.as_text:
                self._refuse_mixture(name)
        return Table(self.frame.select(names), self._locate, self.skipped)

    def _locate(self, row: int) -> str:
        starts = self.starts
        if starts is None:
            starts = [start for start, _ in _lines(self.data)]
        return _line_at(self.data, self.files, starts[row])

    def _refuse_mixture(self, column: str) -> None:
        """Raise if a column of text also holds numbers, which polars would turn into text."""
        key = re.escape(json.dumps(column).encode())
        for hit in re.finditer(key + rb"\s*:\s*[-0-9tf]", self.data):
            start = self.data.rfind(b"\n", 0, hit.start()) + 1
            stop = self.data.find(b"\n", hit.start())
            record = json.loads(self.data[start : stop if stop >= 0 else None])
            if isinstance(record.get(column), (int, float)):
                raise DataError(
                    f"{_line_at(self.data, self.files, start)}: column {column!r} holds the "
                    f"number {record[column]!r} here and text elsewhere; use one kind of ids, or "
                    "pass ids='text'"
                )


def json_parts(name: str, paths: Sequence[Path], options: ReadOptions) -> Source:
    """Open files of JSON lines that form one table."""
    pieces: list[bytes] = []
    files: list[tuple[int, str]] = []
    size = 0
    for path in paths:
        piece = all_bytes(text_contents(path, options.encoding))
        if piece.lstrip()[:1] == b"[":
            raise DataError(f"{path} is one JSON array; write one object per line instead")
        files.append((size, str(path)))
        pieces.append(piece if piece.endswith(b"\n") else piece + b"\n")
        size += len(pieces[-1])
    data = b"".join(pieces)
    try:
        frame = pl.read_ndjson(io.BytesIO(data), infer_schema_length=None)
        file = JsonLines(data, files, frame, None, Counter())
    except pl.exceptions.PolarsError:
        file = _line_by_line(name, data, files, options.on_bad)
    file.as_text = options.ids == "text"
    return Source(name, tuple(file.frame.columns), file.load)


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the start and content of each line that is not blank."""
    start = 0
    for line in data.split(b"\n"):
        if line.strip():
            yield start, line
        start += len(line) + 1


def _line_at(data: bytes, files: list[tuple[int, str]], start: int) -> str:
    """Return the file and number of a line, for messages."""
    begin, name = next(entry for entry in reversed(files) if entry[0] <= start)
    return f"{name}, line {data.count(NEWLINE, begin, start) + 1}"


def _line_by_line(
    name: str, data: bytes, files: list[tuple[int, str]], on_bad: OnBad
) -> JsonLines:
    """Parse with the standard library, which identifies the bad line and accepts NaN."""
    records: list[dict[str, Any]] = []
    starts: list[int] = []
    reason = "the line is not a JSON object"
    skipped: Counter[str] = Counter()
    for start, line in _lines(data):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            records.append(record)
            starts.append(start)
        elif on_bad == "error":
            raise bad_row(_line_at(data, files, start), reason)
        else:
            skipped[reason] += 1
    if not records:
        raise DataError(f"{name}: no line is a JSON object; check that it is a JSON lines file")
    keys = dict.fromkeys(key for record in records for key in record)
    flat = {key: [record.get(key) for record in records] for key in keys}
    columns = [
        series(values, key, lambda row: _line_at(data, files, starts[row]))
        for key, values in flat.items()
        if not any(isinstance(value, (list, dict)) for value in values)
    ]
    return JsonLines(data, files, pl.DataFrame(columns), starts, skipped)


def parquet_parts(name: str, files: Sequence[Path], options: ReadOptions) -> Source:
    """Open Parquet files with the same columns, one after another."""
    opened = [(file, contents(file)) for file in files]
    columns = [
        _unbroken(*part, lambda stream: tuple(pl.read_parquet_schema(stream))) for part in opened
    ]
    check_one_schema(files, columns)

    def load(names: list[str], ids: Collection[str]) -> Table:
        frames = [
            _unbroken(*part, lambda stream: pl.read_parquet(stream, columns=names))
            for part in opened
        ]
        kinds = {
            key: _one_type(key, [frame[key].dtype for frame in frames], files, key in ids)
            for key in names
        }
        if options.ids == "text":
            kinds |= {key: pl.String() for key in ids if kinds[key].is_integer()}
        table = pl.concat(
            frame.select(as_type(frame[key], kinds[key], file) for key in names)
            for file, frame in zip(files, frames, strict=True)
        )
        sizes = [frame.height for frame in frames]
        return Table(table, located(sizes, [row_of(str(file)) for file in files]))

    return Source(name, columns[0], load)


def _unbroken(
    path: Path, data: bytes | Path, action: Callable[[io.BytesIO | BufferedReader], T]
) -> T:
    """Call `action` with the open Parquet file; polars would treat a path as a pattern."""
    try:
        with io.BytesIO(data) if isinstance(data, bytes) else data.open("rb") as stream:
            return action(stream)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{path} is not a whole Parquet file; write or fetch it again ({reason})"
        ) from error


def as_type(column: pl.Series, kind: pl.DataType, file: Path | str) -> pl.Series:
    """Convert the column of a part to the type of the table; raise if text is no integer."""
    if column.dtype == pl.String and kind.is_integer():
        wrong = ~column.str.contains(f"^({WHOLE.pattern})$")
        if wrong.any():
            raise DataError(
                f"column {column.name!r} of {file} holds {column.filter(wrong)[0]!r} where the "
                "parts before it hold integers; pass ids='text'"
            )
    return column.cast(kind)


def _one_type(
    column: str, kinds: Sequence[pl.DataType], files: Sequence[Path], is_id: bool
) -> pl.DataType:
    """Return the type that holds the column of all parts without loss; raise if none does."""
    plain = [
        pl.String() if isinstance(kind, (pl.Categorical, pl.Enum)) else kind for kind in kinds
    ]
    known = {kind for kind in plain if kind != pl.Null}
    if len(known) <= 1:
        return next(iter(known), pl.Null())
    first = next(place for place, kind in enumerate(plain) if kind != pl.Null)
    if is_id and all(kind.is_integer() or kind == pl.String for kind in known):
        integer_kinds = {kind for kind in known if kind.is_integer()}
        if len(integer_kinds) < len(known):  # the type of the first part decides
            return plain[first] if plain[first] == pl.String else pl.Int64()
    if all(kind.is_integer() for kind in known):
        return pl.Int128() if pl.UInt64() in known else pl.Int64()
    if all(kind.is_float() or (kind.is_numeric() and not is_id) for kind in known):
        return pl.Float64()
    other = next(place for place, kind in enumerate(plain) if kind not in (plain[first], pl.Null))
    raise DataError(
        f"column {column!r} holds {kinds[first]} in {files[first]} and {kinds[other]} in "
        f"{files[other]}; write the parts with one type"
    )


def excel_parts(name: str, files: Sequence[Path], options: ReadOptions) -> Source:
    """Open one sheet of each Excel workbook (by default the first), with the same columns."""
    try:
        import fastexcel
    except ImportError as error:
        raise MissingExtraError(
            f"reading {files[0]} needs fastexcel; install it with `pip install "
            "'equipoise[excel]'`, or save the sheet as CSV"
        ) from error
    frames, notes = [], []
    has_header = options.header is not False
    for file in files:
        try:
            book = fastexcel.read_excel(existing_file(file))
            names = book.sheet_names
            sheet = names[0] if options.sheet is None else options.sheet
            if sheet not in names:
                raise DataError(f"{file} has no sheet {sheet!r}; it has {', '.join(names)}")
            header_row = 0 if has_header else None
            rows = book.load_sheet(sheet, header_row=header_row, schema_sample_rows=None)
            frames.append(rows.to_polars())
        except fastexcel.FastExcelError as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"{file} is not a whole Excel workbook ({reason})") from error
        if options.sheet is None and len(names) > 1:
            other_sheets = ", ".join(repr(other) for other in names[1:])
            notes.append(f"read the sheet {sheet!r}; sheet= for another of {other_sheets}")
    if not has_header:
        frames = [
            frame.rename({name: f"column {place}" for place, name in enumerate(frame.columns)})
            for frame in frames
        ]
    check_one_schema(files, [frame.columns for frame in frames])
    first = frames[0].columns
    table = pl.concat([frame.select(first) for frame in frames], how="vertical_relaxed")
    start = 1 + has_header  # the header is row 1 of a sheet
    places = [lambda row, file=file: f"{file}, row {row + start}" for file in files]
    locate = located([frame.height for frame in frames], places)
    return Source(
        name,
        tuple(first),
        lambda names, ids: Table(table.select(names), locate, notes=list(notes)),
        named=has_header,
    )
