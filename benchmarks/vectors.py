"""How much of the lists remains when vectors stand for a model, by the rank of the vectors.

    python benchmarks/vectors.py             # four data sets that are fetched
    python benchmarks/vectors.py --write     # and put the table into docs/vectors.md

Overlap of the top 20 of up to 1,000 training users with those of the model (`Vectors.overlap`).
NDCG@20 is that of the strong split: lists of held-out users by the inner products of folded-in
vectors, relative to the lists of the model.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import polars as pl

import equipoise as eq

LEAST_USERS = {"movielens-100k": 1, "movielens-1m": 1, "online-retail": 1, "complete-journey": 20}
RANKS = (32, 64, 128, 256, 512)
PAGE = Path(__file__).resolve().parents[1] / "docs" / "vectors.md"
BEGIN, END = (f"<!-- benchmarks/vectors.py {word} here -->" for word in ("begins", "ends"))


def measure(name: str) -> list[str]:
    """Return the rows of the table for a data set."""
    ratings = {"min_rating": 4} if name.startswith("movielens") else {}
    data = eq.datasets.load(name, **ratings)
    data = data.columns(data.item_counts >= LEAST_USERS[name])
    data = eq.Interactions((data.matrix > 0).astype(np.float32))
    split = eq.split.strong(data, valid=0, test=0.2, seed=0)
    model = eq.EASE(l2=20, dropout=0.7, normalizer=eq.DAN(0.3, 0.2)).fit(split.train)
    history = split.test.history
    exact = eq.evaluate(model, split.test, k=20, bootstrap=0)["ndcg@20"]
    rows = []
    for rank in RANKS:
        vectors = model.vectors(rank=rank)
        users = vectors.fold_in(history)
        scores = users @ vectors.items["vector"].to_numpy().T
        scores[history.matrix.nonzero()] = -np.inf
        best = np.argsort(-scores, axis=1, kind="stable")[:, :20]
        lists = pl.DataFrame(
            {
                "user": np.repeat(history.users, 20),
                "item": vectors.items["id"].to_numpy()[best.ravel()],
                "rank": np.tile(np.arange(1, 21), len(best)),
            }
        )
        result = eq.evaluate(lists, split.test, train=split.train, k=20, bootstrap=0)
        ratio = result["ndcg@20"] / exact
        rows.append(
            f"| {name}, {data.n_items:,} items | {vectors.rank} | {vectors.overlap:.2f} | "
            f"{ratio:.3f} |"
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into docs/vectors.md")
    args = parser.parse_args()
    heading = [
        "| data | rank | overlap@20 | NDCG@20, ratio |",
        "|---|--:|--:|--:|",
    ]
    print("\n".join(heading))
    table = heading + [row for name in LEAST_USERS for row in measure(name)]
    if args.write:
        text = PAGE.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        after = rest.split(END)[1]
        PAGE.write_text(before + "\n".join([BEGIN, "", *table, "", END]) + after, encoding="utf-8")


if __name__ == "__main__":
    main()
