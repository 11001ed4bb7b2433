"""Top-k lists of many models that share a solve, for little more than the cost of one model.

Models that share a solve differ in two vectors only: scores = (x * source) @ P * target. A row of
P is read from memory once and added to the sums of every source (alpha); each target (family,
diag_bound, gamma) is then one multiplication. If P is not an array, the term computes the sums of
each source. Every sum runs in the order of `ranker.top_k`, so the scores and lists of a model are
bit for bit those it gets when it is ranked alone.
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
BATCH = 4096  # users per batch for models that are ranked one by one
CHUNKS = 4  # per thread, so that no thread waits long for the last chunk
WIDTH = 512  # columns: the sums of six sources stay in the first-level cache


def rank_together(
    models: Sequence[Recommender], history: Interactions, k: int, *, exclude_seen: bool = True
) -> list[Lists]:
    """Return the lists of each model, item positions padded with -1.

    Models whose only term differs in its scales alone are ranked together. Other models, such as
    those on a GPU, are ranked one by one, and so are all models if seen items may be listed.
    """
    depth = min(k, history.n_items)
    out: dict[int, Lists] = {}
    groups: dict[Any, list[tuple[int, ScaledTerm]]] = {}
    for number, model in enumerate(models):
        term, *more = model.terms()
        can_share = exclude_seen and not more and term.rank_job is None
        if can_share and isinstance(term, ScaledTerm):
            groups.setdefault((type(term), *term.common), []).append((number, term))
    together = [
        group for group in groups.values() if len(group) > 1 or isinstance(group[0][1], Dense)
    ]
    alone = {*range(len(models))} - {number for group in together for number, _ in group}
    parts: dict[int, list[Lists]] = {number: [] for number in sorted(alone)}
    for start in range(0, history.n_users if alone else 0, BATCH):
        # models that solve for rows on demand share them: all rank a batch before the next one
        batch = history.rows(np.arange(start, min(start + BATCH, history.n_users)))
        for number, batches in parts.items():
            batches.append(models[number].rank(batch, depth, exclude_seen=exclude_seen).items)
    out |= {number: np.concatenate(batches) for number, batches in parts.items()}
    for group in together:
        numbers, terms = zip(*group, strict=True)
        first = models[numbers[0]]
        rank: Callable[..., Lists] = _rank_dense if isinstance(terms[0], Dense) else _rank_terms
        rows = first._rows_of(history, Unknowns())
        lists = rank(terms, rows, depth)
        cold = np.flatnonzero(cold_rows(rows, first.item_counts_))
        if len(cold):  # ranked by popularity, which is not part of the term
            lists[:, cold] = first.rank(history.rows(cold), depth).items
        out |= dict(zip(numbers, lists, strict=True))
    return [out[number] for number in range(len(models))]


class _Heaps:
    """The k best items so far of each term and each of these users, while blocks are scored."""

    def __init__(self, n_terms: int, users: npt.NDArray[np.int64], k: int, dtype: Any) -> None:
        shape = (n_terms, len(users), k)
        self.items, self.scores = np.full(shape, -1, np.int32), np.full(shape, np.nan, dtype)
        self.lengths, self.is_nan = np.zeros(shape[:2], np.int32), np.zeros(len(users), np.bool_)

    def lists(self) -> Lists:
        """Return the items, best first."""
        if self.is_nan.any():
            raise SolveError("a model scores NaN; raise l2 or dropout")
        for heap in zip(self.items, self.scores, self.lengths, strict=True):
            sort_heaps(*heap)
        return self.items


def _rank_terms(terms: Sequence[ScaledTerm], history: Csr, k: int) -> Lists:
    """Return lists (term, user, rank) of terms that differ in their scales alone."""
    n_users, n_items = history.shape
    dtype = terms[0].dtype
    items = np.empty((len(terms), n_users, k), np.int32)
    by_source: dict[bytes, list[int]] = {}
    for number, term in enumerate(terms):
        by_source.setdefault(term.source.tobytes(), []).append(number)
    step = max(1, TILE // (dtype.itemsize * BLOCK))
    indptr, indices = history.indptr.astype(np.int64), history.indices.astype(np.int32, copy=False)

    def rank_chunk(chunk: int) -> None:
        users = np.arange(chunk * step, min((chunk + 1) * step, n_users))
        seen = indptr[users], indptr[users + 1], indices
        heaps = _Heaps(len(terms), users, k, dtype)
        for numbers in by_source.values():
            unscaled: Any = dataclasses.replace(
                terms[numbers[0]],  # type: ignore[type-var]
                target=np.ones(n_items, dtype),
            )
            (add,) = adders([unscaled], history, users)
            for low in range(0, n_items, BLOCK):
                sums = np.zeros((len(users), min(BLOCK, n_items - low)), dtype)
                add(sums, low)
                for n in numbers:
                    block = sums * terms[n].target[low : low + BLOCK].astype(dtype)
                    mask_items(block, low, *seen)
                    heap = heaps.items[n], heaps.scores[n], heaps.lengths[n]
                    select(block, low, *heap, heaps.is_nan)
        items[:, users] = heaps.lists()

    machine.run(rank_chunk, -(-n_users // step))
    return items


def _rank_dense(terms: Sequence[Dense], history: Csr, k: int) -> Lists:
    """Return lists (term, user, rank) of dense terms on one matrix."""
    matrix, dtype = np.asarray(terms[0].matrix), terms[0].dtype
    sources: dict[bytes, int] = {}
    source_of = np.array([sources.setdefault(t.source.tobytes(), len(sources)) for t in terms])
    scale = np.stack([np.frombuffer(source, terms[0].source.dtype) for source in sources])
    indptr, indices = history.indptr.astype(np.int64), history.indices.astype(np.int32, copy=False)
    # the product is rounded to the precision of the sums, as in `terms.Rows.weights`
    weights = history.data.astype(dtype)[None] * scale.astype(dtype)[:, indices]
    targets = np.stack([term.target.astype(dtype) for term in terms])
    rows = indptr, indices, weights
    n_users = history.shape[0]
    items = np.empty((len(terms), n_users, k), np.int32)
    order = np.argsort(-np.diff(history.indptr), kind="stable")
    n_chunks = min(n_users, CHUNKS * machine.count())

    def rank_chunk(chunk: int) -> None:
        users = np.sort(order[chunk::n_chunks]).astype(np.int64)
        heaps = _Heaps(len(terms), users, k, dtype)
        heap = heaps.items, heaps.scores, heaps.lengths, heaps.is_nan
        _select_best(matrix, *rows, users, targets, source_of, *heap)
        items[:, users] = heaps.lists()

    machine.run(rank_chunk, n_chunks)
    return items


@compiled
def _select_best(
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
    is_nan: Any,
) -> None:
    """Fill the heaps of these users under every target, one block of columns at a time."""
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
            one = slice(user, user + 1)
            for t in range(len(targets)):
                total, scale = sums[source_of[t]], targets[t]
                for j in range(size):
                    block[0, j] = total[j] * scale[low + j]
                place = first
                while place < stop and indices[place] < low + size:
                    block[0, indices[place] - low] = -np.inf
                    place += 1
                heap = items[t, one], scores[t, one], lengths[t, one]
                select(block[:, :size], low, *heap, is_nan[one])
