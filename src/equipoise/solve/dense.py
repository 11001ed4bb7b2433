"""The dense CPU engine: one n x n buffer, LAPACK Cholesky and inverse in place."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack

from equipoise import threads
from equipoise.errors import SolveError
from equipoise.kernels import compiled
from equipoise.matrix import Csr
from equipoise.solve.gram import gram_times, weighted_gram
from equipoise.solve.inmemory import LAPACK_ITEMS, invert_by_blocks

logger = logging.getLogger(__name__)

TOLERANCE = {"float32": 1e-2, "float64": 1e-8}  # residual beyond which a solve is refused
SMALL = 2000  # up to this size one thread solves in a fraction of a second
TILE = 64
REFINE_COLUMNS = 512


@dataclass(frozen=True)
class Inverse:
    """P = (X^T W X + diag(penalty))^-1 and how accurate it is.

    Parameters
    ----------
    P
        Symmetric n x n array.
    residual
        Relative size of (A P - I) v over random vectors v.
    """

    P: npt.NDArray[Any]
    residual: float


def invert(
    X: Csr,
    user_weights: npt.NDArray[np.float64],
    penalty: npt.NDArray[np.float64],
    *,
    dtype: str = "float32",
    refine: bool = False,
) -> Inverse:
    """Solve for P in one n x n buffer.

    Parameters
    ----------
    X
        Users x items.
    user_weights
        Diagonal of W.
    penalty
        Diagonal added to the Gram matrix, one number per item.
    dtype
        "float32" or "float64".
    refine
        Improve the result by one Newton step, at about four times the cost of the solve.
    """
    n_items = X.shape[1]
    P = np.empty((n_items, n_items), np.dtype(dtype))
    weighted_gram(X, user_weights, P)
    P.flat[:: n_items + 1] += penalty.astype(P.dtype)
    invert_in_place(P)
    if refine:
        newton_step(P, X, user_weights, penalty)
    residual = check_residual(P, X, user_weights, penalty)
    return Inverse(P, residual)


def invert_in_place(A: npt.NDArray[Any]) -> None:
    """Replace a positive definite matrix, given by its upper triangle, by its inverse."""
    mirror(A)
    if len(A) > LAPACK_ITEMS[A.dtype.name]:
        invert_by_blocks(A)
    else:
        with threads.one_blas_thread(len(A) <= SMALL):
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
    threads.run(lambda row: _mirror_tiles(A, row), rows)


def symmetrize(A: npt.NDArray[Any]) -> None:
    """Replace A by the mean of A and its transpose."""
    rows = -(-len(A) // TILE)
    threads.run(lambda row: _average_tiles(A, row), rows)


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
