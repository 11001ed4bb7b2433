"""Recommender: what every model can be asked, whatever it is inside."""

from __future__ import annotations

import dataclasses
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Self, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.errors import NotFittedError, SettingError
from equipoise.ids import IdIndex, Unknown
from equipoise.interactions import Interactions
from equipoise.manifest import Fields
from equipoise.models.recommendations import Explanation, Recommendations, add_up, in_order
from equipoise.models.requests import (
    Request,
    by_candidates,
    history_rows,
    is_id,
    parse_request,
    per_person,
)
from equipoise.rank import Ranked, score, score_items
from equipoise.solve.device_rank import top_k
from equipoise.storage import Stored
from equipoise.terms import Constant, Term

BATCH = 4096


class Recommender(ABC):
    """A model that ranks items for a history.

    A subclass implements `fit` and `terms`; asking, explaining and saving live here.

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

    def rank(
        self,
        history: Interactions,
        k: int,
        *,
        exclude_seen: bool = True,
        alpha: float | None = None,
        threads: int | None = None,
    ) -> Ranked:
        """Rank items for the rows of `history`, by position; what `evaluate` works from."""
        rows = history.with_items(self.item_index_).matrix
        return top_k(self.terms(alpha), rows, k, exclude_seen=exclude_seen, threads=threads)

    def recommend(
        self,
        users_or_histories: Any,
        k: int = 20,
        *,
        exclude_seen: bool = True,
        exclude: Any = None,
        candidates: Any = None,
        alpha: float | None = None,
        unknown: Unknown = "error",
        threads: int | None = None,
    ) -> Recommendations:
        """Return the k best items for each person, as raw ids.

        Parameters
        ----------
        users_or_histories
            Ids of training users; or histories of anybody: a list of lists of item ids, a
            mapping from names to such lists, or Interactions.
        k
            Length of the lists.
        exclude_seen
            Leave out the items of the history.
        exclude
            Item ids to leave out for everybody, or a list of such lists, one per person.
        candidates
            Item ids to choose from, for everybody, or a list of such lists, one per person.
        alpha
            The popularity dial: takes the place of the normalizer's alpha, no refit.
        unknown
            Ids the model does not know are an error, or left out with "skip".
        threads
            Number of threads; None uses all.
        """
        request = self._request(users_or_histories, unknown)
        exclude = per_person(exclude, len(request), self.item_index_, unknown)
        candidates = per_person(candidates, len(request), self.item_index_, unknown)
        terms = self.terms(alpha)
        parts = []
        for rows, allowed in by_candidates(candidates, len(request)):
            part = Request([request.users[row] for row in rows], request.history[rows])
            block = exclude[rows] if exclude is not None else None
            options = {"exclude_seen": exclude_seen, "exclude": block, "candidates": allowed}
            parts.append((rows, self._answer(part, terms, k, threads, **options)))
        return in_order(parts)

    def recommend_to(
        self,
        path: str | os.PathLike[str],
        users_or_histories: Any = None,
        k: int = 20,
        *,
        batch_size: int = BATCH,
        unknown: Unknown = "error",
        **options: Any,
    ) -> int:
        """Write the k best items of any number of people to a Parquet file, batch by batch.

        Columns as in `Recommendations.to_frame`. Everybody of the training data is answered
        when nobody is named. Returns the number of people. Options as for `recommend`.
        """
        if batch_size < 1:
            raise SettingError(f"batch_size must be >= 1, got {batch_size}")
        everybody = self._fitted if users_or_histories is None else users_or_histories
        request = self._request(everybody, unknown)

        def batches() -> Iterator[pl.DataFrame]:
            for start in range(0, len(request), batch_size):
                part = request.rows(start, start + batch_size)
                data = Interactions(part.history, part.users, self.item_index_)
                yield self.recommend(data, k, **options).to_frame()

        from equipoise.models.streaming import write_parquet

        write_parquet(path, batches())
        return len(request)

    def score(self, histories: Any, *, alpha: float | None = None) -> npt.NDArray[Any]:
        """Return the scores of all items for each history, people x items, dense."""
        return score(self.terms(alpha), self._request(histories, "error").history)

    def similar(self, item: Any, k: int = 20, *, alpha: float | None = None) -> Recommendations:
        """Return the items that most follow from this one alone."""
        found = self.recommend({item: [item]}, k, alpha=alpha)
        return dataclasses.replace(found, users=[item])

    def explain(self, history: Any, item: Any, *, alpha: float | None = None) -> Explanation:
        """Return what each item of a history adds to the score of an item.

        Parameters
        ----------
        history
            Item ids, or the id of a training user.
        item
            The item to explain.
        alpha
            The popularity dial, as for `recommend`.
        """
        request = self._request(history if is_id(history) else [history], "error")
        sources = request.history.indices
        target = self.item_index_.positions([item])
        terms = self.terms(alpha)
        alone = history_rows(
            [[source] for source in self.item_index_.values[sources]], self.item_index_, "error"
        )
        alone.data *= request.history.data
        everyone = np.arange(len(sources))
        parts = score_items(terms, alone, everyone, np.repeat(target, len(sources)))
        total = float(score_items(terms, request.history, np.zeros(1, np.int64), target)[0])
        return self._explained(item, total, sources, parts.astype(np.float64))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a directory (manifest, `.npy`, Parquet) that `eq.load` opens; atomic."""
        from equipoise.models.saving import save_model

        save_model(self, path)

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

    def _answer(
        self, request: Request, terms: list[Term], k: int, threads: int | None, **options: Any
    ) -> Recommendations:
        ranked = top_k(terms, request.history, k, threads=threads, **options)
        source = np.full(len(request), "model", object)
        empty = np.flatnonzero(np.diff(request.history.indptr) == 0)
        if len(empty):
            block = options["exclude"]
            options["exclude"] = block[empty] if block is not None else None
            popular = [Constant(self.item_counts_.astype(np.float32))]
            fallback = top_k(popular, request.history[empty], k, threads=threads, **options)
            for name in ("items", "scores", "lengths"):
                getattr(ranked, name)[empty] = getattr(fallback, name)
            source[empty] = "popular"
        return self._named(request.users, ranked, source.tolist())

    def _named(self, users: list[Any], ranked: Ranked, source: list[str]) -> Recommendations:
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
        return Recommendations(users, items, scores, source, titles)


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
