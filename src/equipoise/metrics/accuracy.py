"""Accuracy of ranked lists: one value per user, NaN without targets.

The targets are found in the lists once (`find_hits`); every metric is a short formula on the hits.
Notation: h hits among the first k of the list, t targets, r the rank of a hit (from 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.errors import DataError
from equipoise.kernels import compiled
from equipoise.matrix import Csr, entry_rows, keep_entries

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Hits:
    """Targets that stand in the lists, user by user and in order of rank."""

    user: Ints  # row of each hit, ascending
    rank: Ints  # its rank in the full list, from 1
    item: Ints  # its item position
    target: Csr  # the items to be found, a row per user

    @property
    def n_users(self) -> int:
        """Number of rows."""
        return int(self.target.shape[0])

    @cached_property
    def n_targets(self) -> Ints:
        """Number of targets of each user."""
        return np.diff(self.target.indptr).astype(np.int64)

    @cached_property
    def ordinal(self) -> Ints:
        """1 for a user's first hit, 2 for the second, ..."""
        n_hits = np.bincount(self.user, minlength=self.n_users)
        before = np.cumsum(n_hits) - n_hits
        return np.arange(1, len(self.user) + 1) - before[self.user]

    def within(self, group: npt.ArrayLike) -> Hits:
        """Restrict hits and targets to the flagged items; ranks stay those of the full list."""
        mask = np.asarray(group)
        if mask.dtype != bool or mask.shape != (self.target.shape[1],):
            wanted = self.target.shape[1]
            raise DataError(f"a group needs {wanted} flags, got {mask.dtype} {mask.shape}")
        kept = mask[self.item]
        target = keep_entries(self.target, mask[self.target.indices])
        return Hits(self.user[kept], self.rank[kept], self.item[kept], target)

    def total(self, k: int, weight: npt.ArrayLike | None = None) -> Floats:
        """Sum over each user's hits among the first k of a weight per hit (1 if left out)."""
        near = self.rank <= k
        weights = None if weight is None else np.asarray(weight, np.float64)[near]
        sums = np.bincount(self.user[near], weights, minlength=self.n_users)
        return sums.astype(np.float64)


def find_hits(lists: npt.ArrayLike, target: Any) -> Hits:
    """Find the targets in ranked lists.

    Parameters
    ----------
    lists
        Item positions (m, k), best first; a list that is shorter is padded with -1 at its end.
    target
        Sparse m x n matrix of the items to be found.
    """
    items = np.ascontiguousarray(lists, dtype=np.int32)
    wanted: Csr = sp.csr_array(target)
    if not wanted.has_canonical_format:
        wanted = wanted.copy()
        wanted.sum_duplicates()
    if items.ndim != 2 or len(items) != wanted.shape[0]:
        raise DataError(f"lists of shape {items.shape} do not fit {wanted.shape[0]} target rows")
    if items.size and (items.max() >= wanted.shape[1] or items.min() < -1):
        raise DataError(f"ranked positions must lie between 0 and {wanted.shape[1] - 1}")
    user, rank, item = (np.empty(wanted.nnz, np.int64) for _ in range(3))
    found = _mark(items, wanted.indptr, wanted.indices, user, rank, item)
    if found < 0:
        raise DataError(f"the list of row {-found - 1} holds an item twice; rank each item once")
    # Copies let go of the work space, which has room for every target.
    return Hits(user[:found].copy(), rank[:found].copy(), item[:found].copy(), wanted)


def join_hits(parts: Sequence[Hits], target: Csr) -> Hits:
    """Put the hits of consecutive batches of users together; `target` holds all of them."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(part.n_users for part in parts)])
    users = [part.user + start for part, start in zip(parts, starts[:-1], strict=True)]
    ranks, items = [part.rank for part in parts], [part.item for part in parts]
    return Hits(np.concatenate(users), np.concatenate(ranks), np.concatenate(items), target)


@compiled
def _mark(lists: Any, indptr: Any, indices: Any, user: Any, rank: Any, item: Any) -> Any:
    """Fill one entry per hit and return their number, or -(row + 1) where a hit repeats.

    Serial on purpose: a binary search per cell costs a hundredth of ranking it, and the kernel
    stays callable from any number of Python threads.
    """
    found = 0
    for row in range(lists.shape[0]):
        first = found
        for place in range(lists.shape[1]):
            wanted = lists[row, place]
            if wanted < 0:
                break
            low, high = indptr[row], indptr[row + 1]
            while low < high:
                middle = (low + high) // 2
                if indices[middle] < wanted:
                    low = middle + 1
                else:
                    high = middle
            if low == indptr[row + 1] or indices[low] != wanted:
                continue
            for earlier in range(first, found):
                if item[earlier] == wanted:
                    return -(row + 1)
            user[found], rank[found], item[found] = row, place + 1, wanted
            found += 1
    return found


def recall(hits: Hits, k: int) -> Floats:
    """Hits divided by how many there can be, h / min(k, t): 1 for the best list, also if t > k."""
    return ratio(hits.total(k), np.minimum(hits.n_targets, k))


def recall_full(hits: Hits, k: int) -> Floats:
    """Hits divided by targets, h / t, the LightGCN form: at most k / t where t > k."""
    return ratio(hits.total(k), hits.n_targets)


def precision(hits: Hits, k: int) -> Floats:
    """Hits divided by k, h / k, also where the list is shorter than k."""
    return _defined(hits, hits.total(k) / k)


def hit_rate(hits: Hits, k: int) -> Floats:
    """1 where at least one of the first k is a target, else 0."""
    return _defined(hits, (hits.total(k) > 0).astype(np.float64))


def ndcg(hits: Hits, k: int) -> Floats:
    """Sum over hits of 1 / log2(r + 1), divided by that sum for min(k, t) hits in front."""
    return ratio(hits.total(k, _discount(hits.rank)), _ideal(hits, k))


def reciprocal_rank(hits: Hits, k: int) -> Floats:
    """1 / r of the first hit, 0 where none is among the first k; its mean is MRR."""
    return _defined(hits, hits.total(k, np.where(hits.ordinal == 1, 1 / hits.rank, 0.0)))


def average_precision(hits: Hits, k: int) -> Floats:
    """Sum over hits of the precision at r, divided by min(k, t); its mean is MAP."""
    return ratio(hits.total(k, hits.ordinal / hits.rank), np.minimum(hits.n_targets, k))


def propensities(counts: npt.ArrayLike, power: float = 0.5, floor: float = 0.01) -> Floats:
    """Probability that an item is observed, rho = max((count / largest count)^power, floor)."""
    count = np.asarray(counts, np.float64)
    largest = max(float(count.max(initial=0.0)), 1.0)
    return np.asarray(np.maximum((count / largest) ** power, floor))


def unbiased_recall(hits: Hits, k: int, rho: npt.ArrayLike) -> Floats:
    """Sum over hits of 1 / rho, divided by S.

    S is min(k, t) times the mean of 1 / rho over the targets: what the first min(k, t) targets of
    the published code sum to on average, whatever order they come in. With t > k the value may
    exceed 1.
    """
    weight = 1 / np.asarray(rho, np.float64)
    return ratio(hits.total(k, weight[hits.item]), _target_weight(hits, k, weight))


def unbiased_ndcg(hits: Hits, k: int, rho: npt.ArrayLike) -> Floats:
    """Sum over hits of (1 / rho) / log2(r + 1), divided by S and by the ideal sum of `ndcg`.

    S is that of `unbiased_recall`. Both divisions follow the published code, so a perfect list
    does not reach 1: compare models with it, not with `ndcg`.
    """
    weight = 1 / np.asarray(rho, np.float64)
    gain = hits.total(k, weight[hits.item] * _discount(hits.rank))
    return ratio(gain, _target_weight(hits, k, weight) * _ideal(hits, k))


def _discount(rank: npt.NDArray[np.int64]) -> Floats:
    return np.asarray(1 / np.log2(rank + 1.0))


def _ideal(hits: Hits, k: int) -> Floats:
    """Sum of the discounts of ranks 1 .. min(k, t)."""
    most = min(k, int(hits.n_targets.max(initial=0)))
    running = np.concatenate([[0.0], np.cumsum(_discount(np.arange(1, most + 1)))])
    return running[np.minimum(hits.n_targets, most)]


def _target_weight(hits: Hits, k: int, weight: Floats) -> Floats:
    """Return S = min(k, t) * mean of the weights of the targets."""
    rows = entry_rows(hits.target)
    sums = np.bincount(rows, weight[hits.target.indices], minlength=hits.n_users)
    return np.asarray(sums * np.minimum(1.0, k / np.maximum(hits.n_targets, 1)))


def ratio(top: npt.NDArray[Any], bottom: npt.NDArray[Any]) -> Floats:
    """Divide; NaN where the divisor is 0."""
    out = np.full(top.shape, np.nan)
    np.divide(top, bottom, out=out, where=bottom > 0)
    return out


def _defined(hits: Hits, values: Floats) -> Floats:
    return np.where(hits.n_targets > 0, values, np.nan)
