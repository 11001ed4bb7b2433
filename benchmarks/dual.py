"""Compare the dual engine with its users x users solve, and find where it beats the dense engine.

    python benchmarks/dual.py --users 2500 --items 70000
    python benchmarks/dual.py --break-even 4000 8000

The floor is scipy's sparse product X X^T followed by LAPACK's `dpotrf` and `dpotri`,
measured in turns in the same process; memory is measured in a separate process. The break-even
compares the dense and the dual engine on the same data: a fit alone, and with one or four lists
of 20 for each user. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from fit import long_tailed
from scipy.linalg import lapack

import equipoise as eq

SHARES = (1.5, 2, 3, 4, 6, 10)  # number of items / number of users


def model() -> eq.EASE:
    return eq.EASE(l2=100.0, normalizer=eq.DAN(0.2, 0.3))


def floor(data: eq.Interactions) -> tuple[float, float]:
    """Return the seconds of scipy's users x users product and of its LAPACK inverse."""
    X = data.matrix.astype(np.float64)
    start = time.perf_counter()
    G = X @ X.T
    gram = time.perf_counter() - start
    A = np.asarray(G.todense())
    A.flat[:: len(A) + 1] += 100.0
    start = time.perf_counter()
    factor, _ = lapack.dpotrf(A.T, lower=0, clean=0, overwrite_a=1)
    lapack.dpotri(factor, lower=0, overwrite_c=1)
    return gram, time.perf_counter() - start


def fitted(data: eq.Interactions, engine: str) -> tuple[eq.EASE, float]:
    start = time.perf_counter()
    fitted_model = model().fit(data, engine=engine)
    return fitted_model, time.perf_counter() - start


def listed(fitted_model: eq.EASE, data: eq.Interactions) -> float:
    start = time.perf_counter()
    fitted_model.rank(data, 20)
    return time.perf_counter() - start


def warm_up() -> None:
    """Load and compile everything, and calibrate the planner for this machine."""
    small = long_tailed(60, 100, 500)
    for engine in ("dense", "dual"):
        listed(fitted(small, engine)[0], small)
    eq.plan(small).seconds  # noqa: B018


def child(part: str, args: argparse.Namespace) -> None:
    warm_up()
    data = long_tailed(args.users, args.items, args.pairs)
    if part != "data":
        fitted_model, _ = fitted(data, "dual")
        if part == "rank":
            listed(fitted_model, data.rows(np.arange(500)))
    # VmHWM, because the ru_maxrss of a child process starts at its parent's peak
    status = Path("/proc/self/status").read_text()
    print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def peak(part: str, args: argparse.Namespace) -> int:
    command = [sys.executable, __file__, "--child", part, "--users", str(args.users)]
    command += ["--items", str(args.items), "--pairs", str(args.pairs)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return int(printed) * 1024


def against_its_floor(args: argparse.Namespace) -> None:
    warm_up()
    data = long_tailed(args.users, args.items, args.pairs)
    rows = [(*floor(data), fitted(data, "auto")[1]) for _ in range(args.repeats)]
    gram, solve, fit = (statistics.median(column) for column in zip(*rows, strict=True))
    ratio = statistics.median(three / (one + two) for one, two, three in rows)
    fitted_model, _ = fitted(data, "auto")
    assert fitted_model.solution_.kind == "dual", fitted_model.solution_.kind
    histories = data.rows(np.arange(min(500, data.n_users)))
    speed = histories.n_users / listed(fitted_model, histories)
    print(f"{data}\n")
    print("| product s | inverse s | fit s | fit / both | fit / inverse | lists of 20 a second |")
    print("|---|---|---|---|---|---|")
    seconds = f"{gram:.2f} | {solve:.2f} | {fit:.2f}"
    print(f"| {seconds} | {ratio:.2f} | {fit / solve:.2f} | {speed:,.0f} |")
    print("\n| process | peak GB |\n|---|---|")
    for part, name in (("data", "the data alone"), ("fit", "a fit"), ("rank", "fit and rank")):
        print(f"| {name} | {peak(part, args) / 1e9:.2f} |", flush=True)
    for engine in ("dual", "dense"):
        print(f"\n{eq.plan(data, engine=engine, memory='100GB')}")


def break_even(args: argparse.Namespace) -> None:
    warm_up()
    heads = ["items", "users", "dense fit s", "lists s", "dual fit s", "lists s"]
    heads += ["dense / dual: fit", "fit and lists", "fit and four times the lists"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for n_items in args.break_even:
        for share in SHARES:
            n_users = round(n_items / share)
            data = long_tailed(n_users, n_items, 40 * n_users)
            times = []
            for engine in ("dense", "dual"):
                fitted_model, fit = fitted(data, engine)
                times.append((fit, listed(fitted_model, data)))
            (one, rank), (two, other) = times
            ratios = [(one + lists * rank) / (two + lists * other) for lists in (0, 1, 4)]
            cells = [f"{n_items:,}", f"{n_users:,} (1/{share})"]
            cells += [f"{value:.2f}" for value in (one, rank, two, other, *ratios)]
            print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=2_500)
    parser.add_argument("--items", type=int, default=70_000)
    parser.add_argument("--pairs", type=int, default=1_300_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--break-even", type=int, nargs="+", metavar="ITEMS")
    parser.add_argument("--child", choices=["data", "fit", "rank"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args)
    elif args.break_even:
        break_even(args)
    else:
        against_its_floor(args)


if __name__ == "__main__":
    main()
