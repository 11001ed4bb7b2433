"""Events in bulk, single events, and everything about one user."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.serve.conftest import Api, Serve
from tests.serve.test_api import click, items
from tests.serve.test_store import TRICKS, event

from equipoise.errors import DataError
from equipoise.models import load
from equipoise.serve import records
from equipoise.serve.folding import fold_saved
from equipoise.serve.records import (
    Selection,
    all_events,
    erase_forgotten,
    erase_now,
    personal_data,
    scrub,
)
from equipoise.serve.store import Mark, Store
from equipoise.serve.transfer import LISTED, validate

LINES = {"content-type": "application/x-ndjson"}
PARQUET = {"content-type": "application/vnd.apache.parquet"}
EVENTS = [
    {"user": "ann", "item": 3, "id": "a1", "time": 1000.0},
    {"user": "bob", "item": "13", "type": "cart", "weight": 2.5, "list_id": "some"},
    {"user": "ann", "item": 23, "mark": "seen"},
    {"user": "ann", "item": 33},
]


def as_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def send(api: Api, content: bytes, headers: dict[str, str] = LINES, query: str = "") -> Any:
    return api.request("POST", f"/v1/events:import{query}", content=content, headers=headers)


def exported(api: Api, query: str = "") -> list[dict[str, Any]]:
    answer = api.get(f"/v1/export/events{query}")
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def test_what_is_exported_can_be_imported_elsewhere(served: Serve, tmp_path: Path) -> None:
    api = served()
    assert send(api, as_lines(EVENTS)).json() == {
        "rows": 4,
        "accepted": 3,
        "duplicates": 0,
        "seen": 1,
    }
    rows = exported(api)
    assert [(row["user"], row["item"], row["weight"]) for row in rows] == [
        ("ann", "3", 1.0),
        ("bob", "13", 2.5),
        ("ann", "33", 1.0),
    ]
    table = api.get("/v1/export/events?format=parquet")
    assert table.headers["content-type"] == PARQUET["content-type"]
    frame = pl.read_parquet(io.BytesIO(table.content))
    assert frame["id"].to_list() == [row["id"] for row in rows]
    for number, (content, headers) in enumerate(
        [(as_lines(rows), LINES), (table.content, PARQUET)]
    ):
        other = served(store=f"sqlite:///{tmp_path}/other-{number}.db")
        assert send(other, content, headers).json()["accepted"] == 3
        assert send(other, content, headers).json()["duplicates"] == 3
        assert exported(other) == rows


def test_an_import_without_ids_is_repeated_without_harm_under_its_name(api: Api) -> None:
    lines = as_lines([{"user": "ann", "item": 3}] * 3)
    assert send(api, lines, query="?batch=monday").json()["accepted"] == 3
    assert send(api, lines, query="?batch=monday").json()["duplicates"] == 3
    assert send(api, lines).json()["accepted"] == 3


def test_a_table_may_have_datetimes_integers_and_nulls(api: Api) -> None:
    moment = pl.Series([1_000_000, None]).cast(pl.Datetime("us"))
    frame = pl.DataFrame({"user": [1, 2], "item": [3, 13], "time": moment, "type": [None, "view"]})
    file = io.BytesIO()
    frame.write_parquet(file)
    assert send(api, file.getvalue(), PARQUET).json()["accepted"] == 2
    rows = exported(api, "?user=1")
    assert [(row["item"], row["time"], row["type"]) for row in rows] == [("3", 1.0, "view")]


@pytest.mark.parametrize(
    ("content", "headers", "reason"),
    [
        (b'{"user": "a", "item": 3}\n{"user": "a"', LINES, "line 2 is not a JSON object"),
        (b"[1]", LINES, "line 1 is not a JSON object"),
        (b"[" * 5000, LINES, "line 1 is not a JSON object"),
        (b'{"user": "a", "item": 3}\n\n{"user": "a"}', LINES, "event 2: item: "),
        (b'{"user": "a", "item": 3, "type": "unheard"}', LINES, "event 1: no weight"),
        (
            b'{"user": "a", "item": 3, "time": 99999999999}',
            LINES,
            "event 1: an event is more than a day",
        ),
        (b"x" * 1_100_000, LINES, "longer than"),
        (b"PAR1 and no more", PARQUET, "not a whole Parquet file"),
    ],
)
def test_bad_records_are_named(
    api: Api, content: bytes, headers: dict[str, str], reason: str
) -> None:
    answer = send(api, content, headers)
    assert answer.status_code == 422, answer.text
    assert reason in answer.json()["detail"]
    assert exported(api) == []


@pytest.mark.parametrize(
    ("user", "problem"),
    [
        ("u" * 5_000, "line 2: user: String should have at most"),
        (1.5, "line 2: user: Input should be text or a whole number"),
        (-(10**30), "line 2: user: Input should be greater than or equal to"),
    ],
)
def test_an_id_that_is_refused_gets_the_reason_of_its_own_type(user: Any, problem: str) -> None:
    records = [{"user": "ann", "item": "tea"}, {"user": user, "item": "tea"}]
    with pytest.raises(DataError, match=f"^{problem}"):
        validate(records, lambda number: f"line {number + 1}: ", LISTED)


def test_a_table_with_another_column_is_refused(api: Api) -> None:
    file = io.BytesIO()
    pl.DataFrame({"user": ["a"], "item": ["b"], "colour": ["red"]}).write_parquet(file)
    assert "'colour'" in send(api, file.getvalue(), PARQUET).json()["detail"]


def test_an_error_far_into_an_import_says_what_is_stored(api: Api) -> None:
    rows: list[dict[str, Any]] = [{"user": "a", "item": n, "id": f"e{n}"} for n in range(5000)]
    wrong = [*rows[:4500], {"user": "a"}, *rows[4500:]]
    detail = send(api, as_lines(wrong)).json()["detail"]
    assert detail.startswith("event 4,501 (4,000 rows before it are stored): item: ")
    assert send(api, as_lines(rows)).json() == {
        "rows": 5000,
        "accepted": 1000,
        "duplicates": 4000,
        "seen": 0,
    }
    assert len(exported(api)) == 5000


def test_imports_may_be_larger_than_other_bodies(served: Serve) -> None:
    api = served(limits={"body": 2000, "bulk": 20_000})
    rows = [{"user": "a", "item": n} for n in range(100)]
    assert send(api, as_lines(rows)).json()["accepted"] == 100
    assert api.post("/v1/events", {"events": rows}).status_code == 413
    assert send(api, as_lines(rows) * 20).status_code == 413
    assert send(api, b"{}", {"content-type": "application/json"}).status_code == 415
    assert send(api, b"{}", {"content-type": "text/plain"}).status_code == 415


def test_a_full_folder_for_temporary_files_is_reported(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    click(api, "ann", 3)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryDirectory", refuse)
    monkeypatch.setattr("tempfile.SpooledTemporaryFile", refuse)
    for answer in (api.get("/v1/export/events?format=parquet"), send(api, b"PAR1", PARQUET)):
        assert answer.status_code == 507
    assert len(exported(api)) == 1


def test_events_are_listed_in_pages_and_by_what_they_are(api: Api) -> None:
    send(api, as_lines(EVENTS))
    page = api.get("/v1/events?limit=2").json()
    assert [row["item"] for row in page["events"]] == ["3", "13"]
    last = api.get(f"/v1/events?limit=2&after={page['next']}").json()
    assert [row["item"] for row in last["events"]] == ["33"]
    assert last["next"] is None
    for query, expected in {
        "user=ann": ["3", "33"],
        "item=13": ["13"],
        "type=cart": ["13"],
        "list_id=some": ["13"],
        "until=2000": ["3"],
        "since=2000": ["13", "33"],
        "user=none": [],
    }.items():
        rows = api.get(f"/v1/events?{query}").json()["events"]
        assert [row["item"] for row in rows] == expected, query


@pytest.mark.parametrize("name", ["a1", *TRICKS[:4], "order/7", "line\nbreak"])
def test_a_single_event_can_be_deleted(api: Api, name: str) -> None:
    from urllib.parse import quote

    click(api, "new", 3, id=name)
    click(api, "new", 13, id="stays")
    answer = api.delete(f"/v1/events/{quote(name, safe='')}")
    assert answer.json() == {"id": name, "models": []}
    assert items(api.get("/v1/users/new")) == [13]
    assert api.delete(f"/v1/events/{quote(name, safe='')}").status_code == 404


def test_deleting_an_event_says_which_models_have_learned_from_it(
    models: Path, served: Serve
) -> None:
    paths = {"default": str(models / "dan"), "plain": str(models / "plain")}
    api = served(models=paths)
    click(api, "new", 3, id="old")
    fold_saved(paths["default"], api.state.store)
    api.post("/v1/admin/reload")
    assert api.delete("/v1/events/old").json()["models"] == ["default"]


def test_attributes_are_exported(api: Api) -> None:
    api.put("/v1/items/3", {"category": "tea", "tags": ["a", "b"]})
    api.put("/v1/items/new", {"available": False})
    rows = [json.loads(line) for line in api.get("/v1/export/items").text.splitlines()]
    assert {row["item"]: row.get("category") for row in rows} == {"3": "tea", "new": None}
    assert rows[0]["tags"] == ["a", "b"]


def test_a_closed_catalogue_refuses_ids_that_nobody_announced(served: Serve) -> None:
    api, other = served(catalogue="closed"), served(catalogue="closed")
    events = [{"user": "new", "item": item} for item in (3, "fresh", "made up")]
    refused = api.post("/v1/events", {"events": events})
    assert refused.status_code == 422
    assert "does not have 'fresh', 'made up'; announce" in refused.json()["detail"]
    assert send(api, as_lines(events)).json()["detail"].startswith("event 2: the catalogue is")
    assert api.get("/v1/users/new").json()["events"] == 0
    other.put("/v1/items/fresh", {})  # which the other worker has not read yet
    assert api.post("/v1/events", {"events": events[:2]}).status_code == 200
    assert send(api, as_lines(events[:2])).json()["accepted"] == 2
    marked = {"events": [{"user": "new", "item": "made up", "mark": "seen"}]}
    assert api.post("/v1/events", marked).status_code == 422


def test_everything_about_a_user_is_exported(served: Serve) -> None:
    api = served(experiments=[{"name": "dial", "models": {"default": 1, "plain": 1}}])
    click(api, "u5", 3, id="mine")
    api.post("/v1/events", {"events": [{"user": "u5", "item": 13, "mark": "seen"}]})
    shown = api.get("/v1/recommend/u5?k=3").json()
    api.state.store.do(lambda _: None)  # the list is written
    data = api.get("/v1/export/user?user=u5").json()
    assert [row["id"] for row in data["events"]] == ["mine"]
    assert [row["item"] for row in data["seen"]] == ["13"]
    assert data["lists"][0]["items"] == [row["item"] for row in shown["items"]]
    history = load(api.state.models["default"].folder).interactions_.history("u5")
    assert [row["item"] for row in data["training"]["default"]] == [*map(str, history)]
    assert data["forgotten"] == []
    other = api.get("/v1/export/user?user=nobody").json()
    assert not any(other[name] for name in ("events", "seen", "lists", "forgotten", "training"))


def bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_an_erased_user_leaves_no_trace(
    models: Path, served: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "ERASE_AFTER", 0.0)
    paths = {"default": str(models / "dan")}
    (tmp_path / "store").mkdir()
    api = served(models=paths, store=f"sqlite:///{tmp_path}/store/events.db")
    store, model = api.state.store, api.state.models
    for user in ("someone-remarkable", "u5", "u6"):
        click(api, user, 3, 13)
    for user in ("someone-remarkable", "u5"):
        answer = api.delete(f"/v1/users/{user}?erase=true").json()
        assert answer["remains"] == (["default"] if user == "u5" else [])
    assert api.delete("/v1/users/u6").json()["remains"] == ["default"]  # forgotten only
    assert erase_forgotten(store, list(model.values()), time.time()) == 1
    assert b"someone-remarkable" not in bytes_of(tmp_path / "store")
    assert store.live("u5").forgotten > 0  # needed while the model has the user
    fold_saved(paths["default"], store)
    api.post("/v1/admin/reload")
    assert erase_forgotten(store, list(model.values()), time.time()) == 0
    assert erase_forgotten(store, list(api.state.models.values()), time.time()) == 1
    assert store.live("u5").forgotten == 0
    assert store.live("u6").forgotten > 0
    assert not api.state.models["default"].knows("u5")
    for user in ("someone-remarkable", "u5"):
        assert not any(personal_data(store, user)[name] for name in ("events", "forgotten"))


def test_rows_are_listed_and_erased_in_each_database(url: str) -> None:
    store = Store(url)
    store.do(store.add([event(n, "ann" if n % 2 else "bob") for n in range(6)]))
    store.do(store.add([], [Mark("ann", "tea", 1.0)]))
    store.do(store.forget("cid", erase=True))
    assert [row["id"] for page in all_events(store, Selection()) for row in page] == [
        str(n) for n in range(6)
    ]
    assert [row["id"] for row in records.read_events(store, Selection(user="ann"))] == [*"135"]
    assert store.do(records.delete_event("3")) == 4
    assert store.do(records.delete_event("3")) is None
    assert store.do(erase_now("ann")) == 3
    later = time.time() + 2 * records.ERASE_AFTER
    assert erase_forgotten(store, [], time.time()) == 0  # workers may not have noticed yet
    assert erase_forgotten(store, [], later) == 1
    scrub(store)
    assert personal_data(store, "cid")["forgotten"] == []
    assert store.counts()["events"] == 3
    store.close()
