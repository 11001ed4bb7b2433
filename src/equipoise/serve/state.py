"""The state of a worker: loaded models, item attributes, the experiment; and reloading."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import logging
import threading
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.data.ids import IdIndex
from equipoise.data.interactions import Interactions
from equipoise.data.storage import MANIFEST
from equipoise.errors import DataError, EquipoiseError, UnknownIdError
from equipoise.evaluation.metrics import head_items
from equipoise.models import Recommender, load
from equipoise.models.histories import Request, Unknowns
from equipoise.models.recommendations import add_up
from equipoise.ranking.ranker import score, score_items, top_k
from equipoise.ranking.rules import ItemRules, as_rules
from equipoise.ranking.terms import Constant, Term
from equipoise.serve.config import Config, Experiment, Limits
from equipoise.serve.costs import PAIRS, ByteCache, rules_of_user, scoring_steps
from equipoise.serve.folding import event_value, increment_of, split_at_dislikes
from equipoise.serve.store import TENANT, Event, Live, LiveEvent, Store, StoreError

logger = logging.getLogger(__name__)

Positions = npt.NDArray[np.integer[Any]]
Mask = npt.NDArray[np.bool_]
DIALS = 32  # values of alpha whose terms are cached, at most
DIAL_BYTES = 1 << 26  # of that cache; a value of alpha takes two numbers per item
FRESH = 1.0  # seconds between two checks whether another worker has changed attributes
SKIP = Unknowns("skip", "skip")
CURVE = 100  # points of the popularity curve
NOTHING = np.empty(0, np.int64)


def find(index: IdIndex, texts: Sequence[str]) -> Positions:
    """Return the positions of ids given as text, -1 for unknown ones."""
    return index.positions(texts, unknown="skip") if texts else NOTHING


@dataclass(frozen=True, eq=False)
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
    unknown: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Listed:
    """A ranked list: positions of items, their scores and the source of the list.

    `pins` are ids of pinned items that the model does not know; their positions follow those of
    the model's items.
    """

    places: Positions
    scores: npt.NDArray[Any]
    source: str
    pins: list[Any] = field(default_factory=list)


def saved_version(name: str, folder: str) -> str:
    """Return a hash of the manifest of a saved model."""
    try:
        return hashlib.sha256((Path(folder) / MANIFEST).read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise DataError(f"model {name!r} has no manifest to load; fit and save it") from error


class Served:
    """A loaded model, ready to answer; immutable."""

    def __init__(self, name: str, folder: str, model: Recommender, version: str) -> None:
        self.name, self.folder, self.model, self.version = name, folder, model, version
        data = model.interactions_
        self.data, self.n_items = data, data.n_items
        self.items, self.users = data.item_index, data.user_index
        self.ids: list[Any] = data.items.tolist()
        titles = self.ids if data.labels is None else data.labels.to_series(0).to_list()
        self.titles = [str(t or i) for t, i in zip(titles, self.ids, strict=True)]
        self.counts = data.item_counts
        self.head = head_items(self.counts) if self.n_items else np.zeros(0, np.bool_)
        self.order = np.argsort(-self.counts, kind="stable")
        self.rank = np.empty(self.n_items, np.int64)
        self.rank[self.order] = np.arange(self.n_items)
        self.is_weighted = data.weighted
        self.fitted = (Path(folder) / MANIFEST).stat().st_mtime
        self.loaded = time.time()
        self.event = self.forgotten = 0  # row numbers of the last ones the model includes
        self._folded_titles = [title.casefold() for title in self.titles]
        self._popular: list[Term] = [Constant(self.counts.astype(np.float32))]
        dials = max(2, min(DIALS, DIAL_BYTES // (16 * max(self.n_items, 1))))
        self.terms = functools.lru_cache(dials)(model.terms)
        # linear models are ranked here directly; other models rank by their own methods
        self.is_plain = model.fold_in and not model.ordered
        self.alpha = model.alpha_
        terms = self.terms(None) if self.is_plain else []
        # assume that other models look at all items for each item of the history
        self._steps = scoring_steps(terms, self.n_items) if terms else (0.0, float(self.n_items))

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
        data = served.data
        for user in {-1, int(np.argmax(data.user_counts)) if data.n_users else -1}:
            served.top(served.training_history(user), 5, np.ones(served.n_items, np.bool_))
        return served

    def training_history(self, user: int) -> History:
        """Return the history that a training user was fitted with; an empty one for -1."""
        if user < 0:
            return History(NOTHING, np.empty(0, np.float32), NOTHING)
        if self.model.ordered and self.data.sequences is not None:
            clicks = self.data.sequences.take(np.array([user])).items.astype(np.int64)
            return History(clicks, np.ones(len(clicks), np.float32), clicks, user)
        X = self.data.matrix
        low, high = X.indptr[user], X.indptr[user + 1]
        places = X.indices[low:high].astype(np.int64)
        return History(places, X.data[low:high], places, user)

    def history_of_items(self, items: Sequence[str]) -> History:
        """Return a history of items by their ids, in this order."""
        places = find(self.items, items)
        unknown = [items[n] for n in np.flatnonzero(places < 0).tolist()]
        known = places[places >= 0]
        if self.model.signals is not None and len(known):
            row = self.model._rows_of([[self.ids[place] for place in known]], SKIP)
            return History(row.indices.astype(np.int64), row.data, np.unique(known), -1, unknown)
        places = known if self.model.ordered else np.unique(known)
        return History(places, np.ones(len(places), np.float32), places, -1, unknown)

    def history_of_user(self, user: str, live: Live) -> History:
        """Return the training history of a user together with the events in the store.

        Weights add up, or an item counts once where it does so in the training data. A dislike
        removes the item with everything before it. Used and disliked items stay hidden.
        """
        place = int(find(self.users, [user])[0])
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
        row = self.model._rows_of(data, SKIP)
        return row.indices.astype(np.int64), row.data

    def row(self, history: History) -> Any:
        """Return the history as a sparse row."""
        offsets = np.array([0, len(history.places)])
        places = history.places.astype(np.int32)
        row = sp.csr_array((history.weights, places, offsets), shape=(1, self.n_items))
        row.has_canonical_format = True
        return row

    def top(
        self,
        history: History,
        k: int,
        allowed: Mask,
        alpha: float | None = None,
        rules: ItemRules | None = None,
        user: str | None = None,
    ) -> Listed:
        """Return the k best allowed items; popular ones for an empty history.

        `user` selects the rules that name a user.
        """
        pins = [] if rules is None or rules.unknown_pins is None else rules.unknown_pins.ids
        k = min(k, max(self.n_items, 1) + len(pins))
        is_cold = self.is_cold(history)
        terms = self.terms(alpha)  # raises where the model takes no alpha
        if rules is not None or not (self.is_plain or is_cold):
            used = np.array([[str(item) in history.unknown for item in pins]], np.bool_)
            if self.is_plain or is_cold:
                request = Request([user], None, self.row(history), np.ones(1, np.bool_))
            else:
                request = self.model._request(self._as_model_input(history, user), Unknowns())
            request = replace(request, has_names=user is not None, used_pins=used)
            ranked = self.model._listed(request.within(allowed), terms, k, False, rules, None)
        else:
            scored_by = self._popular if is_cold else terms
            row = self.row(history)
            ranked = top_k(scored_by, row, k, exclude_seen=False, candidates=allowed)
        places = ranked.items[0, : ranked.lengths[0]]
        return Listed(places, ranked.scores[0], "popular" if is_cold else "model", pins)

    def is_cold(self, history: History) -> bool:
        """Whether a history is empty, or no training user has its items."""
        return not self.counts[history.places].any()

    def _as_model_input(self, history: History, user: str | None = None) -> Any:
        """Return a history for a model that is not linear: ids of clicks, or of the user."""
        if not self.model.fold_in and history.user >= 0:
            return [self.users.values[history.user]]
        return {user: [self.ids[place] for place in history.places]}

    def scores(self, history: History, places: Positions, alpha: float | None) -> list[Any]:
        """Return the scores of these items for a history; None for a cold one."""
        if self.is_cold(history):
            self.terms(alpha)
            return [None] * len(places)
        if self.is_plain:
            scores = score(self.terms(alpha), self.row(history))
        else:
            scores = self.model.score(self._as_model_input(history), alpha=alpha)
        return list(scores[0, places].tolist())

    def reasons(
        self, history: History, places: Positions, alpha: float | None, most: int
    ) -> list[list[tuple[int, float]]]:
        """Return, for each of these items, the history items that contribute most to its score."""
        if not self.model.explains or not self.is_plain:
            raise DataError(f"model {self.name!r} cannot give reasons; use a linear model")
        if self.is_cold(history) or not len(places):
            return [[] for _ in places]
        step = max(1, PAIRS // len(history.places))
        parts = [places[start : start + step] for start in range(0, len(places), step)]
        return [row for part in parts for row in self._reasons(history, part, alpha, most)]

    def _reasons(
        self, history: History, places: Positions, alpha: float | None, most: int
    ) -> list[list[tuple[int, float]]]:
        terms, sources = self.terms(alpha), history.places.astype(np.int32)
        shape, offsets = (len(sources), self.n_items), np.arange(len(sources) + 1)
        one_item_rows = sp.csr_array((history.weights, sources, offsets), shape=shape)
        pairs = np.tile(offsets[:-1], len(places)), np.repeat(places, len(sources))
        parts = score_items(terms, one_item_rows, *pairs).astype(np.float64)
        totals = score(terms, self.row(history))[0, places].astype(np.float64)
        reasons = []
        for column, total in zip(parts.reshape(len(places), -1), totals, strict=True):
            order = np.argsort(-np.abs(column), kind="stable")
            shares = add_up(column[order], float(total))[:most]
            strongest = sources[order[:most]]
            reasons.append(list(zip(strongest.tolist(), shares.tolist(), strict=True)))
        return reasons

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


class Catalogue:
    """The attributes of items: the columns of the model's labels, overridden by the store's."""

    _numbers = itertools.count()

    def __init__(
        self,
        served: Served,
        stored: Mapping[str, Mapping[str, Any]],
        cache: ByteCache | None = None,
    ) -> None:
        self.served, self.stored = served, stored
        self._cache = ByteCache(Limits.cache) if cache is None else cache
        self._number = next(self._numbers)  # part of the cache keys; entries outlive this object
        self.available = np.ones(served.n_items, np.bool_)
        names = list(stored)
        self._places = dict(zip(names, find(served.items, names).tolist(), strict=True))
        for item, attributes in stored.items():
            if self._places[item] >= 0 and attributes.get("available") is False:
                self.available[self._places[item]] = False
        self._values = functools.lru_cache(64)(self._column)

    def attributes(self, place: int) -> dict[str, Any]:
        """Return all attributes of an item."""
        labels = self.served.data.labels
        row = {} if labels is None else labels.row(place, named=True)
        attributes = {name: value for name, value in row.items() if _is_plain(value)}
        return attributes | dict(self.stored.get(str(self.served.ids[place]), {}))

    def names(self) -> list[str]:
        """Return the names of all attributes."""
        labels = self.served.data.labels
        columns = [] if labels is None else labels.columns
        return sorted(set(columns).union(*self.stored.values()))

    def _column(self, name: str) -> list[Any]:
        labels = self.served.data.labels
        values: list[Any] = [None] * self.served.n_items
        if labels is not None and name in labels.columns:
            values = labels[name].to_list()
        for item, attributes in self.stored.items():
            if name in attributes and self._places[item] >= 0:
                values[self._places[item]] = attributes[name]
        return values

    @functools.cached_property
    def data(self) -> Interactions:
        """The items with all attributes as their labels; rules refer to these."""
        if not self.stored:
            return self.served.data
        labels = pl.DataFrame({name: _series(self._values(name)) for name in self.names()})
        no_users = sp.csr_array((0, self.served.n_items), dtype=np.float32)
        return Interactions(no_users, [], self.served.items, labels=labels)

    def rules(self, rules: Mapping[str, Any] | None, user: str | None = None) -> ItemRules | None:
        """Return the rules of a request, without those of other users, on the model's items."""
        if not rules:
            return None
        text = json.dumps(rules_of_user(rules, user), sort_keys=True)

        def look_up() -> ItemRules | None:
            item_rules = as_rules(json.loads(text))
            return None if item_rules is None else item_rules.on(self.data)

        return self._cache.get((self._number, text), look_up)

    def mask(self, name: str, allowed: tuple[Any, ...]) -> Mask:
        """Return the items whose attribute has one of these values."""
        key = (self._number, name, allowed)
        return self._cache.get(key, lambda: self._mask(name, allowed))

    def _mask(self, name: str, allowed: tuple[Any, ...]) -> Mask:
        if name not in self.names():
            known = ", ".join(self.names()) or "none"
            raise DataError(f"no item has an attribute {name!r}; known are {known}")
        allowed_set = set(allowed)
        matches = (_has_one_of(value, allowed_set) for value in self._values(name))
        return np.fromiter(matches, np.bool_, self.served.n_items)

    def shows_unknown(self, item: Any, filters: Mapping[str, Sequence[Any]]) -> bool:
        """Whether an item that the model does not know is available and passes filters."""
        attributes = self.stored.get(str(item), {})
        passes = all(_has_one_of(attributes.get(name), values) for name, values in filters.items())
        return passes and attributes.get("available") is not False


def _has_one_of(value: Any, allowed: Container[Any]) -> bool:
    """Whether an attribute, or any element of a list, is among these values."""
    parts = value if isinstance(value, (list, tuple)) else [value]
    return any(_is_plain(part) and part in allowed for part in parts)


def _series(values: list[Any]) -> pl.Series:
    """Return a column of attributes; of type object where their types differ."""
    try:
        return pl.Series(values)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series(values, dtype=pl.Object)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


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
        self.models = {
            name: Served.open(name, folder, store) for name, folder in config.models.items()
        }
        self._version = store.attribute_version()  # read first, so that no change is missed
        self._attributes: dict[str, dict[str, Any]] = store.all_attributes()
        self._checked = time.monotonic()
        self._catalogues: dict[str, Catalogue] = {}
        self._renewing = threading.Lock()
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
                raise DataError("a model could not be loaded; the old ones go on") from error
            self.models, self._catalogues = models, {}
            return {name: served.version for name, served in models.items()}

    def _renew(self, served: Served) -> Served:
        if saved_version(served.name, served.folder) == served.version:
            return served
        return Served.open(served.name, served.folder, self.store)

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
                self._attributes = self.store.all_attributes()
                self._version, self._catalogues = version, {}
        except StoreError:
            if at_once:
                raise
        finally:
            self._renewing.release()

    def catalogue(self, served: Served) -> Catalogue:
        """Return the attributes of a model's items."""
        known = self._catalogues.get(served.name)
        # another thread may have stored one of an older model or of older attributes
        if known is None or known.served is not served or known.stored is not self._attributes:
            known = self._catalogues[served.name] = Catalogue(served, self._attributes, self.cache)
        return known


def allowed_items(
    served: Served,
    catalogue: Catalogue,
    history: History,
    *,
    exclude_seen: bool,
    exclude: Sequence[str] = (),
    candidates: Sequence[str] | None = None,
    filters: Mapping[str, Sequence[Any]] | None = None,
) -> Mask:
    """Return a mask of the items that may be listed."""
    allowed = catalogue.available.copy()
    if candidates is not None:
        places = find(served.items, candidates)
        mask = np.zeros(served.n_items, np.bool_)
        mask[places[places >= 0]] = True
        allowed &= mask
    for name, values in (filters or {}).items():
        allowed &= catalogue.mask(name, tuple(values))
    excluded = find(served.items, exclude)
    allowed[excluded[excluded >= 0]] = False
    if exclude_seen:
        allowed[history.hidden] = False
    return allowed
