from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse as sp

from equipoise.errors import DataError
from equipoise.ranking.ranker import top_k
from equipoise.ranking.terms import Constant, Dense, LowRank, Sparse, Term

ONES = np.ones(3)
SQUARE = np.arange(9, dtype=np.float32).reshape(3, 3)
THIN = np.ones((3, 2), np.float32)
PLACES = np.array([0, 1, 2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dense(SQUARE.T, ONES, ONES), "must be C-contiguous; pass the transpose"),
        (lambda: Dense(SQUARE.astype(int), ONES, ONES), "float32 or float64, got int64"),
        (lambda: Dense(SQUARE[:2], ONES, ONES), "must have shape (3, 3), got (2, 3)"),
        (lambda: Dense(SQUARE, ONES[:2], ONES), "got (2,) and (3,)"),
        (lambda: LowRank(THIN, THIN, ONES, ONES), "right factor of a low-rank term must have"),
        (lambda: LowRank(THIN, THIN.T.astype(float).copy(), ONES, ONES), "must have one dtype"),
        (lambda: Sparse(ONES, PLACES, PLACES, ONES, ONES), "indptr of a sparse term must have"),
        (
            lambda: Sparse(ONES, PLACES, np.array([0, 2, 1, 3]), ONES, ONES),
            "must ascend from 0 to 3",
        ),
        (
            lambda: Sparse(ONES, PLACES, np.array([0, 1, 2, 9]), ONES, ONES),
            "must ascend from 0 to 3",
        ),
        (lambda: Constant(np.array([1, 2, 3])), "float32 or float64, got int64"),
    ],
)
def test_terms_that_do_not_fit_are_refused(make: Callable[[], Term], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        make()


def test_columns_out_of_range_or_order_are_never_written() -> None:
    columns = np.array([2, -7, 1, 0, 99, 3, 1_000_000, 1])
    term = Sparse(
        np.ones(8, np.float32), columns, np.array([0, 3, 6, 8, 8]), np.ones(4), np.ones(4)
    )
    history = sp.csr_array(np.ones((2, 4), np.float32))
    ranked = top_k([term], history, 4, exclude_seen=False)
    assert np.isfinite(ranked.scores).all()
    assert (ranked.scores <= 3).all()
