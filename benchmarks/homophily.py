"""Compare homophily with one scipy ``X.T @ X``: time and extra memory, as a Markdown table.

    python benchmarks/homophily.py [PAIRS.npz]

The file holds int arrays `users` and `items`; the default is the train part of the weak split of
Yelp2018. Each side runs in a separate process; extra memory is its peak minus the memory after
loading the data and, for ours, compiling the kernel.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from equipoise.data.interactions import Interactions
from equipoise.data.statistics import homophily

DEFAULT = Path(__file__).resolve().parents[2] / "shared/data/yelp2018/weak/train.npz"
REPEATS = 3


def product(data: Interactions) -> float:
    return float((data.matrix.T @ data.matrix).nnz)


SIDES: dict[str, Callable[[Interactions], float]] = {"scipy": product, "ours": homophily}


def peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measure(side: str, file: Path) -> dict[str, float]:
    loaded = np.load(file)
    place = (loaded["users"], loaded["items"])
    data = Interactions(sp.csr_array((np.ones(len(place[0]), np.float32), place)))
    SIDES[side](Interactions(np.eye(3)))  # compiles
    bytes_before = peak_bytes()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        result = SIDES[side](data)
        seconds.append(time.perf_counter() - start)
    extra = peak_bytes() - bytes_before
    return {"seconds": min(seconds), "extra": extra, "result": result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?", default=DEFAULT)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options.side, options.file)))
        return
    command = [sys.executable, __file__, str(options.file), "--side"]
    rows_by_side = {side: json.loads(subprocess.check_output([*command, side])) for side in SIDES}
    base = rows_by_side["scipy"]["seconds"]
    names = {"scipy": "scipy `X.T @ X`", "ours": "`equipoise.data.statistics.homophily`"}
    print("| what | seconds | ratio | extra memory |")
    print("|---|---|---|---|")
    for side, row in rows_by_side.items():
        cells = f"{row['seconds']:.2f} | {row['seconds'] / base:.2f} | {row['extra'] / 1e6:.0f} MB"
        print(f"| {names[side]} | {cells} |")
    print(f"\nhomophily {rows_by_side['ours']['result']:.4f}, best of {REPEATS} runs each")


if __name__ == "__main__":
    main()
