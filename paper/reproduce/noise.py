"""Disturb training data, for the test under noise."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.checks import fraction
from equipoise.data.interactions import Interactions, generator
from equipoise.data.matrix import cell_keys, in_ascending
from equipoise.errors import DataError


def with_noise(data: Interactions, ratio: float, seed: int = 0) -> Interactions:
    """Replace a share of the pairs by unobserved ones, drawn uniformly.

    New pairs have weight 1; the result has no events.
    """
    fraction("ratio", ratio)
    rng = generator(seed)
    keys = cell_keys(data.matrix)
    n_new = round(ratio * len(keys))
    n_cells = data.n_users * data.n_items
    if n_new > n_cells - len(keys):
        raise DataError(f"{n_new:,} pairs cannot be replaced: fewer are unobserved; lower ratio")
    is_kept = np.ones(len(keys), bool)
    is_kept[rng.permutation(len(keys))[:n_new]] = False
    cell = np.concatenate([keys[is_kept], _unobserved(keys, n_cells, n_new, rng)])
    value = np.concatenate([data.matrix.data[is_kept], np.ones(n_new, np.float32)])
    place = (cell // max(data.n_items, 1), cell % max(data.n_items, 1))
    return Interactions(
        sp.csr_array((value, place), shape=data.matrix.shape),
        data.user_index,
        data.item_index,
        catalogue=data.catalogue,
        notes=[*data.notes, f"{n_new:,} pairs ({ratio:.0%}) replaced by unobserved ones"],
    )


def _unobserved(
    keys: npt.NDArray[np.int64], n_cells: int, size: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Draw this many cells uniformly from those that are not among the ascending keys."""
    if n_cells <= 4 * len(keys):
        free = np.delete(np.arange(n_cells), keys)
        return rng.permutation(free)[:size]
    # At least 3 of 4 cells are free here, so few rounds of rejection sampling are needed.
    fresh = np.empty(0, np.int64)
    while len(fresh) < size:
        drawn = rng.integers(0, n_cells, 2 * (size - len(fresh)) + 16)
        fresh = np.unique(np.concatenate([fresh, drawn[~in_ascending(drawn, keys)]]))
    return rng.permutation(fresh)[:size]
