from __future__ import annotations

import itertools
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from tests.cli.conftest import Answer, Run

import equipoise as eq

# The command, in a process that is killed when its third solve is kept
KILLED = """
import os, signal
from equipoise.cli.app import app
from equipoise.tuning.ledger import Ledger

add = Ledger.add

def add_and_die(self, *solve):
    add(self, *solve)
    if len(self.solves) == 3:
        os.kill(os.getpid(), signal.SIGKILL)

Ledger.add = add_and_die
app()
"""


def test_tune_writes_model_and_trials(tmp_path: Path, shop: Path, answer: Answer) -> None:
    out = tmp_path / "tuned"
    document = answer("tune", "split", out, "--trials", 4, "--metric", "ndcg@5")
    assert (document["solves"], document["resumed"], document["complete"]) == (4, 0, True)
    trials = pl.read_parquet(out / "trials.parquet")
    assert trials.height == document["points"] == 4 * 6
    assert trials["ndcg@5"].max() == document["best"]["ndcg@5"]
    split = eq.Split.load(shop / "split")
    result = eq.evaluate(eq.load(out / "model"), split.valid, k=5, bootstrap=0)
    assert result["ndcg@5"] == document["best"]["ndcg@5"]
    assert not list(out.glob("*.svg"))


@pytest.mark.parametrize("families", [("ease", "lae", "rlae"), ("edlae", "dlae", "rdlae")])
def test_families_share_the_solves(
    families: tuple[str, ...], tmp_path: Path, answer: Answer
) -> None:
    options = [f"--family={family}" for family in families]
    document = answer("tune", "split", tmp_path / "tuned", "--trials", 2, *options)
    assert (document["solves"], document["points"]) == (2, 2 * 6 * (1 + 1 + 6))
    assert document["settings"]["model"] == document["best"]["family"]
    assert document["best"]["family"].lower() in families


@pytest.mark.parametrize(
    ("family", "points"), [("gf-cf", 30), ("turbo-cf", 48), ("svd-ae", 5), ("item-knn", 20)]
)
def test_other_families_have_a_search_of_their_own(
    family: str, points: int, tmp_path: Path, answer: Answer
) -> None:
    document = answer("tune", "split", tmp_path / "tuned", "--family", family)
    assert (document["points"], document["complete"]) == (points, True)
    assert type(eq.load(tmp_path / "tuned" / "model")).__name__ == document["best"]["family"]


def test_early_stop_begins_at_the_automatic_settings(tmp_path: Path, answer: Answer) -> None:
    out = tmp_path / "tuned"
    document = answer("tune", "split", out, "--paper-grid", "--early-stop")
    assert document["complete"]
    first = pl.read_parquet(out / "trials.parquet").row(0, named=True)
    assert first["beta"] > 0  # the whole grid begins at 0


def test_tune_prints_the_chosen_settings(tmp_path: Path, run: Run) -> None:
    done = run("tune", "split", tmp_path / "tuned", "--trials", 3)
    assert done.exit_code == 0
    assert done.stdout.startswith("EASE l2=")
    assert "18 settings from 3 solves" in done.stdout
    assert "frontier" in done.stdout
    assert "3 of 3 solves, best ndcg@20" in done.stderr


def test_a_search_resumes_only_with_the_option(tmp_path: Path, run: Run, answer: Answer) -> None:
    out = tmp_path / "tuned"
    answer("tune", "split", out, "--trials", 2)
    done = run("tune", "split", out, "--trials", 4)
    assert done.exit_code == 2
    assert "--resume" in done.stderr
    document = answer("tune", "split", out, "--trials", 4, "--resume")
    assert (document["solves"], document["resumed"]) == (2, 2)


def test_killed_command_resumes(tmp_path: Path, shop: Path, answer: Answer) -> None:
    out = tmp_path / "tuned"
    command = [sys.executable, "-c", KILLED, "tune", "split", str(out), "--paper-grid"]
    killed = subprocess.run(command, cwd=shop, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert b"1 of 275 solves" in killed.stderr
    assert not (out / "model").exists()
    document = answer("tune", "split", out, "--paper-grid", "--resume")
    assert (document["solves"], document["resumed"]) == (272, 3)
    lines = [json.loads(line) for line in (out / "search.jsonl").read_text().splitlines()]
    solved = [json.dumps(line["outer"]) for line in lines if "outer" in line]
    assert len(set(solved)) == len(solved) == 275


def test_an_exhausted_budget_says_how_to_continue(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count()  # one passes from each look at the clock to the next
    clock = SimpleNamespace(perf_counter=lambda: float(next(seconds)))
    monkeypatch.setattr("equipoise.tuning.search.time", clock)
    monkeypatch.setattr("equipoise.tuning.search.time", clock)
    done = run("tune", "split", tmp_path / "tuned", "--paper-grid", "--budget", "20s")
    assert done.exit_code == 0, done.stderr
    assert "the budget ran out" in done.stdout
    assert (tmp_path / "tuned" / "model" / "manifest.json").exists()


def test_terminal_gets_a_live_table(tmp_path: Path, shop: Path) -> None:
    controller, terminal = pty.openpty()
    command = [str(Path(sys.executable).with_name("equipoise")), "tune", "split"]
    with subprocess.Popen(
        [*command, str(tmp_path / "tuned"), "--trials", "4"],
        cwd=shop,
        stderr=terminal,
        stdout=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    ) as process:
        os.close(terminal)
        seen = b""
        while True:
            try:
                chunk = os.read(controller, 65536)
            except OSError:  # the other side is closed
                break
            if not chunk:
                break
            seen += chunk
        process.communicate()
    os.close(controller)
    assert process.returncode == 0
    assert b"best of the solve" in seen
    assert b"4 of 4 solves" in seen


def test_split_without_valid_part_is_refused(tmp_path: Path, run: Run) -> None:
    run("split", "events.csv", tmp_path / "weak", "-p", "weak")
    done = run("tune", tmp_path / "weak", tmp_path / "tuned")
    assert done.exit_code == 1
    assert "no valid part to tune on" in done.stderr


def test_search_of_another_split_is_refused(tmp_path: Path, run: Run) -> None:
    run("tune", "split", tmp_path / "tuned", "--trials", 1)
    run("split", "events.csv", tmp_path / "other", "--seed", 9)
    done = run("tune", tmp_path / "other", tmp_path / "tuned", "--trials", 1, "--resume")
    assert done.exit_code == 1
    assert "belongs to other data" in done.stderr


def test_resume_does_not_change_a_file_that_is_not_a_search(tmp_path: Path, run: Run) -> None:
    (tmp_path / "search.jsonl").write_text("my notes")
    done = run("tune", "split", tmp_path, "--trials", 1, "--resume")
    assert done.exit_code == 1
    assert "is not the storage of a search" in done.stderr.replace("\n", " ")
    assert (tmp_path / "search.jsonl").read_text() == "my notes"


def test_data_without_a_split_are_tuned_by_leave_one_out(tmp_path: Path, answer: Answer) -> None:
    out = tmp_path / "tuned"
    options = ("--family", "ease", "--criterion", "leave-one-out")
    document = answer("tune", "events.csv", out, "--trials", 2, *options)
    assert document["estimate"]["n_users"] == 90
    assert eq.load(out / "model").interactions_.n_users == 90
    resumed = answer("tune", "events.csv", out, "--trials", 3, *options, "--resume")
    assert (resumed["resumed"], resumed["solves"]) == (2, 1)


def test_the_chosen_settings_can_be_fitted_on_train_and_valid(
    tmp_path: Path, shop: Path, answer: Answer
) -> None:
    out = tmp_path / "tuned"
    answer("tune", "split", out, "--trials", 1, "--refit", "all")
    split = eq.Split.load(shop / "split")
    assert split.valid is not None
    expected = split.train.n_users + split.valid.n_users
    assert eq.load(out / "model").interactions_.n_users == expected
