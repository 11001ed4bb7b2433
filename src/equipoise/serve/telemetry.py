"""Metrics for Prometheus, summed over all workers.

Workers count in memory-mapped files. Writing to a mapped page for which the disk has no room kills
the process (SIGBUS), so room is allocated before a file is mapped. A worker that gets no room
counts in its own memory.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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

from equipoise.serve.state import Served

logger = logging.getLogger(__name__)

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
}


def allocate(descriptor: int, size: int) -> None:
    """Extend an open file to at least this many bytes, with disk space for all of them."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    start = os.fstat(descriptor).st_size  # macOS lacks the call
    while start < size:
        start += os.pwrite(descriptor, bytes(min(size - start, 1 << 16)), start)


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

    def __init__(self) -> None:
        folder = os.environ.get(FOLDER)
        self._folder = Path(folder) if folder else None
        registry = self._registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"equipoise_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            options: dict[str, Any] = {"registry": registry, "multiprocess_mode": "mostrecent"}
            return Gauge(f"equipoise_{name}", text, ["model"], **options)

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
        self.age = gauge("model_age_seconds", "Time since the model was saved.")
        self.coverage = gauge("coverage", "Share of the items listed since the model was loaded.")
        self._list_counters = functools.lru_cache(1024)(self._make_list_counters)
        self._bitmaps: dict[str, npt.NDArray[np.uint8]] = {}

    def listed(self, served: Served, places: Any, source: str) -> None:
        """Count a list: its source, head and tail, popularity and coverage."""
        n = len(places)
        lists, in_head, in_tail, popularity = self._list_counters(served.name, source)
        lists.inc()
        if n:
            head = int(served.head[places].sum())
            in_head.inc(head)
            in_tail.inc(n - head)
            popularity.inc(float(served.rank[places].sum()) / served.n_items)
            self._bitmap(served)[places] = 1

    def _make_list_counters(
        self, model: str, source: str
    ) -> tuple[Counter, Counter, Counter, Counter]:
        """Return the counters of a model's lists; cached, as `labels` is slower than `inc`."""
        shown = self.shown.labels(model, "head"), self.shown.labels(model, "tail")
        return self.lists.labels(model, source), *shown, self.popularity.labels(model)

    def coverage_of(self, served: Served) -> float:
        """Return the share of the items that any worker has listed."""
        bitmap = self._bitmap(served)
        return float(bitmap.mean()) if len(bitmap) else 0.0

    def _bitmap(self, served: Served) -> npt.NDArray[np.uint8]:
        """Return one byte per item, in a file that all workers map."""
        name = _bitmap_name(served)
        bitmap = self._bitmaps.get(name)
        if bitmap is None:
            bitmap = self._bitmaps[name] = self._open_bitmap(name, served.n_items)
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
        names = {_bitmap_name(served) for served in models}
        for name in set(self._bitmaps) - names:
            self._bitmaps.pop(name, None)
        for path in [] if self._folder is None else self._folder.glob(f"{SHOWN}*"):
            if path.name not in names:
                path.unlink(missing_ok=True)

    def registry(self, models: Iterable[Served]) -> CollectorRegistry:
        """Return the metrics of all workers."""
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
