"""The state of a worker: loaded models, item attributes, the experiment; and reloading."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import sys
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp
from pydantic_core import to_json

from equipoise.data.catalogue import Catalogue as CatalogueOfData
from equipoise.data.catalogue import id_name
from equipoise.data.events import Events
from equipoise.data.ids import IdIndex
from equipoise.data.interactions import Interactions
from equipoise.data.storage import MANIFEST
from equipoise.data.training import form_of
from equipoise.errors import DataError, EquipoiseError, MissingDataError, UnknownIdError
from equipoise.evaluation.metrics import head_items
from equipoise.models import Recommender, load
from equipoise.models.histories import Request
from equipoise.models.recommendations import Reasons
from equipoise.ranking.attribute_index import AttributeCodes, AttributeIndex
from equipoise.ranking.ranker import RowRanker
from equipoise.ranking.rules import ItemRules, as_rules, is_timed
from equipoise.ranking.terms import Term
from equipoise.serve.columns import Column, json_value, plain_parts, stacked
from equipoise.serve.config import Config, Experiment, Limits
from equipoise.serve.folding import event_value, increment_of, split_at_dislikes
from equipoise.serve.new_items import add_described, described_items
from equipoise.serve.store import TENANT, Event, Live, LiveEvent, Store, StoreError
from equipoise.serve.trends import LiveTrend

logger = logging.getLogger(__name__)

Positions = npt.NDArray[np.integer[Any]]
Mask = npt.NDArray[np.bool_]
Value = TypeVar("Value")
DIALS = 32  # values of alpha whose terms are cached, at most
DIAL_BYTES = 1 << 26  # of that cache; a value of alpha takes two numbers per item
FRESH = 1.0  # seconds between two checks whether another worker has changed attributes
ENCODED = 100_000  # items whose facts are kept as JSON, at most
MOST_COLUMNS = 64  # attributes whose values are kept by position
FEW_CHANGES = 10  # share of the items in which more changes are not worked into the columns
CURVE = 100  # points of the popularity curve
TREND_PAUSES = 0.25, 0.75  # seconds between two looks at new events, at least and at most
TREND_SHARE = 50  # a look that takes a second is followed by this many of pause
NOTHING = np.empty(0, np.int64)


def find(index: IdIndex, texts: Sequence[str]) -> Positions:
    """Return the positions of ids given as text, -1 for unknown ones."""
    return index.positions(texts, unknown="skip") if texts else NOTHING


@dataclass(slots=True, eq=False)
class History:
    """The history that a list is computed from.

    Parameters
    ----------
    places, weights
        Positions and weights of the items; in click order for a session model.
    hidden
        Items that may not be listed: used, disliked or shown before.
    user
        Position among the training users, -1 for other users.
    unknown
        Ids of items that the model does not know.
    """

    places: Positions
    weights: npt.NDArray[np.float32]
    hidden: Positions
    user: int = -1
    unknown: Sequence[str] = ()


@dataclass(slots=True, eq=False)
class Listed:
    """A ranked list: positions of items, their scores and the source of the list.

    `pins` are ids and titles of pinned items that the model does not know; their positions follow
    those of the model's items.
    """

    places: Positions
    scores: npt.NDArray[Any]
    source: str
    pins: Sequence[tuple[Any, str]] = ()

    def after(self, offset: int) -> Listed:
        """Return the list without its first places."""
        return dataclasses.replace(self, places=self.places[offset:], scores=self.scores[offset:])


@dataclass(frozen=True, eq=False)
class Ranking:
    """What ranks items: a model and its terms by alpha, with the trend at one time."""

    model: Recommender
    terms: Callable[..., list[Term]]  # by alpha, and the factor of new items
    rows: Callable[..., RowRanker]  # of these terms

    @classmethod
    def of(cls, model: Recommender, make_terms: Callable[..., list[Term]], size: int) -> Ranking:
        """Return the ranking by these terms, of which so many values of the dials are cached."""
        terms = functools.lru_cache(size)(make_terms)
        return cls(
            model, terms, functools.lru_cache(size)(lambda *dials: RowRanker(terms(*dials)))
        )


def saved_version(name: str, folder: str) -> str:
    """Return a hash of the manifest of a saved model."""
    try:
        return hashlib.sha256((Path(folder) / MANIFEST).read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise DataError(f"model {name!r} has no manifest to load; fit and save it") from error


class Served:
    """A loaded model, ready to answer; only its trend changes, with the events in the store.

    `added` are the attributes of items that the store has and the saved model does not list, or
    lists by other attributes. `n_loaded` is the number of items of the saved model; those added
    follow them.
    """

    def __init__(self, name: str, folder: str, model: Recommender, version: str) -> None:
        self.name, self.folder, self.model, self.version = name, folder, model, version
        data = model._served
        self.data, self.n_items = data, data.n_items
        self.n_loaded, self.added = self.n_items, dict[str, Mapping[str, Any]]()
        self._loaded_model = model
        self.items = data.item_index
        self._is_alone = form_of(data) == "none"  # knows no user but those in the store
        if self._is_alone and model.trend_ is not None:
            raise MissingDataError(
                f"model {name!r} has a trend, which the service moves on with the events of its "
                "training data, and was saved without them; save it with data='with'"
            )
        self.users = IdIndex(np.empty(0, np.int64), "user") if self._is_alone else data.user_index
        self.ids: list[Any] = data.items.tolist()
        self.titles = data._titles
        self.counts = data.item_counts
        self.head = head_items(self.counts) if self.n_items else np.zeros(0, np.bool_)
        self.order = np.argsort(-self.counts, kind="stable")
        self.rank = np.empty(self.n_items, np.int64)
        self.rank[self.order] = np.arange(self.n_items)
        self.is_weighted = data.weighted
        X = sp.csr_array((0, self.n_items), dtype=np.float32) if self._is_alone else data.matrix
        self._rows = X.indptr, np.asarray(X.indices), np.asarray(X.data)
        self.fitted = (Path(folder) / MANIFEST).stat().st_mtime
        self.loaded = time.time()
        self.event = self.forgotten = 0  # row numbers of the last ones the model includes
        self._folded_titles = [title.casefold() for title in self.titles]
        self._dials = max(2, min(DIALS, DIAL_BYTES // (16 * max(self.n_items, 1))))

        def terms_of(alpha: float | None, new_items: float | None = None) -> list[Term]:
            terms = model._terms(alpha)
            return terms if new_items is None else model._with_dial(terms, new_items)

        self.untrended = Ranking.of(model, terms_of, self._dials)
        self.trend: LiveTrend | None = None
        self.ranking = self._ranking()
        self.is_plain = model.fold_in and not model.ordered  # a history is a row of weights
        self.alpha = model.alpha_
        self._is_used = model._usable_counts > 0
        self._item_json: dict[int, bytes] = {}
        terms = self.untrended.terms(None) if self.is_plain else []
        # assume that other models look at all items for each item of the history
        self._steps = scoring_steps(terms, self.n_items) if terms else (0.0, float(self.n_items))

    def with_added(self, added: Mapping[str, Mapping[str, Any]]) -> Served:
        """Return the model with these items of the store in place of those added before."""
        model = copy.copy(self._loaded_model)
        if added:
            # columns of items that stay are not computed again
            model.__dict__["_new_columns"] = vars(self.model).get("_new_columns")
            add_described(model, added)
        served = Served(self.name, self.folder, model, self.version)
        served._loaded_model, served.n_loaded = self._loaded_model, self.n_loaded
        served.added, served.fitted, served.loaded = dict(added), self.fitted, self.loaded
        served.event, served.forgotten = self.event, self.forgotten
        served.trend = self.trend
        if self.trend is not None and model.trend_ is not None:
            served.ranking = served._ranking(self.trend.counts)
        return served

    def _ranking(self, counts: npt.NDArray[np.float64] | None = None) -> Ranking:
        """Return what ranks items, for other recent users of the items than those of the fit."""
        trend, terms = self.model.trend_, self.untrended.terms
        if trend is None:
            return self.untrended
        model = self.model
        if counts is not None:
            trend, model = trend.with_counts(counts), copy.copy(model)
            model.trend_ = trend
        return Ranking.of(model, lambda *dials: trend.applied_to(terms(*dials)), self._dials)

    def follow(self, store: Store, *, completely: bool) -> bool:
        """Count the new events in the store; return whether all of them are counted.

        One thread at a time.
        """
        if self.trend is None:
            self.trend = LiveTrend(self.model, self.event, self.forgotten)
        has_changed, is_complete = self.trend.read(store)
        while completely and not is_complete:
            _, is_complete = self.trend.read(store)
        if has_changed and self.model.trend_ is not None:
            self.ranking = self._ranking(self.trend.counts)
        return is_complete

    def knows(self, user: str) -> bool:
        """Whether the training data include a user."""
        return bool(find(self.users, [user])[0] >= 0)

    def steps(self, length: int) -> float:
        """Return the steps of scoring all items for a history of this length."""
        return self._steps[0] + self._steps[1] * max(length, 1)

    @classmethod
    def open(cls, name: str, folder: str, store: Store | None = None) -> Served:
        """Load a model and rank once for a training user and for an empty history."""
        version = saved_version(name, folder)
        model = load(folder)
        served = cls(name, folder, model, version)
        if store is not None:
            served.event, served.forgotten = store.folded(model.data_fingerprint_)
            if model.trend_ is not None:
                served.follow(store, completely=True)
        data = served.data
        for user in {-1, int(np.argmax(data.user_counts)) if len(served.users) else -1}:
            served.top(served.training_history(user), 5, np.ones(served.n_items, np.bool_))
        return served

    def items_json(self, places: Sequence[int]) -> list[bytes]:
        """Return what a list says of items wherever they are listed, as starts of objects."""
        texts = self._item_json
        try:
            return [texts[place] for place in places]
        except KeyError:
            return [texts.get(place) or self._encode_item(place) for place in places]

    def _encode_item(self, place: int) -> bytes:
        facts: dict[str, Any] = {"item": str(self.ids[place]), "title": self.titles[place]}
        facts |= {"tail": not self.head[place], "users": int(self.counts[place])}
        if len(self._item_json) >= ENCODED:
            self._item_json.clear()
        # the score follows
        text = self._item_json[place] = to_json(facts)[:-1] + b',"score":'
        return text

    def names_of(self, listed: Listed) -> list[str]:
        """Return the ids of a list as text."""
        ids, pins, n_items = self.ids, listed.pins, self.n_items
        places = listed.places.tolist()
        return [str(ids[n] if n < n_items else pins[n - n_items][0]) for n in places]

    @functools.cached_property
    def origin_json(self) -> dict[str, bytes]:
        """What an answer says of its model, by source, as the start of an object."""
        facts = {"model": self.name, "version": self.version, "item_ids": self.items.kind_name}
        return {name: to_json({**facts, "source": name})[:-1] for name in ("model", "popular")}

    def training_history(self, user: int) -> History:
        """Return the history that a training user was fitted with; an empty one for -1."""
        if user < 0:
            return History(NOTHING, np.empty(0, np.float32), NOTHING)
        if self.model.ordered and self.data._sequences is not None:
            clicks = self.data._sequences.take(np.array([user])).items.astype(np.int64)
            return History(clicks, np.ones(len(clicks), np.float32), clicks, user)
        offsets, places, weights = self._rows
        part = slice(offsets[user], offsets[user + 1])
        return History(places[part], weights[part], places[part], user)

    def history_of_items(self, items: Sequence[str]) -> History:
        """Return a history of items by their ids, in this order."""
        places = find(self.items, items)
        unknown = [items[n] for n in np.flatnonzero(places < 0).tolist()]
        known = places[places >= 0]
        if self.model.signals is not None and len(known):
            row = self.model._weigh_events(_as_events(known))
            return History(row.indices.astype(np.int64), row.data, np.unique(known), -1, unknown)
        places = known if self.model.ordered else np.unique(known)
        return History(places, np.ones(len(places), np.float32), places, -1, unknown)

    def history_of_user(self, user: str, live: Live) -> History:
        """Return the training history of a user together with the events in the store.

        Weights add up, or an item counts once where it does so in the training data. A dislike
        removes the item with everything before it. Used and disliked items stay hidden.
        """
        place = self.users.find(user)
        base = self.training_history(-1 if live.forgotten > self.forgotten else place)
        if not live.events and not live.seen:
            return base
        shown = find(self.items, live.seen)
        items = [event[0] for event in live.events]
        places = find(self.items, items)
        unknown = [items[n] for n in np.flatnonzero(places < 0).tolist()]
        hidden = np.concatenate([base.hidden, places[places >= 0], shown[shown >= 0]])
        # events that the model includes already do not count twice
        numbers = np.array([event[3] for event in live.events])
        new = np.flatnonzero((places >= 0) & (numbers > self.event)).tolist()
        combined = self._combine(base, [live.events[n] for n in new], places[new])
        return History(*combined, hidden, -1 if self.is_plain else base.user, unknown)

    def _combine(
        self, base: History, events: list[LiveEvent], event_places: Positions
    ) -> tuple[Positions, Any]:
        """Return items and weights of the training history and later events together."""
        if self.model.signals is not None and self.model.fold_in:
            return self._combine_by_signals(base, events)
        values = [event_value(self.model, event[4], event[1]) for event in events]
        counted, disliked = split_at_dislikes(event_places.tolist(), values)
        stays = ~np.isin(base.places, list(disliked))
        places, weights = base.places[stays], base.weights[stays]
        if not self.model.fold_in:
            return places, weights
        if self.model.ordered:
            places = np.concatenate([places, event_places[counted]])
            return places, np.ones(len(places), np.float32)
        total = np.zeros(self.n_items, np.float64)
        total[places] = weights
        np.add.at(total, event_places[counted], [values[n] for n in counted])
        places = np.flatnonzero(total > 0)
        sums = total[places] if self.is_weighted else np.ones(len(places))
        return places, sums.astype(np.float32)

    def _combine_by_signals(self, base: History, events: list[LiveEvent]) -> tuple[Positions, Any]:
        """Apply the model's signals to the training events and later ones together."""
        user = str(self.users.values[base.user]) if base.user >= 0 else ""  # any text will do
        increment = increment_of(
            self.model,
            [Event("", user, item, kind, weight, time) for item, weight, time, _, kind in events],
        )
        if increment.added is None and increment.removed is None:
            return base.places, base.weights
        data = increment.added
        if base.user >= 0:
            past = self.model.data_.rows(np.array([base.user]))
            past = past if increment.removed is None else past.difference(increment.removed)
            data = past if data is None else past.union(data)
        if data is None:
            return base.places, base.weights
        row = self.model._weigh(data, "skip")
        return row.indices.astype(np.int64), row.data

    def request(
        self, history: History, allowed: Mask | None = None, user: str | None = None, **more: Any
    ) -> Request:
        """Return a history in the form that the model ranks.

        `user` selects the rules that name a user.
        """
        places, trained = history.places, None
        if self.is_plain:
            parts = history.weights, places.astype(np.int32), np.array([0, len(places)])
            row = sp.csr_array(parts, shape=(1, self.n_items))
            row.has_canonical_format = True
        elif not self.model.fold_in and history.user >= 0:
            trained = np.array([history.user])
            row = self.data.matrix[trained]
        else:
            row = self.model._weigh_events(_as_events(places))
        return Request(
            [user],
            row,
            np.array([self.is_cold(history)]),
            trained=trained,
            allowed=allowed,
            has_names=user is not None,
            **more,
        )

    def top(
        self,
        history: History,
        k: int,
        allowed: Mask,
        alpha: float | None = None,
        rules: ItemRules | None = None,
        user: str | None = None,
        with_trend: bool = True,
        new_items: float | None = None,
        hidden: Positions = NOTHING,
    ) -> Listed:
        """Return the k best items that are allowed and not hidden; popular ones without a history.

        `user` selects the rules that name a user; `new_items` multiplies the scores of new items.
        """
        ranking = self.ranking if with_trend else self.untrended
        dials = (alpha,) if new_items is None else (alpha, new_items)
        if rules is None and self.is_plain and not self.is_cold(history):
            places, weights = history.places, history.weights
            ranked = ranking.rows(*dials).rank(places, weights, k, allowed, hidden)
            return Listed(*ranked, "model")
        allowed = allowed.copy()
        allowed[hidden] = False
        pins: list[tuple[Any, str]] = []
        used = None
        if rules is not None and rules.unknown_pins is not None:
            unknown = rules.unknown_pins
            pins = list(zip(unknown.ids, unknown.titles, strict=True))
            used = np.array([[str(item) in history.unknown for item in unknown.ids]], np.bool_)
        request = self.request(history, allowed, user, used_pins=used)
        k = min(k, max(self.n_items, 1) + len(pins))
        # raises where the model takes no alpha, or knows no new items
        terms = ranking.terms(*dials)
        lists = ranking.model._rank_rows(request, terms, k, exclude_seen=False, rules=rules)
        length = lists.lengths[0]
        source = "popular" if request.cold[0] else "model"
        return Listed(lists.items[0, :length], lists.scores[0, :length], source, pins)

    def is_cold(self, history: History) -> bool:
        """Whether a history is empty, or no training user has its items."""
        if self.is_plain and history.user >= 0:  # the items of a training user have a user
            return not len(history.places)
        return not self._is_used.take(history.places).any()

    def scores(self, history: History, places: Positions, alpha: float | None) -> list[Any]:
        """Return the scores of these items for a history; None without a score."""
        allowed = np.zeros(self.n_items, np.bool_)
        allowed[places] = True
        listed = self.top(history, max(len(places), 1), allowed, alpha)
        if listed.source == "popular":
            return [None] * len(places)
        scores = dict(zip(listed.places.tolist(), listed.scores.tolist(), strict=False))
        return [scores.get(place) for place in places.tolist()]

    def reasons(
        self,
        history: History,
        places: Positions,
        alpha: float | None,
        most: int | None = None,
        new_items: float | None = None,
    ) -> list[Reasons]:
        """Return, for each of these items, the history items that contribute most to its score."""
        if not self.model.explains or not self.is_plain:
            raise DataError(f"model {self.name!r} cannot give reasons; use a linear model")
        dials = (alpha,) if new_items is None else (alpha, new_items)
        request, terms = self.request(history), self.ranking.terms(*dials)
        return self.model._explain_rows(request, terms, [places], most)[0]

    def search(self, text: str, limit: int, offset: int) -> tuple[list[int], int]:
        """Return the items whose title or id contains a text, and their total number.

        Titles that start with the text come first, then by popularity.
        """
        text = text.strip()
        folded = text.casefold()
        if not folded:
            return [int(n) for n in self.order[offset : offset + limit]], self.n_items
        titles = self._folded_titles
        hits = [n for n, title in enumerate(titles) if folded in title]
        hits += [int(n) for n in find(self.items, [text]) if n >= 0 and folded not in titles[n]]
        hits.sort(key=lambda n: (not titles[n].startswith(folded), self.rank[n]))
        return hits[offset : offset + limit], len(hits)

    def curve(self) -> list[int]:
        """Return the number of users of the items, most popular first, at evenly spaced ranks."""
        if not self.n_items:
            return []
        places = np.linspace(0, self.n_items - 1, min(CURVE, self.n_items)).round().astype(int)
        return [int(n) for n in self.counts[self.order[places]]]


def _as_events(places: Positions) -> Events:
    return Events(places.astype(np.int32), np.array([0, len(places)]))


def rules_of_user(rules: Mapping[str, Any], user: Any) -> dict[str, Any]:
    """Return rules without those of other users.

    >>> rules_of_user({"pin": ["tea"], "users": {"ann": {}, "bob": {}}}, "ann")
    {'pin': ['tea'], 'users': {'ann': {}}}
    """
    users = rules.get("users")
    if not isinstance(users, Mapping):
        return dict(rules)
    user_rules = (
        {} if user is None else {name: users[name] for name in (str(user),) if name in users}
    )
    return {**rules, "users": user_rules}


def scoring_steps(terms: Sequence[Term], n_items: int) -> tuple[float, float]:
    """Return the steps to score all items: fixed ones, and those per history item."""
    fixed, per_item = float(n_items), 0.0
    for term in terms:
        stored = [getattr(term, name, None) for name in ("matrix", "data", "left")]
        sizes = [array.size for array in stored if isinstance(array, np.ndarray)]
        if term.constant is None:
            per_item += sum(sizes) / max(n_items, 1) if sizes else n_items
        fixed += term.buffer_size * n_items
    return fixed, per_item


class ByteCache:
    """LRU cache with a limit in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit, self.size = limit, 0
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._changing = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of a key; a missing one is made, and stored if it fits."""
        with self._changing:
            if key in self._values:
                self._values.move_to_end(key)
                cached: Value = self._values[key][0]
                return cached
        value = make()
        size = count_bytes(key) + count_bytes(value)
        with self._changing:
            if size <= self._limit and key not in self._values:
                self._values[key] = value, size
                self.size += size
            while self.size > self._limit:
                _, (_, freed) = self._values.popitem(last=False)
                self.size -= freed
        return value


def count_bytes(value: Any) -> int:
    """Return the approximate memory of a value and its parts."""
    if isinstance(value, np.ndarray):
        return value.nbytes + 128
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
        return 64 + sum(map(count_bytes, parts))
    if isinstance(value, Mapping):
        return sys.getsizeof(value) + sum(map(count_bytes, [*value, *value.values()]))
    if isinstance(value, (list, tuple, set, frozenset)):
        return sys.getsizeof(value) + sum(map(count_bytes, value))
    return sys.getsizeof(value)


class Catalogue:
    """The attributes of items: the columns of the model's catalogue, overridden by the store's."""

    _numbers = itertools.count()

    def __init__(
        self,
        served: Served,
        stored: Mapping[str, Mapping[str, Any]],
        cache: ByteCache | None = None,
    ) -> None:
        self.served, self.stored = served, stored
        self._cache = ByteCache(Limits().cache) if cache is None else cache
        # part of keys of the cache, where entries outlive this object; the same after changes
        self._number = next(self._numbers)
        known_items = served.data.known_items
        self._of_model = CatalogueOfData(pl.DataFrame()) if known_items is None else known_items
        self._own_names = self._of_model.frame.columns
        self._title = next(iter(self._own_names), "title")
        self._stored_names = Counter(itertools.chain.from_iterable(stored.values()))
        self.available = np.ones(served.n_items, np.bool_)
        hidden = [item for item, values in stored.items() if values.get("available") is False]
        places = find(served.items, hidden)
        self.available[places[places >= 0]] = False
        self._columns: dict[str, Column] = {}

    def changed(
        self,
        stored: Mapping[str, Mapping[str, Any]],
        changes: Mapping[str, Mapping[str, Any]],
    ) -> Catalogue:
        """Return the catalogue after the attributes of a few items have changed to `stored`.

        Attributes whose values remain are not looked up again.
        """
        catalogue = copy.copy(self)
        for name in ("data", "looked_up"):
            vars(catalogue).pop(name, None)
        catalogue.stored = stored
        catalogue.available = self.available.copy()
        catalogue._stored_names = names = self._stored_names.copy()
        changed_names: set[str] = set()
        new_places: dict[str, int] = {}
        has_new_items = False
        for item, values in changes.items():
            old = self.stored.get(item, {})
            names.subtract(list(old))
            names.update(list(values))
            differs = {n for n in {*old, *values} if not _equals(old.get(n), values.get(n))}
            changed_names |= differs | (old.keys() ^ values.keys())
            place = self.served.items.find(item)
            if place >= 0:
                catalogue.available[place] = values.get("available") is not False
            if item not in self.stored:
                new_places[item] = place
                has_new_items |= place < 0
        if has_new_items:
            vars(catalogue).pop("_places", None)
            catalogue._columns = {}
            return catalogue
        if new_places and "_places" in vars(self):
            vars(catalogue)["_places"] = self._places | new_places
        catalogue._columns = {}
        for name, column in list(self._columns.items()):
            new: Column | None = column
            if name in changed_names:
                places = catalogue._places
                here = {places[i]: row[name] for i, row in changes.items() if name in row}
                removed = [places[i] for i, row in changes.items() if name not in row]
                new = column.changed(here, removed)
            if new is not None:
                catalogue._columns[name] = new
        return catalogue

    @functools.cached_property
    def _places(self) -> dict[str, int]:
        """Positions of the stored items and of new items, which follow those of the model."""
        stored = list(self.stored)
        known = dict(zip(stored, find(self.served.items, stored).tolist(), strict=True))
        unknown = [item for item, place in known.items() if place < 0]
        new_ids = dict.fromkeys([*map(str, self._of_model.new_index.values.tolist()), *unknown])
        new = {item: self.served.n_items + n for n, item in enumerate(new_ids)}
        return new | {item: place for item, place in known.items() if place >= 0}

    def attributes(self, place: int) -> dict[str, Any]:
        """Return all attributes of an item, as JSON has them."""
        catalogue = self.served.data.catalogue
        row = {} if catalogue is None else catalogue.row(place, named=True)
        return _as_json(row) | dict(self.stored.get(str(self.served.ids[place]), {}))

    def unknown_attributes(self, item: Any) -> dict[str, Any]:
        """Return the attributes of an item that the model does not know."""
        known_items, row = self._of_model, {}
        if known_items.new_items is not None:
            place = int(known_items.new_index.positions([item], unknown="skip")[0])
            if place >= 0:
                row = known_items.new_items.row(place, named=True)
                del row[known_items.new_items.columns[0]]
        return _as_json(row) | dict(self.stored.get(str(item), {}))

    def names(self) -> list[str]:
        """Return the names of all attributes."""
        stored = [name for name, number in self._stored_names.items() if number > 0]
        return sorted({*self._own_names, *stored})

    def _column(self, name: str) -> Column:
        column = self._columns.get(name)
        if column is None:
            column = self._make_column(name)
            while len(self._columns) >= MOST_COLUMNS:
                self._columns.pop(next(iter(self._columns)), None)
            self._columns[name] = column
        return column

    def _make_column(self, name: str) -> Column:
        places, n_items = self._places, self.served.n_items
        n_new_items = sum(place >= n_items for place in places.values())
        model_column = stacked(self._of_model, name, n_items, n_new_items)
        changes = {places[i]: row[name] for i, row in self.stored.items() if name in row}
        return Column(model_column, changes, n_items)

    def _series(self, name: str) -> pl.Series:
        """Return an attribute of the items and new items."""
        column = self._column(name)
        if column.series is None:  # only its items by value were changed
            column.series = self._make_column(name).series
        assert column.series is not None
        return column.series.alias(name)

    def has(self, name: str) -> bool:
        """Whether there is an attribute with this name."""
        known = name == self._title or name in self._own_names
        return known or self._stored_names[name] > 0

    @functools.cached_property
    def data(self) -> Interactions:
        """The items and new items with a catalogue of all attributes."""
        if not self.stored:
            return self.served.data
        items = self.served.items
        new_ids = [item for item, place in self._places.items() if place >= len(items)]
        names = dict.fromkeys([self._title, *self.names()])
        frame = pl.DataFrame([self._series(name) for name in names])
        new_items = None
        if new_ids:
            ids = pl.Series(id_name(frame.columns), new_ids, dtype=pl.String)
            new_items = frame[len(items) :].insert_column(0, ids)
        catalogue = CatalogueOfData(frame[: len(items)], new_items)
        no_users = sp.csr_array((0, self.served.n_items), dtype=np.float32)
        return Interactions(no_users, [], items, catalogue=catalogue)

    @functools.cached_property
    def looked_up(self) -> Any:
        """What rules refer to."""
        return LookedUp(self) if self.stored else self.served.data

    def rules(self, rules: Mapping[str, Any] | None, user: str | None = None) -> ItemRules | None:
        """Return the rules of a request, without those of other users, on the model's items."""
        if not rules:
            return None
        text = json.dumps(rules_of_user(rules, user), sort_keys=True)
        minute = int(time.time() // 60) if is_timed(rules) else 0

        def look_up() -> ItemRules | None:
            item_rules = as_rules(json.loads(text))
            return (
                None if item_rules is None else item_rules.on(self.looked_up, self.served.counts)
            )

        known = {self._title, *self._own_names, *self._stored_names}
        names = sorted(known.intersection([self._title, *_texts_in(rules)]))
        columns = tuple(self._column(name).number for name in names)
        return self._cache.get((self._number, columns, text, minute), look_up)

    def mask(self, name: str, allowed: tuple[Any, ...]) -> Mask:
        """Return the items whose attribute has one of these values."""
        if name not in self._own_names and self._stored_names[name] <= 0:
            known = ", ".join(self.names()) or "none"
            raise DataError(f"no item has an attribute {name!r}; known are {known}")
        column = self._column(name)
        return self._cache.get((column.number, allowed), lambda: column.mask(allowed))

    def shows_unknown(self, item: Any, filters: Mapping[str, Sequence[Any]]) -> bool:
        """Whether an item that the model does not know is available and passes filters."""
        attributes = self.unknown_attributes(item)
        passes = all(_has_one_of(attributes.get(name), values) for name, values in filters.items())
        return passes and attributes.get("available") is not False


class LookedUp:
    """The items and attributes of a catalogue for rules, as far as possible without a table.

    Parameters
    ----------
    catalogue
        The attributes, including those of the store.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self.item_index, self.n_items = catalogue.served.items, catalogue.served.n_items

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the data with the complete table."""
        return getattr(self._catalogue.data, name)

    def attribute_index(self, name: str) -> AttributeIndex | None:
        """Return the items by the values of an attribute; None if it is not known."""
        return self._catalogue._column(name).index if self._catalogue.has(name) else None

    def attribute_codes(self, name: str) -> AttributeCodes | None:
        """Return the values of an attribute as numbers; None if it is not known."""
        return self._catalogue._column(name).codes if self._catalogue.has(name) else None


def _has_one_of(value: Any, allowed: Container[Any]) -> bool:
    return any(part in allowed for part in plain_parts(value))


def _equals(one: Any, other: Any) -> bool:
    """Whether two values of an attribute are the same, of the same type."""
    return type(one) is type(other) and repr(one) == repr(other)


def _texts_in(value: Any) -> set[str]:
    """Return all texts in rules, among them the names of the attributes that they depend on."""
    texts: set[str] = set()
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            waiting += [*part, *part.values()]
        elif isinstance(part, (list, tuple)):
            waiting += part
        elif isinstance(part, str):
            texts.add(part)
    return texts


def _as_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that JSON has; embeddings and the like are left out."""
    values = {name: json_value(value) for name, value in row.items()}
    return {
        name: value for name, value in values.items() if value is not None or row[name] is None
    }


def assign(experiment: Experiment, user: str) -> str:
    """Return the model of a user: a stable hash, cut by the shares.

    >>> assign(Experiment(name="dial", models={"a": 0.5, "b": 0.5}), "ann")
    'b'
    """
    key = f"{experiment.name}\0{TENANT}\0{user}".encode()
    point = int.from_bytes(hashlib.sha256(key).digest()[:8], "big") / 2**64
    total, low = sum(experiment.models.values()), 0.0
    for name, share in experiment.models.items():
        low += share / total
        if point < low:
            return name
    return next(reversed(experiment.models))


class State:
    """The models and item attributes of a worker."""

    def __init__(self, config: Config, store: Store) -> None:
        self.config, self.store = config, store
        self.stopping = False  # /readyz answers 503 from then on
        self.cache = ByteCache(config.limits.cache)
        self.experiment = next(iter(config.experiments), None)
        if self.experiment is not None:
            store.record_shares(self.experiment.name, self.experiment.models)
        models = {name: Served.open(name, folder, store) for name, folder in config.models.items()}
        self._version = store.attribute_version()  # read first, so that no change is missed
        self._attributes: dict[str, dict[str, Any]] = store.all_attributes()
        self.models = {name: self._extended(served) for name, served in models.items()}
        self._checked = time.monotonic()
        self._catalogues: dict[str, Catalogue] = {}
        self._renewing = threading.Lock()
        self._next_look = 0.0  # at new events
        self._counting = threading.Lock()
        self._reloading = threading.Lock()

    def model(self, name: str | None) -> Served:
        """Return a model by name; the first one for None."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise UnknownIdError(f"no model {name!r} here; known are {', '.join(self.models)}")
        return self.models[name]

    def reload(self) -> dict[str, str]:
        """Load the models that have changed on disk; a failure leaves every model as it was."""
        with self._reloading:
            try:
                models = {name: self._renew(served) for name, served in self.models.items()}
            except (EquipoiseError, OSError, ValueError) as error:
                logger.error("reload refused: %s", error)
                raise DataError("a model could not be loaded; the old ones stay in use") from error
            with self._renewing, self._counting:
                models = {name: self._extended(served) for name, served in models.items()}
                self.models, self._catalogues = models, {}
            return {name: served.version for name, served in models.items()}

    def are_changed(self) -> bool:
        """Whether any model was saved anew since it was loaded."""
        return any(
            saved_version(served.name, served.folder) != served.version
            for served in self.models.values()
        )

    def _renew(self, served: Served) -> Served:
        if saved_version(served.name, served.folder) == served.version:
            return served
        return Served.open(served.name, served.folder, self.store)

    def unannounced(self, items: Iterable[str]) -> list[str]:
        """Return the items that no model knows and that have no attributes."""
        names = [item for item in dict.fromkeys(items) if item not in self._attributes]
        for served in self.models.values():
            places = find(served.items, names)
            names = [name for name, place in zip(names, places, strict=True) if place < 0]
        return names

    def attributes_are_old(self) -> bool:
        """Whether to check if another process has changed attributes."""
        return time.monotonic() - self._checked > FRESH

    def renew_attributes(self, *, at_once: bool = False) -> None:
        """Read attributes that have changed; without an answer the known ones stay.

        One thread at a time, so that an older read never replaces a newer one. With `at_once`
        they are read in any case, and a failure raises.
        """
        self._checked = time.monotonic()
        if not self._renewing.acquire(blocking=at_once):
            return  # another thread is reading them
        try:
            version = self.store.attribute_version()
            if version != self._version or at_once:
                self._read_attributes(version)
        except StoreError:
            if at_once:
                raise
        finally:
            self._renewing.release()

    def _read_attributes(self, version: str | None) -> None:
        """Read the attributes that have changed since the known version, or all of them."""
        last = _change_number(self._version)
        if last is None or _change_number(version) is None:
            self._attributes, self._catalogues = self.store.all_attributes(), {}
            self._extend_models(None)
        else:
            changes = self.store.all_attributes(last)
            if not changes:
                self._version = version
                return
            attributes, catalogues = {**self._attributes, **changes}, self._catalogues
            is_small = FEW_CHANGES * len(changes) < len(attributes) + 1_000
            self._catalogues = {
                name: known.changed(attributes, changes)
                for name, known in catalogues.items()
                if is_small and known.stored is self._attributes
            }
            self._attributes = attributes
            if changes:
                self._extend_models(changes)
        self._version = version

    def _extend_models(self, changes: Mapping[str, Mapping[str, Any]] | None) -> None:
        """Let models list the items of the store that they know by their attributes alone."""
        with self._counting:  # no thread changes a trend meanwhile
            models = {n: self._extended(served, changes) for n, served in self.models.items()}
            self.models = models

    def _extended(
        self, served: Served, changes: Mapping[str, Mapping[str, Any]] | None = None
    ) -> Served:
        """Return a model with the items of the store; after `changes`, or with all of them."""
        unchanged = served.added if changes is not None else {}
        stored = self._attributes if changes is None else changes
        unchanged = {item: values for item, values in unchanged.items() if item not in stored}
        added = unchanged | described_items(served._loaded_model, stored)
        if added == served.added:
            return served
        try:
            return served.with_added(added)
        except EquipoiseError as error:  # such as too many items for the memory
            logger.error("model %r does not list new items: %s", served.name, error)
            return served

    def trends_are_old(self) -> bool:
        """Whether to count the events that have arrived, for models with a trend."""
        if time.monotonic() < self._next_look:
            return False
        if any(served.model.trend_ is not None for served in self.models.values()):
            return True
        self._next_look = time.monotonic() + FRESH  # a model with a trend may be loaded
        return False

    def renew_trends(self, *, completely: bool = False) -> None:
        """Count the events that have arrived; without an answer of the store the trend stays.

        One thread at a time. Counts a limited number of events, or all of them with `completely`.
        """
        if not self._counting.acquire(blocking=completely):
            return  # another thread is counting
        start, is_complete = time.monotonic(), True
        try:
            for served in self.models.values():
                if served.model.trend_ is not None:
                    is_complete &= served.follow(self.store, completely=completely)
        except StoreError:
            pass
        finally:
            shortest, longest = TREND_PAUSES
            now = time.monotonic()
            pause = min(max(TREND_SHARE * (now - start), shortest), longest)
            self._next_look = now + pause if is_complete else now
            self._counting.release()

    def trend_of(self, served: Served) -> tuple[LiveTrend, npt.NDArray[np.float64]]:
        """Return the live trend of a model and its counts with all events that have arrived."""
        with self._counting:
            served.follow(self.store, completely=True)
            assert served.trend is not None
            return served.trend, served.trend.counts

    def catalogue(self, served: Served) -> Catalogue:
        """Return the attributes of a model's items."""
        known = self._catalogues.get(served.name)
        # another thread may have stored one of an older model or of older attributes
        if known is None or known.served is not served or known.stored is not self._attributes:
            known = self._catalogues[served.name] = Catalogue(served, self._attributes, self.cache)
        return known


def _change_number(version: str | None) -> int | None:
    """Return the number of a change of attributes; None if an older service made it."""
    return int(version) if version is not None and version.isdigit() else None


def allowed_items(
    served: Served,
    catalogue: Catalogue,
    *,
    exclude: Sequence[str] = (),
    candidates: Sequence[str] | None = None,
    filters: Mapping[str, Sequence[Any]] | None = None,
) -> Mask:
    """Return a mask of the items that may be listed, not to be changed."""
    available = catalogue.available
    if not exclude and candidates is None and not filters:
        return available
    allowed = available.copy()
    if candidates is not None:
        places = find(served.items, candidates)
        mask = np.zeros(served.n_items, np.bool_)
        mask[places[places >= 0]] = True
        allowed &= mask
    for name, values in (filters or {}).items():
        allowed &= catalogue.mask(name, tuple(values))
    if exclude:
        excluded = find(served.items, exclude)
        allowed[excluded[excluded >= 0]] = False
    return allowed
