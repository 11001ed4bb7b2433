from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from equipoise.metrics.resampling import bootstrap_interval, holm, sign_flip_test

NAN = float("nan")


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
