"""The weighted Gram matrix, accumulated straight into one dense buffer.

The blocked inverse in one array in memory, for sizes that LAPACK's threads cannot take.

OpenBLAS gives the threads of a symmetric product buffers that are too small for large matrices
(OpenMathLib/OpenBLAS#2562): its Cholesky factorisation of 30,000 items on two threads ends in a
crash of the process. Beyond `LAPACK_ITEMS` everything large is therefore a plain matrix product.

The dense CPU engine: one n x n buffer, LAPACK Cholesky and inverse in place.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg import lapack

from equipoise import machine
from equipoise.errors import SolveError
from equipoise.kernels import compiled
from equipoise.matrix import Csr
from equipoise.solve import blocked
from equipoise.solve.blocked import Span, strips

STRIPES = 16  # row stripes per thread: popular items are spread over all of them


def weighted_gram(
    X: Csr, user_weights: npt.NDArray[np.float64], out: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Fill the upper triangle of `out` with G = X^T diag(w) X; the rest stays as it is.

    Rows are summed in float64 and each by one thread in a fixed order, so the result does not
    depend on the number of threads.

    Parameters
    ----------
    X
        Users x items, sorted indices.
    user_weights
        One weight per user.
    out
        n x n buffer, C-ordered, float32 or float64.
    """
    n_items = X.shape[1]
    # CSC whose values are the places of the same entries in CSR: from there on, user u's row
    # holds just the items j >= i
    place: Any = sp.csr_array((np.arange(X.nnz), X.indices, X.indptr), X.shape).tocsc()
    arrays = (
        X.indptr.astype(np.int64, copy=False),
        X.indices.astype(np.int32, copy=False),
        X.data.astype(np.float64, copy=False),
        place.indptr.astype(np.int64, copy=False),
        place.indices.astype(np.int32, copy=False),
        place.data.astype(np.int64, copy=False),
        np.ascontiguousarray(user_weights, np.float64),
    )
    stripes = min(STRIPES * machine.count(), n_items)
    machine.run(lambda stripe: _fill_rows(*arrays, stripe, stripes, out), stripes)
    return out


@compiled
def _fill_rows(
    indptr: Any,
    indices: Any,
    values: Any,
    column_start: Any,
    column_user: Any,
    column_place: Any,
    weights: Any,
    first: int,
    step: int,
    out: Any,
) -> None:
    """Fill the rows first, first + step, ... from their diagonal on."""
    n_items = out.shape[0]
    row = np.empty(n_items, np.float64)
    for i in range(first, n_items, step):
        row[i:] = 0.0
        for entry in range(column_start[i], column_start[i + 1]):
            user = column_user[entry]
            start = column_place[entry]
            weight = weights[user] * values[start]
            for place in range(start, indptr[user + 1]):
                row[indices[place]] += weight * values[place]
        for j in range(i, n_items):
            out[i, j] = row[j]


def gram_times(
    X: Csr, user_weights: npt.NDArray[np.float64], right: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """Return G @ right without G, in float64: X^T (w * (X right))."""
    middle = X.astype(np.float64) @ np.asarray(right, np.float64)
    return np.asarray(X.T.astype(np.float64) @ (user_weights[:, None] * middle))


# The largest sizes that were seen to work on two threads, with a margin
LAPACK_ITEMS = {"float32": 20_000, "float64": 10_000}


BLOCK = 1024


STRIP = 2048  # rows of a product that are held beside the matrix

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]


class MemoryBlocks:
    """The steps of `blocked` on views of an array, with numpy's matrix product.

    Parameters
    ----------
    A
        C-ordered; its lower triangle is the matrix.
    block, strip
        As for `Blocks`.
    """

    def __init__(self, A: Array, block: int = BLOCK, strip: int = STRIP) -> None:
        self.A, self.size, self.block, self.strip = A, len(A), block, max(strip, block)
        self._inverses: dict[int, Array] = {}

    def factor(self, at: Span) -> None:
        """Factor T; its inverse is kept for `solve` and `invert`."""
        single = self.A.dtype == np.float32
        T = np.array(self._view(at, at), order="C")
        # the upper triangle as LAPACK sees it: see `dense` for what is wrong with the lower one
        U, info = (lapack.spotrf if single else lapack.dpotrf)(T.T, lower=0, overwrite_a=1)
        if info > 0:
            item = at[0] + info - 1
            raise SolveError(
                f"the matrix is not positive definite (at item {item}); raise l2 or dropout"
            )
        inverse, _ = (lapack.strtri if single else lapack.dtrtri)(U, lower=0, overwrite_c=1)
        self._inverses[at[0]] = inverse.T

    def invert(self, at: Span) -> None:
        """Replace the factor T by its inverse."""
        self._view(at, at)[...] = self._inverses.pop(at[0])

    def square(self, at: Span) -> None:
        """Replace T by T^T T."""
        T = self._view(at, at)
        T[...] = T.T @ T

    def solve(self, rows: Span, at: Span) -> None:
        """A[rows, at] becomes A[rows, at] T^-T."""
        for some in strips(rows, self.strip):
            B = self._view(some, at)
            B[...] = B @ self._inverses[at[0]].T

    def left(self, at: Span, columns: Span) -> None:
        """A[at, columns] becomes -T A[at, columns]."""
        self._multiply(-self._view(at, at), at, columns)

    def left_transposed(self, at: Span, columns: Span) -> None:
        """A[at, columns] becomes T^T A[at, columns]."""
        self._multiply(self._view(at, at).T, at, columns)

    def right(self, rows: Span, at: Span) -> None:
        """A[rows, at] becomes A[rows, at] T."""
        for some in strips(rows, self.strip):
            B = self._view(some, at)
            B[...] = B @ self._view(at, at)

    def add(self, rows: Span, columns: Span, inner: Span, *, sign: int) -> None:
        """A[rows, columns] += sign A[rows, inner] A[inner, columns]."""
        right = self._view(inner, columns)
        for some in strips(rows, self.strip):
            product = self._view(some, inner) @ right
            self._accumulate(some, columns, product, sign)

    def subtract_outer(self, rows: Span, columns: Span, inner: Span) -> None:
        """A[rows, columns] -= A[rows, inner] A[columns, inner]^T."""
        right = self._view(columns, inner).T
        for some in strips(rows, self.strip):
            self._accumulate(some, columns, self._view(some, inner) @ right, -1)

    def add_inner(self, rows: Span, columns: Span, inner: Span) -> None:
        """A[rows, columns] += A[inner, rows]^T A[inner, columns]."""
        right = self._view(inner, columns)
        for some in strips(rows, self.strip):
            self._accumulate(some, columns, self._view(inner, some).T @ right, 1)

    def _multiply(self, left: Array, at: Span, columns: Span) -> None:
        for some in strips(columns, self.strip):
            B = self._view(at, some)
            B[...] = left @ B

    def _accumulate(self, rows: Span, columns: Span, product: Array, sign: int) -> None:
        target = self._view(rows, columns)
        (np.add if sign > 0 else np.subtract)(target, product, out=target)

    def _view(self, rows: Span, columns: Span) -> Array:
        return self.A[rows[0] : rows[1], columns[0] : columns[1]]


def invert_by_blocks(A: Array, block: int = BLOCK, strip: int = STRIP) -> None:
    """Replace the lower triangle of a positive definite matrix by that of its inverse."""
    blocked.invert(MemoryBlocks(A, block, strip))


def add_outer(A: Array, T: Array, sign: float) -> None:
    """Add sign * T^T T to the upper triangle of A, in strips of plain products."""
    for low, high in strips((0, len(A)), STRIP):
        A[low:high, low:] += A.dtype.type(sign) * (T[:, low:high].T @ T[:, low:])


logger = logging.getLogger(__name__)

TOLERANCE = {"float32": 1e-2, "float64": 1e-8}  # residual beyond which a solve is refused


SMALL = 2000  # up to this size one thread solves in a fraction of a second


TILE = 64


REFINE_COLUMNS = 512


class Gram:
    """G = X^T W X of some users' weights, and the inverse of G + diag(penalty).

    Parameters
    ----------
    X
        Users x items.
    user_weights
        Diagonal of W.
    dtype
        "float32" or "float64", of the matrices.
    """

    def __init__(self, X: Csr, user_weights: Vector, dtype: str = "float32") -> None:
        self.X, self.user_weights, self.dtype = X, user_weights, dtype

    def inverse(self, penalty: Vector, *, refine: bool = False) -> tuple[Any, float]:
        """Return P = (G + diag(penalty))^-1 in memory of its own, and its residual."""
        P = self.empty()
        self.fill(P)
        return self.invert(P, penalty, refine=refine)

    def empty(self) -> Any:
        """Return room for an items x items matrix."""
        n_items = self.X.shape[1]
        return np.empty((n_items, n_items), np.dtype(self.dtype))

    def fill(self, out: Any) -> None:
        """Write G into a matrix, in the triangle that `invert` reads."""
        weighted_gram(self.X, self.user_weights, out)

    def invert(self, P: Any, penalty: Vector, *, refine: bool = False) -> tuple[Any, float]:
        """Replace G by P = (G + diag(penalty))^-1; return P and its residual.

        With `refine`, one Newton step follows, at about three times the cost of the solve.
        """
        P.flat[:: len(P) + 1] += penalty.astype(P.dtype)
        invert_in_place(P)
        if refine:
            newton_step(P, self.X, self.user_weights, penalty)
        return P, check_residual(P, self.X, self.user_weights, penalty)


def invert_in_place(A: npt.NDArray[Any]) -> None:
    """Replace a positive definite matrix, given by its upper triangle, by its inverse."""
    mirror(A)
    if len(A) > LAPACK_ITEMS[A.dtype.name]:
        invert_by_blocks(A)
    else:
        with machine.one_blas_thread(len(A) <= SMALL):
            _invert_by_lapack(A)
    mirror(A.T)


def _invert_by_lapack(A: npt.NDArray[Any]) -> None:
    """Replace the lower triangle by that of the inverse.

    LAPACK sees the transpose of our C-ordered buffer, hence its upper triangle. It has to be that
    one: on its lower triangle strtri of OpenBLAS 0.3.30 writes outside of the matrix where the
    kernel is that of Prescott, which is also the one for processors it does not know.
    """
    single = A.dtype == np.float32
    potrf = lapack.spotrf if single else lapack.dpotrf
    potri = lapack.spotri if single else lapack.dpotri
    factor, info = potrf(A.T, lower=0, clean=0, overwrite_a=1)
    if info > 0:
        raise SolveError(
            f"the matrix is not positive definite (at item {info - 1}); raise l2 or dropout"
        )
    inverse, info = potri(factor, lower=0, overwrite_c=1)
    if info:
        raise SolveError("the matrix is singular; raise l2 or dropout")
    if not np.shares_memory(inverse, A):
        A[...] = inverse.T


def check_residual(
    P: npt.NDArray[Any],
    X: Csr,
    user_weights: npt.NDArray[np.float64],
    penalty: npt.NDArray[np.float64],
) -> float:
    """Return the relative size of (A P - I) V for four random vectors; refuse a bad solve."""
    V = _probes(P)
    error = _times_system(X, user_weights, penalty, P @ V) - V
    residual = float(np.linalg.norm(error) / np.linalg.norm(V))
    limit = TOLERANCE[P.dtype.name]
    if not residual <= limit:
        raise SolveError(
            f"the solve is not accurate (residual {residual:.1e}, limit {limit:.0e}); "
            "raise l2 or dropout, or fit with dtype='float64'"
        )
    logger.info("residual of the solve: %.1e", residual)
    return residual


def residual_and_level(
    P: npt.NDArray[Any],
    X: Csr,
    user_weights: npt.NDArray[np.float64],
    penalty: npt.NDArray[np.float64],
) -> tuple[float, float]:
    """Return the residual of P, and the residual that rounding each number of P once makes.

    The second is drawn: independent errors of P_ij, of standard size u |P_ij|, are in (P V)_i an
    error of standard size u sqrt(sum_j P_ij^2 V_j^2).
    """
    V = _probes(P)
    square = V.astype(np.float64) ** 2
    spread = np.empty(V.shape)
    for low in range(0, len(P), REFINE_COLUMNS):
        rows = P[low : low + REFINE_COLUMNS].astype(np.float64)
        spread[low : low + REFINE_COLUMNS] = np.sqrt(np.square(rows, out=rows) @ square)
    unit = float(np.finfo(P.dtype).eps) / 2
    error = unit * spread * np.random.default_rng(1).standard_normal(V.shape)
    size = float(np.linalg.norm(V))
    level = float(np.linalg.norm(_times_system(X, user_weights, penalty, error))) / size
    residual = _times_system(X, user_weights, penalty, P @ V) - V
    return float(np.linalg.norm(residual)) / size, level


def _times_system(
    X: Csr,
    user_weights: npt.NDArray[np.float64],
    penalty: npt.NDArray[np.float64],
    right: npt.NDArray[Any],
) -> npt.NDArray[np.float64]:
    """Return A @ right in float64."""
    return np.asarray(gram_times(X, user_weights, right) + penalty[:, None] * right)


def _probes(P: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.random.default_rng(0).standard_normal((len(P), 4)).astype(P.dtype)


def newton_step(
    P: npt.NDArray[Any],
    X: Csr,
    user_weights: npt.NDArray[np.float64],
    penalty: npt.NDArray[np.float64],
) -> None:
    """Improve P in place by P + P (I - A P), a block of columns at a time."""
    n_items = P.shape[0]
    for start in range(0, n_items, REFINE_COLUMNS):
        stop = min(start + REFINE_COLUMNS, n_items)
        block = P[:, start:stop].astype(np.float64)
        error = -gram_times(X, user_weights, block) - penalty[:, None] * block
        error[np.arange(start, stop), np.arange(stop - start)] += 1
        P[:, start:stop] = block + P @ error.astype(P.dtype)
    symmetrize(P)


def mirror(A: npt.NDArray[Any]) -> None:
    """Copy the upper triangle onto the lower one."""
    rows = -(-len(A) // TILE)
    machine.run(lambda row: _mirror_tiles(A, row), rows)


def symmetrize(A: npt.NDArray[Any]) -> None:
    """Replace A by the mean of A and its transpose."""
    rows = -(-len(A) // TILE)
    machine.run(lambda row: _average_tiles(A, row), rows)


@compiled
def _mirror_tiles(A: Any, row: int) -> None:
    n = A.shape[0]
    for low in range(row * TILE, n, TILE):
        for i in range(row * TILE, min((row + 1) * TILE, n)):
            for j in range(max(low, i + 1), min(low + TILE, n)):
                A[j, i] = A[i, j]


@compiled
def _average_tiles(A: Any, row: int) -> None:
    n = A.shape[0]
    for low in range(row * TILE, n, TILE):
        for i in range(row * TILE, min((row + 1) * TILE, n)):
            for j in range(max(low, i + 1), min(low + TILE, n)):
                mean = (A[i, j] + A[j, i]) / 2
                A[i, j] = mean
                A[j, i] = mean
