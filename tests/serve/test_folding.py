"""Events become part of a model, each once; forgotten users leave it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import call
from tests.serve.conftest import Serve
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


@pytest.fixture
def numbered(tmp_path: Path) -> Path:
    """Return the folder of a model whose users and items are integers."""
    pairs = [(user, item) for user in range(12) for item in (10, 20, 30)[: 1 + user % 3]]
    eq.EASE(l2=1.0).fit(eq.read(pairs)).save(tmp_path / "numbered")
    return tmp_path / "numbered"


GUESTS = [("guest-7f3a", "10"), ("guest-7f3a", "20"), ("1", "sku-9"), ("07", "30"), ("12", "20")]


def test_ids_of_another_kind_are_taken_in(numbered: Path, store: Store) -> None:
    store.do(store.add("default", [event(n, *pair) for n, pair in enumerate(GUESTS)]))
    store.do(store.forget("default", "5"))
    before = eq.load(numbered).data_
    done = fold_saved(str(numbered), store, "default")
    assert (done["events"], done["forgotten"]) == (5, 1)
    data = eq.load(numbered).data_
    assert set(data.users.tolist()) == {*map(str, {*range(12)} - {5}), "guest-7f3a", "07", "12"}
    assert data.items.tolist() == ["10", "20", "30", "sku-9"]
    for user, item in GUESTS:
        assert item in data.history(user)
    added = eq.read(GUESTS)
    fresh = eq.EASE(l2=1.0).fit(before.difference(before.select(users=[5])).union(added))
    np.testing.assert_allclose(
        eq.load(numbered).score([[10, "sku-9"]]), fresh.score([[10, "sku-9"]]), atol=1e-6
    )
    store.do(store.add("default", [event(9, "7", "30"), event(10, "guest-7f3a", "30")]))
    store.do(store.forget("default", "07"))
    fold_saved(str(numbered), store, "default")
    data = eq.load(numbered).data_
    assert data.history(7) == data.history("7") == ["10", "20", "30"]
    assert sorted(data.history("guest-7f3a")) == ["10", "20", "30"]
    assert "07" not in data.user_index


def test_users_of_another_kind_are_answered_before_and_after_a_fold(
    numbered: Path, tmp_path: Path, served: Serve
) -> None:
    api = served(models={"default": str(numbered)})
    sent = [{"user": user, "item": item} for user, item in GUESTS]
    assert api.post("/v1/events", {"events": sent}).status_code == 200

    def answers() -> list[Any]:
        found = []
        for user in ("guest-7f3a", "1", "07", "12"):
            items = api.get(f"/v1/users/{user}").json()["items"]
            listed = api.get(f"/v1/recommend/{user}?k=1").json()
            found.append(({str(item["item"]) for item in items}, listed["source"]))
        return found

    before = answers()
    fold_saved(str(numbered), api.state.store, "default")
    assert api.post("/v1/admin/reload").status_code == 200
    after = answers()
    assert before[0] == after[0] == ({"10", "20"}, "model")
    assert after == [(before[0]), ({"10", "20", "sku-9"}, "model"), ({"30"}, "model"), before[3]]
    assert api.get("/v1/recommend/7?k=1").json()["source"] == "model"
    assert api.get("/v1/items/10").status_code == 200
