"""The store of live events: SQLite in a file, or PostgreSQL by URL.

What was accepted is on disk before the answer is sent. Every write is idempotent: an event has an
id, a mark and an attribute a key. Writes of many requests that wait at the same time share one
transaction (`Writer`), so that the disk is asked to sync once for all of them.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
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
TRIES = 3
SHARED = 500  # writes in one transaction, at most
LOCK = 0x65717569  # of PostgreSQL, while the schema is made or changed
Result = TypeVar("Result")
Write = Callable[[sa.Connection], Any]
LiveEvent = tuple[str, float, float, int, str]

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
    sa.Column("tenant", sa.Text, nullable=False),
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
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("user", sa.Text, primary_key=True),
    sa.Column("item", sa.Text, primary_key=True),
    sa.Column("time", sa.Float(53), nullable=False),
)
attributes = sa.Table(
    "attributes",
    schema,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("item", sa.Text, primary_key=True),
    sa.Column("data", sa.Text, nullable=False),
)
forgotten = sa.Table(
    "forgotten",
    schema,
    sa.Column("seq", Number, primary_key=True, autoincrement=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("time", sa.Float(53), nullable=False),
    sa.Index("forgotten_user", "tenant", "user"),
    sqlite_autoincrement=True,
)
folded = sa.Table(
    "folded",
    schema,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("fingerprint", sa.Text, primary_key=True),
    sa.Column("event", Number, nullable=False),
    sa.Column("forgotten", Number, nullable=False),
)
lists = sa.Table(
    "lists",
    schema,
    sa.Column("tenant", sa.Text, primary_key=True),
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
    """Events, marks, attributes and lists of every tenant.

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
        self._kept: dict[threading.Thread, sqlite3.Connection] = {}
        self._insert = _insert_of(self.is_local)
        with self._known_errors():
            self._prepare()
        self._writer = Writer(self)

    def _engine(self, **options: Any) -> sa.Engine:
        if self.is_local:
            connect: dict[str, Any] = {"timeout": self._timeout, "check_same_thread": False}
            engine = sa.create_engine(self.address, connect_args=connect, **options)
            sa.event.listen(engine, "connect", _durable)
            return engine
        wait = f"-c statement_timeout={int(1000 * self._timeout)}"
        connect = {"connect_timeout": max(2, int(self._timeout)), "options": wait}
        connect["client_encoding"] = "utf8"  # whatever the database was made with
        options |= {"pool_timeout": self._timeout, "pool_size": 4, "max_overflow": 8}
        return sa.create_engine(self.address, connect_args=connect, **options)

    def _prepare(self) -> None:
        """Make the tables, or bring older ones up to date; one process at a time."""
        with self._write.begin() as connection:
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
    def _known_errors(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            # the text of a driver may hold addresses and values, which no client or log may show
            logger.warning("store: %s", type(error).__name__)
            raise StoreError("the event store does not answer; try again") from error

    def _ask(self, work: Callable[[sa.Connection], Result]) -> Result:
        """Read; a connection that was lost is renewed once."""
        with self._known_errors():
            try:
                with self._read.connect() as connection:
                    return work(connection)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
            with self._read.connect() as connection:
                return work(connection)

    def _quick(self, sql: str, values: list[Any]) -> list[Any]:
        """Read from the file on a connection that the thread keeps: every list asks this."""
        thread = threading.current_thread()
        connection = self._kept.get(thread)
        try:
            if connection is None:
                options: dict[str, Any] = {"timeout": self._timeout, "check_same_thread": False}
                connection = sqlite3.connect(str(self.address.database), **options)
                _durable(connection, None)
                for other in [each for each in list(self._kept) if not each.is_alive()]:
                    if (left := self._kept.pop(other, None)) is not None:
                        left.close()
                self._kept[thread] = connection
            found: list[Any] = connection.execute(sql, values).fetchall()
            return found
        except sqlite3.Error as error:
            logger.warning("store: %s", type(error).__name__)
            raise StoreError("the event store does not answer; try again") from error

    def run(self, writes: Sequence[Write]) -> list[Any]:
        """Carry out writes in one transaction; repeats them where a connection was lost."""
        for tries in range(1, TRIES + 1):
            try:
                with self._write.begin() as connection:
                    return [write(connection) for write in writes]
            except DBAPIError as error:
                if tries == TRIES or not _may_pass(error):
                    raise
                time.sleep(0.05 * tries)
        raise AssertionError("unreachable")

    def submit(self, write: Write) -> Future[Any]:
        """Let the writer carry this out, together with what else is waiting."""
        return self._writer.submit(write)

    def do(self, write: Write) -> Any:
        """Carry out one write and wait for it."""
        return self.submit(write).result()

    def add(
        self, tenant: str, given: Sequence[Event], marks: Sequence[Mark] = ()
    ) -> Callable[[sa.Connection], int]:
        """Return the write that adds events and marks; it gives the number of events not known."""
        rows = [{"tenant": tenant, **asdict(each)} for each in given]
        shown = [{"tenant": tenant, **asdict(each)} for each in marks]
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

    def describe(self, tenant: str, item: str, data: Mapping[str, Any]) -> Write:
        """Return the write that replaces the attributes of an item."""
        text = json.dumps(dict(data), sort_keys=True)
        version = {"name": f"attributes:{tenant}", "value": os.urandom(8).hex()}

        def write(connection: sa.Connection) -> None:
            values = {"tenant": tenant, "item": item, "data": text}
            _upsert(connection, self._insert(attributes).values(values), ["tenant", "item"])
            _upsert(connection, self._insert(meta).values(version), ["name"])

        return write

    def forget(self, tenant: str, user: str) -> Write:
        """Return the write that takes all traces of a user out; it gives their number.

        A mark stays, by which the user's rows in a model are left aside until it is updated.
        """

        def write(connection: sa.Connection) -> int:
            gone = 0
            for table in (events, seen, lists, forgotten):
                mine = (table.c.tenant == tenant) & (table.c.user == user)
                found = connection.execute(table.delete().where(mine)).rowcount
                gone += 0 if table is forgotten else found
            mark = {"tenant": tenant, "user": user, "time": time.time()}
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
            gone = (connection.execute(t.delete().where(t.c.time < limit)) for t in tables)
            return sum(each.rowcount for each in gone)

        return int(self.do(write))

    def live(self, tenant: str, user: str) -> Live:
        """Return what is known of a user, in one question to the database."""
        who = {"tenant": tenant, "user": user}
        if self.is_local:
            values = {**_COMPILED.params, **who}
            rows: Sequence[Any] = self._quick(_LIVE_SQL, [values[name] for name in _LIVE_ORDER])
        else:
            rows = self._ask(lambda connection: connection.execute(_LIVE, who).all())
        done = [(row[1], row[2], row[3], row[4], row[5]) for row in rows if row[0] == "e"]
        shown = [row[1] for row in rows if row[0] == "s"]
        gone = max((row[4] for row in rows if row[0] == "f"), default=0)
        return Live(sorted(done, key=lambda event: event[3]), shown, gone)

    def attribute_version(self, tenant: str) -> str | None:
        """Return a text that changes with every change of an attribute."""
        wanted = sa.select(meta.c.value).where(meta.c.name == f"attributes:{tenant}")
        return self._ask(lambda connection: connection.execute(wanted).scalar_one_or_none())

    def all_attributes(self, tenant: str) -> dict[str, dict[str, Any]]:
        """Return the attributes of every item that has some."""
        wanted = sa.select(attributes.c.item, attributes.c.data)
        wanted = wanted.where(attributes.c.tenant == tenant)
        rows = self._ask(lambda connection: connection.execute(wanted).all())
        return {item: json.loads(data) for item, data in rows}

    def counts(self, tenant: str) -> dict[str, int]:
        """Return the number of events, marks and lists."""
        tables = (events, seen, lists)
        wanted = [
            sa.select(sa.func.count()).select_from(table).where(table.c.tenant == tenant)
            for table in tables
        ]
        found = self._ask(lambda connection: [connection.scalar(each) or 0 for each in wanted])
        return {table.name: number for table, number in zip(tables, found, strict=True)}

    def folded(self, tenant: str, fingerprint: str) -> tuple[int, int]:
        """Return the last event and the last forgotten user that a model has taken in."""
        wanted = sa.select(folded.c.event, folded.c.forgotten)
        wanted = wanted.where(folded.c.tenant == tenant, folded.c.fingerprint == fingerprint)
        row = self._ask(lambda connection: connection.execute(wanted).one_or_none())
        return (0, 0) if row is None else (int(row[0]), int(row[1]))

    def since(self, tenant: str, fingerprint: str) -> Change:
        """Return what a model with these data has not taken in yet.

        Numbers of rows are dealt before their transactions end, so writers are waited for: a
        later number would otherwise hide an event that is not there yet.
        """
        event, mark = self.folded(tenant, fingerprint)
        columns = [events.c[name] for name in Event.__dataclass_fields__]
        new = sa.select(*columns, events.c.seq).order_by(events.c.seq)
        new = new.where(events.c.tenant == tenant, events.c.seq > event)
        gone = sa.select(forgotten.c.user, forgotten.c.seq).order_by(forgotten.c.seq)
        gone = gone.where(forgotten.c.tenant == tenant, forgotten.c.seq > mark)

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

        with self._known_errors():
            change: Change = self.run([work])[0]
        return change

    def keep_folded(self, tenant: str, fingerprint: str, change: Change) -> None:
        """Remember what the model with these data has taken in; call it before the model is saved.

        A model that was not saved in the end keeps its own fingerprint, and so its own mark.
        """
        values = {"event": change.event, "forgotten": change.forgotten}
        row = self._insert(folded).values(tenant=tenant, fingerprint=fingerprint, **values)
        self.do(lambda connection: _upsert(connection, row, ["tenant", "fingerprint"]))

    def experiment(self, tenant: str, name: str) -> tuple[list[Any], list[Any]]:
        """Return the lists of an experiment, and the positive events of the users who got them."""
        shown = sa.select(lists.c.id, lists.c.user, lists.c.model, lists.c.time, lists.c["items"])
        shown = shown.where(lists.c.tenant == tenant, lists.c.experiment == name)
        users = sa.select(lists.c.user).where(lists.c.tenant == tenant, lists.c.experiment == name)
        clicks = sa.select(events.c.user, events.c.item, events.c.time, events.c.list_id)
        clicks = clicks.where(events.c.tenant == tenant, events.c.user.in_(users))
        clicks = clicks.where(events.c.weight > 0)
        return self._ask(lambda c: ([*c.execute(shown).all()], [*c.execute(clicks).all()]))

    def record_shares(self, tenant: str, name: str, shares: Mapping[str, float]) -> None:
        """Remember the shares of an experiment, beside those that it had before."""
        key, new = _shares_key(tenant, name), dict(shares)

        def write(connection: sa.Connection) -> None:
            known = _known_shares(connection, key)
            if new not in known:
                values = {"name": key, "value": json.dumps([*known, new])}
                _upsert(connection, self._insert(meta).values(values), ["name"])

        self.do(write)

    def shares(self, tenant: str, name: str) -> list[dict[str, float]]:
        """Return all shares that an experiment has had, by model; none where it is too old."""
        return self._ask(lambda connection: _known_shares(connection, _shares_key(tenant, name)))

    def ping(self) -> None:
        """Raise where the database does not answer."""
        self._ask(lambda connection: connection.execute(sa.select(1)).scalar_one())

    def close(self) -> None:
        """Finish what is waiting and let go of the database."""
        self._writer.stop()
        while self._kept:
            self._kept.popitem()[1].close()
        self._write.dispose()
        self._read.dispose()


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
            with self._store._known_errors():
                results = self._store.run([write for write, _ in batch])
        except Exception as error:
            for _, done in batch:
                done.set_exception(error)
            return
        for (_, done), result in zip(batch, results, strict=True):
            done.set_result(result)


def _live_query() -> sa.CompoundSelect[Any]:
    tenant, user = sa.bindparam("tenant", type_=sa.Text), sa.bindparam("user", type_=sa.Text)
    parts = []
    for kind, table in (("e", events), ("s", seen), ("f", forgotten)):
        item = table.c.get("item", sa.literal(""))
        weight = table.c.get("weight", sa.literal(0.0))
        number = table.c.get("seq", sa.literal(0))
        what = table.c.get("type", sa.literal(""))
        row = sa.select(sa.literal(kind), item, weight, table.c.time, number, what)
        parts.append(row.where(table.c.tenant == tenant, table.c.user == user))
    return sa.union_all(*parts)


_LIVE = _live_query()
_COMPILED = _LIVE.compile(dialect=sqlite.dialect())
_LIVE_SQL, _LIVE_ORDER = str(_COMPILED), list(_COMPILED.positiontup or ())


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


def _shares_key(tenant: str, name: str) -> str:
    return f"shares:{tenant}:{name}"


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
