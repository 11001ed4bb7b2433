"""One pass over the bytes of a delimited file: the faults a table parser lets through.

Polars fills short rows with nulls, keeps NUL bytes and turns 007 into 7. This pass finds such
records before the values are used; it also knows the line on which each record starts.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from equipoise.kernels import compiled

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
