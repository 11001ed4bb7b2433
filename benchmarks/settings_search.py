"""Search the settings behind a published row: the best of each family.

    python benchmarks/settings_search.py --data data/gowalla/weak --protocol weak --device cuda

One solve serves every family, bound and alpha. The search ranks a sample of the test users; the
best settings of each family are then evaluated on all of them. Choosing settings
on test users is what the published tables do; results are for finding settings, not for claims.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from equipoise.reproduce.data import published_split

import equipoise as eq
from equipoise.models.saving import build
from equipoise.split import Part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--protocol", choices=["strong", "weak"], required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--l2", type=float, nargs="+", default=[5, 20, 50])
    parser.add_argument("--dropout", type=float, nargs="+", default=[0.5, 0.7])
    parser.add_argument("--beta", type=float, nargs="+", default=[0.3, 0.5, 0.7])
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.0, 0.1, 0.2, 0.3])
    parser.add_argument("--gamma", type=float, nargs="+", default=[0.0])
    parser.add_argument("--bound", type=float, nargs="+", default=[0.1])
    parser.add_argument("--families", nargs="+", default=["LAE", "EASE", "RLAE"])
    parser.add_argument("--sample", type=int, default=5000)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    split = published_split(args.data, args.protocol)
    rng = np.random.default_rng(0)
    size = min(args.sample, split.test.n_users)
    rows = np.sort(rng.choice(split.test.n_users, size, replace=False))
    part = Part(split.test.history.rows(rows), split.test.target.rows(rows), args.protocol, "test")
    found = []
    start = time.perf_counter()
    for beta, dropout, l2 in itertools.product(args.beta, args.dropout, args.l2):
        if l2 == 0 and dropout == 0:
            continue
        fitted: Any = None
        for model in candidates(args, beta, dropout, l2):
            if fitted is None:
                fitted = model.fit(split.train, device=args.device)
            else:
                model.reuse(fitted)
            found.append((score(model, part), model.settings()))
        del fitted, model
        best = max(found, key=lambda entry: entry[0]["ndcg"])
        passed = time.perf_counter() - start
        print(f"{passed:6.0f} s  beta {beta} p {dropout} l2 {l2}", best, flush=True)
        args.out.write_text(json.dumps({"data": str(args.data.name), "sampled": found}, indent=1))
    final = []
    for reason, settings in chosen(found):
        model = build(settings)
        final.append(
            {
                "why": reason,
                "settings": settings,
                "all": score(model.fit(split.train, device=args.device), split.test),
            }
        )
        del model
        print(final[-1], flush=True)
    args.out.write_text(json.dumps({"sampled": found, "final": final}, indent=1) + "\n")


def candidates(args: argparse.Namespace, beta: float, dropout: float, l2: float) -> list[Any]:
    """Return all models that one solve serves."""
    out = []
    for family, alpha, gamma in itertools.product(args.families, args.alpha, args.gamma):
        normalizer = eq.ColumnNorm(gamma) if gamma else eq.DAN(alpha, beta)
        shared = {"l2": l2, "dropout": dropout, "normalizer": normalizer}
        if family == "RLAE":
            out += [eq.RLAE(diag_bound=bound, **shared) for bound in args.bound]
        else:
            out.append(getattr(eq, family)(**shared))
    return out


def score(model: Any, part: Part) -> dict[str, float]:
    """Return recall and NDCG, and NDCG of head and tail."""
    names = {"recall": "recall", "ndcg": "ndcg", "head": "head_ndcg", "tail": "tail_ndcg"}
    result = eq.evaluate(model, part, 20, metrics=list(names.values()), bootstrap=0)
    return {short: round(float(result[f"{name}@20"]), 5) for short, name in names.items()}


def chosen(found: list[Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the best settings of each family."""
    out = []
    for family in sorted({settings["model"] for _, settings in found}):
        mine = [entry for entry in found if entry[1]["model"] == family]
        out.append((f"best {family}", max(mine, key=lambda entry: entry[0]["ndcg"])[1]))
    return out


if __name__ == "__main__":
    main()
