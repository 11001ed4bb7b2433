"""Scores of users who have numbers of their own: found by position, else by their histories."""

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
SEVERAL = -2


class KnownUsers:
    """The users a model was fitted on.

    A row that comes with a user's position is that user, if it is the history the model was fitted
    on. A bare history is the one user who has it; shared by several it is nobody's.

    Parameters
    ----------
    model
        Name of the model, for errors.
    X
        Training data, users x items.
    alike
        Whether users with equal histories have equal scores, so that any of them will do.
    """

    def __init__(self, model: str, X: Csr, *, alike: bool = False) -> None:
        self.model = model
        self._keys = [
            _key(X.indices[start:stop], X.data[start:stop])
            for start, stop in pairwise(X.indptr.tolist())
        ]
        self._places: dict[bytes, int] = {}
        for place, key in enumerate(self._keys):
            known = self._places.setdefault(key, place)
            if known != place and not alike:
                self._places[key] = SEVERAL

    def places(self, rows: Rows) -> list[int]:
        """Return the position of the user of each row, -1 for an empty history."""
        asked = [-1] * len(rows) if rows.users is None else rows.users.tolist()
        ends = pairwise(rows.indptr.tolist())
        return [
            self._place(_key(rows.indices[start:stop], rows.values[start:stop]), place)
            for place, (start, stop) in zip(asked, ends, strict=True)
        ]

    def _place(self, key: bytes, asked: int) -> int:
        if not key:
            return -1
        if asked >= 0 and self._keys[asked] == key:
            return asked
        place = self._places.get(key, -1)
        if place == SEVERAL:
            raise DataError(
                f"several users of {self.model} have this history, and vectors of their own; ask "
                "for one of them by id, or take a model that ranks for any history"
            )
        if place < 0:
            raise DataError(
                f"{self.model} ranks only the users it was fitted on, by the histories it was "
                "fitted on; fit it with these histories, or take a model without this limit"
            )
        return place


@dataclass(frozen=True, eq=False)
class PeopleTerm:
    """Scores a user's vector times the vectors of the items.

    Parameters
    ----------
    known
        The users who have a vector.
    vectors
        Their vectors, one row per user.
    low
        Its right factor holds the vectors of the items.
    """

    known: KnownUsers
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
        places = np.array(self.known.places(rows), np.int64)
        hidden = np.zeros((len(rows), self.vectors.shape[1]), self.dtype)
        hidden[places >= 0] = self.vectors[places[places >= 0]]
        return self.low.product(hidden)


def _key(indices: Array, values: Array) -> bytes:
    return np.asarray(indices, np.int32).tobytes() + np.asarray(values, np.float32).tobytes()
