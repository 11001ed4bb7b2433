"""The neighbourhood engine on the workers: sum A in strips of items, then solve for targets.

The rows of A = X^T W X + L of a strip of items are summed over chunks of users and cut to their
strongest entries at the end. These entries of all items, up to 3 K numbers for each, go to every
worker, which solves for its share of the targets. The kernels are those of `solve.neighbourhood`,
and so are the weights.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.cluster.partitioned import offsets_of
from equipoise.cluster.spread import Spread, stack
from equipoise.cluster.workers import Throttle, fetch, send, smallest_memory, submit, task
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr, segments
from equipoise.errors import TooBigError
from equipoise.runtime.kernels import Offsets, Positions
from equipoise.runtime.machine import gigabytes
from equipoise.runtime.resume import Journal
from equipoise.solve.audit import TARGETS, Audit, sample_items
from equipoise.solve.engine import Solved
from equipoise.solve.neighbourhood import (
    ROW_ENTRIES,
    Columns,
    Lists,
    Numbering,
    System,
    columns_of,
    solved_targets,
    strongest_entries,
    supports_of,
)

Vector = npt.NDArray[np.float64]
Span = tuple[int, int]

STRIPS = 16  # at least, so that workers share them
STRIP_ENTRIES = 16_000_000  # entries of A in a strip at most, unless a single row has more
TARGET_GROUPS = 64  # tasks that share the targets
SHARE = 0.6  # of a worker's memory that the entries may take


class NeighbourhoodSolver:
    """Solves by neighbourhoods on the workers; replaces `solve.engine.Solver`.

    `spread` is the matrix on the workers and `train` the same data here, which the model keeps;
    `neighbours` is K, the number of items in a support beside the target.
    """

    def __init__(
        self, spread: Spread, train: Interactions, neighbours: int, dtype: str = "float32"
    ) -> None:
        self.spread, self.train, self.dtype = spread, train, dtype
        self.neighbours = min(neighbours, max(spread.shape[1] - 1, 1))
        self.client = spread.client

    def solve(self, user_weights: Any, penalty: Vector, feature_weight: float = 0.0) -> Solved:
        """Return the columns of P, audited against exact ones."""
        user_weights = self.spread.weights(user_weights, feature_weight)
        n_items, n_entries = self.spread.shape[1], ROW_ENTRIES * self.neighbours
        bytes_per_entry = 4 + np.dtype(self.dtype).itemsize
        needed = n_items * min(self.neighbours + n_entries, n_items) * bytes_per_entry
        memory = smallest_memory(self.client)
        if needed > SHARE * memory:
            raise TooBigError(
                f"{n_items:,} items with {self.neighbours:,} neighbours need {gigabytes(needed)} "
                f"on each worker and one has {gigabytes(memory)}; take fewer neighbours, or "
                "workers with more memory"
            )
        sums = self.spread.item_sums(user_weights)
        numbers = _number_items(sums, penalty)
        sent_numbers = send(self.client, numbers)
        chunks = self.spread.map_chunks(make_chunk, user_weights, numbers.rank)
        strips = self._sum_strips(chunks, sent_numbers, numbers, n_entries)
        lists = submit(self.client, join_strips, strips)
        del strips, chunks
        n_groups = min(TARGET_GROUPS, n_items)
        solving = (n_groups, self.neighbours, self.dtype)
        groups = [
            submit(self.client, solve_targets, lists, sent_numbers, group, *solving)
            for group in range(n_groups)
        ]
        matrix, diagonal = _join_columns(fetch(self.client, groups), numbers.names)
        columns = columns_of(matrix, diagonal, self.neighbours)
        audit = _Audit(columns, self.spread, user_weights, numbers, sums[0])
        residual = audit.residual()
        columns.audit.update(audit.agreement())
        return Solved(columns, columns.diagonal(), residual)

    def _sum_strips(
        self, chunks: list[Any], sent_numbers: Any, numbers: Numbering, n_entries: int
    ) -> list[Any]:
        """Return the strongest entries of strips of rows; a worker has a few strips at a time."""
        n_items = len(numbers.names)
        throttle, strips = Throttle(self.client), []
        for span in _strip_spans(numbers.partners):
            rows = None
            for number, chunk in enumerate(chunks):
                last = number == len(chunks) - 1
                limits = (self.neighbours, n_entries) if last else (n_items, n_items)
                dtype = self.dtype if last else "float64"
                rows = submit(
                    self.client, add_rows, rows, chunk, sent_numbers, span, limits, dtype
                )
            throttle.add(rows)
            strips.append(rows)
        return strips


def _number_items(sums: Vector, penalty: Vector) -> Numbering:
    """Number the items by their use, the most used first."""
    counts, partners, gram = sums
    names = np.argsort(-counts, kind="stable").astype(np.int32)
    return Numbering(
        names, penalty[names], gram[names] + penalty[names], partners[names].astype(np.int64)
    )


def _strip_spans(partners: Offsets) -> list[Span]:
    """Cut the items into strips of about as many entries each, and of not too many."""
    entries = np.minimum(partners, len(partners) - 1)
    before = np.cumsum(entries) - entries
    share = min(max(int(entries.sum()) // STRIPS, 1), STRIP_ENTRIES)
    starts = np.flatnonzero(np.diff(before // share, prepend=-1))
    return list(pairwise([*starts.tolist(), len(partners)]))


def _join_columns(groups: list[tuple[Any, Any, Any, Any]], names: Positions) -> tuple[Any, Vector]:
    """Return the columns of all targets as a CSC matrix, and its diagonal."""
    n_items, n_groups = len(names), len(groups)
    targets = [np.sort(names[number::n_groups]) for number in range(n_groups)]
    sizes, diagonal = np.zeros(n_items, np.int64), np.zeros(n_items)
    for items, group in zip(targets, groups, strict=True):
        sizes[items], diagonal[items] = group[2], group[3]
    offsets = offsets_of(sizes)
    values = np.empty(offsets[-1], groups[0][0].dtype)
    indices = np.empty(offsets[-1], np.int32)
    for items, group in zip(targets, groups, strict=True):
        places, _ = segments(offsets[items], group[2])
        values[places], indices[places] = group[0], group[1]
    return sp.csc_array((values, indices, offsets), shape=(n_items, n_items)), diagonal


class _Audit(Audit):
    """The audit of `solve.audit` with the exact system on the workers."""

    def __init__(
        self,
        columns: Columns,
        spread: Spread,
        user_weights: Any,
        numbers: Numbering,
        item_counts: Vector,
    ) -> None:
        self.columns, self._spread, self._roots = columns, spread, spread.roots(user_weights)
        self._names, self._rank = numbers.names, numbers.rank
        self._penalty, self._diagonal = numbers.penalty, numbers.diagonal
        self.targets = sample_items(item_counts, TARGETS)

    def _product(self, V: Vector, out: Vector) -> None:
        product = self._spread.times(self._roots, V[self._rank])
        np.add(product[self._names], self._penalty[:, None] * V, out=out)

    def _histories(self, j: int) -> Any:
        return self._spread.histories(j)


class Chunk(NamedTuple):
    """Rows and columns of X of some users, over numbered items, and the weights of the users."""

    users: tuple[Offsets, Positions, npt.NDArray[Any]]
    items: tuple[Offsets, Positions, npt.NDArray[Any]]
    weights: Vector


@task
def make_chunk(blocks: list[Csr], user_weights: Vector, rank: Positions) -> Chunk:
    """Return the rows and columns of blocks over numbered items."""
    X = stack(blocks)
    indices = rank[X.indices]
    columns: Any = sp.csr_array((X.data, indices, X.indptr), X.shape).tocsc()
    return Chunk(
        (X.indptr.astype(np.int64), indices, X.data),
        (columns.indptr.astype(np.int64), columns.indices.astype(np.int32), columns.data),
        np.ascontiguousarray(user_weights, np.float64),
    )


@task
def add_rows(
    before: Lists | None, chunk: Chunk, numbers: Numbering, span: Span, limits: Span, dtype: str
) -> Lists:
    """Add the users of a chunk to the rows of a strip, and cut these to their strongest entries.

    `limits` are the number of neighbours, which come first, and of all entries to keep.
    """
    low, high = span
    system = _strip_system(before, chunk, numbers, span)
    items = np.arange(low, high, dtype=np.int32)
    lists = strongest_entries(system, items, *limits, dtype, Journal())
    lengths, n_foreign = lists.lengths[low:high].copy(), lists.n_foreign[low:high]
    places, starts = segments(lists.starts[low:high], lengths)
    return Lists(starts, lengths, n_foreign, lists.items[places], lists.values[places])


def _strip_system(before: Lists | None, chunk: Chunk, numbers: Numbering, span: Span) -> System:
    """Return the system of a strip of items and a chunk of users.

    Earlier sums continue: each item's row of `before` enters as one more user of weight 1, who
    comes first in its column.
    """
    low, high = span
    starts, column_users, column_values = chunk.items
    begin, end = starts[low], starts[high]
    edges = starts[low : high + 1] - begin
    strip_users, strip_values = column_users[begin:end], column_values[begin:end]
    users, weights = chunk.users, chunk.weights
    if before is not None:
        size, n_users = high - low, len(weights)
        offsets, indices, values = users
        ends = offsets[-1] + np.cumsum(before.lengths, dtype=np.int64)
        users = (
            np.concatenate([offsets, ends]),
            np.concatenate([indices, before.items]),
            np.concatenate([values.astype(np.float64), before.values]),
        )
        extra_users = n_users + np.arange(size, dtype=np.int32)
        strip_users = np.insert(strip_users, edges[:-1], extra_users)
        strip_values = np.insert(strip_values, edges[:-1], 1)
        weights = np.concatenate([weights, np.ones(size)])
        edges = edges + np.arange(size + 1)
    columns = np.zeros(len(starts), np.int64)
    columns[low : high + 1] = edges
    return System(
        numbers.names,
        numbers.penalty,
        numbers.diagonal,
        numbers.partners,
        users=users,
        items=(columns, strip_users, strip_values),
        weights=weights,
    )


@task
def join_strips(strips: list[Lists]) -> Lists:
    """Return the strongest entries of all rows."""
    columns = (
        np.concatenate([getattr(strip, name) for strip in strips])
        for name in ("lengths", "n_foreign", "items", "values")
    )
    lengths, *entries = columns
    return Lists(offsets_of(lengths), lengths, *entries)


@task
def solve_targets(
    lists: Lists, numbers: Numbering, first: int, step: int, neighbours: int, dtype: str
) -> tuple[Any, Any, Any, Any]:
    """Solve for every `step`-th target; return values, sources, sizes and the diagonal."""
    targets = np.arange(first, len(numbers.names), step, dtype=np.int32)
    support = supports_of(lists, neighbours)
    columns, diagonal = solved_targets(numbers, lists, support, targets, dtype, Journal())
    places = np.sort(numbers.names[targets])
    return columns.data, columns.indices, np.diff(columns.indptr)[places], diagonal[places]
