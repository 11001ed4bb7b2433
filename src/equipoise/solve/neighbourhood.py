"""Neighbourhood engine: column j of P from the items most correlated with item j.

For target j let N be its support: j and the K items of largest |A_ij| / sqrt(A_ii A_jj), where
A = X^T W X + L. Then x = (A_NN)^-1 e_j approximates column j of P; x_j is its diagonal. With all
items in every support the solve is exact. A is never formed: an entry A_ij is stored in the row of
the item with the smaller A_ii (in both where they are equal) if it is among the T strongest
entries that could be stored there, so a pair of items is looked up once. Entries that are not
stored count as 0, except for the pairs of a target with its own neighbours.

Threads work on stripes of the items. One thread handles each item and each target in a fixed
order, so the bits depend on neither threads nor stripes. A stripe's entries, and its columns, lie
side by side, so that files of them are written once and without gaps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.data.matrix import Csr, column_counts, segments
from equipoise.runtime import machine
from equipoise.runtime.kernels import Offsets, Positions, compiled, prefetch
from equipoise.runtime.resume import Journal
from equipoise.solve.batched import Batches
from equipoise.solve.small_systems import solve_targets
from equipoise.solve.sparse import Compressed, item_sums, shortened, transposed
from equipoise.solve.tiled import SolveProgress

Vector = npt.NDArray[np.float64]

ROW_ENTRIES = 2  # stored entries of a row, as a multiple of the neighbours
STRIPES = 64  # parts that threads take and a journal counts; part of the journal's format
BLOCK = 8192  # items of a stripe whose entries are collected before they are stored
SHIFT = 17  # a bucket of sizes: the exponent of a float32 and six bits behind it
LOWEST = int(np.float32(2.0**-31).view(np.uint32)) >> SHIFT  # all smaller sizes share a bucket
BUCKETS = 2048
AHEAD = 4  # users whose rows are prefetched
NEXT = 32  # items whose sums are prefetched


@dataclass(frozen=True, eq=False)
class Columns:
    """P with K neighbours for each target, as sparse rows without the diagonal.

    Row i holds P_ij for the targets j that have item i in their support, so a support is the
    pattern of a column; P is not symmetric. `audit` says how close to the exact P it is.
    """

    data: npt.NDArray[Any]
    indices: Positions
    indptr: Offsets
    diagonal_: Vector
    neighbours: int
    audit: dict[str, float] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """Items x items."""
        return len(self.diagonal_), len(self.diagonal_)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the numbers."""
        return self.data.dtype

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.data.nbytes + self.indices.nbytes + self.indptr.nbytes

    def diagonal(self) -> Vector:
        """Return the diagonal of P."""
        return self.diagonal_

    @property
    def off_diagonal(self) -> Any:
        """P without its diagonal as a CSR matrix; the arrays are shared."""
        return _unchecked(sp.csr_array, self.data, self.indices, self.indptr, self.shape)

    def by_target(self) -> Any:
        """Return the same as a CSC matrix: the support of a target is a column."""
        return self.off_diagonal.tocsc()


@dataclass(frozen=True, eq=False)
class Numbering:
    """The items of A = X^T W X + L, numbered from the most popular one on.

    So most sums lie close together in memory. `names` are the items' positions in the data, which
    break ties between equal correlations.
    """

    names: Positions
    penalty: Vector
    diagonal: Vector
    partners: Offsets  # upper bounds of the number of items that share a user

    @cached_property
    def rank(self) -> Positions:
        """The number of each item of the data."""
        return np.argsort(self.names).astype(np.int32)


@dataclass(frozen=True, eq=False)
class System(Numbering):
    """A as the kernels read it."""

    users: Compressed  # the rows of X
    items: Compressed  # and its columns
    weights: Vector

    @classmethod
    def of(cls, X: Csr, user_weights: Vector, penalty: Vector) -> System:
        """Renumber the items of X and convert it to columns as well."""
        n_items = X.shape[1]
        names = np.argsort(-column_counts(X), kind="stable").astype(np.int32)
        rank = np.argsort(names).astype(np.int32)
        users = X.indptr.astype(np.int64), rank[X.indices], shortened(X.data)
        weights = np.ascontiguousarray(user_weights, np.float64)
        gram, partners = np.zeros(n_items), np.zeros(n_items, np.int64)
        item_sums(*users, weights, gram, partners)
        penalty = np.ascontiguousarray(penalty[names], np.float64)
        return cls(
            names,
            penalty,
            gram + penalty,
            partners,
            users=users,
            items=transposed(users, n_items),
            weights=weights,
        )

    @property
    def numbering(self) -> Numbering:
        """The items without X, which takes most of the memory."""
        return Numbering(self.names, self.penalty, self.diagonal, self.partners)


class Lists(NamedTuple):
    """The strongest entries of rows of A, the K neighbours first, without the diagonal.

    The first `n_foreign` entries of a row belong to the rows of other items, which store them too
    if they are strong enough there.
    """

    starts: Offsets
    lengths: Positions
    n_foreign: Positions
    items: Positions
    values: npt.NDArray[Any]


class Supports(NamedTuple):
    """The support of each target, without the target itself."""

    starts: Offsets
    lengths: Positions
    items: Positions


def solve(
    X: Csr,
    user_weights: Vector,
    penalty: Vector,
    neighbours: int,
    *,
    row_entries: int | None = None,
    dtype: str = "float32",
    on_disk: bool = False,
    scratch: Path | None = None,
    problem: dict[str, Any] | None = None,
    progress: Callable[[SolveProgress], None] | None = None,
    card: str | None = None,
) -> Columns:
    """Return P for all targets, each from its strongest neighbours.

    A support has K = `neighbours` items beside the target; T = `row_entries` entries of a row of A
    are stored, by default twice as many, in memory or on disk. The folder `scratch` has the state
    from which an interrupted solve is resumed, and JSON values, `problem`, that identify it.
    `progress` is called after each stripe. On a `card` such as "cuda" torch solves the systems in
    batches; without one they are solved one by one on the processor.
    """
    n_items = X.shape[1]
    neighbours = min(neighbours, max(n_items - 1, 1))
    row_entries = max(ROW_ENTRIES * neighbours if row_entries is None else row_entries, neighbours)
    system = System.of(X, user_weights, penalty)
    settings = {"neighbours": neighbours, "row_entries": row_entries, "dtype": dtype}
    temporary = on_disk and scratch is None
    with Journal(scratch, {**(problem or {}), **settings}, temporary=temporary) as journal:
        report = _reporter(progress, 2 * STRIPES)
        items = np.arange(n_items, dtype=np.int32)
        lists = strongest_entries(system, items, neighbours, row_entries, dtype, journal, report)
        numbers = system.numbering
        del system
        supports = supports_of(lists, neighbours)
        columns, diagonal = solved_targets(
            numbers, lists, supports, items, dtype, journal, report, card
        )
        del lists, supports
        result = columns_of(columns, diagonal, neighbours)
        del columns
        journal.clear()
    return result


def solve_again(
    old: Columns, X: Csr, user_weights: Vector, penalty: Vector, touched: npt.NDArray[np.int64]
) -> Columns:
    """Solve again for the targets with a touched item in their support; supports stay.

    Items beyond those of `old` are new and get their strongest neighbours. The result equals a
    solve of all targets on these supports, except for entries near the end of the stored ones.
    """
    n_items, n_old = X.shape[1], old.shape[0]
    dtype, neighbours = old.dtype.name, old.neighbours
    system = System.of(X, user_weights, penalty)
    changed = np.zeros(n_items, bool)
    changed[touched] = True
    changed[old.off_diagonal[touched[touched < n_old]].indices] = True
    changed[n_old:] = True
    targets = np.flatnonzero(changed)
    old_targets = targets[targets < n_old]
    by_target = old.by_target()
    starts = by_target.indptr[old_targets].astype(np.int64)
    places, offsets = segments(starts, by_target.indptr[old_targets + 1] - starts)
    members = by_target.indices[places].astype(np.int64)
    journal = Journal()
    if n_items > n_old:
        new = system.rank[n_old:]
        nearest = strongest_entries(system, new, neighbours, neighbours, dtype, journal)
        counts = nearest.lengths[new].astype(np.int64)
        places, _ = segments(nearest.starts[new], counts)
        members = np.concatenate([members, system.names[nearest.items[places]]])
        offsets = np.concatenate([offsets, offsets[-1] + np.cumsum(counts)])
    needed = system.rank[np.unique(np.concatenate([targets, members]))]
    lists = strongest_entries(system, needed, neighbours, ROW_ENTRIES * neighbours, dtype, journal)
    sizes, begins = np.zeros(n_items, np.int32), np.zeros(n_items + 1, np.int64)
    target_numbers = system.rank[targets]
    sizes[target_numbers], begins[target_numbers] = np.diff(offsets), offsets[:-1]
    supports = Supports(begins, sizes, system.rank[members])
    columns, diagonal = solved_targets(system, lists, supports, target_numbers, dtype, journal)
    # put the new columns in the place of the changed ones
    entries, solved = old.off_diagonal.tocoo(), columns.tocoo()
    stays = ~changed[entries.coords[1]]
    data = np.concatenate([entries.data[stays], solved.data])
    coordinates = [
        np.concatenate([before[stays].astype(np.int32), after])
        for before, after in zip(entries.coords, solved.coords, strict=True)
    ]
    unchanged = np.flatnonzero(~changed)
    diagonal[unchanged] = old.diagonal_[unchanged]
    merged = sp.csc_array((data, tuple(coordinates)), shape=columns.shape)
    return columns_of(merged, diagonal, neighbours)


def supports_of(lists: Lists, neighbours: int) -> Supports:
    """Return the supports: the neighbours of each item, or all items where K asks for all.

    In the first case an item that shares no user with the target is in no support.
    """
    n_items = len(lists.lengths)
    if neighbours < n_items - 1:
        sizes = np.minimum(lists.lengths, neighbours).astype(np.int32)
        return Supports(lists.starts, sizes, lists.items)
    all_items = np.tile(np.arange(n_items, dtype=np.int32), (n_items, 1))
    starts = np.arange(n_items + 1, dtype=np.int64) * (n_items - 1)
    sizes = np.full(n_items, n_items - 1, np.int32)
    return Supports(starts, sizes, all_items[~np.eye(n_items, dtype=bool)])


def columns_of(columns: Any, diagonal: Vector, neighbours: int) -> Columns:
    """Turn a CSC matrix of columns into the sparse rows that scores are summed from."""
    parts = columns.indptr.astype(np.int64), columns.indices, columns.data
    indptr, indices, data = transposed(parts, columns.shape[0])
    return Columns(data, indices, indptr, np.array(diagonal), neighbours)


def _reporter(
    progress: Callable[[SolveProgress], None] | None, steps: int
) -> Callable[[], None] | None:
    if progress is None:
        return None
    pace, done, lock = machine.Pace(), 0, Lock()

    def report() -> None:
        nonlocal done
        with lock:
            done += 1
            progress(SolveProgress(done, steps, done / steps, pace.left(done, steps)))

    return report


def _in_stripes(
    stage: str,
    task: Callable[[int], None],
    journal: Journal,
    report: Callable[[], None] | None,
) -> None:
    """Carry out the stripes of a stage that the journal does not have."""

    def stripe(number: int) -> None:
        if not journal.has(stage, number):
            task(number)
            journal.add(stage, number)
        if report is not None:
            report()

    machine.run(stripe, STRIPES)


def strongest_entries(
    system: System,
    items: Positions,
    neighbours: int,
    row_entries: int,
    dtype: str,
    journal: Journal,
    report: Callable[[], None] | None = None,
) -> Lists:
    """Return the `row_entries` strongest entries of the rows of these items.

    The rows of a stripe are stored one after the other, behind those of the stripes before it.
    """
    n_items = len(system.names)
    stripes = [items[number::STRIPES] for number in range(STRIPES)]
    in_order = np.concatenate(stripes)
    borders = np.cumsum([0, *map(len, stripes)])
    room = np.minimum(system.partners[in_order], min(neighbours + row_entries, n_items - 1))
    starts = journal.array("starts", len(items), "int64")
    lengths = journal.array("lengths", len(items), "int32")
    n_foreign = journal.array("others", len(items), "int32")
    stored_items = journal.array("items", int(room.sum()), "int32")
    stored_values = journal.array("values", int(room.sum()), dtype)
    scale = 1 / np.sqrt(system.diagonal)
    # an item is noted once where sums only grow, else at most as often as it is added to
    grows = system.weights.min(initial=1.0) > 0 and system.users[2].min(initial=1.0) > 0
    added = system.partners + np.diff(system.items[0])
    most = n_items if grows else int(added.max(initial=0))
    stored, lock = 0, Lock()
    for number in range(STRIPES):
        if journal.has("lists", number):
            part = slice(borders[number], borders[number + 1])
            stored = max(stored, int((starts[part] + lengths[part]).max(initial=0)))

    def stripe(number: int) -> None:
        nonlocal stored
        buffers = (  # from numpy, whose large arrays have large pages: access is random
            np.zeros(2 * n_items),
            np.empty(most + 1, np.int32),
            np.empty(n_items + 1, np.float32),
            np.empty(n_items + 1, dtype),
            np.empty(n_items + 1, np.uint8),
            np.empty(n_items + 1, np.int32),
        )
        buffers[0][1::2] = scale  # beside the sum of the item in memory
        low, high = borders[number], borders[number + 1]
        for first in range(low, high, BLOCK):
            block = slice(first, min(first + BLOCK, high))
            size = int(room[block].sum())
            rows = starts[block], lengths[block], n_foreign[block]
            entries = np.empty(size, np.int32), np.empty(size, dtype)
            used = _strongest(
                system.users,
                system.items,
                system.weights,
                system.names,
                in_order[block],
                neighbours,
                row_entries,
                buffers,
                (*rows, *entries),
            )
            with lock:
                place, stored = stored, stored + used
            starts[block] += place
            stored_items[place : place + used] = entries[0][:used]
            stored_values[place : place + used] = entries[1][:used]

    _in_stripes("lists", stripe, journal, report)
    lists = Lists(
        np.zeros(n_items + 1, np.int64),
        np.zeros(n_items, np.int32),
        np.zeros(n_items, np.int32),
        stored_items[:stored],
        stored_values[:stored],
    )
    lists.starts[in_order] = starts
    lists.lengths[in_order] = lengths
    lists.n_foreign[in_order] = n_foreign
    return lists


def solved_targets(
    system: Numbering,
    lists: Lists,
    supports: Supports,
    targets: Positions,
    dtype: str,
    journal: Journal,
    report: Callable[[], None] | None = None,
    card: str | None = None,
) -> tuple[Any, Vector]:
    """Return the columns of these targets as a CSC matrix without the diagonal, and the diagonal.

    The columns of all other items are empty. The arrays may be files of the journal.
    """
    n_items = len(system.names)
    sizes = np.zeros(n_items, np.int64)
    sizes[system.names[targets]] = supports.lengths[targets]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    indices = journal.array("sources", int(offsets[-1]), "int32")
    values = journal.array("columns", int(offsets[-1]), dtype)
    diagonal = journal.array("diagonal", n_items, "float64")
    widest = int(supports.lengths.max(initial=0)) + 1
    longest = int(lists.lengths.max(initial=0))
    vectors = system.diagonal.astype(dtype), system.penalty.astype(dtype)
    arrays = tuple(lists), tuple(supports), (*vectors, system.names)
    out = offsets, indices, values, diagonal
    # in the order of the columns: a stripe writes to one place
    stripes = np.array_split(targets[np.argsort(system.names[targets])], STRIPES)

    def solve_singly(number: int) -> None:
        solve_targets(*arrays, stripes[number], widest, longest, out)

    def solve_in_batches(number: int) -> None:
        stripe = stripes[number]
        for batch in np.split(stripe, range(batch_size, len(stripe), batch_size)):
            solution, diagonal_part, is_solved = batches.solve(batch, *supports)
            names = system.names[batch]
            sources, _ = segments(supports.starts[batch], supports.lengths[batch])
            places, _ = segments(offsets[names], sizes[names])
            indices[places], values[places] = system.names[supports.items[sources]], solution
            diagonal[names] = diagonal_part
            solve_targets(*arrays, batch[~is_solved], widest, longest, out)

    if card is None:
        _in_stripes("columns", solve_singly, journal, report)
    else:
        batches = Batches(*lists, *vectors, card)
        batch_size = batches.size(widest)
        with machine.limited(1):
            _in_stripes("columns", solve_in_batches, journal, report)
    return _unchecked(sp.csc_array, values, indices, offsets, (n_items, n_items)), diagonal


def _unchecked(kind: Any, data: Any, indices: Any, indptr: Any, shape: tuple[int, int]) -> Any:
    """Return a sparse matrix of these arrays, with 32-bit offsets where they are enough."""
    if len(data) < np.iinfo(np.int32).max:
        indptr = indptr.astype(np.int32)
    return kind((data, indices, indptr), shape=shape)


@compiled
def _bucket(bits: Any) -> Any:
    """Return the bucket of a size, given by the bits of a float32 >= 0."""
    return min(max(np.int64(bits >> SHIFT) - LOWEST, 0), BUCKETS - 1)


@compiled
def _strong(bits: Any, names: Any, i: int, least: Any) -> Any:
    """Whether an entry is at least as strong as `least`; ties are broken by position."""
    return bool(bits > least[0] or (bits == least[0] and names[i] <= least[1]))


@compiled
def _border(counts: Any, n_largest: int) -> Any:
    """Return the bucket of the `n_largest`-th entry, and the number of entries above it."""
    border, above = BUCKETS - 1, 0
    while border > 0 and above + counts[border] < n_largest:
        above += counts[border]
        border -= 1
    return border, above


@compiled
def _last(
    bits: Any, items: Any, names: Any, places: Any, border: int, above: int, n_largest: int
) -> Any:
    """Return size and position of the `n_largest`-th strongest entry among `places`."""
    if len(places) <= n_largest:
        return np.uint32(0), np.int64(len(names))
    keys = np.empty(len(places), np.int64)
    inside = 0
    for x in places:
        if _bucket(bits[x]) == border:  # larger keys for stronger entries
            keys[inside] = (np.int64(bits[x]) << 32) - names[items[x]]
            inside += 1
    last = inside - (n_largest - above)
    key = np.partition(keys[:inside], last)[last] - 1
    return np.uint32((key >> 32) + 1), 0xFFFFFFFF - (key & 0xFFFFFFFF)


@compiled
def _strongest(
    users: Any,
    columns: Any,
    weights: Any,
    names: Any,
    items: Any,
    neighbours: int,
    row_entries: int,
    buffers: Any,
    lists: Any,
) -> Any:
    """Sum the rows of A of these items and store their strongest entries side by side.

    Return how many there are.
    """
    indptr, indices, values = users
    column_start, column_user, column_value = columns
    cells, touched, size, sums, owned, places = buffers
    starts, lengths, list_n_foreign, list_items, list_values = lists
    # unlike in `cooccurrence`, two limits share a count and sizes are never negative
    step = np.int64(len(values) > 1)  # 0 where all values are the same
    column_step = np.int64(len(column_value) > 1)
    stored = 0
    bits = size.view(np.uint32)
    counts = np.empty((2, BUCKETS), np.int32)  # of entries of other rows, and of this one
    for at in range(len(items)):
        j = items[at]
        n_touched, end = 0, column_start[j + 1]
        for entry in range(column_start[j], end):
            later = indptr[column_user[min(entry + AHEAD, end - 1)]]
            prefetch(indices, later)
            prefetch(values, later * step)
            after = column_user[min(entry + 1, end - 1)]
            for place in range(indptr[after], min(indptr[after] + NEXT, indptr[after + 1])):
                prefetch(cells, 2 * indices[place])
            user, value = column_user[entry], np.float64(column_value[entry * column_step])
            weight, last = weights[user], indptr[user + 1] - 1
            for place in range(indptr[user], last + 1):
                prefetch(cells, 2 * indices[min(place + NEXT, last)])
                i = indices[place]
                touched[n_touched] = i
                # an item whose sum returns to 0 is noted twice; the second reading is 0
                n_touched += cells[2 * i] == 0
                cells[2 * i] += weight * (value * values[place * step])
        cells[2 * j] = 0.0
        counts[:] = 0
        n_nonzero, own_scale = 0, cells[2 * j + 1]
        for x in range(n_touched):
            i = touched[x]
            total, factor = cells[2 * i], cells[2 * i + 1]
            cells[2 * i] = 0.0
            touched[n_nonzero], sums[n_nonzero], owned[n_nonzero] = i, total, factor <= own_scale
            size[n_nonzero] = abs(total) * factor
            counts[owned[n_nonzero], _bucket(bits[n_nonzero])] += total != 0
            n_nonzero += total != 0
        last, above_last = _border(counts[1], row_entries)
        counts[0] += counts[1]
        near, above_near = _border(counts[0], neighbours)
        first_owned = 0
        for x in range(n_nonzero):
            places[first_owned] = x
            first_owned += (1 - owned[x]) & (_bucket(bits[x]) >= near)
        end_owned = first_owned
        for x in range(n_nonzero):
            places[end_owned] = x
            end_owned += owned[x] & (_bucket(bits[x]) >= min(near, last))
        owned_places = places[first_owned:end_owned]
        nearest = _last(bits, touched, names, places[:end_owned], near, above_near, neighbours)
        least = _last(bits, touched, names, owned_places, last, above_last, row_entries)
        place = starts[at] = stored
        for x in places[:first_owned]:
            if _strong(bits[x], names, touched[x], nearest):
                list_items[place], list_values[place] = touched[x], sums[x]
                place += 1
        list_n_foreign[at] = place - stored
        later = stored + min(neighbours, n_nonzero)
        for x in owned_places:
            if _strong(bits[x], names, touched[x], nearest):
                list_items[place], list_values[place] = touched[x], sums[x]
                place += 1
            elif _strong(bits[x], names, touched[x], least):
                list_items[later], list_values[later] = touched[x], sums[x]
                later += 1
        lengths[at] = later - stored
        stored = later
    return stored
