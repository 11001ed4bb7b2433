"""Noise: a share of the pairs is replaced by unobserved ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, SettingError
from reproduce.noise import with_noise


@pytest.mark.parametrize("ratio", [0.0, 0.05, 0.3, 1.0])
def test_noise_replaces_exactly_its_share_by_unobserved_pairs(
    synthetic: Interactions, ratio: float
) -> None:
    noisy = with_noise(synthetic, ratio, seed=3)
    before = set(synthetic.to_frame().select("user", "item").iter_rows())
    after = set(noisy.to_frame().select("user", "item").iter_rows())
    assert len(after) == len(before) == noisy.n_interactions
    assert len(after - before) == round(ratio * len(before))
    assert noisy.matrix.shape == synthetic.matrix.shape
    assert (noisy.matrix.data == 1).all()
    assert f"({ratio:.0%}) replaced by unobserved ones" in noisy.notes[-1]


def test_noise_follows_its_seed_alone(synthetic: Interactions) -> None:
    first = with_noise(synthetic, 0.2, seed=1)
    np.random.default_rng(5).random(3)
    assert with_noise(synthetic, 0.2, seed=1).fingerprint == first.fingerprint
    assert with_noise(synthetic, 0.2, seed=2).fingerprint != first.fingerprint


def test_noise_is_drawn_evenly_over_the_free_cells() -> None:
    data = Interactions(np.eye(4, 5))
    total = sum(with_noise(data, 0.5, seed=seed).matrix.toarray() for seed in range(600))
    free = total[data.matrix.toarray() == 0]
    # 2 of 16 free cells in each of 600 draws: 75 each, standard deviation 8.1; 5 of these.
    assert free.min() > 75 - 41
    assert free.max() < 75 + 41


def test_noise_works_on_a_nearly_full_matrix_and_says_when_it_cannot() -> None:
    data = Interactions(1 - np.eye(4))
    assert with_noise(data, 1 / 3).matrix.diagonal().tolist() == [1, 1, 1, 1]
    with pytest.raises(DataError, match="5 pairs cannot be replaced: fewer are unobserved"):
        with_noise(data, 5 / 12)
    assert with_noise(Interactions(np.zeros((0, 3))), 0.5).n_interactions == 0


@pytest.mark.parametrize(
    ("ratio", "seed", "reason"),
    [(ratio, 0, "ratio must") for ratio in (-0.1, 1.1, float("nan"))]
    + [(0.1, seed, "seed must be a whole number >= 0") for seed in (-1, 1.5, "a", None, True)],
)
def test_noise_refuses_other_ratios_and_seeds(
    toy: Interactions, ratio: float, seed: Any, reason: str
) -> None:
    with pytest.raises(SettingError, match=reason):
        with_noise(toy, ratio, seed)
