"""Compare the tiled with the dense engine: seconds, their ratio, memory and budget.

    python benchmarks/tiled.py [--items 20000] [--memory 700MB] [--skip-dense] [--out FILE]

The data are synthetic, long-tailed, with 27 interactions per user. Each engine runs in a separate
process; memory is the peak resident memory of the fit minus that before it. The tiles are written
to a folder in `--scratch`, by default the folder for temporary files.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from equipoise.data.interactions import Interactions
from equipoise.runtime.machine import count, parse_memory
from equipoise.solve.engine import Solver
from equipoise.solve.planning import SolveOptions, plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--users", type=int, default=30_000)
    parser.add_argument("--memory", default="700MB", help="budget of the tiled engine")
    parser.add_argument("--scratch", help="folder for the tiles")
    parser.add_argument("--skip-dense", action="store_true")
    parser.add_argument(
        "--engine", help="run one engine and print JSON; used by the script itself"
    )
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    options = parser.parse_args()
    if options.engine:
        print(json.dumps(run(options)))
        return
    engines = ["tiled"] if options.skip_dense else ["dense", "tiled"]
    rows = [json.loads(apart(options, engine)) for engine in engines]
    report(rows, parse_memory(options.memory), options.out)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Return the measurements of one fit in this process."""
    data = interactions(options.users, options.items)
    weights = data.user_counts.astype(np.float64) ** -0.3
    penalty = 20 + data.item_counts.astype(np.float64)
    tiled = options.engine == "tiled"
    memory = options.memory if tiled else None
    cost = plan(data, engine=options.engine, memory=memory)
    warm = interactions(50, 300)  # compiles the kernels
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        for interactions_set in (warm, data):
            scale = interactions_set.n_items / data.n_items
            scratch = Path(folder) / str(interactions_set.n_items) if tiled else None
            before = resident("VmRSS", forget_peak=True)
            start = time.perf_counter()
            run = SolveOptions(engine=options.engine, memory=memory, scratch=scratch)
            solved = Solver(interactions_set, run, keep_gram=False).solve(
                np.ones(interactions_set.n_users) if scale < 1 else weights,
                np.full(interactions_set.n_items, 20.0) if scale < 1 else penalty,
            )
            seconds = time.perf_counter() - start
        after = resident("VmHWM")
    return {
        "engine": options.engine,
        "items": options.items,
        "seconds": seconds,
        "planned_seconds": cost.seconds,
        "gflops": options.items**3 / seconds / 1e9,
        "peak_bytes": after - before,
        "process_bytes": after,
        "planned_bytes": cost.peak_bytes,
        "tile_rows": cost.tile_rows,
        "disk_bytes": cost.disk_bytes,
        "residual": solved.residual,
    }


def resident(field: str, *, forget_peak: bool = False) -> int:
    """Return the current (VmRSS) or peak (VmHWM) resident memory of this process in bytes."""
    if forget_peak:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def apart(options: argparse.Namespace, engine: str) -> str:
    """Run one engine in a separate process; return its JSON output."""
    command = [sys.executable, __file__, "--engine", engine, "--memory", options.memory]
    command += ["--items", str(options.items), "--users", str(options.users)]
    command += ["--scratch", options.scratch] if options.scratch else []
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def report(rows: list[dict[str, Any]], budget: int, out: Path | None) -> None:
    print(f"\n{rows[0]['items']:,} items, float32, {count()} cores, budget {budget / 1e9:g} GB\n")
    print("| engine | seconds | planned | ratio | GFLOP/s | memory GB | of budget | residual |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        ratio = row["seconds"] / rows[0]["seconds"]
        share = f"{row['peak_bytes'] / budget:.0%}" if row["engine"] == "tiled" else ""
        print(
            f"| {row['engine']} | {row['seconds']:.1f} | {row['planned_seconds']:.1f} "
            f"| {ratio:.2f} | {row['gflops']:.0f} | {row['peak_bytes'] / 1e9:.2f} | {share} "
            f"| {row['residual']:.1e} |"
        )
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        result = {"cores": count(), "budget_bytes": budget, "rows": rows}
        out.write_text(json.dumps(result, indent=1) + "\n")


def interactions(n_users: int, n_items: int) -> Interactions:
    """Return long-tailed synthetic interactions."""
    rng = np.random.default_rng(0)
    size = 27 * n_users
    weight = np.cumsum(1 / np.arange(1, n_items + 1) ** 0.7)
    items = np.searchsorted(weight, rng.random(size) * weight[-1]).clip(max=n_items - 1)
    users = np.concatenate([np.arange(n_users), rng.integers(0, n_users, size - n_users)])
    matrix = sp.csr_array((np.ones(size, np.float32), (users, items)), shape=(n_users, n_items))
    matrix.sum_duplicates()
    matrix.data[:] = 1
    return Interactions(matrix, None, None)


if __name__ == "__main__":
    main()
