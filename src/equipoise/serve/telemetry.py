"""Metrics for Prometheus, summed over all workers."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from equipoise.serve.state import Served

BUCKETS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)
SHOWN = "shown-"
FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # where workers keep numbers; set before this is imported


def _bitmap_name(served: Served, key: str) -> str:
    return f"{SHOWN}{key.replace('/', '+')}+{served.version}"  # no name has a plus


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

    def listed(self, served: Served, key: str, places: Any, source: str) -> None:
        """Count a list: its source, head and tail, popularity and coverage."""
        n = len(places)
        lists, in_head, in_tail, popularity = self._children(key, source)
        lists.inc()
        if n:
            head = int(served.head[places].sum())
            in_head.inc(head)
            in_tail.inc(n - head)
            popularity.inc(float(served.rank[places].sum()) / served.n_items)
            self._bitmap(served, key)[places] = 1

    def _counters(self, key: str, source: str) -> tuple[Counter, Counter, Counter, Counter]:
        """Return the counters of a model's lists; looking them up takes longer than counting."""
        shown = self.shown.labels(key, "head"), self.shown.labels(key, "tail")
        return self.lists.labels(key, source), *shown, self.popularity.labels(key)

    def share(self, served: Served, key: str) -> float:
        """Return the share of the items that any worker has listed."""
        bitmap = self._bitmap(served, key)
        return float(bitmap.mean()) if len(bitmap) else 0.0

    def _bitmap(self, served: Served, key: str) -> npt.NDArray[np.uint8]:
        """Return a byte for each item, in a file that all workers map."""
        name = _bitmap_name(served, key)
        found = self._shared.get(name)
        if found is None:
            if self._folder is None or not served.n_items:
                found = np.zeros(served.n_items, np.uint8)
            else:
                path = self._folder / name
                with open(path, "ab") as file:
                    file.truncate(served.n_items)
                found = np.memmap(path, np.uint8, "r+", shape=(served.n_items,))
            self._shared[name] = found
        return found

    def keep(self, models: Iterable[tuple[str, Served]]) -> None:
        """Let go of what was listed by any other models; call it when models were replaced.

        A worker that still has an old one writes to a file without a name, or makes it anew and
        removes it when its own model is replaced.
        """
        kept = {_bitmap_name(served, key) for key, served in models}
        for name in [each for each in list(self._shared) if each not in kept]:
            self._shared.pop(name, None)
        for path in [] if self._folder is None else self._folder.glob(f"{SHOWN}*"):
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def registry(self, models: Iterable[tuple[str, Served]]) -> CollectorRegistry:
        """Return the numbers of all workers."""
        for key, served in models:
            self.age.labels(key).set(time.time() - served.fitted)
            self.coverage.labels(key).set(self.share(served, key))
        if self._folder is None:
            return self._own
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=str(self._folder))  # type: ignore[no-untyped-call]
        return registry

    def exposition(self, models: Iterable[tuple[str, Served]]) -> bytes:
        """Return all numbers in the text format of Prometheus."""
        return generate_latest(self.registry(models))

    def summary(self, models: Sequence[tuple[str, Served]]) -> dict[str, dict[str, float]]:
        """Return the numbers that the operator's view draws; of models, those of these alone."""
        keys = {None, *(key for key, _ in models)}
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
