"""The criterion of the automatic settings: scores without hidden items and without the user."""

from __future__ import annotations

import numpy as np
import pytest
from tests.models.described import described

import equipoise as eq
from equipoise.models.feature_choice import HiddenItems
from equipoise.models.new_items import ALPHA

FAMILIES = [eq.EASE(l2=5.0), eq.LAE(l2=5.0), eq.RLAE(l2=5.0, diag_bound=0.3)]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda model: type(model).__name__)
def test_scores_are_those_of_a_fit_without_hidden_items_and_user(family: eq.EASE) -> None:
    data = described()
    features = eq.Features(strength=2, map="ridge", rarity=1, mu=1, share=0.3, scale=1)
    normalizer = eq.UserNorm(beta=0.5)
    model = family.clone()._vary({"features": features, "normalizer": normalizer})
    model.fit(data, dtype="float64")
    fitted = model.item_features_
    assert fitted is not None
    hidden = np.array([3, 11, 12, 30])
    trial = HiddenItems.of(model, fitted, hidden, np.random.default_rng(0))
    assert trial is not None
    known = np.setdiff1d(np.arange(data.n_items), hidden)
    X = data.matrix.toarray().astype(np.float64)
    weights = model.normalizer_.user_weights(data)
    F = fitted.rows.toarray().astype(np.float64)[known]
    counts = data.item_counts
    for row in range(3):
        name = trial.shown.users[row]
        user = data.user_index.position(name)
        others = np.arange(data.n_users) != user
        Xk = X[others][:, known]
        A = Xk.T @ (weights[others, None] * Xk) + 2 * F @ F.T + np.diag(model.penalty_[known])
        P = np.linalg.inv(A)
        source, target = model.normalizer_.item_scales(counts, ALPHA)
        W = -P * model._column_scale(np.diag(P).copy(), model.penalty_[known])
        np.fill_diagonal(W, 0)
        W = source[known, None] * W * target[known]
        history = trial.history[[row]].toarray()[0][known]
        np.testing.assert_allclose(trial.scores[row, known], history @ W, rtol=1e-4, atol=1e-6)
        assert not trial.scores[row, hidden].any()


def test_settings_that_are_given_are_not_searched() -> None:
    model = eq.EASE(l2=5.0, features=eq.Features(strength=0, neighbours=7, share=0.2))
    model.fit(described())
    chosen = model.features_
    assert chosen is not None
    assert (chosen.neighbours, chosen.share, chosen.strength) == (7, 0.2, 0)
    assert isinstance(chosen.mu, float)
