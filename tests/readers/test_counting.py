"""The counting kernels against the plain way of doing it."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.readers.build import factorize, pairs_to_csr

pairs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4), st.integers(1, 9)), min_size=1)


@settings(max_examples=60, deadline=None)
@given(pairs)
def test_the_matrix_equals_a_sum_over_rows_in_any_order(rows):
    user, item, value = (np.array(column) for column in zip(*rows, strict=True))
    shape = (7, 5)
    expected, latest = np.zeros(shape), np.full(shape, -1.0)
    for row in rows:
        expected[row[0], row[1]] += row[2]
        latest[row[0], row[1]] = max(latest[row[0], row[1]], row[2])
    codes = user.astype(np.int32), item.astype(np.int32)
    built = pairs_to_csr(*codes, shape, value.astype(float), value.astype(float))
    built.matrix.check_format(full_check=True)
    assert built.matrix.toarray().tolist() == expected.tolist()
    assert built.times.tolist() == latest[latest >= 0].tolist()
    assert built.repeats == len(rows) - (expected > 0).sum()


@pytest.mark.parametrize(
    "values",
    [[5, 3, 5, -2], [10**15, -(10**15), 7], ["b", "a", "é", "b"], [0], [2**63 - 1, -(2**63)]],
)
def test_factorize_agrees_with_numpy(values):
    codes, ids = factorize(pl.Series(values))
    expected, inverse = np.unique(np.array(values), return_inverse=True)
    assert ids.tolist() == expected.tolist()
    assert codes.tolist() == inverse.tolist()
    assert codes.dtype == np.int32
