"""`eq.Client` gives what the model gives."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serve.conftest import FIRST_WIDE, Process, Start

import equipoise as eq


def test_the_client_has_the_methods_of_the_model(service: Process, saved: Path) -> None:
    model = eq.load(saved / "dan")
    with service.client() as client:
        users = [f"u{n}" for n in range(150)]
        expected, answered = model.recommend(users, k=5), client.recommend(users, k=5)
        assert answered.items == expected.items
        assert answered.users == users
        assert answered.source == expected.source
        assert all(map(np.array_equal, expected.scores, answered.scores))
        assert answered.titles == expected.titles
        histories = {"a": [3, 13], "b": [23]}
        options = {"alpha": 0.8, "exclude": [33], "k": 6}
        assert (
            client.recommend(histories, **options).items
            == model.recommend(histories, **options).items
        )
        assert client.recommend([[3]], k=3).users == [0]
        assert client.similar(13, k=4).items == model.similar(13, k=4).items
        why, because = model.explain([3, 13], 23), client.explain([3, 13], 23)
        assert because.sources == why.sources
        assert because.score == why.score
        chosen_items = model.interactions_.items[[0, 5]]
        assert np.array_equal(client.score(["u5"], chosen_items), model.score(["u5"])[:, [0, 5]])
        assert client.summary()["items"] == 80
        assert client.items("item 7")["total"] == 11


def test_ids_come_back_as_the_data_have_them(wide: Path, start: Start, tmp_path: Path) -> None:
    model = eq.load(wide)
    service = start(wide, "--store", f"sqlite:///{tmp_path}/x.db")
    with service.client() as client:
        users = model.interactions_.users[:3]
        expected, answered = model.recommend(users, k=5), client.recommend(users, k=5)
        assert answered.items == expected.items
        assert all(type(item) is int for item in answered.items[0])
        assert client.similar(FIRST_WIDE, k=4).items == model.similar(FIRST_WIDE, k=4).items
        why, because = (source.explain([FIRST_WIDE], FIRST_WIDE + 1) for source in (model, client))
        assert (because.item, because.sources) == (why.item, why.sources)
        assert client.items(str(FIRST_WIDE))["items"][0]["item"] == FIRST_WIDE
        pinned = client.recommend(users[:1], k=2, rules={"pin": ["offer"]}).items[0]
        assert pinned == ["offer", expected.items[0][0]]


def test_events_attributes_and_forgetting(service: Process) -> None:
    with service.client() as client:
        assert client.add({"user": "c", "item": 3, "id": "c1"})["accepted"] == 1
        assert client.add([{"user": "c", "item": 3, "id": "c1"}])["duplicates"] == 1
        (first, *_) = client.recommend(["c"]).items[0]
        client.describe(first, available=False)
        assert first not in client.recommend(["c"], k=80).items[0]
        client.describe(first)
        assert client.forget("c") == 1
        assert client.recommend(["c"]).source == ["popular"]


def test_lists_have_their_ids_and_reasons(service: Process, saved: Path) -> None:
    model = eq.load(saved / "dan")
    users = ["u201", "u202"]
    with service.client() as client:
        answered = client.recommend(users, k=4, reasons=2)
        assert len({*answered.list_ids}) == 2
        client.add({"user": "u201", "item": 3, "list_id": answered.list_ids[0]})
    expected = model.recommend(users, k=4, reasons=2)
    assert answered.reasons == expected.reasons
    assert answered.reason_titles == expected.reason_titles
    frame = answered.to_frame(details=True)
    columns = ["user", "item", "rank", "source", "title", "reasons", "because"]
    assert frame.select(columns).equals(expected.to_frame(details=True).select(columns))


def test_rules_are_those_of_python_a_mapping_or_a_file(
    service: Process, saved: Path, tmp_path: Path
) -> None:
    rules = eq.Rules(
        exclude={"kind": "salt"}, boost={"kind": {"tea": 2.0}}, pin=[13], diversity=0.1
    )
    rules.save(tmp_path / "rules.toml")
    expected = eq.load(saved / "dan").recommend(["u5"], k=6, rules=rules).items
    with service.client() as client:
        for form in (rules, rules.settings(), tmp_path / "rules.toml"):
            assert client.recommend(["u5"], k=6, rules=form).items == expected
        with pytest.raises(eq.SettingError, match="function"):
            client.recommend(["u5"], rules=eq.Rules(exclude=lambda _: True))


def test_events_may_be_tuples_with_datetimes_and_as_many_as_there_are(service: Process) -> None:
    moment = datetime(2024, 1, 2, tzinfo=UTC)
    with service.client() as client:
        assert client.add(("t1", 3))["accepted"] == 1
        several = [("t1", 13, moment), ("t1", 23, "2024-01-03"), {"user": "t1", "item": 33}]
        assert client.add(several)["accepted"] == 3
        stored = list(client.events(user="t1"))
        assert [event["item"] for event in stored] == ["3", "13", "23", "33"]
        assert [event["time"] for event in stored[1:3]] == [1704153600.0, 1704240000.0]
        assert [row["item"] for row in client.events(user="t1", until=moment)] == []
        many = ({"user": "t2", "item": f"{n} {'x' * 400}"} for n in range(2500))
        answer = client.add(many)
        assert answer["accepted"] == len(set(answer["ids"])) == 2500
        assert sum(1 for _ in client.events(user="t2")) == 2500
        with pytest.raises(eq.DataError, match="the 1,000 events before it are stored"):
            client.add([("t3", n) for n in range(1000)] + [{"user": "t3"}])
        for wrong in [("t1",)], ["t1"], [("t1", 3, 4.0, 5)]:
            with pytest.raises(eq.DataError, match="an event is a mapping"):
                client.add(wrong)
        first = stored[0]["id"]
        assert client.delete_event(first) == []
        with pytest.raises(eq.UnknownIdError):
            client.delete_event(first)
        assert [row["item"] for row in client.user("t1")["items"]] == [3, 13, 23, 33][1:]
        assert len(client.user_data("t1")["events"]) == 3
        assert client.forget("t1", erase=True) == 3
        client.forget("t2")
        client.forget("t3")


def test_attributes_of_many_items_are_sent_in_parts(
    service: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.serve.client.LINES_AT_ONCE", 2_000)
    with service.client() as client:
        rows = ({"item": f"sold {n}", "available": False, "shelf": n} for n in range(200))
        assert client.add_items(rows) == 200
        assert client.add_items({13: {"shelf": 7}, "sold 1": {}}) == 2
        (entry,) = [e for e in client.items("item 1", 80)["items"] if e["item"] == 13]
        assert entry["attributes"]["shelf"] == 7
        client.describe(13)
        with pytest.raises(eq.DataError, match="item 1: item"):
            client.add_items([{"shelf": 1}])


def test_models_are_named_and_reloaded(service: Process) -> None:
    with service.client() as client:
        models = client.models()
        assert list(models) == ["default", "plain"]
        assert client.reload() == {name: facts["version"] for name, facts in models.items()}


def test_one_client_serves_threads_and_coroutines(echo: Echo) -> None:
    async def ask_all(client: eq.Client) -> list[Any]:
        async with client:
            calls = [client.aio.recommend([f"u{n}"]) for n in range(1, 200)]
            return list(await asyncio.gather(*calls))

    client = eq.Client(echo.address, timeout=60)
    assert client.recommend(["u3"]).items == [[3] * 3]
    lists = asyncio.run(ask_all(client))
    assert [answer.items for answer in lists] == [[[n] * (n % 50)] for n in range(1, 200)]
    assert echo.connections <= 33
    assert client._aio is None
    for name in ("none", "url", "_ask"):
        with pytest.raises(AttributeError):
            getattr(client.aio, name)
    client.close()


def test_events_that_are_sent_again_count_once(
    service: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service.client() as client:
        send = client._exchange

        def twice(*arguments: Any) -> Any:
            send(*arguments)  # its answer is lost
            return send(*arguments)

        monkeypatch.setattr(client, "_exchange", twice)
        answer = client.add([{"user": "again", "item": 3}, {"user": "again", "item": 13}])
        assert (answer["accepted"], answer["duplicates"]) == (0, 2)


def test_errors_are_those_of_the_model(service: Process) -> None:
    with service.client() as client:
        with pytest.raises(eq.UnknownIdError, match="unknown item 'none'"):
            client.similar("none")
        with pytest.raises(eq.DataError, match="k"):
            client.recommend(["u5"], k=0)
        with pytest.raises(eq.DataError, match="mixture"):
            client.recommend(["u5", [3]])
    other = service.client(model="none")
    with other, pytest.raises(eq.UnknownIdError, match="no model"):
        other.recommend(["u5"])
    with pytest.raises(eq.FetchError, match="does not answer"):
        eq.Client("http://127.0.0.1:9").summary()
    with pytest.raises(eq.SettingError, match="url must look like"):
        eq.Client("ftp://shop")
    with pytest.raises(eq.SettingError, match="the port in the url"):
        eq.Client("http://127.0.0.1:80000")


class Echo(ThreadingHTTPServer):
    """A service whose lists hold the number of the user alone; it is slow for some users.

    It hangs up, without an answer, as often as `hang_ups` says.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), EchoAnswers)
        self.hang_ups = 0
        self.users_asked: list[str] = []
        self.connections = 0
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()


class EchoAnswers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 65_536  # head and body in one packet
    server: Echo

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_POST(self) -> None:
        requests = json.loads(self.rfile.read(int(self.headers["content-length"])))["requests"]
        self.server.users_asked += [request["user"] for request in requests]
        if self.server.hang_ups:
            self.server.hang_ups -= 1
            self.close_connection = True
            return
        answers = []
        for request in requests:
            number = int(request["user"].removeprefix("u"))
            time.sleep(0.002 * (number % 7))
            row = {"item": str(number), "title": "", "score": 1.0}
            result = {"source": "model", "item_ids": "integer", "items": [row] * (number % 50)}
            answers.append({"result": result, "problem": None})
        body = json.dumps({"answers": answers}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.shutdown()
    server.server_close()


def test_threads_may_share_a_client(echo: Echo) -> None:
    with eq.Client(echo.address, timeout=60) as client, ThreadPoolExecutor(16) as threads:

        def is_right(number: int) -> bool:
            return client.recommend([f"u{number}"]).items == [[number] * (number % 50)]

        assert all(threads.map(is_right, range(1, 600)))
        assert echo.connections <= 16  # they are used again


def test_a_forked_process_may_go_on_with_a_client(echo: Echo) -> None:
    script = """
import os, sys
import equipoise as eq
client = eq.Client(sys.argv[1], timeout=60)
def check(first):
    for n in range(first, first + 60, 2):
        assert client.recommend([f"u{n}"]).items == [[n] * (n % 50)], n
check(1)
child = os.fork()
if child == 0:
    code = 1
    try:
        check(1)
        code = 0
    finally:
        os._exit(code)
check(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    done = subprocess.run(
        [sys.executable, "-c", script, echo.address], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_a_request_is_sent_again_only_where_that_changes_nothing(echo: Echo) -> None:
    with eq.Client(echo.address, timeout=60) as client:
        client.recommend(["u1"])
        echo.hang_ups = 1
        assert client.recommend(["u2"]).items == [[2, 2]]
        assert echo.users_asked == ["u1", "u2", "u2"]
        echo.users_asked.clear()
        echo.hang_ups = 1
        with pytest.raises(eq.FetchError, match="does not answer"):
            client.recommend(["u3"], mark="seen")
        assert echo.users_asked == ["u3"]
        # on a connection of its own, so that one closed while idle does not fail it
        assert client.recommend(["u4"], mark="seen").items == [[4] * 4]
        echo.users_asked.clear()
        client.close()
        echo.hang_ups = 1
        with pytest.raises(eq.FetchError):  # the connection was new, so it does not answer
            client.recommend(["u5"])
        assert echo.users_asked == ["u5"]


def test_an_interrupted_request_leaves_no_answer_behind(
    echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    from http.client import HTTPConnection

    with eq.Client(echo.address, timeout=60) as client:
        client.recommend(["u1"])

        def interrupt(_: HTTPConnection) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(HTTPConnection, "getresponse", interrupt)
            with pytest.raises(KeyboardInterrupt):
                client.recommend(["u2"])
        assert client.recommend(["u3"]).items == [[3] * 3]
