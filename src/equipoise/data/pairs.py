"""Pairs of users and items: the matrix that events make, the events behind a matrix, two sides."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.data.events import Events
from equipoise.data.matrix import Csr, compact, in_ascending, keep_entries
from equipoise.errors import DataError

ROUNDING = 1e-12  # of the weights of a pair: a smaller sum of them counts as 0


def summed(events: Events, n_items: int, *, signed: bool = False) -> tuple[Csr, int]:
    """Return the matrix of the sums of weights, and the number of pairs that have events.

    A pair whose sum is not positive, or with `signed` is 0, has no value.
    """
    assert events.weights is not None
    indptr, indices, pair = events.pairs()
    total = np.bincount(pair, events.weights, minlength=len(indices))
    size = np.bincount(pair, np.abs(events.weights), minlength=len(indices))
    # what is left of a purchase and its return is 0, also where decimals are rounded
    has_value = (np.abs(total) if signed else total) > ROUNDING * size
    matrix = compact(total, indices, indptr, (len(events), n_items))
    matrix = matrix if has_value.all() else keep_entries(matrix, has_value)
    return matrix, len(indices)


def dated(matrix: Csr, times: npt.NDArray[np.float64], events: Events | None) -> Events:
    """Make an event of each pair at its time, or give events the times of their pairs.

    Only the time of the last event of a pair is known then; one before it has the latest time that
    the events after it leave.
    """
    if events is None:
        weights = None if (matrix.data == 1).all() else matrix.data.astype(np.float64)
        offsets = matrix.indptr.astype(np.int64, copy=False)
        items = matrix.indices.astype(np.int32, copy=False)
        return Events.dealt(items, offsets, times=times, weights=weights)
    if events.times is not None:
        raise DataError("the events have times of their own; leave times out")
    place = events.places(matrix)
    last = np.full(len(times) + 1, -1)
    last[place] = np.arange(len(place))
    event_times = np.full(len(place), np.inf)
    latest = last[:-1][last[:-1] >= 0]
    event_times[latest] = times[place[latest]]
    for start, stop in pairwise(events.offsets.tolist()):
        event_times[start:stop] = np.minimum.accumulate(event_times[start:stop][::-1])[::-1]
    if not np.isfinite(event_times).all():
        raise DataError("the events name a pair that the matrix lacks; give them their times")
    return replace(events, times=event_times)


def bare(matrix: Csr) -> Events:
    """Make an event of each pair, without a time or an order."""
    weights = None if (matrix.data == 1).all() else matrix.data.astype(np.float64)
    offsets = matrix.indptr.astype(np.int64, copy=False)
    items = matrix.indices.astype(np.int32, copy=False)
    return Events(items, offsets, weights=weights, ordered=False)


def shares(matrix: Csr, events: Events) -> npt.NDArray[np.float64]:
    """Return the value of each pair, in equal parts for its events."""
    place = events.places(matrix)
    times = np.bincount(place[place >= 0], minlength=matrix.nnz)
    return np.append(matrix.data / np.maximum(times, 1), 0.0)[place]


def merged(
    row: npt.NDArray[np.int64],
    column: npt.NDArray[Any],
    value: npt.NDArray[np.float32],
    shape: tuple[int, int],
) -> Any:
    """Make a matrix of pairs of two sides; of a pair that both have, the second's value counts."""
    key = row * shape[1] + column
    # a stable sort merges the two sides, which are mostly in order, in linear time
    order = np.argsort(key, kind="stable")
    key = key[order]
    order = order[np.append(key[1:] != key[:-1], True)[: len(key)]]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(row[order], minlength=shape[0]))])
    return sp.csr_array((value[order], column[order], offsets), shape=shape)


def keys_under(
    new: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    columns: npt.NDArray[Any],
    n_items: int,
) -> npt.NDArray[np.int64]:
    """Return row * n_items + column under new rows, without those whose new row is negative."""
    row = new[rows]
    return np.asarray((row * n_items + columns)[row >= 0])


def unobserved(
    keys: npt.NDArray[np.int64], n_cells: int, size: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Draw this many cells evenly from those that are not among the ascending keys."""
    if n_cells <= 4 * len(keys):
        free = np.delete(np.arange(n_cells), keys)
        return rng.permutation(free)[:size]
    # At least 3 of 4 cells are free here, so a round of draws brings in most of what is missing.
    fresh = np.empty(0, np.int64)
    while len(fresh) < size:
        drawn = rng.integers(0, n_cells, 2 * (size - len(fresh)) + 16)
        fresh = np.unique(np.concatenate([fresh, drawn[~in_ascending(drawn, keys)]]))
    return rng.permutation(fresh)[:size]
