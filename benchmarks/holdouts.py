"""Find a hold-out of train that ranks settings like the test part of a weak split.

    python benchmarks/holdouts.py --data DATA/gowalla/weak --device cuda --out F.json

EASE+DAN with and without the low-pass companion is fitted at all points of a small grid: on all of
train, evaluated on test, and on train without a hold-out, evaluated on the hold-out. The result
has, for each hold-out, the rank correlation of its NDCG@20 with that on test over all points, and
the test NDCG@20 of its best point.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import paper_path  # noqa: F401  puts `reproduce` on the path
import polars as pl
from scipy.stats import spearmanr

import equipoise as eq
from equipoise.data.readers.research import read_weak
from equipoise.data.split import Part, Split
from reproduce.data import published_split

SHARES = (0.1, 0.2, 0.4, 0.6)  # of each user's items
GRID = {"beta": [0.3, 0.6, 0.9], "l2": [5, 30], "dropout": [0.5], "alpha": [0.0, 0.2]}
GRID |= {"strength": [0.0, 0.1, 0.3], "exponent": [0.3, 0.5]}
POINT = list(GRID)


def hold_outs(folder: Path, full_split: Split) -> Iterator[tuple[str, Split]]:
    """Yield named splits for choosing settings: the test part, then hold-outs of train."""
    yield "test", full_split
    hidden = read_weak(folder)["valid_subset_of_train"]
    remaining = full_split.train.difference(hidden)
    yield (
        "published hold-out",
        eq.split.from_parts(remaining, test=(remaining, hidden), protocol="weak"),
    )
    for share in SHARES:
        yield f"{share:.0%} of each user", eq.split.weak(full_split.train, test=share, seed=0)
    for least in (20, 50):
        split = eq.split.weak(full_split.train, test=0.2, seed=0)
        active = np.flatnonzero(split.test.history.user_counts >= least)
        name = f"20% of users with {least} items"
        yield name, Split(split.train, None, select_users(split.test, active), "weak")


def cut(split: Split, items: int | None) -> Split:
    """Return a split with only the most used items of train."""
    if items is None:
        return split
    popular_items = np.sort(np.argsort(-split.train.item_counts, kind="stable")[:items])
    history, target = (
        side.columns(popular_items) for side in (split.test.history, split.test.target)
    )
    train = split.train.columns(popular_items)
    return eq.split.from_parts(train, test=(history, target), protocol="weak")


def select_users(part: Part, rows: np.ndarray) -> Part:
    return Part(part.history.rows(rows), part.target.rows(rows), part.protocol, "valid")


def points(split: Split, users: int, device: str) -> pl.DataFrame:
    """Return NDCG@20 of every grid point on a sample of a split's test users."""
    part = split.test
    take = np.random.default_rng(0).permutation(part.n_users)[:users]
    tuning_split = Split(split.train, select_users(part, np.sort(take)), part, "weak")
    low = eq.LowPass(rank=512, user_exponent=0.4, item_exponent=0.4)
    model = eq.EASE(normalizer=eq.DAN(), lowpass=low)
    return eq.tune(model, tuning_split, grid=GRID, device=device).trials.select(*POINT, "ndcg@20")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the weak split")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--items", type=int, help="number of most used items; default all")
    parser.add_argument("--users", type=int, default=10_000, help="users to evaluate on")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows: list[dict[str, float | str]] = []
    test = None
    for name, split in hold_outs(args.data, published_split(args.data, "weak")):
        grid_points = points(cut(split, args.items), args.users, args.device)
        if test is None:
            test = grid_points.rename({"ndcg@20": "test"})
            plain = test.filter(strength=0.0)["test"].max()
            best = test["test"].max()
            rows.append({"points": len(test), "best": best, "best without companion": plain})
            continue
        both = test.join(grid_points, on=POINT)
        chosen = both["test"][both["ndcg@20"].arg_max()]
        correlation = float(spearmanr(both["test"], both["ndcg@20"]).statistic)
        facts = {"hold-out": name, "correlation": correlation, "test NDCG@20": chosen}
        rows.append(facts)
        print(facts, flush=True)
        args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
