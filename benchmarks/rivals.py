"""Compare graph filters in the weak protocol with their published numbers, as a Markdown table.

    python benchmarks/rivals.py --data FOLDER [--name Gowalla] [--models GFCF TurboCF]
        [--published TABLE.csv] [--search]

The folder holds `train` and `test` as LightGCN lists (.txt) or arrays `users` and `items` (.npz).
The CSV has the columns dataset, model, recall@20 and ndcg@20. Recall divides by the number of
targets. Each model runs in a separate process, whose peak memory is reported with the seconds of
fitting and of ranking for all users.

Without ``--search`` a model has its authors' settings for the data set `--name`, which were chosen
on the test part, or else its defaults. With ``--search``, settings from a small grid are chosen by
NDCG@20 on `valid_subset_of_train.npz`, which is removed from train, and the model is then fitted
on all of train.
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.data.readers.research import read_weak

CSV_NAMES = {"GFCF": "GF-CF", "TurboCF": "TurboCF", "SVDAE": "SVD-AE", "BSPM": "BSPM"}
CSV_NAMES["SGFCF"] = "SGFCF"
AUTHORS: dict[str, dict[str, dict[str, Any]]] = {
    "Gowalla": {
        "GFCF": {"n_factors": 256, "strength": 0.3},
        "BSPM": {"n_factors": 448, "strength": 0.2, "solver": "rk4", "time": 2.5},
        "TurboCF": {"user_exponent": 0.6, "power": 0.7, "order": 1},
        "SVDAE": {"n_factors": 0.04},
        "SGFCF": {"n_factors": 650, "exponent": 0.34, "strength": 1.6},
    },
    "Yelp2018": {
        "GFCF": {"n_factors": 256, "strength": 0.3},
        "BSPM": {"n_factors": 384, "strength": 0.3, "time": 1.2, "average": True},
        "TurboCF": {"user_exponent": 0.6, "power": 1.0, "order": 2},
        "SVDAE": {"n_factors": 0.04},
    },
}
GRIDS: dict[str, dict[str, list[Any]]] = {
    "GFCF": {"n_factors": [256, 512], "strength": [0.1, 0.2, 0.3, 0.5]},
    "BSPM": {
        "n_factors": [384],
        "strength": [0.2, 0.3],
        "solver": ["euler", "rk4"],
        "time": [1.2, 2.0, 2.5],
        "average": [False, True],
    },
    "TurboCF": {"user_exponent": [0.5, 0.6, 0.7], "power": [0.7, 1.0], "order": [1, 2]},
    "SVDAE": {"n_factors": [0.01, 0.02, 0.04]},
    "SGFCF": {
        "n_factors": [400],
        "exponent": [0.34, 0.42, 0.5],
        "strength": [0.5, 1.0, 1.6],
        "weakest": [0.3, 1.0],
        "strongest": [1.3, 2.5],
    },
}


def peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def judge(model: Any, history: Interactions, target: Interactions) -> eq.evaluation.Result:
    split = eq.split.from_parts(history, test=(history, target), protocol="weak")
    return eq.evaluate(model, split.test, 20, metrics=["recall", "ndcg"], bootstrap=0)


def search(kind: str, parts: dict[str, Interactions]) -> dict[str, Any]:
    """Return the settings with the best NDCG@20 on the validation part."""
    valid = parts["valid_subset_of_train"]
    remaining = parts["train"].difference(valid)
    names, values = GRIDS[kind].keys(), GRIDS[kind].values()
    trials = [dict(zip(names, chosen, strict=True)) for chosen in product(*values)]
    scores = []
    for settings in trials:
        result = judge(getattr(eq, kind)(**settings).fit(remaining), remaining, valid)
        scores.append(result["ndcg@20"])
        print(f"{kind} {settings}: {scores[-1]:.4f}", file=sys.stderr, flush=True)
    return trials[scores.index(max(scores))]


def measure(kind: str, folder: Path, name: str, searched: bool) -> dict[str, Any]:
    parts = read_weak(folder)
    train, test = parts["train"], parts["test"]
    settings = search(kind, parts) if searched else AUTHORS.get(name, {}).get(kind, {})
    start = time.perf_counter()
    model = getattr(eq, kind)(**settings).fit(train)
    fitted = time.perf_counter() - start
    result = judge(model, train, test)
    return {
        "settings": ", ".join(f"{key} {value}" for key, value in settings.items()) or "defaults",
        "recall": result["recall@20"],
        "ndcg": result["ndcg@20"],
        "fit": fitted,
        "rank": result.seconds["rank"],
        "peak": peak_bytes(),
    }


def published(file: Path | None, name: str) -> dict[str, tuple[float, float]]:
    if file is None:
        return {}
    with file.open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["dataset"] == name]
    return {row["model"]: (float(row["recall@20"]), float(row["ndcg@20"])) for row in rows}


def table(options: argparse.Namespace) -> None:
    published_metrics = published(options.published, options.name)
    print("| model | settings | Recall@20 | NDCG@20 | published | fit s | rank s | peak GB |")
    print("|---|---|---:|---:|---|---:|---:|---:|", flush=True)
    for kind in options.models:
        command = [sys.executable, __file__, "--data", str(options.data), "--name", options.name]
        command += ["--one", kind, *(["--search"] if options.search else [])]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        row = json.loads(done.stdout)
        pair = published_metrics.get(CSV_NAMES.get(kind, kind))
        beside = f"{pair[0]:.4f} / {pair[1]:.4f}" if pair else "-"
        print(
            f"| {kind} | {row['settings']} | {row['recall']:.5f} | {row['ndcg']:.5f} | {beside} "
            f"| {row['fit']:.1f} | {row['rank']:.1f} | {row['peak'] / 1e9:.2f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--name", default="Gowalla")
    parser.add_argument("--models", nargs="+", default=list(GRIDS), choices=list(GRIDS))
    parser.add_argument("--published", type=Path)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--one", choices=list(GRIDS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.data, options.name, options.search)))
    else:
        table(options)


if __name__ == "__main__":
    main()
