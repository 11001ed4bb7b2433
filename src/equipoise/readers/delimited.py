"""CSV, TSV and the like: fast with polars, careful where a record is wrong."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.errors import DataError
from equipoise.readers import scan
from equipoise.readers.opening import NAMES, SAMPLE, first_bytes, sniff, text_contents
from equipoise.readers.options import OnBad, Options
from equipoise.readers.table import Source, Table, bad_row

REASONS = {
    scan.FOREIGN: ("the record is not UTF-8", "save the file as UTF-8 or pass encoding='latin-1'"),
    scan.NUL: ("the record holds a NUL byte", "remove it"),
    scan.STRAY: ("the record holds a stray quotation mark", "double it inside a quoted field"),
    scan.RAGGED: ("the record has the wrong number of fields", "mend it"),
}
WHOLE = r"^(0|-?[1-9][0-9]*)$"
DECIMAL = r"^(0|-?[1-9][0-9]*)(\.[0-9]*)?$"


@dataclass(frozen=True)
class Delimited:
    """A delimited file that has been opened: its separator and its columns are known.

    Parameters
    ----------
    name
        The path, for messages.
    data
        UTF-8 content, or the path that holds it.
    separator
        One character.
    columns
        Names of the columns, from the header or made up.
    header
        Whether the first record is a header.
    quotes
        Whether quotation marks enclose fields.
    on_bad
        What to do with a bad record.
    """

    name: str
    data: bytes | Path
    separator: str
    columns: tuple[str, ...]
    header: bool
    quotes: bool
    on_bad: OnBad

    def load(self, ids: Sequence[str], others: Sequence[str]) -> Table:
        """Load these columns; ids become whole numbers only if that loses nothing."""
        places = sorted({self.columns.index(name) for name in (*ids, *others)})
        with ThreadPoolExecutor(1) as pool:
            scanning = pool.submit(self._scan)
            frame = self._guessed(self.data, places, enclosing=self.quotes)
            found = scanning.result()
        self._refuse_hopeless(found)
        data: bytes | Path = self.data
        lines: npt.NDArray[np.int64] | None = None
        skipped: dict[str, int] = {}
        enclosing = self.quotes and found.counts[scan.QUOTE] > 0
        stray = self.quotes and found.counts[scan.STRAY] > 0
        problems = (scan.RAGGED, scan.NUL, scan.BLANK)
        if (stray and enclosing) or not found.valid or any(found.counts[b] for b in problems):
            data, lines, skipped = self._without_bad_records(stray=stray and enclosing)
        if data is not self.data or stray:
            frame = self._guessed(data, places, enclosing=enclosing)
        if frame is None:
            frame = self._as_text(data, places, enclosing=enclosing)
        exact = not found.counts[scan.ZERO]
        doubtful = [name for name in ids if not exact or frame[name].dtype != pl.Int64]
        again = [self.columns.index(n) for n in doubtful if frame[n].dtype != pl.String]
        if again:
            frame = frame.with_columns(self._as_text(data, sorted(again), enclosing=enclosing))
        frame = frame.with_columns(whole_numbers(frame[name]) for name in doubtful)
        table = Table(frame, lambda row: f"{self.name}, line {self._line(row, lines)}", skipped)
        if found.counts[scan.BLANK]:
            table.notes.append(f"ignored {found.counts[scan.BLANK]:,} blank lines")
        return table

    def _refuse_hopeless(self, found: scan.Scan) -> None:
        if found.open_quote:
            raise DataError(
                f"{self.name}, line {found.open_quote}: a quotation mark is never closed; "
                "close or remove it"
            )
        if found.records <= self.header:
            raise DataError(f"{self.name} has a header but no rows; nothing can be read from it")

    def _scan(self, *, detail: bool = False) -> scan.Scan:
        n_fields = len(self.columns)
        return scan.scan(self.data, self.separator, n_fields, quotes=self.quotes, detail=detail)

    def _guessed(
        self, data: bytes | Path, places: list[int], *, enclosing: bool
    ) -> pl.DataFrame | None:
        """Let polars guess the types from the first rows; None where a guess fails."""
        try:
            return self._parsed(data, places, enclosing, infer_schema_length=1000)
        except pl.exceptions.PolarsError:
            return None

    def _parsed(
        self, data: bytes | Path, places: list[int], enclosing: bool, **settings: Any
    ) -> pl.DataFrame:
        frame = pl.read_csv(
            io.BytesIO(data) if isinstance(data, bytes) else data,
            columns=places,
            has_header=self.header,
            separator=self.separator,
            quote_char='"' if enclosing else None,
            **settings,
        )
        frame.columns = [self.columns[place] for place in places]
        return frame

    def _as_text(self, data: bytes | Path, places: list[int], *, enclosing: bool) -> pl.DataFrame:
        try:
            return self._parsed(data, places, enclosing, infer_schema=False)
        except pl.exceptions.PolarsError as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"{self.name} cannot be parsed: {reason}; correct it") from error

    @cached_property
    def _records(self) -> scan.Scan:
        return self._scan(detail=True)

    def _line(self, row: int, lines: npt.NDArray[np.int64] | None) -> int:
        known = self._records.lines if lines is None else lines
        return int(known[row + self.header])

    def _without_bad_records(
        self, *, stray: bool
    ) -> tuple[bytes, npt.NDArray[np.int64], dict[str, int]]:
        """Return the content, the lines of its records and what was left out of it."""
        data = self.data if isinstance(self.data, bytes) else self.data.read_bytes()
        records = self._records
        ends = np.append(records.starts[1:], len(data))
        flags = records.flags.copy()
        for place in np.flatnonzero(flags & scan.HIGH):
            try:
                data[records.starts[place] : ends[place]].decode("utf-8")
            except UnicodeDecodeError:
                flags[place] |= scan.FOREIGN
        bits = scan.BAD if stray else scan.BAD & ~scan.STRAY
        wrong = np.flatnonzero(flags & bits)
        skipped: dict[str, int] = {}
        for place in wrong:
            bit = next(bit for bit in REASONS if flags[place] & bits & bit)
            reason, remedy = REASONS[bit]
            if self.on_bad == "error" or (place == 0 and self.header):
                where = f"{self.name}, line {records.lines[place]}"
                raise bad_row(where, self._explained(bit, reason, data, int(place)), remedy)
            skipped[reason] = skipped.get(reason, 0) + 1
        kept = np.flatnonzero((flags & (bits | scan.BLANK)) == 0)
        if len(kept) <= self.header:
            raise DataError(f"{self.name}: no row is left after the bad ones; correct the file")
        pieces = [data[records.starts[place] : ends[place]] for place in kept]
        return b"".join(pieces), records.lines[kept], skipped

    def _explained(self, bit: int, reason: str, data: bytes, place: int) -> str:
        if bit != scan.RAGGED:
            return reason
        start = int(self._records.starts[place])
        stop = data.find(b"\n", start)
        text = data[start : stop if stop >= 0 else None].decode("utf-8", "replace").rstrip("\r\n")
        fields = next(csv.reader([text], delimiter=self.separator), [])
        return f"the record has {len(fields)} fields where {len(self.columns)} are expected"


def whole_numbers(text: pl.Series) -> pl.Series:
    """Turn text into integers where each value is written the one usual way; else keep it.

    >>> whole_numbers(pl.Series(["7", "12"])).to_list()
    [7, 12]
    >>> whole_numbers(pl.Series(["7", "007"])).to_list()
    ['7', '007']
    """
    if text.dtype != pl.String or text.null_count() == len(text):
        return text
    if text.str.contains(WHOLE).all():
        numbers = text.cast(pl.Int64, strict=False)
        return text if numbers.null_count() > text.null_count() else numbers
    if text.str.contains(DECIMAL).all():
        return text.cast(pl.Float64)  # a float column of integers; the ids are checked later
    return text


def delimited_source(path: Path, options: Options, *, quotes: bool = True) -> Source:
    """Open a delimited file: find its separator, its header and its columns."""
    data = text_contents(path, options.encoding)
    sample = first_bytes(data)
    lines = [line for line in sample.splitlines() if line.strip()]
    if not lines:
        raise DataError(f"{path} holds only blank lines; it needs at least one row")
    guess = sniff(path.name, sample)
    separator = options.separator or guess
    if separator == "::":
        whole = data if isinstance(data, bytes) else data.read_bytes()
        data, sample = whole.replace(b"::", b"\x1f"), sample.replace(b"::", b"\x1f")
        lines, separator, quotes = [line.replace(b"::", b"\x1f") for line in lines], "\x1f", False
    if not separator or separator.encode() not in lines[0]:
        raise _one_column(path, lines[0], options.separator, guess)
    first = _fields(lines, separator, quotes)
    header = _is_header(first) if options.header is None else options.header
    if not header:
        first = [f"column {place}" for place in range(len(first))]
    name = str(path)
    file = Delimited(name, data, separator, tuple(first), header, quotes, options.on_bad)
    return Source(name, file.columns, file.load, named=header)


def _one_column(path: Path, line: bytes, asked: str | None, guess: str) -> DataError:
    if b"\x00" in line:
        return DataError(f"{path}, line 1: NUL bytes; this is not a text table, check the file")
    shown = line[:40].decode("utf-8", "replace")
    if asked and guess:
        other = NAMES[guess]
        found = f"found none in {shown!r}; the fields seem to be separated by {other}"
        return DataError(f"{path}: asked for separator={asked!r} but {found}: leave it out")
    return DataError(f"{path} has one column, {shown!r}; pass separator= to cut it into fields")


def _fields(lines: list[bytes], separator: str, quotes: bool) -> list[str]:
    text = lines[0][:SAMPLE].decode("utf-8", "replace")
    if not quotes:
        return text.split(separator)
    return next(csv.reader([text], delimiter=separator))


def _is_header(fields: list[str]) -> bool:
    """Say whether the first record names the columns; a number among them means data."""
    return not any(_is_number(field) for field in fields)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
