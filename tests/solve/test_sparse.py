"""Sparse rows turned into columns, and sums over them, as scipy and numpy make them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from equipoise.runtime.machine import limited
from equipoise.solve import neighbourhood
from equipoise.solve.sparse import item_sums, shortened, transposed


def matrix(rng: np.random.Generator, n_users: int = 70, n_items: int = 40) -> sp.csr_array:
    """Signed values; the items 5 and 39 and the user 3 have none."""
    pattern = rng.random((n_users, n_items)) < 0.2
    pattern[:, [5, 39]] = pattern[3] = False
    return sp.csr_array((pattern * rng.normal(size=pattern.shape)).astype(np.float32))


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_columns_are_those_of_scipy(threads: int, rng: np.random.Generator) -> None:
    X = matrix(rng)
    expected = X.tocsc()
    rows = X.indptr.astype(np.int64), X.indices, X.data
    with limited(threads):
        offsets, members, values = transposed(rows, X.shape[1])
        again = transposed((offsets, members, values), X.shape[0])
    np.testing.assert_array_equal(offsets, expected.indptr)
    np.testing.assert_array_equal(members, expected.indices)
    np.testing.assert_array_equal(values, expected.data)
    for part, original in zip(again, rows, strict=True):
        np.testing.assert_array_equal(part, original)


def test_a_matrix_without_entries_has_empty_columns() -> None:
    empty = np.zeros(4, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32)
    offsets, members, values = transposed(empty, 5)
    assert offsets.tolist() == [0] * 6
    assert len(members) == len(values) == 0


def test_equal_values_are_stored_once_and_give_the_same_bits(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = matrix(rng)
    X.data[:] = 1.7
    assert shortened(X.data).tolist() == X.data[:1].tolist()
    problem = X, rng.random(70) + 0.5, rng.random(40) + 1
    once = neighbourhood.solve(*problem, 6)
    monkeypatch.setattr(neighbourhood, "shortened", lambda values: values)
    for_each = neighbourhood.solve(*problem, 6)
    for name in ("data", "indices", "indptr", "diagonal_"):
        np.testing.assert_array_equal(getattr(once, name), getattr(for_each, name))
    X.data[-1] = 1.8
    assert len(shortened(X.data)) == X.nnz


def test_sums_are_added_in_the_order_of_the_users(rng: np.random.Generator) -> None:
    X, weights = matrix(rng), rng.random(70)
    squares, partners = np.zeros(40), np.zeros(40, np.int64)
    item_sums(X.indptr, X.indices, X.data, weights, squares, partners)
    lengths = np.diff(X.indptr)
    entries = np.repeat(weights, lengths) * X.data.astype(np.float64) ** 2
    np.testing.assert_array_equal(squares, np.bincount(X.indices, entries, minlength=40))
    n_partners = np.repeat(lengths - 1, lengths)
    np.testing.assert_array_equal(partners, np.bincount(X.indices, n_partners, minlength=40))
