"""What a worker holds: loaded models, the attributes of items, experiments; and how it reloads."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import logging
import threading
import time
from collections.abc import Container, Iterable, Mapping, Sequence
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
DIALS = 32  # positions of the popularity dial whose terms are kept, at most
DIAL_BYTES = 1 << 26  # of all of them; each takes two numbers for an item
FRESH = 1.0  # seconds that another worker's change of an attribute may take to be seen here
SKIP = Unknowns("skip", "skip")
CURVE = 100  # points of the popularity curve


def find(index: IdIndex, texts: Sequence[str]) -> Positions:
    """Return the positions of ids given as text, -1 for those that are not known."""
    if not texts:
        return np.empty(0, np.int64)
    return index.positions(texts, unknown="skip")


@dataclass(frozen=True, eq=False)
class History:
    """What a list is made from.

    Parameters
    ----------
    places, weights
        Items and what they count, in the order of a session where that matters.
    hidden
        Items that may not be listed: used, disliked or shown before.
    user
        Position among the training users, -1 for others.
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
    """A ranked list: positions of items, their scores and where it comes from.

    `pins` are ids of pinned items that the model does not know, whose places come after its items.
    """

    places: Positions
    scores: npt.NDArray[Any]
    source: str
    pins: list[Any] = field(default_factory=list)


def saved_version(name: str, folder: str) -> str:
    """Return a text that stands for what is saved in a folder."""
    try:
        return hashlib.sha256((Path(folder) / MANIFEST).read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise DataError(f"model {name!r} has no manifest to load; fit and save it") from error


class Served:
    """A loaded model, ready to answer; never changed after it was made."""

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
        self.event = self.forgotten = 0  # the last of each that the model has taken in
        self._folded = [title.casefold() for title in self.titles]
        self._popular: list[Term] = [Constant(self.counts.astype(np.float32))]
        dials = max(2, min(DIALS, DIAL_BYTES // (16 * max(self.n_items, 1))))
        self.terms = functools.lru_cache(dials)(model.terms)
        # rows of a linear model are ranked without a detour; others know best themselves
        self.is_plain = model.fold_in and not model.ordered
        self.alpha = model.alpha_
        known = self.terms(None) if self.is_plain else []
        # a model that ranks by itself looks at all items for each of the history
        self._steps = scoring_steps(known, self.n_items) if known else (0.0, float(self.n_items))

    def steps(self, length: int) -> float:
        """Return the steps of scoring all items for a history of this length."""
        return self._steps[0] + self._steps[1] * max(length, 1)

    @classmethod
    def open(cls, name: str, folder: str, store: Store | None = None) -> Served:
        """Load a model and see that it answers."""
        version = saved_version(name, folder)
        model = load(folder)
        found = cls(name, folder, model, version)
        if store is not None:
            found.event, found.forgotten = store.folded(model.data_fingerprint_)
        found.check()
        return found

    def check(self) -> None:
        """Rank for a training user and an empty history; what fails here would fail for all."""
        whole = np.ones(self.n_items, np.bool_)
        row = int(np.argmax(self.data.user_counts)) if self.data.n_users else -1
        for user in {-1, row}:
            self.top(self.training(user), 5, whole)

    def training(self, user: int) -> History:
        """Return the history a training user was fitted with; nothing for -1."""
        if user < 0:
            nothing = np.empty(0, np.int64)
            return History(nothing, np.empty(0, np.float32), nothing)
        if self.model.ordered and self.data.sequences is not None:
            clicks = self.data.sequences.take(np.array([user])).items.astype(np.int64)
            return History(clicks, np.ones(len(clicks), np.float32), clicks, user)
        X = self.data.matrix
        low, high = X.indptr[user], X.indptr[user + 1]
        places = X.indices[low:high].astype(np.int64)
        return History(places, X.data[low:high], places, user)

    def given(self, items: Sequence[str]) -> History:
        """Return a history of items by their ids, in this order."""
        found = find(self.items, items)
        unknown = [items[place] for place in np.flatnonzero(found < 0).tolist()]
        known = found[found >= 0]
        if self.model.signals is not None and len(known):
            row = self.model._rows_of([[self.ids[place] for place in known]], SKIP)
            return History(row.indices.astype(np.int64), row.data, np.unique(known), -1, unknown)
        places = known if self.model.ordered else np.unique(known)
        return History(places, np.ones(len(places), np.float32), places, -1, unknown)

    def live(self, user: str, live: Live) -> History:
        """Return the training history of a user and what the store has seen since.

        An item counts once where the training data count it once; otherwise weights add up. A
        dislike takes the item out, with all that came before it. Items that were used or disliked
        stay hidden.
        """
        place = int(find(self.users, [user])[0])
        base = self.training(-1 if live.forgotten > self.forgotten else place)
        shown = find(self.items, live.seen)
        if not live.events and not live.seen:
            return base
        items = [event[0] for event in live.events]
        found = find(self.items, items)
        unknown = [items[n] for n in np.flatnonzero(found < 0).tolist()]
        hidden = np.concatenate([base.hidden, found[found >= 0], shown[shown >= 0]])
        # what a model has taken in already counts once
        new = [n for n, event in enumerate(live.events) if found[n] >= 0 and event[3] > self.event]
        places, weights = self._together(base, [live.events[n] for n in new], found[new])
        changed = -1 if self.is_plain else base.user
        return History(places, weights, hidden, changed, unknown)

    def _together(
        self, base: History, events: list[LiveEvent], found: Positions
    ) -> tuple[Positions, Any]:
        """Return what the training history and later events count together."""
        if self.model.signals is not None and self.model.fold_in:
            return self._weighed(base, events)
        values = [event_value(self.model, event[4], event[1]) for event in events]
        counted, disliked = split_at_dislikes(found.tolist(), values)
        stays = ~np.isin(base.places, list(disliked))
        places, weights = base.places[stays], base.weights[stays]
        if not self.model.fold_in:
            return places, weights
        if self.model.ordered:
            places = np.concatenate([places, found[counted]])
            return places, np.ones(len(places), np.float32)
        total = np.zeros(self.n_items, np.float64)
        total[places] = weights
        np.add.at(total, found[counted], [values[n] for n in counted])
        places = np.flatnonzero(total > 0)
        sums = total[places] if self.is_weighted else np.ones(len(places))
        return places, sums.astype(np.float32)

    def _weighed(self, base: History, events: list[LiveEvent]) -> tuple[Positions, Any]:
        """Return what the model's signals make of training events and later ones together."""
        user = str(self.users.values[base.user]) if base.user >= 0 else ""  # any text will do
        named = [
            Event("", user, item, kind, weight, time) for item, weight, time, _, kind in events
        ]
        increment = increment_of(self.model, named)
        whole = increment.added
        if base.user >= 0:
            data = self.model.data_.rows(np.array([base.user]))
            known = data if increment.removed is None else data.difference(increment.removed)
            whole = known if whole is None else known.union(whole)
        if whole is None or (increment.added is None and increment.removed is None):
            return base.places, base.weights
        row = self.model._rows_of(whole, SKIP)
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
        """Return the k best items among those allowed; an empty history gets popular ones.

        `user` is whose rules hold; a history of no user has none of its own. Pinned items that
        the model does not know have places after its last item.
        """
        pins = [] if rules is None or rules.unknown_pins is None else rules.unknown_pins.ids
        k = min(k, max(self.n_items, 1) + len(pins))
        cold = self.is_cold(history)
        terms = self.terms(alpha)  # a model without a dial refuses it here
        if rules is not None or not (self.is_plain or cold):
            used = np.array([[str(item) in history.unknown for item in pins]], np.bool_)
            request = self._request(history, user)
            request = replace(request, has_names=user is not None, used_pins=used)
            found = self.model._listed(request.within(allowed), terms, k, False, rules, None)
        else:
            row, scored_by = self.row(history), self._popular if cold else terms
            found = top_k(scored_by, row, k, exclude_seen=False, candidates=allowed)
        places = found.items[0, : found.lengths[0]]
        return Listed(places, found.scores[0], "popular" if cold else "model", pins)

    def _request(self, history: History, user: str | None) -> Request:
        if self.is_plain or self.is_cold(history):
            return Request([user], None, self.row(history), np.ones(1, np.bool_))
        return self.model._request(self._asked(history, user), Unknowns())

    def is_cold(self, history: History) -> bool:
        """Whether the model knows nothing of a history: it is empty, or no user has its items."""
        return not self.counts[history.places].any()

    def _asked(self, history: History, user: str | None = None) -> Any:
        """Return a history as other models take it: clicks in order, or the id of a user."""
        if not self.model.fold_in and history.user >= 0:
            return [self.users.values[history.user]]
        return {user: [self.ids[place] for place in history.places]}

    def scores(self, history: History, places: Positions, alpha: float | None) -> list[Any]:
        """Return the scores of some items for a history; None where only popularity is known."""
        if self.is_cold(history):
            self.terms(alpha)
            return [None] * len(places)
        if not self.is_plain:
            return list(self.model.score(self._asked(history), alpha=alpha)[0, places].tolist())
        return list(score(self.terms(alpha), self.row(history))[0, places].tolist())

    def reasons(
        self, history: History, places: Positions, alpha: float | None, most: int
    ) -> list[list[tuple[int, float]]]:
        """Return the items of the history that add most to the score of each of some items."""
        if not self.model.explains or not self.is_plain:
            raise DataError(f"model {self.name!r} cannot give reasons; take a linear one for that")
        if self.is_cold(history) or not len(places):
            return [[] for _ in places]
        step = max(1, PAIRS // len(history.places))
        parts = [places[start : start + step] for start in range(0, len(places), step)]
        return [row for part in parts for row in self._reasons(history, part, alpha, most)]

    def _reasons(
        self, history: History, places: Positions, alpha: float | None, most: int
    ) -> list[list[tuple[int, float]]]:
        terms, sources = self.terms(alpha), history.places.astype(np.int32)
        shape, each = (len(sources), self.n_items), np.arange(len(sources) + 1)
        alone = sp.csr_array((history.weights, sources, each), shape=shape)
        pairs = np.tile(each[:-1], len(places)), np.repeat(places, len(sources))
        parts = score_items(terms, alone, *pairs).astype(np.float64).reshape(len(places), -1)
        totals = score(terms, self.row(history))[0, places].astype(np.float64)
        found = []
        for column, total in zip(parts, totals, strict=True):
            order = np.argsort(-np.abs(column), kind="stable")
            shares = add_up(column[order], float(total))[:most]
            strongest = sources[order[:most]]
            found.append(list(zip(strongest.tolist(), shares.tolist(), strict=True)))
        return found

    def search(self, text: str, limit: int, offset: int) -> tuple[list[int], int]:
        """Return items whose title or id holds a text, most popular first, and how many there are.

        Titles that begin with the text stand before others.
        """
        wanted = text.casefold().strip()
        if not wanted:
            return [int(n) for n in self.order[offset : offset + limit]], self.n_items
        exact = find(self.items, [text.strip()])
        hits = [n for n, title in enumerate(self._folded) if wanted in title]
        hits += [int(n) for n in exact if n >= 0 and wanted not in self._folded[n]]
        hits.sort(key=lambda n: (not self._folded[n].startswith(wanted), self.rank[n]))
        return hits[offset : offset + limit], len(hits)

    def curve(self) -> list[int]:
        """Return the number of users of the items, most popular first, at evenly spaced ranks."""
        if not self.n_items:
            return []
        places = np.linspace(0, self.n_items - 1, min(CURVE, self.n_items)).round().astype(int)
        return [int(n) for n in self.counts[self.order[places]]]


class Catalogue:
    """The attributes of items: the columns of the model's labels, and over them the store's."""

    _numbers = itertools.count()

    def __init__(
        self,
        served: Served,
        given: Mapping[str, Mapping[str, Any]],
        cache: ByteCache | None = None,
    ) -> None:
        self._served = served
        self._given = given
        self._cache = ByteCache(Limits.cache) if cache is None else cache
        self._number = next(self._numbers)  # in the cache, whose entries outlive this
        self.available = np.ones(served.n_items, np.bool_)
        names = list(given)
        self._places = dict(zip(names, find(served.items, names).tolist(), strict=True))
        for item, own in given.items():
            if self._places[item] >= 0 and own.get("available") is False:
                self.available[self._places[item]] = False
        self._values = functools.lru_cache(64)(self._column)

    def of(self, place: int) -> dict[str, Any]:
        """Return all attributes of an item."""
        labels = self._served.data.labels
        own = {} if labels is None else dict(labels.row(place, named=True))
        own = {name: value for name, value in own.items() if _is_plain(value)}
        return own | dict(self._given.get(str(self._served.ids[place]), {}))

    def names(self) -> list[str]:
        """Return the names of all attributes."""
        labels = self._served.data.labels
        own = [] if labels is None else labels.columns
        return sorted({*own, *(name for each in self._given.values() for name in each)})

    def _column(self, name: str) -> list[Any]:
        labels = self._served.data.labels
        values: list[Any] = [None] * self._served.n_items
        if labels is not None and name in labels.columns:
            values = labels[name].to_list()
        for item, own in self._given.items():
            if name in own and self._places[item] >= 0:
                values[self._places[item]] = own[name]
        return values

    @functools.cached_property
    def data(self) -> Interactions:
        """Return the items with all attributes as their labels; what rules are looked up in."""
        if not self._given:
            return self._served.data
        labels = pl.DataFrame({name: _series(self._values(name)) for name in self.names()})
        no_users = sp.csr_array((0, self._served.n_items), dtype=np.float32)
        return Interactions(no_users, [], self._served.items, labels=labels)

    def rules(self, given: Mapping[str, Any] | None, user: str | None = None) -> ItemRules | None:
        """Return the rules of a request over the items and all their attributes.

        Those of other users than the one of the request are left out.
        """
        if not given:
            return None
        text = json.dumps(rules_of_user(given, user), sort_keys=True)

        def look_up() -> ItemRules | None:
            found = as_rules(json.loads(text))
            return None if found is None else found.on(self.data)

        return self._cache.get((self._number, text), look_up)

    def mask(self, name: str, allowed: tuple[Any, ...]) -> Mask:
        """Return the items whose attribute has one of these values."""
        key = (self._number, name, allowed)
        return self._cache.get(key, lambda: self._mask(name, allowed))

    def _mask(self, name: str, allowed: tuple[Any, ...]) -> Mask:
        if name not in self.names():
            told = ", ".join(self.names()) or "none"
            raise DataError(f"no item has an attribute {name!r}; known are {told}")
        kept = set(allowed)
        fits = (_has_one_of(value, kept) for value in self._values(name))
        return np.fromiter(fits, np.bool_, self._served.n_items)

    def shows_unknown(self, item: Any, filters: Mapping[str, Sequence[Any]]) -> bool:
        """Whether an item that the model does not know is available and passes filters."""
        own = self._given.get(str(item), {})
        passes = all(_has_one_of(own.get(name), values) for name, values in filters.items())
        return passes and own.get("available") is not False


def _has_one_of(value: Any, allowed: Container[Any]) -> bool:
    """Whether an attribute, or any of a list of them, is among these values."""
    if isinstance(value, (list, tuple)):
        return any(_is_plain(each) and each in allowed for each in value)
    return _is_plain(value) and value in allowed


def _series(values: list[Any]) -> pl.Series:
    """Return a column of attributes; where they are of several kinds, as they are."""
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
    """The models and attributes of a worker."""

    def __init__(self, config: Config, store: Store) -> None:
        self.config, self.store = config, store
        self.stopping = False  # soon; no new clients are wanted
        self.cache = ByteCache(config.limits.cache)
        self.experiment = next(iter(config.experiments), None)
        if self.experiment is not None:
            store.record_shares(self.experiment.name, self.experiment.models)
        self.models = {
            name: Served.open(name, folder, store) for name, folder in config.models.items()
        }
        self._version = store.attribute_version()  # first: what changes now is seen later
        self._given: dict[str, dict[str, Any]] = store.all_attributes()
        self._looked = time.monotonic()
        self._catalogues: dict[str, Catalogue] = {}
        self._renewing = threading.Lock()
        self._reloading = threading.Lock()

    def model(self, name: str | None) -> Served:
        """Return a model by name; the first one where none is named."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise UnknownIdError(f"no model {name!r} here; known are {', '.join(self.models)}")
        return self.models[name]

    def reload(self) -> dict[str, str]:
        """Load the models that have changed on disk; a failure leaves every model as it was."""
        with self._reloading:
            try:
                models = {name: self._renewed(served) for name, served in self.models.items()}
            except (EquipoiseError, OSError, ValueError) as error:
                logger.error("reload refused: %s", error)
                raise DataError("a model could not be loaded; the old ones go on") from error
            self.models, self._catalogues = models, {}
            return {name: served.version for name, served in models.items()}

    def _renewed(self, served: Served) -> Served:
        """Return the model as it is on disk; one that has not changed is not loaded."""
        if saved_version(served.name, served.folder) == served.version:
            return served
        return Served.open(served.name, served.folder, self.store)

    def attributes_are_old(self) -> bool:
        """Whether it is time to look whether another process has changed attributes."""
        return time.monotonic() - self._looked > FRESH

    def renew_attributes(self, *, at_once: bool = False) -> None:
        """Take over attributes that have changed; a store that is silent changes nothing.

        One thread at a time: what was read before a change is never set after it.
        """
        self._looked = time.monotonic()
        if not self._renewing.acquire(blocking=at_once):
            return  # another thread is looking
        try:
            version = self.store.attribute_version()
            if version != self._version or at_once:
                self._given = self.store.all_attributes()
                self._version, self._catalogues = version, {}
        except StoreError:
            if at_once:
                raise
        finally:
            self._renewing.release()

    def catalogue(self, served: Served) -> Catalogue:
        """Return the attributes of a model's items."""
        found = self._catalogues.get(served.name)
        # one that another thread made before the attributes were renewed is not kept
        if found is None or found._served is not served or found._given is not self._given:
            found = self._catalogues[served.name] = Catalogue(served, self._given, self.cache)
        return found


def allowed_items(
    served: Served,
    catalogue: Catalogue,
    history: History,
    *,
    exclude_seen: bool,
    exclude: Iterable[str] = (),
    candidates: Sequence[str] | None = None,
    filters: Mapping[str, Sequence[Any]] | None = None,
) -> Mask:
    """Return the items that may be listed."""
    allowed = catalogue.available.copy()
    if candidates is not None:
        chosen = find(served.items, candidates)
        mask = np.zeros(served.n_items, np.bool_)
        mask[chosen[chosen >= 0]] = True
        allowed &= mask
    for name, values in (filters or {}).items():
        allowed &= catalogue.mask(name, tuple(values))
    out = find(served.items, list(exclude))
    allowed[out[out >= 0]] = False
    if exclude_seen:
        allowed[history.hidden] = False
    return allowed
