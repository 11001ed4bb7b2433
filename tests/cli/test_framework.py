"""What holds for every command: help with a working example, exit codes, tidy errors."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import Result

import equipoise
from equipoise.cli import framework
from equipoise.cli.app import app
from equipoise.cli.settings import Recipe

EXPECTED = {
    *("demo", "plan", "stats", "split", "fit", "evaluate", "compare", "recommend", "similar"),
    *("explain", "update", "datasets", "doctor", "tune"),
}
ELSEWHERE = {"demo", "fetch", "tune", "report", "serve"}  # tested in their own files


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
def test_help_has_an_example_and_json(words: tuple[str, ...], run: Callable[..., Result]) -> None:
    done = run(*words, "--help")
    assert done.exit_code == 0
    assert f"Example: equipoise {' '.join(words)}" in " ".join(done.stdout.split())
    assert "--json" in done.stdout


def test_the_examples_of_help_run_one_after_the_other(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Result]
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


def test_version_is_printed(run: Callable[..., Result]) -> None:
    assert run("--version").stdout == f"equipoise {equipoise.__version__}\n"


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        (["stats", "nowhere.csv"], 1, "no file or folder 'nowhere.csv'"),
        (["stats", "gowalla"], 1, "equipoise datasets fetch gowalla --raw FOLDER"),
        (["datasets", "show", "gowala"], 2, "did you mean 'gowalla'?"),
        (["fit", "events.csv", "out", "--l2", "-1"], 2, "l2 must be >= 0, got -1.0"),
        (["fit", "events.csv", "titles.csv"], 1, "titles.csv is a file"),
        (["fit", "events.csv", "."], 1, "is not a saved folder"),
        (["fit", "events.csv", "events.csv/x"], 1, "events.csv cannot be written to"),
        (["fit", "split", "out", "--user", "x"], 2, "split is a saved split: leave out --user"),
        (["fit", "events.csv", "out", "--item", "itemid"], 1, "did you mean 'item_id'?"),
        (["split", "events.csv", "out", "-p", "weak", "--n", "2"], 2, "weak has no --n"),
        (["recommend", "split", "--user", "u1"], 1, "expected 'equipoise-model'"),
        (["recommend", "nowhere", "--user", "u1"], 1, "nowhere is not a saved directory"),
        (["plan"], 2, "give either DATA or --users"),
        (["plan", "--items", "0", "--users", "1", "--interactions", "1"], 2, "n_items must be"),
    ],
)
def test_what_a_user_gets_wrong_is_one_sentence(
    args: list[str], code: int, sentence: str, run: Callable[..., Result]
) -> None:
    done = run(*args)
    assert (done.exit_code, done.stdout) == (code, "")
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert sentence in last


@pytest.mark.parametrize(
    "args", [["nonsense"], ["fit", "events.csv"], ["stats", "events.csv", "--on-bad", "maybe"]]
)
def test_wrong_usage_exits_with_2(args: list[str], run: Callable[..., Result]) -> None:
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
    run: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: object, **settings: object) -> None:
        raise error

    monkeypatch.setattr("equipoise.readers.read", fail)
    done = run("stats", "events.csv")
    assert done.exit_code == code
    assert sentence in done.stderr


def test_a_real_process_prints_pure_json(shop: Path) -> None:
    done = script("stats", "events.csv", "--json", cwd=shop)
    assert done.returncode == 0
    (found,) = json.loads(done.stdout)
    assert (found["n_users"], found["n_items"]) == (90, 10)
    assert "user = 'user_id'" in done.stderr


def test_a_real_process_fails_without_a_traceback(shop: Path) -> None:
    done = script("recommend", "model", "--user", "nobody", cwd=shop)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "for somebody new give --history" in done.stderr


def test_a_closed_pipe_is_no_traceback(shop: Path) -> None:
    command = f"{sys.executable} -m equipoise.cli datasets list | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, cwd=shop
    )
    assert "Traceback" not in done.stderr


def test_a_group_of_options_comes_back_as_one_object() -> None:
    seen: list[Recipe] = []

    def command(recipe: Recipe, flag: bool = False) -> None:
        seen.append(recipe)

    spread = framework._spread(command)
    names = list(spread.__signature__.parameters)  # type: ignore[attr-defined]
    assert names[0] == "model"
    assert names[-1] == "flag"
    defaults = {name: p.default for name, p in spread.__signature__.parameters.items()}  # type: ignore[attr-defined]
    spread(**{**defaults, "l2": 3.0})
    assert seen == [Recipe(l2=3.0)]
