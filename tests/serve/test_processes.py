"""Workers: killed, reloaded, stopped, refreshed; events that survive; clients that dawdle."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.cli.conftest import call
from tests.serve.conftest import READY, Process, Start

import equipoise as eq
from equipoise.serve.processes import make_folder


def ask(address: str, path: str, body: object = None) -> tuple[int, dict[str, object]]:
    """Ask on a connection of its own."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=READY)
    content = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"} if body is not None else {}
    try:
        connection.request("GET" if body is None else "POST", path, content, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def is_running(process: int) -> bool:
    """Whether a process is there and has not ended; nobody may have asked for its exit code."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Asker(threading.Thread):
    """Asks again and again until told to stop; remembers what went wrong."""

    def __init__(self, address: str, expected: dict[str, list[object]]) -> None:
        super().__init__(daemon=True)
        self.address, self.expected = address, expected
        self.answers = self.broken = 0
        self.wrong: list[object] = []
        self.going = True

    def run(self) -> None:
        while self.going:
            try:
                status, answer = ask(self.address, "/v1/recommend/u5?k=5")
            except (OSError, http.client.HTTPException):
                self.broken += 1  # open on a worker that was killed
                continue
            items = [int(item["item"]) for item in answer.get("items", [])]  # type: ignore[attr-defined]
            if status != 200 or items != self.expected.get(str(answer.get("version"))):
                self.wrong.append((status, answer))
            self.answers += 1
            time.sleep(0.005)


def test_a_reload_and_a_killed_worker_under_load(
    models: Path, start: Start, tmp_path: Path
) -> None:
    service = start(models / "dan", "--workers", 2, "--store", f"sqlite:///{tmp_path}/x.db")
    first, second = (
        eq.load(models / name).recommend(["u5"], k=5).items[0] for name in ("dan", "plain")
    )
    version = str(ask(service.address, "/v1/model")[1]["version"])
    expected = {version: first}
    askers = [Asker(service.address, expected) for _ in range(3)]
    for asker in askers:
        asker.start()
    before = service.workers()
    assert len(before) == 2
    os.kill(before[0], signal.SIGKILL)
    service.wait_for("Application startup complete", 3)
    assert len(service.workers()) == 2
    eq.load(models / "plain").save(models / "dan")
    from equipoise.serve.state import Served

    expected[Served.open("x", str(models / "dan")).version] = second
    service.process.send_signal(signal.SIGHUP)
    service.wait_for("models loaded", 2)
    time.sleep(0.2)
    for asker in askers:
        asker.going = False
    for asker in askers:
        asker.join()
    assert [asker.wrong for asker in askers] == [[], [], []]
    assert sum(asker.broken for asker in askers) <= len(askers)
    assert all(asker.answers > 3 for asker in askers)
    now = ask(service.address, "/v1/model")[1]["version"]
    assert now != version
    # a damaged model is not swapped in
    (models / "dan" / "manifest.json").write_text("{}")
    service.process.send_signal(signal.SIGHUP)
    service.wait_for("reload refused", 2)
    for _ in range(4):
        assert ask(service.address, "/v1/recommend/u5")[1]["version"] == now
    status, answer = ask(service.address, "/v1/admin/reload", {})
    assert status == 409
    assert str(models) not in str(answer)
    assert service.stop() == 0
    with pytest.raises(AssertionError, match="it did not start"):
        start(models / "dan", "--store", f"sqlite:///{tmp_path}/x.db")


def test_a_reload_waits_for_a_worker_that_is_starting(
    models: Path, start: Start, tmp_path: Path
) -> None:
    service = start(models / "dan", "--store", f"sqlite:///{tmp_path}/x.db")
    (killed,) = service.workers()
    os.kill(killed, signal.SIGKILL)
    end = time.monotonic() + READY
    while not (started := [pid for pid in service.workers() if pid != killed]):
        assert time.monotonic() < end
        time.sleep(0.01)
    service.process.send_signal(signal.SIGHUP)
    service.wait_for("models loaded")
    assert service.workers() == started


def test_a_folder_is_deleted_with_its_last_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    running, running_lock = make_folder()
    killed, lock = make_folder()
    (killed / "numbers").write_text("1")
    os.close(lock)
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "equipoise-server-link").symlink_to(other)
    new, last = make_folder()
    assert {path.name for path in tmp_path.iterdir() if not path.is_symlink()} == {
        running.name,
        new.name,
        "other",
    }
    os.close(running_lock)
    os.close(last)


@pytest.mark.parametrize(
    "url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True
)
def test_accepted_events_survive_kill_9(
    saved: Path, start: Start, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rooms = tmp_path / "rooms"
    rooms.mkdir()
    monkeypatch.setenv("TMPDIR", str(rooms))
    accepted: set[str] = set()
    lock = threading.Lock()

    def write(service: Process, writer: int, life: int) -> None:
        for number in range(1000):
            name = f"{life}-{writer}-{number}"
            body = {"events": [{"user": f"w{writer}", "item": 3, "id": name}]}
            try:
                status, _ = ask(service.address, "/v1/events", body)
            except (OSError, http.client.HTTPException):
                return
            if status == 200:
                with lock:
                    accepted.add(name)

    for life in range(2):
        service = start(saved / "dan", "--store", url)
        writers = [
            threading.Thread(target=write, args=(service, writer, life)) for writer in range(4)
        ]
        for thread in writers:
            thread.start()
        end = time.monotonic() + READY
        while len(accepted) < 40 * (life + 1) and time.monotonic() < end:
            time.sleep(0.01)
        service.kill()
        for thread in writers:
            thread.join()
    from equipoise.serve.store import Store

    store = Store(url)
    stored = [event.id for event in store.since("none").events]
    store.close()
    assert len(accepted) >= 80
    assert accepted <= set(stored)
    assert len(stored) == len(set(stored))
    assert len(list(rooms.glob("equipoise-server-*"))) == 1  # of the last one; the first is gone


def test_slow_clients_are_not_waited_for_and_open_requests_are_finished(
    saved: Path, start: Start, tmp_path: Path
) -> None:
    config = tmp_path / "serve.toml"
    config.write_text(f'[models]\ndefault = "{saved / "dan"}"\n[limits]\ntimeout = 1.5\n')
    service = start("--config", config, "--store", f"sqlite:///{tmp_path}/x.db")
    where = urlsplit(service.address)
    half = b"POST /v1/recommend HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    body = b'content-type: application/json\r\ncontent-length: 100\r\n\r\n{"user":'
    for sent, answer in ((half, b""), (half + body, b"408")):
        with socket.create_connection((where.hostname, where.port or 0)) as slow:
            slow.settimeout(READY)
            slow.sendall(sent)
            received = b""
            while chunk := slow.recv(4096):
                received += chunk
            assert answer in received
            assert ask(service.address, "/healthz")[0] == 200
    # a request that is open when the end comes is finished
    body = b'{"user": "u5"}'
    head = f"POST /v1/recommend HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n"
    with socket.create_connection((where.hostname, where.port or 0)) as client:
        client.settimeout(READY)
        client.sendall(head.encode() + b"content-type: application/json\r\n\r\n" + body[:4])
        time.sleep(0.1)
        service.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        client.sendall(body[4:])
        received = b""
        while chunk := client.recv(65536):
            received += chunk
        assert b"200 OK" in received
    assert service.process.wait(READY) == 0


def test_readiness_drops_before_the_socket_closes(
    saved: Path, start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EQUIPOISE_DRAIN", "60")
    service = start(saved / "dan", "--workers", 2, "--store", f"sqlite:///{tmp_path}/x.db")
    where = urlsplit(service.address)
    for _ in range(4):
        assert ask(service.address, "/readyz") == (200, {"status": "ok"})
    service.process.send_signal(signal.SIGTERM)
    end = time.monotonic() + READY
    unready = 0
    while unready < 20:  # in a row, so of both workers
        status, answer = ask(service.address, "/readyz")
        unready = unready + 1 if status == 503 else 0
        assert status == 200 or str(answer["type"]).endswith(":stopping")
        assert time.monotonic() < end
    for _ in range(8):  # and they go on
        assert ask(service.address, "/v1/recommend/u5")[0] == 200
        assert ask(service.address, "/healthz")[0] == 200
    body = b'{"user": "u5"}'
    head = f"POST /v1/recommend HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n"
    with socket.create_connection((where.hostname, where.port or 0)) as client:
        client.settimeout(READY)
        client.sendall(head.encode() + b"content-type: application/json\r\n\r\n" + body[:4])
        time.sleep(0.1)
        service.process.send_signal(signal.SIGTERM)  # at once now
        while True:  # the socket is closed while a request is open
            assert time.monotonic() < end
            try:
                socket.create_connection((where.hostname, where.port or 0)).close()
            except ConnectionRefusedError:
                break
            time.sleep(0.02)
        client.sendall(body[4:])
        answer_bytes = b""
        while chunk := client.recv(65_536):
            answer_bytes += chunk
        assert b"200 OK" in answer_bytes
    assert service.process.wait(READY) == 0


def test_ctrl_c_stops_at_once(
    saved: Path, start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EQUIPOISE_DRAIN", "3600")
    service = start(saved / "dan", "--store", f"sqlite:///{tmp_path}/x.db")
    service.process.send_signal(signal.SIGINT)
    assert service.process.wait(READY) == 0


def received(service: Process, *parts: bytes, most: int = 0) -> tuple[bytes, int]:
    """Send parts, the last one up to `most` bytes; return the answer and the bytes sent."""
    where = urlsplit(service.address)
    sent, answer = 0, b""
    with socket.create_connection((where.hostname, where.port or 0)) as client:
        client.settimeout(READY)
        try:
            for part in parts:
                client.sendall(part)
                sent += len(part)
            while sent < most:
                client.sendall(parts[-1])
                sent += len(parts[-1])
        except OSError:
            pass  # it has closed the connection
        try:
            while chunk := client.recv(65_536):
                answer += chunk
        except ConnectionError:
            pass
    return answer, sent


def test_a_head_of_any_size_is_refused_before_it_fills_the_memory(service: Process) -> None:
    start = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    post = b"POST /v1/recommend HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    chunked = post + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    part, most = b"x" * 65_536, 50_000_000
    heads = {
        "many headers": (b"431", start, b"a: b\r\n" * 10_000),
        "large headers": (b"431", start, b"a: " + part + b"\r\n"),
        "a value without end": (b"431", start + b"a: ", part),
        "a name without end": (b"431", start, part),
        "an address without end": (b"414", b"GET /", part),
        "empty lines": (b"431", b"\r\n" * 10_000),
        "many trailers": (b"", chunked, b"a: b\r\n" * 10_000),
        "a trailer without end": (b"", chunked + b"a: ", part),
        "an extension of a chunk": (b"", post + b"transfer-encoding: chunked\r\n\r\n2;", part),
    }
    for name, (status, *parts) in heads.items():
        answer, sent = received(service, *parts, most=most)
        assert answer.startswith(b"HTTP/1.1 " + status if status else b""), (name, answer)
        assert sent < most, name
    answer, _ = received(service, start, b"a: b\r\n" * 200 + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert b"connection: close" in answer
    problem = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert problem["status"] == 431
    assert "at most 100 headers" in problem["detail"]
    # what is within the limits is answered, as often as one likes on a connection
    large = start + b"a: " + b"x" * 30_000 + b"\r\n" + b"b: c\r\n" * 90
    last = large + b"connection: close\r\n\r\n"
    answer, _ = received(service, *[large + b"\r\n"] * 20, last)
    assert answer.count(b"HTTP/1.1 200 OK") == 21
    answer, _ = received(service, b"no request\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in answer


def test_events_are_folded_into_the_model_and_swapped_in(
    models: Path, start: Start, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/x.db"
    service = start(models / "dan", "--store", store, "--refresh", "2s")
    before = ask(service.address, "/v1/model")[1]
    events = [{"user": "fresh", "item": item} for item in (3, 13, 9999)]
    assert ask(service.address, "/v1/events", {"events": events})[0] == 200
    service.wait_for("models loaded")
    end = time.monotonic() + READY
    while ask(service.address, "/v1/model")[1]["version"] == before["version"]:
        assert time.monotonic() < end
        time.sleep(0.05)
    after = ask(service.address, "/v1/model")[1]
    assert (after["users"], after["items"]) == (301, 81)
    (worker,) = service.workers()
    os.kill(service.process.pid, signal.SIGKILL)  # the workers end with their parent
    end = time.monotonic() + READY
    while is_running(worker):
        assert time.monotonic() < end
        time.sleep(0.05)
    done = call("update", models / "dan", "--from-store", store, "--json")
    assert json.loads(done.stdout)["events"] == 0  # all of them are in


def test_a_port_that_is_taken_is_named(saved: Path, tmp_path: Path) -> None:
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        done = call("serve", saved / "dan", "--port", port, "--store", f"sqlite:///{tmp_path}/x")
    assert done.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.output
