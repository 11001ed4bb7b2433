"""Ordered events and the index arithmetic of runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.errors import DataError
from equipoise.matrix import Sequences, segments

rows = st.lists(st.lists(st.integers(0, 5), max_size=6), max_size=8)


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
