"""Fast path for delimited files of plain numbers: parsed and checked in one pass, in threads.

Most logs are such files: no quotation marks, no empty cells, numbers in canonical form. The result
equals that of `delimited`, which handles all other files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.data.readers.files import SAMPLE
from equipoise.runtime.kernels import compiled
from equipoise.runtime.machine import count, run

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

WIDEST = 15  # digits of a decimal number: numerator and power of ten are exact, below 2^53
LONGEST = 18  # digits of an integer that always fit 64 bits
POINT = ord(".") - 48
BLOCK = 1 << 18  # bytes in which line ends are counted at a time
POWERS = 10.0 ** np.arange(WIDEST + 1)


def parsed_numbers(
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
    if isinstance(content, bytes):
        data = np.frombuffer(content, np.uint8)
    else:
        data = np.asarray(np.memmap(content, np.uint8, "r"))
    if data[-1] != 10:
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
    while first > begin and data[first - 1] != 10:
        first -= 1  # drop the incomplete last row of the sample
    decimal = np.ones(len(requested), np.bool_)
    room = np.empty((len(requested), _lines(data, begin, first)), np.int64)
    if first == begin or _parse(data, begin, first, *marks, column_of, 0, room, decimal) < 0:
        return None
    parts = count()
    cuts = np.linspace(begin, len(data), parts + 1).astype(np.int64)
    bounds = [begin, *(_after_line(data, int(cut)) for cut in cuts[1:-1]), len(data)]
    sizes = np.zeros(parts + 1, np.int64)

    def measure(part: int) -> None:
        sizes[part + 1] = _lines(data, bounds[part], bounds[part + 1])

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


def _lines(data: Bytes, first: int, last: int) -> int:
    blocks = (data[at : min(at + BLOCK, last)] for at in range(first, last, BLOCK))
    return sum(int(np.count_nonzero(block == 10)) for block in blocks)


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
    """Parse complete lines into `cells`; return the next row, or -1 if a cell is no number.

    `decimal` says which columns may have decimals, and on return which of these do.
    """
    floats = cells.view(np.float64)
    has_decimals = np.zeros(decimal.size, np.bool_)
    while at < stop:
        for field in range(column_of.size):
            column = column_of[field]
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
            if field + 1 < column_of.size:
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
