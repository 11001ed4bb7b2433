"""Searches that are interrupted, for real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import equipoise as eq
from equipoise.errors import DataError, SettingError
from equipoise.interactions import Interactions
from equipoise.split import Split

GRID = {"l2": [1.0, 3.0, 10.0, 30.0, 100.0, 300.0], "beta": [0.0, 0.5], "alpha": [0.0, 0.3]}

SEARCH = """
import sys
import equipoise as eq
split = eq.split.Split.load(sys.argv[1])
grid = None if sys.argv[3] == "search" else {grid}
eq.tune(
    eq.EASE, split, grid=grid, trials=12, storage=sys.argv[2],
    # after the fourth solve it waits to be killed
    progress=lambda seen: (print(seen.done, flush=True), seen.done < 4 or sys.stdin.read()),
)
"""


@pytest.fixture(scope="module")
def split(synthetic: Interactions) -> Split:
    return eq.split.strong(synthetic, valid=0.2, test=0.2)


def solved(storage: Path) -> list[str]:
    """Settings of the solves in a storage, as they stand there."""
    lines = storage.read_text().splitlines()[1:]
    return [json.dumps(json.loads(line)["outer"]) for line in lines]


@pytest.mark.parametrize("kind", ["grid", "search"])
def test_killed_search_repeats_no_finished_solve(split: Split, tmp_path: Path, kind: str) -> None:
    if kind == "search":
        pytest.importorskip("optuna")
    split.save(tmp_path / "split")
    storage = tmp_path / "search.jsonl"
    command = [sys.executable, "-c", SEARCH.replace("{grid}", repr(GRID))]
    with subprocess.Popen(
        [*command, str(tmp_path / "split"), str(storage), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 4:
                os.kill(process.pid, signal.SIGKILL)
                break
    before = solved(storage)
    assert len(before) == 4
    grid = GRID if kind == "grid" else None
    resumed = eq.tune(eq.EASE, split, grid=grid, trials=12, storage=storage)
    after = solved(storage)
    assert after[: len(before)] == before
    assert len(after) == len(set(after)) == 12
    assert resumed.resumed == len(before)
    assert resumed.solves == 12 - len(before)
    whole = eq.tune(eq.EASE, split, grid=grid, trials=12)
    assert resumed.trials.equals(whole.trials)
    assert resumed.best == whole.best


def test_finished_search_is_read_back_without_a_solve(split: Split, tmp_path: Path) -> None:
    storage = tmp_path / "search.jsonl"
    first = eq.tune(eq.EASE, split, grid=GRID, storage=storage)
    again = eq.tune(eq.EASE, split, grid=GRID, storage=storage)
    assert (again.solves, again.resumed) == (0, first.solves)
    assert again.trials.equals(first.trials)
    assert again.model.normalizer == first.model.normalizer


def test_line_that_was_cut_short_is_solved_again(split: Split, tmp_path: Path) -> None:
    storage = tmp_path / "search.jsonl"
    first = eq.tune(eq.EASE, split, grid=GRID, storage=storage)
    content = storage.read_bytes()
    storage.write_bytes(content[:-20])
    again = eq.tune(eq.EASE, split, grid=GRID, storage=storage)
    assert (again.solves, again.resumed) == (1, first.solves - 1)
    assert again.trials.equals(first.trials)
    storage.write_bytes(content[:10])  # killed while the first line was written
    assert eq.tune(eq.EASE, split, grid=GRID, storage=storage).solves == first.solves


def test_larger_grid_goes_on_with_the_solves_of_a_smaller_one(
    split: Split, tmp_path: Path
) -> None:
    storage = tmp_path / "search.jsonl"
    eq.tune(eq.EASE, split, grid=GRID, storage=storage)
    larger = {**GRID, "l2": [*GRID["l2"], 1000.0]}
    assert eq.tune(eq.EASE, split, grid=larger, storage=storage).solves == 2


def test_storage_of_another_search_is_refused(
    split: Split, synthetic: Interactions, tmp_path: Path
) -> None:
    storage = tmp_path / "search.jsonl"
    eq.tune(eq.EASE, split, grid={"l2": [1.0]}, storage=storage)
    other = eq.split.strong(synthetic, valid=0.2, test=0.2, seed=1)
    with pytest.raises(DataError, match="belongs to other data"):
        eq.tune(eq.EASE, other, grid={"l2": [1.0]}, storage=storage)
    with pytest.raises(SettingError, match="other models, metrics or values"):
        eq.tune(eq.EASE, split, grid={"l2": [1.0]}, metric="recall@20", storage=storage)
    with pytest.raises(SettingError, match="other models, metrics or values"):
        eq.tune(eq.LAE, split, grid={"l2": [1.0]}, storage=storage)
    with pytest.raises(SettingError, match="exists; resume it"):
        eq.tune(eq.EASE, split, grid={"l2": [1.0]}, storage=storage, resume=False)
    with pytest.raises(DataError, match=r"could not write|cannot be read"):
        eq.tune(eq.EASE, split, grid={"l2": [1.0]}, storage=tmp_path)
