"""Saved directories: whole or not at all, and never trusted when read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from equipoise import storage
from equipoise.errors import DataError
from equipoise.storage import is_directory_of, read_directory, write_directory

KIND = "test-kind"


def save(path: Path, value: float = 1.0, **changes: Any) -> None:
    content = {
        "meta": {"value": value},
        "arrays": {"numbers": np.full((3, 2), float(value)), "empty": np.empty(0, np.int32)},
        "frames": {"names": pl.DataFrame({"id": ["a", "b"]})},
    }
    write_directory(path, KIND, 1, **(content | changes))


def value_in(path: Path) -> float:
    stored = read_directory(path, KIND, 1)
    numbers = stored.finite("numbers", (3, 2))
    assert (numbers == stored.meta["value"]).all()
    assert stored.frame("names", 2)["id"].to_list() == ["a", "b"]
    assert stored.array("empty", (0,), "i").size == 0
    return float(stored.meta["value"])


def test_a_directory_is_read_as_it_was_written(tmp_path: Path) -> None:
    save(tmp_path / "deep" / "er")
    assert value_in(tmp_path / "deep" / "er") == 1
    assert is_directory_of(tmp_path / "deep" / "er", KIND)
    assert not is_directory_of(tmp_path / "deep" / "er", "other")
    assert not is_directory_of(tmp_path, KIND)


def test_saving_again_replaces_the_content_and_leaves_no_rests(tmp_path: Path) -> None:
    save(tmp_path, 1)
    held = read_directory(tmp_path, KIND, 1).arrays["numbers"]
    save(tmp_path, 2)
    assert value_in(tmp_path) == 2
    assert (held == 1).all(), "what a reader has mapped stays"
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize(
    ("step", "after"),
    [("open", n) for n in (1, 4)]
    + [("fsync", n) for n in range(4)]
    + [("replace", 0), ("json.dumps", 0), ("write_parquet", 0), ("mkdir", 0)],
)
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_at_any_step_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException, after: int
) -> None:
    save(tmp_path / "old", 1)
    owner, name = {
        "open": (Path, "open"),
        "fsync": (os, "fsync"),
        "replace": (os, "replace"),
        "json.dumps": (json, "dumps"),
        "mkdir": (Path, "mkdir"),
        "write_parquet": (pl.DataFrame, "write_parquet"),
    }[step]
    real = getattr(owner, name)
    calls = iter(range(1000))

    def failing(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == after:
            raise error
        return real(*args, **kwargs)

    for target in ("old", "new"):
        calls = iter(range(1000))
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing)
            with pytest.raises((DataError, KeyboardInterrupt)) as caught:
                save(tmp_path / target, 2)
        if isinstance(error, OSError):
            assert "No space left on device; nothing was changed" in str(caught.value)
    assert not (tmp_path / "new").exists()
    assert value_in(tmp_path / "old") == 1
    assert len(list((tmp_path / "old").iterdir())) == 4


def test_a_failure_after_the_manifest_was_replaced_keeps_the_new_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    real = os.replace

    def interrupted(source: Path, target: Path) -> None:
        real(source, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 2)
    assert value_in(tmp_path) == 2


def test_a_full_disk_is_an_error_and_leaves_the_old_content(tmp_path: Path) -> None:
    save(tmp_path / "old", 1, arrays={"numbers": np.ones((3, 2)), "empty": np.empty(0, np.int32)})
    script = """
        import resource, sys
        import numpy as np, polars as pl
        from equipoise.errors import DataError
        from equipoise.storage import write_directory

        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        big = pl.DataFrame({"id": np.random.default_rng(0).random(10_000)})
        for path in sys.argv[1:]:
            for content in ({"arrays": {"big": np.ones(10_000)}, "frames": {}},
                            {"arrays": {}, "frames": {"big": big}}):
                try:
                    write_directory(path, "test-kind", 1, {}, **content)
                except DataError as error:
                    print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), "old", "new"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.count("nothing was changed") == 4, done.stdout + done.stderr
    assert not (tmp_path / "new").exists()
    assert value_in(tmp_path / "old") == 1
    assert len(list((tmp_path / "old").iterdir())) == 4


def test_a_killed_process_leaves_the_old_content_or_the_new_one(tmp_path: Path) -> None:
    script = """
        import itertools, sys
        import numpy as np, polars as pl
        from equipoise.storage import write_directory

        names = pl.DataFrame({"id": ["a", "b"]})
        for value in itertools.count():
            arrays = {"numbers": np.full((3, 2), float(value)), "empty": np.empty(0, np.int32)}
            write_directory("saved", "test-kind", 1, {"value": value}, arrays, {"names": names})
            print(value, flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    for wait in (0, 1, 2, 3):
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            finished = -1.0
            for _ in range(2 + 7 * wait):
                finished = float(process.stdout.readline())
                assert value_in(tmp_path / "saved") >= finished, "reading beside a writer"
            process.send_signal(signal.SIGKILL)
        assert value_in(tmp_path / "saved") >= finished
    save(tmp_path / "saved", 5)
    assert len(list((tmp_path / "saved").iterdir())) == 4, "rests of killed saves are swept"


def test_a_first_save_that_was_cut_short_does_not_block_the_next(tmp_path: Path) -> None:
    (tmp_path / "numbers-0123456789ab.npy").write_bytes(b"half")
    (tmp_path / "manifest.json.0123456789ab").write_bytes(b"half")
    save(tmp_path)
    assert value_in(tmp_path) == 1
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize(
    "meta",
    [
        {"value": float("nan")},
        {"value": [0.5] * 100 + [float("inf")]},
        {"value": [2**70] * 100},
        {"value": 10**400},
        {"value": "\ud800"},
        {"value": {1, 2}},
        {"value": {"$array": "numbers"}},
    ],
    ids=["nan", "inf", "long", "large", "text", "set", "array"],
)
def test_settings_that_could_not_be_read_again_leave_the_old_content(
    tmp_path: Path, meta: dict[str, Any]
) -> None:
    save(tmp_path / "old", 1)
    for name in ("old", "new"):
        with pytest.raises(DataError, match="nothing was changed"):
            save(tmp_path / name, 2, meta=meta)
    assert value_in(tmp_path / "old") == 1
    assert len(list((tmp_path / "old").iterdir())) == 4
    assert not (tmp_path / "new").exists()


def test_long_lists_of_numbers_are_kept_beside_the_manifest(tmp_path: Path) -> None:
    meta = {
        "value": 1,
        "deep": [{"floats": [0.1 * n for n in range(1000)]}, {"wholes": list(range(-500, 500))}],
        "mixed": [1, 2.0] * 100,
        "words": ["a"] * 100,
        "flags": [True] * 100,
        "short": [1, 2],
    }
    save(tmp_path, meta=meta)
    stored = read_directory(tmp_path, KIND, 1)
    assert stored.meta == meta
    assert [type(each) for each in stored.meta["mixed"][:2]] == [int, float]
    assert set(stored.arrays) == {"numbers", "empty"}
    assert (tmp_path / "manifest.json").stat().st_size < 10_000


def test_two_saves_at_once_are_refused(tmp_path: Path) -> None:
    save(tmp_path)
    with (
        storage._locked(tmp_path, KIND),
        pytest.raises(DataError, match="being saved to by another process"),
    ):
        save(tmp_path, 2)
    assert value_in(tmp_path) == 1


def test_a_directory_or_file_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("mine")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "manifest.json").write_text('{"name": "a web page"}')
    save(tmp_path / "other")
    with pytest.raises(DataError, match="is a file; give the path of a directory"):
        save(tmp_path / "file")
    for name in ("folder", "site"):
        with pytest.raises(DataError, match="is not a saved test-kind; choose another path"):
            save(tmp_path / name)
    with pytest.raises(DataError, match="is not a saved model"):
        write_directory(tmp_path / "other", "model", 1, {}, {}, {})
    with pytest.raises(DataError, match="could not write"):
        save(tmp_path / "file" / "below")
    assert value_in(tmp_path / "other") == 1


def test_arrays_of_objects_and_odd_names_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="would need pickle"):
        save(tmp_path / "new", arrays={"numbers": np.array([{}], object)})
    for name in ("../up", "Upper", "a.b", "", "names"):
        with pytest.raises(ValueError, match="cannot name a file"):
            save(tmp_path / "new", arrays={name: np.ones(2)})
    assert not (tmp_path / "new").exists()
