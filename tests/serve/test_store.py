"""The store on SQLite and on PostgreSQL: durable, idempotent, aged, migrated."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.serve.conftest import READY, Serve, empty
from tests.serve.postgres import Postgres

from equipoise.errors import DataError, SettingError
from equipoise.serve.store import VERSION, Event, Mark, Store, StoreError, schema
from equipoise.serve.store import events as events_table

TRICKS = [
    "'; DROP TABLE events; --",
    '" OR 1=1 --',
    "../../etc/passwd",
    "%00",
    "a/b?c#d",
    "Ω≈ç\u202e",
    "\\",
    "{{7*7}}",
    ":user",
]


def event(number: object, user: str = "ann", item: str = "tea", **more: object) -> Event:
    options: dict[str, object] = {"type": "view", "weight": 1.0, "time": 1000.0, **more}
    return Event(str(number), user, item, **options)  # type: ignore[arg-type]


def test_events_are_kept_once_by_their_id(url: str) -> None:
    store = Store(url)
    assert store.do(store.add([event(1), event(2, item="milk"), event(1)])) == 2
    assert store.do(store.add([event(1), event(3)])) == 1
    live = store.live("ann")
    assert [row[0] for row in live.events] == ["tea", "milk", "tea"]
    store.close()
    again = Store(url)
    assert again.live("ann") == live
    again.close()


def test_events_are_in_the_order_of_their_arrival_whatever_their_ids(url: str) -> None:
    store = Store(url)
    sent = [("9", "tea"), ("10", "milk"), ("b", "salt"), ("a", "rice"), ("2", "jam")]
    store.do(store.add([event(number, item=item) for number, item in sent]))
    store.do(store.add([event("1", item="pot"), event("a", item="cup")]))
    arrived = ["tea", "milk", "salt", "rice", "jam", "pot"]
    assert [row[0] for row in store.live("ann").events] == arrived
    assert [new.item for new in store.since("none").events] == arrived
    store.close()


class Slow:
    """A write that goes on until it may end."""

    def __init__(self, store: Store) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.done = store.submit(self.write)
        assert self.begun.wait(READY)

    def write(self, _: sa.Connection) -> None:
        self.begun.set()
        assert self.may_end.wait(READY)


def test_a_write_is_carried_out_or_refused_when_the_store_closes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    store = Store(url)
    slow, closing = Slow(store), threading.Thread(target=store.close, daemon=True)
    accepted = [store.submit(store.add([event(0)]))]
    closing.start()
    refused = ""
    while not refused and len(accepted) < 5000:
        try:
            accepted.append(store.submit(store.add([event(len(accepted))])))
            time.sleep(0.001)
        except StoreError as error:
            refused = str(error)
    assert "send it again" in refused
    slow.may_end.set()
    assert [future.result(READY) for future in accepted] == [1] * len(accepted)
    closing.join(READY)
    store.close()
    with pytest.raises(StoreError, match="accepts no more writes"):
        store.do(store.forget("ann"))
    again = Store(url)
    assert again.counts()["events"] == len(accepted)
    again.close()


def test_a_write_that_was_given_up_stops_no_other(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/store.db")
    slow = Slow(store)
    given_up = store.submit(store.add([event(1)]))
    assert given_up.cancel()
    assert not slow.done.cancel()  # it is being carried out
    slow.may_end.set()
    assert store.submit(store.add([event(2)])).result(READY) == 1
    assert [stored.id for stored in store.since("none").events] == ["2"]
    store.close()


def test_a_thread_that_ended_leaves_no_connection(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/store.db")
    for _ in range(5):
        asking = threading.Thread(target=store.live, args=("ann",))
        asking.start()
        asking.join()
    assert len(store._idle) == 1
    store.close()


def test_ids_are_data(url: str) -> None:
    store = Store(url)
    events = [event(trick, trick, trick, type=trick) for trick in TRICKS]
    assert store.do(store.add(events, [Mark(t, t, 1.0) for t in TRICKS])) == len(TRICKS)
    for trick in TRICKS:
        live = store.live(trick)
        assert [row[0] for row in live.events] == [trick]
        assert live.seen == [trick]
        store.do(store.describe(trick, {"category": trick}))
    assert set(store.all_attributes()) == set(TRICKS)
    assert store.do(store.forget(TRICKS[0])) == 2
    assert store.counts()["events"] == len(TRICKS) - 1
    store.close()


def test_a_forgotten_user_leaves_a_mark_and_no_trace(url: str) -> None:
    store = Store(url)
    store.do(store.add([event(1), event(2, "bob")], [Mark("ann", "tea", 1.0)]))
    assert store.do(store.forget("ann")) == 2
    gone = store.live("ann")
    assert (gone.events, gone.seen) == ([], [])
    assert gone.forgotten > 0
    store.do(store.forget("ann"))
    assert store.live("ann").forgotten > gone.forgotten
    assert len(store.live("bob").events) == 1
    store.close()


def test_old_events_age_out(url: str) -> None:
    store, now = Store(url), time.time()
    events = [event(1, time=now - 100), event(2, time=now - 10)]
    store.do(store.add(events, [Mark("ann", "x", now - 100), Mark("ann", "y", now)]))
    assert store.expire(50) == 2
    live = store.live("ann")
    assert len(live.events) == 1
    assert live.seen == ["y"]
    store.close()


def test_a_model_takes_each_event_in_once(url: str) -> None:
    store = Store(url)
    store.do(store.add([event(1), event(2)]))
    store.do(store.forget("bob"))
    change = store.since("first")
    assert [stored.id for stored in change.events] == ["1", "2"]
    assert change.users == ["bob"]
    store.keep_folded("second", change)
    store.do(store.add([event(3)]))
    assert [stored.id for stored in store.since("second").events] == ["3"]
    # a model that was not saved in the end begins where it stood
    assert [stored.id for stored in store.since("first").events] == ["1", "2", "3"]
    store.close()


def test_writers_at_the_same_time_lose_and_double_nothing(url: str) -> None:
    stores = [Store(url) for _ in range(3)]

    def write(store: Store, who: int) -> None:
        for start in range(0, 40, 4):  # every event is sent by two writers
            ids = [f"{who // 2}-{n}" for n in range(start, start + 4)]
            store.do(store.add([event(number, f"u{who // 2}") for number in ids]))

    threads = [threading.Thread(target=write, args=(stores[who % 3], who)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].counts()["events"] == 4 * 40
    assert [len(stores[0].live(f"u{n}").events) for n in range(4)] == [40] * 4
    for store in stores:
        store.close()


def test_an_older_schema_is_migrated_and_keeps_its_events(url: str) -> None:
    old = Store(url)
    old.do(old.add([event(1)]))
    old.close()
    engine = sa.create_engine(old.address)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE events DROP COLUMN list_id")
        connection.exec_driver_sql("DROP TABLE lists")
        connection.exec_driver_sql("UPDATE equipoise_meta SET value = '1' WHERE name = 'schema'")
    engine.dispose()
    store = Store(url)
    assert store.do(store.add([event(2, list_id="of-a-list")])) == 1
    assert len(store.live("ann").events) == 2
    assert store.counts() == {"events": 2, "seen": 0, "lists": 0}
    store.close()


def test_rows_of_tenants_of_an_older_version_are_neither_read_nor_changed(url: str) -> None:
    store = Store(url)
    row = {"tenant": "north", "user": "ann", "item": "rice", "time": 1.0}
    rows = {"events": {**row, "id": "1", "type": "view", "weight": 1.0}, "seen": row}

    def add(connection: sa.Connection) -> None:
        for name, values in rows.items():
            connection.execute(schema.tables[name].insert(), values)

    def count(connection: sa.Connection) -> list[int]:
        tables = (schema.tables[name] for name in rows)
        queries = (sa.select(sa.func.count()).where(t.c.tenant == "north") for t in tables)
        return [connection.execute(query).scalar_one() for query in queries]

    store.do(add)
    assert store.do(store.add([event(1)])) == 1  # its id is in use by the other tenant alone
    assert [row[0] for row in store.live("ann").events] == ["tea"]
    assert store.counts() == {"events": 1, "seen": 0, "lists": 0}
    assert [change.item for change in store.since("none").events] == ["tea"]
    assert store.do(store.forget("ann")) == 1
    assert store.expire(0.0) == 0
    assert store.do(count) == [1, 1]
    store.close()


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    store = Store(url)
    store.close()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE equipoise_meta SET value = '{VERSION + 1}'")
    engine.dispose()
    with pytest.raises(DataError, match=f"version {VERSION + 1}"):
        Store(url)


@pytest.mark.parametrize(
    "url",
    ["mysql://a/b", "nonsense", "sqlite://", "sqlite:///:memory:", "sqlite:////no/such/x.db"],
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(SettingError, match="store"):
        Store(url)


def test_postgresql_may_stop_and_come_back(postgres: Postgres) -> None:
    empty(postgres.url)
    store = Store(postgres.url, timeout=5)
    store.do(store.add([event(1)]))
    postgres.stop()
    try:
        with pytest.raises(StoreError, match="does not answer"):
            store.live("ann")
        with pytest.raises(StoreError, match="does not answer"):
            store.do(store.add([event(2)]))
    finally:
        postgres.start()
    assert len(store.live("ann").events) == 1
    assert store.do(store.add([event(2)])) == 1  # sent again, kept once
    assert store.do(store.add([event(2)])) == 0
    assert len(store.live("ann").events) == 2
    store.close()


def test_a_database_without_an_encoding_holds_any_text(postgres: Postgres) -> None:
    import psycopg

    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(
            "CREATE DATABASE bytes ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"
        )
    store = Store(postgres.url.replace("/postgres", "/bytes"))
    store.do(store.add([event(1, user="zoë", item="茶")]))
    assert [row[0] for row in store.live("zoë").events] == ["茶"]
    store.close()


def test_a_silent_postgresql_is_given_up_and_taken_again(postgres: Postgres) -> None:
    empty(postgres.url)
    store = Store(postgres.url, timeout=2)
    store.do(store.add([event(1)]))
    assert len(store.live("ann").events) == 1
    with postgres.frozen():
        waiting = [store.later(store.live, "ann") for _ in range(14)]  # more than connections
        with pytest.raises(StoreError, match="does not answer"):
            store.do(store.add([event(2)]))
        for answer in waiting:
            with pytest.raises(StoreError):
                answer.result(READY)
        with pytest.raises(StoreError):
            store.ping()
    assert store.do(store.add([event(2)])) == 1
    assert len(store.live("ann").events) == 2
    store.ping()
    store.close()


def test_a_silent_postgresql_costs_no_connections_and_the_log_says_what_happened(
    postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    empty(postgres.url)
    caplog.set_level("INFO")
    store = Store(postgres.url, timeout=2)
    store.do(store.add([event(1)]))
    for _ in range(2):
        with postgres.frozen():
            start = time.monotonic()
            for work in (store.ping, lambda: store.do(store.add([event(2)]))):
                with pytest.raises(StoreError):
                    work()  # on a new connection too, which waits for the server to greet
            with pytest.raises(StoreError):
                Store(postgres.url, timeout=2)
            assert time.monotonic() - start < READY / 2
        assert len(store.live("ann").events) == 1
    assert store.do(store.add([event(2)])) == 1

    def sessions(connection: sa.Connection) -> int:
        query = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        return int(connection.exec_driver_sql(query).scalar_one())

    end = time.monotonic() + READY
    while store.query(sessions) > 3:  # those that were cut off end by themselves
        assert time.monotonic() < end
        time.sleep(0.05)
    for text in (
        "store does not answer; closing",
        "failed to read: ",
        "can read again",
        "can write again",
    ):
        assert text in caplog.text
    store.close()


def test_a_statement_may_take_longer_than_the_timeout_where_nobody_waits(
    postgres: Postgres,
) -> None:
    empty(postgres.url)
    store = Store(postgres.url, timeout=0.5)

    def sleep(connection: sa.Connection) -> int:
        connection.exec_driver_sql("SELECT pg_sleep(1.0)")
        return 1

    assert store.query(sleep, READY) == 1
    assert store.run([sleep], READY) == [1]
    for _ in range(3):  # the next ones have the usual time, which is too short
        with pytest.raises(StoreError):
            store.query(sleep)
    store.close()


def test_a_client_that_hangs_in_a_transaction_blocks_no_other(postgres: Postgres) -> None:
    empty(postgres.url)
    hung, store = Store(postgres.url, timeout=0.5), Store(postgres.url, timeout=5)
    with hung._write.connect() as connection:
        connection.execute(events_table.select())
        connection.exec_driver_sql("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        assert store.do(store.add([event(1)])) == 1  # once the server has ended the transaction
        connection.invalidate()
    hung.close()
    store.close()


def test_a_store_reconnects_to_a_server_that_accepts_writes(postgres: Postgres) -> None:
    import psycopg

    empty(postgres.url)
    store = Store(postgres.url, timeout=5)

    def set_read_only(value: str) -> None:
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(
                f"ALTER DATABASE postgres SET default_transaction_read_only = {value}"
            )

    try:
        set_read_only("on")  # as on a standby, for new connections
        store._write.dispose()
        with pytest.raises(StoreError):
            store.do(store.add([event(1)]))
    finally:
        set_read_only("off")
    assert store.do(store.add([event(1)])) == 1  # connections of before are not used again
    store.close()


def test_a_store_that_closes_lets_go_of_a_silent_server(postgres: Postgres) -> None:
    empty(postgres.url)
    store = Store(postgres.url, timeout=READY)
    store.live("ann")  # opens the connection
    with postgres.frozen():
        answer = store.later(store.live, "ann")
        end = time.monotonic() + READY
        while not store._watchdog._sockets and time.monotonic() < end:
            time.sleep(0.01)
        store.close()
        with pytest.raises(StoreError):
            answer.result(READY)


def test_the_log_says_why_the_store_failed_without_secrets(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StoreError, match="does not answer"):
        Store("postgresql://shop:hushhush@127.0.0.1:1/shop", timeout=2)
    assert "OperationalError: " in caplog.text
    assert "refused" in caplog.text
    assert "hushhush" not in caplog.text
    store = Store(url)
    caplog.clear()
    row = {"id": "1", "user": "a private user", "item": "a private item"}
    with pytest.raises(StoreError) as failed:
        store.do(lambda connection: connection.execute(sa.insert(events_table), row))
    assert "private" not in str(failed.value)
    assert "the event store failed to write: " in caplog.text
    assert "NOT NULL" in caplog.text or "NotNullViolation" in caplog.text
    assert "private" not in caplog.text
    store.close()


def fail(_: sa.Connection) -> None:
    raise sa.exc.OperationalError("INSERT", {}, OSError("the disk is full"))


def test_a_store_that_failed_a_moment_ago_is_not_ready(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(url)
    store.ping()
    with pytest.raises(StoreError):
        store.do(fail)
    with pytest.raises(StoreError, match="failed to write"):
        store.ping()
    store.do(store.add([event(1)]))
    store.ping()
    with pytest.raises(StoreError):
        store.do(fail)
    monkeypatch.setattr("equipoise.serve.database.RECENT", 0.0)  # later
    with monkeypatch.context() as patch:  # and nobody has written since
        patch.setattr(store, "touch", fail)
        with pytest.raises(StoreError):
            store.ping()
    store.ping()
    store.close()


def test_nothing_is_accepted_into_a_file_that_was_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.db"
    store = Store(f"sqlite:///{path}")
    store.do(store.add([event(1)]))
    store.live("ann")
    backup = tmp_path / "backup.db"
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)
    for file in tmp_path.glob("store.db*"):
        file.unlink()
    for work in (lambda: store.do(store.add([event(2)])), store.ping):
        with pytest.raises(StoreError, match="was removed"):
            work()
    with pytest.raises(StoreError, match="was removed"):
        store.live("ann")
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert "store.db was removed while the event store used it" in errors[0]
    backup.rename(path)
    assert store.do(store.add([event(3)])) == 1
    assert [row[0] for row in store.live("ann").events] == ["tea", "tea"]
    store.ping()
    assert "was replaced by another file" in caplog.text
    again = Store(f"sqlite:///{path}")  # what was accepted is under the path
    assert [stored.id for stored in again.since("none").events] == ["1", "3"]
    again.close()
    store.close()


def test_a_file_removed_while_it_is_written_takes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = Store(f"sqlite:///{path}")

    def remove(_: sa.Connection) -> None:
        path.unlink()

    added, removed = store.add([event(1)]), remove
    with pytest.raises(StoreError, match="was removed"):
        store.run([added, removed])
    store.close()


def test_a_log_that_was_removed_is_written_into_the_file_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = Store(f"sqlite:///{path}")
    store.do(store.add([event(1)]))
    (tmp_path / "store.db-wal").unlink()
    with pytest.raises(StoreError, match="was removed"):
        store.do(store.add([event(2)]))
    store.close()
    again = Store(f"sqlite:///{path}")
    assert [stored.id for stored in again.since("none").events] == ["1"]
    again.close()


def damage(path: Path, start: int) -> None:
    """Overwrite a file from this byte on."""
    with path.open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(start)
        file.write(b"\xa5" * (size - start))


def test_a_damaged_file_is_not_ready_and_takes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.db"
    store = Store(f"sqlite:///{path}")
    store.do(store.add([event(n, f"u{n}") for n in range(2000)]))
    store.close()
    store = Store(f"sqlite:///{path}")
    store.check()
    store.ping()
    damage(path, 4096)
    with pytest.raises(StoreError):
        store.ping()
    with pytest.raises(StoreError, match="damaged"):
        store.do(store.add([event("new")]))
    assert "malformed" in caplog.text
    with pytest.raises(StoreError):
        store.check()
    store.close()
    with pytest.raises(StoreError):
        Store(f"sqlite:///{path}").check()


@pytest.mark.parametrize("start", [0, 3 * 4096])
def test_a_service_does_not_start_on_a_damaged_file(
    served: Serve, tmp_path: Path, start: int
) -> None:
    path = tmp_path / "store.db"
    store = Store(f"sqlite:///{path}")
    store.do(store.add([event(n, f"u{n}") for n in range(2000)]))
    store.close()
    damage(path, start)
    with pytest.raises(StoreError):
        served(store=f"sqlite:///{path}")
