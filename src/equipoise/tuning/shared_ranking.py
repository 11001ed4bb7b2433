"""Top-k lists of many models that share one solve, for little more than the price of one.

Models of one solve differ in two vectors only: scores = (x * source) @ P * target. A row of P is
read from memory once and added to the sums of every source (alpha); each target (family,
diag_bound, gamma) is then one multiplication. Where P is no array, the sums of each source are
made as its term makes them. Every sum runs in the order of `ranker.top_k`, so a model gets, bit
for bit, the scores and lists it gets when it is ranked alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr
from equipoise.errors import SolveError
from equipoise.models.base import Recommender
from equipoise.models.histories import Unknowns, cold_rows
from equipoise.ranking.kernels import add_to_sums, mask_items, select, sort_heaps
from equipoise.ranking.ranker import BLOCK, TILE, adders
from equipoise.ranking.terms import Dense, ScaledTerm
from equipoise.runtime import machine
from equipoise.runtime.kernels import compiled

Lists = npt.NDArray[np.int32]
BATCH = 4096  # users that models of their own rank at a time
CHUNKS = 4  # per thread, so that none waits long for the last one
WIDTH = 512  # columns: the sums of six sources stay in the first-level cache


def rank_together(
    models: Sequence[Recommender], history: Interactions, k: int, *, exclude_seen: bool = True
) -> list[Lists]:
    """Return the lists of each model, item positions padded with -1.

    Models whose scores are one term that differs in its scales alone are ranked together; any
    other model, such as one on a card, is ranked by itself, and so are all where items of the
    history may be listed.
    """
    depth = min(k, history.n_items)
    out: dict[int, Lists] = {}
    groups: dict[tuple[Any, ...], list[tuple[int, ScaledTerm]]] = {}
    alone: list[int] = []
    parts: dict[int, list[Lists]] = {}
    for place, model in enumerate(models):
        terms = model.terms()
        term = terms[0]
        shares = exclude_seen and len(terms) == 1 and term.rank_job is None
        if shares and isinstance(term, ScaledTerm):
            groups.setdefault((type(term), *term.common), []).append((place, term))
        else:
            alone.append(place)
    for key, members in [*groups.items()]:
        if len(members) == 1 and not isinstance(members[0][1], Dense):  # nothing to share
            alone.append(groups.pop(key)[0][0])
    for start in range(0, history.n_users if alone else 0, BATCH):
        # models that solve for rows on demand share them: all rank a batch before the next one
        some = history.rows(np.arange(start, min(start + BATCH, history.n_users)))
        for place in alone:
            lists = models[place].rank(some, depth, exclude_seen=exclude_seen).items
            parts.setdefault(place, []).append(lists)
    out |= {place: np.concatenate(lists) for place, lists in parts.items()}
    for members in groups.values():
        first = models[members[0][0]]
        dense = isinstance(members[0][1], Dense)
        kind: Callable[..., Lists] = _by_rows if dense else _by_sources
        rows = first._rows_of(history, Unknowns())
        lists = kind([term for _, term in members], rows, depth)
        empty = np.flatnonzero(cold_rows(rows, first.item_counts_))
        if len(empty):
            # they are ranked by popularity, which the term does not know
            lists[:, empty] = first.rank(history.rows(empty), depth).items
        out |= {place: found for (place, _), found in zip(members, lists, strict=True)}
    return [out[place] for place in range(len(models))]


def _by_sources(terms: list[ScaledTerm], history: Csr, k: int) -> Lists:
    """Return lists (term, user, rank) of terms that differ in their scales alone."""
    n_users, n_items = history.shape
    dtype = terms[0].dtype
    items = np.full((len(terms), n_users, k), -1, np.int32)
    bad = np.zeros(n_users, np.bool_)
    groups: dict[bytes, list[int]] = {}
    for place, term in enumerate(terms):
        groups.setdefault(term.source.tobytes(), []).append(place)
    step = max(1, TILE // (dtype.itemsize * BLOCK))
    seen = history.indptr.astype(np.int64), history.indices.astype(np.int32, copy=False)

    def work(number: int) -> None:
        users = np.arange(number * step, min((number + 1) * step, n_users))
        mask = seen[0][users], seen[0][users + 1], seen[1]
        shape = (len(terms), len(users), k)
        found, scores = np.full(shape, -1, np.int32), np.full(shape, np.nan, dtype)
        lengths, wrong = np.zeros(shape[:2], np.int32), np.zeros(len(users), np.bool_)
        for places in groups.values():
            plain: Any = dataclasses.replace(
                terms[places[0]],  # type: ignore[type-var]
                target=np.ones(n_items, dtype),
            )
            (add,) = adders([plain], history, users)
            for low in range(0, n_items, BLOCK):
                sums = np.zeros((len(users), min(BLOCK, n_items - low)), dtype)
                add(sums, low)
                for place in places:
                    block = sums * terms[place].target[low : low + BLOCK].astype(dtype)
                    mask_items(block, low, *mask)
                    select(block, low, found[place], scores[place], lengths[place], wrong)
        for place in range(len(terms)):
            sort_heaps(found[place], scores[place], lengths[place])
        items[:, users], bad[users] = found, wrong

    machine.run(work, -(-n_users // step))
    if bad.any():
        raise SolveError("a model scores NaN; raise l2 or dropout")
    return items


def _by_rows(terms: list[Dense], history: Csr, k: int) -> Lists:
    """Return lists (term, user, rank) of dense terms on one matrix."""
    matrix, dtype = np.asarray(terms[0].matrix), terms[0].dtype
    sources: dict[bytes, int] = {}
    source_of = np.array([sources.setdefault(t.source.tobytes(), len(sources)) for t in terms])
    scale = np.stack([np.frombuffer(each, terms[0].source.dtype) for each in sources])
    indices = history.indices.astype(np.int32, copy=False)
    # the product is rounded to the precision of the sums, as in `terms.Rows.weights`
    weights = history.data.astype(dtype)[None] * scale.astype(dtype)[:, indices]
    targets = np.stack([term.target.astype(dtype) for term in terms])
    n_users = history.shape[0]
    items = np.full((len(terms), n_users, k), -1, np.int32)
    order = np.argsort(-np.diff(history.indptr), kind="stable")
    count = min(n_users, CHUNKS * machine.count())
    bad = np.zeros(n_users, np.bool_)

    def work(number: int) -> None:
        users = np.sort(order[number::count]).astype(np.int64)
        shape = (len(terms), len(users), k)
        found, scores = np.full(shape, -1, np.int32), np.full(shape, np.nan, dtype)
        lengths, wrong = np.zeros(shape[:2], np.int32), np.zeros(len(users), np.bool_)
        indptr = history.indptr.astype(np.int64)
        _fill(
            *(matrix, indptr, indices, weights, users, targets, source_of),
            *(found, scores, lengths, wrong),
        )
        items[:, users] = found
        bad[users] = wrong

    machine.run(work, count)
    if bad.any():
        raise SolveError("a model scores NaN; raise l2 or dropout")
    return items


@compiled
def _fill(
    matrix: Any,
    indptr: Any,
    indices: Any,
    weights: Any,
    users: Any,
    targets: Any,
    source_of: Any,
    items: Any,
    scores: Any,
    lengths: Any,
    bad: Any,
) -> None:
    """Fill in the lists of these users under every target, block of columns by block."""
    n_items = matrix.shape[0]
    sums = np.empty((len(weights), WIDTH), matrix.dtype)
    block = np.empty((1, WIDTH), matrix.dtype)
    for low in range(0, n_items, WIDTH):
        size = min(WIDTH, n_items - low)
        for user in range(len(users)):
            start, stop = indptr[users[user]], indptr[users[user] + 1]
            sums[:, :size] = 0
            add_to_sums(sums, size, matrix, low, indices, weights, start, stop)
            first = start
            while first < stop and indices[first] < low:
                first += 1
            for which in range(len(targets)):
                total, scale = sums[source_of[which]], targets[which]
                for j in range(size):
                    block[0, j] = total[j] * scale[low + j]
                place = first
                while place < stop and indices[place] < low + size:
                    block[0, indices[place] - low] = -np.inf
                    place += 1
                one = slice(user, user + 1)
                select(
                    block[:, :size],
                    low,
                    items[which, one],
                    scores[which, one],
                    lengths[which, one],
                    bad[one],
                )
    for which in range(len(targets)):
        sort_heaps(items[which], scores[which], lengths[which])
