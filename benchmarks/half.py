"""P in 16 bits instead of 32: how far lists of 20 agree, and what the sums of a request take.

    python benchmarks/half.py --data ../shared/data [--items 5000] [--users 2000]

Gowalla's most used items, EASE+DAN with the settings of the paper. "whole numbers" are 16 bits
with a scale for each row. Overlap is the share of a user's 20 items that both lists have. The sums
are those of one history at a time (33 items, all columns) on one thread, from a matrix of 20,000
items, the least of 5 rounds over 300 histories.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import real

import equipoise as eq
from equipoise.kernels import compiled
from equipoise.ranking.ranker import top_k
from equipoise.ranking.terms import Dense

Matrix = npt.NDArray[np.float32]
WHOLE = 32_767


def bfloat16(P: Matrix) -> Matrix:
    bits = P.view(np.uint32)
    nearest = bits + 0x7FFF + ((bits >> 16) & 1)
    return (nearest & np.uint32(0xFFFF0000)).view(np.float32)


def float16(P: Matrix) -> Matrix:
    scale = np.float32(2.0) ** np.floor(np.log2(30_000 / np.abs(P).max()))
    return (P * scale).astype(np.float16).astype(np.float32) / scale


def whole(P: Matrix) -> Matrix:
    scale = np.abs(P).max(1, keepdims=True) / WHOLE
    return np.asarray(np.rint(P / scale) * scale, np.float32)


@compiled
def summed(matrix: Any, items: Any, weights: Any, total: Any) -> None:
    total[:] = 0
    for place in range(0, len(items) - 3, 4):
        a, b = matrix[items[place]], matrix[items[place + 1]]
        c, d = matrix[items[place + 2]], matrix[items[place + 3]]
        u, v = weights[place], weights[place + 1]
        w, x = weights[place + 2], weights[place + 3]
        for j in range(len(total)):
            value = total[j] + u * np.float32(a[j]) + v * np.float32(b[j])
            total[j] = value + w * np.float32(c[j]) + x * np.float32(d[j])


def request_seconds(matrix: Any, rounds: int = 5) -> float:
    rng = np.random.default_rng(0)
    histories = rng.integers(0, len(matrix), (300, 33))
    weights, total = np.ones(33, np.float32), np.empty(len(matrix), np.float32)
    least = np.inf
    for _ in range(rounds):
        start = time.perf_counter()
        for items in histories:
            summed(matrix, items, weights, total)
        least = min(least, time.perf_counter() - start)
    return least / len(histories)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--items", type=int, default=5_000)
    parser.add_argument("--users", type=int, default=2_000)
    asked = parser.parse_args()
    data = real.most_used(real.lightgcn(asked.data / "gowalla" / "weak"), asked.items)
    settings: dict[str, Any] = {"l2": 20.0, "dropout": 0.6, "normalizer": eq.DAN(0.2, 0.3)}
    (term,) = eq.EASE(**settings).fit(data).terms()
    assert isinstance(term, Dense)
    P = np.array(term.matrix)
    np.fill_diagonal(P, 0)
    history = data.matrix[: asked.users]

    def lists(matrix: Matrix) -> Any:
        return top_k([Dense(matrix, term.source, term.target)], history, 20).items

    exact = lists(P)
    print(f"{asked.items:,} items, {len(exact):,} users\n\n| P in | overlap@20 | equal lists |")
    print("|---|---|---|")
    for name, way in (("bfloat16", bfloat16), ("float16", float16), ("whole numbers", whole)):
        found = lists(way(P))
        overlap = np.mean([len(set(a) & set(b)) / 20 for a, b in zip(found, exact, strict=True)])
        print(f"| {name} | {overlap:.4f} | {(found == exact).all(1).mean():.4f} |")
    n = 20_000
    wide = np.random.default_rng(0).standard_normal((n, n), np.float32)
    single = request_seconds(wide)
    half = request_seconds((wide * 1000).astype(np.int16))
    print(
        f"\none request, {n:,} items: float32 {single * 1e3:.3f} ms, 16 bits {half * 1e3:.3f} ms"
    )


if __name__ == "__main__":
    main()
