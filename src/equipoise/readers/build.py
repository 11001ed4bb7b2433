"""From a table to `Interactions`: checks, filters, positions, matrix."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.errors import DataError
from equipoise.interactions import Interactions
from equipoise.matrix import entry_rows
from equipoise.readers.columns import Columns, choose_columns
from equipoise.readers.counting import Codes, Floats, factorize, pairs_to_csr
from equipoise.readers.labels import aligned_labels
from equipoise.readers.options import Options
from equipoise.readers.sessions import cut, gap_seconds, ordered_events
from equipoise.readers.table import BadRows, Mask, Source, Table
from equipoise.readers.times import seconds
from equipoise.readers.values import id_column, number_column

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
