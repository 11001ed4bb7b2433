"""Searches that are interrupted, for real, and files that are not theirs."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.data.split import Split
from equipoise.errors import DataError, FileFormatError, SettingError
from equipoise.tuning.ledger import Ledger

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


def solved(storage: Path) -> list[str]:
    """Settings of the solves in a storage, as they stand there."""
    lines = [json.loads(line) for line in storage.read_text().splitlines()[1:]]
    return [json.dumps(line["outer"]) for line in lines if "outer" in line]


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
    uninterrupted = eq.tune(eq.EASE, split, grid=grid, trials=12)
    assert resumed.trials.equals(uninterrupted.trials)
    assert resumed.best == uninterrupted.best


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


def test_storage_of_another_search_is_refused(
    split: Split, synthetic: Interactions, tmp_path: Path
) -> None:
    storage = tmp_path / "search.jsonl"
    eq.tune(eq.EASE, split, grid={"l2": [1.0]}, storage=storage)
    other = eq.split.strong(synthetic, valid=0.2, test=0.2, seed=1)
    with pytest.raises(DataError, match="belongs to other data"):
        eq.tune(eq.EASE, other, grid={"l2": [1.0]}, storage=storage)
    with pytest.raises(SettingError, match="exists; resume it"):
        eq.tune(eq.EASE, split, grid={"l2": [1.0]}, storage=storage, resume=False)
    with pytest.raises(DataError, match="is a folder; give the path of a file"):
        eq.tune(eq.EASE, split, grid={"l2": [1.0]}, storage=tmp_path)
    assert list(tmp_path.iterdir()) == [storage]


FOREIGN = {
    "text": b"my notes\nof a year\n",
    "text without an end of line": b"my notes of a year",
    "text that ends in half a line": b"my notes\nof a year",
    "binary": bytes(range(256)) * 40,
    "binary without an end of line": b"\x89PNG\x00\xff" * 30,
    "another JSON": b'{"format": "other"}\n{"outer": {}, "points": []}\n{"ou',
    "half of another JSON": b'{"name": "a lock file"',
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_that_is_not_a_search_is_refused_and_unchanged(
    split: Split, tmp_path: Path, kind: str
) -> None:
    storage = tmp_path / "notes"
    storage.write_bytes(FOREIGN[kind])
    with pytest.raises(FileFormatError, match="is not the storage of a search; choose another"):
        eq.tune(eq.EASE, split, grid={"l2": [1.0]}, storage=storage)
    assert storage.read_bytes() == FOREIGN[kind]
    assert list(tmp_path.iterdir()) == [storage]


@given(content=st.binary(min_size=1, max_size=200))
@settings(max_examples=60, deadline=None)
def test_no_bytes_but_those_of_a_search_are_ever_changed(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    storage = tmp_path_factory.mktemp("foreign") / "file"
    storage.write_bytes(content)
    assume(not b'{"format": "equipoise-tuning"'.startswith(content))
    with pytest.raises(FileFormatError):
        Ledger(storage, {"data": "a"}, resume=True)
    assert storage.read_bytes() == content


def test_an_empty_file_becomes_a_storage(split: Split, tmp_path: Path) -> None:
    storage = tmp_path / "search.jsonl"
    storage.touch()
    assert eq.tune(eq.EASE, split, grid={"l2": [1.0]}, storage=storage).solves == 1
    assert eq.tune(eq.EASE, split, grid={"l2": [1.0]}, storage=storage).resumed == 1


ALPHAS = {"l2": [1.0, 10.0], "alpha": [0.0, 0.3]}
OTHER_SEARCHES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "another model": (eq.LAE, {}, r"its models\[0\]\.model is 'EASE', not 'LAE'"),
    "two models": ([eq.EASE, eq.LAE], {}, r"its models is "),
    "a fixed setting": (
        eq.EASE(dropout=0.4, normalizer=eq.DAN(0.0, 0.0)),
        {},
        r"its models\[0\]\.dropout is 0\.0, not 0\.4",
    ),
    "more values": (
        eq.EASE,
        {"grid": {**ALPHAS, "l2": [1.0, 10.0, 100.0]}},
        r"its values\.l2 is \[1\.0, 10\.0\], not \[1\.0, 10\.0, 100\.0\]",
    ),
    "fewer values": (eq.EASE, {"grid": {**ALPHAS, "l2": [1.0]}}, r"its values\.l2 is "),
    "another axis": (
        eq.EASE,
        {"grid": {**ALPHAS, "beta": [0.5]}},
        r"its values\.beta is not there",
    ),
    "a search": (eq.EASE, {"grid": None, "trials": 1}, r"its values"),
    "another metric": (eq.EASE, {"metric": "recall@20"}, r"its metrics is "),
    "another k": (eq.EASE, {"metric": "ndcg@10"}, r"its metrics is "),
    "another objective": (eq.EASE, {"objectives": ()}, r"its metrics is "),
    "another seed": (eq.EASE, {"seed": 3}, r"its seed is 0, not 3"),
    "another precision": (eq.EASE, {"dtype": "float64"}, r"its dtype is 'float32', not 'float64'"),
}


@pytest.mark.parametrize("case", OTHER_SEARCHES)
def test_the_storage_of_another_search_is_refused_and_unchanged(
    split: Split, tmp_path: Path, case: str
) -> None:
    storage = tmp_path / "search.jsonl"
    eq.tune(eq.EASE, split, grid=ALPHAS, storage=storage)
    storage.write_bytes(storage.read_bytes()[:-9])  # a kill cut the last line short
    before = storage.read_bytes()
    model, options, difference = OTHER_SEARCHES[case]
    with pytest.raises(SettingError, match=f"belongs to another search: {difference}.*; choose"):
        eq.tune(model, split, **{"grid": ALPHAS, "storage": storage, **options})
    assert storage.read_bytes() == before


def test_a_search_with_another_protocol_is_refused(split: Split, tmp_path: Path) -> None:
    storage = tmp_path / "search.jsonl"
    eq.tune(eq.EASE, split, grid=ALPHAS, storage=storage)
    valid = dataclasses.replace(split.valid, protocol="weak")
    other = dataclasses.replace(split, valid=valid)
    with pytest.raises(SettingError, match="its protocol is 'strong', not 'weak'"):
        eq.tune(eq.EASE, other, grid=ALPHAS, storage=storage)


def test_other_models_are_not_resumed_with_another_grid(split: Split, tmp_path: Path) -> None:
    storage = tmp_path / "search.jsonl"
    eq.tune(eq.ItemKNN, split, grid={"neighbours": [40]}, storage=storage)
    for grid in ({"shrink": [0.0, 10.0]}, {"neighbours": [1]}, {"neighbours": [1, 40]}):
        with pytest.raises(SettingError, match="belongs to another search"):
            eq.tune(eq.ItemKNN(neighbours=1), split, grid=grid, storage=storage)
    tuned = eq.tune(eq.ItemKNN, split, grid={"neighbours": [40]}, storage=storage)
    assert tuned.model.neighbours == tuned.best["neighbours"] == 40


def test_the_same_grid_in_another_spelling_resumes(split: Split, tmp_path: Path) -> None:
    storage = tmp_path / "search.jsonl"
    first = eq.tune(eq.EASE, split, grid=ALPHAS, storage=storage)
    for grid in ({"l2": [10, 1], "alpha": (0.3, 0)}, {"alpha": [0.0, 0.3], "l2": [1.0, 10.0]}):
        again = eq.tune(eq.EASE, split, grid=grid, storage=storage, budget="1h", early_stop=True)
        assert (again.solves, again.resumed) == (0, first.solves)


def test_more_trials_resume_the_same_search(split: Split, tmp_path: Path) -> None:
    storage = tmp_path / "search.jsonl"
    eq.tune(eq.EASE, split, trials=2, storage=storage)
    more = eq.tune(eq.EASE, split, trials=5, storage=storage, budget="1h")
    assert (more.solves, more.resumed) == (3, 2)
    assert more.trials.equals(eq.tune(eq.EASE, split, trials=5).trials)


HOLD = """
import sys
import equipoise as eq
split = eq.split.Split.load(sys.argv[1])
eq.tune(
    eq.EASE, split, grid={"l2": [1.0, 3.0]}, storage=sys.argv[2],
    progress=lambda seen: (print(seen.done, flush=True), sys.stdin.readline()),
)
"""


def test_a_storage_serves_one_process_at_a_time_and_says_which(
    split: Split, tmp_path: Path
) -> None:
    split.save(tmp_path / "split")
    storage = tmp_path / "search.jsonl"
    grid = {"l2": [1.0, 3.0]}
    command = [sys.executable, "-c", HOLD, str(tmp_path / "split"), str(storage)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "1\n"
        before = storage.read_bytes()
        holder = f"process {other.pid} on {re.escape(socket.gethostname())}"
        with pytest.raises(DataError, match=f"is in use by {holder}; wait for it"):
            eq.tune(eq.EASE, split, grid=grid, storage=storage)
        assert storage.read_bytes() == before
        os.kill(other.pid, signal.SIGKILL)
    tuned = eq.tune(eq.EASE, split, grid=grid, storage=storage)  # the lock died with its process
    assert (tuned.solves, tuned.resumed) == (1, 1)
    lines = [json.loads(line) for line in storage.read_text().splitlines()]
    assert ["format" in line for line in lines] == [True] + [False] * (len(lines) - 1)


def test_two_processes_that_begin_together_leave_one_search(split: Split, tmp_path: Path) -> None:
    split.save(tmp_path / "split")
    storage = tmp_path / "search.jsonl"
    command = [sys.executable, "-c", HOLD, str(tmp_path / "split"), str(storage)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **pipes) as one, subprocess.Popen(command, **pipes) as two:
        # each waits after every solve until it is told to go on, so they do overlap
        firsts = [process.stdout.readline() for process in (one, two)]
        ends = [process.communicate(b"\n\n") for process in (one, two)]
    assert sorted(firsts) == [b"", b"1\n"]
    assert sorted([one.returncode, two.returncode]) == [0, 1]
    assert any(b"is in use by process" in errors for _, errors in ends)
    assert len(solved(storage)) == 2
    assert storage.read_text().count("equipoise-tuning") == 1


def test_a_search_that_ends_before_its_first_solve_leaves_no_file(tmp_path: Path) -> None:
    storage = tmp_path / "search.jsonl"
    with Ledger(storage, {"data": "a"}, resume=True):
        assert storage.exists()
    assert not storage.exists()


def test_damaged_storage_is_refused(split: Split, tmp_path: Path) -> None:
    storage = tmp_path / "search.jsonl"
    eq.tune(eq.EASE, split, grid={"l2": [1.0]}, storage=storage)
    content = storage.read_text()
    for broken in (
        "{}\n",
        "[]\n",
        '{"format": "other"}\n',
        content + "{}\n",
        content + "nonsense\n",
    ):
        storage.write_text(broken)
        with pytest.raises(FileFormatError):
            eq.tune(eq.EASE, split, grid={"l2": [1.0]}, storage=storage)
