"""Compare the neighbourhood engine with the exact solve on a sample of targets.

The columns of sampled targets are solved exactly, by conjugate gradients on the sparse data, and
compared with those of the engine. P is compared in the form of EASE, B_ij = -P_ij / P_jj.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.data.matrix import Csr, column_counts
from equipoise.errors import SolveError
from equipoise.runtime import machine
from equipoise.runtime.kernels import compiled, prefetch
from equipoise.solve.neighbourhood import Columns
from equipoise.solve.sparse import item_sums

logger = logging.getLogger(__name__)

Vector = npt.NDArray[np.float64]

TARGETS = 16
LANES = 8  # targets that are solved side by side: a cache line for each item
AHEAD = 8  # places whose numbers are prefetched
MOST_STEPS = 1000
USERS = 1000  # users of a target whose scores are compared
LENGTH = 20
PRECISION = 1e-5  # of the exact columns: far below the differences of interest
LIMIT = 0.25  # residual on the supports beyond which a solve is refused


def sample_items(counts: npt.NDArray[Any], n_targets: int) -> npt.NDArray[np.int64]:
    """Return positions of items that have users, drawn with a fixed seed."""
    used = np.flatnonzero(counts > 0)
    size = min(n_targets, len(used))
    return np.sort(np.random.default_rng(0).choice(used, size, replace=False)).astype(np.int64)


class Audit:
    """The exact system, and the columns to check against it."""

    def __init__(
        self, columns: Columns, X: Csr, user_weights: Vector, penalty: Vector, n_targets: int
    ) -> None:
        counts = column_counts(X)
        # numbered from the most popular item on, so that most numbers lie close together in memory
        self._names = np.argsort(-counts, kind="stable").astype(np.int32)
        self._rank = np.argsort(self._names).astype(np.int32)
        self._data = X.indptr, self._rank[X.indices], X.data, user_weights
        self._penalty = penalty[self._names]
        gram, partners = np.zeros(len(counts)), np.zeros(len(counts), np.int64)
        item_sums(*self._data, gram, partners)
        self._diagonal = self._penalty + gram
        self.columns, self.X = columns, X
        self.targets = sample_items(counts, n_targets)

    def residual(self) -> float:
        """Return the mean size of A x - e_j on the supports of the targets; refuse a large one.

        It is 0 up to rounding where the stored entries of A hold all pairs of a support.
        """

        def error_sizes(group: npt.NDArray[np.int64]) -> list[Any]:
            x, support = self._solved_columns(group)
            error = np.empty_like(x)
            self._product(x[self._names], error)
            error = error[self._rank]
            error[group, np.arange(len(group))] -= 1
            return [np.linalg.norm(error[support[:, at], at]) for at in range(len(group))]

        sizes = self._for_all_targets(error_sizes)
        mean_size = float(np.mean(sizes)) if sizes else 0.0
        if not mean_size <= LIMIT:
            raise SolveError(
                f"the solve is not accurate (residual {mean_size:.1e}, limit {LIMIT}); raise l2 "
                "or dropout, or take more neighbours"
            )
        return mean_size

    def agreement(self) -> dict[str, float]:
        """Compare weights, scores and lists of the sampled targets with exact ones.

        `weights` and `scores` are mean cosines, of a target's weights and of its scores for up to
        1,000 of its users; `overlap@20` is the mean overlap of the lists recommended to a user
        who has only the sampled item.
        """

        def compare(group: npt.NDArray[np.int64]) -> list[Any]:
            exact = self._exact(group).T
            return [self._compared(int(j), row) for j, row in zip(group, exact, strict=True)]

        rows = np.array(self._for_all_targets(compare)).reshape(-1, 3)
        names = ("weights", "scores", f"overlap@{LENGTH}")
        means = rows.mean(axis=0) if len(rows) else np.ones(3)
        result = {"targets": float(len(rows)), **dict(zip(names, map(float, means), strict=True))}
        words = ", ".join(f"{name} {value:.3f}" for name, value in result.items())
        logger.info("agreement with exact columns: %s", words)
        return result

    def _product(self, V: Vector, out: Vector) -> None:
        """Write A V into `out`, items by number."""
        _times(*self._data, self._penalty, V, out)

    def _histories(self, j: int) -> Any:
        """Return the rows of up to 1,000 users of an item."""
        return histories_with(self.X, j)

    def _exact(self, group: npt.NDArray[np.int64]) -> Vector:
        """Return columns of the exact P by conjugate gradients, with step sizes per column."""
        R = np.zeros((len(self._penalty), LANES))
        R[self._rank[group], np.arange(len(group))] = 1.0
        inverse = 1 / self._diagonal[:, None]
        X, Q, D = np.zeros_like(R), np.empty_like(R), R * inverse
        size = np.einsum("ij,ij->j", R, D)
        enough = PRECISION**2 * size
        for _ in range(MOST_STEPS):
            running = size > enough
            if not running.any():
                return X[self._rank, : len(group)]
            self._product(D, Q)
            curve = np.einsum("ij,ij->j", D, Q)
            step = np.divide(size, curve, out=np.zeros_like(size), where=running)
            X += step * D
            Q *= step
            R -= Q
            np.multiply(R, inverse, out=Q)
            after = np.einsum("ij,ij->j", R, Q)
            D *= np.divide(after, size, out=np.zeros_like(size), where=running)
            D += Q
            size = after
        raise SolveError(
            f"exact columns did not converge in {MOST_STEPS} steps; raise l2 or dropout"
        )

    def _for_all_targets(self, measure: Callable[[npt.NDArray[np.int64]], list[Any]]) -> list[Any]:
        """Return a measurement of each target; groups of targets are measured on all threads."""
        groups = [self.targets[at : at + LANES] for at in range(0, len(self.targets), LANES)]
        results: list[Any] = [None] * len(groups)
        _ = self._entries  # cached before the threads need it

        def measure_group(number: int) -> None:
            results[number] = measure(groups[number])

        machine.run(measure_group, len(groups))
        return list(chain.from_iterable(results))

    @cached_property
    def _entries(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Vector]:
        """Sources, targets and values of the sampled columns, diagonal included; one pass."""
        P = self.columns
        is_sampled = np.zeros(P.shape[0], bool)
        is_sampled[self.targets] = True
        picked = np.flatnonzero(is_sampled[P.indices])
        source = np.searchsorted(P.indptr, picked, side="right") - 1
        values = np.concatenate([P.data[picked], P.diagonal_[self.targets]])
        sources = np.concatenate([source, self.targets])
        return sources, np.concatenate([P.indices[picked], self.targets]), values

    def _solved_columns(
        self, group: npt.NDArray[np.int64]
    ) -> tuple[Vector, npt.NDArray[np.bool_]]:
        """Return columns of the solve as a dense matrix, and a mask of their supports."""
        sources, targets, values = self._entries
        here = np.isin(targets, group)
        place = sources[here], np.searchsorted(group, targets[here])
        x = np.zeros((self.columns.shape[0], LANES))
        support = np.zeros(x.shape, bool)
        x[place], support[place] = values[here], True
        return x, support

    def _compared(self, j: int, exact: Vector) -> tuple[float, float, float]:
        """Return the cosines of weights and scores, and the overlap of lists, of one target."""
        P, histories = self.columns, self._histories(j)
        column = self._solved_columns(np.array([j]))[0][:, 0]
        weights, exact_weights = -column / column[j], -exact / exact[j]
        weights[j] = exact_weights[j] = 0.0
        scores, exact_scores = histories @ weights, histories @ exact_weights
        row = np.zeros(len(exact))
        entries = slice(P.indptr[j], P.indptr[j + 1])
        row[P.indices[entries]] = P.data[entries]
        exact[j] = row[j] = 0.0
        top, exact_top = (_top(-values / P.diagonal_) for values in (row, exact))
        overlap = len(np.intersect1d(top, exact_top)) / len(exact_top) if len(exact_top) else 1.0
        return cosine(weights, exact_weights), cosine(scores, exact_scores), overlap


def histories_with(X: Csr, j: int) -> Any:
    """Return the rows of the first 1,000 users who have an item."""
    users = np.searchsorted(X.indptr, np.flatnonzero(X.indices == j), "right") - 1
    return X[users[:USERS]].astype(np.float64)


def cosine(a: Vector, b: Vector) -> float:
    """Return the cosine of two vectors; 1 where both are 0, and 0 where only one is."""
    sizes = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    if not all(sizes):
        return float(not any(sizes))
    return float(a @ b) / (sizes[0] * sizes[1])


def _top(scores: Vector) -> npt.NDArray[np.int64]:
    """Return the best positions among those with a score > 0."""
    border = np.partition(scores, -min(LENGTH, len(scores)))[-min(LENGTH, len(scores))]
    best = np.flatnonzero((scores >= border) & (scores > 0))
    return best[np.argsort(-scores[best], kind="stable")[:LENGTH]]


@compiled
def _times(
    indptr: Any, indices: Any, values: Any, weights: Any, penalty: Any, V: Any, out: Any
) -> None:
    """Write A V into `out`, eight columns side by side."""
    last = len(indices) - 1
    out[:] = V
    for i in range(len(penalty)):
        for lane in range(LANES):
            out[i, lane] *= penalty[i]
    for user in range(len(indptr) - 1):
        m0 = m1 = m2 = m3 = m4 = m5 = m6 = m7 = 0.0
        for place in range(indptr[user], indptr[user + 1]):
            later = LANES * indices[min(place + AHEAD, last)]
            prefetch(V, later)
            prefetch(out, later)
            i, value = indices[place], np.float64(values[place])
            m0 += value * V[i, 0]
            m1 += value * V[i, 1]
            m2 += value * V[i, 2]
            m3 += value * V[i, 3]
            m4 += value * V[i, 4]
            m5 += value * V[i, 5]
            m6 += value * V[i, 6]
            m7 += value * V[i, 7]
        weight = weights[user]
        for place in range(indptr[user], indptr[user + 1]):
            i, value = indices[place], weight * values[place]
            out[i, 0] += value * m0
            out[i, 1] += value * m1
            out[i, 2] += value * m2
            out[i, 3] += value * m3
            out[i, 4] += value * m4
            out[i, 5] += value * m5
            out[i, 6] += value * m6
            out[i, 7] += value * m7
