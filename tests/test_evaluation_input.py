from __future__ import annotations

import numpy as np
import pytest

from equipoise.errors import DataError, NotFittedError, SettingError, UnknownIdError
from equipoise.evaluation import evaluate
from equipoise.interactions import Interactions
from tests.evaluated import Lists, Part, Popular, make_drinks


@pytest.fixture
def drinks() -> tuple[Popular, Part]:
    return make_drinks()


def test_groups_that_cannot_be_are_refused(drinks):
    with pytest.raises(SettingError, match=r"cannot be called 'head'"):
        evaluate(*drinks, groups={"head": ["tea"]})
    with pytest.raises(DataError, match=r"group 'dry' has 2 flags for 6 items"):
        evaluate(*drinks, groups={"dry": np.array([True, False])})
    with pytest.raises(UnknownIdError, match=r"unknown item 'gin'"):
        evaluate(*drinks, groups={"dry": ["gin"]})


@pytest.mark.parametrize(
    ("k", "reason"),
    [
        (0, "k must be >= 1, got 0"),
        (-3, "k must be >= 1, got -3"),
        ([5, 0], "k must be >= 1, got 0"),
        (2.0, r"k must be a whole number, got 2\.0"),
        ("20", "k must be a whole number, got '20'"),
        (True, "k must be a whole number, got True"),
        ([], "k is empty"),
    ],
)
def test_cut_offs_that_cannot_be_are_refused(drinks, k, reason):
    with pytest.raises(SettingError, match=reason):
        evaluate(*drinks, k=k)


def test_numpy_cut_offs_are_fine(drinks):
    assert evaluate(*drinks, k=np.array([3, 2, 3])).k == (2, 3)


def test_an_unknown_metric_names_the_nearest(drinks):
    with pytest.raises(
        SettingError, match=r"unknown metric 'tail_ndgc'; did you mean 'tail_ndcg'"
    ):
        evaluate(*drinks, metrics=["tail_ndgc"])


def test_items_the_model_does_not_know_are_named_with_the_remedy(drinks):
    part = drinks[1]
    small = Interactions(np.ones((2, 4)), None, ["tea", "milk", "salt", "rice"])
    with pytest.raises(
        UnknownIdError,
        match=r"does not know 2 of 5 items in the targets \('soap', 'wine'\); fit it on the train",
    ):
        evaluate(Popular(small), part)
    target = part.target.with_items(small.item_index, unknown="skip")
    with pytest.raises(UnknownIdError, match=r"1 of 4 items in the histories \('wine'\)"):
        evaluate(Popular(small), (part.history, target))
    history = part.history.with_items(small.item_index, unknown="skip")
    assert evaluate(Popular(small), (history, target), 3).n_items == 4


def test_a_model_fitted_on_other_items_is_refused(drinks, synthetic):
    with pytest.raises(UnknownIdError, match=r"fitted on other items in the targets \('milk', "):
        evaluate(Popular(synthetic), drinks[1])


def test_users_without_targets_are_counted_with_the_remedy(drinks):
    model, part = drinks
    target = part.target.entries(np.arange(6) > 1)
    with pytest.raises(DataError, match=r"1 of 3 users have no target \('ann'\); keep the others"):
        evaluate(model, (part.history, target))
    some = target.user_counts > 0
    assert evaluate(model, (part.history.rows(some), target.rows(some))).n_users == 2


def test_histories_and_targets_of_different_users_are_refused(drinks):
    model, part = drinks
    with pytest.raises(DataError, match=r"same users in the same order"):
        evaluate(model, (part.history, part.target.rows([0, 2, 1])))
    with pytest.raises(DataError, match=r"no users"):
        evaluate(model, (part.history.rows([]), part.target.rows([])))
    with pytest.raises(SettingError, match=r"a pair must be \(history, target\)"):
        evaluate(model, (part.history, "target"))
    with pytest.raises(SettingError, match=r"split\.test, split\.valid or a pair, got str"):
        evaluate(model, "test")


def test_a_model_that_is_not_fitted_is_refused(drinks):
    with pytest.raises(NotFittedError, match=r"object has no item_index_"):
        evaluate(object(), drinks[1])


def test_scores_with_nan_are_refused(drinks):
    model, part = drinks
    model.item_counts_ = np.array([6, 5, np.nan, 3, 2, 1])
    with pytest.raises(DataError, match=r"scores NaN for 2 users \('ann', 'cleo'\)"):
        evaluate(model, part)


class Broken(Popular):
    """Returns the lists it was given, whatever was asked."""

    lists: np.ndarray

    def rank(self, history: Interactions, k: int, *, exclude_seen: bool = True) -> Lists:
        return Lists(self.lists, np.zeros(self.lists.shape))


@pytest.mark.parametrize(
    ("lists", "reason"),
    [
        ([[0, 1], [4, 4], [0, 1]], r"an item twice for 'bob'"),
        ([[0, 1], [4, 6], [0, 1]], r"unknown items; each position must occur once, below 6"),
        ([[0, 1], [4, 5]], r"2 lists for 3 users"),
    ],
)
def test_lists_that_cannot_be_are_refused(drinks, lists, reason):
    train = Interactions(np.ones((1, 6)), None, drinks[1].history.items)
    model = Broken(train)
    model.lists = np.array(lists, np.int32)
    with pytest.raises(DataError, match=reason):
        evaluate(model, drinks[1])


@pytest.mark.parametrize(
    ("name", "value"), [("batch_size", 0), ("bootstrap", -1), ("bootstrap", 1.5), ("threads", 0)]
)
def test_other_settings_out_of_range_are_refused(drinks, name, value):
    with pytest.raises(SettingError, match=f"{name} must be"):
        evaluate(*drinks, **{name: value})
