"""Compare `Signals` (quantities, repeats, age) for EASE on a split by time.

Run ``python benchmarks/signals.py online-retail``. The last tenth of the events is the test part.
For each row of the table, l2 is chosen on the tenth before it. Only new items are ranked.
"""

from __future__ import annotations

import argparse

import equipoise as eq

L2 = [100.0, 400.0, 1600.0]
LINES = [
    ("as it is read", None),
    ("binary", eq.Signals()),
    ("count", eq.Signals(transform="count")),
    ("log1p", eq.Signals(transform="log1p")),
    ("bm25", eq.Signals(transform="bm25")),
    ("sum", eq.Signals(transform="sum")),
    ("binary, decay 60d", eq.Signals(decay="60d")),
    ("log1p, decay 60d", eq.Signals(transform="log1p", decay="60d")),
]


def main() -> None:
    """Print a table of signals, the chosen l2, and NDCG@20 on the valid and test parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="a data set with times and weights")
    split = eq.split.time_cut(eq.datasets.load(parser.parse_args().name))
    print(split)
    print("\n| signals | l2 | NDCG@20 valid | NDCG@20 test |\n|---|---:|---:|---:|")
    for name, signals in LINES:
        tuned = eq.tune(eq.EASE(normalizer=eq.NoNorm(), signals=signals), split, grid={"l2": L2})
        best = tuned.trials.sort("ndcg@20", descending=True).row(0, named=True)
        test = eq.evaluate(tuned.model, split.test, metrics=["ndcg"], bootstrap=0)["ndcg@20"]
        print(f"| {name} | {best['l2']:g} | {best['ndcg@20']:.4f} | {test:.4f} |", flush=True)


if __name__ == "__main__":
    main()
