"""Interactions on disk: a directory of `.npy` arrays and Parquet ids.

Interactions made from other interactions: union, difference, k-core and noise.

Interactions: who used what, as a checked sparse matrix with the raw ids on both axes.
"""

from __future__ import annotations

import hashlib
import html
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.errors import DataError, FileFormatError, SettingError
from equipoise.ids import IdIndex, Unknown, check_unknown, is_id
from equipoise.manifest import Fields
from equipoise.matrix import (
    Sequences,
    as_positions,
    cell_keys,
    checked_matrix,
    entry_rows,
    in_ascending,
    keep_entries,
    segments,
)
from equipoise.storage import Stored, load_directory, write_directory

KIND = "equipoise-interactions"


VERSION = 1


@dataclass(frozen=True)
class Packed:
    """Interactions as a directory holds them: settings, arrays and tables."""

    meta: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]
    frames: dict[str, pl.DataFrame]


def save_interactions(data: Interactions, path: str | os.PathLike[str]) -> None:
    """Write the directory atomically."""
    packed = pack(data)
    write_directory(path, KIND, VERSION, packed.meta, packed.arrays, packed.frames, _restored)


def load_interactions(path: str | os.PathLike[str]) -> Interactions:
    """Read the directory; everything is checked before it is used."""
    return load_directory(path, KIND, VERSION, _restored)


def _restored(stored: Stored) -> Interactions:
    return unpack(stored, stored.meta)


def pack(data: Interactions, prefix: str = "", like: Interactions | None = None) -> Packed:
    """Return what to save, under names that start with `prefix`.

    Items and labels that `like` has too are left out; `unpack` takes them from there.
    """
    arrays: dict[str, npt.NDArray[Any]] = {
        "indptr": data.matrix.indptr.astype(np.int64),
        "indices": data.matrix.indices.astype(np.int32),
        "weights": data.matrix.data,
    }
    if data.times is not None:
        arrays["times"] = data.times
    if data.sequences is not None:
        arrays["events"] = data.sequences.items.astype(np.int32)
        arrays["offsets"] = data.sequences.offsets.astype(np.int64)
    frames = {"users": id_frame(data.user_index)}
    if like is None or not like.item_index.same_as(data.item_index):
        frames["items"] = id_frame(data.item_index)
    if data.labels is not None and (like is None or like.labels is not data.labels):
        frames["labels"] = data.labels
    meta = {
        "shape": [data.n_users, data.n_items],
        "notes": list(data.notes),
        "labelled": data.labels is not None,
        "fingerprint": data.fingerprint,
    }
    return Packed(
        meta,
        {prefix + name: array for name, array in arrays.items()},
        {prefix + name: frame for name, frame in frames.items()},
    )


def unpack(
    stored: Stored, meta: Fields, prefix: str = "", like: Interactions | None = None
) -> Interactions:
    """Return what `pack` was given; anything wrong with it is a `DataError`."""
    shape = meta.wholes("shape")
    if len(shape) != 2:
        raise FileFormatError(f"the field {meta.path + 'shape'!r} must be two sizes, got {shape}")
    meta.text("fingerprint")
    n_users, n_items = shape
    indptr = np.array(stored.array(f"{prefix}indptr", (n_users + 1,), "i"))
    pairs = (int(indptr[-1]),)
    weights = np.array(stored.finite(f"{prefix}weights", pairs))
    indices = np.array(stored.array(f"{prefix}indices", pairs, "i"))
    times = None
    if f"{prefix}times" in stored.arrays:
        times = np.array(stored.finite(f"{prefix}times", pairs))
    data = Interactions(
        _csr(weights, indices, indptr, (n_users, n_items)),
        frame_ids(stored.frame(f"{prefix}users", n_users)),
        _items(stored, prefix, n_items, like),
        times=times,
        labels=_labels(stored, prefix, n_items, like if meta.flag("labelled") else None),
        sequences=_sequences(stored, prefix, n_users),
        notes=meta.texts("notes"),
    )
    if data.n_interactions != pairs[0]:
        raise FileFormatError("a user-item pair occurs twice or with a weight of 0")
    if meta["labelled"] != (data.labels is not None):
        raise FileFormatError(f"the field {meta.path + 'labelled'!r} does not fit its tables")
    return data


def _csr(weights: Any, indices: Any, indptr: Any, shape: tuple[int, int]) -> Any:
    try:
        return sp.csr_array((weights, indices, indptr), shape=shape)
    except ValueError as error:
        raise FileFormatError(f"the sparse matrix is malformed: {error}") from error


def _items(stored: Stored, prefix: str, n_items: int, like: Interactions | None) -> Any:
    if like is not None and f"{prefix}items" not in stored.frames:
        return like.item_index
    return frame_ids(stored.frame(f"{prefix}items", n_items))


def _labels(
    stored: Stored, prefix: str, n_items: int, like: Interactions | None
) -> pl.DataFrame | None:
    if f"{prefix}labels" in stored.frames:
        return stored.frame(f"{prefix}labels", n_items)
    return None if like is None else like.labels


def _sequences(stored: Stored, prefix: str, n_users: int) -> Sequences | None:
    if f"{prefix}offsets" not in stored.arrays:
        return None
    offsets = np.array(stored.array(f"{prefix}offsets", (n_users + 1,), "i"))
    events = np.array(stored.array(f"{prefix}events", (int(offsets[-1]),), "i"))
    return Sequences(events, offsets)


def id_frame(index: IdIndex) -> pl.DataFrame:
    """Return the ids as a one-column frame, for Parquet."""
    return pl.DataFrame({"id": index.to_series()})


def frame_ids(frame: pl.DataFrame) -> npt.NDArray[Any]:
    """Return the ids of a frame that `id_frame` made."""
    if "id" not in frame.columns or frame["id"].dtype not in (pl.Int64, pl.String):
        raise FileFormatError("a table of ids needs a column 'id' of integers or text")
    if frame["id"].null_count():
        raise FileFormatError("a table of ids holds empty ids")
    return frame["id"].to_numpy()


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


class Interactions:
    """Users x items matrix of interactions with the raw ids of both axes. Immutable.

    Parameters
    ----------
    matrix
        Rows are users, columns are items; values are non-negative weights (1 = an interaction).
        Any scipy sparse format or a two-dimensional array; kept as CSR float32. A matrix that is
        so already is shared, not copied: do not change it afterwards.
    users, items
        Raw ids, integers or text; positions 0, 1, ... when left out.
    times
        Seconds since 1970, one for each stored value of the CSR `matrix`, in its order.
    labels
        A frame with one row per item (titles, genres) for display; its first column is the title.
    sequences
        Events in order, repeats included, where the data are sessions.
    notes
        Sentences on how the data came about, such as what a reader merged or skipped.

    Examples
    --------
    >>> import equipoise as eq
    >>> data = eq.read([("ann", "tea"), ("ann", "milk"), ("bob", "tea")])
    >>> data
    Interactions: 2 users x 2 items, 3 interactions (density 75%)
    >>> data.history("ann")
    ['milk', 'tea']
    """

    def __init__(
        self,
        matrix: Any,
        users: Any = None,
        items: Any = None,
        *,
        times: npt.ArrayLike | None = None,
        labels: pl.DataFrame | None = None,
        sequences: Sequences | None = None,
        notes: Iterable[str] = (),
    ) -> None:
        self.matrix, self.times = checked_matrix(matrix, times)
        n_users, n_items = self.matrix.shape
        self.user_index = _index(users, n_users, "user")
        self.item_index = _index(items, n_items, "item")
        if labels is not None and labels.height != n_items:
            raise DataError(f"labels has {labels.height} rows for {n_items} items")
        if sequences is not None:
            sequences.check_shape(n_users, n_items)
        self.labels = labels
        self.sequences = sequences
        self.notes = tuple(notes)

    @property
    def users(self) -> npt.NDArray[Any]:
        """Raw user ids, row by row."""
        return self.user_index.values

    @property
    def items(self) -> npt.NDArray[Any]:
        """Raw item ids, column by column."""
        return self.item_index.values

    @property
    def n_users(self) -> int:
        """Number of rows."""
        return int(self.matrix.shape[0])

    @property
    def n_items(self) -> int:
        """Number of columns."""
        return int(self.matrix.shape[1])

    @property
    def n_interactions(self) -> int:
        """Number of user-item pairs."""
        return int(self.matrix.nnz)

    @property
    def density(self) -> float:
        """Share of the matrix that is filled."""
        return self.n_interactions / max(self.n_users * self.n_items, 1)

    @cached_property
    def item_counts(self) -> npt.NDArray[np.int64]:
        """Number of users of each item."""
        return np.bincount(self.matrix.indices, minlength=self.n_items).astype(np.int64)

    @cached_property
    def user_counts(self) -> npt.NDArray[np.int64]:
        """Number of items of each user."""
        return np.diff(self.matrix.indptr).astype(np.int64)

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hex digits that change when any pair, weight, time or id does."""
        digest = hashlib.sha256(repr(self.matrix.shape).encode())
        digest.update(self.matrix.indptr.astype(np.int64).tobytes())
        digest.update(self.matrix.indices.astype(np.int64).tobytes())
        digest.update(self.matrix.data.tobytes())
        for ids in (self.users, self.items):
            digest.update(ids.tobytes() if ids.dtype != object else repr(ids.tolist()).encode())
        if self.times is not None:
            digest.update(self.times.tobytes())
        if self.sequences is not None:
            digest.update(self.sequences.items.tobytes() + self.sequences.offsets.tobytes())
        return digest.hexdigest()[:12]

    def history(self, user: Any) -> list[Any]:
        """Raw ids of a user's items, in order of events for sessions, else of position."""
        row = self.user_index.position(user)
        if self.sequences is not None:
            return list(self.items[self.sequences[row]].tolist())
        start, stop = self.matrix.indptr[row : row + 2]
        return list(self.items[self.matrix.indices[start:stop]].tolist())

    def label(self, item: Any) -> str:
        """Return the title of an item, or the id as text where there is none."""
        if self.labels is None or not self.labels.width:
            return str(item)
        text = self.labels[self.item_index.position(item), 0]
        return str(item) if text is None else str(text)

    def rows(self, positions: npt.ArrayLike) -> Interactions:
        """Return the users at these positions (or under this mask), all items kept."""
        where = as_positions(positions, self.n_users)
        places, offsets = segments(self.matrix.indptr[where], self.user_counts[where])
        csr = (self.matrix.data[places], self.matrix.indices[places], offsets)
        return Interactions(
            sp.csr_array(csr, shape=(len(where), self.n_items)),
            self.user_index.take(where),
            self.item_index,
            times=self.times[places] if self.times is not None else None,
            labels=self.labels,
            sequences=self.sequences.take(where) if self.sequences is not None else None,
            notes=self.notes,
        )

    def columns(self, positions: npt.ArrayLike) -> Interactions:
        """Return the items at these positions (or under this mask), all users kept."""
        where = as_positions(positions, self.n_items)
        items = self.item_index.take(where)
        new = np.full(self.n_items, -1, np.int64)
        new[where] = np.arange(len(where))
        labels = self.labels.select(pl.all().gather(where)) if self.labels is not None else None
        return self._recoded(new, items, labels)

    def select(self, users: Any = None, items: Any = None) -> Interactions:
        """Return these users and items, by raw id; None keeps all."""
        out = self if users is None else self.rows(self.user_index.positions(users))
        return out if items is None else out.columns(out.item_index.positions(items))

    def entries(self, kept: npt.NDArray[np.bool_]) -> Interactions:
        """Return only the pairs under this mask (one flag per stored value of `matrix`)."""
        if kept.dtype != bool or kept.shape != self.matrix.data.shape:
            raise DataError(f"entries needs a mask of {self.n_interactions} true or false values")
        sequences = self.sequences
        if sequences is not None and not kept.all():
            sequences = sequences.without(cell_keys(self.matrix)[~kept], self.n_items)
        return Interactions(
            keep_entries(self.matrix, kept),
            self.user_index,
            self.item_index,
            times=self.times[kept] if self.times is not None else None,
            labels=self.labels,
            sequences=sequences,
            notes=self.notes,
        )

    def with_items(self, items: Any, *, unknown: Unknown = "error") -> Interactions:
        """Return the same users over another list of items, such as a model's.

        Used items that the list lacks are an error, or left out with ``unknown="skip"``.
        """
        check_unknown(unknown)
        if isinstance(items, IdIndex):
            index = items
        else:
            index = IdIndex([items] if is_id(items) else items, "item")
        if self.item_index.same_as(index):
            return self
        new = index.positions(self.items, unknown="skip")
        if unknown == "error":
            index.positions(self.items[(new < 0) & (self.item_counts > 0)])
        labels = self.labels
        if labels is not None:
            old = self.item_index.positions(index.values, unknown="skip")
            labels = labels.select(pl.all().gather(pl.Series(old).replace(-1, None)))
        return self._recoded(new, index, labels)

    def _recoded(
        self, new: npt.NDArray[np.int64], items: IdIndex, labels: pl.DataFrame | None
    ) -> Interactions:
        """Move column i to ``new[i]``, or leave it out where that is negative."""
        kept = new[self.matrix.indices] >= 0
        part = keep_entries(self.matrix, kept)
        csr = (part.data, new[part.indices], part.indptr)
        return Interactions(
            sp.csr_array(csr, shape=(self.n_users, len(items))),
            self.user_index,
            items,
            times=self.times[kept] if self.times is not None else None,
            labels=labels,
            sequences=self.sequences.recode(new) if self.sequences is not None else None,
            notes=self.notes,
        )

    def filter(self, *, min_user: int = 0, min_item: int = 0) -> Interactions:
        """Keep users with `min_user` items and items with `min_item` users, until both hold."""
        return k_core(self, min_user, min_item)

    def union(self, other: Interactions) -> Interactions:
        """All pairs of both; new users and items are appended; the other's values win."""
        return union(self, other)

    def difference(self, other: Interactions) -> Interactions:
        """Return the pairs that `other` does not hold; users and items stay."""
        return difference(self, other)

    def with_noise(self, ratio: float, seed: int = 0) -> Interactions:
        """Replace a share of the pairs by pairs that were not observed, drawn evenly.

        The number of pairs stays; this is the paper's robustness experiment.
        """
        return with_noise(self, ratio, seed)

    def to_frame(self) -> pl.DataFrame:
        """One row per pair: user, item, weight, and time where known."""
        return self._frame(self.n_interactions)

    def _frame(self, height: int) -> pl.DataFrame:
        columns = {
            "user": self.user_index.to_series()[entry_rows(self.matrix)[:height]],
            "item": self.item_index.to_series()[self.matrix.indices[:height]],
            "weight": self.matrix.data[:height],
        }
        if self.times is not None:
            columns["time"] = self.times[:height]
        return pl.DataFrame(columns)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a directory (manifest, `.npy`, Parquet) that `eq.read` opens again."""
        save_interactions(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Interactions:
        """Read what `save` wrote; damaged or foreign directories are refused."""
        return load_interactions(path)

    def __repr__(self) -> str:
        size = f"{self.n_users:,} users x {self.n_items:,} items"
        filled = f"density {100 * self.density:.3g}%"
        return f"Interactions: {size}, {self.n_interactions:,} interactions ({filled})"

    def _repr_html_(self) -> str:
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        head = self._frame(5)._repr_html_() if self.n_interactions else ""
        return f"<p><b>{html.escape(repr(self))}</b></p><ul>{notes}</ul>{head}"


def _index(ids: Any, size: int, axis: str) -> IdIndex:
    if isinstance(ids, IdIndex):
        index = ids
    else:
        index = IdIndex(np.arange(size) if ids is None else ids, axis)
    if len(index) != size:
        raise DataError(f"{len(index)} {axis} ids for {size} {axis}s")
    return index
