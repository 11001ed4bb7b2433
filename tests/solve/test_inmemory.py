"""The blocked inverse in memory, which takes over where LAPACK's threads cannot go."""

from __future__ import annotations

import numpy as np
import pytest
from tests.tolerance import assert_close

from equipoise.errors import SolveError
from equipoise.solve import dense
from equipoise.solve.dense import add_outer, invert_by_blocks


def positive_definite(n: int, rng: np.random.Generator, dtype: str) -> np.ndarray:
    A = rng.standard_normal((n, 2 * n))
    return (A @ A.T / n + np.eye(n)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("n", "block", "strip"), [(1, 4, 4), (7, 1, 2), (64, 16, 32), (65, 16, 16), (193, 193, 193)]
)
def test_lower_triangle_becomes_that_of_the_inverse(
    n: int, block: int, strip: int, dtype: str, rng: np.random.Generator
) -> None:
    A = positive_definite(n, rng, dtype)
    buffer = A.copy()
    buffer[np.triu_indices(n, 1)] = np.nan
    invert_by_blocks(buffer, block, strip)
    lower = np.tril(buffer)
    inverse = lower + np.tril(lower, -1).T
    assert_close(A.astype(np.float64) @ inverse, np.eye(n), dtype, scale=1.0)


def test_large_systems_go_by_blocks_and_give_the_same_inverse(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = positive_definite(150, rng, "float32")
    by_lapack, by_blocks = A.copy(), A.copy()
    by_blocks[np.tril_indices(150, -1)] = np.nan
    dense.invert_in_place(by_lapack)
    monkeypatch.setitem(dense.LAPACK_ITEMS, "float32", 100)
    dense.invert_in_place(by_blocks)
    np.testing.assert_array_equal(by_blocks, by_blocks.T)
    assert_close(by_blocks, by_lapack, "float32", scale=float(np.abs(by_lapack).max()))


def test_matrix_that_is_not_positive_definite_is_refused_with_its_item() -> None:
    with pytest.raises(SolveError, match=r"at item 5\)"):
        invert_by_blocks(np.diag([1.0, 1, 1, 1, 1, -1, 1]), block=2, strip=2)


def test_outer_product_is_added_to_the_upper_triangle(rng: np.random.Generator) -> None:
    A, T = rng.random((9, 9)), rng.random((3, 9))
    expected = A - T.T @ T
    add_outer(A, T, -1.0)
    np.testing.assert_allclose(np.triu(A), np.triu(expected), rtol=1e-7, atol=1e-14)
