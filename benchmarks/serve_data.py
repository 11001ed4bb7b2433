"""Measure what operators wait for: imports, exports and drift; and what a replay can tell.

``python benchmarks/serve_data.py`` prints processor times of this process, which other work on the
machine affects less than wall times. The store is SQLite on this machine's disk.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.runtime.machine import one_blas_thread
from equipoise.serve.config import Config
from equipoise.serve.drift import USERS, latest_events, measure
from equipoise.serve.records import Selection, all_events
from equipoise.serve.replay import METHODS, Log, evaluate_log
from equipoise.serve.state import State
from equipoise.serve.store import Store
from equipoise.serve.transfer import Import, event_lines, import_file, parquet_file
from serve import model_folder

LONGEST = 1_000_000  # bytes of a line


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Return wall and processor time of a call."""
    start, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - processor


def bulk(folder: Path, n_events: int) -> Iterator[str]:
    """Import and export events."""
    lines, table = folder / "events.ndjson", folder / "events.parquet"
    rng = np.random.default_rng(0)
    with lines.open("w") as file:
        for number in range(n_events):
            row = {"user": f"u{rng.integers(100_000)}", "item": int(rng.integers(20_000))}
            file.write(json.dumps({**row, "id": f"e{number}", "time": 1.7e9 + number}) + "\n")
    for source in (lines, table):
        with closing(Store(f"sqlite:///{folder}/{source.suffix[1:]}.db")) as store:
            job = Import(store, lambda _: 1.0, "bench")
            wall, processor = timed(lambda: import_file(source, job, LONGEST))  # noqa: B023
            what = f"import of {job.accepted:,} events, {source.suffix}"
            yield f"{what}: {wall:.1f} s, {processor:.1f} s"
            if source is lines:
                pages = all_events(store, Selection())
                wall, processor = timed(lambda: sum(map(len, event_lines(pages))))  # noqa: B023
                yield f"export to JSON lines: {wall:.1f} s, {processor:.1f} s"

                def export() -> None:
                    with parquet_file(all_events(store, Selection())) as path:
                        path.rename(table)

                wall, processor = timed(export)
                yield f"export to Parquet: {wall:.1f} s, {processor:.1f} s"


def drift(folder: Path, model: Path) -> Iterator[str]:
    """Measure the drift of a model from events of its users."""
    with closing(Store(f"sqlite:///{folder}/drift.db")) as store:
        config = Config.read(
            None, {"models": {"default": str(model)}, "store": f"sqlite:///{folder}/drift.db"}
        )
        state = State(config, store)
        served = state.models["default"]
        rng = np.random.default_rng(1)
        users = served.users.values[rng.integers(0, len(served.users.values), USERS)]
        rows = [{"user": str(user), "item": str(served.ids[0])} for user in users.tolist()]
        job = Import(store, lambda _: 1.0, "bench")
        job.take(rows, str)
        wall, processor = timed(lambda: measure(state, served, latest_events(store)))
        yield (
            f"drift of {served.n_items:,} items, lists of {USERS} users: {wall:.2f} s, "
            f"{processor:.2f} s"
        )


def precision(n_lists: int, share: float, pool: int, rate: float, k: int = 10) -> str:
    """Return the half width of the intervals, for lists in which all places are to change."""
    rng = np.random.default_rng(2)
    shape = (n_lists, k)
    ranked = np.tile(np.arange(k), (n_lists, 1))
    target = np.tile(np.arange(k, 2 * k), (n_lists, 1))
    is_random = rng.random(n_lists) < share
    shown = np.where(is_random[:, None], rng.random((n_lists, pool)).argsort(1)[:, :k], ranked)
    chance = np.where(shown >= k, 1.2 * rate, rate)
    log = Log(
        np.arange(n_lists),
        shown,
        ranked,
        target,
        share / pool + (1 - share) * (shown == ranked),
        rng.random(shape) < chance,
        np.zeros(shape, np.int64),
        np.zeros(shape, np.int64),
        np.zeros(shape, np.int64),
    )
    result = evaluate_log(log)
    widths = {
        row["method"]: (row["difference_high"] - row["difference_low"]) / 2
        for row in result["estimates"]
    }
    shown_widths = ", ".join(f"{name} {widths[name]:.3f}" for name in METHODS)
    truth = k * 0.2 * rate
    return (
        f"replay of {n_lists:,} lists, share {share:g}, pool {pool}, {rate:.0%} clicks per place: "
        f"half intervals {shown_widths} clicks per list; the difference is {truth:.3f}; "
        f"{result['telling_clicks']} telling clicks, expected "
        f"{math.ceil(n_lists * k * share / pool * 1.2 * rate)}"
    )


def main() -> None:
    """Print one line per measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--model", default="20000", choices=["movielens-1m", "20000"])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "serve-bench")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    model = model_folder(options.folder, options.model)
    with tempfile.TemporaryDirectory() as name, one_blas_thread():
        folder = Path(name)
        print("wall and processor time:")
        for line in (*bulk(folder, options.events), *drift(folder, model)):
            print(line, flush=True)
    for n_lists in (45_000, 450_000):
        print(precision(n_lists, 0.1, 30, 0.02), flush=True)


if __name__ == "__main__":
    main()
