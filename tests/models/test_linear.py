"""Relations between fits, numerics and settings of the linear autoencoders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.tolerance import assert_close, assert_same_lists

import equipoise as eq
from equipoise import solve
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, SettingError, SolveError, TooBigError

DAN = eq.DAN(0.2, 0.3)


def weights(data: Interactions, **settings) -> np.ndarray:
    return eq.EASE(**settings).fit(data, dtype="float64").weights_


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_data_without_users_or_items_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(DataError, match="at least one user and one item; the data have none"):
        eq.EASE(l2=1.0).fit(Interactions(np.zeros(shape)))


def test_the_largest_weights_are_looked_at_without_an_overflow() -> None:
    data = eq.read([("a", "x", 3e38), ("b", "y", 3e38)])
    assert eq.Popularity().fit(data).recommend([["x"]], k=1).items == [["y"]]


def test_every_user_twice_and_double_penalty_is_the_same_model(synthetic: Interactions) -> None:
    import scipy.sparse as sp

    twice = Interactions(sp.vstack([synthetic.matrix, synthetic.matrix]), None, synthetic.items)
    # the dropout penalty counts users, so it doubles by itself
    one = weights(synthetic, l2=4.0, dropout=0.3, normalizer=DAN)
    assert_close(weights(twice, l2=8.0, dropout=0.3, normalizer=DAN), one, "float64", scale=1e-2)


def test_whole_number_user_weights_are_repeated_users(toy: Interactions) -> None:
    times = np.array([1, 3, 2, 1, 1, 2, 1])
    repeated = Interactions(np.repeat(toy.matrix.toarray(), times, axis=0), None, toy.items)
    weighted = eq.CustomNorm(users=np.sqrt(times))
    one = weights(toy, l2=2.0, normalizer=weighted)
    assert_close(weights(repeated, l2=2.0), one, "float64", scale=1.0)


def test_permuted_items_give_permuted_weights(
    synthetic: Interactions, rng: np.random.Generator
) -> None:
    order = rng.permutation(synthetic.n_items)
    one = weights(synthetic, l2=4.0, dropout=0.3, normalizer=DAN)
    two = weights(synthetic.columns(order), l2=4.0, dropout=0.3, normalizer=DAN)
    assert_close(two, one[np.ix_(order, order)], "float64", scale=1e-2)


def test_order_of_users_does_not_matter(synthetic: Interactions, rng: np.random.Generator) -> None:
    one = weights(synthetic, l2=4.0, normalizer=DAN)
    two = weights(synthetic.rows(rng.permutation(synthetic.n_users)), l2=4.0, normalizer=DAN)
    assert_close(two, one, "float64", scale=1e-2)


def test_neutral_dan_is_no_normalization(synthetic: Interactions) -> None:
    np.testing.assert_array_equal(
        weights(synthetic, l2=4.0, normalizer=eq.DAN(0, 0)), weights(synthetic, l2=4.0)
    )


def test_alpha_changes_nothing_when_all_items_are_equally_popular() -> None:
    ring = np.eye(6) + np.roll(np.eye(6), 1, axis=1) + np.roll(np.eye(6), 3, axis=1)
    data = Interactions(ring)
    assert len(set(data.item_counts)) == 1
    one = weights(data, l2=1.0, normalizer=eq.ItemNorm(0.0))
    assert_close(weights(data, l2=1.0, normalizer=eq.ItemNorm(0.7)), one, "float64", scale=1e-2)


def test_users_with_one_item_and_items_nobody_used(toy: Interactions) -> None:
    matrix = np.hstack([toy.matrix.toarray(), np.zeros((7, 1))])
    data = Interactions(matrix)
    model = eq.EASE(l2=1.0, dropout=0.5, normalizer=DAN).fit(data)
    assert (model.weights_[:, 4] == 0).all()
    assert (model.weights_[4] == 0).all()
    assert model.recommend([[0]], k=4).items[0][-1] == 4


@pytest.mark.parametrize("family", [eq.LAE, eq.EASE, eq.RLAE])
def test_float32_agrees_with_float64(family: type, synthetic: Interactions) -> None:
    settings = {"l2": 5.0, "dropout": 0.5, "normalizer": DAN}
    single = family(**settings).fit(synthetic, dtype="float32")
    double = family(**settings).fit(synthetic, dtype="float64")
    assert single.inverse_.dtype == np.float32
    assert double.inverse_.dtype == np.float64
    W = double.weights_
    assert_close(single.weights_, W, "float32", scale=np.abs(W).max())
    one, two = single.rank(synthetic, 10), double.rank(synthetic, 10)
    assert_same_lists(one, two, double.score(synthetic), "float32")


def test_refinement_squares_the_error_of_a_rough_solve(
    synthetic: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, error = solve.dense.invert_in_place, 2.0**-7

    def rough(A: np.ndarray) -> None:
        original(A)
        A *= 1 + error  # A P - I is then error * I, far above the rounding of any kernel

    monkeypatch.setattr(solve.dense, "invert_in_place", rough)
    before = eq.EASE(l2=5.0).fit(synthetic)
    after = eq.EASE(l2=5.0).fit(synthetic, refine=True)
    P = before.inverse_.astype(np.float64)
    rounding = len(P) * np.linalg.cond(P) * np.finfo(np.float32).eps
    assert rounding < error / 4
    assert before.residual_ == pytest.approx(error, abs=rounding)
    assert after.residual_ == pytest.approx(error**2, abs=rounding)


def test_fit_is_the_same_for_any_number_of_threads(synthetic: Interactions) -> None:
    one = eq.EASE(l2=5.0, normalizer=DAN).fit(synthetic, threads=1)
    two = eq.EASE(l2=5.0, normalizer=DAN).fit(synthetic, threads=2)
    # LAPACK splits its sums by threads, so the inverse agrees to rounding
    assert_close(two.inverse_, one.inverse_, "float32", scale=np.abs(one.inverse_).max())
    lists = (model.rank(synthetic, 20, threads=n) for n, model in ((2, two), (1, one)))
    assert_same_lists(*lists, one.score(synthetic), "float32")


def test_weighted_interactions_enter_the_gram_matrix(toy: Interactions) -> None:
    X = toy.matrix.toarray().astype(np.float64) * np.linspace(0.5, 2, 7)[:, None]
    model = eq.LAE(l2=1.0).fit(Interactions(X), dtype="float64")
    # the matrix is kept in float32, so the inverse agrees to its rounding
    assert_close(model.inverse_, np.linalg.inv(X.T @ X + np.eye(4)), "float32")


def test_search_over_alphas_families_and_bounds_costs_one_solve(
    synthetic: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    solves = []
    original = solve.dense.invert_in_place
    monkeypatch.setattr(
        solve.dense, "invert_in_place", lambda A: (solves.append(1), original(A))[1]
    )
    eq.plan(synthetic)  # measures the machine with solves of its own, once
    solves.clear()
    first = eq.LAE(l2=5.0, dropout=0.4, normalizer=eq.DAN(0.0, 0.3)).fit(synthetic)
    for alpha in (0.0, 0.1, 0.2, 0.3, 0.4):
        shared = {"l2": 5.0, "dropout": 0.4, "normalizer": eq.DAN(alpha, 0.3)}
        models = [eq.LAE(**shared), eq.EASE(**shared)]
        models += [eq.RLAE(diag_bound=bound, **shared) for bound in (0.1, 0.2, 0.4, 0.8)]
        for model in models:
            model.reuse(first)
            assert np.shares_memory(model.inverse_, first.inverse_)
    assert len(solves) == 1
    fresh = eq.RLAE(l2=5.0, dropout=0.4, normalizer=eq.DAN(0.4, 0.3), diag_bound=0.8)
    np.testing.assert_array_equal(fresh.fit(synthetic).weights_, models[-1].weights_)


def test_automatic_dan_takes_its_numbers_from_the_data(synthetic: Interactions) -> None:
    model = eq.EASE(l2=5.0, normalizer=eq.DAN()).fit(synthetic)
    alpha, beta, _ = model.normalizer_.exponents()
    assert 0 < alpha < 0.5
    assert 0 <= beta <= 1
    assert model.settings()["normalizer"] == {"name": "DAN", "alpha": "auto", "beta": "auto"}


def test_pruned_model_keeps_what_it_says(synthetic: Interactions, tmp_path) -> None:
    model = eq.EASE(l2=5.0, normalizer=DAN).fit(synthetic)
    W = model.weights_
    pruned = model.prune(20)
    remaining = pruned.weights_
    assert (np.count_nonzero(remaining, axis=0) == 20).all()
    for column in range(synthetic.n_items):
        strongest = np.sort(np.abs(W[:, column]))[-20:]
        np.testing.assert_array_equal(np.sort(np.abs(remaining[:, column]))[-20:], strongest)
    lost = 1 - (remaining.astype(float) ** 2).sum() / (W.astype(float) ** 2).sum()
    assert pruned.loss_["weight"] == pytest.approx(lost, rel=1e-4)
    assert 0.5 < pruned.loss_["overlap@20"] <= 1
    everything = model.prune(79)
    assert everything.loss_ == {"weight": pytest.approx(0, abs=1e-12), "overlap@20": 1.0}
    pruned.save(tmp_path / "pruned")
    again = eq.load(tmp_path / "pruned")
    assert again.loss_ == pruned.loss_
    assert again.recommend(synthetic, k=5).items == pruned.recommend(synthetic, k=5).items
    with pytest.raises(SettingError, match="pruned already"):
        pruned.prune(3)


def test_pruned_model_is_not_reused(synthetic: Interactions) -> None:
    full = eq.EASE(l2=5.0).fit(synthetic)
    model = eq.LAE(l2=5.0).fit(synthetic.rows(np.arange(200)))
    before = model.score([[13, 23]])
    with pytest.raises(SettingError, match="reuse the full one"):
        model.reuse(full.prune(10))
    np.testing.assert_array_equal(model.score([[13, 23]]), before)


def test_pruned_model_is_complete_after_a_new_fit(synthetic: Interactions, tmp_path) -> None:
    full = eq.EASE(l2=5.0).fit(synthetic)
    assert full.loss_ is None
    for again in (full.prune(10).fit(synthetic), full.prune(10).reuse(full)):
        assert again.loss_ is None
        np.testing.assert_array_equal(again.weights_, full.weights_)
        again.save(tmp_path / "model")
        loaded = eq.load(tmp_path / "model")
        assert loaded.loss_ is None
        np.testing.assert_array_equal(loaded.weights_, full.weights_)


@pytest.mark.parametrize("lowpass", [None, eq.LowPass(rank=5, strength=0.2)])
def test_pruned_model_keeps_everything_when_it_is_saved(
    lowpass: eq.LowPass | None, synthetic: Interactions, tmp_path
) -> None:
    model = eq.RLAE(normalizer=eq.DAN(), diag_bound=0.3, lowpass=lowpass).fit(synthetic)
    pruned = model.prune(7)
    pruned.save(tmp_path / "pruned")
    again = eq.load(tmp_path / "pruned")
    assert again.settings() == pruned.settings() == model.settings()
    assert again.loss_ == pruned.loss_
    assert (again.l2_, again.dropout_, again.residual_) == (
        model.l2_,
        model.dropout_,
        model.residual_,
    )
    np.testing.assert_array_equal(again.weights_, pruned.weights_)
    np.testing.assert_array_equal(again.score(synthetic), pruned.score(synthetic))
    np.testing.assert_array_equal(
        again.score(synthetic, alpha=0.4), pruned.score(synthetic, alpha=0.4)
    )
    # and once more, from what was loaded
    again.save(tmp_path / "twice")
    assert eq.load(tmp_path / "twice").loss_ == pruned.loss_
    with pytest.raises(SettingError, match="pruned"):
        again.update(synthetic.rows([1]))


def test_users_without_a_list_take_nothing_from_the_overlap(toy: Interactions) -> None:
    assert (toy.user_counts == toy.n_items).any()
    assert eq.EASE(l2=1.0).fit(toy).prune(3).loss_["overlap@20"] == 1.0
    full = Interactions(np.ones((3, 2), np.float32))
    assert eq.EASE(l2=1.0).fit(full).prune(1).loss_["overlap@20"] == 1.0


def test_pruned_model_is_not_moved_to_a_gpu(synthetic: Interactions) -> None:
    pruned = eq.EASE(l2=5.0).fit(synthetic).prune(10)
    assert pruned.to("cpu") is pruned
    with pytest.raises(SettingError, match="device='cpu'"):
        pruned.to("cuda")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_halved_model_keeps_16_bits_of_each_weight(
    dtype: str, synthetic: Interactions, tmp_path
) -> None:
    model = eq.EASE(l2=5.0, normalizer=DAN).fit(synthetic, dtype=dtype)
    halved = model.halve()
    P = np.array(model.inverse_, np.float64)
    np.testing.assert_array_equal(halved.solution_.diagonal(), P.diagonal())
    np.fill_diagonal(P, 0)
    restored = halved.solution_.toarray().astype(np.float64)
    np.fill_diagonal(restored, 0)
    step = np.abs(P).max(axis=1, keepdims=True) / (2**15 - 1)
    assert (np.abs(restored - P) <= 0.51 * step).all()  # half a step, and the rounding of float32
    assert halved.solution_.nbytes < 0.27 * 8 * P.size
    assert model.loss_ is None
    lists = [np.array(variant.recommend(synthetic, k=20).items) for variant in (model, halved)]
    shared = np.mean([len(set(a) & set(b)) / 20 for a, b in zip(*lists, strict=True)])
    assert shared >= 0.995
    assert halved.loss_ == {"overlap@20": pytest.approx(shared)}
    halved.save(tmp_path / "halved")
    again = eq.load(tmp_path / "halved")
    assert again.loss_ == halved.loss_
    assert again.inverse_.values.dtype == np.int16
    np.testing.assert_array_equal(again.score(synthetic), halved.score(synthetic))
    np.testing.assert_array_equal(again.weights_, halved.weights_)


@pytest.mark.parametrize("reduce", [lambda model: model.prune(5), lambda model: model.halve()])
def test_only_a_whole_dense_model_is_halved(reduce: Any, synthetic: Interactions) -> None:
    reduced = reduce(eq.EASE(l2=5.0).fit(synthetic))
    with pytest.raises(SettingError, match="only a model with a dense inverse can be halved"):
        reduced.halve()


REFUSED = {
    "l2 -1": (lambda *_: eq.RLAE(l2=-1.0), SettingError, "l2 must be >= 0, got -1.0"),
    "l2 nan": (lambda *_: eq.RLAE(l2=float("nan")), SettingError, "l2 must be finite"),
    "l2 text": (lambda *_: eq.RLAE(l2="much"), SettingError, "l2 must be a number"),
    "dropout 1": (
        lambda *_: eq.RLAE(dropout=1.0),
        SettingError,
        r"dropout must lie in \[0, 1\), got 1.0",
    ),
    "no penalty": (lambda *_: eq.RLAE(l2=0.0), SettingError, "must not both be 0"),
    "normalizer text": (
        lambda *_: eq.RLAE(normalizer=3),
        SettingError,
        "normalizer must be a Normalizer",
    ),
    "diag_bound 1.5": (
        lambda *_: eq.RLAE(diag_bound=1.5),
        SettingError,
        r"diag_bound must lie in \[0, 1\], got 1.5",
    ),
    "reuse with other l2": (
        lambda _, synthetic: eq.EASE(l2=6.0).reuse(eq.EASE(l2=5.0).fit(synthetic)),
        SettingError,
        "same l2, dropout and user weights",
    ),
    "reuse with other dropout": (
        lambda _, synthetic: eq.EASE(l2=5.0, dropout=0.1).reuse(eq.EASE(l2=5.0).fit(synthetic)),
        SettingError,
        "same l2, dropout and user weights",
    ),
    "reuse with other user weights": (
        lambda _, synthetic: eq.LAE(l2=5.0, normalizer=DAN).reuse(eq.EASE(l2=5.0).fit(synthetic)),
        SettingError,
        "same l2, dropout and user weights",
    ),
    "keep 0": (lambda toy, _: eq.EASE(l2=1.0).fit(toy).prune(0), SettingError, "keep must be"),
    "keep -1": (lambda toy, _: eq.EASE(l2=1.0).fit(toy).prune(-1), SettingError, "keep must be"),
    "keep 2.5": (lambda toy, _: eq.EASE(l2=1.0).fit(toy).prune(2.5), SettingError, "keep must be"),
    "keep True": (
        lambda toy, _: eq.EASE(l2=1.0).fit(toy).prune(True),
        SettingError,
        "keep must be",
    ),
    "fit on an array": (lambda *_: eq.EASE().fit(np.eye(3)), DataError, r"eq\.read"),
    "too big": (
        lambda _, synthetic: eq.EASE().fit(synthetic, memory="10KB", engine="dense"),
        TooBigError,
        r"80 items need .* may be used; keep at most",
    ),
    "hopeless system": (
        lambda _, synthetic: eq.LAE(l2=1e-12).fit(
            Interactions(np.hstack([synthetic.matrix.toarray() * 3e4] * 2))
        ),
        SolveError,
        "raise l2 or dropout",
    ),
}


@pytest.mark.parametrize(("ask", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_a_linear_model_cannot_do_is_refused(
    ask, error: type[Exception], message: str, toy: Interactions, synthetic: Interactions
) -> None:
    with pytest.raises(error, match=message):
        ask(toy, synthetic)
