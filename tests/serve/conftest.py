"""Two saved models, a service in this process and one in processes of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import pytest
from tests.serve.postgres import Postgres, new_folder

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.serve.app import create
from equipoise.serve.config import Config

SCRIPT = "<script>window.hacked = 1</script>"
FIRST_WIDE = -6783772548752091658  # 64 bits; a double has 53
TURNED = "\u2069\u202eright to left"  # ends an isolation and turns the text that follows
READY = 60.0  # seconds; a busy machine is no failure
DAY = 86_400.0
ITEMS = [f"item {n}" for n in range(12)]


@pytest.fixture(scope="session")
def shop_data(synthetic: Interactions) -> Interactions:
    """300 users x 80 items, with titles and kinds; one title is a script, one turns text."""
    titles = [f"Item {n} & friends" for n in range(synthetic.n_items)]
    titles[3] = f"{SCRIPT} item"
    titles[4] = f"{TURNED} item"
    kinds = ["tea" if n % 2 else "salt" for n in range(synthetic.n_items)]
    catalogue = pl.DataFrame({"title": titles, "kind": kinds})
    return Interactions(synthetic.matrix, synthetic.users, synthetic.items, catalogue=catalogue)


@pytest.fixture(scope="session")
def saved(shop_data: Interactions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the models `dan` and `plain`."""
    folder = tmp_path_factory.mktemp("models")
    eq.EASE(l2=20.0, dropout=0.3, normalizer=eq.DAN(0.3, 0.2)).fit(shop_data).save(folder / "dan")
    eq.EASE(l2=200.0).fit(shop_data).save(folder / "plain")
    return folder


@pytest.fixture(scope="session")
def wide(shop_data: Interactions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model whose ids are integers that JavaScript has no numbers for."""
    items, users = (FIRST_WIDE + np.arange(n) for n in shop_data.matrix.shape[::-1])
    data = Interactions(shop_data.matrix, users, items, catalogue=shop_data.catalogue)
    folder = tmp_path_factory.mktemp("wide") / "model"
    eq.EASE(l2=20.0).fit(data).save(folder)
    return folder


@pytest.fixture(scope="session")
def log() -> Interactions:
    """40 users x 12 items in the last 30 days, with repeats and one return."""
    rng = np.random.default_rng(3)
    start = time.time() - 30 * DAY
    rows = [
        (f"u{user}", ITEMS[item], 1.0, start + 29 * DAY * float(rng.random()))
        for user in range(40)
        for item in rng.choice(12, 6, p=np.arange(1, 13) / 78)
    ]
    rows += [("u1", "item 0", 1.0, start), ("u1", "item 0", -1.0, start + DAY)]
    return eq.read(rows)


@pytest.fixture(scope="session")
def trended(log: Interactions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a saved model with a trend."""
    folder = tmp_path_factory.mktemp("trended") / "model"
    trend = eq.Trend(half_life="2d", power=1.0, share=1.0)
    eq.EASE(l2=5.0, trend=trend).fit(log).save(folder)
    return folder


@pytest.fixture
def models(saved: Path, tmp_path: Path) -> Path:
    """Return a copy of the models, to be changed."""
    shutil.copytree(saved, tmp_path / "models")
    return tmp_path / "models"


class Api:
    """A service in this process; its requests run on the loop of a thread."""

    def __init__(self, app: Any, address: str) -> None:
        self.state, self.telemetry = app.state, app.telemetry
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=self._transport, base_url="http://127.0.0.1")
        self.address = address

    @property
    def address(self) -> str:
        """Where requests come from."""
        return self._transport.client[0]

    @address.setter
    def address(self, address: str) -> None:
        self._transport.client = (address, 1)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        work = self._client.request(method, path, **options)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(READY)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.request("POST", path, **({} if body is None else {"json": body}), **options)

    def put(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.request("PUT", path, json=body, **options)

    def delete(self, path: str, **options: Any) -> httpx.Response:
        return self.request("DELETE", path, **options)

    def settle(self) -> None:
        """Count and log the requests so far, which a thread does a moment later."""
        self.telemetry.settle()
        self.telemetry.write_lines()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._client.aclose())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
        self.state.store.close()


Serve = Callable[..., Api]


@pytest.fixture(scope="session")
def standing(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Return one service for the tests that need nothing but an answer."""
    with _services(saved, tmp_path_factory.mktemp("standing")) as open_service:
        yield open_service()


@pytest.fixture
def served(saved: Path, tmp_path: Path) -> Iterator[Serve]:
    """Return a function that opens a service in this process."""
    with _services(saved, tmp_path) as open_service:
        yield open_service


@contextlib.contextmanager
def _services(saved: Path, folder: Path) -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:

        def open_service(address: str = "127.0.0.1", **settings: Any) -> Api:
            chosen = {"default": str(saved / "dan"), "plain": str(saved / "plain")}
            settings.setdefault("store", f"sqlite:///{folder}/events.db")
            config = Config.read(None, {"models": chosen, "access_log": False, **settings})
            api = Api(create(config), address)
            stack.callback(api.close)
            return api

        yield open_service


@pytest.fixture
def api(served: Serve) -> Api:
    return served()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Return a running PostgreSQL; without one tests are skipped, and fail in CI."""
    folder = new_folder(Path("/tmp"))  # a socket's path has to be short
    try:
        server = Postgres(folder)
        yield server
        server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty store, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    server: Postgres = request.getfixturevalue("postgres")
    empty(server.url)
    return server.url


def empty(url: str) -> None:
    """Drop all tables of the service."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")


def is_worker(process: int) -> bool:
    """Whether a child of the service is a worker, and not the tracker of multiprocessing."""
    return b"spawn_main" in Path(f"/proc/{process}/cmdline").read_bytes()


class Process:
    """A service in processes of its own, started by the command."""

    def __init__(self, *words: object, log: Path) -> None:
        command = [sys.executable, "-m", "equipoise", "serve", *map(str, words)]
        self._log = log.open("w")
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "EQUIPOISE_DRAIN": os.environ.get("EQUIPOISE_DRAIN", "0")},
        )
        self.log = log
        assert self.process.stdout is not None
        lines: list[str] = []
        for line in self.process.stdout:
            lines.append(line)
            if line.startswith("}"):
                break
        if not lines:
            self._end()
            raise AssertionError(f"it did not start: {log.read_text()}")
        self.address: str = json.loads("".join(lines))["address"]

    def workers(self) -> list[int]:
        """Return the process ids of the workers."""
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(number) for number in text.split() if is_worker(int(number))]

    def client(self, **options: Any) -> eq.Client:
        return eq.Client(self.address, **options)

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until the log has a text this many times."""
        end = time.monotonic() + READY
        while self.log.read_text().count(text) < times:
            assert time.monotonic() < end, f"{text} is not in the log: {self.log.read_text()}"
            time.sleep(0.02)

    def kill(self) -> None:
        """End all processes at once, as a crash would."""
        for process in [self.process.pid, *self.workers()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._end()

    def _end(self) -> int:
        code = self.process.wait(READY)
        self._log.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def stop(self) -> int:
        """End it in good order; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._end()


@pytest.fixture(scope="session")
def service(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Return one service for the tests that change no model: `default` and `plain`."""
    folder = tmp_path_factory.mktemp("service")
    models = [f"default={saved / 'dan'}", f"plain={saved / 'plain'}"]
    process = Process(*models, "--store", f"sqlite:///{folder}/x.db", log=folder / "log")
    yield process
    assert process.stop() == 0


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a service; what still runs at the end is killed."""
    running: list[Process] = []

    def begin(*words: object) -> Process:
        running.append(Process(*words, log=tmp_path / f"log-{len(running)}"))
        return running[-1]

    yield begin
    for process in running:
        if process.process.poll() is None:
            process.kill()
        else:
            process._end()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a disk of 512 KB."""
    folder = tmp_path / "small"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(folder)]
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"no small disk could be mounted: {error}")
    if done.returncode:
        pytest.skip(f"no small disk could be mounted, which takes root: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write to a file until the disk is full."""
    with path.open("wb", 0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
