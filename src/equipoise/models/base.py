"""Recommender: what every model can be asked, whatever it is inside."""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.errors import DataError, NotFittedError, SettingError
from equipoise.ids import IdIndex, Unknown, is_id
from equipoise.interactions import Interactions
from equipoise.manifest import Fields
from equipoise.models.histories import Request, empty_rows, parse_request
from equipoise.models.recommendations import Explanation, Recommendations, add_up
from equipoise.ranking.ranker import Ranked, score, score_items, top_k
from equipoise.ranking.terms import Constant, Term
from equipoise.storage import Stored

BATCH = 4096

Method = TypeVar("Method", bound=Callable[..., Any])


def at_once(method: Method) -> Method:
    """Let a method change the model wholly or not at all, and return the model.

    It works on a copy, which shares all arrays and must write into none, and the model takes the
    copy's attributes in one step at the end. A method that fails leaves the model as it was, and
    a request of another thread (`on_snapshot`) sees the model before or after it.
    """

    @functools.wraps(method)
    def changed(model: Recommender, /, *args: Any, **options: Any) -> Recommender:
        twin = copy.copy(model)
        method(twin, *args, **options)
        model.__dict__ = twin.__dict__
        return model

    return cast(Method, changed)


def on_snapshot(method: Method) -> Method:
    """Let a method answer from the model as it is when it is called, whatever changes it then."""

    @functools.wraps(method)
    def asked(model: Recommender, /, *args: Any, **options: Any) -> Any:
        return method(copy.copy(model), *args, **options)

    return cast(Method, asked)


class Recommender(ABC):
    """A model that ranks items for a history.

    A subclass implements `fit` and `terms`; asking, explaining and saving live here. A model can
    be asked while another thread fits or updates it: see `at_once`.

    Attributes
    ----------
    interactions_
        The training data.
    """

    interactions_: Interactions
    registry: ClassVar[dict[str, type[Recommender]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        known = Recommender.registry.get(cls.__name__)
        # somebody's own class of the same name must not take the place of ours in saved models
        if known is None or not known.__module__.startswith("equipoise."):
            Recommender.registry[cls.__name__] = cls

    @abstractmethod
    def fit(self, interactions: Interactions) -> Self:
        """Learn from the interactions and return self."""

    @abstractmethod
    def terms(self, alpha: float | None = None) -> list[Term]:
        """Return the terms whose sum is the scoring matrix W; `alpha` turns the dial."""

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
        """Fingerprint of the training data."""
        return self._fitted.fingerprint

    @property
    def _fitted(self) -> Interactions:
        if not hasattr(self, "interactions_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")
        return self.interactions_

    @property
    def label(self) -> str:
        """A short name for tables, such as "EASE+DAN"."""
        return type(self).__name__

    def settings(self) -> dict[str, Any]:
        """Return the name and the hyper-parameters as plain values."""
        fields: Any = dataclasses.fields(cast(Any, self))
        values = {entry.name: getattr(self, entry.name) for entry in fields if entry.init}
        return {"model": type(self).__name__, **plain(values)}

    @on_snapshot
    def rank(
        self,
        history: Interactions,
        k: int,
        *,
        exclude_seen: bool = True,
        alpha: float | None = None,
        threads: int | None = None,
    ) -> Ranked:
        """Rank items for the rows of `history`, by position; what `evaluate` works from.

        An empty row is ranked by popularity, as in `recommend`.
        """
        request = self._request(history, "error")
        return self._ranked(
            self.terms(alpha), request, k, exclude_seen=exclude_seen, threads=threads
        )

    @on_snapshot
    def recommend(
        self,
        users_or_histories: Any,
        k: int = 20,
        *,
        exclude_seen: bool | None = None,
        exclude: Any = None,
        candidates: Any = None,
        alpha: float | None = None,
        unknown: Unknown = "error",
        threads: int | None = None,
    ) -> Recommendations:
        """Return the k best items for each user, as raw ids.

        An empty history gets the items with most training users; `source` says so.

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
            Item ids to leave out for all users, or a list of such lists, one per user.
        candidates
            Item ids to choose from, for all users, or a list of such lists, one per user.
        alpha
            The popularity dial: takes the place of the normalizer's alpha, no refit.
        unknown
            Ids the model does not know are an error, or left out with "skip".
        threads
            Number of threads; None uses all.
        """
        request = self._request(users_or_histories, unknown)
        request = request.limited(exclude, candidates, self.item_index_, unknown)
        return self._answer(request, self.terms(alpha), k, exclude_seen, threads)

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
        alpha: float | None = None,
        unknown: Unknown = "error",
        threads: int | None = None,
    ) -> int:
        """Write the k best items of any number of users to a Parquet file, batch by batch.

        The file holds what `Recommendations.to_frame` returns. All training users are answered
        when none are named. Returns the number of users. Options as for `recommend`.
        """
        if batch_size < 1:
            raise SettingError(f"batch_size must be >= 1, got {batch_size}")
        wanted = self._fitted if users_or_histories is None else users_or_histories
        request = self._request(wanted, unknown)
        request = request.limited(exclude, candidates, self.item_index_, unknown)
        terms = self.terms(alpha)

        def batches() -> Iterator[pl.DataFrame]:
            for start in range(0, len(request), batch_size):
                some = request.take(np.arange(start, min(start + batch_size, len(request))))
                yield self._answer(some, terms, k, exclude_seen, threads).to_frame()

        from equipoise.models.recommendations import write_parquet

        write_parquet(path, batches())
        return len(request)

    @on_snapshot
    def score(
        self, histories: Any, *, alpha: float | None = None, unknown: Unknown = "error"
    ) -> npt.NDArray[Any]:
        """Return the scores of all items for each user or history, users x items, dense.

        Those of an empty history are the numbers of training users of each item.
        """
        request = self._request(histories, unknown)
        scores = score(self.terms(alpha), request.history, users=request.trained)
        scores[empty_rows(request.history)] = self.item_counts_
        return scores

    def similar(self, item: Any, k: int = 20, *, alpha: float | None = None) -> Recommendations:
        """Return the items that most follow from this one alone, itself left out."""
        self.item_index_.position(item)
        return self.recommend({item: [item]}, k, exclude_seen=True, alpha=alpha)

    @on_snapshot
    def explain(
        self,
        history: Any,
        item: Any,
        *,
        alpha: float | None = None,
        unknown: Unknown = "error",
    ) -> Explanation:
        """Return what each item of a history adds to the score of an item.

        Parameters
        ----------
        history
            Item ids, or the id of a training user.
        item
            The item to explain.
        alpha, unknown
            As for `recommend`; `unknown` is about the history.
        """
        if isinstance(history, (Mapping, Interactions)):
            raise DataError("explain takes one history: item ids, or the id of a training user")
        target = self.item_index_.position(item)
        rows = self._request(history if is_id(history) else [history], unknown).history
        if not rows.nnz:
            raise DataError("the history is empty, so there is nothing to explain; give items")
        sources = rows.indices
        terms = self.terms(alpha)
        each = np.arange(len(sources) + 1)
        alone = sp.csr_array((rows.data, sources, each), shape=(len(sources), rows.shape[1]))
        parts = score_items(terms, alone, each[:-1], np.full(len(sources), target))
        total = float(score_items(terms, rows, [0], [target])[0])
        return self._explained(item, total, sources, parts.astype(np.float64))

    @on_snapshot
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a directory (manifest, `.npy`, Parquet) that `eq.load` opens; atomic."""
        from equipoise.models.saving import save_model

        save_model(self, path)

    @property
    def _hides_seen(self) -> bool:
        """Whether `recommend` leaves out items of the history unless told."""
        return True

    def _request(self, wanted: Any, unknown: Unknown) -> Request:
        """Return who is asked about, as rows over the model's items."""
        return parse_request(wanted, self._fitted, unknown)

    def _state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return what fitting learned beyond the data: plain values and arrays, for `save`."""
        return {}, {}

    def _restore(self, state: Fields, stored: Stored) -> None:
        """Take back what `_state` gave; the data are in place already."""
        return

    def _explained(
        self, item: Any, total: float, sources: npt.NDArray[Any], parts: npt.NDArray[np.float64]
    ) -> Explanation:
        order = np.argsort(-np.abs(parts), kind="stable")
        parts, sources = add_up(parts[order], total), self.item_index_.values[sources[order]]
        titles = None
        if self._fitted.labels is not None:
            titles = [self._fitted.label(source) for source in sources]
        return Explanation(item, total, sources.tolist(), parts.tolist(), titles)

    def _ranked(
        self,
        terms: list[Term],
        request: Request,
        k: int,
        **options: Any,
    ) -> Ranked:
        """Rank items for the rows of a request, empty ones by popularity."""
        history, exclude = request.history, request.exclude
        ranked = top_k(terms, history, k, users=request.trained, exclude=exclude, **options)
        empty = empty_rows(history)
        if len(empty):
            popular = [Constant(self.item_counts_.astype(np.float32))]
            hidden = None if exclude is None else exclude[empty]
            ranked.put(empty, top_k(popular, history[empty], k, exclude=hidden, **options))
        return ranked

    def _answer(
        self,
        request: Request,
        terms: list[Term],
        k: int,
        exclude_seen: bool | None,
        threads: int | None,
    ) -> Recommendations:
        hide = self._hides_seen if exclude_seen is None else exclude_seen
        parts = []
        for rows, allowed in request.by_candidates():
            options = {"exclude_seen": hide, "candidates": allowed, "threads": threads}
            found = self._ranked(terms, request.take(rows), k, **options)
            parts.append((rows, found))
        return self._named(request, Ranked.joined(parts))

    def _named(self, request: Request, ranked: Ranked) -> Recommendations:
        rows = [row[:length] for row, length in zip(ranked.items, ranked.lengths, strict=True)]
        items = [self.item_index_.values[row].tolist() for row in rows]
        scores = [row[:length] for row, length in zip(ranked.scores, ranked.lengths, strict=True)]
        titles = None
        if self._fitted.labels is not None:
            names = self._fitted.labels.to_series(0).to_list()
            titles = [
                [str(names[place] or item) for place, item in zip(row, ids, strict=True)]
                for row, ids in zip(rows, items, strict=True)
            ]
        source = np.full(len(request), "model", object)
        source[empty_rows(request.history)] = "popular"
        kinds = {"user": request.kind, "item": self.item_index_.kind}
        return Recommendations(request.users, items, scores, source.tolist(), titles, kinds)


def plain(value: Any) -> Any:
    """Return settings as JSON values; nested dataclasses become their name and fields."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}
        return {"name": type(value).__name__, **plain(fields)}
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value
