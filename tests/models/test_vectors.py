"""Item and user vectors: their products, what they preserve, new users, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.models.described import described
from tests.tolerance import assert_close

import equipoise as eq
from equipoise.errors import SettingError, TooBigError
from equipoise.models import vectors as vectors_module

N_ITEMS = 80
MODELS = {
    "ease": eq.EASE(l2=10, dropout=0.3, normalizer=eq.DAN(0.2, 0.3)),
    "lae": eq.LAE(l2=10),
    "lowpass": eq.EASE(l2=10, lowpass=eq.LowPass(rank=8, strength=0.3)),
    "knn": eq.ItemKNN(neighbours=20),
    "gfcf": eq.GFCF(),
}


def products(vectors: eq.Vectors, users: np.ndarray | None = None) -> np.ndarray:
    """Inner products of all users and items, users x items."""
    users = vectors.users["vector"].to_numpy() if users is None else users
    return np.asarray(users @ vectors.items["vector"].to_numpy().T)


@pytest.mark.parametrize("name", MODELS)
def test_inner_products_at_full_rank_are_the_scores(name: str, synthetic: eq.Interactions) -> None:
    model = MODELS[name].clone().fit(synthetic)
    scores = model.score(synthetic)
    vectors = model.vectors(rank=N_ITEMS)
    # vectors are written in single precision, whatever the precision of the model
    assert_close(products(vectors), scores, "float32", scale=np.abs(scores).max())
    assert vectors.overlap > 0.99


def test_vectors_have_the_ids_of_items_and_users(synthetic: eq.Interactions) -> None:
    vectors = MODELS["ease"].clone().fit(synthetic).vectors(rank=5)
    assert vectors.items["id"].to_list() == synthetic.items.tolist()
    assert vectors.users["id"].to_list() == synthetic.users.tolist()
    assert vectors.items["id"].dtype == pl.Int64
    assert vectors.users["vector"].dtype == pl.Array(pl.Float32, 5)
    assert vectors.rank == 5


def test_overlap_is_the_share_of_the_lists_that_inner_products_give(
    synthetic: eq.Interactions,
) -> None:
    model = MODELS["ease"].clone().fit(synthetic)
    vectors = model.vectors(rank=6)
    scores = np.where(synthetic.matrix.toarray() > 0, -np.inf, products(vectors))
    nearest = np.argsort(-scores, axis=1, kind="stable")[:, :20]
    lists = model.rank(synthetic, 20).items
    shares = [len(np.intersect1d(a, b)) / 20 for a, b in zip(nearest, lists, strict=True)]
    assert 0.3 < vectors.overlap < 1
    assert vectors.overlap == pytest.approx(np.mean(shares), abs=1e-3)


def test_longer_vectors_preserve_more(synthetic: eq.Interactions) -> None:
    model = MODELS["ease"].clone().fit(synthetic)
    overlaps = [model.vectors(rank=rank).overlap for rank in (2, 8, 30)]
    assert overlaps == sorted(overlaps)
    assert overlaps[2] > overlaps[0] + 0.1


def test_no_other_matrix_of_the_rank_is_nearer_to_the_scores(synthetic: eq.Interactions) -> None:
    model = eq.EASE(l2=10).fit(synthetic, dtype="float64")
    scores = model.score(synthetic) / np.sqrt(synthetic.user_counts)[:, None]
    best = np.linalg.svd(scores, compute_uv=False)
    distance = scores - products(model.vectors(rank=9)) / np.sqrt(synthetic.user_counts)[:, None]
    assert np.linalg.norm(distance) == pytest.approx(np.sqrt((best[9:] ** 2).sum()), rel=1e-4)


def test_new_users_fold_in(synthetic: eq.Interactions) -> None:
    model = MODELS["ease"].clone().fit(synthetic)
    vectors = model.vectors(rank=N_ITEMS)
    histories = [synthetic.items[[3, 9, 30]].tolist(), synthetic.items[[70]].tolist()]
    users = vectors.fold_in(histories)
    scores = model.score(histories)
    assert_close(products(vectors, users), scores, "float32", scale=np.abs(scores).max())
    summed = vectors.items["history_vector"].to_numpy()[[3, 9, 30]].sum(axis=0)
    assert_close(users[0], summed, "float32", scale=np.abs(summed).max())


def test_training_users_fold_in_to_their_own_vectors(synthetic: eq.Interactions) -> None:
    vectors = MODELS["ease"].clone().fit(synthetic).vectors(rank=10)
    np.testing.assert_array_equal(
        vectors.fold_in(["u7", "u20"]), vectors.users["vector"].to_numpy()[[7, 20]]
    )


def test_a_trend_is_in_the_vectors() -> None:
    rng = np.random.default_rng(3)
    frame = pl.DataFrame(
        {
            "user": rng.integers(0, 40, 600),
            "item": rng.integers(0, 15, 600),
            "time": rng.integers(0, 10**7, 600),
        }
    )
    data = eq.read(frame, time="time")
    model = eq.EASE(l2=5, trend=eq.Trend(half_life="10d", power=0.5, share=0.3)).fit(data)
    scores = model.score(data)
    vectors = model.vectors(rank=15)
    assert vectors.rank == 15
    assert len(vectors.items["vector"][0]) == 16
    assert len(vectors.items["history_vector"][0]) == 15
    assert_close(products(vectors), scores, "float32", scale=np.abs(scores).max())
    assert_close(
        products(vectors, vectors.fold_in([data.items[:2].tolist()])),
        model.score([data.items[:2].tolist()]),
        "float32",
        scale=np.abs(scores).max(),
    )


def test_items_added_later_have_vectors() -> None:
    features = eq.Features(
        strength=0, map="both", rarity=0, mu=1, share=0.3, neighbours=5, scale=1
    )
    model = eq.EASE(l2=5, features=features).fit(described())
    model.add_items({"item": ["new"], "themes": [["sun", "moon"]], "title": ["The sun"]})
    vectors = model.vectors(rank=60)
    assert vectors.items["id"].to_list() == model.item_index_.values.tolist()
    assert vectors.items["id"][-1] == "new"
    scores = model.score(model.data_)
    assert_close(products(vectors), scores, "float32", scale=np.abs(scores).max())
    histories = [["new", "i3"]]
    folded = products(vectors, vectors.fold_in(histories))
    assert_close(folded, model.score(histories), "float32", scale=np.abs(scores).max())


def test_the_dial_is_in_the_vectors(synthetic: eq.Interactions) -> None:
    model = MODELS["ease"].clone().fit(synthetic)
    scores = model.score(synthetic, alpha=0.5)
    shown = products(model.vectors(rank=N_ITEMS, alpha=0.5))
    assert_close(shown, scores, "float32", scale=np.abs(scores).max())


def test_a_pruned_model_has_vectors_without_its_dense_matrix(
    synthetic: eq.Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruned = MODELS["ease"].clone().fit(synthetic).prune(10)
    scores = pruned.score(synthetic)
    monkeypatch.setattr(vectors_module, "free_memory", lambda: 0)
    shown = products(pruned.vectors(rank=N_ITEMS))
    assert_close(shown, scores, "float32", scale=np.abs(scores).max())


def test_a_matrix_that_does_not_fit_is_refused_with_a_remedy(
    synthetic: eq.Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS["ease"].clone().fit(synthetic)
    monkeypatch.setattr(vectors_module, "free_memory", lambda: 1000)
    with pytest.raises(TooBigError, match=r"prune the model first"):
        model.vectors()


def test_vectors_do_not_depend_on_the_size_of_blocks(
    synthetic: eq.Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS["ease"].clone().fit(synthetic)
    full_rank = model.vectors(rank=10)
    monkeypatch.setattr(vectors_module, "BLOCK_BYTES", 3000)
    parts = model.vectors(rank=10)
    scores = products(full_rank)
    assert_close(products(parts), scores, "float32", scale=np.abs(scores).max())


def test_large_models_use_the_sparse_decomposition(rng: np.random.Generator) -> None:
    matrix = (rng.random((2000, 1600)) < 0.02).astype(np.float32)
    model = eq.EASE(l2=50).fit(eq.Interactions(matrix))
    vectors = model.vectors(rank=16)
    scores = model.score(model.interactions_)
    best = np.linalg.svd(scores / np.sqrt(matrix.sum(1))[:, None], compute_uv=False)[16:]
    distance = (scores - products(vectors)) / np.sqrt(matrix.sum(1))[:, None]
    # the decomposition ends at a tolerance
    assert np.linalg.norm(distance) == pytest.approx(np.sqrt((best**2).sum()), rel=1e-3)


def test_a_rank_above_the_data_is_cut_to_it(toy: eq.Interactions) -> None:
    assert eq.EASE(l2=1).fit(toy).vectors(rank=128).rank == 4


def test_files_have_the_vectors_of_the_frames(synthetic: eq.Interactions, tmp_path: Path) -> None:
    vectors = MODELS["ease"].clone().fit(synthetic).vectors(rank=7)
    vectors.save(tmp_path / "vectors")
    for name in ("items", "users"):
        saved = pl.read_parquet(tmp_path / "vectors" / f"{name}.parquet")
        assert saved.equals(getattr(vectors, name))
    assert sorted(path.name for path in (tmp_path / "vectors").iterdir()) == [
        "items.parquet",
        "users.parquet",
    ]


@pytest.mark.parametrize("rank", [0, -1, 1.5, "8"])
def test_a_rank_that_is_not_a_positive_integer_is_refused(rank: Any, toy: eq.Interactions) -> None:
    with pytest.raises(SettingError, match="rank must be"):
        eq.EASE(l2=1).fit(toy).vectors(rank=rank)


def test_models_that_are_not_sums_over_the_history_are_refused(
    synthetic: eq.Interactions,
) -> None:
    sessions = eq.read([("a", "x", 1), ("a", "y", 2), ("b", "x", 1), ("b", "z", 5)], time=2)
    for model in (eq.Popularity().fit(synthetic), eq.SLIS(l2=10).fit(sessions)):
        with pytest.raises(SettingError, match=f"{type(model).__name__} has no vectors"):
            model.vectors()
