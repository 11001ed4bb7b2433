"""Beyond accuracy: what the lists show, whatever the targets are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.errors import DataError
from equipoise.matrix import Csr
from equipoise.metrics.accuracy import Floats, Ints
from equipoise.statistics import gini

Lists = npt.NDArray[np.int32]


Vectors = sp.csr_array[np.float64, tuple[int, int]]


def head_items(counts: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Flags of the ceil(n / 5) items with most interactions; ties go to the lower position."""
    count = np.asarray(counts)
    n_head = -(-len(count) // 5)  # rounded up
    head = np.zeros(len(count), bool)
    head[np.argsort(-count, kind="stable")[:n_head]] = True
    return head


def exposure(lists: Lists, k: int, n_items: int) -> Ints:
    """How many lists show each item among their first k."""
    shown = lists[:, :k]
    return np.bincount(shown[shown >= 0], minlength=n_items).astype(np.int64)


def coverage(shown: npt.ArrayLike) -> float:
    """Share of the catalogue that stands in at least one list; `shown` is an `exposure`."""
    return float(np.mean(np.asarray(shown) > 0))


def exposure_gini(shown: npt.ArrayLike) -> float:
    """Gini of the exposure of all items: 0 if all are shown alike, towards 1 if one is."""
    return gini(shown)


def list_mean(lists: Lists, values: npt.ArrayLike, ks: Sequence[int]) -> Floats:
    """Mean of a value per item over the first k of each list: (m, number of ks).

    With training counts it is the average recommendation popularity, with `self_information` it
    is novelty. Lists shorter than k are averaged over what they hold; empty ones are NaN.
    """
    present = lists >= 0
    value = np.where(present, np.asarray(values, np.float64)[lists], 0.0)
    sums, sizes = np.cumsum(value, axis=1), np.cumsum(present, axis=1)
    out = np.full((len(lists), len(ks)), np.nan)
    for column, k in enumerate(ks):
        last = min(k, lists.shape[1]) - 1
        if last >= 0:
            size = sizes[:, last]
            np.divide(sums[:, last], size, out=out[:, column], where=size > 0)
    return out


def self_information(counts: npt.ArrayLike) -> Floats:
    """Bits of surprise of each item, -log2(count / all interactions); count 0 is taken as 1."""
    count = np.maximum(np.asarray(counts, np.float64), 1.0)
    out: Floats = np.log2(max(float(np.sum(counts)), 1.0)) - np.log2(count)
    return out


def row_mean(matrix: Csr, values: npt.ArrayLike) -> Floats:
    """Mean of a value per item over each user's items; NaN for an empty row."""
    sizes = np.diff(matrix.indptr)
    rows = np.repeat(np.arange(matrix.shape[0]), sizes)
    value = np.asarray(values, np.float64)[matrix.indices]
    out = np.full(matrix.shape[0], np.nan)
    sums = np.bincount(rows, value, minlength=matrix.shape[0])
    np.divide(sums, sizes, out=out, where=sizes > 0)
    return out


def popularity_lift(listed: Floats, history: Floats) -> Floats:
    """(a - b) / b, with a the mean training count of a user's list and b that of the history.

    0: the list is as popular as what the user chose; 1: twice as popular. NaN where b is 0 or a
    side is empty.

    Parameters
    ----------
    listed, history
        Means per user, from `list_mean` (one column) and `row_mean`.
    """
    out = np.full(len(listed), np.nan)
    np.divide(listed - history, history, out=out, where=history > 0)
    return out


def unit_rows(vectors: Any) -> Vectors:
    """Scale item vectors (one row per item, sparse or dense) to length 1; zero rows stay zero."""
    csr: Vectors = sp.csr_array(vectors, dtype=np.float64, copy=True)
    csr.eliminate_zeros()
    if not np.isfinite(csr.data).all():
        raise DataError("item vectors must be finite")
    rows = np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))
    length = np.sqrt(np.bincount(rows, csr.data**2, minlength=csr.shape[0]))
    return sp.csr_array((csr.data / length[rows], csr.indices, csr.indptr), shape=csr.shape)


def diversity(lists: Lists, units: Vectors, k: int) -> Floats:
    """Mean of 1 - cosine over all pairs of items among the first k of each list.

    NaN for a list of fewer than two items. Uses sum of cosines over ordered pairs
    = |sum of unit vectors|^2 - number of non-zero vectors, so no pair is formed.

    Parameters
    ----------
    lists
        Item positions, padded with -1.
    units
        Item vectors of length 1, from `unit_rows`.
    """
    shown = lists[:, :k]
    present = shown >= 0
    sizes = present.sum(axis=1)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    member = sp.csr_array(
        (np.ones(offsets[-1]), shown[present], offsets), shape=(len(lists), units.shape[0])
    )
    summed = member @ units
    squares = np.asarray(summed.multiply(summed).sum(axis=1)).ravel()
    non_zero = member @ (np.diff(units.indptr) > 0).astype(np.float64)
    out = np.full(len(lists), np.nan)
    pairs = sizes * (sizes - 1)
    np.divide(squares - non_zero, pairs, out=out, where=pairs > 0)
    return 1 - out
