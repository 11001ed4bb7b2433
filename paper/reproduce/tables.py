"""Tables of models on published splits, of statistics and of running times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.data.split import Part, Split
from equipoise.models.base import Recommender
from equipoise.models.saving import build
from reproduce.config import Config, Row
from reproduce.data import find_split
from reproduce.results import CELLS, Line, Lines, cells, judge, machine_name, read_lines

LINEAR = ("LAE", "EASE", "RLAE")
FILTERS = ("GFCF", "BSPM", "TurboCF", "SVDAE", "SGFCF")  # fitted on processors only
BATCH = 4096  # users ranked at a time where seconds are measured, as in the paper
WARM_USERS = 200  # of a first fit that is not timed: it compiles and loads
Steps = Iterator[tuple[Row, list[Line], str]]
Load = Callable[[], Any]


@dataclass(frozen=True)
class Job:
    """Inputs of a computation: the config, the loaded data, the device, the results file."""

    config: Config
    data: Any
    device: str
    out: Path


class Table:
    """Models on a published split; the base of the other kinds, which replace some methods."""

    schema: dict[str, Any] = CELLS
    together = False  # whether one missing row makes all rows of its group run again

    def read(self, path: Path) -> Lines:
        """Return the lines of earlier runs."""
        return read_lines(path, self.schema)

    def rows(self, config: Config, done: Lines) -> list[Row]:
        """Return all rows to compute, finished or not."""
        return config.rows

    def group(self, row: Row) -> tuple[str, ...]:
        """Rows with the same value are computed from the same data, in one call."""
        return row.dataset, row.curve

    def runs(self, row: Row, device: str) -> bool:
        """Whether a row is run on a device."""
        return row.settings is not None and (device != "cpu" or not row.card)

    def find(self, data: Path, config: Config, row: Row) -> Load | None:
        """Return a function that loads the data of a row, None where they are missing."""
        return find_split(data, row.dataset, config.protocol)

    def steps(self, config: Config, rows: list[Row]) -> int:
        """Return how many steps `compute` takes."""
        return len(rows)

    def compute(self, job: Job, rows: list[Row]) -> Steps:
        """Yield rows, their lines (none at an intermediate step) and a progress message."""
        for row, model, seconds in fitted(rows, job.data, job.device):
            start = time.perf_counter()
            result = eq.evaluate(model, job.data.test, 20, bootstrap=0)
            lines = cells(job.config, result, (seconds, time.perf_counter() - start))
            if row.settings["model"] in FILTERS:
                lines = [{**line, "machine": machine_name("cpu")} for line in lines]
            del model  # frees its inverse before the next one is made
            yield row, lines, f"{row.name}: {result['ndcg@20']:.4f}"

    judge = staticmethod(judge)

    def finish(self, config: Config, results: pl.DataFrame, out: Path, new: bool) -> str:
        """Write files made from the results; return a log message."""
        return ""


def fitted(rows: list[Row], split: Split, device: str) -> Iterator[tuple[Row, Recommender, float]]:
    """Fit the rows, those that share a solve one after another so that it is done once."""
    solved: Any = None
    last: tuple[Any, ...] = ()
    keys = {row.id: solve_key(row, split.train) for row in rows}
    for row in sorted(rows, key=lambda row: str(keys[row.id])):
        model: Any = build(row.settings)
        start = time.perf_counter()
        if keys[row.id] == last:
            model.reuse(solved)
        else:
            solved = None  # frees the old inverse before the new one is made
            on_cpu = device == "cpu" or row.settings["model"] in FILTERS
            model.fit(split.train, **({} if on_cpu else {"device": device}))
            solved, last = model, keys[row.id]
        yield row, model, time.perf_counter() - start


def solve_key(row: Row, train: Interactions) -> tuple[Any, ...]:
    """Rows with the same key share one solve: l2, dropout and the weights of the users."""
    if row.settings["model"] not in LINEAR:
        return row.id
    model: Any = build(row.settings)
    return "linear", model.l2, model.dropout, model.normalizer.resolve(train).exponents()[1]


class Statistics(Table):
    """Table 1: statistics of each part of the data sets."""

    def group(self, row: Row) -> tuple[str, ...]:
        return row.dataset, row.settings["part"]

    def find(self, data: Path, config: Config, row: Row) -> Load | None:
        part = row.settings["part"]
        if part != "all interactions":
            load = find_split(data, row.dataset, part.removesuffix(" train"))
            return load and (lambda: load().train)
        load = find_split(data, row.dataset, "weak") or find_split(data, row.dataset, "strong")
        return load and (lambda: everything(load()))

    def compute(self, job: Job, rows: list[Row]) -> Steps:
        for row in rows:
            start = time.perf_counter()
            statistics = eq.describe(job.data).to_dict()
            lines = cells(job.config, statistics, (time.perf_counter() - start, 0.0))
            yield row, [{**line, "machine": machine_name("cpu")} for line in lines], row.name


def everything(split: Split) -> Interactions:
    """Return all interactions of all parts."""
    held_out = [side for part in split.parts for side in (part.history, part.target)]
    return reduce(Interactions.union, [split.train, *held_out])


class Efficiency(Table):
    """Table 6: seconds of training and of inference, measured in turns in one run.

    The models take turns, in an order that is reversed each time, and the best time of each
    counts: other work on the machine then slows all alike. Rows have a model with settings and a
    `device`, or a `ratio` of two other rows. Options: `repeats`, number of fits of a linear
    autoencoder; `items`, number of items to use, the most used ones; `target`, largest ratio of
    training times.
    """

    together = True

    def rows(self, config: Config, done: Lines) -> list[Row]:
        """Return the rows with the limit of items among the settings: it decides the numbers."""
        if "items" not in config.options:
            return config.rows
        limit = {"items": config.options["items"]}
        return [
            row if row.settings is None else replace(row, settings={**row.settings, **limit})
            for row in config.rows
        ]

    def runs(self, row: Row, device: str) -> bool:
        return row.settings is not None and row.settings.get("device", "cpu") == device

    def steps(self, config: Config, rows: list[Row]) -> int:
        """Linear autoencoders are measured `repeats` times, other models once."""
        return sum(len(_turns(row, config)) for row in rows)

    def compute(self, job: Job, rows: list[Row]) -> Steps:
        models = [row for row in rows if "model" in row.settings]
        split = limited(job.data, job.config.options.get("items"))
        train, history = split.train, split.test.history
        small = train.rows(np.arange(min(WARM_USERS, train.n_users)))
        small = small.columns(small.item_counts > 0)
        for row in models:
            clocked(row, small, small, job.device)
        best: dict[str, dict[str, float]] = {}
        for turn in range(job.config.options["repeats"]):
            for row in models[:: -1 if turn % 2 else 1]:
                if turn in _turns(row, job.config):
                    times = clocked(row, train, history, job.device)
                    old = best.get(row.name, times)
                    best[row.name] = {key: min(old[key], times[key]) for key in times}
                    yield row, [], f"{row.name}: fit {times['train']:.2f} s"
        for row in rows:
            if "ratio" in row.settings:
                above, below = (best[name] for name in row.settings["ratio"])
                best[row.name] = {key: above[key] / max(below[key], 1e-9) for key in above}
            cell = best[row.name]
            yield row, cells(job.config, cell, (cell["train"], cell["inference"])), ""

    def judge(self, config: Config, row: Row, column: str, ours: float | None) -> Line:
        """Seconds of another machine are measured, a ratio of training times has a target."""
        cell = {**Table.judge(config, row, column, ours), "difference": None, "note": ""}
        ratio = (row.settings or {}).get("ratio")
        if ratio:
            above, below = (
                config.published_number(row.dataset, name, column)[0] for name in ratio
            )
            cell["published"] = round(above / below, 4) if above and below else None
        if ours is not None:
            cell["status"] = "measured"
        if ours is not None and ratio and column == "train_seconds":
            target = config.options["target"]
            verdict = "reached" if ours <= target else "missed"
            cell["status"] = f"target of {target:g} {verdict}"
        return cell


def _turns(row: Row, config: Config) -> range:
    model = row.settings.get("model")
    return range(config.options["repeats"] if model in LINEAR else int(model is not None))


def clocked(row: Row, train: Interactions, history: Interactions, device: str) -> dict[str, float]:
    """Fit a model and rank for all users; return wall-clock and processor seconds of both."""
    about = ("device", "items")
    model: Any = build({key: value for key, value in row.settings.items() if key not in about})
    clocks = [(time.perf_counter(), time.process_time())]
    model.fit(train, **({"device": device} if row.settings["model"] in LINEAR else {}))
    clocks.append((time.perf_counter(), time.process_time()))
    for low in range(0, history.n_users, BATCH):
        model.rank(history.rows(np.arange(low, min(low + BATCH, history.n_users))), 20)
    clocks.append((time.perf_counter(), time.process_time()))
    fit, rank = (
        [after - before for before, after in zip(*pair, strict=True)]
        for pair in (clocks[:2], clocks[1:])
    )
    return {"train": fit[0], "inference": rank[0], "train_cpu": fit[1], "inference_cpu": rank[1]}


def limited(split: Split, items: int | None) -> Split:
    """Return the split with its most used items only, for a quick look."""
    if items is None or items >= split.train.n_items:
        return split
    top_items = np.sort(np.argsort(-split.train.item_counts, kind="stable")[:items])
    history, target = (side.columns(top_items) for side in (split.test.history, split.test.target))
    rows = (history.user_counts > 0) & (target.user_counts > 0)
    test = Part(history.rows(rows), target.rows(rows), split.test.protocol, "test")
    return Split(split.train.columns(top_items), None, test, split.protocol)
