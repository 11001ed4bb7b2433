"""Scores of people who have a vector of their own, found by their histories."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.errors import DataError
from equipoise.matrix import Csr
from equipoise.terms import Adder, LowRank, Rows

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class PeopleTerm:
    """Scores a person's vector times the vectors of the items.

    Parameters
    ----------
    model
        Name of the model, for errors.
    people, vectors
        Row of the person's vector, by the bytes of the history; the vectors.
    low
        Its right factor holds the vectors of the items.
    """

    model: str
    people: dict[bytes, int]
    vectors: Array
    low: LowRank

    @property
    def n_items(self) -> int:
        """Number of items."""
        return self.low.n_items

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the sums."""
        return self.low.dtype

    @property
    def held(self) -> int:
        """The vector."""
        return self.low.held

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds this term's scores to a block of columns."""
        hidden = np.zeros((len(rows), self.vectors.shape[1]), self.dtype)
        for row, (start, stop) in enumerate(pairwise(rows.indptr.tolist())):
            if stop > start:
                hidden[row] = self.vectors[self._person(rows, start, stop)]
        return self.low.product(hidden)

    def _person(self, rows: Rows, start: int, stop: int) -> int:
        place = self.people.get(_key(rows.indices[start:stop], rows.values[start:stop]))
        if place is None:
            raise DataError(
                f"{self.model} ranks only the people it was fitted on, by the histories it was "
                "fitted on; fit it with these histories, or take a model without this limit"
            )
        return place


def by_history(X: Csr, vectors: Array) -> tuple[dict[bytes, int], Array]:
    """Return the number of each distinct history, and the mean vector of its people."""
    people: dict[bytes, int] = {}
    group = np.empty(X.shape[0], np.int64)
    for row, (start, stop) in enumerate(pairwise(X.indptr.tolist())):
        key = _key(X.indices[start:stop], X.data[start:stop])
        group[row] = people.setdefault(key, len(people))
    total = np.zeros((len(people), vectors.shape[1]))
    np.add.at(total, group, vectors)
    size = np.bincount(group, minlength=len(people))
    return people, (total / size[:, None]).astype(vectors.dtype)


def _key(indices: Array, values: Array) -> bytes:
    return np.asarray(indices, np.int32).tobytes() + np.asarray(values, np.float32).tobytes()
