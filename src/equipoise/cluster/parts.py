"""Splits whose parts stay with the workers, and the metrics of such a part.

The split of whole users is that of `equipoise.data.split.strong`, pair by pair: random numbers are
drawn where the pairs are, each from its own place in the one sequence. Metrics are computed where
the users are; values of users and counts of items come to this machine, no history does.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.cluster.opening import opened
from equipoise.cluster.partitioned import Partitioned, n_users_of, with_ids
from equipoise.cluster.spread import one_matrix
from equipoise.cluster.workers import results, same, submit, task
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


@dataclass(frozen=True, eq=False)
class PartitionedPart:
    """Users to recommend to, on the workers: what is known, and what is to be found."""

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
        return f"Part {self.name}: {self.n_users:,} users, {known:,} known, {hidden:,} to find"


@dataclass(frozen=True, eq=False)
class PartitionedSplit:
    """Data to learn from, and parts to tune on and to report, all of them on the workers."""

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
    """Hold out whole users where they are; the split is that of `equipoise.data.split.strong`."""
    check_strong(valid, test, history, order)
    if order == "time":
        raise SettingError("on the workers order is 'random'; leave it out, or where='here'")
    client, rng = data.client, generator(seed)
    train_rows, *held_out = groups(rng.permutation(data.n_users), valid, test, "users")
    pieces = [each for each in _cut(data, train_rows) if len(each[1])]
    rows = [submit(client, rows_of, *each) for each in pieces]
    train = _partitioned(data, rows, data.items)
    known = train.item_counts > 0
    items, flags = data.items[known], submit(client, same, known)
    kept = [submit(client, columns_of, block, flags) for block in train.blocks]
    notes: list[str] = []
    parts: dict[str, PartitionedPart] = {}
    bits = rng.bit_generator
    assert isinstance(bits, np.random.PCG64)
    for name, places in zip(("valid", "test"), held_out, strict=True):
        if len(places):
            held = [submit(client, held_of, *each, flags) for each in _cut(data, places)]
            sizes = np.array(results(client, [submit(client, second, each) for each in held]))
            notes += lost_notes(name, int(sizes[:, 2].sum()), int(sizes[:, 3].sum()))
            drawn = np.concatenate([[0], np.cumsum(sizes[:, 1])])
            full = np.flatnonzero(sizes[:, 0])
            if not len(full):
                left = f"no user is left in {name} with a history and a target"
                raise DataError(f"{left}; use more data or other shares")
            state = dict(bits.state)
            cut = [submit(client, cut_of, held[at], history, state, int(drawn[at])) for at in full]
            sides = [
                _partitioned(data, [submit(client, piece, each, at) for each in cut], items)
                for at in (0, 1)
            ]
            parts[name] = PartitionedPart(sides[0], sides[1], "strong", name)
            bits.advance(int(drawn[-1]))  # past what the workers have drawn
    notes += results(client, submit(client, leaks, data.blocks[0]))
    whole = Partitioned(
        client, kept, items, train.block_users, train.n_interactions, labels=_labels(data, known)
    )
    return PartitionedSplit(whole, parts.get("valid"), parts["test"], "strong", seed, tuple(notes))


def _labels(data: Partitioned, known: npt.NDArray[np.bool_]) -> Any:
    return None if data.labels is None else data.labels.filter(pl.Series(known))


def _cut(data: Partitioned, rows: npt.NDArray[np.int64]) -> Iterator[tuple[Any, Any]]:
    """Give each block with its own ones of these rows."""
    starts = np.concatenate([[0], np.cumsum(data.block_users)])
    places = np.searchsorted(rows, starts)
    for at, (low, high) in enumerate(pairwise(places)):
        yield data.blocks[at], rows[low:high] - starts[at]


def _partitioned(data: Partitioned, blocks: list[Any], items: npt.NDArray[Any]) -> Partitioned:
    client = data.client
    sizes = results(client, [submit(client, size_of, each) for each in blocks])
    users, pairs = np.array(sizes, np.int64).T
    return Partitioned(client, blocks, items, users, int(pairs.sum()), name=data.name)


@task
def rows_of(block: Interactions, rows: npt.NDArray[np.int64]) -> Interactions:
    """Return some users of a block."""
    return block.rows(rows)


@task
def columns_of(block: Interactions, known: npt.NDArray[np.bool_]) -> Interactions:
    """Return known items of a block, by their new positions."""
    kept = block.columns(known)
    return Interactions(kept.matrix, kept.user_index, events=kept.events)


@task
def held_of(
    block: Interactions, rows: npt.NDArray[np.int64], known: npt.NDArray[np.bool_]
) -> tuple[Interactions, tuple[int, int, int, int]]:
    """Return users of a block who are held out; users, pairs, and both that are left out."""
    kept, pairs, users = with_two(block.rows(rows), known)
    held = Interactions(kept.matrix, kept.user_index, events=kept.events)
    return held, (held.n_users, held.n_interactions, pairs, users)


@task
def cut_of(
    held: tuple[Interactions, Any], history: float, state: Any, drawn: int
) -> tuple[Interactions, Interactions]:
    """Return histories and targets; random numbers go on where those of earlier blocks end."""
    bits = np.random.PCG64()
    bits.state = state
    bits.advance(drawn)
    keys = np.random.Generator(bits).random(held[0].n_interactions)
    return shown_and_hidden(held[0], history, keys)


def second(pair: tuple[Any, Any]) -> Any:
    """Return the numbers of `held_of`."""
    return pair[1]


def piece(parts: tuple[Interactions, Interactions], at: int) -> Interactions:
    """Return histories or targets."""
    return parts[at]


def size_of(block: Interactions) -> tuple[int, int]:
    """Return the numbers of users and pairs of a block."""
    return block.n_users, block.n_interactions


def leaks(block: Interactions) -> list[str]:
    """Say whether training may see the future."""
    return leak_notes(block)


def part_there(part: Any) -> PartitionedPart | None:
    """Return a part that workers hold, which may be given as a pair; None for any other."""
    if isinstance(part, tuple) and len(part) == 2:
        held = [isinstance(side, Partitioned) for side in part]
        if any(held) and not all(held):
            raise SettingError("a pair must be (history, target), both Partitioned or both not")
        return PartitionedPart(*part) if all(held) else None
    return part if isinstance(part, PartitionedPart) else None


def evaluate_there(
    model: Recommender,
    folder: Path,
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
    question = Question.of(
        model, part, k, look_up(metrics, groups or ()), groups=groups, **options
    )
    targets = _beside(history, target)
    for side, data in (("targets", target), ("histories", history)):
        check_known(side, data.items, data.item_counts, question.items)
    who = [submit(client, users_of, each) for each in history.blocks]
    users = np.concatenate(results(client, who))
    active = active_users(users, history.user_counts)
    starts = np.concatenate([[0], np.cumsum(history.block_users)])
    held = submit(client, same, question)
    indices = [submit(client, same, IdIndex(data.items, "item")) for data in (history, target)]
    asked = [
        submit(client, measure, str(folder), *pair, *indices, held, active[low:high], batch_size)
        for pair, (low, high) in zip(
            zip(history.blocks, targets, strict=True), pairwise(starts), strict=True
        )
    ]
    found = []
    for at, each in enumerate(asked):
        found.append(results(client, each))
        if progress is not None:
            progress(int(starts[at + 1]), len(users))
    per_user = {
        each: np.concatenate([values[each] for values, _ in found]) for each in found[0][0]
    }
    exposure = {at: sum(shown[at] for _, shown in found) for at in found[0][1]}
    fingerprint = _identity(client, targets, users, target.items)
    with limited(threads):
        return question.result(
            model,
            IdIndex(users, "user"),
            per_user,
            exposure,
            part=part.name,
            fingerprint=fingerprint,
            name=name or model.label,
            tuned_on_test=tuned_on_test,
            seconds={"rank": time.perf_counter() - started},
        )


def _beside(history: Partitioned, target: Partitioned) -> list[Any]:
    """Return targets of the users of each block of histories, wherever they are.

    Both have the same users in the same order, so places tell where these are.
    """
    if history.n_users != target.n_users:
        raise DataError(
            f"history ({history.n_users:,} users) and target ({target.n_users:,} users) must hold "
            "the same users"
        )
    own, others = (
        list(pairwise([0, *np.cumsum(side.block_users).tolist()])) for side in (history, target)
    )
    return [
        submit(
            history.client,
            of_users,
            block,
            [
                other
                for other, (first, last) in zip(target.blocks, others, strict=True)
                if first < high and low < last
            ],
        )
        for block, (low, high) in zip(history.blocks, own, strict=True)
    ]


def _identity(
    client: Any, targets: list[Any], users: npt.NDArray[Any], items: npt.NDArray[Any]
) -> str:
    """Return what `split.parts.identity` says of all targets, which come one block at a time."""
    digest, n_before = hashlib.sha256(), 0
    for each in targets:
        n_users, keys = results(client, submit(client, keys_of, each))
        digest.update((keys + n_before * len(items)).tobytes())
        n_before += n_users
    for ids in (users, items):
        digest.update(repr(ids.tolist()).encode())
    return digest.hexdigest()[:12]


def users_of(block: Interactions) -> npt.NDArray[Any]:
    """Return the ids of the users of a block."""
    return block.users


@task
def keys_of(block: Interactions) -> tuple[int, npt.NDArray[np.int64]]:
    """Return the number of users of a block, and the places of its pairs."""
    return n_users_of(block), cell_keys(block.matrix)


@task
def of_users(histories: Interactions, targets: list[Interactions]) -> Interactions:
    """Return the targets of the users of a block; all of them need some."""
    own = [
        each.rows(histories.user_index.positions(each.users, unknown="skip") >= 0)
        for each in targets
    ]
    users = np.concatenate([each.users for each in own]) if own else histories.users[:0]
    missing = histories.users[~np.isin(histories.users, users)]
    bare = sum(int((each.user_counts == 0).sum()) for each in own)
    if len(missing) or bare:
        raise DataError(
            f"{len(missing) + bare:,} users of a block of histories have no target "
            f"({some(missing)}); history and target must hold the same users"
        )
    return Interactions(one_matrix([each.matrix for each in own]), users)


@task
def measure(
    folder: str,
    history: Interactions,
    target: Interactions,
    history_items: IdIndex,
    target_items: IdIndex,
    question: Question,
    active: npt.NDArray[np.bool_],
    batch: int,
) -> tuple[dict[str, Any], dict[int, Any]]:
    """Return the values of the users of a block, and how often each item is shown."""
    model = opened(folder)
    shown, hidden = (
        with_ids(block, items).with_items(model.item_index_)
        for block, items in ((history, history_items), (target, target_items))
    )
    lists = (
        question.lists(model, shown.rows(np.arange(at, min(at + batch, shown.n_users))))
        for at in range(0, shown.n_users, batch)
    )
    return question.metrics(shown, hidden, active).per_user(lists)
