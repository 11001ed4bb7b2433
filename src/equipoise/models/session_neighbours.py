"""V-SkNN, STAN and V-STAN: recommend items of the most similar training sessions.

The three models differ in the weights of the session's clicks, of the training sessions and of the
items in them; which sessions are nearest and how they vote is the same `Neighbours` term.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise import checks
from equipoise.data.events import Events
from equipoise.data.interactions import Interactions
from equipoise.errors import SettingError
from equipoise.models.base import SearchSpace
from equipoise.models.session_base import SessionModel
from equipoise.models.session_solver import time_weights
from equipoise.ranking.terms import Adder, Rows, Term
from equipoise.runtime.kernels import Floats, compiled

SMALLEST = 1e-30  # weight of a click long ago, which stays part of the session

Vector = npt.NDArray[np.float64]


@dataclass(kw_only=True, eq=False)
class SessionNeighbours(SessionModel):
    """Base of the models in which the most similar sessions vote for their items."""

    explains: ClassVar[bool] = False

    neighbours: int = 100
    sample: int = 1000
    repeats: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count("neighbours", self.neighbours)
        checks.count("sample", self.sample)

    def _fit(self, data: Interactions, options: Any) -> None:
        self._keep(data, {})

    def _make(self, interactions: Interactions, arrays: dict[str, Any]) -> list[Term]:
        events = self._events(interactions)
        sessions, weights = (
            last_clicks(events, interactions.n_items),
            self._session_weights(interactions),
        )
        if events.times is not None:
            order = np.argsort(events.last_times, kind="stable")
            sessions, weights = sessions[order], weights[order]
        return [Neighbours.of(self.clone(), sessions, weights)]

    def _weigh_events(self, events: Events) -> Any:
        """Return the weights of clicks: the place of the last click on an item."""
        return last_clicks(events, self._fitted.n_items)

    def _session_weights(self, interactions: Interactions) -> Vector:
        """Return the weight of each training session by its age."""
        return np.ones(interactions.n_users)

    def _click_weights(self, ago: Vector, places: Vector) -> Vector:
        """Return what a click adds to the similarity, `ago` clicks before the last one.

        `places` are the numbers of the clicks in their session, from 1.
        """
        raise NotImplementedError

    def _match_divisors(self, ago: Vector, rank: Vector, length: Vector) -> Vector:
        """Return what the vote of a session is divided by, for its latest shared item.

        The item was clicked `ago` clicks before the last one; `rank` is 1 for the item clicked
        last, 2 for the item before it; the session has `length` clicks.
        """
        return np.ones(len(ago))

    def _size_divisors(self, sizes: Vector) -> Vector:
        """Return what the similarity of a training session of so many items is divided by."""
        return np.ones(len(sizes))

    def _distance_weights(self, longest: int) -> Vector:
        """Return the weight of an item so many clicks from the shared item, 0 to `longest`."""
        return np.ones(longest + 1)

    def _item_weights(self, frequency: Vector) -> Vector:
        """Return the weight of each item in so large a share of the training sessions."""
        return np.ones(len(frequency))


@dataclass(kw_only=True, eq=False)
class VSKNN(SessionNeighbours):
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

    search_space: ClassVar[SearchSpace] = {
        "neighbours": (50, 100, 200, 500),
        "sample": (500, 1000, 2000),
        "last_match": (False, True),
    }

    last_match: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.last_match, bool):
            raise SettingError(f"last_match must be True or False, got {self.last_match!r}")

    def _click_weights(self, ago: Vector, places: Vector) -> Vector:
        """Return the places, whole numbers: equal similarities are equal here too."""
        return places

    def _match_divisors(self, ago: Vector, rank: Vector, length: Vector) -> Vector:
        """Return the length of the session, which the click weights leave out."""
        return length * rank if self.last_match else length


@dataclass(kw_only=True, eq=False)
class STAN(SessionNeighbours):
    """Recommends items that are near the shared item in the most similar, most recent sessions.

    The similarity of session s to training session n is the sum over their shared items of
    exp(-ago / decay_inference), divided by the root of the number of items in n, times
    exp(-age / decay_time): s clicked the item `ago` clicks before its last click, and n is `age`
    days older than the latest session. The `neighbours` most similar of the `sample` latest
    sessions that share an item with s vote. A neighbour gives item j its similarity times
    exp(-distance / decay_position): the clicks in n between j and the shared item that s clicked
    last. Of repeated clicks on an item the last counts.

    Parameters
    ----------
    neighbours
        k, the number of sessions that vote; 100 to 2000.
    sample
        The number of latest sessions to compare with; 1000 to 10000.
    decay_inference
        lambda_1, in clicks: how fast the weight of earlier clicks of the session falls; None: no
        decay.
    decay_time
        lambda_2, in days: a session this much older than the latest counts exp(-1); None: no
        decay.
    decay_position
        lambda_3, in clicks: how fast a vote falls with the distance from the shared item; None: no
        decay.
    repeats
        Whether items of the session may be recommended again.

    References
    ----------
    Garg, Gupta, Malhotra, Vig and Shroff, "Sequence and Time Aware Neighborhood for Session-based
    Recommendations: STAN", SIGIR 2019.

    Examples
    --------
    >>> import equipoise as eq
    >>> import polars as pl
    >>> clicks = pl.DataFrame({"visit": [1, 1, 2, 2], "item": ["tea", "milk", "milk", "cake"]})
    >>> data = eq.read(clicks, session="visit")
    >>> eq.STAN().fit(data).recommend(session=["tea", "milk"], k=3, exclude_seen=True).items
    [['cake']]
    """

    search_space: ClassVar[SearchSpace] = {
        "neighbours": (100, 500),
        "decay_inference": (0.5, 1.0, 2.0, 4.0),
        "decay_position": (0.5, 1.0, 2.0, 4.0),
    }

    neighbours: int = 500
    sample: int = 2500
    decay_inference: float | None = 1.0
    decay_time: float | None = None
    decay_position: float | None = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_decays("decay_inference", "decay_time", "decay_position")

    def _session_weights(self, interactions: Interactions) -> Vector:
        # the age is counted from the latest session: that of the query is the same for all
        return time_weights(interactions, self.decay_time)

    def _click_weights(self, ago: Vector, places: Vector) -> Vector:
        """Return exp(-ago / decay_inference)."""
        return _decayed(ago, self.decay_inference)

    def _size_divisors(self, sizes: Vector) -> Vector:
        """Return the length of the training session as a vector of ones."""
        return np.sqrt(np.maximum(sizes, 1))

    def _distance_weights(self, longest: int) -> Vector:
        """Return exp(-distance / decay_position)."""
        return _decayed(np.arange(longest + 1.0), self.decay_position)


@dataclass(kw_only=True, eq=False)
class VSTAN(STAN):
    """STAN with two ideas of V-SkNN: votes by the latest match, and rare items weigh more.

    The vote of `STAN` for item j is also multiplied by exp(-ago / decay_match), where the shared
    item clicked last was clicked `ago` clicks before the last click, and by 1 + idf * log(number
    of sessions / number of sessions with j).

    Parameters
    ----------
    decay_match
        In clicks: how fast a vote falls with the age of the latest shared item; None: no decay.
    idf
        Weight of the inverse document frequency; 0: none, 1 to 10.
    neighbours, sample, decay_inference, decay_time, decay_position, repeats
        As for `STAN`.

    References
    ----------
    Ludewig, Mauro, Latifi and Jannach, "Empirical analysis of session-based recommendation
    algorithms", User Modeling and User-Adapted Interaction 31, 2021.

    Examples
    --------
    >>> import equipoise as eq
    >>> import polars as pl
    >>> clicks = pl.DataFrame({"visit": [1, 1, 2, 2], "item": ["tea", "milk", "milk", "cake"]})
    >>> data = eq.read(clicks, session="visit")
    >>> eq.VSTAN().fit(data).recommend(session=["tea", "milk"], k=3, exclude_seen=True).items
    [['cake']]
    """

    search_space: ClassVar[SearchSpace] = {
        "decay_inference": (0.5, 1.0, 2.0, 4.0),
        "decay_position": (0.5, 1.0, 2.0, 4.0),
        "decay_match": (1.0, 4.0),
        "idf": (0.0, 1.0),
    }

    decay_match: float | None = 1.0
    idf: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_decays("decay_match")
        checks.non_negative("idf", self.idf)

    def _match_divisors(self, ago: Vector, rank: Vector, length: Vector) -> Vector:
        """Return exp(ago / decay_match)."""
        return 1 / _decayed(ago, self.decay_match)

    def _item_weights(self, frequency: Vector) -> Vector:
        """Return 1 + idf * log(1 / frequency)."""
        # an item without sessions gets no votes
        return 1 - self.idf * np.log(np.where(frequency > 0, frequency, 1.0))


def _decayed(distance: Vector, decay: float | None) -> Vector:
    if decay is None:
        return np.ones(len(distance))
    return np.maximum(np.exp(-distance / decay), SMALLEST)


def last_clicks(clicks: Events, n_items: int) -> Any:
    """Return the number of the last click on each item in its session, sessions x items.

    The clicks of a session are numbered from 1.
    """
    place = np.arange(1, len(clicks.items) + 1) - np.repeat(clicks.offsets[:-1], clicks.lengths)
    cells = clicks.rows * n_items + clicks.items
    last = len(cells) - 1 - np.unique(cells[::-1], return_index=True)[1]
    position = clicks.rows[last], clicks.items[last]
    rows: Any = sp.csr_array((place[last].astype(np.float32), position), (len(clicks), n_items))
    return rows


@dataclass(frozen=True, eq=False)
class Neighbours(Term):
    """Scores of the sessions nearest to a row; sessions are numbered from the oldest on.

    Parameters
    ----------
    model
        The unfitted model, which weighs clicks and items.
    offsets, items, places
        The items of each session and the number of their last click in it, as CSR.
    starts, sessions
        The sessions of each item, ascending, as CSR of the transpose.
    session_weights
        Factors of the similarity to each session.
    distance_weights
        Factors of a vote by the distance from the shared item, in clicks.
    item_weights
        Factors of the votes for each item.
    """

    model: SessionNeighbours
    offsets: npt.NDArray[np.int64]
    items: npt.NDArray[np.int32]
    places: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    sessions: npt.NDArray[np.int32]
    session_weights: Vector
    distance_weights: Vector
    item_weights: Vector

    @classmethod
    def of(cls, model: SessionNeighbours, sessions: Any, weights: Vector) -> Neighbours:
        """Index sessions, a row each, oldest first."""
        by_item = sessions.T.tocsr()
        by_item.sort_indices()
        (offsets, items), (starts, ids) = (
            (matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32))
            for matrix in (sessions, by_item)
        )
        n_sessions = max(sessions.shape[0], 1)
        return cls(
            model,
            offsets,
            items,
            sessions.data.astype(np.int32),
            starts,
            ids,
            weights / model._size_divisors(np.diff(offsets).astype(float)),
            model._distance_weights(int(sessions.data.max(initial=0))),
            model._item_weights(np.diff(starts) / n_sessions),
        )

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
        """The neighbours of a row, their votes and the places of the shared items."""
        return 3 * self.room[1]

    @property
    def room(self) -> tuple[int, int]:
        """Largest numbers of sessions that are compared and that vote."""
        sample = min(self.model.sample, max(len(self.offsets) - 1, 1))
        return sample, min(self.model.neighbours, sample)

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds the votes of the nearest sessions to a block of columns."""
        sample, neighbours = self.room
        chosen = np.full((len(rows), neighbours), -1, np.int32)
        shared = np.zeros((len(rows), neighbours), np.int32)
        votes = np.zeros((len(rows), neighbours), np.float32)
        history = rows.indptr, rows.indices, rows.values, *self._weights(rows)
        index = self.starts, self.sessions, self.offsets, self.items, self.places
        _find_nearest(*history, *index, self.session_weights, sample, chosen, votes, shared)
        weights = self.distance_weights, self.item_weights

        def add(scores: Floats, low: int) -> None:
            entries = self.offsets, self.items, self.places
            _add_votes(scores, low, *entries, *weights, chosen, votes, shared)

        return add

    def _weights(self, rows: Rows) -> tuple[Vector, Vector]:
        """Return the click weights and match divisors of the entries of rows of `last_clicks`."""
        places = rows.values.astype(np.float64)
        row = np.repeat(np.arange(len(rows)), np.diff(rows.indptr))
        length = np.zeros(len(rows))
        np.maximum.at(length, row, places)
        latest_first = np.lexsort((-places, row))
        is_later = np.diff(places[latest_first], prepend=np.inf) != 0
        is_later[rows.indptr[:-1][np.diff(rows.indptr) > 0]] = True
        # equal places, of histories without an order, have the rank of the first of them
        first = np.maximum.accumulate(np.where(is_later, np.arange(len(places)), 0))
        rank = np.empty(len(places))
        rank[latest_first] = 1 + first - rows.indptr[row]
        ago = length[row] - places
        return (
            self.model._click_weights(ago, places),
            self.model._match_divisors(ago, rank, length[row]),
        )


@compiled
def _find_nearest(
    indptr: Any,
    indices: Any,
    places: Any,
    weights: Any,
    divisors: Any,
    starts: Any,
    sessions: Any,
    offsets: Any,
    items: Any,
    session_places: Any,
    session_weights: Any,
    sample: int,
    chosen: Any,
    votes: Any,
    shared: Any,
) -> None:
    """Fill in the nearest sessions of each row, nearest first, and the weights of their votes.

    `shared` gets the place in the session of the shared item that the row clicked last.
    """
    candidates, match = np.empty(sample, np.int32), np.empty(sample, np.int64)
    similarity = np.empty(sample)
    for row in range(len(indptr) - 1):
        first, size = indptr[row], indptr[row + 1] - indptr[row]
        cursor = np.empty(size, np.int64)  # past the latest session of each item not yet taken
        for j in range(size):
            cursor[j] = starts[indices[first + j] + 1]
        length = 0
        while length < sample:
            latest = -1
            for j in range(size):
                if cursor[j] > starts[indices[first + j]]:
                    latest = max(latest, sessions[cursor[j] - 1])
            if latest < 0:
                break
            total, last = 0.0, -1
            for j in range(size):
                at = cursor[j]
                if at > starts[indices[first + j]] and sessions[at - 1] == latest:
                    total += weights[first + j]
                    if last < 0 or places[first + j] > places[last]:
                        last = first + j
                    cursor[j] -= 1
            candidates[length], match[length] = latest, last
            similarity[length] = total * session_weights[latest]
            length += 1
        # stable: of equally similar sessions the latest come first
        order = np.argsort(-similarity[:length], kind="mergesort")
        for place in range(min(length, chosen.shape[1])):
            session, last = candidates[order[place]], match[order[place]]
            chosen[row, place] = session
            votes[row, place] = similarity[order[place]] / divisors[last]
            for entry in range(offsets[session], offsets[session + 1]):
                if items[entry] == indices[last]:
                    shared[row, place] = session_places[entry]


@compiled
def _add_votes(
    scores: Any,
    low: int,
    offsets: Any,
    items: Any,
    places: Any,
    distance_weights: Any,
    item_weights: Any,
    chosen: Any,
    votes: Any,
    shared: Any,
) -> None:
    width = scores.shape[1]
    for row in range(scores.shape[0]):
        for place in range(chosen.shape[1]):
            session = chosen[row, place]
            if session < 0:
                break
            for entry in range(offsets[session], offsets[session + 1]):
                column = items[entry] - low
                if 0 <= column < width:
                    weight = distance_weights[abs(places[entry] - shared[row, place])]
                    scores[row, column] += votes[row, place] * weight * item_weights[items[entry]]
