"""An update equals a refit."""

from __future__ import annotations

import numpy as np
import pytest
from tests.tolerance import assert_close, assert_same_lists

import equipoise as eq
from equipoise import solve
from equipoise.errors import DataError, SettingError, UnknownIdError
from equipoise.interactions import Interactions
from equipoise.models import updating

MODELS = {
    "EASE": {"l2": 5.0},
    "user weights": {"l2": 5.0, "normalizer": eq.DAN(0.2, 0.4)},
    "dropout": {"l2": 2.0, "dropout": 0.5, "normalizer": eq.DAN(0.2, 0.4)},
}


@pytest.fixture(params=MODELS)
def fitted(request: pytest.FixtureRequest, synthetic: Interactions) -> eq.EASE:
    return eq.EASE(**MODELS[request.param]).fit(synthetic.rows(np.arange(280)), dtype="float64")


@pytest.fixture(params=["low rank", "refit"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(updating, "PAYS", 10.0 if request.param == "low rank" else 0.0)
    return request.param


def assert_equals_refit(model: eq.EASE) -> None:
    fresh = eq.EASE(l2=model.l2, dropout=model.dropout, normalizer=model.normalizer)
    fresh.fit(model.interactions_, dtype="float64")
    assert_close(model.inverse_, fresh.inverse_, "float64", scale=np.abs(fresh.inverse_).max())
    assert_close(model.penalty_, fresh.penalty_, "float64")
    data = fresh.interactions_
    assert_same_lists(model.rank(data, 10), fresh.rank(data, 10), fresh.score(data), "float64")


def test_new_users_equal_a_refit(fitted: eq.EASE, path: str, synthetic: Interactions) -> None:
    fitted.update(synthetic.rows(np.arange(280, 300)))
    assert fitted.interactions_.fingerprint == synthetic.fingerprint
    assert_equals_refit(fitted)


def test_changed_users_equal_a_refit(fitted: eq.EASE, path: str) -> None:
    items = fitted.item_index_.values
    added = eq.read([("u3", int(items[70])), ("u3", int(items[71])), ("u8", int(items[75]))])
    before = fitted.interactions_.n_interactions
    fitted.update(added)
    assert fitted.interactions_.n_interactions == before + 3
    assert_equals_refit(fitted)


def test_new_items_and_new_users_equal_a_refit(fitted: eq.EASE, path: str) -> None:
    added = eq.read([("u3", -1), ("zoe", -1), ("zoe", -2), ("zoe", 13)])
    fitted.update(added)
    assert fitted.item_index_.values.tolist()[-2:] == [-2, -1]
    assert "zoe" in fitted.interactions_.user_index
    assert_equals_refit(fitted)
    assert fitted.recommend(["zoe"], k=3).source == ["model"]


def test_forgotten_users_are_gone(fitted: eq.EASE, path: str) -> None:
    fitted.update(removed=["u1", "u2"])
    assert "u1" not in fitted.interactions_.user_index
    assert_equals_refit(fitted)


def test_removed_pairs_and_added_ones_together(
    fitted: eq.EASE, path: str, synthetic: Interactions
) -> None:
    fitted.update(synthetic.rows([280, 281]), removed=synthetic.rows([0, 1, 2]))
    assert fitted.interactions_.n_users == 279
    assert_equals_refit(fitted)


def test_taking_back_what_was_added_restores_the_model(synthetic: Interactions, path: str) -> None:
    model = eq.EASE(l2=5.0, normalizer=eq.DAN(0.2, 0.4)).fit(
        synthetic.rows(np.arange(280)), dtype="float64"
    )
    before = model.inverse_.copy()
    extra = synthetic.rows(np.arange(280, 300))
    model.update(extra).update(removed=extra)
    assert_close(model.inverse_, before, "float64", scale=np.abs(before).max())


def test_low_rank_path_needs_no_solve(
    synthetic: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = eq.EASE(l2=5.0).fit(synthetic.rows(np.arange(290)))
    monkeypatch.setattr(solve.dense, "invert_in_place", pytest.fail)
    model.update(synthetic.rows(np.arange(290, 300)))
    assert model.interactions_.n_users == 300


def test_loaded_model_can_be_updated_and_the_file_stays(synthetic: Interactions, tmp_path) -> None:
    model = eq.EASE(l2=5.0).fit(synthetic.rows(np.arange(290)), dtype="float64")
    model.save(tmp_path / "model")
    loaded = eq.load(tmp_path / "model").update(synthetic.rows(np.arange(290, 300)))
    assert_equals_refit(loaded)
    assert eq.load(tmp_path / "model", verify=True).interactions_.n_users == 290


def test_update_with_nothing_changes_nothing(synthetic: Interactions) -> None:
    model = eq.EASE(l2=5.0).fit(synthetic)
    before = model.inverse_
    assert model.update(synthetic.rows([3, 4])).inverse_ is before


def test_wrong_updates_are_refused_and_leave_the_model(synthetic: Interactions) -> None:
    model = eq.EASE(l2=5.0).fit(synthetic)
    before = model.inverse_.copy()
    with pytest.raises(UnknownIdError, match="nobody"):
        model.update(removed=["nobody"])
    with pytest.raises(DataError, match="1 pairs to remove are not in the data"):
        model.update(removed=Interactions([[1.0]], ["stranger"], [13]))
    with pytest.raises(DataError, match="leave no interactions"):
        model.update(removed=synthetic)
    np.testing.assert_array_equal(model.inverse_, before)
    with pytest.raises(SettingError, match="pruned"):
        model.prune(5).update(synthetic.rows([1]))
    own = eq.EASE(l2=5.0, normalizer=eq.CustomNorm(users=np.ones(300))).fit(synthetic)
    with pytest.raises(SettingError, match="fit again"):
        own.update(removed=["u1"])


def test_update_that_loses_accuracy_becomes_a_refit(
    synthetic: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = eq.EASE(l2=5.0).fit(synthetic.rows(np.arange(290)), dtype="float64")

    def spoilt(P: np.ndarray, *change: object) -> None:
        P[:] = np.nan

    monkeypatch.setattr(updating, "low_rank_update", spoilt)
    model.update(synthetic.rows(np.arange(290, 300)))
    assert_equals_refit(model)
