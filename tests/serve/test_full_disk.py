"""Folders that are full: metrics and updates suffer first, answers last."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.serve.conftest import Serve, fill
from tests.serve.test_api import items

import equipoise as eq
from equipoise.serve import folding
from equipoise.serve.store import Store

LONG = "x" * 400


def test_a_full_disk_of_the_store_refuses_events_and_answers_on(
    served: Serve, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = served(store=f"sqlite:///{small_disk}/events.db")

    def send(n_events: int) -> Any:
        body = {"events": [{"user": f"{LONG}{n}", "item": 3} for n in range(n_events)]}
        return api.post("/v1/events", body)

    assert send(1).status_code == 200
    fill(small_disk / "filler")
    refused = send(900)
    assert refused.status_code == 503
    assert "store-unavailable" in refused.json()["type"]
    assert len(items(api.get("/v1/recommend/u5?k=5"))) == 5
    assert len(items(api.post("/v1/recommend", {"history": [3], "k": 5}))) == 5
    assert "equipoise_store_errors_total 1.0" in api.get("/metrics").text
    assert api.get("/readyz").status_code == 503
    monkeypatch.setattr("equipoise.serve.database.RECENT", 0.0)  # later, and nobody has written
    monkeypatch.setattr(api.state.store, "touch", api.state.store.add(_events(900)))
    assert api.get("/readyz").status_code == 503
    monkeypatch.undo()
    (small_disk / "filler").unlink()
    assert send(100).status_code == 200
    assert api.get("/readyz").status_code == 200


def _events(count: int) -> list[Any]:
    from tests.serve.test_store import event

    return [event(f"{LONG}{n}") for n in range(count)]


def test_a_full_disk_of_the_model_keeps_the_old_model(
    models: Path,
    small_disk: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = small_disk / "dan"
    shutil.copytree(models / "dan", folder)
    before = eq.load(folder).data_fingerprint_
    store = Store(f"sqlite:///{tmp_path}/events.db")
    store.do(store.add(_events(3)))
    store.close()
    fill(small_disk / "filler")
    monkeypatch.setenv("EQUIPOISE_STORE", f"sqlite:///{tmp_path}/events.db")
    monkeypatch.setattr("sys.argv", ["folding", str(folder), str(models / "plain")])
    monkeypatch.setattr("equipoise.serve.logs.write_lines", lambda: None)
    assert folding.main() == 1
    assert f"the model in {folder} was not updated" in caplog.text
    assert eq.load(folder).data_fingerprint_ == before
    assert eq.load(models / "plain").data_.n_users == 301  # the others are updated
    (small_disk / "filler").unlink()
    assert folding.main() == 0
    assert eq.load(folder).data_fingerprint_ != before
