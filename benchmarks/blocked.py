"""Compare the blocked inverse with LAPACK's and with the time of n^3 operations of sgemm.

    python benchmarks/blocked.py --items 12301 [--ways LAPACK plain 512,512 1024,512] [--rounds 2]

A pair of numbers: the size of a diagonal block and of a triangle that is multiplied in full, both
in `solve/threaded.py`. "plain" is the earlier method: blocks of 512, numpy products that are added
afterwards, BLAS threads. All methods use the same number of threads and take turns. Each round is
compared with the speed of sgemm (4,100 rows), measured just before and after it and, for
`solve/threaded.py`, every ten seconds between steps; these seconds are subtracted. The fastest
round is shown. Operations are counted from the steps. The error is the largest entry of A P V - V
for two random vectors V. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.runtime import machine
from equipoise.solve import dense
from equipoise.solve.blocked import TRIANGULAR, Blocks, Step, steps
from equipoise.solve.threaded import ThreadedBlocks

Matrix = npt.NDArray[np.float32]
PRODUCT = 4100


class Plain(Blocks):
    """Blocked inverse with numpy products that are added afterwards."""

    def add_product(self, C: Any, left: Any, right: Any, sign: int) -> None:
        """Add sign * left @ right to C."""
        (np.add if sign > 0 else np.subtract)(C, left @ right, out=C)


def operations(n: int, block: int, leaf: int) -> float:
    """Return the number of operations of all steps as a multiple of n^3."""
    blocks, total = ThreadedBlocks(np.empty((0, 0)), block, leaf), 0.0
    for step in steps(n, block, n + block):
        for kind, *spans in blocks.parts(step):
            rows, columns, inner = (high - low for low, high in spans)
            # "factor" also inverts a triangle
            shares = {"factor": 2 / 3, "invert": 0.0, "square": 1.0} | dict.fromkeys(TRIANGULAR, 1)
            total += shares.get(kind, 2) * rows * columns * inner
    return total / n**3


class Rate:
    """Repeated timings of the same matrix product."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.square = rng.standard_normal((PRODUCT, PRODUCT), np.float32)
        self.seconds: list[float] = []
        self.last = 0.0

    def sample(self) -> None:
        """Time the product once more."""
        with machine._blas().limit(limits=machine.count(), user_api="blas"):
            start = time.perf_counter()
            np.matmul(self.square, self.square)
            self.last = time.perf_counter()
        self.seconds.append(self.last - start)


class Watched(ThreadedBlocks):
    """Threaded inverse that samples the speed of products between steps."""

    rate: Rate

    def do(self, step: Step) -> None:
        """Do one step."""
        if time.perf_counter() - self.rate.last > 10:
            self.rate.sample()
        super().do(step)


def invert(way: str, A: Matrix, rate: Rate) -> None:
    if way == "LAPACK":
        dense._invert_by_lapack(A)
    elif way == "plain":
        Plain(A, 512, 1024).invert()
    else:
        blocks = Watched(A, *map(int, way.split(",")))
        blocks.rate = rate
        blocks.invert()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=12_301)
    parser.add_argument("--ways", nargs="+", default=["LAPACK", "plain", "1024,512"])
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    n = options.items
    rng = np.random.default_rng(0)
    T, V = rng.standard_normal((n, 300), np.float32), rng.standard_normal((n, 2), np.float32)
    A = np.empty((n, n), np.float32)
    best_by_way: dict[str, tuple[float, float, float, float]] = {}
    for _ in range(options.rounds):
        for way in options.ways:
            for low in range(0, n, 4096):  # OpenBLAS crashes in one product of this size
                np.matmul(T[low : low + 4096], T.T, out=A[low : low + 4096])
            A.flat[:: n + 1] += 300
            Rate().sample()  # wakes the threads
            rate = Rate()
            rate.sample()
            start = time.perf_counter()
            invert(way, A, rate)
            seconds = time.perf_counter() - start - sum(rate.seconds[1:])
            rate.sample()
            dense.mirror(A.T)
            Y = A @ V
            error = float(np.abs(T @ (T.T @ Y) + 300 * Y - V).max())
            product = float(np.mean(rate.seconds))
            ratio = seconds / (product * n**3 / (2 * PRODUCT**3))
            measured = (seconds, ratio, 2e-9 * PRODUCT**3 / product, error)
            best_by_way[way] = min(best_by_way.get(way, (np.inf,) * 4), measured)
            print(f"{way}: {seconds:.2f} s, {ratio:.3f}, {len(rate.seconds)} rates", flush=True)
    print(f"\n{n:,} items, float32, {machine.count()} threads, best of {options.rounds} rounds\n")
    print("| way | s | sgemm, GFLOP/s | to n^3 at its rate | operations / n^3 | error |")
    print("|---|---|---|---|---|---|")
    for way, (seconds, ratio, speed, error) in best_by_way.items():
        counted = f"{operations(n, *map(int, way.split(','))):.3f}" if "," in way else ""
        print(f"| {way} | {seconds:.2f} | {speed:.0f} | {ratio:.3f} | {counted} | {error:.0e} |")


if __name__ == "__main__":
    main()
