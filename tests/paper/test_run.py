"""Every config on small data: computed rows, saved rows and output of the command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from tests.paper.conftest import PAPER, shortened

import run as command
from equipoise.errors import DataError
from equipoise.models.linear import LinearAutoencoder
from reproduce import figures, runner
from reproduce.claims import claims
from reproduce.config import Config, load_config, names
from reproduce.figures import panels
from reproduce.runner import completed, kind_of, run

pytest.importorskip("matplotlib")
CONFIGS = {name: load_config(PAPER / f"{name}.toml") for name in names(PAPER)}
TABLES = [name for name, config in CONFIGS.items() if config.kind == "table"]
FIGURES = [name for name, config in CONFIGS.items() if config.kind == "figure"]
RESUMED = ["table1", "table6_cut", "table8", "figure8"]


def results(place: Path, name: str) -> Path:
    return place / "p" / "results" / f"{name}.csv"


def values(frame: pl.DataFrame) -> pl.DataFrame:
    """What another run must give again: not the seconds."""
    return frame.drop("seconds", "fit_seconds", "evaluate_seconds", strict=False)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_runs_on_small_data_and_says_what_was_not_run(
    name: str, small: Path, tmp_path: Path
) -> None:
    config = CONFIGS[name]
    cells = run(config, small, results(tmp_path, name), command="a test")
    assert cells.height == len(config.rows) * len(config.columns)
    gowalla = [row for row in config.rows if row.dataset == "Gowalla" and row.settings]
    present = [row for row in gowalla if not row.card]
    ran = cells.filter(pl.col("ours").is_not_null())
    assert ran.height == len(present) * len(config.columns)
    assert ran["ours"].is_between(0, 1).all()
    assert set(ran["command"]) <= {"a test"}
    missing = cells.filter(pl.col("ours").is_null())
    assert set(missing["status"]) <= {"not run here"}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_runs_and_is_drawn(name: str, small: Path, tmp_path: Path) -> None:
    config = shortened(name)
    messages: list[str] = []
    cells = run(config, small, results(tmp_path, name), say=messages.append)
    drawn = tmp_path / "p" / "figures"
    assert {file.name for file in drawn.iterdir()} == {
        f"{name}.{end}" for end in ("svg", "png", "csv")
    }
    assert "drew" in messages[-1]
    present = {"Gowalla", "ML-1M"} if name != "figure9" else {"ML-latest-small"}
    assert set(cells["dataset"]) == present & set(config.datasets)
    status = panels(config, cells)
    assert set(status.filter(pl.col("points") > 0)["status"]) == {"ours"}
    assert set(status.filter(pl.col("points") == 0)["status"]) == {"not run here"}
    assert claims(config, cells)


class Killed(BaseException):
    """What no run can catch."""


@pytest.mark.parametrize("name", RESUMED)
def test_a_killed_run_goes_on_where_it_was(
    name: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out = shortened(name), results(tmp_path, name)
    writes: list[Path] = []

    def killed_after_two(path: Path, text: str, write=runner.write_text) -> None:
        write(path, text)
        writes.append(path)
        if len(writes) == 2:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(runner, "write_text", killed_after_two)
        with pytest.raises(Killed):
            run(config, small, out)
    saved_rows = kind_of(config).read(out)
    assert len(saved_rows) == 2
    complete = run(config, small, out)
    if not kind_of(config).together:  # models that are timed together are timed again
        now = kind_of(config).read(out)
        for row, lines in saved_rows.items():
            for name in {"ours", "fit_seconds", "y", "seconds"} & set(lines[0]):
                assert [line[name] for line in now[row]] == [line[name] for line in lines]
    messages: list[str] = []
    assert run(config, small, out, say=messages.append).equals(complete)
    assert not [text for text in messages if " of " in text]
    assert completed(config, kind_of(config).read(out)).equals(complete)
    fresh = run(config, small, results(tmp_path / "fresh", name))
    if not kind_of(config).together:
        assert values(fresh).equals(values(complete))


@pytest.mark.parametrize("name", ["table8", "figure5"])
def test_finished_rows_need_neither_fits_nor_data(
    name: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out = shortened(name), results(tmp_path, name)
    first = run(config, small, out)
    monkeypatch.setattr(LinearAutoencoder, "fit", pytest.fail)
    pictures = list((tmp_path / "p").rglob("*.png"))
    for picture in pictures:
        picture.unlink()
    assert run(config, small, out).equals(first)
    assert run(config, tmp_path / "empty", out).equals(first)
    assert all(picture.is_file() for picture in pictures)


def test_other_settings_are_computed_again(small: Path, tmp_path: Path) -> None:
    config, out = shortened("figure1"), results(tmp_path, "figure1")
    before = run(config, small, out)
    rows = [
        replace(row, settings={**row.settings, "l2": 7.0}) if row.settings else row
        for row in config.rows
    ]
    after = run(replace(config, rows=rows), small, out)
    assert not after["y"].equals(before["y"])
    assert completed(config, kind_of(config).read(out)).height == 0


@pytest.mark.parametrize(("name", "fits"), [("table3", 7), ("figure5", 1)])
def test_rows_that_share_a_system_share_the_solve(
    name: str, fits: int, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solves = []
    original = LinearAutoencoder.fit
    monkeypatch.setattr(
        LinearAutoencoder,
        "fit",
        lambda self, *a, **k: (solves.append(1), original(self, *a, **k))[1],
    )
    run(CONFIGS[name], small, results(tmp_path, name))
    # table3 has 9 rows; EASE and RLAE share l2 80, EASE_DAN and RLAE_DAN share their system.
    # figure5 has six values of alpha on one data set
    assert len(solves) == fits


def test_progress_says_how_many_rows_are_left_and_how_long_they_take(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    run(CONFIGS["table8"], small, tmp_path / "out.csv", say=messages.append)
    assert f"(1 of {len(messages)}, about" in messages[0]
    assert messages[-1].endswith(f"({len(messages)} of {len(messages)})")
    monkeypatch.setattr(runner.time, "perf_counter", lambda: 40.0)
    assert runner.pace(2, 3, 0.0) == "(2 of 3, about 20 s left)"
    assert runner.pace(3, 3, 0.0) == "(3 of 3)"


def test_data_too_big_for_the_machine_leave_the_rest_to_run(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "CPU_LIMIT", 10)
    messages: list[str] = []
    cells = run(shortened("figure4"), small, results(tmp_path, "figure4"), say=messages.append)
    assert cells.height == 0
    assert sum("use --device cuda" in text for text in messages) == 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "poem"}, "unknown kind 'poem'; known: table, statistics"),
        (
            {"kind": "figure", "options": {"curves": ["gamma"]}},
            f"options.curves, some of {', '.join(figures.CURVES)}",
        ),
    ],
)
def test_a_config_of_no_known_kind_is_refused(
    changed: dict[str, object], message: str, small: Path, tmp_path: Path
) -> None:
    config: Config = replace(CONFIGS["table3"], **changed)
    with pytest.raises(DataError, match=message):
        run(config, small, tmp_path / "x.csv")


@pytest.mark.parametrize("name", ["table1", "figure5"])
def test_results_never_take_the_place_of_another_file(
    name: str, small: Path, tmp_path: Path
) -> None:
    out = tmp_path / "prices.csv"
    out.write_text("item,price\ntea,2\n")
    with pytest.raises(DataError, match=r"prices.csv cannot be read"):
        run(CONFIGS[name], small, out)
    assert out.read_text() == "item,price\ntea,2\n"


def test_the_command_runs_tables_and_figures_and_renews_the_overview(
    paper: Path, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in paper.glob("*.toml"):
        if file.stem not in ("table8", "figure8"):
            file.unlink()
    where = ["--paper", str(paper), "--data", str(small)]
    assert command.main(["all", *where, "--datasets", "gowalla"]) == 0
    output = capsys.readouterr()
    assert "Table 8" in output.out
    assert "Figure 8" in output.out
    assert " left)" in output.err
    assert (paper / "figures" / "figure8.svg").is_file()
    text = (paper / "README.md").read_text()
    assert "![Figure 8" in text
    assert "| Gowalla | Sym norm |" in text
    assert "Command: `python paper/run.py all --paper" in text


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--list"], 0, "figure9           Figure 9"),
        (["--overview"], 0, ""),
        (["table42"], 1, "known: table1, table2"),
        (["all", "--paper", "nowhere"], 1, "nowhere has no configs"),
    ],
)
def test_the_command_prints_its_results(
    arguments: list[str],
    status: int,
    message: str,
    paper: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main(["--paper", str(paper), *arguments]) == status
    output = capsys.readouterr()
    assert message in output.out + output.err
    assert (paper / "README.md").is_file() == (arguments[0] not in ("--list", "all"))


def test_the_command_asks_for_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main([])
    assert "name a table or figure" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["--help"])
    assert "example: python paper/run.py table3" in capsys.readouterr().out
