"""Compare P in 16 and in 32 bits: agreement of lists of 20, and time of a request.

    python benchmarks/half.py --data ../shared/data [--items 5000] [--users 2000]

The data are Gowalla's most used items; EASE+DAN has the settings of the paper. `halve` stores
integers and a scale for each row. Overlap is the share of a user's 20 items in both lists.
A request is a list of 20 for one history of 33 items, from a matrix of 20,000 items; its time is
the fastest of 5 rounds over 300 histories, with both matrices in turns.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import real
import scipy.sparse as sp

import equipoise as eq
from equipoise.models.inverse import Inverse
from equipoise.ranking.ranker import top_k
from equipoise.ranking.terms import Dense, Term

Matrix = npt.NDArray[np.float32]


def bfloat16(P: Matrix) -> Matrix:
    bits = P.view(np.uint32)
    nearest = bits + 0x7FFF + ((bits >> 16) & 1)
    return (nearest & np.uint32(0xFFFF0000)).view(np.float32)


def float16(P: Matrix) -> Matrix:
    scale = np.float32(2.0) ** np.floor(np.log2(30_000 / np.abs(P).max()))
    return (P * scale).astype(np.float16).astype(np.float32) / scale


def request_seconds(terms: list[Term], rounds: int = 5) -> list[float]:
    """Return the seconds of one request with each term."""
    rng = np.random.default_rng(0)
    n_items = terms[0].n_items
    one = [np.sort(rng.choice(n_items, 33, replace=False)) for _ in range(300)]
    ones = np.ones(33, np.float32)
    histories = [sp.csr_array((ones, items, [0, 33]), (1, n_items)) for items in one]
    least = [np.inf] * len(terms)
    for _ in range(rounds):
        for place, term in enumerate(terms):
            start = time.perf_counter()
            for history in histories:
                top_k([term], history, 20)
            least[place] = min(least[place], time.perf_counter() - start)
    return [seconds / len(histories) for seconds in least]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--items", type=int, default=5_000)
    parser.add_argument("--users", type=int, default=2_000)
    options = parser.parse_args()
    data = real.most_used(real.lightgcn(options.data / "gowalla" / "weak"), options.items)
    settings: dict[str, Any] = {"l2": 20.0, "dropout": 0.6, "normalizer": eq.DAN(0.2, 0.3)}
    model = eq.EASE(**settings).fit(data)
    (term,) = model._terms()
    assert isinstance(term, Dense)
    P = np.array(term.matrix)
    np.fill_diagonal(P, 0)
    history = data.matrix[: options.users]
    ways = [Dense(rounded(P), term.source, term.target) for rounded in (bfloat16, float16)]
    exact = top_k([term], history, 20).items
    print(f"{options.items:,} items, {len(exact):,} users\n\n| P in | overlap@20 | equal lists |")
    print("|---|---|---|")
    names = ("bfloat16", "float16, one scale", "`halve`")
    for name, way in zip(names, [*ways, *model.halve()._terms()], strict=True):
        items = top_k([way], history, 20).items
        overlap = np.mean([len(set(a) & set(b)) / 20 for a, b in zip(items, exact, strict=True)])
        print(f"| {name} | {overlap:.4f} | {(items == exact).all(1).mean():.4f} |")
    n = 20_000
    full = Inverse.of(np.random.default_rng(0).standard_normal((n, n), np.float32))
    ones = np.ones((2, n), np.float32)
    single, half = request_seconds([full.term(*ones), full.halved().term(*ones)])
    print(
        f"\none request, {n:,} items: float32 {single * 1e3:.3f} ms, 16 bits {half * 1e3:.3f} ms"
    )


if __name__ == "__main__":
    main()
