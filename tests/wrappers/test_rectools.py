"""Runs in an environment that has RecTools: `make bench` makes one and runs this file in it."""

from __future__ import annotations

import numpy as np
import pytest

import equipoise as eq

pytest.importorskip("rectools", reason="RecTools is not installed")
pd = pytest.importorskip("pandas")

from rectools import Columns  # noqa: E402
from rectools.dataset import Dataset  # noqa: E402
from rectools.metrics import Recall  # noqa: E402
from rectools.model_selection import LastNSplitter, cross_validate  # noqa: E402

from equipoise.wrappers.rectools import EquipoiseModel  # noqa: E402


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    drawn = pd.DataFrame({Columns.User: rng.integers(60, size=700), "film": rng.zipf(1.4, 700)})
    drawn = drawn[drawn["film"] <= 25].drop_duplicates()
    drawn[Columns.Item] = "film " + drawn.pop("film").astype(str)
    drawn[Columns.Weight] = 1.0
    return drawn.assign(**{Columns.Datetime: pd.Timestamp("2026-01-01")})


def test_lists_are_those_of_the_model_under_the_ids_of_the_frame(frame: pd.DataFrame) -> None:
    dataset = Dataset.construct(frame)
    model = EquipoiseModel(eq.EASE(l2=20, dropout=0.3, normalizer=eq.DAN())).fit(dataset)
    users = frame[Columns.User].unique()[:15]
    recommended = model.recommend(users, dataset, k=5, filter_viewed=True)

    data = eq.read(frame, user=Columns.User, item=Columns.Item)
    direct = eq.EASE(l2=20, dropout=0.3, normalizer=eq.DAN()).fit(data)
    for user, user_list in recommended.groupby(Columns.User):
        all_scores = direct.score([user])[0]
        scores = all_scores[data.item_index.positions(user_list[Columns.Item].to_numpy())]
        np.testing.assert_allclose(user_list[Columns.Score], scores, rtol=1e-4)
        seen = set(frame.loc[frame[Columns.User] == user, Columns.Item])
        assert not seen & set(user_list[Columns.Item])
        assert user_list[Columns.Rank].tolist() == list(range(1, len(user_list) + 1))


def test_a_whitelist_and_seen_items_are_the_callers_choice(frame: pd.DataFrame) -> None:
    dataset = Dataset.construct(frame)
    model = EquipoiseModel(eq.EASE(l2=20, dropout=0)).fit(dataset)
    allowed = frame[Columns.Item].unique()[:6]
    recommended = model.recommend(
        frame[Columns.User].unique(), dataset, k=6, filter_viewed=False, items_to_recommend=allowed
    )
    assert set(recommended[Columns.Item]) == set(allowed)


def test_items_like_an_item_leave_it_out(frame: pd.DataFrame) -> None:
    dataset = Dataset.construct(frame)
    model = EquipoiseModel(eq.EASE(l2=20, dropout=0)).fit(dataset)
    items = frame[Columns.Item].unique()[:4]
    recommended = model.recommend_to_items(items, dataset, k=3)
    assert (recommended.groupby(Columns.TargetItem).size() == 3).all()
    assert (recommended[Columns.TargetItem] != recommended[Columns.Item]).all()


def test_it_is_cross_validated_beside_their_models(frame: pd.DataFrame) -> None:
    recommended = cross_validate(
        Dataset.construct(frame),
        LastNSplitter(1, filter_cold_users=True, filter_cold_items=True),
        {"recall": Recall(5)},
        {"ours": EquipoiseModel(eq.EDLAE(normalizer=eq.DAN()))},
        k=5,
        filter_viewed=True,
    )
    assert 0 <= recommended["metrics"][0]["recall"] <= 1


def test_no_users_give_no_lists(frame: pd.DataFrame) -> None:
    dataset = Dataset.construct(frame)
    model = EquipoiseModel(eq.EASE(l2=20, dropout=0)).fit(dataset)
    nobody = np.empty(0, np.int64)
    # what RecTools asks of a model
    for triplet in (
        model._recommend_u2i(nobody, dataset, 3, True, None),
        model._recommend_i2i(nobody, dataset, 3, None),
    ):
        assert [len(column) for column in triplet] == [0, 0, 0]
    assert model.recommend(nobody, dataset, k=3, filter_viewed=True).empty
