"""Normalised interactions and their spectra, computed once for all models on the same data."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.interactions import Interactions
from equipoise.matrix import entry_rows
from equipoise.normalize import power
from equipoise.svd import Spectrum, truncated_svd

Array = npt.NDArray[Any]
CACHED_BYTES = 1 << 30  # of spectra that later models on the same data can use


class _Cache:
    """The spectra computed last, as many as fit into `CACHED_BYTES`."""

    def __init__(self) -> None:
        self.held: OrderedDict[tuple[Any, ...], Spectrum] = OrderedDict()
        self.lock = Lock()

    def get(self, key: tuple[Any, ...], rank: int) -> Spectrum | None:
        with self.lock:
            found = self.held.get(key)
            if found is None or len(found.values) < rank:
                return None
            self.held.move_to_end(key)
            return found.first(rank)

    def put(self, key: tuple[Any, ...], found: Spectrum) -> None:
        with self.lock:
            self.held[key] = found
            self.held.move_to_end(key)
            while sum(one.right.nbytes for one in self.held.values()) > CACHED_BYTES:
                self.held.popitem(last=False)


_cache = _Cache()


def spectrum(
    interactions: Interactions,
    rank: int,
    *,
    user_exponent: float = 0.5,
    item_exponent: float = 0.5,
    shift: float = 0.0,
    dtype: str = "float32",
    power_iterations: int | None = None,
) -> Spectrum:
    """Return the truncated SVD of the normalised interactions, once for all models that need it.

    A spectrum of the same data and exponents that was computed lately is used again, and one of a
    larger rank is cut; the two differ by no more than the tolerance of `truncated_svd`. A rank
    larger than the shorter side of the matrix is cut to it. With `power_iterations` the result
    depends on the rank, and is used again for that rank only. Arrays are shared: read-only.
    """
    rank = min(rank, *interactions.matrix.shape)
    how = None if power_iterations is None else (power_iterations, rank)
    key = (interactions.fingerprint, user_exponent, item_exponent, shift, dtype, how)
    found = _cache.get(key, rank)
    if found is None:
        A = normalised(interactions, user_exponent, item_exponent, shift)
        found = truncated_svd(A, rank, dtype=dtype, power_iterations=power_iterations)
        found.right.flags.writeable = found.values.flags.writeable = False
        _cache.put(key, found)
    return found


def normalised(
    interactions: Interactions,
    user_exponent: float = 0.5,
    item_exponent: float = 0.5,
    shift: float = 0.0,
) -> Any:
    """Return A = (D_U + shift)^-a X (D_I + shift)^-b in float64, CSR.

    D_U and D_I are the sums of rows and columns of X, which keeps the singular values at a = b =
    1/2 below 1 for weighted interactions too.
    """
    X = interactions.matrix
    values = X.data.astype(np.float64)
    users, items = sums(interactions)
    row = power(users + shift, -user_exponent)
    values *= row[entry_rows(X)] * power(items + shift, -item_exponent)[X.indices]
    return sp.csr_array((values, X.indices, X.indptr), X.shape)


def sums(interactions: Interactions) -> tuple[Array, Array]:
    """Return the diagonals of D_U and D_I, the sums of rows and columns of the interactions."""
    X = interactions.matrix
    values = X.data.astype(np.float64)
    users = np.bincount(entry_rows(X), weights=values, minlength=X.shape[0])
    return users, np.bincount(X.indices, weights=values, minlength=X.shape[1])
