"""Truncated SVD of a sparse matrix, and a cache of the spectra of interactions.

Spectra of interactions are flat, so plain randomised methods miss the smaller values. Here a block
Krylov space of the Gram matrix is built with full orthogonalisation and restarted from its best
Ritz vectors until the residuals are small. Small matrices are decomposed densely.

scipy's `svds` works one vector at a time: for 256 values of a 12,000 x 6,000 matrix ARPACK takes
twice as long, PROPACK five times (LOBPCG is slower still); for 64 ARPACK takes two thirds.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg import eigh, qr

from equipoise.checks import choice, count
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import entry_rows
from equipoise.errors import TooBigError
from equipoise.normalize import power
from equipoise.runtime.machine import free_memory, gigabytes

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]

BLOCK = 64  # vectors multiplied at a time: enough for BLAS, few enough for a deep space
DENSE = 1500  # shorter side up to which the dense decomposition is as fast
RESTARTS = 40
TINY = 1e-30
ROW_NUMBERS = 1 << 24  # numbers of a block of rows in the randomised method
LARGE = 200_000  # shorter side from which a companion is fitted by the randomised method,
ROUNDS = 4  # with this many rounds
SURPLUS = 1.25  # and this many times the vectors
CACHED_BYTES = 1 << 30  # of spectra that later models on the same data can use


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The largest singular values of a matrix A, largest first, and their right singular vectors.

    `right` has a vector per row, q x n_columns, whose largest entry by absolute value is positive.
    The left ones are ``A @ right.T / values``. A singular value of 0 has a vector of zeros, as any
    other would be arbitrary.
    """

    values: Array
    right: Array

    def first(self, rank: int) -> Spectrum:
        """Return views of the `rank` largest."""
        return Spectrum(self.values[:rank], self.right[:rank])


def truncated_svd(
    matrix: Any,
    rank: int,
    *,
    seed: int = 0,
    dtype: str = "float32",
    tolerance: float = 1e-4,
    power_iterations: int | None = None,
) -> Spectrum:
    """Return the `rank` largest singular values of a matrix and their right vectors.

    The matrix is sparse, or anything whose products ``matrix @ B`` and ``matrix.T @ B`` are
    arrays. The same matrix, rank, seed and dtype give the same result, up to the rounding of BLAS.
    The tolerance bounds ``||A^T A v - s^2 v||``, as a share of the largest s^2. With
    `power_iterations`, a plain randomised method without extra vectors runs this many rounds
    instead: for models whose authors used it.
    """
    shorter = min(matrix.shape)
    count("rank", rank, 1, shorter)
    choice("dtype", dtype, ("float32", "float64"))
    needed = needed_bytes(matrix.shape, rank, dtype, power_iterations)
    if needed > free_memory():
        raise TooBigError(
            f"an SVD of rank {rank} needs {gigabytes(needed)} of memory; take a smaller rank"
        )
    wide = matrix.shape[1] > matrix.shape[0] and power_iterations is None
    A = (matrix.T if wide else matrix).astype(dtype)  # its Gram matrix A^T A is the smaller one
    dense = _is_dense(shorter, rank)
    if power_iterations is not None:
        squares, vectors = _randomised(A, rank, seed, dtype, power_iterations)
    elif dense:
        squares, vectors = _dense(A, rank)
    else:
        At = A.T.tocsr() if hasattr(A, "tocsr") else A.T
        squares, vectors = _krylov(lambda Y: At @ (A @ Y), shorter, rank, seed, dtype, tolerance)
    # values come from squares, so their rounding is the root of that of the squares
    real = squares > (1e-12 if dense or dtype == "float64" else 1e-6) * squares[0]
    values = np.where(real, np.sqrt(np.maximum(squares, 0)), 0)
    if wide:  # v = A^T u / s
        vectors = A @ vectors.astype(dtype)
        norms = np.sqrt(np.einsum("ij,ij->j", vectors, vectors, dtype=np.float64))
        vectors /= np.where(norms > 0, norms, 1).astype(dtype)
    right = np.ascontiguousarray(vectors.T, dtype)
    right[~real] = 0
    largest = right[np.arange(rank), np.abs(right).argmax(axis=1)]
    right *= np.where(largest < 0, -1, 1)[:, None].astype(dtype)
    return Spectrum(values.astype(dtype), right)


def companion_sketch(shape: tuple[int, int], rank: int) -> tuple[int, int | None]:
    """Return the number of vectors and of rounds of a companion's SVD.

    None rounds mean full accuracy, which takes too much memory and time for large data.
    """
    rank = min(rank, *shape)
    if min(shape) <= LARGE:
        return rank, None
    return min(int(SURPLUS * rank) + 8, *shape), ROUNDS


def needed_bytes(
    shape: tuple[int, int], rank: int, dtype: str, power_iterations: int | None = None
) -> int:
    """Return the peak memory of `truncated_svd`, without copies of the matrix."""
    shorter, itemsize = min(shape), int(np.dtype(dtype).itemsize)
    result = 2 * itemsize * rank * shape[1]  # the vectors, and in rows
    if power_iterations is not None:  # three sketches, and one more while a product is added
        return result + itemsize * rank * 4 * shape[1] + 3 * 8 * ROW_NUMBERS
    if _is_dense(shorter, rank):
        return result + 3 * 8 * shorter**2  # the Gram matrix, a copy for LAPACK and the vectors
    depth = space_sizes(rank)[1] + BLOCK
    blocks = shorter * (depth + 8 * BLOCK) + sum(shape) * 2 * BLOCK
    return result + itemsize * blocks + 4 * 8 * depth**2


def _is_dense(shorter: int, rank: int) -> bool:
    return shorter <= DENSE or 3 * rank > shorter


def _dense(A: Any, rank: int) -> tuple[Array, Array]:
    A = A.astype(np.float64)
    gram = A.T @ A
    gram = gram.toarray() if hasattr(gram, "toarray") else np.asarray(gram)
    squares, vectors = eigh(gram, overwrite_a=True, check_finite=False)
    return squares[::-1][:rank], vectors[:, ::-1][:, :rank]


def _randomised(A: Any, rank: int, seed: int, dtype: str, iterations: int) -> tuple[Array, Array]:
    """Return Ritz pairs of A^T A on the range of (A^T A)^iterations A^T R with a random R.

    A is multiplied a block of rows at a time.
    """
    rng = np.random.default_rng(seed)
    step = max(1, ROW_NUMBERS // rank)
    starts = range(0, A.shape[0], step)
    blocks = [A] if len(starts) == 1 else [A[low : low + step] for low in starts]
    Y = np.zeros((A.shape[1], rank), dtype)
    for rows in blocks:
        Y += rows.T @ rng.standard_normal((rows.shape[0], rank)).astype(dtype)
    for _ in range(iterations + 1):
        Q = qr(Y, mode="economic", overwrite_a=True, check_finite=False)[0]
        Y = np.zeros((A.shape[1], rank), dtype)
        for rows in blocks:
            Y += rows.T @ (rows @ Q)
    squares, S = eigh((Q.T @ Y).astype(np.float64), check_finite=False)
    return squares[::-1], Q @ S[:, ::-1].astype(dtype)


def space_sizes(rank: int) -> tuple[int, int]:
    """Return the number of vectors after a restart, and of a full space."""
    n_restart = rank + max(rank // 8, 2 * BLOCK)  # more than needed: the last ones converge faster
    return n_restart, n_restart + max(n_restart, 8 * BLOCK)


def _krylov(
    gram: Callable[[Array], Array], size: int, rank: int, seed: int, dtype: str, tolerance: float
) -> tuple[Array, Array]:
    """Return the largest eigenpairs of a Gram matrix from a restarted block Krylov space."""
    n_restart, depth = space_sizes(rank)
    rng = np.random.default_rng(seed)
    Q = np.empty((size, depth + BLOCK), dtype)
    Q[:, :BLOCK] = qr(rng.standard_normal((size, BLOCK)), mode="economic")[0]
    H = np.zeros((depth + BLOCK, depth + BLOCK))  # Q^T (A^T A) Q
    start, end = 0, BLOCK
    for restart in range(RESTARTS):
        while True:
            W = gram(np.ascontiguousarray(Q[:, start:end]))
            R = _extend(Q, H, W, start, end, rng)
            if end + BLOCK > depth:
                break
            start, end = end, end + BLOCK
        squares, S = eigh(H[:end, :end], check_finite=False)
        squares, S = squares[::-1], S[:, ::-1]
        # A^T A v - s^2 v lies in the block that comes next: its coordinates are R times the
        # last coordinates of v
        residual = np.linalg.norm(R @ S[start:end, :rank], axis=0).max() / max(squares[0], TINY)
        logger.debug("restart %d: %d vectors, residual %.1e", restart, end, residual)
        if residual <= tolerance:
            break
        _rotate(Q, S[:, :n_restart].astype(dtype))
        Q[:, n_restart : n_restart + BLOCK] = Q[:, end : end + BLOCK]
        H[:] = 0
        H[np.arange(n_restart), np.arange(n_restart)] = squares[:n_restart]
        start, end = n_restart, n_restart + BLOCK
    else:
        logger.warning("the SVD of rank %d did not converge: residual %.1e", rank, residual)
        return squares[:rank], Q[:, :rank]
    _rotate(Q, S[:, :rank].astype(dtype))
    return squares[:rank], Q[:, :rank]


def _extend(Q: Array, H: Array, W: Array, start: int, end: int, rng: np.random.Generator) -> Array:
    """Append the part of W that is orthogonal to the space; return its triangle R."""
    space = Q[:, :end]
    inside = space.T @ W
    W = W - space @ inside
    correction = space.T @ W  # a second pass is enough
    W -= space @ correction
    inside = (inside + correction).astype(np.float64)
    H[:end, start:end] = inside
    H[start:end, :end] = inside.T
    size = np.linalg.norm(inside)
    basis, R = qr(W, mode="economic", overwrite_a=True, check_finite=False)
    lost = np.abs(np.diag(R)) <= 16 * np.finfo(W.dtype).eps * max(size, TINY)
    if lost.any():  # the space is invariant: continue in any direction outside it
        R[lost] = 0
        basis[:, lost] = rng.standard_normal((len(Q), int(lost.sum())))
        for _ in range(2):
            basis -= space @ (space.T @ basis)
            basis = qr(basis, mode="economic", overwrite_a=True, check_finite=False)[0]
    Q[:, end : end + W.shape[1]] = basis
    return np.asarray(R)


def _rotate(Q: Array, S: Array) -> None:
    """Replace the first columns of Q by Q S, a block of rows at a time."""
    for low in range(0, len(Q), 4096):
        rows = Q[low : low + 4096]
        rows[:, : S.shape[1]] = rows[:, : S.shape[0]] @ S


_cache: OrderedDict[tuple[Any, ...], Spectrum] = OrderedDict()  # latest used last
_lock = Lock()


def spectrum(
    interactions: Interactions,
    rank: int,
    *,
    user_exponent: float = 0.5,
    item_exponent: float = 0.5,
    shift: float = 0.0,
    dtype: str = "float32",
    power_iterations: int | None = None,
) -> Spectrum:
    """Return the truncated SVD of the normalised interactions, from a cache where possible.

    A cached spectrum of the same data and exponents is cut to a smaller rank; that differs from a
    new one by no more than the tolerance of `truncated_svd`. A rank larger than the shorter side
    of the matrix is cut to it. With `power_iterations` the result depends on the rank, and is
    reused for that rank only. The arrays are shared and read-only.
    """
    rank = min(rank, *interactions.matrix.shape)
    iterations_and_rank = None if power_iterations is None else (power_iterations, rank)
    key = (
        interactions.fingerprint,
        user_exponent,
        item_exponent,
        shift,
        dtype,
        iterations_and_rank,
    )
    with _lock:
        result = _cache.get(key)
    if result is None or len(result.values) < rank:
        A = normalised(interactions, user_exponent, item_exponent, shift)
        result = truncated_svd(A, rank, dtype=dtype, power_iterations=power_iterations)
        result.right.flags.writeable = result.values.flags.writeable = False
    with _lock:
        _cache[key] = result
        _cache.move_to_end(key)
        while sum(cached.right.nbytes for cached in _cache.values()) > CACHED_BYTES:
            _cache.popitem(last=False)
    return result.first(rank)


def normalised(
    interactions: Interactions,
    user_exponent: float = 0.5,
    item_exponent: float = 0.5,
    shift: float = 0.0,
) -> Any:
    """Return A = (D_U + shift)^-a X (D_I + shift)^-b in float64, CSR.

    D_U and D_I are the sums of rows and columns of X, which keeps the singular values at a = b =
    1/2 below 1 for weighted interactions too.
    """
    X = interactions.matrix
    values = X.data.astype(np.float64)
    users, items = sums(interactions)
    row = power(users + shift, -user_exponent)
    values *= row[entry_rows(X)] * power(items + shift, -item_exponent)[X.indices]
    return sp.csr_array((values, X.indices, X.indptr), X.shape)


def sums(interactions: Interactions) -> tuple[Array, Array]:
    """Return D_U and D_I, the sums of rows and columns of the interactions."""
    X = interactions.matrix
    values = X.data.astype(np.float64)
    users = np.bincount(entry_rows(X), weights=values, minlength=X.shape[0])
    return users, np.bincount(X.indices, weights=values, minlength=X.shape[1])
