from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from equipoise.cli import framework


def test_json_is_pure_ascii_without_nan(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {"a": np.float32(0.5), "b": [float("nan"), np.int64(3)], "c": "Amélie", 1: None}
    framework.emit(shown)
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert json.loads(printed) == {"a": 0.5, "b": [None, 3], "c": "Amélie", "1": None}


def test_titles_can_neither_style_nor_steer_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    framework.show([["[red]Alien[/red]\x1b[2J :smile:"]], "title")
    assert "[red]Alien[/red]?[2J :smile:" in capsys.readouterr().out


def test_quick_work_is_silent_and_long_work_reports(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framework, "FIRST_NOTE", 3600.0)
    with framework.working("resting"):
        pass
    assert capsys.readouterr().err == ""
    written = ""
    monkeypatch.setattr(framework, "FIRST_NOTE", 0.05)
    monkeypatch.setattr(framework, "REMINDER", 0.06)
    with framework.working("counting") as report:
        report(1, 4)
        while written.count("\n") < 2:  # however long the machine takes for it
            time.sleep(0.01)
            written += capsys.readouterr().err
    first, second, *_ = written.splitlines()
    assert first == "counting, 25% done ..."
    assert second.startswith(first.removesuffix(" ..."))
    assert second.endswith("so far ...")


def test_a_terminal_gets_a_spinner_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with framework.working("fitting") as report:
        report(1, 2)
    assert "fitting 50%" in screen.getvalue()
    assert screen.getvalue().endswith("\x1b[2K")


def test_tables_in_pipes_are_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    framework.show([("n" * 150, "1" * 150)], "name", "number")
    assert "n" * 150 + "  " + "1" * 150 in capsys.readouterr().out


def test_columns_of_numbers_stand_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    framework.show([("tea", 1234, 0.5, None), ("egg", 7, 12.25, "x")], "item", "n", "score", "")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == ["item      n   score", "tea   1,234  0.5000", "egg       7    12.2  x"]


def test_a_reader_that_stops_early_ends_the_command_quietly(shop: Path) -> None:
    command = [sys.executable, "-m", "equipoise"]
    many = ["--unknown-users", "popular"]
    many += [word for user in range(1, 91) for word in ("--user", f"u{user}")]
    for args in (
        ["recommend", "model", *many],
        ["recommend", "model", *many, "--json"],
        ["stats", "events.csv", "--json"],
    ):
        reader, writer = os.pipe()
        os.close(reader)  # as of `| head -0`
        done = subprocess.run(
            [*command, *args], cwd=shop, stdout=writer, stderr=subprocess.PIPE, text=True
        )
        os.close(writer)
        assert done.returncode == 141
        assert "Error" not in done.stderr
