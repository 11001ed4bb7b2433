"""Dual engine: a system of users x users in place of items x items, for few users.

With Y = W^(1/2) X and the penalty L of A = Y^T Y + L, the Woodbury identity gives

    P = A^-1 = L^-1 - L^-1 Y^T C Y L^-1,  C = (I + Y L^-1 Y^T)^-1.

I + Y L^-1 Y^T is the system of the dense engine with users and items exchanged: its Gram matrix
weights the items by 1/L, and its penalty is 1. So the dense and the GPU engine solve it unchanged.
P is never formed: C, Y and L represent it. C has large numbers that cancel in C Y x, so it is
solved and stored in float64, whatever the precision of the scores; it is small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.data.matrix import Csr
from equipoise.runtime import machine
from equipoise.runtime.kernels import compiled
from equipoise.solve import dense, gpu

Vector = npt.NDArray[np.float64]
STRIPES = 64  # parts of the items that threads take in turn


@dataclass(frozen=True, eq=False)
class DualMatrix:
    """The symmetric n x n matrix P = L^-1 - L^-1 Y^T C Y L^-1, stored as its parts.

    `core` is C, users x users, and may be a read-only memory map. `items` is Y^T as CSR: a row for
    each item, a column for each user of nonzero weight. `penalty` is the diagonal of L,
    `inner_diagonal` that of Y^T C Y, and `dtype` the precision of the scores.
    """

    core: npt.NDArray[np.float64]
    items: Csr
    penalty: Vector
    inner_diagonal: Vector
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, int]:
        """Items x items."""
        return (len(self.penalty),) * 2

    @property
    def nbytes(self) -> int:
        """Size of the parts in bytes."""
        Y = self.items
        parts = (self.core, Y.data, Y.indices, Y.indptr, self.penalty, self.inner_diagonal)
        return sum(part.nbytes for part in parts)

    def diagonal(self) -> Vector:
        """Return the diagonal of P."""
        return (1 - self.inner_diagonal / self.penalty) / self.penalty

    def rows(self, low: int, high: int) -> npt.NDArray[Any]:
        """Return a range of rows of P, dense."""
        return self.gathered(np.arange(low, high))

    def gathered(self, positions: npt.NDArray[np.integer]) -> npt.NDArray[Any]:
        """Return the rows of P at these positions, dense."""
        scaled = np.asarray(self.items[positions] @ self.core) / self.penalty[positions, None]
        rows = -np.asarray(self.items @ scaled.T).T / self.penalty
        rows[np.arange(len(positions)), positions] = self.diagonal()[positions]
        return np.ascontiguousarray(rows.astype(self.dtype))

    def __matmul__(self, right: npt.NDArray[Any]) -> Vector:
        scaled = (right.T / self.penalty).T
        through: Any = self.items @ (self.core @ (self.items.T @ scaled))
        return np.asarray(scaled - (through.T / self.penalty).T)


class Dual:
    """Solves the users x users systems of one penalty after another.

    Users without weight or without items are left out. The result is in host memory.
    """

    def __init__(self, X: Csr, user_weights: Vector, device: str = "cpu") -> None:
        self.X, self.user_weights, self.device = X, user_weights, device
        self.items = weighted_items(X, user_weights)

    def solve(
        self, penalty: Vector, dtype: str, *, refine: bool = False
    ) -> tuple[DualMatrix, float]:
        """Return P and its residual."""
        small: dense.Gram
        if self.device == "cpu":
            small = dense.Gram(self.items, 1 / penalty, "float64")
        else:
            small = gpu.Gram(self.items, 1 / penalty, "float64", self.device)
        inverse, _ = small.inverse(np.ones(self.items.shape[1]), refine=refine)
        core = inverse if isinstance(inverse, np.ndarray) else inverse.toarray()
        P = DualMatrix(
            core, self.items, penalty, inner_diagonal(core, self.items), np.dtype(dtype)
        )
        V = dense.probes(len(penalty), "float64")
        residual = dense.relative_error(self.X, self.user_weights, penalty, P @ V, V)
        return P, dense.check_accuracy(residual, "float64", "leave out items with few users")


def weighted_items(X: Csr, user_weights: Vector) -> Csr:
    """Return Y^T = X^T W^(1/2) as CSR, without users of no weight or no items."""
    counts = (user_weights > 0) & (np.diff(X.indptr) > 0)
    Y: Any = sp.diags_array(np.sqrt(user_weights[counts])) @ X[counts].astype(np.float64)
    items: Csr = Y.T.tocsr()
    items.sort_indices()
    return items


def inner_diagonal(core: npt.NDArray[np.float64], items: Csr) -> Vector:
    """Return the diagonal of Y^T C Y: for each item a sum over pairs of its users."""
    out = np.empty(items.shape[0])
    arrays = items.indptr.astype(np.int64), items.indices.astype(np.int32), items.data
    stripes = min(STRIPES, len(out))
    machine.run(lambda first: _fill_inner_diagonal(core, *arrays, first, stripes, out), stripes)
    return out


@compiled
def _fill_inner_diagonal(
    core: Any, indptr: Any, users: Any, values: Any, first: int, step: int, out: Any
) -> None:
    for item in range(first, len(out), step):
        total = 0.0
        for place in range(indptr[item], indptr[item + 1]):
            row, part = core[users[place]], 0.0
            for other in range(indptr[item], place):
                part += values[other] * row[users[other]]
            value = values[place]
            total += value * (2 * part + value * row[users[place]])
        out[item] = total
