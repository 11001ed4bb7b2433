"""Interactions: which user used which item, as a checked sparse matrix with the raw ids.

Every method that returns other interactions carries events and the catalogue along. On disk they
are a directory of `.npy` arrays and Parquet tables (`Interactions.save`, `pack`).
"""

from __future__ import annotations

import copy
import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace as replace_fields
from functools import cached_property
from itertools import zip_longest
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.checks import MADE_BY_READ, choice, count, instance
from equipoise.data.catalogue import Catalogue, merged, object_catalogue, read_catalogue
from equipoise.data.events import COLUMNS, NO_TYPE, Events, bare, dated, joined, shares, summed
from equipoise.data.ids import CHECK, UNKNOWN, IdIndex, Unknown, is_id
from equipoise.data.matrix import (
    Csr,
    as_positions,
    cell_keys,
    checked_matrix,
    column_counts,
    column_squares,
    entry_rows,
    in_ascending,
    keep_entries,
    segments,
    slices,
)
from equipoise.data.read_options import KINDS, ReadOptions
from equipoise.data.storage import Fields, Stored, load_directory, write_directory
from equipoise.display.notebook import fragment, table
from equipoise.errors import DataError, FileFormatError, SettingError

logger = logging.getLogger(__name__)

KIND = "equipoise-interactions"
VERSION = 1


class Interactions:
    """Users x items matrix of interactions with the raw ids of both axes. Immutable.

    Parameters
    ----------
    matrix
        Rows are users, columns are items; values are non-negative weights (1 = an interaction).
        Any scipy sparse format or a two-dimensional array; stored as CSR float32. A matrix of that
        format is shared, not copied: do not change it afterwards.
    users, items
        Raw ids, integers or text; positions 0, 1, ... when left out.
    times
        Seconds since 1970, one for each stored value of the CSR `matrix`, in its order: the time
        of the pair's only event, or of its last one if `events` without times are given.
    catalogue
        A frame with one row per item (titles, genres, prices); its first column is the title. Or
        a `Catalogue`, which also knows items without events.
    events
        The log behind the matrix, if it holds more: times, types, repeats, weights that add up to
        those of the matrix, or the order of a session.
    notes
        Sentences on how the data were made, such as which rows a reader merged or skipped.
    signed
        Whether values may be negative, as `Signals` gives to unwanted items; counts leave out
        such pairs.

    Examples
    --------
    >>> import equipoise as eq
    >>> data = eq.read([("ann", "tea"), ("ann", "milk"), ("bob", "tea")])
    >>> data
    Interactions: 2 users x 2 items, 3 interactions (density 75%)
    >>> data.history("ann")
    ['milk', 'tea']
    """

    in_memory: ClassVar[bool] = True  # `NotInMemory` has counts, and reads users where they are

    def __init__(
        self,
        matrix: Any,
        users: Any = None,
        items: Any = None,
        *,
        times: npt.ArrayLike | None = None,
        catalogue: pl.DataFrame | Catalogue | None = None,
        events: Events | None = None,
        notes: Iterable[str] = (),
        signed: bool = False,
    ) -> None:
        self.matrix, moments = checked_matrix(matrix, times, signed=signed)
        n_users, n_items = self.matrix.shape
        self.user_index = _index(users, n_users, "user")
        self.item_index = _index(items, n_items, "item")
        if catalogue is not None:
            catalogue = _as_catalogue(catalogue, n_items)
        if events is not None:
            instance("events", events, Events, "make data with eq.read(...)")
            events.check_shape(n_users, n_items)
        if moments is not None:
            events = dated(self.matrix, moments, events)
        self.known_items = catalogue
        self.events = events
        if isinstance(notes, str) or not isinstance(notes, Iterable):
            raise SettingError(f"notes must be a list of sentences, got {notes!r}")
        self.notes = tuple(notes)
        self.signed = signed and bool((self.matrix.data < 0).any())

    @property
    def users(self) -> npt.NDArray[Any]:
        """Raw user ids, row by row."""
        return self.user_index.values

    @property
    def items(self) -> npt.NDArray[Any]:
        """Raw item ids, column by column."""
        return self.item_index.values

    @property
    def catalogue(self) -> pl.DataFrame | None:
        """The attributes of the items, a row for each, the title first; None without any."""
        return None if self.known_items is None else self.known_items.frame

    @property
    def new_items(self) -> pl.DataFrame | None:
        """Items of the catalogue without events: their ids, then the columns of `catalogue`.

        They are no items of the matrix. One that gets events, as by an update, becomes one.
        """
        return None if self.known_items is None else self.known_items.new_items

    @property
    def attributes(self) -> dict[str, str]:
        """What each column of `catalogue` is: category, list, text, number, date or vector."""
        return {} if self.known_items is None else dict(self.known_items.kinds)

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
        return column_counts(self._positive_matrix)

    @cached_property
    def user_counts(self) -> npt.NDArray[np.int64]:
        """Number of items of each user."""
        return np.diff(self._positive_matrix.indptr).astype(np.int64)

    @property
    def _positive_matrix(self) -> Csr:
        """The matrix without negative values, which mark unwanted items."""
        if not self.signed:
            return self.matrix
        return keep_entries(self.matrix, self.matrix.data > 0)

    @property
    def _empty_users(self) -> npt.NDArray[np.bool_]:
        """Mask of the users without any value or event.

        A user who returned every purchase has events, but a `user_counts` of 0.
        """
        empty = np.asarray(np.diff(self.matrix.indptr) == 0)
        return empty if self.events is None else empty & (self.events.lengths == 0)

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hex digits that identify the pairs, weights, times and ids."""
        digest = hashlib.sha256(repr(self.matrix.shape).encode())
        digest.update(self.matrix.indptr.astype(np.int64).tobytes())
        for block in slices(self.n_interactions):
            digest.update(self.matrix.indices[block].astype(np.int64).tobytes())
        for block in slices(self.n_interactions):
            digest.update(self.matrix.data[block].tobytes())
        for ids in (self.users, self.items):
            digest.update(ids.tobytes() if ids.dtype != object else repr(ids.tolist()).encode())
        if self._one_event_per_pair:
            assert self.times is not None
            digest.update(self.times.tobytes())
        elif self.events is not None:
            for name in ("items", "offsets", *COLUMNS):
                column = getattr(self.events, name)
                if column is not None:
                    digest.update(name.encode() + column.tobytes())
            digest.update(repr((self.events.type_names, self.events.ordered)).encode())
        return digest.hexdigest()[:12]

    @cached_property
    def _own_events(self) -> Events:
        """The events with their weights; one per pair if the data have no events."""
        if self.events is None:
            return bare(self.matrix)
        if self.events.weights is not None or not self.weighted:
            return self.events
        return replace_fields(self.events, weights=shares(self.matrix, self.events))

    @cached_property
    def _sequences(self) -> Events | None:
        """The events in order of time or of the session, without returns; None if unordered."""
        if self.events is None or not self.events.ordered:
            return None
        return self.events.keep(self.events.positive)

    @cached_property
    def _event_pairs(self) -> npt.NDArray[np.int64]:
        """Index of each event's pair among the stored values of `matrix`, or -1.

        A pair has events but no value if its weights add up to 0, as after a return.
        """
        assert self.events is not None
        return self.events.places(self.matrix)

    @cached_property
    def times(self) -> npt.NDArray[np.float64] | None:
        """Time of each pair's last event, in the order of the matrix; None without times."""
        if self.events is None or self.events.times is None:
            return None
        latest = np.full(self.n_interactions, np.nan)
        has_value = self._event_pairs >= 0
        # events are sorted by time, and numpy keeps the last value assigned
        latest[self._event_pairs[has_value]] = self.events.times[has_value]
        if np.isnan(latest).any():
            raise DataError("the matrix has a pair without an event; build it from the events")
        return latest

    @cached_property
    def _one_event_per_pair(self) -> bool:
        """Whether the events hold no more than `times` and the matrix."""
        events = self.events
        if events is None or events.times is None or events.types is not None:
            return False
        if events.n_events != self.n_interactions or self.times is None:
            return False
        simple = dated(self.matrix, self.times, None)
        return all(
            np.array_equal(getattr(events, name), getattr(simple, name))
            for name in ("items", "weights")
        )

    def loaded(self, work: str) -> Interactions:
        """Return the data in memory; `work` is what needs them, for an error."""
        return self

    def parts(self) -> Iterator[Interactions]:
        """Yield the data as parts of consecutive users, each of which fits into memory."""
        yield self

    @property
    def user_kind(self) -> type[pl.Int64] | type[pl.String]:
        """Type of a column of user ids."""
        return self.user_index.kind

    def user_positions(
        self, users: Any, *, unknown: Unknown = "error", hint: str = CHECK
    ) -> npt.NDArray[np.int64]:
        """Return the positions of users by id, -1 for unknown ones if these are skipped."""
        return self.user_index.positions(users, unknown=unknown, hint=hint)

    def ids_of_users(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the ids of the users at these positions."""
        return self.users[positions]

    @cached_property
    def item_squares(self) -> npt.NDArray[np.float64]:
        """Sum of the squared values of each item: the diagonal of X^T X."""
        return column_squares(self.matrix)

    @property
    def time_span(self) -> tuple[float, float] | None:
        """Times of the first and the last event; None without times or events."""
        times = None if self.events is None else self.events.times
        return (
            None if times is None or not len(times) else (float(times.min()), float(times.max()))
        )

    def history(self, user: Any) -> list[Any]:
        """Raw ids of a user's items: in order of the events, else by item position."""
        row = self.user_index.position(user)
        if self._sequences is not None:
            return list(self.items[self._sequences[row]].tolist())
        start, stop = self.matrix.indptr[row : row + 2]
        return list(self.items[self.matrix.indices[start:stop]].tolist())

    def label(self, item: Any) -> str:
        """Return the title of an item, or its id as text if it has none."""
        catalogue = self.catalogue
        if catalogue is None or not catalogue.width:
            return str(item)
        text = catalogue[self.item_index.position(item), 0]
        return str(item) if text is None else str(text)

    @cached_property
    def _titles(self) -> list[str]:
        """The title of each item by position, or its id as text if it has none."""
        catalogue = self.catalogue
        titles = (
            [] if catalogue is None or not catalogue.width else catalogue.to_series(0).to_list()
        )
        return [str(title or item) for title, item in zip_longest(titles, self.items.tolist())]

    def rows(self, positions: npt.ArrayLike) -> Interactions:
        """Return the users at these positions (or under this mask), with all items."""
        where = as_positions(positions, self.n_users)
        indptr = self.matrix.indptr
        places, offsets = segments(indptr[where], np.diff(indptr)[where])
        csr = (self.matrix.data[places], self.matrix.indices[places], offsets)
        return self._replace(
            matrix=sp.csr_array(csr, shape=(len(where), self.n_items)),
            users=self.user_index.take(where),
            events=self.events.take(where) if self.events is not None else None,
        )

    def columns(self, positions: npt.ArrayLike) -> Interactions:
        """Return the items at these positions (or under this mask), with all users."""
        where = as_positions(positions, self.n_items)
        items = self.item_index.take(where)
        new = np.full(self.n_items, -1, np.int64)
        new[where] = np.arange(len(where))
        catalogue = None if self.known_items is None else self.known_items.gather(where)
        return self._recoded(new, items, catalogue)

    def hide_items(self, positions: npt.ArrayLike) -> Interactions:
        """Return the data without the events of these items (positions, or a mask).

        Those that the catalogue knows become new items.
        """
        where = as_positions(positions, self.n_items)
        is_left = np.ones(self.n_items, np.bool_)
        is_left[where] = False
        left = self.columns(is_left)
        if self.known_items is None:
            return left
        return left._replace(catalogue=self.known_items.hide(self.item_index, where))

    def select(self, users: Any = None, items: Any = None) -> Interactions:
        """Return these users and items, by raw id; None keeps all."""
        out = self if users is None else self.rows(self.user_index.positions(users))
        return out if items is None else out.columns(out.item_index.positions(items))

    def entries(self, mask: npt.NDArray[np.bool_]) -> Interactions:
        """Return the pairs under this mask (one flag per stored value of `matrix`).

        Events of other pairs are dropped; those of pairs without a value stay.
        """
        mask = np.asarray(mask)
        if mask.dtype != bool or mask.shape != self.matrix.data.shape:
            raise DataError(f"entries needs a mask of {self.n_interactions} true or false values")
        events = self.events
        if events is not None and not mask.all():
            events = events.keep(np.append(mask, True)[self._event_pairs])
        return self._replace(matrix=keep_entries(self.matrix, mask), events=events)

    def _only_events(self, mask: npt.NDArray[np.bool_]) -> Interactions:
        """Return the events under this mask, and the matrix computed from them.

        Values are the sums of the remaining weights; if events have no weights, a pair keeps its
        value as long as it has an event.
        """
        assert self.events is not None
        events = self.events.keep(mask)
        if events.weights is not None:
            matrix = summed(events, self.n_items, signed=self.signed)[0]
        else:
            has_event = np.zeros(self.n_interactions + 1, bool)
            has_event[self._event_pairs[mask]] = True
            matrix = keep_entries(self.matrix, has_event[:-1])
        return self._replace(matrix=matrix, events=events)

    def with_items(self, items: Any, *, unknown_items: Unknown = "error") -> Interactions:
        """Return the same users over another list of items, such as a model's.

        Used items that are not in the list are an error, or dropped with
        ``unknown_items="skip"``.
        """
        choice("unknown_items", unknown_items, UNKNOWN)
        if isinstance(items, IdIndex):
            index = items
        else:
            index = IdIndex([items] if is_id(items) else items, "item")
        if self.item_index.same_as(index):
            return self
        new = index.positions(self.items, unknown="skip")
        if unknown_items == "error":
            hint = "pass unknown_items='skip' to leave them out"
            index.positions(self.items[(new < 0) & (self.item_counts > 0)], hint=hint)
        catalogue = self.known_items
        if catalogue is not None:
            catalogue = catalogue.over(self.item_index, index)
        return self._recoded(new, index, catalogue)

    def with_catalogue(
        self,
        catalogue: Any,
        *,
        id: str | int | None = None,
        title: str | int | None = None,
        types: Mapping[str, str] | None = None,
    ) -> Interactions:
        """Return the data with another catalogue.

        Parameters
        ----------
        catalogue
            A frame (pandas, polars, arrow) or a dictionary of columns, with a column of item ids
            and titles, genres, prices, ...; or a dictionary from items to titles; or a list of
            tables. A column may hold lists, and embeddings may be a two-dimensional array. Items
            without events become `new_items`. For a file pass ``catalogue=`` to `read`.
        id
            Its column with the item ids; by default recognised by usual names.
        title
            Its column that is the title; by default recognised by its name or content.
        types
            What columns are, where reading would tell otherwise; see `read`.

        Examples
        --------
        >>> import equipoise as eq
        >>> data = eq.read([("ann", "tea"), ("bob", "milk")])
        >>> data = data.with_catalogue({"item": ["tea", "milk"], "name": ["Green tea", "Milk"]})
        >>> data.label("tea")
        'Green tea'
        """
        notes = list(self.notes)
        options = ReadOptions(
            catalogue=object_catalogue(catalogue),
            catalogue_id=id,
            title=title,
            catalogue_types=types,
        )
        known_items = read_catalogue(self.item_index, options, notes)
        return self._replace(catalogue=known_items, notes=notes)

    def with_items_described(self, items: Any, *, id: str | None = None) -> Interactions:
        """Return the data with more attributes, or other ones, of known and of new items.

        `items` is a table as for `with_catalogue`; its columns have the kinds of those here. `id`
        names the column of ids.
        """
        sources = object_catalogue(items)
        columns = {name for source in sources for name in source.columns}
        kinds, title = self.attributes, next(iter(self.attributes), None)
        # a column without any value yet, or of no use, is understood anew
        known = {n: kind for n, kind in kinds.items() if n in columns and kind != "other"}
        options = ReadOptions(
            catalogue=sources,
            catalogue_id=id,
            title=title if title in columns else None,
            catalogue_types=known,
        )
        none = self.item_index.take(np.empty(0, np.int64))
        added = read_catalogue(none, options, [])
        assert added is not None
        return self.with_known_items(merged(self.known_items, added.over(none, self.item_index)))

    def with_known_items(self, known_items: Catalogue | None) -> Interactions:
        """Return the same events with another `Catalogue`, at no cost."""
        out = copy.copy(self)
        out.known_items = known_items
        out.__dict__.pop("_titles", None)
        return out

    def with_new_items(self) -> Interactions:
        """Return the data with a column without events for each of `new_items`, at the end."""
        if self.known_items is None or self.new_items is None:
            return self
        index = self.item_index.extended(self.known_items.new_index.values)
        out = self.with_known_items(self.known_items.over(self.item_index, index))
        cached = [name for name, part in vars(Interactions).items() if hasattr(part, "func")]
        for name in cached:  # they depend on the number of items
            out.__dict__.pop(name, None)
        X = self.matrix
        out.matrix = sp.csr_array((X.data, X.indices, X.indptr), shape=(self.n_users, len(index)))
        out.item_index = index
        return out

    def _recoded(
        self, new: npt.NDArray[np.int64], items: IdIndex, catalogue: Catalogue | None
    ) -> Interactions:
        """Move column i to position ``new[i]``; a negative one drops it."""
        part = keep_entries(self.matrix, new[self.matrix.indices] >= 0)
        csr = (part.data, new[part.indices], part.indptr)
        return self._replace(
            matrix=sp.csr_array(csr, shape=(self.n_users, len(items))),
            items=items,
            catalogue=catalogue,
            events=self.events.recode(new) if self.events is not None else None,
        )

    def _replace(self, **changes: Any) -> Interactions:
        """Return the data with these arguments of the constructor changed."""
        unchanged = {
            "matrix": self.matrix,
            "users": self.user_index,
            "items": self.item_index,
            "catalogue": self.known_items,
            "events": self.events,
            "notes": self.notes,
            "signed": self.signed,
        }
        return Interactions(**{**unchanged, **changes})

    def filter(self, *, min_user: int = 0, min_item: int = 0) -> Interactions:
        """Drop users with fewer than `min_user` items and items with too few users, repeatedly."""
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
            raise DataError(f"nothing is left with {min_user=} and {min_item=}; lower them")
        filtered = self.rows(user_fine).columns(item_fine)
        gone = (self.n_users - filtered.n_users, self.n_items - filtered.n_items)
        if any(gone):
            filtered.notes += (core_note(min_user, min_item, *gone),)
        return filtered

    def union(self, other: Interactions, *, replace: bool = False) -> Interactions:
        """All pairs and events of both, as if both tables had been read as one.

        Weights of a pair that both hold are added; without weights it counts 1. With `replace`,
        the other's values and events of such a pair replace this side's. New users and items are
        appended, with ids converted to this side's type; integer ids become text if the other side
        has text that is no integer. Times and the order of events are dropped unless both sides
        have them. `notes` report that, and ids that became text.
        """
        instance("other", other, Interactions, MADE_BY_READ)
        users = self.user_index.extended(other.users)
        items = self.item_index.extended(other.items)
        left = self.difference(other) if replace else self
        parts = [part.with_items(items) for part in (left, other)]
        rows = [users.positions(part.users) for part in parts]
        notes = list(dict.fromkeys([*self.notes, *other.notes]))
        notes += [*_kind_note(self.user_index, users), *_kind_note(self.item_index, items)]
        events = _joined_events(parts, (rows[0], rows[1]), len(users), notes)
        signed = self.signed or other.signed
        if not replace and events is not None and events.weights is not None:
            matrix = summed(events, len(items), signed=signed)[0]
        else:
            row = np.concatenate([rows[at][entry_rows(parts[at].matrix)] for at in (0, 1)])
            column = np.concatenate([part.matrix.indices for part in parts])
            value = np.concatenate([part.matrix.data for part in parts])
            matrix = sp.csr_array((value, (row, column)), shape=(len(users), len(items)))
            if not replace:  # without weights every value is 1; scipy has added those of both
                matrix.data[:] = 1
        return Interactions(
            matrix,
            users,
            items,
            catalogue=merged(parts[0].known_items, parts[1].known_items),
            events=events,
            notes=notes,
            signed=signed,
        )

    @cached_property
    def weighted(self) -> bool:
        """Whether any pair or event has a weight other than 1."""
        weights = self.events is not None and self.events.weights is not None
        return weights or bool((self.matrix.data != 1).any())

    def difference(self, other: Interactions) -> Interactions:
        """Return the pairs of which `other` has neither a value nor an event, and their events.

        All users and items stay.
        """
        instance("other", other, Interactions, MADE_BY_READ)
        removed = other.with_items(self.item_index, unknown_items="skip")
        row = self.user_index.positions(removed.users, unknown="skip")
        # events too, since a pair whose weights add up to 0 has only events
        pairs = [(entry_rows(removed.matrix), removed.matrix.indices)]
        if removed.events is not None:
            pairs.append((removed.events.rows, removed.events.items))
        keys = [(row[rows] * self.n_items + items)[row[rows] >= 0] for rows, items in pairs]
        gone = np.sort(np.concatenate(keys))
        out = self.entries(~in_ascending(cell_keys(self.matrix), gone))
        if out.events is None:
            return out
        left = ~in_ascending(out.events.keys(self.n_items), gone)
        return out if left.all() else out._replace(events=out.events.keep(left))

    def to_frame(self, *, events: bool = False) -> pl.DataFrame:
        """One row per pair: user, item, weight, and time if known.

        With `events` one row per event, in order of user and time, with its type if known; data
        without events have one event per pair.
        """
        if not events:
            return self._frame(self.n_interactions)
        log = self._own_events
        columns = {
            "user": self.user_index.to_series()[log.rows],
            "item": self.item_index.to_series()[log.items],
            "weight": np.ones(log.n_events) if log.weights is None else log.weights,
        }
        if log.times is not None:
            columns["time"] = log.times
        if log.types is not None:
            names = pl.Series([*log.type_names, None], dtype=pl.String)
            columns["type"] = names[log.types % (len(log.type_names) + 1)]
        return pl.DataFrame(columns)

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
        write_directory(path, KIND, VERSION, *pack(self), _restored)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Interactions:
        """Read a directory written by `save`; a damaged or foreign one is an error."""
        return load_directory(path, KIND, VERSION, _restored)

    def __repr__(self) -> str:
        size = f"{self.n_users:,} users x {self.n_items:,} items"
        filled = f"density {100 * self.density:.3g}%"
        new = "" if self.new_items is None else f", {self.new_items.height:,} new items"
        return f"Interactions: {size}, {self.n_interactions:,} interactions ({filled}){new}"

    def _repr_html_(self) -> str:
        head = self._frame(5)
        if self.catalogue is not None:
            titles = [self.label(item) for item in head["item"]]
            head = head.insert_column(2, pl.Series("title", titles, pl.String))
        rows = table(head.columns, head.rows(), words=len(head.columns)) if head.height else ""
        return fragment(repr(self), rows, notes=self.notes)


def core_note(min_user: int, min_item: int, n_users: int, n_items: int) -> str:
    """Return the note on how many users and items a filter dropped."""
    return (
        f"users with fewer than {min_user} items and items with fewer than {min_item} users were "
        f"left out: {n_users:,} users, {n_items:,} items"
    )


def generator(seed: int) -> np.random.Generator:
    """Return a random generator with this seed, independent of numpy's global state."""
    return np.random.default_rng(count("seed", seed, 0))


def _as_catalogue(catalogue: Any, n_items: int) -> Catalogue:
    """Return a checked catalogue with a row for each item."""
    if not isinstance(catalogue, Catalogue):
        instance("catalogue", catalogue, pl.DataFrame, "give a frame with a row for each item")
        catalogue = Catalogue(catalogue)
    known_items: Catalogue = catalogue
    height = known_items.frame.height
    if height != n_items:
        raise DataError(f"the catalogue has {height} rows for {n_items} items; give one each")
    return known_items


def _index(ids: Any, size: int, axis: str) -> IdIndex:
    if isinstance(ids, IdIndex):
        index = ids
    else:
        index = IdIndex(np.arange(size) if ids is None else ids, axis)
    if len(index) != size:
        raise DataError(f"{len(index)} {axis} ids for {size} {axis}s; give one each")
    return index


def _kind_note(before: IdIndex, after: IdIndex) -> list[str]:
    """Return a note, also logged as a warning, if integer ids became text."""
    if not len(before) or after.kind == before.kind:
        return []
    note = f"the {after.axis} ids were integers and are text now: some added ids are not integers"
    logger.warning("%s", note)
    return [note]


def _joined_events(
    parts: list[Interactions],
    rows: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
    n_users: int,
    notes: list[str],
) -> Events | None:
    """Merge the events of two parts over the same items; a note reports what had to be dropped."""
    sides = [part._own_events for part in parts]
    weighted = any(part.weighted for part in parts)
    if all(part.events is None for part in parts) and not weighted:
        return None
    timed = [side.times is not None for side in sides]
    ordered = [side.ordered for side in sides]
    for name, present in (("times were", timed), ("the order of events was", ordered)):
        if any(present) and not all(present):
            notes.append(f"{name} dropped from the union, because one side has none")
    typed = any(side.types is not None for side in sides)
    for at, side in enumerate(sides):
        changes: dict[str, Any] = {} if all(timed) else {"times": None}
        if weighted and side.weights is None:
            changes["weights"] = shares(parts[at].matrix, side)
        if typed and side.types is None:
            changes["types"] = np.full(side.n_events, NO_TYPE, np.int16)
        sides[at] = replace_fields(side, **changes)
    return joined(sides[0], sides[1], rows, n_users)


class Packed(NamedTuple):
    """Interactions as they are saved in a directory: settings, arrays and tables.

    The catalogue has the name that it had in the first version, labels.
    """

    meta: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]
    frames: dict[str, pl.DataFrame]


def pack(data: Interactions, prefix: str = "", like: Interactions | None = None) -> Packed:
    """Return the content to save, under names that start with `prefix`.

    Items and a catalogue that equal those of `like` are left out; `unpack` takes them from there.
    """
    arrays: dict[str, npt.NDArray[Any]] = {
        "indptr": data.matrix.indptr.astype(np.int64),
        "indices": data.matrix.indices.astype(np.int32, copy=False),
        # one number stands for all of them if every weight is 1
        "weights": data.matrix.data if (data.matrix.data != 1).any() else data.matrix.data[:1],
    }
    meta: dict[str, Any] = {
        "shape": [data.n_users, data.n_items],
        "signed": data.signed,
        "fingerprint": data.fingerprint,
    }
    events = data.events
    if events is not None and data._one_event_per_pair:
        assert data.times is not None
        arrays["times"] = data.times
    elif events is not None:
        arrays["events"] = events.items.astype(np.int32)
        arrays["offsets"] = events.offsets.astype(np.int64)
        for name in COLUMNS:
            column = getattr(events, name)
            if column is not None:
                arrays[f"event_{name}"] = column
        meta |= {"event_types": list(events.type_names), "ordered": events.ordered}
    frames = {"users": pl.DataFrame({"id": data.user_index.to_series()})}
    of_items = pack_items(data, like)
    meta |= of_items.meta
    frames |= of_items.frames
    return Packed(
        meta,
        {prefix + name: array for name, array in arrays.items()},
        {prefix + name: frame for name, frame in frames.items()},
    )


def pack_items(data: Interactions, like: Interactions | None = None) -> Packed:
    """Return what to save of the items: their ids, the catalogue, and the notes."""
    meta: dict[str, Any] = {"notes": list(data.notes), "labelled": data.catalogue is not None}
    frames: dict[str, pl.DataFrame] = {}
    if like is None or not like.item_index.same_as(data.item_index):
        frames["items"] = pl.DataFrame({"id": data.item_index.to_series()})
    known_items = data.known_items
    if known_items is not None:
        meta["attributes"] = dict(known_items.decided)
        if like is None or like.known_items is not known_items:
            frames["labels"] = known_items.frame
            if known_items.new_items is not None:
                frames["new_items"] = known_items.new_items
    return Packed(meta, {}, frames)


def unpack_items(stored: Stored, prefix: str, n_items: int) -> IdIndex:
    """Return the item ids that `pack_items` saved."""
    return IdIndex(_ids(stored.frame(f"{prefix}items", n_items)), "item")


def unpack_catalogue(stored: Stored, meta: Fields, prefix: str, n_items: int) -> Catalogue | None:
    """Return the catalogue that `pack_items` saved; None without one."""
    if f"{prefix}labels" not in stored.frames:
        return None
    frame = stored.frame(f"{prefix}labels", n_items)
    decided = meta.group("attributes") if "attributes" in meta else Fields({})
    kinds = {name: decided.text(name, KINDS) for name in decided}
    return Catalogue(frame, stored.frames.get(f"{prefix}new_items"), kinds)


def unpack(
    stored: Stored, meta: Fields, prefix: str = "", like: Interactions | None = None
) -> Interactions:
    """Rebuild interactions from the output of `pack`; any damage is a `DataError`."""
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
    times = events = None
    if f"{prefix}times" in stored.arrays:
        times = np.array(stored.finite(f"{prefix}times", pairs))
    if f"{prefix}offsets" in stored.arrays:
        events = _stored_events(stored, meta, prefix, n_users)
    catalogue = unpack_catalogue(stored, meta, prefix, n_items)
    if catalogue is None and like is not None and meta.flag("labelled"):
        catalogue = like.known_items
    items: Any = like.item_index if like is not None else None
    if like is None or f"{prefix}items" in stored.frames:
        items = unpack_items(stored, prefix, n_items)
    data = Interactions(
        matrix,
        _ids(stored.frame(f"{prefix}users", n_users)),
        items,
        times=times,
        catalogue=catalogue,
        events=events,
        notes=meta.texts("notes"),
        signed="signed" in meta and meta.flag("signed"),
    )
    if catalogue is not None:
        catalogue.check_new_items(data.item_index)
    if data.n_interactions != pairs[0]:
        raise FileFormatError("a user-item pair occurs twice or with a weight of 0")
    if meta.flag("labelled") != (data.catalogue is not None):
        raise FileFormatError(f"the field {meta.path + 'labelled'!r} does not fit its tables")
    return data


def _stored_events(stored: Stored, meta: Fields, prefix: str, n_users: int) -> Events:
    """Read the events of a directory; older versions saved only items and offsets."""
    offsets = np.array(stored.array(f"{prefix}offsets", (n_users + 1,), "i"))
    size = (int(offsets[-1]),)
    items = np.array(stored.array(f"{prefix}events", size, "i"))
    columns: dict[str, Any] = {}
    for name in ("times", "weights"):
        if f"{prefix}event_{name}" in stored.arrays:
            columns[name] = np.array(stored.finite(f"{prefix}event_{name}", size))
    if f"{prefix}event_types" in stored.arrays:
        columns["types"] = np.array(stored.array(f"{prefix}event_types", size, "i", sizes=(2,)))
    names = tuple(meta.texts("event_types")) if "event_types" in meta else ()
    ordered = meta.flag("ordered") if "ordered" in meta else True
    return Events(items, offsets, **columns, type_names=names, ordered=ordered)


def _restored(stored: Stored) -> Interactions:
    return unpack(stored, stored.meta)


def _ids(frame: pl.DataFrame) -> npt.NDArray[Any]:
    if "id" not in frame.columns or frame["id"].dtype not in (pl.Int64, pl.String):
        raise FileFormatError("a table of ids needs a column 'id' of integers or text")
    if frame["id"].null_count():
        raise FileFormatError("a table of ids holds empty ids")
    return frame["id"].to_numpy()
