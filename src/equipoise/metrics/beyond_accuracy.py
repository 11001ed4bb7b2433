"""Beyond accuracy: what the lists show, whatever the targets are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.errors import DataError
from equipoise.matrix import Csr, entry_rows
from equipoise.metrics.accuracy import Floats, Ints, ratio
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
    if not lists.shape[1]:
        return np.full((len(lists), len(ks)), np.nan)
    last = [min(k, lists.shape[1]) - 1 for k in ks]
    return ratio(sums[:, last], sizes[:, last])


def self_information(counts: npt.ArrayLike) -> Floats:
    """Bits of surprise of each item, -log2(count / all interactions); count 0 is taken as 1."""
    count = np.maximum(np.asarray(counts, np.float64), 1.0)
    return np.asarray(np.log2(max(float(np.sum(counts)), 1.0)) - np.log2(count))


def row_mean(matrix: Csr, values: npt.ArrayLike) -> Floats:
    """Mean of a value per item over each user's items; NaN for an empty row."""
    value = np.asarray(values, np.float64)[matrix.indices]
    sums = np.bincount(entry_rows(matrix), value, minlength=matrix.shape[0])
    return ratio(sums, np.diff(matrix.indptr))


def popularity_lift(listed: Floats, history: Floats) -> Floats:
    """(a - b) / b, with a the mean training count of a user's list and b that of the history.

    0: the list is as popular as what the user chose; 1: twice as popular. NaN where b is 0 or a
    side is empty. The means come from `list_mean` (one column) and `row_mean`.
    """
    return ratio(listed - history, history)


def unit_rows(vectors: Any) -> Vectors:
    """Scale item vectors (one row per item, sparse or dense) to length 1; zero rows stay zero."""
    csr: Vectors = sp.csr_array(vectors, dtype=np.float64, copy=True)
    csr.eliminate_zeros()
    if not np.isfinite(csr.data).all():
        raise DataError("item vectors must be finite")
    rows = entry_rows(csr)
    length = np.sqrt(np.bincount(rows, csr.data**2, minlength=csr.shape[0]))
    return sp.csr_array((csr.data / length[rows], csr.indices, csr.indptr), shape=csr.shape)


def diversity(lists: Lists, units: Vectors, k: int) -> Floats:
    """Mean of 1 - cosine over all pairs of items among the first k of each list.

    `units` are item vectors of length 1, from `unit_rows`. NaN for a list of fewer than two items.
    No pair is formed: the sum of cosines over ordered pairs is |sum of unit vectors|^2 - number of
    non-zero vectors.
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
    return 1 - ratio(squares - non_zero, sizes * (sizes - 1))
