"""Resampling of users: bootstrap intervals, sign-flip tests, correction for many tests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from equipoise.data.interactions import generator
from equipoise.evaluation.metrics import Floats

BLOCK = 1 << 21  # cells of the weight matrix made at a time, 16 MB


def bootstrap_interval(
    values: npt.ArrayLike, resamples: int, seed: int, level: float = 0.95
) -> tuple[Floats, Floats]:
    """Return the percentile interval of the mean of each column; `values` has a row per user.

    A resample draws as many users as there are, with replacement; all columns share the draw. NaN
    marks users without a value in a column. With 1,000 resamples the ends of a 95% interval are
    accurate to about 2% of its width.
    """
    table = np.asarray(values, np.float64)
    defined = ~np.isnan(table)
    low, high = np.full((2, table.shape[1]), np.nan)
    if resamples == 0 or not len(table):
        return low, high
    # Many columns are defined for the same users; each such set is counted once.
    _, first, set_of = np.unique(
        np.packbits(defined, axis=0), axis=1, return_index=True, return_inverse=True
    )
    stacked = np.concatenate([np.where(defined, table, 0.0), defined[:, first]], axis=1)
    sums = np.concatenate([draw @ stacked for draw in _draws(len(table), resamples, seed)])
    total, size = sums[:, : table.shape[1]], sums[:, table.shape[1] :][:, set_of.ravel()]
    ends = [(1 - level) / 2, (1 + level) / 2]
    for column in np.flatnonzero(defined.any(axis=0)):
        drawn = size[:, column] > 0  # a resample may miss all users of a rare group
        low[column], high[column] = np.quantile(total[drawn, column] / size[drawn, column], ends)
    return low, high


def _draws(n_users: int, resamples: int, seed: int) -> Iterator[Floats]:
    """Yield the number of times each user is drawn, a row per resample, in blocks."""
    rng = generator(seed)
    step = max(1, BLOCK // n_users)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = rng.integers(0, n_users, (rows, n_users))
        drawn += n_users * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * n_users)
        yield counts.reshape(rows, n_users).astype(np.float64)


def sign_flip_test(difference: npt.ArrayLike, resamples: int, seed: int) -> float:
    """Return the two-sided p-value of a mean difference, by random sign flips per user.

    If two models are equally good, each user's difference has either sign with equal probability.
    The p-value is (1 + flips at least as far from 0 as observed) / (1 + resamples), so never 0.
    """
    values = np.asarray(difference, np.float64)
    values = values[values != 0]  # a zero has no sign to flip
    if not len(values):
        return 1.0
    observed = abs(float(values.sum()))
    rng = generator(seed)
    width = -(-len(values) // 8)
    padded = np.pad(values, (0, 8 * width - len(values)))
    step = max(1, BLOCK // len(padded))
    # tolerance: a flip that equals the observed sum counts as far, whatever the rounding
    bar = observed - 1e-12 * float(np.abs(values).sum())
    far = 0
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        bits = np.unpackbits(rng.integers(0, 256, (rows, width), dtype=np.uint8), axis=1)
        flipped = padded.sum() - 2 * (bits.astype(np.float64) @ padded)
        far += int((np.abs(flipped) >= bar).sum())
    return (1 + far) / (1 + resamples)


def holm(p_values: npt.ArrayLike) -> Floats:
    """Return p-values adjusted by Holm's method, which bounds the family-wise error rate.

    The i-th smallest of n p-values is multiplied by n - i + 1; the order is preserved.

    >>> holm([0.01, 0.04, 0.03])
    array([0.03, 0.06, 0.06])
    """
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p, kind="stable")
    out = np.empty(len(p))
    out[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return np.minimum(out, 1.0)
