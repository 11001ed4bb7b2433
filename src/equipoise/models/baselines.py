"""Baselines: popularity and item neighbourhoods."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

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
    """Recommends the most popular items: by number of users, or by the sum of `signals`."""

    def _fit(self, data: Interactions, options: Any) -> None:
        self._keep(data, {})

    def _make(self, interactions: Interactions, arrays: dict[str, Any]) -> list[Term]:
        if self.signals is None:
            return [Constant(interactions.item_counts.astype(np.float32))]
        return [Constant(interactions.matrix.sum(axis=0).astype(np.float32))]

    @property
    def _fallback_scores(self) -> npt.NDArray[Any]:
        """Scores of the items for users without a history: those of all users."""
        (popularity,) = self._terms()
        assert isinstance(popularity, Constant)
        return popularity.scores if self._active_trend is None else super()._fallback_scores


@dataclass(kw_only=True, eq=False)
class ItemKNN(Recommender):
    """Item neighbourhoods: items that share users with those of the history, by cosine.

    Similarity of i and j: freq(i, j) / (sqrt(freq(i) freq(j)) + shrink), for the `neighbours` most
    similar items j of each i. freq(i, j) counts the users of both items; with `signals` it is the
    sum over users of the product of both weights.

    Parameters
    ----------
    neighbours
        Number of similar items of each item, 5 to 200; "auto" takes it from the data.
    shrink
        Lowers similarities that rest on few users, 0 to 100; "auto" takes it from the data.

    Attributes
    ----------
    neighbours_, shrink_
        These settings, with numbers in place of "auto".
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

    def _search_start(self, data: Interactions) -> dict[str, Any]:
        neighbours, shrink = self._numbers(data)
        return {"neighbours": neighbours, "shrink": shrink}

    def _search_point(self) -> dict[str, Any]:
        numbers = {"neighbours": self.neighbours_, "shrink": self.shrink_}
        return super()._search_point() | numbers

    def _numbers(self, data: Interactions) -> tuple[int, float]:
        n_used = [int((counts > 0).sum()) for counts in (data.item_counts, data.user_counts)]
        mean_counts = (data.n_interactions / max(n, 1) for n in n_used)
        neighbours, shrink = neighbourhood_from_counts(*mean_counts)
        return (
            neighbours if self.neighbours == "auto" else int(self.neighbours),
            shrink if self.shrink == "auto" else float(self.shrink),
        )

    def _restore(self, state: Fields, stored: Stored) -> None:
        super()._restore(state, stored)
        self.neighbours_, self.shrink_ = self._numbers(self.interactions_)

    def _fit(self, data: Interactions, options: Any) -> None:
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
