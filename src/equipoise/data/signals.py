"""Signals: compute the values of a model's matrix from events.

How often, how much, how long ago an item was used, and by which type of event, become one number
per pair. A model has `Signals` as it has a normalizer; they are applied in `fit` and to every
history that the model scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.checks import Moment, choice, fraction, moment, number, period
from equipoise.data.events import ROUNDING, Events
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr, entry_rows
from equipoise.errors import DataError, SettingError

Transform = Literal["binary", "count", "sum", "log1p", "bm25", "last"]
Returns = Literal["net", "negative", "ignore"]
Floats = npt.NDArray[np.float64]

TRANSFORMS = get_args(Transform)
RETURNS = get_args(Returns)
SETTINGS = ("transform", "decay", "floor", "returns", "history_decay")  # that `tune` can vary
HISTORY_SETTINGS = ("history_decay",)  # that change histories only, so no solve depends on them
LEAST = 1e-30  # smallest value, so that a pair of tiny weight stays in the history
SATURATION, LENGTH = 1.2, 0.75  # k1 and b of BM25


@dataclass(frozen=True)
class Background:
    """Statistics of the training data for BM25: rarity of each item, mean length of a row."""

    rarity: Floats
    mean_length: float

    def over(self, n_items: int) -> Background:
        """Return the same for more items; those without users are as rare as the rarest."""
        missing = np.full(n_items - len(self.rarity), self.rarity.max(initial=0.0))
        return Background(np.append(self.rarity, missing), self.mean_length)


@dataclass(frozen=True, kw_only=True)
class Signals:
    """Settings that turn events into the values of the matrix.

    The value of an event is its quantity, times the weight of its type, times 2^(-age / decay).
    `transform` combines the events of a user-item pair.

    Parameters
    ----------
    transform
        "binary": the largest value of one event, regardless of quantities, so 1 without `weights`
        and `decay`. "count": the sum over the events, each with quantity 1. "sum": the sum with
        quantities. "log1p": log(1 + sum). "bm25": the sum, saturated, by the length of the history
        and the rarity of the item. "last": the last event alone.
    weights
        Weight of each type of event, as in ``{"view": 1, "cart": 3, "buy": 10}``; None: all
        count 1. A negative weight marks returns, 0 drops a type. Events without a type count 1.
    decay
        Half-life, as a number of seconds or as text with a unit, such as "30d": an event this old
        counts half. None: age does not matter.
    floor
        Smallest factor for old events, 0 to 1.
    history_decay
        Half-life of the events of a history to score, relative to its last event and without a
        floor. None: age does not matter. "decay" uses `decay` and `floor`, as in training.
    reference
        Time of age 0, in seconds, as ISO text or a date; later events also have age 0.
        None: the last event of the training data, and the last event of each history to score.
    returns
        Meaning of negative quantities. "net": subtracted from the purchases of the pair, which
        has no value if nothing is left. "negative": the same, but such a pair gets a negative
        value, as an unwanted item (linear autoencoders). "ignore": no effect.

    Examples
    --------
    >>> import equipoise as eq
    >>> log = [("ann", "tea", 4.0, 0), ("ann", "tea", 2.0, 100), ("bob", "milk", 1.0, 100)]
    >>> data = eq.read(log)
    >>> eq.Signals(transform="sum", decay=100, floor=0).apply(data).matrix.toarray().tolist()
    [[0.0, 4.0], [1.0, 0.0]]
    >>> eq.Signals().apply(data).matrix.toarray().tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """

    transform: Transform = "binary"
    weights: Mapping[str, float] | None = None
    decay: float | str | None = None
    floor: float = 0.1
    history_decay: float | str | None = "decay"
    reference: Moment | None = None
    returns: Returns = "net"

    def __post_init__(self) -> None:
        choice("transform", self.transform, TRANSFORMS)
        choice("returns", self.returns, RETURNS)
        fraction("floor", self.floor)
        if self.decay is not None:
            period("decay", self.decay)
        if self.history_decay not in (None, "decay"):
            period("history_decay", self.history_decay)
        if self.reference is not None:
            object.__setattr__(self, "reference", moment("reference", self.reference))
        if self.weights is not None:
            if not isinstance(self.weights, Mapping) or not self.weights:
                raise SettingError(
                    f"weights must map types of events to numbers, got {self.weights!r}"
                )
            weights = {
                str(kind): number(f"weights[{kind!r}]", weight)
                for kind, weight in self.weights.items()
            }
            object.__setattr__(self, "weights", weights)

    def __hash__(self) -> int:
        return hash(repr(self))

    def apply(self, data: Interactions) -> Interactions:
        """Return training data whose matrix is computed from their events."""
        events = data._own_events
        self._check(events)
        background = self.background(data)
        matrix = self.values(events, data.n_items, background, self.latest(events))
        return data._replace(matrix=matrix, signed=True)

    @property
    def for_histories(self) -> Signals:
        """The signals of a history to score."""
        if self.history_decay == "decay":
            return self
        changes = {"decay": self.history_decay, "floor": 0.0, "reference": None}
        return replace(self, **changes, history_decay="decay")  # type: ignore[arg-type]

    def same_training(self, other: Signals | None) -> bool:
        """Whether training data get the same values from other signals."""
        return other is not None and replace(self, history_decay=other.history_decay) == other

    def background(self, data: Interactions) -> Background | None:
        """Return the statistics of the training data that BM25 needs, else None."""
        if self.transform != "bm25":
            return None
        events = data._own_events
        worth = self._sums(events, data.n_items, self.latest(events))
        counts = np.bincount(worth.indices[worth.data > 0], minlength=data.n_items)
        rarity = np.log1p((data.n_users - counts + 0.5) / (counts + 0.5))
        total = float(np.abs(worth.data).sum())
        return Background(rarity, total / max(int((np.diff(worth.indptr) > 0).sum()), 1))

    def values(
        self,
        events: Events,
        n_items: int,
        background: Background | None = None,
        now: float | None = None,
    ) -> Csr:
        """Return the rows x items matrix of values.

        Ages are relative to `now`, by default the last event of each row.
        """
        matrix = self._sums(events, n_items, now)
        size = np.abs(matrix.data)
        if self.transform == "log1p":
            size = np.log1p(size)
        elif background is not None:
            lengths = np.bincount(entry_rows(matrix), size, minlength=matrix.shape[0])
            relative = lengths / background.mean_length if background.mean_length else lengths
            scale = SATURATION * (1 - LENGTH + LENGTH * relative)[entry_rows(matrix)]
            size = background.rarity[matrix.indices] * size * (SATURATION + 1) / (size + scale)
        values = np.copysign(np.maximum(size, LEAST), matrix.data)
        return sp.csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape)

    def _sums(self, events: Events, n_items: int, now: float | None) -> Csr:
        """Return the summed value of each pair before log1p or BM25."""
        quantity, factor = self._quantities(events), self._factors(events, now)
        indptr, indices, pair = events.pairs()
        bought, returned = (
            self._side(pair, np.maximum(sign * quantity, 0), factor, len(indices))
            for sign in (1.0, -1.0)
        )
        gross, back = (
            np.bincount(pair, np.maximum(sign * quantity, 0), minlength=len(indices))
            for sign in (1.0, -1.0)
        )
        if self.returns == "ignore":
            back = np.zeros_like(back)
        left = gross - back
        left[left <= ROUNDING * (gross + back)] = 0
        # returns reduce all purchases of the pair by the same share
        share = left / np.where(gross > 0, gross, 1)
        worth = bought * ((share > 0) if self.transform == "binary" else share)
        if self.returns == "negative":
            worth = np.where((left == 0) & (back > 0), -returned, worth)
        has_value = worth != 0
        running = np.concatenate([[0], np.cumsum(has_value)])
        csr = (worth[has_value], indices[has_value], running[indptr])
        return sp.csr_array(csr, shape=(len(events), n_items))

    def _side(self, pair: Any, quantity: Floats, factor: Floats, n_pairs: int) -> Floats:
        """Return the combined value of the purchases (or the returns) of each pair."""
        counts = quantity > 0
        if self.transform in ("binary", "last"):
            worth = np.zeros(n_pairs)
            value = factor if self.transform == "binary" else factor * quantity
            # numpy keeps the last value assigned: the largest, or that of the last event
            order = np.flatnonzero(counts)
            if self.transform == "binary":
                order = order[np.argsort(value[order], kind="stable")]
            worth[pair[order]] = value[order]
            return worth
        size = counts.astype(np.float64) if self.transform == "count" else quantity
        return np.asarray(np.bincount(pair, size * factor, minlength=n_pairs), np.float64)

    def _quantities(self, events: Events) -> Floats:
        """Return the quantity of each event, negative for a return."""
        quantity = np.ones(events.n_events) if events.weights is None else events.weights
        kinds = self._kinds(events)
        return quantity if kinds is None else quantity * np.sign(kinds)

    def _factors(self, events: Events, now: float | None) -> Floats:
        kinds = self._kinds(events)
        factor = np.ones(events.n_events) if kinds is None else np.abs(kinds)
        if self.decay is None or events.times is None:
            return factor
        latest: Any = now
        if now is None and self.reference is None:
            latest = events.last_times[events.rows]
        elif now is None:
            latest = self.reference
        age = np.maximum(latest - events.times, 0.0)
        left = np.exp2(-age / period("decay", self.decay))
        # above 0, so that a pair of very old events stays in the history
        return np.asarray(factor * np.maximum(left, max(self.floor, LEAST)))

    def _kinds(self, events: Events) -> Floats | None:
        """Return the weight of each event's type; None if all count 1."""
        if self.weights is None or events.types is None:
            return None
        missing = [name for name in events.type_names if name not in self.weights]
        if missing:
            raise DataError(
                f"weights has no number for events of type {missing[0]!r}; add one (0 drops them)"
            )
        table = [*(self.weights[name] for name in events.type_names), 1.0]
        return np.array(table)[events.types]

    def latest(self, events: Events) -> float | None:
        """Return the time at which training events have age 0; None without times."""
        if self.reference is not None:
            return moment("reference", self.reference)
        if events.times is None:
            return None
        return float(events.times.max(initial=-math.inf))

    def _check(self, events: Events) -> None:
        """Raise if the training data lack times or types that the settings need."""
        if self.decay is not None and events.times is None:
            raise DataError("decay needs times; name the column with eq.read(..., time=...)")
        if self.weights is not None:
            if events.types is None:
                raise DataError(
                    "weights needs types of events; name the column with eq.read(..., type=...)"
                )
            for kind in self.weights:
                if kind not in events.type_names:
                    known = ", ".join(events.type_names)
                    raise DataError(f"no event is of type {kind!r}; the types are {known}")
