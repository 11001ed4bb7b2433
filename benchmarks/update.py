"""Compare the time of an exact update with that of a refit.

    python benchmarks/update.py --items 10000

Adds or changes 1% of the users of a fitted model; prints a Markdown table.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from fit import long_tailed

import equipoise as eq


def timed(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--users", type=int, default=30_000)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    data = long_tailed(args.users, args.items, args.pairs)
    changed = np.random.default_rng(1).choice(
        args.users, round(args.share * args.users), replace=False
    )
    group = data.rows(changed)
    half = group.entries(np.random.default_rng(2).random(group.n_interactions) < 0.5)
    cases = {
        "new users": (data.rows(np.setdiff1d(np.arange(args.users), changed)), group),
        "changed users": (data.difference(half), half),
    }
    normalizer = eq.DAN(0.2, 0.3)
    print("| change | model | update s | refit s | ratio | largest difference of P |")
    print("|---|---|---|---|---|---|")
    for name, (before, added) in cases.items():
        for dropout in (0.0, 0.5):
            settings = {"l2": 100.0, "dropout": dropout, "normalizer": normalizer}
            pairs = []
            for _ in range(args.repeats):
                model = eq.EASE(**settings).fit(before)
                update = timed(lambda: model.update(added))  # noqa: B023
                fresh = eq.EASE(**settings)
                refit = timed(lambda: fresh.fit(model.interactions_))  # noqa: B023
                pairs.append((update, refit))
            update, refit = (statistics.median(side) for side in zip(*pairs, strict=True))
            ratio = statistics.median(one / two for one, two in pairs)
            error = np.abs(model.inverse_ - fresh.inverse_).max() / np.abs(fresh.inverse_).max()
            kind = f"EASE+DAN, dropout {dropout}"
            print(
                f"| {name} | {kind} | {update:.2f} | {refit:.2f} | {ratio:.2f} | {error:.1e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
