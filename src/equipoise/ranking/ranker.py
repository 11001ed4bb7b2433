"""Scores and top-k lists, for recommending, evaluating and serving.

A user's scores are summed from the rows of the history's items, one block of columns at a time,
and offered to the user's heap. Neither users x items nor the scoring matrix is ever formed, and
the lists do not depend on threads, batches or other users.

Each thread takes a chunk of users through the blocks, in tiles of users whose scores fit into the
second-level cache. So the rows of a block are read from memory once for all users of the chunk. A
term on a GPU makes all lists there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from equipoise.checks import cutoff
from equipoise.data.matrix import Csr, as_positions, segments
from equipoise.errors import DataError, SolveError
from equipoise.ranking.kernels import (
    boost_items,
    keep_items,
    mask_items,
    rank_history,
    select,
    sort_heaps,
)
from equipoise.ranking.terms import Adder, Dense, Rows, Term
from equipoise.runtime.kernels import Floats, Offsets, Positions
from equipoise.runtime.machine import count, limited, run

SCRATCH = 8 << 20  # bytes of lists and buffers of terms in a chunk
CHUNK = 4096  # most users in a chunk
TILE = 1 << 19  # bytes of scores in a tile
BLOCK = 2048  # columns: narrow enough for the cache, wide enough to stream
WIDE = 1 << 16  # columns of sparse terms, which have few entries in a narrow block
SMALL = 4_000_000  # additions below which threads cost more than they save

Mask = tuple[Offsets, Offsets, Positions]


@dataclass(frozen=True, eq=False)
class Only:
    """Restricts the lists of users to the stored pairs."""

    pairs: Csr  # users x items
    users: npt.NDArray[np.bool_] | None = None  # mask of the restricted users; None for all

    def take(self, rows: npt.NDArray[np.int64]) -> Self:
        """Return the users at these rows."""
        return type(self)(self.pairs[rows], None if self.users is None else self.users[rows])


@dataclass(frozen=True, eq=False)
class Boost:
    """A factor > 0 and a bonus for the score of each item.

    A positive score is multiplied by the factor and a negative one divided by it, so that a
    factor above 1 raises both; then the bonus is added.
    """

    factor: npt.NDArray[np.float64]
    bonus: npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Ranked:
    """Lists of item positions, best first.

    Parameters
    ----------
    items
        One row per user, min(k, number of items) wide; -1 after the end of the list.
    scores
        Scores of these items; NaN after the end of the list.
    lengths
        Number of items in each list: k, or fewer if a user has fewer candidates.
    """

    items: npt.NDArray[np.int32]
    scores: npt.NDArray[Any]
    lengths: npt.NDArray[np.int32]

    @classmethod
    def empty(cls, n_users: int, k: int, dtype: np.dtype[Any]) -> Ranked:
        """Return lists of length 0 with room for k items."""
        items = np.full((n_users, k), -1, np.int32)
        return cls(items, np.full((n_users, k), np.nan, dtype), np.zeros(n_users, np.int32))

    @classmethod
    def joined(cls, parts: Sequence[tuple[npt.NDArray[np.int64], Ranked]]) -> Ranked:
        """Return the lists of several groups of users, each with its rows, sorted by row."""
        if len(parts) == 1:
            return parts[0][1]
        order = np.argsort(np.concatenate([rows for rows, _ in parts]))
        names = ("items", "scores", "lengths")
        return cls(*(np.concatenate([getattr(p, n) for _, p in parts])[order] for n in names))

    def in_order(self, items: npt.NDArray[np.int64]) -> Ranked:
        """Return the lists with their items in the order of `items`."""
        place = np.full(max(items.max(initial=0), self.items.max(initial=0)) + 2, len(items))
        place[items] = np.arange(len(items))
        order = np.argsort(place[self.items], axis=1, kind="stable")  # -1 is the last place
        shown = np.take_along_axis(self.items, order, axis=1)
        return Ranked(shown, np.take_along_axis(self.scores, order, axis=1), self.lengths)

    def overlap(self, other: Ranked) -> float:
        """Return the mean share of the items of a list that the other list of the user has too."""
        shared = [
            len(np.intersect1d(items[items >= 0], other_items[other_items >= 0]))
            / int((items >= 0).sum())
            for items, other_items in zip(self.items, other.items, strict=True)
            if (items >= 0).any()
        ]
        # users who have used every item have no list
        return float(np.mean(shared)) if shared else 1.0

    def put(self, users: npt.NDArray[np.int64], lists: Ranked) -> None:
        """Overwrite the lists of these users."""
        self.items[users], self.scores[users] = lists.items, lists.scores
        self.lengths[users] = lists.lengths

    def part(self, users: slice | npt.NDArray[Any]) -> Ranked:
        """Return the lists of these users; views for a slice."""
        return Ranked(self.items[users], self.scores[users], self.lengths[users])


def top_k(
    terms: Sequence[Term],
    history: Csr,
    k: int,
    *,
    exclude_seen: bool = True,
    exclude: Csr | None = None,
    candidates: npt.NDArray[np.bool_] | None = None,
    only: Sequence[Only] = (),
    boost: Boost | None = None,
    users: npt.NDArray[np.int64] | None = None,
    threads: int | None = None,
) -> Ranked:
    """Return the k items with the highest scores for each history.

    Equal scores are ordered by item position, lowest first. An item whose score is minus infinity
    is never listed.

    Parameters
    ----------
    terms
        Their sum is the scoring matrix.
    history
        Users x items; values are weights, 1 for an interaction.
    k
        Length of the lists, at most the number of items.
    exclude_seen
        Exclude the items of the history.
    exclude
        Users x items; stored pairs are excluded, whatever their value.
    candidates
        Mask of the items that may be listed, for all users.
    only
        Pairs to which lists are restricted, for some or all users.
    boost
        Factors and bonuses of the scores by item.
    users
        Positions of the training users that the rows belong to, -1 for other users; for terms
        that store factors of training users.
    threads
        Number of threads (default: the current limit).

    Raises
    ------
    SolveError
        If a score is NaN; names the first such row.
    """
    k = cutoff("k", k)
    history = _checked(terms, history)
    n_items = history.shape[1]
    hidden = [history] if exclude_seen else []
    if exclude is not None:
        if exclude.shape != history.shape:
            raise DataError(f"exclude must have shape {history.shape}, got {exclude.shape}")
        hidden.append(_canonical(exclude))
    allowed = np.ones(n_items, np.bool_) if candidates is None else np.asarray(candidates)
    if allowed.shape != (n_items,) or allowed.dtype != np.bool_:
        raise DataError(
            f"candidates must be a mask of {n_items} items, got {allowed.dtype} {allowed.shape}"
        )
    restrictions = []
    for restriction in only:
        pairs = restriction.pairs
        if pairs.shape != history.shape:
            raise DataError(f"only must have shape {history.shape}, got {pairs.shape}")
        restrictions.append(Only(_canonical(pairs), restriction.users))
    job = Job(terms, history, hidden, allowed, min(k, n_items), users, restrictions, boost)
    with limited(threads):
        on_device = next((term.rank_job for term in terms if term.rank_job is not None), None)
        ranked, nan_rows = job.rank() if on_device is None else on_device(job)
    _refuse_nan(nan_rows)
    return ranked


class RowRanker:
    """Ranks the items for one history at a time.

    The numbers are those of `top_k`, bit for bit, without the work that only pays for many users.
    What does not depend on the history is prepared once.

    Parameters
    ----------
    terms
        As for `top_k`; none of them on a device.
    """

    def __init__(self, terms: Sequence[Term]) -> None:
        self._terms, self._dtype = terms, sum_dtype(terms)
        self._n_items = terms[0].n_items
        self._base = constant_scores(terms, self._n_items)
        summed = [term for term in terms if term.constant is None]
        self._fits_cache = self._n_items * self._dtype.itemsize <= TILE
        self._arrays: tuple[Any, ...] | None = None  # of a single matrix, for the compiled loop
        if len(summed) == 1 and type(summed[0]) is Dense and summed[0].dtype == self._dtype:
            self._arrays = summed[0].arrays

    def rank(
        self,
        indices: npt.NDArray[np.integer[Any]],
        values: Floats,
        k: int,
        allowed: npt.NDArray[np.bool_],
        hidden: npt.NDArray[np.integer[Any]],
    ) -> tuple[Positions, Floats]:
        """Return the k best items and their scores.

        Parameters
        ----------
        indices, values
            Items of the history in ascending order, and their weights in float32.
        k
            Length of the list.
        allowed
            Mask of the items that may be listed.
        hidden
            Positions of items that may not be listed all the same.
        """
        k = min(k, self._n_items)
        # copies, because the kernels would be compiled again for read-only arrays
        rows, barred = indices.astype(np.int32), hidden.astype(np.int32)
        if self._arrays is None or not self._fits_cache:
            return self._rank_in_blocks(rows, values, k, allowed, barred)
        items, best = np.empty(k, np.int32), np.empty(k, self._dtype)
        matrix, source, target, zero_diagonal = self._arrays
        scales = source, target, self._base
        history = rows, values.copy()
        excluded = allowed, barred
        length = rank_history(matrix, *scales, zero_diagonal, *history, *excluded, items, best)
        if length < 0:
            _refuse_nan(np.zeros(1, np.int64))
        return items[:length], best[:length]

    def _rank_in_blocks(
        self,
        indices: Positions,
        values: Floats,
        k: int,
        allowed: npt.NDArray[np.bool_],
        hidden: Positions,
    ) -> tuple[Positions, Floats]:
        """Return the list of any terms, from blocks of columns that fit into the cache."""
        if len(hidden):
            allowed = allowed.copy()
            allowed[hidden] = False
        rows = Rows(np.array([0, len(indices)]), indices, values)
        adders = [term.adder(rows) for term in self._terms if term.constant is None]
        scores = self._base.copy().reshape(1, -1)
        items, best = np.empty((1, k), np.int32), np.empty((1, k), scores.dtype)
        lengths, bad = np.zeros(1, np.int32), np.zeros(1, np.bool_)
        width = TILE // scores.itemsize
        for low in range(0, self._n_items, width):
            block = scores if self._n_items <= width else scores[:, low : low + width]
            for add in adders:
                add(block, low)
            block[:, ~allowed[low : low + width]] = -np.inf
            select(block, low, items, best, lengths, bad)
        sort_heaps(items, best, lengths)
        if bad[0]:
            _refuse_nan(np.zeros(1, np.int64))
        length = lengths[0]
        return items[0, :length], best[0, :length]


def score(
    terms: Sequence[Term],
    history: Csr,
    rows: npt.ArrayLike | None = None,
    *,
    users: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[Any]:
    """Return the scores of all items, users x items; meant for a few users at a time.

    Parameters
    ----------
    terms, history, users
        As for `top_k`; the numbers are the same, bit for bit.
    rows
        Rows of the history, by position (default: all).
    """
    history = _checked(terms, history)
    n_users = history.shape[0]
    positions = np.arange(n_users) if rows is None else as_positions(rows, n_users)
    scores = _dense_scores(terms, history, positions, users)
    _refuse_nan(positions[np.isnan(scores).any(axis=1)])
    return scores


def score_items(
    terms: Sequence[Term], history: Csr, user_rows: npt.ArrayLike, items: npt.ArrayLike
) -> npt.NDArray[Any]:
    """Return the scores of pairs of a history row and an item, as `top_k` gives them.

    Costs as much as a top-k list for each distinct row.
    """
    history = _checked(terms, history)
    rows = as_positions(user_rows, history.shape[0])
    columns = as_positions(items, history.shape[1])
    if rows.shape != columns.shape:
        raise DataError(f"{rows.size} user rows for {columns.size} items")
    out = np.empty(len(rows), sum_dtype(terms))
    order = np.argsort(rows, kind="stable")
    users, starts = np.unique(rows[order], return_index=True)
    ends = np.append(starts, len(rows))
    step = max(1, SCRATCH // (8 * max(history.shape[1], 1)))
    for first in range(0, len(users), step):
        batch = users[first : first + step]
        pairs = order[ends[first] : ends[first + len(batch)]]
        scores = _dense_scores(terms, history, batch)
        out[pairs] = scores[np.searchsorted(batch, rows[pairs]), columns[pairs]]
    _refuse_nan(rows[np.isnan(out)])
    return out


def _dense_scores(
    terms: Sequence[Term],
    history: Csr,
    users: npt.NDArray[np.int64],
    known: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[Any]:
    scores = np.tile(constant_scores(terms, history.shape[1]), (len(users), 1))
    for add in adders(terms, history, users, known):
        add(scores, 0)
    return scores


def sum_dtype(terms: Sequence[Term]) -> np.dtype[Any]:
    """Return the precision of the summed scores."""
    return np.result_type(*(term.dtype for term in terms))


def constant_scores(terms: Sequence[Term], n_items: int) -> Floats:
    """Return the sum of the constant terms."""
    base = np.zeros(n_items, sum_dtype(terms))
    for term in terms:
        if term.constant is not None:
            base += term.constant
    return base


def adders(
    terms: Sequence[Term],
    history: Csr,
    users: npt.NDArray[np.int64],
    known: npt.NDArray[np.int64] | None = None,
) -> list[Adder]:
    """Return the functions that add the other terms to a block of these users' scores.

    `known` has the positions of the training users that the rows of the history belong to.
    """
    ends, n_rows = history.indptr, history.shape[0]
    positions = None if known is None else known[users]
    if len(users) == n_rows and (n_rows == 1 or np.array_equal(users, np.arange(n_rows))):
        # copies, because the kernels would be compiled again for read-only arrays
        offsets, indices = ends.astype(np.int64), history.indices[: ends[-1]].astype(np.int32)
        values = history.data[: ends[-1]].copy()
    else:
        places, offsets = segments(ends[users], ends[users + 1] - ends[users])
        indices = history.indices[places].astype(np.int32, copy=False)
        values = history.data[places]
    rows = Rows(offsets, indices, values, positions)
    return [term.adder(rows) for term in terms if term.constant is None]


@dataclass(frozen=True, eq=False)
class Job:
    """The checked arguments of `top_k`, shared by all threads; matrices are canonical."""

    terms: Sequence[Term]
    history: Csr
    hidden: Sequence[Csr]  # users x items: pairs that may not be listed
    allowed: npt.NDArray[np.bool_]  # mask of the items that may be listed
    k: int  # at most the number of items
    known: npt.NDArray[np.int64] | None = None  # positions of training users, -1 for others
    only: Sequence[Only] = ()
    boost: Boost | None = None

    @property
    def width(self) -> int:
        """Columns of a block."""
        wide = all(term.wide_blocks for term in self.terms)
        return max(min(WIDE if wide else BLOCK, len(self.allowed)), 1)

    def rank(self) -> tuple[Ranked, npt.NDArray[np.int64]]:
        """Return the lists, and the rows with NaN scores."""
        ranked = Ranked.empty(self.history.shape[0], self.k, sum_dtype(self.terms))
        chunks = self.chunks(count())
        bad = [np.empty(0, np.int64)] * (len(chunks) + 1)

        def rank_chunk(number: int) -> None:
            bad[number] = self.run(chunks[number], ranked)

        run(rank_chunk, len(chunks))
        return ranked, np.concatenate(bad)

    def chunks(self, threads: int) -> list[npt.NDArray[np.int64]]:
        """Divide the users into chunks with about the same number of interactions."""
        n_users, n_items = self.history.shape
        if n_users == 1:
            return [np.zeros(1, np.int64)]
        buffer = sum(term.buffer_size for term in self.terms)
        size = sum_dtype(self.terms).itemsize
        most = SCRATCH // ((size + 4) * max(self.k, 1) + size * buffer)
        most = min(max(most, 1), CHUNK)
        if n_items * (self.history.nnz + n_users * (1 + buffer)) < SMALL:
            threads = 1
        rounds = -(-n_users // (most * threads))
        n_chunks = min(rounds * threads, n_users)
        order = np.argsort(-np.diff(self.history.indptr), kind="stable")
        return [np.sort(order[start::n_chunks]) for start in range(n_chunks)]

    def run(self, users: npt.NDArray[np.int64], ranked: Ranked) -> npt.NDArray[np.int64]:
        """Fill the lists of these users; return the users with NaN scores."""
        n_items, dtype, width = len(self.allowed), ranked.scores.dtype, self.width
        base = constant_scores(self.terms, n_items)
        barred = np.flatnonzero(~self.allowed).astype(np.int32)
        lists = Ranked.empty(len(users), self.k, dtype)
        bad = np.zeros(len(users), np.bool_)
        step = max(1, TILE // (dtype.itemsize * width))
        tiles = []
        for at in range(0, len(users), step):
            part = slice(at, at + step)
            tile = users[part]
            add = adders(self.terms, self.history, tile, self.known) + self._boosts(dtype)
            masks = self._masks(tile, barred), self._restrictions(tile)
            tiles.append((add, *masks, lists.part(part), bad[part]))
        room = np.empty(min(step, len(users)) * width, dtype)
        for low in range(0, n_items, width):
            if self.allowed[low : low + width].any():
                for arguments in tiles:
                    _offer(room, low, base[low : low + width], *arguments)
        sort_heaps(lists.items, lists.scores, lists.lengths)
        ranked.put(users, lists)
        return users[bad]

    def _boosts(self, dtype: np.dtype[Any]) -> list[Adder]:
        if self.boost is None:
            return []
        scales = self.boost.factor.astype(dtype), self.boost.bonus.astype(dtype)
        return [lambda block, low: boost_items(block, low, *scales)]

    def _restrictions(self, users: npt.NDArray[np.int64]) -> list[Mask]:
        masks: list[Mask] = []
        for only in self.only:
            ends = only.pairs.indptr.astype(np.int64, copy=False)
            starts = ends[users]
            if only.users is not None:
                starts = np.where(only.users[users], starts, -1)
            masks.append((starts, ends[users + 1], only.pairs.indices))
        return masks

    def _masks(self, users: npt.NDArray[np.int64], barred: Positions) -> list[Mask]:
        masks: list[Mask] = []
        for csr in self.hidden:
            starts, stops = csr.indptr[users], csr.indptr[users + 1]
            masks.append((starts.astype(np.int64), stops.astype(np.int64), csr.indices))
        if len(barred):
            zeros = np.zeros(len(users), np.int64)
            masks.append((zeros, zeros + len(barred), barred))
        return masks


def _offer(
    room: Floats,
    low: int,
    base: Floats,
    adders: list[Adder],
    masks: list[Mask],
    restrictions: list[Mask],
    lists: Ranked,
    bad: npt.NDArray[np.bool_],
) -> None:
    """Score the items from `low` on for a tile of users, and offer them to the lists."""
    block = room[: len(bad) * len(base)].reshape(len(bad), len(base))
    block[:] = base
    for add in adders:
        add(block, low)
    for mask in masks:
        mask_items(block, low, *mask)
    for mask in restrictions:
        keep_items(block, low, *mask)
    select(block, low, lists.items, lists.scores, lists.lengths, bad)


def _checked(terms: Sequence[Term], history: Csr) -> Csr:
    if not terms:
        raise DataError("at least one term is needed to score")
    for term in terms:
        if term.n_items != history.shape[1]:
            raise DataError(
                f"the history has {history.shape[1]} items, the model has {term.n_items}"
            )
    return _canonical(history)


def _canonical(csr: Csr) -> Csr:
    """Sort the positions of each row, so that the order of the sums is fixed."""
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    return csr


def _refuse_nan(rows: npt.NDArray[np.int64]) -> None:
    if rows.size:
        raise SolveError(
            f"row {rows.min()} of the histories has scores that are not numbers; the model has "
            "NaN or infinite values: fit it again with a larger l2 or in float64"
        )
