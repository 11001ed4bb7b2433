"""Dense engine: Gram matrix, Cholesky factor and inverse in one n x n array in memory.

LAPACK works in place up to `LAPACK_ITEMS`. OpenBLAS gives the threads of a symmetric product
buffers that are too small for larger matrices (OpenMathLib/OpenBLAS#2562): its factorisation of
30,000 items on two threads crashes the process. For larger systems `threaded` runs BLAS with one
thread in each of our threads.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import get_lapack_funcs

from equipoise.data.matrix import Csr
from equipoise.errors import SolveError
from equipoise.runtime import machine
from equipoise.runtime.kernels import compiled, first_at_least
from equipoise.solve.blocked import Span, indefinite, strips
from equipoise.solve.threaded import ThreadedBlocks

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]

TOLERANCE = {"float32": 1e-2, "float64": 1e-8}  # residual beyond which a solve is refused
# The largest sizes known to work on two threads, with a margin
LAPACK_ITEMS = {"float32": 20_000, "float64": 10_000}
SMALL = 2000  # up to this size one thread solves in a fraction of a second
STRIPES = 16  # row stripes per thread: popular items are spread over all of them
SUMS = 2  # rows of G that are summed at a time, in the L2 cache
BLOCK = 1024  # rows of a diagonal block, which one thread factors and inverts
LEAF = 512  # rows of a triangle that is multiplied in full
STRIP = 2048  # rows of a product that are in memory beside the matrix
TILE = 64
REFINE_COLUMNS = 512


class Gram:
    """G = X^T W X for X, users x items, and the inverse of G + diag(penalty)."""

    def __init__(self, X: Csr, user_weights: Vector, dtype: str = "float32") -> None:
        self.X, self.user_weights, self.dtype = X, user_weights, dtype

    def inverse(self, penalty: Vector, *, refine: bool = False) -> tuple[Any, float]:
        """Return P = A^-1 as a new matrix, and its residual."""
        P = self.empty()
        self.fill(P)
        return self.invert(P, penalty, refine=refine)

    def empty(self) -> Any:
        """Return an uninitialised items x items matrix."""
        return np.empty((self.X.shape[1],) * 2, np.dtype(self.dtype))

    def fill(self, out: Any) -> None:
        """Write G into a matrix, in the triangle that `invert` reads."""
        weighted_gram(self.X, self.user_weights, out)

    def invert(self, P: Any, penalty: Vector, *, refine: bool = False) -> tuple[Any, float]:
        """Replace G by P = A^-1; return P and its residual.

        `refine` adds a Newton step, at about three times the cost of the solve.
        """
        P.flat[:: len(P) + 1] += penalty.astype(P.dtype)
        invert_in_place(P)
        if refine:
            newton_step(P, self.X, self.user_weights, penalty)
        return P, check_residual(P, self.X, self.user_weights, penalty)


def weighted_gram(X: Csr, user_weights: Vector, out: Array) -> Array:
    """Fill the upper triangle of `out` with G = X^T diag(w) X; the lower triangle is not touched.

    X has sorted indices, `out` is C-ordered. One thread sums each row in float64 and in a fixed
    order, so the result does not depend on the number of threads.
    """
    fill_gram([(X, user_weights)], (0, X.shape[1]), out)
    return out


def fill_gram(
    parts: Sequence[tuple[Csr, Vector]], span: Span, out: Array, before: Array | None = None
) -> None:
    """Fill a span of rows of G from the diagonal on.

    `parts` are rows of X and the weights of their users, in the order of the users. `out` is
    C-ordered; its first column is that of the first row's diagonal. `before` has the sums of
    earlier users, in the shape of `out`.
    """
    n_rows, width = span[1] - span[0], out.shape[1]
    prepared = [_gram_arrays(X, weights, span) for X, weights in parts]

    def fill(stripe: int) -> None:
        sums = np.empty((SUMS, width))
        for first in range(stripe * SUMS, n_rows, stripes * SUMS):
            rows = slice(first, min(first + SUMS, n_rows))
            totals = sums[: rows.stop - first]
            totals[:] = 0.0 if before is None else before[rows]
            for arrays in prepared:
                _add_rows(arrays, span[0], first, totals)
            _put_rows(totals, first, out)

    stripes = min(STRIPES * machine.count(), -(-n_rows // SUMS))
    machine.run(fill, stripes)


def _gram_arrays(X: Csr, user_weights: Vector, span: Span) -> tuple[Any, ...]:
    """Return the rows of X, the columns of the span, and the weights."""
    indptr, indices = X.indptr.astype(np.int64, copy=False), X.indices.astype(np.int32, copy=False)
    weights = np.ascontiguousarray(user_weights, np.float64)
    # values keep their type: a product with a weight is float64 in any case
    return indptr, indices, X.data, *_columns(indptr, indices, *span), weights


@compiled
def _columns(indptr: Any, indices: Any, low: int, high: int) -> tuple[Any, Any, Any]:
    """Return the starts of the columns of a span, and the user and place of each entry.

    Users ascend. From an entry's place on, its user's row holds exactly the items j >= i.
    """
    n_users = indptr.size - 1
    first = np.empty(n_users, np.int64)
    starts = np.zeros(high - low + 1, np.int64)
    for user in range(n_users):
        place = first_at_least(indices, indptr[user], indptr[user + 1], low)
        first[user] = place
        while place < indptr[user + 1] and indices[place] < high:
            starts[indices[place] - low + 1] += 1
            place += 1
    for column in range(high - low):
        starts[column + 1] += starts[column]
    free = starts[:-1].copy()
    users, places = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.int64)
    for user in range(n_users):
        place = first[user]
        while place < indptr[user + 1] and indices[place] < high:
            column = indices[place] - low
            users[free[column]], places[free[column]] = user, place
            free[column] += 1
            place += 1
    return starts, users, places


@compiled
def _add_rows(arrays: Any, low: int, first: int, sums: Any) -> None:
    """Add rows of a span, from `first` on, to sums of earlier users."""
    indptr, indices, values, column_start, column_user, column_place, weights = arrays
    for i in range(len(sums)):
        row = sums[i]
        for entry in range(column_start[first + i], column_start[first + i + 1]):
            user = column_user[entry]
            start = column_place[entry]
            weight = weights[user] * values[start]
            for place in range(start, indptr[user + 1]):
                row[indices[place] - low] += weight * values[place]


@compiled
def _put_rows(sums: Any, first: int, out: Any) -> None:
    """Write rows from their diagonal on."""
    for i in range(first, first + len(sums)):
        for j in range(i, out.shape[1]):
            out[i, j] = sums[i - first, j]


def gram_times(X: Csr, user_weights: Vector, right: Array) -> Vector:
    """Return G @ right without G, in float64: X^T (w * (X right))."""
    middle = X.astype(np.float64) @ np.asarray(right, np.float64)
    return np.asarray(X.T.astype(np.float64) @ (user_weights[:, None] * middle))


def invert_in_place(A: Array) -> None:
    """Replace a positive definite matrix, given by its upper triangle, by its inverse."""
    mirror(A)
    if len(A) > LAPACK_ITEMS[A.dtype.name]:
        ThreadedBlocks(A, BLOCK, LEAF).invert()
    else:
        with machine.one_blas_thread(len(A) <= SMALL):
            _invert_by_lapack(A)
    mirror(A.T)


def _invert_by_lapack(A: Array) -> None:
    """Replace the lower triangle by that of the inverse.

    LAPACK sees the transpose of our C-ordered buffer, hence its upper triangle. The lower triangle
    is not safe: strtri of OpenBLAS 0.3.30 writes outside of the matrix with the Prescott kernel,
    which also serves unknown processors.
    """
    routines: Any = get_lapack_funcs(("potrf", "potri"), (A,))
    potrf, potri = routines
    factor, info = potrf(A.T, lower=0, clean=0, overwrite_a=1)
    if info > 0:
        raise indefinite(info - 1)
    inverse, info = potri(factor, lower=0, overwrite_c=1)
    if info:
        raise SolveError("the matrix is singular; raise l2 or dropout")
    if not np.shares_memory(inverse, A):
        A[...] = inverse.T


def check_residual(P: Array, X: Csr, user_weights: Vector, penalty: Vector) -> float:
    """Return the relative size of (A P - I) V for four random vectors; refuse an inaccurate P."""
    V = probes(len(P), P.dtype)
    residual = relative_error(X, user_weights, penalty, P @ V, V)
    return check_accuracy(residual, P.dtype.name, "fit with dtype='float64'")


def probes(n_items: int, dtype: npt.DTypeLike) -> Array:
    """Return the random vectors V for checking an inverse."""
    return np.random.default_rng(0).standard_normal((n_items, 4)).astype(dtype)


def relative_error(X: Csr, user_weights: Vector, penalty: Vector, Y: Array, V: Array) -> float:
    """Return the size of A Y - V relative to V."""
    error = _times_system(X, user_weights, penalty, Y) - V
    return float(np.linalg.norm(error) / np.linalg.norm(V))


def check_accuracy(residual: float, dtype: str, remedy: str) -> float:
    """Return the residual of a solve; raise `SolveError` if it is too large for the dtype."""
    limit = TOLERANCE[dtype]
    if not residual <= limit:
        raise SolveError(
            f"the solve is not accurate (residual {residual:.1e}, limit {limit:.0e}); "
            f"raise l2 or dropout, or {remedy}"
        )
    logger.info("residual of the solve: %.1e", residual)
    return residual


def residual_and_level(
    P: Array, X: Csr, user_weights: Vector, penalty: Vector
) -> tuple[float, float]:
    """Return the residual of P, and the residual due to rounding each number of P once.

    The second is simulated: independent errors of P_ij with standard deviation u |P_ij| give
    (P V)_i an error with standard deviation u sqrt(sum_j P_ij^2 V_j^2).
    """
    V = probes(len(P), P.dtype)
    spread = np.empty(V.shape)
    for low, high in strips((0, len(P)), REFINE_COLUMNS):  # an estimate: squares in P's precision
        spread[low:high] = np.sqrt(np.square(P[low:high]) @ np.square(V))
    unit = float(np.finfo(P.dtype).eps) / 2
    error = unit * spread * np.random.default_rng(1).standard_normal(V.shape)
    change = np.linalg.norm(_times_system(X, user_weights, penalty, error))
    level = float(change) / float(np.linalg.norm(V))
    return relative_error(X, user_weights, penalty, P @ V, V), level


def _times_system(X: Csr, user_weights: Vector, penalty: Vector, right: Array) -> Vector:
    """Return A @ right in float64."""
    return np.asarray(gram_times(X, user_weights, right) + penalty[:, None] * right)


def newton_step(P: Array, X: Csr, user_weights: Vector, penalty: Vector) -> None:
    """Improve P in place by P + P (I - A P), a block of columns at a time."""
    for low, high in strips((0, len(P)), REFINE_COLUMNS):
        block = P[:, low:high].astype(np.float64)
        error = -_times_system(X, user_weights, penalty, block)
        error[np.arange(low, high), np.arange(high - low)] += 1
        P[:, low:high] = block + P @ error.astype(P.dtype)
    symmetrize(P)


def add_outer(A: Array, T: Array, sign: float) -> None:
    """Add sign * T^T T to the upper triangle of A, in strips of plain products."""
    for low, high in strips((0, len(A)), STRIP):
        A[low:high, low:] += A.dtype.type(sign) * (T[:, low:high].T @ T[:, low:])


def mirror(A: Array) -> None:
    """Copy the upper triangle onto the lower one."""
    machine.run(lambda row: _mirror_tiles(A, row, False), -(-len(A) // TILE))


def symmetrize(A: Array) -> None:
    """Replace A by the mean of A and its transpose."""
    machine.run(lambda row: _mirror_tiles(A, row, True), -(-len(A) // TILE))


@compiled
def _mirror_tiles(A: Any, row: int, average: bool) -> None:
    n = A.shape[0]
    for low in range(row * TILE, n, TILE):
        for i in range(row * TILE, min((row + 1) * TILE, n)):
            for j in range(max(low, i + 1), min(low + TILE, n)):
                if average:
                    A[i, j] = (A[i, j] + A[j, i]) / 2
                A[j, i] = A[i, j]
