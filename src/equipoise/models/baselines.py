"""Baselines: popularity and item neighbourhoods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from equipoise.checks import count, non_negative
from equipoise.cooccurrence import strongest
from equipoise.interactions import Interactions
from equipoise.models.base import Recommender, SearchSpace
from equipoise.models.saving import SPARSE, Shapes
from equipoise.ranking.terms import Constant, Sparse, Term


@dataclass(kw_only=True, eq=False)
class Popularity(Recommender):
    """The items with most users, for every user; with `signals` those that are worth most."""

    def _fit(self, data: Interactions) -> None:
        self._keep(data, {})

    def _make(self, interactions: Interactions, arrays: dict[str, Any]) -> list[Term]:
        if self.signals is None:
            return [Constant(interactions.item_counts.astype(np.float32))]
        return [Constant(interactions.matrix.sum(axis=0).astype(np.float32))]


@dataclass(kw_only=True, eq=False)
class ItemKNN(Recommender):
    """Items that share users with those of the history, by cosine.

    Similarity of i and j: freq(i, j) / (sqrt(freq(i) freq(j)) + shrink), kept for the
    `neighbours` most similar items j of each i. With `signals` freq(i, j) is the sum over users of
    the product of what i and j are worth to them; otherwise each pair counts 1.

    Parameters
    ----------
    neighbours
        How many similar items each item keeps; 20 to 500.
    shrink
        Takes weight from similarities that rest on few users; 0 to 100.
    """

    search_space: ClassVar[SearchSpace] = {
        "neighbours": (20, 50, 100, 200, 500),
        "shrink": (0.0, 10.0, 50.0, 100.0),
    }

    neighbours: int = 100
    shrink: float = 10.0

    def __post_init__(self) -> None:
        count("neighbours", self.neighbours)
        non_negative("shrink", self.shrink)

    def _fit(self, data: Interactions) -> None:
        X = data.matrix.copy()
        if self.signals is None:
            X.data[:] = 1
        squares = X.data.astype(np.float64) ** 2
        root = np.sqrt(np.bincount(X.indices, squares, minlength=data.n_items))
        similarity = strongest(X, self.neighbours, root, self.shrink)
        self._keep(data, {"similarity": similarity})

    def _shapes(self) -> Shapes:
        return {"similarity": SPARSE}

    def _make(self, interactions: Interactions, arrays: dict[str, Any]) -> list[Term]:
        ones = np.ones(interactions.n_items, np.float32)
        S = arrays["similarity"]
        return [Sparse(S.data, S.indices, S.indptr, ones, ones)]
