"""Interactions come back from disk as they were, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import storage
from equipoise.errors import DataError, FileFormatError
from equipoise.interactions import Interactions
from equipoise.matrix import Sequences


def everything() -> Interactions:
    return Interactions(
        np.array([[1, 0.5, 0], [0, 0, 2]]),
        ["ann", "Zoë\n"],
        [2**60, -7, 0],
        times=[1.5, 2.5, -3],
        labels=pl.DataFrame({"title": ["a", None, "c"], "year": [1990, 1991, None]}),
        sequences=Sequences(np.int32([1, 0, 1, 2]), np.array([0, 3, 4])),
        notes=["one", "two"],
    )


def test_everything_survives_a_round_trip(tmp_path: Path) -> None:
    data = everything()
    data.save(tmp_path / "saved")
    back = Interactions.load(tmp_path / "saved")
    assert back.fingerprint == data.fingerprint
    assert back.users.tolist() == ["ann", "Zoë\n"]
    assert back.items.tolist() == [2**60, -7, 0]
    assert back.notes == data.notes
    assert back.labels is not None
    assert back.labels.equals(data.labels)
    assert back.history("ann") == [-7, 2**60, -7]
    assert back.times is not None
    assert back.times.tolist() == [1.5, 2.5, -3]


@given(
    st.lists(st.text(max_size=4), unique=True, min_size=1, max_size=5)
    | st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, min_size=1, max_size=5)
)
@settings(max_examples=25, deadline=None)
def test_ids_survive_a_round_trip(
    tmp_path_factory: pytest.TempPathFactory, ids: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("ids")
    data = Interactions(np.ones((len(ids), 1)), ids)
    data.save(path)
    back = Interactions.load(path)
    assert back.users.tolist() == ids
    assert back.users.dtype == data.users.dtype
    assert back.fingerprint == data.fingerprint


def test_an_empty_matrix_survives_a_round_trip(tmp_path: Path) -> None:
    Interactions(np.zeros((0, 2)), items=["a", "b"]).save(tmp_path)
    back = Interactions.load(tmp_path)
    assert back.matrix.shape == (0, 2)
    assert (back.times, back.labels, back.sequences) == (None, None, None)


def test_ids_that_no_file_can_hold_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not valid Unicode"):
        Interactions([[1]], ["\ud800"]).save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def tampered(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest of a saved directory."""
    file = path / "manifest.json"
    manifest = json.loads(file.read_text())
    change(manifest)
    file.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "meta",
    [
        {"shape": None},
        {"shape": [2]},
        {"shape": [2, 3, 4]},
        {"shape": "23"},
        {"shape": [2.0, 3]},
        {"shape": [True, 3]},
        {"shape": [-1, 3]},
        {"shape": [3, 3]},
        {"shape": [2, 2]},
        {"shape": [10**30, 3]},
        {"notes": "abc"},
        {"notes": [1]},
        {"notes": None},
    ],
    ids=str,
)
def test_wrong_settings_in_the_manifest_are_refused(tmp_path: Path, meta: dict[str, Any]) -> None:
    everything().save(tmp_path)
    tampered(tmp_path, lambda manifest: manifest["meta"].update(meta))
    with pytest.raises(FileFormatError, match="is damaged"):
        Interactions.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("indptr", np.array([0, 2, 1])),
        ("indptr", np.array([0, 9, 3])),
        ("indptr", np.array([1, 2, 3])),
        ("indptr", np.array([0, 2, -3])),
        ("indptr", np.array([0.0, 2.0, 3.0])),
        ("indices", np.array([0, 1, 9], np.int32)),
        ("indices", np.array([0, -1, 2], np.int32)),
        ("indices", np.array([0, 0, 2], np.int32)),
        ("indices", np.array([0, 1], np.int32)),
        ("weights", np.array([1, np.nan, 1], np.float32)),
        ("weights", np.array([1, -1, 1], np.float32)),
        ("weights", np.array(["a", "b", "c"])),
        ("times", np.array([1.0, np.inf, 1.0])),
        ("times", np.array([1.0])),
        ("offsets", np.array([0, 5, 4])),
        ("offsets", np.array([1, 3, 4])),
        ("events", np.array([0, 1, 2, 3], np.int32)),
        ("events", np.array([0, 1, 2, -1], np.int32)),
        ("users", pl.DataFrame({"id": ["ann", "ann"]})),
        ("users", pl.DataFrame({"id": ["ann", None]})),
        ("users", pl.DataFrame({"id": [1.5, 2.5]})),
        ("users", pl.DataFrame({"name": ["a", "b"]})),
        ("users", pl.DataFrame({"id": ["a"]})),
        ("labels", pl.DataFrame({"title": ["a"]})),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_content_with_matching_checksums_is_refused(
    tmp_path: Path, name: str, content: Any
) -> None:
    everything().save(tmp_path)
    (file,) = tmp_path.glob(f"{name}-*")
    if isinstance(content, pl.DataFrame):
        content.write_parquet(file)
    else:
        with file.open("wb") as stream:
            np.save(stream, content)
    entry = storage.file_entry(file)
    tampered(tmp_path, lambda manifest: manifest["files"].update({name: entry}))
    with pytest.raises(FileFormatError, match="is damaged"):
        Interactions.load(tmp_path)


@pytest.mark.parametrize("name", ["indptr", "indices", "weights", "users", "items", "events"])
def test_a_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    everything().save(tmp_path)
    tampered(tmp_path, lambda manifest: manifest["files"].pop(name))
    with pytest.raises(FileFormatError, match=f"has no (array|table) '{name}'"):
        Interactions.load(tmp_path)
