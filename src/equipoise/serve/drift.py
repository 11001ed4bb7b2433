"""How far the events of now have moved away from the data that the models were fitted on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from equipoise.runtime.locks import try_lock
from equipoise.serve.state import Served, State, allowed_items, find
from equipoise.serve.store import LONG, TENANT, Store, events
from equipoise.serve.telemetry import Telemetry

PAUSE = 300.0  # seconds between two measurements
LATEST = 5_000  # events that are looked at
USERS = 100  # whose lists are compared
LIST = 10  # items of these lists
GROUPS = 10  # of items, with about the same number of training users each
FEWEST = 200  # events for the stability of the popularity; chance makes it (GROUPS - 1) / events
REST = 0.005  # seconds between two users, for requests

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Drift:
    """Figures of one model; None where there are too few events.

    Parameters
    ----------
    events
        Number of the latest events that the figures come from.
    unknown_items, unknown_users
        Share of the events whose item, and of the users who, the model does not know.
    popularity
        Population stability index of the popularity of items: 0 if the events are spread over the
        items like the training data; above 0.25 the catalogue in use is another one.
    overlap
        Mean share of items that the lists of these users have in common with those they had when
        the model was fitted.
    """

    events: int
    unknown_items: float | None
    unknown_users: float | None
    popularity: float | None
    overlap: float | None


def popularity_groups(counts: npt.NDArray[np.integer]) -> Counts:
    """Return the group of each item: groups have about the same number of users.

    >>> popularity_groups(np.array([10, 10, 5, 5, 5, 5]))[:3].tolist()
    [0, 2, 5]
    """
    order = np.argsort(-counts, kind="stable")
    before = np.cumsum(counts[order]) - counts[order]
    groups = np.empty(len(counts), np.int64)
    groups[order] = GROUPS * before // max(int(counts.sum()), 1)
    return np.minimum(groups, GROUPS - 1)


def stability_index(expected: Counts, actual: Counts) -> float:
    """Return the population stability index of two counts by group.

    >>> round(stability_index(np.array([50, 50]), np.array([500, 500])), 3)
    0.0
    """
    shares = [(counts + 0.5) / (counts + 0.5).sum() for counts in (expected, actual)]
    return float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())


def latest_events(store: Store, most: int = LATEST) -> list[tuple[str, str, float]]:
    """Return user, item and weight of the latest events, the last one first."""
    query = sa.select(events.c.user, events.c.item, events.c.weight)
    query = query.where(events.c.tenant == TENANT).order_by(events.c.seq.desc()).limit(most)
    rows = store.query(lambda connection: connection.execute(query).all(), LONG)
    return [(user, item, weight) for user, item, weight in rows]


def measure(
    state: State, served: Served, latest: Sequence[tuple[str, str, float]], pause: float = 0.0
) -> Drift:
    """Return the drift of a model, from the latest events of the store.

    Parameters
    ----------
    state, served
        The model among the others.
    latest
        As of `latest_events`.
    pause
        Seconds to pause between two users.
    """
    if not latest:
        return Drift(0, None, None, None, None)
    places = find(served.items, [item for _, item, _ in latest])
    users = list(dict.fromkeys(user for user, _, _ in latest))
    rows = find(served.users, users)
    is_use = np.array([weight > 0 for _, _, weight in latest])
    used = places[is_use & (places >= 0)]
    popularity = None
    if len(used) >= FEWEST:
        groups = popularity_groups(served.counts)
        expected = np.bincount(groups, served.counts, GROUPS).astype(np.int64)
        popularity = stability_index(expected, np.bincount(groups[used], minlength=GROUPS))
    known = np.flatnonzero(rows >= 0)[:USERS].tolist()
    overlaps = _overlaps(
        state, served, [rows[at] for at in known], [users[at] for at in known], pause
    )
    return Drift(
        len(latest),
        float((places < 0).mean()),
        float((rows < 0).mean()),
        popularity,
        float(np.mean(overlaps)) if overlaps else None,
    )


def _overlaps(
    state: State, served: Served, rows: Sequence[int], users: Sequence[str], pause: float
) -> list[float]:
    """Return the share of the items of each user's list that the list at the fit had."""
    catalogue, overlaps = state.catalogue(served), []
    ids = served.users.values[list(rows)].tolist()
    for user, fitted in zip(users, served.model.recommend(ids, k=LIST).items, strict=True):
        history = served.history_of_user(user, state.store.live(user))
        allowed = allowed_items(served, catalogue)
        places = served.top(history, LIST, allowed, hidden=history.hidden).places
        common = {served.ids[place] for place in places.tolist()} & set(fitted)
        overlaps.append(len(common) / max(1, len(fitted)))
        time.sleep(pause)
    return overlaps


class DriftMetrics:
    """The drift of all models as metrics; one worker of the service measures it."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._lock: int | None = None
        self._folder = telemetry.folder
        self._events = telemetry.gauge(
            "drift_events", "Latest events that the drift is measured on.", "model"
        )
        self._unknown = telemetry.gauge(
            "drift_unknown_share",
            "Share of these events, and of their users, that the model does not know.",
            "model",
            "kind",
        )
        self._popularity = telemetry.gauge(
            "drift_popularity",
            "Population stability index of item popularity against the training data.",
            "model",
        )
        self._overlap = telemetry.gauge(
            "drift_list_overlap",
            "Share of the items of lists that the lists at the fit had.",
            "model",
        )

    def is_ours(self) -> bool:
        """Whether this worker measures: the first one, until it ends."""
        if self._folder is None or self._lock is not None:
            return True
        try:
            handle = os.open(Path(self._folder) / "drift.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:  # no room; each worker measures
            return True
        if try_lock(handle) is False:
            os.close(handle)
            return False
        self._lock = handle
        return True

    def update(self, state: State, models: Iterable[Served], pause: float = REST) -> None:
        """Measure the drift of models."""
        latest = latest_events(state.store)
        for served in models:
            drift = measure(state, served, latest, pause)
            self._events.labels(served.name).set(drift.events)
            for gauge, value in (
                (self._unknown.labels(served.name, "item"), drift.unknown_items),
                (self._unknown.labels(served.name, "user"), drift.unknown_users),
                (self._popularity.labels(served.name), drift.popularity),
                (self._overlap.labels(served.name), drift.overlap),
            ):
                gauge.set(float("nan") if value is None else value)
