"""Recall and NDCG computed where the model trains, so that early stopping waits for no transfer.

The lists of a fitted model come from the ranker and their metrics from `equipoise.evaluate`; this
is the quick look in between. It differs from them in the order of equal scores only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.interactions import Interactions
from equipoise.matrix import Csr, cell_keys
from equipoise.solve.card import Tensor, load_torch, send
from equipoise.split.parts import Part

K = 20  # length of the lists
SCORES = 1 << 28  # bytes of scores worked on at a time

Scorer = Callable[[int, int], Tensor]  # scores of the people from a row to another


@dataclass(frozen=True, eq=False)
class DeviceRows:
    """A sparse matrix on the device, whose rows are asked for as dense batches."""

    indptr: Tensor
    indices: Tensor
    values: Tensor
    n_items: int

    @classmethod
    def of(cls, matrix: Csr, device: Any) -> DeviceRows:
        """Copy a matrix to the device."""
        indptr, indices = (
            send(part.astype(np.int64), device) for part in (matrix.indptr, matrix.indices)
        )
        values = send(matrix.data.astype(np.float32), device)
        return cls(indptr, indices, values, matrix.shape[1])

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def entries(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the number of the row, from 0, and the place of each stored pair."""
        torch = load_torch()
        starts = self.indptr[rows]
        sizes = self.indptr[rows + 1] - starts
        row = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), sizes)
        before = sizes.cumsum(0) - sizes
        place = torch.arange(len(row), device=rows.device) + (starts - before)[row]
        return row, place

    def dense(self, rows: Tensor) -> Tensor:
        """Return these rows, zeros included."""
        row, place = self.entries(rows)
        out = self.values.new_zeros(len(rows), self.n_items)
        out[row, self.indices[place]] = self.values[place]
        return out


class Judge:
    """A part of a split on the device.

    Parameters
    ----------
    part
        The people, over the items of `train`.
    train
        Training data; `users` are the positions of the people there, -1 for strangers.
    device
        A torch device.
    """

    def __init__(self, part: Part, train: Interactions, device: Any) -> None:
        torch = load_torch()
        history = part.history.with_items(train.item_index)
        target = part.target.with_items(train.item_index).matrix
        self.users = train.user_index.positions(history.users, unknown="skip")
        self.history = DeviceRows.of(history.matrix, device)
        self._targets = send(np.sort(cell_keys(target)).astype(np.int64), device)
        size = send(np.diff(target.indptr).astype(np.int64), device)
        gain = 1 / torch.log2(torch.arange(2, K + 2, device=device, dtype=torch.float64))
        capped = size.clamp(max=K)
        self._gain, self._ideal = gain, gain.cumsum(0)[capped - 1]
        self._wanted = size if part.protocol == "weak" else capped

    def __call__(self, scorer: Scorer) -> tuple[float, float]:
        """Return mean recall and NDCG at 20; in the weak protocol recall divides by all targets.

        Every person of a part has a target.
        """
        torch = load_torch()
        n_users, n_items = len(self.history), self.history.n_items
        total = torch.zeros(2, dtype=torch.float64, device=self._gain.device)
        step = max(1, SCORES // (4 * n_items))
        for low in range(0, n_users, step):
            high = min(low + step, n_users)
            rows = torch.arange(low, high, device=total.device)
            scores = scorer(low, high)
            seen, place = self.history.entries(rows)
            scores[seen, self.history.indices[place]] = -torch.inf
            best = scores.topk(min(K, n_items), dim=1).indices
            keys = best + rows[:, None] * n_items
            at = torch.searchsorted(self._targets, keys).clamp(max=len(self._targets) - 1)
            hits = (self._targets[at] == keys).double()
            total[0] += (hits.sum(1) / self._wanted[low:high]).sum()
            found = hits @ self._gain[: hits.shape[1]]
            total[1] += (found / self._ideal[low:high]).sum()
        recall, ndcg = (total / n_users).tolist()
        return recall, ndcg
