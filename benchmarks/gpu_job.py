"""Time a complete job on a GPU: read a published split, fit EASE+DAN, evaluate all metrics.

    python benchmarks/gpu_job.py --data DATA --device cuda --out benchmarks/results/gpu_job.json

Start-up (imports, compiled kernels, GPU libraries) happens on small data first and is not counted.
The job runs twice; in the second run the files are in the page cache.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import paper_path  # noqa: F401  puts `reproduce` on the path

import equipoise as eq
from reproduce.data import published_split


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with gowalla/strong")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    start_up(args.device)
    runs = [job(args.data / "gowalla" / "strong", args.device) for _ in range(2)]
    text = json.dumps({"command": "python benchmarks/gpu_job.py", "runs": runs}, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


def start_up(device: str) -> None:
    rng = np.random.default_rng(0)
    split = eq.split.strong(eq.Interactions((rng.random((300, 100)) < 0.2).astype(float)))
    eq.evaluate(eq.EASE(l2=1.0).fit(split.train, device=device), split.test, k=[10, 20])


def job(folder: Path, device: str) -> dict[str, float]:
    """Return the seconds of each step, and two metrics as a check of the result."""
    start = time.perf_counter()
    split = published_split(folder, "strong")
    read = time.perf_counter()
    model = eq.EASE(l2=20.0, dropout=0.6, normalizer=eq.DAN(0.2, 0.3))
    model.fit(split.train, device=device)
    fitted = time.perf_counter()
    result = eq.evaluate(model, split.test, k=20)
    end = time.perf_counter()
    return {
        "read": read - start,
        "fit": fitted - read,
        "evaluate": end - fitted,
        "total": end - start,
        "ndcg@20": result["ndcg@20"],
        "recall@20": result["recall@20"],
    }


if __name__ == "__main__":
    main()
