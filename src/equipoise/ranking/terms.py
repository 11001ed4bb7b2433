"""The scoring matrix W as a sum of terms; a history x scores x W, and W is never formed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from equipoise.errors import DataError
from equipoise.kernels import Floats, Offsets, Positions, add_product, add_rows, add_sparse_rows

Adder = Callable[[Floats, int], None]


@dataclass(frozen=True)
class Rows:
    """Histories as the kernels want them: CSR with sorted positions.

    `users` holds the positions of the training users they belong to, -1 for anybody else; None
    where no row belongs to one.
    """

    indptr: Offsets
    indices: Positions
    values: npt.NDArray[np.float32]
    users: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def weights(self, source: npt.NDArray[Any], dtype: np.dtype[Any]) -> Floats:
        """Return value times source of each stored pair."""
        scale = source[self.indices].astype(dtype, copy=False)
        return np.asarray(self.values.astype(dtype, copy=False) * scale)


class Additive(Protocol):
    """Any term but a constant; a model may bring its own kind.

    The function that `adder` returns must give a user's scores the same bits whoever else is
    among the rows.
    """

    @property
    def n_items(self) -> int:
        """Number of items."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the sums."""

    @property
    def held(self) -> int:
        """How many numbers an adder keeps for each user; limits the users of a batch."""

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds this term's scores to ascending blocks of columns."""


@dataclass(frozen=True, eq=False)
class Dense:
    """Scores ``(x * source) @ matrix * target``.

    Parameters
    ----------
    matrix
        n x n, C-contiguous, float32 or float64; may be a read-only memory map.
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
        _check_floats(self.matrix, "the matrix of a dense term")
        _check_shape(self.matrix, (self.n_items, self.n_items), "the matrix of a dense term")
        _check_scales(self.source, self.target)

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.target)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the sums."""
        return self.matrix.dtype

    @property
    def held(self) -> int:
        """Nothing."""
        return 0

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds this term's scores to a block of columns."""
        matrix, weights = _plain(self.matrix), rows.weights(self.source, self.dtype)
        target = _plain(self.target, self.dtype)

        def add(scores: Floats, low: int) -> None:
            add_rows(
                scores, low, matrix, rows.indptr, rows.indices, weights, target, self.zero_diagonal
            )

        return add


@dataclass(frozen=True, eq=False)
class Sparse:
    """Like `Dense`, with the matrix as CSR rows whose columns are sorted and unique."""

    data: npt.NDArray[Any]
    indices: npt.NDArray[Any]
    indptr: npt.NDArray[Any]
    source: npt.NDArray[Any]
    target: npt.NDArray[Any]
    zero_diagonal: bool = True

    def __post_init__(self) -> None:
        _check_floats(self.data, "the data of a sparse term")
        _check_shape(self.indices, self.data.shape, "the indices of a sparse term")
        _check_shape(self.indptr, (self.n_items + 1,), "the indptr of a sparse term")
        ends = int(self.indptr[0]), int(self.indptr[-1])
        if ends != (0, len(self.data)) or (np.diff(self.indptr) < 0).any():
            raise DataError(f"the indptr of a sparse term must ascend from 0 to {len(self.data)}")
        _check_scales(self.source, self.target)

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.target)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the sums."""
        return self.data.dtype

    @property
    def held(self) -> int:
        """Nothing."""
        return 0

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds this term's scores to ascending blocks of columns."""
        weights = rows.weights(self.source, self.dtype)
        data, columns = _plain(self.data), _plain(self.indices)
        target = _plain(self.target, self.dtype)
        cursor = self.indptr[rows.indices].astype(np.int64)
        ends = self.indptr[rows.indices + 1].astype(np.int64)

        def add(scores: Floats, low: int) -> None:
            add_sparse_rows(
                scores,
                low,
                data,
                columns,
                cursor,
                ends,
                rows.indptr,
                rows.indices,
                weights,
                target,
                self.zero_diagonal,
            )

        return add


@dataclass(frozen=True, eq=False)
class LowRank:
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
        for name, array, shape in (
            ("left", self.left, (self.n_items, rank)),
            ("right", self.right, (rank, self.n_items)),
        ):
            _check_floats(array, f"the {name} factor of a low-rank term")
            _check_shape(array, shape, f"the {name} factor of a low-rank term")
        if self.left.dtype != self.right.dtype:
            found = f"{self.left.dtype} and {self.right.dtype}"
            raise DataError(f"the factors of a low-rank term must have one dtype, got {found}")
        _check_scales(self.source, self.target)

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.target)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the sums."""
        return self.left.dtype

    @property
    def held(self) -> int:
        """The product of the history and the left factor."""
        return int(self.left.shape[1])

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds this term's scores to a block of columns."""
        return self.product(self.hidden(rows))

    def hidden(self, rows: Rows) -> Floats:
        """Return ``(x * source) @ left``, a row per history."""
        rank = self.left.shape[1]
        weights = rows.weights(self.source, self.dtype)
        hidden = np.zeros((len(rows), rank), self.dtype)
        ones = _plain(np.ones(rank, self.dtype))
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
class Constant:
    """A score per item that does not depend on the history, such as popularity."""

    scores: npt.NDArray[Any]

    def __post_init__(self) -> None:
        _check_floats(self.scores, "the scores of a constant term")

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.scores)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the sums."""
        return self.scores.dtype


Term = Constant | Additive


def _plain(array: npt.NDArray[Any], dtype: np.dtype[Any] | None = None) -> npt.NDArray[Any]:
    """View as a read-only base array, so that memory maps do not compile the kernels again."""
    view = np.asarray(array, dtype).view()
    view.flags.writeable = False
    return view


def _check_floats(array: npt.NDArray[Any], what: str) -> None:
    if array.dtype not in (np.float32, np.float64):
        raise DataError(f"{what} must be float32 or float64, got {array.dtype}")
    if not array.flags.c_contiguous:
        raise DataError(f"{what} must be C-contiguous; pass the transpose if it is symmetric")


def _check_shape(array: npt.NDArray[Any], shape: tuple[int, ...], what: str) -> None:
    if array.shape != shape:
        raise DataError(f"{what} must have shape {shape}, got {array.shape}")


def _check_scales(source: npt.NDArray[Any], target: npt.NDArray[Any]) -> None:
    if source.shape != target.shape or target.ndim != 1:
        raise DataError(
            f"source and target need one value per item, got {source.shape} and {target.shape}"
        )
