"""Attributes of items and of new ones are joined, matched and carried along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, SettingError

EVENTS = [("ann", "tea"), ("ann", "milk"), ("bob", "tea"), ("cleo", "salt")]
TABLE = {
    "item": ["salt", "tea", "rum", "milk", "gin"],
    "title": ["Salt", "Tea", "Rum", "Milk", "Gin"],
    "price": [1.0, 2.0, 9.0, None, 8.0],
    "tags": [["dry"], ["hot", "dry"], ["strong"], None, ["strong", "clear"]],
}


@pytest.fixture
def data() -> Interactions:
    return eq.read(EVENTS, catalogue=TABLE)


def catalogue(data: Interactions) -> pl.DataFrame:
    assert data.catalogue is not None
    return data.catalogue


def new_items(data: Interactions) -> pl.DataFrame:
    assert data.new_items is not None
    return data.new_items


def test_rows_without_events_are_new_items(data: Interactions) -> None:
    assert data.items.tolist() == ["milk", "salt", "tea"]
    assert catalogue(data)["title"].to_list() == ["Milk", "Salt", "Tea"]
    assert new_items(data).columns == ["item", "title", "price", "tags"]
    assert new_items(data)["item"].to_list() == ["rum", "gin"]
    assert data.attributes == {"title": "text", "price": "number", "tags": "list"}
    assert "items of the catalogue without events: 2" in data.notes
    assert (
        "attributes: 'title' (text), 'price' (number, 20% missing), 'tags' (list, 20% missing)"
        in data.notes
    )
    assert eq.read(EVENTS).new_items is None
    assert eq.read(EVENTS).attributes == {}
    assert eq.read(EVENTS, catalogue={"tea": "Tea"}).new_items is None


def test_attributes_do_not_change_the_fingerprint(data: Interactions) -> None:
    assert data.fingerprint == eq.read(EVENTS).fingerprint


def test_new_items_are_carried_along(data: Interactions, tmp_path: Path) -> None:
    expected = new_items(data)
    data.save(tmp_path / "data")
    eq.EASE(l2=1.0).fit(data).save(tmp_path / "model")
    for other in (
        data.rows([0]),
        data.columns([1, 2]),
        data.select(["ann"], ["tea"]),
        data.entries(np.ones(4, bool)),
        data.filter(min_item=2),
        data.with_items(["tea"], unknown_items="skip"),
        data.union(data),
        data.difference(eq.read([("ann", "tea")])),
        Interactions.load(tmp_path / "data"),
        eq.load(tmp_path / "model").interactions_,
    ):
        assert new_items(other).equals(expected)
        assert other.attributes == data.attributes
    assert eq.split.weak(data, valid=0, test=0.5, seed=1).train.new_items is not None


def test_a_new_item_that_gets_events_becomes_an_item(data: Interactions) -> None:
    united = data.union(eq.read([("dan", "rum"), ("dan", "wine")]))
    assert united.items.tolist() == ["milk", "salt", "tea", "rum", "wine"]
    assert catalogue(united)["title"].to_list() == ["Milk", "Salt", "Tea", "Rum", None]
    assert catalogue(united)["price"].to_list() == [None, 1.0, 2.0, 9.0, None]
    assert new_items(united)["item"].to_list() == ["gin"]
    assert united.union(eq.read([("dan", "gin"), ("eve", "gin")])).new_items is None
    model = eq.EASE(l2=1.0).fit(data).update(eq.read([("dan", "rum"), ("dan", "tea")]))
    assert model.interactions_.label("rum") == "Rum"
    assert new_items(model.interactions_)["item"].to_list() == ["gin"]


def test_both_sides_of_a_union_know_items(data: Interactions) -> None:
    later = {
        "item": ["tea", "gin", "ale"],
        "title": ["Black tea", "Sloe gin", "Ale"],
        "price": [3, None, 4],
        "stock": [5, 6, 7],
    }
    other = eq.read([("dan", "tea")], catalogue=later)
    united = data.union(other)
    assert catalogue(united)["title"].to_list() == ["Milk", "Salt", "Black tea"]
    assert catalogue(united)["price"].to_list() == [None, 1.0, 3.0]
    assert catalogue(united)["stock"].to_list() == [None, None, 5]
    rows = new_items(united).sort("item")
    assert rows["item"].to_list() == ["ale", "gin", "rum"]
    assert rows["title"].to_list() == ["Ale", "Sloe gin", "Rum"]
    assert rows["price"].to_list() == [4.0, 8.0, 9.0]
    assert rows["stock"].to_list() == [7, 6, None]
    assert rows["tags"].to_list() == [None, ["strong", "clear"], ["strong"]]


def test_columns_of_one_attribute_get_one_type() -> None:
    first = eq.read(
        EVENTS,
        catalogue={
            "item": ["tea", "milk"],
            "title": ["T", "M"],
            "kind": ["a|b", "b"],
            "day": ["2024-01-31", None],
        },
    )
    second = eq.read(
        EVENTS,
        catalogue={"item": ["salt"], "title": ["S"], "kind": ["b"], "day": ["2024-01-31T12:00"]},
    )
    united = first.union(second)
    assert catalogue(united)["kind"].to_list() == [["b"], ["b"], ["a", "b"]]
    assert catalogue(united)["day"].dtype == pl.Datetime("us")
    third = eq.read(EVENTS, catalogue={"item": ["salt"], "title": ["S"], "kind": [7]})
    with pytest.raises(DataError, match=r"column 'kind' of the catalogue is List.* and Int64 on"):
        first.union(third)


def test_numbers_beyond_64_bits_with_a_sign_meet_negative_ones() -> None:
    data = eq.read([("ann", "tea"), ("bob", "jam")])
    numbers = pl.Series("code", [2**63, 1], dtype=pl.UInt64)
    data = data.with_catalogue(pl.DataFrame([pl.Series("item", ["tea", "jam"]), numbers]))
    described = data.with_items_described({"item": ["jam"], "code": [-1]})
    assert described.catalogue["code"].to_list() == [-1.0, 2.0**63]


def test_a_column_without_values_is_understood_when_it_gets_some() -> None:
    data = eq.read([("ann", "tea"), ("bob", "jam")])
    empty = pl.DataFrame({"item": ["tea", "jam"], "title": ["Tea", "Jam"], "price": [None, None]})
    data = data.with_catalogue(empty)
    assert data.attributes["price"] == "other"
    described = data.with_items_described({"item": ["rice"], "title": ["Rice"], "price": [3]})
    assert described.attributes["price"] == "number"
    assert described.new_items["price"].to_list() == [3]


def test_numbers_beyond_the_range_of_dates_are_no_dates() -> None:
    data = eq.read([("ann", "tea"), ("bob", "jam")])
    data = data.with_catalogue({"item": ["tea", "jam"], "timestamp": [1.6e30, 1.6e9]})
    assert data.attributes["timestamp"] == "number"
    assert sorted(data.catalogue["timestamp"].to_list()) == [1.6e9, 1.6e30]


def test_hidden_items_become_new_ones(data: Interactions) -> None:
    left = data.hide_items([2])
    assert left.items.tolist() == ["milk", "salt"]
    assert left.users.tolist() == ["ann", "bob", "cleo"]
    assert new_items(left)["item"].to_list() == ["rum", "gin", "tea"]
    assert new_items(left)["price"].to_list() == [9.0, 8.0, 2.0]
    assert catalogue(left)["title"].to_list() == ["Milk", "Salt"]
    assert new_items(data.with_catalogue({"tea": "Tea"}).hide_items([0, 2])).rows() == [
        ("tea", "Tea")
    ]
    assert eq.read(EVENTS).hide_items([0]).new_items is None


def test_tables_are_joined_by_their_items(tmp_path: Path) -> None:
    items, prices = tmp_path / "items.csv", tmp_path / "prices.csv"
    items.write_text("sku,title,price\ntea,Tea,\nmilk,Milk,5\nrum,Rum,9\n")
    prices.write_text("sku,price,stock\ntea,2,7\nmilk,6,0\ngin,8,1\n")
    data = eq.read(EVENTS, catalogue=[items, prices], catalogue_id="sku")
    assert data.attributes == {"title": "text", "price": "number", "stock": "number"}
    assert catalogue(data).rows() == [("Milk", 5, 0), (None, None, None), ("Tea", 2, 7)]
    assert new_items(data).rows() == [("rum", "Rum", 9, None), ("gin", None, 8, 1)]
    frames = [pl.read_csv(items), pl.read_csv(prices)]
    same = eq.read(EVENTS).with_catalogue(frames, id="sku")
    assert catalogue(same).equals(catalogue(data))
    with pytest.raises(DataError, match=r"prices.csv has no column 'title'; .*'sku'"):
        eq.read(EVENTS, catalogue=[items, prices], catalogue_id="title")


def test_ids_that_no_item_can_have_are_left_out() -> None:
    data = eq.read([(1, 7), (2, 8)], catalogue={"item": ["7", "09", "x"], "title": list("abc")})
    assert data.label(7) == "a"
    assert data.new_items is None
    assert "left out 2 rows of the catalogue whose 'item' is not an item id" in data.notes


def test_new_items_follow_the_type_of_the_ids() -> None:
    data = eq.read([(1, 7), (2, 8)], catalogue={"item": [7, 9], "title": ["a", "b"]})
    assert new_items(data).rows() == [(9, "b")]
    united = data.union(eq.read([("ann", "tea")]))
    assert new_items(united).rows() == [("9", "b")]
    assert data.union(eq.read([("1", "9")])).new_items is None


def test_an_attribute_may_be_called_item() -> None:
    table = {"sku": ["tea", "rum"], "item": ["Tea", "Rum"]}
    data = eq.read(EVENTS, catalogue=table, catalogue_id="sku")
    assert data.label("tea") == "Tea"
    assert new_items(data).rows(named=True) == [{"item_id": "rum", "item": "Rum"}]


def test_a_catalogue_without_text_has_no_titles() -> None:
    vectors = np.eye(3)
    data = eq.read(EVENTS).with_catalogue({"item": ["tea", "milk", "rum"], "embedding": vectors})
    assert data.label("tea") == "tea"
    assert data.attributes == {"title": "text", "embedding": "vector"}
    assert "catalogue from the catalogue, without a column of titles; pass title= for another" in (
        data.notes
    )
    assert (
        eq.read(EVENTS, catalogue={"item": ["tea", "rum"], "kind": ["a|b", "b"]}).label("tea")
        == "tea"
    )


def test_vectors_survive(tmp_path: Path) -> None:
    data = eq.read(EVENTS).with_catalogue(
        {"item": ["tea", "milk", "rum"], "embedding": np.arange(6.0).reshape(3, 2)}
    )
    data.save(tmp_path)
    back = Interactions.load(tmp_path)
    assert catalogue(back).equals(catalogue(data))
    assert catalogue(back)["embedding"].to_list() == [[2.0, 3.0], None, [0.0, 1.0]]
    assert new_items(back)["embedding"].to_list() == [[4.0, 5.0]]
    assert back.attributes["embedding"] == "vector"


@pytest.mark.parametrize("other", [[("tea", "Tea")], [1, 2], []])
def test_a_list_of_anything_but_tables_is_refused(other: Any) -> None:
    with pytest.raises(SettingError, match=r"a dictionary from items to titles, got a"):
        eq.read(EVENTS, catalogue=other)


def test_items_that_training_has_not_seen_are_new_to_it() -> None:
    rows = [(user, "tea", user) for user in range(6)]
    rows += [(user, "milk", 10) for user in (0, 2, 4)] + [(1, "milk", 20)]
    rows += [(user, "rum", 21) for user in range(6)] + [(3, "milk", 40), (5, "milk", 40)]
    frame = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")
    data = eq.read(frame, time_unit="s", catalogue=TABLE)
    split = eq.split.time_cut(data, test_from=19, valid=0)
    assert set(split.train.items) == {"milk", "tea"}
    assert new_items(split.train)["item"].to_list() == ["salt", "gin", "rum"]
    split = eq.split.time_cut(data, valid_from=19, test_from=39)
    assert "rum" in new_items(split.train)["item"]
    both = split.train_and_valid()
    assert both.label("rum") == "Rum"
    assert new_items(both)["item"].to_list() == ["salt", "gin"]
