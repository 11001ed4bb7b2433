"""Session models solved by the engine of the card; torch runs the same steps without one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.models.sessions import drawn
from tests.tolerance import assert_close, assert_same_lists

import equipoise as eq
from equipoise.errors import SettingError
from equipoise.interactions import Interactions
from equipoise.models.session_solver import solve_on_card
from equipoise.models.sessions import SessionModel
from equipoise.solve.engine import move
from equipoise.solve.gpu import DeviceMatrix

pytest.importorskip("torch")
MODELS = [
    eq.SLIS(l2=2.0, normalizer=eq.DAN(0.3, 0.5)),
    eq.SLIST(l2=3.0, mix=0.4, dropout=0.3),
    eq.SLIST(l2=3.0, mix=0.6, direction="part", row_norm="l2"),
]


@pytest.fixture(scope="module")
def data() -> Interactions:
    return drawn(150, 40)


def on_card(model: SessionModel, data: Interactions) -> SessionModel:
    """The model with its C as the card leaves it."""
    model.fit(data, engine="sparse", dtype="float64")
    assert model.system_ is not None
    model._take(None, solve_on_card(model.system_, "float64", "cpu"))
    return model


@pytest.mark.parametrize("model", MODELS, ids=["SLIS", "SLIST", "SLIST part"])
def test_card_and_host_give_the_same_weights_and_lists(
    model: SessionModel, data: Interactions
) -> None:
    model.fit(data, engine="dense", dtype="float64")
    weights, lists, scores = model.weights_, model.rank(data, 10), model.score(data)
    explained = model.explain([3, 1, 3], 5)
    on_card(model, data)
    assert_close(model.weights_, weights, "float64")
    again = model.rank(data, 10)
    assert_same_lists(again, lists, scores, "float64")
    assert_close(again.scores, lists.scores, "float64")
    assert model.explain([3, 1, 3], 5).score == pytest.approx(explained.score)


def test_a_click_calls_for_its_own_item(data: Interactions) -> None:
    model = on_card(eq.SLIS(l2=2.0), data)
    assert (np.diag(model.weights_) > 0).all()
    scores = model.score([[0]])
    assert scores[0, 0] == pytest.approx(model.weights_[0, 0])


def test_a_matrix_moves_with_its_diagonal() -> None:
    import torch

    C = np.arange(9.0).reshape(3, 3)
    moved = DeviceMatrix.from_host(C, torch.device("cpu"), zero_diagonal=False)
    assert moved.values.diagonal().tolist() == [0.0, 4.0, 8.0]
    np.testing.assert_array_equal(moved.toarray(), C)
    assert move(C, "cpu") is C


def test_a_model_on_a_card_is_saved_as_on_the_host(tmp_path: Path, data: Interactions) -> None:
    model = on_card(eq.SLIST(l2=3.0, mix=0.4), data)
    model.save(tmp_path / "model")
    again = eq.load(tmp_path / "model")
    assert again.recommend(session=[1, 2], k=5).items == model.recommend(session=[1, 2], k=5).items


def test_a_card_that_is_not_there_is_an_error(data: Interactions) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a card")
    with pytest.raises(SettingError, match="torch sees 0 CUDA devices"):
        eq.SLIS().fit(data, device="cuda")


def test_nothing_is_sent_to_a_card_where_nothing_is_solved(data: Interactions) -> None:
    model = eq.SLIT().fit(data, device="cuda")
    assert model.dense_ is None
