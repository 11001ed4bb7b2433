"""Baselines: popularity and item neighbourhoods."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from equipoise.automatic import Auto, neighbourhood_from_counts
from equipoise.checks import count, non_negative
from equipoise.data.interactions import Interactions
from equipoise.data.storage import Fields, Stored
from equipoise.models.base import Recommender, SearchSpace
from equipoise.models.saving import SPARSE, Shapes
from equipoise.ranking.terms import Constant, Sparse, Term
from equipoise.solve.cooccurrence import strongest


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
        How many similar items each item keeps, 5 to 200; "auto" takes it from the data.
    shrink
        Takes weight from similarities that rest on few users, 0 to 100; "auto" takes it from the
        data.

    Attributes
    ----------
    neighbours_, shrink_
        These settings with their numbers, where "auto" was asked for.
    """

    search_space: ClassVar[SearchSpace] = {
        "neighbours": (10, 20, 50, 100, 200),
        "shrink": (0.0, 3.0, 10.0, 50.0),
    }

    neighbours: int | Auto = "auto"
    shrink: float | Auto = "auto"

    neighbours_: int = field(init=False, repr=False)
    shrink_: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.neighbours != "auto":
            count("neighbours", self.neighbours, 1, 2**31 - 1)
        if self.shrink != "auto":
            non_negative("shrink", self.shrink)

    def search_start(self, data: Interactions) -> dict[str, Any]:
        """Return the settings, "auto" as numbers from the data."""
        neighbours, shrink = self._numbers(data)
        return {"neighbours": neighbours, "shrink": shrink}

    def search_point(self) -> dict[str, Any]:
        """Return the settings with the numbers behind "auto"."""
        found = {"neighbours": self.neighbours_, "shrink": self.shrink_}
        return {**super().search_point(), **found}

    def _numbers(self, data: Interactions) -> tuple[int, float]:
        used = [int((each > 0).sum()) for each in (data.item_counts, data.user_counts)]
        found = neighbourhood_from_counts(*(data.n_interactions / max(n, 1) for n in used))
        return (
            found[0] if self.neighbours == "auto" else int(self.neighbours),
            found[1] if self.shrink == "auto" else float(self.shrink),
        )

    def _restore(self, state: Fields, stored: Stored) -> None:
        super()._restore(state, stored)
        self.neighbours_, self.shrink_ = self._numbers(self.interactions_)

    def _fit(self, data: Interactions) -> None:
        self.neighbours_, self.shrink_ = self._numbers(data)
        X = data.matrix.copy()
        if self.signals is None:
            X.data[:] = 1
        squares = X.data.astype(np.float64) ** 2
        root = np.sqrt(np.bincount(X.indices, squares, minlength=data.n_items))
        similarity = strongest(X, self.neighbours_, root, self.shrink_)
        self._keep(data, {"similarity": similarity})

    def _shapes(self) -> Shapes:
        return {"similarity": SPARSE}

    def _make(self, interactions: Interactions, arrays: dict[str, Any]) -> list[Term]:
        ones = np.ones(interactions.n_items, np.float32)
        S = arrays["similarity"]
        return [Sparse(S.data, S.indices, S.indptr, ones, ones)]
