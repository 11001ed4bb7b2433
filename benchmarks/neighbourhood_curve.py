"""Compare the neighbourhood engine with the exact solve over K and T, with and without LowPass.

    python benchmarks/neighbourhood_curve.py --data DATA --device cuda --out FOLDER --limit 540

DATA: `gowalla/strong`, `gowalla/weak` and the same for Yelp2018. Each finished fit adds a row to
FOLDER/curve.csv. The run stops after `--limit` seconds; the next run computes the missing rows.
EASE+DAN has the settings of `neighbourhood.py`; its LowPass companion has rank 512. Strength and
exponent of the companion are chosen per fit on validation, including strength 0: the largest
NDCG@20 with a tail NDCG@20 of at least 98% of the exact solve's, or else the one nearest to that.
A strong split has validation users. For a weak split, the choice is made on 5,000 users with
models fitted on train without `valid_subset_of_train`.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paper_path  # noqa: F401  puts `reproduce` on the path
import scipy.sparse as sp
from neighbourhood import SETTINGS, planted

import equipoise as eq
from equipoise.data.readers import read_weak
from equipoise.data.split import Part
from equipoise.solve import neighbourhood
from reproduce.data import published_split

SIZES = {"strong": (50, 100, 200, 400, 800), "weak": (50, 100, 200, 400, 800, 1600)}
SUPPORT_RATIOS = (1, 3, 5)  # T / K, in addition to the engine's default
STRENGTHS = (0.05, 0.1, 0.2, 0.4, 0.8)
EXPONENTS = (0.15, 0.3)
RANK = 512
TAIL = 0.98
METRICS = ["recall", "ndcg", "tail_ndcg"]
FIELDS = [
    "dataset",
    "protocol",
    "engine",
    "neighbours",
    "kept",
    "companion",
    "strength",
    "exponent",
]
FIELDS += ["share_of_weights", "recall@20", "ndcg@20", "tail_ndcg@20"]
FIELDS += ["valid_ndcg@20", "valid_tail_ndcg@20", "lists_seconds", "systems_seconds"]
FIELDS += ["fit_seconds", "device", "difference", "same_supports"]
Row = dict[str, Any]


@dataclass(frozen=True)
class Sets:
    """Data for the final fit and its test, and for choosing the companion."""

    train: eq.Interactions
    test: Part
    choosing: eq.Interactions
    valid: Part

    @classmethod
    def read(cls, folder: Path, protocol: str) -> Sets:
        """Read a published split."""
        split = published_split(folder, protocol)
        if protocol == "strong":
            return cls(split.train, split.test, split.train, split.valid)
        parts = read_weak(folder)
        train, hidden = parts["train"].matrix, parts["valid_subset_of_train"].matrix
        shown = sp.csr_array(train - hidden)
        shown.eliminate_zeros()
        both = np.flatnonzero((np.diff(shown.indptr) > 0) & (np.diff(hidden.indptr) > 0))
        users = np.sort(np.random.default_rng(0).choice(both, min(5000, len(both)), replace=False))
        sides = (eq.Interactions(sp.csr_array(matrix[users])) for matrix in (shown, hidden))
        return cls(split.train, split.test, eq.Interactions(shown), Part(*sides, "weak", "valid"))


class Job:
    """The finished rows of curve.csv and the time limit."""

    def __init__(self, folder: Path, limit: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file, self.end = folder / "curve.csv", time.monotonic() + limit
        self.done = list(csv.DictReader(self.file.open())) if self.file.exists() else []

    def missing(self, **key: Any) -> bool:
        """Tell whether there is no row with these values; exit if the time limit has passed."""
        if time.monotonic() > self.end:
            raise SystemExit("stopped at --limit: run again for the missing rows")
        return not self.having(**key)

    def having(self, **key: Any) -> list[Row]:
        """Return the rows with these values."""
        return [row for row in self.done if all(row[k] == str(v) for k, v in key.items())]

    def add(self, row: Row) -> None:
        """Append a row to the file."""
        row = {name: _text(row.get(name, "")) for name in FIELDS}
        fresh = not self.file.exists()
        with self.file.open("a", newline="") as stream:
            writer = csv.DictWriter(stream, FIELDS, lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerow(row)
        self.done.append(row)
        print(row, file=sys.stderr, flush=True)


def _text(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def fitted(
    train: eq.Interactions, settings: Row, near: tuple[int, int] | None, device: str
) -> tuple[Any, Row]:
    """Fit EASE+DAN without the audit: with `near` = (K, T / K), or exactly if it is None."""
    numbers = dict(settings)
    model = eq.EASE(normalizer=eq.DAN(numbers.pop("alpha"), numbers.pop("beta")), **numbers)
    fit_options: Row = {"device": device}
    marks: dict[int, float] = {}
    start = time.perf_counter()
    if near is not None:
        neighbours, neighbourhood.ROW_ENTRIES = near

        def mark(state: Any) -> None:
            marks[state.step] = time.perf_counter() - start

        fit_options |= {"engine": "neighbourhood", "neighbours": neighbours, "progress": mark}
    eq.EASE._shared_fit([model], train, **fit_options)([model])
    took: Row = {"fit_seconds": time.perf_counter() - start, "device": device}
    if near is not None:
        half = neighbourhood.STRIPES
        took |= {"lists_seconds": marks[half], "systems_seconds": marks[2 * half] - marks[half]}
    n_items = train.n_items
    stored = n_items**2 if near is None else model.inverse_.data.size + n_items
    return model, took | {"share_of_weights": stored / n_items**2}


def scores(model: Any, part: Part) -> Row:
    result = eq.evaluate(model, part, k=20, metrics=METRICS, bootstrap=0)
    return {f"{name}@20": float(result[f"{name}@20"]) for name in METRICS}


def companions(model: Any, settings: Row) -> Iterator[tuple[Row, Any]]:
    """Yield the model without a companion, then with each companion on the same solve."""
    normalizer = eq.DAN(settings["alpha"], settings["beta"])
    numbers = {"l2": settings["l2"], "dropout": settings["dropout"], "normalizer": normalizer}
    yield {"strength": 0.0, "exponent": 0.0}, model
    for exponent in EXPONENTS:
        for strength in STRENGTHS:
            lowpass = eq.LowPass(rank=RANK, strength=strength, exponent=exponent)
            chosen = {"strength": strength, "exponent": exponent}
            yield chosen, eq.EASE(**numbers, lowpass=lowpass).reuse(model)


def measure(
    job: Job, key: Row, sets: Sets, settings: Row, near: tuple[int, int] | None, device: str
) -> None:
    """Add the rows of one fit: without a companion and with the best one on validation."""
    model, took = fitted(sets.train, settings, near, device)
    checking = model
    if sets.choosing is not sets.train:
        checking, _ = fitted(sets.choosing, settings, near, device)
    valid = [
        (companion, scores(other, sets.valid))
        for companion, other in companions(checking, settings)
    ]
    del checking
    exact = job.having(dataset=key["dataset"], protocol=key["protocol"], engine="exact")
    tail = TAIL * float((exact or [_valid(valid[0][1])])[0]["valid_tail_ndcg@20"])

    def worth(one: tuple[Row, Row]) -> tuple[float, float]:
        return min(one[1]["tail_ndcg@20"] - tail, 0.0), one[1]["ndcg@20"]

    chosen = max(valid, key=worth)
    for name, (companion, there) in {"none": valid[0], "chosen": chosen}.items():
        with_it = next(other for one, other in companions(model, settings) if one == companion)
        figures = _valid(there) | scores(with_it, sets.test)
        job.add(key | took | {"companion": name} | companion | figures)


def _valid(metrics: Row) -> Row:
    return {f"valid_{name}": metrics[name] for name in ("ndcg@20", "tail_ndcg@20")}


def compared(
    job: Job, key: Row, sets: Sets, settings: Row, near: tuple[int, int], device: str
) -> None:
    """Add a row that compares the supports and weights of the same fit on GPU and CPU."""
    here, took = fitted(sets.train, settings, near, "cpu")
    there, _ = fitted(sets.train, settings, near, device)
    a, b = here.inverse_, there.inverse_
    same = np.array_equal(a.indices, b.indices) and np.array_equal(a.indptr, b.indptr)
    # scaled to weights of EASE, whose magnitude is about 1
    left, right = (inverse.data / inverse.diagonal_[inverse.indices] for inverse in (a, b))
    difference = float(np.abs(left - right).max()) if same else float("nan")
    job.add(key | took | {"difference": difference, "same_supports": same})


def curve(chosen: argparse.Namespace) -> None:
    job = Job(chosen.out, chosen.limit)
    small = eq.Interactions(planted(300, 100, 2000))
    default_ratio = neighbourhood.ROW_ENTRIES
    model, _ = fitted(
        small, SETTINGS["gowalla", "strong"], (20, default_ratio), chosen.device
    )  # compiles
    model.recommend([0])
    for dataset in chosen.datasets:
        for protocol in chosen.protocols:
            settings = SETTINGS[dataset, protocol]
            sets: Sets | None = None
            where = {"dataset": dataset, "protocol": protocol}

            def step(key: Row, work: Callable[..., None], *work_options: Any) -> None:
                nonlocal sets
                key = where | key  # noqa: B023
                if job.missing(**key):
                    if sets is None:
                        sets = Sets.read(chosen.data / dataset / protocol, protocol)  # noqa: B023
                    work(job, key, sets, settings, *work_options)  # noqa: B023

            if chosen.device != "cpu":
                key = {"engine": "cpu beside card", "neighbours": 100, "kept": default_ratio * 100}
                step(key, compared, (100, default_ratio), chosen.device)
            step({"engine": "exact"}, measure, None, chosen.device)
            for size in chosen.neighbours or SIZES[protocol]:
                key = {"engine": "neighbourhood", "neighbours": size, "kept": default_ratio * size}
                step(key, measure, (size, default_ratio), chosen.device)
            for size in (100, 200) if protocol == "strong" else ():
                for times in SUPPORT_RATIOS:
                    key = {"engine": "neighbourhood", "neighbours": size, "kept": times * size}
                    step(key, alone, (size, times), chosen.device)


def alone(
    job: Job, key: Row, sets: Sets, settings: Row, near: tuple[int, int], device: str
) -> None:
    """Add a row of a fit without a companion."""
    model, took = fitted(sets.train, settings, near, device)
    job.add(key | took | {"companion": "none"} | scores(model, sets.test))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=1e9, help="seconds")
    parser.add_argument("--datasets", nargs="+", default=["gowalla", "yelp2018"])
    parser.add_argument("--protocols", nargs="+", default=["strong", "weak"])
    parser.add_argument("--neighbours", nargs="+", type=int)
    curve(parser.parse_args())


if __name__ == "__main__":
    main()
