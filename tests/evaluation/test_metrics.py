"""Metrics against fractions computed by hand and against other tools; resampling; names."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, permutations, product
from math import log2

import ir_measures
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_measures import AP, RR, P, R, Success, nDCG
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import average_precision_score, ndcg_score

from equipoise.errors import DataError, SettingError
from equipoise.evaluation import metrics
from equipoise.evaluation.metrics import FORMULAS, at_cutoff, known, look_up
from equipoise.evaluation.resampling import bootstrap_interval, holm, sign_flip_test

NAN = float("nan")
ACCURACY = [
    metrics.recall,
    metrics.recall_full,
    metrics.precision,
    metrics.hit_rate,
    metrics.ndcg,
    metrics.reciprocal_rank,
    metrics.average_precision,
]
# Six items, five users. Row 2 has a short list, row 3 no target, row 4 an empty list.
LISTS = np.array([[3, 1, 4, 0], [0, 2, 1, 5], [5, 4, -1, -1], [1, 0, 2, 3], [-1, -1, -1, -1]])
TARGETS = [[1, 4, 5], [2], [0, 1, 2, 3, 5], [], [2, 3]]
TARGET = sp.csr_array(
    (np.ones(11), [item for row in TARGETS for item in row], [0, 3, 4, 9, 9, 11]), shape=(5, 6)
)
RANK = {r: 1 / log2(r + 1) for r in range(1, 7)}


@pytest.fixture
def hits() -> metrics.Hits:
    return metrics.find_hits(LISTS, TARGET)


@pytest.mark.parametrize(
    ("metric", "k", "expected"),
    [
        (metrics.recall, 2, [Fraction(1, 2), 1, Fraction(1, 2), NAN, 0]),
        (metrics.recall, 4, [Fraction(2, 3), 1, Fraction(1, 4), NAN, 0]),
        (metrics.recall, 100, [Fraction(2, 3), 1, Fraction(1, 5), NAN, 0]),
        (metrics.recall_full, 2, [Fraction(1, 3), 1, Fraction(1, 5), NAN, 0]),
        (metrics.recall_full, 4, [Fraction(2, 3), 1, Fraction(1, 5), NAN, 0]),
        (metrics.precision, 2, [Fraction(1, 2), Fraction(1, 2), Fraction(1, 2), NAN, 0]),
        (metrics.precision, 4, [Fraction(2, 4), Fraction(1, 4), Fraction(1, 4), NAN, 0]),
        (metrics.precision, 100, [Fraction(2, 100), Fraction(1, 100), Fraction(1, 100), NAN, 0]),
        (metrics.hit_rate, 1, [0, 0, 1, NAN, 0]),
        (metrics.hit_rate, 2, [1, 1, 1, NAN, 0]),
        (metrics.reciprocal_rank, 1, [0, 0, 1, NAN, 0]),
        (metrics.reciprocal_rank, 4, [Fraction(1, 2), Fraction(1, 2), 1, NAN, 0]),
        (metrics.average_precision, 2, [Fraction(1, 4), Fraction(1, 2), Fraction(1, 2), NAN, 0]),
        # Row 0: hits at ranks 2 and 3, precisions 1/2 and 2/3, three targets.
        (metrics.average_precision, 4, [Fraction(7, 18), Fraction(1, 2), Fraction(1, 4), NAN, 0]),
        (metrics.ndcg, 1, [0, 0, 1, NAN, 0]),
        (metrics.ndcg, 2, [RANK[2] / (1 + RANK[2]), RANK[2], 1 / (1 + RANK[2]), NAN, 0]),
        (
            metrics.ndcg,
            4,
            [
                (RANK[2] + RANK[3]) / (1 + RANK[2] + RANK[3]),
                RANK[2],
                1 / (1 + RANK[2] + RANK[3] + RANK[4]),
                NAN,
                0,
            ],
        ),
    ],
)
def test_accuracy_equals_the_fractions_computed_by_hand(metric, k, expected, hits):
    assert_allclose(metric(hits, k), np.array(expected, dtype=float), rtol=1e-14)


def test_a_group_restricts_hits_and_targets_and_keeps_ranks_of_the_full_list(hits):
    group = hits.within([False, False, True, False, True, True])  # items 2, 4 and 5
    # Row 0: targets 4 (rank 3) and 5; row 1: 2 (rank 2); row 2: 2 and 5 (rank 1); row 4: 2.
    assert_allclose(metrics.recall(group, 4), [1 / 2, 1, 1 / 2, NAN, 0])
    assert_allclose(metrics.recall(group, 1), [0, 0, 1, NAN, 0])
    ideal = 1 + RANK[2]
    assert_allclose(metrics.ndcg(group, 4), [RANK[3] / ideal, RANK[2], 1 / ideal, NAN, 0])
    assert_allclose(metrics.average_precision(group, 4), [1 / 6, 1 / 2, 1 / 2, NAN, 0])
    assert_allclose(metrics.reciprocal_rank(group, 4), [1 / 3, 1 / 2, 1, NAN, 0])


@pytest.mark.parametrize("metric", ACCURACY)
def test_an_empty_group_and_users_without_target_in_a_group_are_undefined(metric, hits):
    assert np.isnan(metric(hits.within(np.zeros(6, bool)), 3)).all()
    only_zero = metric(hits.within(np.arange(6) == 0), 3)  # only row 2 has target 0
    assert_array_equal(np.isnan(only_zero), [True, True, False, True, True])


@pytest.mark.parametrize("metric", ACCURACY)
def test_the_group_of_all_items_changes_nothing(metric, hits):
    assert_array_equal(metric(hits.within(np.ones(6, bool)), 3), metric(hits, 3))


def test_propensities_are_square_roots_of_popularity_with_a_floor():
    rho = metrics.propensities([100, 25, 1, 0, 64])
    assert_allclose(rho, [1, 1 / 2, 1 / 10, 1 / 100, 8 / 10])
    assert_allclose(metrics.propensities([0, 0]), [0.01, 0.01])


def test_unbiased_metrics_equal_the_fractions_computed_by_hand(hits):
    rho = np.array([1, 1 / 2, 1 / 4, 1 / 5, 1 / 8, 1 / 10])  # weights 1 2 4 5 8 10
    # k = 2. Row 0: hit 1 at rank 2; targets 1 4 5 weigh 2 8 10, mean 20/3, and two of them count.
    # Row 2: hit 5 at rank 1; targets 0 1 2 3 5 weigh 1 2 4 5 10, mean 22/5: the value exceeds 1.
    first, third = 2 / (2 * 20 / 3), 10 / (2 * 22 / 5)
    assert_allclose(metrics.unbiased_recall(hits, 2, rho), [first, 1, third, NAN, 0])
    ideal = 1 + RANK[2]
    expected = [first * RANK[2] / ideal, RANK[2], third / ideal, NAN, 0]
    assert_allclose(metrics.unbiased_ndcg(hits, 2, rho), expected)
    # k = 4. Row 0: hits 1 and 4, all targets count, S = 2 + 8 + 10. Row 2: four of five count.
    third = 10 / (4 * 22 / 5)
    assert_allclose(metrics.unbiased_recall(hits, 4, rho), [10 / 20, 1, third, NAN, 0])
    gain = 2 * RANK[2] + 8 * RANK[3]
    assert metrics.unbiased_ndcg(hits, 4, rho)[0] == pytest.approx(
        gain / 20 / (1 + RANK[2] + RANK[3]), rel=1e-14
    )


def test_unbiased_weight_is_the_mean_over_all_orders_of_the_targets(hits):
    rho = np.array([1, 1 / 2, 1 / 4, 1 / 5, 1 / 8, 1 / 10])
    sums = [sum(1 / rho[item] for item in order[:2]) for order in permutations(TARGETS[2])]
    assert metrics.unbiased_recall(hits, 2, rho)[2] == pytest.approx(10 / np.mean(sums))


def test_unbiased_recall_with_equal_propensities_is_plain_recall(hits):
    flat = np.full(6, 0.37)
    assert_allclose(metrics.unbiased_recall(hits, 3, flat), metrics.recall(hits, 3))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: metrics.find_hits(LISTS[:3], TARGET), "do not fit 5 target rows"),
        (lambda: metrics.find_hits(np.full((5, 1), 6), TARGET), "between 0 and 5"),
        (lambda: metrics.find_hits([[0, 1], [2, 2], *[[0, 1]] * 3], TARGET), "row 1 .* twice"),
        (lambda: metrics.find_hits(LISTS, TARGET).within([True, False]), "6 flags"),
        (lambda: metrics.unit_rows([[1.0, NAN]]), "item vectors must be finite"),
    ],
)
def test_wrong_lists_groups_and_vectors_are_refused(call, reason):
    with pytest.raises(DataError, match=reason):
        call()


def test_targets_in_any_order_give_the_same_hits():
    shuffled = sp.csr_array(
        (np.ones(4), np.array([5, 1, 4, 2]), np.array([0, 3, 4, 4, 4, 4])), shape=(5, 6)
    )
    assert_array_equal(metrics.find_hits(LISTS, shuffled).item, [1, 4, 2])


def test_joined_batches_equal_one_batch(hits):
    parts = [metrics.find_hits(LISTS[at], TARGET[at]) for at in (slice(0, 2), slice(2, 5))]
    joined = metrics.join_hits(parts, TARGET)
    for name in ("user", "rank", "item"):
        assert_array_equal(getattr(joined, name), getattr(hits, name))


def random_run(seed: int, n_users: int = 60, n_items: int = 40, depth: int = 25):
    rng = np.random.default_rng(seed)
    lists = np.array([rng.permutation(n_items)[:depth] for _ in range(n_users)])
    target = sp.random_array((n_users, n_items), density=0.2, rng=rng, format="lil")
    target[np.arange(n_users), rng.integers(0, n_items, n_users)] = 1
    return lists, sp.csr_array(target)


@pytest.mark.parametrize("k", [1, 5, 20])
def test_ir_measures_agrees_on_random_runs(k):
    lists, target = random_run(k)
    hits = metrics.find_hits(lists, target)
    qrels = {
        str(u): {str(i): 1 for i in target.indices[target.indptr[u] : target.indptr[u + 1]]}
        for u in range(len(lists))
    }
    run = {
        str(u): {str(i): float(len(row) - place) for place, i in enumerate(row)}
        for u, row in enumerate(lists)
    }
    # trec_eval divides average precision by all targets, ours by min(k, targets).
    to_full = np.minimum(hits.n_targets, k) / hits.n_targets
    ours = {
        nDCG @ k: metrics.ndcg(hits, k),
        R @ k: metrics.recall_full(hits, k),
        P @ k: metrics.precision(hits, k),
        RR @ k: metrics.reciprocal_rank(hits, k),
        AP @ k: metrics.average_precision(hits, k) * to_full,
        Success @ k: metrics.hit_rate(hits, k),
    }
    seen = 0
    for value in ir_measures.iter_calc(list(ours), qrels, run):
        assert ours[value.measure][int(value.query_id)] == pytest.approx(value.value, rel=1e-12)
        seen += 1
    assert seen == 6 * len(lists)


@pytest.mark.parametrize("k", [1, 5, 20, 40])
def test_scikit_learn_agrees_on_random_runs(k):
    lists, target = random_run(100 + k, depth=40)
    hits = metrics.find_hits(lists, target)
    relevant = (target.toarray() > 0).astype(int)
    scores = np.empty((60, 40))
    np.put_along_axis(scores, lists, np.arange(40, 0, -1.0)[None, :], axis=1)
    expected_ndcg = [ndcg_score(relevant[[u]], scores[[u]], k=k) for u in range(60)]
    assert_allclose(metrics.ndcg(hits, k), expected_ndcg, rtol=1e-12)
    expected_precision = [average_precision_score(relevant[u], scores[u]) for u in range(60)]
    assert_allclose(metrics.average_precision(hits, 40), expected_precision, rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 50))
def test_every_accuracy_metric_lies_between_0_and_1(seed, k):
    hits = metrics.find_hits(*random_run(seed, n_users=6, n_items=12, depth=12))
    for metric in ACCURACY:
        values = metric(hits, k)
        assert ((values >= 0) & (values <= 1 + 1e-15)).all()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 12))
def test_relabelled_items_and_reordered_users_give_the_same_values(seed, k):
    lists, target = random_run(seed, n_users=8, n_items=12, depth=9)
    rng = np.random.default_rng(seed)
    new, order = rng.permutation(12), rng.permutation(8)
    old = np.argsort(new)  # item i is called new[i], so column j holds item old[j]
    before = metrics.find_hits(lists, target)
    after = metrics.find_hits(new[lists][order], target[order][:, old])
    for metric in ACCURACY:
        assert_array_equal(metric(after, k), metric(before, k)[order])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 12))
def test_hits_of_two_complementary_groups_add_up(seed, k):
    hits = metrics.find_hits(*random_run(seed, n_users=8, n_items=12, depth=9))
    head = np.random.default_rng(seed).random(12) < 0.4
    parts = hits.within(head).total(k) + hits.within(~head).total(k)
    assert_array_equal(parts, hits.total(k))


def test_a_perfect_list_scores_one_even_with_more_targets_than_k():
    lists = np.arange(10)[None, :]
    hits = metrics.find_hits(lists, sp.csr_array(np.ones((1, 10))))
    for metric in ACCURACY:
        if metric is not metrics.recall_full:
            assert metric(hits, 4)[0] == pytest.approx(1, rel=1e-15)
    assert metrics.recall_full(hits, 4)[0] == 4 / 10


def test_every_known_name_has_a_definition():
    for named in known(["mine"]).values():
        assert named.definition("recall_full")
    assert known()["recall"].definition("recall_full") == FORMULAS["recall_full"]


def test_names_are_looked_up():
    assert [named.name for named in look_up(["ndcg", "tail_mrr"])] == ["ndcg", "tail_mrr"]
    assert [named.name for named in look_up("mine_map", ["mine"])] == ["mine_map"]
    assert at_cutoff("tail_mrr@7") == (known()["tail_mrr"], 7)


@pytest.mark.parametrize(
    ("function", "name", "reason"),
    [
        (look_up, ["ndgc"], r"unknown metric 'ndgc'; did you mean 'ndcg'\?"),
        (look_up, ["ndcg@20"], "write 'ndcg' and give the cut-off as k"),
        (look_up, [], "metrics is empty"),
        (at_cutoff, "ndgc@20", r"unknown metric 'ndgc'; did you mean 'ndcg'\?"),
        (at_cutoff, "ndcg", "must look like 'ndcg@20', got 'ndcg'"),
        (at_cutoff, "ndcg@0", "must look like 'ndcg@20'"),
        (at_cutoff, None, "must look like 'ndcg@20'"),
    ],
)
def test_unknown_names_are_refused_with_a_hint(function, name, reason):
    with pytest.raises(SettingError, match=reason):
        function(name)


def test_the_head_is_a_fifth_of_the_items_rounded_up_with_ties_by_position():
    assert_array_equal(np.flatnonzero(metrics.head_items([5, 9, 9, 1, 9, 0])), [1, 2])
    assert metrics.head_items(np.ones(35)).sum() == 7  # ceil(0.2 * 35) in floats would be 8
    assert metrics.head_items([3]).all()


def test_exposure_coverage_and_gini_of_lists():
    shown = metrics.exposure(LISTS, 2, 6)
    assert_array_equal(shown, [2, 2, 1, 1, 1, 1])
    assert metrics.coverage(shown) == 1
    assert metrics.coverage(metrics.exposure(LISTS, 1, 6)) == 4 / 6
    # Ascending 1 1 1 1 2 2 with weights -5 -3 -1 1 3 5: (-8 + 16) / (6 * 8).
    assert metrics.exposure_gini(shown) == pytest.approx(8 / 48)
    assert metrics.exposure_gini([0, 0, 7]) == pytest.approx(2 / 3)


def test_coverage_and_gini_of_nothing_shown():
    """Items that are never shown are not shown alike: there is nothing to compare."""
    for shown in ([0, 0, 0], []):
        assert np.isnan(metrics.exposure_gini(shown))
    assert metrics.coverage([0, 0, 0]) == 0
    assert np.isnan(metrics.coverage([]))


def test_list_mean_averages_what_a_list_holds_at_every_cut_off():
    counts = [10, 20, 30, 40, 50, 60]
    got = metrics.list_mean(LISTS, counts, (1, 3, 100))
    expected = [[40, 110 / 3, 30], [10, 20, 30], [60, 55, 55], [20, 20, 25], [NAN] * 3]
    assert_allclose(got, expected)
    assert np.isnan(metrics.list_mean(np.empty((2, 0), np.int32), counts, (1,))).all()


def test_self_information_counts_bits():
    assert_allclose(metrics.self_information([8, 4, 4, 0]), [1, 2, 2, 4])


def test_popularity_lift_compares_list_with_history():
    history = metrics.row_mean(sp.csr_array([[1, 1, 0], [0, 0, 1], [0, 0, 0]]), [2, 4, 0])
    assert_allclose(history, [3, 0, NAN])
    lift = metrics.popularity_lift(np.array([6.0, 5.0, 5.0]), history)
    assert_allclose(lift, [1, NAN, NAN])


def test_diversity_is_the_mean_distance_over_all_pairs(rng):
    vectors = rng.random((6, 4)) * (rng.random((6, 4)) < 0.6)
    vectors[3] = 0
    units = metrics.unit_rows(vectors)
    for k in (1, 2, 3, 10):
        expected = []
        for row in LISTS:
            shown = [item for item in row[:k] if item >= 0]
            length = {i: np.linalg.norm(vectors[i]) or 1 for i in shown}
            gaps = [
                1 - vectors[i] @ vectors[j] / length[i] / length[j]
                for i, j in combinations(shown, 2)
            ]
            expected.append(np.mean(gaps) if gaps else NAN)
        # atol: cosines near 1 cancel in 1 - cosine.
        assert_allclose(metrics.diversity(LISTS, units, k), expected, rtol=1e-12, atol=1e-14)


def test_diversity_of_copies_is_zero_and_of_unrelated_items_one():
    lists = np.array([[0, 1], [0, 2]])
    units = metrics.unit_rows(sp.csr_array([[1, 1, 0], [2, 2, 0], [0, 0, 5]]))
    assert_allclose(metrics.diversity(lists, units, 2), [0, 1], atol=1e-15)


def test_bootstrap_interval_agrees_with_the_normal_one_on_many_users(rng):
    values = rng.normal(3, 2, (4000, 1))
    low, high = bootstrap_interval(values, 4000, 1)
    middle, half = values.mean(), 1.96 * values.std() / np.sqrt(4000)
    # 4,000 resamples leave the ends uncertain by about 1% of the width.
    assert_allclose([low[0], high[0]], [middle - half, middle + half], atol=0.05 * 2 * half)


def test_bootstrap_interval_ignores_undefined_users_and_is_repeatable(rng):
    column = rng.random(50)
    column[::3] = NAN
    table = np.stack([column, np.full(50, NAN), np.full(50, 0.5)], axis=1)
    low, high = bootstrap_interval(table, 300, 5)
    assert_array_equal(np.stack([low, high]), np.stack(bootstrap_interval(table, 300, 5)))
    assert low[0] < np.nanmean(column) < high[0]
    assert np.isnan([low[1], high[1]]).all()
    assert low[2] == high[2] == 0.5
    rare = np.full((50, 1), NAN)
    rare[7] = 2.0  # most resamples miss the only user; the others agree
    assert bootstrap_interval(rare, 300, 5) == (2.0, 2.0)


def test_bootstrap_of_0_resamples_gives_no_interval():
    assert np.isnan(bootstrap_interval(np.ones((3, 2)), 0, 0)).all()


def test_sign_flip_test_agrees_with_all_flips_counted():
    values = np.array([0.5, 0.25, -0.125, 0.75, 0.5, 0.0, 0.375])
    signs = np.array(list(product([1, -1], repeat=7)))
    exact = np.mean(np.abs(signs @ values) >= abs(values.sum()))
    # 40,000 flips: the standard error of p = 0.05 is 0.001.
    assert sign_flip_test(values, 40_000, 3) == pytest.approx(exact, abs=0.005)
    assert sign_flip_test(-values, 40_000, 3) == sign_flip_test(values, 40_000, 3)


def test_sign_flip_test_of_equal_models_is_1_and_of_clear_ones_the_least():
    assert sign_flip_test(np.zeros(9), 100, 0) == 1
    assert sign_flip_test(np.ones(200), 99, 0) == 1 / 100


def test_sign_flip_p_values_are_evenly_spread_without_a_difference():
    rng = np.random.default_rng(2)
    p = [sign_flip_test(rng.normal(size=40), 500, trial) for trial in range(400)]
    # 400 trials: the standard error of a share near 0.5 is 0.025, near 0.05 it is 0.011.
    assert np.mean(np.array(p) <= 0.5) == pytest.approx(0.5, abs=0.1)
    assert np.mean(np.array(p) <= 0.05) == pytest.approx(0.05, abs=0.045)


def test_holm_multiplies_and_never_falls():
    assert_allclose(holm([0.01, 0.02, 0.5]), [0.03, 0.04, 0.5])
    assert_allclose(holm([0.3, 0.29, 0.28]), [0.84, 0.84, 0.84])
    assert_allclose(holm([0.9, 0.8]), [1, 1])
