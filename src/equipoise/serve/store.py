"""The store of live events: SQLite in a file, or PostgreSQL by URL.

Accepted events are on disk before the answer is sent. Every write is idempotent: an event has an
id, a mark and an attribute have a key. Writes that wait at the same time share one transaction
(`Writer`), so that the disk syncs once for all of them.
"""

from __future__ import annotations

import heapq
import json
import logging
import os
import queue
import re
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from equipoise.errors import DataError, EquipoiseError, SettingError

logger = logging.getLogger(__name__)

VERSION = 2
PATIENCE = 10  # seconds that a statement waits for another process
LONG = 600.0  # seconds for reads of a full table, for which no request waits
TRIES = 3
RECENT = 10.0  # seconds that /readyz fails after a failure
CHECKED = 5.0  # seconds for the check of a file, at most
DAMAGE = (11, 26)  # codes of SQLite: the file is malformed, or no database
SHARED = 500  # writes in one transaction, at most
READERS = 16  # threads that wait for a database elsewhere
LOCK = 0x65717569  # advisory lock of PostgreSQL while tables are created or migrated
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # as written in JSON
Result = TypeVar("Result")
Write = Callable[[sa.Connection], Any]
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
)
forgotten = sa.Table(
    "forgotten",
    schema,
    sa.Column("seq", Number, primary_key=True, autoincrement=True),
    _tenant_column(),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("time", sa.Float(53), nullable=False),
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
    sa.Index("lists_time", "time"),
)
# statements that migrate a store from this version to the next; missing tables are created first
MIGRATIONS = {1: ("ALTER TABLE events ADD COLUMN list_id TEXT",)}


class StoreError(EquipoiseError, OSError):
    """The store did not answer; the request may be repeated."""


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


@dataclass(frozen=True)
class Change:
    """Events and users to forget since the last update of a model, and their last row numbers."""

    events: list[Event]
    users: list[str]
    event: int
    forgotten: int


class Store:
    """Events, marks, attributes and lists.

    Parameters
    ----------
    url
        sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME.
    timeout
        Seconds to wait for a statement.
    """

    def __init__(self, url: str, timeout: float = PATIENCE) -> None:
        self.address = _address(url)
        self.is_local = self.address.get_backend_name() == "sqlite"
        self._timeout = timeout
        self._write = self._engine()
        self._read = self._engine(isolation_level="AUTOCOMMIT")
        if self.is_local:
            sa.event.listen(self._write, "begin", _begin_immediate)
        self._connections: dict[threading.Thread, tuple[int, sqlite3.Connection]] = {}
        self._insert = _insert_of(self.is_local)
        self._file: LocalFile | None = None
        self._opening = threading.Lock()
        self._opened = 0  # number of times the file was opened
        self._failures: dict[str, float] = {}  # time of the last failure, removed by a success
        self._damage = ""
        self._closed = False
        self._watchdog = Watchdog()
        self._readers = ThreadPoolExecutor(READERS, "store-reader")
        with self._known_errors():
            self._open()
        self._writer = Writer(self)

    def _open(self) -> None:
        self._prepare()
        if self.is_local:
            self._file = LocalFile(str(self.address.database), self._timeout)
        self._opened += 1

    def _engine(self, **options: Any) -> sa.Engine:
        if self.is_local:
            connect: dict[str, Any] = {"timeout": self._timeout, "check_same_thread": False}
            engine = sa.create_engine(self.address, connect_args=connect, **options)
            sa.event.listen(engine, "connect", _durable)
            return engine
        wait = f"-c statement_timeout={int(1000 * self._timeout)}"
        connect = {"connect_timeout": max(2, int(self._timeout)), "options": wait}
        # these detect a lost peer; the watchdog detects a silent one
        connect |= {"keepalives": 1, "keepalives_idle": 5, "keepalives_interval": 2}
        connect |= {"keepalives_count": 3, "tcp_user_timeout": int(1000 * self._timeout)}
        connect["client_encoding"] = "utf8"  # independent of the encoding of the database
        options |= {"pool_timeout": self._timeout, "pool_size": 4, "max_overflow": 8}
        return sa.create_engine(self.address, connect_args=connect, **options)

    def _prepare(self) -> None:
        """Create or migrate the tables; one process at a time."""
        with self._transaction(self._timeout) as connection:
            if not self.is_local:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
            if not sa.inspect(connection).has_table(meta.name):
                schema.create_all(connection)
                connection.execute(meta.insert(), {"name": "schema", "value": str(VERSION)})
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
                for statement in MIGRATIONS[version]:
                    connection.exec_driver_sql(statement)
            update = meta.update().where(meta.c.name == "schema").values(value=str(VERSION))
            connection.execute(update)
            logger.info("store migrated from version %d to %d", old_version, VERSION)

    @contextmanager
    def _known_errors(self, kind: str = "read") -> Iterator[None]:
        """Turn errors of the database into StoreError; log them and note them for `ping`."""
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error) as error:
            reason = self._reason(error)
            if _is_store_failure(error):
                self._failures[kind] = time.monotonic()
            if _sqlite_code(error) in DAMAGE and not self._damage:
                self._damage = reason
                logger.error(
                    "the event store is damaged: %s; no events are taken. Stop the service, put a "
                    "backup in the place of %s and start again",
                    reason,
                    self.address.database,
                )
            else:
                logger.warning("the event store failed to %s: %s", kind, reason)
            raise StoreError("the event store does not answer; try again") from error
        self._failures.pop(kind, None)

    def _reason(self, error: Exception) -> str:
        """Return the class and message of an error without values, statements or secrets."""
        cause = getattr(error, "orig", None) or error
        state = getattr(cause, "sqlstate", None) or ""
        if state[:2] in ("22", "23"):  # these messages may quote the values of an event
            return f"{type(cause).__name__} (SQLSTATE {state})"
        diagnosis = getattr(getattr(cause, "diag", None), "message_primary", None)
        # in messages of SQLAlchemy, statements and their values follow
        text = str(diagnosis or cause).split("[SQL:")[0].split("DETAIL:")[0]
        if self.address.password:
            text = text.replace(str(self.address.password), "***")
        return f"{type(cause).__name__}: {' '.join(text.split())[:300]}"

    @contextmanager
    def _connection(self, engine: sa.Engine, seconds: float) -> Iterator[sa.Connection]:
        """Open a connection that is cut off if the server stays silent for too long."""
        with engine.connect() as connection:
            if self.is_local:
                yield connection
                return
            driver: Any = connection.connection.driver_connection
            with self._watchdog.watch(driver.fileno(), seconds):
                yield connection

    @contextmanager
    def _transaction(self, seconds: float) -> Iterator[sa.Connection]:
        with self._connection(self._write, seconds) as connection, connection.begin():
            yield connection

    def _query(
        self, work: Callable[[sa.Connection], Result], seconds: float | None = None
    ) -> Result:
        """Read; reconnect once if the connection was lost and there is time left."""
        self._check_file()
        seconds = self._timeout if seconds is None else seconds
        end = time.monotonic() + seconds
        with self._known_errors():
            try:
                with self._connection(self._read, seconds) as connection:
                    return work(connection)
            except DBAPIError as error:
                remaining = end - time.monotonic()
                if not error.connection_invalidated or remaining <= 0 or self._closed:
                    raise
            with self._connection(self._read, remaining) as connection:
                return work(connection)

    def _query_file(self, sql: str, values: list[Any]) -> list[Any]:
        """Read from the file on the connection of this thread; each list needs such a read."""
        self._check_file()
        thread = threading.current_thread()
        opened, connection = self._connections.get(thread, (self._opened, None))
        with self._known_errors():
            if connection is not None and opened != self._opened:  # the file was replaced
                connection.close()
                connection = None
            if connection is None:
                options: dict[str, Any] = {"timeout": self._timeout, "check_same_thread": False}
                opened = self._opened
                connection = sqlite3.connect(str(self.address.database), **options)
                _durable(connection, None)
                for ended in [known for known in list(self._connections) if not known.is_alive()]:
                    if (unused := self._connections.pop(ended, None)) is not None:
                        unused[1].close()
                self._connections[thread] = opened, connection
            return list(connection.execute(sql, values))

    def run(self, writes: Sequence[Write], seconds: float | None = None) -> list[Any]:
        """Carry out writes in one transaction; repeat them if the connection was lost."""
        self._check_file()
        if self._damage:
            raise StoreError("the event store is damaged and takes no writes")
        seconds = self._timeout if seconds is None else seconds
        end = time.monotonic() + seconds
        with self._known_errors("write"):
            results = self._repeat(writes, end)
        self._check_file()  # writes to a file that was removed meanwhile are lost
        return results

    def _repeat(self, writes: Sequence[Write], end: float) -> list[Any]:
        for tries in range(1, TRIES + 1):
            try:
                with self._transaction(max(0.1, end - time.monotonic())) as connection:
                    return [write(connection) for write in writes]
            except DBAPIError as error:
                pause = 0.05 * tries
                if tries == TRIES or not _can_repeat(error) or time.monotonic() + pause > end:
                    raise
                time.sleep(pause)
        raise AssertionError("unreachable")

    def _check_file(self) -> None:
        """Raise if the database file was removed; reopen it if it was replaced.

        Writes to a removed file succeed and are lost. A new empty store would forget which users
        are forgotten, so only a restart creates one.
        """
        if self._file is None or self._file.is_in_place():
            return
        with self._opening:
            path, missing = self._file.path, self._file.missing()
            if missing:
                if self._file.is_unreported(missing):
                    logger.error(
                        "%s was removed while the event store used it: what was accepted lately "
                        "is not on disk, and nothing more is accepted. %s",
                        missing,
                        f"Stop the service, put a backup of {path} in its place, start again"
                        if missing == path
                        else "Stop the service, which writes it into the store, and start again",
                    )
                raise StoreError("the file of the event store was removed; tell its operator")
            if self._file.is_in_place():
                return
            logger.error(
                "another file stands in the place of %s: what was accepted into the old one is "
                "not in it. The service goes on with the new one",
                path,
            )
            self._write.dispose()
            self._read.dispose()
            self._file.close()
            self._damage = ""
            with self._known_errors():
                self._open()

    def check(self) -> None:
        """Raise if the database file is damaged; of a large one only a part is checked."""
        if not self.is_local:
            return
        end = time.monotonic() + CHECKED
        with self._fresh() as connection:
            connection.set_progress_handler(lambda: time.monotonic() > end, 100_000)
            try:
                (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            except sqlite3.OperationalError as error:
                if _sqlite_code(error) != sqlite3.SQLITE_INTERRUPT:
                    raise
                logger.info("the event store is too large to be checked within %g s", CHECKED)
                return
            if verdict != "ok":
                self._damage = " ".join(str(verdict).split())[:300]
                logger.error("the event store is damaged: %s", self._damage)
                raise StoreError(
                    f"the event store {self.address.database} is damaged ({self._damage}); put a "
                    "backup in its place"
                )

    @contextmanager
    def _fresh(self) -> Iterator[sqlite3.Connection]:
        """Open a new connection, which has no pages of the file cached."""
        with self._known_errors("check"):
            connection = sqlite3.connect(str(self.address.database), timeout=self._timeout)
            with closing(connection):
                yield connection

    def submit(self, write: Write) -> Future[Any]:
        """Queue a write for the next transaction."""
        return self._writer.submit(write)

    def later(self, read: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Read in another thread."""
        return self._readers.submit(read, *arguments)

    def do(self, write: Write) -> Any:
        """Carry out one write and wait for it."""
        return self.submit(write).result()

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
        text = json.dumps(dict(data), sort_keys=True)
        version = {"name": ATTRIBUTES_KEY, "value": os.urandom(8).hex()}

        def write(connection: sa.Connection) -> None:
            values = {"item": item, "data": text}
            _upsert(connection, self._insert(attributes).values(values), ["tenant", "item"])
            _upsert(connection, self._insert(meta).values(version), ["name"])

        return write

    def forget(self, user: str) -> Write:
        """Return the write that deletes all rows of a user; its result is their number.

        A row in `forgotten` stays, so that models ignore the user until their next update.
        """

        def write(connection: sa.Connection) -> int:
            n_rows = 0
            for table in (events, seen, lists, forgotten):  # in the order of the locks of `since`
                delete = table.delete().where(_is_own(table), table.c.user == user)
                n_deleted = connection.execute(delete).rowcount
                n_rows += 0 if table is forgotten else n_deleted
            connection.execute(forgotten.insert(), {"user": user, "time": time.time()})
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
        if self.is_local:
            values = {**_COMPILED.params, **parameters}
            rows: Sequence[Any] = self._query_file(
                _LIVE_SQL, [values[name] for name in _LIVE_ORDER]
            )
        else:
            rows = self._query(lambda connection: connection.execute(_LIVE, parameters).all())
        user_events = [(row[1], row[2], row[3], row[4], row[5]) for row in rows if row[0] == "e"]
        shown = [row[1] for row in rows if row[0] == "s"]
        mark = max((row[4] for row in rows if row[0] == "f"), default=0)
        return Live(sorted(user_events, key=lambda event: event[3]), shown, mark)

    def attribute_version(self) -> str | None:
        """Return a text that changes with every change of an attribute."""
        query = sa.select(meta.c.value).where(meta.c.name == ATTRIBUTES_KEY)
        return self._query(lambda connection: connection.execute(query).scalar_one_or_none())

    def all_attributes(self) -> dict[str, dict[str, Any]]:
        """Return the attributes of all items that have any."""
        query = sa.select(attributes.c.item, attributes.c.data).where(_is_own(attributes))
        rows = self._query(lambda connection: connection.execute(query).all())
        return {item: _readable(item, data) for item, data in rows}

    def counts(self) -> dict[str, int]:
        """Return the number of events, marks and lists."""
        tables = (events, seen, lists)
        queries = {
            table.name: sa.select(sa.func.count()).select_from(table).where(_is_own(table))
            for table in tables
        }
        return self._query(lambda c: {name: c.scalar(sql) or 0 for name, sql in queries.items()})

    def folded(self, fingerprint: str) -> tuple[int, int]:
        """Return the row numbers of the last event and forgotten user that a model includes."""
        query = sa.select(folded.c.event, folded.c.forgotten)
        query = query.where(_is_own(folded), folded.c.fingerprint == fingerprint)
        row = self._query(lambda connection: connection.execute(query).one_or_none())
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
        return self._query(lambda c: ([*c.execute(shown).all()], [*c.execute(clicks).all()]), LONG)

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
        return self._query(lambda connection: _known_shares(connection, _shares_key(name)))

    def ping(self) -> None:
        """Raise if the database does not answer, is damaged, or failed a moment ago."""
        if self.is_local:
            self._check_file()
            with self._fresh() as connection:
                for table in schema.tables.values():  # the first and the last row of each
                    key = ", ".join(f'"{column.name}"' for column in table.primary_key)
                    for order in ("ASC", "DESC"):
                        sql = f'SELECT * FROM "{table.name}" ORDER BY {key} {order} LIMIT 1'
                        connection.execute(sql).fetchall()
        else:
            self._query(lambda connection: connection.execute(sa.select(meta.c.name)).first())
        if self._damage:
            raise StoreError("the event store is damaged")
        for kind, failed in list(self._failures.items()):
            if time.monotonic() - failed < RECENT:
                raise StoreError(f"the event store failed to {kind} a moment ago")

    def close(self) -> None:
        """Finish the queued writes and close all connections."""
        self._writer.stop()
        self._closed = True
        self._readers.shutdown(wait=False, cancel_futures=True)
        while self._connections:
            self._connections.popitem()[1][1].close()
        if self._file is not None:
            self._file.close()
        self._write.dispose()
        self._read.dispose()
        self._watchdog.stop()


class LocalFile:
    """Detects that the database file or its log was removed.

    An open connection keeps SQLite from removing the log itself.
    """

    def __init__(self, path: str, timeout: float) -> None:
        self.path = path
        self._connection = sqlite3.connect(path, timeout=timeout, check_same_thread=False)
        _durable(self._connection, None)
        self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        self._parts = {part: _inode(part) for part in (path, f"{path}-wal")}
        self._reported = ""

    def is_in_place(self) -> bool:
        """Whether the database and its log still are the files that were opened."""
        return all(old is None or _inode(part) == old for part, old in self._parts.items())

    def missing(self) -> str:
        """Return the path of the removed file; "" if the database was replaced.

        A new log beside the old database is as bad as a removed one.
        """
        if _inode(self.path) is None:
            return self.path
        log = f"{self.path}-wal"
        same_database = _inode(self.path) == self._parts[self.path]
        return log if same_database and not self.is_in_place() else ""

    def is_unreported(self, missing: str) -> bool:
        """Whether this file was not reported as missing yet."""
        is_new, self._reported = self._reported != missing, missing
        return is_new

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class Watchdog:
    """Shuts down connections whose server stays silent for too long.

    If a server process hangs, its kernel still acknowledges packets, so no TCP timeout applies,
    nor does a timeout that the server enforces.
    """

    def __init__(self) -> None:
        self._ends: list[tuple[float, int]] = []  # heap of times and numbers of watches
        self._sockets: dict[int, int] = {}  # copies of file descriptors, by number of the watch
        self._number = 0
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False

    @contextmanager
    def watch(self, descriptor: int, seconds: float) -> Iterator[None]:
        """Shut a socket down unless the block ends in time."""
        # a copy refers to this socket even if the descriptor is closed and reused
        copy = os.dup(descriptor)
        with self._change:
            self._number += 1
            number = self._number
            self._sockets[number] = copy
            heapq.heappush(self._ends, (time.monotonic() + seconds, number))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="watchdog", daemon=True)
                self._thread.start()
            elif self._ends[0][1] == number:
                self._change.notify()
        try:
            yield
        finally:
            with self._change:
                del self._sockets[number]
            os.close(copy)

    def _work(self) -> None:
        with self._change:
            while not self._stopped:
                now = time.monotonic()
                while self._ends and (self._ends[0][0] <= now or not self._is_first_open()):
                    _, number = heapq.heappop(self._ends)
                    if number in self._sockets:
                        _shut_down(self._sockets[number])
                self._change.wait(self._ends[0][0] - now if self._ends else None)

    def _is_first_open(self) -> bool:
        return self._ends[0][1] in self._sockets

    def stop(self) -> None:
        """End the thread."""
        with self._change:
            self._stopped = True
            for descriptor in self._sockets.values():
                _shut_down(descriptor)
            self._change.notify()
        if self._thread is not None:
            self._thread.join()


def _shut_down(descriptor: int) -> None:
    logger.warning("the event store stays silent; the connection is cut off")
    with socket.socket(fileno=os.dup(descriptor)) as silent, suppress(OSError):
        silent.shutdown(socket.SHUT_RDWR)


class Writer:
    """A thread that carries out the writes of many requests in shared transactions."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: queue.SimpleQueue[tuple[Write, Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._changing = threading.Lock()

    def submit(self, write: Write) -> Future[Any]:
        """Queue a write for the next transaction; raise after `stop`."""
        done: Future[Any] = Future()
        with self._changing:
            if self._stopped:
                raise StoreError("the service stops and takes no more writes; send it again")
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="store", daemon=True)
                self._thread.start()
            self._waiting.put((write, done))
        return done

    def stop(self) -> None:
        """Finish the queued writes."""
        with self._changing:
            if not self._stopped:
                self._waiting.put(None)
            self._stopped = True
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        going = True
        while going:
            batch = [self._waiting.get()]
            while len(batch) < SHARED and not self._waiting.empty():
                batch.append(self._waiting.get())
            going = None not in batch
            self._carry_out([task for task in batch if task is not None])

    def _carry_out(self, batch: list[tuple[Write, Future[Any]]]) -> None:
        # skip cancelled writes; the remaining ones can no longer be cancelled
        batch = [task for task in batch if task[1].set_running_or_notify_cancel()]
        if not batch:
            return
        try:
            results = self._store.run([write for write, _ in batch])
        except Exception as error:
            for _, done in batch:
                done.set_exception(error)
            return
        for (_, done), result in zip(batch, results, strict=True):
            done.set_result(result)


def _inode(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _sqlite_code(error: Exception) -> int:
    """Return the primary result code of SQLite; 0 of another database."""
    code = getattr(getattr(error, "orig", None) or error, "sqlite_errorcode", 0)
    return int(code or 0) & 0xFF


def _is_store_failure(error: Exception) -> bool:
    """Whether the store failed, rather than refused the values of a statement."""
    content = (sa.exc.DataError, sa.exc.IntegrityError, sa.exc.ProgrammingError)
    return not isinstance(error, content)


def _live_query() -> sa.CompoundSelect[Any]:
    user = sa.bindparam("user", type_=sa.Text)
    parts = []
    for kind, table in (("e", events), ("s", seen), ("f", forgotten)):
        item = table.c.get("item", sa.literal(""))
        weight = table.c.get("weight", sa.literal(0.0))
        number = table.c.get("seq", sa.literal(0))
        event_type = table.c.get("type", sa.literal(""))
        row = sa.select(sa.literal(kind), item, weight, table.c.time, number, event_type)
        parts.append(row.where(_is_own(table), table.c.user == user))
    return sa.union_all(*parts)


_LIVE = _live_query()
_COMPILED = _LIVE.compile(dialect=sqlite.dialect())
_LIVE_SQL, _LIVE_ORDER = str(_COMPILED), list(_COMPILED.positiontup or ())


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


def _address(url: str) -> sa.URL:
    try:
        address = sa.make_url(url)
        backend = address.get_backend_name()
    except (ArgumentError, NoSuchModuleError):
        backend = ""
    if backend == "postgresql":
        return address.set(drivername="postgresql+psycopg")
    if backend != "sqlite" or not address.database or address.database == ":memory:":
        raise SettingError("store must be sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME")
    folder = Path(address.database).parent
    if not folder.is_dir():
        raise SettingError(f"the folder of the store, {folder}, does not exist; create it")
    return address


def _insert_of(is_local: bool) -> Any:
    """Return the INSERT of the dialect; the other dialect is not imported."""
    if is_local:
        return sqlite.insert
    from sqlalchemy.dialects import postgresql

    return postgresql.insert


def _durable(connection: Any, _: Any) -> None:
    """Sync the log at each commit and allow concurrent reads; SQLAlchemy starts transactions."""
    connection.isolation_level = None
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_immediate(connection: sa.Connection) -> None:
    # a transaction that starts with a read cannot wait for the write lock
    connection.exec_driver_sql("BEGIN IMMEDIATE")


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


def _can_repeat(error: DBAPIError) -> bool:
    """Whether to repeat a statement: lost connection, deadlock or busy file."""
    code = getattr(error.orig, "sqlstate", "") or ""
    is_lost = error.connection_invalidated or code[:2] in ("08", "40", "57")
    return bool(is_lost or isinstance(error, sa.exc.OperationalError))
