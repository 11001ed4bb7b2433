"""Training data of a model that are not in memory: in blocks of users elsewhere, or nowhere.

A model ranks with counts and ids of items; it needs users only to answer them by id, to change or
to judge itself. `NotInMemory` knows the first, and reads the second where they are when they are
asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.data.catalogue import Catalogue
from equipoise.data.events import COLUMNS, Events
from equipoise.data.ids import CHECK, IdIndex, Unknown, as_list
from equipoise.data.interactions import (
    Interactions,
    Packed,
    pack_items,
    unpack_catalogue,
    unpack_items,
)
from equipoise.data.matrix import as_positions
from equipoise.data.storage import Fields, Stored
from equipoise.errors import FileFormatError, MissingDataError, TooBigError
from equipoise.runtime.machine import free_memory, gigabytes

Counts = npt.NDArray[np.int64]
Allocate = Callable[[Sequence[tuple[int, ...]], Sequence[np.dtype[Any]]], list[npt.NDArray[Any]]]

FORMS = ("with", "beside", "none")  # where the training data of a model are
MATRIX = ("data", "indices")  # arrays of a CSR matrix with one value per pair


@dataclass(frozen=True)
class Facts:
    """What a model knows about training data that are not in memory."""

    n_users: int
    n_interactions: int
    item_counts: Counts
    fingerprint: str
    weighted: bool = False
    signed: bool = False

    @classmethod
    def of(cls, data: Interactions) -> Facts:
        """Return the facts of any data."""
        names = ("n_users", "n_interactions", "item_counts", "fingerprint", "weighted", "signed")
        return cls(*(getattr(data, name) for name in names))


class Blocks(ABC):
    """Users of the data in blocks, whose items are known by position."""

    place: str  # where they are, in messages
    block_users: Counts  # number of users of each
    kind: type[pl.Int64] | type[pl.String]  # of the ids of users

    @abstractmethod
    def users(self, number: int) -> npt.NDArray[Any]:
        """Return the ids of the users of a block."""

    @abstractmethod
    def read(self, number: int, rows: npt.NDArray[np.int64] | None = None) -> Interactions:
        """Return the users of a block, or those at some ascending places of it."""

    @abstractmethod
    def write(self, place: str, token: str) -> list[dict[str, Any]]:
        """Write them to the folder or address of a model; return their entries in its manifest."""

    def may_hold(self, number: int, users: list[Any]) -> bool:
        """Whether a block may have one of these users."""
        return True

    def join(self, items: IdIndex, **parts: Any) -> Interactions:
        """Return all users."""
        return join_blocks(map(self.read, range(len(self.block_users))), items, **parts)


class NotInMemory(Interactions):
    """Training data whose users are in blocks elsewhere, or were left out.

    Parameters
    ----------
    facts
        Sizes and counts.
    items
        Raw item ids.
    blocks
        Where the users are; None if nowhere.
    catalogue, notes
        As of `Interactions`.
    """

    in_memory: ClassVar[bool] = False

    def __init__(
        self,
        facts: Facts,
        items: IdIndex,
        blocks: Blocks | None = None,
        *,
        catalogue: Catalogue | None = None,
        notes: Iterable[str] = (),
    ) -> None:
        self.facts, self.item_index, self.blocks = facts, items, blocks
        self.known_items, self.notes, self.signed = catalogue, tuple(notes), facts.signed
        self.item_counts, self.fingerprint = facts.item_counts, facts.fingerprint
        self.weighted = facts.weighted

    @property
    def n_users(self) -> int:
        """Number of users."""
        return self.facts.n_users

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.item_index)

    @property
    def n_interactions(self) -> int:
        """Number of user-item pairs."""
        return self.facts.n_interactions

    def _blocks_for(self, work: str) -> Blocks:
        if self.blocks is None:
            raise MissingDataError(
                f"the model was saved without its training data (data='none'), and {work} needs "
                "them; pass histories in place of user ids, or fit or save the model with "
                "data='with' or data='beside'"
            )
        return self.blocks

    def loaded(self, work: str) -> Interactions:
        """Return the data in memory; `work` is what needs them, for the error if there are none.

        They stay in memory as long as this object.
        """
        self._blocks_for(work)
        return self._loaded

    @cached_property
    def _loaded(self) -> Interactions:
        blocks = self._blocks_for("this call")
        data = blocks.join(self.item_index, catalogue=self.known_items, notes=self.notes)
        if data.n_users != self.n_users or data.n_interactions != self.n_interactions:
            raise FileFormatError(f"the blocks of users in {blocks.place} are not all of the data")
        return data

    @cached_property
    def matrix(self) -> Any:  # type: ignore[override]
        """The sparse matrix, users x items, in memory."""
        return self._loaded.matrix

    @cached_property
    def events(self) -> Events | None:  # type: ignore[override]
        """The events, in memory."""
        return self._loaded.events

    @cached_property
    def user_index(self) -> IdIndex:  # type: ignore[override]
        """The ids of all users, in memory."""
        if "_loaded" in vars(self):
            return self._loaded.user_index
        blocks = self._blocks_for("looking up users by id")
        ids = [blocks.users(number) for number in range(len(blocks.block_users))]
        return IdIndex(np.concatenate([no_ids(blocks.kind), *ids]), "user")

    @property
    def user_kind(self) -> type[pl.Int64] | type[pl.String]:
        """Type of a column of user ids."""
        return self._blocks_for("naming its users").kind

    def user_positions(
        self, users: Any, *, unknown: Unknown = "error", hint: str = CHECK
    ) -> npt.NDArray[np.int64]:
        """Return the positions of users by id; only the blocks that may have them are read."""
        blocks = self._blocks_for("recommending to users by id")
        if "_loaded" in vars(self) or "user_index" in vars(self):
            return super().user_positions(users, unknown=unknown, hint=hint)
        listed = as_list(users)
        ids_there, places = [no_ids(blocks.kind)], [np.empty(0, np.int64)]
        for number, start in enumerate(self._starts):
            if blocks.may_hold(number, listed):
                ids = blocks.users(number)
                there = np.unique(IdIndex(ids, "user").positions(listed, unknown="skip"))
                there = there[there >= 0]
                ids_there.append(ids[there])
                places.append(start + there)
        index = IdIndex(np.concatenate(ids_there), "user")
        at = index.positions(listed, unknown=unknown, hint=hint)
        return np.append(np.concatenate(places), -1)[at]

    def ids_of_users(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the ids of the users at these positions."""
        blocks = self._blocks_for("naming its users")
        if "_loaded" in vars(self) or "user_index" in vars(self):
            return super().ids_of_users(positions)
        out = np.empty(len(positions), no_ids(blocks.kind).dtype)
        block = np.searchsorted(self._starts, positions, side="right") - 1
        for number in np.unique(block).tolist():
            mask = block == number
            out[mask] = blocks.users(number)[positions[mask] - self._starts[number]]
        return out

    @property
    def _starts(self) -> list[int]:
        """The position of the first user of each block."""
        assert self.blocks is not None
        return [0, *accumulate(self.blocks.block_users.tolist())][:-1]

    def rows(self, positions: npt.ArrayLike) -> Interactions:
        """Return the users at these positions, from their blocks."""
        blocks = self._blocks_for("the rows of its users")
        if "_loaded" in vars(self):
            return self._loaded.rows(positions)
        where = as_positions(positions, self.n_users)
        order = np.argsort(where, kind="stable")
        ascending = where[order]
        ends = np.searchsorted(ascending, [*self._starts, self.n_users])
        spans = zip(self._starts, ends[:-1], ends[1:], strict=True)
        pieces = [
            blocks.read(number, ascending[low:high] - start)
            for number, (start, low, high) in enumerate(spans)
            if high > low
        ]
        if not pieces:
            pieces = [blocks.read(0, np.empty(0, np.int64))]
        rows = join_blocks(iter(pieces), self.item_index, catalogue=self.known_items)
        back = np.empty(len(where), np.int64)
        back[order] = np.arange(len(where))
        return rows if (np.diff(order) == 1).all() else rows.rows(back)

    def parts(self) -> Iterator[Interactions]:
        """Yield the users block by block."""
        blocks = self._blocks_for("a list for each of its users")
        if "_loaded" in vars(self):
            yield self._loaded
            return
        for number in range(len(blocks.block_users)):
            yield self.part(number)

    def part(self, number: int) -> Interactions:
        """Return the users of a block."""
        block = self._blocks_for("a list for each of its users").read(number)
        return join_blocks(iter([block]), self.item_index, catalogue=self.known_items)

    def with_new_items(self) -> Interactions:
        """Return the data with a column without events for each of `new_items`, at the end."""
        if self.known_items is None or self.new_items is None:
            return self
        index = self.item_index.extended(self.known_items.new_index.values)
        counts = np.zeros(len(index), np.int64)
        counts[: self.n_items] = self.item_counts
        return NotInMemory(
            replace(self.facts, item_counts=counts),
            index,
            self.blocks,
            catalogue=self.known_items.over(self.item_index, index),
            notes=self.notes,
        )

    def with_known_items(self, known_items: Catalogue | None) -> Interactions:
        """Return the same events with another `Catalogue`, at no cost."""
        out = super().with_known_items(known_items)
        out.__dict__.pop("_loaded", None)  # has the old one
        return out

    def forget(self) -> None:
        """Drop what was read from the blocks from memory."""
        for name in ("_loaded", "matrix", "events", "user_index"):
            self.__dict__.pop(name, None)

    def without_blocks(self) -> NotInMemory:
        """Return the facts alone."""
        return NotInMemory(
            self.facts, self.item_index, catalogue=self.known_items, notes=self.notes
        )

    def __repr__(self) -> str:
        place = "left out" if self.blocks is None else f"in {self.blocks.place}"
        return f"{super().__repr__()}, {place}"

    def _repr_html_(self) -> str:
        return repr(self)


def facts_of(data: Interactions, blocks: Blocks | None = None) -> NotInMemory:
    """Return data without their users, which are in these blocks, or nowhere."""
    out = NotInMemory(
        Facts.of(data), data.item_index, blocks, catalogue=data.known_items, notes=data.notes
    )
    return out


class Weighed(Blocks):
    """Data that signals have weighed, which takes all users at once."""

    def __init__(self, raw: NotInMemory, weigh: Callable[[Interactions], Interactions]) -> None:
        blocks = raw._blocks_for("the values of its users")
        self._raw, self._weigh, self.place, self.kind = raw, weigh, blocks.place, blocks.kind
        self.block_users = np.array([raw.n_users])

    @cached_property
    def _weighed(self) -> Interactions:
        return self._weigh(self._raw.loaded("signals"))

    def users(self, number: int) -> npt.NDArray[Any]:
        """Return the ids of the users of a block."""
        return self._raw.users

    def read(self, number: int, rows: npt.NDArray[np.int64] | None = None) -> Interactions:
        """Return the users of a block, or those at some ascending places of it."""
        return self._weighed if rows is None else self._weighed.rows(rows)

    def join(self, items: IdIndex, **parts: Any) -> Interactions:
        """Return all users."""
        return self._weighed

    def write(self, place: str, token: str) -> list[dict[str, Any]]:
        """Refuse: a model saves its data as they were before."""
        raise NotImplementedError


def no_ids(kind: type[pl.Int64] | type[pl.String]) -> npt.NDArray[Any]:
    """Return an empty array of ids of a kind."""
    return np.empty(0, np.int64 if kind is pl.Int64 else object)


def entry_columns(block: Interactions) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays with one value per pair, and those with one per event."""
    columns = {name: getattr(block.matrix, name) for name in MATRIX}
    if block.events is not None:
        events = {name: getattr(block.events, name) for name in ("items", *COLUMNS)}
        columns |= {name: column for name, column in events.items() if column is not None}
    return columns


def join_blocks(
    blocks: Iterator[Interactions],
    items: IdIndex,
    *,
    catalogue: Catalogue | None = None,
    notes: Iterable[str] = (),
    sizes: tuple[int, int] | None = None,
    allocate: Allocate | None = None,
) -> Interactions:
    """Return consecutive blocks of users as one matrix over these items.

    With `sizes`, numbers of pairs and events, blocks are copied one by one into arrays that
    `allocate` gives; without, all blocks are in memory together.
    """
    first = next(blocks)
    if sizes is None:
        all_blocks = [first, *blocks]
        if len(all_blocks) == 1 and first.n_items == len(items):
            return _over(first, items, catalogue, notes)
        n_events = sum(
            0 if block.events is None else block.events.n_events for block in all_blocks
        )
        sizes = sum(block.n_interactions for block in all_blocks), n_events
        first, blocks = all_blocks[0], iter(all_blocks[1:])
    n_pairs, n_events = sizes
    dtypes = {name: column.dtype for name, column in entry_columns(first).items()}
    # SciPy copies the indices where their type differs from that of indptr
    index_type = np.int32 if n_pairs <= np.iinfo(np.int32).max else np.int64
    dtypes["indices"] = np.dtype(index_type)
    lengths = [n_pairs if name in MATRIX else n_events for name in dtypes]
    make = allocate or _in_memory
    arrays = make([(length,) for length in lengths], list(dtypes.values()))
    columns: dict[str, Any] = dict(zip(dtypes, arrays, strict=True))
    ends = dict.fromkeys(columns, 0)
    users, pair_counts, event_counts, signed = [], [], [], False
    block: Interactions | None = first
    while block is not None:
        for name, column in entry_columns(block).items():
            start, ends[name] = ends[name], ends[name] + len(column)
            columns[name][start : ends[name]] = column
        users.append(block.users)
        signed |= block.signed
        pair_counts.append(np.diff(block.matrix.indptr))
        if block.events is not None:
            event_counts.append(block.events.lengths)
        block = next(blocks, None)
    indptr = _offsets(np.concatenate(pair_counts)).astype(index_type)
    shape = len(indptr) - 1, len(items)
    matrix: Any = sp.csr_array((columns.pop("data"), columns.pop("indices"), indptr), shape=shape)
    events = first.events
    if events is not None:
        events = replace(events, offsets=_offsets(np.concatenate(event_counts)), **columns)
    return Interactions(
        matrix,
        np.concatenate(users),
        items,
        catalogue=catalogue,
        events=events,
        notes=notes,
        signed=signed,
    )


def _over(
    block: Interactions, items: IdIndex, catalogue: Catalogue | None, notes: Iterable[str]
) -> Interactions:
    return Interactions(
        block.matrix,
        block.user_index,
        items,
        catalogue=catalogue,
        events=block.events,
        notes=notes,
        signed=block.signed,
    )


def _offsets(lengths: npt.NDArray[Any]) -> Counts:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _in_memory(
    shapes: Sequence[tuple[int, ...]], dtypes: Sequence[np.dtype[Any]]
) -> list[npt.NDArray[Any]]:
    needed = sum(shape[0] * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True))
    if needed > free_memory():
        raise TooBigError(
            f"the training data need {gigabytes(needed)} of memory and "
            f"{gigabytes(free_memory())} is free; use a machine with more memory, or call what "
            "needs no users, such as recommend with histories"
        )
    return [np.empty(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]


def pack_facts(data: Interactions, prefix: str) -> Packed:
    """Return what to save of data without their users; see `unpack_facts`."""
    items = pack_items(data)
    meta = {
        **items.meta,
        "items": data.n_items,
        "users": data.n_users,
        "interactions": data.n_interactions,
        "weighted": data.weighted,
        "fingerprint": data.fingerprint,
        "signed": data.signed,
    }
    return Packed(
        meta,
        {f"{prefix}item_counts": data.item_counts.astype(np.int64)},
        {prefix + name: frame for name, frame in items.frames.items()},
    )


def unpack_facts(
    stored: Stored,
    meta: Fields,
    prefix: str,
    blocks: Blocks | None,
    like: Interactions | None = None,
) -> NotInMemory:
    """Return the data of `pack_facts`, whose users are in these blocks; damage is an error.

    The items are those of `like` where it is given.
    """
    n_items = meta.whole_number("items")
    items = unpack_items(stored, prefix, n_items) if like is None else like.item_index
    counts = np.array(stored.array(f"{prefix}item_counts", (n_items,), "i", sizes=(8,)))
    facts = Facts(
        meta.whole_number("users"),
        meta.whole_number("interactions"),
        counts,
        meta.text("fingerprint"),
        meta.flag("weighted"),
        meta.flag("signed"),
    )
    if (counts < 0).any() or (not facts.signed and counts.sum() != facts.n_interactions):
        raise FileFormatError("its counts of users per item do not fit the number of pairs")
    if blocks is not None and int(blocks.block_users.sum()) != facts.n_users:
        raise FileFormatError("its blocks of users do not have all users")
    catalogue = (
        unpack_catalogue(stored, meta, prefix, n_items) if like is None else like.known_items
    )
    if catalogue is not None:
        catalogue.check_new_items(items)
    if meta.flag("labelled") != (catalogue is not None):
        raise FileFormatError(f"the field {meta.path + 'labelled'!r} does not fit its tables")
    return NotInMemory(facts, items, blocks, catalogue=catalogue, notes=meta.texts("notes"))


def form_of(data: Interactions) -> str:
    """Return where the users of the data are, as an element of `FORMS`."""
    if data.in_memory:
        return "with"
    assert isinstance(data, NotInMemory)
    return "none" if data.blocks is None else "beside"
