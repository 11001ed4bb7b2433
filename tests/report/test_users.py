"""The case study: four lists for one user whom the models have not seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.report.dom import parse

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, SettingError, UnknownIdError
from equipoise.evaluation.metrics import head_items
from equipoise.report import CaseStudy, case_study, write_case_study


@pytest.fixture(scope="module")
def study(labelled: Interactions) -> CaseStudy:
    return case_study(labelled, "u7", k=4)


def without_user(data: Interactions, user: str) -> Interactions:
    return data.rows(data.users != user)


def test_the_four_normalizations_of_the_paper_have_a_list_each(
    study: CaseStudy, labelled: Interactions
) -> None:
    lists = study.to_frame()
    assert lists["normalization"].unique(maintain_order=True).to_list() == [
        *("W/O", "RW", "DAN", "Sym")
    ]
    assert lists.group_by("normalization").len()["len"].to_list() == [4] * 4
    known = set(labelled.history("u7"))
    assert set(study.history["item"]) == known
    assert not known & set(lists["item"])


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("W/O", eq.LAE(dropout=0.0)),
        ("RW", eq.LAE(l2=0.0, dropout=0.5, normalizer=eq.RandomWalk())),
        ("DAN", eq.LAE(dropout="auto", normalizer=eq.DAN())),
        ("Sym", eq.LAE(l2=0.0, dropout=0.5, normalizer=eq.Symmetric())),
    ],
)
def test_each_list_is_that_of_a_model_fitted_on_all_other_users(
    name: str, model: eq.LAE, study: CaseStudy, labelled: Interactions
) -> None:
    model.fit(without_user(labelled, "u7"))
    (expected,) = model.recommend([labelled.history("u7")], 4).items
    user_list = study.lists.filter(pl.col("normalization") == name)
    assert user_list["item"].to_list() == expected


def test_groups_and_counts_are_those_of_the_training_data(
    study: CaseStudy, labelled: Interactions
) -> None:
    train = without_user(labelled, "u7")
    places = train.item_index.positions(study.lists["item"].to_list())
    assert study.lists["users"].to_list() == train.item_counts[places].tolist()
    head = head_items(train.item_counts)
    expected = ["head" if flag else "tail" for flag in head[places]]
    assert study.lists["group"].to_list() == expected


def test_the_page_shows_the_lists_as_text(study: CaseStudy, tmp_path: Path) -> None:
    path = tmp_path / "case.html"
    write_case_study(study, path)
    tree = parse(path.read_text(encoding="utf-8"))
    lists = [node for node in tree.all("ol") if node.attributes.get("class") == "list"]
    shown = [" ".join(row.text.split()) for user_items in lists for row in user_items.all("li")]
    for line, title in zip(shown, study.lists["title"], strict=True):
        assert line.startswith(" ".join(title.split()))
    assert len(list(tree.all("script"))) == 1


def test_an_unknown_user_is_refused_with_some_that_exist(labelled: Interactions) -> None:
    with pytest.raises(UnknownIdError, match=r"no user 'zoe'; choose among u0, u1"):
        case_study(labelled, "zoe")


def test_a_list_needs_a_length_and_something_to_show(toy: Interactions) -> None:
    with pytest.raises(SettingError, match="k must be a whole number >= 1, got 0"):
        case_study(toy, "ann", k=0)
    with pytest.raises(DataError, match="user 'cleo' has every item"):
        case_study(toy, "cleo")


def test_a_user_whose_items_no_other_user_has_is_refused() -> None:
    data = Interactions(np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]]), ["a", "b", "c"])
    with pytest.raises(DataError, match="no other user has an item of user 'c'"):
        case_study(data, "c")
