from __future__ import annotations

import polars as pl
import pytest

from equipoise.cli.data import find_items, find_users, split_list
from equipoise.errors import UnknownIdError
from equipoise.interactions import Interactions


def films() -> Interactions:
    titles = pl.DataFrame({"title": ["Heat", "heat", "7"]})
    return Interactions([[1, 1, 0], [0, 1, 1]], [1, 2], [5, 6, 8], labels=titles)


def test_an_id_wins_over_a_title() -> None:
    assert find_items(films(), ["8", "5"]) == [8, 5]


def test_a_title_stands_for_its_item() -> None:
    assert find_items(films(), ["7"]) == [8]


def test_a_title_of_two_items_is_not_guessed() -> None:
    with pytest.raises(UnknownIdError, match=r"did you mean 5 \(Heat\), 6 \(heat\)\?"):
        find_items(films(), ["HEAT"])


def test_users_are_found_by_their_own_kind() -> None:
    assert find_users(films(), ["2"]) == [2]
    with pytest.raises(UnknownIdError, match="knows no user '3'"):
        find_users(films(), ["3"])


def test_a_json_list_serves_for_ids_with_commas() -> None:
    assert split_list(' ["a,b", 3]') == ["a,b", "3"]
    assert split_list("a, b,,c") == ["a", "b", "c"]
