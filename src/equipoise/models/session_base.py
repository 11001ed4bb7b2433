"""Base of the session models: requests from the clicks of a session."""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from equipoise import checks
from equipoise.data.events import Events
from equipoise.data.ids import SHOWN, as_list
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr
from equipoise.errors import DataError, SettingError
from equipoise.models.answering import on_snapshot
from equipoise.models.base import Recommender
from equipoise.models.histories import (
    Request,
    Unknowns,
    history_events,
    parse_query,
    rows_or_empty,
)
from equipoise.models.recommendations import Recommendations
from equipoise.ranking.ranker import Ranked

logger = logging.getLogger(__name__)


class SessionModel(Recommender):
    """Base of the models that recommend the next item of a session from its clicks so far.

    A subclass has the setting `repeats`: items of the session may be recommended again.
    """

    ordered: ClassVar[bool] = True

    repeats: bool

    def __post_init__(self) -> None:
        if not isinstance(self.repeats, bool):
            raise SettingError(f"repeats must be True or False, got {self.repeats!r}")

    def _check_decays(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and checks.number(name, value) <= 0:
                raise SettingError(f"{name} must be > 0, or None for no decay, got {value}")

    @abstractmethod
    def _weigh_events(self, events: Events) -> Any:
        """Return the weights of clicks in order, sessions x items, in single precision."""

    @staticmethod
    def _events(data: Interactions) -> Events:
        """Return the ordered clicks of the training sessions."""
        if data._sequences is None:
            raise DataError(
                "a session model needs ordered clicks; read with session=, gap= or time="
            )
        return data._sequences

    @property
    def _hides_seen(self) -> bool:
        return not self.repeats

    def _request(self, query: Any, unknown: Unknowns) -> Request:
        """Return session ids, lists of clicks or Interactions as rows over the model's items.

        Interactions without ordered events keep their weights.
        """
        train = self._fitted
        request = parse_query(query, train, unknown)
        if isinstance(request.source, Interactions):
            data = request.source.with_items(train.item_index, unknown_items=unknown.items)
            if data._sequences is None:
                return request.with_history(data.matrix, self.item_counts_, trained=None)
            clicks, all_clicks = data._sequences, request.source._sequences
            assert all_clicks is not None
            _warn_of_skipped(len(all_clicks.items) - len(clicks.items), [])
            history = self._weigh_events(clicks)
        elif isinstance(request.source, np.ndarray):
            history = self._history_rows(request.source)
        else:
            clicks, skipped = history_events(request.source, train.item_index, unknown)
            _warn_of_skipped(len(skipped), skipped)
            history = self._weigh_events(clicks)
        return request.with_history(history, self.item_counts_, trained=None)

    def _history_rows(self, positions: npt.NDArray[np.int64] | None) -> Csr:
        clicks = self._events(self._fitted)
        if positions is None:
            positions = np.arange(len(clicks))
        known = positions >= 0
        weights: Csr = self._weigh_events(clicks.take(positions[known]))
        return rows_or_empty(weights, np.where(known, known.cumsum() - 1, -1))

    @on_snapshot
    def rank(
        self, history: Interactions, k: int, *, exclude_seen: bool | None = False, **options: Any
    ) -> Ranked:
        """Rank items for each row of `history`, as positions; `evaluate` is built on this."""
        return super().rank(history, k, exclude_seen=exclude_seen, **options)

    @on_snapshot
    def recommend(
        self, users_or_histories: Any = None, k: int = 20, *, session: Any = None, **options: Any
    ) -> Recommendations:
        """Recommend k next items for each session, as raw ids.

        Parameters
        ----------
        users_or_histories
            As for other models, except that the order of the clicks and their repeats count.
        session
            One session, a list of item ids in the order of the clicks; in place of the above.
        k, options
            As for other models. `exclude_seen` defaults to ``not repeats``. Items skipped with
            ``unknown_items="skip"`` are logged, and the clicks around them close the gap.
        """
        if (session is None) == (users_or_histories is None):
            raise SettingError("give either session=[...] or users or histories")
        query = users_or_histories if session is None else [as_list(session)]
        return super().recommend(query, k, **options)


def _warn_of_skipped(count: int, items: list[Any]) -> None:
    if count:
        shown = ", ".join(repr(item) for item in items[:SHOWN])
        named = f": {shown}{', ...' if count > SHOWN else ''}" if items else ""
        clicks = f"{count:,} clicks on items" if count > 1 else "a click on an item"
        logger.warning("skipped %s the model does not know%s", clicks, named)
