"""Session data sets: ordered events, repeats included.

All follow the usual preparation of session-based recommendation (GRU4Rec, SR-GNN, SLIST): sessions
of a single event are dropped, then items with fewer than 5 events, then the sessions that have a
single event left.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from equipoise.datasets.annotate import annotated
from equipoise.datasets.rawfiles import find, table, with_seconds
from equipoise.errors import DataError
from equipoise.interactions import Interactions
from equipoise.readers import read

MIN_EVENTS = 5
PAUSE = 30 * 60  # seconds without a view that end a session


def diginetica(path: Path) -> Interactions:
    """Item views of the CIKM Cup 2016: ``sessionId;userId;itemId;timeframe;eventdate``.

    The time of an event is its date plus `timeframe`, the milliseconds since the session began.
    """
    file = find(path, ["train-item-views.csv"])
    columns = {
        "session": pl.Int64,
        "_user": pl.String,
        "item": pl.Int64,
        "since": pl.Int64,
        "date": pl.String,
    }
    events = with_seconds(table(file, columns, separator=";"), "date", "%Y-%m-%d", file)
    # A session that runs past midnight has two dates; counting from the first keeps its order.
    began = pl.col("date").min().over("session")
    events = events.with_columns(time=began + pl.col("since") / 1000)
    return _long_enough(read(events, session="session", item="item", time="time"))


def retailrocket(path: Path) -> Interactions:
    """Views of the RetailRocket shop: ``timestamp,visitorid,event,itemid,transactionid``.

    A visitor's views are cut into sessions wherever more than 30 minutes pass without one.
    """
    file = find(path, ["events.csv"])
    columns = {
        "time": pl.Int64,
        "visitor": pl.Int64,
        "event": pl.String,
        "item": pl.Int64,
        "_transaction": pl.String,
    }
    views = table(file, columns).filter(pl.col("event") == "view")
    return _long_enough(read(views, user="visitor", item="item", time="time", gap=PAUSE))


def yoochoose(path: Path) -> Interactions:
    """Clicks of the RecSys Challenge 2015: ``session,time,item,category`` without a header."""
    file = find(path, ["yoochoose-clicks.dat"])
    data = read(file, format="csv", header=False, session=0, time=1, item=2)
    return _long_enough(data)


def _long_enough(data: Interactions) -> Interactions:
    """Drop single events and rare items; what counts is events, so a repeat makes two."""
    assert data.sequences is not None
    n_events = len(data.sequences.items)
    kept = _several(data)
    assert kept.sequences is not None
    common = np.bincount(kept.sequences.items, minlength=kept.n_items) >= MIN_EVENTS
    kept = _several(kept.columns(common))
    assert kept.sequences is not None
    if not kept.n_interactions:
        raise DataError(f"no session has two events on items with {MIN_EVENTS} events")
    n_dropped = n_events - len(kept.sequences.items)
    note = f"{n_dropped:,} of {n_events:,} events dropped: on rare items, or alone in a session"
    return annotated(kept, notes=[note])


def _several(data: Interactions) -> Interactions:
    assert data.sequences is not None
    return data.rows(np.diff(data.sequences.offsets) >= 2)
