"""Interactions: which user used which item, as a checked sparse matrix with the raw ids.

Everything that makes interactions from interactions keeps times, labels and sequences with it. On
disk they are a directory of `.npy` arrays and Parquet tables (`Interactions.save`, `pack`).
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

from equipoise.checks import choice, count, fraction
from equipoise.errors import DataError, FileFormatError, SettingError
from equipoise.ids import UNKNOWN, IdIndex, Unknown, is_id
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
from equipoise.storage import Fields, Stored, load_directory, write_directory

KIND = "equipoise-interactions"
VERSION = 1


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
        return self._rebuilt(
            sp.csr_array(csr, shape=(len(where), self.n_items)),
            places,
            users=self.user_index.take(where),
            sequences=self.sequences.take(where) if self.sequences is not None else None,
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
        return self._rebuilt(keep_entries(self.matrix, kept), kept, sequences=sequences)

    def with_items(self, items: Any, *, unknown: Unknown = "error") -> Interactions:
        """Return the same users over another list of items, such as a model's.

        Used items that the list lacks are an error, or left out with ``unknown="skip"``.
        """
        choice("unknown", unknown, UNKNOWN)
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
        return self._rebuilt(
            sp.csr_array(csr, shape=(self.n_users, len(items))),
            kept,
            items=items,
            labels=labels,
            sequences=self.sequences.recode(new) if self.sequences is not None else None,
        )

    def _rebuilt(self, matrix: Any, places: npt.NDArray[Any], **changes: Any) -> Interactions:
        """Return a part of the data: `places` are those of its pairs in this matrix."""
        kept = {
            "users": self.user_index,
            "items": self.item_index,
            "times": self.times[places] if self.times is not None else None,
            "labels": self.labels,
            "notes": self.notes,
        }
        return Interactions(matrix, **{**kept, **changes})

    def filter(self, *, min_user: int = 0, min_item: int = 0) -> Interactions:
        """Keep users with `min_user` items and items with `min_item` users, until both hold."""
        count("min_user", min_user, 0)
        count("min_item", min_item, 0)
        users, items = entry_rows(self.matrix), self.matrix.indices
        while True:
            user_fine = np.bincount(users, minlength=self.n_users) >= min_user
            item_fine = np.bincount(items, minlength=self.n_items) >= min_item
            fine = user_fine[users] & item_fine[items]
            if fine.all():
                break
            users, items = users[fine], items[fine]
        if not users.size:
            asked = f"min_user={min_user} and min_item={min_item}"
            raise DataError(f"nothing is left with {asked}; lower them")
        kept = self.rows(user_fine).columns(item_fine)
        gone = (self.n_users - kept.n_users, self.n_items - kept.n_items)
        if any(gone):
            kept.notes += (
                f"users with fewer than {min_user} items and items with fewer than {min_item} "
                f"users were left out: {gone[0]:,} users, {gone[1]:,} items",
            )
        return kept

    def union(self, other: Interactions) -> Interactions:
        """All pairs of both; new users and items are appended; the other's values win.

        Times and sequences need both sides to have them. A user's events of the other side follow
        those of this one.
        """
        users = _appended(self.user_index, other.user_index)
        items = _appended(self.item_index, other.item_index)
        parts = [part.with_items(items) for part in (self.difference(other), other)]
        rows = [users.positions(part.users)[entry_rows(part.matrix)] for part in parts]
        row = np.concatenate(rows)
        column = np.concatenate([part.matrix.indices for part in parts])
        value = np.concatenate([part.matrix.data for part in parts])
        # a stable sort merges the two sides, which are mostly in order, in linear time
        order = np.argsort(row * len(items) + column, kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(users)))])
        notes = list(dict.fromkeys([*self.notes, *other.notes]))
        times = [part.times for part in parts if part.times is not None]
        events = [each.sequences for each in (self, other) if each.sequences is not None]
        for name, held in (("times", times), ("sequences", events)):
            if len(held) == 1:
                notes.append(f"{name} were left out of a union, because one side has none")
        return Interactions(
            sp.csr_array((value[order], column[order], offsets), shape=(len(users), len(items))),
            users,
            items,
            times=np.concatenate(times)[order] if len(times) == 2 else None,
            labels=_merged_labels(parts[0].labels, parts[1].labels),
            sequences=_joined((self, other), users, items) if len(events) == 2 else None,
            notes=notes,
        )

    def difference(self, other: Interactions) -> Interactions:
        """Return the pairs that `other` does not hold; users and items stay."""
        _check_same_kind(self.user_index, other.user_index)
        _check_same_kind(self.item_index, other.item_index)
        theirs = other.with_items(self.item_index, unknown="skip")
        row = self.user_index.positions(theirs.users, unknown="skip")[entry_rows(theirs.matrix)]
        gone = (row * self.n_items + theirs.matrix.indices)[row >= 0]
        return self.entries(~in_ascending(cell_keys(self.matrix), np.sort(gone)))

    def with_noise(self, ratio: float, seed: int = 0) -> Interactions:
        """Replace a share of the pairs by pairs that were not observed, drawn evenly.

        The number of pairs stays; this is the paper's robustness experiment. New pairs have
        weight 1; times and sequences, which they lack, are left out.
        """
        fraction("ratio", ratio)
        rng = generator(seed)
        keys = cell_keys(self.matrix)
        n_new = round(ratio * len(keys))
        n_cells = self.n_users * self.n_items
        if n_new > n_cells - len(keys):
            raise DataError(
                f"{n_new:,} pairs cannot be replaced: fewer are unobserved; lower ratio"
            )
        kept = np.ones(len(keys), bool)
        kept[rng.permutation(len(keys))[:n_new]] = False
        cell = np.concatenate([keys[kept], _unobserved(keys, n_cells, n_new, rng)])
        value = np.concatenate([self.matrix.data[kept], np.ones(n_new, np.float32)])
        place = (cell // max(self.n_items, 1), cell % max(self.n_items, 1))
        return Interactions(
            sp.csr_array((value, place), shape=self.matrix.shape),
            self.user_index,
            self.item_index,
            labels=self.labels,
            notes=[*self.notes, f"{n_new:,} pairs ({ratio:.0%}) replaced by unobserved ones"],
        )

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
        packed = pack(self)
        write_directory(path, KIND, VERSION, packed.meta, packed.arrays, packed.frames, _restored)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Interactions:
        """Read what `save` wrote; damaged or foreign directories are refused."""
        return load_directory(path, KIND, VERSION, _restored)

    def __repr__(self) -> str:
        size = f"{self.n_users:,} users x {self.n_items:,} items"
        filled = f"density {100 * self.density:.3g}%"
        return f"Interactions: {size}, {self.n_interactions:,} interactions ({filled})"

    def _repr_html_(self) -> str:
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        head = self._frame(5)._repr_html_() if self.n_interactions else ""
        return f"<p><b>{html.escape(repr(self))}</b></p><ul>{notes}</ul>{head}"


def generator(seed: int) -> np.random.Generator:
    """Random numbers of this seed alone, whatever the global state of numpy."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise SettingError(f"seed must be an integer >= 0, got {seed!r}")
    return np.random.default_rng(int(seed))


def _index(ids: Any, size: int, axis: str) -> IdIndex:
    if isinstance(ids, IdIndex):
        index = ids
    else:
        index = IdIndex(np.arange(size) if ids is None else ids, axis)
    if len(index) != size:
        raise DataError(f"{len(index)} {axis} ids for {size} {axis}s")
    return index


def _check_same_kind(first: IdIndex, second: IdIndex) -> None:
    if len(first) and len(second) and first.values.dtype != second.values.dtype:
        raise DataError(f"{first.axis} ids are integers on one side and text on the other")


def _appended(first: IdIndex, second: IdIndex) -> IdIndex:
    _check_same_kind(first, second)
    fresh = second.values[first.positions(second.values, unknown="skip") < 0]
    if not len(first):
        return second
    return IdIndex(np.concatenate([first.values, fresh]), first.axis) if len(fresh) else first


def _joined(sides: tuple[Interactions, ...], users: IdIndex, items: IdIndex) -> Sequences:
    """Put each user's events of the second side after those of the first."""
    rows, events = [], []
    for side in sides:
        sequences = side.with_items(items).sequences
        assert sequences is not None
        rows.append(users.positions(side.users)[sequences.rows])
        events.append(sequences.items)
    row = np.concatenate(rows)
    counts = np.bincount(row, minlength=len(users))
    order = np.argsort(row, kind="stable")
    return Sequences(np.concatenate(events)[order], np.concatenate([[0], np.cumsum(counts)]))


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


def _unobserved(
    keys: npt.NDArray[np.int64], n_cells: int, size: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Draw this many cells evenly from those that are not among the ascending keys."""
    if n_cells <= 4 * len(keys):
        free = np.delete(np.arange(n_cells), keys)
        return rng.permutation(free)[:size]
    # At least 3 of 4 cells are free here, so a round of draws brings in most of what is missing.
    fresh = np.empty(0, np.int64)
    while len(fresh) < size:
        drawn = rng.integers(0, n_cells, 2 * (size - len(fresh)) + 16)
        fresh = np.unique(np.concatenate([fresh, drawn[~in_ascending(drawn, keys)]]))
    return rng.permutation(fresh)[:size]


@dataclass(frozen=True)
class Packed:
    """Interactions as a directory holds them: settings, arrays and tables."""

    meta: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]
    frames: dict[str, pl.DataFrame]


def pack(data: Interactions, prefix: str = "", like: Interactions | None = None) -> Packed:
    """Return what to save, under names that start with `prefix`.

    Items and labels that `like` has too are left out; `unpack` takes them from there.
    """
    arrays: dict[str, npt.NDArray[Any]] = {
        "indptr": data.matrix.indptr.astype(np.int64),
        "indices": data.matrix.indices.astype(np.int32),
        # most data are 0/1: one number stands for all of them
        "weights": data.matrix.data if (data.matrix.data != 1).any() else data.matrix.data[:1],
    }
    if data.times is not None:
        arrays["times"] = data.times
    if data.sequences is not None:
        arrays["events"] = data.sequences.items.astype(np.int32)
        arrays["offsets"] = data.sequences.offsets.astype(np.int64)
    frames = {"users": pl.DataFrame({"id": data.user_index.to_series()})}
    if like is None or not like.item_index.same_as(data.item_index):
        frames["items"] = pl.DataFrame({"id": data.item_index.to_series()})
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
    indices = np.array(stored.array(f"{prefix}indices", pairs, "i"))
    name = f"{prefix}weights"
    same = name in stored.arrays and stored.arrays[name].shape == (1,) != pairs
    weights = np.array(stored.finite(name, (1,) if same else pairs))
    weights = np.full(pairs, weights[0]) if same else weights
    try:
        matrix = sp.csr_array((weights, indices, indptr), shape=(n_users, n_items))
    except ValueError as error:
        raise FileFormatError(f"the sparse matrix is malformed: {error}") from error
    times = sequences = labels = None
    if f"{prefix}times" in stored.arrays:
        times = np.array(stored.finite(f"{prefix}times", pairs))
    if f"{prefix}offsets" in stored.arrays:
        offsets = np.array(stored.array(f"{prefix}offsets", (n_users + 1,), "i"))
        events = np.array(stored.array(f"{prefix}events", (int(offsets[-1]),), "i"))
        sequences = Sequences(events, offsets)
    if f"{prefix}labels" in stored.frames:
        labels = stored.frame(f"{prefix}labels", n_items)
    elif like is not None and meta.flag("labelled"):
        labels = like.labels
    items: Any = like.item_index if like is not None else None
    if like is None or f"{prefix}items" in stored.frames:
        items = _ids(stored.frame(f"{prefix}items", n_items))
    data = Interactions(
        matrix,
        _ids(stored.frame(f"{prefix}users", n_users)),
        items,
        times=times,
        labels=labels,
        sequences=sequences,
        notes=meta.texts("notes"),
    )
    if data.n_interactions != pairs[0]:
        raise FileFormatError("a user-item pair occurs twice or with a weight of 0")
    if meta.flag("labelled") != (data.labels is not None):
        raise FileFormatError(f"the field {meta.path + 'labelled'!r} does not fit its tables")
    return data


def _restored(stored: Stored) -> Interactions:
    return unpack(stored, stored.meta)


def _ids(frame: pl.DataFrame) -> npt.NDArray[Any]:
    if "id" not in frame.columns or frame["id"].dtype not in (pl.Int64, pl.String):
        raise FileFormatError("a table of ids needs a column 'id' of integers or text")
    if frame["id"].null_count():
        raise FileFormatError("a table of ids holds empty ids")
    return frame["id"].to_numpy()
