"""Compare lists of models solved on a GPU with pairs of half-precision numbers and in float32.

    python benchmarks/gpu_lists.py --data DATA --out benchmarks/results/gpu_lists.json

DATA has `gowalla/strong` and `yelp2018/strong`. Two lists are equal if they have the same items in
the same order; for positions that differ, the largest change of a score is reported relative to
the user's largest score. Then ranks for 100,000 users in one call.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import paper_path  # noqa: F401  puts `reproduce` on the path
import scipy.sparse as sp

import equipoise as eq
from equipoise.solve.torch_backend import load_torch
from reproduce.data import published_split

SETTINGS = {"gowalla": (20.0, 0.6, 0.2, 0.3), "yelp2018": (50.0, 0.7, 0.3, 0.2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = [compared(args.data / name / "strong", name, args.device) for name in SETTINGS]
    rows.append(many_users(args.data / "gowalla" / "strong", args.users, args.device))
    text = json.dumps({"command": "python benchmarks/gpu_lists.py", "rows": rows}, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


def compared(folder: Path, name: str, device: str) -> dict[str, Any]:
    """Return the differences between the lists of both precisions, and their accuracy."""
    split = published_split(folder, "strong")
    l2, dropout, alpha, beta = SETTINGS[name]
    lists, scores, row = [], [], {"data": name}
    for precision in ("auto", "float32"):
        model = eq.EASE(l2=l2, dropout=dropout, normalizer=eq.DAN(alpha, beta))
        start = time.perf_counter()
        model.fit(split.train, device=device, precision=precision)
        row[f"fit_seconds_{precision}"] = time.perf_counter() - start
        row[f"residual_{precision}"] = model.residual_
        recommended = model.recommend(split.test.history, k=20)
        lists.append(np.array(recommended.items))
        scores.append(np.array(recommended.scores))
        result = eq.evaluate(model, split.test, k=20, metrics=["ndcg", "recall"])
        row |= {f"{key}_{precision}": result[key] for key in ("ndcg@20", "recall@20")}
        del model
    differs = lists[0] != lists[1]
    moved = np.abs(scores[0] - scores[1])[differs]
    largest = np.repeat(np.abs(scores[1]).max(axis=1, keepdims=True), 20, axis=1)
    return row | {
        "users": len(differs),
        "equal_lists": float((~differs.any(axis=1)).mean()),
        "equal_places": float((~differs).mean()),
        "largest_change_of_a_moved_score": float((moved / largest[differs]).max(initial=0.0)),
    }


def many_users(folder: Path, n_users: int, device: str) -> dict[str, Any]:
    """Return the time and memory of ranking for many users in one call."""
    torch = load_torch()
    split = published_split(folder, "strong")
    model = eq.EASE(l2=20.0, dropout=0.6, normalizer=eq.DAN(0.2, 0.3))
    model.fit(split.train, device=device)
    X = split.train.matrix
    rows = np.arange(n_users) % X.shape[0]
    histories = eq.Interactions(sp.csr_array(X[rows]), items=split.train.items)
    model.recommend(histories.rows(np.arange(100)), k=20)
    torch.cuda.reset_peak_memory_stats()
    bytes_before = torch.cuda.memory_allocated()
    start = time.perf_counter()
    model.recommend(histories, k=20)
    seconds = time.perf_counter() - start
    return {
        "users": n_users,
        "items": split.train.n_items,
        "seconds": seconds,
        "extra_gib": (torch.cuda.max_memory_allocated() - bytes_before) / 2**30,
    }


if __name__ == "__main__":
    main()
