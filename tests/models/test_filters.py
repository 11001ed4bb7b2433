"""Graph filters against dense transcriptions of their formulas."""

from __future__ import annotations

from collections.abc import Callable
from math import factorial
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from tests.models.filter_formulas import (
    CASES,
    STRONG,
    Matrix,
    dense_gfcf,
    homophily_by_loop,
    symmetric,
)
from tests.tolerance import assert_close

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.data.readers.research import read_weak
from equipoise.errors import DataError, FileFormatError, SettingError, TooBigError
from equipoise.models import filters
from equipoise.models.base import Recommender
from equipoise.models.filters import homophily_of_rows
from equipoise.ranking.polynomial import PolynomialTerm
from equipoise.ranking.ranker import score, top_k


@pytest.fixture(scope="module")
def data() -> Interactions:
    """90 users x 30 items with a long tail; items 28 and 29 have no user."""
    rng = np.random.default_rng(5)
    X = rng.random((90, 30)) < np.linspace(0.5, 0.08, 30)
    X[:, 28:] = False
    X[np.arange(90), rng.integers(0, 28, 90)] = True
    return Interactions(X.astype(np.float32), items=np.arange(30) + 100)


def dense(data: Interactions) -> Matrix:
    return data.matrix.toarray().astype(np.float64)


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scores_are_those_of_the_dense_formula(name: str, dtype: str, data: Interactions) -> None:
    make, formula = CASES[name]
    scores = make().fit(data, dtype=dtype).score(data)
    expected = formula(dense(data))
    assert scores.dtype == dtype
    # sums of terms of both signs: rounding is relative to the largest score
    assert_close(scores, expected, dtype, scale=np.abs(expected).max())


@pytest.mark.parametrize("name", STRONG)
def test_unseen_users_score_like_users_with_that_history(name: str, data: Interactions) -> None:
    model = CASES[name][0]().fit(data)
    known = model.score(data.users[:20])
    histories = [data.history(user) for user in data.users[:20]]
    np.testing.assert_array_equal(model.score(histories), known)


@pytest.mark.parametrize("name", STRONG)
def test_a_history_may_hold_an_item_without_users(name: str, data: Interactions) -> None:
    model = CASES[name][0]().fit(data)
    assert np.isfinite(model.score([[100, 128], [129]])).all()


def test_items_without_users_come_last(name: str, data: Interactions) -> None:
    scores = CASES[name][0]().fit(data).score(data)
    assert np.isfinite(scores).all()
    np.testing.assert_allclose(scores[:, 28:], 0, atol=1e-12)


def test_saved_models_score_the_same_bits(name: str, data: Interactions, tmp_path: Path) -> None:
    model = CASES[name][0]().fit(data)
    model.save(tmp_path / "model")
    loaded = eq.load(tmp_path / "model")
    assert loaded.settings() == model.settings()
    np.testing.assert_array_equal(loaded.score(data), model.score(data))


def test_lists_have_the_same_bits_for_any_batch_and_threads(name: str, data: Interactions) -> None:
    model = CASES[name][0]().fit(data)
    terms, rows = model._terms(), data.matrix
    one_batch = top_k(terms, rows, 10)
    for threads in (1, 3):
        again = top_k(terms, rows, 10, threads=threads)
        np.testing.assert_array_equal(again.scores, one_batch.scores)
    for user in range(5):
        one = top_k(terms, rows[user : user + 1], 10)
        np.testing.assert_array_equal(one.scores[0], one_batch.scores[user])
        np.testing.assert_array_equal(score(terms, rows)[user], score(terms, rows, [user])[0])


@pytest.mark.parametrize("name", STRONG)
def test_contributions_sum_to_the_score(name: str, data: Interactions) -> None:
    model = CASES[name][0]().fit(data, dtype="float64")
    item = model.recommend([data.users[3]], k=1).items[0][0]
    explanation = model.explain(data.users[3].item(), item)
    place = data.item_index.positions([item])[0]
    assert explanation.score == pytest.approx(model.score([data.users[3]])[0, place], rel=1e-7)
    alone = model.score([[source] for source in explanation.sources])[:, place]
    assert_close(explanation.contributions, alone, "float64", scale=abs(explanation.score))


def test_sgfcf_refuses_users_it_was_not_fitted_on(data: Interactions) -> None:
    model = eq.SGFCF(n_factors=9).fit(data)
    with pytest.raises(DataError, match="only for the users and histories it was fitted on"):
        model.recommend([[100, 127, 126, 125, 124]])
    assert model.recommend([[]], k=3).source == ["popular"]


def test_sgfcf_answers_users_with_equal_histories_and_that_history_alike() -> None:
    X = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [1, 1, 0, 0]], np.float32)
    model = eq.SGFCF(n_factors=3).fit(Interactions(X, ["a", "b", "c", "d"], [10, 20, 30, 40]))
    smoothing = model.arrays_["smoothing_users"]
    assert smoothing[0] == smoothing[2]
    scores = model.score(["a", "c"])
    np.testing.assert_array_equal(scores[0], scores[1])
    np.testing.assert_array_equal(model.score([[10, 30]])[0], scores[0])


def test_homophily_of_rows_is_that_of_the_loop(data: Interactions) -> None:
    for X in (data.matrix, data.matrix.T.tocsr()):
        np.testing.assert_allclose(homophily_of_rows(X), homophily_by_loop(X.toarray()), rtol=1e-7)


def test_rough_svd_ae_is_the_formula_on_its_own_subspace(data: Interactions) -> None:
    model = eq.SVDAE(n_factors=8).fit(data, dtype="float64")
    X = dense(data)
    A, _, items = symmetric(X)
    V = model.arrays_["left"].T
    U = A @ V
    S = np.linalg.norm(U, axis=0)
    assert_close((U / S).T @ (U / S), np.eye(8), "float64", scale=1.0)
    expected = X / np.sqrt(items) @ (V / S) @ (U / S).T @ X
    assert_close(model.score(data), expected, "float64", scale=np.abs(expected).max())
    exact = eq.SVDAE(n_factors=8, power_iterations=None).fit(data, dtype="float64")
    assert np.abs(exact.score(data) - expected).max() > 1e-3


def test_rank_of_svd_ae_is_a_share_of_the_shorter_side() -> None:
    for sides, rank in (((29858, 40981), 1194), ((31668, 38048), 1267), ((3, 9), 1)):
        empty = Interactions(sp.csr_array(sides, dtype=np.float32))
        assert eq.SVDAE().rank_on(empty) == rank


def test_coefficients_of_bspm_are_those_of_its_solver() -> None:
    blurred, sharp = eq.BSPM(solver="rk4", time=2.5).polynomials()
    expected = [(-2.5) ** j / factorial(j) for j in range(5)]
    np.testing.assert_allclose(blurred, expected, rtol=1e-7)
    np.testing.assert_allclose(sharp, expected, rtol=1e-7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: eq.GFCF(n_factors=0), "n_factors must be a whole number >= 1, got 0"),
        (lambda: eq.GFCF(strength=-1.0), "strength must be >= 0, got -1.0"),
        (lambda: eq.BSPM(solver="exact"), "solver must be"),
        (lambda: eq.BSPM(merge="never"), "merge must be"),
        (lambda: eq.BSPM(average="yes"), "average must be False or True, got 'yes'"),
        (lambda: eq.BSPM(steps=0), "steps must be"),
        (lambda: eq.BSPM(steps=101), "steps must be a whole number from 1 to 100"),
        (lambda: eq.TurboCF(power=0.0), "power must be > 0"),
        (lambda: eq.TurboCF(order=4), "order must be 1, 2 or 3"),
        (lambda: eq.SVDAE(n_factors=0.0), "n_factors must lie"),
        (lambda: eq.SVDAE(n_factors=True), "n_factors must be"),
        (lambda: eq.SVDAE(power_iterations=-1), "power_iterations must be"),
        (lambda: eq.SGFCF(weakest=2.0, strongest=1.0), "strongest must be >= weakest"),
        (lambda: eq.SGFCF(shift=float("nan")), "shift must be finite"),
    ],
)
def test_settings_outside_their_range_are_refused(
    make: Callable[[], Recommender], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        make()


def test_fit_refuses_what_it_cannot_learn_from(data: Interactions) -> None:
    with pytest.raises(DataError, match="at least one interaction"):
        eq.GFCF().fit(Interactions(np.zeros((2, 3))))
    with pytest.raises(SettingError, match="dtype must be"):
        eq.GFCF().fit(data, dtype="float16")


def test_a_graph_that_does_not_fit_is_refused(
    data: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "free_memory", lambda: 1000)
    with pytest.raises(TooBigError, match="with power=1 it is not formed"):
        eq.TurboCF(power=0.7).fit(data)


def test_a_saved_filter_with_another_precision_is_damaged(
    data: Interactions, tmp_path: Path
) -> None:
    eq.GFCF(n_factors=3).fit(data).save(tmp_path / "model")
    manifest = tmp_path / "model" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"dtype": "float32"', '"dtype": "float64"'))
    with pytest.raises(FileFormatError, match="arrays are not float64"):
        eq.load(tmp_path / "model")


def test_weighted_interactions_are_scaled_by_their_sums(data: Interactions) -> None:
    rng = np.random.default_rng(2)
    weighted = data.matrix.copy()
    weighted.data = rng.integers(1, 5, weighted.nnz).astype(np.float32)
    heavy = Interactions(weighted)
    scores = eq.GFCF(n_factors=6).fit(heavy, dtype="float64").score(heavy)
    assert_close(scores, dense_gfcf(dense(heavy)), "float64", scale=np.abs(scores).max())


def test_more_users_than_lanes_keep_their_own_scores(data: Interactions) -> None:
    n = data.n_items
    ones = np.ones(n)
    term = PolynomialTerm(data.matrix.astype(np.float64), (0.5, 1.0, -0.1), ones, 2 * ones)
    G = dense(data).T @ dense(data)
    expected = dense(data) @ (0.5 * np.eye(n) + G - 0.1 * G @ G) * 2
    assert_close(score([term], data.matrix), expected, "float64", scale=np.abs(expected).max())


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "recall", "ndcg"),
    [
        (eq.GFCF(), 0.1850, 0.1518),
        (eq.TurboCF(user_exponent=0.6, power=0.7), 0.1830, 0.1513),
        (eq.BSPM(n_factors=448, strength=0.2, solver="rk4", time=2.5), 0.1920, 0.1597),
    ],
    ids=["GFCF", "TurboCF", "BSPM"],
)
def test_gowalla_has_the_known_numbers(
    model: Recommender, recall: float, ndcg: float, shared_data: Path
) -> None:
    parts = read_weak(shared_data / "gowalla" / "weak")
    train, test = parts["train"], parts["test"]
    split = eq.split.from_parts(train, test=(train, test), protocol="weak")
    result = eq.evaluate(model.fit(train), split.test, metrics=["recall", "ndcg"], bootstrap=0)
    # one unit of the last digit that is known
    assert result["recall@20"] == pytest.approx(recall, abs=1e-4)
    assert result["ndcg@20"] == pytest.approx(ndcg, abs=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sgfcf_ranks_users_outside_its_factors_by_the_unfiltered_part(dtype: str) -> None:
    """Users and items without a connection to those of the strongest factors.

    What the factors hold of such users is rounding alone.
    """
    rng = np.random.default_rng(1)
    blocks = [(rng.random((14, 10)) < 0.4).astype(float) for _ in range(4)]
    X = np.kron(np.eye(4), np.zeros((14, 10)))
    for place, block in enumerate(blocks):
        block[:, 0] = 1
        X[14 * place : 14 * (place + 1), 10 * place : 10 * (place + 1)] = block
    X = X[:, rng.permutation(40)]
    data = Interactions(X)
    model = eq.SGFCF(n_factors=2).fit(data, dtype=dtype)
    A = X / X.sum(1)[:, None] ** 0.34 / np.maximum(X.sum(0), 1) ** 0.34
    U = np.linalg.svd(A)[0][:, :2]
    outside = np.abs(U).max(axis=1) < 1e-9
    assert outside.sum() == 28
    t = A @ A.T @ A
    expected = 1.6 * t / t.sum(1, keepdims=True)
    scores = model.score(data)
    assert_close(scores[outside], expected[outside], dtype, scale=1.0)
    assert np.abs(scores - expected)[~outside].max() > 0.01
