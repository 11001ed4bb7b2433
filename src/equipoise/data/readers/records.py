"""Scan delimited text for the start and the faults of each record, in one pass without parsing."""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from equipoise.data.readers.files import all_bytes
from equipoise.runtime.kernels import compiled

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

CHUNK = 4 << 20

# Properties of a record, as bits.
RAGGED, NUL, STRAY, FOREIGN, BLANK, HIGH, ZERO, QUOTE, OPEN = BITS = [1 << n for n in range(9)]
BAD = RAGGED | NUL | STRAY | FOREIGN | OPEN
REASONS = {
    OPEN: (
        "a quotation mark is never closed or encloses whole rows",
        "close or remove it; pass escape= if it is escaped, quote='' if marks enclose nothing",
    ),
    FOREIGN: ("the record is not UTF-8", "save the file as UTF-8 or pass encoding='latin-1'"),
    NUL: ("the record holds a NUL byte", "remove it"),
    STRAY: (
        "the record holds a stray quotation mark",
        "double it inside a quoted field, or pass escape= if it is escaped",
    ),
    RAGGED: ("the record has the wrong number of fields", "mend it"),
}
QUOTED, CLOSED, FRESH, FIELDS, LINE, FIRST, BEGIN, FLAGS, LEAD, RECORDS = range(10)
INNER, ALIKE, TORN = range(10, 13)
ROWS = 5  # a quoted field with more lines than this that all look like rows was not closed


@dataclass(frozen=True)
class Scan:
    """Number of records (with header and blank ones), and of records with each bit.

    `starts`, `lines` and `flags` are offset, first line and bits of each record, with `detail`.
    """

    records: int
    counts: Counter[int]
    valid: bool
    starts: Ints
    lines: Ints
    flags: npt.NDArray[np.uint16]

    @property
    def faulty_marks(self) -> bool:
        """Whether there are stray or unclosed quotation marks."""
        return bool(self.counts[OPEN] or (self.counts[STRAY] and self.counts[QUOTE]))


def chunks(data: bytes | Path) -> Iterator[bytes]:
    """Yield the content in pieces of limited size."""
    if isinstance(data, bytes):
        for start in range(0, len(data), CHUNK):
            yield data[start : start + CHUNK]
        return
    with data.open("rb") as stream:
        while piece := stream.read(CHUNK):
            yield piece


def scan(
    data: bytes | Path,
    separator: str,
    n_fields: int,
    *,
    quote: str = '"',
    wary: bool = True,
    detail: bool = False,
) -> Scan:
    """Scan all bytes; with `detail`, also record the position and bits of each record.

    With `detail`, a quoted field that is not closed or, if `wary`, holds only whole rows ends with
    its first line: the scan goes back and finds the records that follow.
    """
    pieces: Iterable[bytes] = [all_bytes(data)] if detail else chunks(data)
    room = 2 + sum(piece.count(b"\n") for piece in chunks(data)) if detail else 0
    starts, lines = np.zeros(room, np.int64), np.zeros(room, np.int64)
    flags = np.zeros(room, np.uint16)
    state = np.zeros(13, np.int64)
    state[[FRESH, FIELDS, LINE, FIRST, ALIKE]] = 1
    state[TORN] = -1
    counts = np.zeros(len(BITS), np.int64)
    special = np.arange(256) >= 128
    mark = ord(quote) if quote else -1
    special[[0, 10, 13, ord(separator)]] = True
    if quote:
        special[mark] = True
    decoder = codecs.getincrementaldecoder("utf-8")()
    valid, offset, last = True, 0, b"\n"

    def walk(piece: bytes) -> bool:
        array = np.frombuffer(piece, np.uint8)
        arrays = (offset, state, counts, starts, lines, flags)
        return _walk(array, special, mark, n_fields, wary, detail, *arrays)

    for piece in pieces:
        # going back requires a line end after the last record
        closed_piece = piece + b"\n" if detail and not piece.endswith(b"\n") else piece
        high = walk(closed_piece)
        if valid and (high or decoder.getstate()[0]):
            valid = _decodes(decoder, piece)
        offset, last = offset + len(piece), closed_piece[-1:]
    if valid and decoder.getstate()[0]:
        valid = False  # the file ends within a character
    if state[QUOTED]:
        counts[BITS.index(OPEN)] += 1
    elif last != b"\n":
        walk(b"\n")
    records = int(state[RECORDS])
    summary = Counter({bit: int(count) for bit, count in zip(BITS, counts, strict=True)})
    n_kept = min(room, records)
    return Scan(records, summary, valid, starts[:n_kept], lines[:n_kept], flags[:n_kept])


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
    mark: int,
    n_fields: int,
    wary: bool,
    back: bool,
    offset: int,
    state: Ints,
    counts: Ints,
    starts: Ints,
    lines: Ints,
    kept_flags: npt.NDArray[np.uint16],
) -> bool:
    quoted, closed, fresh, fields, line, first, begin, flags, lead, records = state[:10]
    # inner: separators in the current line within a quoted field; alike: 1 + number of such lines
    # that look like rows, 0 once one does not; torn: end of the first line of a multi-line record
    inner, alike, torn = state[10:]
    any_high = False
    start = 0
    while start < data.size:
        wrong = False  # whether the record must end with its first line
        place = start - 1
        while place + 1 < data.size:
            place += 1
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
                elif closed == 1:
                    flags, closed = flags | 4, 2  # text after a closing mark
                    wrong = torn >= 0
                else:  # skip the remaining characters of the field
                    while place + 1 < data.size and not special[data[place + 1]]:
                        place += 1
            elif byte == 10:
                line += 1
                if quoted:
                    if torn < 0:
                        torn = offset + place
                    elif inner != n_fields - 1:
                        alike = 0
                    elif alike:
                        alike += 1
                    inner = 0
                    continue
                if fields == 1 and fresh == 1:
                    flags = 16
                elif fields != n_fields:
                    flags |= 1
                _keep(flags, begin, first, records, counts, starts, lines, kept_flags)
                records += 1
                first, begin = line, offset + place + 1
                fresh, fields, flags, closed, lead = 1, 1, 0, 0, 0
                inner, alike, torn = 0, 1, -1
            elif byte == mark:
                if quoted:
                    quoted, closed = 0, 1
                    wrong = wary and alike > ROWS
                elif fresh == 1 or closed == 1:
                    quoted, closed, flags, fresh = 1, 0, flags | 128, 2
                else:
                    flags |= 4
            elif byte == 0:
                flags, fresh = flags | 2, 0
            elif byte >= 128:
                flags, fresh, lead = flags | 32, 0, 0
                any_high = True
            elif byte != 13:  # the separator
                if quoted:
                    inner += 1
                else:
                    fields += 1
                    fresh, closed, lead = 1, 0, 0
            if wrong:
                flags |= 256
                if back:
                    break
                wrong = False
        start = data.size
        if wrong or (back and quoted):  # its first line is a record
            _keep(flags | 256, begin, first, records, counts, starts, lines, kept_flags)
            records += 1
            start, line = torn - offset + 1, first + 1
            first, begin = line, torn + 1
            quoted, fresh, fields, flags, closed, lead = 0, 1, 1, 0, 0, 0
            inner, alike, torn = 0, 1, -1
    state[:10] = quoted, closed, fresh, fields, line, first, begin, flags, lead, records
    state[10:] = inner, alike, torn
    return any_high


@compiled
def _keep(
    flags: int,
    begin: int,
    first: int,
    records: int,
    counts: Ints,
    starts: Ints,
    lines: Ints,
    kept_flags: npt.NDArray[np.uint16],
) -> None:
    if flags:
        for bit in range(9):
            counts[bit] += (flags >> bit) & 1
    if records < starts.size:
        starts[records], lines[records] = begin, first
        kept_flags[records] = flags
