"""Past and future matrices, and the weights of a visit's clicks."""

from __future__ import annotations

import numpy as np
import pytest
from tests.models.sessions import drawn

from equipoise.errors import TooBigError
from equipoise.matrix import Sequences
from equipoise.models import session_solver
from equipoise.models.session_solver import past_future, recency


def test_past_and_future_worked_by_hand() -> None:
    events = Sequences(np.array([0, 1, 0, 2], np.int32), np.array([0, 1, 4]))
    h = np.exp(-1 / 2)
    S, T = past_future(events, 3, 2.0, "sr")
    np.testing.assert_allclose(S.toarray(), [[0, 1, 0], [1, 0, 0]])
    np.testing.assert_allclose(T.toarray(), [[1, 0, h], [0, 0, 1]])
    S, T = past_future(events, 3, 2.0, "part")
    np.testing.assert_allclose(S.toarray(), [[0, 1, 0], [1, h, 0]])
    S, T = past_future(events, 3, 2.0, "all")
    np.testing.assert_allclose(S.toarray(), [[h, 1, h**2], [1, h, h]])
    np.testing.assert_allclose(T.toarray(), [[1, h, h], [h, h**2, 1]])
    S, T = past_future(events, 3, None, "part")
    np.testing.assert_allclose(T.toarray(), [[1, 0, 1], [0, 0, 1]])


def test_what_is_left_out_is_below_float32_rounding() -> None:
    events = Sequences(np.arange(500, dtype=np.int32), np.array([0, 500]))
    _, T = past_future(events, 500, 1.0, "sr")
    full = np.exp(-np.subtract.outer(-np.arange(499) - 1, -np.arange(500)))
    full[np.subtract.outer(np.arange(499), np.arange(500)) >= 0] = 0
    assert np.abs(T.toarray() - full).sum(axis=1).max() < 2e-12
    assert T.nnz < 30 * 500


def test_splits_that_do_not_fit_are_refused_before_they_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_solver, "free_memory", lambda: 1000)
    data = drawn(50, 10)
    with pytest.raises(TooBigError, match="decay_position"):
        past_future(data.sequences, 10, None, "all")


def test_recency_counts_back_from_the_last_click() -> None:
    events = Sequences(np.array([0, 1, 0, 2], np.int32), np.array([0, 3, 3, 4]))
    rows = recency(events, 3, 1.0).toarray()
    np.testing.assert_allclose(rows[0], [1 + np.exp(-2), np.exp(-1), 0], rtol=1e-6)
    np.testing.assert_array_equal(rows[1:], [[0, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(recency(events, 3, None).toarray()[0], [2, 1, 0])
    long = Sequences(np.arange(5000, dtype=np.int32), np.array([0, 5000]))
    assert recency(long, 5000, 0.5).nnz == 5000
