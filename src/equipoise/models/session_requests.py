"""From sessions that a caller passes to rows of weights, where order and repeats count."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from equipoise.errors import DataError
from equipoise.ids import SHOWN, Unknown
from equipoise.interactions import Interactions
from equipoise.models.requests import Request, is_id
from equipoise.models.session_matrices import recency
from equipoise.sequences import Sequences

logger = logging.getLogger(__name__)


def session_request(
    wanted: Any, train: Interactions, unknown: Unknown, decay: float | None
) -> Request:
    """Turn session ids, lists of clicks or Interactions into rows over the items of `train`.

    Interactions without an order of events give their weights as they are.

    Parameters
    ----------
    wanted
        As for `parse_request`.
    train
        What the model was fitted on.
    unknown
        "error", or "skip" to leave clicks on unknown items out and say so in the log.
    decay
        d_inf, how fast earlier clicks lose weight.
    """
    if isinstance(wanted, Interactions):
        data = wanted.with_items(train.item_index, unknown=unknown)
        if data.sequences is None:
            return Request(data.users.tolist(), data.matrix)
        if wanted.sequences is not None:
            _report(len(wanted.sequences.items) - len(data.sequences.items), [])
        return _weighted(data.users.tolist(), data.sequences, train, decay)
    if isinstance(wanted, Mapping):
        users, listed = list(wanted), list(wanted.values())
        return _weighted(users, _clicks(listed, train, unknown), train, decay)
    listed = [wanted] if is_id(wanted) else list(wanted)
    ids = [is_id(value) for value in listed]
    if all(ids):
        place = train.user_index.positions(listed, unknown=unknown)
        known = place[place >= 0]
        assert train.sequences is not None
        users = train.users[known].tolist()
        return _weighted(users, train.sequences.take(known), train, decay)
    if any(ids):
        raise DataError("pass either session ids or lists of item ids, not a mixture")
    clicks = _clicks(listed, train, unknown)
    return _weighted(list(range(len(listed))), clicks, train, decay)


def _weighted(
    users: list[Any], clicks: Sequences, train: Interactions, decay: float | None
) -> Request:
    return Request(users, recency(clicks, train.n_items, decay))


def _clicks(sessions: list[Any], train: Interactions, unknown: Unknown) -> Sequences:
    """Return the clicks of each session in their order, repeats included."""
    rows, strange = [], []
    for listed in sessions:
        if is_id(listed):
            raise DataError(f"expected a list of item ids, got {listed!r}")
        clicks = listed if isinstance(listed, np.ndarray) else list(listed)
        place = train.item_index.positions(clicks, unknown=unknown)
        strange += [clicks[at] for at in np.flatnonzero(place < 0)]
        rows.append(place[place >= 0])
    _report(len(strange), strange)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return Sequences(np.concatenate([*rows, np.empty(0, np.int64)]).astype(np.int32), offsets)


def _report(count: int, items: list[Any]) -> None:
    if count:
        shown = ", ".join(repr(item) for item in items[:SHOWN])
        named = f": {shown}{', ...' if count > SHOWN else ''}" if items else ""
        clicks = f"{count:,} clicks on items" if count > 1 else "a click on an item"
        logger.warning("skipped %s the model does not know%s", clicks, named)
