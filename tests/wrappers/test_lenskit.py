"""Runs in an environment that has LensKit: `make bench` makes one and runs this file in it."""

from __future__ import annotations

import numpy as np
import pytest

import equipoise as eq

pytest.importorskip("lenskit", reason="LensKit is not installed")
pd = pytest.importorskip("pandas")

from lenskit import recommend  # noqa: E402
from lenskit.data import Dataset, ItemList, RecQuery, from_interactions_df  # noqa: E402
from lenskit.knn import EASEScorer  # noqa: E402
from lenskit.pipeline import topn_pipeline  # noqa: E402

from equipoise.wrappers.lenskit import EquipoiseScorer  # noqa: E402


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    drawn = {"user_id": rng.integers(60, size=700), "item_id": 7 * rng.zipf(1.4, 700)}
    drawn = pd.DataFrame(drawn).drop_duplicates()
    return drawn[drawn["item_id"] <= 7 * 25]


@pytest.fixture
def dataset(frame: pd.DataFrame) -> Dataset:
    return from_interactions_df(frame)


def test_plain_ease_scores_as_theirs(dataset: Dataset) -> None:
    settings = {"l2": 5, "dropout": 0}
    equipoise_scorer, lenskit_scorer = (
        EquipoiseScorer(settings=settings),
        EASEScorer(regularization=5),
    )
    query = RecQuery(history_items=ItemList(item_ids=dataset.items.ids()[:4]))
    items = ItemList(item_ids=dataset.items.ids())
    scores = []
    for scorer in (equipoise_scorer, lenskit_scorer):
        scorer.train(dataset)
        scores.append(scorer(query, items).scores())
    np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-6)  # both solve in float32


def test_a_pipeline_recommends_to_known_and_to_new_users(
    frame: pd.DataFrame, dataset: Dataset
) -> None:
    pipe = topn_pipeline(EquipoiseScorer())
    pipe.train(dataset)
    user = int(frame["user_id"].iloc[0])
    seen = set(frame.loc[frame["user_id"] == user, "item_id"])
    recommended = recommend(pipe, user, n=5)
    assert len(recommended) == 5
    assert not seen & set(recommended.ids())
    model = eq.EDLAE(normalizer=eq.DAN()).fit(eq.read(frame, user="user_id", item="item_id"))
    assert recommended.ids().tolist() == model.recommend([user], k=5).items[0]
    fresh = recommend(pipe, RecQuery(history_items=ItemList(item_ids=[7, 14])), n=5)
    assert fresh.ids().tolist() == model.recommend([[7, 14]], k=5).items[0]


def test_items_it_does_not_know_have_no_score(dataset: Dataset) -> None:
    scorer = EquipoiseScorer(model="ItemKNN", settings={})
    scorer.train(dataset)
    query = RecQuery(history_items=ItemList(item_ids=[7, 9999]))
    scores = scorer(query, ItemList(item_ids=[14, 8888])).scores()
    assert np.isfinite(scores[0])
    assert np.isnan(scores[1])
    nothing = scorer(RecQuery(history_items=ItemList(item_ids=[9999])), ItemList(item_ids=[14]))
    assert np.isnan(nothing.scores()).all()


def test_a_model_that_is_not_there_is_named(dataset: Dataset) -> None:
    with pytest.raises(eq.errors.SettingError, match="model must be"):
        EquipoiseScorer(model="EASY").train(dataset)
