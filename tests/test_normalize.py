from __future__ import annotations

import numpy as np
import pytest

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, SettingError
from equipoise.normalize import power


def test_power_of_zero_counts_is_one() -> None:
    np.testing.assert_array_equal(power(np.array([0, 4, 9]), -0.5), [1, 1 / 2, 1 / 3])


@pytest.mark.parametrize(
    ("normalizer", "expected"),
    [
        (eq.NoNorm(), (0, 0, 0)),
        (eq.RandomWalk(), (0, 1, 0)),
        (eq.Symmetric(), (0.5, 1, 0)),
        (eq.ColumnNorm(gamma=0.3), (0, 0, 0.3)),
        (eq.UserNorm(beta=0.3), (0, 0.3, 0)),
        (eq.ItemNorm(alpha=0.3), (0.3, 0, 0)),
        (eq.DAN(0.1, 0.2), (0.1, 0.2, 0)),
    ],
)
def test_named_normalizations_are_points_of_one_family(
    normalizer: eq.DAN, expected: tuple[float, ...], toy: Interactions
) -> None:
    alpha, beta, gamma = expected
    assert normalizer.exponents() == expected
    np.testing.assert_array_equal(
        normalizer.user_weights(toy), np.array([2, 2, 4, 2, 1, 3, 1.0]) ** -beta
    )
    source, target = normalizer.item_scales(toy.item_counts)
    d = np.array([5, 5, 3, 2.0])
    np.testing.assert_allclose(source, d**alpha)
    np.testing.assert_allclose(target, d ** -(alpha + gamma))
    np.testing.assert_array_equal(normalizer.penalty_scale(4), np.ones(4))


def test_dial_replaces_alpha(toy: Interactions) -> None:
    for normalizer in (eq.NoNorm(), eq.DAN(0.2, 0.3), eq.Symmetric()):
        source, target = normalizer.item_scales(toy.item_counts, 0.7)
        np.testing.assert_allclose(source, toy.item_counts**0.7)
        np.testing.assert_allclose(target, toy.item_counts**-0.7)


def test_auto_is_resolved_on_data_only(toy: Interactions) -> None:
    with pytest.raises(SettingError, match="resolved on data"):
        eq.DAN().exponents()
    assert eq.DAN(alpha=0.3).resolve(toy).alpha == 0.3
    assert eq.DAN().resolve(toy) == eq.DAN().resolve(toy)


@pytest.mark.parametrize("value", [np.nan, np.inf, "high", None, True, 10**400, -(10**400)])
def test_exponents_must_be_finite_numbers(value: object) -> None:
    for make in (eq.ColumnNorm, eq.UserNorm, eq.ItemNorm, lambda x: eq.DAN(x, 0.1)):
        with pytest.raises(SettingError, match=r"(alpha|beta|gamma) must be (finite|a number)"):
            make(value)


@pytest.mark.parametrize(
    "users",
    [[1.0, -1.0], [0.0], [np.nan], [[1.0]], "abc", ["a"], [10**400], [1.0, None], {}, 3.0],
    ids=lambda users: str(users)[:20],
)
def test_given_weights_must_be_positive_lists(users: object) -> None:
    with pytest.raises(SettingError, match="users must be a list of finite numbers > 0"):
        eq.CustomNorm(users=users)


def test_given_weights_must_fit_the_data(toy: Interactions) -> None:
    with pytest.raises(DataError, match="users has 3 weights for 7"):
        eq.LAE(l2=1.0, normalizer=eq.CustomNorm(users=[1.0, 2.0, 3.0])).fit(toy)


def test_normalizers_are_frozen_and_comparable() -> None:
    assert eq.DAN(0.1, 0.2) == eq.DAN(0.1, 0.2)
    with pytest.raises(AttributeError):
        eq.DAN(0.1, 0.2).alpha = 0.3
