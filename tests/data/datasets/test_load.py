"""The catalogue, and the data sets that are fetched."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.data.datasets.conftest import fetched

from equipoise.data import datasets
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, FetchError, SettingError

BY_HAND = [name for name in datasets.names() if not datasets.info(name).fetched]


def test_every_name_of_the_catalogue_is_listed_once() -> None:
    assert datasets.names() == [
        "movielens-100k",
        "movielens-1m",
        "online-retail",
        "book-crossing",
        "complete-journey",
        "ml-20m",
        "netflix",
        "msd",
        "gowalla",
        "yelp2018",
        "amazon-book",
        "diginetica",
        "retailrocket",
        "yoochoose",
    ]


@pytest.mark.parametrize("name", datasets.names())
def test_every_data_set_has_its_origin_licence_files_and_recipe(name: str) -> None:
    entry = datasets.info(name)
    shown = str(entry)
    assert entry.name == name
    for text in (entry.title, entry.origin, entry.home, entry.licence, entry.files, entry.recipe):
        assert text
        assert text in shown


def test_unknown_name_is_an_error_with_the_nearest_one() -> None:
    with pytest.raises(SettingError, match="no data set 'movielens100k'; did you mean 'movielens"):
        datasets.load("movielens100k")


@pytest.mark.parametrize("name", BY_HAND)
def test_data_set_to_be_downloaded_by_hand_says_what_from_where_and_the_call(name: str) -> None:
    entry = datasets.info(name)
    with pytest.raises(FetchError) as caught:
        datasets.load(name)
    message = str(caught.value)
    for text in (entry.files, entry.origin, entry.home, entry.licence):
        assert text in message
    assert f"load({name!r}, path='FOLDER')" in message


@pytest.mark.parametrize("name", datasets.names())
def test_folder_that_does_not_exist_is_an_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        datasets.load(name, path=tmp_path / "nowhere")


@pytest.mark.parametrize("name", datasets.names())
def test_folder_without_the_files_is_an_error_that_names_them(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        datasets.load(name, path=tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert re.findall(r"[\w.-]+", datasets.info(name).files)[0] in str(caught.value)


def test_min_rating_is_refused_where_the_recipe_is_fixed(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="the recipe of ml-20m is fixed"):
        datasets.load("ml-20m", path=tmp_path, min_rating=3)


@pytest.mark.network
def test_movielens_100k_comes_with_titles_genres_and_times(movielens_100k: Interactions) -> None:
    data = movielens_100k
    assert data.matrix.shape == (943, 1682)
    assert data.n_interactions == 100_000
    assert (data.matrix.data == 1).all()
    assert data.catalogue is not None
    assert data.catalogue.columns == ["title", "year", "genres"]
    assert data.label(1) == "Toy Story"
    assert data.times is not None
    # Columns of line 2 of the file: 196, 242, 3, 881250949.
    row, column = data.user_index.positions([196])[0], data.item_index.positions([242])[0]
    place = data.matrix.indptr[row] + data.matrix[[row], :].indices.tolist().index(column)
    assert data.times[place] == 881250949


@pytest.mark.network
def test_min_rating_keeps_the_good_ratings_of_movielens_100k(movielens_100k: Interactions) -> None:
    assert datasets.load("movielens-100k", min_rating=4).n_interactions == 34_174 + 21_201
    assert movielens_100k.n_interactions == 100_000


@pytest.mark.network
def test_movielens_1m_is_complete_and_has_titles(movielens_1m: Interactions) -> None:
    data = movielens_1m
    assert (data.n_users, data.n_items, data.n_interactions) == (6_040, 3_706, 1_000_209)
    assert data.label("Toy Story (1995)") == "Toy Story"
    assert data.catalogue is not None
    assert data.catalogue["title"].null_count() == 0
    assert "One Flew Over the Cuckoo's Nest (1975)" in data.history("1m_1")


@pytest.mark.network
def test_online_retail_has_times_quantities_and_descriptions(data_cache: Path) -> None:
    data = fetched("online-retail")
    file = data_cache / "online-retail" / "ecommerce_sales.csv"
    raw = pl.read_csv(file, encoding="latin-1", schema_overrides={"InvoiceNo": pl.String})
    bought = raw.filter(pl.col("CustomerID").is_not_null(), pl.col("Quantity") > 0)
    pairs = bought.group_by("CustomerID", "StockCode").agg(pl.col("Quantity").sum())
    assert (data.n_users, data.n_items) == (4_339, 3_665)
    assert data.n_interactions == pairs.height
    assert data.matrix.sum(dtype=np.float64) == bought["Quantity"].sum()
    assert data.label("85123A") == "WHITE HANGING HEART T-LIGHT HOLDER"
    assert data.times is not None
    assert data.times.min() >= 1_291_191_960  # 2010-12-01 08:26
    assert (data.user_index.values.dtype, data.item_index.values.dtype) == (np.int64, object)


@pytest.mark.network
def test_book_crossing_is_complete_and_has_titles(data_cache: Path) -> None:
    data = fetched("book-crossing")
    assert (data.n_users, data.n_items, data.n_interactions) == (105_283, 340_556, 1_149_780)
    assert data.label("0195153448") == "Classical Mythology"
    assert data.catalogue is not None
    assert data.catalogue.columns == ["title", "author", "year", "publisher"]
    # one of the fourteen ids with a quotation mark, and its row
    assert '"0210000010' in data.history(4377)
    assert not any(note.startswith("skipped") for note in data.notes)


@pytest.mark.network
def test_complete_journey_has_times_quantities_and_departments(data_cache: Path) -> None:
    data = fetched("complete-journey")
    raw = pl.read_parquet(data_cache / "complete-journey" / "transactions.parquet")
    assert data.n_users == 2_469
    assert data.matrix.sum(dtype=np.float64) == raw["quantity"].sum()
    assert data.catalogue is not None
    assert data.catalogue["department"].null_count() < 10
    assert data.times is not None
    with pytest.raises(SettingError, match="complete-journey has no ratings"):
        datasets.load("complete-journey", min_rating=3)
