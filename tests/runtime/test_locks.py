"""Locks of files and folders: one process at a time, and none where there are no locks."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from equipoise.errors import DataError
from equipoise.runtime.locks import locked_folder, try_lock


def test_a_second_lock_is_refused_until_the_first_is_released(tmp_path: Path) -> None:
    with locked_folder(tmp_path, "in use") as (handle, is_locked):
        assert handle is not None
        assert is_locked
        with pytest.raises(DataError, match="in use"), locked_folder(tmp_path, "in use"):
            raise AssertionError("not reached")
    with locked_folder(tmp_path, "in use") as (_, is_locked):
        assert is_locked


def test_a_file_can_be_locked(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with file.open("wb") as first, file.open("rb") as second:
        assert try_lock(first.fileno()) is True
        assert try_lock(second.fileno()) is False


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, os.strerror(95))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked_folder(tmp_path, "in use") as (handle, is_locked):
        assert not is_locked
        assert handle is not None
        assert try_lock(handle) is None
