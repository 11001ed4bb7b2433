"""The commands on items that nobody has used yet."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from tests.models.described import described
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli.app import app


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    data = described()
    data.to_frame().write_csv("events.csv")
    table = data.catalogue.clone().insert_column(0, data.item_index.to_series().alias("item"))
    new = pl.DataFrame(
        {"item": ["n1"], "title": ["The sun 99"], "themes": [["river", "sun"]], "price": [9.5]}
    )
    joined = pl.concat([table, new]).with_columns(pl.col("themes").list.join("|"))
    joined.write_csv("catalogue.csv")
    return tmp_path


def run(*args: str) -> str:
    result = CliRunner().invoke(app, [*args])
    assert result.exit_code == 0, result.output
    return result.stdout


FIT = (
    "fit",
    "events.csv",
    "model",
    "--catalogue",
    "catalogue.csv",
    "--model",
    "ease",
    "--l2",
    "5",
)


def test_fit_with_features_lists_new_items(files: Path) -> None:
    run(*FIT, "--no-search", "--features", "themes,price")
    model = eq.load("model")
    assert model.features.attributes == ("themes", "price")
    assert "n1" in model.item_index_
    shown = json.loads(
        run("recommend", "model", "--history", "i1,i2", "-k", "41", "--new-items", "5", "--json")
    )
    assert "n1" in [row["item"] for row in shown[0]["items"]]
    none = json.loads(
        run("recommend", "model", "--history", "i1,i2", "-k", "41", "--new-items", "0", "--json")
    )
    assert "n1" not in [row["item"] for row in none[0]["items"]]
    assert json.loads(run("similar", "model", "n1", "-k", "3", "--json"))


def test_a_search_uses_a_catalogue_with_more_than_titles(files: Path) -> None:
    run(*FIT, "--dropout", "0.2", "--normalizer", "dan", "--yes")
    features = eq.load("model").features_
    assert features is not None
    assert features.strength in (0.0, 1.0, 3.0, 10.0)
    run(*FIT, "--dropout", "0.2", "--normalizer", "dan", "--features", "none", "--yes")
    assert eq.load("model").features is None


def test_split_hides_items(files: Path) -> None:
    run("split", "events.csv", "split", "--catalogue", "catalogue.csv", "--new-items", "0.2")
    split = eq.Split.load("split")
    assert split.protocol == "items"
    assert (split.train.item_counts == 0).sum() == 8
