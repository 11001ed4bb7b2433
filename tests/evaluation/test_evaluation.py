"""`evaluate` against numbers computed by hand, what it refuses, and `ListMetrics` beside it."""

from __future__ import annotations

from math import log2

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from polars.testing import assert_frame_equal
from tests.evaluated import Lists, Part, Popular, halves, make_drinks

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import entry_rows
from equipoise.errors import DataError, NotFittedError, SettingError, UnknownIdError
from equipoise.evaluation import metrics
from equipoise.evaluation.evaluator import ListMetrics, evaluate


@pytest.fixture
def drinks() -> tuple[Popular, Part]:
    return make_drinks()


# The lists of `drinks` at k = 3: milk salt rice | tea rice soap | salt rice soap.
def test_numbers_equal_those_computed_by_hand(drinks):
    result = evaluate(*drinks, k=[2, 3])
    d = {r: 1 / log2(r + 1) for r in (1, 2, 3)}
    assert result["recall@3"] == pytest.approx((1 + 1 + 2 / 3) / 3)
    assert result["recall@2"] == pytest.approx((1 / 2 + 1 + 1 / 2) / 3)
    ndcg = ((1 + d[3]) / (1 + d[2]) + d[2] + (1 + d[3]) / (1 + d[2] + d[3])) / 3
    assert result["ndcg@3"] == pytest.approx(ndcg)
    assert result["mrr@3"] == pytest.approx((1 + 1 / 2 + 1) / 3)
    assert result["map@3"] == pytest.approx(((1 + 2 / 3) / 2 + 1 / 2 + (1 + 2 / 3) / 3) / 3)
    assert result["precision@3"] == pytest.approx((2 / 3 + 1 / 3 + 2 / 3) / 3)
    assert result["hit@3"] == 1
    assert result["head_recall@3"] == 1  # only ann has a head target, milk, at rank 1
    assert result["tail_recall@3"] == pytest.approx((1 + 1 + 2 / 3) / 3)
    assert result["active_recall@3"] == 1  # bob, with the longest history
    assert result["inactive_recall@3"] == pytest.approx((1 + 2 / 3) / 2)
    assert result["coverage@3"] == 5 / 6
    assert result["popularity@3"] == pytest.approx((4 + 11 / 3 + 3) / 3)
    assert result["lift@3"] == pytest.approx((4 / 6 + (11 / 3) / (10 / 3) + 3 / 5.5) / 3 - 1)
    surprise = np.log2(21 / np.array([6, 5, 4, 3, 2, 1]))
    shown = [[1, 2, 3], [0, 3, 4], [2, 3, 4]]
    assert result["novelty@3"] == pytest.approx(surprise[shown].mean())
    sizes = result.to_frame().filter(slice="head", metric="ndcg", k=3)["n_users"]
    assert sizes.to_list() == [1]


def test_unbiased_numbers_equal_those_computed_by_hand(drinks):
    weight = np.sqrt(6 / np.array([6, 5, 4, 3, 2, 1]))
    result = evaluate(*drinks, k=2)
    ann = weight[1] / (weight[1] + weight[3])
    cleo = weight[2] / (2 * weight[[2, 4, 5]].mean())  # two of three targets count
    assert result["unbiased_recall@2"] == pytest.approx((ann + 1 + cleo) / 3)
    ideal, second = 1 + 1 / log2(3), 1 / log2(3)
    assert result["unbiased_ndcg@2"] == pytest.approx((ann / ideal + second + cleo / ideal) / 3)


def test_the_weak_protocol_reports_hits_by_all_targets(drinks):
    model, part = drinks
    names = ["recall", "recall_capped", "recall_full", "tail_recall"]
    strong = evaluate(model, part, k=2, metrics=names)
    weak = evaluate(model, Part(part.history, part.target, "weak"), k=2, metrics=names)
    assert strong["recall@2"] == strong["recall_capped@2"] == pytest.approx(2 / 3)
    assert weak["recall@2"] == weak["recall_full@2"] == pytest.approx((1 / 2 + 1 + 1 / 3) / 3)
    assert weak["recall_capped@2"] == strong["recall@2"]
    assert strong.definitions["recall"] != weak.definitions["recall"]
    assert weak.definitions["recall"] in weak.to_markdown()
    # Tail targets: rice | rice | salt, soap and wine; at k = 2: none, rice, salt.
    assert strong["tail_recall@2"] == pytest.approx((0 + 1 + 1 / 2) / 3)
    assert weak["tail_recall@2"] == pytest.approx((0 + 1 + 1 / 3) / 3)


def test_sessions_keep_seen_items_in_the_lists_and_others_do_not(drinks):
    model, part = drinks
    for protocol, exclude_seen in [("session", False), ("strong", True), ("time", True)]:
        result = evaluate(model, Part(part.history, part.target, protocol), k=2)
        assert result.exclude_seen is exclude_seen
        assert model.asked[-1] == (3, 2, exclude_seen)
    assert evaluate(model, part, k=2, exclude_seen=False).exclude_seen is False


@pytest.mark.parametrize("batch_size", [1, 7, 33, 10_000])
def test_any_batch_size_gives_identical_numbers(synthetic, batch_size):
    train, part = halves(synthetic)
    names = [*metrics_of(train, part), "diversity"]
    once = evaluate(Popular(train, 9), part, [1, 5, 20], metrics=names, item_vectors=train)
    options = {"metrics": names, "item_vectors": train, "batch_size": batch_size, "threads": 1}
    many = evaluate(Popular(train, 9), part, [1, 5, 20], **options)
    assert_frame_equal(once.to_frame(), many.to_frame(), check_exact=True)
    assert_frame_equal(once.per_user, many.per_user, check_exact=True)


def metrics_of(train: Interactions, part: Part) -> list[str]:
    return list(evaluate(Popular(train), part, 1, bootstrap=0).definitions)


def test_the_order_of_users_does_not_matter(synthetic):
    train, part = halves(synthetic)
    order = np.random.default_rng(3).permutation(part.history.n_users)
    turned = Part(part.history.rows(order), part.target.rows(order))
    one = evaluate(Popular(train, 9), part, [5, 20])
    two = evaluate(Popular(train, 9), turned, [5, 20])
    assert_allclose(list(two.values.values()), list(one.values.values()), rtol=1e-13)
    assert_frame_equal(two.per_user.sort("user"), one.per_user.sort("user"), check_exact=True)


def test_the_order_of_the_parts_items_does_not_matter(synthetic):
    train, part = halves(synthetic)
    order = np.random.default_rng(4).permutation(train.n_items)
    turned = Part(part.history.columns(order), part.target.columns(order))
    mask = np.arange(train.n_items) < 9
    one = evaluate(Popular(train, 9), part, 20, groups={"few": mask})
    two = evaluate(Popular(train, 9), turned, 20, groups={"few": mask[order]})
    assert_frame_equal(one.to_frame(), two.to_frame(), check_exact=True)


def test_other_names_for_items_give_the_same_numbers(synthetic):
    train, part = halves(synthetic)
    names = [f"item {n}" for n in range(train.n_items)]

    def renamed(data: Interactions) -> Interactions:
        return Interactions(data.matrix, data.users, names)

    one = evaluate(Popular(train, 9), part, 20)
    two = evaluate(
        Popular(renamed(train), 9), Part(renamed(part.history), renamed(part.target)), 20
    )
    assert_frame_equal(one.to_frame(), two.to_frame(), check_exact=True)


def test_a_cut_off_beyond_the_catalogue_works(drinks):
    result = evaluate(*drinks, k=[3, 1000])
    assert result["recall@1000"] == 1
    assert result["precision@1000"] == pytest.approx(2 / 1000)
    assert drinks[0].asked == [(3, 6, True)]


def test_a_string_as_a_group_is_one_item():
    data = Interactions(np.tri(3)[:, ::-1], None, ["a", "b", "ab"])
    part = Part(data.rows([1]), data.rows([1]))
    result = evaluate(Popular(data), part, 1, groups={"some": "ab"}, exclude_seen=False)
    mask = np.array([False, False, True])
    other = evaluate(Popular(data), part, 1, groups={"some": mask}, exclude_seen=False)
    assert result["some_recall@1"] == other["some_recall@1"]
    listed = evaluate(Popular(data), part, 1, groups={"some": iter(["ab"])}, exclude_seen=False)
    assert listed["some_recall@1"] == result["some_recall@1"]
    with pytest.raises(UnknownIdError, match="'ba'"):
        evaluate(Popular(data), part, 1, groups={"some": "ba"})


def test_an_empty_history_is_evaluated_on_the_recommended_list(synthetic):
    train, part = halves(synthetic)
    order = np.random.default_rng(2).permutation(train.n_items)
    train = train.columns(order)  # popular items do not come first
    rows = entry_rows(part.history.matrix)
    history = part.history.entries(rows % 3 > 0)
    model = eq.EASE(l2=3.0).fit(train)
    result = evaluate(model, (history, part.target), 5, metrics=["hit", "recall_full"])
    recommended = model.recommend(history, 5)
    assert recommended.source.count("popular") == -(-part.history.n_users // 3)
    for place, user in enumerate(recommended.users):
        hits = set(recommended.items[place]) & set(part.target.history(user))
        want = len(hits) / len(part.target.history(user))
        assert result.per_user["recall_full@5"][place] == pytest.approx(want)


def test_groups_are_masks_or_ids(drinks):
    ids = evaluate(*drinks, k=3, groups={"dry": ["rice", "salt"]})
    mask = evaluate(*drinks, k=3, groups={"dry": np.array([0, 0, 1, 1, 0, 0], bool)})
    assert ids["dry_recall@3"] == mask["dry_recall@3"] == 1
    assert "dry_ndcg@3" in ids
    none = evaluate(*drinks, k=3, groups={"none": []}, metrics=["none_mrr"])
    assert np.isnan(none["none_mrr@3"])
    assert "| mrr | none | - |" in none.to_markdown()


def test_diversity_takes_training_columns_or_vectors(drinks):
    model, part = drinks
    train = Interactions(np.triu(np.ones((6, 6)))[:, ::-1], None, part.history.items)
    result = evaluate(
        model, part, 2, metrics=["diversity", "active_diversity"], item_vectors=train
    )
    vectors = train.matrix.toarray().T
    again = evaluate(model, part, 2, metrics="diversity", item_vectors=vectors)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    pairs = [(1, 2), (0, 3), (2, 3)]
    expected = 1 - np.mean([units[i] @ units[j] for i, j in pairs])
    assert result["diversity@2"] == again["diversity@2"] == pytest.approx(expected)
    assert result["active_diversity@2"] == pytest.approx(1 - units[0] @ units[3])
    with pytest.raises(DataError, match=r"item_vectors has 2 rows for 6 items"):
        evaluate(model, part, metrics="diversity", item_vectors=vectors[:2])


def test_intervals_enclose_the_mean_and_follow_the_seed(synthetic):
    train, part = halves(synthetic)
    one, same, other = (
        evaluate(Popular(train), part, 5, seed=seed, bootstrap=200).to_frame()
        for seed in (0, 0, 1)
    )
    assert_frame_equal(one, same)
    assert not one.equals(other)
    bounded = one.filter(pl.col("low").is_not_null())
    assert bounded.height == one.height - 2  # all but coverage and gini
    assert (bounded["low"] < bounded["value"]).all()
    assert (bounded["value"] < bounded["high"]).all()
    without = evaluate(Popular(train), part, 5, bootstrap=0).to_frame()
    assert without["low"].is_null().all()


def test_a_pair_is_accepted_as_a_part(drinks):
    model, part = drinks
    result = evaluate(model, (part.history, part.target), 3)
    assert result.protocol == "given"
    assert result["ndcg@3"] == evaluate(model, part, 3)["ndcg@3"]
    turned = evaluate(model, (part.target, part.history), 3)
    assert turned.fingerprint != result.fingerprint


def test_progress_is_called_after_every_batch(drinks):
    calls: list[tuple[int, int]] = []
    evaluate(*drinks, k=2, batch_size=2, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(2, 3), (3, 3)]


def test_the_mean_of_the_values_per_user_is_the_metric(synthetic):
    train, part = halves(synthetic)
    result = evaluate(Popular(train, 9), part, [5, 20])
    assert result.per_user["user"].to_list() == part.history.users.tolist()
    for name in result.per_user.columns[1:]:
        assert result[name] == pytest.approx(result.per_user[name].mean(), rel=1e-13)
    lists = Popular(train, 9).rank(part.history, 5).items
    hits = metrics.find_hits(lists, part.target.matrix)
    assert_array_equal(result.per_user["ndcg@5"].to_numpy(), metrics.ndcg(hits, 5))


@pytest.mark.parametrize("protocol", ["strong", "weak", "session"])
def test_metrics_of_given_lists_equal_evaluate(synthetic, protocol):
    train, part = halves(synthetic, protocol)
    model = Popular(train, 9)
    result = evaluate(model, part, [5, 20])
    lists = model.rank(part.history, 20, exclude_seen=protocol != "session").items
    assert ListMetrics.of(part, train.item_counts, result).measure(lists) == result.values
    names = ["ndcg@20", "gini@5", "tail_recall@20", "lift@5"]
    values = ListMetrics.of(part, train.item_counts, names).measure(lists)
    assert values == {name: result[name] for name in names}


@pytest.mark.parametrize(
    ("settings", "error", "reason"),
    [
        ({"k": 0}, SettingError, "k must"),
        ({"k": -3}, SettingError, "k must"),
        ({"k": [5, 0]}, SettingError, "k must"),
        ({"k": 2.0}, SettingError, "k must"),
        ({"k": "20"}, SettingError, "k must"),
        ({"k": True}, SettingError, "k must"),
        ({"k": []}, SettingError, "k is empty"),
        ({"metrics": ["tail_ndgc"]}, SettingError, "'tail_ndgc'; did you mean 'tail_ndcg'"),
        ({"metrics": "diversity"}, SettingError, "diversity needs item_vectors"),
        ({"groups": {"head": ["tea"]}}, SettingError, "cannot be called 'head'"),
        ({"groups": {"dry": np.array([True, False])}}, DataError, "has 2 flags for 6 items"),
        ({"groups": {"dry": ["gin"]}}, UnknownIdError, "unknown item 'gin'"),
        ({"batch_size": 0}, SettingError, "batch_size must be"),
        ({"bootstrap": -1}, SettingError, "bootstrap must be"),
        ({"bootstrap": 1.5}, SettingError, "bootstrap must be"),
        ({"seed": None}, SettingError, "seed must"),
        ({"threads": 0}, SettingError, "threads must be"),
    ],
    ids=str,
)
def test_invalid_settings_are_refused(drinks, settings, error, reason, monkeypatch):
    monkeypatch.setattr(type(drinks[0]), "rank", lambda *_, **__: pytest.fail("it ranked"))
    with pytest.raises(error, match=reason):
        evaluate(*drinks, **settings)


def test_numpy_integers_are_valid_cut_offs(drinks):
    assert evaluate(*drinks, k=np.array([3, 2, 3])).k == (2, 3)


def test_items_the_model_does_not_know_are_named_with_the_remedy(drinks):
    part = drinks[1]
    small = Interactions(np.ones((2, 4)), None, ["tea", "milk", "salt", "rice"])
    with pytest.raises(
        UnknownIdError,
        match=r"does not know 2 of 5 items in the targets \('soap', 'wine'\); fit it on the train",
    ):
        evaluate(Popular(small), part)
    target = part.target.with_items(small.item_index, unknown_items="skip")
    with pytest.raises(UnknownIdError, match=r"1 of 4 items in the histories \('wine'\)"):
        evaluate(Popular(small), (part.history, target))
    history = part.history.with_items(small.item_index, unknown_items="skip")
    assert evaluate(Popular(small), (history, target), 3).n_items == 4


def test_a_model_fitted_on_other_items_is_refused(drinks, synthetic):
    with pytest.raises(UnknownIdError, match=r"fitted on other items in the targets \('milk', "):
        evaluate(Popular(synthetic), drinks[1])


def test_users_without_targets_are_counted_with_the_remedy(drinks):
    model, part = drinks
    target = part.target.entries(np.arange(6) > 1)
    with pytest.raises(DataError, match=r"1 of 3 users have no target \('ann'\); keep the others"):
        evaluate(model, (part.history, target))
    has_targets = target.user_counts > 0
    assert evaluate(model, (part.history.rows(has_targets), target.rows(has_targets))).n_users == 2


@pytest.mark.parametrize(
    ("part", "error", "reason"),
    [
        (lambda p: (p.history, p.target.rows([0, 2, 1])), DataError, "same users in the same"),
        (lambda p: (p.history.rows([]), p.target.rows([])), DataError, "no users"),
        (lambda p: (p.history, "target"), SettingError, r"a pair must be \(history, target\)"),
        (lambda p: "test", SettingError, r"split\.test, split\.valid or a pair, got str"),
    ],
)
def test_parts_that_cannot_be_evaluated_are_refused(drinks, part, error, reason):
    with pytest.raises(error, match=reason):
        evaluate(drinks[0], part(drinks[1]))


def test_a_model_that_is_not_fitted_is_refused(drinks):
    with pytest.raises(NotFittedError, match=r"call fit first"):
        evaluate(eq.Popularity(), drinks[1])
    with pytest.raises(SettingError, match="a fitted model, or a frame or file of lists"):
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
def test_invalid_lists_are_refused(drinks, lists, reason):
    train = Interactions(np.ones((1, 6)), None, drinks[1].history.items)
    model = Broken(train)
    model.lists = np.array(lists, np.int32)
    with pytest.raises(DataError, match=reason):
        evaluate(model, drinks[1])


def test_lists_without_items_have_no_gini(synthetic: Interactions) -> None:
    split = eq.split.strong(synthetic, valid=0, test=0.2)
    model = eq.Popularity().fit(split.train)
    result = eq.evaluate(model, split.test, k=5, rules=eq.Rules(include=[]), bootstrap=20)
    assert result["coverage@5"] == result["recall@5"] == 0
    assert np.isnan(result["gini@5"])
    assert result.to_frame().filter(metric="gini")["value"].to_list() == [None]
    assert "gini@5" in repr(result)
