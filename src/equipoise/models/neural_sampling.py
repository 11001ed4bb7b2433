"""Triples of a person, an item and an item the person has not used, drawn on the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from equipoise.errors import DataError
from equipoise.matrix import Csr, entry_rows
from equipoise.solve.card import Tensor, load_torch, send

Triples = tuple[Tensor, Tensor, Tensor]


class Sampler:
    """Draws the triples of a whole epoch at once.

    The r-th item that a person has not used is r plus the number of used items i_k (ascending,
    k from 0) with i_k - k <= r, which one search finds: no draw is ever rejected. People who used
    every item are left out.

    Parameters
    ----------
    matrix
        Users x items; stored pairs are the interactions.
    device
        A torch device.
    """

    def __init__(self, matrix: Csr, device: Any) -> None:
        matrix = matrix.copy()
        matrix.sort_indices()
        self.n_items = matrix.shape[1]
        sizes = np.diff(matrix.indptr).astype(np.int64)
        usable = (sizes > 0) & (sizes < self.n_items)
        if not usable.any():
            raise DataError("everybody used every item; there is nothing to tell apart")
        row = entry_rows(matrix).astype(np.int64)
        rank = np.arange(len(row)) - matrix.indptr[row]
        keys = row * (self.n_items + 1) + matrix.indices - rank
        self.starts, self.items, self._keys, self._sizes, self._rows, self._people, self._pairs = (
            send(part.astype(np.int64), device)
            for part in (
                matrix.indptr[:-1],
                matrix.indices,
                keys,
                sizes,
                row,
                np.flatnonzero(usable),
                np.flatnonzero(usable[row]),
            )
        )

    def by_person(self, batch: int, generator: Any) -> Iterator[Triples]:
        """Draw as many triples as there are interactions: a person, then one of the items."""
        count = len(self._pairs)
        users = self._people[self._below(len(self._people), count, generator)]
        places = self.starts[users] + self._below(self._sizes[users], count, generator)
        return self._batches(users, places, batch, generator)

    def by_interaction(self, batch: int, generator: Any) -> Iterator[Triples]:
        """Go through all interactions in random order."""
        torch = load_torch()
        count = len(self._pairs)
        order = torch.randperm(count, generator=generator, device=generator.device)
        places = self._pairs[order]
        return self._batches(self._rows[places], places, batch, generator)

    def unused(self, users: Tensor, generator: Any) -> Tensor:
        """Draw an item that the person has not used, evenly among those."""
        torch = load_torch()
        chosen = self._below(self.n_items - self._sizes[users], len(users), generator)
        keys = users * (self.n_items + 1) + chosen
        before = torch.searchsorted(self._keys, keys, right=True) - self.starts[users]
        return chosen + before

    def _batches(
        self, users: Tensor, places: Tensor, batch: int, generator: Any
    ) -> Iterator[Triples]:
        triples = (users, self.items[places], self.unused(users, generator))
        return zip(*(part.split(batch) for part in triples), strict=True)

    def _below(self, limit: Any, count: int, generator: Any) -> Tensor:
        """Draw whole numbers from 0 to limit - 1."""
        torch = load_torch()
        device = generator.device
        share = torch.rand(count, generator=generator, device=device, dtype=torch.float64)
        return (share * limit).long()
