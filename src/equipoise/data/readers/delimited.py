r"""CSV, TSV and other delimited text: parsed by polars, after checks that polars does not make.

Polars fills short rows with nulls, keeps NUL bytes and turns 007 into 7. One pass over the bytes
(`scan`) finds such records first, and the line on which each record starts. The column types that
polars guesses are only a short cut: the values are the same as if every column of all parts were
read as text and then converted.

A stray quotation mark spoils only its own line: the scan resumes at the next one. Escaped marks
(\") are replaced by doubled ones before.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.data.readers.columns import SPELLINGS, spelled_like
from equipoise.data.readers.files import SAMPLE, all_bytes, first_bytes, text_contents
from equipoise.data.readers.numbers import parsed_numbers
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
from equipoise.data.readers.records import (
    BAD,
    BLANK,
    FOREIGN,
    HIGH,
    NUL,
    OPEN,
    QUOTE,
    RAGGED,
    REASONS,
    STRAY,
    ZERO,
    Scan,
    scan,
)
from equipoise.errors import DataError
from equipoise.runtime.kernels import compiled

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

LOOK = 100  # lines used to tell a header from data
SEPARATORS = {
    ",": "commas",
    "\t": "tabs",
    ";": "semicolons",
    "|": "bars",
    "::": "'::'",
    " ": "blanks",
}
COMMA = re.compile(rb'\s*"?[+-]?\d+,\d+"?\s*')
WHOLE = r"^(0|-?[1-9][0-9]*)$"
DECIMAL = r"^(0|-?[1-9][0-9]*)(\.[0-9]*)?$"
# A number (possibly with a decimal comma) or a date.
VALUE = re.compile(
    r"\s*([+-]?(\d+([.,]\d*)?|\.\d+)(e[+-]?\d+)?|[+-]?(nan|inf(inity)?)|\d{4}-\d\d-\d\d.*)\s*",
    re.IGNORECASE,
)
# A date in any order, or a number of nine digits and more: seconds since 1973, or later.
DATED = re.compile(r"\d{4}-\d\d?-\d\d?|\d{1,4}[/.]\d\d?[/.]\d{2,4}\b|\d{9,}|(19|20)\d{6}$")

BACKSLASH = "\\"


def delimited_source(path: Path, options: ReadOptions) -> Source:
    """Open a delimited file: detect its separator, header and columns."""
    return delimited_parts(str(path), [path], options)


def delimited_parts(name: str, paths: Sequence[Path], options: ReadOptions) -> Source:
    """Open files that form one table, with the separator and header of the first."""
    contents = [text_contents(path, options.encoding) for path in paths]
    quote = '"' if options.quote is None else options.quote
    if options.escape:
        contents = [doubled(all_bytes(data), quote, options.escape) for data in contents]
    samples = [first_bytes(data) for data in contents]
    guess = sniff(paths[0].name, b"\n".join(samples)[:SAMPLE])
    separator = options.separator or guess
    if separator == "::":
        contents = [all_bytes(data).replace(b"::", b"\x1f") for data in contents]
        samples = [sample.replace(b"::", b"\x1f") for sample in samples]
        separator, quote = "\x1f", ""
    lines = [[line for line in sample.splitlines() if line.strip()] for sample in samples]
    if not separator or separator.encode() not in lines[0][0]:
        raise _one_column(paths[0], lines[0][0], options.separator, guess)
    first = _fields(lines[0][0], separator, quote)
    rows = (_fields(line, separator, quote) for part in lines for line in part)
    rows = (row for row in rows if sorted(row) != sorted(first))  # skip repeated headers
    body = list(islice(rows, LOOK))
    header, notes = _header(paths[0], first, body, separator, options)
    if header:
        columns = [tuple(_fields(part[0], separator, quote)) for part in lines]
        check_one_schema(paths, columns)
    else:
        columns = [tuple(f"column {place}" for place in range(len(first)))] * len(paths)
    files = [
        TextFile(str(path), data, separator, names, header, quote, options.quote is None)
        for path, data, names in zip(paths, contents, columns, strict=True)
    ]
    detect = options.escape is None and quote != ""
    load = partial(_load, name, files, options.on_bad, detect, notes)
    dated = frozenset() if header else _dated(columns[0], [first, *body])
    return Source(name, columns[0], load, header, dated)


def _one_column(path: Path, line: bytes, requested: str | None, guess: str) -> DataError:
    if b"\x00" in line:
        return DataError(f"{path}, line 1: NUL bytes; this is not a text table, check the file")
    shown = line[:40].decode("utf-8", "replace")
    if requested and guess:
        problem = (
            f"found none in {shown!r}; the fields seem to be separated by {SEPARATORS[guess]}"
        )
        return DataError(f"{path}: asked for separator={requested!r} but {problem}: leave it out")
    return DataError(
        f"{path} has one column, {shown!r}; pass separator= to cut it into fields "
        "(for labels, a frame in place of the file)"
    )


def sniff(name: str, sample: bytes) -> str:
    r"""Return the separator that occurs equally often in most of the first lines.

    >>> sniff("ratings.dat", b"1::10::5\n2::10::3\n")
    '::'
    """
    lines = [line for line in sample.splitlines()[:100] if line.strip()]
    if len(sample) == SAMPLE and len(lines) > 1:
        lines.pop()  # possibly incomplete
    if _has_decimal_commas(lines):
        return ";"
    best, best_score = "", 0.0
    for separator in SEPARATORS:
        counts = [line.count(separator.encode()) for line in lines]
        usual = max(set(counts), key=counts.count) if counts else 0
        score = counts.count(usual) / len(counts) if usual else 0.0
        # The first line must contain it; blanks count only if nothing else separates.
        if not usual or not counts[0] or (separator == " " and best):
            continue
        # The file name decides: titles may contain any other separator.
        if name.endswith((".csv", ".csv.gz")) and separator == ",":
            score += 1
        if name.endswith((".tsv", ".tsv.gz", ".inter", ".item")) and separator == "\t":
            score += 1
        if score > best_score or (separator == "::" and score >= best_score):
            best, best_score = separator, score
    if best or not lines:
        return best
    # No separator is regular: take that of the header, so that the rows are reported as bad.
    header = lines[0].decode("utf-8", "replace")
    return max((s for s in SEPARATORS if s in header), key=header.count, default="")


def _has_decimal_commas(lines: list[bytes]) -> bool:
    """Whether semicolons separate the fields and every comma is a decimal comma.

    At least two fields, the user and the item, must have no comma.
    """
    rows = [line.split(b";") for line in lines]
    if not rows or len({len(row) for row in rows}) > 1:
        return False
    body = rows[1:] if b"," not in lines[0] else rows
    decimal = [any(b"," in row[place] for row in body) for place in range(len(rows[0]))]
    return (
        any(decimal)
        and decimal.count(False) >= 2
        and all(COMMA.fullmatch(cell) for row in body for cell in row if b"," in cell)
    )


def _fields(line: bytes, separator: str, quote: str) -> list[str]:
    text = line[:SAMPLE].decode("utf-8", "replace")
    if not quote:
        return text.split(separator)
    return next(csv.reader([text], delimiter=separator, quotechar=quote))


def _dated(columns: tuple[str, ...], rows: list[list[str]]) -> frozenset[str]:
    """Return the columns whose first cells are all dates or times."""
    date_columns = set()
    for place, name in enumerate(columns):
        cells = [row[place].strip() for row in rows if len(row) > place and row[place].strip()]
        if cells and all(DATED.match(cell) for cell in cells):
            date_columns.add(name)
    return frozenset(date_columns)


def _header(
    path: Path, first: list[str], body: list[list[str]], separator: str, options: ReadOptions
) -> tuple[bool, list[str]]:
    """Return whether the first record is a header, and a note if that is uncertain.

    It is one if it holds only words, or two usual column names. With numbers or dates it is data,
    unless one of several words is a usual name or a column continues with the other kind of
    cell: that is an error.
    """
    if options.header is not None:
        return options.header, []
    shown = ", ".join(repr(field) for field in first[:6])
    notes = [f"the first line, {shown}, is taken as the header; header=False if not"]
    roles = ("user", "item", "session", "time", "rating", "weight")
    requested = [getattr(options, role) for role in roles]
    usual = [role for role in SPELLINGS if spelled_like(tuple(first), role)]
    sure = len(usual) > 1 or any(isinstance(name, str) and name in first for name in requested)
    values = [_is_value(field, separator) for field in first]
    if sure or not any(values):
        return True, notes if any(values) or not sure else []
    words = [place for place, value in enumerate(values) if not value and first[place].strip()]
    if _turns(first, body, separator) or (usual and len(words) > 1):
        raise DataError(
            f"{path}, line 1: {shown} may be the names of the columns or data; "
            "pass header=True or header=False (for labels, a frame in place of the file)"
        )
    return False, []


def _turns(first: list[str], body: list[list[str]], separator: str) -> bool:
    """Whether a column starts with a word and continues with numbers or dates, or vice versa."""
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


def _load(
    name: str,
    files: list[TextFile],
    on_bad: OnBad,
    detect: bool,
    notes: list[str],
    names: list[str],
    ids: Collection[str],
) -> Table:
    """Load these columns; ids become integers only if that is lossless."""
    parts, guesses, counts, parse_notes = _parsed(files, on_bad, detect, names)
    notes = [*notes, *parse_notes]
    skipped: Counter[str] = sum((part.skipped for part in parts), Counter())
    full = [place for place, part in enumerate(parts) if part.n_rows > 0]
    parts, guesses = [parts[place] for place in full], [guesses[place] for place in full]
    if not parts:
        return Table(pl.DataFrame(schema=dict.fromkeys(names, pl.String)), row_of(name), skipped)
    exact = not counts[ZERO]
    plain = [column for column in names if not _agreed(guesses, column, column in ids, exact)]
    typed = [
        _with_text(guess, part, plain).select(names)
        for part, guess in zip(parts, guesses, strict=True)
    ]
    frame = typed[0] if len(typed) == 1 else pl.concat(typed, how="vertical_relaxed")
    frame = frame.with_columns(whole_numbers(frame[column]) for column in plain if column in ids)
    blank = counts[BLANK]
    return Table(
        frame,
        located([part.n_rows for part in parts], [part.locate for part in parts]),
        skipped,
        [*notes, *([f"ignored {blank:,} blank lines"] if blank else [])],
        decimal_comma=files[0].separator != ",",
        written=lambda column: pl.concat([part.text([column])[column] for part in parts]),
    )


def _parsed(
    files: list[TextFile], on_bad: OnBad, detect: bool, names: list[str]
) -> tuple[list[TextFile], list[pl.DataFrame | None], Counter[int], list[str]]:
    """Return the usable parts of the files, frames with guessed types, scan counts and notes.

    With `detect`, faulty quotation marks are tried again as escaped by backslashes.
    """
    numbers = [file.numbers(names) for file in files]
    if all(frame is not None for frame in numbers):
        sizes = [0 if frame is None else frame.height for frame in numbers]
        parts = [replace(file, quote="", n_rows=n) for file, n in zip(files, sizes, strict=True)]
        return parts, numbers, Counter(), []
    with ThreadPoolExecutor(1) as pool:
        scanning = pool.submit(lambda: [file.scanned() for file in files])
        guesses = [file.guessed(names) for file in files]
        scans = scanning.result()
    if detect and any(scanned.faulty_marks for scanned in scans):
        escaped = _escaped(files)
        if escaped:
            note = "quotation marks are escaped by backslashes; escape='' if not"
            return (*_parsed(escaped, on_bad, False, names)[:3], [note])
    scans = [
        file.records if scanned.counts[OPEN] else scanned
        for file, scanned in zip(files, scans, strict=True)
    ]
    counts: Counter[int] = sum((scanned.counts for scanned in scans), Counter())
    # If marks enclose fields in any part, a stray mark is a fault in all parts.
    enclosing = counts[QUOTE] > 0
    stray = counts[STRAY] > 0
    parts = [
        file.usable(scanned, enclosing=enclosing, stray=stray and enclosing, on_bad=on_bad)
        for file, scanned in zip(files, scans, strict=True)
    ]
    for place, (file, part) in enumerate(zip(files, parts, strict=True)):
        if part.n_rows > 0 and (stray or part.data is not file.data):
            guesses[place] = part.guessed(names)
    return parts, guesses, counts, []


def _escaped(files: list[TextFile]) -> list[TextFile]:
    r"""Return the files with \" read as an escaped mark if that removes all faults, else []."""
    out = []
    for file in files:
        data = all_bytes(file.data)
        changed = doubled(data, file.quote, BACKSLASH)
        out.append(replace(file, data=changed) if changed != data else file)
    if all(new is old for new, old in zip(out, files, strict=True)):
        return []
    return [] if any(file.scanned().faulty_marks for file in out) else out


def doubled(data: bytes, quote: str, escape: str) -> bytes:
    r"""Replace escaped marks in quoted fields by doubled ones, which polars can parse.

    >>> doubled(rb'"a\"b","c\\"', '"', "\\")
    b'"a""b","c\\"'
    """
    if quote.encode() not in data or escape.encode() not in data:
        return data
    array = np.frombuffer(data, np.uint8)
    return bytes(_doubled(array, ord(quote), ord(escape)).tobytes())


@compiled
def _doubled(data: Bytes, quote: int, escape: int) -> Bytes:
    out = np.empty(data.size, np.uint8)
    size = 0
    quoted = False
    place = 0
    while place < data.size:
        byte = data[place]
        if quoted and byte == escape and place + 1 < data.size:
            after = data[place + 1]
            if after in (quote, escape):
                # a mark becomes two, an escape one: the output is never longer than the input
                if after == quote:
                    out[size] = quote
                    size += 1
                out[size] = after
                size += 1
                place += 2
                continue
        if byte == quote:
            quoted = not quoted
        out[size] = byte
        size += 1
        place += 1
    return out[:size]


def _agreed(guesses: Sequence[pl.DataFrame | None], name: str, is_id: bool, exact: bool) -> bool:
    """Whether the guessed types of a column agree in all parts and lose nothing."""
    kinds = {None if guess is None else guess[name].dtype for guess in guesses}
    if is_id:
        return exact and kinds == {pl.Int64()}
    return None not in kinds and (len(kinds) == 1 or kinds <= {pl.Int64(), pl.Float64()})


def _with_text(guess: pl.DataFrame | None, part: TextFile, plain: list[str]) -> pl.DataFrame:
    """Replace these columns by their text where the guess converted them."""
    if guess is None:
        return part.text(plain)
    changed = [name for name in plain if guess[name].dtype != pl.String]
    return guess.with_columns(part.text(changed)) if changed else guess


def whole_numbers(text: pl.Series) -> pl.Series:
    """Convert text to integers if every value is written canonically; else return it.

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


@dataclass(frozen=True)
class TextFile:
    """A delimited file with known separator and columns, or its usable records."""

    name: str
    data: bytes | Path  # UTF-8
    separator: str
    columns: tuple[str, ...]
    header: bool  # whether the first record is a header
    quote: str  # the mark that encloses fields, or empty
    wary: bool = True  # whether a quoted field that spans whole rows counts as not closed
    lines: Ints | None = None  # line of each record, if some were left out
    n_rows: int = 0  # usable records without the header
    skipped: Counter[str] = field(default_factory=Counter)  # records left out, by reason

    def scanned(self, *, detail: bool = False) -> Scan:
        """Scan for the faults that polars does not report."""
        n_fields = len(self.columns)
        return scan(
            self.data, self.separator, n_fields, quote=self.quote, wary=self.wary, detail=detail
        )

    @cached_property
    def records(self) -> Scan:
        """The scan with a row for each record."""
        return self.scanned(detail=True)

    def numbers(self, names: Sequence[str]) -> pl.DataFrame | None:
        """Return columns of plain numbers; None if the file has anything else."""
        parse = partial(parsed_numbers, header=self.header, quote=self.quote)
        return parse(self.data, self.separator, self.columns, names)

    def guessed(self, names: Sequence[str]) -> pl.DataFrame | None:
        """Parse with the types that polars infers from the first rows; None if that fails."""
        try:
            return self._columns(names, infer_schema_length=1000)
        except pl.exceptions.PolarsError:
            return None

    def text(self, names: Sequence[str]) -> pl.DataFrame:
        """Return these columns as text."""
        try:
            return self._columns(names, infer_schema=False)
        except pl.exceptions.PolarsError as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"{self.name} cannot be parsed: {reason}; correct it") from error

    def _columns(self, names: Sequence[str], **settings: Any) -> pl.DataFrame:
        places = sorted({self.columns.index(name) for name in names})
        # An open file, because polars 1.39 treats a path such as data[1].csv as a pattern
        with (
            io.BytesIO(self.data) if isinstance(self.data, bytes) else self.data.open("rb") as file
        ):
            frame = pl.read_csv(
                file,
                columns=places,
                has_header=self.header,
                separator=self.separator,
                quote_char=self.quote or None,
                **settings,
            )
        frame.columns = [self.columns[place] for place in places]
        return frame

    def locate(self, row: int) -> str:
        """Return the file and line of a row, for messages."""
        lines = self.records.lines if self.lines is None else self.lines
        return f"{self.name}, line {lines[row + self.header]}"

    def usable(self, scanned: Scan, *, enclosing: bool, stray: bool, on_bad: OnBad) -> TextFile:
        """Return the parsable records; a bad one is an error or left out."""
        quote = self.quote if enclosing else ""
        problems = (RAGGED, NUL, BLANK, OPEN, *((STRAY,) if stray else ()))
        if scanned.valid and not any(scanned.counts[bit] for bit in problems):
            return replace(self, quote=quote, n_rows=scanned.records - self.header)
        data, records = all_bytes(self.data), self.records
        ends = np.append(records.starts[1:], len(data))
        flags = records.flags.copy()
        for place in np.flatnonzero(flags & HIGH):
            try:
                data[records.starts[place] : ends[place]].decode("utf-8")
            except UnicodeDecodeError:
                flags[place] |= FOREIGN
        bits = BAD if stray else BAD & ~STRAY
        skipped: Counter[str] = Counter()
        for place in np.flatnonzero(flags & bits):
            bit = next(bit for bit in REASONS if flags[place] & bits & bit)
            reason, remedy = REASONS[bit]
            if on_bad == "error" or (place == 0 and self.header):
                if bit == RAGGED:
                    reason = self._ragged(data[records.starts[place] : ends[place]])
                raise bad_row(f"{self.name}, line {records.lines[place]}", reason, remedy)
            skipped[reason] += 1
        good = np.flatnonzero((flags & (bits | BLANK)) == 0)
        left = b"".join([data[records.starts[place] : ends[place]] for place in good])
        lines, n_rows = records.lines[good], len(good) - self.header
        return replace(self, data=left, quote=quote, lines=lines, n_rows=n_rows, skipped=skipped)

    def _ragged(self, record: bytes) -> str:
        line = record.split(b"\n")[0].replace(b"\r", b"")  # `csv` refuses one within a line
        fields = _fields(line, self.separator, self.quote)
        return f"the record has {len(fields)} fields where {len(self.columns)} are expected"
