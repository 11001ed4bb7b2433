"""The event store of the service: what it holds, and what is read and written.

Accepted events are on disk before the answer is sent. Every write is idempotent: an event has an
id, a mark and an attribute have a key.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from equipoise.errors import DataError
from equipoise.serve.database import PATIENCE, Database, StoreError, Write

__all__ = [
    "Arrival",
    "Change",
    "Event",
    "Live",
    "LiveEvent",
    "Mark",
    "Store",
    "StoreError",
    "Write",
]

logger = logging.getLogger(__name__)

VERSION = 3
LONG = 600.0  # seconds for reads of a full table, for which no request waits
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # as written in JSON
LiveEvent = tuple[str, float, float, int, str]

# Earlier versions had tenants. Their column stays, so that older stores need no migration; rows of
# other tenants are neither read nor changed.
TENANT = "default"
ATTRIBUTES_KEY = f"attributes:{TENANT}"  # in the table meta


def _tenant_column(**options: Any) -> sa.Column[str]:
    return sa.Column("tenant", sa.Text, nullable=False, default=TENANT, **options)


def _is_own(table: sa.Table) -> sa.ColumnElement[bool]:
    """Return the condition that leaves out the rows of tenants that an older version served."""
    return table.c.tenant == TENANT


schema = sa.MetaData()
Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
meta = sa.Table(
    "equipoise_meta",
    schema,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
events = sa.Table(
    "events",
    schema,
    sa.Column("seq", Number, primary_key=True, autoincrement=True),
    _tenant_column(),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("item", sa.Text, nullable=False),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("weight", sa.Float(53), nullable=False),
    sa.Column("time", sa.Float(53), nullable=False),
    sa.Column("list_id", sa.Text),
    sa.UniqueConstraint("tenant", "id"),
    sa.Index("events_user", "tenant", "user"),
    sa.Index("events_time", "time"),
    sqlite_autoincrement=True,
)
seen = sa.Table(
    "seen",
    schema,
    _tenant_column(primary_key=True),
    sa.Column("user", sa.Text, primary_key=True),
    sa.Column("item", sa.Text, primary_key=True),
    sa.Column("time", sa.Float(53), nullable=False),
)
attributes = sa.Table(
    "attributes",
    schema,
    _tenant_column(primary_key=True),
    sa.Column("item", sa.Text, primary_key=True),
    sa.Column("data", sa.Text, nullable=False),
    # of the change that wrote the row, in the order of the changes; null if it is not known
    sa.Column("number", Number),
    sa.Index("attributes_number", "number"),
)
forgotten = sa.Table(
    "forgotten",
    schema,
    sa.Column("seq", Number, primary_key=True, autoincrement=True),
    _tenant_column(),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("time", sa.Float(53), nullable=False),
    # 1 if the row itself is deleted once no model has the user in its training data
    sa.Column("erase", sa.Integer),
    sa.Index("forgotten_user", "tenant", "user"),
    sqlite_autoincrement=True,
)
folded = sa.Table(
    "folded",
    schema,
    _tenant_column(primary_key=True),
    sa.Column("fingerprint", sa.Text, primary_key=True),
    sa.Column("event", Number, nullable=False),
    sa.Column("forgotten", Number, nullable=False),
)
lists = sa.Table(
    "lists",
    schema,
    _tenant_column(primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("experiment", sa.Text, nullable=False),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("time", sa.Float(53), nullable=False),
    sa.Column("items", sa.Text, nullable=False),
    sa.Column("exploration", sa.Text),  # how likely each item was, as JSON
    sa.Index("lists_time", "time"),
    sa.Index("lists_user", "tenant", "user"),
)
# columns that a store of this version lacks; missing tables and indexes are created as well
MIGRATIONS = {
    1: (events.c.list_id,),
    2: (forgotten.c.erase, lists.c.exploration, attributes.c.number),
}


@dataclass(frozen=True)
class Event:
    """An interaction of a user with an item."""

    id: str
    user: str
    item: str
    type: str
    weight: float
    time: float
    list_id: str | None = None


@dataclass(frozen=True)
class Mark:
    """An item that a user was shown."""

    user: str
    item: str
    time: float


@dataclass(frozen=True)
class Live:
    """Events of a user in the store.

    Parameters
    ----------
    events
        Item, weight, time, row number and type of the events, in the order of arrival.
    seen
        Items the user was shown.
    forgotten
        Row number of the latest request to forget the user; 0 without one.
    """

    events: list[LiveEvent]
    seen: list[str]
    forgotten: int


NO_EVENTS = Live([], [], 0)


class Arrival(NamedTuple):
    """A new row of the store: an event, or the request to forget a user."""

    is_forget: bool
    number: int
    user: str
    item: str
    type: str
    weight: float
    time: float


@dataclass(frozen=True)
class Change:
    """Events and users to forget since the last update of a model, and their last row numbers."""

    events: list[Event]
    users: list[str]
    event: int
    forgotten: int


class Store(Database):
    """Events, marks, attributes and lists.

    Parameters
    ----------
    url
        sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME.
    timeout
        Seconds to wait for a statement.
    """

    def __init__(self, url: str, timeout: float = PATIENCE) -> None:
        self._insert = _insert_of(url)
        super().__init__(url, schema, timeout)

    def prepare(self, connection: sa.Connection) -> None:
        """Create or migrate the tables."""
        if not sa.inspect(connection).has_table(meta.name):
            schema.create_all(connection)
            rows = {"schema": str(VERSION), ATTRIBUTES_KEY: "0"}
            values = [{"name": name, "value": value} for name, value in rows.items()]
            connection.execute(meta.insert(), values)
            return
        query = sa.select(meta.c.value).where(meta.c.name == "schema")
        old_version = int(connection.execute(query).scalar_one())
        if old_version > VERSION:
            raise DataError(
                f"the store has version {old_version} and this service supports {VERSION}; "
                "upgrade the service"
            )
        if old_version == VERSION:
            return
        schema.create_all(connection)
        for version in range(old_version, VERSION):
            for column in MIGRATIONS[version]:
                _add_column(connection, column)
        for table in schema.tables.values():
            for index in table.indexes:
                index.create(connection, checkfirst=True)
        update = meta.update().where(meta.c.name == "schema").values(value=str(VERSION))
        connection.execute(update)
        self._number_all(connection, 0)
        logger.info("store migrated from version %d to %d", old_version, VERSION)

    def touch(self, connection: sa.Connection) -> None:
        """Write without changing anything."""
        same = meta.update().where(meta.c.name == "schema").values(value=meta.c.value)
        connection.execute(same)

    def add(
        self, new_events: Sequence[Event], marks: Sequence[Mark] = ()
    ) -> Callable[[sa.Connection], int]:
        """Return the write that adds events and marks; its result is the number of new events."""
        rows = [asdict(event) for event in new_events]
        shown = [asdict(mark) for mark in marks]
        shown.sort(key=lambda row: (row["user"], row["item"]))

        def write(connection: sa.Connection) -> int:
            fresh = 0
            if rows:
                insert = self._insert(events).on_conflict_do_nothing().returning(events.c.seq)
                numbered = rows if self.is_local else _numbered(connection, rows)
                fresh = len(connection.execute(insert, numbered).all())
            if shown:
                connection.execute(self._insert(seen).on_conflict_do_nothing(), shown)
            return fresh

        return write

    def describe(self, item: str, data: Mapping[str, Any]) -> Write:
        """Return the write that replaces the attributes of an item."""
        return self.describe_all({item: data})

    def describe_all(self, data: Mapping[str, Mapping[str, Any]]) -> Write:
        """Return the write that replaces the attributes of several items."""
        rows = [
            {"item": item, "data": json.dumps(dict(values), sort_keys=True)}
            for item, values in data.items()
        ]
        insert = self._insert(attributes)
        new = {name: insert.excluded[name] for name in ("data", "number")}
        upsert = insert.on_conflict_do_update(index_elements=["tenant", "item"], set_=new)

        def write(connection: sa.Connection) -> None:
            number = self._next_change(connection)
            connection.execute(upsert, [{**row, "number": number} for row in rows])

        return write

    def _next_change(self, connection: sa.Connection) -> int:
        """Return the number of a new change of attributes; changes wait for each other here.

        So a reader that has seen a change has seen all changes with lower numbers.
        """
        version = sa.select(meta.c.value).where(meta.c.name == ATTRIBUTES_KEY)
        known = connection.execute(version.with_for_update()).scalar_one_or_none()
        if known is not None and known.isdigit():
            number = int(known) + 1
            connection.execute(
                meta.update().where(meta.c.name == ATTRIBUTES_KEY).values(value=str(number))
            )
            return number
        # an earlier version of the service has changed rows without a number
        highest = connection.execute(sa.select(sa.func.max(attributes.c.number))).scalar()
        number = (highest or 0) + 1
        self._number_all(connection, number)
        return number

    def _number_all(self, connection: sa.Connection, number: int) -> None:
        """Let one change have written all attributes."""
        connection.execute(attributes.update().values(number=number))
        row = {"name": ATTRIBUTES_KEY, "value": str(number)}
        _upsert(connection, self._insert(meta).values(row), ["name"])

    def forget(self, user: str, *, erase: bool = False) -> Write:
        """Return the write that deletes all rows of a user; its result is their number.

        A row in `forgotten` stays, so that models ignore the user until their next update. With
        `erase` it goes too, by `erase_forgotten`, once no model needs it.
        """

        def write(connection: sa.Connection) -> int:
            n_rows = 0
            for table in (events, seen, lists, forgotten):  # in the order of the locks of `since`
                delete = table.delete().where(_is_own(table), table.c.user == user)
                n_deleted = connection.execute(delete).rowcount
                n_rows += 0 if table is forgotten else n_deleted
            row = {"user": user, "time": time.time(), "erase": 1 if erase else None}
            connection.execute(forgotten.insert(), row)
            return n_rows

        return write

    def record(self, row: Mapping[str, Any]) -> Write:
        """Return the write that records a list of an experiment."""

        def write(connection: sa.Connection) -> None:
            connection.execute(self._insert(lists).on_conflict_do_nothing(), dict(row))

        return write

    def expire(self, age: float) -> int:
        """Delete events, marks and lists older than this many seconds; return their number."""
        limit = time.time() - age

        def write(connection: sa.Connection) -> int:
            tables = (events, seen, lists)
            deletes = [t.delete().where(_is_own(t), t.c.time < limit) for t in tables]
            return sum(connection.execute(delete).rowcount for delete in deletes)

        return int(self.do(write))

    def live(self, user: str) -> Live:
        """Return the events of a user, with one query."""
        parameters = {"user": user}
        rows: Sequence[Any]
        if self.is_local:
            rows = self.query_file(_LIVE_SQL, _LIVE_PARAMETERS | parameters)
        else:
            rows = self.query(lambda connection: connection.execute(_LIVE, parameters).all())
        if not rows:
            return NO_EVENTS
        user_events = [(row[1], row[2], row[3], row[4], row[5]) for row in rows if row[0] == "e"]
        shown = [row[1] for row in rows if row[0] == "s"]
        mark = max((row[4] for row in rows if row[0] == "f"), default=0)
        return Live(sorted(user_events, key=lambda event: event[3]), shown, mark)

    def arrivals(
        self,
        event: int,
        forget: int,
        missing_events: Sequence[int] = (),
        missing_forgets: Sequence[int] = (),
        *,
        limit: int,
    ) -> list[Arrival]:
        """Return the events and requests to forget after these row numbers, in their order.

        Parameters
        ----------
        event, forget
            Row numbers.
        missing_events, missing_forgets
            Lower numbers to look for as well.
        limit
            Largest number of events after `event`.
        """
        values: dict[str, Any] = {"event": event, "forget": forget, "limit": limit}
        rows: Sequence[Any]
        if self.is_local:
            rows = self.query_file(_ARRIVALS_SQL, _ARRIVALS_PARAMETERS | values)
        else:
            values |= {"events": [*missing_events], "forgets": [*missing_forgets]}
            rows = self.query(lambda connection: connection.execute(_ARRIVALS, values).all())
        new = [Arrival(row[0] == "f", *row[1:]) for row in rows]
        return sorted(new, key=lambda arrival: (not arrival.is_forget, arrival.number))

    def attribute_version(self) -> str | None:
        """Return a text that changes with every change of an attribute: the number of the last."""
        query = sa.select(meta.c.value).where(meta.c.name == ATTRIBUTES_KEY)
        return self.query(lambda connection: connection.execute(query).scalar_one_or_none())

    def all_attributes(self, since: int | None = None) -> dict[str, dict[str, Any]]:
        """Return the attributes of all items that have any, or that changed after a number."""
        query = sa.select(attributes.c.item, attributes.c.data)
        if since is None:
            query = query.where(_is_own(attributes))
        else:
            number = attributes.c.number
            # joined with "", so that SQLite searches by number and not by its index of tenants
            query = query.where(attributes.c.tenant.concat("") == TENANT)
            query = query.where(sa.or_(number > since, number.is_(None)))
        rows = self.query(lambda connection: connection.execute(query).all())
        return {item: _readable(item, data) for item, data in rows}

    def counts(self) -> dict[str, int]:
        """Return the number of events, marks and lists."""
        tables = (events, seen, lists)
        queries = {
            table.name: sa.select(sa.func.count()).select_from(table).where(_is_own(table))
            for table in tables
        }
        return self.query(lambda c: {name: c.scalar(sql) or 0 for name, sql in queries.items()})

    def folded(self, fingerprint: str) -> tuple[int, int]:
        """Return the row numbers of the last event and forgotten user that a model includes."""
        query = sa.select(folded.c.event, folded.c.forgotten)
        query = query.where(_is_own(folded), folded.c.fingerprint == fingerprint)
        row = self.query(lambda connection: connection.execute(query).one_or_none())
        return (0, 0) if row is None else (int(row[0]), int(row[1]))

    def since(self, fingerprint: str) -> Change:
        """Return what a model with this data fingerprint does not include yet.

        Row numbers are assigned before transactions end, so this waits for writers: otherwise a
        later number could hide an event that is not committed yet.
        """
        event, mark = self.folded(fingerprint)
        columns = [events.c[name] for name in Event.__dataclass_fields__]
        new = sa.select(*columns, events.c.seq).order_by(events.c.seq)
        new = new.where(_is_own(events), events.c.seq > event)
        gone = sa.select(forgotten.c.user, forgotten.c.seq).order_by(forgotten.c.seq)
        gone = gone.where(_is_own(forgotten), forgotten.c.seq > mark)

        def work(connection: sa.Connection) -> Change:
            if not self.is_local:
                connection.exec_driver_sql("LOCK TABLE events, forgotten IN SHARE MODE")
            rows, users = connection.execute(new).all(), connection.execute(gone).all()
            return Change(
                [Event(*row[:-1]) for row in rows],
                [row[0] for row in users],
                max([event, *(row[-1] for row in rows)]),
                max([mark, *(row[-1] for row in users)]),
            )

        change: Change = self.run([work], LONG)[0]
        return change

    def keep_folded(self, fingerprint: str, change: Change) -> None:
        """Record what the model with this fingerprint includes; call it before the model is saved.

        If saving fails, the old model keeps its fingerprint and thereby its record.
        """
        values = {"event": change.event, "forgotten": change.forgotten}
        row = self._insert(folded).values(fingerprint=fingerprint, **values)
        self.do(lambda connection: _upsert(connection, row, ["tenant", "fingerprint"]))

    def experiment(self, name: str) -> tuple[list[Any], list[Any]]:
        """Return the lists of an experiment, and the positive events of the users who got them."""
        shown = sa.select(lists.c.id, lists.c.user, lists.c.model, lists.c.time, lists.c["items"])
        shown = shown.where(_is_own(lists), lists.c.experiment == name)
        users = sa.select(lists.c.user).where(_is_own(lists), lists.c.experiment == name)
        clicks = sa.select(events.c.user, events.c.item, events.c.time, events.c.list_id)
        clicks = clicks.where(_is_own(events), events.c.user.in_(users))
        clicks = clicks.where(events.c.weight > 0)
        return self.query(lambda c: ([*c.execute(shown).all()], [*c.execute(clicks).all()]), LONG)

    def count_lists(self, experiment: str) -> int:
        """Return the number of recorded lists of an experiment."""
        query = sa.select(sa.func.count()).select_from(lists)
        query = query.where(_is_own(lists), lists.c.experiment == experiment)
        return self.query(lambda connection: int(connection.execute(query).scalar_one()), LONG)

    def record_shares(self, name: str, shares: Mapping[str, float]) -> None:
        """Record the shares of an experiment, in addition to earlier ones."""
        key, new = _shares_key(name), dict(shares)

        def write(connection: sa.Connection) -> None:
            known = _known_shares(connection, key)
            if new not in known:
                values = {"name": key, "value": json.dumps([*known, new])}
                _upsert(connection, self._insert(meta).values(values), ["name"])

        self.do(write)

    def shares(self, name: str) -> list[dict[str, float]]:
        """Return all recorded shares of an experiment, by model."""
        return self.query(lambda connection: _known_shares(connection, _shares_key(name)))


def _add_column(connection: sa.Connection, column: sa.Column[Any]) -> None:
    """Add a nullable column to its table, unless the table has it."""
    table = column.table.name
    known = {row["name"] for row in sa.inspect(connection).get_columns(table)}
    if column.name not in known:
        kind = column.type.compile(connection.dialect)
        connection.exec_driver_sql(f'ALTER TABLE "{table}" ADD COLUMN "{column.name}" {kind}')


def _live_query() -> sa.CompoundSelect[Any]:
    user = sa.bindparam("user", type_=sa.Text)
    nothing, zero = sa.literal_column("''", sa.Text), sa.literal_column("0", Number)
    parts = []
    for kind, table in (("e", events), ("s", seen), ("f", forgotten)):
        item, event_type = table.c.get("item", nothing), table.c.get("type", nothing)
        weight = table.c.get("weight", sa.literal_column("0.0", sa.Float))
        number = table.c.get("seq", zero)
        of_kind = sa.literal_column(f"'{kind}'", sa.Text)
        row = sa.select(of_kind, item, weight, table.c.time, number, event_type)
        parts.append(row.where(_is_own(table), table.c.user == user))
    return sa.union_all(*parts)


_LIVE = _live_query()
_COMPILED = _LIVE.compile(dialect=sqlite.dialect(paramstyle="named"))
_LIVE_SQL, _LIVE_PARAMETERS = str(_COMPILED), dict(_COMPILED.params)


def _arrivals_query(*, with_missing: bool) -> sa.CompoundSelect[Any]:
    parts: list[Any] = []
    for kind, table, name in (("e", events, "event"), ("f", forgotten, "forget")):
        columns = [sa.literal(kind).label("kind"), table.c.seq, table.c.user]
        for column in ("item", "type", "weight"):
            default = 0.0 if column == "weight" else ""
            columns.append(table.c.get(column, sa.literal(default).label(column)))
        # joined with "", so that SQLite searches by row number and not by its index of tenants
        rows = sa.select(*columns, table.c.time).where(table.c.tenant.concat("") == TENANT)
        new = rows.where(table.c.seq > sa.bindparam(name, type_=Number)).order_by(table.c.seq)
        if table is events:
            new = new.limit(sa.bindparam("limit", type_=Number))
        parts.append(sa.select(new.subquery()))
        if with_missing:
            missing = sa.bindparam(f"{name}s", type_=Number, expanding=True)
            parts.append(rows.where(table.c.seq.in_(missing)))
    return sa.union_all(*parts)


_ARRIVALS = _arrivals_query(with_missing=True)
_COMPILED_ARRIVALS = _arrivals_query(with_missing=False).compile(
    dialect=sqlite.dialect(paramstyle="named")
)
_ARRIVALS_SQL, _ARRIVALS_PARAMETERS = str(_COMPILED_ARRIVALS), dict(_COMPILED_ARRIVALS.params)


def _readable(item: str, data: str) -> dict[str, Any]:
    """Return stored attributes with invalid Unicode replaced and invalid values left out.

    One bad value must not fail the requests that read all attributes.
    """
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        values = None
    plain = {k: v for k, v in values.items() if _is_plain(v)} if isinstance(values, dict) else {}
    fixed = _as_unicode(plain) if SURROGATE.search(data) else plain
    if fixed != values:
        logger.warning("bad attributes in the store", extra={"fields": {"item": item}})
    return fixed


def _as_unicode(values: dict[str, Any]) -> dict[str, Any]:
    """Replace lone surrogates by question marks."""
    text = json.dumps(values, ensure_ascii=False)
    return dict(json.loads(text.encode(errors="replace")))


def _is_plain(value: Any) -> bool:
    """Whether a value can be an attribute: a scalar, or a list of scalars."""
    parts = value if isinstance(value, list) else [value]
    return not any(isinstance(part, (dict, list)) for part in parts)


def _insert_of(url: str) -> Any:
    """Return the INSERT of the dialect; the other dialect is not imported."""
    if url.startswith("sqlite"):
        return sqlite.insert
    from sqlalchemy.dialects import postgresql

    return postgresql.insert


def _shares_key(name: str) -> str:
    return f"shares:{TENANT}:{name}"


def _known_shares(connection: sa.Connection, key: str) -> list[dict[str, float]]:
    text = connection.execute(sa.select(meta.c.value).where(meta.c.name == key)).scalar()
    return [] if text is None else list(json.loads(text))


def _upsert(connection: sa.Connection, insert: Any, key: list[str]) -> None:
    new = {column.name: column for column in insert.excluded if column.name not in key}
    connection.execute(insert.on_conflict_do_update(index_elements=key, set_=new))


def _numbered(connection: sa.Connection, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Number events by arrival and sort them by id.

    Transactions that insert the same id wait for each other; one order avoids deadlocks.
    """
    sequence = sa.func.pg_get_serial_sequence(events.name, events.c.seq.name)
    query = sa.select(sa.func.nextval(sequence)).select_from(sa.func.generate_series(1, len(rows)))
    numbers = connection.execute(query).scalars()
    numbered = [{**row, "seq": n} for row, n in zip(rows, sorted(numbers), strict=True)]
    return sorted(numbered, key=lambda row: str(row["id"]))
