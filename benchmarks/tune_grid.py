"""Compare `eq.tune` on the paper's grid, which shares solves, with fitting every point separately.

    python benchmarks/tune_grid.py --items 10000 --set gowalla
    python benchmarks/tune_grid.py --real --items 1000

The grid has 6 alphas x 11 betas x 25 penalties x 3 families = 4,950 points, which `eq.tune`
evaluates completely. The time of separate fits is estimated from 20 random points, half of them
fitted before the search and half after it. On a smaller grid both methods run completely and must
give equal metrics at every point and the same best settings. Then the same grid is searched with
`early_stop=True`, from scratch; with --replay its time is instead the sum over those finished
solves that it would have made.

With --real the grid is evaluated on real data sets, and the table has the number of solves that an
early stop would have made and its loss. Prints Markdown.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from fit import long_tailed
from real import SHARED, most_used, sources

import equipoise as eq
from equipoise.tuning import PAPER, Tuned
from equipoise.tuning.space import GridProposals

FAMILIES = (eq.LAE, eq.EASE, eq.RLAE)
SMALL = {"alpha": (0.0, 0.3), "beta": (0.0, 0.5), "l2": (20.0, 100.0), "dropout": (0.1, 0.5)}
METRICS = ("ndcg", "tail_ndcg")
OUTER = ("beta", "dropout", "l2")  # as `eq.tune` nests them
METRIC = "ndcg@20"
Settings = dict[str, float]
Key = tuple[float, ...]  # beta, dropout and l2 of a solve


def alone(
    split: eq.split.Split, family: Any, settings: Settings
) -> tuple[float, dict[str, float]]:
    """Fit and evaluate one point separately; return its seconds and metrics."""
    start = time.perf_counter()
    penalties = {name: settings[name] for name in ("l2", "dropout")}
    model = family(normalizer=eq.DAN(settings["alpha"], settings["beta"]), **penalties)
    model.fit(split.train)
    result = eq.evaluate(model, split.valid, metrics=METRICS, bootstrap=0)
    return time.perf_counter() - start, {f"{name}@20": result[f"{name}@20"] for name in METRICS}


def every(grid: dict[str, Any]) -> list[Settings]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def check(split: eq.split.Split) -> int:
    """Fail unless both methods give equal metrics on a small grid; return its size."""
    tuned = eq.tune(list(FAMILIES), split, grid=SMALL)
    shared = {
        (row["family"], *(row[name] for name in SMALL)): row for row in tuned.trials.to_dicts()
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
    assert best[0] == tuned.best["ndcg@20"], "the best settings differ"
    return len(shared)


def best_of_solves(full_search: Tuned) -> dict[Key, float]:
    """Return the best metric value of every solve."""
    best: dict[Key, float] = {}
    for row in full_search.trials.select(*OUTER, METRIC).iter_rows():
        best[row[:3]] = max(best.get(row[:3], -np.inf), row[3])
    return best


def path(split: eq.split.Split, values: dict[Key, float]) -> list[Key]:
    """Return the solves of a search with early stop, in order."""
    auto = eq.EDLAE(normalizer=eq.DAN()).fit(split.train)
    start = {"beta": auto.normalizer_.exponents()[1], "l2": auto.l2_, "dropout": auto.dropout_}
    axes = {name: PAPER[name] for name in OUTER}
    walk = GridProposals(axes, start).walk(
        lambda point: values[tuple(point[name] for name in OUTER)]
    )
    return [tuple(point[name] for name in OUTER) for point in walk]


def replayed(storage: Path, solves: list[Key], full_search: Tuned) -> float:
    """Return the seconds of these solves in a storage, plus the time outside of solves."""
    lines = [json.loads(line) for line in storage.read_text().splitlines() if "outer" in line]
    seconds = {tuple(solve["outer"][name] for name in OUTER): solve["seconds"] for solve in lines}
    total = full_search.seconds - sum(seconds.values()) + sum(seconds[key] for key in solves)
    for beta in {key[0] for key in solves}:  # the first solve of a beta includes its Gram matrix
        same_beta = [key for key in seconds if key[0] == beta]
        if same_beta[0] not in solves:
            total += max(
                seconds[same_beta[0]] - float(np.median([seconds[key] for key in same_beta])), 0.0
            )
    return total


def on_real(folder: Path, n_items: int, only: list[str] | None, seed: int) -> None:
    """Print the solves and the loss of an early stop on real data sets."""
    print("| data | users | items | solves | with early stop | best kept | loss |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name, load in sources(folder).items():
        if only and name not in only:
            continue
        split = eq.split.strong(most_used(load(), n_items), seed=seed)
        values = best_of_solves(eq.tune(list(FAMILIES), split, grid="paper"))
        solves_made = path(split, values)
        best, best_made = max(values.values()), max(values[key] for key in solves_made)
        has_best = max(values, key=lambda key: values[key]) in solves_made
        print(
            f"| {name} | {split.train.n_users:,} | {split.train.n_items:,} | {len(values)} "
            f"| {len(solves_made)} | {'yes' if has_best else 'no'} | {1 - best_made / best:.2%} |",
            flush=True,
        )


def chosen(args: argparse.Namespace) -> eq.Interactions:
    """Return a real data set, or long-tailed random data without structure."""
    if args.set:
        return most_used(sources(args.data)[args.set](), args.items)
    users = args.users or 3 * args.items
    data = long_tailed(users, args.items, args.pairs or 100 * args.items)
    return data.filter(min_user=5)


def timed(args: argparse.Namespace) -> None:
    """Compare the times of separate fits, the full search and the early stop."""
    data = chosen(args)
    split = eq.split.strong(data, valid=args.valid / data.n_users, test=100 / data.n_users)
    eq.tune(eq.EASE, split, grid={"l2": [100.0]})  # loads and compiles everything
    compared = check(split)
    print(f"{split!r}\n\nEqual in all {compared} points of the small grid.\n", flush=True)
    rng = np.random.default_rng(0)
    grid = every(PAPER)

    def seconds_alone() -> list[float]:
        places = rng.choice(len(grid), args.points, replace=False)
        return [alone(split, FAMILIES[int(rng.integers(3))], grid[place])[0] for place in places]

    seconds = seconds_alone()
    with tempfile.TemporaryDirectory() as folder:
        storage = args.storage or Path(folder) / "search.jsonl"
        full_search = eq.tune(list(FAMILIES), split, grid="paper", storage=storage)
        solves_made = path(split, best_of_solves(full_search))
        early = None
        if args.replay:
            early_seconds = replayed(storage, solves_made, full_search)
        else:
            early = eq.tune(list(FAMILIES), split, grid="paper", early_stop=True)
            early_seconds = early.seconds
    seconds += seconds_alone()  # before and after
    points = full_search.trials.height
    apart = points * float(np.mean(seconds))
    print("| search | items | points | solves | one alone s | all alone s | eq.tune s | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    rows = {"every point": (full_search.solves + full_search.resumed, full_search.seconds)}
    rows["early stop"] = (len(solves_made), early_seconds)
    for name, (solves, spent) in rows.items():
        print(
            f"| {name} | {split.train.n_items:,} | {points:,} | {solves} "
            f"| {np.mean(seconds):.3f} | {apart:,.0f} | {spent:,.0f} | {apart / spent:.1f} |"
        )
    key = tuple(full_search.best[name] for name in OUTER)
    same = key in solves_made and (early is None or early.best == full_search.best)
    print(f"\nbest: {full_search.best}\nthe early stop finds {'the same' if same else 'ANOTHER'}")
    if full_search.resumed:
        print("solves were taken over from the storage: the time of every point is too short")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=2_000)
    parser.add_argument("--users", type=int, help="3 per item if left out")
    parser.add_argument("--pairs", type=int, help="100 per item if left out")
    parser.add_argument("--valid", type=int, default=1_000, help="users to judge on")
    parser.add_argument("--points", type=int, default=10, help="points fitted alone, twice")
    parser.add_argument("--storage", type=Path, help="keep finished solves, to go on after a kill")
    parser.add_argument("--replay", action="store_true", help="do not solve the early stop again")
    parser.add_argument("--set", help="a real data set; made-up data if left out")
    parser.add_argument("--real", action="store_true", help="real data, cut to so many items")
    parser.add_argument("--seed", type=int, default=0, help="of the split of the real data")
    parser.add_argument("--data", type=Path, default=SHARED, help="folder of the real data")
    parser.add_argument("--only", nargs="+", help="names of real data sets")
    args = parser.parse_args()
    if args.real:
        on_real(args.data, args.items, args.only, args.seed)
    else:
        timed(args)


if __name__ == "__main__":
    main()
