"""Polynomials of a sparse item-item matrix, as a term of the scores and on blocks of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.ranking.terms import Adder, Rows, Term
from equipoise.runtime import machine
from equipoise.runtime.kernels import Floats, compiled

Array = npt.NDArray[Any]
LANES = 32  # vectors multiplied at a time: two cache lines of each


@dataclass(frozen=True, eq=False)
class PolynomialTerm(Term):
    """Scores ``(x * source) @ (c_0 I + c_1 M + c_2 M^2 + ...) * target``.

    The history is multiplied by M repeatedly: neither powers nor M = A^T A are formed. Users are
    independent columns of these products, so their scores have the same bits in any batch.

    Parameters
    ----------
    matrix
        A, sparse with n columns; or M itself, symmetric, with ``gram=False``.
    coefficients
        c_0, c_1, ...
    source, target
        A factor for each item of the history, and for each item that is scored.
    """

    matrix: Any
    coefficients: Sequence[float]
    source: Array
    target: Array
    gram: bool = True

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.target)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the sums."""
        dtype: np.dtype[Any] = self.matrix.dtype
        return dtype

    @property
    def buffer_size(self) -> int:
        """The number of items: all scores are computed at once."""
        return self.n_items

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds this term's scores to a block of columns."""
        weights = rows.weights(self.source, self.dtype)
        user = np.repeat(np.arange(len(rows)), np.diff(rows.indptr))
        target = self.target.astype(self.dtype, copy=False)
        total = np.empty((len(rows), self.n_items), self.dtype)
        for low in range(0, len(rows), LANES):
            high = min(low + LANES, len(rows))
            part = slice(rows.indptr[low], rows.indptr[high])
            Y = np.zeros((self.n_items, high - low), self.dtype)
            Y[rows.indices[part], user[part] - low] = weights[part]
            Y = polynomial_of(self.matrix, self.coefficients, Y, gram=self.gram)
            np.multiply(Y.T, target, out=total[low:high])

        def add(scores: Floats, low: int) -> None:
            scores += total[:, low : low + scores.shape[1]]

        return add


def polynomial_of(
    matrix: Any, coefficients: Sequence[float], Y: Array, *, gram: bool = True
) -> Array:
    """Return c_0 Y + c_1 M Y + c_2 M^2 Y + ... with M = A^T A, or M itself if not `gram`."""
    product = _gram_product if gram else _product
    csr = (matrix.indptr, matrix.indices, matrix.data)
    factors = [matrix.dtype.type(factor) for factor in coefficients]
    total: Array = factors[0] * Y
    for factor in factors[1:]:
        fresh = np.zeros_like(Y)
        product(*csr, Y, fresh)
        Y = fresh
        if factor:
            total += factor * Y
    return total


def filtered_rows(matrix: Any, coefficients: Sequence[float], right: Array) -> Array:
    """Return right @ (c_0 I + c_1 M + ...) with M = A^T A, in parallel."""
    out = np.empty_like(right)

    def strip(number: int) -> None:
        rows = slice(number * LANES, (number + 1) * LANES)
        columns = np.ascontiguousarray(right[rows].T)
        out[rows] = polynomial_of(matrix, coefficients, columns).T

    machine.run(strip, -(-len(right) // LANES))
    return out


@compiled
def _gram_product(indptr: Any, indices: Any, data: Any, Y: Any, out: Any) -> None:
    """Add A^T (A Y) to `out` in one pass over the rows of A."""
    lanes = Y.shape[1]
    inner = np.empty(lanes, Y.dtype)
    for row in range(len(indptr) - 1):
        inner[:] = 0
        for place in range(indptr[row], indptr[row + 1]):
            value, item = data[place], indices[place]
            for lane in range(lanes):
                inner[lane] += value * Y[item, lane]
        for place in range(indptr[row], indptr[row + 1]):
            value, item = data[place], indices[place]
            for lane in range(lanes):
                out[item, lane] += value * inner[lane]


@compiled
def _product(indptr: Any, indices: Any, data: Any, Y: Any, out: Any) -> None:
    lanes = Y.shape[1]
    for row in range(len(indptr) - 1):
        total = out[row]
        for place in range(indptr[row], indptr[row + 1]):
            value, item = data[place], indices[place]
            for lane in range(lanes):
                total[lane] += value * Y[item, lane]
