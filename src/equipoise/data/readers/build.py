"""Build `Interactions` from a table: filter rows, number ids, cut sessions, add the catalogue.

Ids are numbered and pairs sorted into a CSR matrix by counting, in linear time.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.checks import period
from equipoise.data.catalogue import read_catalogue
from equipoise.data.columns import (
    Columns,
    choose_columns,
    id_column,
    number_column,
    time_column,
)
from equipoise.data.events import MOST_TYPES, Events, summed
from equipoise.data.ids import IdIndex
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr, compact, entry_rows, pair_up
from equipoise.data.read_options import ReadOptions
from equipoise.data.tables import (
    BadRows,
    Mask,
    Source,
    reasons_text,
    skipped_notes,
)
from equipoise.errors import DataError
from equipoise.runtime.kernels import compiled
from equipoise.runtime.machine import count, run

logger = logging.getLogger(__name__)

Codes = npt.NDArray[np.int32]
Kinds = npt.NDArray[np.int16]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[Any]


@dataclass
class Rows:
    """The usable rows of a table, with raw ids, and counts of the rows left out."""

    users: pl.Series
    items: pl.Series
    weights: Floats | None = None
    times: Floats | None = None
    types: pl.Series | None = None
    type_column: str | None = None
    notes: list[str] = field(default_factory=list)  # on columns, then on the file and its cells
    n_column_notes: int = 0
    skipped: Counter[str] = field(default_factory=Counter)  # bad rows by reason
    reasons: str = ""  # the same as text, with an example each
    height: int = 0  # rows of the table, usable or not
    rated: int = 0  # rows with a rating
    low: int = 0  # rows with a rating below `min_rating`
    idle: int = 0  # rows with weight 0

    def all_notes(self, name: str, options: ReadOptions) -> list[str]:
        """Return the notes, including how many rows were left out and why."""
        notes = [*self.notes, *skipped_notes(self.skipped, name)]
        if self.low:
            below = f"have a rating below {options.min_rating:g}"
            notes.append(f"left out {self.low:,} of {self.rated:,} rows that {below}")
        if self.idle:
            notes.append(f"left out {self.idle:,} rows with weight 0")
        return notes

    def require_rows(self, n_rows: int, name: str, options: ReadOptions) -> None:
        """Raise if no row is left, and suggest why."""
        if n_rows:
            return
        if not self.height:
            problem = " has no rows; nothing can be read from it"
            if self.skipped:
                reasons = reasons_text(self.skipped)
                problem = f": no row is left after the bad ones ({reasons}); correct the file"
            raise DataError(name + problem)
        remedy = "check the columns"
        if self.skipped:
            remedy = f"skipped were {self.reasons}; correct them or name another column"
        if options.min_rating is not None:
            remedy = f"lower min_rating={options.min_rating:g} or check the rating column"
        raise DataError(f"{name}: no usable row is left; {remedy}")


def to_interactions(source: Source, options: ReadOptions) -> Interactions:
    """Choose and load the columns of a source and build interactions from them."""
    table = usable_rows(source, choose_columns(source, options), options)
    table.require_rows(len(table.users), source.name, options)
    notes = table.all_notes(source.name, options)
    if table.times is not None:
        notes += future_notes(table.times)
    (rows, user_ids), (places, item_ids) = factorize_both(table.users, table.items)
    table.users, table.items = table.users.clear(), table.items.clear()
    if options.gap is not None and table.times is not None:
        rows, user_ids = cut_sessions(rows, table.times, user_ids, options.gap)
        notes.append(cut_note(len(user_ids), options.gap))
    names = type_names(table.types, table.type_column)
    log = Log(rows, places, table.weights, table.times, type_codes(table.types, names))
    shape = (len(user_ids), len(item_ids))
    matrix, events, repeats = gathered(log, shape, in_sessions(options), names)
    check_sums(matrix, log, (user_ids, item_ids))
    weighted = log.weights is not None
    returned = 0 if log.weights is None else int((log.weights < 0).sum())
    notes += repeat_notes(len(rows), matrix.nnz, repeats, weighted, returned)
    return finished(source.name, matrix, user_ids, item_ids, options, notes, events)


def usable_rows(source: Source, columns: Columns, options: ReadOptions) -> Rows:
    """Load and check these columns, and leave out unusable rows."""
    optional = (columns.time, columns.rating, columns.weight, columns.type)
    present = [column for column in optional if column is not None]
    table = source.load((columns.user, columns.item), present)
    if table.frame.height == 0:
        return Rows(table.frame[columns.user], table.frame[columns.item], skipped=table.skipped)
    bad = BadRows(table, options.on_bad)
    users, items, weights, ratings, times, notes = _values(table.frame, columns, bad, options)
    types = None if columns.type is None else _types(table.frame[columns.type])
    rows = Rows(users, items, weights, times, types, columns.type, notes)
    rows.n_column_notes, rows.skipped = len(columns.notes), bad.counts
    rows.reasons, rows.height = bad.reasons(), table.frame.height
    usable = _usable_mask(ratings, options, bad, rows)
    table.frame = table.frame.clear()  # frees its memory, the largest part
    if usable is not None:
        rows.users, rows.items = (column.filter(pl.Series(usable)) for column in (users, items))
        rows.weights = None if weights is None else weights[usable]
        rows.times = None if times is None else times[usable]
        rows.types = None if types is None else types.filter(pl.Series(usable))
    return rows


def _types(column: pl.Series) -> pl.Series:
    """Return the event types as text."""
    kind = column.dtype
    if kind.is_nested() or kind in (pl.Binary, pl.Object):
        raise DataError(
            f"column {column.name!r} holds {kind}, the type of an event must be text or a number; "
            "pass type= with another column, or type=False"
        )
    return column.cast(pl.String)


def in_sessions(options: ReadOptions) -> bool:
    """Whether the rows of the matrix are sessions, whose events are ordered."""
    return options.gap is not None or options.session is not None


def type_names(column: pl.Series | None, name: str | None) -> tuple[str, ...]:
    """Return the names of the event types in alphabetical order."""
    if column is None:
        return ()
    names = column.drop_nulls().unique().sort()
    if len(names) >= MOST_TYPES:
        raise DataError(
            f"column {name!r} holds {len(names):,} types of events, too many; name another column "
            "or pass type=False"
        )
    return tuple(names.to_list())


def type_codes(column: pl.Series | None, names: tuple[str, ...]) -> Kinds | None:
    """Return event types as positions in their names, -1 for none."""
    if column is None:
        return None
    places = pl.int_range(len(names), eager=True)
    known = pl.Series(list(names), dtype=pl.String)
    codes = column.replace_strict(known, places, default=-1, return_dtype=pl.Int16)
    return codes.to_numpy()


def _values(
    frame: pl.DataFrame, columns: Columns, bad: BadRows, options: ReadOptions
) -> tuple[pl.Series, pl.Series, Floats | None, Floats | None, Floats | None, list[str]]:
    """Return users, items, weights, ratings, times and notes; unusable rows are marked bad."""
    text = options.ids == "text"
    users, user_notes = id_column(frame[columns.user], "user", bad, text=text)
    items, item_notes = id_column(frame[columns.item], "item", bad, text=text)
    weights = ratings = times = None
    time_notes: list[str] = []
    if columns.rating is not None:
        ratings = number_column(frame[columns.rating], "rating", bad)
    if columns.weight is not None:
        weights = number_column(frame[columns.weight], "weight", bad)
    if columns.time is not None:
        times, time_notes = time_column(
            frame[columns.time], bad, options.time_unit, options.time_format
        )
    table_notes = [*columns.notes, *dict.fromkeys(bad.table.notes)]
    notes = [*table_notes, *user_notes, *item_notes, *time_notes]
    return users, items, weights, ratings, times, notes


def finished(
    name: str,
    matrix: Any,
    users: Ids,
    items: Ids,
    options: ReadOptions,
    notes: list[str],
    events: Events | None = None,
) -> Interactions:
    """Return interactions with a catalogue; warn of a single user or item (a wrong column?)."""
    notes += [*lone_note(name, "user", users), *lone_note(name, "item", items)]
    index = IdIndex(items, "item")
    catalogue = None if options.catalogue is None else read_catalogue(index, options, notes)
    return Interactions(matrix, users, index, catalogue=catalogue, events=events, notes=notes)


def lone_note(name: str, axis: str, ids: Ids) -> list[str]:
    """Return a note, also logged as a warning, if there is a single user or item."""
    if len(ids) != 1:
        return []
    note = (
        f"there is only one {axis}, {ids.tolist()[0]!r}: enough for an update, but not for "
        f"recommendations; {axis}= names another column"
    )
    logger.warning("%s: %s", name, note)
    return [note]


def _usable_mask(
    ratings: Floats | None, options: ReadOptions, bad: BadRows, rows: Rows
) -> Mask | None:
    """Return the mask of usable rows, or None for all; count each other row once, in `rows`."""
    usable = None if bad.mask is None else ~bad.mask
    if options.min_rating is not None and ratings is not None:
        rows.rated = len(ratings) if usable is None else int(usable.sum())
        usable, rows.low = _narrowed(usable, ratings >= options.min_rating)
    if rows.weights is not None:  # a weight of 0 is no interaction
        usable, rows.idle = _narrowed(usable, rows.weights != 0)
    return usable


def _narrowed(usable: Mask | None, fine: Mask) -> tuple[Mask | None, int]:
    """Combine two masks; also return how many more rows that excludes."""
    if fine.all():
        return usable, 0
    if usable is None:
        return fine, int((~fine).sum())
    return usable & fine, int((usable & ~fine).sum())


def check_sums(matrix: Csr, log: Log, ids: tuple[Ids, Ids]) -> None:
    """Raise if a sum of weights is too large for single precision."""
    if log.weights is None:
        return
    with np.errstate(over="ignore"):
        large = ~np.isfinite(matrix.data.astype(np.float32))
    if not large.any():
        return
    place = int(np.flatnonzero(large)[0])
    row, column = int(entry_rows(matrix)[place]), int(matrix.indices[place])
    raise DataError(
        f"the weights of user {ids[0].tolist()[row]!r} and item {ids[1].tolist()[column]!r} "
        f"add up to {float(matrix.data[place]):g}, more than 3e38; scale the weights down"
    )


def future_notes(times: npt.NDArray[np.float64]) -> list[str]:
    """Return the note on events dated after tomorrow.

    A single wrong date makes all other events look old to a trend and a decay.
    """
    n_late = int((times > time.time() + 86400.0).sum())
    if not n_late:
        return []
    last = np.datetime64(int(np.nanmax(times)), "s").astype("datetime64[D]")
    events = "1 event is" if n_late == 1 else f"{n_late:,} events are"
    return [
        f"{events} dated in the future, the last on {last}: trend and decay count ages from the "
        "last event, so correct these rows or leave them out"
    ]


def repeat_notes(
    n_rows: int, n_values: int, repeats: int, weighted: bool, returned: int
) -> list[str]:
    """Return the notes on how many rows repeat a pair, and how many are returns."""
    notes = []
    if repeats:
        added = ", their weights added up" if weighted else ""
        notes.append(f"merged {repeats:,} repeated pairs{added}")
    if returned:
        gone = n_rows - repeats - n_values
        notes.append(
            f"{returned:,} rows with a negative weight are returns, subtracted from the weights "
            f"of their pair; {gone:,} pairs have no weight left"
        )
    return notes


def cut_note(n_sessions: int, gap: float | str) -> str:
    """Return the note on cut sessions."""
    return f"cut into {n_sessions:,} sessions at pauses over {period('gap', gap):g} seconds"


def cut_sessions(users: Codes, times: Floats, ids: Ids, gap: float | str) -> tuple[Codes, Ids]:
    """Return the session of each event, and session ids "ann/1", "ann/2", ... by user and time.

    A session ends where the user pauses for longer than `gap`.
    """
    order = np.lexsort((times, users))
    user, time = users[order], times[order]
    new_user = np.concatenate([[True], user[1:] != user[:-1]])
    starts = new_user | np.concatenate([[False], np.diff(time) > period("gap", gap)])
    number = np.cumsum(starts) - 1
    sessions = np.empty(len(users), np.int32)
    sessions[order] = number
    owner = user[starts]
    first = np.flatnonzero(new_user[starts])
    ordinal = np.arange(len(owner)) - np.repeat(first, np.diff(np.append(first, len(owner)))) + 1
    names = np.empty(len(owner), object)
    names[:] = [f"{ids[who]}/{turn}" for who, turn in zip(owner, ordinal, strict=True)]
    return sessions, names


class Log(NamedTuple):
    """The rows of a table: user and item positions, and optional columns."""

    users: Codes
    items: Codes
    weights: Floats | None = None
    times: Floats | None = None
    types: Kinds | None = None


def factorize(values: pl.Series) -> tuple[Codes, Ids]:
    """Return the position of each value among the sorted distinct values, and those values.

    >>> codes, ids = factorize(pl.Series(["tea", "milk", "tea"]))
    >>> codes.tolist(), ids.tolist()
    ([1, 0, 1], ['milk', 'tea'])
    """
    if values.dtype == pl.Int64:
        low, high = int(values.min() or 0), int(values.max() or 0)  # type: ignore[arg-type]
        # A lookup table over the range beats hashing unless it is much larger than the data.
        if high - low < max(2 * len(values), 1 << 16):
            pieces = [chunk.to_numpy() for chunk in values.get_chunks()]
            codes, seen = _by_table(pieces, low, high - low + 1)
            return codes, np.flatnonzero(seen).astype(np.int64) + low
    distinct = values.unique().sort()
    places = pl.int_range(len(distinct), eager=True, dtype=pl.Int32)
    table = pl.DataFrame({"value": distinct, "place": places})
    matched = (
        values.alias("value").to_frame().join(table, on="value", how="left", maintain_order="left")
    )
    return matched["place"].to_numpy(), distinct.to_numpy()


def factorize_both(*columns: pl.Series) -> list[tuple[Codes, Ids]]:
    """Call `factorize` on each column, in threads."""
    factorized: dict[int, tuple[Codes, Ids]] = {}
    run(lambda at: factorized.update({at: factorize(columns[at])}), len(columns))
    return [factorized[at] for at in range(len(columns))]


def gathered(
    log: Log,
    shape: tuple[int, int],
    in_sessions: bool = False,
    type_names: tuple[str, ...] = (),
    *,
    always: bool = False,
) -> tuple[Csr, Events | None, int]:
    """Return the matrix, the events and how many rows repeat a pair.

    Weights of a repeated pair are added. Events are None unless they hold more than the matrix
    (times, weights, types, repeats, the order of a session) or `always` is set.
    """
    log_columns = log._asdict()
    rows = _writable(log_columns.pop("users"))
    present = {name: _writable(col) for name, col in log_columns.items() if col is not None}
    offsets, columns = group_by_user(rows, shape[0], present)
    items = columns.pop("items")
    columns |= {"type_names": type_names, "ordered": in_sessions or log.times is not None}
    if log.weights is None:
        indptr, indices, _ = pair_up(offsets, items, places=False)
        repeats = len(items) - len(indices)
        ones = np.ones(len(indices), np.float32)
        matrix = compact(ones, indices, indptr, shape)
        matrix.has_canonical_format = True
        plain = log.times is None and log.types is None
        if plain and not (repeats or in_sessions or always):
            return matrix, None, 0
        return matrix, Events.sorted_by_time(items, offsets, **columns), repeats
    events = Events.sorted_by_time(items, offsets, **columns)
    matrix, n_pairs = summed(events, shape[1])
    return matrix, events, len(items) - n_pairs


def _writable(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Copy read-only arrays of polars, for which numba would compile the kernels again."""
    return values if values.flags.writeable and values.flags.c_contiguous else values.copy()


def _by_table(pieces: list[Ints], low: int, span: int) -> tuple[Codes, npt.NDArray[np.bool_]]:
    """Return the positions of numbers among the distinct ones, and a mask of those in the span."""
    seen = np.zeros(span, np.bool_)
    for piece in pieces:
        _mark(piece, low, seen)
    place = np.cumsum(seen, dtype=np.int32) - np.int32(1)
    codes = np.empty(sum(map(len, pieces)), np.int32)
    start = 0
    for piece in pieces:
        _look_up(piece, low, place, codes[start : start + len(piece)])
        start += len(piece)
    return codes, seen


@compiled
def _mark(values: Ints, low: int, seen: npt.NDArray[np.bool_]) -> None:
    for value in values:
        seen[value - low] = True


@compiled
def _look_up(values: Ints, low: int, place: Codes, codes: Codes) -> None:
    for row in range(values.size):
        codes[row] = place[values[row] - low]


def group_by_user(
    users: Codes, n_users: int, columns: dict[str, Any]
) -> tuple[Ints, dict[str, Any]]:
    """Return row offsets of the users and the columns grouped by user (stable, in threads)."""
    parts = max(1, min(count(), len(users) // max(n_users, 1)))
    cuts = np.linspace(0, len(users), parts + 1).astype(int)
    slices = [slice(*ends) for ends in pairwise(cuts)]
    counts = np.zeros((parts, n_users), np.int64)
    run(lambda part: _count_rows(users[slices[part]], counts[part]), parts)
    offsets = np.concatenate([[0], np.cumsum(counts.sum(axis=0))])
    filled = offsets[:-1] + np.cumsum(counts, axis=0) - counts
    out = {name: np.empty_like(column) for name, column in columns.items()}
    tasks = [(name, part) for part in range(parts) for name in columns]

    def place(number: int) -> None:
        name, part = tasks[number]
        rows = slices[part]
        _place_rows(users[rows], filled[part].copy(), columns[name][rows], out[name])

    run(place, len(tasks))
    return offsets, out


@compiled
def _count_rows(users: Codes, counts: Ints) -> None:
    for user in users:
        counts[user] += 1


@compiled
def _place_rows(users: Codes, filled: Ints, column: Any, out: Any) -> None:
    """Write each value to the next free place of its user, ``filled[user]``."""
    for row in range(users.size):
        user = users[row]
        out[filled[user]] = column[row]
        filled[user] += 1
