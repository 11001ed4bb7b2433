"""Training data of a model that stay with the workers, in the blocks of `Partitioned`.

What a fit needs of all users is summed over the blocks, in their order, so it has the bits of the
same sum on one machine; what it needs of each user is computed where the user is.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.automatic import Sums, WeighUsers, sums_of_users
from equipoise.checks import is_address
from equipoise.cluster.partitioned import Partitioned
from equipoise.cluster.targets import Target
from equipoise.cluster.workers import fetch, submit, task
from equipoise.data.blocks import is_between, span_of, write_block
from equipoise.data.ids import IdIndex
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import PART
from equipoise.data.statistics import homophily, pair_ratio
from equipoise.data.training import Blocks, Facts, NotInMemory
from equipoise.models.trend import count_recent_users, find_last_uses, places_of_sample, sample_of
from equipoise.normalize import Normalizer, weights_of_users

Floats = npt.NDArray[np.float64]


class WorkerBlocks(Blocks):
    """The blocks of `Partitioned` data, in the memory of the workers."""

    place = "the memory of the workers"

    def __init__(self, data: Partitioned, scratch: str | os.PathLike[str] | None = None) -> None:
        self.data, self._scratch, self.block_users = data, scratch, data.block_users

    @cached_property
    def kind(self) -> Any:  # type: ignore[override]
        """Type of a column of user ids."""
        return fetch(
            self.data.client, submit(self.data.client, kind_of_users, self.data.blocks[0])
        )

    def users(self, number: int) -> npt.NDArray[Any]:
        """Return the ids of the users of a block."""
        block = submit(self.data.client, getattr, self.data.blocks[number], "users")
        ids: npt.NDArray[Any] = fetch(self.data.client, block)
        return ids

    @cached_property
    def _spans(self) -> list[list[Any]]:
        """First and last id of each block in the order of ids."""
        spans: list[list[Any]] = fetch(self.data.client, self.data.map_blocks(span_of_users))
        return spans

    def may_hold(self, number: int, users: list[Any]) -> bool:
        """Whether a block may have one of these users."""
        return is_between(self._spans[number], users, self.kind)

    def read(self, number: int, rows: npt.NDArray[np.int64] | None = None) -> Interactions:
        """Return the users of a block, or those at some ascending places of it."""
        block = self.data.blocks[number]
        if rows is not None:
            block = submit(self.data.client, Interactions.rows, block, rows)
        users: Interactions = fetch(self.data.client, block)
        return users

    def join(self, items: IdIndex, **parts: Any) -> Interactions:
        """Return all users."""
        gathered = self.data.gather(self._scratch)
        if len(items) == gathered.n_items:
            return gathered
        return gathered.with_items(items).with_known_items(parts.get("catalogue"))

    def write(self, place: str, token: str) -> list[dict[str, Any]]:
        """Let the workers write a file for each block."""
        client = self.data.client
        written = [
            submit(client, save_block, block, place, number, token)
            for number, block in enumerate(self.data.blocks)
        ]
        entries, hosts = zip(*fetch(client, written), strict=True)
        if not is_address(place):
            target = Target.of(Path(place))
            target.require([entry["file"] for entry in entries], hosts)
            target.remove_unfinished(lambda name: name.startswith(".block_") and token in name)
        return list(entries)


class OnWorkers(NotInMemory):
    """Training data that workers hold.

    Parameters
    ----------
    data
        The data.
    scratch
        Folder for data that are gathered after all and do not fit into memory.
    """

    def __init__(self, data: Partitioned, scratch: str | os.PathLike[str] | None = None) -> None:
        blocks = WorkerBlocks(data, scratch)
        super().__init__(
            facts_of_blocks(data),
            IdIndex(data.items, "item"),
            blocks,
            catalogue=data.known_items,
            notes=data.notes,
        )
        self.data = data

    def chain(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a sum that goes from block to block in their order."""
        before = None
        for block in self.data.blocks:
            before = submit(self.data.client, function, before, block, *args)
        return fetch(self.data.client, before)

    @cached_property
    def item_squares(self) -> Floats:
        """Sum of the squared values of each item: the diagonal of X^T X."""
        total, part, _ = self.chain(add_squares)
        return np.asarray(total + part)

    @cached_property
    def time_span(self) -> tuple[float, float] | None:
        """Times of the first and the last event; None without times or events."""
        spans = fetch(self.data.client, self.data.map_blocks(getattr, "time_span"))
        known = [span for span in spans if span is not None]
        if not known:
            return None
        return min(first for first, _ in known), max(last for _, last in known)


@task
def facts_of_block(block: Interactions) -> tuple[str, bool, bool]:
    """Return the fingerprint of a block, whether it has weights, and negative ones."""
    return block.fingerprint, block.weighted, block.signed


def facts_of_blocks(data: Partitioned) -> Facts:
    """Return the facts of data on workers.

    Their fingerprint is that of the fingerprints of the blocks.
    """
    facts = fetch(data.client, data.map_blocks(facts_of_block))
    fingerprints, weighted, signed = zip(*facts, strict=True)
    digest = hashlib.sha256(" ".join(fingerprints).encode())
    ids = data.items
    digest.update(ids.tobytes() if ids.dtype != object else repr(ids.tolist()).encode())
    return Facts(
        data.n_users,
        data.n_interactions,
        data.item_counts,
        digest.hexdigest()[:12],
        any(weighted),
        any(signed),
    )


@task
def kind_of_users(block: Interactions) -> Any:
    """Return the type of a column of user ids."""
    return block.user_kind


@task
def span_of_users(block: Interactions) -> list[Any]:
    """Return the first and the last id of users in the order of ids; nothing without users."""
    return span_of(block.user_index)


@task
def save_block(
    block: Interactions, place: str, number: int, token: str
) -> tuple[dict[str, Any], str]:
    """Write a block beside a model; return its entry and the name of this machine."""
    return write_block(place, number, token, block), socket.gethostname()


@task
def add_squares(
    before: tuple[Floats, Floats, int] | None, block: Interactions
) -> tuple[Floats, Floats, int]:
    """Add squared values to those of earlier blocks: sums of complete parts, and of the last one.

    Parts are those of `matrix.column_squares`, which adds up each part by itself.
    """
    X = block.matrix
    if before is None:
        total, part, n_before = np.zeros(X.shape[1]), np.zeros(X.shape[1]), 0
    else:
        total, part, n_before = before[0].copy(), before[1].copy(), before[2]
    start = 0
    while start < X.nnz:
        end = min(start + PART - n_before, X.nnz)
        # one by one, as `bincount` adds
        np.add.at(part, X.indices[start:end], X.data[start:end].astype(np.float64) ** 2)
        n_before, start = n_before + end - start, end
        if n_before == PART:
            total, part, n_before = total + part, np.zeros(X.shape[1]), 0
    return total, part, n_before


@task
def weigh_block(block: Interactions, normalizer: Normalizer) -> Floats:
    """Return the weights of the users of a block."""
    return normalizer.user_weights(block)


@task
def add_sums_of_users(before: Sums | None, block: Interactions, weigh: WeighUsers) -> Sums:
    """Continue the sums of `sums_of_users`."""
    return sums_of_users(block, weigh, before or (0, 0.0, 0.0))


@task
def last_use(block: Interactions) -> float:
    """Return the time of the last event of a block that is no return."""
    events = block.events
    assert events is not None
    assert events.times is not None
    times = events.times if events.weights is None else events.times[events.weights > 0]
    return float(times.max(initial=-np.inf))


@task
def add_recent_users(
    before: Floats | None, block: Interactions, half_life: float, latest: float
) -> Floats:
    """Add the recent users of a block to those of earlier ones, one by one."""
    uses = find_last_uses(block, latest)
    counts = np.zeros(block.n_items) if before is None else before.copy()
    np.add.at(counts, uses.items, uses.weights(half_life))
    return counts


@task
def count_usable(block: Interactions) -> int:
    """Return the number of users with items."""
    return int(np.count_nonzero(block.user_counts))


@task
def find_usable(block: Interactions, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the positions of users with items, by their places among these."""
    return np.flatnonzero(block.user_counts)[places]


@homophily.register
def _(interactions: OnWorkers, *, delta: float = 1.5) -> float:
    data = interactions.data
    return pair_ratio(data._pair_sums(np.arange(data.n_items), delta, all_pairs=False))


@sums_of_users.register
def _(interactions: OnWorkers, weigh_users: WeighUsers) -> Sums:
    sums: Sums = interactions.chain(add_sums_of_users, weigh_users)
    return sums


@weights_of_users.register
def _(interactions: OnWorkers, normalizer: Normalizer) -> Any:
    if type(normalizer).user_weights is not Normalizer.user_weights:
        return normalizer.user_weights(interactions)  # may be those of the users of one data set
    return interactions.data.map_blocks(weigh_block, normalizer)


@count_recent_users.register
def _(data: OnWorkers, half_life: float, *, keep: bool) -> Floats:
    client = data.data.client
    latest = max(fetch(client, data.data.map_blocks(last_use)))
    counts: Floats = data.chain(add_recent_users, half_life, latest)
    counts.flags.writeable = False
    return counts


@sample_of.register
def _(data: OnWorkers) -> npt.NDArray[np.int64]:
    client, blocks = data.data.client, data.data.blocks
    usable = np.array(fetch(client, data.data.map_blocks(count_usable)), np.int64)
    places = places_of_sample(int(usable.sum()), data.n_items)
    starts = np.cumsum(usable) - usable
    users_before = np.cumsum(data.data.block_users) - data.data.block_users
    block = np.searchsorted(np.cumsum(usable), places, side="right")
    positions = [
        submit(client, find_usable, blocks[number], places[block == number] - starts[number])
        for number in range(len(blocks))
    ]
    pieces = zip(users_before, fetch(client, positions), strict=True)
    return np.concatenate([start + piece for start, piece in pieces])
