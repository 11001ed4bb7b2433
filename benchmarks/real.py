"""The real data sets of several benchmarks, cut down to their most used items."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import equipoise as eq

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def lightgcn(folder: Path) -> eq.Interactions:
    parts = [np.load(folder / f"{name}.npz") for name in ("train", "test")]
    users, items = (np.concatenate([part[key] for part in parts]) for key in ("users", "items"))
    return eq.Interactions(sp.csr_array((np.ones(len(users), np.float32), (users, items))))


def sessions(file: Path, most: int = 60_000) -> eq.Interactions:
    """Return the last sessions as rows."""
    stored = np.load(file)
    offsets = stored["offsets"][-most - 1 :].astype(np.int64)
    items = stored["items"][offsets[0] :].astype(np.int64)
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    matrix = sp.csr_array((np.ones(len(items), np.float32), (rows, items)))
    return eq.Interactions((matrix > 0).astype(np.float32))


def sources(folder: Path) -> dict[str, Callable[[], eq.Interactions]]:
    small = {"user": "userId", "item": "movieId", "rating": "rating", "min_rating": 4}
    return {
        "movielens-100k": lambda: eq.datasets.load("movielens-100k", min_rating=4),
        "movielens-1m": lambda: eq.datasets.load("movielens-1m", min_rating=4),
        "ml-latest-small": lambda: eq.read(folder / "ml-latest-small" / "ratings.csv", **small),
        "gowalla": lambda: lightgcn(folder / "gowalla" / "weak"),
        "yelp2018": lambda: lightgcn(folder / "yelp2018" / "weak"),
        "diginetica": lambda: sessions(folder / "diginetica" / "train_sessions.npz"),
        "retailrocket": lambda: sessions(folder / "retailrocket" / "train_sessions.npz"),
        "yoochoose": lambda: sessions(folder / "yoochoose1_64" / "train_sessions.npz"),
        "online-retail": lambda: pairs("online-retail"),
        "complete-journey": lambda: pairs("complete-journey"),
    }


def pairs(name: str) -> eq.Interactions:
    """Return which user bought what, without quantities."""
    return eq.Signals().apply(eq.datasets.load(name))


def most_used(data: eq.Interactions, n_items: int) -> eq.Interactions:
    kept = np.sort(np.argsort(-data.item_counts, kind="stable")[:n_items])
    return data.columns(kept).filter(min_user=3)
