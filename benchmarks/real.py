"""Load the real data sets of several benchmarks, reduced to their most used items."""

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
    """Return the last sessions of a file as rows."""
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
    """Return the pairs of users and items of a data set, without quantities."""
    return eq.Signals().apply(eq.datasets.load(name))


def most_used(data: eq.Interactions, n_items: int) -> eq.Interactions:
    popular_items = np.sort(np.argsort(-data.item_counts, kind="stable")[:n_items])
    return data.columns(popular_items).filter(min_user=3)


def cut(folder: Path, name: str, n_items: int) -> eq.Interactions:
    """Return a data set with its most used items, from a file of `export` if there is one."""
    file = _exported(folder, name, n_items)
    if not file.exists():
        return most_used(sources(folder)[name](), n_items)
    stored = np.load(file)
    indptr, indices = stored["indptr"].astype(np.int64), stored["indices"].astype(np.int32)
    ones = np.ones(len(indices), np.float32)
    return eq.Interactions(sp.csr_array((ones, indices, indptr), shape=stored["shape"]))


def export(folder: Path, name: str, n_items: int, out: Path) -> None:
    """Write a reduced data set as a small file, for machines without the data sets."""
    matrix = cut(folder, name, n_items).matrix
    assert (matrix.data == 1).all()
    out.mkdir(parents=True, exist_ok=True)
    parts = {
        "indptr": matrix.indptr.astype(np.uint32),
        "indices": matrix.indices.astype(np.uint16),
    }
    np.savez_compressed(_exported(out, name, n_items), shape=matrix.shape, **parts)


def _exported(folder: Path, name: str, n_items: int) -> Path:
    return folder / f"{name}-{n_items}.npz"
