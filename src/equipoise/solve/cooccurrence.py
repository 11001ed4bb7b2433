"""The strongest entries of each row of X^T X, without forming the product.

Items are numbered from the most popular one on, so that most sums lie close together in memory.
One thread sums a row, users in ascending order, and cuts it to its strongest entries, so the bits
do not depend on threads. Memory is that of the result, and a few numbers per item and thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.data.matrix import Csr
from equipoise.runtime.kernels import Floats, Offsets, Positions, compiled
from equipoise.runtime.machine import run

STRIPES = 64  # parts that threads take, each with popular and rare items
SHIFT = 20  # a bucket is the sign, the exponent and three more bits of an ordered float32
BUCKETS = 1 << (32 - SHIFT)


def strongest(X: Csr, keep: int, scale: npt.NDArray[np.float64], shrink: float = 0.0) -> Any:
    """Return for each item i the `keep` largest (X^T X)_ij / (scale_i scale_j + shrink), j != i.

    The result is a float32 CSR matrix with sorted columns and without zeros. Ties are broken by
    position. `scale` has a positive number for each item; `shrink` dampens small products.
    """
    n_items = X.shape[1]
    names = np.argsort(-np.bincount(X.indices, minlength=n_items), kind="stable")
    rank = np.argsort(names).astype(np.int32)
    renamed = sp.csr_array((X.data, rank[X.indices], X.indptr), X.shape)
    # the history lengths of an item's users bound how many items share a user with it
    history = np.diff(X.indptr).astype(np.int64)
    partners = np.bincount(X.indices, np.repeat(history - 1, history), minlength=n_items)
    partners = partners.astype(np.int64)
    room = np.minimum(partners, min(keep, n_items - 1))
    starts = np.concatenate([[0], np.cumsum(room)])
    lengths = np.zeros(n_items, np.int64)
    items = np.empty(starts[-1], np.int32)
    values = np.empty(starts[-1], np.float32)
    bits = values.view(np.int32)
    columns, rows = _parts(renamed.tocsc()), _parts(renamed)
    numbers = names.astype(np.int32), scale[names], float(shrink), keep
    most = int(partners.max(initial=0)) + 1
    out = starts, lengths, items, bits

    def stripe(number: int) -> None:
        _strongest(columns, rows, *numbers, number, STRIPES, most, out)

    run(stripe, STRIPES)
    filled = np.arange(len(items)) - np.repeat(starts[:-1], room) < np.repeat(lengths, room)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    entries = values[filled], items[filled], ends
    by_row: Any = sp.csr_array(entries, shape=(n_items, n_items))
    return by_row.tocsc().tocsr()  # sorts the columns


def _parts(matrix: Any) -> tuple[Offsets, Positions, npt.NDArray[np.float32]]:
    indices = matrix.indices.astype(np.int32, copy=False)
    return matrix.indptr.astype(np.int64), indices, matrix.data


@compiled
def _ordered(bits: Any) -> Any:
    """Map the bits of a float32 to an int32 that grows with it, and back."""
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@compiled
def _keep_largest(
    bits: Positions,
    names: Positions,
    items: Positions,
    keep: int,
    counts: Positions,
    keys: Offsets,
    out_bits: Positions,
    out_names: Positions,
) -> int:
    """Write the `keep` largest float32, given by their bits, and the names of their items.

    Ties are broken by the lowest name. `counts` and `keys` are buffers with a number per bucket
    and per item. Returns how many were written.
    """
    if len(bits) <= keep:
        for place in range(len(bits)):
            out_bits[place], out_names[place] = bits[place], names[items[place]]
        return len(bits)
    counts[:] = 0
    for place in range(len(bits)):
        counts[(_ordered(bits[place]) >> SHIFT) + BUCKETS // 2] += 1
    border, above = BUCKETS - 1, 0
    while above + counts[border] < keep:
        above += counts[border]
        border -= 1
    border -= BUCKETS // 2
    n_written = inside = 0
    for place in range(len(bits)):
        size = _ordered(bits[place])
        if size >> SHIFT < border:
            continue
        name = names[items[place]]
        if size >> SHIFT > border:
            out_bits[n_written], out_names[n_written] = bits[place], name
            n_written += 1
        else:
            keys[inside] = (np.int64(size) << 32) - name
            inside += 1
    largest = np.sort(keys[:inside])[inside - (keep - above) :]
    for key in largest:
        name = -key & 0xFFFFFFFF
        out_bits[n_written], out_names[n_written] = _ordered(np.int32((key + name) >> 32)), name
        n_written += 1
    return n_written


@compiled
def _strongest(
    columns: Any,
    rows: Any,
    names: Positions,
    scale: Floats,
    shrink: float,
    keep: int,
    first: int,
    step: int,
    most: int,
    out: Any,
) -> None:
    """Sum the rows first, first + step, ... of X^T X and write the largest entries of each."""
    item_starts, item_users, item_values = columns
    user_starts, user_items, user_values = rows
    starts, lengths, out_names, out_bits = out
    row = np.zeros(len(names))
    touched = np.empty(most + 1, np.int32)
    values = np.empty(most + 1, np.float32)
    bits = values.view(np.int32)
    keys = np.empty(most + 1, np.int64)
    counts = np.empty(BUCKETS, np.int32)
    for i in range(first, len(names), step):
        n_touched = 0
        for entry in range(item_starts[i], item_starts[i + 1]):
            user, weight = item_users[entry], np.float64(item_values[entry])
            for place in range(user_starts[user], user_starts[user + 1]):
                j = user_items[place]
                touched[n_touched] = j
                # an item whose sum returns to 0 is noted twice; the second reading is 0
                n_touched += row[j] == 0
                row[j] += weight * user_values[place]
        row[i] = 0
        size = 0
        for place in range(n_touched):
            j = touched[place]
            value = row[j]
            touched[size] = j
            values[size] = value / (scale[i] * scale[j] + shrink)
            row[j] = 0
            size += value != 0
        start = starts[names[i]]
        lengths[names[i]] = _keep_largest(
            bits[:size],
            names,
            touched[:size],
            keep,
            counts,
            keys,
            out_bits[start:],
            out_names[start:],
        )
