"""Measure the service under load: throughput, reloads, killed workers, memory, durable events.

Run one part with ``python benchmarks/serve.py load`` (or trend, servers, reload, memory, start,
durable); each part has a time limit. This process generates the load over loopback, on the same
cores as the service. Compare therefore only ratios: the service is measured in turns with two
yardsticks that return the same bytes as a constant, a FastAPI route ("constant") and an ASGI
application without a framework ("asgi"). The processor time per request counts; other work on the
machine affects it less than requests per second. The client's own time per request is reported,
to show who is the bottleneck.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import http.client
import json
import multiprocessing
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import scipy.sparse as sp

import equipoise as eq

YARDSTICKS = """
from pathlib import Path
from fastapi import FastAPI, Response

ANSWER = Path("answer.json").read_bytes()
RESPONSE = Response(ANSWER, media_type="application/json")
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]
START = {"type": "http.response.start", "status": 200, "headers": HEADERS}
BODY = {"type": "http.response.body", "body": ANSWER}
constant = FastAPI()


@constant.post("/v1/recommend")
async def recommend() -> Response:
    return RESPONSE


@constant.get("/healthz")
async def healthz():
    return "ok"


async def asgi(scope, receive, send):
    if scope["type"] == "http":
        await send(START)
        await send(BODY)
"""
SERVERS = {
    "uvicorn": ("--loop", "uvloop", "--http", "httptools", "--no-access-log"),
    "granian": ("--loop", "uvloop", "--interface", "asgi", "--no-access-log"),
}
YARDSTICK_APPS = ("asgi", "constant")
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


def served_model(options: argparse.Namespace) -> Path:
    """Return the folder of the model to serve, with weights of 16 bits if that is asked for."""
    folder = model_folder(options.folder, options.model)
    if not options.half:
        return folder
    half = folder.with_name(f"{folder.name}-half")
    if not (half / "manifest.json").is_file():
        eq.load(folder).halve().save(half)
    return half


def model_folder(root: Path, kind: str, trend: eq.Trend | None = None) -> Path:
    """Return the folder of a saved model, which is fitted on first use."""
    path = root / (kind if trend is None else f"{kind}-trend")
    if (path / "manifest.json").is_file():
        return path
    if kind == "movielens-1m":
        data = eq.datasets.load("movielens-1m", min_rating=4)
        normalizer = eq.DAN(0.3, 0.2)
        model = eq.EASE(l2=20.0, dropout=0.7, normalizer=normalizer, trend=trend).fit(data)
    else:  # 20,000 items: a low-rank update gives the same model as a fit, in seconds
        rng = np.random.default_rng(0)
        weight = 1 / np.arange(1, 20_001) ** 0.8
        rows = [rng.choice(20_000, 60, replace=False, p=weight / weight.sum()) for _ in range(400)]
        offsets = np.arange(0, 60 * 401, 60)
        ones = np.ones(offsets[-1], np.float32)
        items = np.concatenate(rows)
        if trend is None:
            first = eq.Interactions(np.ones((2, 2)), [1001, 1002], [0, 1])
            added = eq.Interactions(sp.csr_array((ones, items, offsets), shape=(400, 20_000)))
        else:
            first = eq.read([(1001, 0, 1.0, 0.0), (1001, 1, 1.0, 0.0), (1002, 0, 1.0, 0.0)])
            times = rng.random(len(items)) * 30 * 86_400
            users = np.repeat(np.arange(400), 60)
            columns = {"user": users, "item": items, "weight": ones, "time": times}
            added = eq.read(pl.DataFrame(columns))
        model = eq.EASE(l2=20.0, trend=trend).fit(first)
        model.update(added)
    model.save(path)
    return path


class Running:
    """A running server process and its workers."""

    def __init__(self, process: subprocess.Popen[Any], port: int) -> None:
        self.process, self.port = process, port

    def workers(self) -> list[int]:
        """Return the process ids of the workers."""
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in map(int, text.split())}
        return [pid for pid, name in names.items() if b"spawn_main" in name]

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
    command += options
    # let Python write bytecode files, as for an installed package
    environment = {n: value for n, value in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
    arguments = [str(word) for word in command]
    with tempfile.TemporaryFile() as log:
        running = Running(subprocess.Popen(arguments, stderr=log, env=environment), port)
        try:
            wait_for(port)
            yield running
        finally:
            running.end()


@contextlib.contextmanager
def yardstick(app: str, answer: bytes, server: str = "uvicorn") -> Iterator[Running]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "answer.json").write_bytes(answer)
        (Path(folder) / "yardsticks.py").write_text(YARDSTICKS)
        arguments = [*SERVERS[server], "--log-level", "warning", "--port", str(port)]
        command = [sys.executable, "-m", server, *arguments, f"yardsticks:{app}"]
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
            # without sleeping: to wake the client would cost the server, the more the slower it is
            for key, _ in ready.select(0):
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


def first_answer(running: Running, http_request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", running.port), timeout=30) as connection:
        connection.sendall(http_request)
        received = b""
        while (body := complete_body(received)) is None:
            received += connection.recv(1 << 16)
    return body


def measure_load(running: Running, requests: list[bytes], seconds: float) -> dict[str, float]:
    """Return requests per second, and the processor time of server and client per request."""
    load, before, client_before = Load(running.port, requests), running.cpu(), time.process_time()
    rate = load.run(seconds)
    assert not load.failed, f"{load.failed} requests failed"
    n_requests = max(len(load.times), 1)
    return {
        "requests_per_second": rate,
        "cpu_us": 1e6 * (running.cpu() - before) / n_requests,
        "client_us": 1e6 * (time.process_time() - client_before) / n_requests,
    }


def measure_latency(running: Running, requests: list[bytes], seconds: float, rate: float) -> Any:
    """Return quantiles of the response times in an open loop with this many requests/s."""
    load = Load(running.port, requests, 64)
    load.run(seconds, rate=rate)
    assert not load.failed, f"{load.failed} requests failed"
    return {f"p{100 * share:g}_ms": load.quantile(share) for share in (0.5, 0.99, 0.999)}


def part_load(options: argparse.Namespace) -> dict[str, Any]:
    """Measure processor time and throughput in turns with the yardsticks; latency at half of it.

    The service is also measured while another thread writes events. Its access log is on.
    """
    model = served_model(options)
    requests = [request(user) for user in users_of(model)]
    store = f"sqlite:///{options.folder}/bench.db"
    for old_file in options.folder.glob("bench.db*"):
        old_file.unlink()
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(service(model, store))
        answer = first_answer(ours, requests[0])
        assert len(json.loads(answer)["items"]) == 20
        servers = {name: stack.enter_context(yardstick(name, answer)) for name in YARDSTICK_APPS}
        servers["ours"] = ours
        for running in servers.values():
            measure_load(running, requests, 1)
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in [*servers, "writes"]}
        for _ in range(options.rounds):
            for name, running in servers.items():
                rounds[name].append(measure_load(running, requests, options.seconds))
            stop = threading.Event()
            writer = threading.Thread(target=_write, args=(ours.port, stop))
            writer.start()
            rounds["writes"].append(measure_load(ours, requests, options.seconds))
            stop.set()
            writer.join()
        best = {name: max(r["requests_per_second"] for r in of) for name, of in rounds.items()}
        cost = {name: min(r["cpu_us"] for r in of) for name, of in rounds.items()}
        half: dict[str, list[Any]] = {name: [] for name in servers}
        for _ in range(options.rounds):
            for name, running in servers.items():
                rate = best[name] / 2
                half[name].append(measure_latency(running, requests, options.seconds, rate))
    pairs = zip(rounds["constant"], rounds["ours"], strict=True)
    shares = [c["cpu_us"] / o["cpu_us"] for c, o in pairs]
    return {
        "model": model.name,
        "requests_per_second": best,
        "cpu_us_per_request": cost,
        "share_of_constant_by_cpu": cost["constant"] / cost["ours"],
        "share_of_constant_by_round": shares,
        "share_of_constant_by_throughput": best["ours"] / best["constant"],
        "share_with_writes": best["writes"] / best["ours"],
        "rounds": rounds,
        "half_load": half,
    }


def part_heavy(options: argparse.Namespace) -> dict[str, Any]:
    """Measure small requests in an open loop while another client sends heavy ones.

    In turns with the same load without the heavy client, and beside a process that computes on
    one core, which takes as much processor time away as the heavy requests do.
    """
    model = model_folder(options.folder, options.model)
    small = [request(user) for user in users_of(model)]
    items = [str(item) for item in eq.load(model).interactions_.items.tolist()]
    rng = np.random.default_rng(0)

    def history(length: int) -> list[str]:
        return [items[n] for n in rng.choice(len(items), min(length, len(items)), replace=False)]

    users = [{"history": history(100), "k": 50} for _ in range(1000)]
    explained = [{"history": history(60), "k": 20, "explain": 3} for _ in range(100)]
    kinds = {
        "batch of 1,000": ("/v1/recommend:batch", {"requests": users}),
        "batch of 100 with reasons": ("/v1/recommend:batch", {"requests": explained}),
        "history of 3,500": ("/v1/recommend", {"history": history(3500), "k": 1000}),
        "reasons of 300": ("/v1/explain", {"history": history(300), "item": items[0]}),
        "rules": (
            "/v1/recommend",
            {"history": history(60), "rules": {"diversity": 0.5}, "k": 100},
        ),
    }
    rounds: list[dict[str, Any]] = []
    with service(model, f"sqlite:///{options.folder}/heavy.db") as ours:
        measure_load(ours, small, 1)
        rate = 200.0
        for _ in range(options.rounds):
            alone = measure_latency(ours, small, options.seconds, rate)
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            beside = measure_latency(ours, small, options.seconds, rate)
            busy.kill()
            busy.wait()
            result = {"alone": alone, "beside a busy process": beside}
            for name, (path, body) in kinds.items():
                heavy = _post(path, body)
                with _clients(2, ours.port, heavy) as sent:
                    time.sleep(0.2)
                    result[name] = measure_latency(ours, small, options.seconds, rate)
                result[name]["heavy_requests"] = sent.value
            rounds.append(result)
    return {"model": options.model, "small_requests_per_second": rate, "rounds": rounds}


def _post(path: str, body: Any) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


@contextlib.contextmanager
def _clients(number: int, port: int, http_request: bytes) -> Iterator[Any]:
    """Send a request again and again from other processes; yield the number of answers."""
    context = multiprocessing.get_context("fork")
    stop, sent = context.Event(), context.Value("q", 0)
    clients = [
        context.Process(target=_repeat, args=(port, http_request, stop, sent))
        for _ in range(number)
    ]
    for client in clients:
        client.start()
    try:
        yield sent
    finally:
        stop.set()
        for client in clients:
            client.join()


def _repeat(port: int, http_request: bytes, stop: Any, sent: Any) -> None:
    """Send a request again and again; its answers are read without decoding them."""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        while not stop.is_set():
            connection.sendall(http_request)
            received = connection.recv(1 << 20)
            assert received.startswith(b"HTTP/1.1 200"), received[:500]
            head, _, body = received.partition(b"\r\n\r\n")
            length = LENGTH.search(head)
            assert length is not None
            missing = int(length[1]) - len(body)
            while missing > 0:
                missing -= len(connection.recv(1 << 20))
            with sent.get_lock():
                sent.value += 1


def part_servers(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the constant route on each server in turns; requires granian to be installed."""
    item = {"item": 1, "title": "A title of an item", "rank": 1, "score": 0.5, "tail": False}
    answer = json.dumps({"items": [item] * 20}).encode()
    requests = [request(1)]
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in SERVERS}
    for _ in range(options.rounds):
        for name in SERVERS:
            with yardstick("constant", answer, name) as running:
                measure_load(running, requests, 1)
                rounds[name].append(measure_load(running, requests, options.seconds))
    return rounds


def part_trend(options: argparse.Namespace) -> dict[str, Any]:
    """Measure a model without and with its live trend in turns, while 200 events/s are written.

    The order within a round alternates. Then measure the seconds from an accepted event to the
    first list with it, and the time in which a worker counts 50 events and makes its terms.
    """
    trend = eq.Trend(half_life="7d", power=0.5, share=0.3)
    with_trend = model_folder(options.folder, options.model, trend)
    folders = {"without": options.folder / f"{options.model}-no-trend", "with": with_trend}
    model = eq.load(with_trend)
    model.trend = model.trend_ = None
    model.save(folders["without"])
    items = eq.load(folders["without"]).interactions_.items.tolist()
    for old_file in options.folder.glob("trend-*.db*"):
        old_file.unlink()
    with contextlib.ExitStack() as stack:
        servers, requests = {}, {}
        for name, folder in folders.items():
            store = f"sqlite:///{options.folder}/trend-{name}.db"
            servers[name] = stack.enter_context(service(folder, store))
            requests[name] = [request(user) for user in users_of(folders["without"])]
            measure_load(servers[name], requests[name], 1)
        rounds: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
        for number in range(options.rounds):
            for name in list(rounds)[:: 1 if number % 2 else -1]:
                stop = threading.Event()
                options_of_writer = (servers[name].port, stop, items)
                writer = threading.Thread(target=_write, args=options_of_writer)
                writer.start()
                measured = measure_load(servers[name], requests[name], options.seconds)
                rounds[name].append(measured)
                stop.set()
                writer.join()
        delays = [_delay(servers["with"].port, item) for item in items[: options.rounds]]
    rates = {name: [r["requests_per_second"] for r in of] for name, of in rounds.items()}
    costs = {name: [r["cpu_us"] for r in of] for name, of in rounds.items()}
    ratios = np.array(rates["with"]) / rates["without"]
    cost_ratios = np.array(costs["with"]) / costs["without"]
    return {
        "model": options.model,
        "requests_per_second": rates,
        "cpu_us_per_request": costs,
        "median_ratio_of_throughput": float(np.median(ratios)),
        "ratio_of_best_throughput": max(rates["with"]) / max(rates["without"]),
        "median_ratio_of_cpu": float(np.median(cost_ratios)),
        "seconds_until_listed": sorted(delays),
        "items": len(items),
        "renewal_ms": 1000 * _renewal(options.folder, folders["with"]),
    }


def _renewal(folder: Path, model: Path) -> float:
    """Return the median seconds in which a worker counts 50 new events and makes its terms."""
    from equipoise.serve.state import Served
    from equipoise.serve.store import Event, Store

    for old_file in folder.glob("renewal.db*"):
        old_file.unlink()
    store = Store(f"sqlite:///{folder}/renewal.db")
    served, seconds = Served.open("model", str(model), store), []
    for first in range(0, 50 * 50, 50):
        numbers = range(first, first + 50)
        events = [(f"user {n}", str(served.ids[n % served.n_items])) for n in numbers]
        new = [Event(user, user, item, "view", 1.0, time.time()) for user, item in events]
        store.do(store.add(new))
        start = time.perf_counter()
        served.follow(store, completely=False)
        served.ranking.terms(None)
        seconds.append(time.perf_counter() - start)
    store.close()
    return float(np.median(seconds))


def _delay(port: int, item: Any) -> float:
    """Return the seconds until an item that many new users used leads the list of a new user."""
    with contextlib.closing(eq.Client(f"http://127.0.0.1:{port}")) as client:
        client.add([{"user": f"burst {item} {n}", "item": item} for n in range(1000)])
        start = time.monotonic()
        while client.recommend([f"nobody {item}"], k=1).items[0] != [item]:
            if time.monotonic() > start + 10:
                return float("inf")
        return time.monotonic() - start


def _write(port: int, stop: threading.Event, items: Sequence[Any] | None = None) -> None:
    """Send 200 events per second, ten per request; on these items, else on new ones."""
    with contextlib.closing(eq.Client(f"http://127.0.0.1:{port}")) as client:
        number, start = 0, time.monotonic()
        while not stop.is_set():
            numbers = range(number, number + 10)
            new = [n if items is None else items[n % len(items)] for n in numbers]
            users = [f"writer {n}" for n in numbers]
            pairs = zip(users, new, strict=True)
            client.add([{"user": user, "item": item} for user, item in pairs])
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


def part_attributes(options: argparse.Namespace) -> dict[str, Any]:
    """Measure changes of attributes: in bulk, one by one, and the first lists after a change.

    Every item of the model has attributes, as have others up to 100,000 items.
    """
    model = model_folder(options.folder, options.model)
    ids = [str(item) for item in eq.load(model).interactions_.items.tolist()]
    ids += [f"other {n}" for n in range(100_000 - len(ids))]
    kinds = ("tea", "salt", "jam", "oil")

    def values(number: int) -> dict[str, Any]:
        tags = [f"tag {number % 100}", f"tag {number % 7}"]
        return {"category": kinds[number % 4], "price": number % 50, "tags": tags}

    lines = [json.dumps({"item": item, **values(n)}) for n, item in enumerate(ids)]
    for old_file in options.folder.glob("attributes.db*"):
        old_file.unlink()
    store = f"sqlite:///{options.folder}/attributes.db"
    filters = {"category": ["tea", "jam"], "tags": "tag 3"}
    rules = {
        "exclude": {"category": "salt"},
        "at_most": {"category": 5},
        "boost": {"price": {"7": 2}},
    }
    bodies = {"plain": {}, "filters": {"filters": filters}, "rules": {"rules": rules}}
    times: dict[str, list[float]] = {"put": [], **{f"list with {n}": [] for n in bodies}}
    with service(model, store) as ours, _http(ours.port) as connection:

        def timed(method: str, path: str, body: Any) -> float:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            kind = "application/x-ndjson" if isinstance(body, bytes) else "application/json"
            start = time.perf_counter()
            connection.request(method, path, content, {"content-type": kind})
            response = connection.getresponse()
            text = response.read()
            assert response.status == 200, text
            return time.perf_counter() - start

        def list_for(more: dict[str, Any]) -> float:
            return timed("POST", "/v1/recommend", {"history": ids[:20], **more})

        alone = [timed("PUT", f"/v1/items/{ids[n]}", values(n)) for n in range(50)]
        bulk = timed("POST", "/v1/items", "\n".join(lines).encode())
        for more in bodies.values():
            list_for(more)
        for number in range(50):
            for name, more in bodies.items():
                item = ids[(7 * number) % 1000]
                body = {**values(number), "available": bool(number % 2)}
                times["put"].append(timed("PUT", f"/v1/items/{item}", body))
                times[f"list with {name}"].append(list_for(more))
    times["put alone"] = alone
    milliseconds = {
        name: {f"p{q}": 1000 * float(np.quantile(of, q / 100)) for q in (50, 99)}
        for name, of in times.items()
    }
    return {"model": options.model, "items": len(ids), "bulk_s": bulk, "ms": milliseconds}


def _http(port: int) -> Any:
    return contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120))


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
    "heavy": part_heavy,
    "trend": part_trend,
    "servers": part_servers,
    "reload": part_reload,
    "memory": part_memory,
    "start": part_start,
    "attributes": part_attributes,
    "durable": part_durable,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "serve-bench")
    parser.add_argument("--model", default="movielens-1m", choices=["movielens-1m", "20000"])
    parser.add_argument("--half", action="store_true", help="weights of 16 bits, for load")
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
