"""Time the session models: sparse against dense engine, ranking, and their matrices.

Run ``python benchmarks/session_timing.py --data FOLDER/yoochoose1_64``; ``--tables`` selects:

- ``routes``: sparse against dense engine on the 10,000 most clicked items, since the dense engine
  inverts an n x n matrix;
- ``events``: lists after every click of test sessions by models of all items: the first time,
  when the model solves for the rows of all clicked items, and again, with these rows cached;
- ``matrices``: building the past and future matrices S and T, against their product S^T T.

Medians of several runs, clock time on all threads; prints Markdown.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.models.session_solver import past_future

AUTHORS = {"l2": 10.0, "dropout": 0.0, "decay_position": 1.0}
MODELS = {
    "SLIT": lambda: eq.SLIT(decay_inference=1.0),
    "SLIST": lambda: eq.SLIST(**AUTHORS, mix=0.4, decay_inference=1.0),
    "SLIS": lambda: eq.SLIS(decay_inference=1.0),
}


TABLES = ("routes", "events", "matrices")


def seconds(task: Callable[[], Any], repeats: int) -> float:
    """Return the median clock time on all threads; requires an otherwise idle machine."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        task()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def most_clicked(data: Interactions, n_items: int) -> Interactions:
    popular_items = np.sort(np.argsort(-data.item_counts, kind="stable")[:n_items])
    small = data.columns(popular_items)
    assert small._sequences is not None
    return small.rows(small._sequences.lengths >= 2)


def some_sessions(folder: Path, train: Interactions, n_sessions: int) -> Interactions:
    """Return a uniform sample of test sessions with two or more clicks on known items."""
    known = eq.read(folder / "test_sessions.npz").with_items(
        train.item_index, unknown_items="skip"
    )
    assert known._sequences is not None
    long = np.flatnonzero(known._sequences.lengths >= 2)
    n_sessions = min(n_sessions, len(long))
    return known.rows(np.sort(np.random.default_rng(0).choice(long, n_sessions, replace=False)))


def routes(data: Interactions, visits: Interactions, repeats: int) -> list[str]:
    lines = [
        "| model | sparse fit s | dense fit s | ratio | sparse s a list, new items | lists |",
        "|---|---|---|---|---|---|",
    ]
    for name, make in MODELS.items():
        sparse, dense = make(), make()
        fast = seconds(lambda m=sparse: m.fit(data, engine="sparse"), repeats)
        slow = seconds(lambda m=dense: m.fit(data, engine="dense"), 1)
        ask = seconds(lambda m=sparse: m.recommend(visits, k=20), 1) / visits.n_users
        pairs = zip(
            sparse.recommend(visits, k=20).items,
            dense.recommend(visits, k=20).items,
            strict=True,
        )
        same = sum(one == two for one, two in pairs)
        lines.append(
            f"| {name} | {fast:.2f} | {slow:.1f} | {slow / fast:.0f} | {ask:.4f} "
            f"| {same:,} of {visits.n_users:,} equal |"
        )
    return lines


def events(data: Interactions, sessions: Interactions, repeats: int) -> list[str]:
    lines = [
        "| model | events | items clicked | fresh: ms an event | ms a row | again: ms an event |",
        "|---|---|---|---|---|---|",
    ]
    history, _ = eq.split.reveal(sessions)
    size, clicked = history.n_users, len(np.unique(history.matrix.indices))
    models = {"SLIT": eq.SLIT(), "SLIST": eq.SLIST(**AUTHORS, mix=0.5), "SLIS": eq.SLIS()}
    for name, settings in models.items():
        fresh, again = [], []
        for _ in range(repeats):
            model = settings.clone().fit(data)
            model.rank(history.rows([0]), 20)  # factorises the system
            fresh.append(seconds(lambda m=model: m.rank(history, 20), 1))
            again.append(seconds(lambda m=model: m.rank(history, 20), 1))
        first, second = statistics.median(fresh), statistics.median(again)
        times = [
            f"{1e3 * seconds_each:.2f}"
            for seconds_each in (first / size, first / clicked, second / size)
        ]
        lines.append(f"| {name} | {size:,} | {clicked:,} | {' | '.join(times)} |")
    return lines


def matrices(data: Interactions, repeats: int) -> list[str]:
    assert data._sequences is not None
    lines = [
        "| direction | S and T s | product S^T T s | ratio | entries |",
        "|---|---|---|---|---|",
    ]
    for direction in ("sr", "part", "all"):
        make = lambda d=direction: past_future(data._sequences, data.n_items, 1.0, d)  # noqa: E731
        S, T = make()
        build = seconds(make, repeats)
        product = seconds(lambda s=S, t=T: s.T.tocsr() @ t, repeats)
        lines.append(
            f"| {direction} | {build:.2f} | {product:.2f} | {build / product:.1f} "
            f"| {S.nnz + T.nnz:,} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of one prepared set")
    parser.add_argument(
        "--items", type=int, default=10_000, help="most clicked items of the routes"
    )
    parser.add_argument("--visits", type=int, default=500, help="lists to compare")
    parser.add_argument("--sessions", type=int, default=100, help="test sessions of the events")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    data = eq.read(args.data / "train_sessions.npz")
    small = most_clicked(data, args.items)
    visits = small.rows(np.arange(args.visits))
    for make in MODELS.values():  # compiles the kernels
        make().fit(visits, engine="sparse").recommend(visits.rows([0]))
    if "routes" in args.tables:
        print(f"{args.data.name}: {small.n_users:,} sessions, {small.n_items:,} items\n")
        print("\n".join(routes(small, visits, args.repeats)))
        full_seconds = seconds(lambda: MODELS["SLIST"]().fit(data), args.repeats)
        print(f"\nSLIST on all {data.n_items:,} items: fit {full_seconds:.2f} s\n")
    if "events" in args.tables:
        print(f"{args.data.name}: {data.n_users:,} sessions, {data.n_items:,} items\n")
        print("\n".join(events(data, some_sessions(args.data, data, args.sessions), args.repeats)))
    if "matrices" in args.tables:
        print("\n".join(matrices(data, args.repeats)))


if __name__ == "__main__":
    main()
