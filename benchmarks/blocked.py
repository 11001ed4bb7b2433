"""The inverse by blocks against LAPACK's at sizes that are safe for both, as a Markdown table.

    python benchmarks/blocked.py --items 8192 --blocks 1024,2048 512,1024 [--rounds 2]

A pair is the rows of a diagonal block and of a strip of a symmetric product. All ways run on one
thread, where processor time is that of the work whatever else the machine does; they take turns,
and each has its least. Operations are counted from the steps, beside n^3.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from equipoise import machine
from equipoise.solve import dense
from equipoise.solve.blocked import Blocks, steps

Matrix = npt.NDArray[np.float32]


def operations(n: int, block: int, strip: int) -> float:
    """Return the operations of all steps as a multiple of n^3."""
    total = 0.0
    for kind, *spans in steps(n, block, strip):
        rows, columns, inner = (high - low for low, high in spans)
        if kind == "factor":  # and its inverse, which "invert" puts in place
            total += 2 / 3 * inner**3
        elif kind != "invert":
            total += 2.0 * rows * columns * inner
    return total / n**3


def by_blocks(block: int, strip: int) -> Callable[[Matrix], None]:
    return lambda A: Blocks(A, block, strip, dense.STRIP).invert()


def processor_seconds(way: Callable[[Matrix], object], A: Matrix) -> float:
    start = time.process_time()
    way(A)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=8192)
    parser.add_argument("--blocks", nargs="+", default=["1024,2048", "512,1024"])
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    n = asked.items
    T = np.random.default_rng(0).standard_normal((n, 300), dtype=np.float32)
    A = T @ T.T
    A.flat[:: n + 1] += 300
    pairs = [tuple(map(int, text.split(","))) for text in asked.blocks]
    ways = {"LAPACK": dense._invert_by_lapack}
    ways |= {f"blocks of {b}, strips of {s}": by_blocks(b, s) for b, s in pairs}
    counts = ["1.00"] + [
        f"{operations(n, *p):.3f} ({operations(40_981, *p):.3f} of 40,981 items)" for p in pairs
    ]
    found = dict.fromkeys(["sgemm", *ways], np.inf)
    square = A[:2048, :2048].copy()
    with machine.limited(1):
        for _ in range(asked.rounds):
            product = processor_seconds(lambda S: S @ S, square)
            found["sgemm"] = min(found["sgemm"], product * (n / 2048) ** 3 / 2)
            for name, way in ways.items():
                found[name] = min(found[name], processor_seconds(way, A.copy()))
    print(f"{n:,} items, float32, one thread, the least of {asked.rounds} rounds\n")
    print("| way | processor s | to LAPACK | to n^3 at the rate of sgemm | operations / n^3 |")
    print("|---|---|---|---|---|")
    for (name, seconds), counted in zip(list(found.items())[1:], counts, strict=True):
        ratios = f"{seconds / found['LAPACK']:.2f} | {seconds / found['sgemm']:.2f}"
        print(f"| {name} | {seconds:.2f} | {ratios} | {counted} |")


if __name__ == "__main__":
    main()
