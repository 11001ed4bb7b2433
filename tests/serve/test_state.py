"""Models of every kind answer through the service as they do by themselves."""

from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.serve.config import Config
from equipoise.serve.processes import lasting
from equipoise.serve.state import Catalogue, Served, State, allowed_items
from equipoise.serve.store import Live, Store

NEW = 10**9


def served(model: eq.Recommender, folder: Path) -> Served:
    model.save(folder / "m")
    return Served.open("m", str(folder / "m"))


def listed(loaded: Served, user: str, live: Live, k: int = 8) -> list[object]:
    history = loaded.history_of_user(user, live)
    allowed = allowed_items(loaded, Catalogue(loaded, {}))
    return [
        loaded.ids[place]
        for place in loaded.top(history, k, allowed, hidden=history.hidden).places
    ]


@pytest.mark.parametrize(
    "model",
    [eq.EASE(l2=5.0), eq.RLAE(l2=5.0), eq.GFCF(), eq.ItemKNN(), eq.Popularity()],
    ids=lambda model: type(model).__name__,
)
def test_lists_are_those_of_the_model(
    model: eq.Recommender, shop_data: Interactions, tmp_path: Path
) -> None:
    loaded = served(model.fit(shop_data), tmp_path)
    nobody = Live([], [], 0)
    for user in ("u1", "u99"):
        assert listed(loaded, user, nobody) == loaded.model.recommend([user], k=8).items[0]
    fresh = [item for item in shop_data.items.tolist() if item not in shop_data.history("u1")][:2]
    live = Live([(str(item), 1.0, 1.0, NEW, "view") for item in fresh], [], 0)
    together = [*shop_data.history("u1"), *fresh]
    assert listed(loaded, "u1", live) == loaded.model.recommend([together], k=8).items[0]


@pytest.fixture
def visits() -> Interactions:
    """30 sessions of three clicks, not in the order of the items' positions."""
    clicks = [["tea", "pot", "cup"] if n % 2 else ["pot", "jam", "tea"] for n in range(30)]
    rows = [
        (f"s{n}", item, n * 100 + step)
        for n, visit in enumerate(clicks)
        for step, item in enumerate(visit)
    ]
    frame = pl.DataFrame(rows, schema=["session", "item", "time"], orient="row")
    return eq.read(frame, session="session", item="item", time="time")


def test_a_session_model_takes_clicks_in_their_order(visits: Interactions, tmp_path: Path) -> None:
    loaded = served(eq.SLIST(l2=1.0).fit(visits), tmp_path)
    live = Live([("tea", 1.0, 1.0, NEW, "view"), ("pot", 1.0, 2.0, NEW + 1, "view")], [], 0)
    expected = loaded.model.recommend([["tea", "pot"]], k=2, exclude=["tea", "pot"]).items[0]
    assert listed(loaded, "new", live, 2) == expected


def test_a_training_session_is_asked_in_the_order_of_its_clicks(
    visits: Interactions, tmp_path: Path
) -> None:
    loaded = served(eq.SLIST(l2=1.0, decay_inference=1.0).fit(visits), tmp_path)
    all_items = np.ones(loaded.n_items, np.bool_)
    for session in ("s0", "s1"):
        expected = loaded.model.recommend([session], k=4, exclude_seen=False)
        ranked = loaded.top(loaded.history_of_user(session, Live([], [], 0)), 4, all_items)
        assert [loaded.ids[place] for place in ranked.places] == expected.items[0]
        assert ranked.scores.tolist() == expected.scores[0].tolist()


def test_rules_of_a_user_hold_whatever_the_model(visits: Interactions, tmp_path: Path) -> None:
    loaded = served(eq.SLIST(l2=1.0).fit(visits), tmp_path)
    all_items = np.ones(loaded.n_items, np.bool_)
    user_rules = {"users": {"new": {"exclude": ["cup"]}, "0": {"exclude": ["jam"]}}}

    def listed(user: str | None) -> set[object]:
        rules = Catalogue(loaded, {}).rules(user_rules, user)
        ranked = loaded.top(loaded.history_of_items(["tea"]), 4, all_items, rules=rules, user=user)
        return {loaded.ids[place] for place in ranked.places}

    assert listed("new") == {"tea", "pot", "jam"}
    assert listed("0") == {"tea", "pot", "cup"}
    assert listed("other") == listed(None) == {"tea", "pot", "jam", "cup"}


def test_live_events_of_new_users_count_where_users_are_numbers(tmp_path: Path) -> None:
    rows = [(n, item) for n in range(12) for item in ["tea", "milk", "salt"][: 2 + n % 2]]
    data = eq.read(pl.DataFrame(rows, schema=["user", "item"], orient="row"))
    loaded = served(eq.EASE(l2=1.0, signals=eq.Signals(transform="log1p")).fit(data), tmp_path)
    history = loaded.history_of_user("99", Live([("tea", 1.0, 1.0, NEW, "view")], [], 0))
    assert [loaded.ids[place] for place in history.places] == ["tea"]


def test_weighted_data_add_the_weights_of_events(toy: Interactions, tmp_path: Path) -> None:
    data = Interactions(toy.matrix * 2, toy.users, toy.items)
    loaded = served(eq.EASE(l2=1.0).fit(data), tmp_path)
    events = [("rice", 0.5, NEW), ("tea", 3.0, NEW), ("tea", 9.0, 0)]
    live = Live([(item, weight, 1.0, number, "view") for item, weight, number in events], [], 0)
    history = loaded.history_of_user("ann", live)
    weights = dict(zip([loaded.ids[n] for n in history.places], history.weights, strict=True))
    assert weights == {"tea": 5.0, "milk": 2.0, "rice": 0.5}  # number 0 is in the model already


def test_one_model_answers_many_threads(saved: Path) -> None:
    loaded = Served.open("m", str(saved / "dan"))
    expected = loaded.model.recommend([f"u{n}" for n in range(40)], k=5).items
    wrong: list[int] = []

    def ask(start: int) -> None:
        for n in range(start, 40, 4):
            if listed(loaded, f"u{n}", Live([], [], 0), 5) != expected[n]:
                wrong.append(n)

    threads = [threading.Thread(target=ask, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_reasons_of_a_long_history_fit_in_memory(tmp_path: Path) -> None:
    n_items, length = 20_000, 1000
    loaded = served(eq.Popularity().fit(sp.csr_array(np.ones((1, n_items)))), tmp_path)
    history = loaded.history_of_items([str(item) for item in range(length)])
    tracemalloc.start()
    try:
        (why,) = loaded.reasons(history, np.array([7]), None, 5)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(why) == 5
    assert peak < 4 * n_items * length / 2  # half of what the history's rows of scores take


def test_ids_are_found_by_their_text(saved: Path) -> None:
    loaded = Served.open("m", str(saved / "dan"))
    history = loaded.history_of_items(
        ["3", "03", "+3", " 3", "3.0", "999999999999999999999", "-3", ""]
    )
    assert history.places.tolist() == [0]
    assert len(history.unknown) == 7
    assert np.array_equal(loaded.history_of_items(["13", "3"]).places, [0, 1])


def test_signals_weigh_live_events_as_they_weighed_the_training_data(tmp_path: Path) -> None:
    day = 86_400.0
    rows = [
        (f"u{n}", item, day * step, "buy" if n % 2 else "view")
        for n in range(12)
        for step, item in enumerate(["tea", "milk", "salt"][: 2 + n % 2])
    ]
    frame = pl.DataFrame(rows, schema=["user", "item", "time", "type"], orient="row")
    data = eq.read(frame, user="user", item="item", time="time", type="type")
    signals = eq.Signals(weights={"view": 1, "buy": 10}, transform="sum", decay="1d", floor=0.0)
    loaded = served(eq.EASE(l2=1.0, signals=signals).fit(data), tmp_path)
    live = Live([("salt", 10.0, 3 * day, NEW, "buy")], [], 0)
    history = loaded.history_of_user("u2", live)
    weights = dict(
        zip([loaded.ids[n] for n in history.places], history.weights.tolist(), strict=True)
    )
    # u2 viewed tea and milk 3 and 2 half-lives before the purchase, which counts 10
    assert weights == pytest.approx({"tea": 0.125, "milk": 0.25, "salt": 10.0})
    with_it = data.union(
        eq.read(
            pl.DataFrame(
                [("u2", "salt", 3 * day, "buy")],
                schema=["user", "item", "time", "type"],
                orient="row",
            ),
            user="user",
            item="item",
            time="time",
            type="type",
            on_bad="skip",
        )
    )
    place = with_it.user_index.position("u2")
    rows_of_user = with_it.rows(np.array([place]))
    expected = loaded.model.recommend(rows_of_user, k=3, exclude_seen=False).items[0]
    all_items = np.ones(loaded.n_items, np.bool_)
    assert [loaded.ids[n] for n in loaded.top(history, 3, all_items).places] == expected


def test_a_replaced_model_is_freed_without_garbage_collection(
    models: Path, tmp_path: Path
) -> None:
    config = Config.read(
        None, {"models": {"dan": str(models / "dan")}, "store": f"sqlite:///{tmp_path}/x.db"}
    )
    store = Store(config.store)
    gc.collect()
    with lasting():
        state = State(config, store)
    old = weakref.ref(state.models["dan"].model)
    eq.EASE(l2=1.0).fit(old().interactions_).save(models / "dan")  # type: ignore[union-attr]
    gc.disable()
    try:
        state.reload()
        assert old() is None
    finally:
        gc.enable()
        gc.unfreeze()
        store.close()


def test_a_model_without_training_data_answers_from_the_store(
    shop_data: Interactions, tmp_path: Path
) -> None:
    model = eq.EASE(l2=5.0).fit(shop_data)
    model.save(tmp_path / "m", data="none")
    loaded = Served.open("m", str(tmp_path / "m"))
    assert not loaded.knows("u1")
    popular = np.argsort(-shop_data.item_counts, kind="stable")[:8]
    assert listed(loaded, "u1", Live([], [], 0)) == shop_data.items[popular].tolist()
    used = shop_data.history("u1")[:3]
    live = Live([(str(item), 1.0, 1.0, NEW, "view") for item in used], [], 0)
    assert listed(loaded, "u1", live) == model.recommend([used], k=8).items[0]
    with pytest.raises(eq.MissingDataError, match="was saved without its training data"):
        loaded.model.update(removed=["u1"])
    model.save(tmp_path / "m", data="beside")
    beside = Served.open("m", str(tmp_path / "m"))
    assert listed(beside, "u1", Live([], [], 0)) == model.recommend(["u1"], k=8).items[0]


def test_a_model_with_a_trend_and_no_training_data_is_not_served(
    log: Interactions, tmp_path: Path
) -> None:
    eq.EASE(l2=5.0, trend=eq.Trend()).fit(log).save(tmp_path / "m", data="none")
    with pytest.raises(eq.MissingDataError, match="has a trend, which the service moves on"):
        Served.open("m", str(tmp_path / "m"))
