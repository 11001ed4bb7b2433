"""Figures on small data: every config runs, resumes, and draws with or without matplotlib."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from equipoise.errors import DataError
from equipoise.models.linear import LinearAutoencoder
from equipoise.reproduce import load_config
from equipoise.reproduce.config import Config
from equipoise.reproduce.figures import CURVES, finished, panels, read_points, run_figure
from equipoise.reproduce.findings import findings

pytest.importorskip("matplotlib")
PAPER = Path(__file__).resolve().parents[2] / "paper"
FIGURES = [f"figure{n}" for n in range(1, 10)]


def shortened(name: str) -> Config:
    """A figure of the paper with fewer values on its axes."""
    config = load_config(PAPER / f"{name}.toml")
    fewer = {"alpha": [0.0, 0.3], "beta": [0.0, 0.5], "noise": [0, 20], "seeds": 2}
    options = {key: fewer.get(key, value) for key, value in config.options.items()}
    return replace(config, options=options)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_runs_and_is_drawn(name: str, small: Path, tmp_path: Path) -> None:
    config = shortened(name)
    said: list[str] = []
    found = run_figure(
        config, small, tmp_path / "p" / "results" / f"{name}.csv", progress=said.append
    )
    drawn = tmp_path / "p" / "figures"
    assert {file.name for file in drawn.iterdir()} == {
        f"{name}.{end}" for end in ("svg", "png", "csv")
    }
    assert "drew" in said[-1]
    present = {"Gowalla", "ML-1M"} if name != "figure9" else {"ML-latest-small"}
    assert set(found["dataset"]) == present & set(config.datasets)
    status = panels(config, found)
    assert set(status.filter(pl.col("points") > 0)["status"]) == {"ours"}
    assert set(status.filter(pl.col("points") == 0)["status"]) == {"not run here"}
    assert findings(config, found)


def test_a_figure_that_is_done_is_only_drawn(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out = shortened("figure5"), tmp_path / "p" / "results" / "figure5.csv"
    first = run_figure(config, small, out)
    monkeypatch.setattr(LinearAutoencoder, "fit", pytest.fail)
    picture = tmp_path / "p" / "figures" / "figure5.png"
    picture.unlink()
    # elsewhere, without the data
    assert run_figure(config, tmp_path / "empty", out).equals(first)
    assert picture.is_file()


def test_a_half_written_figure_goes_on_where_it_was(small: Path, tmp_path: Path) -> None:
    config, out = shortened("figure8"), tmp_path / "p" / "results" / "figure8.csv"
    whole = run_figure(config, small, out)
    gone = whole["point"].unique(maintain_order=True)[-3:]
    whole.filter(~pl.col("point").is_in(gone)).write_csv(out)
    said: list[str] = []
    again = run_figure(config, small, out, progress=said.append)
    values = ["dataset", "point", "group", "y"]
    assert again.select(values).equals(whole.select(values))
    lost = whole.filter(pl.col("point").is_in(gone)).unique(["dataset", "point"]).height
    assert sum(" of " in line for line in said) == lost


def test_other_settings_are_computed_again(small: Path, tmp_path: Path) -> None:
    config, out = shortened("figure1"), tmp_path / "p" / "results" / "figure1.csv"
    before = run_figure(config, small, out)
    rows = [
        replace(row, settings={**row.settings, "l2": 7.0}) if row.settings else row
        for row in config.rows
    ]
    after = run_figure(replace(config, rows=rows), small, out)
    assert not after["y"].equals(before["y"])
    assert finished(config, read_points(out)).height == 0


def test_points_of_one_solve_share_it(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = []
    original = LinearAutoencoder.fit
    monkeypatch.setattr(
        LinearAutoencoder,
        "fit",
        lambda self, *a, **k: (fits.append(1), original(self, *a, **k))[1],
    )
    config = load_config(PAPER / "figure5.toml")
    run_figure(config, small, tmp_path / "results" / "figure5.csv")
    assert len(fits) == 1  # six values of alpha on one data set


def test_without_matplotlib_the_points_are_written(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out = shortened("figure5"), tmp_path / "p" / "results" / "figure5.csv"
    said: list[str] = []
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        run_figure(config, small, out, progress=said.append)
    assert "the picture was not drawn" in said[-1]
    drawn = tmp_path / "p" / "figures"
    assert [file.name for file in drawn.iterdir()] == ["figure5.csv"]
    run_figure(config, tmp_path / "empty", out)
    assert (drawn / "figure5.svg").is_file()


def test_a_figure_without_data_says_so(tmp_path: Path, no_cache: None) -> None:
    said: list[str] = []
    config = shortened("figure8")
    found = run_figure(config, tmp_path, tmp_path / "r" / "x.csv", progress=said.append)
    assert not found.height
    assert said == ["figure8: nothing to draw, none of its data sets is at hand"]


def test_a_curve_that_does_not_exist_is_refused(small: Path, tmp_path: Path) -> None:
    config = replace(shortened("figure5"), options={"curves": ["gamma"]})
    with pytest.raises(DataError, match=f"options.curves, some of {', '.join(CURVES)}"):
        run_figure(config, small, tmp_path / "x.csv")


def test_a_damaged_file_of_points_is_refused(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.csv"
    out.write_text("dataset,curve\nGowalla,alpha\n" + "a," * 40)
    with pytest.raises(DataError, match=r"x.csv cannot be read.*remove it"):
        run_figure(shortened("figure5"), small, out)
