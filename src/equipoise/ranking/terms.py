"""The scoring matrix W as a sum of terms; a history x scores x W, and W is never formed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.errors import DataError
from equipoise.ranking.kernels import (
    add_product,
    add_rows,
    add_sparse_rows,
    add_users,
    gather_users,
)
from equipoise.runtime.kernels import Floats, Offsets, Positions

Adder = Callable[[Floats, int], None]
CORE_COLUMNS = 512  # of a dual term's core, multiplied at a time


@dataclass(frozen=True)
class Rows:
    """Histories in the form of the kernels: CSR with sorted positions.

    `users` has the positions of the training users they belong to, -1 for other users; None if no
    row belongs to one.
    """

    indptr: Offsets
    indices: Positions
    values: npt.NDArray[np.float32]
    users: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def weights(self, source: npt.NDArray[Any], dtype: np.dtype[Any]) -> Floats:
        """Return value times source for each stored pair."""
        scale = source.take(self.indices).astype(dtype, copy=False)
        return np.asarray(self.values.astype(dtype, copy=False) * scale)


class Term(ABC):
    """A summand of the scoring matrix; models may define further kinds."""

    constant: npt.NDArray[Any] | None = None  # scores that do not depend on the history
    wide_blocks = False  # whether many items at once are cheaper than few
    rank_job: Callable[[Any], Any] | None = None  # makes all lists if the term is on a device

    @property
    @abstractmethod
    def n_items(self) -> int:
        """Number of items."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Precision of the sums."""

    @property
    def buffer_size(self) -> int:
        """Numbers that an adder stores for each user; limits the users of a batch."""
        return 0

    @abstractmethod
    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds this term's scores to ascending blocks of columns.

        A user's scores must have the same bits whichever other rows there are.
        """

    def factors(self) -> tuple[Any, Any, Any, Any] | None:
        """Return left, right, source and target of ``(x * source) @ left @ right * target``.

        Used to score on the device of another term; None if only the host can score.
        """
        return None

    def scaled(self, factors: npt.NDArray[np.float64]) -> Term:
        """Return a term whose score of each item is multiplied."""
        return Scaled(self, factors.astype(self.dtype))


class ScaledTerm(Term):
    """Base of the terms with a factor for each item of the history and each item scored."""

    source: npt.NDArray[Any]
    target: npt.NDArray[Any]

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.target)

    @property
    def common(self) -> tuple[int, ...]:
        """A key that is equal for living terms that differ in their scales alone."""
        names = (field.name for field in fields(self))  # type: ignore[arg-type]
        return tuple(id(getattr(self, name)) for name in names if name not in ("source", "target"))

    @cached_property
    def _plain_target(self) -> Floats:
        return _plain(self.target, self.dtype)

    def scaled(self, factors: npt.NDArray[np.float64]) -> Term:
        """Return a term whose score of each item is multiplied."""
        target = self.target * factors.astype(self.dtype)
        return replace(self, target=target)  # type: ignore[type-var]

    def _check_scales(self) -> None:
        source, target = self.source.shape, self.target.shape
        if source != target or len(target) != 1:
            raise DataError(
                f"source and target need one value per item, got {source} and {target}"
            )


@dataclass(frozen=True, eq=False)
class Dense(ScaledTerm):
    """Scores ``(x * source) @ matrix * target``.

    Parameters
    ----------
    matrix
        n x n, C-contiguous, float32, float64 or, for sums in float32, int16; may be a read-only
        memory map.
    source, target
        A factor for each item of the history, and for each item that is scored.
    zero_diagonal
        Whether an item of the history adds nothing to its own score.
    """

    matrix: npt.NDArray[Any]
    source: npt.NDArray[Any]
    target: npt.NDArray[Any]
    zero_diagonal: bool = True

    def __post_init__(self) -> None:
        shape = (self.n_items, self.n_items)
        _check_floats(self.matrix, "the matrix of a dense term", shape, allow_int16=True)
        self._check_scales()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the sums."""
        return np.result_type(self.matrix.dtype, np.float32)

    @cached_property
    def _plain_matrix(self) -> npt.NDArray[Any]:
        return _plain(self.matrix)

    @property
    def arrays(self) -> tuple[Any, Any, Any, bool]:
        """Matrix, source and target as the kernels take them, and whether the diagonal is zero."""
        source = _plain(self.source, self.dtype)
        return self._plain_matrix, source, self._plain_target, self.zero_diagonal

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds this term's scores to a block of columns."""
        matrix, target = self._plain_matrix, self._plain_target
        history = rows.indptr, rows.indices, rows.weights(self.source, self.dtype)

        def add(scores: Floats, low: int) -> None:
            add_rows(scores, low, matrix, *history, target, self.zero_diagonal)

        return add


@dataclass(frozen=True, eq=False)
class Sparse(ScaledTerm):
    """Like `Dense`, with the matrix as CSR rows whose columns are sorted and unique."""

    data: npt.NDArray[Any]
    indices: npt.NDArray[Any]
    indptr: npt.NDArray[Any]
    source: npt.NDArray[Any]
    target: npt.NDArray[Any]
    zero_diagonal: bool = True

    wide_blocks = True

    def __post_init__(self) -> None:
        _check_floats(self.data, "the data of a sparse term")
        _check_shape(self.indices, self.data.shape, "the indices of a sparse term")
        _check_shape(self.indptr, (self.n_items + 1,), "the indptr of a sparse term")
        ends = int(self.indptr[0]), int(self.indptr[-1])
        if ends != (0, len(self.data)) or (np.diff(self.indptr) < 0).any():
            raise DataError(f"the indptr of a sparse term must ascend from 0 to {len(self.data)}")
        self._check_scales()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the sums."""
        return self.data.dtype

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds this term's scores to ascending blocks of columns."""
        cursor = self.indptr[rows.indices].astype(np.int64)
        ends = self.indptr[rows.indices + 1].astype(np.int64)
        matrix = _plain(self.data), _plain(self.indices), cursor, ends
        history = rows.indptr, rows.indices, rows.weights(self.source, self.dtype)
        target = self._plain_target

        def add(scores: Floats, low: int) -> None:
            add_sparse_rows(scores, low, *matrix, *history, target, self.zero_diagonal)

        return add


@dataclass(frozen=True, eq=False)
class LowRank(ScaledTerm):
    """Scores ``(x * source) @ left @ right * target``; left is n x q, right is q x n.

    Both products are summed in a fixed order, not by BLAS, whose rounding depends on the number of
    users in a batch.
    """

    left: npt.NDArray[Any]
    right: npt.NDArray[Any]
    source: npt.NDArray[Any]
    target: npt.NDArray[Any]

    def __post_init__(self) -> None:
        rank = self.left.shape[-1]
        _check_floats(self.left, "the left factor of a low-rank term", (self.n_items, rank))
        _check_floats(self.right, "the right factor of a low-rank term", (rank, self.n_items))
        if self.left.dtype != self.right.dtype:
            dtypes = f"{self.left.dtype} and {self.right.dtype}"
            raise DataError(f"the factors of a low-rank term must have one dtype, got {dtypes}")
        self._check_scales()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the sums."""
        return self.left.dtype

    @property
    def buffer_size(self) -> int:
        """The length of the history times the left factor."""
        return int(self.left.shape[1])

    def factors(self) -> tuple[Any, Any, Any, Any]:
        """Return the arrays of the product."""
        return self.left, self.right, self.source, self.target

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds this term's scores to a block of columns."""
        return self.product(self.hidden(rows))

    def hidden(self, rows: Rows) -> Floats:
        """Return ``(x * source) @ left``, a row per history."""
        weights = rows.weights(self.source, self.dtype)
        hidden = np.zeros((len(rows), self.buffer_size), self.dtype)
        ones = _plain(np.ones(self.buffer_size, self.dtype))
        add_rows(hidden, 0, _plain(self.left), rows.indptr, rows.indices, weights, ones, False)
        return hidden

    def product(self, hidden: Floats) -> Adder:
        """Return a function that adds ``hidden @ right * target`` to a block of columns."""
        right, target = _plain(self.right), self._plain_target
        everything = np.arange(len(right), dtype=np.int32)

        def add(scores: Floats, low: int) -> None:
            add_product(scores, low, hidden, right, target, everything)

        return add


@dataclass(frozen=True, eq=False)
class Dual(ScaledTerm):
    """Scores ``(x * source) @ (Y^T C Y without its diagonal) * target``, through training users.

    A history is summed over the users of its items, the sums are multiplied by C, and each item
    collects those of its users. The sums over users cancel, so they are made in float64.

    Parameters
    ----------
    core
        C, users x users, symmetric, float64; may be a read-only memory map.
    data, indices, indptr
        Y^T as CSR rows, items x users.
    diagonal
        Diagonal of Y^T C Y.
    source, target
        A factor for each item of the history, and for each item that is scored.
    precision
        Of the scores.
    """

    core: npt.NDArray[Any]
    data: npt.NDArray[Any]
    indices: npt.NDArray[Any]
    indptr: npt.NDArray[Any]
    diagonal: npt.NDArray[Any]
    source: npt.NDArray[Any]
    target: npt.NDArray[Any]
    precision: np.dtype[Any]

    def __post_init__(self) -> None:
        _check_floats(self.core, "the core of a dual term", (len(self.core),) * 2)
        _check_shape(self.indptr, (self.n_items + 1,), "the indptr of a dual term")
        self._check_scales()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the scores."""
        return self.precision

    @property
    def buffer_size(self) -> int:
        """The number of training users."""
        return len(self.core)

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds this term's scores to a block of columns."""
        starts, users = self.indptr.astype(np.int64), self.indices.astype(np.int32, copy=False)
        weights = rows.weights(self.source, np.dtype(np.float64))
        sums = np.zeros((len(rows), self.buffer_size))
        gather_users(sums, self.data, users, starts, rows.indptr, rows.indices, weights)
        through = np.ascontiguousarray(self._through_core(sums).T)
        values = self.data.astype(self.dtype, copy=False)
        diagonal = (weights * self.diagonal[rows.indices]).astype(self.dtype)
        target = self._plain_target

        def add(scores: Floats, low: int) -> None:
            items = values, users, starts
            add_users(scores, low, through, *items, rows.indptr, rows.indices, diagonal, target)

        return add

    def _through_core(self, sums: Floats) -> Floats:
        """Return ``sums @ core`` in the precision of the scores."""
        out = np.empty(sums.shape, self.dtype)
        core, ones = _plain(self.core), np.ones(self.buffer_size)
        everything = np.arange(self.buffer_size, dtype=np.int32)
        for low in range(0, self.buffer_size, CORE_COLUMNS):
            part = np.zeros((len(sums), min(CORE_COLUMNS, self.buffer_size - low)))
            add_product(part, low, sums, core, _plain(ones), everything)
            out[:, low : low + CORE_COLUMNS] = part
        return out


@dataclass(frozen=True, eq=False)
class Constant(Term):
    """A score per item that does not depend on the history, such as popularity."""

    scores: npt.NDArray[Any]

    wide_blocks = True

    def __post_init__(self) -> None:
        _check_floats(self.scores, "the scores of a constant term")
        object.__setattr__(self, "constant", self.scores)

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.scores)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the sums."""
        return self.scores.dtype

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds the scores to a block of columns."""

        def add(scores: Floats, low: int) -> None:
            scores += self.scores[low : low + scores.shape[1]]

        return add

    def scaled(self, factors: npt.NDArray[np.float64]) -> Term:
        """Return a term whose score of each item is multiplied."""
        return Constant(self.scores * factors.astype(self.dtype))


class TrendShare(Constant):
    """What a trend adds to the score of each item, beside the share of the history."""


@dataclass(frozen=True, eq=False)
class DerivedTerm(Term):
    """Base of the terms computed from another one: items, precision and buffers are the same."""

    term: Any

    @property
    def n_items(self) -> int:
        """Number of items."""
        return int(self.term.n_items)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the sums."""
        dtype: np.dtype[Any] = self.term.dtype
        return dtype

    @property
    def buffer_size(self) -> int:
        """Numbers that an adder stores for each user."""
        return int(self.term.buffer_size)

    @property
    def wide_blocks(self) -> bool:  # type: ignore[override]
        """Whether many items at once are cheaper than few."""
        return bool(self.term.wide_blocks)


@dataclass(frozen=True, eq=False)
class Scaled(DerivedTerm):
    """The scores of another term, each item's multiplied by a factor."""

    term: Term
    scale: npt.NDArray[Any]

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds the scaled scores to a block of columns."""
        add_unscaled = self.term.adder(rows)

        def add(scores: Floats, low: int) -> None:
            block = np.zeros(scores.shape, self.dtype)
            add_unscaled(block, low)
            scores += block * self.scale[low : low + scores.shape[1]]

        return add


@dataclass(frozen=True, eq=False)
class Mixtures:
    """New items as mixtures of known ones, among the items of a model.

    The known items come first, then those added later; known items without users are new too.

    Parameters
    ----------
    n_items
        Number of all items.
    positions
        Positions of the new items, ascending.
    weights
        Known items x new items.
    """

    n_items: int
    positions: npt.NDArray[np.int64]
    weights: Any

    @cached_property
    def described(self) -> npt.NDArray[np.bool_]:
        """Mask over all items of the new ones that are like any known item."""
        mask = np.zeros(self.n_items, np.bool_)
        mask[self.positions] = np.diff(self._by_item.indptr) > 0
        return mask

    @cached_property
    def _by_item(self) -> Any:
        """The weights as CSR, a row for each new item."""
        rows = self.weights.T.tocsr()
        rows.sort_indices()
        return rows

    @cached_property
    def _place(self) -> npt.NDArray[np.int64]:
        """Row of each item in `_by_item`, -1 for known items."""
        place = np.full(self.n_items, -1, np.int64)
        place[self.positions] = np.arange(len(self.positions))
        return place

    def known_items(self, rows: Rows) -> Rows:
        """Return histories in which each new item is replaced by the known ones it is like."""
        place = self._place[rows.indices]
        if (place < 0).all():
            return rows
        by_item, n_known = self._by_item, self.weights.shape[0]
        user = np.repeat(np.arange(len(rows)), np.diff(rows.indptr))
        is_new = place >= 0
        stays = sp.csr_array(
            (rows.values[~is_new], (user[~is_new], rows.indices[~is_new])),
            shape=(len(rows), n_known),
        )
        new = sp.csr_array(
            (rows.values[is_new], (user[is_new], place[is_new])),
            shape=(len(rows), by_item.shape[0]),
        )
        mixed = (stays + new @ by_item).tocsr()
        mixed.sort_indices()
        parts = mixed.indptr.astype(np.int64), mixed.indices.astype(np.int32)
        return Rows(*parts, mixed.data.astype(np.float32), rows.users)

    def means(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return values of known items with those of new ones: means over what they are like."""
        positive = self._by_item.maximum(0)
        total = np.asarray(positive.sum(axis=1)).ravel()
        sums = positive @ values
        out = np.zeros(self.n_items)
        out[: len(values)] = values
        out[self.positions] = np.divide(sums, total, out=np.zeros_like(sums), where=total > 0)
        return out


@dataclass(frozen=True, eq=False)
class Known(DerivedTerm):
    """The scores of another term, which has the known items only."""

    term: Term
    mixtures: Mixtures

    @property
    def n_items(self) -> int:
        """Number of items, new ones included."""
        return self.mixtures.n_items

    def scaled(self, factors: npt.NDArray[np.float64]) -> Term:
        """Return a term whose score of each item is multiplied."""
        return Known(self.term.scaled(factors[: self.term.n_items]), self.mixtures)

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds the scores of known items to a block of columns."""
        add_known = self.term.adder(self.mixtures.known_items(rows))
        n_known = self.term.n_items

        def add(scores: Floats, low: int) -> None:
            width = min(scores.shape[1], n_known - low)
            if width == scores.shape[1]:
                add_known(scores, low)
            elif width > 0:
                block = np.ascontiguousarray(scores[:, :width])
                add_known(block, low)
                scores[:, :width] = block

        return add


@dataclass(frozen=True, eq=False)
class NewColumns(Term):
    """Scores ``x @ columns * target`` of new items; those like no known item are never listed.

    Parameters
    ----------
    columns
        Known items x new items: an array, or CSR with sorted columns.
    target
        A factor for each new item; with 0 the item is not listed.
    mixtures
        Where the new items are, and what they are like.
    """

    columns: Any
    target: npt.NDArray[Any]
    mixtures: Mixtures

    @property
    def n_items(self) -> int:
        """Number of items, known ones included."""
        return self.mixtures.n_items

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the sums."""
        dtype: np.dtype[Any] = self.columns.dtype
        return dtype

    @property
    def wide_blocks(self) -> bool:  # type: ignore[override]
        """Whether many items at once are cheaper than few."""
        return bool(sp.issparse(self.columns))

    def scaled(self, factors: npt.NDArray[np.float64]) -> Term:
        """Return a term whose score of each item is multiplied."""
        target = self.target * factors[self.mixtures.positions].astype(self.dtype)
        return replace(self, target=target)

    def adder(self, rows: Rows) -> Adder:
        """Return a function that sets the scores of new items in a block of columns."""
        rows = self.mixtures.known_items(rows)
        positions = self.mixtures.positions
        target = _plain(self.target, self.dtype)
        is_unlisted = (self.target == 0) | ~self.mixtures.described[positions]
        history = rows.indptr, rows.indices, rows.values.astype(self.dtype)
        columns, is_sparse = self.columns, bool(sp.issparse(self.columns))
        if is_sparse:
            starts = columns.indptr.astype(np.int64)
            cursors = starts[rows.indices], starts[rows.indices + 1]
            matrix = _plain(columns.data), _plain(columns.indices), *cursors
        else:
            dense = _plain(columns)

        lowest, highest = (int(positions[0]), int(positions[-1])) if len(positions) else (0, -1)

        def add(scores: Floats, low: int) -> None:
            if low + scores.shape[1] <= lowest or low > highest:
                return
            first, last = np.searchsorted(positions, [low, low + scores.shape[1]]).tolist()
            if first == last:
                return
            block = np.zeros((len(scores), last - first), scores.dtype)
            if is_sparse:
                add_sparse_rows(block, first, *matrix, *history, target, False)
            else:
                add_rows(block, first, dense, *history, target, False)
            block[:, is_unlisted[first:last]] = -np.inf
            scores[:, positions[first:last] - low] += block

        return add


def _plain(array: npt.NDArray[Any], dtype: np.dtype[Any] | None = None) -> npt.NDArray[Any]:
    """Return a read-only view as a base array: a memory map would compile the kernels again."""
    view = np.asarray(array, dtype).view()
    view.flags.writeable = False
    return view


def _check_floats(
    array: npt.NDArray[Any],
    name: str,
    shape: tuple[int, ...] | None = None,
    allow_int16: bool = False,
) -> None:
    if array.dtype not in (np.float32, np.float64) and not (
        allow_int16 and array.dtype == np.int16
    ):
        raise DataError(f"{name} must be float32 or float64, got {array.dtype}")
    if not array.flags.c_contiguous:
        raise DataError(f"{name} must be C-contiguous; pass the transpose if it is symmetric")
    if shape is not None:
        _check_shape(array, shape, name)


def _check_shape(array: npt.NDArray[Any], shape: tuple[int, ...], name: str) -> None:
    if array.shape != shape:
        raise DataError(f"{name} must have shape {shape}, got {array.shape}")
