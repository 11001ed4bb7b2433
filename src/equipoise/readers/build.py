"""Ids to positions and pairs to CSR by counting: linear time, a few passes.

Titles, genres and the like, aligned to the items of a matrix.

Sessions: events in order, repeats kept, and click logs cut where a user pauses.

From a table to `Interactions`: checks, filters, positions, matrix.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.errors import DataError, SettingError
from equipoise.interactions import Interactions
from equipoise.kernels import compiled
from equipoise.matrix import Csr, Sequences, entry_rows
from equipoise.readers.columns import Columns, choose_columns, given_column, spelled_like
from equipoise.readers.delimited import WHOLE
from equipoise.readers.options import BadRows, Mask, Options, Source, Table
from equipoise.readers.values import id_column, number_column, seconds

Codes = npt.NDArray[np.int32]


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pairs:
    """The matrix with its times, and how many rows repeated a pair."""

    matrix: Csr
    times: Floats | None
    repeats: int


def factorize(values: pl.Series) -> tuple[Codes, npt.NDArray[Any]]:
    """Return the position of each value among the sorted distinct values, and those.

    >>> codes, ids = factorize(pl.Series(["tea", "milk", "tea"]))
    >>> codes.tolist(), ids.tolist()
    ([1, 0, 1], ['milk', 'tea'])
    """
    if values.dtype == pl.Int64:
        low, high = int(values.min() or 0), int(values.max() or 0)  # type: ignore[arg-type]
        # A table over the whole range beats hashing unless it is much larger than the data.
        if high - low < max(2 * len(values), 1 << 16):
            codes, seen = _by_table(values.to_numpy(), low, high - low + 1)
            return codes, np.flatnonzero(seen).astype(np.int64) + low
    distinct = values.unique().sort()
    places = pl.int_range(len(distinct), eager=True, dtype=pl.Int32)
    table = pl.DataFrame({"value": distinct, "place": places})
    found = (
        values.alias("value").to_frame().join(table, on="value", how="left", maintain_order="left")
    )
    ids = distinct.to_numpy() if distinct.dtype == pl.Int64 else _objects(distinct)
    return found["place"].to_numpy(), ids


def _objects(values: pl.Series) -> npt.NDArray[Any]:
    out = np.empty(len(values), object)
    out[:] = values.to_list()
    return out


def pairs_to_csr(
    users: Codes,
    items: Codes,
    shape: tuple[int, int],
    weights: Floats | None,
    times: Floats | None,
) -> Pairs:
    """Build the matrix; of a repeated pair the weights add up and the latest time stays."""
    none = np.empty(0, np.float64)
    starts, keys, dealt_weights, dealt_times = _dealt(
        _own(users),
        _own(items),
        shape[0],
        none if weights is None else _own(weights),
        none if times is None else _own(times),
    )
    # Each thread sorts the rows of its share of the users; the loops hold no lock.
    cuts = np.linspace(0, shape[0], min(os.cpu_count() or 1, 8, len(users) // 100_000 + 1) + 1)
    bounds = cuts.astype(np.int64)
    with ThreadPoolExecutor(len(bounds) - 1) as pool:
        list(pool.map(lambda a, b: _sort_rows(keys, starts, a, b), bounds[:-1], bounds[1:]))
    indptr, indices, data, latest = _merged(starts, keys, dealt_weights, dealt_times)
    matrix: Csr = sp.csr_array((data, indices, indptr), shape=shape)
    matrix.has_canonical_format = True
    return Pairs(matrix, None if times is None else latest, len(users) - len(indices))


def _own(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Copy arrays that polars lends read-only: another kind of array is compiled anew."""
    return values if values.flags.writeable and values.flags.c_contiguous else values.copy()


@compiled
def _by_table(
    values: npt.NDArray[np.int64], low: int, span: int
) -> tuple[Codes, npt.NDArray[np.bool_]]:
    seen = np.zeros(span, np.bool_)
    for value in values:
        seen[value - low] = True
    place = np.empty(span, np.int32)
    known = 0
    for offset in range(span):
        place[offset] = known
        known += seen[offset]
    codes = np.empty(values.size, np.int32)
    for row in range(values.size):
        codes[row] = place[values[row] - low]
    return codes, seen


@compiled
def _dealt(
    users: Codes, items: Codes, n_users: int, weights: Floats, times: Floats
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Floats, Floats]:
    """Deal the rows to their users: a key holds the item above, the place of the row below."""
    n = users.size
    starts = np.zeros(n_users + 1, np.int64)
    for row in range(n):
        starts[users[row] + 1] += 1
    starts = np.cumsum(starts)
    filled = starts[:-1].copy()
    keys = np.empty(n, np.int64)
    dealt_weights, dealt_times = np.empty_like(weights), np.empty_like(times)
    for row in range(n):
        user = users[row]
        place = filled[user]
        filled[user] += 1
        keys[place] = (np.int64(items[row]) << 32) | (place - starts[user])
        if weights.size:
            dealt_weights[place] = weights[row]
        if times.size:
            dealt_times[place] = times[row]
    return starts, keys, dealt_weights, dealt_times


@compiled
def _sort_rows(
    keys: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], first: int, stop: int
) -> None:
    for user in range(first, stop):
        keys[starts[user] : starts[user + 1]].sort()


@compiled
def _merged(
    starts: npt.NDArray[np.int64], keys: npt.NDArray[np.int64], weights: Floats, times: Floats
) -> tuple[npt.NDArray[np.int64], Codes, npt.NDArray[np.float32], Floats]:
    """Merge equal neighbours within the rows of a user."""
    indices, data = np.empty(keys.size, np.int32), np.ones(keys.size, np.float32)
    latest = np.empty(times.size, np.float64)
    indptr = np.zeros(starts.size, np.int64)
    last = -1
    for user in range(starts.size - 1):
        start = starts[user]
        item, total = -1, 0.0
        for place in range(start, starts[user + 1]):
            row = start + (keys[place] & 0xFFFFFFFF)
            fresh = (keys[place] >> 32) != item
            if fresh:
                last, item, total = last + 1, keys[place] >> 32, 0.0
                indices[last] = item
            if weights.size:
                total += weights[row]
                data[last] = total
            if times.size and (fresh or times[row] > latest[last]):
                latest[last] = times[row]
        indptr[user + 1] = last + 1
    return indptr, indices[: last + 1], data[: last + 1], latest[: last + 1]


def aligned_labels(
    labels: Any, items: npt.NDArray[Any], options: Options
) -> tuple[pl.DataFrame | None, list[str]]:
    """Return one row per item, the title first, and notes; items without labels get nulls.

    Parameters
    ----------
    labels
        None, a `Source`, or anything `equipoise.read` accepts as a table.
    items
        Raw ids of the items, in order.
    options
        The settings of the read; the item column may have the name it has in the interactions.
    """
    if labels is None:
        return None, []
    source = labels if isinstance(labels, Source) else _opened(labels, options)
    key = _item_column(source, options)
    titles = [name for name in spelled_like(source.columns, "title") if name != key]
    others = [name for name in source.columns if name not in (key, *titles)]
    if not titles and not others:
        raise DataError(f"{source.name} has no column beside {key!r}; labels need a title")
    table = source.load([key], [*titles, *others])
    frame = table.frame.select([key, *titles, *others])
    wanted = pl.Series("item", items.tolist())
    keys = _same_type(wanted, frame[key], table.written)
    frame = frame.with_columns(keys.alias(key)).filter(pl.col(key).is_not_null())
    unique = frame.unique(subset=[key], keep="first", maintain_order=True)
    joined = wanted.to_frame().join(
        unique.with_columns(pl.lit(True).alias("\x00found")),
        left_on="item",
        right_on=key,
        how="left",
        maintain_order="left",
    )
    missing = joined["\x00found"].null_count()
    if missing == len(items):
        raise DataError(
            f"{source.name}: none of the items is labelled; check that column {key!r} holds "
            f"ids such as {items.tolist()[0]!r}"
        )
    notes = [f"labels from {source.name}"]
    if missing:
        notes.append(f"{missing:,} of {len(items):,} items have no label")
    if unique.height < frame.height:
        notes.append(f"{frame.height - unique.height:,} repeated labels ignored, the first kept")
    return joined.drop("item", "\x00found"), notes


def _opened(labels: Any, options: Options) -> Source:
    from equipoise.readers.files import path_source
    from equipoise.readers.frames import is_path, object_source

    plain = replace(options, separator=None, header=None, format=None, labels=None)
    if is_path(labels):
        return path_source(labels, plain)
    return object_source(labels, "the labels")


def _item_column(source: Source, options: Options) -> str:
    if isinstance(options.item, str) and options.item in source.columns:
        return options.item
    found = spelled_like(source.columns, "item")
    if not source.named or (not found and len(source.columns) == 2):
        return source.columns[0]
    if len(found) == 1:
        return found[0]
    return given_column(source, options.item or "item_id", "item")


def _same_type(
    items: pl.Series, keys: pl.Series, written: Callable[[str], pl.Series] | None
) -> pl.Series:
    """Bring the keys of the labels to the type of the ids; what does not fit becomes null."""
    if items.dtype == pl.String:
        return keys.cast(pl.String) if written is None else written(keys.name)
    if keys.dtype.is_float():
        keys = keys.set((keys != keys.floor()) | ~keys.is_finite(), None)
    if keys.dtype == pl.String:  # "007" is not 7
        keys = keys.set(~keys.str.contains(WHOLE), None)
    if keys.dtype.is_numeric() or keys.dtype == pl.String:
        return keys.cast(pl.Int64, strict=False)
    kind = np.asarray(items).dtype
    raise DataError(f"labels have ids of type {keys.dtype} for items of type {kind}; convert them")


UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def gap_seconds(gap: float | str) -> float:
    """Return a pause in seconds, given as a number or as text.

    >>> gap_seconds("30m"), gap_seconds(90)
    (1800.0, 90.0)
    """
    if isinstance(gap, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd])\s*", gap)
        if match is None:
            raise SettingError(f"gap must be seconds or text such as '30m' or '1h', got {gap!r}")
        value = float(match[1]) * UNITS[match[2]]
    else:
        value = float(gap)
    if not 0 < value < np.inf:
        raise SettingError(f"gap must be a positive time, got {gap!r}")
    return value


def cut(
    users: npt.NDArray[np.int32], times: npt.NDArray[np.float64], ids: npt.NDArray[Any], gap: float
) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
    """Return the session of each event and the ids of the sessions.

    A session ends where the same user pauses for longer than `gap` seconds. Sessions are in order
    of user, then time; user "ann" has sessions "ann/1", "ann/2", ...
    """
    order = np.lexsort((times, users))
    user, time = users[order], times[order]
    new_user = np.concatenate([[True], user[1:] != user[:-1]])
    starts = new_user | np.concatenate([[False], np.diff(time) > gap])
    number = np.cumsum(starts) - 1
    sessions = np.empty(len(users), np.int32)
    sessions[order] = number
    owner = user[starts]
    first = np.flatnonzero(new_user[starts])
    ordinal = np.arange(len(owner)) - np.repeat(first, np.diff([*first, len(owner)])) + 1
    names = np.empty(len(owner), object)
    names[:] = [f"{ids[who]}/{turn}" for who, turn in zip(owner, ordinal, strict=True)]
    return sessions, names


def ordered_events(
    rows: npt.NDArray[np.int32],
    items: npt.NDArray[np.int32],
    n_rows: int,
    times: npt.NDArray[np.float64] | None,
) -> Sequences:
    """Return the events of each row by time, or as they came where there are no times."""
    keys = (rows,) if times is None else (times, rows)
    order = np.lexsort(keys)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n_rows))])
    return Sequences(items[order].astype(np.int32), offsets.astype(np.int64))


logger = logging.getLogger(__name__)


def build(source: Source, options: Options, labels: Any = None) -> Interactions:
    """Load the columns a source has for the roles and make the matrix."""
    columns = choose_columns(source, options)
    others = [c for c in (columns.time, columns.rating, columns.weight) if c is not None]
    table = source.load((columns.user, columns.item), others)
    if table.frame.height == 0:
        raise DataError(f"{source.name} has no rows; nothing can be read from it")
    notes = [*columns.notes]
    bad = BadRows(table, options.on_bad)
    users, items, weights, ratings, times = _checked_columns(table, columns, bad, options, notes)
    notes += bad.notes(source.name)
    kept = _kept_rows(ratings, weights, options, bad, notes)
    # The frame is the largest thing in memory and no longer needed.
    table.frame = table.frame.clear()
    users, items = _taken(users, kept), _taken(items, kept)
    if not len(users):
        raise DataError(f"{source.name}: nothing is left of the rows; " + _remedy(options))
    if kept is not None:
        weights = None if weights is None else weights[kept]
        times = None if times is None else times[kept]
    rows, user_ids = factorize(users)
    del users
    places, item_ids = factorize(items)
    del items
    sequences = None
    if options.gap is not None and times is not None:
        pause = gap_seconds(options.gap)
        rows, user_ids = cut(rows, times, user_ids, pause)
        notes.append(f"cut into {len(user_ids):,} sessions at pauses over {pause:g} seconds")
    if options.gap is not None or options.session is not None:
        sequences = ordered_events(rows, places, len(user_ids), times)
    matrix, latest = _matrix(rows, places, (user_ids, item_ids), weights, times, notes)
    refuse_single(source.name, {"user": user_ids, "item": item_ids}, options, notes)
    frame, label_notes = aligned_labels(labels, item_ids, options)
    return Interactions(
        matrix,
        user_ids,
        item_ids,
        times=latest,
        labels=frame,
        sequences=sequences,
        notes=[*notes, *label_notes],
    )


def _checked_columns(
    table: Table, columns: Columns, bad: BadRows, options: Options, notes: list[str]
) -> tuple[pl.Series, pl.Series, Floats | None, Floats | None, Floats | None]:
    """Return users, items, weights, ratings and times; rows that cannot be used are marked."""
    frame = table.frame
    users, user_note = id_column(frame[columns.user], "user", bad)
    items, item_note = id_column(frame[columns.item], "item", bad)
    weights = ratings = times = None
    if columns.rating is not None:
        ratings = _floats(number_column(frame[columns.rating], "rating", bad))
    if columns.weight is not None:
        weights = _floats(number_column(frame[columns.weight], "weight", bad))
    time_note = ""
    if columns.time is not None:
        times, time_note = seconds(frame[columns.time], bad, options.time_unit)
    notes += dict.fromkeys(table.notes)
    notes += [note for note in (user_note, item_note, time_note) if note]
    return users, items, weights, ratings, times


def _floats(column: pl.Series) -> Floats:
    return column.fill_null(float("nan")).to_numpy()


def _kept_rows(
    ratings: Floats | None,
    weights: Floats | None,
    options: Options,
    bad: BadRows,
    notes: list[str],
) -> Mask | None:
    """Return the rows to use, or None for all; a row that is left out is counted once."""
    kept = None if bad.mask is None else ~bad.mask
    if options.min_rating is not None and ratings is not None:
        before = len(ratings) if kept is None else int(kept.sum())
        kept, fell = _narrowed(kept, ratings >= options.min_rating)
        if fell:
            least = f"{options.min_rating:g}"
            notes.append(f"{fell:,} of {before:,} rows have a rating below {least}")
    if weights is not None:  # a weight of 0 is no interaction
        kept, idle = _narrowed(kept, weights != 0)
        if idle:
            notes.append(f"{idle:,} rows with weight 0 left out")
    return kept


def _narrowed(kept: Mask | None, fine: Mask) -> tuple[Mask | None, int]:
    """Keep only fine rows of those kept so far; also return how many fall out."""
    if fine.all():
        return kept, 0
    if kept is None:
        return fine, int((~fine).sum())
    return kept & fine, int((kept & ~fine).sum())


def _remedy(options: Options) -> str:
    if options.min_rating is not None:
        return f"lower min_rating={options.min_rating:g} or check the rating column"
    return "check the columns and what was skipped"


def _taken(column: pl.Series, kept: Mask | None) -> pl.Series:
    return column if kept is None else column.filter(pl.Series(kept))


def _matrix(
    rows: Codes,
    places: Codes,
    ids: tuple[npt.NDArray[Any], npt.NDArray[Any]],
    weights: Floats | None,
    times: Floats | None,
    notes: list[str],
) -> tuple[Any, npt.NDArray[np.float64] | None]:
    pairs = pairs_to_csr(rows, places, (len(ids[0]), len(ids[1])), weights, times)
    if weights is not None and not np.isfinite(pairs.matrix.data).all():
        place = int(np.flatnonzero(~np.isfinite(pairs.matrix.data))[0])
        row, column = int(entry_rows(pairs.matrix)[place]), int(pairs.matrix.indices[place])
        total = float(weights[(rows == row) & (places == column)].sum())
        raise DataError(
            f"the weights of user {ids[0].tolist()[row]!r} and item {ids[1].tolist()[column]!r} "
            f"add up to {total:g}, and 3e38 is the most; scale the weights down"
        )
    if pairs.repeats:
        added = ", their weights added up" if weights is not None else ""
        latest = ", the latest time kept" if times is not None else ""
        notes.append(f"merged {pairs.repeats:,} repeated pairs{added}{latest}")
    return pairs.matrix, pairs.times


def refuse_single(
    name: str, ids: dict[str, npt.NDArray[Any]], options: Options, notes: list[str]
) -> None:
    """Refuse data with one user or one item: most often a wrong column was named."""
    for axis, values in ids.items():
        if len(values) != 1:
            continue
        fault = f"there is only one {axis}, {values.tolist()[0]!r}"
        if options.on_bad == "error":
            raise DataError(
                f"{name}: {fault}, and recommending needs two; check the {axis} column, "
                "or pass on_bad='skip' to read it as it is"
            )
        notes.append(fault)
        logger.warning("%s: %s", name, fault)
