"""Rows of C = M^-1 R on demand, where M is sparse and most of its weight is on the diagonal.

    M = A^T A + diag(d),   R = A^T T + S      A, T: rows x items, S: items x items, all sparse

Conjugate gradients solve for a few items at a time, eight side by side, so that one pass over A
serves eight of them. Every item has its own sums and its own end, so the bits of its row do not
depend on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.errors import SolveError
from equipoise.kernels import compiled

LANES = 8  # items side by side: one cache line; `_add_through` is written for this number


# Of the residual, relative. Far below float32's rounding, for lists also rank scores that are a
# millionth of the largest one: at 1e-7 some of them changed places.
TOLERANCE = {"float32": 1e-11, "float64": 1e-12}


MOST_STEPS = 1000


@dataclass(frozen=True, eq=False)
class System:
    """The matrices of C = M^-1 R; CSR with int64 offsets, int32 columns and float64 values.

    Parameters
    ----------
    inputs, targets
        A and T.
    diagonal
        d, all > 0.
    right
        S.
    """

    inputs: Any
    targets: Any
    diagonal: npt.NDArray[np.float64]
    right: Any

    @cached_property
    def jacobi(self) -> npt.NDArray[np.float64]:
        """Diagonal of M."""
        squares = self.inputs.data**2
        sums = np.bincount(self.inputs.indices, squares, minlength=len(self.diagonal))
        return np.asarray(self.diagonal + sums)

    @cached_property
    def _identity(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        n_items = len(self.diagonal)
        return np.arange(n_items + 1), np.arange(n_items, dtype=np.int32), np.ones(n_items)

    def rows(
        self, items: npt.NDArray[np.int64], dtype: str, tolerance: float | None = None
    ) -> npt.NDArray[Any]:
        """Return the rows of C of these items, items x n."""
        tolerance = TOLERANCE[dtype] if tolerance is None else tolerance
        out = np.empty((len(items), len(self.diagonal)), dtype)
        for start in range(0, len(items), LANES):
            some = items[start : start + LANES]
            out[start : start + LANES] = self._solve(some, tolerance).T[: len(some)]
        return out

    def times(self, V: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return M V for up to eight columns."""
        lanes = np.zeros((len(self.diagonal), LANES))
        lanes[:, : V.shape[1]] = V
        out = self.diagonal[:, None] * lanes
        A = self.inputs
        _add_through(A.indptr, A.indices, A.data, A.indptr, A.indices, A.data, lanes, out)
        return out[:, : V.shape[1]]

    def _solve(self, items: npt.NDArray[np.int64], tolerance: float) -> npt.NDArray[np.float64]:
        unit = np.zeros((len(self.diagonal), LANES))
        unit[items, np.arange(len(items))] = 1.0
        A, T, S = self.inputs, self.targets, self.right
        Z = np.zeros_like(unit)
        steps = _conjugate(
            A.indptr, A.indices, A.data, self.diagonal, self.jacobi, unit, Z, tolerance, MOST_STEPS
        )
        if steps < 0:
            raise SolveError(
                f"the solve did not settle in {MOST_STEPS} steps; raise l2 or dropout, or fit "
                "with engine='dense'"
            )
        unit[:] = 0.0
        _add_through(A.indptr, A.indices, A.data, T.indptr, T.indices, T.data, Z, unit)
        starts, columns, ones = self._identity
        _add_through(starts, columns, ones, S.indptr, S.indices, S.data, Z, unit)
        return unit


@compiled
def _add_through(
    indptr: Any,
    indices: Any,
    values: Any,
    target_indptr: Any,
    target_indices: Any,
    target_values: Any,
    V: Any,
    out: Any,
) -> None:
    """Add T^T A V to out, row by row of A and T; the sums of a row stay in registers."""
    for row in range(len(indptr) - 1):
        a = b = c = d = e = f = g = h = 0.0
        for entry in range(indptr[row], indptr[row + 1]):
            i, value = indices[entry], values[entry]
            a += value * V[i, 0]
            b += value * V[i, 1]
            c += value * V[i, 2]
            d += value * V[i, 3]
            e += value * V[i, 4]
            f += value * V[i, 5]
            g += value * V[i, 6]
            h += value * V[i, 7]
        for entry in range(target_indptr[row], target_indptr[row + 1]):
            i, value = target_indices[entry], target_values[entry]
            out[i, 0] += value * a
            out[i, 1] += value * b
            out[i, 2] += value * c
            out[i, 3] += value * d
            out[i, 4] += value * e
            out[i, 5] += value * f
            out[i, 6] += value * g
            out[i, 7] += value * h


@compiled
def _conjugate(
    indptr: Any,
    indices: Any,
    values: Any,
    diagonal: Any,
    jacobi: Any,
    residual: Any,
    X: Any,
    tolerance: float,
    most: int,
) -> int:
    """Solve M X = residual, which is overwritten; return the steps, or -1 if they run out."""
    n = len(diagonal)
    P, Q = np.empty((n, LANES)), np.empty((n, LANES))
    size, first = np.zeros(LANES), np.zeros(LANES)  # r^T J^-1 r now and at the start
    alpha, beta, curve = np.zeros(LANES), np.zeros(LANES), np.zeros(LANES)
    for i in range(n):
        for lane in range(LANES):
            P[i, lane] = residual[i, lane] / jacobi[i]
            first[lane] += residual[i, lane] * P[i, lane]
    size[:] = first
    for step in range(most):
        running = 0
        for lane in range(LANES):
            running += size[lane] > tolerance * tolerance * first[lane]
        if running == 0:
            return step
        for i in range(n):
            for lane in range(LANES):
                Q[i, lane] = diagonal[i] * P[i, lane]
        _add_through(indptr, indices, values, indptr, indices, values, P, Q)
        curve[:] = 0.0
        for i in range(n):
            for lane in range(LANES):
                curve[lane] += P[i, lane] * Q[i, lane]
        for lane in range(LANES):
            # a lane that has settled takes no more steps
            moving = size[lane] > tolerance * tolerance * first[lane]
            alpha[lane] = size[lane] / curve[lane] if moving else 0.0
            beta[lane] = size[lane]
            size[lane] = 0.0
        for i in range(n):
            for lane in range(LANES):
                X[i, lane] += alpha[lane] * P[i, lane]
                residual[i, lane] -= alpha[lane] * Q[i, lane]
                size[lane] += residual[i, lane] * residual[i, lane] / jacobi[i]
        for lane in range(LANES):
            beta[lane] = size[lane] / beta[lane] if alpha[lane] != 0.0 else 0.0
        for i in range(n):
            for lane in range(LANES):
                P[i, lane] = residual[i, lane] / jacobi[i] + beta[lane] * P[i, lane]
    return -1
