"""A database that many requests share: SQLite in a file, or PostgreSQL by URL.

Writes that wait at the same time share one transaction (`Writer`), so that the disk syncs once for
all of them. Reads and writes end in time, also if the server stays silent, and are repeated where
the connection was lost. A file that was removed, replaced or damaged takes no writes.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from equipoise.errors import EquipoiseError, SettingError

logger = logging.getLogger(__name__)

PATIENCE = 10  # seconds that a statement waits for another process
TRIES = 3
RECENT = 10.0  # seconds that /readyz fails after a failure
CHECKED = 5.0  # seconds for the check of a file, at most
READ_ONLY = "25006"  # code of PostgreSQL: a standby, or a server that was demoted to one
DAMAGE = (11, 26)  # codes of SQLite: the file is malformed, or no database
UNCHECKED = 0.01  # seconds in which reads of the file are not preceded by another look at it
SHARED = 500  # writes in one transaction, at most
READERS = 16  # threads that wait for a database elsewhere
LOCK = 0x65717569  # advisory lock of PostgreSQL while tables are created or migrated
PULSE = 0.2  # seconds between looks at the connections that wait for a server
PREPARE_SECONDS = 30.0  # for creating or migrating the tables, when the service starts
Result = TypeVar("Result")
Write = Callable[[sa.Connection], Any]


class StoreError(EquipoiseError, OSError):
    """The store did not answer; the request may be repeated."""


class Database:
    """Reads, and writes in shared transactions.

    Parameters
    ----------
    url
        sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME.
    schema
        Its tables.
    timeout
        Seconds to wait for a statement.
    """

    def __init__(self, url: str, schema: sa.MetaData, timeout: float) -> None:
        self._tables = list(schema.tables.values())
        self.address = _address(url)
        self.is_local = self.address.get_backend_name() == "sqlite"
        self._timeout = timeout
        self._write = self._engine()
        self._read = self._engine(isolation_level="AUTOCOMMIT")
        if self.is_local:
            sa.event.listen(self._write, "begin", _begin_immediate)
        self._file: LocalFile | None = None
        self._opening = threading.Lock()
        self._checked = -math.inf  # when `query_file` found the file in its place
        self._idle: list[sqlite3.Connection] = []  # of `query_file`
        self._failures: dict[str, float] = {}  # time of the last failure, removed by a success
        self._damage = ""
        self._closed = False
        self._watchdog = Watchdog()
        self._readers = ThreadPoolExecutor(READERS, "store-reader")
        with self._known_errors():
            self._open()
        self._writer = Writer(self)

    def prepare(self, connection: sa.Connection) -> None:
        """Create or migrate the tables; one process at a time."""
        raise NotImplementedError

    def touch(self, connection: sa.Connection) -> None:
        """Write without changing anything, to see whether the database takes writes."""
        raise NotImplementedError

    def _open(self) -> None:
        # not a request: tables and indexes of a large store may take longer than one may wait
        with self._transaction(max(self._timeout, PREPARE_SECONDS)) as connection:
            if not self.is_local:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
            self.prepare(connection)
        if self.is_local:
            self._file = LocalFile(str(self.address.database), self._timeout)

    def _engine(self, **options: Any) -> sa.Engine:
        if self.is_local:
            connect: dict[str, Any] = {"timeout": self._timeout, "check_same_thread": False}
            engine = sa.create_engine(self.address, connect_args=connect, **options)
            sa.event.listen(engine, "connect", _durable)
            return engine
        milliseconds = int(1000 * self._timeout)
        # the second one ends the transaction of a client that hangs, with the locks it holds
        wait = f"-c statement_timeout={milliseconds} "
        wait += f"-c idle_in_transaction_session_timeout={2 * milliseconds}"
        connect = {"connect_timeout": max(2, int(self._timeout)), "options": wait}
        # these detect a lost peer; the watchdog detects a silent one
        connect |= {"keepalives": 1, "keepalives_idle": 5, "keepalives_interval": 2}
        connect |= {"keepalives_count": 3, "tcp_user_timeout": milliseconds}
        connect["client_encoding"] = "utf8"  # independent of the encoding of the database
        options |= {"pool_timeout": self._timeout, "pool_size": 4, "max_overflow": 8}
        return sa.create_engine(self.address, connect_args=connect, **options)

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
        if self._failures.pop(kind, None) is not None:
            logger.info("the event store can %s again", kind)

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
            self._allow(connection, seconds, "LOCAL")
            yield connection

    def _allow(self, connection: sa.Connection, seconds: float, scope: str) -> bool:
        """Let statements take longer than the timeout, if so many seconds are given."""
        is_long = not self.is_local and seconds > self._timeout
        if is_long:
            connection.exec_driver_sql(f"SET {scope} statement_timeout = {int(1000 * seconds)}")
        return is_long

    def _repeat(self, attempt: Callable[[float], Result], seconds: float | None) -> Result:
        """Return the result of an attempt; repeat it if the connection was lost.

        The attempt is called with the seconds that are left.
        """
        end = time.monotonic() + (self._timeout if seconds is None else seconds)
        for tries in range(1, TRIES + 1):
            try:
                return attempt(max(0.1, end - time.monotonic()))
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) == READ_ONLY:
                    self._write.dispose()  # after a failover, new connections reach the new server
                pause = 0.05 * tries
                is_last = tries == TRIES or time.monotonic() + pause > end
                if is_last or self._closed or not _can_repeat(error):
                    raise
                time.sleep(pause)
        raise AssertionError("unreachable")

    def query(
        self, work: Callable[[sa.Connection], Result], seconds: float | None = None
    ) -> Result:
        """Read; repeat it if the connection was lost."""

        def attempt(remaining: float) -> Result:
            with self._connection(self._read, remaining) as connection:
                is_long = self._allow(connection, remaining, "SESSION")
                result = work(connection)
                if is_long:
                    connection.exec_driver_sql("RESET statement_timeout")
                return result

        self._check_file()
        with self._known_errors():
            return self._repeat(attempt, seconds)

    def query_file(self, sql: str, values: Mapping[str, Any] | Sequence[Any]) -> list[Any]:
        """Read from the file without the layers of SQLAlchemy; each list needs such a read."""
        now = time.monotonic()
        if not now - self._checked < UNCHECKED:
            self._check_file()
            self._checked = now
        try:
            rows = self._query_idle(sql, values)
        except sqlite3.Error:
            with self._known_errors():
                raise
        if self._failures:
            with self._known_errors():  # the file can be read again
                pass
        return rows

    def _query_idle(self, sql: str, values: Mapping[str, Any] | Sequence[Any]) -> list[Any]:
        idle = self._idle  # another list once the file was replaced
        try:
            connection = idle.pop()
        except IndexError:
            connection = sqlite3.connect(
                str(self.address.database), self._timeout, check_same_thread=False
            )
            _durable(connection, None)
        try:
            rows = connection.execute(sql, values).fetchall()
        except BaseException:
            connection.close()
            raise
        if idle is self._idle:
            idle.append(connection)
        else:
            connection.close()
        return rows

    def _close_idle(self) -> None:
        """Close the connections of `query_file`."""
        idle, self._idle = self._idle, []
        while idle:
            idle.pop().close()

    def run(self, writes: Sequence[Write], seconds: float | None = None) -> list[Any]:
        """Carry out writes in one transaction; repeat them if the connection was lost."""
        self._check_file()
        if self._damage:
            raise StoreError("the event store is damaged and takes no writes")

        def attempt(remaining: float) -> list[Any]:
            with self._transaction(remaining) as connection:
                return [write(connection) for write in writes]

        with self._known_errors("write"):
            results = self._repeat(attempt, seconds)
        self._check_file()  # writes to a file that was removed meanwhile are lost
        return results

    def _check_file(self) -> None:
        """Raise if the database file was removed; reopen it if it was replaced.

        Writes to a removed file succeed and are lost. A new empty store would forget which users
        are forgotten, so only a restart creates one.
        """
        if self._file is None or self._file.is_in_place():
            return
        self._checked = -math.inf
        with self._opening:
            path, missing = self._file.path, self._file.missing()
            if missing:
                if self._file.reported != missing:
                    self._file.reported = missing
                    logger.error(
                        "%s was removed while the event store used it: recently accepted events "
                        "are not on disk, and no more are accepted. %s",
                        missing,
                        f"Stop the service, put a backup of {path} in its place, start again"
                        if missing == path
                        else "Stop the service, which writes it into the store, and start again",
                    )
                raise StoreError("the file of the event store was removed; tell its operator")
            if self._file.is_in_place():
                return
            logger.error(
                "%s was replaced by another file: events accepted into the old one are not in "
                "it. The service continues with the new one",
                path,
            )
            self._write.dispose()
            self._read.dispose()
            self._close_idle()
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

    def ping(self) -> None:
        """Raise if the database does not answer, is damaged, or failed a moment ago."""
        if self.is_local:
            self._check_file()
            with self._fresh() as connection:
                for table in self._tables:  # the first and the last row of each
                    key = ", ".join(f'"{column.name}"' for column in table.primary_key)
                    for order in ("ASC", "DESC"):
                        sql = f'SELECT * FROM "{table.name}" ORDER BY {key} {order} LIMIT 1'
                        connection.execute(sql).fetchall()
        else:
            self.query(lambda connection: connection.execute(sa.select(self._tables[0])).first())
        if self._damage:
            raise StoreError("the event store is damaged")
        for kind, failed in list(self._failures.items()):
            if time.monotonic() - failed < RECENT:
                raise StoreError(f"the event store failed to {kind} a moment ago")
        if "write" in self._failures:  # nobody may have written since
            self.run([self.touch])

    def close(self) -> None:
        """Finish the queued writes and close all connections."""
        self._writer.stop()
        self._closed = True
        self._readers.shutdown(wait=False, cancel_futures=True)
        if self._file is not None:
            self._file.close()
        self._close_idle()
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
        self.reported = ""  # path of the removed file that the log has

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

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class Watchdog:
    """Shuts down connections whose server stays silent for too long.

    If a server process hangs, its kernel still acknowledges packets, so no TCP timeout applies,
    nor does a timeout that the server enforces.
    """

    def __init__(self) -> None:
        self._sockets: dict[int, float] = {}  # times of the end, by copies of file descriptors
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False

    @contextmanager
    def watch(self, descriptor: int, seconds: float) -> Iterator[None]:
        """Shut a socket down unless the block ends in time."""
        # a copy refers to this socket even if the descriptor is closed and reused
        copy = os.dup(descriptor)
        with self._change:
            self._sockets[copy] = time.monotonic() + seconds
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="watchdog", daemon=True)
                self._thread.start()
            elif len(self._sockets) == 1:
                self._change.notify()
        try:
            yield
        finally:
            with self._change:
                del self._sockets[copy]
            os.close(copy)

    def _work(self) -> None:
        with self._change:
            while not self._stopped:
                now = time.monotonic()
                for copy, end in self._sockets.items():
                    if end <= now:
                        _shut_down(copy)
                        self._sockets[copy] = math.inf
                self._change.wait(PULSE if self._sockets else None)

    def stop(self) -> None:
        """End the thread."""
        with self._change:
            self._stopped = True
            for descriptor in self._sockets:
                _shut_down(descriptor)
            self._change.notify()
        if self._thread is not None:
            self._thread.join()


def _shut_down(descriptor: int) -> None:
    logger.warning("the event store does not answer; closing the connection")
    with socket.socket(fileno=os.dup(descriptor)) as silent, suppress(OSError):
        silent.shutdown(socket.SHUT_RDWR)


class Writer:
    """A thread that carries out the writes of many requests in shared transactions."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: queue.SimpleQueue[tuple[Write, Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._changing = threading.Lock()

    def submit(self, write: Write) -> Future[Any]:
        """Queue a write for the next transaction; raise after `stop`."""
        done: Future[Any] = Future()
        with self._changing:
            if self._stopped:
                raise StoreError(
                    "the service is stopping and accepts no more writes; send it again"
                )
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
            results = self._database.run([write for write, _ in batch])
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


def _durable(connection: Any, _: Any) -> None:
    """Sync the log at each commit and allow concurrent reads; SQLAlchemy starts transactions.

    Deleted rows are overwritten, so that the file does not go on holding them.
    """
    connection.isolation_level = None
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_immediate(connection: sa.Connection) -> None:
    # a transaction that starts with a read cannot wait for the write lock
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _can_repeat(error: DBAPIError) -> bool:
    """Whether to repeat a statement: lost connection, deadlock, busy file, former server."""
    code = getattr(error.orig, "sqlstate", "") or ""
    is_lost = error.connection_invalidated or code[:2] in ("08", "40", "57") or code == READ_ONLY
    return bool(is_lost or isinstance(error, sa.exc.OperationalError))
