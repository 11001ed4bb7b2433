"""`Partitioned`: interactions that workers hold, block by block of users."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.checks import choice, count
from equipoise.cluster.room import rooms
from equipoise.cluster.workers import FAN_IN, Ahead, reduced, results, same, submit, task
from equipoise.data import split as splits
from equipoise.data.events import COLUMNS
from equipoise.data.ids import IdIndex
from equipoise.data.interactions import Interactions, core_note
from equipoise.data.statistics import (
    Statistics,
    check_delta,
    draw_items,
    many_pairs,
    pair_ratio,
    pair_sums,
    sampled_ratio,
    statistics_of,
)
from equipoise.errors import DataError, SettingError

Counts = npt.NDArray[np.int64]

PROTOCOLS = ("strong", "weak", "leave_last_out", "time_cut", "sessions")
STRIP = 512  # items at most whose shared users are counted at a time
STRIP_ENTRIES = 32_000_000  # counts of shared users that a task makes at most
MATRIX = ("data", "indices")  # values of a sparse matrix, one for each pair


class Partitioned:
    """Interactions on a cluster: users x items, a block of users on a worker.

    Rows and columns are those of the same data on one machine. `equipoise.cluster.read` makes it.

    Parameters
    ----------
    client
        Client of the cluster.
    blocks
        Futures of `Interactions` of consecutive users, over the positions of the items.
    items
        Raw item ids.
    block_users
        Number of users of each block.
    n_interactions
        Number of user-item pairs.
    labels, notes
        As of `Interactions`.
    name
        How messages call the data.
    """

    def __init__(
        self,
        client: Any,
        blocks: Sequence[Any],
        items: npt.NDArray[Any],
        block_users: Counts,
        n_interactions: int,
        *,
        labels: pl.DataFrame | None = None,
        notes: Sequence[str] = (),
        name: str = "the data",
    ) -> None:
        self.client, self.blocks, self.items = client, list(blocks), items
        self.block_users, self.n_interactions = block_users, n_interactions
        self.labels, self.notes, self.name = labels, tuple(notes), name

    @property
    def n_users(self) -> int:
        """Number of rows."""
        return int(self.block_users.sum())

    @property
    def n_items(self) -> int:
        """Number of columns."""
        return len(self.items)

    @property
    def density(self) -> float:
        """Share of the matrix that is filled."""
        return self.n_interactions / max(self.n_users * self.n_items, 1)

    @cached_property
    def item_counts(self) -> Counts:
        """Number of users of each item."""
        counts = [submit(self.client, item_counts_of, block) for block in self.blocks]
        found: Counts = results(self.client, reduced(self.client, total, counts))
        return found

    @cached_property
    def user_counts(self) -> Counts:
        """Number of items of each user."""
        counts = [submit(self.client, user_counts_of, block) for block in self.blocks]
        return np.concatenate(results(self.client, counts))

    def describe(self, *, delta: float = 1.5, exact: bool | None = None) -> Statistics:
        """Return what `equipoise.describe` says of the same data; options as there."""
        check_delta(delta)
        if exact is None:
            exact = not many_pairs(self.user_counts)
        if exact:
            sums = self._pair_sums(np.arange(self.n_items), delta, whole=False)
            return statistics_of(self, pair_ratio(sums), delta)
        drawn, chance = draw_items(self.item_counts)
        items, place = np.unique(drawn, return_inverse=True)
        sums = self._pair_sums(items, delta, whole=True)
        ratio, *interval = sampled_ratio(sums / chance[items], place)
        return statistics_of(self, ratio, delta, interval)

    def _pair_sums(
        self, items: npt.NDArray[np.int64], delta: float, *, whole: bool
    ) -> npt.NDArray[np.float64]:
        """Count the users that items share with others, some items at a time, and weigh them."""
        counts, ahead = submit(self.client, same, self.item_counts), Ahead(self.client)
        step = max(min(STRIP, STRIP_ENTRIES // max(self.n_items, 1)), 1)
        sums = []
        for at in range(0, len(items), step):
            some = items[at : at + step]
            shared = [submit(self.client, shared_users, block, some) for block in self.blocks]
            found = reduced(self.client, total, shared)
            sums.append(submit(self.client, strip_sums, found, some, counts, delta, whole))
            ahead.begun(sums[-1])
        return np.concatenate(results(self.client, sums), axis=1)

    def filter(self, *, min_user: int = 0, min_item: int = 0) -> Partitioned:
        """Keep users with `min_user` items and items with `min_item` users, until both hold."""
        count("min_user", min_user, 0)
        count("min_item", min_item, 0)
        fine = np.ones(self.n_items, bool)
        while True:
            held = submit(self.client, same, fine)
            counted = [
                submit(self.client, core_counts, block, held, min_user) for block in self.blocks
            ]
            left: Counts = results(self.client, reduced(self.client, total, counted))
            still = fine & (left >= min_item)
            if (still == fine).all():
                break
            fine = still
        if not left.any():
            asked = f"min_user={min_user} and min_item={min_item}"
            raise DataError(f"nothing is left with {asked}; lower them")
        blocks = [submit(self.client, core_of, block, held, min_user) for block in self.blocks]
        users = results(self.client, [submit(self.client, n_users_of, each) for each in blocks])
        full = [at for at, size in enumerate(users) if size]
        kept = Partitioned(
            self.client,
            [blocks[at] for at in full],
            self.items[fine],
            np.array([users[at] for at in full], np.int64),
            int(left.sum()),
            labels=None if self.labels is None else self.labels.filter(pl.Series(fine)),
            notes=self.notes,
            name=self.name,
        )
        gone = (self.n_users - kept.n_users, self.n_items - kept.n_items)
        if any(gone):
            kept.notes += (core_note(min_user, min_item, *gone),)
        return kept

    def split(self, protocol: str = "strong", *, where: str = "here", **settings: Any) -> Any:
        """Return the split that ``equipoise.data.split`` makes of the same data.

        Parameters
        ----------
        protocol
            A function of `equipoise.data.split`: "strong", "weak", "leave_last_out", "time_cut" or
            "sessions".
        where
            "here" gathers the data and gives a `Split`. "workers", for "strong", leaves train and
            parts where they are: `fit` and `evaluate` of `equipoise.cluster` take them.
        **settings
            Those of the function.
        """
        choice("protocol", protocol, PROTOCOLS)
        choice("where", where, ("here", "workers"))
        if where == "here":
            return getattr(splits, protocol)(self.gather(), **settings)
        if protocol != "strong":
            raise SettingError(f"where='workers' is for 'strong', not {protocol!r}; use 'here'")
        from equipoise.cluster.parts import strong

        return strong(self, **settings)

    def gather(self, scratch: str | os.PathLike[str] | None = None) -> Interactions:
        """Return the data on this machine, as `equipoise.read` gives them.

        Blocks come a few at a time. Where the whole does not fit into memory it is written to
        files that are mapped, in `scratch` or in the folder for temporary files, and that are gone
        with the data.
        """
        first = results(self.client, self.blocks[0])
        sizes = results(self.client, [submit(self.client, sizes_of, each) for each in self.blocks])
        n_pairs, n_events = (int(each) for each in np.sum(sizes, axis=0))
        names = {name: each.dtype for name, each in _columns(first).items()}
        names["indices"] = index_type(n_pairs)
        lengths = [n_pairs if name in MATRIX else n_events for name in names]
        whole = dict(
            zip(
                names, rooms(list(zip(lengths, names.values(), strict=True)), scratch), strict=True
            )
        )
        at = dict.fromkeys(whole, 0)
        kept: list[list[Any]] = [[], [], []]
        for start in range(0, len(self.blocks), FAN_IN):
            for block in results(self.client, self.blocks[start : start + FAN_IN]):
                for name, part in _columns(block).items():
                    whole[name][at[name] : at[name] + len(part)] = part
                    at[name] += len(part)
                kept[0].append(block.users)
                kept[1].append(np.diff(block.matrix.indptr))
                kept[2].append([] if block.events is None else block.events.lengths)
        users, *counts = (np.concatenate(each) for each in kept)
        starts, offsets = (
            np.concatenate([[0], np.cumsum(each, dtype=np.int64)]) for each in counts
        )
        matrix = sp.csr_array(
            (whole.pop("data"), whole.pop("indices"), starts.astype(names["indices"])),
            shape=(len(users), self.n_items),
        )
        events = first.events
        if events is not None:
            events = replace(events, offsets=offsets, **whole)
        return Interactions(
            matrix, users, self.items, labels=self.labels, events=events, notes=self.notes
        )

    def __repr__(self) -> str:
        size = f"{self.n_users:,} users x {self.n_items:,} items"
        held = f"{self.n_interactions:,} interactions in {len(self.blocks)} blocks"
        return f"Partitioned: {size}, {held}"


def stacked(matrices: list[Any]) -> Any:
    """Put matrices of consecutive users below one another."""
    data, indices = (
        np.concatenate([getattr(each, part) for each in matrices]) for part in ("data", "indices")
    )
    lengths = np.concatenate([[0], *(np.diff(each.indptr) for each in matrices)])
    starts = np.cumsum(lengths, dtype=index_type(len(data)))
    shape = (len(starts) - 1, matrices[0].shape[1])
    return sp.csr_array((data, indices, starts), shape=shape)


def index_type(n_pairs: int) -> np.dtype[Any]:
    """Return the type of all indices of so many pairs: SciPy copies where there are two."""
    return np.dtype(np.int32 if n_pairs <= np.iinfo(np.int32).max else np.int64)


def _columns(block: Interactions) -> dict[str, npt.NDArray[Any]]:
    """Return the values of a matrix and the columns of its events."""
    found = {name: getattr(block.matrix, name) for name in MATRIX}
    if block.events is not None:
        named = {name: getattr(block.events, name) for name in ("items", *COLUMNS)}
        found |= {name: each for name, each in named.items() if each is not None}
    return found


def sizes_of(block: Interactions) -> tuple[int, int]:
    """Return the numbers of pairs and of events of a block."""
    return block.n_interactions, 0 if block.events is None else block.events.n_events


def with_ids(block: Interactions, items: IdIndex) -> Interactions:
    """Return a block whose items have their ids."""
    return Interactions(
        block.matrix, block.user_index, items, events=block.events, signed=block.signed
    )


@task
def item_counts_of(block: Interactions) -> Counts:
    """Return the users of each item of a block."""
    return block.item_counts


@task
def user_counts_of(block: Interactions) -> Counts:
    """Return the items of each user of a block."""
    return block.user_counts


def n_users_of(block: Interactions) -> int:
    """Return the number of users of a block."""
    return block.n_users


@task
def total(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the sum of arrays, one after another."""
    out = arrays[0].copy()
    for each in arrays[1:]:
        out += each
    return out


@task
def shared_users(block: Interactions, items: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Count the users that each of these items shares with each item."""
    used: Any = block.matrix.astype(np.int32)
    used.data[:] = 1
    found: npt.NDArray[np.int32] = (used[:, items].T @ used).toarray()
    return found


@task
def strip_sums(
    shared: npt.NDArray[np.int32],
    items: npt.NDArray[np.int64],
    counts: Counts,
    delta: float,
    whole: bool,
) -> npt.NDArray[np.float64]:
    """Return the sums of `pair_sums` for these items."""
    return pair_sums(shared, items, counts, delta, whole=whole)


def _core(block: Interactions, fine: npt.NDArray[np.bool_], min_user: int) -> tuple[Any, Any]:
    """Return which users have enough fine items, and the rows and items of the pairs left."""
    rows = np.repeat(np.arange(block.n_users), np.diff(block.matrix.indptr))
    kept = fine[block.matrix.indices]
    users = np.bincount(rows[kept], minlength=block.n_users) >= min_user
    return users, block.matrix.indices[kept & users[rows]]


@task
def core_counts(block: Interactions, fine: npt.NDArray[np.bool_], min_user: int) -> Counts:
    """Count the users of each fine item, among those who have enough of them."""
    return np.bincount(_core(block, fine, min_user)[1], minlength=block.n_items).astype(np.int64)


@task
def core_of(block: Interactions, fine: npt.NDArray[np.bool_], min_user: int) -> Interactions:
    """Return the fine items and the users who have enough of them."""
    kept = block.rows(_core(block, fine, min_user)[0]).columns(fine)
    return Interactions(kept.matrix, kept.user_index, events=kept.events)
