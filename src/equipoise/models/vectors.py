"""Vectors of items and users whose inner products approximate the scores of a model.

With W the scoring matrix and V the first right singular vectors of D_U^-1/2 X W, W V V^T is the
matrix of its rank that changes the scores of the training users least, where a long history counts
as much as a short one. An item's vector is its row of V, and a user's the history times W V.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.checks import count
from equipoise.checks import path as checked_path
from equipoise.data.ids import IdIndex
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr, entry_rows
from equipoise.errors import TooBigError
from equipoise.models.recommendations import write_lists
from equipoise.normalize import power
from equipoise.ranking.ranker import constant_scores, score, sum_dtype
from equipoise.ranking.terms import Constant, LowRank, Sparse, Term
from equipoise.runtime.machine import free_memory, gigabytes
from equipoise.solve.svd import truncated_svd

Floats = npt.NDArray[Any]

SAMPLE = 1000
BLOCK_BYTES = 64 << 20  # of rows of W, or of columns of scores, that are computed together


@dataclass(frozen=True, eq=False)
class Vectors:
    """Vectors of the items and training users of a model, for a vector database.

    The inner product of a user's and an item's vector approximates the score of the item.

    Parameters
    ----------
    items
        Columns `id`, `vector` and `history_vector`, a row per item. A user's vector, also that of
        a new user, is the sum of the history vectors of the items in the history. If the scores
        have a part that is the same for all users, vectors have one more number, which is this
        part for an item and 1 for a user.
    users
        Columns `id` and `vector`, a row per training user.
    rank
        Number of dimensions that approximate the scores.
    overlap
        Mean share of the 20 items recommended to up to 1,000 training users that are among the 20
        best by inner product.
    """

    items: pl.DataFrame
    users: pl.DataFrame
    rank: int
    overlap: float
    _encode: Callable[[Any], npt.NDArray[np.float32]] = field(repr=False)

    def fold_in(self, histories: Any) -> npt.NDArray[np.float32]:
        """Return the vectors of any users, a row for each history, in the forms of `recommend`.

        The model stays in memory for this, as long as the vectors do.
        """
        return self._encode(histories)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `items.parquet` and `users.parquet` into a folder, each in one step."""
        folder = checked_path("path", path)
        folder.mkdir(parents=True, exist_ok=True)
        write_lists(folder / "items.parquet", iter([self.items]))
        write_lists(folder / "users.parquet", iter([self.users]))


@dataclass(frozen=True, eq=False)
class Factors:
    """Factors of a scoring matrix: scores ``history @ left @ right.T + constant``."""

    left: Floats
    right: Floats
    constant: Floats | None  # scores that do not depend on the history

    @classmethod
    def of(cls, terms: Sequence[Term], history: Csr, rank: int) -> Factors:
        """Return the factors that approximate the scores of these histories best."""
        summed = [term for term in terms if term.constant is None]
        constant = constant_scores(terms, history.shape[1])
        weights = ScoringMatrix.of(summed, history.shape[1])
        lengths = np.bincount(entry_rows(history), history.data**2, history.shape[0])
        scaled: Any = sp.diags_array(power(lengths, -0.5)) @ history
        shares = Product(scaled.astype(weights.dtype).tocsr(), weights)
        rank = min(count("rank", rank), *history.shape)
        right = truncated_svd(shares, rank, dtype=weights.dtype.name).right.T
        return cls(
            weights @ right, np.ascontiguousarray(right), constant if constant.any() else None
        )

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return int(self.right.shape[1])

    @property
    def item_vectors(self) -> Floats:
        """The vectors of the items."""
        if self.constant is None:
            return self.right
        return np.column_stack([self.right, self.constant.astype(self.right.dtype)])

    def user_vectors(self, history: Csr) -> npt.NDArray[np.float32]:
        """Return the vectors of users with these histories."""
        vectors = np.asarray(history @ self.left, np.float32)
        if self.constant is None:
            return vectors
        return np.column_stack([vectors, np.ones(len(vectors), np.float32)])

    def terms(self) -> list[Term]:
        """Return the terms whose sum is the approximate scoring matrix."""
        ones = np.ones(len(self.right), self.right.dtype)
        right = np.ascontiguousarray(self.right.T)
        terms: list[Term] = [LowRank(np.ascontiguousarray(self.left), right, ones, ones)]
        if self.constant is not None:
            terms.append(Constant(self.constant.astype(self.right.dtype)))
        return terms

    def item_frame(self, items: IdIndex) -> pl.DataFrame:
        """Return `Vectors.items`."""
        return _frame(items, vector=self.item_vectors, history_vector=self.left)

    def user_frame(self, users: IdIndex, history: Csr) -> pl.DataFrame:
        """Return `Vectors.users`."""
        return _frame(users, vector=self.user_vectors(history))


def _frame(ids: IdIndex, **vectors: Floats) -> pl.DataFrame:
    columns = {
        name: pl.Series(
            np.ascontiguousarray(values, np.float32), dtype=pl.Array(pl.Float32, values.shape[1])
        )
        for name, values in vectors.items()
    }
    return pl.DataFrame({"id": pl.Series(ids.values.tolist(), dtype=ids.kind), **columns})


def sampled_users(data: Interactions) -> npt.NDArray[np.int64]:
    """Return the positions of the training users whose lists measure the loss of a reduction."""
    size = min(SAMPLE, data.n_users)
    return np.sort(np.random.default_rng(0).choice(data.n_users, size, replace=False))


class ScoringMatrix:
    """W for products with blocks of vectors: a sum of parts that stay sparse or factored."""

    def __init__(self, parts: list[Any], shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
        self.parts, self.shape, self.dtype = parts, shape, dtype

    @classmethod
    def of(cls, terms: Sequence[Term], n_items: int) -> ScoringMatrix:
        """Return the sum of these terms; all but sparse and low-rank ones are added densely."""
        parts: list[Any] = []
        dense = []
        dtype = sum_dtype(terms)
        for term in terms:
            if isinstance(term, Sparse):
                parts.append(_sparse(term).astype(dtype))
            elif isinstance(term, LowRank):
                left = term.source[:, None] * term.left
                parts.append(Product(left.astype(dtype), (term.right * term.target).astype(dtype)))
            else:
                dense.append(term)
        if dense:
            needed = n_items**2 * dtype.itemsize
            if needed > free_memory():
                raise TooBigError(
                    f"vectors need the scoring matrix, {gigabytes(needed)}; prune the model "
                    "first, such as model.prune(200)"
                )
            W = np.empty((n_items, n_items), dtype)
            for low, high in _blocks(n_items, n_items * dtype.itemsize):
                W[low:high] = score(dense, _units(low, high, n_items))
            parts.append(W)
        return cls(parts, (n_items, n_items), dtype)

    @property
    def T(self) -> ScoringMatrix:
        """The transpose."""
        return ScoringMatrix([part.T for part in self.parts], self.shape, self.dtype)

    def __matmul__(self, block: Floats) -> Floats:
        block = np.asarray(block, self.dtype)
        return sum((part @ block for part in self.parts), np.zeros(block.shape, self.dtype))


class Product:
    """The product of two matrices, which is not computed, for `truncated_svd`."""

    def __init__(self, left: Any, right: Any) -> None:
        self.left, self.right = left, right
        self.shape = (left.shape[0], right.shape[1])

    @property
    def T(self) -> Product:
        """The transpose."""
        return Product(self.right.T, self.left.T)

    def astype(self, dtype: Any) -> Product:
        """Return the product itself: its factors have the precision of the model."""
        return self

    def __matmul__(self, block: Any) -> Floats:
        if not isinstance(block, Product):
            return np.asarray(self.left @ (self.right @ block))
        n_columns, row_bytes = block.shape[1], block.shape[0] * 8
        columns = [
            self @ (block @ np.eye(n_columns, high - low, -low))
            for low, high in _blocks(n_columns, row_bytes)
        ]
        return np.hstack(columns)


def _sparse(term: Sparse) -> Any:
    """Return the matrix of a sparse term, with its scales."""
    n_items = term.n_items
    matrix: Any = sp.csr_array((term.data, term.indices, term.indptr), (n_items, n_items))
    matrix = sp.diags_array(term.source) @ matrix @ sp.diags_array(term.target)
    if term.zero_diagonal:
        matrix = matrix - sp.diags_array(matrix.diagonal())
    return matrix.tocsr()


def _units(low: int, high: int, n_items: int) -> Csr:
    """Return the histories that have one item each: rows of the unit matrix."""
    size = high - low
    rows: Csr = sp.csr_array(
        (np.ones(size, np.float32), np.arange(low, high, dtype=np.int32), np.arange(size + 1)),
        shape=(size, n_items),
    )
    return rows


def _blocks(length: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last position of blocks of limited size."""
    step = max(1, BLOCK_BYTES // max(row_bytes, 1))
    for low in range(0, length, step):
        yield low, min(low + step, length)
