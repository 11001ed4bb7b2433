"""Compare two local cluster workers with one worker and with the in-memory library.

Generates interactions, then reads and counts them and computes the Gram matrix on one worker and
on two; solves on the workers, evaluates, writes lists, and kills a worker during a read. Prints
the times and their ratios. With `--folder` the phases can be run one at a time; the measurements
are stored there in `times.json`.

    python benchmarks/cluster.py                            # 50 million interactions
    python benchmarks/cluster.py --interactions 2000000     # a minute or two
    python benchmarks/cluster.py --folder F --phases ingest lists
    python benchmarks/cluster.py --folder F --phases memory --interactions 5000000 --items 5000

The phase `memory` starts a scheduler, two workers and a client as processes of their own, goes
from files to written lists with a fit of neighbourhoods, and prints the peak memory of each. With
one folder for several sizes it also prints how the peaks grow. The phase `bytes` measures
what a task takes in the scheduler and in the client, and a pair in a file and a block of users.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import scipy.sparse as sp

import equipoise as eq
from equipoise.cluster.solving import WorkerSolver, gram_rows
from equipoise.cluster.spread import Spread
from equipoise.cluster.workers import start_local
from equipoise.runtime.machine import limited
from equipoise.solve import dense

PART = 1_000_000  # rows of a file
PHASES = ("plain", "ingest", "files", "lists", "evaluate", "neighbourhood", "solve", "kill")
MEMORY, BYTES = "memory", "bytes"  # phases of their own, in another cluster
MORE = ("passes", MEMORY, BYTES)  # phases that do not run unless they are named
TASKS, BLOCK_USERS = 4_000, 80_000  # of the phase `bytes`
NEIGHBOURS = 50
FILES, ROWS_OF_FILE = 4_000, 250


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--interactions", type=int, default=50_000_000)
    parser.add_argument("--users", type=int, help="a fiftieth of the interactions if left out")
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--folder", type=Path, help="a temporary one if left out")
    parser.add_argument("--phases", nargs="+", choices=PHASES + MORE, default=PHASES)
    options = parser.parse_args()
    users = options.users or max(options.interactions // 50, 100)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="equipoise-cluster-"))
    try:
        if BYTES in options.phases:
            measure_bytes(folder)
            return
        if MEMORY in options.phases:
            measure_memory(folder, options.interactions, users, options.items)
            return
        parts = write_events(folder / "events", options.interactions, users, options.items)
        Comparison(folder, parts).run(options.phases)
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


def write_events(folder: Path, n_rows: int, n_users: int, n_items: int) -> Path:
    """Write Parquet files of interactions whose item popularity follows a power law."""
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


def processor_seconds(client: Any) -> Any:
    """Return total and kernel processor seconds, summed over this process and all workers."""
    there = [] if client is None else list(client.run(own_seconds).values())
    return np.sum([own_seconds(), *there], axis=0)


def own_seconds() -> tuple[float, float]:
    used = os.times()
    return used.user + used.system, used.system


def task_seconds(client: Any, since: float) -> float:
    """Return the summed run time of tasks; parallel tasks on a busy machine take longer."""
    if client is None:
        return 0.0
    ran = [task["startstops"] for task in client.get_task_stream(start=since)]
    return float(
        sum(part["stop"] - part["start"] for parts in ran for part in parts if computes(part))
    )


def computes(part: dict[str, Any]) -> bool:
    """Tell whether this part of a task is computation, not the transfer of its inputs."""
    return part["action"] == "compute"


@contextmanager
def workers(number: int, **options: Any) -> Iterator[Any]:
    """Start worker processes with one thread each and compile their kernels."""
    from distributed import Client

    start = start_local(number, dashboard_address=":0", **options)
    with start as cluster, Client(cluster) as client:
        say(f"{number} worker{'s' if number > 1 else ''}; dashboard at {cluster.dashboard_link}")
        client.run(compile_kernels)
        client.get_task_stream()  # starts recording
        yield client


def compile_kernels() -> None:
    """Run every measured operation once on small data, so that its kernels are compiled."""
    data = eq.Interactions((np.random.default_rng(0).random((40, 12)) < 0.4).astype(np.float32))
    with limited(1):
        eq.read(data.to_frame().select("user", "item"))
        eq.EASE(l2=1.0).fit(data).recommend(data.users[:3].tolist(), k=3)
        gram_rows(None, [(data.matrix, np.ones(40))], (0, 12), "float32")


def kill_soon(client: Any, seconds: float) -> threading.Timer:
    """Kill a worker process after some seconds; its nanny starts a new one."""
    pid = next(iter(client.run(os.getpid).values()))
    timer = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
    timer.start()
    return timer


class Comparison:
    """The phases of the benchmark and their measurements in clock and processor seconds."""

    def __init__(self, folder: Path, parts: Path) -> None:
        self.folder, self.parts = folder, parts
        self.file = folder / "times.json"
        self.times: dict[str, Any] = (
            json.loads(self.file.read_text()) if self.file.exists() else {}
        )
        self._split: Any = None

    def run(self, phases: Any) -> None:
        """Run the phases and print the ratios of all measurements."""
        compile_kernels()
        for phase in phases:
            say(phase)
            getattr(self, phase)()
        self.ratios()

    def timed(self, label: str, work: Callable[[], Any], client: Any = None) -> Any:
        """Run `work`, store its time here and on the workers, and return its result."""
        before, start, since = processor_seconds(client), time.perf_counter(), time.time()
        result = work()
        seconds = time.perf_counter() - start
        tasks = task_seconds(client, since)
        used, kernel = (float(seconds_used) for seconds_used in processor_seconds(client) - before)
        there = "" if client is None else f", tasks of {tasks:.1f} s"
        work = f"{used:.1f} s of processors ({kernel:.1f} in the kernel)"
        say(f"  {label}: {seconds:.1f} s, {work}{there}")
        self.keep(label, (seconds, used, tasks, kernel))
        return result

    def keep(self, label: str, measurement: Any) -> None:
        """Store a measurement in times.json."""
        self.times[label] = measurement
        self.file.write_text(json.dumps(self.times, indent=1))

    def split(self) -> Any:
        """Return a cached split of all interactions."""
        if self._split is None:
            data = eq.read(self.parts)
            test = min(0.1, 20_000 / data.n_users)
            self._split = eq.split.strong(data, valid=0, test=test)
        return self._split

    def model(self) -> Path:
        """Return the folder of a model that was fitted on the train part."""
        home = self.folder / "model"
        if not home.exists():
            train = self.split().train
            self.timed("fit", lambda: eq.EASE(l2=100.0).fit(train)).save(home)
        return home

    def plain(self) -> None:
        """Read the data and compute the Gram matrix in this process."""
        data = self.timed("plain read", lambda: eq.read(self.parts))
        room = np.empty((data.n_items,) * 2, np.float32)
        ones = np.ones(data.n_users)
        self.timed("plain Gram", lambda: dense.weighted_gram(data.matrix, ones, room))
        self.keep("fingerprint", data.fingerprint)

    def ingest(self) -> None:
        """Read and count the data and compute the Gram matrix on one worker and on two."""
        from distributed import wait

        for number in (1, 2):
            with workers(number) as client:
                name = f"{number} workers: "

                def read(client: Any = client) -> Any:
                    return eq.cluster.read(self.parts, client=client)

                data = self.timed(name + "read", read, client)
                self.timed(name + "counts", lambda data=data: data.item_counts, client)
                ones = np.ones(data.n_users), np.ones(data.n_items)

                def gram(client: Any = client, data: Any = data, ones: Any = ones) -> Any:
                    solver = WorkerSolver(Spread(client, data), None)  # type: ignore[arg-type]
                    return wait(list(solver.system(*ones).values()))

                self.timed(name + "Gram", gram, client)
                if number == 2 and "fingerprint" in self.times:
                    local = self.timed("gather", data.gather, client)
                    assert local.fingerprint == self.times["fingerprint"]
                    say("  the data have the same bits")

    def files(self) -> None:
        """Read a million rows from one file and from 4,000, and count the tasks."""
        rows = pl.concat(pl.scan_parquet(file) for file in self._first_parts()).collect()
        rows = rows[: FILES * ROWS_OF_FILE]
        one, many = self.folder / "one", self.folder / "many"
        for place, size in ((one, rows.height), (many, ROWS_OF_FILE)):
            if not place.exists():
                place.mkdir()
                for number, start in enumerate(range(0, rows.height, size)):
                    rows[start : start + size].write_parquet(place / f"part-{number:04d}.parquet")
        with workers(2) as client:
            eq.cluster.read(one, client=client)  # workers load compiled kernels
            for label, place in (("one file", one), (f"{FILES:,} files", many)):

                def read(place: Path = place) -> Any:
                    return eq.cluster.read(place, client=client)

                before = n_tasks(client)
                data = self.timed(f"{label}: read", read, client)
                say(f"  {n_tasks(client) - before} tasks, {len(data.blocks)} blocks")
            blocks = 13
            before = n_tasks(client)
            data = eq.cluster.read(self.parts, client=client, block_rows=self._rows() // blocks)
            n_blocks, tasks = len(data.blocks), n_tasks(client) - before
            self.keep("tasks", (tasks, n_blocks))
            say(f"  {self._rows():,} rows in {n_blocks} blocks: {tasks} tasks")

    def _rows(self) -> int:
        return int(pl.scan_parquet(self.parts / "*.parquet").select(pl.len()).collect().item())

    def _first_parts(self) -> list[Path]:
        return sorted(self.parts.glob("part-*.parquet"))[: -(-FILES * ROWS_OF_FILE // PART)]

    def lists(self) -> None:
        """Write 20 items for each training user, on one worker and on two."""
        home = self.model()
        for number in (1, 2):
            out = self.folder / f"lists-{number}"
            shutil.rmtree(out, ignore_errors=True)
            with workers(number) as client:
                users = self.timed(
                    f"{number} workers: lists",
                    lambda out=out, client=client: eq.cluster.recommend_to(
                        home, out, client=client
                    ),
                    client,
                )
                peak = max(client.run(peak_bytes).values())
                say(f"  {users:,} users; peak of a worker process {peak / 1e9:.2f} GB")
                self.keep(f"{number} workers: lists, peak bytes", peak)

    def evaluate(self) -> None:
        """Evaluate in this process and on two workers."""
        home, split = self.model(), self.split()
        fitted = eq.load(home)
        local_result = self.timed("evaluate", lambda: eq.evaluate(fitted, split.test, bootstrap=0))
        with workers(2) as client:
            cluster_result = self.timed(
                "2 workers: evaluate",
                lambda: eq.cluster.evaluate(home, split.test, client=client, bootstrap=0),
                client,
            )
        assert cluster_result.table.equals(local_result.table)
        say(f"  the same metrics: ndcg@20 {cluster_result['ndcg@20']:.4f}")

    def neighbourhood(self) -> None:
        """Fit with the neighbourhood engine in this process and on two workers."""
        self._compare_neighbourhoods("2 workers: neighbourhood")

    def passes(self) -> None:
        """The same on workers of 1 GB, which do not hold the entries of all items."""
        self._compare_neighbourhoods("2 workers of 1 GB: neighbourhood", memory_limit="1GB")

    def _compare_neighbourhoods(self, label: str, **limits: Any) -> None:
        near = {"engine": "neighbourhood", "neighbours": NEIGHBOURS}
        model, data = eq.EASE(l2=100.0), eq.read(self.parts)
        local_model = self.timed("neighbourhood", lambda: model.fit(data, **near))
        columns = local_model.inverse_
        with workers(2, **limits) as client:
            there = eq.cluster.read(self.parts, client=client)
            cluster_model = self.timed(label, lambda: eq.cluster.fit(model, there, **near), client)
            tasks = [str(task["key"]) for task in client.get_task_stream()]
            peak = max(client.run(peak_bytes).values())
        n_visits = sum(task.startswith("gather-") for task in tasks)
        say(f"  {n_visits} visits of groups to strips; peak of a worker {peak / 1e9:.2f} GB")
        self.keep(f"{label}, peak bytes", peak)
        same = np.array_equal(cluster_model.inverse_.data, columns.data)
        say(f"  {'the same' if same else 'other'} bits")

    def solve(self) -> None:
        """Solve on two workers and with the dense engine, and compare the inverses."""
        train = self.split().train
        penalty, weights = np.full(train.n_items, 100.0), np.ones(train.n_users)
        gram = dense.Gram(train.matrix, weights)
        dense_inverse, _ = self.timed("dense engine", lambda: gram.inverse(penalty))
        with workers(2) as client, most_held(client) as tile_bytes:
            solver = WorkerSolver(Spread(client, train), train)
            solution = self.timed(
                "2 workers: exact", lambda: solver.solve(weights, penalty), client
            )
        apart = float(np.abs(solution.P - dense_inverse).max() / np.abs(dense_inverse).max())
        share = tile_bytes[0] / dense_inverse.nbytes
        self.keep("exact, tiles of a worker", share)
        say(
            f"  {train.n_items:,} items: largest difference {apart:.1e} of the largest number; "
            f"tiles that a worker held at most: {share:.0%} of the matrix"
        )

    def kill(self) -> None:
        """Kill a worker while it reads."""
        read_seconds = self.times.get("2 workers: read", (4.0, 0.0))[0]
        with workers(2) as client:
            timer = kill_soon(client, read_seconds / 4)
            data = self.timed(
                "2 workers, one is killed: read",
                lambda: eq.cluster.read(self.parts, client=client),
            )
            timer.join()
            if "fingerprint" in self.times:
                assert data.gather().fingerprint == self.times["fingerprint"]
                say("  the same bits")

    def ratios(self) -> None:
        """Print the ratios of the measured times."""
        steps = ("read", "counts", "Gram")
        one, two = ([f"{number} workers: {step}" for step in steps] for number in (1, 2))
        plain = ["plain read", "plain Gram"]
        self.ratio("read, counts and Gram: one worker / two workers", one, two)
        self.ratio("read, counts and Gram: two workers / plain library", two, plain)
        self.ratio("exact: two workers / dense engine", ["2 workers: exact"], ["dense engine"])
        self.ratio("lists: one worker / two workers", ["1 workers: lists"], ["2 workers: lists"])
        many = [f"{FILES:,} files: read"], ["one file: read"]
        self.ratio(f"{FILES:,} files / one file with the same rows", *many)
        near = ["2 workers: neighbourhood"], ["neighbourhood"]
        self.ratio("neighbourhood: two workers / plain library", *near)
        self.ratio(
            "read: with a killed worker / without",
            ["2 workers, one is killed: read"],
            ["2 workers: read"],
        )

    def ratio(self, label: str, above: list[str], below: list[str]) -> None:
        """Print the ratio of two sums of measurements, if all of them exist."""
        if not set(above) | set(below) <= set(self.times):
            return
        clock, work = (
            sum(self.times[name][at] for name in above)
            / sum(self.times[name][at] for name in below)
            for at in (0, 1)
        )
        say(f"{label}: {clock:.2f} of the time, {work:.2f} of the work")


def measure_bytes(folder: Path) -> None:
    """Print the bytes of a task, and those of a pair in the file of a block and on the way."""
    from distributed import Client

    from equipoise.cluster.workers import fetch, identity, submit

    folder.mkdir(parents=True, exist_ok=True)
    for step in ("write", "read"):
        code = "import sys; from benchmarks.cluster import pass_block; pass_block(*sys.argv[1:])"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])}
        command = [sys.executable, "-c", code, str(folder), step]
        subprocess.run(command, env=environment, check=True)
    file = ["--scheduler-file", str(folder / "scheduler.json"), "--no-dashboard"]
    dask = [sys.executable, "-m", "dask"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    scheduler = subprocess.Popen([*dask, "scheduler", "--port", "0", *file], **quiet)
    worker = subprocess.Popen([*dask, "worker", "--nthreads", "1", "--no-nanny", *file], **quiet)
    try:
        with Client(scheduler_file=file[1], set_as_default=False) as client:
            client.wait_for_workers(1)
            fetch(client, [submit(client, identity, number) for number in range(100)])
            before = held_bytes(scheduler.pid), held_bytes()
            futures = [submit(client, identity, number) for number in range(TASKS)]
            fetch(client, futures)
            after = held_bytes(scheduler.pid), held_bytes()
    finally:
        for process in (worker, scheduler):
            process.kill()
            process.wait()
    of_scheduler, of_client = (
        (more - less) / TASKS for more, less in zip(after, before, strict=True)
    )
    say(f"a task takes {of_scheduler:,.0f} bytes of the scheduler, {of_client:,.0f} of the client")


def pass_block(folder: str, step: str) -> None:
    """Write a block of users to a file, or read it; print bytes per pair."""
    from equipoise.data.blocks import SavedBlocks, write_block
    from equipoise.data.storage import Fields

    entry_file = Path(folder) / "entry.json"
    if step == "write":
        rng = np.random.default_rng(0)
        lengths = rng.integers(30, 70, BLOCK_USERS)
        edges = np.cumsum(np.arange(1, 20_001) ** -0.9)
        items = np.searchsorted(edges / edges[-1], rng.random(lengths.sum())).astype(np.int32)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        ones = np.ones(len(items), np.float32)
        matrix: Any = sp.csr_array((ones, items, offsets), shape=(BLOCK_USERS, 20_000))
        matrix.sum_duplicates()
        matrix.data[:] = 1
        block = eq.Interactions(matrix, np.arange(10**8, 10**8 + BLOCK_USERS))
        before = peak_bytes()
        entry = write_block(folder, 0, "0" * 12, block)
        entry_file.write_text(json.dumps(entry))
        size = entry["bytes"] / block.n_interactions
    else:
        entry = json.loads(entry_file.read_text())
        before = peak_bytes()
        block = SavedBlocks(folder, [Fields(entry)]).read(0)
        matrix = block.matrix
        arrays = matrix.data, matrix.indices, matrix.indptr, block.users
        size = sum(array.nbytes for array in arrays) / block.n_interactions
    way = (peak_bytes() - before) / block.n_interactions
    place = "in the file" if step == "write" else "in memory"
    say(f"{step}: a pair takes {size:.1f} bytes {place}, and {way:.0f} on the way")


def measure_memory(folder: Path, n_rows: int, n_users: int, n_items: int) -> None:
    """Go from files to lists on a cluster of processes; print and keep their peaks of memory."""
    parts = write_events(folder / f"events-{n_rows}", n_rows, n_users, n_items)
    out = folder / f"memory-{n_rows}"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    environment = {**os.environ, "POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    file = ["--scheduler-file", str(out / "scheduler.json"), "--no-dashboard"]
    dask = [sys.executable, "-m", "dask"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    quiet["env"] = environment
    scheduler = subprocess.Popen([*dask, "scheduler", "--port", "0", *file], **quiet)
    worker = [*dask, "worker", "--nthreads", "1", "--no-nanny", "--memory-limit", "6GB", *file]
    processes = [subprocess.Popen(worker, **quiet) for _ in range(2)]
    try:
        started = time.perf_counter()
        code = "import sys; from benchmarks.cluster import run_client; run_client(*sys.argv[1:])"
        environment["PYTHONPATH"] = os.pathsep.join(["src", "."])
        command = [sys.executable, "-c", code, str(out), str(parts)]
        subprocess.run(command, env=environment, check=True)
        seconds = time.perf_counter() - started
        peaks = json.loads((out / "client.json").read_text())
        peaks["scheduler"] = peak_bytes(scheduler.pid)
        peaks["largest worker"] = max(peak_bytes(process.pid) for process in processes)
    finally:
        for process in (*processes, scheduler):
            process.kill()
            process.wait()
    bytes_on_disk = sum(path.stat().st_size for path in (out / "model").glob("block_*"))
    results = folder / "memory.json"
    sizes = json.loads(results.read_text()) if results.exists() else {}
    sizes[str(n_rows)] = {**peaks, "seconds": seconds, "bytes of blocks": bytes_on_disk}
    results.write_text(json.dumps(sizes, indent=1))
    first = min(sizes, key=int)
    for rows in sorted(sizes, key=int):
        for name in ("client", "scheduler", "largest worker"):
            growth = sizes[rows][name] / sizes[first][name] - 1
            say(
                f"{int(rows):>12,} rows  {name:15} {sizes[rows][name] / 1e6:8.0f} MB {growth:+.0%}"
            )
        say(f"{int(rows):>12,} rows  {sizes[rows]}")


def run_client(out: str, parts: str) -> None:
    """Read, fit neighbourhoods, save and write lists; keep the peak memory after each step."""
    from distributed import Client

    target, peaks = Path(out), {}
    with Client(scheduler_file=f"{out}/scheduler.json", set_as_default=False) as client:
        client.wait_for_workers(2)
        peaks["client at the start"] = peak_bytes()
        data = eq.cluster.read(f"{parts}/part-*.parquet", client=client)
        peaks["client after read"] = peak_bytes()
        near = {"engine": "neighbourhood", "neighbours": NEIGHBOURS}
        normalizer = eq.DAN(0.2, 0.3)
        model = eq.cluster.fit(eq.EASE(l2=100.0, normalizer=normalizer), data, **near)
        assert not model.data_.in_memory
        peaks["client after fit"] = peak_bytes()
        model.save(target / "model")
        del data, model
        users = eq.cluster.recommend_to(target / "model", target / "lists", client=client)
        peaks["client"] = peak_bytes()
        peaks["users"] = users
    (target / "client.json").write_text(json.dumps(peaks))


def n_tasks(client: Any) -> int:
    """Return how many tasks the workers have computed."""
    return sum(
        any(computes(part) for part in task["startstops"]) for task in client.get_task_stream()
    )


@contextmanager
def most_held(client: Any) -> Iterator[list[int]]:
    """Record the most bytes of tiles on a worker, including copies for its next tasks."""
    scheduler = client.cluster.scheduler
    most, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            for worker in list(scheduler.workers.values()):
                tasks = [task for task in list(worker.has_what) if task.prefix.name in TILES]
                most[0] = max(most[0], sum(max(task.nbytes, 0) for task in tasks))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()


TILES = ("changed", "tile_of")


def held_bytes(process: int | str = "self") -> int:
    """Return the memory of a process now."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def peak_bytes(process: int | str = "self") -> int:
    # VmHWM, because the ru_maxrss of a child process starts at its parent's peak
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


if __name__ == "__main__":
    main()
