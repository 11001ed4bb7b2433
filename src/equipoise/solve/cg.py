"""Rows of C = M^-1 R on demand, where M is sparse and most of its weight is on the diagonal.

    M = A^T A + diag(d),   R = A^T T + S      A, T: rows x items, S: items x items, all sparse

Conjugate gradients solve for many items side by side, so that one pass over A serves all of them.
They run in single precision, which moves half the bytes: with a diagonal of ones and few steps,
the rounding error of an entry stays in proportion to the entry, at about 1e-5 of it where an item
has ten thousand sessions. Rows in double precision, and those that take many steps, are refined
iteratively: the residual is computed in double precision and solved for again until it is small.
Every item has separate sums and stops separately, so the bits of its row do not depend on the
items beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.errors import SolveError
from equipoise.runtime.kernels import compiled

LANES = 128  # items side by side, at most
LANE_NUMBERS = 1 << 23  # of items x lanes: a thread stays within about 400 MB
# Relative residual. Far below float32's rounding, because lists also rank scores that are a
# millionth of the largest one: at 1e-7 some items changed places.
TOLERANCE = {"float32": 1e-9, "float64": 1e-12}
FEW_STEPS = 24  # after which rounding in single precision does not accumulate yet
ROUGH, ROUGH_STEPS = 1e-4, 40  # of rough rows
ROUND = 3e-6  # relative residual that single precision reaches in one run of many steps
MOST_STEPS = 1000
LARGEST = 1e15  # value whose square, summed over all events, single precision can hold

Matrix = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float64]
_ByPrecision = dict[str, tuple[Any, Any, Any]]  # dtype -> offsets, columns and values of a CSR


@dataclass(frozen=True, eq=False)
class System:
    """The matrices of C = M^-1 R; CSR with int64 offsets, int32 columns and float64 values.

    `inputs` is A, `targets` T, `diagonal` d > 0 and `right` S. With `rough`, rows in
    single precision have about four digits: enough to compare settings, in half the time or less.
    """

    inputs: Any
    targets: Any
    diagonal: npt.NDArray[np.float64]
    right: Any
    rough: bool = False

    @cached_property
    def lanes(self) -> int:
        """Number of items that are solved side by side."""
        return int(np.clip(LANE_NUMBERS // len(self.diagonal), 8, LANES))

    @cached_property
    def _local(self) -> _Local:
        return _Local.of(self)

    def rows(self, items: npt.NDArray[np.int64], dtype: str) -> npt.NDArray[Any]:
        """Return the rows of C of these items, items x n."""
        out = np.empty((len(items), len(self.diagonal)), dtype)
        for start in range(0, len(items), self.lanes):
            lanes = slice(start, start + self.lanes)
            out[lanes] = self._local.rows(items[lanes], dtype)
        return out


@dataclass(frozen=True, eq=False)
class _Local:
    """The system with a diagonal of ones and with items that occur together stored together.

    This improves cache locality: a pass takes half the time. `place` is the new position of each
    item and `scale` the root of the diagonal of M. `inputs`, `targets` and `right` are A / scale,
    T and S / scale in the new order, `diagonal` is d / scale^2; all of them by precision.
    """

    place: npt.NDArray[np.int64]
    scale: npt.NDArray[np.float64]
    inputs: _ByPrecision
    targets: _ByPrecision
    right: _ByPrecision
    diagonal: dict[str, npt.NDArray[Any]]
    rough: bool

    @classmethod
    def of(cls, system: System) -> _Local:
        A, T, S = system.inputs, system.targets, system.right
        if any(np.abs(matrix.data).max(initial=0) > LARGEST for matrix in (A, T, S)):
            raise SolveError("the values of the sessions are too large; scale them down")
        order = local_order(A)
        place = np.argsort(order)
        squares = np.bincount(A.indices, A.data**2, minlength=len(order))
        scale = np.sqrt(system.diagonal + squares)
        used = np.flatnonzero(np.diff(A.indptr))
        first = np.full(A.shape[0], len(order))
        if len(used):
            first[used] = np.minimum.reduceat(place[A.indices], A.indptr[used])
        rows = np.argsort(first, kind="stable")
        diagonal = (system.diagonal / scale**2)[order]
        of_row = np.repeat(scale, np.diff(S.indptr))
        return cls(
            place,
            scale[order],
            _by_precision(_with_values(A, A.data / scale[A.indices])[rows], place),
            _by_precision(T[rows], place),
            _by_precision(_with_values(S, S.data / of_row)[order], place),
            {dtype: diagonal.astype(dtype) for dtype in TOLERANCE},
            system.rough,
        )

    def rows(self, items: npt.NDArray[np.int64], dtype: str) -> npt.NDArray[Any]:
        """Return the rows of C of these items."""
        places = self.place[items]
        Y = (
            self._solve_single(places)
            if dtype == "float32"
            else self._solve(places, TOLERANCE[dtype])
        )
        out = np.zeros_like(Y)
        _add_through(self.inputs[dtype], self.targets[dtype], Y, out)
        _add_scattered(self.right[dtype], Y, out)
        return np.ascontiguousarray(out[self.place].T)

    def _solve_single(self, items: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return `_solve` in single precision, from one run where few steps suffice."""
        lanes = np.arange(len(items))
        tolerance = ROUGH if self.rough else TOLERANCE["float32"]
        most_steps = ROUGH_STEPS if self.rough else FEW_STEPS
        unit = np.zeros((len(self.scale), len(items)), np.float32)
        unit[items, lanes] = 1.0
        Y, reached = np.zeros_like(unit), np.empty(len(items))
        system = self.inputs["float32"], self.diagonal["float32"]
        _conjugate(*system, unit, Y, np.full(len(items), tolerance), reached, most_steps)
        Y *= (1 / self.scale[items]).astype(np.float32)
        slow = (reached > 0) & (not self.rough)
        if slow.any():
            Y[:, slow] = self._solve(items[slow], tolerance, Y[:, slow])
        return Y

    def _solve(
        self, items: npt.NDArray[np.int64], tolerance: float, start: npt.NDArray[Any] | None = None
    ) -> Matrix:
        """Return the Y of K Y = e / scale, n x items, where K has a diagonal of ones."""
        residual = np.zeros((len(self.scale), len(items)))
        residual[items, np.arange(len(items))] = size = 1 / self.scale[items]
        Y, goal = np.zeros_like(residual), tolerance * size
        if start is not None:
            Y += start
            self._subtract_product(residual, Y)
            size = _norms(residual)
        running, hard = np.ones(len(items), np.bool_), np.zeros(len(items), np.bool_)
        while running.any():
            share = np.where(running, np.maximum(goal / size, ROUND), 1.0)
            change, reached = self._improvement(residual, size, share, "float32")
            Y += change
            hard |= reached > share
            running &= (goal < ROUND * size) | hard  # all other lanes have converged
            if not running.any():
                break
            self._subtract_product(residual, change)
            left = _norms(residual)
            # such a system is too ill-conditioned for single precision
            hard |= running & (left > 0.1 * size)
            running &= ~hard & (left > goal)
            size = np.where(left > 0, left, size)
        if hard.any():
            remainder, share = np.ascontiguousarray(residual[:, hard]), goal[hard] / size[hard]
            change, reached = self._improvement(remainder, size[hard], share, "float64")
            if (reached > share).any():
                raise SolveError(
                    f"the solve did not converge in {MOST_STEPS} steps; raise l2 or dropout, or "
                    "fit with engine='dense'"
                )
            Y[:, hard] += change
        return Y

    def _improvement(
        self, residual: Matrix, size: Vector, share: Vector, dtype: str
    ) -> tuple[Matrix, Vector]:
        """Return the correction of the solution, and the share of the residual that remains."""
        step = np.zeros(residual.shape, dtype)
        right = (residual / size).astype(dtype)
        reached = np.empty(len(size))
        system = self.inputs[dtype], self.diagonal[dtype]
        _conjugate(*system, right, step, share, reached, MOST_STEPS)
        return step * size, reached

    def _subtract_product(self, residual: Matrix, change: Matrix) -> None:
        """Subtract K times the change from the residual, in double precision."""
        A = self.inputs["float64"]
        product = self.diagonal["float64"][:, None] * change
        _add_through(A, A, change, product)
        residual -= product


def _by_precision(matrix: Any, place: npt.NDArray[np.int64]) -> _ByPrecision:
    """Return the arrays of a CSR matrix whose columns move to new positions, by precision."""
    indptr, indices = matrix.indptr.astype(np.int64), place[matrix.indices].astype(np.int32)
    return {dtype: (indptr, indices, matrix.data.astype(dtype)) for dtype in TOLERANCE}


def local_order(rows: Any) -> npt.NDArray[np.int64]:
    """Return the columns of a sparse matrix in an order that keeps the columns of a row together.

    The parent of a column is the more common column that most often precedes it when rows are
    sorted by how common columns are; the order is a depth-first traversal of these trees.

    >>> import scipy.sparse as sp
    >>> rows = sp.csr_array([[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 0]])
    >>> local_order(rows).tolist()
    [0, 2, 1, 3]
    """
    n = rows.shape[1]
    common = np.argsort(-np.bincount(rows.indices, minlength=n), kind="stable")
    rank = np.argsort(common)
    row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    key = np.sort(row * n + rank[rows.indices])  # the columns of a row, common ones first
    same = key[1:] // n == key[:-1] // n
    pairs, times = np.unique((key[1:] % n * n + key[:-1] % n)[same], return_counts=True)
    strongest = np.lexsort((times, pairs // n))
    child, parent = pairs[strongest] // n, np.arange(n)
    parent[child] = pairs[strongest] % n  # the last assignment, the strongest, wins
    by_parent = np.argsort(parent, kind="stable")
    starts = np.searchsorted(parent[by_parent], np.arange(n + 1))
    order = np.empty(n, np.int64)
    _depth_first(parent, starts, by_parent, order)
    return np.asarray(common[order])


@compiled
def _depth_first(parent: Any, starts: Any, children: Any, order: Any) -> None:
    waiting = np.empty(len(parent), np.int64)
    length = 0
    for root in range(len(parent)):
        if parent[root] != root:
            continue
        waiting[0], size = root, 1
        while size > 0:
            size -= 1
            node = waiting[size]
            order[length] = node
            length += 1
            for at in range(starts[node], starts[node + 1]):
                if children[at] != node:
                    waiting[size] = children[at]
                    size += 1


def _with_values(matrix: Any, values: Any) -> Any:
    return sp.csr_array((values, matrix.indices, matrix.indptr), matrix.shape)


def _norms(columns: Matrix) -> npt.NDArray[np.float64]:
    sums = np.zeros(columns.shape[1])
    _add_squares(columns, sums)
    return np.sqrt(sums)


@compiled
def _add_squares(columns: Any, sums: Any) -> None:
    """Add the squares of each column; no sum depends on the other columns."""
    for i in range(len(columns)):
        row = columns[i]
        for lane in range(len(sums)):
            sums[lane] += row[lane] * row[lane]


@compiled
def _add_scattered(S: Any, V: Any, out: Any) -> None:
    """Add S^T V to out."""
    indptr, indices, values = S
    for row in range(len(indptr) - 1):
        for entry in range(indptr[row], indptr[row + 1]):
            column, value = indices[entry], values[entry]
            for lane in range(V.shape[1]):
                out[column, lane] += value * V[row, lane]


@compiled
def _add_through(A: Any, T: Any, V: Any, out: Any) -> None:
    """Add T^T A V to out, row by row of A and T."""
    indptr, indices, values = A
    target_indptr, target_indices, target_values = T
    lanes = V.shape[1]
    total = np.empty(lanes, V.dtype)
    for row in range(len(indptr) - 1):
        total[:] = 0
        for entry in range(indptr[row], indptr[row + 1]):
            column, value = indices[entry], values[entry]
            for lane in range(lanes):
                total[lane] += value * V[column, lane]
        for entry in range(target_indptr[row], target_indptr[row + 1]):
            column, value = target_indices[entry], target_values[entry]
            for lane in range(lanes):
                out[column, lane] += value * total[lane]


@compiled
def _add_product(A: Any, live: Any, V: Any, out: Any) -> None:
    """Add A^T A V to out; other rows of V than live ones are 0; rows it reaches become live."""
    indptr, indices, values = A
    lanes = V.shape[1]
    total = np.empty(lanes, V.dtype)
    before = live.copy()
    for row in range(len(indptr) - 1):
        is_reached = False
        for entry in range(indptr[row], indptr[row + 1]):
            is_reached |= before[indices[entry]]
        if not is_reached:
            continue
        total[:] = 0
        for entry in range(indptr[row], indptr[row + 1]):
            column, value = indices[entry], values[entry]
            if before[column]:
                for lane in range(lanes):
                    total[lane] += value * V[column, lane]
        for entry in range(indptr[row], indptr[row + 1]):
            column, value = indices[entry], values[entry]
            live[column] = True
            for lane in range(lanes):
                out[column, lane] += value * total[lane]


@compiled
def _conjugate(
    A: Any, diagonal: Any, residual: Any, X: Any, share: Any, reached: Any, most: int
) -> None:
    """Solve (A^T A + d) X = residual, which is overwritten, each lane to a share of it.

    The diagonal of the matrix is 1. `reached` gets the remaining share, 0 for a lane that has
    converged. Items that no step has reached yet are zero in all lanes and skipped.
    """
    n, lanes = residual.shape
    P, Q = residual.copy(), np.empty_like(residual)
    size, first, goal, curve = np.zeros(lanes), np.zeros(lanes), np.zeros(lanes), np.zeros(lanes)
    alpha, beta = np.zeros(lanes, residual.dtype), np.zeros(lanes, residual.dtype)
    live = np.zeros(n, np.bool_)
    for i in range(n):
        for lane in range(lanes):
            live[i] |= residual[i, lane] != 0
            Q[i, lane] = diagonal[i] * residual[i, lane]
    _add_squares(residual, size)
    for lane in range(lanes):
        first[lane] = size[lane]
        goal[lane] = share[lane] * share[lane] * size[lane]
    for _ in range(most):
        running = 0
        for lane in range(lanes):
            running += size[lane] > goal[lane]
        if running == 0:
            break
        _add_product(A, live, P, Q)
        curve[:] = 0.0
        for i in range(n):
            if live[i]:
                for lane in range(lanes):
                    curve[lane] += P[i, lane] * Q[i, lane]
        for lane in range(lanes):
            # a lane that has converged takes no more steps
            moving = size[lane] > goal[lane]
            alpha[lane] = size[lane] / curve[lane] if moving else 0.0
            curve[lane] = size[lane]
        size[:] = 0.0
        for i in range(n):
            if live[i]:
                for lane in range(lanes):
                    X[i, lane] += alpha[lane] * P[i, lane]
                    residual[i, lane] -= alpha[lane] * Q[i, lane]
                    size[lane] += residual[i, lane] * residual[i, lane]
        for lane in range(lanes):
            beta[lane] = size[lane] / curve[lane] if alpha[lane] != 0.0 else 0.0
        for i in range(n):
            if live[i]:
                for lane in range(lanes):
                    P[i, lane] = residual[i, lane] + beta[lane] * P[i, lane]
                    Q[i, lane] = diagonal[i] * P[i, lane]
    for lane in range(lanes):
        reached[lane] = np.sqrt(size[lane] / first[lane]) if size[lane] > goal[lane] else 0.0
