r"""CSV, TSV and other delimited text: parsed by polars as text, then converted to numbers.

Only if polars refuses a file or may have misread it, the bytes are scanned (`records`) for bad
records and the line on which each of them starts. A stray quotation mark spoils only its own line.
Escaped marks (\") are replaced by doubled ones before.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.data.columns import SPELLINGS, common_columns, spelled_like
from equipoise.data.read_options import OnBad, ReadOptions
from equipoise.data.readers.files import (
    LINE_END,
    SAMPLE,
    all_bytes,
    byte_array,
    count_byte,
    first_bytes,
    text_contents,
)
from equipoise.data.readers.records import (
    BAD,
    BLANK,
    QUOTE,
    RAGGED,
    REASONS,
    STRAY,
    Records,
    scan,
)
from equipoise.data.tables import (
    Source,
    Table,
    bad_row,
    located,
)
from equipoise.errors import DataError
from equipoise.runtime.kernels import compiled
from equipoise.runtime.machine import count, run

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

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
NUMBER = r"^[+-]?[0-9.]*[0-9][0-9.eE+-]*$|^[+-]?(?i:nan|inf|infinity)$"
# A number (possibly with a decimal comma) or a date.
VALUE = re.compile(
    r"\s*([+-]?(\d+([.,]\d*)?|\.\d+)(e[+-]?\d+)?|[+-]?(nan|inf(inity)?)|\d{4}-\d\d-\d\d.*)\s*",
    re.IGNORECASE,
)
# A date in any order, or a number of nine digits and more: seconds since 1973, or later.
DATED = re.compile(r"\d{4}-\d\d?-\d\d?|\d{1,4}[/.]\d\d?[/.]\d{2,4}\b|\d{9,}|(19|20)\d{6}$")

BACKSLASH = "\\"

# Limits of the parser of plain numbers
WIDEST = 15  # digits of a decimal number: numerator and power of ten are exact, below 2^53
LONGEST = 18  # digits of an integer that always fit 64 bits
POINT = ord(".") - 48
POWERS = 10.0 ** np.arange(WIDEST + 1)


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
        names = common_columns(list(map(str, paths)), columns, options)
    else:
        columns = [tuple(f"column {place}" for place in range(len(first)))] * len(paths)
        names = columns[0]
    files = [
        TextFile(str(path), data, separator, file_columns, header, quote, options.quote is None)
        for path, data, file_columns in zip(paths, contents, columns, strict=True)
    ]
    detect = options.escape is None and quote != ""
    load = partial(_load, files, options.on_bad, detect, notes)
    dated = frozenset() if header else _dated(columns[0], [first, *body])
    return Source(name, names, load, header, dated)


def _one_column(path: Path, line: bytes, requested: str | None, guess: str) -> DataError:
    if b"\x00" in line:
        return DataError(f"{path}, line 1: NUL bytes; this is not a text table, check the file")
    shown = line[:40].decode("utf-8", "replace")
    if requested and guess:
        return DataError(
            f"{path}: separator={requested!r} was requested, but {shown!r} has none; the fields "
            f"seem to be separated by {SEPARATORS[guess]}, so leave it out"
        )
    return DataError(
        f"{path} has one column, {shown!r}; pass separator= to cut it into fields "
        "(for a catalogue, a frame instead of the file)"
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
    notes = [f"the first line, {shown}, is taken as the header; pass header=False if it is not"]
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
            "pass header=True or header=False (for a catalogue, a frame instead of the file)"
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
    files: list[TextFile],
    on_bad: OnBad,
    detect: bool,
    notes: list[str],
    names: list[str],
    ids: Collection[str],
) -> Table:
    """Load these columns; ids become integers only if that is lossless."""
    parts, skipped = files, Counter[str]()
    frames = _all_or_none(file.numbers(names) for file in files)
    if frames is None:
        frames = _all_or_none(file.trusted(names) for file in files)
    if frames is None:
        parts, scan_notes = _usable_records(files, on_bad, detect)
        notes = [*notes, *scan_notes]
        skipped = sum((part.skipped for part in parts), Counter())
        frames = [part.text(names) for part in parts]
    sizes = [part.height for part in frames]
    frame = pl.concat(frames, how="vertical_relaxed")
    del frames  # each column of text goes as soon as it is converted
    for column in names:
        convert = whole_numbers if column in ids else _numbers
        frame = frame.with_columns(convert(frame[column]))
    return Table(
        frame,
        located(sizes, [part.locate for part in parts]),
        skipped,
        notes,
        decimal_comma=files[0].separator != ",",
        written=lambda column: pl.concat([part.text([column])[column] for part in parts]),
        heights=lambda: sizes,
    )


def _all_or_none(frames: Iterable[pl.DataFrame | None]) -> list[pl.DataFrame] | None:
    """Return all frames; None, without the rest, as soon as one is missing."""
    present = []
    for frame in frames:
        if frame is None:
            return None
        present.append(frame)
    return present


def _usable_records(
    files: list[TextFile], on_bad: OnBad, detect: bool
) -> tuple[list[TextFile], list[str]]:
    """Scan the files; return them without blank lines and bad records, and notes.

    With `detect`, faulty quotation marks are tried again as escaped by backslashes.
    """
    if detect and any(file.records.faulty_marks for file in files):
        escaped = _escaped(files)
        if escaped:
            parts, notes = _usable_records(escaped, on_bad, False)
            return parts, [
                "quotation marks are escaped by backslashes; pass escape='' if they are not",
                *notes,
            ]
    # If marks enclose fields in any part, a stray mark is a fault in all parts.
    enclosing = any(file.records.count(QUOTE) for file in files)
    blank = sum(file.records.count(BLANK) for file in files)
    parts = [file.usable(on_bad, enclosing=enclosing) for file in files]
    return parts, [f"ignored {blank:,} blank lines"] if blank else []


def _escaped(files: list[TextFile]) -> list[TextFile]:
    r"""Return the files with \" read as an escaped mark if that removes all faults, else []."""
    out = []
    for file in files:
        data = all_bytes(file.data)
        changed = doubled(data, file.quote, BACKSLASH)
        out.append(replace(file, data=changed) if changed != data else file)
    if all(new is old for new, old in zip(out, files, strict=True)):
        return []
    return [] if any(file.records.faulty_marks for file in out) else out


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


def whole_numbers(text: pl.Series) -> pl.Series:
    """Convert text to integers if every value is written canonically; else return it.

    >>> whole_numbers(pl.Series(["7", "12"])).to_list()
    [7, 12]
    >>> whole_numbers(pl.Series(["7", "007"])).to_list()
    ['7', '007']
    """
    if text.dtype != pl.String or not _may_be(text, DECIMAL):
        return text
    if text.str.contains(WHOLE).all():
        numbers = text.cast(pl.Int64, strict=False)
        return text if numbers.null_count() > text.null_count() else numbers
    if text.str.contains(DECIMAL).all():
        return text.cast(pl.Float64)  # a float column of integers; the ids are checked later
    return text


def _numbers(text: pl.Series) -> pl.Series:
    """Convert text to integers or floats if every value is a number; else return it."""
    if text.dtype == pl.String and _may_be(text, NUMBER):
        for kind in (pl.Int64, pl.Float64):
            numbers = text.cast(kind, strict=False)
            if numbers.null_count() == text.null_count():
                return numbers
    return text


def _may_be(text: pl.Series, pattern: str) -> bool:
    """Whether the first values match, which spares most columns of words a full pass."""
    first = text.head(LOOK).drop_nulls()
    return text.null_count() < len(text) and bool(first.str.contains(pattern).all())


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
    skipped: Counter[str] = field(default_factory=Counter)  # records left out, by reason

    @cached_property
    def records(self) -> Records:
        """Position and faults of each record."""
        n_fields = len(self.columns)
        return scan(self.data, self.separator, n_fields, quote=self.quote, wary=self.wary)

    def numbers(self, names: Sequence[str]) -> pl.DataFrame | None:
        """Return columns of plain numbers; None if the file has anything else."""
        header, quote = self.header, self.quote
        return parse_numbers(
            self.data, self.separator, self.columns, names, header=header, quote=quote
        )

    def trusted(self, names: Sequence[str]) -> pl.DataFrame | None:
        """Return columns as text; None if polars refuses the file or may have misread it.

        Polars fills short records with nulls and cuts long ones. A record is short if its last
        cell is missing; without short ones, too many separators mean long ones.
        """
        try:
            frame = self._parsed([*names, self.columns[-1]])
        except pl.exceptions.PolarsError:
            return None
        data, n_records = byte_array(self.data), frame.height + self.header
        n_lines = count_byte(data, LINE_END) + int(data[-1] != LINE_END)
        n_separators = count_byte(data, ord(self.separator))
        if n_lines != n_records or n_separators != n_records * (len(self.columns) - 1):
            return None
        if any(frame.null_count().row(0)) or count_byte(data, 0):
            return None
        frame = frame.select(names)
        marks = pl.all().str.contains(self.quote, literal=True).any()
        return None if self.quote and any(frame.select(marks).row(0)) else frame

    def text(self, names: Sequence[str]) -> pl.DataFrame:
        """Return these columns as text."""
        try:
            return self._parsed(names)
        except pl.exceptions.PolarsError as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"{self.name} cannot be parsed: {reason}; correct it") from error

    def _parsed(self, names: Sequence[str]) -> pl.DataFrame:
        if self.data == b"":
            return pl.DataFrame(schema=dict.fromkeys(names, pl.String))
        places = sorted({self.columns.index(name) for name in names})
        # An open file, because polars treats a path such as data[1].csv as a pattern
        with (
            io.BytesIO(self.data) if isinstance(self.data, bytes) else self.data.open("rb") as file
        ):
            frame = pl.read_csv(
                file,
                columns=places,
                has_header=self.header,
                separator=self.separator,
                quote_char=self.quote or None,
                infer_schema=False,
            )
        frame.columns = [self.columns[place] for place in places]
        return frame.select(list(dict.fromkeys(names)))

    def locate(self, row: int) -> str:
        """Return the file and line of a row, for messages."""
        lines = self.records.lines if self.lines is None else self.lines
        return f"{self.name}, line {lines[row + self.header]}"

    def usable(self, on_bad: OnBad, *, enclosing: bool) -> TextFile:
        """Return the parsable records; a bad one is an error or left out.

        Quotation marks are text unless they are `enclosing` fields somewhere in the table.
        """
        quote = self.quote if enclosing else ""
        bad_bits = BAD if enclosing else BAD & ~STRAY
        data, records = all_bytes(self.data), self.records
        flags = records.flags
        if not (flags & (bad_bits | BLANK)).any():
            return replace(self, quote=quote)
        ends = np.append(records.starts[1:], len(data))
        skipped: Counter[str] = Counter()
        for place in np.flatnonzero(flags & bad_bits):
            bit = next(bit for bit in REASONS if flags[place] & bad_bits & bit)
            reason, remedy = REASONS[bit]
            if on_bad == "error" or (place == 0 and self.header):
                if bit == RAGGED:
                    reason = self._ragged(data[records.starts[place] : ends[place]])
                raise bad_row(f"{self.name}, line {records.lines[place]}", reason, remedy)
            skipped[reason] += 1
        good = np.flatnonzero((flags & (bad_bits | BLANK)) == 0)
        left = b"".join([data[records.starts[place] : ends[place]] for place in good])
        return replace(self, data=left, quote=quote, lines=records.lines[good], skipped=skipped)

    def _ragged(self, record: bytes) -> str:
        line = record.split(b"\n")[0].replace(b"\r", b"")  # `csv` refuses one within a line
        fields = _fields(line, self.separator, self.quote)
        return f"the record has {len(fields)} fields where {len(self.columns)} are expected"


def parse_numbers(
    content: bytes | Path,
    separator: str,
    names: Sequence[str],
    requested: Sequence[str],
    *,
    header: bool,
    quote: str,
) -> pl.DataFrame | None:
    """Return the requested columns, or None if any of their cells is not a plain number.

    Columns without decimals in the first rows are 64-bit integers, others floats. Other columns
    may hold any ASCII text without quotation marks.
    """
    data = byte_array(content)
    if data[-1] != LINE_END:
        return None
    column_of = np.full(len(names), -1)
    for column, name in enumerate(requested):
        column_of[names.index(name)] = column
    marks = ord(separator), ord(quote) if quote else -1
    begin = 0
    if header:
        begin = _after_line(data, 0)
        nothing = np.empty((0, 1), np.int64), np.empty(0, np.bool_)
        if _parse(data, 0, begin, *marks, np.full(len(names), -1), 0, *nothing) < 0:
            return None
    first = min(begin + SAMPLE, len(data))
    while first > begin and data[first - 1] != LINE_END:
        first -= 1  # drop the incomplete last row of the sample
    decimal = np.ones(len(requested), np.bool_)
    room = np.empty((len(requested), count_byte(data[begin:first], LINE_END)), np.int64)
    if first == begin or _parse(data, begin, first, *marks, column_of, 0, room, decimal) < 0:
        return None
    parts = count()
    cuts = np.linspace(begin, len(data), parts + 1).astype(np.int64)
    bounds = [begin, *(_after_line(data, int(cut)) for cut in cuts[1:-1]), len(data)]
    sizes = np.zeros(parts + 1, np.int64)

    def measure(part: int) -> None:
        sizes[part + 1] = count_byte(data[bounds[part] : bounds[part + 1]], LINE_END)

    run(measure, parts)
    rows = np.cumsum(sizes)
    cells, fine = np.empty((len(requested), rows[-1]), np.int64), np.zeros(parts, np.bool_)

    def parse(part: int) -> None:
        place = bounds[part], bounds[part + 1], *marks, column_of, rows[part]
        fine[part] = _parse(data, *place, cells, decimal.copy()) >= 0

    run(parse, parts)
    if not fine.all():
        return None
    return pl.DataFrame(
        {
            name: cells[column].view(np.float64) if decimal[column] else cells[column]
            for column, name in enumerate(requested)
        }
    )


@compiled
def _after_line(data: Bytes, at: int) -> int:
    """Return the start of the next line."""
    while at < data.size and data[at] != 10:
        at += 1
    return min(at + 1, data.size)


@compiled
def _parse(
    data: Bytes,
    at: int,
    stop: int,
    separator: int,
    mark: int,
    column_of: Ints,
    row: int,
    cells: Ints,
    decimal: Mask,
) -> int:
    """Parse complete lines into `cells`; return the next row, or -1 if a cell is not a number.

    `decimal` says which columns may have decimals, and on return which of these do.
    """
    floats = cells.view(np.float64)
    has_decimals = np.zeros(decimal.size, np.bool_)
    while at < stop:
        for place in range(column_of.size):
            column = column_of[place]
            if column < 0:
                byte = data[at]
                while byte != separator and byte != 10 and byte != 13:
                    if byte == mark or byte == 0 or byte >= 128:
                        return -1
                    at += 1
                    byte = data[at]
            else:
                negative = data[at] == 45
                at += negative
                first, value = at, 0
                digit = data[at] - 48
                while 0 <= digit <= 9:
                    value = 10 * value + digit
                    at += 1
                    digit = data[at] - 48
                digits = at - first
                if digits == 0 or (digits > 1 and data[first] == 48):
                    return -1
                power = 0
                if decimal[column]:
                    if digit == POINT:
                        at += 1
                        digit = data[at] - 48
                        while 0 <= digit <= 9:
                            value = 10 * value + digit
                            power += 1
                            at += 1
                            digit = data[at] - 48
                        if power == 0:
                            return -1
                        has_decimals[column] = True
                    if digits + power > WIDEST:
                        return -1
                    floats[column, row] = (-value if negative else value) / POWERS[power]
                elif digits > LONGEST:
                    return -1
                else:
                    cells[column, row] = -value if negative else value
                if negative and value == 0:
                    return -1
            if place + 1 < column_of.size:
                if data[at] != separator:
                    return -1
            else:
                if data[at] == 13:
                    at += 1
                if data[at] != 10:
                    return -1
            at += 1
        row += 1
    decimal[:] = has_decimals
    return row
