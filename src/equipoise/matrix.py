"""Checks and index arithmetic on CSR matrices, shared by `Interactions` and what builds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.errors import DataError

Csr = sp.csr_array[np.float32, tuple[int, int]]


def checked_matrix(
    matrix: Any, times: npt.ArrayLike | None
) -> tuple[Csr, npt.NDArray[np.float64] | None]:
    """CSR float32 with sorted indices and no zeros, and the times in the same order.

    Refuses NaN, infinite and negative values and names the first such cell.
    """
    if not sp.issparse(matrix) and np.ndim(matrix) != 2:
        raise DataError(f"a matrix must be two-dimensional, got shape {np.shape(matrix)}")
    csr: Csr = sp.csr_array(matrix)
    wrong = ~(csr.data >= 0) | ~np.isfinite(csr.data)
    if wrong.any():
        place = int(np.flatnonzero(wrong)[0])
        row = int(np.searchsorted(csr.indptr, place, side="right")) - 1
        cell = f"row {row}, column {csr.indices[place]}"
        raise DataError(f"weights must be finite and >= 0, found {csr.data[place]} at {cell}")
    if csr.dtype != np.float32:
        csr = csr.astype(np.float32)
    if times is None:
        if not csr.has_canonical_format or not csr.data.all():
            csr = csr.copy()
            csr.sum_duplicates()
            csr.eliminate_zeros()
        return csr, None
    return _with_times(csr, np.asarray(times, np.float64))


def _with_times(csr: Csr, times: npt.NDArray[np.float64]) -> tuple[Csr, npt.NDArray[np.float64]]:
    if times.shape != csr.data.shape:
        raise DataError(f"times has {times.size} values for {csr.nnz} interactions")
    if not np.isfinite(times).all():
        raise DataError("times must be finite")
    if not csr.has_canonical_format:
        if sp.csr_array((csr.data, csr.indices, csr.indptr), csr.shape).has_sorted_indices:
            raise DataError("with times, each user-item pair may occur only once")
        order: Csr = sp.csr_array((np.arange(csr.nnz) + 1.0, csr.indices, csr.indptr), csr.shape)
        order.sort_indices()
        place = order.data.astype(np.int64) - 1
        csr = sp.csr_array((csr.data[place], order.indices, order.indptr), csr.shape)
        return _with_times(csr, times[place])
    if not csr.data.all():
        kept = csr.data != 0
        return keep_entries(csr, kept), times[kept]
    return csr, times


def entry_rows(csr: Csr) -> npt.NDArray[np.int64]:
    """Return the row of each stored value."""
    return np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))


def cell_keys(csr: Csr) -> npt.NDArray[np.int64]:
    """Return one ascending number per stored value, row * n_columns + column."""
    return entry_rows(csr) * csr.shape[1] + csr.indices


def keep_entries(csr: Csr, kept: npt.NDArray[np.bool_]) -> Csr:
    """Return the stored values under this mask, in a matrix of the same shape."""
    running = np.concatenate([[0], np.cumsum(kept)])
    return sp.csr_array((csr.data[kept], csr.indices[kept], running[csr.indptr]), csr.shape)


def as_positions(positions: npt.ArrayLike, size: int) -> npt.NDArray[np.int64]:
    """Turn positions or a boolean mask into positions, checked against the size of the axis."""
    array = np.asarray(positions)
    if array.dtype == bool:
        if array.shape != (size,):
            raise DataError(f"a mask of {array.shape} does not fit an axis of {size}")
        return np.flatnonzero(array)
    places = array.astype(np.int64).ravel()
    if places.size and (places.min() < 0 or places.max() >= size):
        raise DataError(f"positions must lie between 0 and {size - 1}")
    return places
