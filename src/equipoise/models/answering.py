"""Queries of a fitted model: recommend, score, similar items, explain.

A query becomes a `Request`: one row per user over the model's items (`histories`). `_rank_rows`
ranks items for these rows and `_explain_rows` gives reasons, both as positions of items;
everything else, the service included, is built on these two. The results carry raw ids and titles.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.checks import count, cutoff, flag, non_negative
from equipoise.data.events import Events
from equipoise.data.ids import IdIndex, Unknown, as_list, is_id
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr
from equipoise.data.signals import Background
from equipoise.errors import DataError, NotFittedError, SettingError
from equipoise.models.histories import (
    Request,
    Unknowns,
    column_kind,
    distinct_items,
    history_events,
    parse_query,
    rows_or_empty,
)
from equipoise.models.recommendations import (
    Explanation,
    Reasons,
    Recommendations,
    find_reasons,
    find_trending,
    without_trend_share,
    write_lists,
)
from equipoise.models.settings import Configured
from equipoise.models.trend import FittedTrend
from equipoise.ranking.mixture import mixed, with_unknown_pins
from equipoise.ranking.ranker import Ranked, score, score_items, top_k
from equipoise.ranking.rules import ItemRules, Rules, RulesLike, as_rules
from equipoise.ranking.terms import Constant, NewColumns, Term

BATCH = 4096

Method = TypeVar("Method", bound=Callable[..., Any])


def on_snapshot(method: Method) -> Method:
    """Run a method on the model as it is at the call, even if another thread changes it."""

    @functools.wraps(method)
    def wrapper(model: Any, /, *args: Any, **options: Any) -> Any:
        return method(copy.copy(model), *args, **options)

    return cast(Method, wrapper)


class Answering(Configured, ABC):
    """The methods of `Recommender` that query a fitted model."""

    interactions_: Interactions
    trend_: FittedTrend | None
    _recent_users: npt.NDArray[np.float64] | None
    _wider: Interactions | None = None  # the training data with columns for items added later
    fold_in: ClassVar[bool] = True  # ranks for histories that were not in the training data
    explains: ClassVar[bool] = True  # a score is a sum over the items of the history
    ordered: ClassVar[bool] = False  # a history is a session, whose order counts

    @abstractmethod
    def _terms(self, alpha: float | None = None) -> list[Term]:
        """Return the terms whose sum is the scoring matrix W."""

    def _ranking_terms(
        self, alpha: float | None = None, new_items: float | None = None
    ) -> list[Term]:
        """Return the terms that users are ranked by: those of the model, with the trend.

        `new_items` multiplies the scores of items without users.
        """
        terms, trend = self._terms(alpha), self._active_trend
        if new_items is not None:
            terms = self._with_dial(terms, new_items)
        return terms if trend is None else trend.applied_to(terms)

    def _with_dial(self, terms: Sequence[Term], new_items: float) -> list[Term]:
        """Return terms with the scores of new items multiplied; 0 takes them off the lists."""
        non_negative("new_items", new_items)
        if getattr(self, "features", None) is None:
            raise SettingError(
                f"this {type(self).__name__} does not know items without users; fit it with "
                "features=eq.Features(), or leave out new_items="
            )
        return [
            dataclasses.replace(term, target=term.target * term.dtype.type(new_items))
            if isinstance(term, NewColumns)
            else term
            for term in terms
        ]

    @property
    def _active_trend(self) -> FittedTrend | None:
        """The fitted trend; None without one, or if its settings leave all scores as they are."""
        trend = self.trend_
        return None if trend is None or trend.settings.is_neutral else trend

    @property
    def _fallback_scores(self) -> npt.NDArray[Any]:
        """Scores of the items for users without a history: recent users, all without times."""
        trend, recent = self._active_trend, self._recent_users
        if trend is not None:
            return trend.all_counts
        if recent is None:
            return self.item_counts_
        return np.append(recent, np.zeros(len(self.item_index_) - len(recent)))

    @property
    def _fitted(self) -> Interactions:
        """The training data as weighed by the signals."""
        if not hasattr(self, "interactions_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")
        return self.interactions_

    @property
    def data_(self) -> Interactions:
        """The training data as passed to `fit`, before `signals` weighed them."""
        fitted = self._fitted
        return vars(self).get("_raw_data", fitted) if self.signals is not None else fitted

    @property
    def _served(self) -> Interactions:
        """The training data with a column for each item that can be listed, new ones included."""
        fitted = self._fitted
        return fitted if self._wider is None else self._wider

    @property
    def item_index_(self) -> IdIndex:
        """The items this model can list: those of its matrices, then items added later."""
        return self._served.item_index

    @property
    def item_counts_(self) -> npt.NDArray[np.int64]:
        """Number of training users of each item."""
        return self._served.item_counts

    @property
    def _usable_counts(self) -> npt.NDArray[np.int64]:
        """Users of each item; 0 for an item that says nothing about what else suits."""
        return self.item_counts_

    @on_snapshot
    def rank(
        self,
        history: Interactions,
        k: int,
        *,
        exclude_seen: bool | None = True,
        alpha: float | None = None,
        new_items: float | None = None,
        rules: RulesLike | None = None,
        threads: int | None = None,
    ) -> Ranked:
        """Rank items for each row of `history`, as positions; `evaluate` is built on this.

        As in `recommend`, users without a usable history get the most popular items. A pinned
        item that the model does not know has position -1.
        """
        request = self._request(history, Unknowns())
        options: dict[str, Any] = {"exclude_seen": exclude_seen, "rules": rules}
        terms = self._ranking_terms(alpha, new_items)
        ranked = self._rank_rows(request, terms, k, **options, threads=threads)
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
        new_items: float | None = None,
        reasons: int = 0,
        unknown_users: str | None = None,
        unknown_items: Unknown | None = None,
        threads: int | None = None,
    ) -> Recommendations:
        """Recommend k items to each user, as raw ids.

        A user without a history, or whose items nobody used in training, gets the most popular
        items; `source` says so, and these items have no scores.

        Parameters
        ----------
        users_or_histories
            Ids of training users; or histories of any users: a list of lists of item ids, a
            mapping from names to such lists, or Interactions. A string is one id.
        k
            Length of the lists.
        exclude_seen
            Leave out the items of the history. Default: True, except for session models.
        exclude
            Item ids to leave out for all users, a list of such lists, one per user, a mapping
            from users to lists, or a mask over the items of the model.
        candidates
            Items to choose from, in the same forms; users that a mapping lacks choose from all.
        rules
            `Rules` on what may be listed and in what mixture, or the path of their TOML file.
        alpha
            Popularity dial: replaces the normalizer's alpha without a refit.
        new_items
            Factor of the scores of items that nobody used in training, for a model with
            `Features`: 1 for the scores as they are, 0 for no new items.
        reasons
            Number of history items to name as reasons for each recommended item.
        unknown_users
            For users the model does not know: "error", "skip" to leave them out, or "popular" for
            popular items.
        unknown_items
            For items the model does not know: "error", or "skip" to leave them out.
        threads
            Number of threads; None uses all.
        """
        unknowns, item_rules = Unknowns.of(unknown_users, unknown_items), self._on_items(rules)
        lists = exclude, candidates, item_rules
        request = self._limited_request(users_or_histories, *lists, unknowns)
        terms = self._ranking_terms(alpha, new_items)
        return self._answer(request, terms, k, exclude_seen, item_rules, reasons, threads)

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
        new_items: float | None = None,
        reasons: int = 0,
        unknown_users: str | None = None,
        unknown_items: Unknown | None = None,
        threads: int | None = None,
    ) -> int:
        """Write the recommendations of any number of users to a file, batch by batch.

        The suffix sets the format: `.parquet`, `.csv` or `.jsonl`. The columns are those of
        ``Recommendations.to_frame(details=True)``: user, item, score, rank, source, title if the
        data have a catalogue, and reasons if requested. Without users, all training users are
        answered. Options as for `recommend`. Returns the number of users.
        """
        unknowns, item_rules = Unknowns.of(unknown_users, unknown_items), self._on_items(rules)
        options = (k, exclude_seen, item_rules, reasons, threads)
        terms = self._ranking_terms(alpha, new_items)
        all_users = self._parts() if users_or_histories is None else [users_or_histories]
        requests = (
            self._limited_request(query, exclude, candidates, item_rules, unknowns)
            for query in all_users
        )
        return self._write(path, requests, terms, batch_size, *options)

    @on_snapshot
    def score(
        self,
        histories: Any,
        *,
        alpha: float | None = None,
        unknown_users: str | None = None,
        unknown_items: Unknown | None = None,
    ) -> npt.NDArray[Any]:
        """Return the scores of all items for each user or history, users x items, dense.

        A user to whom `recommend` gives popular items has the number of recent users of each item
        as scores, of all users where the data have no times.
        """
        request = self._request(histories, Unknowns.of(unknown_users, unknown_items))
        cold = request.cold
        warm = request.take(np.flatnonzero(~cold)) if cold.any() else request
        warm_scores = score(self._ranking_terms(alpha), warm.history, users=warm.trained)
        if not cold.any():
            return warm_scores
        scores = np.empty(request.history.shape, warm_scores.dtype)
        scores[~cold], scores[cold] = warm_scores, self._fallback_scores
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
        """Return the k most similar items, the item itself left out.

        These are the items recommended to a user whose history is this one item.

        Parameters
        ----------
        items
            An item, or a list of items for a list of similar items each.
        k, rules, alpha, unknown_items
            As for `recommend`.
        """
        request = self._single_item_request(items, unknown_items)
        lists = self._answer(request, self._terms(alpha), k, True, self._on_items(rules))
        (names,) = self._titles([self.item_index_.positions(request.users)]) or (None,)
        return dataclasses.replace(lists, names=names)

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

        Formats and columns as for `recommend_to`; the column `user` has the item that the list
        belongs to. Without `items`, all items are answered. Returns the number of items.
        """
        items = self.item_index_.values if items is None else items
        request = self._single_item_request(items, unknown_items)
        options = (k, True, self._on_items(rules))
        return self._write(path, [request], self._terms(alpha), batch_size, *options)

    @on_snapshot
    def explain(
        self,
        history: Any,
        item: Any,
        *,
        alpha: float | None = None,
        unknown_items: Unknown | None = None,
    ) -> Explanation:
        """Return the contribution of each item of a history to the score of an item.

        Parameters
        ----------
        history
            Item ids, or the id of a training user.
        item
            The item to explain.
        alpha
            As for `recommend`.
        unknown_items
            For items of the history the model does not know: "error", or "skip" to leave them out.
        """
        self._require_explains()
        if isinstance(history, (Mapping, Interactions)):
            raise DataError("explain takes one history: item ids, or the id of a training user")
        target = self.item_index_.position(item)
        request = self._request(
            history if is_id(history) else [history], Unknowns.of(items=unknown_items)
        )
        if not request.history.nnz:
            raise DataError("the history is empty, so there is nothing to explain; give items")
        request = dataclasses.replace(request, cold=np.zeros(1, np.bool_))  # give its zeros
        terms = self._ranking_terms(alpha)
        ((reasons,),) = self._explain_rows(request, terms, [np.array([target])])
        total, of_history = (
            float(score_items(summed, request.history, [0], [target])[0])
            for summed in (terms, without_trend_share(terms))
        )
        items = [place for place, _ in reasons]
        (ids,) = self._ids([items])
        titles, (title,) = self._titles([items, [target]]) or (None, (None,))
        contributions = [part for _, part in reasons]
        shared = self._shared_attributes(items, target)
        trend = total - of_history
        return Explanation(item, total, ids, contributions, titles, title, trend, shared)

    def _shared_attributes(
        self, items: Sequence[int], target: int
    ) -> list[list[tuple[str, str]]] | None:
        """Return attributes that items share with a new one; None for a known item."""
        return None

    def _require_explains(self) -> None:
        if not self.explains:
            raise DataError(
                f"{type(self).__name__} cannot explain a score, which is not a sum over the items "
                "of the history; use a linear model for that"
            )

    @property
    def _hides_seen(self) -> bool:
        """Default of `exclude_seen` in `recommend`."""
        return True

    def _request(self, query: Any, unknown: Unknowns) -> Request:
        """Return the users or histories of a query as rows over the model's items."""
        request = parse_query(query, self._served, unknown)
        if isinstance(request.source, np.ndarray):
            history = self._history_rows(request.source)
        elif request.source is self._served:
            history = self._history_rows(None)
        elif isinstance(request.source, Interactions):
            history = self._weigh(request.source, unknown.items)
        else:
            events, _ = history_events(request.source, self.item_index_, unknown)
            history = self._weigh_events(events)
        return request.with_history(history, self._usable_counts)

    def _limited_request(
        self,
        query: Any,
        exclude: Any,
        candidates: Any,
        rules: ItemRules | None,
        unknown: Unknowns,
    ) -> Request:
        """Return a request with the caller's `exclude` and `candidates`."""
        pins = None if rules is None else rules.unknown_pins
        request = self._request(query, unknown)
        return request.limited(exclude, candidates, self.item_index_, unknown, pins)

    def _single_item_request(self, items: Any, unknown_items: Unknown | None) -> Request:
        """Return a request with a history of one item for each item, named by the item."""
        if is_id(items):
            if unknown_items != "skip":
                self.item_index_.position(items)
            items = [items]
        ids = as_list(items)
        for item in ids:
            if not is_id(item):
                raise DataError(f"similar takes one item id or a list of them, got {item!r}")
        positions = Unknowns.of(items=unknown_items).item_positions(ids, self.item_index_)
        known = self.item_index_.values[positions[positions >= 0]].tolist()
        request = self._request({item: [item] for item in known}, Unknowns())
        return dataclasses.replace(request, has_names=False)  # rules of users are not for items

    def _parts(self) -> Iterable[Interactions]:
        """Return all training users in parts that are answered one after another."""
        served = self._served
        is_by_user = self.signals is None and self.fold_in and not self.ordered
        return served.parts() if is_by_user and not served.in_memory else [served]

    def _history_rows(self, positions: npt.NDArray[np.int64] | None) -> Csr:
        """Return the histories of training users, empty where a position is negative."""
        served, signals = self._served, self.signals
        if signals is None or signals.history_decay == "decay":
            # already weighed by the signals
            if positions is None:
                return served.matrix
            if served.in_memory:
                return rows_or_empty(served.matrix, positions)
            users, place = np.unique(positions, return_inverse=True)
            known = users[users >= 0]
            return rows_or_empty(served.rows(known).matrix, place - (len(users) - len(known)))
        data = self.data_
        if positions is None:
            return self._weigh(data)
        rows = self._weigh(data.rows(np.maximum(positions, 0)))
        return rows_or_empty(rows, np.where(positions < 0, -1, np.arange(len(positions))))

    def _weigh_events(self, events: Events) -> Csr:
        """Return histories as rows over the model's items, weighed like the training data."""
        n_items = len(self.item_index_)
        if self.signals is None:
            return distinct_items(events, n_items)
        # a model without fold-in has to see the histories as it was fitted on them
        now = None if self.fold_in else self.signals.latest(self.data_._own_events)
        weighing = self.signals.for_histories
        return weighing.values(events, n_items, self._background, now).astype(np.float32)

    def _weigh(self, histories: Interactions, unknown_items: Unknown = "error") -> Csr:
        """Return the histories of Interactions as rows, as `_weigh_events` does."""
        histories = histories.with_items(self.item_index_, unknown_items=unknown_items)
        if self.signals is None:
            return histories.matrix
        return self._weigh_events(histories._own_events)

    @property
    def _background(self) -> Background | None:
        """Statistics of the training data that BM25 weights need; computed once per data."""
        if self.signals is None or self.signals.transform != "bm25":
            return None
        cached: tuple[Any, Background | None] | None = vars(self).get("_cached_background")
        if cached is None or cached[0] is not self._served:
            background = self.signals.background(self.data_)
            cached = self._served, background and background.over(len(self.item_index_))
            self.__dict__["_cached_background"] = cached
        return cached[1]

    def _on_items(self, rules: RulesLike | None) -> ItemRules | None:
        if rules is None:
            return None
        return cast(Rules | ItemRules, as_rules(rules)).on(self._served)

    def _rank_rows(
        self,
        request: Request,
        terms: Sequence[Term],
        k: int,
        *,
        exclude_seen: bool | None = None,
        rules: RulesLike | None = None,
        threads: int | None = None,
    ) -> Ranked:
        """Rank items for the rows of a request, as positions; all other methods are built on this.

        Cold rows get the most popular items, with their numbers of users as scores. Pinned items
        that the model does not know have positions after its last item. Nothing is computed here
        that does not depend on the rows, so that a list for one user is cheap. The model must not
        change during the call.

        Parameters
        ----------
        request
            The rows, and the items that may be listed.
        terms
            The terms of the scores: `terms(alpha)`.
        k, exclude_seen, rules, threads
            As for `recommend`.
        """
        hides_seen = self._hides_seen
        if exclude_seen is not None:
            hides_seen = flag("exclude_seen", exclude_seen)
        item_rules = self._on_items(rules)
        if item_rules is None:
            return self._ranked(terms, request, k, exclude_seen=hides_seen, threads=threads)
        if item_rules.seen is not None:
            hides_seen = item_rules.seen == "exclude"
        k, request = cutoff("k", k), request.ruled(item_rules)
        options = {"threads": threads, "exclude_seen": hides_seen, "boost": item_rules.boost}
        ranked = self._mixed(request, terms, k, item_rules, options)
        shown = request.shown_pins(item_rules, hides_seen)
        if shown is None:
            return ranked
        return with_unknown_pins(ranked, item_rules, shown, k, len(self.item_index_))

    def _explain_rows(
        self,
        request: Request,
        terms: Sequence[Term],
        lists: Sequence[npt.NDArray[Any]],
        most: int | None = None,
        *,
        positive: bool = False,
    ) -> list[list[Reasons]]:
        """Return, for each listed item of each row, the history items that add most to its score.

        Cold rows have no reasons, nor have items that the model does not know.

        Parameters
        ----------
        request, terms
            As for `_rank_rows`.
        lists
            Positions of the listed items, a list for each row.
        most
            Number of reasons of an item; None for all items of the history. These sum to the
            score without the share of a trend.
        positive
            Leave out items that lower the score.
        """
        self._require_explains()
        return find_reasons(terms, request.history, lists, request.cold, most, positive=positive)

    def _mixed(
        self,
        request: Request,
        terms: Sequence[Term],
        k: int,
        rules: ItemRules,
        options: dict[str, Any],
    ) -> Ranked:
        n_items = len(self.item_index_)
        if not rules.mixes(n_items):
            return self._ranked(terms, request, k, **options)
        if rules.diversity and not self.fold_in:
            raise SettingError(
                f"{type(self).__name__} has no item similarities, which diversity needs; remove "
                "diversity from the rules"
            )
        known_pins = rules.known_pins(n_items)
        is_pin = np.zeros(n_items, np.bool_)
        is_pin[known_pins] = True
        pinned = Ranked.empty(len(request), 0, np.dtype(np.float32))
        if len(known_pins):
            pinned = self._ranked(terms, request.within(is_pin), len(known_pins), **options)
            pinned = pinned.in_order(known_pins)
        without_pins = request.within(~is_pin)

        def rank(rows: npt.NDArray[np.int64], width: int) -> Ranked:
            return self._ranked(terms, without_pins.take(rows), width, **options)

        return mixed(rank, rules, terms, pinned, k)

    def _ranked(self, terms: Sequence[Term], request: Request, k: int, **options: Any) -> Ranked:
        cold = request.cold
        if not cold.any():
            return self._best(terms, request, k, **options)
        popularity = [Constant(self._fallback_scores.astype(np.float32))]
        if cold.all():
            return self._best(popularity, request, k, **options)
        groups = [(terms, np.flatnonzero(~cold)), (popularity, np.flatnonzero(cold))]
        return Ranked.joined(
            [(rows, self._best(group, request.take(rows), k, **options)) for group, rows in groups]
        )

    @staticmethod
    def _best(terms: Sequence[Term], request: Request, k: int, **options: Any) -> Ranked:
        return top_k(
            terms,
            request.history,
            k,
            exclude=request.exclude,
            candidates=request.allowed,
            only=request.only,
            users=request.trained,
            **options,
        )

    def _answer(
        self,
        request: Request,
        terms: list[Term],
        k: int,
        exclude_seen: bool | None,
        rules: ItemRules | None,
        n_reasons: int = 0,
        threads: int | None = None,
    ) -> Recommendations:
        """Return the ranked lists of a request with raw ids, titles and reasons."""
        options: dict[str, Any] = {"exclude_seen": exclude_seen, "rules": rules}
        ranked = self._rank_rows(request, terms, k, **options, threads=threads)
        ranked.scores[request.cold] = np.nan  # counts of users are no scores of the model
        rows, scores = (
            [row[:length] for row, length in zip(table, ranked.lengths, strict=True)]
            for table in (ranked.items, ranked.scores)
        )
        reason_ids, reason_titles, trending = None, None, None
        if count("reasons", n_reasons, 0):
            reasons = self._explain_rows(request, terms, rows, n_reasons, positive=True)
            places = [[[n for n, _ in item] for item in row] for row in reasons]
            reason_ids = [self._ids(row) for row in places]
            trending = find_trending(terms, rows, reasons, request.cold)
            if self._served.catalogue is not None:
                reason_titles = [self._titles(row) or [] for row in places]
        pins = None if rules is None else rules.unknown_pins
        extra = [] if pins is None else pins.ids
        kind = self.item_index_.kind
        return Recommendations(
            request.users,
            self._ids(rows, extra),
            scores,
            np.where(request.cold, "popular", "model").tolist(),
            self._titles(rows, [] if pins is None else pins.titles),
            reason_ids,
            reason_titles,
            {"user": request.kind, "item": column_kind(extra) if kind == pl.Int64 else kind},
            trending=trending,
        )

    def _write(
        self,
        path: str | os.PathLike[str],
        requests: Iterable[Request],
        terms: list[Term],
        batch_size: int,
        *options: Any,
    ) -> int:
        """Write the lists of requests to a file, and return how many; `options` of `_answer`."""
        count("batch_size", batch_size)
        sizes = []

        def batches() -> Iterator[pl.DataFrame]:
            for request in requests:
                sizes.append(len(request))
                for start in range(0, len(request), batch_size):
                    batch = request.take(np.arange(start, min(start + batch_size, len(request))))
                    yield self._answer(batch, terms, *options).to_frame(details=True)

        write_lists(path, batches())
        return sum(sizes)

    def _ids(self, rows: Sequence[Any], extra: Sequence[Any] = ()) -> list[list[Any]]:
        """Return the ids of items by position; `extra` ids follow those of the model."""
        values = self.item_index_.values
        if extra:
            values = np.array([*values.tolist(), *extra], object)
        return [values[row].tolist() for row in rows]

    def _titles(self, rows: Sequence[Any], extra: Sequence[str] = ()) -> list[list[str]] | None:
        """Return the titles of items by position; None without a catalogue.

        `extra` are titles of items after those of the model.
        """
        if self._served.catalogue is None:
            return None
        titles = self._served._titles
        if extra:
            titles = [*titles, *extra]
        return [[titles[place] for place in row] for row in rows]
