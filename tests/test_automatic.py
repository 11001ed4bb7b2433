from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import equipoise as eq
from equipoise.automatic import (
    alpha_from_gini,
    beta_from_homophily,
    penalty_from_counts,
    penalty_numbers,
)
from equipoise.data.interactions import Interactions
from equipoise.errors import SettingError
from tests.tolerance import assert_close


def equal_weights(data: Interactions) -> Any:
    return np.ones(data.n_users)


def test_rules_are_monotone_and_stay_in_range() -> None:
    alphas = [alpha_from_gini(gini) for gini in np.linspace(0, 1, 21)]
    betas = [beta_from_homophily(homophily) for homophily in np.linspace(0, 1, 21)]
    assert alphas == sorted(alphas, reverse=True)
    assert betas == sorted(betas)
    assert alphas[0] > alphas[-1] >= 0
    assert 0 <= betas[0] < betas[-1] <= 1


def test_penalty_follows_the_size_of_the_data(synthetic: Interactions) -> None:
    # sixteen times the users: the same l2, half the odds of the dropout
    more = Interactions(sp.vstack([synthetic.matrix] * 16, format="csr"))
    one, many = (eq.EDLAE().fit(data) for data in (synthetic, more))
    assert many.l2_ == pytest.approx(one.l2_)
    odds = [model.dropout_ / (1 - model.dropout_) for model in (one, many)]
    assert odds[1] == pytest.approx(odds[0] / 2)


def test_penalty_grows_with_the_length_of_histories(synthetic: Interactions) -> None:
    # everything four times as wide: histories are four times as long, counts of items are the same
    wider = Interactions(sp.hstack([synthetic.matrix] * 4, format="csr"))
    one, four = (
        penalty_numbers("auto", "auto", data, equal_weights) for data in (synthetic, wider)
    )
    assert four[0] == pytest.approx(2 * one[0])
    assert four[1] == pytest.approx(one[1])


def test_penalty_follows_the_weights_of_the_users(synthetic: Interactions) -> None:
    # weights of 1/4 make a quarter of the Gram matrix and of the penalty: the same model
    plain = eq.EDLAE().fit(synthetic, dtype="float64")
    half = eq.CustomNorm(users=np.full(synthetic.n_users, 0.5))
    scaled = eq.EDLAE(normalizer=half).fit(synthetic, dtype="float64")
    assert scaled.l2_ == pytest.approx(plain.l2_ / 4)
    assert_close(scaled.weights_, plain.weights_, "float64", scale=1.0)


def test_items_nobody_used_do_not_change_the_penalty(toy: Interactions) -> None:
    wider = sp.hstack([toy.matrix, sp.csr_array((toy.n_users, 3))], format="csr")
    weights = np.ones(toy.n_users)
    narrow, wide = (
        penalty_numbers("auto", "auto", data, lambda _: weights)
        for data in (toy, Interactions(wider))
    )
    assert narrow == wide


def test_users_without_items_do_not_change_the_penalty(toy: Interactions) -> None:
    gap = sp.csr_array((1, toy.n_items))
    longer = sp.vstack([gap, toy.matrix[:3], gap, toy.matrix[3:], gap], format="csr")
    penalties = penalty_numbers("auto", "auto", Interactions(longer), equal_weights)
    assert penalties == pytest.approx(penalty_numbers("auto", "auto", toy, equal_weights))


def test_penalty_of_hardly_any_data_is_in_range() -> None:
    l2, dropout = penalty_from_counts(0.0, 0.0)
    assert l2 > 0
    assert 0 <= dropout <= 0.9


def test_numbers_are_kept_as_they_are(toy: Interactions) -> None:
    weights = np.ones(toy.n_users)
    assert penalty_numbers(3, 0.25, toy, lambda _: weights) == (3.0, 0.25)
    model = eq.EASE(l2=3.0, dropout=0.25).fit(toy)
    assert (model.l2_, model.dropout_) == (3.0, 0.25)
    expected = 3.0 + 0.25 / 0.75 * toy.item_counts
    np.testing.assert_allclose(model.penalty_, expected)


@pytest.mark.parametrize("family", [eq.DLAE, eq.EDLAE, eq.RDLAE])
def test_automatic_settings_equal_the_same_numbers(family: Any, synthetic: Interactions) -> None:
    auto = family(normalizer=eq.DAN()).fit(synthetic)
    same = family(l2=auto.l2_, dropout=auto.dropout_, normalizer=auto.normalizer_).fit(synthetic)
    np.testing.assert_array_equal(auto.inverse_, same.inverse_)
    assert auto.settings()["l2"] == "auto"


def test_reuse_takes_the_automatic_numbers(synthetic: Interactions) -> None:
    first = eq.EDLAE(normalizer=eq.DAN(0.1, 0.2)).fit(synthetic)
    second = eq.DLAE(normalizer=eq.DAN(0.4, 0.2)).reuse(first)
    assert (second.l2_, second.dropout_) == (first.l2_, first.dropout_)


def test_update_keeps_the_numbers(synthetic: Interactions) -> None:
    model = eq.EDLAE(normalizer=eq.DAN()).fit(synthetic.rows(np.arange(280)), dtype="float64")
    before = model.l2_, model.dropout_, model.normalizer_
    for part in (synthetic.rows(np.arange(280, 283)), synthetic.rows(np.arange(283, 300))):
        model.update(part)  # first by an update of low rank, then by a new solve
        assert (model.l2_, model.dropout_, model.normalizer_) == before
        assert (model.l2, model.dropout) == ("auto", "auto")
    refit = eq.EASE(l2=before[0], dropout=before[1], normalizer=before[2])
    refit.fit(model.interactions_, dtype="float64")
    assert_close(model.weights_, refit.weights_, "float64", scale=1.0)


def test_numbers_survive_saving(synthetic: Interactions, tmp_path: Path) -> None:
    model = eq.RDLAE(normalizer=eq.DAN()).fit(synthetic)
    model.save(tmp_path / "model")
    loaded: Any = eq.load(tmp_path / "model")
    assert (loaded.l2, loaded.l2_, loaded.dropout_) == ("auto", model.l2_, model.dropout_)
    loaded.update(synthetic.rows(np.arange(3)))
    assert loaded.l2_ == model.l2_


def test_failed_fit_leaves_the_old_numbers(synthetic: Interactions) -> None:
    model = eq.EDLAE().fit(synthetic)
    before = model.l2_
    with pytest.raises(eq.EquipoiseError):
        model.fit(synthetic.rows(np.arange(50)), memory=10)
    assert model.l2_ == before


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"l2": "Auto"}, "l2 must"),
        ({"dropout": "automatic"}, "dropout must"),
        ({"l2": -1.0}, "l2 must be >= 0"),
        ({"dropout": 1.0}, "dropout must"),
        ({"l2": 0.0, "dropout": 0.0}, "must not both be 0"),
        ({"l2": 0.0}, "must not both be 0"),
    ],
)
def test_other_words_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        eq.EASE(**settings)


def test_penalty_of_dropout_alone_is_allowed(toy: Interactions) -> None:
    assert eq.EASE(l2=0.0, dropout="auto").fit(toy).dropout_ > 0
    assert eq.EASE(dropout=0.0).fit(toy).l2_ > 0


@pytest.mark.parametrize(
    ("plain", "denoising"), [(eq.LAE, eq.DLAE), (eq.EASE, eq.EDLAE), (eq.RLAE, eq.RDLAE)]
)
def test_only_the_denoising_families_have_a_dropout_by_default(
    plain: Any, denoising: Any, toy: Interactions
) -> None:
    for settings in ({}, {"l2": 3.0}):
        assert plain(**settings).fit(toy).dropout_ == 0
        automatic = plain(dropout="auto", **settings).fit(toy).dropout_
        assert denoising(**settings).fit(toy).dropout_ == automatic > 0


def test_the_neighbourhood_of_an_item_knn_follows_the_counts(synthetic: Interactions) -> None:
    model = eq.ItemKNN().fit(synthetic)
    per_user = synthetic.n_interactions / synthetic.n_users
    per_item = synthetic.n_interactions / (synthetic.item_counts > 0).sum()
    assert model.neighbours_ == max(round(per_user**0.5), 5)
    assert model.shrink_ == min(per_item * (1 / 6), 10)
    same = eq.ItemKNN(neighbours=model.neighbours_, shrink=model.shrink_).fit(synthetic)
    np.testing.assert_array_equal(model.score(["u1"]), same.score(["u1"]))
    assert eq.ItemKNN(neighbours=7).fit(synthetic).neighbours_ == 7
    sparse = eq.ItemKNN().fit(Interactions(np.eye(9)))
    assert (sparse.neighbours_, sparse.shrink_) == (5, 1 / 6)
