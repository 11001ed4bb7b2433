"""Interactions: who used what, as a checked sparse matrix with the raw ids on both axes."""

from __future__ import annotations

import hashlib
import html
import os
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.errors import DataError
from equipoise.ids import IdIndex, Unknown, check_unknown, is_id
from equipoise.matrix import as_positions, cell_keys, checked_matrix, entry_rows, keep_entries
from equipoise.sequences import Sequences, segments


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
        from equipoise.combine import k_core

        return k_core(self, min_user, min_item)

    def union(self, other: Interactions) -> Interactions:
        """All pairs of both; new users and items are appended; the other's values win."""
        from equipoise.combine import union

        return union(self, other)

    def difference(self, other: Interactions) -> Interactions:
        """Return the pairs that `other` does not hold; users and items stay."""
        from equipoise.combine import difference

        return difference(self, other)

    def with_noise(self, ratio: float, seed: int = 0) -> Interactions:
        """Replace a share of the pairs by pairs that were not observed, drawn evenly.

        The number of pairs stays; this is the paper's robustness experiment.
        """
        from equipoise.combine import with_noise

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
        from equipoise.persist import save_interactions

        save_interactions(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Interactions:
        """Read what `save` wrote; damaged or foreign directories are refused."""
        from equipoise.persist import load_interactions

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
