"""The scoring matrix W as a sum of terms; a history x scores x W, and W is never formed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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
        scale = source[self.indices].astype(dtype, copy=False)
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
        names = (name for name in vars(self) if name not in ("source", "target"))
        return tuple(id(getattr(self, name)) for name in names)

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

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds this term's scores to a block of columns."""
        matrix, weights = _plain(self.matrix), rows.weights(self.source, self.dtype)
        history = rows.indptr, rows.indices, weights
        target = _plain(self.target, self.dtype)

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
        target = _plain(self.target, self.dtype)

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
        right, target = _plain(self.right), _plain(self.target, self.dtype)
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
        target = _plain(self.target, self.dtype)

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
