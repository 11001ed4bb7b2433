"""Saved directories: whole or not at all; damaged and hostile ones are refused, nothing is run."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from equipoise.data import storage
from equipoise.data.storage import Stored, is_directory_of, load_directory, write_directory
from equipoise.errors import DataError, FileFormatError
from equipoise.runtime import locks

KIND = "test-kind"


def save(path: Path, value: float = 1.0, **changes: Any) -> None:
    content = {
        "meta": {"value": value},
        "arrays": {"numbers": np.full((3, 2), float(value)), "empty": np.empty(0, np.int32)},
        "frames": {"names": pl.DataFrame({"id": ["a", "b"]})},
    }
    write_directory(path, KIND, 1, **(content | changes))


def read(path: Path, kind: str = KIND, *, verify: bool = False) -> Stored:
    return load_directory(path, kind, 1, lambda stored: stored, verify=verify)


def value_in(path: Path) -> float:
    stored = read(path)
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


def test_saving_again_replaces_the_content_and_leaves_no_old_files(tmp_path: Path) -> None:
    save(tmp_path, 1)
    old_array = read(tmp_path).arrays["numbers"]
    save(tmp_path, 2)
    assert value_in(tmp_path) == 2
    assert (old_array == 1).all(), "what a reader has mapped stays"
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
        from equipoise.errors import DataError, FileFormatError
        from equipoise.data.storage import write_directory

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
        from equipoise.data.storage import write_directory

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
    stored = read(tmp_path)
    assert stored.meta == meta
    assert [type(entry) for entry in stored.meta["mixed"][:2]] == [int, float]
    assert set(stored.arrays) == {"numbers", "empty"}
    assert (tmp_path / "manifest.json").stat().st_size < 10_000


def test_two_saves_at_once_are_refused(tmp_path: Path) -> None:
    save(tmp_path)
    with (
        storage._locked(tmp_path, KIND, "0123456789ab"),
        pytest.raises(DataError, match="being saved to by another process"),
    ):
        save(tmp_path, 2)
    assert value_in(tmp_path) == 1


@pytest.mark.parametrize("has_locks", [True, False])
def test_two_writers_leave_no_gap_for_a_reader(tmp_path: Path, has_locks: bool) -> None:
    script = """
        import fcntl, sys, time
        import numpy as np, polars as pl
        from equipoise.errors import DataError
        from equipoise.data.storage import write_directory

        def refuse(*_):
            raise OSError(95, "not supported")

        if sys.argv[2] == "False":
            fcntl.flock = refuse
        value, n_saved, n_refused = int(sys.argv[1]), 0, 0
        frames = {"names": pl.DataFrame({"id": ["a", "b"]})}
        arrays = {"numbers": np.full((3, 2), float(value)), "empty": np.empty(0, np.int32)}
        end = time.monotonic() + 2
        while time.monotonic() < end or not n_saved:
            try:
                write_directory("saved", "test-kind", 1, {"value": value}, arrays, frames)
                n_saved += 1
            except DataError as error:
                n_refused += "being saved to by another process" in str(error)
                if "being saved to by another process" not in str(error):
                    print(error)
                time.sleep(0.001)
        print(n_saved, n_refused)
    """
    save(tmp_path / "saved", 0)
    command = [sys.executable, "-c", textwrap.dedent(script)]
    writers = [
        subprocess.Popen(
            [*command, str(value), str(has_locks)], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        for value in (1, 2)
    ]
    values = set()
    while any(writer.poll() is None for writer in writers):
        values.add(value_in(tmp_path / "saved"))
    outputs = [writer.communicate()[0].splitlines() for writer in writers]
    assert [len(lines) for lines in outputs] == [1, 1], outputs
    assert all(int(lines[0].split()[0]) > 0 for lines in outputs)
    assert values <= {0, 1, 2}
    assert value_in(tmp_path / "saved") in (1, 2)


def test_old_files_of_unlocked_saves_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "try_lock", lambda handle: None)
    save(tmp_path)
    names = ("numbers-0123456789ab.npy", "numbers-ba9876543210.npy")
    old, fresh = (tmp_path / name for name in names)
    for file in (old, fresh):
        file.write_bytes(b"half")
    os.utime(old, (0, 0))
    save(tmp_path, 2)
    assert value_in(tmp_path) == 2
    assert fresh.exists()
    assert not old.exists()
    assert len(list(tmp_path.iterdir())) == 5, "files of the save before are gone"


def test_a_reader_waits_for_the_end_of_a_first_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path)
    hidden = tmp_path / "manifest.json.0123456789ab"
    (tmp_path / "manifest.json").rename(hidden)
    with pytest.raises(
        FileFormatError, match=r"no manifest.json yet: its first save is still running or"
    ):
        read(tmp_path)
    monkeypatch.setattr(storage, "FIRST_SAVE", 30.0)
    finish = threading.Timer(0.1, hidden.rename, [tmp_path / "manifest.json"])
    finish.start()
    assert value_in(tmp_path) == 1


def test_a_directory_or_file_of_another_owner_is_not_touched(tmp_path: Path) -> None:
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


def edit_manifest(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "name",
    [
        *("../x-0123456789ab.npy", "/etc/passwd", "manifest.json", "x.npy"),
        *("", None, 7, ["a"], {}),
        *("numbers-0123456789ab.pkl", "a/../b-0123456789ab.npy", "x-0123456789ab.npy\n"),
    ],
)
def test_a_manifest_may_name_only_files_of_its_own(tmp_path: Path, name: object) -> None:
    save(tmp_path / "saved")
    (tmp_path / "x-0123456789ab.npy").write_bytes(b"secret")
    edit_manifest(tmp_path / "saved", lambda m: m["files"]["numbers"].update(file=name))
    with pytest.raises(FileFormatError, match="names a file that is not allowed"):
        read(tmp_path / "saved")


def test_a_link_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "saved")
    (file,) = (tmp_path / "saved").glob("numbers-*.npy")
    file.rename(tmp_path / "outside.npy")
    file.symlink_to(tmp_path / "outside.npy")
    with pytest.raises(FileFormatError, match="is missing"):
        read(tmp_path / "saved")


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
        b"\xff\xfe\x00",
    ],
    ids=lambda text: str(text)[:40],
)
def test_a_damaged_manifest_is_an_error_that_names_it(tmp_path: Path, text: str | bytes) -> None:
    content = text if isinstance(text, bytes) else text.encode()
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(FileFormatError, match=r"manifest\.json is damaged"):
        read(tmp_path)


def test_a_manifest_that_is_endless_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").touch()
    os.truncate(tmp_path / "manifest.json", storage.LARGEST_MANIFEST + 1)
    with pytest.raises(FileFormatError, match="larger than any manifest"):
        read(tmp_path)


def test_other_kinds_newer_versions_and_no_directory_are_refused(tmp_path: Path) -> None:
    save(tmp_path)
    with pytest.raises(FileFormatError, match="holds 'test-kind', expected 'model'"):
        read(tmp_path, "model")
    edit_manifest(tmp_path, lambda manifest: manifest.update(version=2))
    with pytest.raises(FileFormatError, match="version 2, this equipoise reads up to 1; upgrade"):
        read(tmp_path)
    with pytest.raises(FileFormatError, match=r"it has no manifest\.json"):
        read(tmp_path / "nowhere")


@pytest.mark.parametrize("entry", [None, 3, "x", [], {}, {"file": "gone-0123456789ab.npy"}])
def test_a_damaged_entry_is_an_error(tmp_path: Path, entry: object) -> None:
    save(tmp_path)
    edit_manifest(tmp_path, lambda manifest: manifest["files"].update(numbers=entry))
    with pytest.raises(FileFormatError):
        read(tmp_path)


@pytest.mark.parametrize("pattern", ["numbers-*.npy", "names-*.parquet"])
def test_shortened_edited_and_missing_files_are_refused(tmp_path: Path, pattern: str) -> None:
    save(tmp_path)
    (file,) = tmp_path.glob(pattern)
    sound = file.read_bytes()
    file.write_bytes(sound[:-1])
    with pytest.raises(FileFormatError, match="bytes, the manifest says"):
        read(tmp_path)
    file.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    with pytest.raises(FileFormatError, match="was changed after it was saved"):
        read(tmp_path)
    file.unlink()
    with pytest.raises(FileFormatError, match="is missing"):
        read(tmp_path)


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
    assert read(tmp_path).arrays["numbers"].shape == (4000,)
    with pytest.raises(FileFormatError, match="was changed"):
        read(tmp_path, verify=True)
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(FileFormatError, match="was changed"):
        read(tmp_path)


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
    entry = storage.file_entry(file)
    name = "names" if hostile == "parquet" else "numbers"
    edit_manifest(tmp_path / "saved", lambda manifest: manifest["files"].update({name: entry}))
    with pytest.raises(FileFormatError, match="cannot be read"):
        read(tmp_path / "saved")
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize(
    ("method", "arguments", "reason"),
    [
        ("array", ("other", (1,), "f"), "no array 'other'"),
        ("array", ("numbers", (2, 2), "f"), r"should have shape \(2, 2\)"),
        ("array", ("numbers", (3, 2), "iu"), "found float64"),
        ("array", ("swapped", (2,), "f"), "found >f8"),
        ("finite", ("numbers", (3, 2)), "NaN or infinite"),
        ("frame", ("other", 2), "no table 'other'"),
        ("frame", ("names", 3), "should have 3 rows, found 2"),
    ],
)
def test_stored_arrays_and_tables_are_checked(
    tmp_path: Path, method: str, arguments: tuple[Any, ...], reason: str
) -> None:
    numbers = np.array([[np.nan, 1], [1, 1], [1, 1]])
    save(tmp_path, arrays={"numbers": numbers, "swapped": np.ones(2, ">f8")})
    stored = read(tmp_path)
    with pytest.raises(FileFormatError, match=reason):
        getattr(stored, method)(*arguments)
    with pytest.raises(ValueError, match="read-only"):
        stored.arrays["numbers"][0, 0] = 1
