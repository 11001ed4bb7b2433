"""Compare time and peak memory of `eq.read` and `polars.read_csv` on the same CSV file.

Run ``python benchmarks/read_csv.py --rows 10000000``. Each measurement runs in a separate process;
the peak memory of a process that only imports the same packages is subtracted. On Linux the
recorded peak of a process starts at that of its parent, so this process stays small: it imports
nothing large and lets another process write the file. ``--again`` instead prints the fastest of
repeated calls in one process, for CSV and Parquet; of CSV without the parser of plain numbers and
with text ids; and of the passes over the bytes alone: that parser, and `scan`, which looks for bad
records in files that polars refuses.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CHILD = """
import json, resource, sys, time
import polars as pl
import equipoise as eq
eq.read  # the name is loaded on first use
task, path = sys.argv[1:]
start = time.perf_counter()
if task == "polars":
    result = pl.read_csv(path)
elif task == "equipoise":
    result = eq.read(path, user="user_id", item="item_id", time="timestamp", min_rating=0.5)
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": seconds, "peak": peak}))
"""
AGAIN = """
import sys, time
from pathlib import Path
import polars as pl
import equipoise as eq
from equipoise.data.readers import delimited
path, rounds = sys.argv[1], int(sys.argv[2])
packed = path.replace(".csv", ".parquet")
frame = pl.read_csv(path)
frame.write_parquet(packed)
text = path.replace(".csv", "-text.csv")
ids = (pl.format("u{}", "user_id").alias("user_id"), pl.format("i{}", "item_id").alias("item_id"))
frame.with_columns(ids).write_csv(text)
del frame
names = {"user": "user_id", "item": "item_id", "time": "timestamp"}
columns = ("user_id", "item_id", "rating", "timestamp")
options = {"header": True, "quote": '"'}
parse_numbers, scan = delimited.parse_numbers, delimited.scan


def through_polars():
    delimited.parse_numbers = lambda *_, **__: None
    try:
        eq.read(path, **names, min_rating=0.5)
    finally:
        delimited.parse_numbers = parse_numbers


steps = {
    "polars.read_csv": lambda: pl.read_csv(path),
    "one pass of numbers": lambda: parse_numbers(Path(path), ",", columns, columns, **options),
    "the scan for bad records": lambda: scan(Path(path), ",", 4),
    "eq.read, CSV": lambda: eq.read(path, **names, min_rating=0.5),
    "eq.read, CSV, without the parser of numbers": through_polars,
    "polars.read_csv, text ids": lambda: pl.read_csv(text),
    "eq.read(polars.read_csv), text ids": (
        lambda: eq.read(pl.read_csv(text), **names, min_rating=0.5)
    ),
    "eq.read, CSV with text ids": lambda: eq.read(text, **names, min_rating=0.5),
    "polars.read_parquet": lambda: pl.read_parquet(packed),
    "eq.read, Parquet": lambda: eq.read(packed, **names, min_rating=0.5),
}
times = {name: [] for name in steps}
for turn in range(rounds + 1):
    for name, step in steps.items():
        start, before = time.perf_counter(), time.process_time()
        step()
        if turn:
            spent = time.perf_counter() - start, time.process_time() - before
            times[name].append(spent)
print("| | s | processor s | times polars |")
print("|---|---|---|---|")
for name, spent in times.items():
    source = "parquet" if "arquet" in name else "csv, text ids" if "text ids" in name else "csv"
    base = times[f"polars.read_{source}"]
    (least, work), floor = min(spent), min(base)[0]
    print(f"| {name} | {least:.2f} | {work:.2f} | {least / floor:.1f} |")
"""
WRITE = """
import sys
import numpy as np
import polars as pl
path, n_rows = sys.argv[1], int(sys.argv[2])
rng = np.random.default_rng(0)
n_users, n_items = max(n_rows // 70, 2), max(min(n_rows // 200, 50_000), 2)
item = np.minimum(rng.exponential(n_items / 8, n_rows), n_items - 1).astype(np.int64) + 1
pl.DataFrame(
    {
        "user_id": rng.integers(1, n_users, n_rows, endpoint=True),
        "item_id": item,
        "rating": rng.integers(1, 11, n_rows) / 2,
        "timestamp": rng.integers(1_100_000_000, 1_600_000_000, n_rows),
    }
).write_csv(path)
"""
TIMES_TARGET, MEMORY_TARGET = 1.8, 3.0


def measure(task: str, path: Path) -> dict[str, float]:
    command = [sys.executable, "-c", CHILD, task, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    runs_by_task: dict[str, list[dict[str, float]]] = {"polars": [], "equipoise": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.csv"
        subprocess.run([sys.executable, "-c", WRITE, str(path), str(options.rows)], check=True)
        if options.again:
            command = [sys.executable, "-c", AGAIN, str(path), str(options.repeats)]
            subprocess.run(command, check=True)
            return
        size = path.stat().st_size
        measure("equipoise", path)  # compiles the loops and fills the file cache
        idle = measure("import", path)["peak"]
        parent_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if parent_peak >= idle:
            raise SystemExit("this process is larger than its children: peaks would be wrong")
        for _ in range(options.repeats):
            for task, runs in runs_by_task.items():
                runs.append(measure(task, path))
    print(
        f"{options.rows:,} rows, {size / 1e6:,.0f} MB, median of {options.repeats} runs, "
        f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n"
    )
    print("| | seconds | ratio | peak MB over imports | ratio |\n|---|---|---|---|---|")
    base: tuple[float, float] | None = None
    for task, runs in runs_by_task.items():
        seconds = statistics.median(run["seconds"] for run in runs)
        peak = statistics.median(run["peak"] for run in runs) - idle
        base = base or (seconds, peak)
        ratios = seconds / base[0], peak / base[1]
        print(
            f"| {task} | {seconds:.2f} | {ratios[0]:.2f} | {peak / 1e6:,.0f} | {ratios[1]:.2f} |"
        )
    print(f"| target | | {TIMES_TARGET} | | {MEMORY_TARGET} |")


if __name__ == "__main__":
    main()
