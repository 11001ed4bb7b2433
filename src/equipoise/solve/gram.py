"""The weighted Gram matrix, accumulated straight into one dense buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise import threads
from equipoise.kernels import compiled
from equipoise.matrix import Csr

STRIPES = 16  # row stripes per thread: popular items are spread over all of them


def weighted_gram(
    X: Csr, user_weights: npt.NDArray[np.float64], out: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Fill the upper triangle of `out` with G = X^T diag(w) X; the rest stays as it is.

    Rows are summed in float64 and each by one thread in a fixed order, so the result does not
    depend on the number of threads.

    Parameters
    ----------
    X
        Users x items, sorted indices.
    user_weights
        One weight per user.
    out
        n x n buffer, C-ordered, float32 or float64.
    """
    n_items = X.shape[1]
    # CSC whose values are the places of the same entries in CSR: from there on, user u's row
    # holds just the items j >= i
    place: Any = sp.csr_array((np.arange(X.nnz), X.indices, X.indptr), X.shape).tocsc()
    arrays = (
        X.indptr.astype(np.int64, copy=False),
        X.indices.astype(np.int32, copy=False),
        X.data.astype(np.float64, copy=False),
        place.indptr.astype(np.int64, copy=False),
        place.indices.astype(np.int32, copy=False),
        place.data.astype(np.int64, copy=False),
        np.ascontiguousarray(user_weights, np.float64),
    )
    stripes = min(STRIPES * threads.count(), n_items)
    threads.run(lambda stripe: _fill_rows(*arrays, stripe, stripes, out), stripes)
    return out


@compiled
def _fill_rows(
    indptr: Any,
    indices: Any,
    values: Any,
    column_start: Any,
    column_user: Any,
    column_place: Any,
    weights: Any,
    first: int,
    step: int,
    out: Any,
) -> None:
    """Fill the rows first, first + step, ... from their diagonal on."""
    n_items = out.shape[0]
    row = np.empty(n_items, np.float64)
    for i in range(first, n_items, step):
        row[i:] = 0.0
        for entry in range(column_start[i], column_start[i + 1]):
            user = column_user[entry]
            start = column_place[entry]
            weight = weights[user] * values[start]
            for place in range(start, indptr[user + 1]):
                row[indices[place]] += weight * values[place]
        for j in range(i, n_items):
            out[i, j] = row[j]


def gram_times(
    X: Csr, user_weights: npt.NDArray[np.float64], right: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """Return G @ right without G, in float64: X^T (w * (X right))."""
    middle = X.astype(np.float64) @ np.asarray(right, np.float64)
    return np.asarray(X.T.astype(np.float64) @ (user_weights[:, None] * middle))
