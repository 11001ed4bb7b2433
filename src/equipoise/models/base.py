"""Recommender: what every model can be asked, whatever it is inside."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.checks import count, cutoff, flag
from equipoise.data.ids import IdIndex, Unknown, as_list, is_id
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr
from equipoise.data.readers import read
from equipoise.data.readers.frames import is_frame
from equipoise.data.signals import Background, Signals
from equipoise.data.storage import Fields, Stored
from equipoise.errors import DataError, NotFittedError, SettingError
from equipoise.models.histories import (
    Request,
    Unknowns,
    cold_rows,
    column_kind,
    history_events,
    history_rows,
    parse_asked,
    rows_or_empty,
)
from equipoise.models.recommendations import (
    Explanation,
    Recommendations,
    Strongest,
    add_up,
    strongest,
    write_lists,
)
from equipoise.models.saving import (
    Shapes,
    arrays_from,
    arrays_to_save,
    models,
    save_model,
)
from equipoise.models.settings import Configured
from equipoise.models.snapshots import at_once, on_snapshot
from equipoise.models.updating import changed_data
from equipoise.ranking.mixture import mixed, with_unknown_pins
from equipoise.ranking.ranker import Ranked, score, score_items, top_k
from equipoise.ranking.rules import ItemRules, Rules, RulesLike, UnknownPins, as_rules
from equipoise.ranking.terms import Constant, Term
from equipoise.runtime.machine import limited

logger = logging.getLogger(__name__)

BATCH = 4096
UNEVEN = 10  # times the middle weight, from which one is worth a word
KEYWORD = inspect.Parameter.KEYWORD_ONLY

SearchSpace = Mapping[str, tuple[Any, ...]]  # values of each setting


@dataclass(kw_only=True, eq=False)
class Recommender(Configured, ABC):
    """A model that ranks items for a history.

    A subclass implements `_fit`, which ends in `_keep`, and `_make`, which turns what was learned
    into terms; a model with a popularity dial overrides `terms`. Recommending, explaining and
    saving live here. A model can be used while another thread fits or updates it: see `snapshots`.

    Parameters
    ----------
    signals
        What events are worth: `Signals` turn those of the training data, and of every history
        that the model is asked about, into a matrix. None takes the matrix of the data.

    Attributes
    ----------
    interactions_
        The training data, as `signals` weigh them.
    data_
        The training data as they were given.
    arrays_
        What fitting learned beyond the data, by name; saved with the model.
    estimate_
        How good the model is on users left out of its fit, where `tune` has found out; saved with
        the model, and None after any change of it.
    """

    interactions_: Interactions = field(init=False, repr=False)
    arrays_: dict[str, Any] = field(init=False, repr=False)
    estimate_: dict[str, Any] | None = field(init=False, repr=False, default=None)
    _given: Interactions = field(init=False, repr=False)
    _built: list[Term] = field(init=False, repr=False)
    registry: ClassVar[dict[str, type[Recommender]]] = models

    # what a model can do; nothing else asks for its class
    fit_options: ClassVar[frozenset[str]] = frozenset()  # the options of `fit` it has a use for
    fold_in: ClassVar[bool] = True  # ranks for histories that were not in the training data
    explains: ClassVar[bool] = True  # a score is a sum over the items of the history
    ordered: ClassVar[bool] = False  # a history is a session, whose order counts
    signed: ClassVar[bool] = False  # takes negative feedback
    search_space: ClassVar[SearchSpace] = {}  # what `tune` tries without a grid
    # what a solve or fit depends on, where the other settings are read off it; else empty
    solve_settings: ClassVar[tuple[str, ...]] = ()
    in_ranges: ClassVar[bool] = False  # `tune` without a grid searches `solve_settings` in ranges

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        known = models.get(cls.__name__)
        # a user's class of the same name must not take the place of ours in saved models
        if known is None or not known.__module__.startswith("equipoise."):
            models[cls.__name__] = cls
        parameters = inspect.signature(cls._fit).parameters.values()
        cls.fit_options = frozenset(each.name for each in parameters if each.kind is KEYWORD)

    @at_once
    def fit(
        self,
        interactions: Any,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        engine: str = "auto",
        memory: str | float | None = None,
        scratch: str | os.PathLike[str] | None = None,
        threads: int | None = None,
        refine: bool = False,
        precision: str = "auto",
        neighbours: int | str | None = None,
        progress: Callable[[Any], Any] | None = None,
        valid: Any = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 10,
        resume: bool = True,
    ) -> Self:
        """Learn from the interactions and return self.

        All models take the same options; one that means nothing to a model is refused. A fit that
        fails leaves the model as it was.

        Parameters
        ----------
        interactions
            Training data: Interactions, a frame that `eq.read` can read by itself, or a sparse
            matrix of scipy, users x items.
        device
            "cpu", or a card such as "cuda" or "cuda:1"; the model then ranks on the card too. The
            neighbourhood engine only solves there.
        dtype
            "float32", or "float64" for systems that are hard to solve.
        engine
            Linear autoencoders: "dense" in memory, "dual" through a system of users x users,
            "tiled" on disk, "gpu"; "auto" takes the card where `device` names one, else the
            fastest that fits. "neighbourhood" predicts each item from a few others: approximate,
            for catalogues too large for the rest, and only taken where asked for; all others are
            exact. Session models: "sparse" solves for an item when it is first clicked, "dense"
            for all items at once; "auto" takes the cheaper one.
        memory
            Budget such as "6GB", of the machine or of the card; all that is free if left out.
        scratch
            Folder for the tiles and the result of the tiled engine, a temporary one if left out.
            A fit that was cut short goes on from there; the model needs it as long as it lives.
            Of the neighbourhood engine: for what it has done so far, until it is done.
        threads
            Number of threads; None uses all.
        refine
            Improve the solve by one Newton step, at about four times its cost.
        precision
            How a card multiplies float32: "auto" by pairs of halves on its tensor cores, which is
            as accurate and about three times as fast, where it has them; or "float32".
        neighbours
            Of the neighbourhood engine: how many others, 50 to 400, or a time such as "2m" that a
            fit may take. Left out: 200, or as many as the memory has room for.
        progress
            Called after each step of the tiled engine with its `Progress`, or after each epoch of
            a neural model with its `Epoch`; training ends where it returns True.
        valid
            Neural models: a part of a split to stop on. The epoch with the best NDCG@20 is kept;
            without it, the last one is.
        checkpoint, checkpoint_every
            Neural models: a directory for the state of training, and the epochs between two saves.
        resume
            Go on from the checkpoint where there is one; False starts anew and replaces it.
        """
        given = {name: value for name, value in locals().items() if name in FIT_DEFAULTS}
        data, options = _training_data(interactions), self._taken(given)
        if self.signals is None:
            _say_if_uneven(data)
        with limited(threads):
            self._fit_given(data, options)
        return self

    def _fit_given(self, data: Interactions, options: dict[str, Any]) -> None:
        """Fit on data as they were given; what was known of the model on other data is dropped."""
        self._given, self.estimate_ = data, None
        self._fit(self._weighed(data), **options)

    def _weighed(self, data: Interactions) -> Interactions:
        """Return training data whose matrix is what this model learns from."""
        if self.signals is None:
            return data
        if not isinstance(self.signals, Signals):
            raise SettingError(f"signals must be Signals or None, got {self.signals!r}")
        if self.ordered:
            raise SettingError(
                f"{type(self).__name__} weighs clicks by their order; leave signals out, and see "
                "decay_inference and decay_time"
            )
        weighed = self.signals.apply(data)
        if weighed.signed and not self.signed:
            raise SettingError(
                f"{type(self).__name__} cannot learn from negative values; use returns='net' or "
                "a linear autoencoder"
            )
        return weighed

    def _rows_of(self, source: Interactions | list[Any], unknown: Unknowns) -> Csr:
        """Return histories as rows over the model's items, weighed as the training data were."""
        items = self.item_index_
        if isinstance(source, Interactions):
            source = source.with_items(items, unknown=unknown.items)
            if self.signals is None:
                return source.matrix
            events = source.own_events
        elif self.signals is None:
            return history_rows(source, items, unknown)
        else:
            events, _ = history_events(source, items, unknown)
        # a model of known users has to see their histories as it was fitted on them
        now = None if self.fold_in else self.signals.latest(self.data_.own_events)
        rows = self.signals.values(events, len(items), self._background, now)
        return rows.astype(np.float32)

    @property
    def _background(self) -> Background | None:
        if self.signals is None or self.signals.transform != "bm25":
            return None
        kept = vars(self).get("_known_background")
        if kept is None or kept[0] is not self.data_:
            kept = self.data_, self.signals.background(self.data_)
            self.__dict__["_known_background"] = kept
        found: Background | None = kept[1]
        return found

    @classmethod
    def _taken(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Return the options that `_fit` takes; others are refused unless they are the default."""
        for name, value in given.items():
            is_default = isinstance(value, Hashable) and value == FIT_DEFAULTS[name]
            if name not in cls.fit_options and not is_default:
                takes = ", ".join(sorted({*cls.fit_options, "threads"}))
                raise SettingError(
                    f"{cls.__name__} is fitted without {name}; leave it out (it takes {takes})"
                )
        return {name: value for name, value in given.items() if name in cls.fit_options}

    @abstractmethod
    def _fit(self, data: Interactions, *args: Any, **options: Any) -> None:
        """Learn from the data; the names of its keywords are the options that `fit` lets through.

        It may set any attribute: `fit` works on a copy that takes the model's place at the end.
        """

    def terms(self, alpha: float | None = None) -> list[Term]:
        """Return the terms whose sum is the scoring matrix W; `alpha` turns the popularity dial.

        A model without a dial refuses any alpha.
        """
        if alpha is not None:
            raise SettingError(f"{type(self).__name__} has no popularity dial; leave alpha out")
        _ = self._fitted
        return self._built

    @property
    def alpha_(self) -> float | None:
        """The position of the popularity dial; None for a model that has none."""
        normalizer = getattr(self, "normalizer_", None)
        return None if normalizer is None else float(normalizer.exponents()[0])

    @at_once
    def update(self, added: Any = None, removed: Any = None, *, replace: bool = False) -> Self:
        """Add and remove interactions by a new fit on the changed data.

        Parameters
        ----------
        added
            New pairs, as Interactions or a frame; their users and items may be new.
        removed
            Pairs to take out, as Interactions or a frame; or the id of a user to forget
            altogether, or a list of such ids.
        replace
            Let the weight of an added pair take the place of the one that is there; otherwise
            they add up, as if both tables had been read as one.
        """
        old, options = self.data_, self._refit_options()
        new = changed_data(old, added, removed, replace=replace)
        if new.fingerprint != old.fingerprint:
            self._fit_given(new, options)
        return self

    def _refit_options(self) -> dict[str, Any]:
        """Return the options of the fit that `update` makes, or say why there is none."""
        return {name: FIT_DEFAULTS[name] for name in self.fit_options}

    @property
    def item_index_(self) -> IdIndex:
        """The items this model knows, in the order of its matrices."""
        return self._fitted.item_index

    @property
    def item_counts_(self) -> npt.NDArray[np.int64]:
        """Number of training users of each item."""
        return self._fitted.item_counts

    @property
    def data_fingerprint_(self) -> str:
        """Fingerprint of the training data as they were given."""
        return self.data_.fingerprint

    @property
    def data_(self) -> Interactions:
        """The training data as they were given, before `signals` weighed them."""
        fitted = self._fitted
        return vars(self).get("_given", fitted) if self.signals is not None else fitted

    @property
    def _fitted(self) -> Interactions:
        if not hasattr(self, "interactions_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")
        return self.interactions_

    def reuse(self, fitted: Any) -> Self:
        """Fit by taking the solve of another model, where settings can be read off it."""
        raise SettingError(f"a {type(self).__name__} takes no fit of another model; fit it")

    @classmethod
    def shared_fit(
        cls, models: Sequence[Any], data: Interactions, **options: Any
    ) -> Callable[[Sequence[Any]], None]:
        """Return a function that fits models of one solve, which differ in what is read off it.

        `tune` calls it once for each solve; `models` are those of the first one. The options are
        those of `fit`.
        """

        def fit(models: Sequence[Any]) -> None:
            first = models[0].fit(data, **options)
            for other in models[1:]:
                other.reuse(first)

        return fit

    @classmethod
    def fit_seconds(cls, data: Interactions, **options: Any) -> float:
        """Return the time that a fit is expected to take, 0 where nothing is known of it."""
        return 0.0

    @on_snapshot
    def rank(
        self,
        history: Interactions,
        k: int,
        *,
        exclude_seen: bool | None = True,
        alpha: float | None = None,
        rules: RulesLike | None = None,
        threads: int | None = None,
    ) -> Ranked:
        """Rank items for the rows of `history`, by position; what `evaluate` works from.

        A row without items, or with items alone that nobody used, is ranked by popularity, as in
        `recommend`. The place of a pinned item that the model does not know holds -1.
        """
        request = self._request(history, Unknowns())
        ranked = self._listed(request, self.terms(alpha), k, exclude_seen, rules, threads)
        ranked.items[ranked.items >= len(self.item_index_)] = -1
        return ranked

    @on_snapshot
    def recommend(
        self,
        users_or_histories: Any,
        k: int = 20,
        *,
        exclude_seen: bool | None = None,
        exclude: Any = None,
        candidates: Any = None,
        rules: RulesLike | None = None,
        alpha: float | None = None,
        reasons: int = 0,
        unknown_users: str | None = None,
        unknown_items: Unknown | None = None,
        unknown: Unknown | None = None,
        threads: int | None = None,
    ) -> Recommendations:
        """Return the k best items for each user, as raw ids.

        A user without a history, or with items alone that nobody used in training, gets the
        items with most training users; `source` says so, and these items have no scores.

        Parameters
        ----------
        users_or_histories
            Ids of training users; or histories of any users: a list of lists of item ids, a
            mapping from names to such lists, or Interactions. A text is one id.
        k
            Length of the lists.
        exclude_seen
            Leave out the items of the history; left out: yes, except for session models.
        exclude
            Item ids to leave out for all users, a list of such lists, one per user, a mapping
            from users to lists, or a mask over the items of the model.
        candidates
            Items to choose from, in the same forms; users whom a mapping lacks choose from all.
        rules
            `Rules` on what may be listed and in what mixture, or the path of their TOML file.
        alpha
            The popularity dial: takes the place of the normalizer's alpha, no refit.
        reasons
            How many items of the history to name as reasons for each recommended item.
        unknown_users
            Users the model does not know are an error, left out with "skip", or get popular items
            with "popular".
        unknown_items
            Items the model does not know are an error, or left out with "skip".
        unknown
            The same for users and items, where these two are left out.
        threads
            Number of threads; None uses all.
        """
        unknowns = Unknowns.of(unknown, unknown_users, unknown_items)
        request = self._request(users_or_histories, unknowns)
        rules = as_rules(rules)
        pins = self._unknown_pins(rules)
        request = request.limited(exclude, candidates, self.item_index_, unknowns, pins)
        return self._answer(request, self.terms(alpha), k, exclude_seen, rules, reasons, threads)

    @on_snapshot
    def recommend_to(
        self,
        path: str | os.PathLike[str],
        users_or_histories: Any = None,
        k: int = 20,
        *,
        batch_size: int = BATCH,
        exclude_seen: bool | None = None,
        exclude: Any = None,
        candidates: Any = None,
        rules: RulesLike | None = None,
        alpha: float | None = None,
        reasons: int = 0,
        unknown_users: str | None = None,
        unknown_items: Unknown | None = None,
        unknown: Unknown | None = None,
        threads: int | None = None,
    ) -> int:
        """Write the k best items of any number of users to a file, batch by batch.

        The name says how: `.parquet`, `.csv` or `.jsonl`. The file holds what
        ``Recommendations.to_frame(details=True)`` returns: user, item, score, rank, source, title
        where there are labels, and the reasons where asked for. All training users are answered
        when none are named. Returns the number of users. Options as for `recommend`.
        """
        count("batch_size", batch_size)
        unknowns = Unknowns.of(unknown, unknown_users, unknown_items)
        wanted = self._fitted if users_or_histories is None else users_or_histories
        request = self._request(wanted, unknowns)
        rules = as_rules(rules)
        pins = self._unknown_pins(rules)
        request = request.limited(exclude, candidates, self.item_index_, unknowns, pins)
        how = (k, exclude_seen, rules, reasons, threads)
        return self._write(path, request, self.terms(alpha), batch_size, *how)

    def _write(
        self,
        path: str | os.PathLike[str],
        request: Request,
        terms: list[Term],
        batch_size: int,
        *how: Any,
    ) -> int:
        """Write the lists of a request to a file, and return how many; `how` as for `_answer`."""

        def batches() -> Iterator[pl.DataFrame]:
            for start in range(0, len(request), batch_size):
                some = request.take(np.arange(start, min(start + batch_size, len(request))))
                yield self._answer(some, terms, *how).to_frame(details=True)

        write_lists(path, batches())
        return len(request)

    @on_snapshot
    def score(
        self,
        histories: Any,
        *,
        alpha: float | None = None,
        unknown_users: str | None = None,
        unknown_items: Unknown | None = None,
        unknown: Unknown | None = None,
    ) -> npt.NDArray[Any]:
        """Return the scores of all items for each user or history, users x items, dense.

        Those of a user who gets popular items are the numbers of training users of each item.
        """
        request = self._request(histories, Unknowns.of(unknown, unknown_users, unknown_items))
        cold = cold_rows(request.history, self.item_counts_)
        warm = request.take(np.flatnonzero(~cold)) if cold.any() else request
        found = score(self.terms(alpha), warm.history, users=warm.trained)
        if not cold.any():
            return found
        scores = np.empty(request.history.shape, found.dtype)
        scores[~cold], scores[cold] = found, self.item_counts_
        return scores

    @on_snapshot
    def similar(
        self,
        items: Any,
        k: int = 20,
        *,
        rules: RulesLike | None = None,
        alpha: float | None = None,
        unknown_items: Unknown | None = None,
    ) -> Recommendations:
        """Return the items that most follow from one alone, itself left out.

        Parameters
        ----------
        items
            An item, or a list of items, which gives a list of similar items for each.
        k, rules, alpha, unknown_items
            As for `recommend`.
        """
        request = self._alone(items, unknown_items)
        found = self._answer(request, self.terms(alpha), k, True, rules, 0, None)
        (names,) = self._titles([self.item_index_.positions(request.users)]) or (None,)
        return dataclasses.replace(found, names=names)

    @on_snapshot
    def similar_to(
        self,
        path: str | os.PathLike[str],
        items: Any = None,
        k: int = 20,
        *,
        batch_size: int = BATCH,
        rules: RulesLike | None = None,
        alpha: float | None = None,
        unknown_items: Unknown | None = None,
    ) -> int:
        """Write the k most similar items of each item to a file, batch by batch.

        The file is one of `recommend_to`, with the item each list is about in the column `user`.
        All items are taken when none are named. Returns the number of items.
        """
        count("batch_size", batch_size)
        request = self._alone(self.item_index_.values if items is None else items, unknown_items)
        how = (k, True, as_rules(rules), 0, None)
        return self._write(path, request, self.terms(alpha), batch_size, *how)

    def _alone(self, items: Any, unknown_items: Unknown | None) -> Request:
        """Return a request with a history of one item for each item, and the item as its name."""
        if is_id(items):
            if unknown_items != "skip":
                self.item_index_.position(items)
            items = [items]
        listed = as_list(items)
        for item in listed:
            if not is_id(item):
                raise DataError(f"similar takes one item id or a list of them, got {item!r}")
        place = Unknowns.of(None, None, unknown_items).item_positions(listed, self.item_index_)
        known = self.item_index_.values[place[place >= 0]].tolist()
        request = self._request({item: [item] for item in known}, Unknowns())
        return dataclasses.replace(request, has_names=False)  # no rules of users are for items

    @on_snapshot
    def explain(
        self,
        history: Any,
        item: Any,
        *,
        alpha: float | None = None,
        unknown_items: Unknown | None = None,
        unknown: Unknown | None = None,
    ) -> Explanation:
        """Return what each item of a history adds to the score of an item.

        Parameters
        ----------
        history
            Item ids, or the id of a training user.
        item
            The item to explain.
        alpha
            As for `recommend`.
        unknown_items, unknown
            Items of the history the model does not know are an error, or left out with "skip".
        """
        self._require_explains()
        if isinstance(history, (Mapping, Interactions)):
            raise DataError("explain takes one history: item ids, or the id of a training user")
        target = self.item_index_.position(item)
        unknowns = Unknowns.of(unknown, None, unknown_items)
        rows = self._request(history if is_id(history) else [history], unknowns).history
        if not rows.nnz:
            raise DataError("the history is empty, so there is nothing to explain; give items")
        sources = rows.indices
        terms = self.terms(alpha)
        each = np.arange(len(sources) + 1)
        alone = sp.csr_array((rows.data, sources, each), shape=(len(sources), rows.shape[1]))
        parts = score_items(terms, alone, each[:-1], np.full(len(sources), target))
        total = float(score_items(terms, rows, [0], [target])[0])
        order = np.argsort(-np.abs(parts), kind="stable")
        shares = add_up(parts[order].astype(np.float64), total)
        ids = self.item_index_.values[sources[order]].tolist()
        titles, (title,) = self._titles([sources[order], np.array([target])]) or (None, (None,))
        return Explanation(item, total, ids, shares.tolist(), titles, title)

    def _require_explains(self) -> None:
        if not self.explains:
            raise DataError(
                f"{type(self).__name__} cannot explain a score, which is not a sum over the items "
                "of the history; take a linear model for that"
            )

    @on_snapshot
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a directory (manifest, `.npy`, Parquet) that `eq.load` opens; atomic."""
        save_model(self, path)

    @property
    def _hides_seen(self) -> bool:
        """Whether `recommend` leaves out items of the history unless told."""
        return True

    def _request(self, wanted: Any, unknown: Unknowns) -> Request:
        """Return who is asked about, as rows over the model's items."""
        asked = parse_asked(wanted, self._fitted, unknown)
        if isinstance(asked.source, np.ndarray):
            history = rows_or_empty(self._fitted.matrix, asked.source)
        elif asked.source is self._fitted:
            history = self._fitted.matrix  # the signals have weighed it already
        else:
            history = self._rows_of(asked.source, unknown)
        return asked.request(history, asked.trained)

    def _unknown_pins(self, rules: Rules | ItemRules | None) -> UnknownPins | None:
        """Return the pinned items that the model does not know."""
        return None if rules is None else rules.on(self._fitted).unknown_pins

    def _keep(self, data: Interactions, arrays: dict[str, Any]) -> None:
        """Take what was learned: the data and arrays by name, sparse matrices among them."""
        self._built = self._make(data, arrays)
        self.interactions_, self.arrays_ = data, arrays

    def _make(self, interactions: Interactions, arrays: dict[str, Any]) -> list[Term]:
        """Return the terms of the scores; a model that overrides `terms` has no use for it."""
        return []

    def _shapes(self) -> Shapes:
        """Return names and shapes of the learned arrays, for `load` to check; see `SPARSE`."""
        return {}

    def _state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return what fitting learned beyond the data: plain values and arrays, for `save`."""
        return {}, arrays_to_save(vars(self).get("arrays_", {}))

    def _restore(self, state: Fields, stored: Stored) -> None:
        """Take back what `_state` gave; the data are in place already."""
        self._keep(self.interactions_, arrays_from(stored, self._shapes(), len(self.item_index_)))

    def _titles(
        self, rows: list[npt.NDArray[Any]], extra: Sequence[Any] = ()
    ) -> list[list[str]] | None:
        """Return the display names of items by their positions; None without labels.

        `extra` are ids of items after those of the model, which have no other name.
        """
        data = self._fitted
        if data.labels is None:
            return None
        names = [*data.labels.to_series(0).to_list(), *extra]
        ids = [*data.items.tolist(), *extra]
        return [[str(names[place] or ids[place]) for place in row] for row in rows]

    def _listed(
        self,
        request: Request,
        terms: list[Term],
        k: int,
        exclude_seen: bool | None,
        rules: RulesLike | None,
        threads: int | None,
    ) -> Ranked:
        """Rank items for the rows of a request, under the rules.

        Pinned items that the model does not know have positions after its last item.
        """
        checked, n_items, k = as_rules(rules), len(self.item_index_), cutoff("k", k)
        options: dict[str, Any] = {"threads": threads, "exclude_seen": self._hides_seen}
        if exclude_seen is not None:
            options["exclude_seen"] = flag("exclude_seen", exclude_seen)
        if checked is None:
            return self._ranked(terms, request, k, **options)
        found = checked.on(self._fitted)
        request, options["boost"] = request.ruled(found), found.boost
        if found.seen is not None:
            options["exclude_seen"] = found.seen == "exclude"
        shown = request.shown_pins(found, options["exclude_seen"])
        ranked = self._mixed(request, terms, k, found, options)
        return ranked if shown is None else with_unknown_pins(ranked, found, shown, k, n_items)

    def _mixed(
        self,
        request: Request,
        terms: list[Term],
        k: int,
        found: ItemRules,
        options: dict[str, Any],
    ) -> Ranked:
        """Rank items the model knows for the rows of a request, in the mixture of the rules."""
        n_items = len(self.item_index_)
        if not found.mixes(n_items):
            return self._ranked(terms, request, k, **options)
        if found.diversity and not self.fold_in:
            raise SettingError(
                f"{type(self).__name__} knows no similarity of items, which diversity needs; "
                "leave it out of the rules"
            )
        known_pins = found.known_pins(n_items)
        pins = np.zeros(n_items, np.bool_)
        pins[known_pins] = True
        pinned = Ranked.empty(len(request), 0, np.dtype(np.float32))
        if len(known_pins):
            pinned = self._ranked(terms, request.within(pins), len(known_pins), **options)
            pinned = pinned.in_order(known_pins)
        rest = request.within(~pins)

        def rank(rows: npt.NDArray[np.int64], width: int) -> Ranked:
            return self._ranked(terms, rest.take(rows), width, **options)

        return mixed(rank, found, terms, pinned, k)

    def _ranked(self, terms: list[Term], request: Request, k: int, **options: Any) -> Ranked:
        """Rank items for the rows of a request, cold ones by popularity."""
        cold = cold_rows(request.history, self.item_counts_)
        popular: list[Term] = [Constant(self.item_counts_.astype(np.float32))]
        groups = [(terms, np.flatnonzero(~cold)), (popular, np.flatnonzero(cold))]
        parts = []
        for scored_by, rows in groups if cold.any() else groups[:1]:
            some = request.take(rows) if cold.any() else request
            found = top_k(
                scored_by,
                some.history,
                k,
                exclude=some.exclude,
                candidates=some.allowed,
                only=some.only,
                users=some.trained,
                **options,
            )
            parts.append((rows, found))
        return Ranked.joined(parts)

    def _answer(
        self,
        request: Request,
        terms: list[Term],
        k: int,
        exclude_seen: bool | None,
        rules: RulesLike | None,
        reasons: int,
        threads: int | None,
    ) -> Recommendations:
        ranked = self._listed(request, terms, k, exclude_seen, rules, threads)
        cold = cold_rows(request.history, self.item_counts_)
        # counts of users are no scores of the model
        ranked.scores[cold] = np.nan
        rows, scores = (
            [row[:length] for row, length in zip(table, ranked.lengths, strict=True)]
            for table in (ranked.items, ranked.scores)
        )
        because: Strongest | None = None
        if count("reasons", reasons, 0):
            self._require_explains()
            because = self._strongest(terms, request.history, rows, cold, reasons)
        source = np.where(cold, "popular", "model").tolist()
        pins = self._unknown_pins(as_rules(rules))
        extra = [] if pins is None else pins.ids
        kind = self.item_index_.kind
        return Recommendations(
            request.users,
            self._ids(rows, extra),
            scores,
            source,
            self._titles(rows, extra),
            *self._named(because),
            {"user": request.kind, "item": column_kind(extra) if kind == pl.Int64 else kind},
        )

    def _ids(self, rows: list[npt.NDArray[Any]], extra: list[Any]) -> list[list[Any]]:
        """Return the ids of items by their positions; `extra` follow those of the model."""
        values = self.item_index_.values
        if not extra:
            return [values[row].tolist() for row in rows]
        ids = [*values.tolist(), *extra]
        return [[ids[place] for place in row] for row in rows]

    def _strongest(
        self,
        terms: list[Term],
        history: Csr,
        rows: list[npt.NDArray[Any]],
        skipped: npt.NDArray[np.bool_],
        most: int,
    ) -> Strongest:
        """Return reasons for each listed item; an item the model does not know has none."""
        n_items, none = len(self.item_index_), np.empty(0, np.int64)
        because = strongest(terms, history, [row[row < n_items] for row in rows], skipped, most)
        reasons: Strongest = []
        for row, known in zip(rows, because, strict=True):
            left = iter(known)
            reasons.append([next(left) if place < n_items else none for place in row])
        return reasons

    def _named(self, because: Strongest | None) -> tuple[Any, Any]:
        """Return the ids and the titles of reasons."""
        if because is None:
            return None, None
        ids = [[self.item_index_.values[each].tolist() for each in row] for row in because]
        if self._fitted.labels is None:
            return ids, None
        return ids, [self._titles(row) for row in because]


FIT_DEFAULTS = {
    each.name: each.default
    for each in inspect.signature(Recommender.fit).parameters.values()
    if each.kind is KEYWORD and each.name != "threads"
}


def _training_data(given: Any) -> Interactions:
    if sp.issparse(given):
        return Interactions(given)
    if is_frame(given):
        return read(given)
    if not isinstance(given, Interactions):
        raise DataError(
            "fit needs Interactions, a frame or a sparse matrix of scipy; make them with "
            "eq.read(...)"
        )
    return given


def _say_if_uneven(data: Interactions) -> None:
    """Log that a few pairs count far more than most, where that is so."""
    values = data.matrix.data
    if len(values) and values.max() > UNEVEN and values.max() > UNEVEN * np.median(values):
        logger.info(
            "weights of pairs go up to %g and count as they are; signals (log1p, or binary for "
            "none) often rank better",
            values.max(),
        )
