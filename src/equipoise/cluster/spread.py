"""The training matrix on the workers, in blocks of consecutive users, and sums over all users.

Sums over entries go from block to block in the order of the users, so they have the bits of a sum
over the complete matrix and depend neither on the number of workers nor on workers that were lost.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.cluster.partitioned import Partitioned, fetch_sum, offsets_of
from equipoise.cluster.workers import fetch, send, submit, submit_each, task
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr, entry_rows
from equipoise.solve.audit import USERS, histories_with
from equipoise.solve.blocked import strips

Vector = npt.NDArray[np.float64]
Weights = Vector | list[Any]  # of all users, or futures of the weights of each block

CHUNK_PAIRS = 16_000_000  # user-item pairs of one task of a sum


class Spread:
    """A matrix, users x items, in blocks on the workers: those of the data, or sent from here.

    `features`, items x features, are one more block: each feature is a user.
    """

    def __init__(
        self, client: Any, data: Partitioned | Interactions, features: Csr | None = None
    ) -> None:
        self.client, self.n_pairs = client, data.n_interactions
        self.shape = data.n_users, data.n_items
        self._n_features = 0
        if isinstance(data, Partitioned):
            self.blocks = data.map_blocks(getattr, "matrix")
            self._starts = offsets_of(data.block_users)
        else:
            X = data.matrix
            n_blocks = -(-X.nnz // CHUNK_PAIRS) or 1
            cuts = np.searchsorted(X.indptr, np.linspace(0, X.nnz, n_blocks + 1)[1:-1])
            self._starts = np.unique([0, *cuts.tolist(), X.shape[0]])
            self.blocks = [send(client, X[low:high]) for low, high in pairwise(self._starts)]
        if features is not None:
            self._n_features = features.shape[1]
            self.n_pairs += features.nnz
            self.shape = data.n_users + self._n_features, data.n_items
            self._starts = np.append(self._starts, self.shape[0])
            rows: Csr = features.T.tocsr().astype(np.float32)
            self.blocks = [*self.blocks, send(client, rows)]

    def weights(self, user_weights: Weights, feature_weight: float = 0.0) -> list[Any]:
        """Return the weights of the rows of each block as futures, those of features included.

        `user_weights` are those of all users, or futures of the weights in each block.
        """
        if isinstance(user_weights, list):
            weights = user_weights
        else:
            spans = pairwise(self._starts[: len(self.blocks) + 1 - bool(self._n_features)])
            weights = [send(self.client, user_weights[low:high]) for low, high in spans]
        if len(weights) < len(self.blocks):
            of_features = np.full(self._n_features, feature_weight)
            weights = [*weights, send(self.client, of_features)]
        return weights

    def map_chunks(
        self, function: Callable[..., Any], user_weights: list[Any], *args: Any
    ) -> list[Any]:
        """Return futures of ``function(blocks, weights, *args)`` of some blocks at a time."""
        n_blocks = len(self.blocks)
        step = max(CHUNK_PAIRS * n_blocks // max(self.n_pairs, 1), 1)
        return [
            submit(
                self.client,
                call_with_weights,
                function,
                self.blocks[low:high],
                user_weights[low:high],
                *args,
            )
            for low, high in strips((0, n_blocks), step)
        ]

    def with_weights(self, user_weights: list[Any]) -> list[tuple[Any, Any]]:
        """Return each block with the weights of its users."""
        return list(zip(self.blocks, user_weights, strict=True))

    def roots(self, user_weights: list[Any]) -> list[Any]:
        """Return chunks of W^1/2 X, for `times`."""
        return self.map_chunks(scale_rows, user_weights)

    def times(self, roots: list[Any], right: npt.NDArray[Any]) -> Vector:
        """Return X^T W X @ right, in float64."""
        return fetch_sum(
            self.client, submit_each(self.client, multiply, roots, send(self.client, right))
        )

    def item_counts(self) -> npt.NDArray[np.int64]:
        """Return the number of users of each item."""
        return fetch_sum(self.client, submit_each(self.client, count_items, self.blocks))

    def item_sums(self, user_weights: list[Any]) -> Vector:
        """Return the three sums of `add_item_sums` over all users."""
        future = None
        for block, weights in self.with_weights(user_weights):
            future = submit(self.client, add_item_sums, future, block, weights)
        sums: Vector = fetch(self.client, future)
        return sums

    def histories(self, item: int) -> Any:
        """Return the rows of the first 1,000 users who have an item."""
        rows: list[Any] = []
        for block in self.blocks:
            rows.append(fetch(self.client, submit(self.client, histories_with, block, item)))
            if sum(part.shape[0] for part in rows) >= USERS:
                break
        return sp.vstack(rows, format="csr")[:USERS]


@task
def call_with_weights(
    function: Callable[..., Any], blocks: list[Csr], user_weights: list[Vector], *args: Any
) -> Any:
    """Call a function with some blocks and the weights of all of their users."""
    return function(blocks, np.concatenate(user_weights), *args)


def stack(blocks: list[Csr]) -> Csr:
    """Return blocks of consecutive users as one matrix."""
    return blocks[0] if len(blocks) == 1 else sp.vstack(blocks, format="csr")


@task
def count_items(X: Csr) -> npt.NDArray[np.int64]:
    """Return the number of users of each item in a block."""
    return np.bincount(X.indices, minlength=X.shape[1])


@task
def scale_rows(blocks: list[Csr], user_weights: Vector) -> Any:
    """Return W^1/2 X of some users, in float64."""
    X = stack(blocks)
    values = X.data * np.sqrt(user_weights)[entry_rows(X)]
    return sp.csr_array((values, X.indices, X.indptr), X.shape)


@task
def multiply(root: Any, right: Vector) -> Vector:
    """Return X^T W X @ right of some users."""
    return np.asarray(root.T @ (root @ right.astype(np.float64)))


@task
def add_item_sums(sums: Vector | None, X: Csr, user_weights: Vector) -> Vector:
    """Add the users of a block to three sums for each item.

    They are: its users, the other items of these users, and its diagonal entry of X^T W X.
    """
    n_items = X.shape[1]
    out = np.zeros((3, n_items)) if sums is None else sums.copy()
    lengths = np.diff(X.indptr)
    out[0] += np.bincount(X.indices, minlength=n_items)
    out[1] += np.bincount(X.indices, np.repeat(lengths - 1, lengths), minlength=n_items)
    # one by one, in the order of a sum over all users
    np.add.at(out[2], X.indices, user_weights[entry_rows(X)] * X.data.astype(np.float64) ** 2)
    return out
