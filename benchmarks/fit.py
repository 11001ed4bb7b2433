"""Compare time and memory of a fit with its floor: sparse Gram + LAPACK spotrf + spotri.

    python benchmarks/fit.py --items 10000 20000

Prints a Markdown table. Both are timed in turns in one process; memory is measured in separate
processes.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from scipy.linalg import lapack

import equipoise as eq


def long_tailed(n_users: int, n_items: int, n_pairs: int, seed: int = 0) -> eq.Interactions:
    """Return random data with log-normal history lengths and long-tailed item popularity."""
    rng = np.random.default_rng(seed)
    share = 1 / (np.arange(n_items) + 20.0) ** 0.9
    activity = rng.lognormal(0, 0.8, n_users)
    draws = int(n_pairs * 1.12)
    users = rng.choice(n_users, draws, p=activity / activity.sum())
    items = rng.choice(n_items, draws, p=share / share.sum())
    cells = np.unique(users * n_items + items)
    cells = np.sort(rng.choice(cells, min(n_pairs, len(cells)), replace=False))
    pairs = (np.ones(len(cells), np.float32), (cells // n_items, cells % n_items))
    return eq.Interactions(sp.csr_array(pairs, shape=(n_users, n_items)))


def floor(data: eq.Interactions, l2: float) -> float:
    """Return the seconds of the sparse Gram matrix and of LAPACK, without the conversion."""
    X = data.matrix
    start = time.perf_counter()
    G = X.T @ X
    gram = time.perf_counter() - start
    A = np.asarray(G.todense())
    A.flat[:: len(A) + 1] += np.float32(l2)
    start = time.perf_counter()
    factor, _ = lapack.spotrf(A.T, lower=1, clean=0, overwrite_a=1)
    lapack.spotri(factor, lower=1, overwrite_c=1)
    return gram + time.perf_counter() - start


def ours(data: eq.Interactions, l2: float) -> float:
    start = time.perf_counter()
    eq.EASE(l2=l2).fit(data)
    return time.perf_counter() - start


def extra_memory(n_items: int, users: int, pairs: int) -> float:
    """Return the peak memory of a fit beyond the data, in n x n float32 arrays."""
    peaks = []
    for part in ("data", "fit"):
        command = [sys.executable, __file__, "--child", part, "--items", str(n_items)]
        command += ["--users", str(users), "--pairs", str(pairs)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        peaks.append(int(printed) * 1024)
    return (peaks[1] - peaks[0]) / (4.0 * n_items**2)


def child(part: str, data: eq.Interactions) -> None:
    small = data.rows(np.arange(50)).columns(np.arange(60))
    eq.EASE(l2=100.0).fit(small)  # loads and compiles everything, calibrates the planner
    if part == "fit":
        eq.EASE(l2=100.0).fit(data)
    # VmHWM, because the ru_maxrss of a child process starts at its parent's peak
    status = Path("/proc/self/status").read_text()
    print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, nargs="+", default=[10_000])
    parser.add_argument("--users", type=int, default=30_000)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", choices=["data", "fit"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, long_tailed(args.users, args.items[0], args.pairs))
        return
    print("| items | floor s | fit s | ratio | extra memory, n^2 float32 |\n|---|---|---|---|---|")
    for n_items in args.items:
        data = long_tailed(args.users, n_items, args.pairs)
        ours(data.rows(np.arange(50)), 100.0)
        pairs = [(floor(data, 100.0), ours(data, 100.0)) for _ in range(args.repeats)]
        low, fit = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(two / one for one, two in pairs)
        memory = extra_memory(n_items, args.users, args.pairs)
        print(f"| {n_items:,} | {low:.2f} | {fit:.2f} | {ratio:.2f} | {memory:.2f} |", flush=True)


if __name__ == "__main__":
    main()
