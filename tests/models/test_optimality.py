"""Closed forms are tested by putting the answer back into the conditions it must satisfy."""

from __future__ import annotations

import numpy as np
import pytest

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.models import LinearAutoencoder
from equipoise.normalize import Normalizer

NORMALIZERS = [
    eq.NoNorm(),
    eq.RandomWalk(),
    eq.Symmetric(),
    eq.ColumnNorm(0.4),
    eq.UserNorm(0.7),
    eq.ItemNorm(0.3),
    eq.DAN(0.2, 0.3),
]
PENALTIES = [(5.0, 0.0), (0.0, 0.5), (2.0, 0.3)]
FAMILIES = [eq.LAE, eq.EASE, lambda **s: eq.RLAE(diag_bound=0.15, **s)]
ROUNDING = 1e-11  # float64 rounding times the size of the numbers in a 15 x 15 system


@pytest.fixture(scope="module")
def data() -> Interactions:
    rng = np.random.default_rng(3)
    return Interactions((rng.random((60, 15)) < np.linspace(0.6, 0.1, 15)).astype(float))


def parts(model: LinearAutoencoder, data: Interactions) -> tuple[np.ndarray, ...]:
    """G, L and B from the definitions, written with plain dense matrices."""
    X = data.matrix.toarray().astype(np.float64)
    _, beta, _ = model.normalizer_.exponents()
    G = X.T @ np.diag(X.sum(1) ** -beta) @ X
    L = np.diag(model.l2 + model.dropout / (1 - model.dropout) * X.sum(0))
    scale = model._column_scale(model.diagonal_, model.penalty_)
    B = np.eye(len(G)) - model.inverse_ * scale
    return G, L, B


@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=lambda n: type(n).__name__)
@pytest.mark.parametrize(("l2", "dropout"), PENALTIES)
@pytest.mark.parametrize("family", FAMILIES, ids=["LAE", "EASE", "RLAE"])
def test_solution_satisfies_its_optimality_conditions(
    data: Interactions, family: type, normalizer: Normalizer, l2: float, dropout: float
) -> None:
    model = family(l2=l2, dropout=dropout, normalizer=normalizer).fit(data, dtype="float64")
    G, L, B = parts(model, data)
    gradient = (G + L) @ B - G
    off = ~np.eye(len(G), dtype=bool)
    assert np.abs(gradient[off]).max() < ROUNDING
    if isinstance(model, eq.LAE):
        assert np.abs(gradient).max() < ROUNDING
    if isinstance(model, eq.EASE):
        assert np.abs(np.diag(B)).max() < ROUNDING
    if isinstance(model, eq.RLAE):
        # the multiplier of diag(B) <= xi is -gradient: never negative, zero where slack
        slack = model.diag_bound - np.diag(B)
        multiplier = -np.diag(gradient)
        assert slack.min() > -ROUNDING
        assert multiplier.min() > -ROUNDING
        assert np.abs(slack * multiplier).max() < ROUNDING


@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=lambda n: type(n).__name__)
def test_weights_are_the_scaled_solution_with_a_zero_diagonal(
    data: Interactions, normalizer: Normalizer
) -> None:
    model = eq.EASE(l2=3.0, dropout=0.2, normalizer=normalizer).fit(data, dtype="float64")
    _, _, B = parts(model, data)
    alpha, _, gamma = normalizer.exponents()
    d = data.item_counts.astype(float)
    W = np.diag(d**alpha) @ B @ np.diag(d ** -(alpha + gamma))
    np.fill_diagonal(W, 0)
    np.testing.assert_allclose(model.weights_, W, rtol=1e-7, atol=1e-14)


def test_generalised_objective_has_a_zero_gradient_for_weights_of_ones_own(
    data: Interactions, rng: np.random.Generator
) -> None:
    users, items, penalty = (rng.uniform(0.5, 2, size) for size in (60, 15, 15))
    norm = eq.CustomNorm(users=users, items=items, penalty=penalty)
    model = eq.LAE(l2=4.0, normalizer=norm).fit(data, dtype="float64")
    source, target = model.scales()
    B = source[:, None] * model.inverse_ * target
    B.flat[:: len(B) + 1] += 1  # W = D B D^-1 keeps the identity
    X, U = data.matrix.toarray().astype(np.float64), np.diag(users)
    Y = U @ X @ np.diag(items)
    gradient = Y.T @ (Y @ B - Y) + 4.0 * np.diag(penalty**2) @ B
    assert np.abs(gradient).max() < ROUNDING


def test_generalised_objective_with_dans_weights_is_dan(data: Interactions) -> None:
    d_user, d_item = data.user_counts.astype(float), data.item_counts.astype(float)
    norm = eq.CustomNorm(users=d_user**-0.15, items=d_item**-0.2, penalty=d_item**0.3)
    custom = eq.LAE(l2=0.5, normalizer=norm).fit(data, dtype="float64")
    # lambda * D_I is dropout = lambda / (1 + lambda)
    dan = eq.LAE(l2=0.0, dropout=0.5 / 1.5, normalizer=eq.DAN(0.2, 0.3)).fit(data, dtype="float64")
    np.testing.assert_allclose(custom.weights_, dan.weights_, rtol=1e-7, atol=1e-14)


@pytest.mark.parametrize(("bound", "same"), [(0.0, eq.EASE), (1.0, eq.LAE)])
def test_rlae_at_its_bounds_is_ease_and_lae(data: Interactions, bound: float, same: type) -> None:
    settings = {"l2": 3.0, "dropout": 0.4, "normalizer": eq.DAN(0.3, 0.5)}
    rlae = eq.RLAE(diag_bound=bound, **settings).fit(data, dtype="float64")
    other = same(**settings).fit(data, dtype="float64")
    np.testing.assert_allclose(rlae.weights_, other.weights_, rtol=1e-7, atol=1e-14)


@pytest.mark.parametrize(
    ("dan", "same"), [(eq.DAN(0, 1), eq.RandomWalk()), (eq.DAN(0.5, 1), eq.Symmetric())]
)
def test_dan_holds_random_walk_and_symmetric(
    data: Interactions, dan: Normalizer, same: Normalizer
) -> None:
    settings = {"l2": 0.0, "dropout": 0.5}
    one = eq.LAE(normalizer=dan, **settings).fit(data, dtype="float64")
    two = eq.LAE(normalizer=same, **settings).fit(data, dtype="float64")
    np.testing.assert_array_equal(one.weights_, two.weights_)


DENOISING = [(eq.LAE, eq.DLAE), (eq.EASE, eq.EDLAE), (eq.RLAE, eq.RDLAE)]


@pytest.mark.parametrize(("plain", "denoising"), DENOISING)
def test_denoising_forms_are_their_families_with_a_dropout(
    data: Interactions, plain: type[eq.LAE], denoising: type[eq.LAE]
) -> None:
    model = denoising(l2=2.0)
    assert isinstance(model, plain)
    assert model.settings() == {
        **plain(l2=2.0, dropout="auto").settings(),
        "model": denoising.__name__,
    }
    for dropout in (0.5, 0.2):
        one = plain(l2=2.0, dropout=dropout).fit(data)
        two = denoising(l2=2.0, dropout=dropout).fit(data)
        np.testing.assert_array_equal(one.weights_, two.weights_)
    np.testing.assert_array_equal(plain(l2=2.0, dropout=0.2).reuse(two).weights_, two.weights_)


def test_published_denoising_form_of_random_walk_and_symmetric(data: Interactions) -> None:
    """Sym: B = (Pt + lambda I)^-1 Pt with Pt = D_I^-1/2 X^T D_U^-1 X D_I^-1/2; RW likewise."""
    X = data.matrix.toarray().astype(np.float64)
    d, strength = X.sum(0), 0.8
    G = X.T @ np.diag(1 / X.sum(1)) @ X
    forms = {
        eq.Symmetric(): np.diag(d**-0.5) @ G @ np.diag(d**-0.5),
        eq.RandomWalk(): np.diag(1 / d) @ G,
    }
    for normalizer, Pt in forms.items():
        B = np.linalg.solve(Pt + strength * np.eye(15), Pt)
        np.fill_diagonal(B, 0)
        model = eq.LAE(l2=0.0, dropout=strength / (1 + strength), normalizer=normalizer)
        np.testing.assert_allclose(
            model.fit(data, dtype="float64").weights_, B, rtol=1e-7, atol=1e-13
        )
