"""Compare "auto" neighbours and shrink of `ItemKNN` with a grid on several data sets.

    python benchmarks/item_knn.py movielens-100k movielens-1m online-retail.csv
    python benchmarks/item_knn.py --auto movielens-100k movielens-1m online-retail.csv

The second command skips the grid. A name is a data set of `eq.datasets`; a path is a CSV file with
the columns of UCI Online Retail. Each number is NDCG@20 on the test part of a split. The rule is
in `equipoise.automatic`.
"""

from __future__ import annotations

import sys

import numpy as np
import polars as pl
import scipy.sparse as sp

import equipoise as eq

NEIGHBOURS = (5, 10, 20, 50, 100, 200)
SHRINK = (0.0, 3.0, 10.0, 30.0)


def load(source: str) -> eq.Interactions:
    if not source.endswith(".csv"):
        return eq.datasets.load(source)
    frame = pl.read_csv(source, encoding="utf8-lossy", infer_schema=False)
    frame = frame.with_columns(
        pl.col("Quantity").cast(pl.Int64),
        time=pl.col("InvoiceDate").str.to_datetime("%m/%d/%Y %H:%M"),
    ).filter(pl.col("CustomerID").is_not_null() & (pl.col("Quantity") > 0))
    pairs = frame.select("time", user="CustomerID", item="StockCode")
    return eq.read(pairs.unique(["user", "item"], keep="first", maintain_order=True))


def grid(split: eq.Split, train: eq.Interactions) -> None:
    """Print NDCG@20 over the grid, computed from one matrix of common user counts."""
    X = train.matrix.copy()
    X.data[:] = 1
    common = (X.T @ X).toarray()
    root = np.sqrt(np.maximum(train.item_counts, 1))
    np.fill_diagonal(common, 0)
    table = {}
    for shrink in SHRINK:
        alike = (common / (np.outer(root, root) + shrink)).astype(np.float32)
        order = np.argsort(-alike, axis=1, kind="stable")
        for neighbours in NEIGHBOURS:
            similarity = np.zeros_like(alike)
            near = order[:, :neighbours]
            np.put_along_axis(similarity, near, np.take_along_axis(alike, near, axis=1), axis=1)
            model = eq.ItemKNN(neighbours=neighbours, shrink=shrink)
            model._keep(train, {"similarity": sp.csr_array(similarity)})
            table[neighbours, shrink] = ndcg(model, split)
    print("  shrink      " + "".join(f"{shrink:8g}" for shrink in SHRINK))
    for neighbours in NEIGHBOURS:
        cells = "".join(f"{table[neighbours, shrink]:8.4f}" for shrink in SHRINK)
        print(f"  {neighbours:4} nearest{cells}", flush=True)


def ndcg(model: eq.ItemKNN, split: eq.Split) -> float:
    return eq.evaluate(model, split.test, metrics=["ndcg"], bootstrap=0)["ndcg@20"]


def measure(name: str, data: eq.Interactions) -> None:
    splits = {"strong": eq.split.strong(data, valid=0, test=0.1, seed=0)}
    if data.times is not None:
        splits["time"] = eq.split.time_cut(data, valid=0, test=0.1)
    for kind, split in splits.items():
        train = split.train
        n_items = int((train.item_counts > 0).sum())
        print(f"{name}, {kind}: {train}, {train.n_interactions / n_items:.1f} per item")
        if "--auto" not in sys.argv:
            grid(split, train)
        model = eq.ItemKNN().fit(train)
        print(f"  {model.summary()}: {ndcg(model, split):.4f}", flush=True)


if __name__ == "__main__":
    for source in (argument for argument in sys.argv[1:] if argument != "--auto"):
        measure(source.rsplit("/", 1)[-1], load(source))
