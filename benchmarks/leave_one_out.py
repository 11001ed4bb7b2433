"""Measure the cost of leave-one-out, the quality of its settings and the error of its estimate.

    python benchmarks/leave_one_out.py --seeds 3
    python benchmarks/leave_one_out.py --timing --items 10000
    python benchmarks/leave_one_out.py --published gowalla

The first command compares, on real data sets: the automatic settings (one solve); `eq.tune(data)`
by leave-one-out with 7 and with 25 solves (25 also with prefer="accuracy"); and 25 solves on a
validation split, whose best settings are refitted on train and valid together. All final models
are therefore fitted on the same users; they are evaluated on the test part. Existing rows of
results/leave_one_out.csv and finished solves in the folder --searches are reused. --jobs computes
several rows in parallel, --limit stops after that many seconds.

The second command compares the time of leave-one-out lists with that of regular lists; run it on
an otherwise idle machine.

The third command compares the estimate with the test part of a full-size published split, and
shows the causes of the difference: how each user's items are divided, and which users are drawn.

To run on a machine that has a GPU but not the data, first run --export FOLDER where the data are,
then --data FOLDER --device cuda there.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import paper_path  # noqa: F401  puts `reproduce` on the path
import polars as pl
from real import SHARED, cut, export, sources

import equipoise as eq
from equipoise.evaluation.leave_one_out import left_out_part
from equipoise.models.leaving_out import lists_without
from reproduce.data import published_split

RESULTS = Path(__file__).parent / "results"
METRICS = ("ndcg@20", "tail_ndcg@20", "unbiased_ndcg@20")
FAMILIES = [eq.EASE, eq.RLAE, eq.LAE]
NAMES = ("data", "items", "seed", "way")
KINDS = (
    "automatic, 1 solve",
    "leave-one-out, 7 solves",
    "split, 25 solves, refitted",
    "leave-one-out, 25 solves",
    "leave-one-out, 25 solves, accuracy",
)
NEEDED = KINDS[:3]  # a seed without these rows is left out of the means
SEARCHED = {KINDS[3]: "balance", KINDS[4]: "accuracy"}  # both choose from the same search
COLUMNS = (*NAMES, *METRICS, "error", "estimate", "estimate_error", "seconds", "chosen")
Key = tuple[str, int, int, str]


def on_test(model: Any, part: Any) -> dict[str, float]:
    names = [metric.partition("@")[0] for metric in METRICS]
    result = eq.evaluate(model, part, metrics=names, bootstrap=0)
    return {**{name: result[name] for name in METRICS}, "error": error_of(result)}


def error_of(result: eq.Result) -> float:
    """Return the standard error of NDCG@20."""
    return float(result.per_user["ndcg@20"].std()) / result.n_users**0.5  # type: ignore[arg-type]


@lru_cache(maxsize=1)
def parts(folder: Path, name: str, items: int, seed: int) -> tuple[eq.Split, eq.Interactions]:
    """Return the split, and the union of its train and valid parts."""
    split = eq.split.strong(cut(folder, name, items), seed=seed)
    assert split.valid is not None
    return split, split.train.union(split.valid.history).union(split.valid.target)


def make_rows(
    keys: list[Key], args: argparse.Namespace, threads: int | None
) -> list[dict[str, Any]]:
    """Return the rows of several ways of choosing settings that share a search."""
    return [row_of(key, args, threads) for key in keys]


def row_of(key: Key, args: argparse.Namespace, threads: int | None) -> dict[str, Any]:
    """Choose settings in one way and return the row with the metrics on the test part."""
    name, items, seed, way = key
    split, train_and_valid = parts(args.data, name, items, seed)
    options: dict[str, Any] = {"device": args.device, "threads": threads}
    start = time.perf_counter()
    estimate = None
    if way == KINDS[0]:
        model: Any = eq.EDLAE(normalizer=eq.DAN()).fit(train_and_valid, **options)
    elif way == KINDS[2]:
        model = eq.tune(FAMILIES, split, trials=25, refit="all", **options).model
    else:
        trials = 25 if way in SEARCHED else 7
        if way in SEARCHED and args.searches:
            args.searches.mkdir(parents=True, exist_ok=True)
            options["storage"] = args.searches / f"{name}-{items}-{seed}.jsonl"
        options |= {"criterion": "leave-one-out", "prefer": SEARCHED.get(way)}
        tuned = eq.tune(train_and_valid, trials=trials, **options)
        model, estimate = tuned.model, tuned.estimate
    seconds = time.perf_counter() - start
    row = dict(zip(NAMES, key, strict=True)) | on_test(model, split.test)
    row |= {"seconds": round(seconds, 1), "chosen": model.summary()}
    if estimate is not None:
        row |= {"estimate": estimate.value, "estimate_error": estimate.error}
    return row


def table(args: argparse.Namespace) -> None:
    """Compute the missing rows, beginning with those that every seed needs."""
    out = args.out / "leave_one_out.csv"
    rows = pl.read_csv(out).rows(named=True) if out.exists() else []
    done = {tuple(row[name] for name in NAMES) for row in rows}
    ways = [*([way] for way in NEEDED), list(SEARCHED)]
    row_groups: list[list[Key]] = [
        [(name, args.items, seed, way) for way in group]
        for groups in (ways[:-1], ways[-1:])
        for seed in range(args.seeds)
        for name in args.only or sources(args.data)
        for group in groups
    ]
    row_groups = [[key for key in keys if key not in done] for keys in row_groups]
    end = time.monotonic() + args.limit
    for finished_rows in (at_once if args.jobs > 1 else one_by_one)(
        list(filter(None, row_groups)), args, end
    ):
        for row in finished_rows:
            append(out, row)
            print({column: row[column] for column in (*NAMES, *METRICS, "seconds")}, flush=True)


def one_by_one(
    row_groups: list[list[Key]], args: argparse.Namespace, end: float
) -> Iterable[list[dict[str, Any]]]:
    for keys in row_groups:
        if time.monotonic() < end:
            yield make_rows(keys, args, None)


def at_once(
    row_groups: list[list[Key]], args: argparse.Namespace, end: float
) -> Iterable[list[dict[str, Any]]]:
    """Compute several rows in parallel processes."""
    threads = max((os.cpu_count() or 1) // args.jobs, 1)
    with ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn")) as pool:
        tasks = [pool.submit(make_rows, keys, args, threads) for keys in row_groups]
        try:
            for task in as_completed(tasks, max(end - time.monotonic(), 0)):
                yield task.result()
        except TimeoutError:
            print("stopped at --limit; run again for the missing rows", flush=True)
            workers = list(pool._processes.values())
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.terminate()


def append(out: Path, row: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = not out.exists()
    with out.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if fresh:
            writer.writeheader()
        writer.writerow(row)


def show(out: Path) -> None:
    """Print the table of docs/evidence-tuning.md: means over the seeds with all needed rows."""
    frame = pl.read_csv(out / "leave_one_out.csv")
    heads = ("data", "seeds", *KINDS, "7 solves / split: NDCG, tail, unbiased", "estimate - test")
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    shares, off = [], []
    for name in dict.fromkeys(frame["data"]):
        set_rows = frame.filter(data=name)
        ways_per_seed = set_rows.filter(pl.col("way").is_in(NEEDED)).group_by("seed").len()
        seeds = ways_per_seed.filter(len=len(NEEDED))["seed"].sort()
        set_rows = set_rows.filter(pl.col("seed").is_in(seeds.implode()))
        if not len(seeds):
            continue
        cells = [name, str(len(seeds))]
        means = {}
        for way in KINDS:
            one = set_rows.filter(way=way)
            means[way] = [float(one[metric].mean() or 0) for metric in METRICS]  # type: ignore[arg-type]
            text = f"{means[way][0]:.4f} / {means[way][1]:.4f}"
            cells.append(text if one.height == len(seeds) else "")
        ours, split = means[KINDS[1]], means[KINDS[2]]
        shares.append([a / b for a, b in zip(ours, split, strict=True)])
        cells.append(", ".join(f"{ratio:.1%}" for ratio in shares[-1]))
        tuned = set_rows.filter(way=KINDS[1]).sort("seed")
        both = (tuned["error"] ** 2 + tuned["estimate_error"] ** 2) ** 0.5
        deviations = ((tuned["estimate"] - tuned["ndcg@20"]) / both).to_list()
        cells.append(", ".join(f"{ratio:+.1f}" for ratio in deviations))
        off += deviations
        print("| " + " | ".join(cells) + " |")
    least, mean = np.min(shares, axis=0), np.mean(shares, axis=0)
    print(f"least {least.round(4)}, mean {mean.round(4)}; ", end="")
    print(f"within two errors {sum(abs(ratio) <= 2 for ratio in off)} of {len(off)}")
    split = frame.filter(way=KINDS[2]).select(*NAMES[:3], *METRICS)
    for way in (KINDS[0], *SEARCHED):
        pairs = frame.filter(way=way).join(split, on=NAMES[:3], suffix="_split")
        means = pairs.group_by("data", maintain_order=True).agg(
            pl.len(),
            *((pl.col(ratio).mean() / pl.col(f"{ratio}_split").mean()) for ratio in METRICS),
        )
        print(f"{way} / split:")
        for name, seeds, *deviations in means.rows():
            print(f"  {name}, {seeds} seeds: " + ", ".join(f"{ratio:.1%}" for ratio in deviations))


def timing(args: argparse.Namespace) -> None:
    data = cut(args.data, "gowalla", args.items)
    settings: dict[str, Any] = {"l2": 20.0, "dropout": 0.5}
    model = eq.EASE(**settings, normalizer=eq.DAN(0.2, 0.3)).fit(data, device=args.device)
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
        "all metrics of leave-one-out": timed(lambda: eq.leave_one_out(model)),
        f"{len(many)} models of the solve": timed(lambda: lists_without(many, history, 20)),
    }
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3
    ranking, one, _, every = seconds.values()
    report = {
        "items": data.n_items,
        "users": history.n_users,
        "device": args.device,
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "leaving out / ranking": round(one / ranking, 2),
        "all / one": round(every / one, 2),
        "MB on top": round(grown),
    }
    write(args.out / f"leave_one_out_{args.device}_{data.n_items}.json", report)


def timed(task: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        task()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def published(args: argparse.Namespace) -> None:
    """Compare the estimate with the test part of a published split, with both ways of rounding.

    Published splits round the number of hidden items down; ours rounds to the nearest integer.
    The model has the settings of the paper.
    """
    split = published_split(args.data / args.published / "strong", "strong")
    assert split.valid is not None
    model = eq.EASE(l2=20.0, dropout=0.6, normalizer=eq.DAN(0.2, 0.3))
    model.fit(split.train, device=args.device)
    scores: dict[str, Any] = {}

    def say(name: str, result: eq.Result) -> None:
        scores[name] = [round(result["ndcg@20"], 4), round(error_of(result), 4), result.n_users]
        print(name, *scores[name], flush=True)

    options: dict[str, Any] = {"metrics": ["ndcg"], "bootstrap": 0}
    for part in (split.valid, split.test):
        say(f"{part.name} part", eq.evaluate(model, part, **options))
        all_items = part.history.union(part.target)
        for deal, hidden in (("down", np.floor), ("nearest", np.round)):
            for seed in range(3):
                dealt = deal_again(all_items, hidden, seed)
                label = f"{part.name} users, rounded {deal}, seed {seed}"
                say(label, eq.evaluate(model, dealt, **options))
    for seed in range(5):
        say(f"2,000 users left out, seed {seed}", eq.leave_one_out(model, seed=seed, **options))
    for deal, hidden in (("down", np.floor), ("nearest", np.round)):
        dealt = deal_again(split.train, hidden, 0)
        label = f"all training users left out, rounded {deal}"
        say(label, eq.leave_one_out(model, part=dealt, **options))
    write(args.out / f"leave_one_out_{args.published}.json", scores)


def deal_again(
    data: eq.Interactions, hidden: Callable[[Any], Any], seed: int
) -> tuple[eq.Interactions, eq.Interactions]:
    """Hide a fifth of each user's items, at least one; `hidden` rounds the number."""
    data = data.rows(data.user_counts >= 2)
    counts = data.user_counts
    n_shown = counts - np.maximum(hidden(0.2 * counts + 1e-9), 1).astype(np.int64)
    key = np.random.default_rng(seed).random(data.n_interactions)
    rows = np.repeat(np.arange(data.n_users), counts)
    order = np.lexsort((key, rows))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - np.repeat(data.matrix.indptr[:-1], counts)
    shown = place < n_shown[rows]
    return data.entries(shown), data.entries(~shown)


def write(file: Path, report: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


def export_all(args: argparse.Namespace) -> None:
    """Write the data sets that the other commands read."""
    for name in args.only or sources(args.data):
        export(args.data, name, args.items, args.export)
    if args.published:
        below = f"{args.published}/strong"
        shutil.copytree(args.data / below, args.export / below, copy_function=shutil.copyfile)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=SHARED, help="folder of the prepared sets")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--items", type=int, default=1500, help="number of most used items")
    parser.add_argument("--seeds", type=int, default=1, help="splits of each set")
    parser.add_argument("--only", nargs="+", help="names of data sets")
    parser.add_argument("--device", default="cpu", help="where to solve and rank")
    parser.add_argument(
        "--jobs", type=int, default=1, help="rows of the table computed in parallel"
    )
    parser.add_argument("--searches", type=Path, help="folder that stores the 25-solve searches")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds for the table")
    parser.add_argument("--timing", action="store_true")
    parser.add_argument("--published", metavar="NAME", help="gowalla or yelp2018")
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="only write small files")
    parser.add_argument("--show", action="store_true", help="only print the finished rows")
    args = parser.parse_args()
    if args.export:
        export_all(args)
    elif args.timing:
        timing(args)
    elif args.published:
        published(args)
    else:
        if not args.show:
            table(args)
        show(args.out)


if __name__ == "__main__":
    main()
