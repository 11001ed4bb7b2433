"""The whole grid of the paper with shared solves, against fitting each of its points by itself.

    python benchmarks/tune_grid.py --items 10000

The grid has 6 alphas x 11 betas x 25 penalties x 3 families = 4,950 points. `eq.tune` judges all
of them; what fitting each alone would take is estimated from 20 points drawn at random, half of
them before and half after, each fitted and judged on the valid part. On a smaller grid both ways
run completely and must find the same best settings and the same numbers in every point. Prints
Markdown.
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any

import numpy as np
from fit import long_tailed

import equipoise as eq
from equipoise.tuning import PAPER

FAMILIES = (eq.LAE, eq.EASE, eq.RLAE)
SMALL = {"alpha": (0.0, 0.3), "beta": (0.0, 0.5), "l2": (20.0, 100.0), "dropout": (0.1, 0.5)}
METRICS = ("ndcg", "tail_ndcg")
Settings = dict[str, float]


def alone(
    split: eq.split.Split, family: Any, settings: Settings
) -> tuple[float, dict[str, float]]:
    """Return seconds and metrics of one point, fitted and judged by itself."""
    start = time.perf_counter()
    own = {name: settings[name] for name in ("l2", "dropout")}
    model = family(normalizer=eq.DAN(settings["alpha"], settings["beta"]), **own)
    model.fit(split.train)
    result = eq.evaluate(model, split.valid, metrics=METRICS, bootstrap=0)
    return time.perf_counter() - start, {f"{name}@20": result[f"{name}@20"] for name in METRICS}


def every(grid: dict[str, Any]) -> list[Settings]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def check(split: eq.split.Split) -> int:
    """Run a small grid both ways; anything but equal numbers is an error."""
    found = eq.tune(list(FAMILIES), split, grid=SMALL)
    shared = {
        (row["family"], *(row[name] for name in SMALL)): row for row in found.trials.to_dicts()
    }
    best = None
    for settings in every(SMALL):
        for family in FAMILIES:
            _, values = alone(split, family, settings)
            row = shared[family.__name__, *settings.values()]
            assert all(row[name] == value for name, value in values.items()), (settings, values)
            key = (values["ndcg@20"], family.__name__, settings)
            best = key if best is None or key[0] > best[0] else best
    assert best is not None
    assert best[0] == found.best["ndcg@20"], "the best settings differ"
    return len(shared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=2_000)
    parser.add_argument("--users", type=int, help="3 per item if left out")
    parser.add_argument("--pairs", type=int, help="100 per item if left out")
    parser.add_argument("--valid", type=int, default=1_000, help="users to judge on")
    parser.add_argument("--points", type=int, default=10, help="points fitted alone, twice")
    args = parser.parse_args()
    users = args.users or 3 * args.items
    data = long_tailed(users, args.items, args.pairs or 100 * args.items)
    data = data.filter(min_user=5)
    split = eq.split.strong(data, valid=args.valid / data.n_users, test=100 / data.n_users)
    eq.tune(eq.EASE, split, grid={"l2": [100.0]})  # everything is compiled and loaded
    compared = check(split)
    print(f"{split!r}\n\nEqual in all {compared} points of the small grid.\n", flush=True)
    rng = np.random.default_rng(0)
    grid = every(PAPER)
    seconds = []
    for place in rng.choice(len(grid), args.points, replace=False):
        seconds.append(alone(split, FAMILIES[int(rng.integers(3))], grid[place])[0])
    whole = eq.tune(list(FAMILIES), split, grid="paper")
    for place in rng.choice(len(grid), args.points, replace=False):  # before and after
        seconds.append(alone(split, FAMILIES[int(rng.integers(3))], grid[place])[0])
    points = whole.trials.height
    apart = points * float(np.mean(seconds))
    print("| items | points | solves | one point alone s | all alone s | eq.tune s | ratio |")
    print("|---|---|---|---|---|---|---|")
    print(
        f"| {split.train.n_items:,} | {points:,} | {whole.solves} | {np.mean(seconds):.3f} "
        f"| {apart:,.0f} | {whole.seconds:,.0f} | {apart / whole.seconds:.1f} |"
    )
    print(f"\nbest: {whole.best}")


if __name__ == "__main__":
    main()
