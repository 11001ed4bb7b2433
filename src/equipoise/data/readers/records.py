"""Find the records of delimited text, their lines, and what is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from equipoise.data.readers.files import LINE_END, byte_array, count_byte
from equipoise.runtime.kernels import compiled

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.uint16]

# Properties of a record, as bits.
RAGGED, NUL, STRAY, FOREIGN, BLANK, HIGH, QUOTE, OPEN = (1 << n for n in range(8))
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
GROUP = 1000  # records that are decoded together
ROWS = 5  # a quoted field with more lines than this that all look like rows was not closed


@dataclass(frozen=True)
class Records:
    """Offset, first line and bits of each record, the header and blank lines included."""

    starts: Ints
    lines: Ints
    flags: Flags

    def count(self, bit: int) -> int:
        """Return the number of records with this bit."""
        return int(np.count_nonzero(self.flags & bit))

    @property
    def faulty_marks(self) -> bool:
        """Whether there are stray or unclosed quotation marks."""
        return bool(self.count(OPEN) or (self.count(STRAY) and self.count(QUOTE)))


def scan(
    data: bytes | Path, separator: str, n_fields: int, *, quote: str = '"', wary: bool = True
) -> Records:
    """Return the records of the text.

    A quoted field that is not closed or, if `wary`, holds only complete rows ends with its first
    line: the scan goes back and finds the records that follow.
    """
    content = byte_array(data)
    if content[-1] != LINE_END:
        content = np.append(content, np.uint8(LINE_END))
        content.setflags(write=False)  # else numba would compile the scan again
    room = count_byte(content, LINE_END)
    starts, lines = np.zeros(room, np.int64), np.zeros(room, np.int64)
    flags = np.zeros(room, np.uint16)
    special = np.arange(256) >= 128
    special[[0, 10, 13, ord(separator)]] = True
    mark = ord(quote) if quote else -1
    if quote:
        special[mark] = True
    size = _walk(content, special, mark, n_fields, wary, starts, lines, flags)
    records = Records(starts[:size], lines[:size], flags[:size])
    _mark_foreign(content, records)
    return records


def _mark_foreign(content: Bytes, records: Records) -> None:
    """Set the bit of the records that are not UTF-8."""
    ends = np.append(records.starts[1:], len(content))
    places = np.flatnonzero(records.flags & HIGH)
    for start in range(0, len(places), GROUP):
        group = places[start : start + GROUP]
        if not _is_utf8(content[records.starts[group[0]] : ends[group[-1]]]):
            for place in group:
                if not _is_utf8(content[records.starts[place] : ends[place]]):
                    records.flags[place] |= FOREIGN


def _is_utf8(content: Bytes) -> bool:
    try:
        content.tobytes().decode("utf-8")
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
    starts: Ints,
    lines: Ints,
    record_flags: Flags,
) -> int:
    """Fill in the arrays; return the number of records."""
    begin = start = records = 0  # begin: offset of the record
    line = first = 1  # first: line of the record
    while start < data.size:
        quoted, closed, fresh, fields, flags = False, 0, 1, 1, 0
        # inner: separators in the current line within a quoted field; alike: 1 + number of such
        # lines that look like rows, 0 once one does not; torn: end of the first line of a
        # multi-line record
        inner, alike, torn = 0, 1, -1
        place = start - 1
        start = data.size
        while place + 1 < data.size:
            place += 1
            byte = data[place]
            if not special[byte]:
                if fresh:  # 1: first byte of the field, 2: first byte after its quotation mark
                    fresh = 0
                elif closed == 1:
                    flags, closed = flags | STRAY, 2  # text after a closing mark
                    if torn >= 0:
                        break
                else:  # skip the remaining characters of the field
                    while place + 1 < data.size and not special[data[place + 1]]:
                        place += 1
            elif byte == 10:
                line += 1
                if quoted:
                    if torn < 0:
                        torn = place
                    elif inner != n_fields - 1:
                        alike = 0
                    elif alike:
                        alike += 1
                    inner = 0
                    continue
                if fields == 1 and fresh == 1:
                    flags = BLANK
                elif fields != n_fields:
                    flags |= RAGGED
                starts[records], lines[records], record_flags[records] = begin, first, flags
                records += 1
                first, begin = line, place + 1
                fresh, fields, flags, closed = 1, 1, 0, 0
                inner, alike, torn = 0, 1, -1
            elif byte == mark:
                if quoted:
                    quoted, closed = False, 1
                    if wary and alike > ROWS:
                        break
                elif fresh == 1 or closed == 1:
                    quoted, closed, flags, fresh = True, 0, flags | QUOTE, 2
                else:
                    flags |= STRAY
            elif byte == 0:
                flags, fresh = flags | NUL, 0
            elif byte >= 128:
                flags, fresh = flags | HIGH, 0
            elif byte != 13:  # the separator
                if quoted:
                    inner += 1
                else:
                    fields += 1
                    fresh, closed = 1, 0
        if begin < data.size:  # the record is not complete: it ends with its first line
            starts[records], lines[records] = begin, first
            record_flags[records] = flags | OPEN
            records += 1
            first, begin = first + 1, torn + 1
            line, start = first, begin
    return records
