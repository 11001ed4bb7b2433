"""Live trend: the recent users of each item, from the training data and the events in the store.

Users are counted, not events: of each user and item only the last use counts. So a user moves an
item by at most one, however many events they send.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from equipoise.data.training import form_of
from equipoise.errors import DataError
from equipoise.models import Recommender
from equipoise.models.trend import recent_users
from equipoise.serve.folding import event_value
from equipoise.serve.store import Arrival, Store

WEEK = 7 * 86_400.0  # half-life for models without a trend
AT_ONCE = 2_000  # events counted between two requests, at most
UNFINISHED = 30.0  # seconds after which the number of a missing row counts as unused
MOST_UNFINISHED = 1_000  # missing rows that are looked for
MOST_USES = 100_000  # live uses in memory; beyond that, those that weigh nothing are dropped
NEGLIGIBLE = 1e-6  # users
NEVER = -math.inf


class Cursor:
    """The last row number that was read from a table, and missing lower ones.

    PostgreSQL numbers rows before their transactions end, so a lower number may appear later.
    """

    def __init__(self, last: int) -> None:
        self.last = last
        self._missing: dict[int, float] = {}  # time at which a later row was read, by number

    @property
    def missing(self) -> list[int]:
        """Numbers of rows that may still appear."""
        return list(self._missing)

    def advance(self, numbers: Iterable[int], *, has_gaps: bool) -> None:
        """Take note of the rows that were read."""
        known, now = set(numbers), time.monotonic()
        new = sorted(number for number in known if number > self.last)
        if has_gaps:
            missing = {
                number: since
                for number, since in self._missing.items()
                if number not in known and now - since < UNFINISHED
            }
            for low, high in pairwise([self.last, *new]):
                first = max(low + 1, high - MOST_UNFINISHED)
                missing |= dict.fromkeys(range(first, high), now)
            self._missing = dict(sorted(missing.items())[-MOST_UNFINISHED:])
        self.last = max([self.last, *new])


def half_life_of(model: Recommender) -> float | None:
    """Return the half-life in seconds that users are counted with; None without times."""
    if model.trend_ is not None:
        return model.trend_.settings.seconds
    if form_of(model.data_) == "none":
        return None
    events = model.data_.events
    return None if events is None or events.times is None else WEEK


class LiveTrend:
    """The recent users of each item of a model, each counted by the age of the last use.

    Ages are relative to the last event, so the counts do not change while nothing happens. Not
    thread-safe.

    Parameters
    ----------
    model
        A model whose training data have times. Without a trend the half-life is a week.
    event, forgotten
        Row numbers of the last event and forgotten user that the model includes.
    """

    def __init__(self, model: Recommender, event: int = 0, forgotten: int = 0) -> None:
        self._model, self._data = model, model.data_
        events = self._data.events
        half_life = half_life_of(model)
        if half_life is None:
            raise DataError(
                "recent popularity is unknown: the training data of this model have no times; fit "
                "it to data with a time column"
            )
        assert events is not None
        assert events.times is not None
        trend, self.half_life = model.trend_, half_life
        counts = recent_users(self._data, WEEK) if trend is None else trend.counts
        self._counts = counts.astype(np.float64)
        is_use = ... if events.weights is None else events.weights > 0
        self.last_use = float(events.times[is_use].max(initial=NEVER))
        self._latest_in_training = self.last_use
        # time of the last use by user and item position, where it is not that in training;
        # NEVER after a dislike
        self._uses: dict[str, dict[int, float]] = {}
        self._n_uses, self._most_uses = 0, MOST_USES
        self._forgotten: set[str] = set()
        self._event, self._forget_cursor = Cursor(event), Cursor(forgotten)

    @property
    def counts(self) -> npt.NDArray[np.float64]:
        """The recent users of each item; a new array."""
        return np.maximum(self._counts, 0)

    def read(self, store: Store) -> tuple[bool, bool]:
        """Count what has arrived in the store; return whether anything has, and whether it is all.

        Reads at most `AT_ONCE` events.
        """
        event, forget = self._event, self._forget_cursor
        arrivals = store.arrivals(
            event.last, forget.last, event.missing, forget.missing, limit=AT_ONCE
        )
        new = [arrival for arrival in arrivals if not arrival.is_forget]
        gone = [arrival for arrival in arrivals if arrival.is_forget]
        for arrival in gone:
            self.forget(arrival.user)
        self.count(new)
        is_complete = sum(arrival.number > event.last for arrival in new) < AT_ONCE
        event.advance((arrival.number for arrival in new), has_gaps=not store.is_local)
        forget.advance((arrival.number for arrival in gone), has_gaps=not store.is_local)
        return bool(arrivals), is_complete

    def count(self, events: Sequence[Arrival]) -> None:
        """Count events in the order of their arrival.

        A dislike takes the user's use of the item away, as an update of the model does. Times
        ahead of the clock count as now: a later time would outweigh all other users.
        """
        values = [event_value(self._model, event.type, event.weight) for event in events]
        latest = max(time.time(), self._latest_in_training)
        times = [min(event.time, latest) for event in events]
        use_times = (t for t, value in zip(times, values, strict=True) if value > 0)
        self._move_on(max(use_times, default=NEVER))
        rows = self._positions([event.user for event in events], of_users=True)
        places = self._positions([event.item for event in events])
        for event, row, place, moment, value in zip(
            events, rows, places, times, values, strict=True
        ):
            if place >= 0 and value:
                self._replace_use(event.user, row, place, moment if value > 0 else NEVER)
        if self._n_uses > self._most_uses:
            self._drop_negligible()

    def forget(self, user: str) -> None:
        """Take all uses of a user away."""
        (row,) = self._positions([user], of_users=True)
        uses = self._training_uses(user, row)
        live = self._uses.pop(user, {})
        self._n_uses -= len(live)
        for place, moment in (uses | live).items():
            self._counts[place] -= self._weight(moment)
        self._forgotten.add(user)

    def _positions(self, ids: list[str], *, of_users: bool = False) -> list[int]:
        index = self._data.user_index if of_users else self._data.item_index
        positions: list[int] = index.positions(ids, unknown="skip").tolist() if ids else []
        return positions

    def _move_on(self, moment: float) -> None:
        """Let the counts decay until a later use."""
        if moment > self.last_use:
            self._counts *= 2.0 ** ((self.last_use - moment) / self.half_life)
            self.last_use = moment

    def _weight(self, use: float) -> float:
        """Return what a use at this time counts; 0 for NEVER."""
        return 0.0 if use == NEVER else float(2.0 ** ((use - self.last_use) / self.half_life))

    def _replace_use(self, user: str, row: int, place: int, moment: float) -> None:
        """Count a use in place of the earlier one of the same user and item."""
        live = self._uses.get(user, {})
        earlier = live[place] if place in live else self._last_in_training(user, row, place)
        if earlier >= moment > NEVER or earlier == moment:
            return
        self._counts[place] += self._weight(moment) - self._weight(earlier)
        self._n_uses += place not in live
        self._uses.setdefault(user, live)[place] = moment

    def _last_in_training(self, user: str, row: int, place: int) -> float:
        items, times = self._training_events(user, row)
        of_item = times[items == place]
        return float(of_item[-1]) if len(of_item) else NEVER

    def _training_uses(self, user: str, row: int) -> dict[int, float]:
        items, times = self._training_events(user, row)
        return dict(zip(items.tolist(), times.tolist(), strict=True))  # times ascend

    def _training_events(
        self, user: str, row: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """Return items and times of the uses of a user in the training data."""
        events = self._data.events
        assert events is not None
        assert events.times is not None
        if row < 0 or user in self._forgotten:
            return events.items[:0], events.times[:0]
        part = slice(events.offsets[row], events.offsets[row + 1])
        items, times = events.items[part], events.times[part]
        if events.weights is None:
            return items, times
        is_use = events.weights[part] > 0
        return items[is_use], times[is_use]

    def _drop_negligible(self) -> None:
        """Drop the live uses whose weight is next to nothing."""

        def matters(use: float) -> bool:
            return use == NEVER or self._weight(use) > NEGLIGIBLE

        uses = {
            user: {place: use for place, use in of_user.items() if matters(use)}
            for user, of_user in self._uses.items()
        }
        self._uses = {user: of_user for user, of_user in uses.items() if of_user}
        self._n_uses = sum(map(len, self._uses.values()))
        self._most_uses = max(MOST_USES, 2 * self._n_uses)
