"""Sparse copies of a linear autoencoder, and what they lose."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp

from equipoise import threads
from equipoise.errors import SettingError
from equipoise.kernels import compiled
from equipoise.models.autoencoder import LinearAutoencoder

Model = TypeVar("Model", bound=LinearAutoencoder)
SAMPLE = 1000


def prune_linear(model: Model, keep: int) -> Model:
    """Return a copy that keeps the `keep` strongest sources of each target item."""
    n_items = len(model.item_index_)
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise SettingError(f"keep must be a whole number >= 1, got {keep!r}")
    if model._is_pruned:
        raise SettingError("this model is pruned already")
    keep = min(keep, max(n_items - 1, 1))
    source, target = model.scales()
    chosen = np.empty((n_items, keep), np.int32)
    squares = np.empty((n_items, 2))
    P = np.asarray(model.inverse_)
    threads.run(lambda j: _strongest(P, source, keep, j, chosen, squares), n_items)
    # W_ij = source_i P_ij target_j: column j of the sparse matrix holds its chosen sources i
    offsets = np.arange(n_items + 1, dtype=np.int64) * keep
    values = np.take_along_axis(model.inverse_, chosen, axis=1).ravel()
    columns: Any = sp.csc_array((values, chosen.ravel(), offsets), shape=(n_items, n_items))
    pruned = copy.copy(model)
    pruned.inverse_ = columns.tocsr()
    pruned.inverse_.sort_indices()
    weight = target.astype(np.float64) ** 2
    total = float((squares[:, 0] * weight).sum())
    pruned.loss_ = {
        "weight": 1 - float((squares[:, 1] * weight).sum()) / total if total else 0.0,
        "overlap@20": _overlap(model, pruned),
    }
    return pruned


def _overlap(model: LinearAutoencoder, pruned: LinearAutoencoder) -> float:
    data = model.interactions_
    rng = np.random.default_rng(0)
    size = min(SAMPLE, data.n_users)
    people = data.rows(np.sort(rng.choice(data.n_users, size, replace=False)))
    before, after = (each.rank(people, 20).items for each in (model, pruned))
    shared = [
        len(np.intersect1d(a[a >= 0], b[b >= 0])) / int((a >= 0).sum())
        for a, b in zip(before, after, strict=True)
        if (a >= 0).any()
    ]
    # a user who has used every item has no list to lose anything from
    return float(np.mean(shared)) if shared else 1.0


@compiled
def _strongest(P: Any, source: Any, keep: int, j: int, chosen: Any, squares: Any) -> None:
    """For target j the sources i with the largest |source_i P_ij|, and sums of squares."""
    size = np.abs(P[j] * source)  # P is symmetric: column j is row j
    size[j] = -1.0
    order = np.argsort(-size, kind="mergesort")[:keep]
    chosen[j] = np.sort(order)
    size[j] = 0.0
    squares[j, 0] = (size.astype(np.float64) ** 2).sum()
    squares[j, 1] = (size[order].astype(np.float64) ** 2).sum()
