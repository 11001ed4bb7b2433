"""A command that takes long says so first, with what would be faster, and asks on a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from equipoise.cli import framework, settings
from equipoise.cli.app import app


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let any solve count as a long one."""
    monkeypatch.setattr(framework, "CONFIRM_ABOVE", 0.0)
    monkeypatch.setattr(settings, "NEVER_LONG", 0.0)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framework, "is_terminal", lambda: True)


def lines(command: str, shop: Path, out: Path) -> list[str]:
    output = [str(out)] if command == "fit" else ["--out", f"{out}.html"]
    return [command, str(shop / "events.csv"), *output]


@pytest.mark.usefixtures("long", "terminal")
@pytest.mark.parametrize("command", ["fit", "report"])
def test_answering_no_ends_the_command_before_the_work(
    command: str, shop: Path, tmp_path: Path
) -> None:
    done = CliRunner().invoke(app, lines(command, shop, tmp_path / "out"), input="n\n")
    assert done.exit_code == 1
    assert "on 10 items takes about" in done.stderr
    assert "equipoise doctor shows whether there is a GPU" in done.stderr
    assert "nothing was written" in done.stderr
    assert not list(tmp_path.glob("out*"))


@pytest.mark.usefixtures("long", "terminal")
@pytest.mark.parametrize(("args", "answer"), [([], "y\n"), (["--yes"], "")])
def test_the_option_yes_continues(
    args: list[str], answer: str, shop: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = CliRunner().invoke(app, [*lines("fit", shop, out), *args], input=answer)
    assert done.exit_code == 0
    assert ("Continue?" in done.stderr) == (not args)
    assert (out / "manifest.json").is_file()


@pytest.mark.usefixtures("long")
def test_without_a_terminal_the_command_continues_with_a_note(shop: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*lines("fit", shop, tmp_path / "out"), "--json"])
    assert done.exit_code == 0
    assert "continuing without confirmation" in done.stderr
    assert done.stdout.startswith("{")


@pytest.mark.usefixtures("terminal")
def test_a_short_fit_needs_no_confirmation(shop: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, lines("fit", shop, tmp_path / "out"))
    assert done.exit_code == 0
    assert "takes about" not in done.stderr


@pytest.mark.usefixtures("long")
def test_fewer_items_are_proposed_with_the_time_they_take(tmp_path: Path) -> None:
    rows = [f"{user},{item}" for user in range(40) for item in range(8)]
    rows += [f"{n % 40},{100 + n}" for n in range(200)]
    (tmp_path / "events.csv").write_text("user,item\n" + "\n".join(rows))
    done = CliRunner().invoke(app, ["fit", str(tmp_path / "events.csv"), str(tmp_path / "out")])
    assert done.exit_code == 0
    assert "--min-item 5 leaves 8 items and takes about" in done.stderr
