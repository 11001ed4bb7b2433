"""Checked CSR matrices, and index arithmetic on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.errors import DataError

PART = 1 << 24  # stored values that are processed at a time

Csr: TypeAlias = "sp.csr_array[np.float32, tuple[int, int]]"  # text: SciPy < 1.16


def checked_matrix(
    matrix: Any, times: npt.ArrayLike | None, *, signed: bool = False
) -> tuple[Csr, npt.NDArray[np.float64] | None]:
    """Return CSR float32 with sorted indices and no zeros, and the times in the same order.

    NaN, infinite and, unless `signed`, negative values are errors. A matrix of the right format is
    shared, not copied; the caller's matrix is never changed.
    """
    if not sp.issparse(matrix):
        matrix = np.asarray(matrix)
    if matrix.ndim != 2:
        raise DataError(f"a matrix must be two-dimensional, got shape {matrix.shape}")
    if matrix.dtype.kind not in "biuf":
        raise DataError(f"a matrix must hold numbers, got {matrix.dtype}")
    layout = getattr(matrix, "format", "csr")
    if times is not None and layout != "csr":
        raise DataError(f"times need a CSR matrix to belong to, got {layout.upper()}")
    csr: Csr = sp.csr_array(matrix)
    try:
        csr.check_format(full_check=True)
    except ValueError as error:
        raise DataError(f"the sparse matrix is malformed: {error}") from error
    csr = _single_precision(csr, signed)
    if times is not None:
        try:
            moments = np.asarray(times, np.float64)
        except (TypeError, ValueError):
            raise DataError(f"times must be numbers, one for each pair, got {times!r}") from None
        return _with_times(csr, moments)
    if not csr.has_canonical_format or not csr.data.all():
        csr = csr.copy()
        csr.sum_duplicates()
        csr.eliminate_zeros()
    return csr, None


def compact(
    data: npt.NDArray[Any], indices: npt.NDArray[Any], indptr: npt.NDArray[Any], shape: Any
) -> Csr:
    """Make a CSR matrix with 32-bit offsets where possible; scipy would widen the indices too."""
    narrow = indptr.astype(np.int32) if indptr[-1] <= np.iinfo(np.int32).max else indptr
    return sp.csr_array((data, indices, narrow), shape=shape)


def _single_precision(csr: Csr, signed: bool) -> Csr:
    for block in slices(csr.nnz):
        values = csr.data[block]
        wrong = ~np.isfinite(values)
        if not signed:
            wrong |= values < 0
        if wrong.any():
            allowed = "finite" if signed else "finite and >= 0"
            cell = _cell(csr, block.start + int(np.argmax(wrong)))
            raise DataError(f"weights must be {allowed}, found {cell}")
    if csr.dtype == np.float32:
        return csr
    wrong = lost_in_single(csr.data)
    if wrong.any():
        cell = _cell(csr, int(np.argmax(wrong)))
        raise DataError(f"weights must lie between 1e-45 and 3e38 or be 0, found {cell}")
    # `csr.astype` would sum duplicates, which no longer match the times.
    return sp.csr_array((csr.data.astype(np.float32), csr.indices, csr.indptr), csr.shape)


def lost_in_single(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Mark the finite values that become infinite or zero in single precision."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        single = values.astype(np.float32)
    changed = ~np.isfinite(single) | ((single == 0) & (values != 0))
    return np.asarray(np.isfinite(values) & changed)


def slices(size: int) -> Iterator[slice]:
    """Return slices that divide an array of this size into parts of limited memory."""
    return (slice(start, min(start + PART, size)) for start in range(0, size, PART))


def column_counts(csr: Csr) -> npt.NDArray[np.int64]:
    """Return the number of stored values of each column."""
    counts = np.zeros(csr.shape[1], np.int64)
    for block in slices(csr.nnz):
        counts += np.bincount(csr.indices[block], minlength=csr.shape[1])
    return counts


def column_squares(csr: Csr) -> npt.NDArray[np.float64]:
    """Return the sum of squares of each column."""
    sums = np.zeros(csr.shape[1])
    for block in slices(csr.nnz):
        squares = csr.data[block].astype(np.float64) ** 2
        sums += np.bincount(csr.indices[block], squares, minlength=csr.shape[1])
    return sums


def _cell(csr: Csr, place: int) -> str:
    row = int(np.searchsorted(csr.indptr, place, side="right")) - 1
    return f"{csr.data[place]} at row {row}, column {csr.indices[place]}"


def _with_times(csr: Csr, times: npt.NDArray[np.float64]) -> tuple[Csr, npt.NDArray[np.float64]]:
    if times.shape != csr.data.shape:
        raise DataError(f"times has {times.size} values for {csr.nnz} interactions; give one each")
    if not np.isfinite(times).all():
        raise DataError("times must be finite")
    if not csr.has_sorted_indices:
        # A copy, because `sort_indices` would sort the caller's indices in place.
        order = sp.csr_array((np.arange(csr.nnz), csr.indices, csr.indptr), csr.shape, copy=True)
        order.sort_indices()
        place = order.data
        csr = sp.csr_array((csr.data[place], order.indices, order.indptr), csr.shape)
        times = times[place]
    if not csr.has_canonical_format:
        raise DataError("with times, each user-item pair may occur only once; keep one of them")
    if not csr.data.all():
        nonzero = csr.data != 0
        return keep_entries(csr, nonzero), times[nonzero]
    return csr, times


def entry_rows(csr: sp.csr_array[Any, tuple[int, int]]) -> npt.NDArray[np.int64]:
    """Return the row of each stored value."""
    return np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))


def cell_keys(csr: Csr) -> npt.NDArray[np.int64]:
    """Return row * n_columns + column of each stored value, ascending."""
    return entry_rows(csr) * csr.shape[1] + csr.indices


def in_ascending(
    values: npt.NDArray[np.int64], keys: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Mark the values that occur among ascending keys; many times faster than `numpy.isin`."""
    if not len(keys):
        return np.zeros(len(values), bool)
    place = np.searchsorted(keys, values).clip(max=len(keys) - 1)
    return np.asarray(keys[place] == values)


def keep_entries(csr: Csr, mask: npt.NDArray[np.bool_]) -> Csr:
    """Return the stored values under this mask, in a matrix of the same shape."""
    running = np.concatenate([[0], np.cumsum(mask)])
    return sp.csr_array((csr.data[mask], csr.indices[mask], running[csr.indptr]), csr.shape)


def as_positions(positions: npt.ArrayLike, size: int) -> npt.NDArray[np.int64]:
    """Convert positions or a boolean mask to positions, checked against the size of the axis."""
    array = np.asarray(positions)
    if array.dtype == bool:
        if array.shape != (size,):
            raise DataError(
                f"a mask of {array.shape} does not fit an axis of {size}; give one flag each"
            )
        return np.flatnonzero(array)
    if array.size and array.dtype.kind not in "iu":
        raise DataError(f"positions must be integers or a mask, got {array.dtype}")
    places = array.astype(np.int64).ravel()
    if places.size and (places.min() < 0 or places.max() >= size):
        raise DataError(f"positions must lie between 0 and {size - 1}")
    return places


def segments(
    starts: npt.NDArray[np.integer], lengths: npt.NDArray[np.integer]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the concatenated ranges ``starts[i] : starts[i] + lengths[i]`` and their offsets.

    >>> segments(np.array([5, 0]), np.array([2, 3]))
    (array([5, 6, 0, 1, 2]), array([0, 2, 5]))
    """
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    return places, offsets
