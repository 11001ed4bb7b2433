"""RecTools model that wraps any equipoise model."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from rectools.dataset import Dataset
from rectools.models.base import ModelBase

from equipoise.data.interactions import Interactions
from equipoise.models.base import Recommender
from equipoise.models.recommendations import Recommendations

Triplet = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]


class EquipoiseModel(ModelBase):
    """Model for `cross_validate` and all other functions that take a RecTools model.

    Parameters
    ----------
    model
        Model to copy and fit; the fitted copy is `model_`.
    verbose
        As in RecTools; has no effect.

    Examples
    --------
    ::

        model = EquipoiseModel(eq.EDLAE(normalizer=eq.DAN())).fit(dataset)
        model.recommend(users, dataset, k=10, filter_viewed=True)
    """

    def __init__(self, model: Recommender, verbose: int = 0) -> None:
        super().__init__(verbose=verbose)
        self.model = model

    def _fit(self, dataset: Dataset) -> None:
        self.model_ = self.model.clone().fit(self._rows(dataset))

    def _rows(self, dataset: Dataset, users: npt.NDArray[Any] | None = None) -> Interactions:
        """Return users of a data set; ids are RecTools' internal positions."""
        matrix = dataset.get_user_item_matrix(include_weights=True)
        return Interactions(matrix if users is None else matrix[users])

    def _recommend_u2i(
        self,
        user_ids: npt.NDArray[Any],
        dataset: Dataset,
        k: int,
        filter_viewed: bool,
        sorted_item_ids_to_recommend: npt.NDArray[Any] | None,
    ) -> Triplet:
        recommended = self.model_.recommend(
            self._rows(dataset, user_ids),
            k,
            exclude_seen=filter_viewed,
            candidates=sorted_item_ids_to_recommend,
        )
        return _triplet(user_ids, recommended)

    def _recommend_i2i(
        self,
        target_ids: npt.NDArray[Any],
        dataset: Dataset,
        k: int,
        sorted_item_ids_to_recommend: npt.NDArray[Any] | None,
    ) -> Triplet:
        recommended = self.model_.recommend(
            [[item] for item in target_ids.tolist()],
            k,
            exclude_seen=False,
            candidates=sorted_item_ids_to_recommend,
        )
        return _triplet(target_ids, recommended)


def _triplet(targets: npt.NDArray[Any], recommended: Recommendations) -> Triplet:
    lengths = np.array([len(items) for items in recommended.items], np.int64)
    items = np.fromiter((item for row in recommended.items for item in row), np.int64)
    scores = np.concatenate([*recommended.scores, np.empty(0, np.float32)])
    return np.repeat(targets, lengths), items, scores
