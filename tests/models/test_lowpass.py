"""The low-pass companion against the dense formula, through fit, dial, update, prune and save."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tolerance import assert_close

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.errors import FileFormatError, SettingError
from equipoise.models.saving import build

FAMILIES = [eq.LAE, eq.EASE, eq.RLAE]


def companion(data: Interactions, lowpass: eq.LowPass) -> np.ndarray:
    """strength * D^-e V diag(s^softness) V^T D^e, dense."""
    X = data.matrix.toarray().astype(np.float64)
    users, items = (np.where(total > 0, total, 1) for total in (X.sum(1), X.sum(0)))
    A = X / users[:, None] ** lowpass.user_exponent / items**lowpass.item_exponent
    _, s, Vt = np.linalg.svd(A)
    V, s = Vt[: lowpass.rank].T, s[: lowpass.rank] / s[0]
    inner = (V * s**lowpass.softness) @ V.T
    power = items**lowpass.exponent
    return np.asarray(lowpass.strength * inner / power[:, None] * power)


def both(family: Any, lowpass: eq.LowPass | None, **settings: Any) -> Any:
    normalizer = eq.DAN(alpha=0.2, beta=0.3)
    return family(l2=2.0, dropout=0.3, normalizer=normalizer, lowpass=lowpass, **settings)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "shape", [{}, {"softness": 1.5}, {"softness": 1.0, "user_exponent": 0.3, "item_exponent": 0.4}]
)
def test_scores_are_the_autoencoder_plus_the_dense_formula(
    family: Any, dtype: str, shape: dict[str, float], synthetic: Interactions
) -> None:
    lowpass = eq.LowPass(rank=9, strength=0.25, exponent=0.3, **shape)
    plain = both(family, None).fit(synthetic, dtype=dtype).score(synthetic)
    scores = both(family, lowpass).fit(synthetic, dtype=dtype).score(synthetic)
    expected = plain + synthetic.matrix.toarray() @ companion(synthetic, lowpass)
    assert_close(scores, expected, dtype, scale=np.abs(expected).max())


def test_dial_moves_the_autoencoder_and_not_the_companion(synthetic: Interactions) -> None:
    lowpass = eq.LowPass(rank=9, strength=0.25, exponent=0.3)
    plain = both(eq.EASE, None).fit(synthetic, dtype="float64")
    model = both(eq.EASE, lowpass).fit(synthetic, dtype="float64")
    more = synthetic.matrix.toarray() @ companion(synthetic, lowpass)
    for alpha in (0.0, 0.5):
        expected = plain.score(synthetic, alpha=alpha) + more
        assert_close(
            model.score(synthetic, alpha=alpha), expected, "float64", scale=expected.max()
        )


def test_update_equals_a_refit(synthetic: Interactions) -> None:
    old, new = synthetic.rows(np.arange(280)), synthetic.rows(np.arange(280, 300))
    lowpass = eq.LowPass(rank=9, strength=0.2)
    updated = both(eq.EASE, lowpass).fit(old, dtype="float64").update(new)
    refit = both(eq.EASE, lowpass).fit(updated.interactions_, dtype="float64")
    expected = refit.score(synthetic)
    assert_close(updated.score(synthetic), expected, "float64", scale=expected.max())


def test_pruned_models_keep_the_companion(synthetic: Interactions) -> None:
    lowpass = eq.LowPass(rank=9, strength=0.3)
    model = both(eq.EASE, lowpass).fit(synthetic, dtype="float64")
    plain = both(eq.EASE, None).fit(synthetic, dtype="float64")
    difference = model.prune(10).score(synthetic) - plain.prune(10).score(synthetic)
    expected = synthetic.matrix.toarray() @ companion(synthetic, lowpass)
    assert_close(difference, expected, "float64", scale=np.abs(expected).max())


@pytest.mark.parametrize("pruned", [False, True])
def test_saved_models_keep_the_companion(
    synthetic: Interactions, tmp_path: Path, pruned: bool
) -> None:
    model = both(eq.RLAE, eq.LowPass(rank=9, softness=1.0, strength=0.2)).fit(synthetic)
    model = model.prune(12) if pruned else model
    model.save(tmp_path / "model")
    loaded = eq.load(tmp_path / "model")
    assert loaded.lowpass == model.lowpass
    np.testing.assert_array_equal(loaded.score(synthetic), model.score(synthetic))


def test_settings_build_the_same_model() -> None:
    for lowpass in (None, eq.LowPass(rank=20, strength=0.1, exponent=0.25, softness=2.0)):
        model = both(eq.EASE, lowpass)
        again = build(model.settings())
        assert isinstance(again, eq.EASE)
        assert again.lowpass == lowpass
        assert again.settings() == model.settings()


def test_contributions_are_the_scores_of_single_items(synthetic: Interactions) -> None:
    model = both(eq.EASE, eq.LowPass(rank=9, strength=0.2)).fit(synthetic, dtype="float64")
    item = model.recommend(["u3"], k=1).items[0][0]
    explanation = model.explain("u3", item)
    place = synthetic.item_index.positions([item])[0]
    alone = model.score([[source] for source in explanation.sources])[:, place]
    assert_close(explanation.contributions, alone, "float64", scale=abs(explanation.score))
    assert np.cumsum(explanation.contributions)[-1] == explanation.score


def test_reused_solves_take_their_own_companion(synthetic: Interactions) -> None:
    plain = both(eq.EASE, None).fit(synthetic)
    lowpass = eq.LowPass(rank=9, strength=0.2)
    reused = both(eq.LAE, lowpass).reuse(plain)
    fitted = both(eq.LAE, lowpass).fit(synthetic)
    np.testing.assert_array_equal(reused.score(synthetic), fitted.score(synthetic))


def test_rank_beyond_the_data_is_the_whole_spectrum(toy: Interactions) -> None:
    lowpass = eq.LowPass(rank=500, strength=1.0)
    model = eq.EASE(l2=1.0, lowpass=lowpass).fit(toy, dtype="float64")
    plain = eq.EASE(l2=1.0).fit(toy, dtype="float64")
    # V is square and orthogonal, so the companion gives the history itself back
    expected = plain.score(toy) + toy.matrix.toarray()
    assert_close(model.score(toy), expected, "float64", scale=1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "rank must be a whole number >= 1, got 0"),
        ({"rank": True}, "rank must be a whole number"),
        ({"strength": -0.1}, "strength must be >= 0, got -0.1"),
        ({"softness": -1}, "softness must be >= 0"),
        ({"exponent": float("inf")}, "exponent must be finite"),
        ({"user_exponent": "half"}, "user_exponent must be a number"),
    ],
)
def test_settings_outside_their_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        eq.LowPass(**settings)


def test_anything_but_a_lowpass_is_refused() -> None:
    with pytest.raises(SettingError, match="lowpass must be a LowPass or None"):
        eq.EASE(lowpass=0.2)


def test_lowpass_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        eq.LowPass().rank = 3


@pytest.mark.parametrize("damage", ["HighPass", 3, {"name": "LowPass", "width": 1}])
def test_damaged_settings_are_refused(damage: Any) -> None:
    settings = eq.EASE(lowpass=eq.LowPass()).settings()
    settings["lowpass"] = damage if not isinstance(damage, str) else {"name": damage}
    with pytest.raises(FileFormatError, match="low-pass companion is"):
        build(settings)


def test_an_automatic_companion_is_left_out_where_it_does_not_pay(
    synthetic: Interactions, tmp_path: Path
) -> None:
    # items drawn independently have no structure beyond their popularity
    model = eq.EASE(l2=5.0, lowpass=eq.LowPass(rank=30, exponent=0.0)).fit(synthetic)
    plain = eq.EASE(l2=5.0).fit(synthetic)
    assert model.lowpass_ is not None
    assert model.lowpass_.strength == 0
    np.testing.assert_array_equal(model.score(synthetic), plain.score(synthetic))
    model.save(tmp_path / "model")
    again = eq.load(tmp_path / "model")
    assert again.settings() == model.settings()
    assert again.settings(resolved=True)["lowpass"]["strength"] == 0
    np.testing.assert_array_equal(again.score(synthetic), model.score(synthetic))


def test_an_automatic_companion_is_taken_where_it_pays() -> None:
    # ten groups of items, seen through few events: without much of a penalty, weights are noise
    rng = np.random.default_rng(0)
    chances = np.where(np.arange(400)[:, None] % 10 == np.arange(60) % 10, 0.3, 0.03)
    data = eq.Interactions((rng.random((400, 60)) < chances).astype(np.float32))
    model = eq.EASE(l2=0.01, lowpass=eq.LowPass(rank=10)).fit(data)
    assert model.lowpass_ is not None
    strength = model.lowpass_.strength
    assert strength != "auto"
    assert strength > 0
    same = eq.EASE(l2=0.01, lowpass=eq.LowPass(rank=10, strength=strength)).fit(data)
    np.testing.assert_array_equal(model.score(data), same.score(data))
    assert f"strength={strength}" in model.summary()


def test_a_companion_without_a_model_needs_a_strength(synthetic: Interactions) -> None:
    with pytest.raises(SettingError, match="fitted as part of a model"):
        eq.LowPass(rank=3).fit(synthetic, "float32")
