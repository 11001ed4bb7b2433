"""Accuracy of ranked lists: each function gives one value per user, NaN without targets.

Notation: h hits among the first k of the list, t targets, r the rank of a hit (from 1).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from equipoise.metrics.hits import Floats, Hits


def recall(hits: Hits, k: int) -> Floats:
    """Hits by their largest number, h / min(k, t): 1 for the best list, also where t > k."""
    return _ratio(hits.total(k), np.minimum(hits.n_targets, k))


def recall_full(hits: Hits, k: int) -> Floats:
    """Hits by targets, h / t, the LightGCN form: at most k / t where a user has t > k."""
    return _ratio(hits.total(k), hits.n_targets)


def precision(hits: Hits, k: int) -> Floats:
    """Hits by k, h / k, also where the list is shorter than k."""
    return _defined(hits, hits.total(k) / k)


def hit_rate(hits: Hits, k: int) -> Floats:
    """1 where at least one of the first k is a target, else 0."""
    return _defined(hits, (hits.total(k) > 0).astype(np.float64))


def ndcg(hits: Hits, k: int) -> Floats:
    """Sum over hits of 1 / log2(r + 1), divided by that sum for min(k, t) hits in front."""
    return _ratio(hits.total(k, _discount(hits.rank)), _ideal(hits, k))


def reciprocal_rank(hits: Hits, k: int) -> Floats:
    """1 / r of the first hit, 0 where none is among the first k; its mean is MRR."""
    return _defined(hits, hits.total(k, np.where(hits.ordinal == 1, 1 / hits.rank, 0.0)))


def average_precision(hits: Hits, k: int) -> Floats:
    """Sum over hits of the precision at r, divided by min(k, t); its mean is MAP."""
    return _ratio(hits.total(k, hits.ordinal / hits.rank), np.minimum(hits.n_targets, k))


def propensities(counts: npt.ArrayLike, power: float = 0.5, floor: float = 0.01) -> Floats:
    """Chance of an item to be observed, rho = max((count / largest count)^power, floor)."""
    count = np.asarray(counts, np.float64)
    largest = max(float(count.max(initial=0.0)), 1.0)
    out: Floats = np.maximum((count / largest) ** power, floor)
    return out


def unbiased_recall(hits: Hits, k: int, rho: npt.ArrayLike) -> Floats:
    """Sum over hits of 1 / rho, divided by S.

    S is min(k, t) times the mean of 1 / rho over the targets: what the first min(k, t) targets of
    the published code sum to on average, whatever order they come in. With t > k the value may
    exceed 1.
    """
    weight = 1 / np.asarray(rho, np.float64)
    return _ratio(hits.total(k, weight[hits.item]), _target_weight(hits, k, weight))


def unbiased_ndcg(hits: Hits, k: int, rho: npt.ArrayLike) -> Floats:
    """Sum over hits of (1 / rho) / log2(r + 1), divided by S and by the ideal sum of `ndcg`.

    S is that of `unbiased_recall`. Both divisions follow the published code, so a perfect list
    does not reach 1: compare models with it, not with `ndcg`.
    """
    weight = 1 / np.asarray(rho, np.float64)
    gain = hits.total(k, weight[hits.item] * _discount(hits.rank))
    return _ratio(gain, _target_weight(hits, k, weight) * _ideal(hits, k))


def _discount(rank: npt.NDArray[np.int64]) -> Floats:
    out: Floats = 1 / np.log2(rank + 1.0)
    return out


def _ideal(hits: Hits, k: int) -> Floats:
    """Sum of the discounts of ranks 1 .. min(k, t)."""
    most = min(k, int(hits.n_targets.max(initial=0)))
    running = np.concatenate([[0.0], np.cumsum(_discount(np.arange(1, most + 1)))])
    return running[np.minimum(hits.n_targets, most)]


def _target_weight(hits: Hits, k: int, weight: Floats) -> Floats:
    """Return S = min(k, t) * mean of the weights of the targets."""
    sums = np.bincount(
        hits.target_row, weight[hits.target.indices], minlength=hits.n_users
    ).astype(np.float64)
    return sums * np.minimum(1.0, k / np.maximum(hits.n_targets, 1))


def _ratio(top: Floats, bottom: npt.NDArray[np.number]) -> Floats:
    out = np.full(len(top), np.nan)
    np.divide(top, bottom, out=out, where=bottom > 0)
    return out


def _defined(hits: Hits, values: Floats) -> Floats:
    return np.where(hits.n_targets > 0, values, np.nan)
