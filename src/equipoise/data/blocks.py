"""Blocks of users as Parquet files beside a saved model.

A file has a row for each user: the id, and lists of the positions of the items, of the weights
where they are not all 1, and of what the events add. The manifest of the model lists the files
with their checksums, their numbers of users and the range of their ids.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.checks import is_address
from equipoise.data.events import COLUMNS, Events
from equipoise.data.ids import IdIndex, id_key
from equipoise.data.interactions import Interactions
from equipoise.data.remote import (
    local_copy,
    make_folder,
    open_filesystem,
    translate_remote,
)
from equipoise.data.storage import Fields, checked_file, file_entry
from equipoise.data.training import Blocks
from equipoise.errors import FileFormatError, MissingDataError

BLOCK_PAIRS = 4_000_000  # user-item pairs of a file that this machine writes
KINDS: dict[str, type[pl.Int64] | type[pl.String]] = {"integer": pl.Int64, "text": pl.String}
USER, ITEMS, WEIGHTS, EVENT = "user", "items", "weights", "event_"

Entry = dict[str, Any]


def block_name(number: int) -> str:
    """Return the name of the file of a block, without the part that tells saves apart."""
    return f"block_{number:06d}"


def write_block(place: str, number: int, token: str, block: Interactions) -> Entry:
    """Write a block of users to a folder or an address; return its entry in the manifest.

    The file appears when it is complete.
    """
    name = f"{block_name(number)}-{token}.parquet"
    frame = _frame(block)
    if is_address(place):
        with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
            copy = Path(folder) / name
            frame.write_parquet(copy, compression="lz4")
            entry = file_entry(copy)
            system, root = open_filesystem(place)
            with translate_remote(f"{place}/{name} cannot be written"):
                make_folder(system, root)
                system.put_file(str(copy), f"{root}/{name}")
    else:
        partial = Path(place) / f".{name}.{secrets.token_hex(6)}"
        frame.write_parquet(partial, compression="lz4")
        entry = file_entry(partial)
        os.replace(partial, Path(place) / name)
    events = block.events
    return {
        **entry,
        "file": name,
        "users": block.n_users,
        "pairs": block.n_interactions,
        "events": 0 if events is None else events.n_events,
        "kind": block.user_index.kind_name,
        "ids": span_of(block.user_index),
        "signed": block.signed,
        "event_types": [] if events is None else list(events.type_names),
        "ordered": events is not None and events.ordered,
    }


def write_blocks(place: str, token: str, data: Interactions) -> list[Entry]:
    """Write all users of data, block by block."""
    entries: list[Entry] = []
    for part in data.parts():
        pairs = part.matrix.indptr
        n_blocks = -(-part.n_interactions // BLOCK_PAIRS) or 1
        cuts = np.searchsorted(pairs, np.linspace(0, int(pairs[-1]), n_blocks + 1)[1:-1])
        edges = np.unique([0, *cuts.tolist(), part.n_users])
        for low, high in pairwise(edges.tolist()):
            block = part if n_blocks == 1 else part.rows(np.arange(low, high))
            entries.append(write_block(place, len(entries), token, block))
    return entries


class SavedBlocks(Blocks):
    """The files of a saved model.

    Parameters
    ----------
    place
        Folder or address of the model.
    entries
        Those of the manifest.
    """

    def __init__(self, place: str, entries: Sequence[Fields]) -> None:
        self.place = place.rstrip("/") if is_address(place) else str(Path(place).absolute())
        self.entries = list(entries)
        self.block_users = np.array([entry.whole_number("users") for entry in entries], np.int64)
        kinds = {entry.text("kind", KINDS) for entry in entries}
        if len(kinds) > 1:
            raise FileFormatError("its blocks of users have ids of two kinds")
        self.kind = KINDS[next(iter(kinds), "integer")]
        self._cached: tuple[int, npt.NDArray[Any]] = -1, np.empty(0)  # the last users

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of pairs and of events of all blocks."""
        pairs, events = (
            sum(e.whole_number(name) for e in self.entries) for name in ("pairs", "events")
        )
        return pairs, events

    @contextmanager
    def _opened(self, number: int) -> Iterator[Path]:
        """Give the path of a checked file, or of a copy of it."""
        entry = self.entries[number]
        name = entry.text("file")
        if not is_address(self.place):
            if not (Path(self.place) / name).exists():
                raise MissingDataError(
                    f"{self.place} has no {name}: the model was saved again, or its blocks of "
                    "users were removed; load it again, or restore them"
                )
            yield checked_file(Path(self.place), block_name(number), entry, verify=False)
            return
        with local_copy(f"{self.place}/{name}") as copy:
            yield checked_file(copy.parent, block_name(number), entry, verify=False)

    def check(self) -> None:
        """Check every byte of all files against its checksum."""
        for number, entry in enumerate(self.entries):
            with self._opened(number) as file:
                checked_file(file.parent, block_name(number), entry, verify=True)

    def may_hold(self, number: int, users: list[Any]) -> bool:
        """Whether a block may have one of these users."""
        span = self.entries[number].get("ids")
        return is_between(span if isinstance(span, list) else [], users, self.kind)

    def users(self, number: int) -> npt.NDArray[Any]:
        """Return the ids of the users of a block."""
        cached, ids = self._cached
        if cached != number:
            with self._opened(number) as file:
                ids = _ids(_read(file, [USER]), self.kind)
            self._cached = number, ids
        return ids

    def read(self, number: int, rows: npt.NDArray[np.int64] | None = None) -> Interactions:
        """Return the users of a block, or those at some ascending places of it."""
        entry = self.entries[number]
        with self._opened(number) as file:
            if rows is None:
                frame = _read(file)
            else:
                low, high = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
                frame = _read(file, span=(low, high))[rows - low]
        if rows is None and frame.height != entry.whole_number("users"):
            raise FileFormatError(f"{entry['file']} does not have the users of the manifest")
        return _block(frame, entry, self.kind)

    def write(self, place: str, token: str) -> list[Entry]:
        """Copy the files to another model; in the same place they stay as they are."""
        if place == self.place or str(Path(place).absolute()) == self.place:
            return [dict(entry) for entry in self.entries]
        numbers = range(len(self.entries))
        return [write_block(place, number, token, self.read(number)) for number in numbers]

    def join(self, items: Any, **parts: Any) -> Interactions:
        """Return all users."""
        return super().join(items, sizes=self.sizes, **parts)


def span_of(users: IdIndex) -> list[Any]:
    """Return the first and the last id in the order of ids; nothing without ids."""
    ids = users.to_series()
    return [] if ids.is_empty() else [ids.min(), ids.max()]


def is_between(span: list[Any], users: list[Any], kind: Any) -> bool:
    """Whether one of these users, as ids of this kind, lies in a span of ids."""
    if len(span) != 2:
        return False
    low, high = span
    try:
        keys = (id_key(user) for user in users)
        return any(low <= (int(key) if kind is pl.Int64 else key) <= high for key in keys)
    except (TypeError, ValueError):  # an id of another kind
        return True


def _read(
    file: Path, columns: list[str] | None = None, span: tuple[int, int] | None = None
) -> pl.DataFrame:
    try:
        frame = pl.scan_parquet(file, glob=False)
        frame = frame if columns is None else frame.select(columns)
        frame = frame if span is None else frame.slice(span[0], span[1] - span[0])
        return frame.collect()
    except (Exception, pl.exceptions.PanicException) as error:
        raise FileFormatError(f"{file} cannot be read: {error}") from error


def _frame(block: Interactions) -> pl.DataFrame:
    X, events = block.matrix, block.events
    columns: dict[str, npt.NDArray[Any]] = {ITEMS: X.indices.astype(np.int32, copy=False)}
    if (X.data != 1).any():
        columns[WEIGHTS] = X.data
    lists = [_lists(np.diff(X.indptr), columns)]
    if events is not None:
        columns = {f"{EVENT}items": events.items.astype(np.int32, copy=False)}
        for name in COLUMNS:
            column = getattr(events, name)
            if column is not None:
                columns[EVENT + name] = column
        lists.append(_lists(events.lengths, columns))
    return pl.concat(
        [block.user_index.to_series().alias(USER).to_frame(), *lists], how="horizontal"
    )


def _lists(lengths: npt.NDArray[Any], columns: Mapping[str, npt.NDArray[Any]]) -> pl.DataFrame:
    """Return columns of lists of these lengths, whose entries follow one another."""
    rows = np.arange(len(lengths), dtype=np.int64)
    place = pl.Series(np.repeat(rows, lengths)).set_sorted()
    entries = pl.DataFrame({"row": place, **columns})
    lists = entries.group_by("row", maintain_order=True).agg(*columns)
    joined = pl.DataFrame({"row": rows}).join(lists, on="row", how="left", maintain_order="left")
    return joined.select(pl.col(*columns).fill_null([]))


def _block(frame: pl.DataFrame, entry: Fields, kind: Any) -> Interactions:
    """Return the users of a table, whose items are known by position."""
    name = entry.text("file")
    lengths, columns = _entries(frame, [ITEMS, WEIGHTS], name)
    items = columns[ITEMS].astype(np.int32, copy=False)
    weights = columns.get(WEIGHTS, np.ones(len(items), np.float32))
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    n_items = int(items.max(initial=-1)) + 1
    events = None
    if f"{EVENT}items" in frame.columns:
        names = [EVENT + column for column in ("items", *COLUMNS)]
        lengths, values = _entries(frame, names, name)
        more = {column: values.get(EVENT + column) for column in COLUMNS}
        event_offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        types = tuple(entry.texts("event_types"))
        events = Events(
            values[f"{EVENT}items"].astype(np.int32, copy=False),
            event_offsets,
            **more,
            type_names=types,
            ordered=entry.flag("ordered"),
        )
        n_items = max(n_items, int(events.items.max(initial=-1)) + 1)
    if items.min(initial=0) < 0:
        raise FileFormatError(f"{name} has a negative position of an item")
    if offsets[-1] <= np.iinfo(np.int32).max:
        offsets = offsets.astype(np.int32)
    matrix: Any = sp.csr_array((weights, items, offsets), shape=(len(offsets) - 1, n_items))
    return Interactions(matrix, _ids(frame, kind), events=events, signed=entry.flag("signed"))


def _entries(
    frame: pl.DataFrame, names: list[str], file: str
) -> tuple[npt.NDArray[np.int64], dict[str, npt.NDArray[Any]]]:
    """Return the lengths of lists, and the entries of those columns that are there."""
    names = [name for name in names if name in frame.columns]
    if not names or not all(isinstance(frame.schema[name], pl.List) for name in names):
        raise FileFormatError(f"{file} has no lists of items")
    lengths = frame[names[0]].list.len().fill_null(0).to_numpy().astype(np.int64)
    columns = {}
    for name in names:
        series = frame[name]
        if (series.list.len().fill_null(0).to_numpy() != lengths).any():
            raise FileFormatError(f"{file} has lists of different lengths for a user")
        columns[name] = np.array(series.filter(pl.Series(lengths > 0)).explode().to_numpy())
    return lengths, columns


def _ids(frame: pl.DataFrame, kind: Any) -> npt.NDArray[Any]:
    if USER not in frame.columns or frame.schema[USER] != kind or frame[USER].null_count():
        raise FileFormatError("a block of users has no column of their ids")
    return frame[USER].to_numpy()
