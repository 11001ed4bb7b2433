"""Compare `equipoise.ranking.ranker` with the ranking of other libraries: top-20 for 5,000 users.

Run ``python benchmarks/rank.py``; it prints a Markdown table. The methods are measured several
times in turns, and medians are compared. The methods of other libraries are reimplemented here
with the same numerical libraries, so that only ranking is measured:

- ours with a 16-bit matrix, as after `halve` (all other methods sum the same float32 numbers);
- numpy, dense batches: ``X[batch].toarray() @ W``, seen items masked, `argpartition` and a sort;
- numpy, sparse batches: ``X[batch] @ W`` by scipy, then the same;
- RecBole's method: sparse rows times dense float32, seen items masked, `torch.topk`. It is left
  out, with a note, if torch is not installed.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.data.matrix import Csr, entry_rows
from equipoise.models.inverse import Inverse
from equipoise.ranking.ranker import score_items, top_k
from equipoise.ranking.terms import Dense

K = 20
Lists = npt.NDArray[np.integer]
Way = Callable[[], Lists]


def interactions(n_users: int, n_items: int, n_interactions: int) -> Csr:
    """Draw users of log-normal activity and items of a long-tailed popularity."""
    rng = np.random.default_rng(0)
    popularity = rng.permutation(1 / np.arange(1, n_items + 1) ** 0.8)
    activity = rng.lognormal(sigma=0.8, size=n_users)
    cells = np.empty(0, np.int64)
    while len(cells) < n_interactions:
        users = rng.choice(n_users, n_interactions, p=activity / activity.sum())
        items = rng.choice(n_items, n_interactions, p=popularity / popularity.sum())
        cells = np.unique(np.concatenate([cells, users * n_items + items]))
    users, items = np.divmod(rng.permutation(cells)[:n_interactions], n_items)
    ones = np.ones(n_interactions, np.float32)
    return sp.csr_array((ones, (users, items)), (n_users, n_items))


def symmetric(n_items: int) -> npt.NDArray[np.float32]:
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((n_items, n_items), dtype=np.float32)
    matrix += matrix.T.copy()
    np.fill_diagonal(matrix, 0)
    return matrix


def halved(matrix: npt.NDArray[np.float32]) -> Dense:
    """Return the 16-bit term of a model after `halve`."""
    term = Inverse.of(matrix).halved().term(*np.ones((2, len(matrix)), np.float32))
    assert isinstance(term, Dense)
    return term


def best_first(scores: npt.NDArray[np.float32]) -> Lists:
    part = np.argpartition(scores, -K, axis=1)[:, -K:]
    order = np.argsort(-np.take_along_axis(scores, part, 1), axis=1)
    return np.take_along_axis(part, order, 1)


def best_first_torch(scores: npt.NDArray[np.float32]) -> Lists:
    import torch

    return torch.topk(torch.from_numpy(scores), K).indices.numpy()


def in_batches(
    history: Csr,
    matrix: npt.NDArray[np.float32],
    *,
    dense: bool,
    size: int,
    best: Callable[[npt.NDArray[np.float32]], Lists],
) -> Lists:
    lists = []
    for first in range(0, history.shape[0], size):
        batch = history[first : first + size]
        scores = batch.toarray() @ matrix if dense else batch @ matrix
        scores[entry_rows(batch), batch.indices] = -np.inf
        lists.append(best(scores))
    return np.concatenate(lists)


def extra_memory(way: Way) -> float:
    """Return the peak memory of numpy arrays during a call, in MB."""
    tracemalloc.start()
    way()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


@dataclass
class Measured:
    """Time and memory of one method."""

    name: str
    seconds: list[float]
    megabytes: float
    agreement: str

    @property
    def median(self) -> float:
        """Median seconds of the repeats."""
        return statistics.median(self.seconds)


def agreement(lists: Lists, ours: Lists, term: Dense, history: Csr, most: float) -> str:
    """Describe how lists differ; fail if their scores differ by more than rounding errors."""
    differ = np.flatnonzero((lists != ours).any(axis=1))
    if not len(differ):
        return "equal"
    rows = np.repeat(differ, K)
    their_scores = score_items([term], history, rows, lists[differ].ravel())
    our_scores = score_items([term], history, rows, ours[differ].ravel())
    # users without a history have only zero scores, tied in any order
    gap = float(np.abs(their_scores - our_scores).max() / max(np.abs(our_scores).max(), 1e-30))
    if gap > most:
        raise SystemExit(f"the lists of {len(differ)} users differ, scores by {gap:.1e}")
    return f"{len(differ)} of {len(ours)} lists differ, in scores that agree to {gap:.0e}"


def measure(ways: dict[str, Way], repeats: int, term: Dense, history: Csr) -> list[Measured]:
    ours = next(iter(ways.values()))()
    results = []
    for name, way in ways.items():
        agreed = agreement(way(), ours, term, history, 1e-3 if "16 bits" in name else 1e-5)
        results.append(Measured(name, [], extra_memory(way), agreed))
    for _ in range(repeats):
        for result in results:
            start = time.perf_counter()
            ways[result.name]()
            result.seconds.append(time.perf_counter() - start)
    return results


def table(results: list[Measured]) -> str:
    ours = results[0].median
    lines = [
        "| way | median s | min-max s | times ours | extra MB | lists |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        spread = f"{min(result.seconds):.2f}-{max(result.seconds):.2f}"
        lines.append(
            f"| {result.name} | {result.median:.3f} | {spread} | {result.median / ours:.1f} "
            f"| {result.megabytes:.0f} | {result.agreement} |"
        )
    return "\n".join(lines)


def has_torch() -> bool:
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--users", type=int, default=5_000, help="users to rank for")
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=512, help="batch size of the other methods")
    options = parser.parse_args()

    everyone = interactions(30_000, options.items, 1_000_000)
    history = everyone[: options.users]
    matrix = symmetric(options.items)
    ones = np.ones(options.items, np.float32)
    term = Dense(matrix, ones, ones)
    half = halved(matrix)
    ways: dict[str, Way] = {
        "equipoise": lambda: top_k([term], history, K).items,
        "equipoise, 16 bits": lambda: top_k([half], history, K).items,
        "numpy, sparse batches": lambda: in_batches(
            history, matrix, dense=False, size=options.batch, best=best_first
        ),
        "numpy, dense batches": lambda: in_batches(
            history, matrix, dense=True, size=options.batch, best=best_first
        ),
    }
    if has_torch():
        ways["RecBole's way"] = lambda: in_batches(
            history, matrix, dense=False, size=options.batch, best=best_first_torch
        )
    print(
        f"Top-{K} for {history.shape[0]:,} users with {history.nnz / history.shape[0]:.0f} items "
        f"each, n = {options.items:,}, seen items out; float32, "
        f"{numba.get_num_threads()} threads, {platform.machine()}; median of {options.repeats}\n"
    )
    print(table(measure(ways, options.repeats, term, history)))
    if not has_torch():
        print(
            "\ntorch is not installed: RecBole's way (sparse rows times dense float32, then "
            "torch.topk) is emulated by the sparse batches with argpartition."
        )


if __name__ == "__main__":
    main()
