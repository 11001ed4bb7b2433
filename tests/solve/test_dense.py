from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from tests.tolerance import assert_close

from equipoise.errors import SolveError
from equipoise.solve.dense import Gram, check_residual, invert_in_place, mirror, symmetrize


def positive_definite(n: int, rng: np.random.Generator, dtype: str) -> np.ndarray:
    A = rng.standard_normal((n, 2 * n))
    return (A @ A.T / n + np.eye(n)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 133, 193, 200])
def test_inverse_comes_from_the_upper_triangle_alone(
    n: int, dtype: str, rng: np.random.Generator
) -> None:
    A = positive_definite(n, rng, dtype)
    buffer = A.copy()
    buffer[np.tril_indices(n, -1)] = np.nan
    invert_in_place(buffer)
    np.testing.assert_array_equal(buffer, buffer.T)
    assert_close(A.astype(np.float64) @ buffer, np.eye(n), dtype, scale=1.0)


def test_inverse_is_made_in_place(rng: np.random.Generator) -> None:
    A = positive_definite(500, rng, "float32")
    invert_in_place(A[:9, :9].copy())  # compiles what is compiled on first use
    tracemalloc.start()
    try:
        invert_in_place(A)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < A.nbytes / 4


def test_matrix_that_is_not_positive_definite_is_refused() -> None:
    with pytest.raises(SolveError, match=r"not positive definite \(at item 2\); raise l2"):
        invert_in_place(np.diag([1.0, 2.0, -1.0]))


@pytest.mark.parametrize("n", [1, 64, 130])
def test_mirror_and_symmetrize(n: int, rng: np.random.Generator) -> None:
    A = rng.random((n, n))
    expected = np.triu(A) + np.triu(A, 1).T
    mean = (A + A.T) / 2
    B = A.copy()
    mirror(A)
    symmetrize(B)
    np.testing.assert_array_equal(A, expected)
    np.testing.assert_array_equal(B, mean)


def test_bad_inverse_is_noticed(rng: np.random.Generator) -> None:
    X = sp.random_array((60, 20), density=0.2, rng=rng, dtype=np.float32, format="csr")
    w, penalty = np.ones(60), np.full(20, 2.0)
    spoilt, residual = Gram(X, w).inverse(penalty)
    assert residual < 1e-5
    spoilt[3, 4] += 0.5
    with pytest.raises(SolveError, match="not accurate"):
        check_residual(spoilt, X, w, penalty)
    spoilt[3, 4] = np.nan
    with pytest.raises(SolveError, match="not accurate"):
        check_residual(spoilt, X, w, penalty)
