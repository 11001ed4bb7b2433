"""`equipoise store`: import, export, one user's data, deletion and erasure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.cli.conftest import Run

import equipoise as eq


@pytest.fixture
def store(tmp_path: Path, run: Run) -> str:
    """Return a store with three events."""
    events = [
        {"user": "ann", "item": "tea", "id": "a", "time": 1_700_000_000},
        {"user": "ann", "item": "jam", "type": "dislike"},
        {"user": "u1", "item": "fig", "weight": 2},
    ]
    lines = tmp_path / "events.ndjson"
    lines.write_text("".join(json.dumps(row) + "\n" for row in events))
    url = f"sqlite:///{tmp_path}/events.db"
    for new, known in ((3, 0), (0, 3)):  # the second time nothing changes
        done = run("store", "import", lines, "--store", url)
        assert done.stdout == f"3 rows: {new} new events, {known} known, 0 seen marks\n"
    return url


def answer(run: Run, *words: object) -> Any:
    done = run("store", *words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_store_is_exported_and_imported(store: str, run: Run, tmp_path: Path) -> None:
    assert answer(run, "--store", store) == {"events": 3, "seen": 0, "lists": 0}
    out = tmp_path / "out.parquet"
    assert answer(run, "export", out, "--store", store)["events"] == 3
    assert pl.read_parquet(out)["weight"].to_list() == [1.0, -1.0, 2.0]
    assert eq.read(out).n_users == 2
    printed = run("store", "export", "-", "--store", store, "--user", "ann").stdout
    assert [json.loads(line)["item"] for line in printed.splitlines()] == ["tea", "jam"]
    early = answer(run, "export", tmp_path / "x.jsonl", "--store", store, "--until", "2024-01-01")
    assert early["events"] == 1
    other = f"sqlite:///{tmp_path}/other.db"
    assert answer(run, "import", out, "--store", other)["accepted"] == 3
    refused = run("store", "export", tmp_path / "x.csv", "--store", store)
    assert (refused.exit_code, "must end in" in refused.output) == (2, True)


def test_a_user_is_shown_and_erased(store: str, run: Run, shop: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    eq.load(shop / "model").save(model)
    data = answer(run, "user", "u1", "--store", store, "--model", model)
    assert [row["item"] for row in data["events"]] == ["fig"]
    assert data["training"][str(model)]
    done = answer(run, "erase", "u1", "--store", store, "--model", model)
    assert done == {"user": "u1", "removed": 1, "updated": [str(model)]}
    data = answer(run, "user", "u1", "--store", store, "--model", model)
    assert not any(data[name] for name in ("events", "forgotten", "training"))
    assert b"u1" not in (tmp_path / "events.db").read_bytes()
    assert "ann" in eq.load(model).data_.user_index  # the other events are learned


def test_single_events_are_deleted(store: str, run: Run, tmp_path: Path) -> None:
    assert answer(run, "delete", "a", "none", "--store", store) == {
        "deleted": 1,
        "missing": ["none"],
    }
    missing = run("store", "--store", f"sqlite:///{tmp_path}/none.db")
    assert missing.exit_code == 1
    assert "there is no event store" in missing.output
