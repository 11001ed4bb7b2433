"""The dense engine: Gram matrix, inverse in place, residual."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.tolerance import assert_close

from equipoise.data.matrix import checked_matrix
from equipoise.errors import SolveError
from equipoise.runtime.machine import limited
from equipoise.solve.dense import (
    Gram,
    add_outer,
    check_residual,
    fill_gram,
    gram_times,
    invert_in_place,
    mirror,
    symmetrize,
    weighted_gram,
)


@settings(deadline=None)  # the first call may have to compile
@given(
    dense=hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12),
        elements=st.sampled_from([0.0, 0.0, 1.0, 2.5]),
    )
)
def test_upper_triangle_is_the_weighted_gram_matrix(dense: np.ndarray) -> None:
    X, _ = checked_matrix(dense, None)
    w = 1 / (1.0 + np.arange(len(dense)))
    out = np.full((dense.shape[1],) * 2, np.nan)
    weighted_gram(X, w, out)
    expected = dense.T.astype(np.float64) @ (w[:, None] * dense)
    upper = np.triu_indices(len(out))
    np.testing.assert_allclose(out[upper], expected[upper], rtol=1e-7)
    assert np.isnan(out[np.tril_indices(len(out), -1)]).all()
    V = np.arange(2.0 * len(out)).reshape(len(out), 2)
    np.testing.assert_allclose(gram_times(X, w, V), expected @ V, rtol=1e-7, atol=1e-12)


def test_rows_summed_by_chunks_of_users_have_the_same_bits(
    rng: np.random.Generator,
) -> None:
    X = sp.random_array((300, 40), density=0.2, rng=rng, dtype=np.float32, format="csr")
    X.sort_indices()
    w = rng.random(300)
    gram = weighted_gram(X, w, np.zeros((40, 40)))
    for low, high in ((0, 1), (1, 17), (17, 40)):
        sums = None
        for chunk in ([slice(0, 7)], [slice(7, 200), slice(200, 300)]):
            out = np.zeros((high - low, 40 - low))
            fill_gram([(X[users], w[users]) for users in chunk], (low, high), out, sums)
            sums = out
        np.testing.assert_array_equal(sums, gram[low:high, low:])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_result_does_not_depend_on_threads(dtype: str, rng: np.random.Generator) -> None:
    X = sp.random_array((400, 90), density=0.1, rng=rng, dtype=np.float32, format="csr")
    X.sort_indices()
    w = rng.random(400)
    results = []
    for threads in (1, 2, 5):
        with limited(threads):
            results.append(weighted_gram(X, w, np.zeros((90, 90), dtype)))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


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
    # so large that a copy outweighs what other threads of the process may allocate meanwhile
    A = positive_definite(1500, rng, "float32")
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


def test_outer_product_is_added_to_the_upper_triangle(rng: np.random.Generator) -> None:
    A, T = rng.random((9, 9)), rng.random((3, 9))
    expected = A - T.T @ T
    add_outer(A, T, -1.0)
    np.testing.assert_allclose(np.triu(A), np.triu(expected), rtol=1e-7, atol=1e-14)
