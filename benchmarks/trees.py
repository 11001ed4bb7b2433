"""Compare the speed of two versions of the package: read, fit, rank, evaluate, tune and serve.

    git worktree add ../before COMMIT
    python benchmarks/trees.py --before ../before/src --after src

Each round runs both source trees in separate processes, in alternating order; the ratio of the
best rounds is reported, in seconds of processor time of all threads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import scipy.sparse as sp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path)
    parser.add_argument("--after", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--items", type=int, default=5000)
    parser.add_argument("--rows", type=int, default=2_000_000, help="of the CSV file")
    parser.add_argument("--one", type=Path, help="measure the tree on the path, with this CSV")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measured(args.one, args.items)))
        return
    table = Path(tempfile.mkdtemp()) / "events.csv"
    write_events(table, args.rows)
    rounds: dict[str, list[dict[str, float]]] = {"before": [], "after": []}
    for turn in range(args.rounds):
        both = [("before", args.before), ("after", args.after)]
        for name, tree in both if turn % 2 else reversed(both):
            words = [sys.executable, __file__, "--one", str(table), "--items", str(args.items)]
            environment = {**os.environ, "PYTHONPATH": str(tree.resolve())}
            done = subprocess.run(words, env=environment, capture_output=True, check=True)
            rounds[name].append(json.loads(done.stdout))
    print("| what | before, processor s | after | ratio |\n|---|---|---|---|")
    for task in rounds["after"][0]:
        old, new = (min(seconds[task] for seconds in rounds[name]) for name in ("before", "after"))
        print(f"| {task} | {old:.3f} | {new:.3f} | {new / old:.2f} |")


def measured(table: Path, n_items: int) -> dict[str, float]:
    """Return the least processor time of each task in seconds."""
    import equipoise as eq

    rng = np.random.default_rng(0)
    popularity = 1 / np.arange(1, n_items + 1) ** 0.8
    popularity /= popularity.sum()
    X = drawn(rng, 30_000, popularity)
    data = eq.Interactions(X)
    split = eq.split.strong(data, valid=0.1, test=0.1)

    def model() -> Any:
        return eq.EASE(l2=100.0, normalizer=eq.DAN(0.2, 0.3))

    first, users = model().fit(data), list(range(5000))
    first.recommend(users[:10])  # compiles
    judged = model().fit(split.train)
    added = eq.Interactions(X[:300], np.arange(10**6, 10**6 + 300), data.items)
    grid = {"l2": [50.0, 100.0], "alpha": [0.0, 0.2, 0.4]}
    out = {
        "read, 2M rows of CSV": best(lambda: eq.read(table), 3),
        "fit": best(lambda: model().fit(data), 3),
        "recommend, 5,000 users": best(lambda: first.recommend(users, k=20), 3),
        "rank, 5,000 users": best(lambda: first.rank(data.rows(np.arange(5000)), 20), 3),
        "evaluate, 3,000 users": best(lambda: eq.evaluate(judged, split.test, k=20), 3),
        "tune, 2 solves, 12 points": best(lambda: eq.tune([eq.EASE, eq.LAE], split, grid=grid), 2),
    }
    fresh = [model().fit(data) for _ in range(2)]
    out["update, 300 new users"] = best(lambda: fresh.pop().update(added), 2)
    out["serve, 1,000 requests"] = best(service_of(first), 3)
    return out


def service_of(model: Any) -> Callable[[], None]:
    """Return a function that sends 1,000 requests to a service in this process."""
    from equipoise.serve.app import create
    from equipoise.serve.config import Config

    folder = Path(tempfile.mkdtemp())
    model.save(folder / "model")
    settings = {"models": {"default": str(folder / "model")}, "access_log": False}
    store = f"sqlite:///{folder}/events.db"
    transport = httpx.ASGITransport(create(Config.read(None, {**settings, "store": store})))

    async def send() -> None:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            for user in range(1000):
                answer = await client.post("/v1/recommend", json={"user": user, "k": 20})
                answer.raise_for_status()

    return lambda: asyncio.run(send())


def best(task: Callable[[], Any], times: int) -> float:
    seconds = []
    for _ in range(times):
        start = time.process_time()
        task()
        seconds.append(time.process_time() - start)
    return min(seconds)


def drawn(rng: np.random.Generator, n_users: int, popularity: Any) -> Any:
    rows = [np.unique(rng.choice(len(popularity), 33, p=popularity)) for _ in range(n_users)]
    ends = np.cumsum([0, *map(len, rows)])
    ones = np.ones(ends[-1], np.float32)
    return sp.csr_array((ones, np.concatenate(rows), ends), shape=(n_users, len(popularity)))


def write_events(path: Path, n_rows: int) -> None:
    rng = np.random.default_rng(1)
    columns = [rng.integers(1, high, n_rows) for high in (100_000, 20_000, 6)]
    columns.append(rng.integers(10**9, 16 * 10**8, n_rows))
    np.savetxt(
        path,
        np.column_stack(columns),
        fmt="%d",
        delimiter=",",
        header="user,item,rating,timestamp",
        comments="",
    )


if __name__ == "__main__":
    main()
