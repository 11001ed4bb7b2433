"""Events become part of a model, each once; forgotten users leave it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.cli.conftest import call
from tests.serve.conftest import Serve
from tests.serve.test_store import event

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.serve.folding import fold, fold_saved
from equipoise.serve.state import Catalogue, Served, allowed_items
from equipoise.serve.store import Change, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store(f"sqlite:///{tmp_path}/x.db")
    yield opened  # type: ignore[misc]
    opened.close()


def test_the_result_equals_a_refit(models: Path, store: Store, shop_data: Interactions) -> None:
    events = [event(1, "u5", "3"), event(2, "fresh", "13"), event(3, "fresh", "9999")]
    events += [event(4, "fresh", "23"), event(5, "fresh", "23", weight=-1.0)]
    store.do(store.add(events))
    store.do(store.forget("u7"))
    done = fold_saved(str(models / "dan"), store)
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
    again = fold_saved(str(models / "dan"), store)
    assert (again["events"], again["forgotten"], again["changed"]) == (0, 0, False)
    store.do(store.add([event(6, "u7", "3")]))
    assert fold_saved(str(models / "dan"), store)["events"] == 1
    assert eq.load(models / "dan").interactions_.history("u7") == [3]


def test_weights_add_up_where_the_data_have_weights(toy: Interactions) -> None:
    data = Interactions(toy.matrix * 2, toy.users, toy.items)
    model = eq.EASE(l2=1.0).fit(data)
    events = [event(1, "ann", "tea", weight=3.0), event(2, "new", "rice", weight=0.5)]
    assert fold(model, Change(events, [], 2, 0)) is True
    frame = model.interactions_.to_frame()
    weights = {(row["user"], row["item"]): row["weight"] for row in frame.to_dicts()}
    assert weights["ann", "tea"] == 5
    assert weights["new", "rice"] == 0.5
    assert weights["ann", "milk"] == 2


def test_the_command_folds_and_says_so(models: Path, store: Store, tmp_path: Path) -> None:
    store.do(store.add([event(1, "fresh", "13"), event(2, "fresh", "no integer")]))
    url = f"sqlite:///{tmp_path}/x.db"
    out = tmp_path / "renewed"
    done = call("update", models / "dan", "--from-store", url, "--out", out, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["users"] == 301
    assert "fresh" in eq.load(out).interactions_.user_index
    output = call("update", models / "dan", "--from-store", url)
    assert "added 2 events, forgot 0 users" in output.stdout
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


def test_ids_of_another_type_are_added(numbered: Path, store: Store) -> None:
    store.do(store.add([event(n, *pair) for n, pair in enumerate(GUESTS)]))
    store.do(store.forget("5"))
    before = eq.load(numbered).data_
    done = fold_saved(str(numbered), store)
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
    store.do(store.add([event(9, "7", "30"), event(10, "guest-7f3a", "30")]))
    store.do(store.forget("07"))
    fold_saved(str(numbered), store)
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
        lists = []
        for user in ("guest-7f3a", "1", "07", "12"):
            items = api.get(f"/v1/users/{user}").json()["items"]
            listed = api.get(f"/v1/recommend/{user}?k=1").json()
            lists.append(({str(item["item"]) for item in items}, listed["source"]))
        return lists

    before = answers()
    fold_saved(str(numbered), api.state.store)
    assert api.post("/v1/admin/reload").status_code == 200
    after = answers()
    assert before[0] == after[0] == ({"10", "20"}, "model")
    assert after == [(before[0]), ({"10", "20", "sku-9"}, "model"), ({"30"}, "model"), before[3]]
    assert api.get("/v1/recommend/7?k=1").json()["source"] == "model"
    assert api.get("/v1/items/10").status_code == 200


def _log(*columns: str) -> Interactions:
    """Return the log of a shop: times, and kinds or quantities where they are asked for."""
    rows = [
        (f"u{n}", item, 100.0 * n + step, "buy" if n % 2 else "view", 1.0 + n % 3)
        for n in range(12)
        for step, item in enumerate(["tea", "milk", "salt", "rice"][: 2 + n % 3])
    ]
    rows += [("u0", "jam", 2000.0, "dislike", 1.0), ("u5", "tea", 2001.0, "buy", 1.0)]
    frame = pl.DataFrame(rows, ["user", "item", "time", "type", "weight"], orient="row")
    return eq.read(frame.select("user", "item", "time", *columns), **{n: n for n in columns})


KINDS = {"view": 1.0, "buy": 5.0, "dislike": -1.0}
LOGS: dict[str, tuple[eq.Recommender, tuple[str, ...]]] = {
    "counts once": (eq.EASE(l2=1.0), ()),
    "adds weights": (eq.EASE(l2=1.0), ("weight",)),
    "fitted again": (eq.GFCF(n_factors=2), ()),
    "known users": (eq.SGFCF(n_factors=2), ()),
    "sessions": (eq.SLIST(l2=1.0), ()),
    "log of quantities": (eq.EASE(l2=1.0, signals=eq.Signals(transform="log1p")), ("weight",)),
    "kinds": (eq.EASE(l2=1.0, signals=eq.Signals(weights=KINDS, transform="sum")), ("type",)),
    "kinds and quantities": (
        eq.EASE(l2=1.0, signals=eq.Signals(weights=KINDS, transform="sum", returns="negative")),
        ("type", "weight"),
    ),
    "negative kinds": (
        eq.EASE(l2=1.0, signals=eq.Signals(weights=KINDS, returns="negative")),
        ("type",),
    ),
    "negative quantities": (
        eq.EASE(l2=1.0, signals=eq.Signals(transform="sum", returns="negative")),
        ("weight",),
    ),
}


class Shop:
    """A model that is served beside a store, and folded on request."""

    def __init__(self, kind: str, folder: Path, store: Store) -> None:
        model, columns = LOGS[kind]
        self._folder, self._store, self._n = str(folder / "model"), store, 0
        copy.copy(model).fit(_log(*columns)).save(self._folder)
        self._open()

    def _open(self) -> None:
        self.served = Served.open("m", self._folder, self._store)

    def send(self, user: str, item: str, kind: str = "view", weight: float = 1.0) -> None:
        self._n += 1
        sent = event(self._n, user, item, type=kind, weight=weight, time=3000.0 + self._n)
        self._store.do(self._store.add([sent]))

    def dislike(self, user: str, item: str) -> None:
        self.send(user, item, "dislike", -1.0)

    def fold(self) -> dict[str, Any]:
        done = fold_saved(self._folder, self._store)
        self._open()
        return done

    def values(self, user: str) -> dict[Any, float]:
        """Return what the items of a user's history count."""
        history = self.served.history_of_user(user, self._store.live(user))
        places = [self.served.ids[place] for place in history.places]
        return dict(zip(places, history.weights.tolist(), strict=True))

    def history(self, user: str) -> set[Any]:
        return {item for item, value in self.values(user).items() if value > 0}

    def listed(self, user: str) -> set[Any]:
        history = self.served.history_of_user(user, self._store.live(user))
        everything = Catalogue(self.served, {})
        allowed = allowed_items(self.served, everything)
        return {
            self.served.ids[n]
            for n in self.served.top(history, 9, allowed, hidden=history.hidden).places
        }


@pytest.fixture(params=LOGS)
def shop(request: pytest.FixtureRequest, tmp_path: Path, store: Store) -> Shop:
    return Shop(request.param, tmp_path, store)


@pytest.mark.parametrize("folded", [(), (0,), (1,), (2,), (3,), (0, 1, 2, 3)])
def test_a_dislike_takes_an_item_out_of_the_history(shop: Shop, folded: tuple[int, ...]) -> None:
    # u1 has used tea, milk and salt before
    sent: list[tuple[str, Callable[..., None]]] = [
        ("tea", shop.send),
        ("tea", shop.dislike),
        ("milk", shop.dislike),
        ("rice", shop.dislike),
    ]
    for step, (item, send) in enumerate(sent):
        send("u1", item)
        if step in folded:
            shop.fold()
    assert shop.history("u1") == {"salt"}
    assert not {"tea", "milk", "rice"} & shop.listed("u1")


@pytest.mark.parametrize("folded", [(), (0,), (1,), (0, 1, 2)])
def test_events_after_a_dislike_count_again(shop: Shop, folded: tuple[int, ...]) -> None:
    for step, send in enumerate([shop.dislike, shop.send, shop.send]):
        send("u1", "tea")
        if step in folded:
            shop.fold()
    if shop.served.model.fold_in or 2 in folded:
        assert shop.history("u1") == {"tea", "milk", "salt"}


@pytest.mark.parametrize(
    ("kind", "value"), [("counts once", 1.0), ("adds weights", 2.0), ("kinds", 2.0)]
)
def test_only_what_comes_after_a_dislike_counts(
    kind: str, value: float, tmp_path: Path, store: Store
) -> None:
    shop = Shop(kind, tmp_path, store)
    for send in (shop.send, shop.dislike, shop.send, shop.send):
        send("u1", "tea")
    assert shop.values("u1")["tea"] == value
    shop.fold()
    assert shop.values("u1")["tea"] == value


def test_a_dislike_of_a_new_user_leaves_no_history(shop: Shop) -> None:
    shop.send("new", "tea")
    shop.dislike("new", "tea")
    assert shop.history("new") == set()
    shop.fold()
    assert shop.history("new") == set()
    assert "tea" not in shop.listed("new")
    shop.send("new", "milk")
    shop.fold()
    assert shop.history("new") == {"milk"}


def test_events_that_count_nothing_are_left_out_and_counted(tmp_path: Path, store: Store) -> None:
    shop = Shop("counts once", tmp_path, store)
    before = eq.load(tmp_path / "model").data_fingerprint_
    shop.send("u1", "rice", weight=0.0)
    done = shop.fold()
    assert (done["events"], done["left_out"], done["changed"]) == (1, 1, False)
    # another model with the same data may count the event
    assert len(store.since(before).events) == 1
    shop.send("u2", "rice")
    done = shop.fold()
    assert (done["events"], done["left_out"], done["changed"]) == (2, 1, True)
    assert shop.history("u1") == {"tea", "milk", "salt"}
    url = f"sqlite:///{tmp_path}/x.db"
    shop.send("u3", "salt", weight=0.0)
    output = call("update", tmp_path / "model", "--from-store", url)
    assert "added 0 events, forgot 0 users" in output.stdout
    assert "ignored 1 events that have weight 0" in output.stdout


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize(
    ("sent", "value"),
    [
        ([("view", 1.0)], 1.0),
        ([("buy", 5.0)], 5.0),
        ([("buy", 1.0)], 5.0),  # the model knows better than whoever wrote the weight
        ([("share", 2.0)], 1.0),  # a type that the model does not know
        ([("buy", 5.0), ("share", 2.0)], 6.0),
        ([("dislike", 1.0)], None),
        ([("buy", -1.0)], None),
        ([("share", -1.0)], None),
        ([("dislike", -1.0), ("buy", 5.0)], 5.0),
    ],
)
def test_the_signals_of_a_model_weigh_the_types_they_know(
    sent: list[tuple[str, float]],
    value: float | None,
    folded: bool,
    tmp_path: Path,
    store: Store,
) -> None:
    shop = Shop("kinds", tmp_path, store)
    for kind, weight in sent:
        shop.send("u0", "rice", kind, weight)
    if folded:
        shop.fold()
    assert shop.values("u0").get("rice") == value
    assert "rice" not in shop.listed("u0")


def test_types_that_a_model_does_not_know_count_their_weight_among_quantities(
    tmp_path: Path, store: Store
) -> None:
    shop = Shop("kinds and quantities", tmp_path, store)
    shop.send("u0", "rice", "share", 2.0)
    assert shop.values("u0")["rice"] == 2.0
    shop.fold()
    assert shop.values("u0")["rice"] == 2.0


def test_what_users_did_before_counts_the_same_after_a_fold(shop: Shop) -> None:
    before = shop.values("u5")
    shop.send("u0", "salt", "share", 2.0)
    shop.dislike("u0", "milk")
    shop.fold()
    assert shop.values("u5") == pytest.approx(before)


def test_types_of_events_are_those_of_the_settings_and_of_the_models(
    tmp_path: Path, served: Serve
) -> None:
    for kind in ("kinds", "adds weights"):
        model, columns = LOGS[kind]
        copy.copy(model).fit(_log(*columns)).save(tmp_path / kind.replace(" ", "-"))
    folders = {"kinds": str(tmp_path / "kinds"), "plain": str(tmp_path / "adds-weights")}
    api = served(models=folders, weights={"view": 1.0, "share": 2.0})
    for kind in ("buy", "share"):
        sent = {"user": "new", "item": "rice", "type": kind}
        assert api.post("/v1/events", {"events": [sent]}).status_code == 200
    for name, value in (("kinds", 6.0), ("plain", 7.0)):
        opened = Served.open(name, folders[name])
        history = opened.history_of_user("new", api.state.store.live("new"))
        assert history.weights.tolist() == [value]
    refused = api.post("/v1/events", {"events": [{"user": "a", "item": "tea", "type": "stare"}]})
    assert refused.status_code == 422
    assert "known are buy, dislike, share, view" in refused.json()["detail"]
    assert api.post("/v1/events", {"events": [{**sent, "type": "dislike"}]}).status_code == 200
    for name in folders:
        assert api.get(f"/v1/users/new?model={name}").json()["items"] == []
        assert "rice" not in str(api.get(f"/v1/recommend/new?model={name}").json()["items"])
