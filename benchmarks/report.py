"""Measure time, memory and size of the report on MovieLens 1M, as a Markdown table.

    python benchmarks/report.py [--data movielens-1m] [--min-rating 4]

Everything counts except for downloading and reading the data. The goals are 60 seconds on two
cores and 3 MB. If the process got far fewer cores on average than the machine has, the machine was
busy and the seconds are too long.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import equipoise as eq
from equipoise.report import write_report

GOAL_SECONDS, GOAL_BYTES = 60, 3_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="movielens-1m")
    parser.add_argument("--min-rating", type=float, default=4)
    options = parser.parse_args()
    data = eq.datasets.load(options.data, min_rating=options.min_rating)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        start, busy = time.perf_counter(), time.process_time()
        facts = write_report(data, path, name=options.data)
        seconds, busy = time.perf_counter() - start, time.process_time() - busy
        size = path.stat().st_size
    print(f"{data}\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| what | value | goal |\n|---|---:|---:|")
    print(f"| seconds | {seconds:.1f} | {GOAL_SECONDS} |")
    print(f"| seconds of processor time | {busy:.1f} | |")
    print(f"| cores had on average | {busy / seconds:.2f} | |")
    print(f"| size of the page, KB | {size / 1000:.0f} | {GOAL_BYTES // 1000:,} |")
    print(f"| most memory, MB | {(facts['costs']['peak_bytes'] or 0) / 1e6:.0f} | |")
    for step, spent in facts["costs"]["seconds"].items():
        print(f"| {step}, s | {spent:.2f} | |")


if __name__ == "__main__":
    main()
