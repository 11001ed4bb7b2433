"""User-item pairs: from events to a matrix and back, and merging two sets of pairs."""

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

ROUNDING = 1e-12  # a sum of weights below this share of their sizes counts as 0


def summed(events: Events, n_items: int, *, signed: bool = False) -> tuple[Csr, int]:
    """Return the matrix of summed weights, and the number of pairs that have events.

    A pair has no value if its sum is 0 or, unless `signed`, negative.
    """
    assert events.weights is not None
    indptr, indices, pair = events.pairs()
    total = np.bincount(pair, events.weights, minlength=len(indices))
    size = np.bincount(pair, np.abs(events.weights), minlength=len(indices))
    # a purchase and its return sum to 0 despite rounding
    has_value = (np.abs(total) if signed else total) > ROUNDING * size
    matrix = compact(total, indices, indptr, (len(events), n_items))
    matrix = matrix if has_value.all() else keep_entries(matrix, has_value)
    return matrix, len(indices)


def dated(matrix: Csr, times: npt.NDArray[np.float64], events: Events | None) -> Events:
    """Return one event per pair at its time, or the events with the times of their pairs.

    The time of a pair is that of its last event; an earlier one gets the latest time that keeps
    the events in order.
    """
    if events is None:
        simple = bare(matrix)
        return Events.sorted_by_time(
            simple.items, simple.offsets, times=times, weights=simple.weights
        )
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
    """Return one event per pair, without time or order."""
    weights = None if (matrix.data == 1).all() else matrix.data.astype(np.float64)
    offsets = matrix.indptr.astype(np.int64, copy=False)
    items = matrix.indices.astype(np.int32, copy=False)
    return Events(items, offsets, weights=weights, ordered=False)


def shares(matrix: Csr, events: Events) -> npt.NDArray[np.float64]:
    """Return the weight of each event: the value of its pair, divided equally."""
    place = events.places(matrix)
    times = np.bincount(place[place >= 0], minlength=matrix.nnz)
    return np.append(matrix.data / np.maximum(times, 1), 0.0)[place]


def merged(
    row: npt.NDArray[np.int64],
    column: npt.NDArray[Any],
    value: npt.NDArray[np.float32],
    shape: tuple[int, int],
) -> Any:
    """Make a matrix of the pairs of two matrices; of a repeated pair the last value counts."""
    key = row * shape[1] + column
    # the keys are two ascending runs, which a stable sort merges in linear time
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
    """Return ``new[row] * n_items + column``, without those whose new row is negative."""
    row = new[rows]
    return np.asarray((row * n_items + columns)[row >= 0])


def unobserved(
    keys: npt.NDArray[np.int64], n_cells: int, size: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Draw this many cells uniformly from those that are not among the ascending keys."""
    if n_cells <= 4 * len(keys):
        free = np.delete(np.arange(n_cells), keys)
        return rng.permutation(free)[:size]
    # At least 3 of 4 cells are free here, so few rounds of rejection sampling are needed.
    fresh = np.empty(0, np.int64)
    while len(fresh) < size:
        drawn = rng.integers(0, n_cells, 2 * (size - len(fresh)) + 16)
        fresh = np.unique(np.concatenate([fresh, drawn[~in_ascending(drawn, keys)]]))
    return rng.permutation(fresh)[:size]
