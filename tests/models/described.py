"""Users whose taste follows the attributes of items, for tests of features."""

from __future__ import annotations

import numpy as np
import polars as pl

from equipoise.data.interactions import Interactions

WORDS = ["sun", "moon", "river", "stone", "fire", "snow", "wind", "leaf", "sand", "rain"]


def described(n_users: int = 150, n_items: int = 40, seed: int = 3) -> Interactions:
    """Return users x items: each user likes two of ten themes, each item has one or two."""
    rng = np.random.default_rng(seed)
    themes = rng.integers(len(WORDS), size=(n_items, 2))
    liked = rng.integers(len(WORDS), size=(n_users, 2))
    fits = (themes[None, :, :, None] == liked[:, None, None, :]).any(axis=(2, 3))
    popularity = 1 / np.arange(1, n_items + 1) ** 0.3
    matrix = rng.random((n_users, n_items)) < np.where(fits, 0.75, 0.08) * popularity
    matrix[:, 0] |= ~matrix.any(axis=1)
    catalogue = pl.DataFrame(
        {
            "title": [f"The {WORDS[a]} and the {WORDS[b]} {n}" for n, (a, b) in enumerate(themes)],
            "themes": [sorted({WORDS[a], WORDS[b]}) for a, b in themes],
            "price": rng.gamma(2.0, 5.0, n_items),
        }
    )
    users, items = [f"u{n}" for n in range(n_users)], [f"i{n}" for n in range(n_items)]
    return Interactions(matrix.astype(np.float32), users, items, catalogue=catalogue)
