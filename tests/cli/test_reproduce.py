"""The command `reproduce`: tables and figures by name, JSON, and what is not there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import call

pytest.importorskip("matplotlib")
PAPER = Path(__file__).resolve().parents[2] / "paper"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two configs in `paper` and a strong Gowalla of 60 users in `data`."""
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "nothing-fetched"))
    (tmp_path / "paper").mkdir()
    for name in ("table8", "figure8"):
        shutil.copy(PAPER / f"{name}.toml", tmp_path / "paper")
    shutil.copytree(PAPER / "published", tmp_path / "paper" / "published")
    folder = tmp_path / "data" / "gowalla" / "strong"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(3)
    for name, low, high in (
        ("train", 0, 40),
        ("valid_in", 40, 50),
        ("valid_target", 40, 50),
        ("test_in", 50, 60),
        ("test_target", 50, 60),
    ):
        users = np.repeat(np.arange(low, high), 6)
        items = np.concatenate([rng.choice(25, 6, replace=False) for _ in range(low, high)])
        np.savez(folder / f"{name}.npz", users=users, items=items)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_all_runs_tables_and_figures_and_renews_the_overview(place: Path) -> None:
    done = call("reproduce", "all")
    assert done.exit_code == 0, done.output
    assert "Table 8" in done.stdout
    assert "Figure 8" in done.stdout
    assert (place / "paper" / "figures" / "figure8.svg").is_file()
    text = (place / "paper" / "README.md").read_text()
    assert "![Figure 8" in text
    assert "| Gowalla | Sym norm |" in text


def test_json_holds_the_points(place: Path) -> None:
    done = call("reproduce", "figure8", "--json")
    assert done.exit_code == 0, done.output
    points = json.loads(done.stdout)["figure8"]
    assert {point["curve"] for point in points} == {"alpha", "beta"}


def test_an_unknown_name_lists_what_there_is(place: Path) -> None:
    done = call("reproduce", "table42")
    assert done.exit_code == 1
    assert "known: table8, figure8" in done.stderr


def test_a_folder_without_configs_is_refused(place: Path) -> None:
    done = call("reproduce", "all", "--paper", "data")
    assert done.exit_code == 1
    assert "has no configs" in done.stderr
