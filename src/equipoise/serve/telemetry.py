"""Metrics for Prometheus, summed over all workers.

Requests and lists are noted while they are answered, and counted and logged by a thread a moment
later, many at a time.

Workers count in memory-mapped files. Writing to a mapped page for which the disk has no room kills
the process (SIGBUS), so room is allocated before a file is mapped. A worker that gets no room
counts in its own memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    values,
)
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from pydantic_core import from_json, to_json

from equipoise.serve.state import Served

logger = logging.getLogger(__name__)
requests_logger = logging.getLogger("equipoise.serve")

PAUSE = 0.1  # seconds until what was noted is counted and logged
MOST_NOTED = 50_000  # requests that wait for that
BUCKETS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)
SHOWN = "shown-"
FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # folder of the files; set before this module is imported
NUMBERS = 1 << 16  # initial bytes of a file, as in prometheus_client
# name and labels in the operator's view, by metric
SUMMARY = {
    "equipoise_requests_total": ("requests", "status"),
    "equipoise_request_seconds_sum": ("seconds", "route"),
    "equipoise_request_seconds_bucket": ("buckets", "le"),
    "equipoise_lists_total": ("lists", "model", "source"),
    "equipoise_items_shown_total": ("shown", "model", "part"),
    "equipoise_coverage": ("coverage", "model"),
    "equipoise_unknown_total": ("unknown", "kind"),
    "equipoise_events_total": ("events", "kind"),
    "equipoise_drift_events": ("drift_events", "model"),
    "equipoise_drift_unknown_share": ("drift_unknown", "model", "kind"),
    "equipoise_drift_popularity": ("drift_popularity", "model"),
    "equipoise_drift_list_overlap": ("drift_overlap", "model"),
}
SAMPLE_PAUSE = 60.0  # seconds between two samples of these numbers
SAMPLES = 24 * 60  # that a worker remembers
POINTS = 240  # of a curve in the operator's view


def allocate(descriptor: int, size: int) -> None:
    """Extend an open file to at least this many bytes, with disk space for all of them."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    start = os.fstat(descriptor).st_size  # macOS lacks the call
    while start < size:
        start += os.pwrite(descriptor, bytes(min(size - start, 1 << 16)), start)


class RequestEntry(NamedTuple):
    """An answered request, as the log shows it."""

    time: float
    request: str
    method: str
    route: str
    status: int
    seconds: float
    token: str

    def fields(self) -> dict[str, Any]:
        """Return the fields of its line in the log."""
        fields = self._asdict()
        fields["time"] = round(self.time, 3)
        fields["ms"] = round(1000 * fields.pop("seconds"), 2)
        return fields


class NumberFile:
    """Numbers of this process by key: in a file with room for them, or else in memory.

    Replaces the `MmapedDict` of prometheus_client, which maps files without allocating room.
    """

    in_memory = False  # whether any file of this process got no room

    def __init__(self, path: str) -> None:
        self._path, self._size, self._used = path, NUMBERS, 8
        self._memory: dict[str, tuple[float, float]] = {}
        self._keys: set[str] = set()
        self._file: Any = None
        try:
            with open(path, "ab") as file:
                allocate(file.fileno(), self._size)
                self._size = os.fstat(file.fileno()).st_size
            self._file = MmapedDict(path)  # type: ignore[no-untyped-call]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(path)  # readers fail on an empty file
            self._leave_file(error)
            return
        for key, _, _ in self._file.read_all_values():
            self._make_room(key)  # from an earlier process with the same id

    def _make_room(self, key: str) -> None:
        if key in self._keys or self._file is None:
            return
        self._keys.add(key)
        self._used += 4 + len(key.encode()) + 8 + 16  # length, padded key, value and time
        if self._used <= self._size:
            return
        try:
            with open(self._path, "ab") as file:
                allocate(file.fileno(), 2 * self._size)
        except OSError as error:
            self._leave_file(error)
        else:
            self._size *= 2

    def _leave_file(self, error: OSError) -> None:
        """Go on in memory."""
        if self._file is not None:
            for key, value, when in self._file.read_all_values():
                self._memory[key] = (value, when)
            self._file.close()
        self._file = None
        if not NumberFile.in_memory:
            NumberFile.in_memory = True
            logger.error(
                "no room for metrics in the folder for temporary files: %s; this worker counts in "
                "memory, and its /metrics shows its own numbers only; free disk space and restart",
                error.strerror or error,
            )

    def read_value(self, key: str) -> tuple[float, float]:
        """Return a number and its time; a new one is 0."""
        self._make_room(key)
        if self._file is None:
            return self._memory.setdefault(key, (0.0, 0.0))
        value, when = self._file.read_value(key)
        return value, when

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        """Set a number and its time."""
        self._make_room(key)
        if self._file is None:
            self._memory[key] = (value, timestamp)
        else:
            self._file.write_value(key, value, timestamp)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


values.MmapedDict = NumberFile  # type: ignore[attr-defined, assignment]


def _bitmap_name(served: Served) -> str:
    return f"{SHOWN}{served.name}+{served.version}"


class Telemetry:
    """Metrics of a worker; `registry` returns those of all workers."""

    def __init__(self, *, logs_requests: bool = False) -> None:
        folder = os.environ.get(FOLDER)
        self.folder = self._folder = Path(folder) if folder else None
        registry = self._registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"equipoise_{name}", text, labels, registry=registry)

        self.requests = counter("requests", "Requests.", "route", "status")
        self.seconds = Histogram(
            "equipoise_request_seconds",
            "Time to answer.",
            ["route"],
            buckets=BUCKETS,
            registry=registry,
        )
        self.lists = counter("lists", "Lists.", "model", "source")
        self.shown = counter("items_shown", "Items listed, by head and tail.", "model", "part")
        self.popularity = counter(
            "popularity_shown",
            "Sum over the listed items of their rank by popularity, from 0 to 1.",
            "model",
        )
        self.unknown = counter("unknown", "Unknown ids.", "kind")
        self.events = counter("events", "Events accepted.", "kind")
        self.store_errors = counter("store_errors", "Errors of the event store.")
        self.reloads = counter("reloads", "Reloads.", "result")
        self.age = self.gauge("model_age_seconds", "Time since the model was saved.", "model")
        self.coverage = self.gauge(
            "coverage", "Share of the items listed since the model was loaded.", "model"
        )
        self._bitmaps: dict[str, npt.NDArray[np.uint8]] = {}
        self._samples: deque[tuple[float, bytes]] = deque(maxlen=SAMPLES)  # times and JSON
        self._requests: list[RequestEntry] = []
        self._lists: list[tuple[Served, Any, str]] = []
        self._lines: list[RequestEntry] = []
        self._logs_requests = logs_requests
        self._lost = 0  # lines of the log
        self._settling = threading.Lock()
        self._is_waiting = False  # whether a thread will count what was noted

    def request(self, entry: RequestEntry) -> None:
        """Note an answered request."""
        self._requests.append(entry)
        if not self._is_waiting:
            self._is_waiting = True
            threading.Thread(target=self._follow, name="telemetry", daemon=True).start()
        elif len(self._requests) > MOST_NOTED:  # the thread waits for a log that nobody reads
            self.settle()

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Return a new gauge, whose value is the latest one of any worker."""
        options: dict[str, Any] = {"registry": self._registry, "multiprocess_mode": "mostrecent"}
        return Gauge(f"equipoise_{name}", text, labels, **options)

    def listed(self, served: Served, places: Any, source: str) -> None:
        """Note a list."""
        self._lists.append((served, places, source))

    def _follow(self) -> None:
        """Count and log until there is nothing new."""
        while True:
            time.sleep(PAUSE)
            if not self._requests:
                self._is_waiting = False
                if not self._requests:
                    return
                self._is_waiting = True
            self.settle()
            self.write_lines()

    def settle(self) -> None:
        """Count what was noted."""
        with self._settling:
            requests, self._requests = self._requests, []
            lists, self._lists = self._lists, []
            times: dict[str, list[float]] = {}
            statuses: dict[tuple[str, int], int] = {}
            for entry in requests:
                times.setdefault(entry.route, []).append(entry.seconds)
                key = entry.route, entry.status
                statuses[key] = statuses.get(key, 0) + 1
            for (route, status), number in statuses.items():
                self.requests.labels(route, str(status)).inc(number)
            for route, seconds in times.items():
                self._observe(route, seconds)
            by_kind: dict[tuple[Served, str], list[Any]] = {}
            for served, places, source in lists:
                by_kind.setdefault((served, source), []).append(places)
            for (served, source), listed in by_kind.items():
                self._count_lists(served, source, listed)
            if self._logs_requests:
                room = MOST_NOTED - len(self._lines)
                self._lines += requests[:room]
                self._lost += max(0, len(requests) - room)

    def write_lines(self) -> None:
        """Log the requests that were counted."""
        lines, self._lines = self._lines, []
        lost, self._lost = self._lost, 0
        if lines:
            requests_logger.info("request", extra={"entries": [line.fields() for line in lines]})
        if lost:
            requests_logger.warning("%d lines of requests are missing here", lost)

    def _observe(self, route: str, seconds: list[float]) -> None:
        """Add times to the histogram of a route."""
        histogram: Any = self.seconds.labels(route)
        buckets = np.bincount(np.searchsorted(BUCKETS, seconds), minlength=len(BUCKETS) + 1)
        for bucket, number in zip(histogram._buckets, buckets.tolist(), strict=True):
            if number:
                bucket.inc(number)
        histogram._sum.inc(sum(seconds))

    def _count_lists(self, served: Served, source: str, lists: list[Any]) -> None:
        """Count lists of a model: head and tail, popularity and coverage."""
        self.lists.labels(served.name, source).inc(len(lists))
        places = np.concatenate(lists)
        places = places[places < served.n_items]  # further ones are pins that it does not know
        if len(places):
            head = int(served.head[places].sum())
            self.shown.labels(served.name, "head").inc(head)
            self.shown.labels(served.name, "tail").inc(len(places) - head)
            popularity = float(served.rank[places].sum()) / served.n_items
            self.popularity.labels(served.name).inc(popularity)
            self._bitmap(served)[places[places < served.n_loaded]] = 1

    def coverage_of(self, served: Served) -> float:
        """Return the share of the items of the saved model that any worker has listed."""
        self.settle()
        bitmap = self._bitmap(served)
        return float(bitmap.mean()) if len(bitmap) else 0.0

    def _bitmap(self, served: Served) -> npt.NDArray[np.uint8]:
        """Return one byte per item, in a file that all workers map."""
        name = _bitmap_name(served)
        bitmap = self._bitmaps.get(name)
        if bitmap is None:
            bitmap = self._bitmaps[name] = self._open_bitmap(name, served.n_loaded)
        return bitmap

    def _open_bitmap(self, name: str, size: int) -> npt.NDArray[np.uint8]:
        if self._folder is None or not size:
            return np.zeros(size, np.uint8)
        path = self._folder / name
        try:
            with open(path, "ab") as file:
                allocate(file.fileno(), size)
            return np.memmap(path, np.uint8, "r+", shape=(size,))
        except OSError as error:
            logger.warning(
                "no room to count the listed items: %s; this worker counts them in memory",
                error.strerror or error,
            )
            return np.zeros(size, np.uint8)

    def drop_other_models(self, models: Iterable[Served]) -> None:
        """Delete the coverage of all models but these; call it after models were replaced.

        A worker that still has an old model writes to a deleted file, or creates it again and
        deletes it when its own model is replaced.
        """
        self.settle()
        names = {_bitmap_name(served) for served in models}
        for name in set(self._bitmaps) - names:
            self._bitmaps.pop(name, None)
        for path in [] if self._folder is None else self._folder.glob(f"{SHOWN}*"):
            if path.name not in names:
                path.unlink(missing_ok=True)

    def registry(self, models: Iterable[Served]) -> CollectorRegistry:
        """Return the metrics of all workers."""
        self.settle()
        for served in models:
            self.age.labels(served.name).set(time.time() - served.fitted)
            self.coverage.labels(served.name).set(self.coverage_of(served))
        if self._folder is None or NumberFile.in_memory:
            return self._registry
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=str(self._folder))  # type: ignore[no-untyped-call]
        return registry

    def exposition(self, models: Iterable[Served]) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry(models))

    def summary(self, models: Iterable[Served]) -> dict[str, dict[str, float]]:
        """Return the numbers that the operator's view draws."""
        summary: dict[str, dict[str, float]] = {name: {} for name, *_ in SUMMARY.values()}
        for metric in self.registry(models).collect():
            for sample in metric.samples:
                if sample.name in SUMMARY:
                    name, *labels = SUMMARY[sample.name]
                    key = " ".join(sample.labels[label] for label in labels)
                    summary[name][key] = summary[name].get(key, 0.0) + sample.value
        return summary

    def remember(self, models: Iterable[Served]) -> None:
        """Keep the numbers of now for the curves of the operator's view."""
        now = time.time()
        self._samples.append((now, to_json({"time": now, **self.summary(models)})))

    def past(self, seconds: float) -> list[dict[str, Any]]:
        """Return the numbers of the last seconds, every n-th of them if there are many."""
        start = time.time() - seconds
        samples = [sample for at, sample in list(self._samples) if at >= start]
        return [from_json(sample) for sample in samples[:: 1 + len(samples) // POINTS]]
