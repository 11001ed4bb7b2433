"""The order in which top-k lists are computed: chunks of users, blocks of columns, tiles of users.

Each thread takes a chunk of users and walks over blocks of columns. Within a block it takes as
many users at a time as have their scores in the second-level cache, and offers the scores to the
lists at once. So the rows of a block are read from memory once for all users of the chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.heaps import select, sort_heaps
from equipoise.kernels import Floats, Offsets, Positions, mask_items
from equipoise.matrix import Csr
from equipoise.sequences import segments
from equipoise.terms import Adder, Constant, Rows, Sparse, Term

SCRATCH = 8 << 20  # bytes of lists, and of what terms hold, in a chunk
CHUNK = 4096  # users in a chunk, at most
TILE = 1 << 19  # bytes of scores in a tile
BLOCK = 2048  # columns: narrow enough for the cache, wide enough to stream
SMALL = 4_000_000  # additions below which threads cost more than they give

Mask = tuple[Offsets, Offsets, Positions]


@dataclass(frozen=True, eq=False)
class Ranked:
    """Lists of item positions, best first.

    Parameters
    ----------
    items
        One row per user, k wide or as wide as there are items; -1 after the end of the list.
    scores
        Scores of these items; NaN after the end of the list.
    lengths
        Number of items in each list: k, or fewer where a user has fewer candidates.
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
        """Put the lists of groups of users, each with its rows, into one order."""
        if len(parts) == 1:
            return parts[0][1]
        order = np.argsort(np.concatenate([rows for rows, _ in parts]))
        names = ("items", "scores", "lengths")
        return cls(*(np.concatenate([getattr(p, n) for _, p in parts])[order] for n in names))

    def put(self, users: npt.NDArray[np.int64], lists: Ranked) -> None:
        """Take over the lists of these users."""
        self.items[users] = lists.items
        self.scores[users] = lists.scores
        self.lengths[users] = lists.lengths

    def part(self, users: slice) -> Ranked:
        """View the lists of some users."""
        return Ranked(self.items[users], self.scores[users], self.lengths[users])


def sum_dtype(terms: Sequence[Term]) -> np.dtype[Any]:
    """Return the precision of the summed scores."""
    return np.result_type(*(term.dtype for term in terms))


def constant_scores(terms: Sequence[Term], n_items: int) -> Floats:
    """Return the sum of the constant terms, which every user's scores start from."""
    base = np.zeros(n_items, sum_dtype(terms))
    for term in terms:
        if isinstance(term, Constant):
            base += term.scores
    return base


def adders(
    terms: Sequence[Term],
    history: Csr,
    users: npt.NDArray[np.int64],
    known: npt.NDArray[np.int64] | None = None,
) -> list[Adder]:
    """Return the functions that add the other terms to a block of these users' scores.

    `known` holds the positions of the training users that the rows of the history belong to.
    """
    starts, stops = history.indptr[users], history.indptr[users + 1]
    places, offsets = segments(starts, stops - starts)
    indices = history.indices[places].astype(np.int32, copy=False)
    positions = None if known is None else known[users]
    rows = Rows(offsets, indices, history.data[places], positions)
    return [term.adder(rows) for term in terms if not isinstance(term, Constant)]


@dataclass(frozen=True, eq=False)
class Job:
    """What the threads share: the terms, the histories and what may be listed.

    Parameters
    ----------
    terms, history
        Their product is the scores; the history is in canonical form.
    hidden
        Patterns, users x items, of what may not be listed, in canonical form.
    allowed
        Mask of the items that may be listed.
    k
        Length of the lists, at most the number of items.
    known
        Positions of the training users that the rows belong to, -1 for anybody else.
    """

    terms: Sequence[Term]
    history: Csr
    hidden: Sequence[Csr]
    allowed: npt.NDArray[np.bool_]
    k: int
    known: npt.NDArray[np.int64] | None = None

    @property
    def width(self) -> int:
        """Columns of a block; sparse rows are cheapest to walk over whole."""
        whole = all(isinstance(term, (Sparse, Constant)) for term in self.terms)
        n_items = len(self.allowed)
        return max(n_items if whole else min(BLOCK, n_items), 1)

    def chunks(self, threads: int) -> list[npt.NDArray[np.int64]]:
        """Deal the users, longest history first, into equally heavy chunks."""
        n_users, n_items = self.history.shape
        held = sum(term.held for term in self.terms if not isinstance(term, Constant))
        size = sum_dtype(self.terms).itemsize
        most = SCRATCH // ((size + 4) * max(self.k, 1) + size * held)
        most = min(max(most, 1), CHUNK)
        if n_items * (self.history.nnz + n_users * (1 + held)) < SMALL:
            threads = 1
        rounds = -(-n_users // (most * threads))
        count = min(rounds * threads, n_users)
        order = np.argsort(-np.diff(self.history.indptr), kind="stable")
        return [np.sort(order[start::count]) for start in range(count)]

    def run(self, users: npt.NDArray[np.int64], ranked: Ranked) -> npt.NDArray[np.int64]:
        """Fill in the lists of these users; return those who have a NaN among their scores."""
        n_items, dtype, width = len(self.allowed), ranked.scores.dtype, self.width
        base = constant_scores(self.terms, n_items)
        barred = np.flatnonzero(~self.allowed).astype(np.int32)
        lists = Ranked.empty(len(users), self.k, dtype)
        bad = np.zeros(len(users), np.bool_)
        step = max(1, TILE // (dtype.itemsize * width))
        tiles = []
        for at in range(0, len(users), step):
            some = slice(at, at + step)
            masks = self._masks(users[some], barred)
            add = adders(self.terms, self.history, users[some], self.known)
            tiles.append(_Tile(add, masks, lists.part(some), bad[some]))
        room = np.empty(min(step, len(users)) * width, dtype)
        for low in range(0, n_items, width):
            part = base[low : low + width]
            if self.allowed[low : low + width].any():
                for tile in tiles:
                    tile.offer(room, low, part)
        sort_heaps(lists.items, lists.scores, lists.lengths)
        ranked.put(users, lists)
        return users[bad]

    def _masks(self, users: npt.NDArray[np.int64], barred: Positions) -> list[Mask]:
        masks: list[Mask] = []
        for csr in self.hidden:
            starts, stops = csr.indptr[users], csr.indptr[users + 1]
            masks.append((starts.astype(np.int64), stops.astype(np.int64), csr.indices))
        if len(barred):
            nothing = np.zeros(len(users), np.int64)
            masks.append((nothing, nothing + len(barred), barred))
        return masks


@dataclass(frozen=True, eq=False)
class _Tile:
    adders: list[Adder]
    masks: list[Mask]
    lists: Ranked
    bad: npt.NDArray[np.bool_]

    def offer(self, room: Floats, low: int, base: Floats) -> None:
        """Score the items from `low` on and offer them to the lists."""
        shape = len(self.bad), len(base)
        block = room[: shape[0] * shape[1]].reshape(shape)
        block[:] = base
        for add in self.adders:
            add(block, low)
        for starts, stops, indices in self.masks:
            mask_items(block, low, starts, stops, indices)
        lists = self.lists
        select(block, low, lists.items, lists.scores, lists.lengths, self.bad)
