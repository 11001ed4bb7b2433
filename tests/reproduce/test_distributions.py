"""Mean weights and eigenvalues agree with the dense matrices they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import gaussian_kde

import equipoise as eq
from equipoise.errors import TooBigError
from equipoise.interactions import Interactions
from equipoise.reproduce import distributions
from equipoise.reproduce.distributions import (
    densities,
    kernel_density,
    mean_weights,
    weight_eigenvalues,
)

SETTINGS: dict[str, Any] = {
    "model": "LAE",
    "l2": 3.0,
    "dropout": 0.3,
    "normalizer": {"name": "DAN", "alpha": 0.2, "beta": 0.4},
}


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_mean_weights_are_those_of_the_dense_matrix(synthetic: Interactions, alpha: float) -> None:
    model = eq.EASE(l2=2.0, dropout=0.4, normalizer=eq.ItemNorm(alpha))
    model.fit(synthetic, dtype="float64")
    np.testing.assert_allclose(mean_weights(model), model.weights_.mean(axis=0), rtol=1e-7)


def dense_eigenvalues(data: Interactions) -> Any:
    X = data.matrix.toarray().astype(np.float64)
    weights = data.user_counts.astype(float) ** -0.4
    G = X.T @ (weights[:, None] * X)
    L = np.diag(3.0 + 0.3 / 0.7 * data.item_counts)
    return np.sort(np.linalg.eigvals(np.linalg.solve(G + L, G)).real)[::-1]


@pytest.mark.parametrize("users", [300, 40])
def test_eigenvalues_are_those_of_b_from_either_side(synthetic: Interactions, users: int) -> None:
    data = synthetic.rows(np.arange(users)).columns(synthetic.item_counts > 0)
    data = data.columns(data.item_counts > 0)
    found = weight_eigenvalues(data, SETTINGS, "cpu")
    assert len(found) == data.n_items
    # in float32: absolute, because the smallest are 0
    np.testing.assert_allclose(found, dense_eigenvalues(data), atol=2e-6)


def test_larger_beta_means_smaller_eigenvalues(synthetic: Interactions) -> None:
    steps = []
    for beta in (0.0, 0.5, 1.0):
        settings = {**SETTINGS, "normalizer": {"name": "DAN", "alpha": 0.0, "beta": beta}}
        steps.append(weight_eigenvalues(synthetic, settings, "cpu"))
    assert (steps[0] > steps[1]).all()
    assert (steps[1] > steps[2]).all()


def test_too_many_rows_for_a_processor_name_the_remedy(
    synthetic: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributions, "CPU_LIMIT", 10)
    with pytest.raises(TooBigError, match="--device cuda"):
        weight_eigenvalues(synthetic, SETTINGS, "cpu")


def test_the_kernel_density_is_that_of_scipy(rng: np.random.Generator) -> None:
    values, grid = rng.normal(3, 2, 50), np.linspace(-2, 8, 30)
    np.testing.assert_allclose(kernel_density(values, grid), gaussian_kde(values)(grid), rtol=1e-7)


def test_densities_have_an_area_of_about_one(rng: np.random.Generator) -> None:
    means = np.concatenate([rng.normal(2, 0.3, 300), rng.normal(0, 0.5, 900)])
    lines = densities(means, np.arange(1200) < 300)
    for group, centre in (("head", 2.0), ("tail", 0.0)):
        x, y = (np.array([line[key] for line in lines if line["group"] == group]) for key in "xy")
        # a little lies outside the drawn range
        assert np.trapezoid(y, x) == pytest.approx(1.0, abs=0.03)
        assert x[np.argmax(y)] == pytest.approx(centre, abs=0.2)
