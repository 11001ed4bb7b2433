"""V-SkNN: recommend items of the most similar recent sessions (Ludewig and Jannach, 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.checks import count
from equipoise.data.events import Events
from equipoise.data.interactions import Interactions
from equipoise.errors import SettingError
from equipoise.models.base import SearchSpace
from equipoise.models.session_base import SessionModel
from equipoise.ranking.terms import Adder, Rows, Term
from equipoise.runtime.kernels import Floats, compiled


@dataclass(kw_only=True, eq=False)
class VSKNN(SessionModel):
    """Recommends items of the most similar sessions: a strong baseline without training.

    Click p of the L clicks of a session weighs p / L, so the last one counts 1; of repeated clicks
    on an item the last counts. Among the `sample` latest training sessions that share an item with
    the session, the `neighbours` most similar ones vote; similarity is the sum of the weights of
    the shared items. The score of an item is the sum of the similarities of its neighbours. Ties
    go to the later session, by the time of the last click, or by the order of the data without
    times.

    Parameters
    ----------
    neighbours
        k, the number of sessions that vote; 50 to 1000.
    sample
        m, the number of latest sessions to compare with; 500 to 5000.
    last_match
        Whether the vote of a neighbour is divided by how many items ago the last shared item was
        clicked, 1 for the item clicked last.
    repeats
        Whether items of the session may be recommended again.

    References
    ----------
    Ludewig and Jannach, "Evaluation of session-based recommendation algorithms", User Modeling
    and User-Adapted Interaction 28, 2018.

    Examples
    --------
    >>> import equipoise as eq
    >>> import polars as pl
    >>> clicks = pl.DataFrame({"visit": [1, 1, 2, 2], "item": ["tea", "milk", "milk", "cake"]})
    >>> data = eq.read(clicks, session="visit")
    >>> eq.VSKNN().fit(data).recommend(session=["tea", "milk"], k=3, exclude_seen=True).items
    [['cake']]
    """

    explains: ClassVar[bool] = False
    search_space: ClassVar[SearchSpace] = {
        "neighbours": (50, 100, 200, 500),
        "sample": (500, 1000, 2000),
        "last_match": (False, True),
    }

    neighbours: int = 100
    sample: int = 1000
    last_match: bool = False
    repeats: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        count("neighbours", self.neighbours)
        count("sample", self.sample)
        if not isinstance(self.last_match, bool):
            raise SettingError(f"last_match must be True or False, got {self.last_match!r}")

    def _fit(self, data: Interactions) -> None:
        self._keep(data, {})

    def _make(self, interactions: Interactions, arrays: dict[str, Any]) -> list[Term]:
        sessions: Any = interactions.matrix
        events = self._events(interactions)
        if events.times is not None:
            sessions = sessions[np.argsort(events.last_times, kind="stable")]
        return [Neighbours.of(sessions, self.neighbours, self.sample, self.last_match)]

    def _weigh(self, clicks: Events) -> Any:
        lengths = clicks.lengths
        place = np.arange(1, len(clicks.items) + 1) - np.repeat(clicks.offsets[:-1], lengths)
        weights = place.astype(np.float32)  # the term divides by L, after it has compared sums
        shape = (len(clicks), self._fitted.n_items)
        # of equal cells, the last click counts
        cells = clicks.rows * shape[1] + clicks.items
        last = len(cells) - 1 - np.unique(cells[::-1], return_index=True)[1]
        rows: Any = sp.csr_array(
            (weights[last], (clicks.rows[last], clicks.items[last])), shape=shape
        )
        return rows


@dataclass(frozen=True, eq=False)
class Neighbours(Term):
    """Scores of the sessions nearest to a row; sessions are numbered from the oldest on.

    Parameters
    ----------
    offsets, items
        The items of each session, as CSR.
    starts, sessions
        The sessions of each item, ascending, as CSR of the transpose.
    neighbours, sample, last_match
        As for `VSKNN`.
    """

    offsets: npt.NDArray[np.int64]
    items: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    sessions: npt.NDArray[np.int32]
    neighbours: int
    sample: int
    last_match: bool

    @classmethod
    def of(cls, sessions: Any, neighbours: int, sample: int, last_match: bool) -> Neighbours:
        """Index sessions, a row each, oldest first."""
        by_item = sessions.T.tocsr()
        by_item.sort_indices()
        (offsets, items), (starts, ids) = (
            (matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32))
            for matrix in (sessions, by_item)
        )
        sample = min(sample, max(sessions.shape[0], 1))
        return cls(offsets, items, starts, ids, min(neighbours, sample), sample, last_match)

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.starts) - 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the sums."""
        return np.dtype(np.float32)

    @property
    def buffer_size(self) -> int:
        """The neighbours of a row and their votes."""
        return 2 * self.neighbours

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds the votes of the nearest sessions to a block of columns."""
        chosen = np.full((len(rows), self.neighbours), -1, np.int32)
        votes = np.zeros((len(rows), self.neighbours), np.float32)
        history = rows.indptr, rows.indices, rows.values
        index = self.starts, self.sessions, self.sample
        _find_nearest(*history, *index, self.last_match, chosen, votes)

        def add(scores: Floats, low: int) -> None:
            _add_votes(scores, low, self.offsets, self.items, chosen, votes)

        return add


@compiled
def _find_nearest(
    indptr: Any,
    indices: Any,
    weights: Any,
    starts: Any,
    sessions: Any,
    sample: int,
    last_match: bool,
    chosen: Any,
    votes: Any,
) -> None:
    """Fill in the nearest sessions of each row, nearest first, and the weights of their votes.

    Weights are whole numbers up to that of the last click, so similarities that are equal on
    paper are equal here; they are divided by that number at the end.
    """
    candidates = np.empty(sample, np.int32)
    similarity, vote = np.empty(sample), np.empty(sample)
    for row in range(len(indptr) - 1):
        first, size = indptr[row], indptr[row + 1] - indptr[row]
        cursor = np.empty(size, np.int64)  # past the latest session of each item not yet taken
        ago = np.ones(size, np.int64)  # 1 for the item clicked last
        largest = 0.0
        for j in range(size):
            largest = max(largest, weights[first + j])
            cursor[j] = starts[indices[first + j] + 1]
            for other in range(size):
                ago[j] += weights[first + other] > weights[first + j]
        length = 0
        while length < sample:
            latest = -1
            for j in range(size):
                if cursor[j] > starts[indices[first + j]]:
                    latest = max(latest, sessions[cursor[j] - 1])
            if latest < 0:
                break
            total, nearest = 0.0, size
            for j in range(size):
                at = cursor[j]
                if at > starts[indices[first + j]] and sessions[at - 1] == latest:
                    total += weights[first + j]
                    nearest = min(nearest, ago[j])
                    cursor[j] -= 1
            candidates[length], similarity[length] = latest, total
            vote[length] = total / (largest * nearest if last_match else largest)
            length += 1
        # stable: of equally similar sessions the latest come first
        order = np.argsort(-similarity[:length], kind="mergesort")
        for place in range(min(length, chosen.shape[1])):
            chosen[row, place] = candidates[order[place]]
            votes[row, place] = vote[order[place]]


@compiled
def _add_votes(scores: Any, low: int, offsets: Any, items: Any, chosen: Any, votes: Any) -> None:
    width = scores.shape[1]
    for row in range(scores.shape[0]):
        for place in range(chosen.shape[1]):
            session = chosen[row, place]
            if session < 0:
                break
            for entry in range(offsets[session], offsets[session + 1]):
                column = items[entry] - low
                if 0 <= column < width:
                    scores[row, column] += votes[row, place]
