"""The overview: every config has a section and a status, and what people wrote stays."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from equipoise.reproduce import load_config, runner
from equipoise.reproduce.cells import read_results
from equipoise.reproduce.config import names
from equipoise.reproduce.kinds import KINDS, completed, results_file
from equipoise.reproduce.overview import END, START, overview, write_overview

pytest.importorskip("matplotlib")
PAPER = Path(__file__).resolve().parents[2] / "paper"


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    """The configs and the published numbers, without results."""
    folder = tmp_path / "paper"
    folder.mkdir()
    for file in PAPER.glob("*.toml"):
        shutil.copy(file, folder)
    shutil.copytree(PAPER / "published", folder / "published")
    return folder


def test_every_config_has_a_section_and_absent_data_are_told_once(paper: Path) -> None:
    text = overview(paper)
    for name in names(paper):
        assert f'<a id="{name}"></a>' in text
        assert f"| [{name}](#{name}) |" in text
    section = text.split('<a id="table2"></a>')[1].split("<a id=")[0]
    assert "Not run here: ML-20M, Netflix, MSD. Pass the folder" in section
    assert "| LAE |" not in section
    assert "![" not in text


def test_results_and_pictures_are_shown(paper: Path, small: Path) -> None:
    for name in ("table8", "figure5"):
        config = load_config(paper / f"{name}.toml")
        runner(config)(config, small, results_file(paper, config), command=f"run {name}")
    text = overview(paper)
    assert "![Figure 5" in text
    assert "Panels: ML-1M: ours; not run here: ML-20M, Netflix" in text
    assert "[numbers drawn](figures/figure5.csv)" in text
    assert "Command: `run figure5`" in text
    assert "- ML-1M: NDCG@20 over all items is best at alpha" in text
    assert "| Gowalla | RW norm |" in text
    assert "| Gowalla | Col norm |" in text


@pytest.mark.parametrize("name", ["table1", "table6_cut", "table8"])
def test_overview_judges_stored_results_as_their_run_did(
    name: str, paper: Path, small: Path
) -> None:
    config = load_config(paper / f"{name}.toml")
    found = runner(config)(config, small, results_file(paper, config))
    assert found["ours"].is_not_null().any()
    assert completed(config, read_results(results_file(paper, config))).equals(found)


TABLES = [name for name in names(PAPER) if KINDS[load_config(PAPER / f"{name}.toml").kind].cells]


@pytest.mark.parametrize("name", TABLES)
def test_every_result_in_the_repository_is_shown(name: str) -> None:
    config = load_config(PAPER / f"{name}.toml")
    stored = read_results(results_file(PAPER, config))
    shown = completed(config, stored)
    cell = ["dataset", "row", "column", "ours"]
    assert stored.join(shown, on=cell, how="anti").height == 0


def test_readme_of_the_paper_is_up_to_date() -> None:
    text = (PAPER / "README.md").read_text(encoding="utf-8")
    assert text.split(START)[1].split(END)[0].strip() == overview(PAPER).strip()


def test_only_the_generated_part_is_renewed(paper: Path) -> None:
    file = paper / "README.md"
    file.write_text(f"by hand\n\n{START}\nold\n{END}\n\nafter\n")
    write_overview(paper)
    text = file.read_text()
    assert text.startswith("by hand\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text.split(START)[1].splitlines()
    write_overview(paper)
    assert file.read_text() == text
