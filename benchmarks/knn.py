"""Compare fit and ranking of ItemKNN with implicit and with scipy's X.T @ X, as a Markdown table.

    python benchmarks/knn.py --data gowalla/weak/train.npz [--neighbours 100] [--rounds 5]

The file holds the arrays `users` and `items`. The methods take turns; the table has the fewest
seconds and processor seconds of all rounds. implicit is skipped if it is not installed, and ranks
with its batch call. `--before` adds the old implementation of ItemKNN: scipy's product, divided
and sorted completely.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import equipoise as eq

K = 20


def before(X: Any, keep: int, shrink: float) -> Any:
    similarity = (X.T @ X).tocsr()
    similarity.setdiag(0)
    similarity.eliminate_zeros()
    similarity.sort_indices()
    root = np.sqrt(np.bincount(X.indices, minlength=X.shape[1]))
    row = np.repeat(np.arange(X.shape[1]), np.diff(similarity.indptr))
    norm = root[row] * root[similarity.indices] + shrink
    similarity.data = (similarity.data / norm).astype(np.float32)
    order = np.lexsort((similarity.indices, -similarity.data, row))
    rank = np.arange(len(order)) - similarity.indptr[row[order]]
    similarity.data[order[rank >= keep]] = 0
    similarity.eliminate_zeros()
    return similarity


def measured(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, tuple[float, float]]:
    """Return the fewest seconds and processor seconds of each method."""
    least = dict.fromkeys(ways, (np.inf, np.inf))
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter(), time.process_time()
            way()
            spent = time.perf_counter() - start[0], time.process_time() - start[1]
            least[name] = min(least[name][0], spent[0]), min(least[name][1], spent[1])
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--neighbours", type=int, default=100)
    parser.add_argument("--users", type=int, default=5_000, help="users to rank for")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", action="store_true")
    options = parser.parse_args()

    pairs = np.load(options.data)
    users, items = pairs["users"], pairs["items"]
    X = sp.csr_matrix((np.ones(len(users), np.float32), (users, items)))
    matrix = sp.csr_array(X)
    data = eq.read(matrix)
    ranked_users = np.arange(min(options.users, X.shape[0]))
    model = eq.ItemKNN(neighbours=options.neighbours).fit(data)
    fits: dict[str, Callable[[], Any]] = {
        "equipoise": lambda: eq.ItemKNN(neighbours=options.neighbours).fit(data),
        "scipy X.T @ X alone": lambda: matrix.T @ matrix,
    }
    ranks: dict[str, Callable[[], Any]] = {"equipoise": lambda: model.recommend(ranked_users, K)}
    if options.before:
        fits["equipoise before"] = lambda: before(matrix, options.neighbours, 10.0)
    try:
        from implicit.nearest_neighbours import CosineRecommender
    except ImportError:
        print("implicit is not installed: left out\n")
    else:
        warnings.filterwarnings("ignore", message="Method expects CSR")
        implicit_model = CosineRecommender(K=options.neighbours)
        implicit_model.fit(X, show_progress=False)
        fits["implicit"] = lambda: implicit_model.fit(X, show_progress=False)
        ranks["implicit"] = lambda: implicit_model.recommend(ranked_users, X[ranked_users], N=K)
    print("| step | way | s | processor s | times ours |\n|---|---|---|---|---|")
    for step, ways in (("fit", fits), (f"top {K} of {len(ranked_users):,} users", ranks)):
        times = measured(ways, options.rounds)
        ours = times["equipoise"]
        for name, (seconds, processor) in times.items():
            ratio = f"{seconds / ours[0]:.2f}, by processor {processor / ours[1]:.2f}"
            print(f"| {step} | {name} | {seconds:.2f} | {processor:.2f} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
