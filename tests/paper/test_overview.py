"""The overview: every config has a section and a status, and the text around it stays."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from tests.paper.conftest import PAPER

from reproduce.config import load_config, names
from reproduce.overview import END, START, overview, write_overview
from reproduce.results import as_frame
from reproduce.runner import kind_of, results_file, run, stored

pytest.importorskip("matplotlib")


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
        run(config, small, results_file(paper, config), command=f"run {name}")
    text = overview(paper)
    assert "![Figure 5" in text
    assert "Panels: ML-1M: ours; not run here: ML-20M, Netflix" in text
    assert "[numbers drawn](figures/figure5.csv)" in text
    assert "Command: `run figure5`" in text
    assert "- ML-1M: NDCG@20 over all items is best at alpha" in text
    assert "| Gowalla | RW norm |" in text
    assert "| Gowalla | Col norm |" in text


@pytest.mark.parametrize("name", names(PAPER))
def test_every_result_in_the_repository_is_shown(name: str) -> None:
    config = load_config(PAPER / f"{name}.toml")
    kind = kind_of(config)
    saved = as_frame(kind.read(results_file(PAPER, config)), kind.schema)
    key = [name for name in ("dataset", "row", "column", "ours", "point", "y") if name in saved]
    assert saved.join(stored(PAPER, config), on=key, how="anti", nulls_equal=True).height == 0


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


def test_the_claim_about_noise_agrees_with_the_numbers_drawn() -> None:
    drops = pl.read_csv(PAPER / "figures" / "figure7.csv").filter(pl.col("noise") == 20)
    most = drops.sort("drop").group_by("data").last()
    lae_drops_most = most.filter(pl.col("model") == "LAE")["data"].to_list()
    readme = (PAPER / "README.md").read_text(encoding="utf-8")
    (claim,) = [
        row for row in readme.splitlines() if row.startswith("| DAN is more robust to noise")
    ]
    assert lae_drops_most == ["ML-1M (for ML-20M), tail items"]
    assert most.height == 6
    assert "holds in one of six cases, the tail of ML-1M" in claim
