"""The neighbourhood engine on the workers: sum A in strips of items, then solve for targets.

The rows of A = X^T W X + L of a strip of items are summed over chunks of users and cut to their
strongest entries at the end. Where the entries of all items, up to 3 K numbers for each, fit into
the memory of a worker, they go to every worker, which solves for its share of the targets. Where
they do not, they stay with the workers that made them: the supports of a group of targets go from
strip to strip and collect the entries of their systems, which are then solved. So the memory of a
worker has a limit however many items there are, except for a few vectors over the items.

The kernels are those of `solve.neighbourhood`, and so are the weights, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.cluster.partitioned import offsets_of
from equipoise.cluster.spread import Spread, stack
from equipoise.cluster.workers import (
    FAN_IN,
    Throttle,
    run_in_order,
    send,
    smallest_memory,
    submit,
    task,
)
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
    Supports,
    System,
    columns_of,
    solved_targets,
    strongest_entries,
    supports_of,
)
from equipoise.solve.small_systems import gather_entries, solve_gathered

Vector = npt.NDArray[np.float64]
Span = tuple[int, int]

STRIPS = 16  # at least, so that workers share them
STRIP_ENTRIES = 16_000_000  # entries of A in a strip at most, unless a single row has more
TARGET_GROUPS = 64  # tasks that share the targets, at least
SHARE = 0.6  # of a worker's memory that the entries of all items may take,
PART = 0.05  # and that a few strips, or the systems of a group of targets, may take
NUMBER_BYTES = 120  # for each item: its number, penalty and diagonal, and vectors of a sum
EXACT = 2.0**53  # whole numbers below it are added exactly
COPIES = 3  # of gathered entries: by strip, together, and on their way


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
        sums = self.spread.item_sums(user_weights)
        numbers = _number_items(sums, penalty)
        sizes = np.minimum(numbers.partners, (1 + ROW_ENTRIES) * self.neighbours)
        sizes *= 4 + np.dtype(self.dtype).itemsize
        memory = smallest_memory(self.client)
        in_one_pass = sizes.sum() <= SHARE * memory
        n_targets = 0 if in_one_pass else self._group_size(memory)
        sent_numbers = send(self.client, numbers)
        chunks = self.spread.map_chunks(make_chunk, user_weights, numbers.rank)
        spans = _strip_spans(numbers.partners)
        is_whole = all(run_in_order(self.client, _calls(has_whole_values, chunks)))
        is_exact = is_whole and float(sums[2].max(initial=0)) < EXACT
        strips = self._sum_strips(chunks, sent_numbers, numbers, spans, is_exact)
        del chunks
        lengths = np.concatenate(list(run_in_order(self.client, _calls(row_lengths, strips))))
        if in_one_pass:
            targets = _shares(numbers.names)
            lists = submit(self.client, join_strips, strips)
            calls = self._solve_together(lists, sent_numbers, targets)
        else:
            spans, strips = self._join_some(spans, strips, sizes, PART * memory)
            targets = _groups(spans, numbers.names, n_targets)
            calls = self._solve_in_passes(spans, strips, sent_numbers, targets)
        del strips
        support_sizes = _support_sizes(lengths, self.neighbours)
        groups = run_in_order(self.client, calls)
        matrix, diagonal = _join_columns(groups, targets, support_sizes, numbers.names, self.dtype)
        columns = columns_of(matrix, diagonal, self.neighbours)
        del matrix
        audit = _Audit(columns, self.spread, user_weights, numbers, sums[0])
        residual = audit.residual()
        columns.audit.update(audit.agreement())
        return Solved(columns, columns.diagonal(), residual)

    def _group_size(self, memory: float) -> int:
        """Return how many targets are solved together; raise where a worker has too little."""
        n_items, itemsize = self.spread.shape[1], np.dtype(self.dtype).itemsize
        pairs = (self.neighbours + 1) ** 2  # in both of their rows, where these are equally strong
        target = 4 * self.neighbours + COPIES * pairs * (4 + itemsize)
        needed = NUMBER_BYTES * n_items + target
        if needed > SHARE * memory:
            raise TooBigError(
                f"{n_items:,} items with {self.neighbours:,} neighbours need {gigabytes(needed)} "
                f"on each worker and one has {gigabytes(memory)}; take fewer neighbours, or "
                "workers with more memory"
            )
        return min(max(int(PART * memory) // target, 1), -(-n_items // TARGET_GROUPS))

    def _solve_together(
        self, lists: Any, sent_numbers: Any, targets: list[Positions]
    ) -> Iterator[tuple[Any, ...]]:
        """Yield calls that solve for the targets from the entries of all items."""
        for number in range(len(targets)):
            solving = (number, len(targets), self.neighbours, self.dtype)
            yield solve_targets, lists, sent_numbers, *solving

    def _solve_in_passes(
        self, spans: list[Span], strips: list[Any], sent_numbers: Any, targets: list[Positions]
    ) -> Iterator[tuple[Any, ...]]:
        """Yield calls that solve for groups of targets from entries of one strip after another."""
        n_items, starts = self.spread.shape[1], [low for low, _ in spans]
        for group in targets:
            home = int(np.searchsorted(starts, int(group.min()), "right")) - 1
            here = strips[home], spans[home], group
            supports = submit(self.client, supports_in, *here, self.neighbours, n_items)
            gathered = [
                submit(self.client, gather, strip, span, group, supports, self.neighbours + 1)
                for strip, span in zip(strips, spans, strict=True)
            ]
            yield solve_group, gathered, group, supports, sent_numbers, self.neighbours, self.dtype

    def _join_some(
        self, spans: list[Span], strips: list[Any], sizes: npt.NDArray[np.int64], limit: float
    ) -> tuple[list[Span], list[Any]]:
        """Join neighbouring strips up to a limit, so that there are few tasks for each group."""
        joined_spans, joined = [], []
        first, filled = 0, 0
        for number, (low, high) in enumerate(spans):
            size = int(sizes[low:high].sum())
            if number > first and filled + size > limit:
                joined_spans.append((spans[first][0], low))
                joined.append(submit(self.client, join_strips, strips[first:number]))
                first, filled = number, 0
            filled += size
        joined_spans.append((spans[first][0], spans[-1][1]))
        joined.append(submit(self.client, join_strips, strips[first:]))
        return joined_spans, joined

    def _sum_strips(
        self,
        chunks: list[Any],
        sent_numbers: Any,
        numbers: Numbering,
        spans: list[Span],
        is_exact: bool,
    ) -> list[Any]:
        """Return the strongest entries of strips of rows; a worker has a few strips at a time.

        Exact sums are the same in any order and form a tree; others follow the order of the users,
        as on one machine.
        """
        n_items = len(numbers.names)
        complete = self.neighbours, ROW_ENTRIES * self.neighbours, self.dtype
        partial = n_items, n_items, "float64"
        throttle, strips = Throttle(self.client), []
        for span in spans:

            def add(earlier: list[Any], chunk: Any, is_last: bool, span: Span = span) -> Any:
                limits = complete if is_last else partial
                return submit(self.client, add_rows, earlier, chunk, sent_numbers, span, limits)

            rows = add_in_tree(add, chunks) if is_exact else add_in_chain(add, chunks)
            throttle.add(rows)
            strips.append(rows)
        return strips


def add_in_chain(add: Callable[[list[Any], Any, bool], Any], chunks: list[Any]) -> Any:
    """Return the sum over all chunks, each added to those before it."""
    rows: list[Any] = []
    for number, chunk in enumerate(chunks):
        rows = [add(rows, chunk, number == len(chunks) - 1)]
    return rows[0]


def add_in_tree(add: Callable[[list[Any], Any, bool], Any], chunks: list[Any]) -> Any:
    """Return the sum over all chunks, a few of them at a time in a tree of fixed shape.

    A group of chunks is summed before the next group starts, so that few sums wait in memory.
    """

    def summed(part: list[Any], is_last: bool) -> Any:
        if len(part) == 1:
            return add([], part[0], is_last)
        step = -(-len(part) // FAN_IN)
        groups = [part[first : first + step] for first in range(0, len(part), step)]
        return add([summed(group, False) for group in groups], None, is_last)

    return summed(chunks, True)


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


def _calls(function: Any, futures: list[Any]) -> Iterator[tuple[Any, ...]]:
    return ((function, future) for future in futures)


def _shares(names: Positions) -> list[Positions]:
    """Return the targets of each task of one pass."""
    n_groups, n_items = min(TARGET_GROUPS, len(names)), len(names)
    shares = (np.arange(first, n_items, n_groups, dtype=np.int32) for first in range(n_groups))
    return [share[np.argsort(names[share])] for share in shares]


def _groups(spans: list[Span], names: Positions, size: int) -> list[Positions]:
    """Return groups of targets of a size, each of one strip and in the order of the columns."""
    groups = []
    for low, high in spans:
        for first in range(low, high, size):
            group = np.arange(first, min(first + size, high), dtype=np.int32)
            groups.append(group[np.argsort(names[group])])
    return groups


def _support_sizes(lengths: Positions, neighbours: int) -> npt.NDArray[np.int64]:
    """Return the number of items in each support without the target, as in `supports_of`."""
    if neighbours < len(lengths) - 1:
        return np.minimum(lengths, neighbours).astype(np.int64)
    return np.full(len(lengths), len(lengths) - 1, np.int64)


def _join_columns(
    groups: Iterator[tuple[Any, Any, Any]],
    targets: list[Positions],
    support_sizes: npt.NDArray[np.int64],
    names: Positions,
    dtype: str,
) -> tuple[Any, Vector]:
    """Return the columns of all targets as a CSC matrix, and its diagonal; a group at a time."""
    n_items = len(names)
    sizes, diagonal = np.zeros(n_items, np.int64), np.zeros(n_items)
    sizes[names] = support_sizes
    offsets = offsets_of(sizes)
    values, indices = np.empty(offsets[-1], dtype), np.empty(offsets[-1], np.int32)
    for group, (group_values, sources, group_diagonal) in zip(targets, groups, strict=True):
        items = names[group]
        places, _ = segments(offsets[items], sizes[items])
        values[places], indices[places], diagonal[items] = group_values, sources, group_diagonal
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
def has_whole_values(chunk: Chunk) -> bool:
    """Return whether all values and all weights of users are whole numbers."""
    return all(bool((part == np.rint(part)).all()) for part in (chunk.users[2], chunk.weights))


@task
def add_rows(
    earlier: list[Lists],
    chunk: Chunk | None,
    numbers: Numbering,
    span: Span,
    limits: tuple[int, int, str],
) -> Lists:
    """Add sums of the rows of a strip and the users of a chunk; keep their strongest entries.

    `limits` are the number of neighbours, which come first, that of all entries to keep, and the
    type of the numbers.
    """
    low, high = span
    system = _strip_system(earlier, chunk, numbers, span)
    items = np.arange(low, high, dtype=np.int32)
    lists = strongest_entries(system, items, *limits, Journal())
    lengths, n_foreign = lists.lengths[low:high].copy(), lists.n_foreign[low:high].copy()
    places, starts = segments(lists.starts[low:high], lengths)
    return Lists(starts, lengths, n_foreign, lists.items[places], lists.values[places])


def _strip_system(
    earlier: list[Lists], chunk: Chunk | None, numbers: Numbering, span: Span
) -> System:
    """Return the system of a strip of items and a chunk of users.

    Earlier sums continue: each item's rows of them enter as more users of weight 1, who come first
    in its column.
    """
    low, high = span
    size, n_items = high - low, len(numbers.names)
    edges, weights = np.zeros(size + 1, np.int64), np.zeros(0)
    offsets, users, values = [np.zeros(1, np.int64)], [], []
    column_users, column_values = np.zeros(0, np.int32), np.zeros(0)
    if chunk is not None:
        starts, column_users, column_values = chunk.items
        begin, end = starts[low], starts[high]
        edges = starts[low : high + 1] - begin
        column_users, column_values = column_users[begin:end], column_values[begin:end]
        offsets, weights = [chunk.users[0]], chunk.weights
        users, values = [chunk.users[1]], [chunk.users[2]]
    if earlier:
        n_parts, n_users = len(earlier), len(weights)
        for part in earlier:
            offsets.append(offsets[-1][-1] + np.cumsum(part.lengths, dtype=np.int64))
            users.append(part.items)
            values.append(part.values)
        # the rows of an item, in the order of the sums
        rows = n_users + np.arange(n_parts * size, dtype=np.int32).reshape(n_parts, size).T
        column_users = np.insert(column_users, np.repeat(edges[:-1], n_parts), rows.ravel())
        column_values = np.insert(column_values, np.repeat(edges[:-1], n_parts), 1)
        weights = np.concatenate([weights, np.ones(n_parts * size)])
        edges = edges + n_parts * np.arange(size + 1)
    columns = np.zeros(n_items + 1, np.int64)
    columns[low : high + 1] = edges
    return System(
        numbers.names,
        numbers.penalty,
        numbers.diagonal,
        numbers.partners,
        users=(_together(offsets), _together(users), _together(values)),
        items=(columns, column_users, column_values),
        weights=weights,
    )


def _together(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return arrays as one; a single array is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


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
def row_lengths(strip: Lists) -> Positions:
    """Return the number of entries of each row of a strip."""
    return strip.lengths


@task
def solve_targets(
    lists: Lists, numbers: Numbering, first: int, step: int, neighbours: int, dtype: str
) -> tuple[Any, Any, Any]:
    """Solve for every `step`-th target; return values, sources and the diagonal."""
    targets = np.arange(first, len(numbers.names), step, dtype=np.int32)
    support = supports_of(lists, neighbours)
    columns, diagonal = solved_targets(numbers, lists, support, targets, dtype, Journal())
    return columns.data, columns.indices, diagonal[np.sort(numbers.names[targets])]


@task
def supports_in(
    strip: Lists, span: Span, targets: Positions, neighbours: int, n_items: int
) -> Supports:
    """Return the supports of targets of a strip, one after the other."""
    if neighbours >= n_items - 1:
        other_items = np.concatenate([np.delete(np.arange(n_items), target) for target in targets])
        sizes = np.full(len(targets), n_items - 1, np.int32)
        return Supports(offsets_of(sizes), sizes, other_items.astype(np.int32))
    rows = targets - span[0]
    sizes = np.minimum(strip.lengths[rows], neighbours).astype(np.int32)
    places, starts = segments(strip.starts[rows], sizes)
    return Supports(starts, sizes, strip.items[places])


class Gathered(NamedTuple):
    """Entries of the systems of targets: how many of each, their codes, and their values."""

    counts: Offsets
    codes: npt.NDArray[np.uint32]
    values: npt.NDArray[Any]


@task
def gather(
    strip: Lists, span: Span, targets: Positions, supports: Supports, width: int
) -> Gathered:
    """Return what the rows of a strip contribute to the systems of these targets."""
    return Gathered(*gather_entries(tuple(strip), span, tuple(supports), targets, width))


@task
def solve_group(
    gathered: list[Gathered],
    targets: Positions,
    supports: Supports,
    numbers: Numbering,
    neighbours: int,
    dtype: str,
) -> tuple[Any, Any, Any]:
    """Solve for targets from the entries of all strips; return values, sources and diagonal."""
    counts = np.array([part.counts for part in gathered])
    begins = offsets_of(counts.ravel())[:-1].reshape(counts.shape)
    codes, values = (
        np.concatenate([getattr(part, name) for part in gathered]) for name in ("codes", "values")
    )
    offsets = offsets_of(supports.lengths)
    out = (
        np.empty(offsets[-1], np.int32),
        np.empty(offsets[-1], dtype),
        np.empty(len(targets)),
    )
    vectors = numbers.diagonal.astype(dtype), numbers.penalty.astype(dtype), numbers.names
    entries = begins, counts, codes, values
    solve_gathered(entries, tuple(supports), vectors, targets, neighbours + 1, (offsets, *out))
    sources, weights, diagonal = out
    return weights, sources, diagonal
