"""Measure the service under load: throughput, reloads, killed workers, memory, durable events.

Run one part with ``python benchmarks/serve.py load`` (or servers, reload, memory, start, durable);
each part has a time limit. This process generates the load over loopback, on the same cores as the
service. Compare therefore only ratios: throughput is measured in turns with that of a bare FastAPI
route. The processor time per request is reported as well; other work on the machine affects it
less than it affects requests per second.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import equipoise as eq

BARE = """
import json
from fastapi import FastAPI
from pydantic import BaseModel

ANSWER = json.load(open("answer.json"))
app = FastAPI()


class Body(BaseModel):
    user: str
    k: int = 20


@app.post("/v1/recommend")
async def constant(body: Body):
    return ANSWER


@app.get("/healthz")
async def healthz():
    return "ok"
"""
SERVERS = {
    "uvicorn": ("--loop", "uvloop", "--http", "httptools", "--no-access-log"),
    "granian": ("--loop", "uvloop", "--interface", "asgi", "--no-access-log"),
}
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


def model_folder(root: Path, kind: str) -> Path:
    """Return the folder of a saved model, which is fitted on first use."""
    path = root / kind
    if (path / "manifest.json").is_file():
        return path
    if kind == "movielens-1m":
        data = eq.datasets.load("movielens-1m", min_rating=4)
        model = eq.EASE(l2=20.0, dropout=0.7, normalizer=eq.DAN(0.3, 0.2)).fit(data)
    else:  # 20,000 items: a low-rank update gives the same model as a fit, in seconds
        rng = np.random.default_rng(0)
        weight = 1 / np.arange(1, 20_001) ** 0.8
        rows = [rng.choice(20_000, 60, replace=False, p=weight / weight.sum()) for _ in range(400)]
        offsets = np.arange(0, 60 * 401, 60)
        ones = np.ones(offsets[-1], np.float32)
        matrix = sp.csr_array((ones, np.concatenate(rows), offsets), shape=(400, 20_000))
        model = eq.EASE(l2=20.0).fit(eq.Interactions(np.ones((2, 2)), [1001, 1002], [0, 1]))
        model.update(eq.Interactions(matrix))
    model.save(path)
    return path


class Running:
    """A running server process and its workers."""

    def __init__(self, process: subprocess.Popen[Any], port: int) -> None:
        self.process, self.port = process, port

    def workers(self) -> list[int]:
        """Return the process ids of the workers."""
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in text.split()]

    def cpu(self) -> float:
        """Return the processor time of the server and its workers in seconds."""
        total = 0
        for process in (self.process.pid, *self.workers()):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """Return the private memory of the workers in bytes."""
        private_bytes = 0
        for process in self.workers():
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
            private_bytes += sum(1024 * int(n) for n in re.findall(r"Private_Dirty: +(\d+)", text))
        return private_bytes

    def end(self) -> None:
        """Stop the server."""
        self.process.terminate()
        self.process.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(port: int, path: str = "/healthz") -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
                if connection.recv(64).startswith(b"HTTP/1.1"):
                    return
        except OSError:
            pass
        time.sleep(0.01)
    raise RuntimeError("the server did not start")


@contextlib.contextmanager
def service(model: Path, store: str, *options: object) -> Iterator[Running]:
    port = free_port()
    command = [sys.executable, "-m", "equipoise", "serve", model, "--port", port, "--store", store]
    command += ["--no-access-log", *options]
    # let Python write bytecode files, as for an installed package
    environment = {n: value for n, value in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
    arguments = [str(word) for word in command]
    process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL, env=environment)
    running = Running(process, port)
    try:
        wait_for(port)
        yield running
    finally:
        running.end()


@contextlib.contextmanager
def bare(answer: dict[str, Any], server: str = "uvicorn") -> Iterator[Running]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "answer.json").write_text(json.dumps(answer))
        (Path(folder) / "bare.py").write_text(BARE)
        arguments = [*SERVERS[server], "--log-level", "warning", "--port", str(port), "bare:app"]
        command = [sys.executable, "-m", server, *arguments]
        running = Running(subprocess.Popen(command, cwd=folder), port)
        try:
            wait_for(port)
            yield running
        finally:
            running.end()


def request(user: object, k: int = 20) -> bytes:
    body = json.dumps({"user": str(user), "k": k}).encode()
    head = "POST /v1/recommend HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def complete_body(received: bytes) -> bytes | None:
    """Return the body of a response, or None while it is incomplete."""
    head, mark, body = received.partition(b"\r\n\r\n")
    length = LENGTH.search(head) if mark else None
    return body if length and len(body) >= int(length[1]) else None


class Load:
    """A load generator: each connection sends one request after the other.

    Requests are sent at a fixed rate, or as fast as responses arrive.
    """

    def __init__(self, port: int, requests: list[bytes], connections: int = 8) -> None:
        self.port, self.requests, self.connections = port, requests, connections
        self.times: list[float] = []
        self.failed = self.broken = 0
        self.check: Any = None

    def run(self, seconds: float, rate: float | None = None, most: int = 10**9) -> float:
        """Send requests for this many seconds; return responses per second.

        With a rate, the time that a request waits for a free connection counts too.
        """
        ready = selectors.DefaultSelector()
        idle = [self._connect(ready) for _ in range(self.connections)]
        open_since: dict[socket.socket, tuple[float, bytes]] = {}
        start = now = time.perf_counter()
        sent = 0
        self.times, self.failed, self.broken = [], 0, 0
        while now - start < seconds and len(self.times) < most:
            while idle and (rate is None or sent < rate * (now - start)):
                connection = idle.pop()
                due = now if rate is None else start + sent / rate
                try:
                    connection.sendall(self.requests[sent % len(self.requests)])
                except OSError:
                    self.broken += 1
                    ready.unregister(connection)
                    connection = self._connect(ready)
                    connection.sendall(self.requests[sent % len(self.requests)])
                open_since[connection] = due, b""
                sent += 1
            for key, _ in ready.select(0.05 if rate is None else 0.001):
                self._receive(key.fileobj, open_since, idle, ready)  # type: ignore[arg-type]
            now = time.perf_counter()
        for key in list(ready.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        ready.close()
        return len(self.times) / (now - start)

    def _connect(self, ready: selectors.BaseSelector) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ready.register(connection, selectors.EVENT_READ)
        return connection

    def _receive(
        self,
        connection: socket.socket,
        open_since: dict[socket.socket, tuple[float, bytes]],
        idle: list[socket.socket],
        ready: selectors.BaseSelector,
    ) -> None:
        try:
            chunk = connection.recv(1 << 16)
        except OSError:
            chunk = b""
        if not chunk:  # the worker closed the connection
            self.broken += connection in open_since
            open_since.pop(connection, None)
            if connection in idle:
                idle.remove(connection)
            ready.unregister(connection)
            connection.close()
            idle.append(self._connect(ready))
            return
        since, received = open_since[connection]
        received += chunk
        body = complete_body(received)
        if body is None:
            open_since[connection] = since, received
            return
        del open_since[connection]
        self.times.append(time.perf_counter() - since)
        if not received.startswith(b"HTTP/1.1 200"):
            self.failed += 1
        elif self.check is not None:
            self.check(body)
        idle.append(connection)

    def quantile(self, share: float) -> float:
        """Return a quantile of the response times in milliseconds."""
        return 1000 * float(np.quantile(self.times, share)) if self.times else float("nan")


def users_of(model: Path) -> list[Any]:
    data = eq.load(model).interactions_
    rng = np.random.default_rng(1)
    return [data.users[n] for n in rng.permutation(data.n_users)[:2000]]


def first_answer(running: Running, http_request: bytes) -> dict[str, Any]:
    with socket.create_connection(("127.0.0.1", running.port), timeout=30) as connection:
        connection.sendall(http_request)
        received = b""
        while (body := complete_body(received)) is None:
            received += connection.recv(1 << 16)
    answer: dict[str, Any] = json.loads(body)
    return answer


def measure_load(running: Running, requests: list[bytes], seconds: float) -> tuple[float, float]:
    """Return requests per second, and processor time per request in microseconds."""
    load, before = Load(running.port, requests), running.cpu()
    rate = load.run(seconds)
    assert not load.failed, f"{load.failed} requests failed"
    return rate, 1e6 * (running.cpu() - before) / max(len(load.times), 1)


def part_load(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the highest throughput in turns with a bare route, and latency at half of it.

    The throughput is also measured while another thread writes events.
    """
    model = model_folder(options.folder, options.model)
    requests = [request(user) for user in users_of(model)]
    store = f"sqlite:///{options.folder}/bench.db"
    for old_file in options.folder.glob("bench.db*"):
        old_file.unlink()
    with service(model, store) as ours:
        answer = first_answer(ours, requests[0])
        assert len(answer["items"]) == 20
        with bare(answer) as floor:
            measure_load(ours, requests, 1)
            measure_load(floor, requests, 1)
            rounds: dict[str, list[tuple[float, float]]] = {"bare": [], "ours": [], "writes": []}
            for _ in range(options.rounds):
                rounds["bare"].append(measure_load(floor, requests, options.seconds))
                rounds["ours"].append(measure_load(ours, requests, options.seconds))
                stop = threading.Event()
                writer = threading.Thread(target=_write, args=(ours.port, stop))
                writer.start()
                rounds["writes"].append(measure_load(ours, requests, options.seconds))
                stop.set()
                writer.join()
            best = {name: max(rate for rate, _ in pairs) for name, pairs in rounds.items()}
            cost = {name: min(cpu_us for _, cpu_us in pairs) for name, pairs in rounds.items()}
            half: dict[str, list[dict[str, float]]] = {"bare": [], "ours": []}
            for _ in range(options.rounds):
                for name, running in (("bare", floor), ("ours", ours)):
                    load = Load(running.port, requests, 16)
                    load.run(options.seconds, rate=best[name] / 2)
                    half[name].append({f"p{n}_ms": load.quantile(n / 100) for n in (50, 99)})
    return {
        "model": options.model,
        "requests_per_second": best,
        "cpu_us_per_request": cost,
        "share_of_bare": best["ours"] / best["bare"],
        "share_of_bare_by_cpu": cost["bare"] / cost["ours"],
        "share_with_writes": best["writes"] / best["ours"],
        "half_load": half,
        "failed": load.failed,
    }


def part_servers(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the bare route on each server in turns; requires granian to be installed."""
    item = {"item": 1, "title": "A title of an item", "rank": 1, "score": 0.5, "tail": False}
    answer = {"items": [item] * 20}
    requests = [request(1)]
    rounds_by_server: dict[str, list[tuple[float, float]]] = {name: [] for name in SERVERS}
    for _ in range(options.rounds):
        for name, rounds in rounds_by_server.items():
            with bare(answer, name) as running:
                measure_load(running, requests, 1)
                rounds.append(measure_load(running, requests, options.seconds))
    return {
        name: {
            "requests_per_second": [rate for rate, _ in rounds],
            "cpu_us": [cpu_us for _, cpu_us in rounds],
        }
        for name, rounds in rounds_by_server.items()
    }


def _write(port: int, stop: threading.Event) -> None:
    """Send 200 events per second, ten per request."""
    with contextlib.closing(eq.Client(f"http://127.0.0.1:{port}")) as client:
        number, start = 0, time.monotonic()
        while not stop.is_set():
            events = [{"user": f"writer {n}", "item": n} for n in range(number, number + 10)]
            client.add(events)
            number += 10
            time.sleep(max(0.0, start + number / 200 - time.monotonic()))


def part_reload(options: argparse.Namespace) -> dict[str, Any]:
    """Count wrong, failed and broken responses while a worker is killed and the model reloaded."""
    model = model_folder(options.folder, options.model)
    copy = options.folder / "reloaded"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(model, copy)
    first = eq.load(copy)
    user = first.interactions_.users[0]
    changed = eq.load(copy)
    changed.update(eq.Interactions(np.ones((1, 1)), [_new(user)], [first.interactions_.items[0]]))
    expected: dict[str, Any] = {}
    wrong: list[Any] = []

    def check(body: bytes) -> None:
        answer = json.loads(body)
        items = [item["item"] for item in answer["items"]]
        if items != expected.setdefault(answer["version"], items) or len(expected) > 2:
            wrong.append(answer)

    with service(copy, f"sqlite:///{options.folder}/reload.db", "--workers", 2) as ours:
        load = Load(ours.port, [request(user)], 8)
        load.check = check

        def disturb() -> None:
            time.sleep(options.seconds / 3)
            os.kill(ours.workers()[0], signal.SIGKILL)
            time.sleep(options.seconds / 3)
            changed.save(copy)
            ours.process.send_signal(signal.SIGHUP)

        thread = threading.Thread(target=disturb)
        thread.start()
        rate = load.run(options.seconds)
        thread.join()
    shutil.rmtree(copy)
    counts = {"answers": len(load.times), "versions": len(expected), "broken": load.broken}
    return {**counts, "wrong": len(wrong), "failed": load.failed, "requests_per_second": rate}


def _new(user: Any) -> Any:
    return "a new user" if isinstance(user, str) else 10**9


def part_memory(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the private memory of a worker after a warm-up and after many more requests."""
    model = model_folder(options.folder, options.model)
    requests = [request(user) for user in users_of(model)]
    with service(model, f"sqlite:///{options.folder}/memory.db") as ours:
        load = Load(ours.port, requests)
        load.run(options.seconds, most=5000)
        before, done = ours.memory(), 0
        end = time.monotonic() + 10 * options.seconds  # reports the number of requests reached
        while done < options.requests and time.monotonic() < end:
            load.run(options.seconds, most=options.requests - done)
            done += len(load.times)
        after = ours.memory()
    return {"requests": done, "before_mb": before / 1e6, "after_mb": after / 1e6}


def part_start(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the seconds from starting the command to the first response."""
    model = model_folder(options.folder, options.model)
    times = []
    for _ in range(options.rounds):
        start = time.perf_counter()
        with service(model, f"sqlite:///{options.folder}/start.db") as ours:
            wait_for(ours.port, "/readyz")
            times.append(time.perf_counter() - start)
    return {"model": options.model, "seconds": sorted(times)}


def part_durable(options: argparse.Namespace) -> dict[str, Any]:
    """Count lost and duplicate events of 8 writers while all processes are killed repeatedly."""
    from equipoise.serve.store import Store

    model = model_folder(options.folder, options.model)
    url = options.store or f"sqlite:///{options.folder}/durable.db"
    run = os.urandom(4).hex()
    accepted: list[str] = []
    lock = threading.Lock()
    events_per_writer = options.events // 8

    def write(port: int, writer: int, done: list[int], until: int) -> None:
        with contextlib.closing(eq.Client(f"http://127.0.0.1:{port}", timeout=20)) as client:
            while done[writer] < until:
                ids = [f"{run}-{writer}-{n}" for n in range(done[writer], done[writer] + 25)]
                try:
                    events = [{"user": f"w{writer}", "item": 1, "id": name} for name in ids]
                    client.add(events)
                except eq.EquipoiseError:
                    return  # the next service gets the same events again
                with lock:
                    accepted.extend(ids)
                done[writer] += 25

    done, kills, end = [0] * 8, 0, time.monotonic() + options.limit
    while min(done) < events_per_writer and time.monotonic() < end:
        with service(model, url) as ours:
            last = kills >= options.kills
            until = [
                events_per_writer
                if last
                else events_per_writer * (kills + 1) // (options.kills + 1) + 1
            ] * 8
            threads = [
                threading.Thread(target=write, args=(ours.port, n, done, events_per_writer))
                for n in range(8)
            ]
            for thread in threads:
                thread.start()
            while any(t.is_alive() for t in threads) and (last or min(done) < min(until)):
                time.sleep(0.005)
            if not last:
                for process in (ours.process.pid, *ours.workers()):
                    os.kill(process, signal.SIGKILL)
                kills += 1
            for thread in threads:
                thread.join()
    store = Store(url)
    stored_ids = [event.id for event in store.since("none").events if run in event.id]
    store.close()
    lost, doubled = len(set(accepted) - set(stored_ids)), len(stored_ids) - len(set(stored_ids))
    counts = {"accepted": len(set(accepted)), "kept": len(stored_ids), "kills": kills}
    return {"store": url.split(":")[0], **counts, "lost": lost, "doubled": doubled}


PARTS = {
    "load": part_load,
    "servers": part_servers,
    "reload": part_reload,
    "memory": part_memory,
    "start": part_start,
    "durable": part_durable,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "serve-bench")
    parser.add_argument("--model", default="movielens-1m", choices=["movielens-1m", "20000"])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--limit", type=float, default=280.0, help="seconds, for durable")
    parser.add_argument("--store", help="URL of a PostgreSQL database, for durable")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    gc.freeze()  # garbage collection here would add pauses to the measured times
    gc.disable()
    print(json.dumps(PARTS[options.part](options), indent=1))


if __name__ == "__main__":
    main()
