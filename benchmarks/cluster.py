"""A cluster of this machine's processors against one worker and against the plain library.

Makes interactions, reads, counts and sums them on one worker and on two, solves over the workers,
fits, evaluates, writes lists, and kills a worker on the way; prints what it did and the ratios.

    python benchmarks/cluster.py                            # 50 million interactions
    python benchmarks/cluster.py --interactions 2000000     # a minute or two
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

import equipoise as eq
from equipoise.cluster.solving import WorkerSolver
from equipoise.machine import limited
from equipoise.solve import dense

PART = 1_000_000  # rows of a file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--interactions", type=int, default=50_000_000)
    parser.add_argument("--users", type=int, help="a fiftieth of the interactions if left out")
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--folder", type=Path, help="a temporary one if left out")
    parser.add_argument("--skip-solve", action="store_true", help="leave out the solve")
    given = parser.parse_args()
    users = given.users or max(given.interactions // 50, 100)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="equipoise-cluster-"))
    try:
        parts = made(folder / "events", given.interactions, users, given.items)
        compare(folder, parts, given.skip_solve)
    finally:
        if given.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


def made(folder: Path, n_rows: int, n_users: int, n_items: int) -> Path:
    """Write interactions in files; popularity falls with a power of the rank of an item."""
    if not folder.exists():
        folder.mkdir(parents=True)
        weight = np.arange(1, n_items + 1) ** -0.9
        edges = np.cumsum(weight) / weight.sum()
        for number, start in enumerate(range(0, n_rows, PART)):
            rng = np.random.default_rng(number)
            size = min(PART, n_rows - start)
            user = rng.integers(0, n_users, size)
            item = np.searchsorted(edges, rng.random(size))
            frame = pl.DataFrame({"user": user, "item": item})
            frame.write_parquet(folder / f"part-{number:04d}.parquet")
    say(f"{n_rows:,} rows of {n_users:,} users and {n_items:,} items in {folder.name}")
    return folder


def say(text: str) -> None:
    print(text, flush=True)


class Spent(NamedTuple):
    """Time on the clock, and of processors, which other work on the machine hardly changes."""

    seconds: float
    processor: float

    def __add__(self, other: Any) -> Spent:
        return Spent(self.seconds + other.seconds, self.processor + other.processor)


def timed(what: str, work: Callable[[], Any], client: Any = None) -> tuple[Any, Spent]:
    """Do something and say how long it took, here and on the workers of a client."""
    before, start = processor_seconds(client), time.perf_counter()
    found = work()
    seconds = time.perf_counter() - start
    spent = Spent(seconds, processor_seconds(client) - before)
    say(f"  {what}: {spent.seconds:.1f} s, {spent.processor:.1f} s of processors")
    return found, spent


def processor_seconds(client: Any) -> float:
    there = [] if client is None else client.run(time.process_time).values()
    return time.process_time() + sum(there)


@contextmanager
def workers(number: int) -> Iterator[Any]:
    """Start worker processes of one thread each, whose code is compiled already."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=number,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            env={"POLARS_MAX_THREADS": "1"},
        ) as cluster,
        Client(cluster) as client,
    ):
        say(f"{number} worker{'s' if number > 1 else ''}; dashboard at {cluster.dashboard_link}")
        client.run(compile_kernels)
        yield client


def compile_kernels() -> None:
    """Do a little of everything once."""
    data = eq.Interactions((np.random.default_rng(0).random((40, 12)) < 0.4).astype(np.float32))
    with limited(1):
        eq.read(data.to_frame().select("user", "item"))
        eq.EASE(l2=1.0).fit(data).recommend(data.users[:3].tolist(), k=3)
        WorkerSolver(_Here(), data, tile_rows=6).system(np.ones(40), np.ones(12))


class _Here:
    """A client that runs tasks where it is."""

    def submit(self, function: Any, *args: Any, pure: bool = False) -> Any:
        return function(*args)


def ingest(client: Any, parts: Path) -> tuple[Any, Spent]:
    """Read and count, and sum the Gram matrix; return the data and the time of all three."""
    from distributed import wait

    data, reading = timed("read", lambda: eq.cluster.read(parts, client=client), client)
    _, counting = timed("counts", lambda: data.item_counts, client)
    local, gathering = timed("gather", data.gather, client)
    solver = WorkerSolver(client, local)
    ones = np.ones(local.n_users), np.ones(local.n_items)
    tiles, summing = timed("Gram tiles", lambda: wait(list(solver.system(*ones).values())), client)
    del tiles
    return data, reading + counting + gathering + summing


def plain(parts: Path) -> tuple[Any, Spent]:
    data, reading = timed("read", lambda: eq.read(parts))
    room = np.empty((data.n_items,) * 2, np.float32)
    ones = np.ones(data.n_users)
    _, summing = timed("Gram", lambda: dense.weighted_gram(data.matrix, ones, room))
    return data, reading + summing


def kill_soon(client: Any, seconds: float) -> threading.Timer:
    """Kill a worker process in a while; its nanny starts another one."""
    pid = next(iter(client.run(os.getpid).values()))
    timer = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
    timer.start()
    return timer


def compare(folder: Path, parts: Path, skip_solve: bool) -> None:
    say("the plain library, two threads")
    compile_kernels()
    local, alone = plain(parts)
    model = eq.EASE(l2=100.0)
    split = eq.split.strong(local, valid=0, test=min(0.1, 20_000 / local.n_users))
    fitted, _ = timed("fit", lambda: model.fit(split.train))
    expected, _ = timed("evaluate", lambda: eq.evaluate(fitted, split.test, bootstrap=0))
    fitted.save(folder / "model")
    lists = {}
    phases = {}
    for number in (1, 2):
        with workers(number) as client:
            data, phases[number] = ingest(client, parts)
            _, lists[number] = timed(
                "20 items for each user",
                lambda client=client, number=number: eq.cluster.recommend_to(
                    folder / "model", folder / f"lists-{number}", client=client
                ),
                client,
            )
            if number == 1:
                continue
            assert data.gather().fingerprint == local.fingerprint
            say("  the data have the same bits")
            found, _ = timed(
                "evaluate",
                lambda client=client: eq.cluster.evaluate(
                    folder / "model", split.test, client=client, bootstrap=0
                ),
            )
            assert found.table.equals(expected.table)
            say(f"  the same metrics: ndcg@20 {found['ndcg@20']:.4f}")
            if not skip_solve:
                solve(client, split.train)
            say("a worker is killed while it reads")
            del data
            timer = kill_soon(client, phases[2].seconds / 8)
            again, broken = timed("read", lambda: eq.cluster.read(parts, client=client))
            timer.join()
            assert again.gather().fingerprint == local.fingerprint
            say(f"  the same bits, in {broken.seconds:.1f} s")
    say("ratios")
    for what, found in (("read, counts and Gram", phases), ("lists", lists)):
        faster = found[1].seconds / found[2].seconds
        more = found[2].processor / found[1].processor
        say(f"  {what}: two workers {faster:.2f}x as fast as one, with {more:.2f} of the work")
    work = phases[2].processor / alone.processor
    say(
        f"  read, counts and Gram: {phases[2].seconds / alone.seconds:.2f} of the time of the "
        f"plain library on the same processors, {work:.2f} of its work"
    )


def solve(client: Any, train: Any) -> None:
    """Solve over the workers and on this machine, and compare."""
    penalty, weights = np.full(train.n_items, 100.0), np.ones(train.n_users)
    gram = dense.Gram(train.matrix, weights)
    (wanted, _), here = timed("dense engine", lambda: gram.inverse(penalty))
    solver = WorkerSolver(client, train)
    found, there = timed("over the workers", lambda: solver.solve(weights, penalty), client)
    apart = float(np.abs(found.P - wanted).max() / np.abs(wanted).max())
    most = client.run(peak_bytes)
    share = max(most.values()) / wanted.nbytes
    say(
        f"  {train.n_items:,} items: {there.seconds / here.seconds:.2f} of the time of the dense "
        f"engine, {there.processor / here.processor:.2f} of its work; largest difference "
        f"{apart:.1e} of the largest number; peak of a worker process {share:.0%} of the matrix, "
        "interpreter and data included"
    )


def peak_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
