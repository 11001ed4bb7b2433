"""Interactions made from other interactions: union and noise."""

from __future__ import annotations

import numpy as np
import polars as pl
import scipy.sparse as sp

from equipoise.errors import DataError, SettingError
from equipoise.ids import IdIndex
from equipoise.interactions import Interactions
from equipoise.matrix import cell_keys, entry_rows


def union(first: Interactions, second: Interactions) -> Interactions:
    """All pairs of both; new users and items are appended; the second's values win."""
    users = _appended(first.user_index, second.user_index)
    items = _appended(first.item_index, second.item_index)
    old = first.difference(second)
    parts = [part.with_items(items) for part in (old, second)]
    rows = [users.positions(part.users)[entry_rows(part.matrix)] for part in parts]
    row = np.concatenate(rows)
    column = np.concatenate([part.matrix.indices for part in parts])
    value = np.concatenate([part.matrix.data for part in parts])
    order = np.lexsort((column, row))
    times = None
    if first.times is not None and second.times is not None:
        times = np.concatenate([part.times for part in parts if part.times is not None])[order]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(users)))])
    labels = None
    if first.labels is not None:
        labels = parts[0].labels
        if second.labels is not None and labels is not None:
            fresh = parts[1].labels
            assert fresh is not None
            labels = labels.with_columns(
                pl.coalesce(labels[name], fresh[name]).alias(name)
                for name in labels.columns
                if name in fresh.columns
            )
    matrix = sp.csr_array((value[order], column[order], offsets), shape=(len(users), len(items)))
    return Interactions(matrix, users, items, times=times, labels=labels)


def with_noise(data: Interactions, ratio: float, seed: int) -> Interactions:
    """Replace a share of the pairs by pairs that were not observed, drawn evenly."""
    if not 0 <= ratio <= 1:
        raise SettingError(f"ratio must lie between 0 and 1, got {ratio}")
    if data.density > 0.5:
        raise DataError("with_noise needs a matrix that is at most half full")
    rng = np.random.default_rng(seed)
    keys = cell_keys(data.matrix)
    n_new = round(ratio * len(keys))
    fresh = np.empty(0, np.int64)
    while len(fresh) < n_new:
        drawn = rng.integers(0, data.n_users * data.n_items, 2 * (n_new - len(fresh)) + 16)
        fresh = np.unique(np.concatenate([fresh, drawn[~np.isin(drawn, keys)]]))
    kept = np.ones(len(keys), bool)
    kept[rng.choice(len(keys), n_new, replace=False)] = False
    cell = np.concatenate([keys[kept], rng.choice(fresh, n_new, replace=False)])
    value = np.concatenate([data.matrix.data[kept], np.ones(n_new, np.float32)])
    place = (cell // data.n_items, cell % data.n_items)
    return Interactions(
        sp.csr_array((value, place), shape=data.matrix.shape),
        data.user_index,
        data.item_index,
        labels=data.labels,
        notes=[*data.notes, f"{n_new:,} pairs ({ratio:.0%}) replaced by unobserved ones"],
    )


def _appended(first: IdIndex, second: IdIndex) -> IdIndex:
    if first.values.dtype != second.values.dtype:
        raise DataError(f"{first.axis} ids are integers on one side and text on the other")
    fresh = second.values[first.positions(second.values, unknown="skip") < 0]
    return IdIndex(np.concatenate([first.values, fresh]), first.axis) if len(fresh) else first
