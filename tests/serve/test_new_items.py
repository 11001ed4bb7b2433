"""An item that the service is told about is listed by what describes it, in every worker."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.models.described import described
from tests.serve.conftest import READY, Api, Serve, Start
from tests.serve.test_processes import ask
from tests.serve.test_store import event

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.serve.folding import fold_saved
from equipoise.serve.store import Store

FEATURES = eq.Features(
    ["themes", "price"], strength=0, map="both", rarity=0, mu=1, share=0.3, neighbours=5, scale=2
)
NEW = {"title": "The fire and the snow 99", "themes": "fire|snow", "price": 7.5, "stock": 4}


@pytest.fixture(scope="module")
def data() -> Interactions:
    return described()


@pytest.fixture
def folder(data: Interactions, tmp_path: Path) -> Path:
    """Return a saved model that has a new item from its catalogue."""
    names = ["title", "themes", "price"]
    catalogue = pl.concat(
        [
            data.catalogue.with_columns(item=pl.Series(data.items)),
            pl.DataFrame({"title": ["Old"], "themes": [["sun"]], "price": [3.0], "item": ["old"]}),
        ]
    )
    with_new_item = data.with_catalogue(catalogue.select("item", *names))
    eq.EASE(l2=5.0, features=FEATURES).fit(with_new_item).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def api(served: Serve, folder: Path) -> Api:
    return served(models={"default": str(folder)})


def expected(folder: Path, history: list[str], **more: Any) -> dict[str, float]:
    """Return what the model lists once it has the new item."""
    model = eq.load(folder).add_items(
        {"item": ["n1"], "themes": [["fire", "snow"]], "price": [7.5]}
    )
    lists = model.recommend([history], k=45, **more)
    return dict(zip(lists.items[0], lists.scores[0], strict=True))


def listed(api: Api, history: list[str], **more: Any) -> dict[str, float]:
    answer = api.post("/v1/recommend", {"history": history, "k": 45, **more})
    assert answer.status_code == 200, answer.text
    return {item["item"]: item["score"] for item in answer.json()["items"]}


def is_same(one: dict[str, float], other: dict[str, float]) -> bool:
    return list(one) == list(other) and np.allclose([*one.values()], [*other.values()], rtol=1e-5)


def test_an_item_is_listed_from_the_next_request_on(api: Api, folder: Path) -> None:
    history = ["i1", "i2", "i5"]
    assert "old" in listed(api, history)
    assert "n1" not in listed(api, history)
    assert api.put("/v1/items/n1", NEW).status_code == 200
    assert is_same(listed(api, history), expected(folder, history))
    assert listed(api, history)["n1"] > 0
    assert is_same(listed(api, history, new_items=0.5), expected(folder, history, new_items=0.5))
    assert not {"n1", "old"} & listed(api, history, new_items=0).keys()
    assert api.post("/v1/recommend", {"history": history, "new_items": -1}).status_code == 422
    lines = '{"item": "n2", "themes": ["sun"]}\n{"item": "n3", "themes": "moon"}\n'
    kind = {"content-type": "application/x-ndjson"}
    assert api.request("POST", "/v1/items", content=lines, headers=kind).status_code == 200
    assert {"n1", "n2", "n3"} <= listed(api, history).keys()


def test_a_new_item_obeys_rules_and_has_reasons(api: Api) -> None:
    api.put("/v1/items/n1", NEW)
    history = ["i1", "i2", "i5"]
    rules = {"include": {"price": {"max": 8}, "stock": {"min": 1}}}
    assert listed(api, history, rules=rules).keys() == {"n1"}
    assert "n1" not in listed(api, history, rules={"exclude": {"themes": "snow"}})
    assert "n1" not in listed(api, history, rules={"min_users": 1})
    assert listed(api, history, filters={"stock": 4}).keys() == {"n1"}
    api.put("/v1/items/n1", {**NEW, "available": False})
    assert "n1" not in listed(api, history)
    api.put("/v1/items/n1", NEW)
    facts = api.get("/v1/items/n1").json()
    assert (facts["title"], facts["users"], facts["attributes"]["stock"]) == (NEW["title"], 0, 4)
    similar = api.get("/v1/similar?item=n1&k=3").json()["items"]
    assert len(similar) == 3
    answer = api.post("/v1/explain", {"history": history, "item": "n1"}).json()
    total = sum(reason["contribution"] for reason in answer["reasons"])
    assert total == pytest.approx(answer["score"], rel=1e-4)
    body = {"history": ["i0", *history], "explain": 4, "k": 45}
    items = {item["item"]: item for item in api.post("/v1/recommend", body).json()["items"]}
    shared = [reason["shared"] for reason in items["n1"]["reasons"]]
    assert [*map(len, shared)] != [0] * len(shared)
    themes = [value for pairs in shared for name, value in pairs if name == "themes"]
    assert {*themes} <= {"fire", "snow"}
    assert all("shared" not in reason for reason in items["i3"]["reasons"])


def test_changed_attributes_change_the_scores(api: Api) -> None:
    history = ["i1", "i2", "i5"]
    api.put("/v1/items/n1", NEW)
    before = listed(api, history)
    api.put("/v1/items/n1", {"themes": ["sun"], "price": [7.5]})
    after = listed(api, history)
    assert before["n1"] != after["n1"]
    del before["n1"], after["n1"]
    assert is_same(before, after)
    api.put("/v1/items/n1", {"available": True})
    assert "n1" not in listed(api, history)


@pytest.mark.parametrize(
    "values",
    [
        {"themes": 7, "price": "cheap", "title": ["a"]},
        {"themes": [None], "price": True},
        {"themes": {}.get("x"), "price": [1.0]},
    ],
)
def test_values_of_another_kind_harm_no_other_item(api: Api, values: dict[str, Any]) -> None:
    history = ["i1", "i2", "i5"]
    api.put("/v1/items/odd", values)
    api.put("/v1/items/n1", NEW)
    assert "n1" in listed(api, history)
    assert "odd" not in listed(api, history)


def test_live_events_on_a_new_item_count(api: Api, data: Interactions) -> None:
    api.put("/v1/items/n1", NEW)
    user = data.users[0]
    before = listed_for(api, user)
    assert "n1" in before
    body = {"events": [{"user": user, "item": "n1"}]}
    assert api.post("/v1/events", body).status_code == 200
    after = listed_for(api, user)
    assert "n1" not in after
    del before["n1"]
    assert not is_same(before, after)


def listed_for(api: Api, user: str) -> dict[str, float]:
    answer = api.get(f"/v1/recommend/{user}?k=45").json()
    return {item["item"]: item["score"] for item in answer["items"]}


def test_an_update_makes_it_a_known_item_with_its_attributes(
    folder: Path, data: Interactions, tmp_path: Path
) -> None:
    store = Store(f"sqlite:///{tmp_path}/x.db")
    store.do(store.describe_all({"n1": NEW, "n2": {"themes": ["sun"]}}))
    events = [event(number, data.users[number], "n1") for number in range(1, 6)]
    store.do(store.add(events))
    assert fold_saved(str(folder), store)["changed"] is True
    model = eq.load(folder)
    assert model.data_.item_counts[model.data_.item_index.position("n1")] == 5
    row = model.data_.catalogue[model.data_.item_index.position("n1")]
    assert row["themes"].to_list() == [["fire", "snow"]]
    assert {"n2", "old"} <= {*model.item_index_.values.tolist()}
    store.close()


def test_a_restart_and_a_reload_keep_what_was_added(
    served: Serve, folder: Path, data: Interactions
) -> None:
    first = served(models={"default": str(folder)})
    first.put("/v1/items/n1", NEW)
    second = served(models={"default": str(folder)})
    history = ["i1", "i2", "i5"]
    assert is_same(listed(first, history), listed(second, history))
    eq.load(folder).update(eq.read([(data.users[0], data.items[1]), ("fresh", "i3")])).save(folder)
    assert second.post("/v1/admin/reload", {}).status_code == 200
    assert "n1" in listed(second, history)


def test_every_worker_lists_it(folder: Path, start: Start, tmp_path: Path) -> None:
    service = start(folder, "--workers", "2", "--store", f"sqlite:///{tmp_path}/x.db")
    with service.client() as client:
        client.describe("n1", **NEW)
        lists = client.recommend([["i1", "i2", "i5"]], k=45, new_items=1.0)
        assert "n1" in lists.items[0]
        assert client.explain(["i1", "i2", "i5"], "n1").shared is not None
    time.sleep(1.5)  # other workers look for changes once a second
    end, agreeing = time.monotonic() + READY, 0
    body = {"history": ["i1", "i2", "i5"], "k": 45}
    while agreeing < 20:  # requests on connections of their own reach both workers
        status, answer = ask(service.address, "/v1/recommend", body)
        assert status == 200
        agreeing = agreeing + 1 if "n1" in {item["item"] for item in answer["items"]} else 0
        assert time.monotonic() < end


def test_a_model_without_features_lists_no_new_item(api: Api, served: Serve) -> None:
    plain = served()
    plain.put("/v1/items/n1", NEW)
    answer = plain.post("/v1/recommend", {"history": ["3"], "k": 5, "new_items": 1})
    assert answer.status_code == 422
    assert "features" in answer.json()["detail"]
