"""Messages name the options of the command, not the settings of the library."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
import typer
from tests.cli.conftest import Run

import equipoise as eq
from equipoise.cli.app import app
from equipoise.cli.framework import SETTING, settings_to_options

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
SOURCE = Path(eq.__file__).parent
# Settings of matrices, paths and models in Python, which no command has
PYTHON_ONLY = {"users", "items", "path", "unknown"}


def options(command: str) -> dict[str, tuple[str, str]]:
    return {
        parameter.name: (parameter.opts[0], *parameter.secondary_opts, "")[:2]
        for parameter in COMMANDS[command].params
        if parameter.opts[0].startswith("-")
    }


def sentences(folder: str) -> list[str]:
    """Return the texts of a package that name a setting; what is filled in later is "it"."""
    messages = []
    for path in sorted((SOURCE / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "it" for part in parts
            )
            is_doc = text.endswith("\n") or "\n\n" in text
            if not is_doc and isinstance(node, (ast.Constant, ast.JoinedStr)):
                messages += [text] if SETTING.search(text) else []
    return messages


READING = sentences("data/readers")


def test_the_wording_tests_cover_real_sentences() -> None:
    assert len(READING) > 20


@pytest.mark.parametrize("text", READING)
def test_every_setting_that_a_reader_names_is_an_option_of_every_command_that_reads(
    text: str,
) -> None:
    for command in ("stats", "split", "fit", "update", "plan", "report"):
        translated = settings_to_options(text, options(command))
        left = {name for name, _ in SETTING.findall(translated)} - PYTHON_ONLY
        # not names: what is filled in later, and a folder such as day=1
        assert left <= {"it", "its", "s", "day"}


def test_every_argument_of_read_is_an_option() -> None:
    arguments = set(inspect.signature(eq.read).parameters) - {"source", *PYTHON_ONLY}
    assert arguments <= set(options("stats"))


@pytest.mark.parametrize(
    ("text", "translated"),
    [
        ("pass encoding='latin-1'", "pass --encoding latin-1"),
        ("pass header=True or header=False", "pass --header or --no-header"),
        ("fill it or pass time=False", "fill it or pass --time none"),
        ("pass separator= to cut", "pass --separator to cut"),
        ("lower min_rating=4 or check", "lower --min-rating 4 or check"),
        ("by position from 0: user=0, item=1", "by position from 0: --user 0, --item 1"),
        ("pass user='...'", "pass --user ..."),
        ("time_format='%m/%d/%Y %H:%M'", "--time-format '%m/%d/%Y %H:%M'"),
        ("quote='' if", "--quote '' if"),
        ("separator=';' was requested", "--separator ';' was requested"),
        ("users= has 1 ids", "users= has 1 ids"),
    ],
)
def test_settings_become_options(text: str, translated: str) -> None:
    assert settings_to_options(text, options("stats")) == translated


BAD = {
    "latin.csv": b"user,item\nann,caf\xe9\nbob,tea\n",
    "times.csv": b"user,item,InvoiceDate\nann,tea,12/1/2010 8:26\nbob,milk,1/31/2011 8:28\n",
    "short.csv": b"user,item\nann\nbob,tea\ncleo,milk\n",
    "both.csv": b"user,user_id,item\na,1,x\nb,2,y\n",
    "one.csv": b"user\nann\n",
    "words.csv": b"client,tea,5\nann,milk,4\n",
    "wide.csv": b"1,2,3,4,5\n6,7,8,9,10\n",
}


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("latin.csv", [], "pass --encoding latin-1, or pass --on-bad skip"),
        ("times.csv", [], "pass --time-format '%m/%d/%Y %H:%M', or --time none"),
        ("times.csv", ["--on-bad", "skip"], "2 where 'InvoiceDate' is not a time, such as '12/1"),
        ("short.csv", [], "or pass --on-bad skip to leave"),
        ("both.csv", [], "could both be the user; pass --user ..."),
        ("one.csv", [], "pass --separator to cut"),
        ("words.csv", [], "pass --header or --no-header"),
        ("wide.csv", [], "--user 0, --item 1"),
        ("both.csv", ["--user", "user", "--min-rating", "3"], "pass --rating ..."),
    ],
)
@pytest.mark.parametrize("command", ["stats", "fit"])
def test_errors_speak_of_options(
    name: str, args: list[str], message: str, command: str, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(BAD[name])
    out = [tmp_path / "out"] if command == "fit" else []
    done = run(command, path, *out, *args)
    assert done.exit_code == 1
    last = done.stderr.strip().splitlines()[-1]
    assert message in last
    assert not re.search(r"\b[a-z_]+=", last)


def test_notes_speak_of_options_too(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text("basket_id,user_id,item,stars\n1,a,x,5\n2,b,y,4\n")
    done = run("stats", path)
    assert "also possible: --user basket_id" in done.stderr
    assert "--min-rating filters by it, --weight keeps it" in done.stderr


def test_what_an_error_advises_works(run: Run, tmp_path: Path) -> None:
    for name, args in (
        ("latin.csv", ["--encoding", "latin-1"]),
        ("times.csv", ["--time-format", "%m/%d/%Y %H:%M"]),
        ("times.csv", ["--time", "none"]),
        ("short.csv", ["--on-bad", "skip", "--ids", "text", "--quote", "", "--escape", ""]),
        ("words.csv", ["--no-header"]),
        ("wide.csv", ["--user", 0, "--item", 1]),
    ):
        path = tmp_path / name
        path.write_bytes(BAD[name])
        assert run("stats", path, *args).exit_code == 0
