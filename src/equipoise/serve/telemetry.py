"""Metrics for Prometheus, summed over all workers.

Workers keep their numbers in files that are mapped into memory. A write to a mapped page for which
the disk has no room ends the process (SIGBUS), so room is taken before anything is mapped; a
worker that gets none counts in its own memory and goes on.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Iterable, Sequence
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
FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # where workers keep numbers; set before this is imported
NUMBERS = 1 << 16  # bytes of a file of numbers at first, as prometheus_client has it


def allocate(end: int, size: int) -> None:
    """Let an open file have at least this many bytes, and the disk room for all of them."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(end, 0, size)
        return
    start = os.fstat(end).st_size  # macOS lacks the call
    while start < size:
        start += os.pwrite(end, bytes(min(size - start, 1 << 16)), start)


class NumberFile:
    """Numbers of this process by their key: in a file with room for them, or else in memory.

    Stands in for the `MmapedDict` of prometheus_client, which maps files without any room.
    """

    in_memory = False  # whether any file of this process found no room

    def __init__(self, path: str) -> None:
        self._path, self._size, self._used = path, NUMBERS, 8
        self._memory: dict[str, tuple[float, float]] = {}
        self._keys: set[str] = set()
        self._file: MmapedDict | None = None
        try:
            with open(path, "ab") as file:
                allocate(file.fileno(), self._size)
                self._size = os.fstat(file.fileno()).st_size
            self._file = MmapedDict(path)  # type: ignore[no-untyped-call]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(path)  # nobody could read an empty one
            self._leave_file(error)
            return
        for key, _, _ in self._file.read_all_values():  # type: ignore[no-untyped-call]
            self._make_room(key)  # left by an earlier process of the same number

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
        if self._file is not None:
            for key, value, when in self._file.read_all_values():  # type: ignore[no-untyped-call]
                self._memory[key] = (value, when)
            self._file.close()  # type: ignore[no-untyped-call]
        self._file = None
        if not NumberFile.in_memory:
            NumberFile.in_memory = True
            _warn_of_no_room(error)

    def read_value(self, key: str) -> tuple[float, float]:
        """Return a number and its time; a new one is 0."""
        self._make_room(key)
        if self._file is None:
            return self._memory.setdefault(key, (0.0, 0.0))
        found: tuple[float, float] = self._file.read_value(key)  # type: ignore[no-untyped-call]
        return found

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        """Set a number and its time."""
        self._make_room(key)
        if self._file is None:
            self._memory[key] = (value, timestamp)
        else:
            self._file.write_value(key, value, timestamp)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()  # type: ignore[no-untyped-call]


def _warn_of_no_room(error: OSError) -> None:
    logger.error(
        "no room for metrics in the folder for temporary files: %s; this worker counts in its "
        "memory, and its /metrics shows its own numbers alone; free some room and restart",
        error.strerror or error,
    )


values.MmapedDict = NumberFile  # type: ignore[attr-defined, assignment]


def _bitmap_name(served: Served) -> str:
    return f"{SHOWN}{served.name}+{served.version}"  # no name has a plus


class Telemetry:
    """Numbers of a worker; `registry` gives those of all workers."""

    def __init__(self) -> None:
        folder = os.environ.get(FOLDER)
        self._folder = Path(folder) if folder else None
        own = CollectorRegistry()
        self.requests = Counter(
            "equipoise_requests", "Requests.", ["route", "status"], registry=own
        )
        self.seconds = Histogram(
            "equipoise_request_seconds",
            "Time to answer.",
            ["route"],
            buckets=BUCKETS,
            registry=own,
        )
        self.lists = Counter("equipoise_lists", "Lists.", ["model", "source"], registry=own)
        self.shown = Counter(
            "equipoise_items_shown",
            "Items listed, by head and tail.",
            ["model", "part"],
            registry=own,
        )
        self.popularity = Counter(
            "equipoise_popularity_shown",
            "Sum over the listed items of their rank by popularity, from 0 to 1.",
            ["model"],
            registry=own,
        )
        self.unknown = Counter("equipoise_unknown", "Ids not known.", ["kind"], registry=own)
        self.events = Counter("equipoise_events", "Events taken.", ["kind"], registry=own)
        self.store_errors = Counter("equipoise_store_errors", "Store not there.", registry=own)
        self.reloads = Counter("equipoise_reloads", "Reloads.", ["result"], registry=own)
        self.age = Gauge(
            "equipoise_model_age_seconds",
            "Time since the model was saved.",
            ["model"],
            registry=own,
            multiprocess_mode="mostrecent",
        )
        self.coverage = Gauge(
            "equipoise_coverage",
            "Share of the items listed since the model was loaded.",
            ["model"],
            registry=own,
            multiprocess_mode="mostrecent",
        )
        self._own = own
        self._children = functools.lru_cache(1024)(self._counters)
        self._shared: dict[str, npt.NDArray[np.uint8]] = {}

    def listed(self, served: Served, places: Any, source: str) -> None:
        """Count a list: its source, head and tail, popularity and coverage."""
        n = len(places)
        lists, in_head, in_tail, popularity = self._children(served.name, source)
        lists.inc()
        if n:
            head = int(served.head[places].sum())
            in_head.inc(head)
            in_tail.inc(n - head)
            popularity.inc(float(served.rank[places].sum()) / served.n_items)
            self._bitmap(served)[places] = 1

    def _counters(self, key: str, source: str) -> tuple[Counter, Counter, Counter, Counter]:
        """Return the counters of a model's lists; looking them up takes longer than counting."""
        shown = self.shown.labels(key, "head"), self.shown.labels(key, "tail")
        return self.lists.labels(key, source), *shown, self.popularity.labels(key)

    def share(self, served: Served) -> float:
        """Return the share of the items that any worker has listed."""
        bitmap = self._bitmap(served)
        return float(bitmap.mean()) if len(bitmap) else 0.0

    def _bitmap(self, served: Served) -> npt.NDArray[np.uint8]:
        """Return a byte for each item, in a file that all workers map."""
        name = _bitmap_name(served)
        found = self._shared.get(name)
        if found is None:
            found = self._mapped(name, served.n_items)
            self._shared[name] = found
        return found

    def _mapped(self, name: str, size: int) -> npt.NDArray[np.uint8]:
        if self._folder is None or not size:
            return np.zeros(size, np.uint8)
        path = self._folder / name
        try:
            with open(path, "ab") as file:
                allocate(file.fileno(), size)
            return np.memmap(path, np.uint8, "r+", shape=(size,))
        except OSError as error:
            logger.warning(
                "no room for the items that were listed: %s; this worker counts them by itself",
                error.strerror or error,
            )
            return np.zeros(size, np.uint8)

    def keep(self, models: Iterable[Served]) -> None:
        """Let go of what was listed by any other models; call it when models were replaced.

        A worker that still has an old one writes to a file without a name, or makes it anew and
        removes it when its own model is replaced.
        """
        kept = {_bitmap_name(served) for served in models}
        for name in [each for each in list(self._shared) if each not in kept]:
            self._shared.pop(name, None)
        for path in [] if self._folder is None else self._folder.glob(f"{SHOWN}*"):
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def registry(self, models: Iterable[Served]) -> CollectorRegistry:
        """Return the numbers of all workers."""
        for served in models:
            self.age.labels(served.name).set(time.time() - served.fitted)
            self.coverage.labels(served.name).set(self.share(served))
        if self._folder is None or NumberFile.in_memory:
            return self._own
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=str(self._folder))  # type: ignore[no-untyped-call]
        return registry

    def exposition(self, models: Iterable[Served]) -> bytes:
        """Return all numbers in the text format of Prometheus."""
        return generate_latest(self.registry(models))

    def summary(self, models: Sequence[Served]) -> dict[str, dict[str, float]]:
        """Return the numbers that the operator's view draws; of models, those of these alone."""
        keys = {None, *(served.name for served in models)}
        wanted = {
            "equipoise_requests_total": ("requests", "status"),
            "equipoise_request_seconds_sum": ("seconds", "route"),
            "equipoise_request_seconds_bucket": ("buckets", "le"),
            "equipoise_lists_total": ("lists", ("model", "source")),
            "equipoise_items_shown_total": ("shown", ("model", "part")),
            "equipoise_coverage": ("coverage", "model"),
            "equipoise_unknown_total": ("unknown", "kind"),
            "equipoise_events_total": ("events", "kind"),
        }
        found: dict[str, dict[str, float]] = {name: {} for name, _ in wanted.values()}
        for metric in self.registry(models).collect():
            for sample in metric.samples:
                if sample.name not in wanted or sample.labels.get("model") not in keys:
                    continue
                name, labels = wanted[sample.name]
                names = (labels,) if isinstance(labels, str) else labels
                key = " ".join(sample.labels[each] for each in names)
                found[name][key] = found[name].get(key, 0.0) + sample.value
        return found
