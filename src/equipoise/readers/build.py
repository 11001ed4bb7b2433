"""From a table to `Interactions`: checks, filters, positions, matrix."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.errors import DataError
from equipoise.interactions import Interactions
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
    notes = [*columns.notes, *table.notes]
    bad = BadRows(table, options.on_bad)
    users, items, weights, times = _checked_columns(table, columns, bad, notes)
    notes += bad.notes(source.name)
    kept = _kept_rows(table, columns, weights, options, bad, notes)
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
    matrix, latest = _matrix(rows, places, (len(user_ids), len(item_ids)), weights, times, notes)
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
    table: Table, columns: Columns, bad: BadRows, notes: list[str]
) -> tuple[pl.Series, pl.Series, Floats | None, Floats | None]:
    frame = table.frame
    users, user_note = id_column(frame[columns.user], "user", bad)
    items, item_note = id_column(frame[columns.item], "item", bad)
    if columns.rating is not None:
        number_column(frame[columns.rating], "rating", bad)
    weights = times = None
    if columns.weight is not None:
        checked = number_column(frame[columns.weight], "weight", bad)
        weights = checked.fill_null(float("nan")).to_numpy()
    time_note = ""
    if columns.time is not None:
        times, time_note = seconds(frame[columns.time], bad)
    notes += [note for note in (user_note, item_note, time_note) if note]
    return users, items, weights, times


def _kept_rows(
    table: Table,
    columns: Columns,
    weights: Floats | None,
    options: Options,
    bad: BadRows,
    notes: list[str],
) -> Mask | None:
    """Return the rows to use, or None for all of them."""
    kept = None if bad.mask is None else ~bad.mask
    if options.min_rating is not None and columns.rating is not None:
        ratings = table.frame[columns.rating].cast(pl.Float64, strict=False)
        enough = (ratings >= options.min_rating).fill_null(False)
        if kept is None and enough.all():
            return _without_idle(kept, weights, notes)
        high: Mask = enough.to_numpy()
        before = len(high) if kept is None else int(kept.sum())
        kept = high if kept is None else kept & high
        fell = before - int(kept.sum())
        notes.append(f"{fell:,} of {before:,} rows have a rating below {options.min_rating:g}")
    return _without_idle(kept, weights, notes)


def _without_idle(kept: Mask | None, weights: Floats | None, notes: list[str]) -> Mask | None:
    """Leave out rows with weight 0, which are no interactions."""
    if weights is not None and not weights.all():
        idle = weights == 0
        notes.append(f"{int(idle.sum()):,} rows with weight 0 left out")
        kept = ~idle if kept is None else kept & ~idle
    return None if kept is None or kept.all() else kept


def _remedy(options: Options) -> str:
    if options.min_rating is not None:
        return f"lower min_rating={options.min_rating:g} or check the rating column"
    return "check the columns and what was skipped"


def _taken(column: pl.Series, kept: Mask | None) -> pl.Series:
    return column if kept is None else column.filter(pl.Series(kept))


def _matrix(
    rows: Codes,
    places: Codes,
    shape: tuple[int, int],
    weights: Floats | None,
    times: Floats | None,
    notes: list[str],
) -> tuple[Any, npt.NDArray[np.float64] | None]:
    pairs = pairs_to_csr(rows, places, shape, weights, times)
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
