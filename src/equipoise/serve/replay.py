"""Off-policy evaluation: what other lists would have brought, estimated from logged lists.

The estimators weigh the clicks on each rank by 1 / (logged probability of the item there) where
the other lists have the same item at the same rank. They assume that a click depends on the user,
the item and its rank, and not on the other items of the list.
"""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from equipoise.errors import DataError
from equipoise.evaluation.metrics import Floats
from equipoise.ranking.rules import Rules
from equipoise.serve.experiment import clicked_items
from equipoise.serve.state import NOTHING, Catalogue, Served, allowed_items, find
from equipoise.serve.store import LONG, TENANT, Live, LiveEvent, Store, events, lists, seen

FOLDS = 5  # parts of the users; the baseline of each is fitted on the others
DEEPEST = 1_000  # ranks of the model that the baseline tells apart
BINS = 21
PRIOR = 5.0  # expected clicks with which a bin of the baseline counts as average
SMALLEST = 30  # clicks that tell the lists apart, for a conclusion
COVERED = 0.9  # share of the places that have to be possible
METHODS = {
    "ips": "inverse propensity scores",
    "snips": "self-normalised inverse propensity scores",
    "dr": "doubly robust, with the ranks of the model as baseline",
}
NONE = -1  # no item at a rank
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Log:
    """Logged lists beside those to evaluate: of another model, or by other rules; a row per list.

    Parameters
    ----------
    users
        Number of the user of each list.
    shown, ranked, target
        Item at each rank of the sent list, of the ranking that it was drawn from, and of the list
        to evaluate; NONE after the last one.
    propensities
        Probability that the sent item was sent at its rank.
    clicks
        Whether the sent item at each rank was clicked.
    shown_bins, ranked_bins, target_bins
        Bins of the ranks that the model to evaluate gives these items.
    """

    users: Ints
    shown: Ints
    ranked: Ints
    target: Ints
    propensities: Floats
    clicks: Bools
    shown_bins: Ints
    ranked_bins: Ints
    target_bins: Ints

    def __len__(self) -> int:
        return len(self.users)


@dataclass(frozen=True, eq=False)
class Estimate:
    """The mean of a value over lists, and the influence of each list on it."""

    value: float
    influence: Floats

    def __sub__(self, other: Estimate) -> Estimate:
        return Estimate(self.value - other.value, self.influence - other.influence)

    def interval(self, users: Ints, level: float = 0.95) -> tuple[float, float]:
        """Return an interval; the lists of a user are not independent of each other.

        Student's t with the degrees of freedom that the influences of the users leave: few large
        ones make the interval wider.
        """
        from scipy.stats import t as student

        sums = np.bincount(users, self.influence)
        n_users, n_lists = len(np.unique(users)), len(users)
        squares = sums**2
        if n_users < 2 or not squares.any():
            return (self.value, self.value) if n_users > 1 else (math.nan, math.nan)
        error = math.sqrt(squares.sum() * n_users / (n_users - 1)) / n_lists
        freedom = max(1.0, squares.sum() ** 2 / (squares**2).sum() - 1)
        width = float(student.ppf((1 + level) / 2, freedom)) * error
        return self.value - width, self.value + width


def rank_bin(rank: int) -> int:
    """Return the bin of a rank, counted from 0: the deeper the rank, the wider its bin.

    >>> [rank_bin(rank) for rank in (0, 1, 2, 3, 10, 999, 50_000)]
    [0, 2, 3, 4, 6, 19, 20]
    """
    return min(int(2 * math.log2(rank + 1)), BINS - 1)


def fit_baseline(log: Log) -> tuple[Floats, Floats, Floats]:
    """Return the expected clicks at the places of the sent, the ranked and the evaluated lists.

    A rank has its mean rate, and a bin of the model's ranks a factor. Those of a user come from
    the lists of other users, so that they do not depend on the clicks they are compared with.
    """
    n_ranks = log.shown.shape[1]
    fold = log.users % FOLDS
    place = np.broadcast_to(np.arange(n_ranks), log.shown.shape)
    cell = (fold[:, None] * n_ranks + place) * BINS + log.shown_bins
    is_item = log.shown != NONE
    shape = (FOLDS, n_ranks, BINS)
    size = math.prod(shape)
    displays = np.bincount(cell[is_item], minlength=size).reshape(shape)
    clicks = np.bincount(cell[is_item & log.clicks], minlength=size).reshape(shape)
    displays, clicks = (table.sum(axis=0) - table for table in (displays, clicks))
    rate = clicks.sum(axis=2) / np.maximum(displays.sum(axis=2), 1)
    expected = (displays * rate[:, :, None]).sum(axis=1)
    factor = (clicks.sum(axis=1) + PRIOR) / (expected + PRIOR)

    def predict(bins: Ints, items: Ints) -> Floats:
        value = rate[fold[:, None], place] * factor[fold[:, None], bins]
        return np.where(items == NONE, 0.0, np.minimum(value, 1.0))

    return (
        predict(log.shown_bins, log.shown),
        predict(log.ranked_bins, log.ranked),
        predict(log.target_bins, log.target),
    )


def estimates_of(log: Log, items: Ints, baseline: Floats, shown: Floats) -> dict[str, Estimate]:
    """Return the clicks per list that other lists would have brought, by each method.

    Parameters
    ----------
    log
        Logged lists.
    items
        Item at each rank of the other lists.
    baseline, shown
        Expected clicks of these items, and of the sent ones.
    """
    is_same = (items == log.shown) & (items != NONE)
    weights = np.where(is_same, 1 / log.propensities, 0.0)
    clicks = log.clicks.astype(np.float64)
    weighted = (weights * clicks).sum(axis=1)
    robust = (baseline + weights * (clicks - shown)).sum(axis=1)
    total, listed = weights.sum(axis=0), (items != NONE).sum(axis=0)
    usable = np.where(total > 0, total, 1.0)
    rates = (weights * clicks).sum(axis=0) / usable
    normalised = float((listed * rates).sum() / len(log))
    spread = (listed / usable * weights * (clicks - rates)).sum(axis=1)
    return {
        "ips": Estimate(float(weighted.mean()), weighted - weighted.mean()),
        "snips": Estimate(normalised, spread),
        "dr": Estimate(float(robust.mean()), robust - robust.mean()),
    }


def evaluate_log(log: Log) -> dict[str, Any]:
    """Return the estimates of logged lists, with intervals and their difference to the ranking."""
    shown, ranked, target = fit_baseline(log)
    served = estimates_of(log, log.ranked, ranked, shown)
    other = estimates_of(log, log.target, target, shown)
    is_same = (log.target == log.shown) & (log.target != NONE)
    weights = np.where(is_same, 1 / log.propensities, 0.0).sum(axis=1)
    n_places = (log.target != NONE).sum(axis=1)
    cover = Estimate(
        float(weights.sum() / max(n_places.sum(), 1)),
        (weights - n_places) * len(log) / max(n_places.sum(), 1),
    )
    telling = int((log.clicks & (log.target != log.ranked) & is_same).sum())
    rows = []
    for method, title in METHODS.items():
        difference = other[method] - served[method]
        rows.append(
            {
                "method": method,
                "title": title,
                **_named(other[method], log.users, "value", "low", "high"),
                **_named(difference, log.users, "difference", "difference_low", "difference_high"),
            }
        )
    same = (log.target == log.ranked) & (log.target != NONE)
    result = {
        "lists": len(log),
        "users": len(np.unique(log.users)),
        "random_lists": int((log.shown != log.ranked).any(axis=1).sum()),
        "sent": float(log.clicks.sum(axis=1).mean()),
        "ranking": _named(served["ips"], log.users, "value", "low", "high"),
        "estimates": rows,
        "agreement": float(same.sum() / max(n_places.sum(), 1)),
        "possible": _named(cover, log.users, "value", "low", "high"),
        "telling_clicks": telling,
    }
    return {**result, "verdict": _verdict(result)}


def _named(estimate: Estimate, users: Ints, *names: str) -> dict[str, float]:
    return dict(zip(names, (estimate.value, *estimate.interval(users)), strict=True))


def _verdict(result: Mapping[str, Any]) -> str:
    if result["agreement"] == 1:
        return "the lists are those that were ranked, so nothing changes"
    if result["telling_clicks"] < SMALLEST:
        return (
            f"too few clicks to tell: {result['telling_clicks']} on random lists agree with the "
            f"lists to evaluate, and at least {SMALLEST} are needed; explore longer, or with a "
            "larger share or a smaller pool"
        )
    if result["possible"]["high"] < COVERED:
        return (
            f"about {1 - result['possible']['value']:.0%} of the places hold items that could not "
            "be sent there, so clicks on them are unknown; explore with a larger pool"
        )
    best = next(row for row in result["estimates"] if row["method"] == "dr")
    low, high = best["difference_low"], best["difference_high"]
    if low <= 0 <= high:
        return f"no difference found; it lies between {low:+.4f} and {high:+.4f} clicks per list"
    return f"{'more' if low > 0 else 'fewer'} clicks per list than the ranking that was served"


@dataclass(frozen=True, eq=False)
class Logged:
    """What the store has of the lists to replay.

    Parameters
    ----------
    rows
        Id, user, time, items and exploration of each list.
    clicks
        Clicked items by the id of the list.
    events, marks
        Live events and seen marks by user, each with its time, in their order.
    """

    rows: list[Any]
    clicks: dict[str, set[str]]
    events: dict[str, list[LiveEvent]]
    marks: dict[str, list[tuple[float, str]]]


def read_log(store: Store, within: float, since: float | None = None) -> Logged:
    """Return the logged lists of a store, with clicks within this many seconds."""
    chosen = [lists.c.tenant == TENANT, lists.c.exploration.is_not(None)]
    if since is not None:
        chosen.append(lists.c.time >= since)
    shown = sa.select(*(lists.c[name] for name in ("id", "user", "time", "items", "exploration")))
    shown = shown.where(*chosen).order_by(lists.c.time)
    users = sa.select(lists.c.user).where(*chosen)
    names = ("user", "item", "weight", "time", "seq", "type", "list_id")
    happened = sa.select(*(events.c[name] for name in names)).order_by(events.c.time, events.c.seq)
    happened = happened.where(events.c.tenant == TENANT, events.c.user.in_(users))
    marked = sa.select(seen.c.user, seen.c.time, seen.c.item).order_by(seen.c.time)
    marked = marked.where(seen.c.tenant == TENANT, seen.c.user.in_(users))
    rows, new, marks = (
        store.query(lambda connection, query=query: connection.execute(query).all(), LONG)  # type: ignore[misc]
        for query in (shown, happened, marked)
    )
    clicks = [(row.user, row.item, row.time, row.list_id) for row in new if row.weight > 0]
    listed = [(row.id, row.user, "", row.time, row._mapping["items"]) for row in rows]
    events_of: dict[str, list[LiveEvent]] = {}
    for row in new:
        live = (row.item, row.weight, row.time, row.seq, row.type)
        events_of.setdefault(row.user, []).append(live)
    marks_of: dict[str, list[tuple[float, str]]] = {}
    for row in marks:
        marks_of.setdefault(row.user, []).append((row.time, row.item))
    return Logged(list(rows), clicked_items(listed, clicks, within), events_of, marks_of)


def last_learned(served: Served, store: Store) -> float | None:
    """Return the time of the last event that a model has learned from; None if unknown."""
    data = served.model.data_
    known = data.times if data.events is None else data.events.times
    newest = [] if known is None or not len(known) else [float(np.max(known))]
    query = sa.select(sa.func.max(events.c.time))
    query = query.where(events.c.tenant == TENANT, events.c.seq <= served.event)
    folded = store.query(lambda connection: connection.execute(query).scalar())
    return max([*newest, *([] if folded is None else [folded])], default=None)


class Replay:
    """Lists of a model for the requests of logged lists.

    Parameters
    ----------
    served
        The model.
    store
        The store with the logged lists.
    rules
        Rules in the place of those that were sent.
    alpha
        Popularity dial in the place of that sent.
    """

    def __init__(
        self,
        served: Served,
        store: Store,
        *,
        rules: Rules | None = None,
        alpha: float | None = None,
    ) -> None:
        self._served, self._rules, self._alpha = served, rules, alpha
        self._catalogue = Catalogue(served, store.all_attributes())
        self._last = last_learned(served, store)
        self._item_rules = None if rules is None else rules.on(self._catalogue.data)
        self._codes: dict[str, int] = {}

    @property
    def last(self) -> float | None:
        """Time of the last event that the model has learned from."""
        return self._last

    def run(self, logged: Logged, progress: Progress = lambda done, total: None) -> Log:
        """Return the logged lists after the model's last event, beside the model's lists."""
        rows = [row for row in logged.rows if self._last is None or row.time > self._last]
        if not rows:
            raise DataError(
                "the store has no logged lists after the last event that the model has learned "
                "from; serve with explore=, and replay a model that was fitted on earlier events"
            )
        parsed = [json.loads(row._mapping["items"]) for row in rows]
        shown_items = [item for items in parsed for item in items]
        known = find(self._served.items, shown_items)
        self._catalogue.available[known[known >= 0]] = True  # they were available then
        width = max(1, *map(len, parsed))
        shape = (len(rows), width)
        items, bins = np.full((3, *shape), NONE), np.zeros((3, *shape), np.int64)
        chances, clicks = np.ones(shape), np.zeros(shape, np.bool_)
        for number, (row, sent) in enumerate(zip(rows, parsed, strict=True)):
            entry, size = json.loads(row.exploration), len(sent)
            target, ranks = self._list_again(row, entry["query"], size, logged)
            for at, ids in enumerate((sent, entry.get("ranked", sent), target)):
                items[at, number, : len(ids)] = [self._code(item) for item in ids]
                bins[at, number, : len(ids)] = [rank_bin(ranks.get(i, DEEPEST)) for i in ids]
            chances[number, :size] = entry["propensities"]
            clicked = logged.clicks.get(row.id, set())
            clicks[number, :size] = [item in clicked for item in sent]
            progress(number + 1, len(rows))
        codes = {user: number for number, user in enumerate({row.user: 0 for row in rows})}
        users = np.array([codes[row.user] for row in rows])
        return Log(users, items[0], items[1], items[2], chances, clicks, bins[0], bins[1], bins[2])

    def _code(self, item: str) -> int:
        return self._codes.setdefault(item, len(self._codes))

    def _list_again(
        self, row: Any, query: Mapping[str, Any], size: int, logged: Logged
    ) -> tuple[list[str], dict[str, int]]:
        """Return the model's list for a logged request, and the ranks of its first items."""
        served = self._served
        history = served.history_of_user(row.user, self._live(row, logged))
        rules = self._item_rules
        if self._rules is None:
            rules = self._catalogue.rules(query.get("rules"), row.user)
        filters = query.get("filters", {})
        allowed = allowed_items(
            served,
            self._catalogue,
            exclude=query.get("exclude", ()),
            candidates=query.get("candidates"),
            filters={n: v if isinstance(v, list) else [v] for n, v in filters.items()},
        )
        alpha = query.get("alpha") if self._alpha is None else self._alpha
        takes_alpha = served.alpha is not None
        options = {
            "alpha": alpha if takes_alpha else None,
            "user": row.user,
            "hidden": history.hidden if query.get("exclude_seen", True) else NOTHING,
        }
        names = [
            [str(served.ids[place]) for place in listed.places if place < served.n_items]
            for listed in (
                served.top(history, size, allowed, rules=rules, **options),
                served.top(history, DEEPEST, allowed, **options),
            )
        ]
        return names[0], {item: rank for rank, item in enumerate(names[1])}

    def _live(self, row: Any, logged: Logged) -> Live:
        """Return the live events of a user when a list was made."""
        happened, marks = logged.events.get(row.user, []), logged.marks.get(row.user, [])
        end = bisect.bisect_left(happened, row.time, key=lambda event: event[2])
        start = 0
        if self._last is not None:
            start = bisect.bisect_right(happened, self._last, key=lambda event: event[2])
        last_mark = bisect.bisect_left(marks, row.time, key=lambda mark: mark[0])
        arrived = sorted(happened[start:end], key=lambda event: event[3])
        return Live(arrived, [item for _, item in marks[:last_mark]], 0)


def replay(
    store: Store,
    served: Served,
    *,
    within: float,
    since: float | None = None,
    rules: Rules | None = None,
    alpha: float | None = None,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Estimate the clicks per list of a model, or of other rules, from the lists in a store.

    Parameters
    ----------
    store
        Store of a service with `explore`.
    served
        Model to evaluate; it must not have learned from the clicks on the lists.
    within
        Seconds after a list in which an event on one of its items is a click on it.
    since
        Time of the first list.
    rules, alpha
        In the place of those that were requested.
    progress
        Called with the number of lists that are done, and of all.
    """
    logged = read_log(store, within, since)
    job = Replay(served, store, rules=rules, alpha=alpha)
    log = job.run(logged, progress)
    notes = []
    if job.last is None:
        notes.append("the data of the model have no times: make sure they end before the lists")
    if len(logged.rows) > len(log):
        notes.append(
            f"{len(logged.rows) - len(log):,} lists before the last event that the model has "
            "learned from are left out"
        )
    return {**evaluate_log(log), "left_out": len(logged.rows) - len(log), "notes": notes}
