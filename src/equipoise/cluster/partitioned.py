"""`Partitioned`: interactions on the workers of a cluster, in blocks of users."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.checks import choice, count
from equipoise.cluster.allocation import allocate
from equipoise.cluster.workers import (
    FAN_IN,
    Throttle,
    fetch,
    reduce_tree,
    send,
    submit,
    submit_each,
    task,
)
from equipoise.data import split as splits
from equipoise.data.catalogue import Catalogue
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
from equipoise.data.training import join_blocks
from equipoise.errors import DataError, SettingError
from equipoise.solve.blocked import strips

Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

PROTOCOLS = ("strong", "weak", "leave_last_out", "time_cut", "sessions")
STRIP = 512  # items at most whose shared users are counted at a time
STRIP_ENTRIES = 32_000_000  # counts of shared users that a task makes at most


class Partitioned:
    """Interactions on a cluster: users x items, in blocks of users that workers hold.

    Rows and columns are those of the same data on one machine. `equipoise.cluster.read` makes it.

    Parameters
    ----------
    client
        Client of the cluster.
    blocks
        Futures of `Interactions` of consecutive users, whose item ids are positions.
    items
        Raw item ids.
    block_users
        Number of users of each block.
    n_interactions
        Number of user-item pairs.
    catalogue, notes
        As of `Interactions`.
    name
        Name of the data in messages.
    """

    def __init__(
        self,
        client: Any,
        blocks: Sequence[Any],
        items: npt.NDArray[Any],
        block_users: Counts,
        n_interactions: int,
        *,
        catalogue: Catalogue | None = None,
        notes: Sequence[str] = (),
        name: str = "the data",
    ) -> None:
        self.client, self.blocks, self.items = client, list(blocks), items
        self.block_users, self.n_interactions = block_users, n_interactions
        self.known_items, self.notes, self.name = catalogue, tuple(notes), name

    @property
    def catalogue(self) -> pl.DataFrame | None:
        """The attributes of the items, as of `Interactions`."""
        return None if self.known_items is None else self.known_items.frame

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
        return fetch_sum(self.client, self.map_blocks(getattr, "item_counts"))

    @cached_property
    def user_counts(self) -> Counts:
        """Number of items of each user."""
        return np.concatenate(fetch(self.client, self.map_blocks(getattr, "user_counts")))

    def map_blocks(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Return the futures of a function of each block."""
        return submit_each(self.client, function, self.blocks, *args)

    def with_blocks(self, blocks: list[Any], items: npt.NDArray[Any]) -> Partitioned:
        """Return data of other blocks and items; blocks without users are left out."""
        sizes = np.array(fetch(self.client, submit_each(self.client, block_sizes, blocks)))
        filled = np.flatnonzero(sizes[:, 0])
        blocks = [blocks[number] for number in filled]
        users, pairs, _ = sizes[filled].T
        return Partitioned(self.client, blocks, items, users, int(pairs.sum()), name=self.name)

    def describe(self, *, delta: float = 1.5, exact: bool | None = None) -> Statistics:
        """Return the statistics that `equipoise.describe` gives; options as there."""
        check_delta(delta)
        if exact is None:
            exact = not many_pairs(self.user_counts)
        if exact:
            sums = self._pair_sums(np.arange(self.n_items), delta, all_pairs=False)
            return statistics_of(self, pair_ratio(sums), delta)
        drawn, chance = draw_items(self.item_counts)
        items, place = np.unique(drawn, return_inverse=True)
        sums = self._pair_sums(items, delta, all_pairs=True)
        ratio, *interval = sampled_ratio(sums / chance[items], place)
        return statistics_of(self, ratio, delta, interval)

    def _pair_sums(
        self, items: npt.NDArray[np.int64], delta: float, *, all_pairs: bool
    ) -> npt.NDArray[np.float64]:
        """Return the sums of `pair_sums` for these items, computed in strips of items."""
        counts, throttle = send(self.client, self.item_counts), Throttle(self.client)
        width = max(min(STRIP, STRIP_ENTRIES // max(self.n_items, 1)), 1)
        sums = []
        for low, high in strips((0, len(items)), width):
            strip = items[low:high]
            blocks = self.map_blocks(count_shared_users, strip)
            shared = reduce_tree(self.client, add_arrays, blocks)
            sums.append(submit(self.client, sum_strip, shared, strip, counts, delta, all_pairs))
            throttle.add(sums[-1])
        return np.concatenate(fetch(self.client, sums), axis=1)

    def filter(self, *, min_user: int = 0, min_item: int = 0) -> Partitioned:
        """Keep users with `min_user` items and items with `min_item` users, until both hold."""
        count("min_user", min_user, 0)
        count("min_item", min_item, 0)
        core_items = np.ones(self.n_items, bool)
        while True:
            flags = send(self.client, core_items)
            counts = fetch_sum(self.client, self.map_blocks(count_core, flags, min_user))
            smaller = core_items & (counts >= min_item)
            if (smaller == core_items).all():
                break
            core_items = smaller
        if not counts.any():
            limits = f"min_user={min_user} and min_item={min_item}"
            raise DataError(f"nothing is left with {limits}; lower them")
        blocks = self.map_blocks(take_core, flags, min_user)
        core = self.with_blocks(blocks, self.items[core_items])
        core.known_items, core.notes = self.take_catalogue(core_items), self.notes
        removed = (self.n_users - core.n_users, self.n_items - core.n_items)
        if any(removed):
            core.notes += (core_note(min_user, min_item, *removed),)
        return core

    def take_catalogue(self, items: Flags) -> Catalogue | None:
        """Return the catalogue of the items under a mask."""
        return None if self.known_items is None else self.known_items.gather(np.flatnonzero(items))

    def split(self, protocol: str = "strong", *, where: str = "here", **settings: Any) -> Any:
        """Return the split that ``equipoise.data.split`` makes of the same data.

        Parameters
        ----------
        protocol
            A function of `equipoise.data.split`: "strong", "weak", "leave_last_out", "time_cut" or
            "sessions".
        where
            "here" gathers the data and returns a `Split`. "workers", for "strong", leaves all
            parts on the workers, for `fit` and `evaluate` of `equipoise.cluster`.
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

        Data that do not fit into memory are mapped from temporary files in `scratch`, by default
        the folder for temporary files. Blocks are fetched a few at a time.
        """
        sizes = fetch(self.client, self.map_blocks(block_sizes))
        _, n_pairs, n_events = np.sum(sizes, axis=0).tolist()
        return join_blocks(
            self._fetched(),
            IdIndex(self.items, "item"),
            catalogue=self.known_items,
            notes=self.notes,
            sizes=(n_pairs, n_events),
            allocate=lambda shapes, dtypes: allocate(shapes, dtypes, scratch),
        )

    def _fetched(self) -> Iterator[Interactions]:
        for low, high in strips((0, len(self.blocks)), FAN_IN):
            yield from fetch(self.client, self.blocks[low:high])

    def __repr__(self) -> str:
        return (
            f"Partitioned: {self.n_users:,} users x {self.n_items:,} items, "
            f"{self.n_interactions:,} interactions in {len(self.blocks)} blocks"
        )


def offsets_of(lengths: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return 0 and the running sums: where consecutive pieces of these lengths begin and end."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def with_item_ids(block: Interactions, items: IdIndex) -> Interactions:
    """Return a block with the raw ids of its items."""
    return Interactions(
        block.matrix, block.user_index, items, events=block.events, signed=block.signed
    )


def drop_item_ids(data: Interactions) -> Interactions:
    """Return a block, whose items are known by position."""
    return Interactions(data.matrix, data.user_index, events=data.events)


def block_sizes(block: Interactions) -> tuple[int, int, int]:
    """Return the numbers of users, of pairs and of events of a block."""
    n_events = 0 if block.events is None else block.events.n_events
    return block.n_users, block.n_interactions, n_events


@task
def add_arrays(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the sum of arrays, added in their order."""
    out = arrays[0].copy()
    for array in arrays[1:]:
        out += array
    return out


def fetch_sum(client: Any, futures: list[Any]) -> npt.NDArray[Any]:
    """Return the sum of the arrays of futures."""
    result: npt.NDArray[Any] = fetch(client, reduce_tree(client, add_arrays, futures))
    return result


@task
def count_shared_users(block: Interactions, items: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Count the users that each of these items shares with each item."""
    used: Any = block.matrix.astype(np.int32)
    used.data[:] = 1
    shared: npt.NDArray[np.int32] = (used[:, items].T @ used).toarray()
    return shared


@task
def sum_strip(
    shared: npt.NDArray[np.int32],
    items: npt.NDArray[np.int64],
    counts: Counts,
    delta: float,
    all_pairs: bool,
) -> npt.NDArray[np.float64]:
    """Return the sums of `pair_sums` for these items."""
    return pair_sums(shared, items, counts, delta, all_pairs=all_pairs)


def _core_pairs(block: Interactions, core_items: Flags, min_user: int) -> tuple[Flags, Any]:
    """Return which users have enough core items, and the items of their pairs with these."""
    rows = np.repeat(np.arange(block.n_users), np.diff(block.matrix.indptr))
    in_core = core_items[block.matrix.indices]
    users = np.bincount(rows[in_core], minlength=block.n_users) >= min_user
    return users, block.matrix.indices[in_core & users[rows]]


@task
def count_core(block: Interactions, core_items: Flags, min_user: int) -> Counts:
    """Count the users of each core item, among those who have enough core items."""
    items = _core_pairs(block, core_items, min_user)[1]
    return np.bincount(items, minlength=block.n_items).astype(np.int64)


@task
def take_core(block: Interactions, core_items: Flags, min_user: int) -> Interactions:
    """Return the core items of a block and the users who have enough of them."""
    users = _core_pairs(block, core_items, min_user)[0]
    return drop_item_ids(block.rows(users).columns(core_items))
