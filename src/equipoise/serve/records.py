"""The rows of the store one by one: listed, exported, deleted, and erased without a trace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import sqlalchemy as sa

from equipoise.serve.state import Served, find
from equipoise.serve.store import (
    LONG,
    TENANT,
    Event,
    Store,
    Write,
    events,
    forgotten,
    lists,
    seen,
)

PAGE = 5_000  # rows that are read at a time
COLUMNS = tuple(Event.__dataclass_fields__)
ERASE_AFTER = 60.0  # seconds until every worker has noticed that a user is forgotten
TABLES = (events, seen, lists, forgotten)


@dataclass(frozen=True)
class Selection:
    """Events of a user, on an item, of a type, of a list, or of a time; all events by default.

    Parameters
    ----------
    user, item, type, list_id
        The events have this value.
    since, until
        Times of the first event and after the last one, in seconds since 1970.
    """

    user: str | None = None
    item: str | None = None
    type: str | None = None
    list_id: str | None = None
    since: float | None = None
    until: float | None = None

    def condition(self) -> sa.ColumnElement[bool]:
        """Return the condition of SQL."""
        chosen = [events.c.tenant == TENANT]
        for name in ("user", "item", "type", "list_id"):
            if getattr(self, name) is not None:
                chosen.append(events.c[name] == getattr(self, name))
        if self.since is not None:
            chosen.append(events.c.time >= self.since)
        if self.until is not None:
            chosen.append(events.c.time < self.until)
        return sa.and_(*chosen)


def read_events(
    store: Store, selection: Selection, after: int = 0, limit: int = PAGE
) -> list[dict[str, Any]]:
    """Return events in the order of their arrival, each with its `number`.

    Parameters
    ----------
    store, selection
        Which events of which store.
    after
        Number of the last event of the page before.
    limit
        Largest number of events.
    """
    columns = [events.c.seq.label("number"), *(events.c[name] for name in COLUMNS)]
    query = sa.select(*columns).where(selection.condition(), events.c.seq > after)
    query = query.order_by(events.c.seq).limit(limit)
    rows = store.query(lambda connection: connection.execute(query).mappings().all())
    return [dict(row) for row in rows]


def all_events(store: Store, selection: Selection) -> Iterator[list[dict[str, Any]]]:
    """Yield all selected events, page by page."""
    after = 0
    while page := read_events(store, selection, after):
        after = page[-1]["number"]
        yield page


def delete_event(name: str) -> Write:
    """Return the write that deletes an event; its result is the number it had, or None."""

    def write(connection: sa.Connection) -> int | None:
        is_it = sa.and_(events.c.tenant == TENANT, events.c.id == name)
        number: int | None = connection.execute(
            sa.select(events.c.seq).where(is_it)
        ).scalar_one_or_none()
        if number is not None:
            connection.execute(events.delete().where(is_it))
        return number

    return write


def personal_data(store: Store, user: str) -> dict[str, Any]:
    """Return every row of the store about a user."""
    stored: dict[str, Any] = {"user": user}
    for table in TABLES:
        columns = [column for column in table.c if column.name not in ("tenant", "user", "seq")]
        query = sa.select(*columns).where(table.c.tenant == TENANT, table.c.user == user)
        query = query.order_by(table.c.time)
        rows = store.query(lambda c, query=query: c.execute(query).mappings().all())  # type: ignore[misc]
        stored[table.name] = [dict(row) for row in rows]
    for row in stored["lists"]:
        row["items"] = json.loads(row["items"])
        if row["exploration"] is not None:
            row["exploration"] = json.loads(row["exploration"])
    return stored


def training_data(served: Served, user: str) -> list[dict[str, Any]] | None:
    """Return what a model has learned from a user; None if it does not know the user."""
    row = int(find(served.users, [user])[0])
    if row < 0:
        return None
    data = served.model.data_
    frame = data.rows(np.array([row])).to_frame(events=data.events is not None)
    return frame.drop("user").with_columns(pl.col("item").cast(pl.String)).to_dicts()


def erase_now(user: str) -> Write:
    """Return the write that deletes every row about a user, also that of being forgotten."""

    def write(connection: sa.Connection) -> int:
        deletes = [t.delete().where(t.c.tenant == TENANT, t.c.user == user) for t in TABLES]
        return sum(connection.execute(delete).rowcount for delete in deletes)

    return write


def erase_forgotten(store: Store, models: list[Served], now: float) -> int:
    """Delete the ids of users to erase that no model needs any more; return their number.

    A model needs the row of a forgotten user as long as its training data include the user. Other
    workers may load an updated model a little later.
    """
    if any(now - served.loaded < ERASE_AFTER for served in models):
        return 0
    due = sa.select(forgotten.c.seq, forgotten.c.user).where(
        forgotten.c.tenant == TENANT,
        forgotten.c.erase == 1,
        forgotten.c.time < now - ERASE_AFTER,
    )
    rows = store.query(lambda connection: connection.execute(due).all())
    users = {row.user for row in rows}
    for served in models:
        last = {row.user: row.seq for row in sorted(rows)}
        users -= {user for user in users if last[user] > served.forgotten and served.knows(user)}
    for user in users:
        row = sa.and_(forgotten.c.tenant == TENANT, forgotten.c.user == user)
        store.do(lambda c, row=row: c.execute(forgotten.delete().where(row)))  # type: ignore[misc]
    if users:
        scrub(store)
    return len(users)


def scrub(store: Store) -> None:
    """Overwrite what deleted rows have left in the files of the store.

    SQLite overwrites deleted rows in the file; its log is emptied here. PostgreSQL vacuums.
    """
    if store.is_local:
        statement = "PRAGMA wal_checkpoint(TRUNCATE)"
    else:
        names = ", ".join(f'"{table.name}"' for table in TABLES)
        statement = f"VACUUM {names}"
    store.query(lambda connection: connection.exec_driver_sql(statement) and None, LONG)
