"""Interactions made from other interactions: union, difference, k-core and noise."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.errors import DataError, SettingError
from equipoise.ids import IdIndex
from equipoise.interactions import Interactions
from equipoise.matrix import cell_keys, entry_rows, in_ascending
from equipoise.sequences import Sequences, segments


def generator(seed: int) -> np.random.Generator:
    """Random numbers of this seed alone, whatever the global state of numpy."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise SettingError(f"seed must be an integer >= 0, got {seed!r}")
    return np.random.default_rng(int(seed))


def union(first: Interactions, second: Interactions) -> Interactions:
    """All pairs of both; new users and items are appended; the second's values win.

    Times and sequences need both sides to have them. Where both have sequences, a user's events
    of the second follow those of the first.
    """
    users = _appended(first.user_index, second.user_index)
    items = _appended(first.item_index, second.item_index)
    old = first.difference(second)
    parts = [part.with_items(items) for part in (old, second)]
    rows = [users.positions(part.users)[entry_rows(part.matrix)] for part in parts]
    row = np.concatenate(rows)
    column = np.concatenate([part.matrix.indices for part in parts])
    value = np.concatenate([part.matrix.data for part in parts])
    # a stable sort merges the two sides, which are mostly in order, in linear time
    order = np.argsort(row * len(items) + column, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(users)))])
    notes = list(dict.fromkeys([*first.notes, *second.notes]))
    times = None
    if first.times is not None and second.times is not None:
        times = np.concatenate([part.times for part in parts if part.times is not None])[order]
    elif first.times is not None or second.times is not None:
        notes.append("times were left out of a union, because one side has none")
    sequences = None
    if first.sequences is not None and second.sequences is not None:
        sequences = _joined(first, second, users, items)
    elif first.sequences is not None or second.sequences is not None:
        notes.append("sequences were left out of a union, because one side has none")
    return Interactions(
        sp.csr_array((value[order], column[order], offsets), shape=(len(users), len(items))),
        users,
        items,
        times=times,
        labels=_merged_labels(parts[0].labels, parts[1].labels),
        sequences=sequences,
        notes=notes,
    )


def difference(data: Interactions, other: Interactions) -> Interactions:
    """Return the pairs that `other` does not hold; users and items stay."""
    for mine, yours in ((data.user_index, other.user_index), (data.item_index, other.item_index)):
        _check_same_kind(mine, yours)
    theirs = other.with_items(data.item_index, unknown="skip")
    row = data.user_index.positions(theirs.users, unknown="skip")[entry_rows(theirs.matrix)]
    gone = (row * data.n_items + theirs.matrix.indices)[row >= 0]
    return data.entries(~in_ascending(cell_keys(data.matrix), np.sort(gone)))


def k_core(data: Interactions, min_user: int, min_item: int) -> Interactions:
    """Keep users with `min_user` items and items with `min_item` users, until both hold."""
    for name, least in (("min_user", min_user), ("min_item", min_item)):
        if least < 0:
            raise SettingError(f"{name} must be >= 0, got {least}")
    users, items = entry_rows(data.matrix), data.matrix.indices
    while True:
        user_fine = np.bincount(users, minlength=data.n_users) >= min_user
        item_fine = np.bincount(items, minlength=data.n_items) >= min_item
        fine = user_fine[users] & item_fine[items]
        if fine.all():
            break
        users, items = users[fine], items[fine]
    if not users.size:
        asked = f"min_user={min_user} and min_item={min_item}"
        raise DataError(f"nothing is left with {asked}; lower them")
    kept = data.rows(user_fine).columns(item_fine)
    gone = (data.n_users - kept.n_users, data.n_items - kept.n_items)
    if any(gone):
        asked = (
            f"users with fewer than {min_user} items and items with fewer than {min_item} users"
        )
        kept.notes += (f"{asked} were left out: {gone[0]:,} users, {gone[1]:,} items",)
    return kept


def with_noise(data: Interactions, ratio: float, seed: int) -> Interactions:
    """Replace a share of the pairs by pairs that were not observed, drawn evenly.

    Fresh pairs have weight 1; times and sequences, which they lack, are left out.
    """
    if not 0 <= ratio <= 1:
        raise SettingError(f"ratio must lie between 0 and 1, got {ratio}")
    rng = generator(seed)
    keys = cell_keys(data.matrix)
    n_new = round(ratio * len(keys))
    if n_new > data.n_users * data.n_items - len(keys):
        raise DataError(f"{n_new:,} pairs cannot be replaced: fewer are unobserved; lower ratio")
    kept = np.ones(len(keys), bool)
    kept[rng.permutation(len(keys))[:n_new]] = False
    cell = np.concatenate([keys[kept], _unobserved(data, keys, n_new, rng)])
    value = np.concatenate([data.matrix.data[kept], np.ones(n_new, np.float32)])
    place = (cell // max(data.n_items, 1), cell % max(data.n_items, 1))
    return Interactions(
        sp.csr_array((value, place), shape=data.matrix.shape),
        data.user_index,
        data.item_index,
        labels=data.labels,
        notes=[*data.notes, f"{n_new:,} pairs ({ratio:.0%}) replaced by unobserved ones"],
    )


def _unobserved(
    data: Interactions, keys: npt.NDArray[np.int64], count: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Draw this many cells evenly from those that hold no pair."""
    n_cells = data.n_users * data.n_items
    if n_cells <= 4 * len(keys):
        free = np.delete(np.arange(n_cells), keys)
        return rng.permutation(free)[:count]
    # At least 3 of 4 cells are free here, so a round of draws brings in most of what is missing.
    fresh = np.empty(0, np.int64)
    while len(fresh) < count:
        drawn = rng.integers(0, n_cells, 2 * (count - len(fresh)) + 16)
        fresh = np.unique(np.concatenate([fresh, drawn[~in_ascending(drawn, keys)]]))
    return rng.permutation(fresh)[:count]


def _check_same_kind(first: IdIndex, second: IdIndex) -> None:
    if len(first) and len(second) and first.values.dtype != second.values.dtype:
        raise DataError(f"{first.axis} ids are integers on one side and text on the other")


def _appended(first: IdIndex, second: IdIndex) -> IdIndex:
    _check_same_kind(first, second)
    fresh = second.values[first.positions(second.values, unknown="skip") < 0]
    if not len(first):
        return second
    return IdIndex(np.concatenate([first.values, fresh]), first.axis) if len(fresh) else first


def _joined(
    first: Interactions, second: Interactions, users: IdIndex, items: IdIndex
) -> Sequences:
    """Put each user's events of the second side after those of the first."""
    parts = [part.with_items(items) for part in (first, second)]
    sides = [part.sequences for part in parts if part.sequences is not None]
    row = np.concatenate(
        [users.positions(part.users)[side.rows] for part, side in zip(parts, sides, strict=True)]
    )
    order = np.argsort(row, kind="stable")
    event = np.concatenate([side.items for side in sides])[order]
    counts = np.bincount(row, minlength=len(users))
    return Sequences(event, segments(np.zeros_like(counts), counts)[1])


def _merged_labels(first: pl.DataFrame | None, second: pl.DataFrame | None) -> pl.DataFrame | None:
    """Columns of both, row by row over the same items; the second's values win."""
    if first is None or second is None:
        return second if first is None else first
    for name in first.columns:
        if name in second.columns and first[name].dtype != second[name].dtype:
            kinds = f"{first[name].dtype} on one side and {second[name].dtype} on the other"
            raise DataError(f"label column {name!r} is {kinds}; make them the same")
    return first.with_columns(
        pl.coalesce(column, first[column.name]) if column.name in first.columns else column
        for column in second
    )
