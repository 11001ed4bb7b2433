"""The neighbourhood engine: column j of P from the items that j goes with most, one by one.

For target j let N be its support: j and the K items of largest |A_ij| / sqrt(A_ii A_jj), where
A = X^T W X + L. Then x = (A_NN)^-1 e_j stands for column j of P; x_j is its diagonal. With all
items in every support that is the exact solve. A is never formed: an entry A_ij is kept in the row
of the item with the smaller A_ii (in both where they are equal) if it is among the T strongest
entries there that could be. So a pair of items is looked up once. What is not kept counts as 0,
but for the pairs of a target with its own neighbours.

Work goes stripe by stripe on the threads in force. Each item and each target is handled by one
thread in a fixed order, so the bits depend on neither threads nor stripes.
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

from equipoise.data.matrix import Csr, entry_rows, segments
from equipoise.runtime import machine
from equipoise.runtime.kernels import Offsets, Positions, compiled, prefetch
from equipoise.solve.batched import Batches
from equipoise.solve.journal import Journal
from equipoise.solve.small_systems import solve_targets
from equipoise.solve.tiled import SolveProgress

Vector = npt.NDArray[np.float64]

KEPT = 2  # entries of a row that are kept, as a multiple of the neighbours
STRIPES = 64  # parts that threads take and a journal counts; part of the journal's format
SHIFT = 17  # a bucket of sizes: the exponent of a float32 and six bits behind it
LOWEST = int(np.float32(2.0**-31).view(np.uint32)) >> SHIFT  # all smaller sizes share a bucket
BUCKETS = 2048
AHEAD = 4  # users whose rows are asked for before they are needed
NEXT = 32  # items whose sums are asked for before they are needed


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
        """Bytes that it takes."""
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
    """The items of A = X^T W X + L, numbered from the most used one on.

    So most of what is added up lies close together in memory. `names` are the items' positions in
    the data; they decide between equal correlations.
    """

    names: Positions
    penalty: Vector
    diagonal: Vector
    partners: Offsets  # upper bounds of the number of items that share a user

    @cached_property
    def rank(self) -> Positions:
        """Where each item of the data is numbered."""
        rank = np.empty(len(self.names), np.int32)
        rank[self.names] = np.arange(len(self.names), dtype=np.int32)
        return rank


@dataclass(frozen=True, eq=False)
class System(Numbering):
    """A as the kernels read it."""

    users: tuple[Offsets, Positions, npt.NDArray[Any]]  # the rows of X
    items: tuple[Offsets, Positions, npt.NDArray[Any]]  # and its columns
    weights: Vector

    @classmethod
    def of(cls, X: Csr, user_weights: Vector, penalty: Vector) -> System:
        """Number the items of X anew and put its columns beside its rows."""
        n_items = X.shape[1]
        lengths = np.diff(X.indptr).astype(np.int64)
        counts = np.bincount(X.indices, minlength=n_items)
        names = np.argsort(-counts, kind="stable").astype(np.int32)
        rank = np.empty(n_items, np.int32)
        rank[names] = np.arange(n_items, dtype=np.int32)
        indices = rank[X.indices]
        columns: Any = sp.csr_array((X.data, indices, X.indptr), X.shape).tocsc()
        entries = user_weights[entry_rows(X)] * X.data.astype(np.float64) ** 2
        gram = np.bincount(indices, entries, minlength=n_items)
        partners = np.bincount(indices, np.repeat(lengths - 1, lengths), minlength=n_items)
        penalty = np.ascontiguousarray(penalty[names], np.float64)
        return cls(
            names,
            penalty,
            gram + penalty,
            partners.astype(np.int64),
            users=(X.indptr.astype(np.int64), indices, X.data),
            items=(
                columns.indptr.astype(np.int64),
                columns.indices.astype(np.int32, copy=False),
                columns.data,
            ),
            weights=np.ascontiguousarray(user_weights, np.float64),
        )


@dataclass(frozen=True, eq=False)
class Lists:
    """The strongest entries of rows of A, the K neighbours first, without the diagonal.

    The first `others` entries of a row are of neighbours whose rows have the entry, if it is kept.
    """

    starts: Offsets
    lengths: Positions
    others: Positions
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
    kept: int | None = None,
    dtype: str = "float32",
    on_disk: bool = False,
    scratch: Path | None = None,
    problem: dict[str, Any] | None = None,
    progress: Callable[[SolveProgress], None] | None = None,
    card: str | None = None,
) -> Columns:
    """Solve for all targets on the neighbours that A itself shows.

    Parameters
    ----------
    X, user_weights, penalty
        A = X^T diag(user_weights) X + diag(penalty).
    neighbours
        K, the items of a support beside the target.
    kept
        T, the entries of a row of A that are kept; twice as many if left out.
    dtype
        "float32" or "float64".
    on_disk
        Whether the entries are kept in a file instead of memory.
    scratch
        Folder for that file, and for what a solve that was cut short goes on from.
    problem
        Plain values that tell this problem from others, for the scratch folder.
    progress
        Called after each stripe.
    card
        Where torch solves the systems in batches, such as "cuda"; None solves them one by one.
    """
    n_items = X.shape[1]
    neighbours = min(neighbours, max(n_items - 1, 1))
    kept = max(KEPT * neighbours if kept is None else kept, neighbours)
    system = System.of(X, user_weights, penalty)
    what = {**(problem or {}), "neighbours": neighbours, "kept": kept, "dtype": dtype}
    with _journal(what, on_disk=on_disk, scratch=scratch) as journal:
        report = _reporter(progress, 2 * STRIPES)
        everything = np.arange(n_items, dtype=np.int32)
        lists = strongest_entries(system, everything, neighbours, kept, dtype, journal, report)
        support = supports_of(lists, neighbours)
        found, diagonal = solved_targets(
            system, lists, support, everything, dtype, journal, report, card
        )
        journal.clear()
    del lists, support
    return columns_of(found, diagonal, neighbours)


def solve_again(
    old: Columns, X: Csr, user_weights: Vector, penalty: Vector, touched: npt.NDArray[np.int64]
) -> Columns:
    """Solve anew for the targets with a touched item in their support; supports stay.

    Items beyond those of `old` are new, and get the neighbours that A shows. Equal to a solve of
    all targets on these supports, but for entries at the end of the kept ones.
    """
    n_items, n_old = X.shape[1], old.shape[0]
    dtype, neighbours = old.dtype.name, old.neighbours
    system = System.of(X, user_weights, penalty)
    changed = np.zeros(n_items, bool)
    changed[touched] = True
    known = touched[touched < n_old]
    changed[old.off_diagonal[known].indices] = True
    by_target = old.by_target()
    changed[n_old:] = True
    targets = np.flatnonzero(changed)
    before = targets[targets < n_old]
    starts = by_target.indptr[before].astype(np.int64)
    places, offsets = segments(starts, by_target.indptr[before + 1] - starts)
    supports = by_target.indices[places].astype(np.int64)
    kept = KEPT * neighbours
    with Journal() as journal:
        needed = np.unique(np.concatenate([targets, supports]))
        fresh = np.arange(n_old, n_items)
        if len(fresh):
            first = strongest_entries(
                system, system.rank[fresh], neighbours, neighbours, dtype, journal
            )
            ends = first.starts[system.rank[fresh]]
            counts = first.lengths[system.rank[fresh]].astype(np.int64)
            more, _ = segments(ends, counts)
            chosen = system.names[first.items[more]].astype(np.int64)
            supports = np.concatenate([supports, chosen])
            offsets = np.concatenate([offsets, offsets[-1] + np.cumsum(counts)])
            needed = np.unique(np.concatenate([needed, chosen]))
        lists = strongest_entries(system, system.rank[needed], neighbours, kept, dtype, journal)
        sizes = np.zeros(n_items, np.int32)
        begin = np.zeros(n_items + 1, np.int64)
        sizes[system.rank[targets]] = np.diff(offsets)
        begin[system.rank[targets]] = offsets[:-1]
        support = Supports(begin, sizes, system.rank[supports])
        found, diagonal = solved_targets(
            system, lists, support, system.rank[targets], dtype, journal
        )
    return _merged(old, found, diagonal, changed)


def supports_of(lists: Lists, neighbours: int) -> Supports:
    """Return the supports: the neighbours of each item, all others where as many are asked for.

    Otherwise an item that shares no user with the target is in no support.
    """
    n_items = len(lists.lengths)
    if neighbours < n_items - 1:
        sizes = np.minimum(lists.lengths, neighbours).astype(np.int32)
        return Supports(lists.starts, sizes, lists.items)
    others = np.tile(np.arange(n_items, dtype=np.int32), (n_items, 1))[
        ~np.eye(n_items, dtype=bool)
    ]
    starts = np.arange(n_items + 1, dtype=np.int64) * (n_items - 1)
    return Supports(starts, np.full(n_items, n_items - 1, np.int32), others)


def columns_of(found: Any, diagonal: Vector, neighbours: int) -> Columns:
    """Turn columns (CSC) into the sparse rows that scores are summed from."""
    rows = found.tocsr()
    indices, indptr = rows.indices.astype(np.int32, copy=False), rows.indptr.astype(np.int64)
    return Columns(rows.data, indices, indptr, diagonal, neighbours)


def _merged(old: Columns, found: Any, diagonal: Vector, changed: npt.NDArray[np.bool_]) -> Columns:
    """Put new columns in the place of the changed ones."""
    size = found.shape
    stays = old.off_diagonal.tocoo()
    kept = ~changed[stays.coords[1]]
    rows, columns = (part[kept].astype(np.int32) for part in stays.coords)
    before = sp.csc_array((stays.data[kept], (rows, columns)), shape=size)
    solved = found.tocoo()
    data = np.concatenate([before.tocoo().data, solved.data])
    places = [
        np.concatenate([a, b]) for a, b in zip(before.tocoo().coords, solved.coords, strict=True)
    ]
    together = sp.csc_array((data, tuple(places)), shape=size)
    whole = np.where(changed, diagonal, 0.0)
    unchanged = np.flatnonzero(~changed)
    whole[unchanged] = old.diagonal_[unchanged]
    return columns_of(together, whole, old.neighbours)


def _journal(what: dict[str, Any], *, on_disk: bool, scratch: Path | None) -> Journal:
    if scratch is not None:
        return Journal(scratch, what)
    if on_disk:
        return Journal(None, what, temporary=True)
    return Journal()


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
    task: Callable[[int, int], None],
    journal: Journal,
    report: Callable[[], None] | None,
) -> None:
    """Carry out the stripes of a stage that the journal does not have."""

    def stripe(number: int) -> None:
        if not journal.has(stage, number):
            task(number, STRIPES)
            journal.add(stage, number)
        if report is not None:
            report()

    machine.run(stripe, STRIPES)


def strongest_entries(
    system: System,
    items: Positions,
    neighbours: int,
    kept: int,
    dtype: str,
    journal: Journal,
    report: Callable[[], None] | None = None,
) -> Lists:
    """Find the `kept` strongest entries of the rows of these items."""
    n_items = len(system.names)
    room = np.zeros(n_items, np.int64)
    room[items] = np.minimum(system.partners[items], min(neighbours + kept, n_items - 1))
    starts = np.concatenate([[0], np.cumsum(room)])
    lists = Lists(
        starts,
        journal.array("lengths", n_items, "int32"),
        journal.array("others", n_items, "int32"),
        journal.array("items", int(starts[-1]), "int32"),
        journal.array("values", int(starts[-1]), dtype),
    )
    scale = 1 / np.sqrt(system.diagonal)
    data = (*system.users, *system.items, system.weights, scale, system.names)
    out = lists.starts, lists.lengths, lists.others, lists.items, lists.values
    # an item is noted once where sums only grow, else at most as often as it is added to
    grows = system.weights.min(initial=1.0) > 0 and system.users[2].min(initial=1.0) > 0
    added = system.partners + np.diff(system.items[0])
    most = n_items if grows else int(added.max(initial=0))

    def stripe(at: int, step: int) -> None:
        work = (  # from numpy, whose large arrays have large pages: these are read all over
            np.zeros(2 * n_items),
            np.empty(most + 1, np.int32),
            np.empty(n_items + 1, np.float32),
            np.empty(n_items + 1, dtype),
            np.empty(n_items + 1, np.uint8),
            np.empty(n_items + 1, np.int32),
        )
        _strongest(*data, items, at, step, neighbours, kept, *work, *out)

    _in_stripes("lists", stripe, journal, report)
    return lists


def solved_targets(
    system: Numbering,
    lists: Lists,
    support: Supports,
    targets: Positions,
    dtype: str,
    journal: Journal,
    report: Callable[[], None] | None = None,
    card: str | None = None,
) -> tuple[Any, Vector]:
    """Return the columns of these targets as a CSC matrix without the diagonal, and that."""
    n_items = len(system.names)
    sizes = np.zeros(n_items, np.int64)
    sizes[system.names[targets]] = support.lengths[targets]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    indices = journal.array("sources", int(offsets[-1]), "int32")
    values = journal.array("columns", int(offsets[-1]), dtype)
    diagonal = journal.array("diagonal", n_items, "float64")
    widest = int(support.lengths.max(initial=0)) + 1
    longest = int(lists.lengths.max(initial=0))
    data = lists.starts, lists.lengths, lists.others, lists.items, lists.values
    vectors = system.diagonal.astype(dtype), system.penalty.astype(dtype), system.names
    out = offsets, indices, values, diagonal

    def one_by_one(at: int, step: int, some: Positions = targets) -> None:
        solve_targets(*data, *support, *vectors, some, at, step, widest, longest, *out)

    def together(at: int, step: int) -> None:
        some = targets[at::step]
        for batch in np.split(some, range(room, len(some), room)):
            found, own, sound = batches.solve(batch, *support)
            mine = system.names[batch]
            sources, _ = segments(support.starts[batch], support.lengths[batch])
            places, _ = segments(offsets[mine], sizes[mine])
            indices[places], values[places] = system.names[support.items[sources]], found
            diagonal[mine] = own
            one_by_one(0, 1, batch[~sound])

    if card is None:
        _in_stripes("columns", one_by_one, journal, report)
    else:
        batches = Batches(*data, *vectors[:2], card)
        room = batches.size(widest)
        with machine.limited(1):
            _in_stripes("columns", together, journal, report)
    values, indices, diagonal = (journal.in_memory(part) for part in (values, indices, diagonal))
    return _unchecked(sp.csc_array, values, indices, offsets, (n_items, n_items)), diagonal


def _unchecked(kind: Any, data: Any, indices: Any, indptr: Any, shape: tuple[int, int]) -> Any:
    """Return a sparse matrix of these arrays, with one type of index where they are small."""
    if len(data) < np.iinfo(np.int32).max:
        indptr = indptr.astype(np.int32)
    return kind((data, indices, indptr), shape=shape)


@compiled
def _bucket(bits: Any) -> Any:
    """Number of the bucket of a size, given by the bits of a float32 >= 0."""
    return min(max(np.int64(bits >> SHIFT) - LOWEST, 0), BUCKETS - 1)


@compiled
def _strong(bits: Any, names: Any, i: int, least: Any) -> Any:
    """Whether an entry is as strong as the last one wanted; of equal ones by position."""
    return bool(bits > least[0] or (bits == least[0] and names[i] <= least[1]))


@compiled
def _border(counts: Any, wanted: int) -> Any:
    """Return the bucket of the last of the `wanted` largest, and how many are in larger ones."""
    border, above = BUCKETS - 1, 0
    while border > 0 and above + counts[border] < wanted:
        above += counts[border]
        border -= 1
    return border, above


@compiled
def _last(
    bits: Any, items: Any, names: Any, places: Any, border: int, above: int, wanted: int
) -> Any:
    """Return size and position of the last of the `wanted` strongest, all among `places`."""
    if len(places) <= wanted:
        return np.uint32(0), np.int64(len(names))
    keys = np.empty(len(places), np.int64)
    inside = 0
    for x in places:
        if _bucket(bits[x]) == border:  # larger keys for stronger entries
            keys[inside] = (np.int64(bits[x]) << 32) - names[items[x]]
            inside += 1
    last = inside - (wanted - above)
    key = np.partition(keys[:inside], last)[last] - 1
    return np.uint32((key >> 32) + 1), 0xFFFFFFFF - (key & 0xFFFFFFFF)


@compiled
def _strongest(
    indptr: Any,
    indices: Any,
    values: Any,
    column_start: Any,
    column_user: Any,
    column_value: Any,
    weights: Any,
    scale: Any,
    names: Any,
    items: Any,
    first: int,
    step: int,
    neighbours: int,
    kept: int,
    cells: Any,
    touched: Any,
    size: Any,
    sums: Any,
    owned: Any,
    places: Any,
    starts: Any,
    lengths: Any,
    list_others: Any,
    list_items: Any,
    list_values: Any,
) -> None:
    """Sum the rows items[first], items[first + step], ... of A, and keep the strongest."""
    # not the choice of `cooccurrence`: two limits share a count, and sizes are never below 0
    cells[1::2] = scale  # beside the sum of an item, in one place of memory
    bits = size.view(np.uint32)
    counts = np.empty((2, BUCKETS), np.int32)  # of entries of other rows, and of this one
    for at in range(first, len(items), step):
        j = items[at]
        found, end = 0, column_start[j + 1]
        for entry in range(column_start[j], end):
            later = indptr[column_user[min(entry + AHEAD, end - 1)]]
            prefetch(indices, later)
            prefetch(values, later)
            after = column_user[min(entry + 1, end - 1)]
            for place in range(indptr[after], min(indptr[after] + NEXT, indptr[after + 1])):
                prefetch(cells, 2 * indices[place])
            user, value = column_user[entry], np.float64(column_value[entry])
            weight, last = weights[user], indptr[user + 1] - 1
            for place in range(indptr[user], last + 1):
                prefetch(cells, 2 * indices[min(place + NEXT, last)])
                i = indices[place]
                touched[found] = i
                # what cancels to 0 in between is noted twice, and 0 when it is read again
                found += cells[2 * i] == 0
                cells[2 * i] += weight * (value * values[place])
        cells[2 * j] = 0.0
        counts[:] = 0
        some, own = 0, cells[2 * j + 1]
        for x in range(found):
            i = touched[x]
            total, factor = cells[2 * i], cells[2 * i + 1]
            cells[2 * i] = 0.0
            touched[some], sums[some], owned[some] = i, total, factor <= own
            size[some] = abs(total) * factor
            counts[owned[some], _bucket(bits[some])] += total != 0
            some += total != 0
        last, above_last = _border(counts[1], kept)
        counts[0] += counts[1]
        near, above_near = _border(counts[0], neighbours)
        first_owned = 0
        for x in range(some):
            places[first_owned] = x
            first_owned += (1 - owned[x]) & (_bucket(bits[x]) >= near)
        end_owned = first_owned
        for x in range(some):
            places[end_owned] = x
            end_owned += owned[x] & (_bucket(bits[x]) >= min(near, last))
        mine = places[first_owned:end_owned]
        nearest = _last(bits, touched, names, places[:end_owned], near, above_near, neighbours)
        least = _last(bits, touched, names, mine, last, above_last, kept)
        place = starts[j]
        for x in places[:first_owned]:
            if _strong(bits[x], names, touched[x], nearest):
                list_items[place], list_values[place] = touched[x], sums[x]
                place += 1
        list_others[j] = place - starts[j]
        later = starts[j] + min(neighbours, some)
        for x in mine:
            if _strong(bits[x], names, touched[x], nearest):
                list_items[place], list_values[place] = touched[x], sums[x]
                place += 1
            elif _strong(bits[x], names, touched[x], least):
                list_items[later], list_values[later] = touched[x], sums[x]
                later += 1
        lengths[j] = later - starts[j]
