"""Sparse rows turned into columns, and sums over them, without copies of the values.

`values` of a sparse matrix may be a single number where all stored values are the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.data.matrix import slices
from equipoise.runtime import machine
from equipoise.runtime.kernels import Offsets, Positions, compiled

Vector = npt.NDArray[np.float64]
Compressed = tuple[Offsets, Positions, npt.NDArray[Any]]  # offsets, positions and values


def shortened(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a single number if all values are the same, else the values."""
    if all((values[part] == values[0]).all() for part in slices(len(values))):
        return values[:1]
    return values


def transposed(matrix: Compressed, size: int) -> Compressed:
    """Return rows as columns, or columns as rows, of which there are `size`.

    The positions in each of them ascend. Threads write separate parts of the result, so memory is
    that of the result; the matrix may be mapped from files and is read in its order.
    """
    starts, members, values = matrix
    counts = np.zeros(size, np.int64)
    for part in slices(len(members)):
        counts += np.bincount(members[part], minlength=size)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    out_members = np.empty(len(members), np.int32)
    out_values = values[:1].copy() if len(values) == 1 else np.empty(len(members), values.dtype)
    n_parts = machine.count()
    shares = np.linspace(0, len(members), n_parts + 1)[1:-1]
    borders = [0, *np.searchsorted(offsets[:-1], shares).tolist(), size]
    cursors = offsets[:-1].copy()

    def fill(part: int) -> None:
        low, high = borders[part], borders[part + 1]
        _fill(starts, members, values, low, high, cursors, out_members, out_values)

    machine.run(fill, n_parts)
    return offsets, out_members, out_values


@compiled
def _fill(
    starts: Any,
    members: Any,
    values: Any,
    low: int,
    high: int,
    cursors: Any,
    out_members: Any,
    out_values: Any,
) -> None:
    """Write the lines `low` to `high` of the transposed matrix, from their cursors on."""
    has_values = len(values) > 1
    for line in range(len(starts) - 1):
        for place in range(starts[line], starts[line + 1]):
            member = members[place]
            if low <= member < high:
                at = cursors[member]
                cursors[member] = at + 1
                out_members[at] = line
                if has_values:
                    out_values[at] = values[place]


@compiled
def item_sums(
    indptr: Any, indices: Any, values: Any, weights: Any, squares: Any, partners: Any
) -> None:
    """Add the diagonal of X^T W X to `squares`, and to `partners` the other items of the users."""
    step = np.int64(len(values) > 1)
    for user in range(len(indptr) - 1):
        n_others = indptr[user + 1] - indptr[user] - 1
        for place in range(indptr[user], indptr[user + 1]):
            item = indices[place]
            squares[item] += weights[user] * np.float64(values[place * step]) ** 2
            partners[item] += n_others
