"""What leave-one-out costs, how well it chooses settings, and how close its figure is.

    python benchmarks/leave_one_out.py --only movielens-100k gowalla --seeds 3
    python benchmarks/leave_one_out.py --timing --items 10000

The first compares, on real data sets, the automatic settings with one solve, `eq.tune(data)` with
seven and 25 solves by leave-one-out, and 25 solves on a validation split, of which the chosen one
is fitted on the train and valid parts together. All models are so fitted on the same users, and
evaluated on the test part. Finished rows of results/leave_one_out.csv are not made again.

The second times leaving users out against ranking them, in seconds of the processor, which other
work on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import csv
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from real import SHARED, most_used, sources

import equipoise as eq
from equipoise.estimation import left_out_part
from equipoise.models.leaving_out import lists_without

OUT = Path(__file__).parent / "results" / "leave_one_out.csv"
METRICS = ("ndcg@20", "tail_ndcg@20", "unbiased_ndcg@20")
FAMILIES = [eq.EASE, eq.RLAE, eq.LAE]
NAMES = ("data", "items", "seed", "way")
KINDS = (
    "automatic, 1 solve",
    "leave-one-out, 7 solves",
    "leave-one-out, 25 solves",
    "split, 25 solves, refitted",
)
NEEDED = (KINDS[0], KINDS[1], KINDS[3])  # of a seed that counts
COLUMNS = (*NAMES, *METRICS, "error", "estimate", "estimate_error", "seconds", "chosen")


def on_test(model: Any, split: eq.Split) -> dict[str, float]:
    names = [metric.partition("@")[0] for metric in METRICS]
    result = eq.evaluate(model, split.test, metrics=names, bootstrap=0)
    spread = result.per_user["ndcg@20"].std()
    error = float(spread) / result.n_users**0.5  # type: ignore[arg-type]
    return {**{name: result[name] for name in METRICS}, "error": error}


def ways(split: eq.Split, whole: eq.Interactions) -> dict[str, Callable[[], Any]]:
    """Return the ways to find settings; each gives a model and, where it has one, an estimate."""

    def automatic() -> Any:
        return eq.EASE(normalizer=eq.DAN()).fit(whole), None

    def left_out(trials: int) -> Any:
        found = eq.tune(whole, trials=trials)
        return found.model, found.estimate

    def on_split() -> Any:
        return eq.tune(FAMILIES, split, trials=25, refit="all").model, None

    return {
        KINDS[0]: automatic,
        KINDS[1]: lambda: left_out(7),
        KINDS[2]: lambda: left_out(25),
        KINDS[3]: on_split,
    }


def table(args: argparse.Namespace) -> None:
    rows = pl.read_csv(OUT).rows(named=True) if OUT.exists() else []
    done = {tuple(row[name] for name in NAMES) for row in rows}
    for name, load in sources(args.data).items():
        if args.only and name not in args.only:
            continue
        data = most_used(load(), args.items)
        for seed in range(args.seeds):
            split = eq.split.strong(data, seed=seed)
            assert split.valid is not None
            whole = split.train.union(split.valid.history).union(split.valid.target)
            for way, find in ways(split, whole).items():
                key = (name, args.items, seed, way)
                if key in done:
                    continue
                start = time.perf_counter()
                model, estimate = find()
                seconds = time.perf_counter() - start
                row = dict(zip(NAMES, key, strict=True)) | on_test(model, split)
                row |= {"seconds": round(seconds, 1), "chosen": model.summary()}
                if estimate is not None:
                    row |= {"estimate": estimate.value, "estimate_error": estimate.error}
                append(row)
                print(key, {each: round(float(row[each]), 4) for each in METRICS}, flush=True)


def append(row: dict[str, Any]) -> None:
    OUT.parent.mkdir(exist_ok=True)
    fresh = not OUT.exists()
    with OUT.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if fresh:
            writer.writeheader()
        writer.writerow(row)


def show() -> None:
    """Print the table of docs/tuning.md: means over the seeds that every way has finished."""
    frame = pl.read_csv(OUT)
    heads = ("data", "seeds", *KINDS, "7 solves / split: NDCG, tail, unbiased", "estimate - test")
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    shares, off = [], []
    for name in dict.fromkeys(frame["data"]):
        own = frame.filter(data=name)
        whole = own.filter(pl.col("way").is_in(NEEDED)).group_by("seed").len()
        seeds = whole.filter(len=len(NEEDED))["seed"].sort()
        own = own.filter(pl.col("seed").is_in(seeds.implode()))
        if not len(seeds):
            continue
        cells = [name, str(len(seeds))]
        means = {}
        for way in KINDS:
            one = own.filter(way=way)
            means[way] = [float(one[metric].mean() or 0) for metric in METRICS]  # type: ignore[arg-type]
            text = f"{means[way][0]:.4f} / {means[way][1]:.4f}"
            cells.append(text if one.height == len(seeds) else "")
        mine, split = means[KINDS[1]], means[KINDS[3]]
        shares.append([a / b for a, b in zip(mine, split, strict=True)])
        cells.append(", ".join(f"{each:.1%}" for each in shares[-1]))
        tuned = own.filter(way=KINDS[1]).sort("seed")
        both = (tuned["error"] ** 2 + tuned["estimate_error"] ** 2) ** 0.5
        found = ((tuned["estimate"] - tuned["ndcg@20"]) / both).to_list()
        cells.append(", ".join(f"{each:+.1f}" for each in found))
        off += found
        print("| " + " | ".join(cells) + " |")
    least, mean = np.min(shares, axis=0), np.mean(shares, axis=0)
    print(f"least {least.round(4)}, mean {mean.round(4)}; ", end="")
    print(f"within two errors {sum(abs(each) <= 2 for each in off)} of {len(off)}")


def timing(args: argparse.Namespace) -> None:
    data = most_used(sources(args.data)["gowalla"](), args.items)
    settings: dict[str, Any] = {"l2": 20.0, "dropout": 0.5}
    model = eq.EASE(**settings, normalizer=eq.DAN(0.2, 0.3)).fit(data)
    history = left_out_part(data, 2000, 0.8, 0).history
    many: list[Any] = []
    for alpha in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5):
        normalizer = eq.DAN(alpha, 0.3)
        many += [
            kind(**settings, normalizer=normalizer).reuse(model) for kind in (eq.EASE, eq.LAE)
        ]
        for bound in (0.1, 0.2, 0.3, 0.5, 0.7):
            other = eq.RLAE(**settings, normalizer=normalizer, diag_bound=bound)
            many.append(other.reuse(model))
    model.rank(history.rows(np.arange(10)), 20)
    lists_without([model], history.rows(np.arange(10)), 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = {
        "ranking": timed(lambda: model.rank(history, 20)),
        "leaving out": timed(lambda: lists_without([model], history, 20)),
        f"{len(many)} models of the solve": timed(lambda: lists_without(many, history, 20)),
    }
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3
    ranking, one, every = seconds.values()
    print(f"{data.n_items:,} items, {history.n_users:,} users, seconds of the processor:")
    print(", ".join(f"{name} {value:.2f}" for name, value in seconds.items()))
    print(f"leaving out / ranking {one / ranking:.1f}, all / one {every / one:.1f}, ", end="")
    print(f"memory taken on top {grown:.0f} MB")


def timed(task: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(3):
        start = time.process_time()
        task()
        seconds.append(time.process_time() - start)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=SHARED, help="folder of the prepared sets")
    parser.add_argument("--items", type=int, default=1500, help="most used items that are kept")
    parser.add_argument("--seeds", type=int, default=1, help="splits of each set")
    parser.add_argument("--only", nargs="+", help="names of data sets")
    parser.add_argument("--timing", action="store_true")
    parser.add_argument("--show", action="store_true", help="only print what is finished")
    args = parser.parse_args()
    if args.timing:
        timing(args)
        return
    if not args.show:
        table(args)
    show()


if __name__ == "__main__":
    main()
