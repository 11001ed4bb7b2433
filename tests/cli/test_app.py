"""What holds for every command: help with a working example, exit codes, tidy errors."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.cli.conftest import Run

import equipoise
from equipoise.cli import framework
from equipoise.cli.app import app
from equipoise.cli.settings import ModelOptions

EXPECTED = {
    *("demo", "plan", "stats", "split", "fit", "evaluate", "compare", "recommend", "similar"),
    *("explain", "update", "datasets", "doctor", "tune"),
}
ELSEWHERE = {
    "replay",  # needs logged lists: tests/serve/test_replay.py
    "demo",
    "fetch",
    "tune",
    "report",
    "serve",
    "experiment",
    "store",
}  # tested in their own files


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command by the words that call it."""
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        yield (name,), command
        for inner, part in getattr(command, "commands", {}).items():
            yield (name, inner), part


def script(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the installed command in a process of its own."""
    command = [str(Path(sys.executable).with_name("equipoise")), *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=60)


def test_the_commands_are_those_of_the_design() -> None:
    assert {words[0] for words, _ in commands()} >= EXPECTED


@pytest.mark.parametrize("words", [words for words, _ in commands()], ids=" ".join)
def test_help_has_an_example_and_json(words: tuple[str, ...], run: Run) -> None:
    done = run(*words, "--help")
    assert done.exit_code == 0
    assert f"Example: equipoise {' '.join(words)}" in " ".join(done.stdout.split())
    assert "--json" in done.stdout


def test_the_examples_of_help_run_one_after_the_other(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    for name in ("events.csv", "new.csv"):
        (tmp_path / name).write_bytes((shop / name).read_bytes())
    for name in ("result-ease", "result-dan"):
        (tmp_path / name).symlink_to(shop / name)
    monkeypatch.chdir(tmp_path)
    examples = [
        example
        for words, command in commands()
        if not ELSEWHERE & set(words)
        for example in re.findall("Example: equipoise (.+)", command.epilog)
    ]
    assert len(examples) >= 14
    for example in examples:
        done = run(*shlex.split(example))
        assert done.exit_code == 0, f"{example}: {done.output}"
        assert done.stdout


def test_version_is_printed(run: Run) -> None:
    assert run("--version").stdout == f"equipoise {equipoise.__version__}\n"


# What a user gets wrong is one sentence; the exit code is 2 where the command line is at fault.
# {new} is a path where there is nothing yet.
REFUSED = [
    ("stats nowhere.csv", 1, "no file or folder 'nowhere.csv'"),
    ("stats gowalla", 1, "equipoise datasets fetch gowalla --raw FOLDER"),
    ("datasets show gowala", 2, "did you mean 'gowalla'?"),
    ("datasets fetch gowalla", 2, "has to be downloaded by hand"),
    ("datasets fetch gowalla --raw .", 2, "pass --out FOLDER to save"),
    ("split events.csv {new} -p weak --n 2", 2, "weak has no --n"),
    ("plan", 2, "give either DATA or --users"),
    ("plan --items 0 --users 1 --interactions 1", 2, "n_items must be"),
    ("fit events.csv {new} --l2 -1", 2, "l2 must be >= 0, got -1"),
    ("serve nowhere", 1, "nowhere (model 'default') is not a folder; write one with `equipoise"),
    ("fit events.csv titles.csv", 1, "titles.csv is a file"),
    ("fit events.csv .", 1, "is not a saved folder"),
    ("fit events.csv events.csv/x", 1, "events.csv cannot be written to"),
    ("fit split {new} --user x", 2, "split is a saved split: leave out --user"),
    ("fit events.csv {new} --item itemid", 1, "did you mean 'item_id'?"),
    ("fit split {new} -m ease --diag-bound 0.1", 2, "--model ease has no --diag-bound"),
    ("fit split {new} -m popularity --l2 3", 2, "--model popularity has no --l2"),
    ("fit split {new} -m item-knn -n dan", 2, "--model item-knn has no --normalizer"),
    ("fit split {new} -m item-knn --refine", 2, "ItemKNN does not support refine"),
    (
        "fit split {new} --neighbours 1",
        2,
        "neighbours is for --engine neighbourhood; leave it out",
    ),
    ("fit split {new} -n none --beta 0.1", 2, "--beta needs --normalizer user or dan, got none"),
    ("fit split {new} -n col --alpha 0.1", 2, "--alpha needs --normalizer item or dan, got col"),
    ("fit split {new} -n dan --alpha much", 2, "alpha must be a number, got 'much'"),
    ("fit split {new} --set n_factors=3", 2, "has no setting n_factors; it has l2, dropout"),
    ("fit split {new} -m gf-cf --set n_factors", 2, "--set needs NAME=VALUE"),
    ("fit split {new} -m gf-cf --set n_factors=no", 2, "n_factors must be a whole number >= 1"),
    ("fit split {new} -m gf-cf --l2 3", 2, "--model gf-cf has no --l2"),
    ("fit split {new} --set lowpass.size=3", 2, "lowpass has no size; it has rank, strength"),
    ("fit split {new} --set mix=0.5", 2, "--model ease has no setting mix"),
    ("fit split {new} -m slit --set mix=0.5", 2, "--model slit has no setting mix"),
    ("update model", 2, "nothing to do"),
    ("update model --forget 1 --min-rating 4", 2, "no table is read: leave out --min-rating"),
    ("update model --forget 1 --replace", 2, "--replace is for --add; leave it out"),
    ("update model --from-store x --tenant y", 2, "--tenant: the service has no tenants; run one"),
    ("experiment dial --tenant y", 2, "run one service per tenant"),
    ("update model --from-store x --forget 1", 2, "--from-store cannot be combined with --add"),
    ("update model --forget u0", 1, "does not know the user 'u0'; check the id"),
    ("recommend split --user u1", 1, "expected 'equipoise-model'"),
    ("recommend nowhere --user u1", 1, "nowhere is not a saved directory"),
    ("recommend model", 2, "give one of --user, --history, --session"),
    ("recommend model --all", 2, "--all needs --out"),
    ("recommend model --all --out recs.xls", 2, "must end in .parquet"),
    ("recommend model --all --user u1 --out {new}", 2, "give one of --user, --history, --session"),
    (
        "recommend model --history ham",
        1,
        "does not know the item 'ham'; did you mean jam (Plum jam)?",
    ),
    ("recommend model --history tea --user u1", 2, "give one of"),
    ("recommend model --history [tea", 2, "not a JSON list"),
    (
        "recommend model --session tea",
        2,
        "--session needs slis, slit, slist, vsknn, stan or vstan",
    ),
    (
        "recommend model --user u1x",
        1,
        "does not know the user 'u1x'; for a new user give --history",
    ),
    ("recommend model --history tea -k 0", 2, "k must be"),
    ("similar model soft", 1, "did you mean bun (Bun [soft])?"),
    ("explain model tea", 2, "give one of --user, --history and --session"),
    ("fit split {new} --refine --trials 3", 2, "--trials is for a search, and nothing is"),
    ("evaluate split", 2, "give MODEL and SPLIT, or --model and SPLIT"),
    ("evaluate model split x", 2, "got 3 paths"),
    ("evaluate model split --l2 3", 2, "a saved model keeps its settings"),
    (
        "evaluate model split --dtype float64",
        2,
        "as it was saved: leave out --dtype",
    ),
    (
        "evaluate model split --engine gpu",
        2,
        "as it was saved: leave out --engine",
    ),
    (
        "evaluate model --leave-one-out --refine",
        2,
        "model is evaluated as it was saved: leave",
    ),
    ("evaluate model split --users 5", 2, "--users is for --leave-one-out"),
    ("evaluate model events.csv", 1, "make one with `equipoise split events.csv SPLIT`"),
    ("plan --users 5", 2, "give either DATA or --users, --items and --interactions"),
    ("evaluate model split -k 0", 2, "k must be"),
    ("evaluate model split --save titles.csv", 1, "titles.csv is a file"),
    ("compare result-ease", 2, "at least two results"),
    ("compare result-ease result-ease", 2, "given twice"),
    ("compare result-ease model", 1, "expected 'equipoise-result'"),
    ("compare result-ease result-dan --metric ndgc@20", 1, "did you mean 'ndcg@20'?"),
    ("tune split {new} --metric ndgc@20", 2, "did you mean 'ndcg'?"),
    ("tune split {new} --family eas", 2, "there is no model 'eas'"),
    ("tune split {new} --budget soon", 2, "budget must look like"),
    ("tune split {new} --budget 0.000001s", 2, "too small: one fit takes about"),
    ("tune split {new} --resume", 2, "holds no search to resume"),
    ("tune split {new} --family item-knn --dtype float64", 2, "ItemKNN does not support dtype"),
    ("stats split --title-column name", 2, "saved split: leave out --title-column"),
    ("tune split {new} --min-item 2", 2, "split is a saved split: leave out --min-item"),
    ("report split --out {new} --min-rating 4", 2, "saved split: leave out --min-rating"),
    ("tune split titles.csv", 1, "titles.csv is a file"),
    ("tune split model", 1, "model is not empty"),
    ("report events.csv --case-study zoe", 1, "the data have no user 'zoe'"),
    ("report events.csv -k 0", 2, "-k must be >= 1"),
    ("report events.csv --out .", 1, "is a folder"),
]


@pytest.mark.parametrize(("line", "code", "sentence"), REFUSED)
def test_a_user_error_is_one_sentence(
    line: str, code: int, sentence: str, run: Run, tmp_path: Path
) -> None:
    done = run(*line.format(new=tmp_path / "new").split())
    assert (done.exit_code, done.stdout) == (code, "")
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert sentence in last


@pytest.mark.parametrize(
    "args", [["nonsense"], ["fit", "events.csv"], ["stats", "events.csv", "--on-bad", "maybe"]]
)
def test_wrong_usage_exits_with_2(args: list[str], run: Run) -> None:
    done = run(*args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Usage: " in done.stderr


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 1, "equipoise plan"),
        (OSError(28, "No space left on device", "/data/x"), 1, "/data/x: No space left on device"),
    ],
)
def test_interrupts_and_full_disks_end_tidily(
    error: BaseException,
    code: int,
    sentence: str,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: object, **settings: object) -> None:
        raise error

    monkeypatch.setattr("equipoise.data.readers.read", fail)
    done = run("stats", "events.csv")
    assert done.exit_code == code
    assert sentence in done.stderr


def test_a_real_process_prints_pure_json(shop: Path) -> None:
    done = script("stats", "events.csv", "--json", cwd=shop)
    assert done.returncode == 0
    (document,) = json.loads(done.stdout)
    assert (document["n_users"], document["n_items"]) == (90, 10)
    assert "user = 'user_id'" in done.stderr


def test_a_real_process_fails_without_a_traceback(shop: Path) -> None:
    done = script("recommend", "model", "--user", "u0", cwd=shop)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "for a new user give --history" in done.stderr


def test_a_closed_pipe_prints_no_traceback(shop: Path) -> None:
    command = f"{sys.executable} -m equipoise datasets list | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, cwd=shop
    )
    assert "Traceback" not in done.stderr


def test_a_group_of_options_comes_back_as_one_object() -> None:
    seen: list[ModelOptions] = []

    def command(chosen: ModelOptions, flag: bool = False) -> None:
        seen.append(chosen)

    spread = framework._expand_groups(command)
    names = list(spread.__signature__.parameters)  # type: ignore[attr-defined]
    assert names[0] == "model"
    assert names[-1] == "flag"
    defaults = {name: p.default for name, p in spread.__signature__.parameters.items()}  # type: ignore[attr-defined]
    spread(**{**defaults, "l2": 3.0})
    assert seen == [ModelOptions(l2=3.0)]
