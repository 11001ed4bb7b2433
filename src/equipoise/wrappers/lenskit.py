"""Scorer for LensKit pipelines that wraps any equipoise model."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from lenskit.data import Dataset, ItemList, RecQuery
from lenskit.pipeline import Component
from lenskit.training import Trainable, TrainingOptions
from pydantic import BaseModel

from equipoise import models
from equipoise.checks import choice
from equipoise.data.interactions import Interactions


class EquipoiseConfig(BaseModel):
    """Name and settings of the model; missing settings are chosen from the data."""

    model: str = "EDLAE"
    settings: dict[str, Any] = {"normalizer": "dan"}


class EquipoiseScorer(Component[ItemList], Trainable):
    """Scorer for `topn_pipeline`; scores histories of known and of new users.

    Examples
    --------
    ::

        pipe = topn_pipeline(EquipoiseScorer(settings={"normalizer": "dan"}))
        pipe.train(dataset)
        recommend(pipe, user, n=10)
    """

    config: EquipoiseConfig

    def is_trained(self) -> bool:
        """Return whether there is a fitted model."""
        return hasattr(self, "model_")

    def train(self, data: Dataset, options: TrainingOptions | None = None) -> None:
        """Fit the model on the user-item pairs of a data set, without their values."""
        kind = getattr(models, choice("model", self.config.model, models.__all__))
        matrix = data.interactions().matrix().scipy(layout="csr")
        pairs = Interactions((matrix != 0).astype(np.float32))
        self.items_, self.model_ = data.items, kind(**self.config.settings).fit(pairs)

    def __call__(self, query: RecQuery, items: ItemList) -> ItemList:
        """Score items for a history; unknown items get NaN."""
        history = self._positions(query.query_items or ItemList())
        history = history[history >= 0]
        if not len(history):
            return ItemList(items, scores=np.nan)
        scores = np.append(self.model_.score([history.tolist()])[0], np.nan)
        return ItemList(items, scores=scores[self._positions(items)])

    def _positions(self, items: ItemList) -> npt.NDArray[np.int64]:
        """Return the positions of items in the model, -1 for unknown ones."""
        positions: npt.NDArray[np.int64] = items.numbers(
            vocabulary=self.items_, missing="negative"
        )
        return positions
