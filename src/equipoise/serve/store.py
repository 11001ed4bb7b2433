"""The store of live events: SQLite in a file, or PostgreSQL by URL.

What was accepted is on disk before the answer is sent. Every write is idempotent: an event has an
id, a mark and an attribute a key. Writes of many requests that wait at the same time share one
transaction (`Writer`), so that the disk is asked to sync once for all of them.
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
LONG = 600.0  # seconds for what reads a whole table, which no request waits for
TRIES = 3
RECENT = 10.0  # seconds for which a failure keeps the service from being ready
CHECKED = 5.0  # seconds that the check of a file takes at most
DAMAGE = (11, 26)  # codes of SQLite: the file is malformed, or no database
SHARED = 500  # writes in one transaction, at most
READERS = 16  # threads that wait for a database elsewhere
LOCK = 0x65717569  # of PostgreSQL, while the schema is made or changed
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # as JSON writes one, with or without its other half
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
# what takes a store of an older version to the next one; tables that are missing are made first
MIGRATIONS = {1: ("ALTER TABLE events ADD COLUMN list_id TEXT",)}


class StoreError(EquipoiseError, OSError):
    """The store did not answer; what was sent may be sent again."""


@dataclass(frozen=True)
class Event:
    """Something a user did with an item."""

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
    """What the store knows of a user.

    Parameters
    ----------
    events
        Item, weight, time, number and kind of each event, in the order of arrival.
    seen
        Items the user was shown.
    forgotten
        Number of the latest request to forget the user; 0 where there is none.
    """

    events: list[LiveEvent]
    seen: list[str]
    forgotten: int


@dataclass(frozen=True)
class Change:
    """What happened since a model was last brought up to date; numbers are those of the rows."""

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
        Seconds until an unanswered statement is an error.
    """

    def __init__(self, url: str, timeout: float = PATIENCE) -> None:
        self.address = _address(url)
        self.is_local = self.address.get_backend_name() == "sqlite"
        self._timeout = timeout
        self._write = self._engine()
        self._read = self._engine(isolation_level="AUTOCOMMIT")
        if self.is_local:
            sa.event.listen(self._write, "begin", _begin_immediate)
        self._kept: dict[threading.Thread, tuple[int, sqlite3.Connection]] = {}
        self._insert = _insert_of(self.is_local)
        self._file: LocalFile | None = None
        self._opening = threading.Lock()
        self._opened = 0  # how often the file was opened
        self._failures: dict[str, float] = {}  # when reads and writes last failed, until they work
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
        # a peer that is gone; one that is silent is given up by the watchdog
        connect |= {"keepalives": 1, "keepalives_idle": 5, "keepalives_interval": 2}
        connect |= {"keepalives_count": 3, "tcp_user_timeout": int(1000 * self._timeout)}
        connect["client_encoding"] = "utf8"  # whatever the database was made with
        options |= {"pool_timeout": self._timeout, "pool_size": 4, "max_overflow": 8}
        return sa.create_engine(self.address, connect_args=connect, **options)

    def _prepare(self) -> None:
        """Make the tables, or bring older ones up to date; one process at a time."""
        with self._transaction(self._timeout) as connection:
            if not self.is_local:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
            if not sa.inspect(connection).has_table(meta.name):
                schema.create_all(connection)
                connection.execute(meta.insert(), {"name": "schema", "value": str(VERSION)})
                return
            wanted = sa.select(meta.c.value).where(meta.c.name == "schema")
            found = int(connection.execute(wanted).scalar_one())
            if found > VERSION:
                raise DataError(
                    f"the store has version {found} and this service knows {VERSION}; upgrade it"
                )
            if found == VERSION:
                return
            schema.create_all(connection)
            for version in range(found, VERSION):
                for statement in MIGRATIONS[version]:
                    connection.exec_driver_sql(statement)
            renewed = meta.update().where(meta.c.name == "schema").values(value=str(VERSION))
            connection.execute(renewed)
            logger.info("store taken from version %d to %d", found, VERSION)

    @contextmanager
    def _known_errors(self, kind: str = "read") -> Iterator[None]:
        """Log why the database failed, and tell callers that it did; note it for `ping`."""
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error) as error:
            reason = self._reason(error)
            if _is_of_the_store(error):
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
        """Return the class and message of an error without values, statements and secrets."""
        cause = getattr(error, "orig", None) or error
        state = getattr(cause, "sqlstate", None) or ""
        if state[:2] in ("22", "23"):  # these messages may quote the values of an event
            return f"{type(cause).__name__} (SQLSTATE {state})"
        diagnosis = getattr(getattr(cause, "diag", None), "message_primary", None)
        # of an error of SQLAlchemy itself, the lines below hold statements and their values
        text = str(diagnosis or cause).split("[SQL:")[0].split("DETAIL:")[0]
        if self.address.password:
            text = text.replace(str(self.address.password), "***")
        return f"{type(cause).__name__}: {' '.join(text.split())[:300]}"

    @contextmanager
    def _connection(self, engine: sa.Engine, seconds: float) -> Iterator[sa.Connection]:
        """Return a connection that is cut off where the server stays silent for too long."""
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

    def _ask(
        self, work: Callable[[sa.Connection], Result], seconds: float | None = None
    ) -> Result:
        """Read; a connection that was lost is renewed once, while there is time left."""
        self._check_file()
        seconds = self._timeout if seconds is None else seconds
        end = time.monotonic() + seconds
        with self._known_errors():
            try:
                with self._connection(self._read, seconds) as connection:
                    return work(connection)
            except DBAPIError as error:
                left = end - time.monotonic()
                if not error.connection_invalidated or left <= 0 or self._closed:
                    raise
            with self._connection(self._read, left) as connection:
                return work(connection)

    def _quick(self, sql: str, values: list[Any]) -> list[Any]:
        """Read from the file on a connection that the thread keeps: every list asks this."""
        self._check_file()
        thread = threading.current_thread()
        opened, connection = self._kept.get(thread, (self._opened, None))
        with self._known_errors():
            if connection is not None and opened != self._opened:  # to another file
                connection.close()
                connection = None
            if connection is None:
                options: dict[str, Any] = {"timeout": self._timeout, "check_same_thread": False}
                opened = self._opened
                connection = sqlite3.connect(str(self.address.database), **options)
                _durable(connection, None)
                for other in [each for each in list(self._kept) if not each.is_alive()]:
                    if (left := self._kept.pop(other, None)) is not None:
                        left[1].close()
                self._kept[thread] = opened, connection
            found: list[Any] = connection.execute(sql, values).fetchall()
            return found

    def run(self, writes: Sequence[Write], seconds: float | None = None) -> list[Any]:
        """Carry out writes in one transaction; repeats them where a connection was lost."""
        self._check_file()
        if self._damage:
            raise StoreError("the event store is damaged and takes no writes")
        seconds = self._timeout if seconds is None else seconds
        end = time.monotonic() + seconds
        with self._known_errors("write"):
            results = self._repeat(writes, end)
        self._check_file()  # what went into a file that was removed meanwhile is not kept
        return results

    def _repeat(self, writes: Sequence[Write], end: float) -> list[Any]:
        for tries in range(1, TRIES + 1):
            try:
                with self._transaction(max(0.1, end - time.monotonic())) as connection:
                    return [write(connection) for write in writes]
            except DBAPIError as error:
                pause = 0.05 * tries
                if tries == TRIES or not _may_pass(error) or time.monotonic() + pause > end:
                    raise
                time.sleep(pause)
        raise AssertionError("unreachable")

    def _check_file(self) -> None:
        """Refuse to go on with a file that no longer has its name; open one in its place.

        A file that was removed lives on for those who have it open, and what is written to it is
        lost. An empty one in its place would forget which users are forgotten, so that is left to
        a restart.
        """
        if self._file is None or self._file.is_in_place():
            return
        with self._opening:
            path, missing = self._file.path, self._file.missing()
            if missing:
                if self._file.is_news(missing):
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
        """Raise where the file of the database is damaged; a large one is looked at in part."""
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
        """Return a connection that remembers no pages of the file."""
        with self._known_errors("check"):
            connection = sqlite3.connect(str(self.address.database), timeout=self._timeout)
            with closing(connection):
                yield connection

    def submit(self, write: Write) -> Future[Any]:
        """Let the writer carry this out, together with what else is waiting."""
        return self._writer.submit(write)

    def later(self, read: Callable[..., Result], *given: Any) -> Future[Result]:
        """Let another thread read; who no longer waits may cancel that."""
        return self._readers.submit(read, *given)

    def do(self, write: Write) -> Any:
        """Carry out one write and wait for it."""
        return self.submit(write).result()

    def add(
        self, given: Sequence[Event], marks: Sequence[Mark] = ()
    ) -> Callable[[sa.Connection], int]:
        """Return the write that adds events and marks; it gives the number of events not known."""
        rows = [asdict(each) for each in given]
        shown = [asdict(each) for each in marks]
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
        """Return the write that takes all traces of a user out; it gives their number.

        A mark stays, by which the user's rows in a model are left aside until it is updated.
        """

        def write(connection: sa.Connection) -> int:
            gone = 0
            for table in (events, seen, lists, forgotten):
                mine = _is_own(table) & (table.c.user == user)
                found = connection.execute(table.delete().where(mine)).rowcount
                gone += 0 if table is forgotten else found
            mark = {"user": user, "time": time.time()}
            connection.execute(forgotten.insert(), mark)
            return gone

        return write

    def record(self, row: Mapping[str, Any]) -> Write:
        """Return the write that keeps a list of an experiment."""

        def write(connection: sa.Connection) -> None:
            connection.execute(self._insert(lists).on_conflict_do_nothing(), dict(row))

        return write

    def expire(self, age: float) -> int:
        """Take out events, marks and lists older than this many seconds; return their number."""
        limit = time.time() - age

        def write(connection: sa.Connection) -> int:
            tables = (events, seen, lists)
            gone = (
                connection.execute(t.delete().where(_is_own(t), t.c.time < limit)) for t in tables
            )
            return sum(each.rowcount for each in gone)

        return int(self.do(write))

    def live(self, user: str) -> Live:
        """Return what is known of a user, in one question to the database."""
        who = {"user": user}
        if self.is_local:
            values = {**_COMPILED.params, **who}
            rows: Sequence[Any] = self._quick(_LIVE_SQL, [values[name] for name in _LIVE_ORDER])
        else:
            rows = self._ask(lambda connection: connection.execute(_LIVE, who).all())
        done = [(row[1], row[2], row[3], row[4], row[5]) for row in rows if row[0] == "e"]
        shown = [row[1] for row in rows if row[0] == "s"]
        gone = max((row[4] for row in rows if row[0] == "f"), default=0)
        return Live(sorted(done, key=lambda event: event[3]), shown, gone)

    def attribute_version(self) -> str | None:
        """Return a text that changes with every change of an attribute."""
        wanted = sa.select(meta.c.value).where(meta.c.name == ATTRIBUTES_KEY)
        return self._ask(lambda connection: connection.execute(wanted).scalar_one_or_none())

    def all_attributes(self) -> dict[str, dict[str, Any]]:
        """Return the attributes of every item that has some."""
        wanted = sa.select(attributes.c.item, attributes.c.data)
        wanted = wanted.where(_is_own(attributes))
        rows = self._ask(lambda connection: connection.execute(wanted).all())
        return {item: _readable(item, data) for item, data in rows}

    def counts(self) -> dict[str, int]:
        """Return the number of events, marks and lists."""
        tables = (events, seen, lists)
        wanted = [
            sa.select(sa.func.count()).select_from(table).where(_is_own(table)) for table in tables
        ]
        found = self._ask(lambda connection: [connection.scalar(each) or 0 for each in wanted])
        return {table.name: number for table, number in zip(tables, found, strict=True)}

    def folded(self, fingerprint: str) -> tuple[int, int]:
        """Return the last event and the last forgotten user that a model has taken in."""
        wanted = sa.select(folded.c.event, folded.c.forgotten)
        wanted = wanted.where(_is_own(folded), folded.c.fingerprint == fingerprint)
        row = self._ask(lambda connection: connection.execute(wanted).one_or_none())
        return (0, 0) if row is None else (int(row[0]), int(row[1]))

    def since(self, fingerprint: str) -> Change:
        """Return what a model with these data has not taken in yet.

        Numbers of rows are dealt before their transactions end, so writers are waited for: a
        later number would otherwise hide an event that is not there yet.
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
            found, users = connection.execute(new).all(), connection.execute(gone).all()
            return Change(
                [Event(*row[:-1]) for row in found],
                [row[0] for row in users],
                max([event, *(row[-1] for row in found)]),
                max([mark, *(row[-1] for row in users)]),
            )

        change: Change = self.run([work], LONG)[0]
        return change

    def keep_folded(self, fingerprint: str, change: Change) -> None:
        """Remember what the model with these data has taken in; call it before the model is saved.

        A model that was not saved in the end keeps its own fingerprint, and so its own mark.
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
        return self._ask(lambda c: ([*c.execute(shown).all()], [*c.execute(clicks).all()]), LONG)

    def record_shares(self, name: str, shares: Mapping[str, float]) -> None:
        """Remember the shares of an experiment, beside those that it had before."""
        key, new = _shares_key(name), dict(shares)

        def write(connection: sa.Connection) -> None:
            known = _known_shares(connection, key)
            if new not in known:
                values = {"name": key, "value": json.dumps([*known, new])}
                _upsert(connection, self._insert(meta).values(values), ["name"])

        self.do(write)

    def shares(self, name: str) -> list[dict[str, float]]:
        """Return all shares that an experiment has had, by model; none where it is too old."""
        return self._ask(lambda connection: _known_shares(connection, _shares_key(name)))

    def ping(self) -> None:
        """Raise where the database does not answer, is damaged, or failed a moment ago."""
        if self.is_local:
            self._check_file()
            with self._fresh() as connection:
                for table in schema.tables.values():  # the first and the last row of each
                    key = ", ".join(f'"{column.name}"' for column in table.primary_key)
                    for order in ("ASC", "DESC"):
                        sql = f'SELECT * FROM "{table.name}" ORDER BY {key} {order} LIMIT 1'
                        connection.execute(sql).fetchall()
        else:
            self._ask(lambda connection: connection.execute(sa.select(meta.c.name)).first())
        if self._damage:
            raise StoreError("the event store is damaged")
        for kind, failed in list(self._failures.items()):
            if time.monotonic() - failed < RECENT:
                raise StoreError(f"the event store failed to {kind} a moment ago")

    def close(self) -> None:
        """Finish what is waiting and let go of the database."""
        self._writer.stop()
        self._closed = True
        self._readers.shutdown(wait=False, cancel_futures=True)
        while self._kept:
            self._kept.popitem()[1][1].close()
        if self._file is not None:
            self._file.close()
        self._write.dispose()
        self._read.dispose()
        self._watchdog.stop()


class LocalFile:
    """The file of a database and its log, by which it is seen whether they were removed.

    A connection is kept open, so that SQLite itself does not remove the log meanwhile.
    """

    def __init__(self, path: str, timeout: float) -> None:
        self.path = path
        self._connection = sqlite3.connect(path, timeout=timeout, check_same_thread=False)
        _durable(self._connection, None)
        self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        self._parts = {part: _inode(part) for part in (path, f"{path}-wal")}
        self._told = ""

    def is_in_place(self) -> bool:
        """Whether the database and its log still are the files that were opened."""
        return all(was is None or _inode(part) == was for part, was in self._parts.items())

    def missing(self) -> str:
        """Return the file that was removed; nothing where another one is in its place.

        A log without its database belongs to nothing; a new log beside the old database is as
        bad as none.
        """
        if _inode(self.path) is None:
            return self.path
        log = f"{self.path}-wal"
        same_database = _inode(self.path) == self._parts[self.path]
        return log if same_database and not self.is_in_place() else ""

    def is_news(self, missing: str) -> bool:
        """Whether this was not told yet."""
        news, self._told = self._told != missing, missing
        return news

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()


class Watchdog:
    """Cuts connections off whose server stays silent for too long.

    The kernel of a machine whose server hangs goes on to acknowledge what is sent, so no timeout
    of TCP ends the wait; nor does one that the server itself is to keep.
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
        """Shut a socket down unless this ends in time."""
        # of a copy it is certain that it is this socket, whatever is closed meanwhile
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
        """Add a write to the next transaction; once it is stopped, refuse it."""
        done: Future[Any] = Future()
        with self._changing:  # nothing is added behind the end
            if self._stopped:
                raise StoreError("the service stops and takes no more writes; send it again")
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="store", daemon=True)
                self._thread.start()
            self._waiting.put((write, done))
        return done

    def stop(self) -> None:
        """Finish what is waiting."""
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
            self._carry_out([each for each in batch if each is not None])

    def _carry_out(self, batch: list[tuple[Write, Future[Any]]]) -> None:
        # who has given up waiting is not written for, and can no longer give up from here on
        batch = [each for each in batch if each[1].set_running_or_notify_cancel()]
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


def _is_of_the_store(error: Exception) -> bool:
    """Whether an error lies with the store, not with what was sent to it."""
    content = (sa.exc.DataError, sa.exc.IntegrityError, sa.exc.ProgrammingError)
    return not isinstance(error, content)


def _live_query() -> sa.CompoundSelect[Any]:
    user = sa.bindparam("user", type_=sa.Text)
    parts = []
    for kind, table in (("e", events), ("s", seen), ("f", forgotten)):
        item = table.c.get("item", sa.literal(""))
        weight = table.c.get("weight", sa.literal(0.0))
        number = table.c.get("seq", sa.literal(0))
        what = table.c.get("type", sa.literal(""))
        row = sa.select(sa.literal(kind), item, weight, table.c.time, number, what)
        parts.append(row.where(_is_own(table), table.c.user == user))
    return sa.union_all(*parts)


_LIVE = _live_query()
_COMPILED = _LIVE.compile(dialect=sqlite.dialect())
_LIVE_SQL, _LIVE_ORDER = str(_COMPILED), list(_COMPILED.positiontup or ())


def _readable(item: str, data: str) -> dict[str, Any]:
    """Return stored attributes: text that is no Unicode is replaced, what is no value left out.

    One bad value, whoever wrote it, must not fail the requests that read all of them.
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
    """Return attributes with question marks for surrogates that have no other half."""
    text = json.dumps(values, ensure_ascii=False)
    return dict(json.loads(text.encode(errors="replace")))


def _is_plain(value: Any) -> bool:
    """Whether a value can be an attribute: one that is no object, or a list of such."""
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
        raise SettingError(f"the folder of the store, {folder}, is not there; make it")
    return address


def _insert_of(is_local: bool) -> Any:
    """Return the INSERT of the database; a dialect that is not needed is not loaded."""
    if is_local:
        return sqlite.insert
    from sqlalchemy.dialects import postgresql

    return postgresql.insert


def _durable(connection: Any, _: Any) -> None:
    """Sync the log at each commit, and let others read meanwhile; SQLAlchemy begins by itself."""
    connection.isolation_level = None
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_immediate(connection: sa.Connection) -> None:
    # A transaction that begins by reading cannot wait for its turn to write.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _shares_key(name: str) -> str:
    return f"shares:{TENANT}:{name}"


def _known_shares(connection: sa.Connection, key: str) -> list[dict[str, float]]:
    text = connection.execute(sa.select(meta.c.value).where(meta.c.name == key)).scalar()
    return [] if text is None else list(json.loads(text))


def _upsert(connection: sa.Connection, insert: Any, key: list[str]) -> None:
    new = {each.name: each for each in insert.excluded if each.name not in key}
    connection.execute(insert.on_conflict_do_update(index_elements=key, set_=new))


def _numbered(connection: sa.Connection, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events with the numbers of their arrival, in the order of their ids.

    PostgreSQL lets one who adds an id wait for another who does: one order everywhere, so that
    none waits in a circle.
    """
    sequence = sa.func.pg_get_serial_sequence(events.name, events.c.seq.name)
    dealt = sa.select(sa.func.nextval(sequence)).select_from(sa.func.generate_series(1, len(rows)))
    numbers = connection.execute(dealt).scalars()
    numbered = [{**row, "seq": n} for row, n in zip(rows, sorted(numbers), strict=True)]
    return sorted(numbered, key=lambda row: str(row["id"]))


def _may_pass(error: DBAPIError) -> bool:
    """Whether the same statement may succeed at once: connection lost, deadlock, busy file."""
    code = getattr(error.orig, "sqlstate", "") or ""
    lost = error.connection_invalidated or code[:2] in ("08", "40", "57")
    return bool(lost or isinstance(error, sa.exc.OperationalError))
