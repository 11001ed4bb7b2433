"""Compare the time of all metrics with that of ranking, as a Markdown table.

    python benchmarks/evaluate.py [--users 30000] [--items 40000] [--bootstrap 1000]

The data are random: long-tailed items, about 27 interactions per history and 7 targets per user.
The model ranks like a real one, with a dense float32 items x items matrix (6.4 GB at 40,000 items;
use ``--items`` for fewer). Cut-offs are 10, 20 and 100. Each row is the fastest of all runs.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import scipy.sparse as sp

from equipoise.data.interactions import Interactions
from equipoise.evaluation.evaluator import evaluate
from equipoise.ranking.ranker import Ranked, top_k
from equipoise.ranking.terms import Dense

CUTOFFS = (10, 20, 100)


class Random:
    """A model with a dense random scoring matrix."""

    def __init__(self, history: Interactions, rng: np.random.Generator) -> None:
        n_items = history.n_items
        self.item_index_ = history.item_index
        self.item_counts_ = history.item_counts
        self.data_fingerprint_ = history.fingerprint
        scales = (np.ones(n_items, np.float32), 1 + self.item_counts_.astype(np.float32))
        matrix = rng.random((n_items, n_items), dtype=np.float32)
        self.terms = [Dense(matrix, *scales, zero_diagonal=True)]

    def settings(self) -> dict[str, Any]:
        """Return the name of the model."""
        return {"name": "random"}

    def rank(self, history: Interactions, k: int, *, exclude_seen: bool = True) -> Ranked:
        """Rank with the kernel that all models use."""
        return top_k(self.terms, history.matrix, k, exclude_seen=exclude_seen)


def synthetic(
    n_users: int, n_items: int, rng: np.random.Generator
) -> tuple[Interactions, Interactions]:
    """Return histories and targets of about 27 and 7 items, with popularity 1 / rank^0.8."""
    chance = 1 / np.arange(1, n_items + 1) ** 0.8
    pairs = 40 * n_users
    users = rng.integers(0, n_users, pairs)
    items = rng.choice(n_items, pairs, p=chance / chance.sum())
    cells = np.unique(users * n_items + items)
    hidden = rng.random(len(cells)) < 0.2
    hidden[np.unique(cells // n_items, return_index=True)[1]] = True  # at least one target
    parts = []
    for part_cells in (cells[~hidden], cells[hidden]):
        place = (part_cells // n_items, part_cells % n_items)
        matrix = sp.csr_array(
            (np.ones(len(part_cells), np.float32), place), shape=(n_users, n_items)
        )
        parts.append(Interactions(matrix))
    return parts[0], parts[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=30_000)
    parser.add_argument("--items", type=int, default=40_000)
    parser.add_argument("--bootstrap", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=2)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    history, target = synthetic(options.users, options.items, rng)
    model = Random(history, rng)
    few = np.arange(min(50, options.users))
    evaluate(model, (history.rows(few), target.rows(few)), CUTOFFS)  # compiles
    runs = [
        evaluate(model, (history, target), CUTOFFS, bootstrap=options.bootstrap).seconds
        for _ in range(options.runs)
    ]
    names = {
        "rank": f"ranking, top {max(CUTOFFS)}",
        "metrics": f"all metrics at {len(CUTOFFS)} cut-offs",
        "bootstrap": f"{options.bootstrap:,} bootstrap resamples of all metrics",
    }
    best = {step: min(run[step] for run in runs) for step in names}
    print(f"{options.users:,} users, {options.items:,} items, best of {options.runs} runs\n")
    print("| what | seconds | share of ranking |")
    print("|---|---:|---:|")
    for step, name in names.items():
        print(f"| {name} | {best[step]:.2f} | {best[step] / best['rank']:.3f} |")


if __name__ == "__main__":
    main()
