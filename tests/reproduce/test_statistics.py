"""Table 1 on small data: each part is described, sizes agree with the files."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from equipoise.errors import DataError
from equipoise.interactions import Interactions
from equipoise.reproduce import load_config
from equipoise.reproduce import statistics as table1
from equipoise.reproduce.data import published_split
from equipoise.statistics import gini

PAPER = Path(__file__).resolve().parents[2] / "paper"


def test_every_part_is_described(small: Path, tmp_path: Path, synthetic: Interactions) -> None:
    config = load_config(PAPER / "table1.toml")
    results = table1.run_statistics(config, small, tmp_path / "out.csv", command="a test")
    assert results.height == len(config.rows) * len(config.columns)
    ours = {
        (row["row"], row["column"]): row["ours"]
        for row in results.filter(pl.col("dataset") == "Gowalla").to_dicts()
    }
    assert ours["all interactions", "interactions"] == synthetic.n_interactions
    assert ours["all interactions", "users"] == 300
    assert ours["strong train", "users"] == 220
    train = published_split(small / "gowalla" / "weak", "weak").train
    assert ours["weak train", "gini_items"] == pytest.approx(gini(train.item_counts), abs=1e-6)
    assert set(results.filter(pl.col("ours").is_null())["status"]) == {"not run here"}


def test_known_statistics_are_not_computed_again(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(PAPER / "table1.toml")
    first = table1.run_statistics(config, small, tmp_path / "out.csv")
    monkeypatch.setattr(table1, "describe", pytest.fail)
    assert table1.run_statistics(config, small, tmp_path / "out.csv").equals(first)


def test_results_never_take_the_place_of_another_file(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "prices.csv"
    out.write_text("item,price\ntea,2\n")
    with pytest.raises(DataError, match=r"prices.csv cannot be read"):
        table1.run_statistics(load_config(PAPER / "table1.toml"), small, out)
    assert out.read_text() == "item,price\ntea,2\n"
