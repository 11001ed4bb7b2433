"""One tolerance by dtype; anything else carries a comment in the test that uses it."""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.ranking.ranker import Ranked

RTOL = {"float64": 1e-7, "float32": 1e-4}


def assert_close(actual: Any, desired: Any, dtype: str, *, scale: float = 0.0) -> None:
    """Compare to the dtype's relative tolerance; `scale` is the size rounding is relative to."""
    np.testing.assert_allclose(actual, desired, rtol=RTOL[dtype], atol=RTOL[dtype] * scale)


def assert_same_lists(ranked: Ranked, expected: Ranked, scores: Any, dtype: str) -> None:
    """Compare the lists of two solves, whose scores differ by rounding.

    The item at each place must have the score of that place, by the reference: where two scores
    are further apart than the dtype's tolerance this asks for the very same item. `scores` are
    those of all items by the model that gave `expected`.
    """
    np.testing.assert_array_equal(ranked.lengths, expected.lengths)
    for row, length in enumerate(expected.lengths):
        assert len(set(ranked.items[row, :length].tolist())) == length
    rows, places = np.nonzero(expected.items >= 0)
    actual = np.asarray(scores)[rows, ranked.items[rows, places]]
    assert_close(actual, expected.scores[rows, places], dtype, scale=np.abs(scores).max())
