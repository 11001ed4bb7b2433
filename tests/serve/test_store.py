"""The store on SQLite and on PostgreSQL: durable, idempotent, aged, migrated."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.serve.conftest import READY, empty
from tests.serve.postgres import Postgres

from equipoise.errors import DataError, SettingError
from equipoise.serve.store import VERSION, Event, Mark, Store, StoreError

TRICKS = [
    "'; DROP TABLE events; --",
    '" OR 1=1 --',
    "../../etc/passwd",
    "%00",
    "a/b?c#d",
    "Ω≈ç\u202e",
    "\\",
    "{{7*7}}",
    ":tenant",
]


def event(number: object, user: str = "ann", item: str = "tea", **more: object) -> Event:
    options: dict[str, object] = {"type": "view", "weight": 1.0, "time": 1000.0, **more}
    return Event(str(number), user, item, **options)  # type: ignore[arg-type]


def test_events_are_kept_once_by_their_id(url: str) -> None:
    store = Store(url)
    assert store.do(store.add("a", [event(1), event(2, item="milk"), event(1)])) == 2
    assert store.do(store.add("a", [event(1), event(3)])) == 1
    assert store.do(store.add("b", [event(1)])) == 1  # another tenant has ids of its own
    live = store.live("a", "ann")
    assert [row[0] for row in live.events] == ["tea", "milk", "tea"]
    store.close()
    again = Store(url)
    assert again.live("a", "ann") == live
    again.close()


def test_events_are_in_the_order_of_their_arrival_whatever_their_ids(url: str) -> None:
    store = Store(url)
    given = [("9", "tea"), ("10", "milk"), ("b", "salt"), ("a", "rice"), ("2", "jam")]
    store.do(store.add("a", [event(number, item=item) for number, item in given]))
    store.do(store.add("a", [event("1", item="pot"), event("a", item="cup")]))
    arrived = ["tea", "milk", "salt", "rice", "jam", "pot"]
    assert [row[0] for row in store.live("a", "ann").events] == arrived
    assert [each.item for each in store.since("a", "none").events] == arrived
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
    accepted = [store.submit(store.add("a", [event(0)]))]
    closing.start()
    refused = ""
    while not refused and len(accepted) < 5000:
        try:
            accepted.append(store.submit(store.add("a", [event(len(accepted))])))
            time.sleep(0.001)
        except StoreError as error:
            refused = str(error)
    assert "send it again" in refused
    slow.may_end.set()
    assert [each.result(READY) for each in accepted] == [1] * len(accepted)
    closing.join(READY)
    store.close()
    with pytest.raises(StoreError, match="takes no more writes"):
        store.do(store.forget("a", "ann"))
    again = Store(url)
    assert again.counts("a")["events"] == len(accepted)
    again.close()


def test_a_write_that_was_given_up_stops_no_other(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/store.db")
    slow = Slow(store)
    given_up = store.submit(store.add("a", [event(1)]))
    assert given_up.cancel()
    assert not slow.done.cancel()  # it is being carried out
    slow.may_end.set()
    assert store.submit(store.add("a", [event(2)])).result(READY) == 1
    assert [each.id for each in store.since("a", "none").events] == ["2"]
    store.close()


def test_a_thread_that_ended_leaves_no_connection(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/store.db")
    for _ in range(5):
        asking = threading.Thread(target=store.live, args=("a", "ann"))
        asking.start()
        asking.join()
    assert len(store._kept) == 1
    store.close()


def test_ids_are_data(url: str) -> None:
    store = Store(url)
    events = [event(trick, trick, trick, type=trick) for trick in TRICKS]
    assert store.do(store.add("a", events, [Mark(t, t, 1.0) for t in TRICKS])) == len(TRICKS)
    for trick in TRICKS:
        live = store.live("a", trick)
        assert [row[0] for row in live.events] == [trick]
        assert live.seen == [trick]
        store.do(store.describe("a", trick, {"category": trick}))
    assert set(store.all_attributes("a")) == set(TRICKS)
    assert store.do(store.forget("a", TRICKS[0])) == 2
    assert store.counts("a")["events"] == len(TRICKS) - 1
    store.close()


def test_a_forgotten_user_leaves_a_mark_and_no_trace(url: str) -> None:
    store = Store(url)
    store.do(store.add("a", [event(1), event(2, "bob")], [Mark("ann", "tea", 1.0)]))
    assert store.do(store.forget("a", "ann")) == 2
    gone = store.live("a", "ann")
    assert (gone.events, gone.seen) == ([], [])
    assert gone.forgotten > 0
    assert store.live("b", "ann").forgotten == 0
    store.do(store.forget("a", "ann"))
    assert store.live("a", "ann").forgotten > gone.forgotten
    assert len(store.live("a", "bob").events) == 1
    store.close()


def test_old_events_age_out(url: str) -> None:
    store, now = Store(url), time.time()
    events = [event(1, time=now - 100), event(2, time=now - 10)]
    store.do(store.add("a", events, [Mark("ann", "x", now - 100), Mark("ann", "y", now)]))
    assert store.expire(50) == 2
    live = store.live("a", "ann")
    assert len(live.events) == 1
    assert live.seen == ["y"]
    store.close()


def test_a_model_takes_each_event_in_once(url: str) -> None:
    store = Store(url)
    store.do(store.add("a", [event(1), event(2)]))
    store.do(store.forget("a", "bob"))
    change = store.since("a", "first")
    assert [each.id for each in change.events] == ["1", "2"]
    assert change.users == ["bob"]
    store.keep_folded("a", "second", change)
    store.do(store.add("a", [event(3)]))
    assert [each.id for each in store.since("a", "second").events] == ["3"]
    # a model that was not saved in the end begins where it stood
    assert [each.id for each in store.since("a", "first").events] == ["1", "2", "3"]
    store.close()


def test_writers_at_the_same_time_lose_and_double_nothing(url: str) -> None:
    stores = [Store(url) for _ in range(3)]

    def write(store: Store, who: int) -> None:
        for start in range(0, 40, 4):  # every event is sent by two writers
            ids = [f"{who // 2}-{n}" for n in range(start, start + 4)]
            store.do(store.add("a", [event(each, f"u{who // 2}") for each in ids]))

    threads = [threading.Thread(target=write, args=(stores[who % 3], who)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].counts("a")["events"] == 4 * 40
    assert [len(stores[0].live("a", f"u{n}").events) for n in range(4)] == [40] * 4
    for store in stores:
        store.close()


def test_an_older_schema_is_migrated_and_keeps_its_events(url: str) -> None:
    old = Store(url)
    old.do(old.add("a", [event(1)]))
    old.close()
    engine = sa.create_engine(old.address)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE events DROP COLUMN list_id")
        connection.exec_driver_sql("DROP TABLE lists")
        connection.exec_driver_sql("UPDATE equipoise_meta SET value = '1' WHERE name = 'schema'")
    engine.dispose()
    store = Store(url)
    assert store.do(store.add("a", [event(2, list_id="of-a-list")])) == 1
    assert len(store.live("a", "ann").events) == 2
    assert store.counts("a") == {"events": 2, "seen": 0, "lists": 0}
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
    store.do(store.add("a", [event(1)]))
    postgres.stop()
    try:
        with pytest.raises(StoreError, match="does not answer"):
            store.live("a", "ann")
        with pytest.raises(StoreError, match="does not answer"):
            store.do(store.add("a", [event(2)]))
    finally:
        postgres.start()
    assert len(store.live("a", "ann").events) == 1
    assert store.do(store.add("a", [event(2)])) == 1  # sent again, kept once
    assert store.do(store.add("a", [event(2)])) == 0
    assert len(store.live("a", "ann").events) == 2
    store.close()


def test_a_database_without_an_encoding_holds_any_text(postgres: Postgres) -> None:
    import psycopg

    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(
            "CREATE DATABASE bytes ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"
        )
    store = Store(postgres.url.replace("/postgres", "/bytes"))
    store.do(store.add("default", [event(1, user="zoë", item="茶")]))
    assert [each[0] for each in store.live("default", "zoë").events] == ["茶"]
    store.close()
