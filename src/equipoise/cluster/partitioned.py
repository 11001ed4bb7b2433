"""`Partitioned`: interactions that workers hold, block by block of users."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise import split as splits
from equipoise.checks import choice, count
from equipoise.cluster.workers import reduced, results, submit, task
from equipoise.errors import DataError, TooBigError
from equipoise.events import Events
from equipoise.interactions import Interactions, core_note
from equipoise.machine import free_memory, gigabytes
from equipoise.split import Split
from equipoise.statistics import Statistics, check_delta, pair_ratio, pair_sums, statistics_of

Counts = npt.NDArray[np.int64]

PROTOCOLS = ("strong", "weak", "leave_last_out", "time_cut", "sessions")
STRIP = 512  # items whose shared users are counted at a time
PAIR_BYTES = 40  # of memory for a pair that is gathered, while it is put together


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

    def describe(self, *, delta: float = 1.5) -> Statistics:
        """Return what `equipoise.describe` says of the same data."""
        check_delta(delta)
        return statistics_of(self, self._homophily(delta), delta)

    def _homophily(self, delta: float) -> float:
        """Count the users that items share, a strip of items at a time, and weigh the pairs."""
        counts = self.item_counts
        sums = []
        for low in range(0, self.n_items, STRIP):
            span = (low, min(low + STRIP, self.n_items))
            shared = [submit(self.client, shared_users, block, span) for block in self.blocks]
            whole = reduced(self.client, total, shared)
            sums.append(submit(self.client, strip_sums, whole, low, counts, delta))
        found = results(self.client, sums)
        return pair_ratio(np.concatenate(found, axis=1))

    def filter(self, *, min_user: int = 0, min_item: int = 0) -> Partitioned:
        """Keep users with `min_user` items and items with `min_item` users, until both hold."""
        count("min_user", min_user, 0)
        count("min_item", min_item, 0)
        fine = np.ones(self.n_items, bool)
        while True:
            counted = [
                submit(self.client, core_counts, block, fine, min_user) for block in self.blocks
            ]
            left: Counts = results(self.client, reduced(self.client, total, counted))
            still = fine & (left >= min_item)
            if (still == fine).all():
                break
            fine = still
        if not left.any():
            asked = f"min_user={min_user} and min_item={min_item}"
            raise DataError(f"nothing is left with {asked}; lower them")
        blocks = [submit(self.client, core_of, block, fine, min_user) for block in self.blocks]
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

    def split(self, protocol: str = "strong", **settings: Any) -> Split:
        """Return the split that ``equipoise.split`` makes of the same data, on this machine."""
        choice("protocol", protocol, PROTOCOLS)
        cut: Split = getattr(splits, protocol)(self.gather(), **settings)
        return cut

    def gather(self) -> Interactions:
        """Return the data on this machine, as `equipoise.read` gives them."""
        needed = PAIR_BYTES * self.n_interactions
        if needed > free_memory():
            raise TooBigError(
                f"{self.n_interactions:,} interactions need {gigabytes(needed)} on this machine "
                f"and {gigabytes(free_memory())} is free; filter them, or gather on a larger one"
            )
        blocks = results(self.client, self.blocks)
        events = [block.events for block in blocks]
        return Interactions(
            _stacked([block.matrix for block in blocks]),
            np.concatenate([block.users for block in blocks]),
            self.items,
            labels=self.labels,
            events=None if events[0] is None else _chained(events),
            notes=self.notes,
        )

    def __repr__(self) -> str:
        size = f"{self.n_users:,} users x {self.n_items:,} items"
        held = f"{self.n_interactions:,} interactions in {len(self.blocks)} blocks"
        return f"Partitioned: {size}, {held}"


def _stacked(matrices: list[Any]) -> Any:
    """Put matrices of consecutive users below one another."""
    data, indices = (
        np.concatenate([getattr(each, part) for each in matrices]) for part in ("data", "indices")
    )
    lengths = np.concatenate([[0], *(np.diff(each.indptr) for each in matrices)])
    shape = (len(lengths) - 1, matrices[0].shape[1])
    return sp.csr_array((data, indices, np.cumsum(lengths, dtype=np.int64)), shape=shape)


def _chained(events: list[Events]) -> Events:
    """Put the events of consecutive users one after another."""
    held = {
        name: None
        if getattr(events[0], name) is None
        else np.concatenate([getattr(each, name) for each in events])
        for name in ("items", "times", "weights", "types")
    }
    lengths = np.concatenate([[0], *(each.lengths for each in events)])
    first = events[0]
    return Events(
        **held,  # type: ignore[arg-type]
        offsets=np.cumsum(lengths, dtype=np.int64),
        type_names=first.type_names,
        ordered=first.ordered,
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
def shared_users(block: Interactions, span: tuple[int, int]) -> npt.NDArray[np.int32]:
    """Count the users that each item of a span shares with each item."""
    used: Any = block.matrix.astype(np.int32)
    used.data[:] = 1
    found: npt.NDArray[np.int32] = (used[:, span[0] : span[1]].T @ used).toarray()
    return found


@task
def strip_sums(
    shared: npt.NDArray[np.int32], low: int, counts: Counts, delta: float
) -> npt.NDArray[np.float64]:
    """Return the sums of `pair_sums` for the items of a strip."""
    return pair_sums(shared, low, counts, delta)


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
