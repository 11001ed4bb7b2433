"""The paper's two theorems and its lemma, checked by numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import equipoise as eq
from equipoise.data.interactions import Interactions


@pytest.fixture(scope="module")
def data() -> Interactions:
    """Everybody has more than one item, as the second theorem needs."""
    rng = np.random.default_rng(11)
    X = rng.random((80, 12)) < np.linspace(0.7, 0.15, 12)
    return Interactions(X[X.sum(1) > 1].astype(float))


def full_weights(model: eq.LAE) -> np.ndarray:
    """D^alpha B D^-alpha with its diagonal."""
    source, target = model.scales()
    W = source[:, None] * model.inverse_ * target
    W.flat[:: len(W) + 1] += 1
    return W


def eigenvalues(matrix: np.ndarray) -> np.ndarray:
    return np.sort(np.linalg.eigvals(matrix).real)


@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.2, 0.5, 1.0])
def test_item_normalization_keeps_the_eigenvalues(data: Interactions, alpha: float) -> None:
    settings = {"l2": 0.0, "dropout": 0.5}
    plain = eq.DLAE(**settings).fit(data, dtype="float64")
    scaled = eq.LAE(normalizer=eq.ItemNorm(alpha), **settings).fit(data, dtype="float64")
    np.testing.assert_allclose(
        eigenvalues(full_weights(scaled)), eigenvalues(full_weights(plain)), rtol=1e-7, atol=1e-13
    )


def test_item_normalized_lae_is_a_scaled_dlae(data: Interactions) -> None:
    """Theorem 1: B_LAE(D^-(1-a) X^T X D^-a) = D^a B_DLAE D^-a."""
    X, alpha, strength = data.matrix.toarray().astype(np.float64), 0.3, 0.7
    d = X.sum(0)
    Pt = np.diag(d ** -(1 - alpha)) @ X.T @ X @ np.diag(d**-alpha)
    B = np.linalg.solve(Pt + strength * np.eye(12), Pt)
    model = eq.LAE(l2=0.0, dropout=strength / (1 + strength), normalizer=eq.ItemNorm(alpha))
    np.testing.assert_allclose(
        full_weights(model.fit(data, dtype="float64")), B, rtol=1e-7, atol=1e-13
    )


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_eigenvalues_of_the_weights_follow_those_of_the_gram_matrix(
    data: Interactions, beta: float
) -> None:
    """Lemma 1: gamma = mu / (mu + lambda)."""
    X = data.matrix.toarray().astype(np.float64)
    mu = np.linalg.eigvalsh(X.T @ np.diag(X.sum(1) ** -beta) @ X)
    model = eq.LAE(l2=3.0, normalizer=eq.UserNorm(beta)).fit(data, dtype="float64")
    np.testing.assert_allclose(
        eigenvalues(full_weights(model)), np.sort(mu / (mu + 3.0)), rtol=1e-7
    )


def test_every_eigenvalue_falls_as_beta_grows(data: Interactions) -> None:
    """Theorem 2, for users with more than one item."""
    assert data.user_counts.min() > 1
    spectra = [
        eigenvalues(
            full_weights(eq.LAE(l2=2.0, normalizer=eq.UserNorm(beta)).fit(data, dtype="float64"))
        )
        for beta in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    for smaller_beta, larger_beta in itertools.pairwise(spectra):
        assert (larger_beta < smaller_beta).all()
