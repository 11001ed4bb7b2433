"""Resampling of users: bootstrap intervals, sign flips, permutations, Holm's correction."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from equipoise.data.interactions import generator
from equipoise.evaluation.metrics import Floats

BLOCK = 1 << 21  # cells of the weight matrix made at a time, 16 MB
LEVEL = 0.95  # of the intervals


def bootstrap_interval(values: npt.ArrayLike, resamples: int, seed: int) -> tuple[Floats, Floats]:
    """Return the 95% percentile interval of the mean of each column; `values` has a row per user.

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
    ends = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
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


def permutation_test(
    first: npt.ArrayLike, second: npt.ArrayLike, resamples: int, seed: int
) -> tuple[float, float, float]:
    """P-value and interval of mean(second) - mean(first), for two groups of different users.

    If the groups were alike, any user could as well have been in the other one. Users are dealt
    anew into groups of the same sizes, and Welch's t of the observed groups is compared with that
    of the dealt ones. The level holds for groups of any sizes and any distribution, because every
    dealing is equally likely; dividing by the standard error keeps it when only the means are
    equal and the groups are large.

    Parameters
    ----------
    first, second
        A value per user.
    resamples
        Dealings; the p-value is (1 + those at least as far from 0) / (1 + resamples).
    seed
        Of the dealings.

    Returns
    -------
    p, low, high
        The 95% interval holds the differences that the test does not reject, so it excludes 0
        exactly where p is at most 0.05. Its ends are infinite where no difference
        can be rejected.

    Examples
    --------
    >>> p, low, high = permutation_test([0.1, 0.2, 0.3, 0.2], [0.6, 0.8, 0.7, 0.9], 999, 0)
    >>> p < 0.05, low > 0
    (True, True)
    """
    groups = np.asarray(first, np.float64), np.asarray(second, np.float64)
    sizes = len(groups[0]), len(groups[1])
    if min(sizes) < 2:
        return 1.0, -np.inf, np.inf
    centre = float(np.concatenate(groups).mean())  # less rounding in the squares
    dealings = _Dealings(groups[0] - centre, groups[1] - centre, resamples, seed)
    p = dealings.p_value(0.0)
    difference = float(groups[1].mean() - groups[0].mean())
    spread = float(np.ptp(np.concatenate(groups))) or 1.0
    alpha = 1 - LEVEL
    # An end lies on the same side of 0 as the test at 0 says.
    low_start, high_start = -np.inf, np.inf
    if p <= alpha:
        low_start, high_start = (0.0, np.inf) if difference > 0 else (-np.inf, 0.0)
    low = _end_of_interval(dealings, difference, low_start, -spread, alpha)
    high = _end_of_interval(dealings, difference, high_start, spread, alpha)
    if p > alpha:
        low, high = min(low, 0.0), max(high, 0.0)
    return p, low, high


def _end_of_interval(
    dealings: _Dealings, inside: float, outside: float, step: float, alpha: float
) -> float:
    """Return where between `inside` and `outside` differences begin to be rejected."""
    if not np.isfinite(outside):
        outside = inside + step
        for _ in range(20):  # a million times the spread of the values
            if dealings.p_value(outside) <= alpha:
                break
            outside = inside + 2 * (outside - inside)
        else:
            return float(np.copysign(np.inf, step))
    for _ in range(30):  # to a billionth
        middle = (inside + outside) / 2
        if dealings.p_value(middle) <= alpha:
            outside = middle
        else:
            inside = middle
    return inside


class _Dealings:
    """Random dealings of the users of two groups into groups of the same sizes.

    Users of one group with the same value are alike, so a dealing is the number of each kind in
    the second group: a draw whose cost goes by the distinct values, not by the users.
    """

    def __init__(self, first: Floats, second: Floats, resamples: int, seed: int) -> None:
        values, counts, in_second = [], [], []
        for group, users in enumerate((first, second)):
            distinct, number = np.unique(users, return_counts=True)
            values.append(distinct)
            counts.append(number)
            in_second.append(np.full(len(distinct), float(group)))
        y, z = np.concatenate(values), np.concatenate(in_second)
        kinds = np.concatenate(counts)
        # Sums over the users of a group: of y, z, y^2 and y z; z^2 is z.
        columns = np.stack([y, z, y * y, y * z], axis=1)
        self._totals = kinds @ columns
        self._sizes = len(first), len(second)
        rng = generator(seed)
        step = max(1, BLOCK // len(kinds))
        parts = [(kinds * z) @ columns]  # the observed dealing is the first row
        for start in range(0, resamples, step):
            rows = min(step, resamples - start)
            drawn = rng.multivariate_hypergeometric(kinds, len(second), rows, "marginals")
            parts.append(drawn @ columns)
        self._sums = np.vstack(parts)

    def p_value(self, difference: float) -> float:
        """P-value of the hypothesis that the second group has this much more."""
        means, variances = [], []
        groups = (self._totals - self._sums, self._sums)
        for sums, size in zip(groups, self._sizes, strict=True):
            y, z, yy, yz = sums.T
            total = y - difference * z
            square = yy - 2 * difference * yz + difference**2 * z
            means.append(total / size)
            variances.append((square - total**2 / size) / (size - 1) / size)
        y, z, yy, yz = self._totals
        n_users = sum(self._sizes)
        whole = yy - 2 * difference * yz + difference**2 * z - (y - difference * z) ** 2 / n_users
        if whole <= 0:
            return 1.0
        # Groups without any spread of their own are as far apart as can be, whatever the rounding.
        least = 1e-12 * whole / n_users * (1 / self._sizes[0] + 1 / self._sizes[1])
        far = (means[1] - means[0]) ** 2 / np.maximum(variances[0] + variances[1], least)
        return float((far >= far[0] * (1 - 1e-9)).mean())
