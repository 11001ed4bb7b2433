"""Splits whose parts stay on the workers, and the evaluation of such a part.

The split equals that of `equipoise.data.split.strong`, pair by pair: each worker draws the random
numbers of its pairs from their place in the one sequence. Metrics are computed on the workers;
values of users and counts of items come to this machine, histories do not.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.cluster.opening import open_model
from equipoise.cluster.partitioned import Partitioned, drop_item_ids, offsets_of, with_item_ids
from equipoise.cluster.spread import stack
from equipoise.cluster.workers import fetch, send, submit, submit_each, task
from equipoise.data.ids import IdIndex, some
from equipoise.data.interactions import Interactions, generator
from equipoise.data.matrix import cell_keys
from equipoise.data.split.parts import groups, leak_notes
from equipoise.data.split.user_split import check_strong, lost_notes, shown_and_hidden, with_two
from equipoise.errors import DataError, SettingError
from equipoise.evaluation.evaluator import Question, active_users, check_known
from equipoise.evaluation.metrics import look_up
from equipoise.evaluation.results import Result
from equipoise.models.base import Recommender
from equipoise.runtime.machine import limited
from equipoise.solve.blocked import strips

Flags = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PartitionedPart:
    """Users to recommend to, on the workers: their histories, and the targets to predict."""

    history: Partitioned
    target: Partitioned
    protocol: str = "given"
    name: str = "test"
    repeats: str = "new"

    @property
    def n_users(self) -> int:
        """Number of users."""
        return self.history.n_users

    def __repr__(self) -> str:
        known, hidden = self.history.n_interactions, self.target.n_interactions
        size = f"{self.n_users:,} users, {known:,} history items, {hidden:,} held out"
        return f"Part {self.name}: {size}"


@dataclass(frozen=True, eq=False)
class PartitionedSplit:
    """Training data, and parts for tuning and for the final test, all on the workers."""

    train: Partitioned
    valid: PartitionedPart | None
    test: PartitionedPart
    protocol: str
    seed: int
    notes: tuple[str, ...] = ()


def strong(
    data: Partitioned,
    *,
    valid: float = 0.1,
    test: float = 0.1,
    history: float = 0.8,
    order: str = "random",
    seed: int = 0,
) -> PartitionedSplit:
    """Hold out complete users; the split is that of `equipoise.data.split.strong`."""
    check_strong(valid, test, history, order)
    if order == "time":
        raise SettingError("on the workers order is 'random'; leave it out, or use where='here'")
    client, rng = data.client, generator(seed)
    train_rows, *part_rows = groups(rng.permutation(data.n_users), valid, test, "users")
    blocks = [
        submit(client, Interactions.rows, *pair) for pair in _rows_by_block(data, train_rows)
    ]
    train = data.with_blocks(blocks, data.items)
    is_known = train.item_counts > 0
    items, known = data.items[is_known], send(client, is_known)
    notes: list[str] = []
    parts: dict[str, PartitionedPart] = {}
    bits = rng.bit_generator
    assert isinstance(bits, np.random.PCG64)
    for name, rows in zip(("valid", "test"), part_rows, strict=True):
        if not len(rows):
            continue
        pairs = _rows_by_block(data, rows)
        blocks = [submit(client, hold_out, *pair, known) for pair in pairs]
        sizes = np.array(fetch(client, submit_each(client, getitem, blocks, 1)))
        n_users, n_pairs, lost_pairs, lost_users = sizes.T
        notes += lost_notes(name, int(lost_pairs.sum()), int(lost_users.sum()))
        if not n_users.any():
            raise DataError(
                f"no user is left in {name} with a history and a target; use more data or other "
                "shares"
            )
        state, drawn = dict(bits.state), offsets_of(n_pairs).tolist()
        cut = [
            submit(client, cut_histories, block, history, state, start)
            for block, start in zip(blocks, drawn[:-1], strict=True)
        ]
        shown, hidden = (submit_each(client, getitem, cut, side) for side in (0, 1))
        sides = data.with_blocks(shown, items), data.with_blocks(hidden, items)
        parts[name] = PartitionedPart(*sides, "strong", name)
        bits.advance(drawn[-1])  # past the numbers that the workers have drawn
    notes += fetch(client, submit(client, leak_notes, data.blocks[0]))
    train = Partitioned(
        client,
        train.map_blocks(take_items, known),
        items,
        train.block_users,
        train.n_interactions,
        catalogue=data.take_catalogue(is_known),
    )
    return PartitionedSplit(train, parts.get("valid"), parts["test"], "strong", seed, tuple(notes))


def _rows_by_block(data: Partitioned, rows: Rows) -> list[tuple[Any, Rows]]:
    """Return each block with those of the sorted rows that lie in it."""
    starts = offsets_of(data.block_users)
    ranges = pairwise(np.searchsorted(rows, starts))
    return [
        (block, rows[low:high] - start)
        for block, start, (low, high) in zip(data.blocks, starts[:-1], ranges, strict=True)
    ]


@task
def take_items(block: Interactions, items: Flags) -> Interactions:
    """Return some items of a block, by their new positions."""
    return drop_item_ids(block.columns(items))


@task
def hold_out(
    block: Interactions, rows: Rows, known: Flags
) -> tuple[Interactions, tuple[int, int, int, int]]:
    """Return held-out users of a block; numbers of users and pairs, and of both left out."""
    users, lost_pairs, lost_users = with_two(block.rows(rows), known)
    sizes = (users.n_users, users.n_interactions, lost_pairs, lost_users)
    return drop_item_ids(users), sizes


@task
def cut_histories(
    part: tuple[Interactions, Any], history: float, state: Any, n_drawn: int
) -> tuple[Interactions, Interactions]:
    """Return histories and targets; `n_drawn` random numbers belong to earlier blocks."""
    bits = np.random.PCG64()
    bits.state = state
    bits.advance(n_drawn)
    keys = np.random.Generator(bits).random(part[0].n_interactions)
    return shown_and_hidden(part[0], history, keys)


def as_partitioned_part(part: Any) -> PartitionedPart | None:
    """Return a part on the workers, which may be given as a pair; None for any other part."""
    if isinstance(part, tuple) and len(part) == 2:
        on_workers = [isinstance(side, Partitioned) for side in part]
        if any(on_workers) and not all(on_workers):
            raise SettingError("a pair must be (history, target), both Partitioned or both not")
        return PartitionedPart(*part) if all(on_workers) else None
    return part if isinstance(part, PartitionedPart) else None


def evaluate_on_workers(
    model: Recommender,
    folder: Path | str,
    part: PartitionedPart,
    k: Any,
    *,
    batch_size: int,
    metrics: Any = None,
    groups: Any = None,
    tuned_on_test: bool = False,
    name: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    threads: int | None = None,
    **options: Any,
) -> Result:
    """Evaluate a saved model on a part that workers hold; as `equipoise.evaluate`.

    `threads` are those of the bootstrap, on this machine.
    """
    started = time.perf_counter()
    client, history, target = part.history.client, part.history, part.target
    question = Question(model, part, k, look_up(metrics, groups or ()), groups=groups, **options)
    targets = _align_targets(history, target)
    for side, data in (("targets", target), ("histories", history)):
        check_known(side, data.items, data.item_counts, question.items)
    users = np.concatenate(fetch(client, history.map_blocks(getattr, "users")))
    active = active_users(users, history.user_counts)
    ends = offsets_of(history.block_users)
    indices = [send(client, IdIndex(data.items, "item")) for data in (history, target)]
    shared = (*indices, send(client, question))
    blocks = zip(history.blocks, targets, pairwise(ends), strict=True)
    measured = [
        submit(client, measure, str(folder), *pair, *shared, active[low:high], batch_size)
        for *pair, (low, high) in blocks
    ]
    results = []
    for future, end in zip(measured, ends[1:].tolist(), strict=True):
        results.append(fetch(client, future))
        if progress is not None:
            progress(end, len(users))
    values, exposures = zip(*results, strict=True)
    per_user = {key: np.concatenate([block[key] for block in values]) for key in values[0]}
    exposure = {cutoff: sum(block[cutoff] for block in exposures) for cutoff in exposures[0]}
    with limited(threads):
        return question.result(
            model,
            IdIndex(users, "user"),
            per_user,
            exposure,
            part=part.name,
            fingerprint=_fingerprint(client, targets, users, target.items),
            name=name or model.label,
            tuned_on_test=tuned_on_test,
            seconds={"rank": time.perf_counter() - started},
        )


def _align_targets(history: Partitioned, target: Partitioned) -> list[Any]:
    """Return the targets of the users of each block of histories.

    Both have the same users in the same order, so ranges of rows tell which blocks overlap.
    """
    if history.n_users != target.n_users:
        raise DataError(
            f"history ({history.n_users:,} users) and target ({target.n_users:,} users) must hold "
            "the same users"
        )
    history_spans, target_spans = (
        list(pairwise(offsets_of(side.block_users).tolist())) for side in (history, target)
    )
    aligned = []
    for histories, (low, high) in zip(history.blocks, history_spans, strict=True):
        overlapping = [
            targets
            for targets, (first, last) in zip(target.blocks, target_spans, strict=True)
            if first < high and low < last
        ]
        aligned.append(submit(history.client, take_targets, histories, overlapping))
    return aligned


def _fingerprint(
    client: Any, targets: list[Any], users: npt.NDArray[Any], items: npt.NDArray[Any]
) -> str:
    """Return `split.parts.identity` of all targets, whose blocks are fetched one at a time."""
    digest, n_before = hashlib.sha256(), 0
    for block in targets:
        n_users, keys = fetch(client, submit(client, pair_keys, block))
        digest.update((keys + n_before * len(items)).tobytes())
        n_before += n_users
    for ids in (users, items):
        digest.update(repr(ids.tolist()).encode())
    return digest.hexdigest()[:12]


@task
def pair_keys(block: Interactions) -> tuple[int, npt.NDArray[np.int64]]:
    """Return the number of users of a block, and the places of its pairs."""
    return block.n_users, cell_keys(block.matrix)


@task
def take_targets(histories: Interactions, blocks: list[Interactions]) -> Interactions:
    """Return the targets of the users of a block; every user needs one."""
    targets = [
        block.rows(histories.user_index.positions(block.users, unknown="skip") >= 0)
        for block in blocks
    ]
    users = np.concatenate([histories.users[:0], *(block.users for block in targets)])
    missing = histories.users[~np.isin(histories.users, users)]
    n_empty = sum(int((block.user_counts == 0).sum()) for block in targets)
    if len(missing) or n_empty:
        raise DataError(
            f"{len(missing) + n_empty:,} users of a block of histories have no target "
            f"({some(missing)}); history and target must hold the same users"
        )
    return Interactions(stack([block.matrix for block in targets]), users)


@task
def measure(
    folder: str,
    history: Interactions,
    target: Interactions,
    history_items: IdIndex,
    target_items: IdIndex,
    question: Question,
    active: Flags,
    batch_size: int,
) -> tuple[dict[str, Any], dict[int, Any]]:
    """Return the metrics of the users of a block, and how often each item is recommended."""
    model = open_model(folder)
    shown = with_item_ids(history, history_items).with_items(model.item_index_)
    hidden = with_item_ids(target, target_items).with_items(model.item_index_)
    lists = (
        question.lists(model, shown.rows(np.arange(low, high)))
        for low, high in strips((0, shown.n_users), batch_size)
    )
    return question.metrics(shown, hidden, active).per_user(lists)
