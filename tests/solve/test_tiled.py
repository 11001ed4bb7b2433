"""The tiled engine: the result of the dense engine, also after crashes and damage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from tests.tolerance import assert_close, assert_same_lists

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, FileFormatError, SettingError, SolveError, TooBigError
from equipoise.runtime.resume import locked
from equipoise.solve import dense, tiled
from equipoise.solve.tiled import all_tasks

Problem = tuple[sp.csr_array, np.ndarray, np.ndarray]
posix = pytest.mark.skipif(os.name != "posix", reason="needs fork and resource limits")


@pytest.fixture
def problem(rng: np.random.Generator) -> Problem:
    X = sp.csr_array((rng.random((150, 67)) < 0.1).astype(np.float32))
    return X, rng.random(150) + 0.5, rng.random(67) * 5 + 5


def in_memory(problem: Problem, dtype: str = "float32") -> np.ndarray:
    X, weights, penalty = problem
    return dense.Gram(X, weights, dtype).inverse(penalty)[0]


class Stop(Exception):
    """Raised by a progress function."""


def stop_after(step: int):
    def progress(state: tiled.SolveProgress) -> None:
        if state.step == step:
            raise Stop

    return progress


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("tile_rows", [67, 66, 34, 14])
def test_weights_equal_those_of_the_dense_engine(
    problem: Problem, dtype: str, tile_rows: int, tmp_path: Path
) -> None:
    expected = in_memory(problem, dtype)
    P, diagonal, residual = tiled.invert(
        *problem, tile_rows=tile_rows, dtype=dtype, scratch=tmp_path
    )
    assert_close(P, expected, dtype, scale=np.abs(expected).max())
    np.testing.assert_array_equal(P, P.T)
    np.testing.assert_array_equal(diagonal, P.diagonal())
    assert residual < {"float32": 1e-5, "float64": 1e-13}[dtype]
    assert isinstance(P, np.memmap)
    assert sorted(os.listdir(tmp_path)) == ["inverse.npy", "state.json"]


def test_finished_folder_is_used_again(problem: Problem, tmp_path: Path) -> None:
    first, _, _ = tiled.invert(*problem, tile_rows=30, scratch=tmp_path)
    steps: list[tiled.SolveProgress] = []
    again, _, _ = tiled.invert(*problem, tile_rows=30, scratch=tmp_path, progress=steps.append)
    np.testing.assert_array_equal(again, first)
    assert steps == []


def test_temporary_folder_vanishes_and_the_result_stays(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    P, _, _ = tiled.invert(*problem, tile_rows=30)
    assert list(tmp_path.iterdir()) == []
    assert_close(P, in_memory(problem), "float32", scale=1.0)


def test_progress_ends_at_100_percent(problem: Problem, tmp_path: Path) -> None:
    steps: list[tiled.SolveProgress] = []
    tiled.invert(*problem, tile_rows=30, scratch=tmp_path, progress=steps.append)
    assert [step.step for step in steps] == list(range(1, len(all_tasks(3)) + 1))
    assert np.all(np.diff([step.share for step in steps]) > 0)
    assert steps[-1].share == 1.0
    assert steps[-1].seconds_left == 0.0


@posix
@pytest.mark.parametrize("moment", ["tile", "state", "flip"])
def test_a_solve_killed_at_any_step_is_resumed(moment: str, tmp_path: Path) -> None:
    script = Path(__file__).with_name("killing.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), moment],
        capture_output=True,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # the last steps write the result, with a call of `fsync` of their own
    assert int(done.stdout) >= len(all_tasks(3)) // 2


class Killed(BaseException):
    """The process ends here: only the files remain."""


def spy(patch: pytest.MonkeyPatch, notify: Callable[[str], object], *, after: bool = True) -> None:
    """Call `notify` at each system call that makes or changes the file of the result."""

    def watched(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*arguments: Any) -> Any:
            if not after:
                notify(name)
            result = real(*arguments)
            if after:
                notify(name)
            return result

        return call

    system = types.SimpleNamespace(**vars(os))
    for name in ("open", "ftruncate", "lseek", "write", "fsync"):
        setattr(system, name, watched(name))
    patch.setattr(tiled, "os", system)


@pytest.mark.parametrize("after", [True, False])
def test_a_solve_killed_while_writing_its_result_is_resumed(
    problem: Problem, after: bool, tmp_path: Path
) -> None:
    expected, _, _ = tiled.invert(*problem, tile_rows=40, scratch=tmp_path / "whole")
    # the first few calls make the file, all later ones write rows
    for moment in (0, 1, 2, 3, 4, 5, 50, 200):
        left = moment
        folder = tmp_path / str(moment)

        def count(name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed(name)

        with pytest.MonkeyPatch.context() as patch:
            spy(patch, count, after=after)
            with pytest.raises(Killed):
                tiled.invert(*problem, tile_rows=40, scratch=folder)
        resumed, _, _ = tiled.invert(*problem, tile_rows=40, scratch=folder)
        np.testing.assert_array_equal(resumed, expected)


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, None])
def test_an_incomplete_result_of_a_killed_process_is_written_again(
    problem: Problem, content: bytes | None, tmp_path: Path
) -> None:
    expected, _, _ = tiled.invert(*problem, tile_rows=30, scratch=tmp_path / "whole")
    size = (tmp_path / "whole" / "inverse.npy").stat().st_size
    before = sum(task.kind != "place" for task in all_tasks(3))
    with pytest.raises(Stop):
        tiled.invert(*problem, tile_rows=30, scratch=tmp_path / "it", progress=stop_after(before))
    # of full length, without the header
    (tmp_path / "it" / "inverse.npy").write_bytes(bytes(size) if content is None else content)
    resumed, _, _ = tiled.invert(*problem, tile_rows=30, scratch=tmp_path / "it")
    np.testing.assert_array_equal(resumed, expected)


@pytest.mark.parametrize("damage", ["short", "long", "head", "missing"])
def test_result_that_was_damaged_between_two_runs_is_noticed(
    problem: Problem, damage: str, tmp_path: Path
) -> None:
    with pytest.raises(Stop):
        tiled.invert(
            *problem, tile_rows=30, scratch=tmp_path, progress=stop_after(len(all_tasks(3)) - 2)
        )
    file = tmp_path / "inverse.npy"
    content = file.read_bytes()
    file.write_bytes(
        {"short": content[:-4], "long": content + b"0000", "head": bytes(8) + content[8:]}.get(
            damage, content
        )
    )
    if damage == "missing":
        file.unlink()
    with pytest.raises(FileFormatError, match=r"inverse\.npy is damaged; remove the folder"):
        tiled.invert(*problem, tile_rows=30, scratch=tmp_path)


@posix
@pytest.mark.parametrize("room", [100, 30 * 30 * 4 + 2000])
def test_full_disk_is_an_error_after_which_it_resumes(
    problem: Problem, room: int, tmp_path: Path
) -> None:
    """The smaller limit stops the first tile, the larger one the file of the result."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(DataError, match=r"could not write .*: File too large; make room"):
            tiled.invert(*problem, tile_rows=30, scratch=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    P, _, _ = tiled.invert(*problem, tile_rows=30, scratch=tmp_path)
    assert_close(P, in_memory(problem), "float32", scale=1.0)


def test_too_small_a_disk_is_noticed_before_anything_is_written(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 20_000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(TooBigError, match=r"67 items need 4.7e-05 GB more on the disk of"):
        tiled.invert(*problem, tile_rows=30, scratch=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["flip", "short", "long", "missing"])
def test_damaged_tile_is_noticed(problem: Problem, damage: str, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        tiled.invert(
            *problem, tile_rows=30, scratch=tmp_path, progress=stop_after(len(all_tasks(3)) // 2)
        )
    tile = sorted(tmp_path.glob("*.tile"))[0]
    content = bytearray(tile.read_bytes())
    if damage == "flip":
        content[100] ^= 1
    changed = {"short": content[:-4], "long": content + b"0000"}.get(damage, content)
    tile.write_bytes(changed)
    if damage == "missing":
        tile.unlink()
    with pytest.raises(FileFormatError, match=tile.name):
        tiled.invert(*problem, tile_rows=30, scratch=tmp_path)


def test_damaged_state_is_noticed(problem: Problem, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        tiled.invert(*problem, tile_rows=30, scratch=tmp_path, progress=stop_after(5))
    for content in ("", "[]", json.dumps({"format": "equipoise-tiles"})):
        (tmp_path / "state.json").write_text(content)
        with pytest.raises(FileFormatError, match=r"state\.json is damaged"):
            tiled.invert(*problem, tile_rows=30, scratch=tmp_path)


def test_folder_of_another_problem_is_refused(problem: Problem, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        tiled.invert(*problem, tile_rows=30, scratch=tmp_path, progress=stop_after(5))
    with pytest.raises(DataError, match="holds another fit"):
        tiled.invert(*problem, tile_rows=30, scratch=tmp_path, problem={"data": "other"})


def test_resuming_uses_the_existing_tiles(problem: Problem, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        tiled.invert(*problem, tile_rows=30, scratch=tmp_path, progress=stop_after(5))
    with pytest.raises(DataError, match="holds another fit"):
        tiled.invert(*problem, tile_rows=20, scratch=tmp_path)  # less memory than it had
    steps: list[tiled.SolveProgress] = []
    tiled.invert(*problem, tile_rows=60, scratch=tmp_path, progress=steps.append)
    assert [steps[0].step, steps[0].steps] == [6, len(all_tasks(3))]


def test_two_processes_do_not_share_a_folder(problem: Problem, tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(DataError, match="in use by another process"):
        tiled.invert(*problem, tile_rows=30, scratch=tmp_path)


def test_damaged_result_is_noticed(problem: Problem, tmp_path: Path) -> None:
    tiled.invert(*problem, tile_rows=30, scratch=tmp_path)
    os.truncate(tmp_path / "inverse.npy", 1000)
    with pytest.raises(FileFormatError, match=r"inverse\.npy is damaged"):
        tiled.invert(*problem, tile_rows=30, scratch=tmp_path)


def test_folder_with_other_files_is_refused(problem: Problem, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(DataError, match=r"not empty \(thesis.txt\)"):
        tiled.invert(*problem, tile_rows=30, scratch=tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_indefinite_matrix_is_refused_with_its_item(problem: Problem, tmp_path: Path) -> None:
    X, weights, penalty = problem
    penalty[40] = -1e4
    with pytest.raises(SolveError, match=r"not positive definite \(at item 40\); raise l2"):
        tiled.invert(X, weights, penalty, tile_rows=30, scratch=tmp_path)


def test_inaccurate_solve_is_refused(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(dense.TOLERANCE, "float32", 1e-12)
    with pytest.raises(SolveError, match="not accurate"):
        tiled.invert(*problem, tile_rows=30, scratch=tmp_path)


def test_model_fits_in_less_memory_than_its_inverse(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    """700 items: 1.96 MB for the inverse; the budget allows 1.9 MB, interactions included."""
    X = sp.csr_array((rng.random((200, 700)) < 0.02).astype(np.float32))
    data = Interactions(X, [f"u{n}" for n in range(200)], np.arange(700))
    here = eq.EASE(l2=5.0, dropout=0.3).fit(data, engine="dense")
    tight: dict[str, Any] = {"memory": "1.9MB", "scratch": tmp_path / "tiles", "engine": "tiled"}
    there = eq.EASE(l2=5.0, dropout=0.3).fit(data, **tight)
    assert isinstance(there.inverse_, np.memmap)
    assert_same_lists(there.rank(data, 20), here.rank(data, 20), here.score(data), "float32")
    assert_close(there.weights_, here.weights_, "float32", scale=np.abs(here.weights_).max())
    with pytest.raises(DataError, match="another fit"):
        eq.EASE(l2=6.0, dropout=0.3).fit(data, **tight)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        pytest.param(
            lambda _: {"engine": "tiled", "refine": True},
            SettingError,
            "tiled engine cannot refine",
            id="refining tiles",
        ),
        pytest.param(
            lambda folder: {"engine": "dense", "scratch": folder},
            SettingError,
            "scratch is for the tiled and the neighbourhood engine",
            id="scratch of the dense engine",
        ),
        pytest.param(
            lambda _: {"precision": "float32"},
            SettingError,
            "precision is for the gpu engine",
            id="precision without a card",
        ),
    ],
)
def test_options_that_do_not_belong_to_the_engine_are_refused(
    synthetic: Interactions,
    tmp_path: Path,
    options: Callable[[Path], dict[str, Any]],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        eq.EASE(l2=5.0).fit(synthetic, **options(tmp_path))
