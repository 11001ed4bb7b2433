"""Events on the command line: kinds, signals, what a repeat means, weights that add up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Answer, Run

import equipoise as eq

ROWS = [
    "a,milk,1,2,view",
    "a,milk,9,1,buy",
    "a,tea,2,1,buy",
    "b,milk,3,4,buy",
    "b,tea,4,1,view",
    "b,jam,9,1,buy",
    "c,tea,1,1,buy",
    "c,jam,2,3,view",
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["user,item,time,n,event", *ROWS]) + "\n")
    return path


def test_options_describe_the_signals(log: Path, answer: Answer, tmp_path: Path) -> None:
    options = ["--signals", "log1p", "--decay", "30d", "--floor", 0.2, "--returns", "ignore"]
    options += ["--event-weights", "view=1,buy=10"]
    options += ["--no-search"]
    document = answer("fit", log, tmp_path / "model", "--weight", "n", "--l2", 5, *options)
    signals = eq.Signals(
        transform="log1p",
        decay="30d",
        floor=0.2,
        returns="ignore",
        weights={"view": 1.0, "buy": 10.0},
    )
    expected = eq.EASE(l2=5.0, signals=signals)
    assert document["settings"] == expected.settings()
    data = eq.read(log, weight="n")
    model = eq.load(tmp_path / "model")
    assert model.interactions_.matrix.toarray().tolist() == (
        signals.apply(data).matrix.toarray().tolist()
    )


@pytest.mark.parametrize("weights", ["view", "view=much", "=3", "view=1,,"])
def test_weights_of_kinds_that_cannot_be_read_are_refused(
    weights: str, log: Path, run: Run, tmp_path: Path
) -> None:
    done = run("fit", log, tmp_path / "model", "--event-weights", weights)
    assert done.exit_code == 2
    assert "view=1,buy=10" in done.stderr


@pytest.mark.parametrize(("repeats", "n"), [("new", 1), ("all", 2), ("again", 1)])
def test_a_split_says_what_a_repeat_is(
    repeats: str, n: int, log: Path, run: Run, tmp_path: Path
) -> None:
    out = tmp_path / "split"
    options: list[Any] = ["--protocol", "time", "--test-from", 8, "--valid", 0]
    done = run("split", log, out, *options, "--repeats", repeats)
    assert done.exit_code == 0, done.stderr
    part = eq.Split.load(out).test
    assert (part.repeats, part.target.n_interactions) == (repeats, n)
    shown = run("evaluate", out, "--model", "popularity", "-k", 2)
    assert shown.exit_code == 0, shown.stderr
    assert ("known items" in shown.stdout) == (repeats != "new")
    last = run("split", log, tmp_path / "last", "-p", "last", "--valid", 0, "--repeats", repeats)
    assert last.exit_code == 0, last.stderr
    assert eq.Split.load(tmp_path / "last").test.repeats == repeats


def test_an_update_adds_weights_or_replaces_them(log: Path, run: Run, tmp_path: Path) -> None:
    more = tmp_path / "more.csv"
    more.write_text("user,item,time,n,event\na,tea,12,5,buy\n")
    model = tmp_path / "model"
    assert run("fit", log, model, "--weight", "n").exit_code == 0
    for options, weight in (([], 6.0), (["--replace"], 5.0)):
        out = tmp_path / f"new{weight:g}"
        done = run("update", model, "--add", more, "--weight", "n", "--out", out, *options)
        assert done.exit_code == 0, done.stderr
        data = eq.load(out).data_  # as read, whatever signals the fit chose
        assert data.select(users=["a"], items=["tea"]).matrix.data.tolist() == [weight]


def test_items_of_a_user_are_counted_once_each(run: Run, tmp_path: Path) -> None:
    rows = ["user,item,time", *(f"ann,tea,{n}" for n in range(5)), "ann,jam,9", "bob,egg,1"]
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    model = tmp_path / "model"
    assert run("fit", tmp_path / "log.csv", model, "--l2", 5, "--dropout", 0).exit_code == 0
    assert (
        "for user ann (2 items in the history)" in run("recommend", model, "--user", "ann").stdout
    )
