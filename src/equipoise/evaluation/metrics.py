"""Metrics of ranked lists: pure functions, one value per user out, NaN where undefined.

`find_hits` compares lists with targets once; every accuracy metric is a short formula on the hits,
at any cut-off k and for any group of items:

>>> import numpy as np, scipy.sparse as sp
>>> from equipoise.evaluation import metrics
>>> lists = np.array([[2, 0, 1], [1, 2, -1]])  # item positions, best first, padded with -1
>>> target = sp.csr_array([[1, 0, 0, 1], [0, 1, 0, 0]])
>>> hits = metrics.find_hits(lists, target)
>>> metrics.recall(hits, 2)
array([0.5, 1. ])
>>> metrics.recall(hits.within([True, False, False, True]), 2)
array([0.5, nan])

Notation of the formulas: h hits among the first k of the list, t targets, r the rank of a hit
(from 1). Metrics that do not depend on targets follow, and last the table of the names that
`evaluate` accepts: a base metric, prefixed with the name of a slice ("ndcg", "head_ndcg",
"active_recall").
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.data.matrix import Csr, entry_rows, keep_entries
from equipoise.data.statistics import gini
from equipoise.errors import DataError, SettingError
from equipoise.runtime.kernels import compiled, first_at_least

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Lists = npt.NDArray[np.int32]
Vectors: TypeAlias = "sp.csr_array[np.float64, tuple[int, int]]"  # text: SciPy < 1.16


@dataclass(frozen=True)
class Hits:
    """Targets that occur in the lists, user by user and in order of rank."""

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
            n_items = self.target.shape[1]
            raise DataError(f"a group needs {n_items} flags, got {mask.dtype} {mask.shape}")
        inside = mask[self.item]
        target = keep_entries(self.target, mask[self.target.indices])
        return Hits(self.user[inside], self.rank[inside], self.item[inside], target)

    def total(self, k: int, weight: npt.ArrayLike | None = None) -> Floats:
        """Return the sum of a weight per hit (default 1) over each user's hits in the first k."""
        near = self.rank <= k
        weights = None if weight is None else np.asarray(weight, np.float64)[near]
        sums = np.bincount(self.user[near], weights, minlength=self.n_users)
        return sums.astype(np.float64)


def find_hits(lists: npt.ArrayLike, target: Any) -> Hits:
    """Find the targets in ranked lists.

    Parameters
    ----------
    lists
        Item positions (m, k), best first; -1 for no item, or for one that cannot be a target.
    target
        Sparse m x n matrix of the relevant items.
    """
    items = np.ascontiguousarray(lists, dtype=np.int32)
    csr: Csr = sp.csr_array(target)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    if items.ndim != 2 or len(items) != csr.shape[0]:
        raise DataError(f"lists of shape {items.shape} do not fit {csr.shape[0]} target rows")
    if items.size and (items.max() >= csr.shape[1] or items.min() < -1):
        raise DataError(f"ranked positions must lie between 0 and {csr.shape[1] - 1}")
    user, rank, item = (np.empty(csr.nnz, np.int64) for _ in range(3))
    n_hits = _fill_hits(items, csr.indptr, csr.indices, user, rank, item)
    if n_hits < 0:
        raise DataError(f"the list of row {-n_hits - 1} has an item twice; rank each item once")
    # copies free the work space, which has room for every target
    return Hits(user[:n_hits].copy(), rank[:n_hits].copy(), item[:n_hits].copy(), csr)


def join_hits(parts: Sequence[Hits], target: Csr) -> Hits:
    """Concatenate the hits of consecutive batches of users; `target` has all users."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(part.n_users for part in parts)])
    users = [part.user + start for part, start in zip(parts, starts[:-1], strict=True)]
    ranks, items = [part.rank for part in parts], [part.item for part in parts]
    return Hits(np.concatenate(users), np.concatenate(ranks), np.concatenate(items), target)


@compiled
def _fill_hits(lists: Any, indptr: Any, indices: Any, user: Any, rank: Any, item: Any) -> Any:
    """Fill one entry per hit and return their number, or -(row + 1) if a hit repeats.

    Serial on purpose: a binary search per cell costs a hundredth of ranking it, and the kernel
    stays callable from any number of Python threads.
    """
    n_hits = 0
    for row in range(lists.shape[0]):
        first = n_hits
        for place in range(lists.shape[1]):
            listed = lists[row, place]
            if listed < 0:
                continue
            at = first_at_least(indices, indptr[row], indptr[row + 1], listed)
            if at == indptr[row + 1] or indices[at] != listed:
                continue
            for earlier in range(first, n_hits):
                if item[earlier] == listed:
                    return -(row + 1)
            user[n_hits], rank[n_hits], item[n_hits] = row, place + 1, listed
            n_hits += 1
    return n_hits


def recall(hits: Hits, k: int) -> Floats:
    """Hits divided by the largest possible number, h / min(k, t): 1 for a perfect list."""
    return ratio(hits.total(k), np.minimum(hits.n_targets, k))


def recall_full(hits: Hits, k: int) -> Floats:
    """Hits divided by targets, h / t, the LightGCN form: at most k / t where t > k."""
    return ratio(hits.total(k), hits.n_targets)


def precision(hits: Hits, k: int) -> Floats:
    """Hits divided by k, h / k, also for lists shorter than k."""
    return _defined(hits, hits.total(k) / k)


def hit_rate(hits: Hits, k: int) -> Floats:
    """1 if at least one of the first k is a target, else 0."""
    return _defined(hits, (hits.total(k) > 0).astype(np.float64))


def ndcg(hits: Hits, k: int) -> Floats:
    """Sum over hits of 1 / log2(r + 1), divided by that sum for min(k, t) hits in front."""
    return ratio(hits.total(k, _discount(hits.rank)), _ideal(hits, k))


def reciprocal_rank(hits: Hits, k: int) -> Floats:
    """1 / r of the first hit, 0 if there is none in the first k; its mean is MRR."""
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

    S is min(k, t) times the mean of 1 / rho over the targets: the sum over the first min(k, t)
    targets in the published code, averaged over their order. With t > k the value may exceed 1.
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
    """Return top / bottom, NaN where bottom is 0."""
    out = np.full(top.shape, np.nan)
    np.divide(top, bottom, out=out, where=bottom > 0)
    return out


def _defined(hits: Hits, values: Floats) -> Floats:
    return np.where(hits.n_targets > 0, values, np.nan)


def head_items(counts: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Flags of the ceil(n / 5) items with most interactions; ties go to the lower position."""
    count = np.asarray(counts)
    n_head = -(-len(count) // 5)  # rounded up
    head = np.zeros(len(count), bool)
    head[np.argsort(-count, kind="stable")[:n_head]] = True
    return head


def exposure(lists: Lists, k: int, n_items: int) -> Ints:
    """Number of lists that show each item among their first k."""
    shown = lists[:, :k]
    return np.bincount(shown[shown >= 0], minlength=n_items).astype(np.int64)


def coverage(shown: npt.ArrayLike) -> float:
    """Share of items that at least one list shows; `shown` is an `exposure`; NaN without items."""
    listed = np.asarray(shown) > 0
    return float(listed.mean()) if len(listed) else math.nan


def exposure_gini(shown: npt.ArrayLike) -> float:
    """Gini index of the exposure of all items: 0 if all are shown equally often, 1 if one is.

    NaN if no item is shown at all: 0 would call such lists the fairest.
    """
    return gini(shown) if np.any(np.asarray(shown) > 0) else math.nan


def list_mean(lists: Lists, values: npt.ArrayLike, ks: Sequence[int]) -> Floats:
    """Mean of a value per item over the first k of each list: (m, number of ks).

    With training counts this is the average popularity, with `self_information` the novelty.
    Lists shorter than k are averaged over their items; empty ones are NaN.
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

    0: the list is as popular as the history; 1: twice as popular. NaN if b is 0 or one of them is
    empty. The means come from `list_mean` (one column) and `row_mean`.
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
    The sum of cosines over ordered pairs is |sum of unit vectors|^2 - number of non-zero vectors.
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


ACCURACY: dict[str, Callable[[Hits, int], Floats]] = {
    "recall_capped": recall,
    "recall_full": recall_full,
    "ndcg": ndcg,
    "mrr": reciprocal_rank,
    "map": average_precision,
    "precision": precision,
    "hit": hit_rate,
}
UNBIASED = {"recall": unbiased_recall, "ndcg": unbiased_ndcg}
PER_LIST = ("popularity", "novelty", "lift", "diversity", "new_share")
LOWER_IS_BETTER = ("gini", "popularity", "lift")
AGGREGATE = ("coverage", "gini")
ITEM_SLICES = ("head", "tail", "new", "known")
USER_SLICES = ("active", "inactive")

FORMULAS = {
    "recall_capped": "hits among the first k / min(k, number of targets)",
    "recall_full": "hits among the first k / number of targets",
    "ndcg": "sum over hits of 1/log2(rank + 1) / the same sum for min(k, targets) hits in front",
    "mrr": "1 / rank of the first hit, 0 if none is among the first k",
    "map": "sum over hits of the precision at their rank / min(k, number of targets)",
    "precision": "hits among the first k / k",
    "hit": "1 if at least one of the first k is a target, else 0",
    "popularity": "mean training interactions of the first k items",
    "novelty": "mean of -log2(item's share of all training interactions) over the first k items",
    "lift": "(mean training interactions of the first k - of the history) / of the history",
    "diversity": "mean of 1 - cosine of item vectors over all pairs among the first k",
    "new_share": "share of the first k items that nobody used in training",
    "coverage": "share of the catalogue that stands in at least one list of k",
    "gini": "Gini index of how often each item of the catalogue is shown among the first k",
}
SLICES = {
    "head": "hits and targets only among the 20% of items with most training interactions",
    "tail": "hits and targets only among the 80% of items with fewest training interactions",
    "new": "hits and targets only among the items that nobody used in training",
    "known": "hits and targets only among the items that somebody used in training",
    "unbiased": "hits weighted by 1/rho, rho = max((count / largest count)^0.5, 0.01), and "
    "divided by min(k, targets) times the mean of 1/rho over the targets",
    "active": "the 20% of users with the longest histories",
    "inactive": "the 80% of users with the shortest histories",
}


@dataclass(frozen=True)
class Named:
    """One metric: a base such as "ndcg" over a slice such as "head" ("all" for everything)."""

    slice: str
    base: str

    @property
    def name(self) -> str:
        """The name in results, without the cut-off."""
        return self.base if self.slice == "all" else f"{self.slice}_{self.base}"

    def at(self, k: int) -> str:
        """Return the name in results at a cut-off, such as "head_ndcg@20"."""
        return f"{self.name}@{k}"

    def definition(self, recall_form: str) -> str:
        """Return the definition in words; `recall_form` is the form of "recall"."""
        base = recall_form if self.base == "recall" else self.base
        if self.slice == "unbiased":
            base = "recall_capped" if self.base == "recall" else self.base
        if self.slice == "all":
            return FORMULAS[base]
        group = f"hits and targets only among the items of group {self.slice!r}"
        return f"{FORMULAS[base]}; {SLICES.get(self.slice, group)}"


def known(groups: Iterable[str] = ()) -> dict[str, Named]:
    """Return every metric by its name, including those of extra groups of items."""
    bases = ["recall", *ACCURACY]
    out = [Named("all", base) for base in (*bases, *PER_LIST, *AGGREGATE)]
    out += [Named(part, base) for part in (*ITEM_SLICES, *groups) for base in bases]
    out += [Named("unbiased", base) for base in UNBIASED]
    out += [Named(part, base) for part in USER_SLICES for base in (*bases, *PER_LIST)]
    return {named.name: named for named in out}


OF_NEW_ITEMS = [
    *(Named(part, base) for part in ("new", "known") for base in ("recall", "ndcg")),
    Named("all", "new_share"),
]


def default(groups: Iterable[str] = ()) -> list[Named]:
    """Return the metrics that `evaluate` reports by default.

    `OF_NEW_ITEMS` come on top where a new item is to be found.
    """
    main = ("recall", "ndcg", "mrr", "map", "precision", "hit")
    out = [Named("all", base) for base in main]
    slices = ["head", "tail", *groups, "unbiased", *USER_SLICES]
    out += [Named(part, base) for part in slices for base in ("recall", "ndcg")]
    return out + [Named("all", base) for base in (*AGGREGATE, "popularity", "novelty", "lift")]


def look_up(names: Sequence[str] | str | None, groups: Iterable[str] = ()) -> list[Named]:
    """Return the metrics with these names; the error for an unknown one suggests the nearest."""
    groups = list(groups)
    if names is None:
        return default(groups)
    by_name = known(groups)
    listed = [names] if isinstance(names, str) or not isinstance(names, Iterable) else list(names)
    if not all(isinstance(name, str) for name in listed):
        raise SettingError(f"metrics must be names such as 'ndcg', got {names!r}")
    if not listed:
        raise SettingError("metrics is empty; leave it out for the default ones")
    for name in listed:
        if name not in by_name:
            base = name.partition("@")[0]
            hint = f"write {base!r} and give the cut-off as k" if base in by_name else None
            raise SettingError(f"unknown metric {name!r}; {hint or nearest(name, by_name)}")
    return [by_name[name] for name in dict.fromkeys(listed)]


def at_cutoff(name: str) -> tuple[Named, int]:
    """Return a metric and its cut-off.

    >>> at_cutoff("tail_ndcg@20")
    (Named(slice='tail', base='ndcg'), 20)
    """
    match = re.fullmatch(r"(\w+)@(\d+)", name) if isinstance(name, str) else None
    if match is None or int(match[2]) < 1:
        raise SettingError(f"a metric must look like 'ndcg@20', got {name!r}")
    return look_up(match[1])[0], int(match[2])


def nearest(name: object, names: Iterable[str]) -> str:
    """Return a hint for an error message: the most similar name, or all names."""
    close = difflib.get_close_matches(str(name), list(names), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(names))}"
