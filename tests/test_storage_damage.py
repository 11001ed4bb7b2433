"""Directories that are damaged or hostile are refused, and nothing in them is run."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from equipoise import storage
from equipoise.errors import FileFormatError
from equipoise.storage import read_directory, write_directory

KIND = "test-kind"


def save(path: Path, **changes: Any) -> None:
    content = {
        "arrays": {"numbers": np.ones((3, 2)), "empty": np.empty(0, np.int32)},
        "frames": {"names": pl.DataFrame({"id": ["a", "b"]})},
    }
    write_directory(path, KIND, 1, {}, **(content | changes))


def edit_manifest(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "name",
    [
        *(
            "../x-0123456789ab.npy",
            "/etc/passwd",
            "manifest.json",
            "x.npy",
            "",
            None,
            7,
            ["a"],
            {},
        ),
        *("numbers-0123456789ab.pkl", "a/../b-0123456789ab.npy", "x-0123456789ab.npy\n"),
    ],
)
def test_a_manifest_may_name_only_files_of_its_own(tmp_path: Path, name: object) -> None:
    save(tmp_path / "saved")
    (tmp_path / "x-0123456789ab.npy").write_bytes(b"secret")
    edit_manifest(tmp_path / "saved", lambda m: m["files"]["numbers"].update(file=name))
    with pytest.raises(FileFormatError, match="names a file that is not allowed"):
        read_directory(tmp_path / "saved", KIND, 1)


def test_a_link_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "saved")
    (file,) = (tmp_path / "saved").glob("numbers-*.npy")
    file.rename(tmp_path / "outside.npy")
    file.symlink_to(tmp_path / "outside.npy")
    with pytest.raises(FileFormatError, match="is missing"):
        read_directory(tmp_path / "saved", KIND, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "7",
        "{",
        '{"format": "test-kind"}',
        '{"format": 1, "version": 1, "meta": {}, "files": {}}',
        '{"format": "test-kind", "version": "1", "meta": {}, "files": {}}',
        '{"format": "test-kind", "version": true, "meta": {}, "files": {}}',
        '{"format": "test-kind", "version": 1, "meta": [], "files": {}}',
        '{"format": "test-kind", "version": 1, "meta": {}, "files": []}',
        "[" * 200_000,
        '{"format": ' + "9" * 10_000 + "}",
        "\x00",
    ],
    ids=lambda text: text[:40],
)
def test_a_damaged_manifest_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(FileFormatError, match=r"manifest\.json is damaged"):
        read_directory(tmp_path, KIND, 1)


def test_a_manifest_that_is_not_text_or_endless_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileFormatError, match="damaged"):
        read_directory(tmp_path, KIND, 1)
    os.truncate(tmp_path / "manifest.json", storage.LARGEST_MANIFEST + 1)
    with pytest.raises(FileFormatError, match="larger than any manifest"):
        read_directory(tmp_path, KIND, 1)


def test_other_kinds_newer_versions_and_no_directory_are_refused(tmp_path: Path) -> None:
    save(tmp_path)
    with pytest.raises(FileFormatError, match="holds 'test-kind', expected 'model'"):
        read_directory(tmp_path, "model", 1)
    edit_manifest(tmp_path, lambda manifest: manifest.update(version=2))
    with pytest.raises(FileFormatError, match="version 2, this equipoise reads up to 1; upgrade"):
        read_directory(tmp_path, KIND, 1)
    with pytest.raises(FileFormatError, match=r"it has no manifest\.json"):
        read_directory(tmp_path / "nowhere", KIND, 1)


@pytest.mark.parametrize("entry", [None, 3, "x", [], {}, {"file": "gone-0123456789ab.npy"}])
def test_a_damaged_entry_is_an_error(tmp_path: Path, entry: object) -> None:
    save(tmp_path)
    edit_manifest(tmp_path, lambda manifest: manifest["files"].update(numbers=entry))
    with pytest.raises(FileFormatError):
        read_directory(tmp_path, KIND, 1)


@pytest.mark.parametrize("pattern", ["numbers-*.npy", "names-*.parquet"])
def test_shortened_edited_and_missing_files_are_refused(tmp_path: Path, pattern: str) -> None:
    save(tmp_path)
    (file,) = tmp_path.glob(pattern)
    sound = file.read_bytes()
    file.write_bytes(sound[:-1])
    with pytest.raises(FileFormatError, match="bytes, the manifest says"):
        read_directory(tmp_path, KIND, 1)
    file.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    with pytest.raises(FileFormatError, match="was changed after it was saved"):
        read_directory(tmp_path, KIND, 1)
    file.unlink()
    with pytest.raises(FileFormatError, match="is missing"):
        read_directory(tmp_path, KIND, 1)


def test_large_files_are_sampled_and_verified_whole_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "SMALL", 1000)
    monkeypatch.setattr(storage, "BLOCK", 64)
    save(tmp_path, arrays={"numbers": np.zeros(4000)})
    (file,) = tmp_path.glob("numbers-*.npy")
    content = bytearray(file.read_bytes())
    content[200] ^= 1  # between the sampled blocks
    file.write_bytes(content)
    assert read_directory(tmp_path, KIND, 1).arrays["numbers"].shape == (4000,)
    with pytest.raises(FileFormatError, match="was changed"):
        read_directory(tmp_path, KIND, 1, verify=True)
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(FileFormatError, match="was changed"):
        read_directory(tmp_path, KIND, 1)


class Trap:
    """What would make a pickle run code."""

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return (os.mkdir, ("trapped",))


@pytest.mark.parametrize("hostile", ["objects", "pickle", "zip", "shape", "parquet", "noise"])
def test_hostile_files_with_matching_checksums_are_refused(
    tmp_path: Path, hostile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "saved")
    (file,) = (tmp_path / "saved").glob("names-*" if hostile == "parquet" else "numbers-*")
    sound = file.read_bytes()
    if hostile == "objects":
        with file.open("wb") as stream:
            np.save(stream, np.array([Trap()], object), allow_pickle=True)
    elif hostile == "zip":
        with file.open("wb") as stream:
            np.savez(stream, numbers=np.ones((3, 2)))
    else:
        file.write_bytes(
            {
                "pickle": pickle.dumps(Trap()),
                "shape": sound.replace(b"(3, 2)", b"(9**9,)"[:6]).replace(b"3, 2", b"9e9 "),
                "parquet": sound[:8] + b"\xff" * (len(sound) - 12) + sound[-4:],
                "noise": b"\x93NUMPY\x01\x00" + bytes(range(200)),
            }[hostile]
        )
    entry = storage.describe_file(file)
    name = "names" if hostile == "parquet" else "numbers"
    edit_manifest(tmp_path / "saved", lambda manifest: manifest["files"].update({name: entry}))
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_directory(tmp_path / "saved", KIND, 1)
    assert not (tmp_path / "trapped").exists()


def test_stored_arrays_are_checked_for_name_shape_and_kind(tmp_path: Path) -> None:
    numbers = np.ones((3, 2))
    numbers[0, 0] = np.nan
    save(tmp_path, arrays={"numbers": numbers, "swapped": np.ones(2, ">f8")})
    stored = read_directory(tmp_path, KIND, 1)
    with pytest.raises(FileFormatError, match="no array 'other'"):
        stored.array("other", (1,), "f")
    with pytest.raises(FileFormatError, match=r"should have shape \(2, 2\)"):
        stored.array("numbers", (2, 2), "f")
    with pytest.raises(FileFormatError, match="found float64"):
        stored.array("numbers", (3, 2), "iu")
    with pytest.raises(FileFormatError, match="found >f8"):
        stored.array("swapped", (2,), "f")
    with pytest.raises(FileFormatError, match="NaN or infinite"):
        stored.finite("numbers", (3, 2))
    with pytest.raises(FileFormatError, match="no table 'other'"):
        stored.frame("other", 2)
    with pytest.raises(FileFormatError, match="should have 3 rows, found 2"):
        stored.frame("names", 3)
    with pytest.raises(ValueError, match="read-only"):
        stored.arrays["numbers"][0, 0] = 1
