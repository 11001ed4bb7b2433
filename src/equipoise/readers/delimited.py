"""One pass over the bytes of a delimited file: the faults a table parser lets through.

Polars fills short rows with nulls, keeps NUL bytes and turns 007 into 7. This pass finds such
records before the values are used; it also knows the line on which each record starts.

CSV, TSV and the like: fast with polars, careful where a record is wrong.

What polars guesses of the types is only a short cut: the same values come out as if every column
were read as text and looked at as a whole, over all parts of the table.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.errors import DataError
from equipoise.kernels import compiled
from equipoise.readers.columns import SPELLINGS, spelled_like
from equipoise.readers.opening import NAMES, SAMPLE, first_bytes, sniff, text_contents
from equipoise.readers.options import (
    OnBad,
    Options,
    Source,
    Table,
    added,
    bad_row,
    located,
    other_columns,
)

Bytes = npt.NDArray[np.uint8]


Ints = npt.NDArray[np.int64]

CHUNK = 4 << 20


# What can be said of a record, as bits; the first four make it bad.
RAGGED, NUL, STRAY, FOREIGN, BLANK, HIGH, ZERO, QUOTE = (1 << n for n in range(8))


BAD = RAGGED | NUL | STRAY | FOREIGN


QUOTED, CLOSED, FRESH, FIELDS, LINE, FIRST, BEGIN, FLAGS, LEAD, RECORDS = range(10)


@dataclass(frozen=True)
class Scan:
    """What the bytes hold, record by record or only counted.

    Parameters
    ----------
    records
        Number of records, the header and blank ones included.
    counts
        How many records have each of the eight bits.
    valid
        Whether everything is UTF-8.
    open_quote
        Line of a quotation mark that is never closed, or 0.
    starts, lines, flags
        Offset, first line and bits of each record, when asked for.
    """

    records: int
    counts: dict[int, int]
    valid: bool
    open_quote: int
    starts: Ints
    lines: Ints
    flags: npt.NDArray[np.uint8]

    @property
    def clean(self) -> bool:
        """Whether a table parser can be trusted with the file as it is."""
        return (
            self.valid
            and not self.open_quote
            and not any(self.counts[bit] for bit in (RAGGED, NUL, STRAY, BLANK))
        )


def chunks(data: bytes | Path) -> Iterator[bytes]:
    """Yield the content piece by piece, without holding all of it."""
    if isinstance(data, bytes):
        for start in range(0, len(data), CHUNK):
            yield data[start : start + CHUNK]
        return
    with data.open("rb") as stream:
        while piece := stream.read(CHUNK):
            yield piece


def scan(
    data: bytes | Path, separator: str, n_fields: int, *, quotes: bool = True, detail: bool = False
) -> Scan:
    """Walk over all bytes; `detail` also keeps a row for each record.

    Without `quotes` a quotation mark is a character like any other.
    """
    room = 2 + sum(piece.count(b"\n") for piece in chunks(data)) if detail else 0
    starts, lines = np.zeros(room, np.int64), np.zeros(room, np.int64)
    flags = np.zeros(room, np.uint8)
    state = np.zeros(10, np.int64)
    state[[FRESH, FIELDS, LINE, FIRST]] = 1
    counts = np.zeros(8, np.int64)
    special = np.arange(256) >= 128
    special[[0, 10, 13, ord(separator)]] = True
    special[34] = quotes
    decoder = codecs.getincrementaldecoder("utf-8")()
    valid, offset, last = True, 0, b"\n"
    for piece in chunks(data):
        array = np.frombuffer(piece, np.uint8)
        high = _walk(array, special, n_fields, offset, state, counts, starts, lines, flags)
        if valid and (high or decoder.getstate()[0]):
            valid = _decodes(decoder, piece)
        offset, last = offset + len(piece), piece[-1:]
    if valid and decoder.getstate()[0]:
        valid = False  # the file ends within a character
    open_quote = int(state[FIRST]) if state[QUOTED] else 0
    if last != b"\n" and not open_quote:
        newline = np.frombuffer(b"\n", np.uint8)
        _walk(newline, special, n_fields, offset, state, counts, starts, lines, flags)
    records = int(state[RECORDS])
    summary = {1 << n: int(count) for n, count in enumerate(counts)}
    kept = min(room, records)
    return Scan(records, summary, valid, open_quote, starts[:kept], lines[:kept], flags[:kept])


def _decodes(decoder: codecs.IncrementalDecoder, piece: bytes) -> bool:
    try:
        decoder.decode(piece)
    except UnicodeDecodeError:
        return False
    return True


@compiled
def _walk(
    data: Bytes,
    special: npt.NDArray[np.bool_],
    n_fields: int,
    offset: int,
    state: Ints,
    counts: Ints,
    starts: Ints,
    lines: Ints,
    kept_flags: npt.NDArray[np.uint8],
) -> bool:
    quoted, closed, fresh, fields, line, first, begin, flags, lead, records = state
    any_high = False
    for place in range(data.size):
        byte = data[place]
        if not special[byte]:
            if fresh:  # 1: first byte of the field, 2: first byte after its quotation mark
                fresh = 0
                lead = 1 if byte == 48 else (2 if byte == 45 else 0)
                if byte == 43 or byte == 32 or byte == 9:  # polars reads "+7" and " 7" as 7
                    flags |= 64
            elif lead:
                if (lead == 1 and 48 <= byte <= 57) or (lead == 2 and byte == 48):
                    flags |= 64
                lead = 0
            elif closed:
                flags |= 4
        elif byte == 10:
            line += 1
            if quoted:
                continue
            if fields == 1 and fresh == 1:
                flags = 16
            elif fields != n_fields:
                flags |= 1
            if flags:
                for bit in range(8):
                    counts[bit] += (flags >> bit) & 1
            if records < starts.size:
                starts[records], lines[records] = begin, first
                kept_flags[records] = flags
            records += 1
            first, begin = line, offset + place + 1
            fresh, fields, flags, closed, lead = 1, 1, 0, 0, 0
        elif byte == 34:
            if quoted:
                quoted, closed = 0, 1
            elif fresh == 1 or closed:
                quoted, closed, flags, fresh = 1, 0, flags | 128, 2
            else:
                flags |= 4
        elif byte == 0:
            flags, fresh = flags | 2, 0
        elif byte >= 128:
            flags, fresh, lead = flags | 32, 0, 0
            any_high = True
        elif byte != 13 and not quoted:  # the separator
            fields += 1
            fresh, closed, lead = 1, 0, 0
    state[:] = quoted, closed, fresh, fields, line, first, begin, flags, lead, records
    return any_high


REASONS = {
    FOREIGN: ("the record is not UTF-8", "save the file as UTF-8 or pass encoding='latin-1'"),
    NUL: ("the record holds a NUL byte", "remove it"),
    STRAY: ("the record holds a stray quotation mark", "double it inside a quoted field"),
    RAGGED: ("the record has the wrong number of fields", "mend it"),
}


WHOLE = r"^(0|-?[1-9][0-9]*)$"


LOOK = 100  # lines that are looked at to tell a header from data


DECIMAL = r"^(0|-?[1-9][0-9]*)(\.[0-9]*)?$"


# A number or a date in a first line; with a decimal comma where commas do not separate.
VALUE = re.compile(
    r"\s*([+-]?(\d+([.,]\d*)?|\.\d+)(e[+-]?\d+)?|[+-]?(nan|inf(inity)?)|\d{4}-\d\d-\d\d.*)\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class TextFile:
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
    """

    name: str
    data: bytes | Path
    separator: str
    columns: tuple[str, ...]
    header: bool
    quotes: bool

    def scanned(self, *, detail: bool = False) -> Scan:
        """Look for the faults that polars lets through."""
        n_fields = len(self.columns)
        return scan(self.data, self.separator, n_fields, quotes=self.quotes, detail=detail)

    @cached_property
    def records(self) -> Scan:
        """The scan with a row for each record."""
        return self.scanned(detail=True)

    def parsed(
        self, data: bytes | Path, names: Sequence[str], *, enclosing: bool, **settings: Any
    ) -> pl.DataFrame:
        """Let polars parse these columns of the content, or of what is left of it."""
        places = sorted({self.columns.index(name) for name in names})
        frame = pl.read_csv(
            io.BytesIO(data) if isinstance(data, bytes) else data.absolute(),
            columns=places,
            has_header=self.header,
            separator=self.separator,
            quote_char='"' if enclosing else None,
            glob=False,
            **settings,
        )
        frame.columns = [self.columns[place] for place in places]
        return frame

    def usable(self, found: Scan, *, enclosing: bool, stray: bool, on_bad: OnBad) -> Usable:
        """Return what can be parsed of it: bad records are refused or left out."""
        if found.open_quote:
            raise DataError(
                f"{self.name}, line {found.open_quote}: a quotation mark is never closed; "
                "close or remove it"
            )
        problems = (RAGGED, NUL, BLANK, *((STRAY,) if stray else ()))
        if found.valid and not any(found.counts[bit] for bit in problems):
            return Usable(self, self.data, enclosing, None, found.records - self.header)
        data, lines, skipped = self._without_bad_records(stray=stray, on_bad=on_bad)
        return Usable(self, data, enclosing, lines, len(lines) - self.header, skipped)

    def _without_bad_records(
        self, *, stray: bool, on_bad: OnBad
    ) -> tuple[bytes, npt.NDArray[np.int64], dict[str, int]]:
        """Return the content, the lines of its records and what was left out of it."""
        data = self.data if isinstance(self.data, bytes) else self.data.read_bytes()
        records = self.records
        ends = np.append(records.starts[1:], len(data))
        flags = records.flags.copy()
        for place in np.flatnonzero(flags & HIGH):
            try:
                data[records.starts[place] : ends[place]].decode("utf-8")
            except UnicodeDecodeError:
                flags[place] |= FOREIGN
        bits = BAD if stray else BAD & ~STRAY
        wrong = np.flatnonzero(flags & bits)
        skipped: dict[str, int] = {}
        for place in wrong:
            bit = next(bit for bit in REASONS if flags[place] & bits & bit)
            reason, remedy = REASONS[bit]
            if on_bad == "error" or (place == 0 and self.header):
                where = f"{self.name}, line {records.lines[place]}"
                raise bad_row(where, self._explained(bit, reason, data, int(place)), remedy)
            skipped[reason] = skipped.get(reason, 0) + 1
        kept = np.flatnonzero((flags & (bits | BLANK)) == 0)
        pieces = [data[records.starts[place] : ends[place]] for place in kept]
        return b"".join(pieces), records.lines[kept], skipped

    def _explained(self, bit: int, reason: str, data: bytes, place: int) -> str:
        if bit != RAGGED:
            return reason
        start = int(self.records.starts[place])
        stop = data.find(b"\n", start)
        text = data[start : stop if stop >= 0 else None].decode("utf-8", "replace").rstrip("\r\n")
        fields = next(csv.reader([text], delimiter=self.separator), [])
        return f"the record has {len(fields)} fields where {len(self.columns)} are expected"


@dataclass(frozen=True)
class Usable:
    """The records of a file that can be parsed.

    Parameters
    ----------
    file
        The file.
    data
        The content, or the path that holds it.
    enclosing
        Whether quotation marks enclose fields somewhere in the table.
    lines
        The line of each record where some were left out, else None.
    n_rows
        How many records there are, the header not counted.
    skipped
        Records that were left out, by reason.
    """

    file: TextFile
    data: bytes | Path
    enclosing: bool
    lines: npt.NDArray[np.int64] | None = None
    n_rows: int = 0
    skipped: dict[str, int] = field(default_factory=dict)

    def guessed(self, names: Sequence[str]) -> pl.DataFrame | None:
        """Let polars guess the types from the first rows; None where a guess fails."""
        try:
            return self.file.parsed(
                self.data, names, enclosing=self.enclosing, infer_schema_length=1000
            )
        except pl.exceptions.PolarsError:
            return None

    def text(self, names: Sequence[str]) -> pl.DataFrame:
        """Return these columns as they are written."""
        try:
            return self.file.parsed(self.data, names, enclosing=self.enclosing, infer_schema=False)
        except pl.exceptions.PolarsError as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"{self.file.name} cannot be parsed: {reason}; correct it") from error

    def locate(self, row: int) -> str:
        """Name a row by its file and line."""
        lines = self.file.records.lines if self.lines is None else self.lines
        return f"{self.file.name}, line {lines[row + self.file.header]}"


@dataclass(frozen=True)
class Delimited:
    """One table in one or several files with the same columns, in any order.

    Parameters
    ----------
    name
        The path, for messages.
    files
        The files, one after another.
    on_bad
        What to do with a bad record.
    notes
        Sentences for `Interactions.notes`.
    """

    name: str
    files: tuple[TextFile, ...]
    on_bad: OnBad
    notes: tuple[str, ...] = ()

    def load(self, ids: Sequence[str], others: Sequence[str]) -> Table:
        """Load these columns; ids become whole numbers only if that loses nothing."""
        wanted = list(dict.fromkeys([*ids, *others]))
        parts, guesses, counts = self._parsed(wanted)
        skipped = added([part.skipped for part in parts])
        places = [place for place, part in enumerate(parts) if part.n_rows > 0]
        parts, guesses = [parts[place] for place in places], [guesses[place] for place in places]
        if not parts and skipped:
            raise DataError(f"{self.name}: no row is left after the bad ones; correct the file")
        if not parts:
            raise DataError(f"{self.name} has a header but no rows; nothing can be read from it")
        exact = not counts[ZERO]
        plain = [name for name in wanted if not _agreed(guesses, name, name in ids, exact)]
        typed = [
            _with_text(guess, part, plain).select(wanted)
            for part, guess in zip(parts, guesses, strict=True)
        ]
        frame = typed[0] if len(typed) == 1 else pl.concat(typed, how="vertical_relaxed")
        frame = frame.with_columns(whole_numbers(frame[name]) for name in plain if name in ids)
        blank = counts[BLANK]
        return Table(
            frame,
            located([part.n_rows for part in parts], [part.locate for part in parts]),
            skipped,
            [*self.notes, *([f"ignored {blank:,} blank lines"] if blank else [])],
            decimal_comma=self.files[0].separator != ",",
            written=lambda name: pl.concat([part.text([name])[name] for part in parts]),
        )

    def _parsed(
        self, wanted: list[str]
    ) -> tuple[list[Usable], list[pl.DataFrame | None], dict[int, int]]:
        """Return the files with the types that polars guesses, and what the scans count."""
        quotes = self.files[0].quotes
        whole = [Usable(file, file.data, quotes) for file in self.files]
        with ThreadPoolExecutor(1) as pool:
            scanning = pool.submit(lambda: [file.scanned() for file in self.files])
            guesses = [part.guessed(wanted) for part in whole]
            scans = scanning.result()
        counts = {bit: sum(found.counts[bit] for found in scans) for bit in scans[0].counts}
        # A mark that encloses a field in one part makes a loose one in another a fault.
        enclosing = quotes and counts[QUOTE] > 0
        stray = quotes and counts[STRAY] > 0
        parts = [
            file.usable(found, enclosing=enclosing, stray=stray and enclosing, on_bad=self.on_bad)
            for file, found in zip(self.files, scans, strict=True)
        ]
        for place, part in enumerate(parts):
            if part.n_rows > 0 and (stray or part.data is not part.file.data):
                guesses[place] = part.guessed(wanted)
        return parts, guesses, counts


def _agreed(guesses: Sequence[pl.DataFrame | None], name: str, is_id: bool, exact: bool) -> bool:
    """Whether the guessed types of a column hold for the whole table."""
    kinds = {None if guess is None else guess[name].dtype for guess in guesses}
    if is_id:
        return exact and kinds == {pl.Int64()}
    return None not in kinds and (len(kinds) == 1 or kinds <= {pl.Int64(), pl.Float64()})


def _with_text(guess: pl.DataFrame | None, part: Usable, plain: list[str]) -> pl.DataFrame:
    """Put these columns back as they are written, where a guess changed them."""
    if guess is None:
        return part.text(plain)
    changed = [name for name in plain if guess[name].dtype != pl.String]
    return guess.with_columns(part.text(changed)) if changed else guess


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
    return delimited_parts(str(path), [path], options, quotes=quotes)


def delimited_parts(
    name: str, paths: Sequence[Path], options: Options, *, quotes: bool = True
) -> Source:
    """Open files that are one table; what the first one shows holds for all of them."""
    contents = [text_contents(path, options.encoding) for path in paths]
    samples = [first_bytes(data) for data in contents]
    for path, sample in zip(paths, samples, strict=True):
        if not sample.strip():
            raise DataError(f"{path} holds only blank lines; it needs at least one row")
    guess = sniff(paths[0].name, b"\n".join(samples)[:SAMPLE])
    separator = options.separator or guess
    if separator == "::":
        contents = [_read(data).replace(b"::", b"\x1f") for data in contents]
        samples = [sample.replace(b"::", b"\x1f") for sample in samples]
        separator, quotes = "\x1f", False
    lines = [[line for line in sample.splitlines() if line.strip()] for sample in samples]
    if not separator or separator.encode() not in lines[0][0]:
        raise _one_column(paths[0], lines[0][0], options.separator, guess)
    first = _fields(lines[0][0], separator, quotes)
    rows = (_fields(line, separator, quotes) for part in lines for line in part)
    body = (row for row in rows if sorted(row) != sorted(first))  # without headers of parts
    header, notes = _header(paths[0], first, list(islice(body, LOOK)), separator, options)
    made_up = tuple(f"column {place}" for place in range(len(first)))
    files = []
    for path, data, part in zip(paths, contents, lines, strict=True):
        columns = tuple(_fields(part[0], separator, quotes)) if header else made_up
        if header and sorted(columns) != sorted(first):
            raise other_columns(str(path), columns, str(paths[0]), first)
        files.append(TextFile(str(path), data, separator, columns, header, quotes))
    table = Delimited(name, tuple(files), options.on_bad, tuple(notes))
    return Source(name, files[0].columns, table.load, named=header)


def _read(data: bytes | Path) -> bytes:
    return data if isinstance(data, bytes) else data.read_bytes()


def _one_column(path: Path, line: bytes, asked: str | None, guess: str) -> DataError:
    if b"\x00" in line:
        return DataError(f"{path}, line 1: NUL bytes; this is not a text table, check the file")
    shown = line[:40].decode("utf-8", "replace")
    if asked and guess:
        other = NAMES[guess]
        found = f"found none in {shown!r}; the fields seem to be separated by {other}"
        return DataError(f"{path}: asked for separator={asked!r} but {found}: leave it out")
    return DataError(f"{path} has one column, {shown!r}; pass separator= to cut it into fields")


def _fields(line: bytes, separator: str, quotes: bool) -> list[str]:
    text = line[:SAMPLE].decode("utf-8", "replace")
    if not quotes:
        return text.split(separator)
    return next(csv.reader([text], delimiter=separator))


def _header(
    path: Path, first: list[str], body: list[list[str]], separator: str, options: Options
) -> tuple[bool, list[str]]:
    """Say whether the first record names the columns, with a note where that may be wrong.

    Words alone are names, and so are two usual names of columns with anything beside them.
    Numbers or dates mean data, but not where one of several words is a usual name or where a
    column goes on with the other kind of cell: that is refused.
    """
    if options.header is not None:
        return options.header, []
    shown = ", ".join(repr(field) for field in first[:6])
    said = [f"the first line, {shown}, is taken as the header; header=False if not"]
    roles = ("user", "item", "session", "time", "rating", "weight")
    asked = [getattr(options, role) for role in roles]
    usual = [role for role in SPELLINGS if spelled_like(tuple(first), role)]
    sure = len(usual) > 1 or any(isinstance(name, str) and name in first for name in asked)
    values = [_is_value(field, separator) for field in first]
    if sure or not any(values):
        return True, said if any(values) or not sure else []
    words = [place for place, value in enumerate(values) if not value and first[place].strip()]
    if _turns(first, body, separator) or (usual and len(words) > 1):
        raise DataError(
            f"{path}, line 1: {shown} may be the names of the columns or data; "
            "pass header=True or header=False (for labels, a frame in place of the file)"
        )
    return False, []


def _turns(first: list[str], body: list[list[str]], separator: str) -> bool:
    """Whether a column starts with a word and goes on with numbers or dates, or the reverse."""
    rows = [row for row in body if len(row) == len(first)]
    for place, top in enumerate(first):
        cells = [row[place] for row in rows if row[place].strip()]
        kinds = {_is_value(cell, separator) for cell in cells}
        if top.strip() and kinds == {not _is_value(top, separator)}:
            return True
    return False


def _is_value(field: str, separator: str) -> bool:
    """Whether the field is a number or a date."""
    return VALUE.fullmatch(field) is not None and (separator != "," or "," not in field)
