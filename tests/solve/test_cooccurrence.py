"""The strongest entries of X^T X against the dense product, entry by entry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from equipoise.runtime.machine import limited
from equipoise.solve.cooccurrence import strongest


def drawn(kind: str, n_users: int = 70, n_items: int = 90) -> Any:
    """Whole numbers, whose sums are exact in any order; the last items have no user."""
    rng = np.random.default_rng(3)
    popular = rng.random(n_items) ** 3
    popular[-4:] = 0
    present = rng.random((n_users, n_items)) < 0.6 * popular
    values = {"ones": np.ones(present.shape), "counts": rng.integers(1, 6, present.shape)}
    values["signed"] = rng.integers(-2, 3, present.shape)
    return sp.csr_array((present * values[kind]).astype(np.float32))


def expected(X: Any, keep: int, scale: Any, shrink: float) -> Any:
    dense = X.toarray().astype(np.float64)
    product = dense.T @ dense
    np.fill_diagonal(product, 0)
    similar = (product / (np.outer(scale, scale) + shrink)).astype(np.float32)
    strongest_values = np.zeros_like(similar)
    for i, row in enumerate(similar):
        present = np.flatnonzero(row)
        best = present[np.lexsort((present, -row[present]))][:keep]
        strongest_values[i, best] = row[best]
    return strongest_values


@pytest.mark.parametrize("kind", ["ones", "counts", "signed"])
@pytest.mark.parametrize("keep", [1, 5, 40, 1000])
@pytest.mark.parametrize("shrink", [0.0, 7.0])
def test_the_largest_of_each_row_are_kept(kind: str, keep: int, shrink: float) -> None:
    X = drawn(kind)
    scale = 1 + np.arange(X.shape[1]) % 5 / 4
    similar = strongest(X, keep, scale, shrink)
    assert np.array_equal(similar.toarray(), expected(X, keep, scale, shrink))
    assert similar.has_sorted_indices
    assert similar.dtype == np.float32
    assert similar.data.all()


def test_equal_values_keep_the_lowest_positions() -> None:
    X = sp.csr_array(np.ones((3, 12), np.float32))
    similar = strongest(X, 4, np.ones(12))
    assert similar[[0]].indices.tolist() == [1, 2, 3, 4]
    assert similar[[11]].indices.tolist() == [0, 1, 2, 3]


def test_the_bits_do_not_depend_on_threads_or_empty_users() -> None:
    rng = np.random.default_rng(0)
    X = drawn("counts")
    X.data = X.data * rng.random(X.nnz, np.float32)
    empty = sp.csr_array((5, X.shape[1]), dtype=np.float32)
    scale = np.ones(X.shape[1])
    with limited(1):
        alone = strongest(X, 9, scale)
    with limited(3):
        together = strongest(sp.vstack([empty, X, empty]).tocsr(), 9, scale)
    for name in ("data", "indices", "indptr"):
        assert np.array_equal(getattr(alone, name), getattr(together, name))


@pytest.mark.parametrize("shape", [(0, 3), (3, 1), (4, 6)])
def test_items_that_share_no_user_have_no_neighbours(shape: tuple[int, int]) -> None:
    X = sp.csr_array(np.eye(*shape, dtype=np.float32))
    assert strongest(X, 5, np.ones(shape[1])).nnz == 0
