"""Find and open files: kinds, parts, compression, encodings, JSON lines, Parquet and Excel."""

from __future__ import annotations

import glob
import gzip
import io
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.data.columns import common_columns
from equipoise.data.ids import WHOLE
from equipoise.data.read_options import TABLES, OnBad, ReadOptions
from equipoise.data.tables import (
    Source,
    Table,
    bad_row,
    located,
    row_of,
    series,
)
from equipoise.errors import DataError, MissingExtraError, SettingError

T = TypeVar("T")
Bytes = npt.NDArray[np.uint8]

SAMPLE = 1 << 16
LINE_END = 10
BLOCK = 1 << 18  # bytes that are searched at a time
NEWLINE, CARRIAGE = b"\n", b"\r"
GZIP = b"\x1f\x8b"
UTF8_BOM = b"\xef\xbb\xbf"
PARQUET = (".parquet", ".pq", ".parq")
JSON = (".jsonl", ".ndjson", ".json")
EXCEL = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
TEXT = (".csv", ".tsv", ".txt", ".psv", ".dat")
TITLES = {"u.data": "u.item", "ratings.dat": "movies.dat", "ratings.csv": "movies.csv"}
STRONG = (("train",), ("valid_in", "valid_target"), ("test_in", "test_target"))
WEAK = ("train", "test", "valid_subset_of_train")
ADJACENCY = re.compile(rb"\d+( \d+)*\s*")
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
    if not path.is_file():  # reading its first bytes would take them away
        raise DataError(
            f"{path} is a pipe or a device, not a file; write it to a file, or give the command - "
            "as its data and pipe the rows into it"
        )
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


def byte_array(data: bytes | Path) -> Bytes:
    """Return the content as an array, mapped if it is a file."""
    if isinstance(data, bytes):
        return np.frombuffer(data, np.uint8)
    return np.asarray(np.memmap(data, np.uint8, "r"))


def count_byte(data: Bytes, byte: int) -> int:
    """Return how often a byte occurs, without a mask as large as the data."""
    blocks = (data[start : start + BLOCK] for start in range(0, len(data), BLOCK))
    return sum(int(np.count_nonzero(block == byte)) for block in blocks)


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


def table_files(names: Iterable[str], folder: str) -> list[str]:
    """Return the tables among the files of a folder, without names that start with . or _."""
    files_of_family: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        suffix = _suffix(name)
        hidden = any(part[:1] in (".", "_") for part in name.replace("\\", "/").split("/"))
        for family in (PARQUET, JSON, EXCEL, TEXT):
            if suffix in family and not hidden:
                files_of_family.setdefault(family, []).append(name)
    if len(files_of_family) > 1:
        kinds = " and ".join(Path(files[0]).name for files in files_of_family.values())
        raise DataError(
            f"{folder} holds files of several kinds, such as {kinds}; give a pattern like "
            f"{folder}/*.parquet"
        )
    return next(iter(files_of_family.values()), [])


def _suffix(name: str) -> str:
    return os.path.splitext(name.lower().removesuffix(".gz"))[1]


def kind_of_name(name: str, options: ReadOptions) -> str | None:
    """Return the format of a table file, a key of `OPENERS`, as far as its name shows it."""
    suffix = f".{options.format}" if options.format in TABLES else _suffix(name)
    kinds = {"parquet": PARQUET, "jsonl": JSON, "excel": EXCEL, "text": TEXT}
    return next((kind for kind, family in kinds.items() if suffix in family), None)


def table_kind(path: Path, options: ReadOptions) -> str:
    """Return the format of a table file, a key of `OPENERS`."""
    suffix = f".{options.format}" if options.format in TABLES else _suffix(path.name)
    if suffix in PARQUET or first_bytes(existing_file(path), 4) == b"PAR1":
        return "parquet"
    if suffix in EXCEL:
        return "excel"
    if options.sheet is not None:
        raise SettingError(f"sheet= applies to Excel files, and {path} is not one; leave it out")
    return "jsonl" if suffix in JSON else "text"


def part_notes(name: str, n_files: int, n_full: int) -> list[str]:
    """Return notes on the number of parts of a table; raise if all are empty."""
    if not n_full:
        raise DataError(f"all {n_files} parts of {name} are empty; nothing can be read from it")
    notes = [f"read {n_files} part{'s' if n_files > 1 else ''}"]
    if n_full < n_files:
        notes.append(f"{n_files - n_full} of {n_files} parts are empty")
    return notes


def check_one_kind(names: Sequence[str], kinds: Sequence[str]) -> None:
    """Raise if parts have different formats (Parquet, text, ...)."""
    for name, kind in zip(names, kinds, strict=True):
        if kind != kinds[0]:
            raise DataError(f"{names[0]} and {name} are of different kinds; give a pattern of one")


def recognised(path: Path) -> str | None:
    """Return the research format of a file or folder, or None."""
    if path.is_dir():
        present = part_names(path)
        if (path / "unique_sid.txt").is_file() and (path / "train.csv").is_file():
            return "multvae"
        if {"train", "valid_in", "test_in"} <= present:
            return "strong"
        if {"train", "test"} <= present:
            return "weak"
        if len(list(path.glob("*.inter"))) == 1:
            return "recbole"
        return "movielens" if movielens_file(path) else None
    if not path.is_file():
        return None
    name = path.name.removesuffix(".gz")
    if name.endswith(".npz"):
        return "npz"
    if name.endswith(".inter"):
        return "recbole"
    if name.endswith(".txt") and _looks_adjacent(first_bytes(path)):
        return "lightgcn"
    return "movielens" if movielens_file(path) == path else None


def movielens_file(path: Path) -> Path | None:
    """Return the MovieLens file of ratings that a path is or contains, or None."""
    if path.is_dir():
        known = [
            path / name
            for name, titles in TITLES.items()
            if (path / name).is_file() and (name != "ratings.csv" or (path / titles).is_file())
        ]
        return known[0] if len(known) == 1 else None
    if path.name not in TITLES or not path.is_file():
        return None
    if path.name == "ratings.csv":
        titles = path.with_name(TITLES[path.name])
        return path if titles.is_file() and b"movieId" in first_bytes(path, 200) else None
    return path


def _looks_adjacent(sample: bytes) -> bool:
    """Whether the lines are integers separated by single blanks, in varying number.

    Each line must start with a different number, the user; lines of baskets rarely do.
    """
    lines = sample.split(b"\n")[:50]
    lines = [line for line in (lines[:-1] if len(lines) > 1 else lines) if line.strip()]
    counts = {len(line.split()) for line in lines}
    users = {line.split()[0] for line in lines}
    adjacent = len(counts) > 1 and all(ADJACENCY.fullmatch(line) for line in lines)
    return adjacent and len(users) == len(lines)


def part_names(folder: Path) -> set[str]:
    """Return the names of the parts in a folder, as `.npz` files or adjacency lists."""
    known = {*WEAK, *(name for group in STRONG for name in group)}
    present = {name for name in known if (folder / f"{name}.npz").is_file()}
    lists = {name for name in ("train", "test") if (folder / f"{name}.txt").is_file()}
    return present or (lists if len(lists) == 2 else set())


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
        return Table(self.frame.select(names), self._locate, self.skipped, heights=self._heights)

    def _heights(self) -> list[int]:
        """Return the number of records of each file."""
        starts = self.starts
        if starts is None:
            starts = [start for start, _ in _lines(self.data)]
        ends = [*(start for start, _ in self.files[1:]), len(self.data)]
        records = np.searchsorted(starts, ends)
        return [int(height) for height in np.diff(records, prepend=0)]

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


class ParquetFile:
    """A Parquet file on this machine, or its content."""

    def __init__(self, name: str, data: bytes | Path) -> None:
        self.name, self.data = name, data
        self.first_row = 0
        self.schema: dict[str, Any] | None = self._with_stream(
            lambda stream: dict(pl.read_parquet_schema(stream))
        )
        self.columns = tuple(self.schema or ())

    def read(self, names: list[str]) -> pl.DataFrame:
        """Return these columns."""
        return self._with_stream(lambda stream: pl.read_parquet(stream, columns=names))

    def height(self) -> int:
        """Return the number of rows."""
        counted = self._with_stream(lambda s: pl.scan_parquet(s).select(pl.len()).collect())
        return int(counted.item())

    def _with_stream(self, action: Callable[[io.BytesIO | BufferedReader], T]) -> T:
        """Call `action` with the open file; polars would treat a path as a pattern."""
        data = self.data
        try:
            with io.BytesIO(data) if isinstance(data, bytes) else data.open("rb") as stream:
                return action(stream)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise broken_parquet(self.name, error) from error


def broken_parquet(name: str, error: Exception) -> DataError:
    """Return the error for a damaged Parquet file."""
    reason = str(error).splitlines()[0]
    return DataError(f"{name} is not a complete Parquet file; write or fetch it again ({reason})")


def parquet_parts(name: str, files: Sequence[Path], options: ReadOptions) -> Source:
    """Open Parquet files of one table, one after another."""
    return parquet_source(
        name, [ParquetFile(str(file), contents(file)) for file in files], options
    )


def parquet_source(name: str, files: Sequence[Any], options: ReadOptions) -> Source:
    """Return the table of Parquet files, which have the attributes of `ParquetFile`."""
    places = [file.name for file in files]
    columns = common_columns(places, [file.columns for file in files], options)

    def load(names: list[str], ids: Collection[str]) -> Table:
        together = _read_together(files, names)
        frames = [file.read(names) for file in files] if together is None else [together]
        kinds = {
            key: _one_type(key, [frame[key].dtype for frame in frames], places, key in ids)
            for key in names
        }
        if options.ids == "text":
            kinds |= {key: pl.String() for key in ids if kinds[key].is_integer()}
        table = pl.concat(
            frame.select(as_type(frame[key], kinds[key], place) for key in names)
            for place, frame in zip(places, frames, strict=together is None)
        )

        def heights() -> list[int]:
            if together is None:
                return [frame.height for frame in frames]
            return [file.height() for file in files]

        def locate(row: int) -> str:
            return located(heights(), [row_of(f.name, f.first_row) for f in files])(row)

        return Table(table, locate, heights=heights)

    return Source(name, columns, load)


def _read_together(files: Sequence[Any], names: list[str]) -> pl.DataFrame | None:
    """Read the same columns of many small files at once; None if that is not possible."""
    if len(files) < 2 or files[0].schema is None:
        return None
    if any(file.schema != files[0].schema for file in files[1:]):
        return None
    contents = [file.data for file in files]
    if len({type(data) is bytes for data in contents}) > 1:
        return None
    try:
        return pl.scan_parquet(contents, glob=False).select(names).collect()
    except (pl.exceptions.PolarsError, OSError):
        return None  # read one by one, the broken file is named


def as_type(column: pl.Series, kind: pl.DataType, file: str) -> pl.Series:
    """Convert the column of a part to the type of the table; raise if text is not an integer."""
    if column.dtype == pl.String and kind.is_integer():
        wrong = ~column.str.contains(f"^({WHOLE.pattern})$")
        if wrong.any():
            raise DataError(
                f"column {column.name!r} of {file} holds {column.filter(wrong)[0]!r} where the "
                "parts before it hold integers; pass ids='text'"
            )
    return column.cast(kind)


def _one_type(
    column: str, kinds: Sequence[pl.DataType], files: Sequence[str], is_id: bool
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
            raise DataError(f"{file} is not a complete Excel workbook ({reason})") from error
        if options.sheet is None and len(names) > 1:
            other_sheets = ", ".join(repr(other) for other in names[1:])
            notes.append(f"read the sheet {sheet!r}; pass sheet= for another: {other_sheets}")
    if not has_header:
        frames = [
            frame.rename({name: f"column {place}" for place, name in enumerate(frame.columns)})
            for frame in frames
        ]
    first = common_columns(
        list(map(str, files)), [tuple(frame.columns) for frame in frames], options
    )
    table = pl.concat([frame.select(first) for frame in frames], how="vertical_relaxed")
    heights = [frame.height for frame in frames]
    start = 1 + has_header  # the header is row 1 of a sheet
    places = [lambda row, file=file: f"{file}, row {row + start}" for file in files]
    locate = located(heights, places)
    return Source(
        name,
        first,
        lambda names, ids: Table(
            table.select(names), locate, notes=list(notes), heights=lambda: heights
        ),
        named=has_header,
    )
