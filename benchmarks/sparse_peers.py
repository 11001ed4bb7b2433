"""Compare sparse item-item models of equal size: neighbourhoods, SANSA and item-kNN.

    python benchmarks/sparse_peers.py --data DATA --sansa PYTHON --out FILE.json
    python benchmarks/sparse_peers.py --data DATA --datasets ML-1M --weights 200 --out OTHER.json

DATA has `gowalla/strong` and `yelp2018/strong`; MovieLens 1M comes from `equipoise.data.datasets`.
PYTHON is the interpreter of an environment with `sansa` (`apt-get install libsuitesparse-dev`,
then `pip install "scikit-sparse<0.5" sansa`). All models have 100 weights per item. SANSA has two
matrices of that size, the factors of its weights; the second command gives the other models as
many numbers. Chosen on valid: l2 of SANSA, the shrinkage of item-kNN, and our l2 on MovieLens,
for which no settings are published.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paper_path  # noqa: F401  puts `reproduce` on the path
import polars as pl
import scipy.sparse as sp
from neighbourhood import SETTINGS

import equipoise as eq
from reproduce.data import find_split

DATASETS = ("ML-1M", "gowalla", "yelp2018")
OTHER = [{"l2": l2, "dropout": 0.5, "alpha": 0.2, "beta": 0.3} for l2 in (20.0, 100.0, 500.0)]
SHRINK = (0.0, 10.0, 50.0)
# the incomplete factorisation (ICF) scales the data first, so that its l2 is small; CHOLMOD
# factorises the unscaled Gram matrix
SANSA_L2 = (0.5, 2.0, 8.0)
SANSA_SMALL = [("CHOLMOD", l2) for l2 in (50.0, 200.0, 800.0)]
SMALL = 10_000  # items
METRICS = ["recall", "ndcg", "tail_ndcg"]
LISTS = Path(__file__).with_name("sansa_lists.py")


def measured(lists: Any, part: Any, train: Any) -> dict[str, float]:
    result = eq.evaluate(lists, part, k=20, metrics=METRICS, train=train, bootstrap=0)
    return {f"{name}@20": round(float(result[f"{name}@20"]), 4) for name in METRICS}


def best(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return max(rows, key=lambda row: float(row["valid_ndcg@20"]))


def fitted(
    model: Any, split: eq.Split, settings: dict[str, Any], **fit_options: Any
) -> dict[str, Any]:
    start = time.perf_counter(), time.process_time()
    model.fit(split.train, **fit_options)
    took = time.perf_counter() - start[0], time.process_time() - start[1]
    valid_result = eq.evaluate(model, split.valid, k=20, metrics=["ndcg"], bootstrap=0)
    test_result = eq.evaluate(model, split.test, k=20, metrics=METRICS, bootstrap=0)
    return {
        "settings": settings,
        "seconds": round(took[0], 2),
        "processor_seconds": round(took[1], 2),
        "valid_ndcg@20": float(valid_result["ndcg@20"]),
        **{f"{name}@20": round(float(test_result[f"{name}@20"]), 4) for name in METRICS},
    }


def neighbourhoods(split: eq.Split, dataset: str, weights: int) -> dict[str, Any]:
    rows = []
    for settings in [SETTINGS[dataset, "strong"]] if (dataset, "strong") in SETTINGS else OTHER:
        numbers = dict(settings)
        normalizer = eq.DAN(numbers.pop("alpha"), numbers.pop("beta"))
        model = eq.EASE(**numbers, normalizer=normalizer)
        fit_options = {"engine": "neighbourhood", "neighbours": weights}
        rows.append(fitted(model, split, settings, **fit_options))
        rows[-1]["weights"] = int(model.inverse_.data.size)
    return best(rows)


def item_knn(split: eq.Split, weights: int) -> dict[str, Any]:
    models = [(eq.ItemKNN(neighbours=weights, shrink=shrink), shrink) for shrink in SHRINK]
    return best([fitted(model, split, {"shrink": shrink}) for model, shrink in models])


def sansa(
    split: eq.Split, weights: int, python: str, limit: float, l2s: Sequence[float]
) -> dict[str, Any]:
    rows = []
    tries = [("ICF", l2) for l2 in l2s] + (SANSA_SMALL if split.train.n_items < SMALL else [])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = {"valid": split.valid, "test": split.test}
        sp.save_npz(folder / "train.npz", split.train.matrix)
        for key, part in parts.items():
            sp.save_npz(folder / f"{key}.npz", part.history.matrix)
        density = weights / split.train.n_items
        for method, l2 in tries:
            settings = {"method": method, "l2": l2}
            command = [python, str(LISTS), name, str(density), str(l2), method]
            try:
                subprocess.run(command, check=True, timeout=limit, capture_output=True)
            except subprocess.TimeoutExpired:
                rows.append(
                    {"settings": {"l2": l2}, "stopped_after": limit, "valid_ndcg@20": -1.0}
                )
                continue
            arrays = np.load(folder / "lists.npz")
            frames = {key: _frame(arrays[key], part) for key, part in parts.items()}
            valid_metrics = measured(frames["valid"], split.valid, split.train)
            facts = json.loads((folder / "facts.json").read_text())
            rows.append(
                {"settings": settings, **facts, "valid_ndcg@20": valid_metrics["ndcg@20"]}
                | measured(frames["test"], split.test, split.train)
            )
    return best(rows)


def _frame(lists: Any, part: Any) -> pl.DataFrame:
    users, items = part.history.users, part.history.items
    n_users, length = lists.shape
    return pl.DataFrame(
        {
            "user": np.asarray(users)[np.repeat(np.arange(n_users), length)],
            "item": np.asarray(items)[lists.ravel()],
            "rank": np.tile(np.arange(1, length + 1), n_users),
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sansa", help="interpreter of an environment with the package")
    parser.add_argument("--limit", type=float, default=120, help="seconds of one fit of SANSA")
    parser.add_argument("--l2", nargs="+", type=float, default=SANSA_L2, help="of its ICF")
    parser.add_argument("--datasets", nargs="+", default=DATASETS)
    parser.add_argument("--weights", type=int, default=100, help="for each item")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    rows = json.loads(chosen.out.read_text()) if chosen.out.exists() else []
    for dataset in chosen.datasets:
        if any(row["dataset"] == dataset for row in rows):
            continue
        load = find_split(chosen.data, dataset, "strong")
        if load is None:
            raise SystemExit(f"{chosen.data} has no strong split of {dataset}")
        split = load()
        models = {
            "neighbourhoods": lambda: neighbourhoods(split, dataset, chosen.weights),  # noqa: B023
            "item-kNN": lambda: item_knn(split, chosen.weights),  # noqa: B023
        }
        if chosen.sansa:
            where = chosen.weights, chosen.sansa, chosen.limit, chosen.l2
            models["SANSA"] = lambda: sansa(split, *where)  # noqa: B023
        for name, work in models.items():
            rows.append({"dataset": dataset, "model": name, **work()})
            print(json.dumps(rows[-1]), flush=True)
        chosen.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
