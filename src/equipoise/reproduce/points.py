"""Points of the paper's curves: a model, one of its settings or its data varied, and its metrics.

A curve says which points it has and computes those that are missing, one data set at a time.
Points that differ in alpha, family or diagonal bound share a solve.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from equipoise.evaluation import evaluate
from equipoise.metrics import head_items
from equipoise.reproduce.config import Config, Row
from equipoise.reproduce.data import find_split
from equipoise.reproduce.tables import fitted
from equipoise.split import Split

Line = dict[str, Any]
Computed = Iterator[tuple["Point", list[Line], float]]
GROUPS = {"all": "ndcg", "head": "head_ndcg", "tail": "tail_ndcg"}
USERS = {"all": "ndcg", "active": "active_ndcg", "inactive": "inactive_ndcg"}


@dataclass(frozen=True)
class Point:
    """What is computed in one go: a model on a data set, and what was varied.

    Parameters
    ----------
    dataset
        Its name in the paper.
    name
        What it is called in the results, "alpha 0.2".
    series
        The line it belongs to.
    x
        Where on the axis; None where there is none.
    settings
        Of the model, as `Recommender.settings` writes them.
    extra
        What else decides the numbers, such as the share of noise.
    """

    dataset: str
    name: str
    series: str
    x: float | None
    settings: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """Everything that decides the numbers; a point with the same key is the same point."""
        return json.dumps({**self.extra, **self.settings})


@dataclass(frozen=True)
class Work:
    """What points are computed from.

    Parameters
    ----------
    config
        The figure.
    data
        A split, or what the curve's `find` loads.
    device
        "cpu" or "cuda".
    """

    config: Config
    data: Any
    device: str


@dataclass(frozen=True)
class Curve:
    """How the points of a figure are listed, fed and computed."""

    points: Callable[[Config, str], list[Point]]
    compute: Callable[[Work, list[Point]], Computed]
    find: Callable[[Path, str, str], Callable[[], Any] | None] = find_split


def model_points(config: Config, dataset: str) -> list[Point]:
    """One point per row: the models as they are."""
    return [
        Point(dataset, row.name, row.name, None, row.settings) for row in _rows(config, dataset)
    ]


def alpha_points(config: Config, dataset: str) -> list[Point]:
    """One point per value of alpha."""
    return _varied(config, dataset, "alpha")


def beta_points(config: Config, dataset: str) -> list[Point]:
    """One point per value of beta."""
    return _varied(config, dataset, "beta")


def noise_points(config: Config, dataset: str) -> list[Point]:
    """One point per model, share of noise and seed; without noise the seed does not matter."""
    out = []
    seeds = config.options.get("seeds_of", {}).get(dataset, config.options["seeds"])
    for share in config.options["noise"]:
        for seed in range(seeds if share else 1):
            for row in _rows(config, dataset):
                name = f"{row.name}, {share:g} % noise, seed {seed}"
                extra = {"noise": share, "seed": seed}
                out.append(Point(dataset, name, row.name, share, row.settings or {}, extra))
    return out


def by_items(work: Work, points: list[Point]) -> Computed:
    """NDCG@20 over all, head and tail items."""
    return _evaluated(work.data, points, work.device, GROUPS)


def by_users(work: Work, points: list[Point]) -> Computed:
    """NDCG@20 over all, active and inactive users."""
    return _evaluated(work.data, points, work.device, USERS)


def under_noise(work: Work, points: list[Point]) -> Computed:
    """NDCG@20 of models whose training data were disturbed; the test users were not."""
    head = head_items(work.data.train.item_counts)
    # the tail of the clean data: the same targets count whatever the noise
    groups = {"clean_tail": ~head}
    metrics = {"all": "ndcg", "tail": "clean_tail_ndcg"}
    drawn = {(point.extra["noise"], point.extra["seed"]) for point in points}
    for share, seed in sorted(drawn):
        train = work.data.train.with_noise(share / 100, seed) if share else work.data.train
        part = replace(work.data, train=train)
        same = [p for p in points if (p.extra["noise"], p.extra["seed"]) == (share, seed)]
        yield from _evaluated(part, same, work.device, metrics, groups)


def _evaluated(
    part: Split,
    points: list[Point],
    device: str,
    metrics: dict[str, str],
    groups: dict[str, Any] | None = None,
) -> Computed:
    """Fit and evaluate; one line per group of items or users."""
    named = {point.name: point for point in points}
    rows = [Row(point.dataset, point.name, point.settings) for point in points]
    for row, model, seconds in fitted(rows, part, device):
        result = evaluate(
            model, part.test, 20, metrics=list(metrics.values()), groups=groups, bootstrap=0
        )
        lines = [
            {"group": group, "y": float(result[f"{metric}@20"])}
            for group, metric in metrics.items()
        ]
        del model  # frees its inverse before the next one is made
        yield named[row.name], lines, seconds + sum(result.seconds.values())


def _varied(config: Config, dataset: str, exponent: str) -> list[Point]:
    out = []
    for row in _rows(config, dataset):
        for value in config.options[exponent]:
            settings = copy.deepcopy(row.settings or {})
            settings["normalizer"][exponent] = float(value)
            name = f"{row.name}, {exponent} {value:g}"
            out.append(Point(dataset, name, row.name, float(value), settings))
    return out


def _rows(config: Config, dataset: str) -> list[Any]:
    return [row for row in config.rows if row.dataset == dataset and row.settings is not None]
