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
from tests.cli.conftest import call

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


def test_figures_of_periods_fit_into_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of models and dates of periods are whole where four models are compared."""
    monkeypatch.setattr(framework, "PIPE_WIDTH", 80)
    days = ["2023-11-15 12:00 to 11-16 12:00", "2023-12-27 to 2024-01-02"]
    models = ["this model", "popular", "popular lately", "item-kNN"]
    framework.show_periods(days, {name: [0.125, 0.25] for name in models}, [0.5] * 4, "ndcg@20")
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    rows = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert rows[2:] == [
        ["period", *models],
        [days[0], *["0.1250"] * 4],
        [days[1], *["0.2500"] * 4],
        ["mean", *["0.1875"] * 4],
        ["± error", *["0.5000"] * 4],
    ]


@pytest.mark.parametrize(
    ("cell", "is_number"),
    [
        *[(text, True) for text in ("1,234", "5.0%", "16 KB", "0.1 ± 0.01", "-", "", "2.5e-06")],
        *[(text, False) for text in ("288 5%, 286 4%", "2023-11-15 to 2023-11-22", "7th Heaven")],
    ],
)
def test_only_numbers_are_aligned_to_the_right(cell: str, is_number: bool) -> None:
    column = framework.table([["name", cell]], "name", "value").columns[1]
    assert column.justify == ("right" if is_number else "left")


def test_help_fills_the_lines_and_names_choices_whole() -> None:
    """Lines of a docstring once stayed apart, and the choices of --model broke within names."""
    help_text = call("fit", "--help").stdout
    lines = [line.strip() for line in help_text.splitlines()]
    start = next(at for at, line in enumerate(lines) if line.startswith("The family and"))
    stop = lines.index("", start)
    assert all(len(line) > 55 for line in lines[start : stop - 1])
    for name in ("item-knn", "turbo-cf", "xsimgcl"):
        assert name in help_text
    assert "|popularity" not in help_text
