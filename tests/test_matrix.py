"""Matrices are checked once, at the border, and the caller's arrays are left alone."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.errors import DataError
from equipoise.matrix import (
    Sequences,
    as_positions,
    cell_keys,
    checked_matrix,
    entry_rows,
    in_ascending,
    keep_entries,
    segments,
)

rows = st.lists(st.lists(st.integers(0, 5), max_size=6), max_size=8)


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


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_bad_weight_is_refused_with_its_cell(value: float, dtype: type) -> None:
    matrix = np.zeros((3, 4), dtype)
    matrix[2, 1] = value
    with pytest.raises(DataError, match=r"found .* at row 2, column 1"):
        checked_matrix(matrix, None)


@pytest.mark.parametrize("value", [1e300, 1e-300])
def test_a_weight_that_single_precision_would_change_to_nothing_is_refused(value: float) -> None:
    with pytest.raises(DataError, match=re.escape(f"found {value} at row 0, column 1")):
        checked_matrix([[1.0, value]], None)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones(3), "two-dimensional"),
        (np.ones((2, 2, 2)), "two-dimensional"),
        (sp.coo_array(np.ones(3)), "two-dimensional"),
        (np.array([["a"]]), "must hold numbers"),
        (np.array([[1j]]), "must hold numbers"),
        (np.array([[None]]), "must hold numbers"),
    ],
)
def test_what_is_not_a_matrix_of_numbers_is_refused(matrix: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        checked_matrix(matrix, None)


def test_indices_outside_the_matrix_are_refused() -> None:
    matrix = sp.csr_array(np.ones((2, 2)))
    matrix.indices[1] = 7
    with pytest.raises(DataError, match="malformed"):
        checked_matrix(matrix, None)


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


@pytest.mark.parametrize(
    ("matrix", "times", "message"),
    [
        (sp.csr_array(np.ones((1, 2))), [1.0], "times has 1 values for 2"),
        (sp.csr_array(np.ones((1, 2))), [1.0, np.nan], "times must be finite"),
        (sp.coo_array(np.ones((1, 2))), [1.0, 2.0], "times need a CSR matrix"),
        (sp.csr_array((np.ones(2), [0, 0], [0, 2]), shape=(1, 1)), [1.0, 2.0], "only once"),
        (
            sp.csr_array((np.ones(3), [1, 0, 1], [0, 3]), shape=(1, 2)),
            [1.0, 2.0, 3.0],
            "only once",
        ),
    ],
)
def test_times_that_do_not_fit_are_refused(
    matrix: object, times: list[float], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        checked_matrix(matrix, times)


def test_rows_keys_and_kept_entries_agree_with_coordinates() -> None:
    csr, _ = checked_matrix([[1, 0, 1], [0, 0, 0], [0, 1, 1]], None)
    assert entry_rows(csr).tolist() == [0, 0, 2, 2]
    assert cell_keys(csr).tolist() == [0, 2, 7, 8]
    kept = keep_entries(csr, np.array([True, False, False, True]))
    assert kept.toarray().tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1]]


def test_positions_come_from_masks_lists_and_arrays() -> None:
    assert as_positions([True, False, True], 3).tolist() == [0, 2]
    assert as_positions([2, 0], 3).tolist() == [2, 0]
    assert as_positions([], 3).tolist() == []


@pytest.mark.parametrize("bad", [[3], [-1], [True], [0.5], ["a"]])
def test_positions_outside_the_axis_or_not_whole_are_refused(bad: list[object]) -> None:
    with pytest.raises(DataError):
        as_positions(bad, 3)


def test_values_among_ascending_keys_are_marked() -> None:
    keys = np.array([2, 5, 9])
    values = np.array([9, 1, 5, 10, 2, 5])
    assert in_ascending(values, keys).tolist() == [True, False, True, False, True, True]
    assert in_ascending(values, keys[:0]).tolist() == [False] * 6


def build(lists: list[list[int]]) -> Sequences:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in lists])]).astype(np.int64)
    return Sequences(np.array([item for row in lists for item in row], np.int32), offsets)


def lists_of(sequences: Sequences) -> list[list[int]]:
    return [sequences[row].tolist() for row in range(len(sequences))]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 6)), max_size=10))
@settings(max_examples=50, deadline=None)
def test_segments_are_the_runs_one_after_another(runs: list[tuple[int, int]]) -> None:
    starts, lengths = np.array(runs, np.int64).reshape(-1, 2).T
    places, offsets = segments(starts, lengths)
    assert places.tolist() == [p for start, n in runs for p in range(start, start + n)]
    assert offsets.tolist() == [0, *np.cumsum(lengths).tolist()]


@given(rows, st.data())
@settings(max_examples=50, deadline=None)
def test_take_keep_and_recode_agree_with_lists(
    lists: list[list[int]], data: st.DataObject
) -> None:
    sequences = build(lists)
    assert lists_of(sequences) == lists
    assert sequences.rows.tolist() == [n for n, row in enumerate(lists) for _ in row]
    taken = data.draw(st.permutations(range(len(lists))))[: len(lists) // 2]
    assert lists_of(sequences.take(np.array(taken, np.int64))) == [lists[n] for n in taken]
    even = lists_of(sequences.keep(sequences.items % 2 == 0))
    assert even == [[v for v in row if v % 2 == 0] for row in lists]
    new = np.array([-1, 3, -1, 0, 1, 2])
    renamed = [[int(new[v]) for v in row if new[v] >= 0] for row in lists]
    assert lists_of(sequences.recode(new)) == renamed


@pytest.mark.parametrize("offsets", [[], [1, 2], [0, 2, 1, 3], [0, 2], [0, 4], [[0, 3]]])
def test_offsets_that_do_not_fit_are_refused(offsets: list[object]) -> None:
    with pytest.raises(DataError, match="offsets of sequences must"):
        Sequences(np.array([0, 1, 2], np.int32), np.array(offsets, np.int64))
