"""Products with the graph of people and items, and the contrast of two smoothed tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.sparse as sp

from equipoise.interactions import Interactions
from equipoise.solve.card import Tensor, load_torch, send, sparse_rows
from equipoise.spectra import normalised

Map = Callable[[Tensor], Tensor]


def device_graph(interactions: Interactions, device: Any) -> Tensor:
    """Return H = [[0, A], [A^T, 0]], A = D_U^-1/2 X D_I^-1/2, as a sparse matrix on the device."""
    A = normalised(interactions, 0.5, 0.5).astype(np.float32)
    H = sp.csr_array(sp.block_array([[None, A], [A.T, None]]))
    H.sort_indices()
    indptr, indices, data = (send(part, device) for part in (H.indptr, H.indices, H.data))
    return sparse_rows(indptr, indices, data, H.shape)


def smooth(graph: Tensor, table: Tensor) -> Tensor:
    """Return H E."""
    return _symmetric()(table, lambda part: graph @ part)


def mean_of_powers(graph: Tensor, table: Tensor, layers: int) -> Tensor:
    """Return the mean of E, H E, ..., H^layers E."""

    def mean(part: Tensor) -> Tensor:
        # E + H (E + H (E + ...)): no layer has to be kept
        total = part
        for _ in range(layers):
            total = part + graph @ total
        return total / (layers + 1)

    return _symmetric()(table, mean)


@lru_cache(maxsize=1)
def _symmetric() -> Any:
    """Return a function that applies a symmetric linear map, whose gradient is the map itself.

    Left to itself, torch transposes the sparse matrix for each gradient.
    """
    torch = load_torch()

    def forward(context: Any, table: Tensor, apply: Map) -> Tensor:
        context.map = apply
        return apply(table)

    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return context.map(gradient.contiguous()), None

    steps = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    made: Any = type("SymmetricMap", (torch.autograd.Function,), steps)
    return made.apply


def take(table: Tensor, rows: Tensor) -> Tensor:
    """Return rows of a table; on a processor their gradients are summed in a fixed order."""
    torch = load_torch()
    if table.device.type == "cpu":
        return torch.nn.functional.embedding(rows, table)
    return table.index_select(0, rows)


def contrast(table: Tensor, view: Tensor, rows: Tensor, temperature: float) -> Tensor:
    """Return the mean cross-entropy of finding a row of `table` among those of `view`, by cosine.

    Each of the rows counts once. Those that come again are masked and not taken out: how many
    there are is known to the device only, and asking would stop it.
    """
    torch = load_torch()
    rows = rows.sort().values
    again = torch.zeros_like(rows, dtype=torch.bool)
    again[1:] = rows[1:] == rows[:-1]
    one, two = (torch.nn.functional.normalize(take(part, rows), dim=1) for part in (table, view))
    logits = (one @ two.T / temperature).masked_fill(again[None, :], -torch.inf)
    answers = (one * two).sum(1) / temperature
    losses = (logits.logsumexp(1) - answers).masked_fill(again, 0)
    return losses.sum() / (~again).sum()
