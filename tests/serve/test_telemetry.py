"""Numbers of workers where the folder for temporary files is full."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.serve.conftest import Start, fill
from tests.serve.test_processes import ask

from equipoise.serve import telemetry
from equipoise.serve.telemetry import NUMBERS, POINTS, NumberFile, RequestEntry, Telemetry

COUNTING = """
import sys
from pathlib import Path
from equipoise.serve.telemetry import Telemetry

class Model:
    name, version, n_items, n_loaded, fitted = "m", "v", 300_000, 300_000, 0.0

numbers = Telemetry()
if "fill" in sys.argv:
    with open(Path(sys.argv[1]) / "filler", "wb", 0) as filler:
        try:
            while filler.write(bytes(4096)):
                pass
        except OSError:
            pass
numbers._bitmap(Model())[:] = 1
for number in range(2000):
    numbers.requests.labels(f"/route/{number}", "200").inc()
assert numbers.coverage_of(Model()) == 1.0
print(numbers.exposition([Model()]).decode().count("equipoise_requests_total{"))
"""


@pytest.mark.parametrize("filled", ["", "fill"])
def test_a_full_disk_ends_no_worker(small_disk: Path, filled: str) -> None:
    environment = {**os.environ, telemetry.FOLDER: str(small_disk)}
    words = [sys.executable, "-c", COUNTING, str(small_disk), filled]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2000"]
    assert "no room for metrics" in done.stderr


@pytest.mark.slow  # the quick case is test_a_full_disk_ends_no_worker
def test_a_service_on_a_full_disk_goes_on(
    saved: Path, start: Start, small_disk: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(small_disk))
    service = start(saved / "dan", "--store", f"sqlite:///{tmp_path}/x.db", "--workers", 2)
    assert list(small_disk.glob("equipoise-server-*"))
    fill(small_disk / "filler")
    workers = service.workers()
    for user in range(20):
        assert ask(service.address, f"/v1/recommend/u{user}")[0] == 200
        assert ask(service.address, f"/v1/items/{user}")[0] in (200, 404)
    body = {"events": [{"user": "u5", "item": 3}]}
    assert ask(service.address, "/v1/events", body)[0] == 200
    assert ask(service.address, "/v1/admin/overview")[0] == 200
    assert service.workers() == workers
    assert service.stop() == 0


def test_requests_are_counted_and_logged_a_moment_later(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    counted = telemetry.Telemetry(logs_requests=True)
    for seconds in (0.0005, 0.004, 0.004, 60.0):
        entry = RequestEntry(1.0, "id", "GET", "/v1/items", 200, seconds, "shop")
        counted.request(entry)
    end = time.monotonic() + 60
    while not caplog.records and time.monotonic() < end:
        time.sleep(0.01)
    (record,) = caplog.records
    assert [line["ms"] for line in record.entries] == [0.5, 4.0, 4.0, 60_000.0]
    text = counted.exposition([]).decode()
    assert 'equipoise_requests_total{route="/v1/items",status="200"} 4.0' in text
    for bound, number in (("0.001", 1.0), ("0.003", 1.0), ("0.005", 3.0), ("+Inf", 4.0)):
        assert f'seconds_bucket{{le="{bound}",route="/v1/items"}} {number}' in text
    assert 'equipoise_request_seconds_sum{route="/v1/items"} 60.0085' in text


def test_a_log_that_nobody_reads_takes_limited_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telemetry, "MOST_NOTED", 10)
    monkeypatch.setattr(telemetry, "PAUSE", 3600.0)
    counted = telemetry.Telemetry(logs_requests=True)
    for _ in range(100):
        counted.request(RequestEntry(1.0, "id", "GET", "/", 200, 0.1, ""))
    assert len(counted._requests) <= 10
    assert len(counted._lines) == 10
    counted.settle()
    counted.write_lines()
    assert "90 lines of requests are missing here" in caplog.text
    assert 'requests_total{route="/",status="200"} 100.0' in counted.exposition([]).decode()


def test_numbers_go_on_in_memory_where_a_file_cannot_grow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(NumberFile, "in_memory", False)
    path = tmp_path / "counter_1.db"
    numbers = NumberFile(str(path))
    for key in range(100):
        numbers.write_value(f"key {key}", float(key), 1.0)
    again = NumberFile(str(path))
    assert again.read_value("key 7") == (7.0, 1.0)
    again.close()
    status = path.stat()
    assert status.st_blocks * 512 >= status.st_size == NUMBERS  # no holes

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(telemetry, "allocate", refuse)
    for key in range(3000):
        numbers.write_value(f"key {key}", float(key), 2.0)
    assert path.stat().st_size == NUMBERS
    assert numbers.read_value("key 2999") == (2999.0, 2.0)
    assert numbers.read_value("key 7") == (7.0, 2.0)
    assert NumberFile.in_memory
    lost = NumberFile(str(tmp_path / "counter_2.db"))
    lost.write_value("a", 1.0, 0.0)
    assert lost.read_value("a") == (1.0, 0.0)
    assert not (tmp_path / "counter_2.db").exists()
    assert [record.message[:19] for record in caplog.records] == ["no room for metrics"]


def test_earlier_numbers_are_remembered_and_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, now = Telemetry(), 1_000_000.0
    monkeypatch.setattr(telemetry.time, "time", lambda: now)
    for number in range(1_500):  # 25 hours
        numbers.events.labels("event").inc()
        now = 1_000_000.0 + 60 * number
        numbers.remember([])
    hour = numbers.past(3_600)
    assert [sample["time"] for sample in hour] == [now - 60 * n for n in range(60, -1, -1)]
    assert [sample["events"]["event"] for sample in hour] == list(range(1_440, 1_501))
    day = numbers.past(86_400)
    assert 0.5 * POINTS < len(day) <= POINTS
    assert day[0]["time"] == now - 60 * 1_439
    assert numbers.past(0.0) == hour[-1:]
