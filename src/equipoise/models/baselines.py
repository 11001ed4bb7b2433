"""Yardsticks every model has to beat: popularity and item neighbourhoods."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from equipoise.checks import count, non_negative
from equipoise.interactions import Interactions
from equipoise.manifest import Fields
from equipoise.models.base import Recommender, SearchSpace
from equipoise.models.saving import sparse_arrays, sparse_from
from equipoise.ranking.terms import Constant, Sparse, Term
from equipoise.storage import Stored


@dataclass(kw_only=True, eq=False)
class Popularity(Recommender):
    """Everybody gets the items that most people used."""

    def _fit(self, data: Interactions) -> None:
        self.interactions_ = data

    def terms(self, alpha: float | None = None) -> list[Term]:
        """Return the counts as a score that no history changes."""
        return [Constant(self.item_counts_.astype(np.float32))]


@dataclass(kw_only=True, eq=False)
class ItemKNN(Recommender):
    """Items that share users with those of the history, by cosine.

    Similarity of i and j: freq(i, j) / (sqrt(freq(i) freq(j)) + shrink), kept for the
    `neighbours` most similar items j of each i.

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

    similarity_: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        count("neighbours", self.neighbours)
        non_negative("shrink", self.shrink)

    def _fit(self, data: Interactions) -> None:
        X = data.matrix.copy()
        X.data[:] = 1
        similarity = (X.T @ X).tocsr()
        similarity.setdiag(0)
        similarity.eliminate_zeros()
        similarity.sort_indices()
        root = np.sqrt(data.item_counts.astype(np.float64))
        row = np.repeat(np.arange(data.n_items), np.diff(similarity.indptr))
        norm = root[row] * root[similarity.indices] + self.shrink
        similarity.data = (similarity.data / norm).astype(np.float32)
        self.similarity_ = _largest_of_rows(similarity, self.neighbours)
        self.interactions_ = data

    def terms(self, alpha: float | None = None) -> list[Term]:
        """Return the similarities as one sparse term."""
        ones = np.ones(len(self.item_index_), np.float32)
        S = self.similarity_
        return [Sparse(S.data, S.indices, S.indptr, ones, ones)]

    def _state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        return {}, sparse_arrays(self.similarity_, "similarity")

    def _restore(self, state: Fields, stored: Stored) -> None:
        self.similarity_ = sparse_from(stored, "similarity", len(self.item_index_))


def _largest_of_rows(matrix: Any, keep: int) -> Any:
    """Keep the largest values of each row; equal ones by position."""
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    order = np.lexsort((matrix.indices, -matrix.data, row))
    rank = np.arange(len(order)) - matrix.indptr[row[order]]
    dropped = order[rank >= keep]
    out = matrix.copy()
    out.data[dropped] = 0
    out.eliminate_zeros()
    return out
