"""Rows of the regression by hand, and its solution on a device; torch runs there without a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.models.sessions import drawn
from tests.tolerance import assert_close, assert_same_lists

import equipoise as eq
from equipoise.data.events import Events
from equipoise.data.interactions import Interactions
from equipoise.errors import SettingError, TooBigError
from equipoise.models import session_solver
from equipoise.models.session_solver import past_future, recency, solve_on_device
from equipoise.models.sessions import SessionRegression
from equipoise.solve.engine import move
from equipoise.solve.gpu import DeviceMatrix


def test_past_and_future_worked_by_hand() -> None:
    events = Events(np.array([0, 1, 0, 2], np.int32), np.array([0, 1, 4]))
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


def test_dropped_weights_are_below_float32_rounding() -> None:
    events = Events(np.arange(500, dtype=np.int32), np.array([0, 500]))
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
        past_future(data._sequences, 10, None, "all")


def test_recency_counts_back_from_the_last_click() -> None:
    events = Events(np.array([0, 1, 0, 2], np.int32), np.array([0, 3, 3, 4]))
    rows = recency(events, 3, 1.0).toarray()
    np.testing.assert_allclose(rows[0], [1 + np.exp(-2), np.exp(-1), 0], rtol=1e-6)
    np.testing.assert_array_equal(rows[1:], [[0, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(recency(events, 3, None).toarray()[0], [2, 1, 0])
    long = Events(np.arange(5000, dtype=np.int32), np.array([0, 5000]))
    assert recency(long, 5000, 0.5).nnz == 5000


MODELS = [
    eq.SLIS(l2=2.0, normalizer=eq.DAN(0.3, 0.5)),
    eq.SLIST(l2=3.0, mix=0.4, dropout=0.3),
    eq.SLIST(l2=3.0, mix=0.6, direction="part", row_norm="l2"),
]


@pytest.fixture(scope="module")
def data() -> Interactions:
    return drawn(150, 40)


def on_device(model: SessionRegression, data: Interactions) -> SessionRegression:
    """The model with its C as the engine of the GPU leaves it."""
    pytest.importorskip("torch")
    model.fit(data, engine="sparse", dtype="float64")
    assert model.system_ is not None
    model._take(None, solve_on_device(model.system_, "float64", "cpu"))
    return model


@pytest.mark.parametrize("model", MODELS, ids=["SLIS", "SLIST", "SLIST part"])
def test_device_and_host_give_the_same_weights_and_lists(
    model: SessionRegression, data: Interactions
) -> None:
    model.fit(data, engine="dense", dtype="float64")
    weights, lists, scores = model.weights_, model.rank(data, 10), model.score(data)
    explained = model.explain([3, 1, 3], 5)
    on_device(model, data)
    assert_close(model.weights_, weights, "float64")
    again = model.rank(data, 10)
    assert_same_lists(again, lists, scores, "float64")
    assert_close(again.scores, lists.scores, "float64")
    assert model.explain([3, 1, 3], 5).score == pytest.approx(explained.score)


def test_an_item_raises_its_own_score_on_a_device(data: Interactions) -> None:
    model = on_device(eq.SLIS(l2=2.0), data)
    assert (np.diag(model.weights_) > 0).all()
    scores = model.score([[0]])
    assert scores[0, 0] == pytest.approx(model.weights_[0, 0])


def test_a_matrix_moves_with_its_diagonal() -> None:
    torch = pytest.importorskip("torch")
    C = np.arange(9.0).reshape(3, 3)
    moved = DeviceMatrix.from_host(C, torch.device("cpu"), zero_diagonal=False)
    assert moved.values.diagonal().tolist() == [0.0, 4.0, 8.0]
    np.testing.assert_array_equal(moved.toarray(), C)
    assert move(C, "cpu", zero_diagonal=False) is C


def test_a_model_on_a_device_is_saved_as_on_the_host(tmp_path: Path, data: Interactions) -> None:
    model = on_device(eq.SLIST(l2=3.0, mix=0.4), data)
    model.save(tmp_path / "model")
    again = eq.load(tmp_path / "model")
    assert again.recommend(session=[1, 2], k=5).items == model.recommend(session=[1, 2], k=5).items


def test_a_missing_gpu_is_an_error(data: Interactions) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SettingError, match="torch sees 0 CUDA devices"):
        eq.SLIS().fit(data, device="cuda")


def test_nothing_is_sent_to_a_gpu_where_nothing_is_solved(data: Interactions) -> None:
    model = eq.SLIT().fit(data, device="cuda")
    assert model.dense_ is None
