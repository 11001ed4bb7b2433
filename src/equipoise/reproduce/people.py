"""The case study as a figure: one person's history, and the lists of four normalizations."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from equipoise.interactions import Interactions
from equipoise.metrics import head_items
from equipoise.report.users import ABOUT, case_study
from equipoise.reproduce.config import Config
from equipoise.reproduce.points import Computed, Line, Point, Work

HISTORY = "history"


def list_points(config: Config, dataset: str) -> list[Point]:
    """One point: all lists of the person come from one call."""
    chosen = [row for row in config.rows if row.dataset == dataset and row.settings is not None]
    extra = {name: config.options[name] for name in ("k", "history")}
    return [Point(dataset, row.name, row.name, None, row.settings or {}, extra) for row in chosen]


def person_lists(work: Work, points: list[Point]) -> Computed:
    """History and lists, one line per title; y is how many people have it."""
    for point in points:
        start = time.perf_counter()
        user = point.settings["user"]
        if user == "auto":
            user = typical_person(work.data, int(point.extra["history"]))
        study = case_study(work.data, user, int(point.extra["k"])).to_dict()
        parts = {HISTORY: study["history"], **{name: study["lists"][name] for name in ABOUT}}
        lines: list[Line] = [
            {
                "series": name,
                "group": row["group"],
                "x": float(rank),
                "y": float(row["users"]),
                "label": str(row["title"]),
            }
            for name, rows in parts.items()
            for rank, row in enumerate(rows, start=1)
        ]
        lines.append({"series": "user", "group": "", "x": 0.0, "y": None, "label": str(user)})
        yield point, lines, time.perf_counter() - start


def typical_person(data: Interactions, fewest: int) -> Any:
    """Return somebody like the paper's: a short history, most of it from the tail.

    Of all people with `fewest` to twice as many items, those whose share of tail items is nearest
    to the 4 of 5 of the paper's person; of these the shortest history, the first of equals.
    """
    head = head_items(data.item_counts)
    counts = data.user_counts
    tail = np.asarray(data.matrix @ (~head).astype(np.float64)).ravel()
    gap = np.abs(tail / np.maximum(counts, 1) - 0.8)
    outside = (counts < fewest) | (counts > 2 * fewest)
    # whole numbers, so that equal shares are equal
    order = np.lexsort((counts, np.round(gap * 1e6), outside))
    return data.users.tolist()[int(order[0])]
