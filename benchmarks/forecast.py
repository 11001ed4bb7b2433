"""Settings chosen for tomorrow against settings chosen on random items, on logs with times.

    python benchmarks/forecast.py                # four logs that are fetched, two cuts each
    python benchmarks/forecast.py --log ratings.csv --name "MovieLens small"    # one more log
    python benchmarks/forecast.py --candidates   # neighbourhoods and companions beside the choice
    python benchmarks/forecast.py --show         # the tables, from results/forecast*.json

For each log and cut: train on the events before the cut, and measure NDCG@20 of new pairs in the
next tenth of all events. `time` is `eq.tune(train)`, `left out` the same search by leave-one-out,
which is what the library did before it knew time. The yardsticks are fitted before the cut too;
the half-life of recent popularity is chosen on the last tenth before it. A forecast is the
estimate that the search returns, which has seen nothing after the cut. Seconds are of the
processor, so that other work on the machine hardly counts.

With `--candidates` the model of `eq.tune(train)` is fitted again as a neighbourhood model and with
a low-pass companion, and measured in the three periods before the cut that settings are chosen by
(later ones count more, as in the search) and after the cut.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import equipoise as eq
from equipoise.data.split.parts import Part
from equipoise.evaluation.backtest import best_half_life, folds_of, half_lives, popular_lately

FOLDER = Path(__file__).parent / "results"
RESULTS = FOLDER / "forecast.json"
CANDIDATES = FOLDER / "forecast_candidates.json"
LOGS = ("movielens-100k", "movielens-1m", "online-retail", "complete-journey")
LEAST_USERS = {"complete-journey": 100}  # of an item
CUTS = (0.8, 0.9)
METRIC = "ndcg@20"
NEIGHBOURS = (25, 50, 100, 200)
STRENGTHS = (0.1, 0.2, 0.4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", nargs="+", default=LOGS, help="data sets of eq.datasets")
    parser.add_argument("--log", type=Path, help="a file of events instead")
    parser.add_argument("--name", help="name of the log in the table")
    parser.add_argument("--candidates", action="store_true", help="measure these instead")
    parser.add_argument("--show", action="store_true", help="print the stored tables")
    args = parser.parse_args()
    if not args.show:
        compile_kernels()
        measure = measure_candidates if args.candidates else measure_cut
        path = CANDIDATES if args.candidates else RESULTS
        for name, data in logs(args):
            for cut in CUTS:
                store(path, f"{name} {cut:.0%}", measure(*parts_of(data, cut)))
    for path, print_table in ((RESULTS, show), (CANDIDATES, show_candidates)):
        if path.exists():
            print_table(json.loads(path.read_text()))


def compile_kernels() -> None:
    """Search on a few random events, so that no measured search includes the compilation."""
    rng = np.random.default_rng(0)
    events = [(int(rng.integers(60)), int(rng.integers(30)), 1.0, 3600 * t) for t in range(2000)]
    for criterion in ("time", "leave-one-out"):
        eq.tune(eq.read(events), criterion=criterion)


def logs(args: argparse.Namespace) -> Iterator[tuple[str, eq.Interactions]]:
    if args.log:
        yield args.name or args.log.stem, eq.read(args.log)
        return
    for name in args.names:
        data = eq.datasets.load(name)
        # most of the 68,000 products of the baskets were bought by a handful of households, and
        # leave-one-out takes hours where items outnumber users by far
        yield name, data.columns(data.item_counts >= LEAST_USERS.get(name, 1))


def store(path: Path, name: str, row: dict[str, object]) -> None:
    stored = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(stored | {name: row}, indent=1) + "\n")
    print(name, json.dumps(row), flush=True)


def parts_of(data: eq.Interactions, cut: float) -> tuple[eq.Interactions, Part]:
    """Return the events before a cut, and the next tenth of all events."""
    times = np.sort(data.events.times)
    size = round(0.1 * len(times))
    start = times[round(cut * len(times))]
    end = times[min(round(cut * len(times)) + size, len(times) - 1)]
    is_last = round(cut * len(times)) + size >= len(times)
    within = data._only_events(data.events.times < (np.inf if is_last else end))
    split = eq.split.time_cut(within, test_from=float(start), valid=0)
    return split.train, split.test


def value(model: eq.Recommender, part: Part) -> float:
    return eq.evaluate(model, part, metrics="ndcg", bootstrap=0)[METRIC]


def measure_cut(train: eq.Interactions, test: Part) -> dict[str, object]:
    row: dict[str, object] = {"users": test.n_users}
    for label, criterion in (("time", "time"), ("left out", "leave-one-out")):
        before, wall = time.process_time(), time.perf_counter()
        tuned = eq.tune(train, criterion=criterion)
        seconds = time.process_time() - before, time.perf_counter() - wall
        result = eq.evaluate(tuned.model, test, metrics="ndcg", bootstrap=0)
        per_user = result.per_user[METRIC]
        row[label] = {
            METRIC: result[METRIC],
            "sampling": float(per_user.std()) / len(per_user) ** 0.5,
            "forecast": tuned.estimate.value,
            "error": tuned.estimate.error,
            "seconds": seconds[0],
            "wall": seconds[1],
            "settings": tuned.model.summary(),
        }
    last = folds_of(train, folds=1)[0]
    half_life = best_half_life(last.train, last.part, half_lives(last.train))
    row["popular"] = value(eq.Popularity().fit(train), test)
    row["popular lately"] = value(popular_lately(half_life).fit(train), test)
    row["item-kNN"] = value(eq.ItemKNN().fit(train), test)
    return row


def measure_candidates(train: eq.Interactions, test: Part) -> dict[str, object]:
    chosen = eq.tune(train).model
    candidates: dict[str, tuple[eq.Recommender, dict[str, object]]] = {"chosen": (chosen, {})}
    for neighbours in NEIGHBOURS:
        options = {"engine": "neighbourhood", "neighbours": neighbours}
        candidates[f"{neighbours} neighbours"] = chosen, options
    for strength in STRENGTHS:
        lowpass = eq.LowPass(rank=256, strength=strength, user_exponent=0.4, item_exponent=0.4)
        candidates[f"companion {strength}"] = chosen._vary({"lowpass": lowpass}), {}
    row: dict[str, object] = {"settings": chosen.summary()}
    folds = folds_of(train)
    for label, (model, options) in candidates.items():
        values = [value(model.clone().fit(fold.train, **options), fold.part) for fold in folds]
        weights = np.arange(1, len(folds) + 1)
        after = value(model.clone().fit(train, **options), test)
        row[label] = {"before": float(np.average(values, weights=weights)), "after": after}
    return row


def show(stored: dict[str, dict]) -> None:
    print(
        "| log, cut | users | left out | time | gain | popular | popular lately | item-kNN | "
        "of the better | forecast | errors off | seconds, ratio |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    gains, near, ratios = [], 0, []
    for name, row in stored.items():
        new, old = row["time"], row["left out"]
        better = max(old[METRIC], row["popular lately"])
        off = abs(new[METRIC] - new["forecast"]) / new["error"]
        gains.append(new[METRIC] / old[METRIC] - 1)
        near += off <= 2
        ratios.append(new["seconds"] / old["seconds"])
        print(
            f"| {name} | {row['users']:,} | {old[METRIC]:.3f} | **{new[METRIC]:.3f}** | "
            f"{gains[-1]:+.0%} | {row['popular']:.3f} | {row['popular lately']:.3f} | "
            f"{row['item-kNN']:.3f} | {new[METRIC] / better:.2f} | {new['forecast']:.3f} ± "
            f"{new['error']:.3f} | {off:.1f} | {new['seconds']:.0f}, {ratios[-1]:.2f} |"
        )
    print(
        f"\nmean gain {np.mean(gains):+.1%}, least {min(gains):+.1%}; forecast within two errors "
        f"in {near} of {len(gains)}; processor time {np.mean(ratios):.2f} times, at most "
        f"{max(ratios):.2f}"
    )


def show_candidates(stored: dict[str, dict]) -> None:
    print(
        "\n| log, cut | chosen, before and after the cut | best neighbourhood | best companion |"
    )
    print("|---|--:|--:|--:|")
    for name, row in stored.items():

        def best(kind: str, row: dict = row) -> str:
            label = max(
                (label for label in row if kind in label), key=lambda label: row[label]["before"]
            )
            figures = ", ".join(f"{row[label][when]:.4f}" for when in ("before", "after"))
            return f"{figures} ({label.replace(kind, '').strip()})"

        chosen = f"{row['chosen']['before']:.4f}, {row['chosen']['after']:.4f}"
        print(f"| {name} | {chosen} | {best('neighbours')} | {best('companion')} |")


if __name__ == "__main__":
    main()
