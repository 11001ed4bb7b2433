"""Search the settings behind a published row: the best of each family.

    python benchmarks/settings_search.py --data data/gowalla/weak --protocol weak --device cuda \
        --out found.json

`eq.tune` searches on a sample of the test users; the best settings of each family are then
evaluated on all of them. Choosing settings on test users is what the published tables do; results
are for finding settings, not for claims.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import equipoise as eq
from equipoise.reproduce.data import published_split
from equipoise.split import Part

METRICS = ["ndcg@20", "recall@20", "head_ndcg@20", "tail_ndcg@20"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--protocol", choices=["strong", "weak"], required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--l2", type=float, nargs="+", default=[5, 20, 50])
    parser.add_argument("--dropout", type=float, nargs="+", default=[0.5, 0.7])
    parser.add_argument("--beta", type=float, nargs="+", default=[0.3, 0.5, 0.7])
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.0, 0.1, 0.2, 0.3])
    parser.add_argument("--bound", type=float, nargs="+", default=[0.1])
    parser.add_argument("--families", nargs="+", default=["LAE", "EASE", "RLAE"])
    parser.add_argument("--sample", type=int, default=5000)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    split = published_split(args.data, args.protocol)
    size = min(args.sample, split.test.n_users)
    rows = np.sort(np.random.default_rng(0).choice(split.test.n_users, size, replace=False))
    part = Part(split.test.history.rows(rows), split.test.target.rows(rows), args.protocol, "test")
    grid = {name: getattr(args, name) for name in ("alpha", "beta", "l2", "dropout")}
    if "RLAE" in args.families:
        grid["diag_bound"] = args.bound
    found = eq.tune(
        args.families,
        dataclasses.replace(split, valid=part),
        grid=grid,
        metric=METRICS[0],
        objectives=METRICS[1:],
        device=args.device,
        storage=args.out.with_suffix(".jsonl"),
        progress=lambda seen: print(seen.done, seen.total, seen.best, flush=True),
    )
    final = [best_of(found.trials, family, split, args.device) for family in args.families]
    stored = {"data": args.data.name, "sampled": found.trials.to_dicts(), "final": final}
    args.out.write_text(json.dumps(stored, indent=1) + "\n")


def best_of(trials: pl.DataFrame, family: str, split: Any, device: str) -> dict[str, Any]:
    """Return the best settings of a family, with its metrics on all test users."""
    row = trials.filter(family=family).sort(METRICS[0], descending=True).row(0, named=True)
    model = getattr(eq, family).prototype()
    model = model.vary({name: row[name] for name in model.tunable()})
    model.fit(split.train, device=device)
    names = [name.removesuffix("@20") for name in METRICS]
    result = eq.evaluate(model, split.test, 20, metrics=names, bootstrap=0)
    values = {name: round(float(result[name]), 5) for name in METRICS}
    found = {"family": family, "settings": model.settings(), "all": values}
    print(found, flush=True)
    return found


if __name__ == "__main__":
    main()
