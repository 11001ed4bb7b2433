"""Queries of a fitted model: recommend, score, similar items, explain.

A query becomes a `Request`: one row per user over the model's items (`histories`). `ranking`
scores and ranks the rows, and the results carry raw ids and titles (`recommendations`).
"""

from __future__ import annotations

import dataclasses
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.checks import count, cutoff, flag
from equipoise.data.ids import IdIndex, Unknown, as_list, is_id
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr
from equipoise.data.signals import Background
from equipoise.errors import DataError, NotFittedError, SettingError
from equipoise.models.histories import (
    Request,
    Unknowns,
    cold_rows,
    column_kind,
    history_events,
    history_rows,
    parse_query,
    rows_or_empty,
)
from equipoise.models.recommendations import (
    Explanation,
    Reasons,
    Recommendations,
    add_up,
    find_reasons,
    write_lists,
)
from equipoise.models.settings import Configured
from equipoise.models.snapshots import on_snapshot
from equipoise.ranking.mixture import mixed, with_unknown_pins
from equipoise.ranking.ranker import Ranked, score, score_items, top_k
from equipoise.ranking.rules import ItemRules, Rules, RulesLike, UnknownPins, as_rules
from equipoise.ranking.terms import Constant, Term

BATCH = 4096


class Answering(Configured, ABC):
    """The methods of `Recommender` that query a fitted model."""

    interactions_: Interactions
    fold_in: ClassVar[bool] = True  # ranks for histories that were not in the training data
    explains: ClassVar[bool] = True  # a score is a sum over the items of the history

    @abstractmethod
    def terms(self, alpha: float | None = None) -> list[Term]:
        """Return the terms whose sum is the scoring matrix W."""

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
    def item_index_(self) -> IdIndex:
        """The items this model knows, in the order of its matrices."""
        return self._fitted.item_index

    @property
    def item_counts_(self) -> npt.NDArray[np.int64]:
        """Number of training users of each item."""
        return self._fitted.item_counts

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
        """Rank items for each row of `history`, as positions; `evaluate` is built on this.

        As in `recommend`, users without a usable history get the most popular items. A pinned
        item that the model does not know has position -1.
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
        reasons
            Number of history items to name as reasons for each recommended item.
        unknown_users
            For users the model does not know: "error", "skip" to leave them out, or "popular" for
            popular items.
        unknown_items
            For items the model does not know: "error", or "skip" to leave them out.
        unknown
            Default of `unknown_users` and `unknown_items`.
        threads
            Number of threads; None uses all.
        """
        unknowns = Unknowns.of(unknown, unknown_users, unknown_items)
        rules = as_rules(rules)
        request = self._limited_request(users_or_histories, exclude, candidates, rules, unknowns)
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
        """Write the recommendations of any number of users to a file, batch by batch.

        The suffix sets the format: `.parquet`, `.csv` or `.jsonl`. The columns are those of
        ``Recommendations.to_frame(details=True)``: user, item, score, rank, source, title if the
        data have labels, and reasons if requested. Without users, all training users are
        answered. Options as for `recommend`. Returns the number of users.
        """
        count("batch_size", batch_size)
        query = self._fitted if users_or_histories is None else users_or_histories
        unknowns = Unknowns.of(unknown, unknown_users, unknown_items)
        rules = as_rules(rules)
        request = self._limited_request(query, exclude, candidates, rules, unknowns)
        options = (k, exclude_seen, rules, reasons, threads)
        return self._write(path, request, self.terms(alpha), batch_size, *options)

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

        A user to whom `recommend` gives popular items has the number of training users of each
        item as scores.
        """
        request = self._request(histories, Unknowns.of(unknown, unknown_users, unknown_items))
        cold = cold_rows(request.history, self.item_counts_)
        warm = request.take(np.flatnonzero(~cold)) if cold.any() else request
        warm_scores = score(self.terms(alpha), warm.history, users=warm.trained)
        if not cold.any():
            return warm_scores
        scores = np.empty(request.history.shape, warm_scores.dtype)
        scores[~cold], scores[cold] = warm_scores, self.item_counts_
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
        lists = self._answer(request, self.terms(alpha), k, True, rules, 0, None)
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
        count("batch_size", batch_size)
        items = self.item_index_.values if items is None else items
        request = self._single_item_request(items, unknown_items)
        options = (k, True, as_rules(rules), 0, None)
        return self._write(path, request, self.terms(alpha), batch_size, *options)

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
        """Return the contribution of each item of a history to the score of an item.

        Parameters
        ----------
        history
            Item ids, or the id of a training user.
        item
            The item to explain.
        alpha
            As for `recommend`.
        unknown_items, unknown
            For items of the history the model does not know: "error", or "skip" to leave them out.
        """
        self._require_explains()
        if isinstance(history, (Mapping, Interactions)):
            raise DataError("explain takes one history: item ids, or the id of a training user")
        target = self.item_index_.position(item)
        unknowns = Unknowns.of(unknown, None, unknown_items)
        row = self._request(history if is_id(history) else [history], unknowns).history
        if not row.nnz:
            raise DataError("the history is empty, so there is nothing to explain; give items")
        sources, terms = row.indices, self.terms(alpha)
        offsets = np.arange(len(sources) + 1)
        one_item_rows = sp.csr_array((row.data, sources, offsets), (len(sources), row.shape[1]))
        parts = score_items(terms, one_item_rows, offsets[:-1], np.full(len(sources), target))
        total = float(score_items(terms, row, [0], [target])[0])
        order = np.argsort(-np.abs(parts), kind="stable")
        contributions = add_up(parts[order].astype(np.float64), total)
        ids = self.item_index_.values[sources[order]].tolist()
        titles, (title,) = self._titles([sources[order], np.array([target])]) or (None, (None,))
        return Explanation(item, total, ids, contributions.tolist(), titles, title)

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
        request = parse_query(query, self._fitted, unknown)
        if isinstance(request.source, np.ndarray):
            history = rows_or_empty(self._fitted.matrix, request.source)
        elif request.source is self._fitted:
            history = self._fitted.matrix  # already weighed by the signals
        else:
            history = self._rows_of(request.source, unknown)
        return dataclasses.replace(request, history=history)

    def _limited_request(
        self,
        query: Any,
        exclude: Any,
        candidates: Any,
        rules: Rules | ItemRules | None,
        unknown: Unknowns,
    ) -> Request:
        """Return a request with the caller's `exclude` and `candidates`."""
        pins = self._unknown_pins(rules)
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
        positions = Unknowns.of(None, None, unknown_items).item_positions(ids, self.item_index_)
        known = self.item_index_.values[positions[positions >= 0]].tolist()
        request = self._request({item: [item] for item in known}, Unknowns())
        return dataclasses.replace(request, has_names=False)  # rules of users are not for items

    def _rows_of(self, source: Interactions | list[Any], unknown: Unknowns) -> Csr:
        """Return histories as rows over the model's items, weighed like the training data."""
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
        # a model without fold-in has to see the histories as it was fitted on them
        now = None if self.fold_in else self.signals.latest(self.data_.own_events)
        rows = self.signals.values(events, len(items), self._background, now)
        return rows.astype(np.float32)

    @property
    def _background(self) -> Background | None:
        """Statistics of the training data that BM25 weights need; computed once per data."""
        if self.signals is None or self.signals.transform != "bm25":
            return None
        cached: tuple[Any, Background | None] | None = vars(self).get("_cached_background")
        if cached is None or cached[0] is not self.data_:
            cached = self.data_, self.signals.background(self.data_)
            self.__dict__["_cached_background"] = cached
        return cached[1]

    def _unknown_pins(self, rules: Rules | ItemRules | None) -> UnknownPins | None:
        """Return the pinned items that the model does not know."""
        return None if rules is None else rules.on(self._fitted).unknown_pins

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
        item_rules = checked.on(self._fitted)
        request, options["boost"] = request.ruled(item_rules), item_rules.boost
        if item_rules.seen is not None:
            options["exclude_seen"] = item_rules.seen == "exclude"
        shown = request.shown_pins(item_rules, options["exclude_seen"])
        ranked = self._mixed(request, terms, k, item_rules, options)
        return (
            ranked if shown is None else with_unknown_pins(ranked, item_rules, shown, k, n_items)
        )

    def _mixed(
        self,
        request: Request,
        terms: list[Term],
        k: int,
        rules: ItemRules,
        options: dict[str, Any],
    ) -> Ranked:
        """Rank the model's items for the rows of a request: pins, quotas and diversity."""
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

    def _ranked(self, terms: list[Term], request: Request, k: int, **options: Any) -> Ranked:
        """Rank items for the rows of a request, cold ones by popularity."""
        cold = cold_rows(request.history, self.item_counts_)
        popularity: list[Term] = [Constant(self.item_counts_.astype(np.float32))]
        groups = [(terms, np.flatnonzero(~cold)), (popularity, np.flatnonzero(cold))]
        parts = []
        for group_terms, rows in groups if cold.any() else groups[:1]:
            group = request.take(rows) if cold.any() else request
            ranked = top_k(
                group_terms,
                group.history,
                k,
                exclude=group.exclude,
                candidates=group.allowed,
                only=group.only,
                users=group.trained,
                **options,
            )
            parts.append((rows, ranked))
        return Ranked.joined(parts)

    def _answer(
        self,
        request: Request,
        terms: list[Term],
        k: int,
        exclude_seen: bool | None,
        rules: RulesLike | None,
        n_reasons: int,
        threads: int | None,
    ) -> Recommendations:
        """Return the ranked lists of a request with raw ids, titles and reasons."""
        ranked = self._listed(request, terms, k, exclude_seen, rules, threads)
        cold = cold_rows(request.history, self.item_counts_)
        ranked.scores[cold] = np.nan  # counts of users are no scores of the model
        rows, scores = (
            [row[:length] for row, length in zip(table, ranked.lengths, strict=True)]
            for table in (ranked.items, ranked.scores)
        )
        reason_ids, reason_titles = None, None
        if count("reasons", n_reasons, 0):
            self._require_explains()
            reasons = self._reasons(terms, request.history, rows, cold, n_reasons)
            values = self.item_index_.values
            reason_ids = [[values[places].tolist() for places in row] for row in reasons]
            if self._fitted.labels is not None:
                reason_titles = [self._titles(row) or [] for row in reasons]
        pins = self._unknown_pins(as_rules(rules))
        extra = [] if pins is None else pins.ids
        kind = self.item_index_.kind
        return Recommendations(
            request.users,
            self._ids(rows, extra),
            scores,
            np.where(cold, "popular", "model").tolist(),
            self._titles(rows, extra),
            reason_ids,
            reason_titles,
            {"user": request.kind, "item": column_kind(extra) if kind == pl.Int64 else kind},
        )

    def _write(
        self,
        path: str | os.PathLike[str],
        request: Request,
        terms: list[Term],
        batch_size: int,
        *options: Any,
    ) -> int:
        """Write the lists of a request to a file, and return how many; `options` of `_answer`."""

        def batches() -> Iterator[pl.DataFrame]:
            for start in range(0, len(request), batch_size):
                batch = request.take(np.arange(start, min(start + batch_size, len(request))))
                yield self._answer(batch, terms, *options).to_frame(details=True)

        write_lists(path, batches())
        return len(request)

    def _ids(self, rows: list[npt.NDArray[Any]], extra: list[Any]) -> list[list[Any]]:
        """Return the ids of items by position; `extra` ids follow those of the model."""
        values = self.item_index_.values
        if extra:
            values = np.array([*values.tolist(), *extra], object)
        return [values[row].tolist() for row in rows]

    def _titles(
        self, rows: list[npt.NDArray[Any]], extra: Sequence[Any] = ()
    ) -> list[list[str]] | None:
        """Return the titles of items by position; None without labels.

        `extra` are ids of items after those of the model, which are their own titles.
        """
        data = self._fitted
        if data.labels is None:
            return None
        titles = [*data.labels.to_series(0).to_list(), *extra]
        ids = [*data.items.tolist(), *extra]
        return [[str(titles[place] or ids[place]) for place in row] for row in rows]

    def _reasons(
        self,
        terms: list[Term],
        history: Csr,
        rows: list[npt.NDArray[Any]],
        skipped: npt.NDArray[np.bool_],
        n_reasons: int,
    ) -> Reasons:
        """Return reasons for each listed item; an item the model does not know has none."""
        n_items, none = len(self.item_index_), np.empty(0, np.int64)
        known_rows = [row[row < n_items] for row in rows]
        out: Reasons = []
        known_reasons = find_reasons(terms, history, known_rows, skipped, n_reasons)
        for row, reasons in zip(rows, known_reasons, strict=True):
            remaining = iter(reasons)
            out.append([next(remaining) if place < n_items else none for place in row])
        return out
