"""The matrix of a solve on the workers: blocks of consecutive users, and sums over them.

Sums go from block to block in the order of the users, so that they have the bits of a sum over the
whole matrix and depend neither on the number of workers nor on which of them was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.cluster.partitioned import Partitioned, stacked, total
from equipoise.cluster.workers import reduced, results, same, submit, task
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr, entry_rows
from equipoise.solve.audit import USERS, histories_with

Vector = npt.NDArray[np.float64]

CHUNK_PAIRS = 16_000_000  # pairs of users and items that a task of a sum works on


class Spread:
    """Blocks of a matrix, users x items, that workers hold.

    Parameters
    ----------
    client
        Client of the cluster.
    blocks
        Futures of CSR matrices of consecutive users.
    block_users
        Number of users of each block.
    shape
        Of the whole matrix.
    n_pairs
        Number of stored values.
    """

    def __init__(
        self,
        client: Any,
        blocks: list[Any],
        block_users: npt.NDArray[np.int64],
        shape: tuple[int, int],
        n_pairs: int,
    ) -> None:
        self.client, self.blocks, self.shape, self.n_pairs = client, blocks, shape, n_pairs
        self._starts = np.concatenate([[0], np.cumsum(block_users)])

    @classmethod
    def of(cls, client: Any, data: Partitioned | Interactions) -> Spread:
        """Take the blocks of data on the cluster, or send those of data on this machine."""
        if isinstance(data, Partitioned):
            blocks = [submit(client, matrix_of, each) for each in data.blocks]
            shape = data.n_users, data.n_items
            return cls(client, blocks, data.block_users, shape, data.n_interactions)
        X = data.matrix
        number = -(-X.nnz // CHUNK_PAIRS) or 1
        cuts = np.searchsorted(X.indptr, np.linspace(0, X.nnz, number + 1)[1:-1])
        bounds = np.unique([0, *cuts.tolist(), X.shape[0]])
        blocks = [submit(client, same, _rows(X, low, high)) for low, high in pairwise(bounds)]
        return cls(client, blocks, np.diff(bounds), X.shape, X.nnz)

    def chunks(self, hold: Callable[..., Any], user_weights: Vector, *more: Any) -> list[Any]:
        """Let workers hold some blocks together, in the form that `hold` gives them."""
        step = max(CHUNK_PAIRS * len(self.blocks) // max(self.n_pairs, 1), 1)
        return [
            submit(
                self.client,
                hold,
                self.blocks[at : at + step],
                user_weights[self._starts[at] : self._starts[min(at + step, len(self.blocks))]],
                *more,
            )
            for at in range(0, len(self.blocks), step)
        ]

    def weighed(self, user_weights: Vector) -> list[Any]:
        """Return each block with the weights of its users."""
        pairs = zip(self.blocks, self._cut(user_weights), strict=True)
        return [submit(self.client, pair, *each) for each in pairs]

    def roots(self, user_weights: Vector) -> list[Any]:
        """Return chunks of W^1/2 X, for `times`."""
        return self.chunks(root_of, user_weights)

    def times(self, roots: list[Any], right: npt.NDArray[Any]) -> Vector:
        """Return X^T W X @ right, in float64."""
        if len(roots) == 1:
            found = submit(self.client, root_times, roots[0], right)
        else:
            held = submit(self.client, same, right)
            products = [submit(self.client, root_times, root, held) for root in roots]
            found = reduced(self.client, total, products)
        product: Vector = results(self.client, found)
        return product

    def item_counts(self) -> npt.NDArray[np.int64]:
        """Return the number of users of each item."""
        counts = [submit(self.client, counts_of, block) for block in self.blocks]
        found: npt.NDArray[np.int64] = results(self.client, reduced(self.client, total, counts))
        return found

    def entries(self, user_weights: Vector) -> Vector:
        """Return sums over the entries of each item, as `add_entries` makes them."""
        sums = None
        for block, weights in zip(self.blocks, self._cut(user_weights), strict=True):
            sums = submit(self.client, add_entries, sums, block, weights)
        found: Vector = results(self.client, sums)
        return found

    def histories(self, item: int) -> Any:
        """Return the rows of the first 1,000 users who have an item."""
        found: list[Any] = []
        for block in self.blocks:
            rows = results(self.client, submit(self.client, users_with, block, item))
            found.append(rows)
            if sum(each.shape[0] for each in found) >= USERS:
                break
        return sp.vstack(found, format="csr")[:USERS]

    def _cut(self, vector: Vector) -> list[Vector]:
        return [vector[low:high] for low, high in pairwise(self._starts)]


def _rows(X: Csr, low: int, high: int) -> Any:
    start, stop = X.indptr[low], X.indptr[high]
    arrays = (X.data[start:stop], X.indices[start:stop], X.indptr[low : high + 1] - start)
    return sp.csr_array(arrays, shape=(high - low, X.shape[1]))


def pair(block: Csr, user_weights: Vector) -> tuple[Csr, Vector]:
    """Keep two values together on a worker."""
    return block, user_weights


def matrix_of(block: Interactions) -> Csr:
    """Return the matrix of a block."""
    return block.matrix


@task
def counts_of(X: Csr) -> npt.NDArray[np.int64]:
    """Return the users of each item of a block."""
    return np.bincount(X.indices, minlength=X.shape[1])


@task
def root_of(blocks: list[Csr], user_weights: Vector) -> Any:
    """Return W^1/2 X of some users, in float64."""
    X = one_matrix(blocks)
    values = X.data * np.sqrt(user_weights)[entry_rows(X)]
    return sp.csr_array((values, X.indices, X.indptr), X.shape)


@task
def root_times(root: Any, right: Vector) -> Vector:
    """Return X^T W X @ right of some users."""
    return np.asarray(root.T @ (root @ right.astype(np.float64)))


@task
def add_entries(sums: Vector | None, X: Csr, user_weights: Vector) -> Vector:
    """Add the entries of some users to rows of sums, for each item.

    Of users, of the other items of these users, and of the diagonal of X^T W X.
    """
    n_items = X.shape[1]
    out = np.zeros((3, n_items)) if sums is None else sums.copy()
    lengths = np.diff(X.indptr)
    out[0] += np.bincount(X.indices, minlength=n_items)
    out[1] += np.bincount(X.indices, np.repeat(lengths - 1, lengths), minlength=n_items)
    # one after another, as a sum over all users goes
    np.add.at(out[2], X.indices, user_weights[entry_rows(X)] * X.data.astype(np.float64) ** 2)
    return out


@task
def users_with(X: Csr, item: int) -> Any:
    """Return the rows of users of a block who have an item."""
    return histories_with(X, item)


def one_matrix(blocks: list[Csr]) -> Csr:
    """Put blocks of consecutive users together."""
    return blocks[0] if len(blocks) == 1 else stacked(blocks)
