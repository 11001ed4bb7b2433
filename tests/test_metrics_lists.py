from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

from equipoise import metrics
from equipoise.errors import DataError

NAN = float("nan")
# Six items, five users; row 2 has a short list, row 4 an empty one.
LISTS = np.array([[3, 1, 4, 0], [0, 2, 1, 5], [5, 4, -1, -1], [1, 0, 2, 3], [-1, -1, -1, -1]])


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


def test_diversity_of_copies_is_zero_and_of_strangers_one():
    lists = np.array([[0, 1], [0, 2]])
    units = metrics.unit_rows(sp.csr_array([[1, 1, 0], [2, 2, 0], [0, 0, 5]]))
    assert_allclose(metrics.diversity(lists, units, 2), [0, 1], atol=1e-15)


def test_item_vectors_that_are_not_finite_are_refused():
    with pytest.raises(DataError, match=r"item vectors must be finite"):
        metrics.unit_rows([[1.0, NAN]])
