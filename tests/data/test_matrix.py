"""Matrices are checked once, at the border, and the caller's arrays are left alone."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.data.matrix import (
    as_positions,
    cell_keys,
    checked_matrix,
    entry_rows,
    in_ascending,
    keep_entries,
    segments,
)
from equipoise.errors import DataError


@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"])
def test_every_sparse_layout_becomes_the_same_csr(layout: str) -> None:
    dense = np.array([[0, 2, 1], [3, 0, 0]])
    csr, times = checked_matrix(sp.csr_array(dense).asformat(layout), None)
    assert (csr.format, csr.dtype, csr.has_canonical_format) == ("csr", np.float32, True)
    assert csr.toarray().tolist() == dense.tolist()
    assert times is None


def test_duplicates_add_up_and_zeros_go() -> None:
    matrix = sp.coo_array(([1.0, 2.0, 0.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    csr, _ = checked_matrix(matrix, None)
    assert csr.nnz == 1
    assert csr.toarray().tolist() == [[0, 3], [0, 0]]


def test_times_follow_their_pairs_when_columns_are_sorted() -> None:
    matrix = sp.csr_array((np.float32([1, 2, 3]), [2, 0, 1], [0, 2, 3]), shape=(2, 3))
    csr, times = checked_matrix(matrix, [30.0, 10.0, 20.0])
    assert times is not None
    assert csr.toarray().tolist() == [[2, 0, 1], [0, 3, 0]]
    assert times.tolist() == [10, 30, 20]
    assert matrix.indices.tolist() == [2, 0, 1], "the caller's matrix was sorted in place"


def test_times_of_zero_weights_go_with_them() -> None:
    matrix = sp.csr_array((np.array([1.0, 0.0, 2.0]), [0, 1, 2], [0, 3]), shape=(1, 3))
    csr, times = checked_matrix(matrix, [1.0, 2.0, 3.0])
    assert times is not None
    assert csr.indices.tolist() == [0, 2]
    assert times.tolist() == [1, 3]


def test_rows_keys_and_kept_entries_agree_with_coordinates() -> None:
    csr, _ = checked_matrix([[1, 0, 1], [0, 0, 0], [0, 1, 1]], None)
    assert entry_rows(csr).tolist() == [0, 0, 2, 2]
    assert cell_keys(csr).tolist() == [0, 2, 7, 8]
    masked = keep_entries(csr, np.array([True, False, False, True]))
    assert masked.toarray().tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1]]


def test_positions_come_from_masks_lists_and_arrays() -> None:
    assert as_positions([True, False, True], 3).tolist() == [0, 2]
    assert as_positions([2, 0], 3).tolist() == [2, 0]
    assert as_positions([], 3).tolist() == []


def test_values_among_ascending_keys_are_marked() -> None:
    keys = np.array([2, 5, 9])
    values = np.array([9, 1, 5, 10, 2, 5])
    assert in_ascending(values, keys).tolist() == [True, False, True, False, True, True]
    assert in_ascending(values, keys[:0]).tolist() == [False] * 6


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 6)), max_size=10))
@settings(max_examples=50, deadline=None)
def test_segments_are_the_runs_one_after_another(runs: list[tuple[int, int]]) -> None:
    starts, lengths = np.array(runs, np.int64).reshape(-1, 2).T
    places, offsets = segments(starts, lengths)
    assert places.tolist() == [p for start, n in runs for p in range(start, start + n)]
    assert offsets.tolist() == [0, *np.cumsum(lengths).tolist()]


def one_weight(value: float, dtype: type) -> np.ndarray:
    matrix = np.zeros((3, 4), dtype)
    matrix[2, 1] = value
    return matrix


def with_an_index_outside() -> sp.csr_array:
    matrix = sp.csr_array(np.ones((2, 2)))
    matrix.indices[1] = 7
    return matrix


NOT_MATRICES = {
    "1-d": (np.ones(3), "two-dimensional"),
    "3-d": (np.ones((2, 2, 2)), "two-dimensional"),
    "sparse 1-d": (sp.coo_array(np.ones(3)), "two-dimensional"),
    "text": (np.array([["a"]]), "must hold numbers"),
    "complex": (np.array([[1j]]), "must hold numbers"),
    "objects": (np.array([[None]]), "must hold numbers"),
    "index outside": (with_an_index_outside(), "malformed"),
}
ONE_ROW = sp.csr_array(np.ones((1, 2)))
TWICE = sp.csr_array((np.ones(2), [0, 0], [0, 2]), shape=(1, 1))
TWICE_APART = sp.csr_array((np.ones(3), [1, 0, 1], [0, 3]), shape=(1, 2))
BAD_TIMES = {
    "too few times": (ONE_ROW, [1.0], "times has 1 values for 2"),
    "nan time": (ONE_ROW, [1.0, np.nan], "times must be finite"),
    "times of coo": (sp.coo_array(np.ones((1, 2))), [1.0, 2.0], "times need a CSR matrix"),
    "times of a pair twice": (TWICE, [1.0, 2.0], "only once"),
    "times of a pair twice, apart": (TWICE_APART, [1.0, 2.0, 3.0], "only once"),
}


@pytest.mark.parametrize(
    ("call", "arguments", "error", "message"),
    [
        pytest.param(
            checked_matrix,
            (one_weight(value, dtype), None),
            DataError,
            r"found .* at row 2, column 1",
            id=f"weight {value} {dtype.__name__}",
        )
        for value in (np.nan, np.inf, -np.inf, -1.0)
        for dtype in (np.float32, np.float64)
    ]
    + [
        pytest.param(
            checked_matrix,
            ([[1.0, value]], None),
            DataError,
            re.escape(f"found {value} at row 0, column 1"),
            id=f"weight {value}",
        )
        for value in (1e300, 1e-300)
    ]
    + [
        pytest.param(checked_matrix, (matrix, None), DataError, message, id=name)
        for name, (matrix, message) in NOT_MATRICES.items()
    ]
    + [
        pytest.param(checked_matrix, (matrix, times), DataError, message, id=name)
        for name, (matrix, times, message) in BAD_TIMES.items()
    ]
    + [
        pytest.param(as_positions, (bad, 3), DataError, None, id=f"positions {bad}")
        for bad in ([3], [-1], [True], [0.5], ["a"])
    ],
)
def test_values_that_do_not_fit_a_matrix_are_refused(
    call: Callable[..., object],
    arguments: tuple[object, ...],
    error: type[Exception],
    message: str | None,
) -> None:
    with pytest.raises(error, match=message):
        call(*arguments)
