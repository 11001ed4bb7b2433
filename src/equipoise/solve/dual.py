"""The dual engine: a system of users x users in place of items x items, where users are fewer.

With Y = W^(1/2) X and the penalty L of A = Y^T Y + L, the Woodbury identity gives

    P = A^-1 = L^-1 - L^-1 Y^T C Y L^-1,  C = (I + Y L^-1 Y^T)^-1.

I + Y L^-1 Y^T is the system of the dense engine with users and items exchanged: its Gram matrix
weighs the items by 1/L, and its penalty is 1. So both the processor's and the card's engine solve
it as it is. P is never formed: C, Y and L stand for it. C has large numbers that cancel in C Y x,
so it is solved for and kept in float64, whatever the precision of the scores; it is small.
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
    """P = L^-1 - L^-1 Y^T C Y L^-1, symmetric n x n, as its parts.

    Parameters
    ----------
    core
        C, users x users, float64; may be a read-only memory map.
    items
        Y^T as CSR, float64: a row for each item, a column for each user that counts.
    penalty
        Diagonal of L.
    own
        Diagonal of Y^T C Y.
    dtype
        Precision of the scores that are made from it.
    """

    core: npt.NDArray[np.float64]
    items: Csr
    penalty: Vector
    own: Vector
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, int]:
        """Items x items."""
        return (len(self.penalty),) * 2

    @property
    def nbytes(self) -> int:
        """Bytes that the parts take."""
        Y = self.items
        parts = (self.core, Y.data, Y.indices, Y.indptr, self.penalty, self.own)
        return sum(part.nbytes for part in parts)

    def diagonal(self) -> Vector:
        """Return the diagonal of P."""
        return (1 - self.own / self.penalty) / self.penalty

    def rows(self, low: int, high: int) -> npt.NDArray[Any]:
        """Return some rows of P, dense."""
        return self.gathered(np.arange(low, high))

    def gathered(self, positions: npt.NDArray[np.integer]) -> npt.NDArray[Any]:
        """Return the rows of P at these positions, dense."""
        some = np.asarray(self.items[positions] @ self.core) / self.penalty[positions, None]
        rows = -np.asarray(self.items @ some.T).T / self.penalty
        rows[np.arange(len(positions)), positions] = self.diagonal()[positions]
        return np.ascontiguousarray(rows.astype(self.dtype))

    def __matmul__(self, right: npt.NDArray[Any]) -> Vector:
        scaled = (right.T / self.penalty).T
        through: Any = self.items @ (self.core @ (self.items.T @ scaled))
        return np.asarray(scaled - (through.T / self.penalty).T)


class Dual:
    """The small systems of some users' weights, for one penalty after another.

    Parameters
    ----------
    X
        Users x items.
    user_weights
        Diagonal of W; users that weigh nothing or have no items count for nothing.
    device
        Where the system is solved, "cpu" or a card; its result is in the memory of the host.
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
        found, _ = small.inverse(np.ones(self.items.shape[1]), refine=refine)
        core = found if isinstance(found, np.ndarray) else found.toarray()
        P = DualMatrix(core, self.items, penalty, own(core, self.items), np.dtype(dtype))
        V = dense.probes(len(penalty), "float64")
        residual = dense.relative_error(self.X, self.user_weights, penalty, P @ V, V)
        return P, dense.accepted(residual, "float64", "leave out items with few users")


def weighted_items(X: Csr, user_weights: Vector) -> Csr:
    """Return Y^T = X^T W^(1/2) as CSR, without users that count for nothing."""
    counts = (user_weights > 0) & (np.diff(X.indptr) > 0)
    Y: Any = sp.diags_array(np.sqrt(user_weights[counts])) @ X[counts].astype(np.float64)
    items: Csr = Y.T.tocsr()
    items.sort_indices()
    return items


def own(core: npt.NDArray[np.float64], items: Csr) -> Vector:
    """Return the diagonal of Y^T C Y: for each item a sum over pairs of its users."""
    out = np.empty(items.shape[0])
    arrays = items.indptr.astype(np.int64), items.indices.astype(np.int32), items.data
    stripes = min(STRIPES, len(out))
    machine.run(lambda first: _own(core, *arrays, first, stripes, out), stripes)
    return out


@compiled
def _own(core: Any, indptr: Any, users: Any, values: Any, first: int, step: int, out: Any) -> None:
    for item in range(first, len(out), step):
        total = 0.0
        for place in range(indptr[item], indptr[item + 1]):
            row, part = core[users[place]], 0.0
            for other in range(indptr[item], place):
                part += values[other] * row[users[other]]
            value = values[place]
            total += value * (2 * part + value * row[users[place]])
        out[item] = total


def needed_bytes(n_users: int, n_items: int, n_interactions: int) -> int:
    """Bytes at the peak of a solve: C, and the interactions by items with the engine's copies."""
    return 8 * n_users**2 + (12 + 16) * n_interactions + 16 * 8 * n_items
