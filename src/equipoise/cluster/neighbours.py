"""The neighbourhood engine over the workers: rows of A a strip at a time, and solves of targets.

A strip of items has its rows of A = X^T W X + L summed from chunk to chunk of the users, and cut
to their strongest entries at the end. All of these together, up to 3 K numbers for an item, go to
each worker, which solves for its share of the targets. The kernels are those of
`solve.neighbourhood`, and so are the weights.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.cluster.spread import Spread, one_matrix
from equipoise.cluster.workers import Ahead, least_memory, results, same, submit, task
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr, segments
from equipoise.errors import TooBigError
from equipoise.runtime.kernels import Offsets, Positions
from equipoise.runtime.machine import gigabytes
from equipoise.solve.audit import TARGETS, Audit, sampled
from equipoise.solve.engine import Solved
from equipoise.solve.journal import Journal
from equipoise.solve.neighbourhood import (
    KEPT,
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
STRIP_ENTRIES = 16_000_000  # entries of A that a strip holds at most, but for a single row
STRIPES = 64  # of the targets
SHARE = 0.6  # of a worker's memory that the entries may take


class NeighbourhoodSolver:
    """Solves by neighbourhoods where the workers are; stands in for `solve.engine.Solver`.

    Parameters
    ----------
    spread
        The matrix on the workers.
    train
        The same data here, which the model keeps.
    neighbours
        K, the items of a support beside the target.
    dtype
        "float32" or "float64".
    """

    def __init__(
        self, spread: Spread, train: Interactions, neighbours: int, dtype: str = "float32"
    ) -> None:
        self.spread, self.train, self.dtype = spread, train, dtype
        self.neighbours = min(neighbours, max(spread.shape[1] - 1, 1))
        self.client = spread.client

    def solve(self, user_weights: Vector, penalty: Vector) -> Solved:
        """Return the columns of P, and how close they are to exact ones."""
        n_items, kept = self.spread.shape[1], KEPT * self.neighbours
        needed = (
            n_items * min(self.neighbours + kept, n_items) * (4 + np.dtype(self.dtype).itemsize)
        )
        memory = least_memory(self.client)
        if needed > SHARE * memory:
            raise TooBigError(
                f"{n_items:,} items with {self.neighbours:,} neighbours need {gigabytes(needed)} "
                f"on each worker and one has {gigabytes(memory)}; take fewer neighbours, or "
                "workers with more memory"
            )
        sums = self.spread.entries(user_weights)
        numbers = _numbered(sums, penalty)
        held = submit(self.client, same, numbers)
        chunks = self.spread.chunks(columns_and_rows, user_weights, numbers.rank)
        strips = self._strips(chunks, held, numbers, kept)
        lists = submit(self.client, joined, strips)
        del strips, chunks
        targets = min(STRIPES, n_items)
        solved = [
            submit(self.client, solve_some, lists, held, at, targets, self.neighbours, self.dtype)
            for at in range(targets)
        ]
        found, diagonal = _together(results(self.client, solved), numbers.names, targets)
        columns = columns_of(found, diagonal, self.neighbours)
        audit = _Audit(columns, self.spread, user_weights, penalty, sums)
        residual = audit.residual()
        columns.audit.update(audit.agreement())
        return Solved(columns, columns.diagonal(), residual)

    def _strips(self, chunks: list[Any], held: Any, numbers: Numbering, kept: int) -> list[Any]:
        """Return the strongest entries of strips of rows; a worker has a few strips at a time."""
        n_items = len(numbers.names)
        spans = _spans(numbers.partners)

        def chain(span: Span) -> Any:
            rows = None
            for number, chunk in enumerate(chunks):
                last = number == len(chunks) - 1
                limits = (self.neighbours, kept) if last else (n_items, n_items)
                dtype = self.dtype if last else "float64"
                rows = submit(self.client, add_rows, rows, chunk, held, span, limits, dtype)
            return rows

        ahead = Ahead(self.client)
        return [ahead.begun(chain(span)) for span in spans]


def _numbered(sums: Vector, penalty: Vector) -> Numbering:
    """Number the items from the most used one on."""
    counts, partners, gram = sums
    names = np.argsort(-counts, kind="stable").astype(np.int32)
    others = partners[names].astype(np.int64)
    return Numbering(names, penalty[names], gram[names] + penalty[names], others)


def _spans(partners: Offsets) -> list[Span]:
    """Cut the items into strips of about as many entries each, and of not too many."""
    entries = np.minimum(partners, len(partners) - 1)
    before = np.cumsum(entries) - entries
    share = min(max(int(entries.sum()) // STRIPS, 1), STRIP_ENTRIES)
    starts = np.flatnonzero(np.diff(before // share, prepend=-1))
    return list(pairwise([*starts.tolist(), len(partners)]))


def _together(
    parts: list[tuple[Any, Any, Any, Any]], names: Positions, step: int
) -> tuple[Any, Vector]:
    """Put the columns of all targets together, as a CSC matrix and its diagonal."""
    n_items = len(names)
    places = [np.sort(names[at::step]) for at in range(step)]
    sizes, diagonal = np.zeros(n_items, np.int64), np.zeros(n_items)
    for place, part in zip(places, parts, strict=True):
        sizes[place], diagonal[place] = part[2], part[3]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    values = np.empty(offsets[-1], parts[0][0].dtype)
    indices = np.empty(offsets[-1], np.int32)
    for place, part in zip(places, parts, strict=True):
        where, _ = segments(offsets[place], part[2])
        values[where], indices[where] = part[0], part[1]
    return sp.csc_array((values, indices, offsets), shape=(n_items, n_items)), diagonal


class _Audit(Audit):
    """The exact system on the workers beside the columns that are to be checked."""

    def __init__(
        self, columns: Columns, spread: Spread, user_weights: Vector, penalty: Vector, sums: Vector
    ) -> None:
        self.columns, self._spread, self._roots = columns, spread, spread.roots(user_weights)
        numbers = _numbered(sums, penalty)
        self._names, self._rank = numbers.names, numbers.rank
        self._penalty, self._diagonal = numbers.penalty, numbers.diagonal
        self.targets = sampled(sums[0], TARGETS)

    def _product(self, V: Vector, out: Vector) -> None:
        product = self._spread.times(self._roots, V[self._rank])
        np.add(product[self._names], self._penalty[:, None] * V, out=out)

    def _histories(self, j: int) -> Any:
        return self._spread.histories(j)


class Chunk(NamedTuple):
    """Rows and columns of some users, items by number, and the weights of the users."""

    users: tuple[Offsets, Positions, npt.NDArray[Any]]
    items: tuple[Offsets, Positions, npt.NDArray[Any]]
    weights: Vector


class Strip(NamedTuple):
    """Rows of A of a strip of items: lengths, those of other rows, items and values."""

    lengths: Positions
    others: Positions
    items: Positions
    values: npt.NDArray[Any]


@task
def columns_and_rows(blocks: list[Csr], user_weights: Vector, rank: Positions) -> Chunk:
    """Put the columns of blocks beside their rows, items by number."""
    X = one_matrix(blocks)
    indices = rank[X.indices]
    columns: Any = sp.csr_array((X.data, indices, X.indptr), X.shape).tocsc()
    return Chunk(
        (X.indptr.astype(np.int64), indices, X.data),
        (columns.indptr.astype(np.int64), columns.indices.astype(np.int32), columns.data),
        np.ascontiguousarray(user_weights, np.float64),
    )


@task
def add_rows(
    before: Strip | None, chunk: Chunk, numbers: Numbering, span: Span, limits: Span, dtype: str
) -> Strip:
    """Add some users to the rows of a strip, and keep the strongest entries of each.

    `limits` are the neighbours, which come first, and the entries that are kept.
    """
    low, high = span
    system = _system(before, chunk, numbers, span)
    items = np.arange(low, high, dtype=np.int32)
    found = strongest_entries(system, items, *limits, dtype, Journal())
    lengths = found.lengths[low:high].copy()
    places, _ = segments(found.starts[low:high], lengths)
    return Strip(lengths, found.n_foreign[low:high], found.items[places], found.values[places])


def _system(before: Strip | None, chunk: Chunk, numbers: Numbering, span: Span) -> System:
    """Return the columns of a strip; what was summed before is a user of its own for each item.

    That user comes first and has weight 1, so the sums go on where they were.
    """
    low, high = span
    starts, column_users, column_values = chunk.items
    begin, end = starts[low], starts[high]
    of_span = slice(begin, end)
    edges = starts[low : high + 1] - begin
    own_users, own_values = column_users[of_span], column_values[of_span]
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
        own_users = np.insert(own_users, edges[:-1], n_users + np.arange(size, dtype=np.int32))
        own_values = np.insert(own_values, edges[:-1], 1)
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
        items=(columns, own_users, own_values),
        weights=weights,
    )


@task
def joined(strips: list[Strip]) -> Lists:
    """Put the strongest entries of all rows together."""
    lengths, others, items, values = (np.concatenate(parts) for parts in zip(*strips, strict=True))
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return Lists(starts, lengths, others, items, values)


@task
def solve_some(
    lists: Lists, numbers: Numbering, first: int, step: int, neighbours: int, dtype: str
) -> tuple[Any, Any, Any, Any]:
    """Solve for every `step`-th target from one on; values, sources, sizes and the diagonal."""
    targets = np.arange(first, len(numbers.names), step, dtype=np.int32)
    support = supports_of(lists, neighbours)
    found, diagonal = solved_targets(numbers, lists, support, targets, dtype, Journal())
    places = np.sort(numbers.names[targets])
    return found.data, found.indices, np.diff(found.indptr)[places], diagonal[places]
