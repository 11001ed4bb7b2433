"""Events become part of a model, each once; forgotten users leave it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import call
from tests.serve.test_store import event

import equipoise as eq
from equipoise.interactions import Interactions
from equipoise.serve.folding import fold, fold_saved
from equipoise.serve.store import Change, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(f"sqlite:///{tmp_path}/x.db")
    yield made  # type: ignore[misc]
    made.close()


def test_the_result_equals_a_refit(models: Path, store: Store, shop_data: Interactions) -> None:
    events = [event(1, "u5", "3"), event(2, "fresh", "13"), event(3, "fresh", "9999")]
    events += [event(4, "fresh", "23"), event(5, "fresh", "23", weight=-1.0)]
    store.do(store.add("default", events))
    store.do(store.forget("default", "u7"))
    done = fold_saved(str(models / "dan"), store, "default")
    assert done["changed"] is True
    assert (done["users"], done["items"]) == (300, 81)
    model = eq.load(models / "dan")
    data = model.interactions_
    assert "u7" not in data.user_index
    assert sorted(data.history("fresh")) == [13, 9999]
    assert 3 in data.history("u5")
    fresh = eq.EASE(l2=20.0, dropout=0.3, normalizer=eq.DAN(0.3, 0.2)).fit(data)
    np.testing.assert_allclose(
        model.score([[3, 13]]), fresh.score([[3, 13]]), rtol=1e-4, atol=1e-6
    )
    again = fold_saved(str(models / "dan"), store, "default")
    assert (again["events"], again["forgotten"], again["changed"]) == (0, 0, False)
    store.do(store.add("default", [event(6, "u7", "3")]))
    assert fold_saved(str(models / "dan"), store, "default")["events"] == 1
    assert eq.load(models / "dan").interactions_.history("u7") == [3]


def test_weights_add_up_where_the_data_have_weights(toy: Interactions) -> None:
    data = Interactions(toy.matrix * 2, toy.users, toy.items)
    model = eq.EASE(l2=1.0).fit(data)
    events = [event(1, "ann", "tea", weight=3.0), event(2, "new", "rice", weight=0.5)]
    assert fold(model, Change(events, [], 2, 0)) is True
    found = model.interactions_.to_frame()
    weights = {(row["user"], row["item"]): row["weight"] for row in found.to_dicts()}
    assert weights["ann", "tea"] == 5
    assert weights["new", "rice"] == 0.5
    assert weights["ann", "milk"] == 2


def test_the_command_folds_and_says_so(models: Path, store: Store, tmp_path: Path) -> None:
    store.do(store.add("default", [event(1, "fresh", "13"), event(2, "fresh", "no integer")]))
    url = f"sqlite:///{tmp_path}/x.db"
    out = tmp_path / "renewed"
    done = call("update", models / "dan", "--from-store", url, "--out", out, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["users"] == 301
    assert "fresh" in eq.load(out).interactions_.user_index
    told = call("update", models / "dan", "--from-store", url)
    assert "2 events and 0 users to forget taken in" in told.stdout
    wrong = call("update", models / "dan", "--from-store", url, "--forget", "u5")
    assert wrong.exit_code == 2


def test_other_models_are_fitted_again(shop_data: Interactions) -> None:
    model = eq.GFCF().fit(shop_data)
    assert fold(model, Change([event(1, "u5", "9999")], ["u6"], 1, 1)) is True
    assert 9999 in model.data_.history("u5")
    assert "u6" not in model.data_.user_index
