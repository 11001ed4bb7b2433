"""Small data and small neural models that several test files share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.models.neural.base import NeuralModel

CASES: dict[str, Callable[..., NeuralModel]] = {
    "MultVAE": lambda **more: eq.MultVAE(
        **{"hidden": 24, "latent": 8, "batch_size": 50, "epochs": 4, "evaluate_every": 1, **more}
    ),
    "LightGCN": lambda **more: eq.LightGCN(
        **{"n_factors": 8, "batch_size": 200, "epochs": 4, "evaluate_every": 1, **more}
    ),
    "XSimGCL": lambda **more: eq.XSimGCL(
        **{"n_factors": 8, "batch_size": 200, "epochs": 4, **more}
    ),
}
GRAPH = ["LightGCN", "XSimGCL"]


def clustered(n_users: int = 200, n_items: int = 60, groups: int = 5) -> Interactions:
    """Users who mostly use the items of their group; popular items come first."""
    rng = np.random.default_rng(3)
    same_group = rng.integers(0, groups, n_users)[:, None] == rng.integers(0, groups, n_items)
    chance = np.where(same_group, 0.4, 0.04) * np.linspace(1.3, 0.6, n_items)
    X = rng.random((n_users, n_items)) < chance
    X[np.arange(n_users), rng.integers(0, n_items, n_users)] = True
    return Interactions(X.astype(np.float32), [f"u{n}" for n in range(n_users)])
