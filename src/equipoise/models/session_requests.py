"""From sessions that a caller passes to rows of weights, where order and repeats count."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from equipoise.ids import SHOWN, Unknown, as_list
from equipoise.interactions import Interactions
from equipoise.models.requests import Request, parse_asked
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
        As for `parse_asked`.
    train
        What the model was fitted on.
    unknown
        "error", or "skip" to leave clicks on unknown items out and say so in the log.
    decay
        d_inf, how fast earlier clicks lose weight.
    """
    asked = parse_asked(wanted, train, unknown)
    if isinstance(asked.source, Interactions):
        data = asked.source.with_items(train.item_index, unknown=unknown)
        clicks = data.sequences
        if clicks is None:
            return Request(asked.users, asked.kind, data.matrix, asked.answered)
        assert asked.source.sequences is not None
        _report(len(asked.source.sequences.items) - len(clicks.items), [])
    elif isinstance(asked.source, np.ndarray):
        assert train.sequences is not None
        clicks = train.sequences.take(asked.source)
    else:
        clicks = _clicks(asked.source, train, unknown)
    rows = recency(clicks, train.n_items, decay)
    return Request(asked.users, asked.kind, rows, asked.answered)


def _clicks(sessions: list[Any], train: Interactions, unknown: Unknown) -> Sequences:
    """Return the clicks of each session in their order, repeats included."""
    rows, strange = [], []
    for listed in sessions:
        clicks = as_list(listed)
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
