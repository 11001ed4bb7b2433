"""Ids to positions and pairs to CSR by counting: linear time, a few passes."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.kernels import compiled
from equipoise.matrix import Csr

Codes = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pairs:
    """The matrix with its times, and how many rows repeated a pair."""

    matrix: Csr
    times: Floats | None
    repeats: int


def factorize(values: pl.Series) -> tuple[Codes, npt.NDArray[Any]]:
    """Return the position of each value among the sorted distinct values, and those.

    >>> codes, ids = factorize(pl.Series(["tea", "milk", "tea"]))
    >>> codes.tolist(), ids.tolist()
    ([1, 0, 1], ['milk', 'tea'])
    """
    if values.dtype == pl.Int64:
        low, high = int(values.min() or 0), int(values.max() or 0)  # type: ignore[arg-type]
        # A table over the whole range beats hashing unless it is much larger than the data.
        if high - low < max(2 * len(values), 1 << 16):
            codes, seen = _by_table(values.to_numpy(), low, high - low + 1)
            return codes, np.flatnonzero(seen).astype(np.int64) + low
    distinct = values.unique().sort()
    places = pl.int_range(len(distinct), eager=True, dtype=pl.Int32)
    table = pl.DataFrame({"value": distinct, "place": places})
    found = (
        values.alias("value").to_frame().join(table, on="value", how="left", maintain_order="left")
    )
    ids = distinct.to_numpy() if distinct.dtype == pl.Int64 else _objects(distinct)
    return found["place"].to_numpy(), ids


def _objects(values: pl.Series) -> npt.NDArray[Any]:
    out = np.empty(len(values), object)
    out[:] = values.to_list()
    return out


def pairs_to_csr(
    users: Codes,
    items: Codes,
    shape: tuple[int, int],
    weights: Floats | None,
    times: Floats | None,
) -> Pairs:
    """Build the matrix; of a repeated pair the weights add up and the latest time stays."""
    none = np.empty(0, np.float64)
    starts, keys, dealt_weights, dealt_times = _dealt(
        _own(users),
        _own(items),
        shape[0],
        none if weights is None else _own(weights),
        none if times is None else _own(times),
    )
    # Each thread sorts the rows of its share of the users; the loops hold no lock.
    cuts = np.linspace(0, shape[0], min(os.cpu_count() or 1, 8, len(users) // 100_000 + 1) + 1)
    bounds = cuts.astype(np.int64)
    with ThreadPoolExecutor(len(bounds) - 1) as pool:
        list(pool.map(lambda a, b: _sort_rows(keys, starts, a, b), bounds[:-1], bounds[1:]))
    indptr, indices, data, latest = _merged(starts, keys, dealt_weights, dealt_times)
    matrix: Csr = sp.csr_array((data, indices, indptr), shape=shape)
    matrix.has_canonical_format = True
    return Pairs(matrix, None if times is None else latest, len(users) - len(indices))


def _own(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Copy arrays that polars lends read-only: another kind of array is compiled anew."""
    return values if values.flags.writeable and values.flags.c_contiguous else values.copy()


@compiled
def _by_table(
    values: npt.NDArray[np.int64], low: int, span: int
) -> tuple[Codes, npt.NDArray[np.bool_]]:
    seen = np.zeros(span, np.bool_)
    for value in values:
        seen[value - low] = True
    place = np.empty(span, np.int32)
    known = 0
    for offset in range(span):
        place[offset] = known
        known += seen[offset]
    codes = np.empty(values.size, np.int32)
    for row in range(values.size):
        codes[row] = place[values[row] - low]
    return codes, seen


@compiled
def _dealt(
    users: Codes, items: Codes, n_users: int, weights: Floats, times: Floats
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Floats, Floats]:
    """Deal the rows to their users: a key holds the item above, the place of the row below."""
    n = users.size
    starts = np.zeros(n_users + 1, np.int64)
    for row in range(n):
        starts[users[row] + 1] += 1
    starts = np.cumsum(starts)
    filled = starts[:-1].copy()
    keys = np.empty(n, np.int64)
    dealt_weights, dealt_times = np.empty_like(weights), np.empty_like(times)
    for row in range(n):
        user = users[row]
        place = filled[user]
        filled[user] += 1
        keys[place] = (np.int64(items[row]) << 32) | (place - starts[user])
        if weights.size:
            dealt_weights[place] = weights[row]
        if times.size:
            dealt_times[place] = times[row]
    return starts, keys, dealt_weights, dealt_times


@compiled
def _sort_rows(
    keys: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], first: int, stop: int
) -> None:
    for user in range(first, stop):
        keys[starts[user] : starts[user + 1]].sort()


@compiled
def _merged(
    starts: npt.NDArray[np.int64], keys: npt.NDArray[np.int64], weights: Floats, times: Floats
) -> tuple[npt.NDArray[np.int64], Codes, npt.NDArray[np.float32], Floats]:
    """Merge equal neighbours within the rows of a user."""
    indices, data = np.empty(keys.size, np.int32), np.ones(keys.size, np.float32)
    latest = np.empty(times.size, np.float64)
    indptr = np.zeros(starts.size, np.int64)
    last = -1
    for user in range(starts.size - 1):
        start = starts[user]
        item, total = -1, 0.0
        for place in range(start, starts[user + 1]):
            row = start + (keys[place] & 0xFFFFFFFF)
            fresh = (keys[place] >> 32) != item
            if fresh:
                last, item, total = last + 1, keys[place] >> 32, 0.0
                indices[last] = item
            if weights.size:
                total += weights[row]
                data[last] = total
            if times.size and (fresh or times[row] > latest[last]):
                latest[last] = times[row]
        indptr[user + 1] = last + 1
    return indptr, indices[: last + 1], data[: last + 1], latest[: last + 1]
