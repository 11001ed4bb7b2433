"""Measure what a list of the service costs at least: reading the rows of P of a history.

Run ``python benchmarks/serve_floor.py`` after ``python benchmarks/serve.py load`` with the same
``--folder``, ``--model`` and ``--half``. It prints, for the histories of that load, the bytes of
their rows, the processor time in which one core sums up these rows and nothing else, that of
ranking them (`RowRanker`), and the rates. Each time is the least of the rounds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np

import equipoise as eq
from equipoise.ranking.ranker import RowRanker
from equipoise.ranking.terms import Dense
from serve import served_model, users_of


@numba.njit(fastmath=True)
def read_rows(matrix: Any, indices: Any) -> Any:
    """Return the sum of all numbers of these rows, in any order, which is as fast as reading."""
    total = np.float32(0)
    for place in indices:
        row = matrix[place]
        for j in range(len(row)):
            total += row[j]
    return total


def least_seconds(work: Callable[[int], object], number: int, rounds: int) -> float:
    """Return the least processor time per call of these rounds over all histories."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        for place in range(number):
            work(place)
        best = min(best, (time.process_time() - start) / number)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "serve-bench")
    parser.add_argument("--model", default="movielens-1m", choices=["movielens-1m", "20000"])
    parser.add_argument("--half", action="store_true", help="weights of 16 bits")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    folder = served_model(options)
    model = eq.load(folder)
    (term,) = [term for term in model._terms(None) if isinstance(term, Dense)]
    matrix = term.arrays[0]
    data = model.interactions_
    histories = [data.matrix[[data.user_index.position(user)]] for user in users_of(folder)]
    rows = [history.indices.astype(np.int32) for history in histories]
    row_ranker, allowed = RowRanker([term]), np.ones(data.n_items, np.bool_)

    def rank(place: int) -> object:
        history = histories[place]
        return row_ranker.rank(history.indices, history.data, 20, allowed, history.indices)

    rank(0), read_rows(matrix, rows[0])
    n_bytes = float(np.mean([len(row) for row in rows])) * data.n_items * matrix.itemsize
    reading = least_seconds(lambda n: read_rows(matrix, rows[n]), len(rows), options.rounds)
    ranking = least_seconds(rank, len(rows), options.rounds)
    result = {
        "model": folder.name,
        "mb_per_list": n_bytes / 1e6,
        "reading_us": 1e6 * reading,
        "reading_gb_per_second": n_bytes / reading / 1e9,
        "ranking_us": 1e6 * ranking,
        "ranking_gb_per_second": n_bytes / ranking / 1e9,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
