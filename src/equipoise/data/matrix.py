"""Checked CSR matrices, index arithmetic on them, and the distinct pairs of a log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.errors import DataError
from equipoise.runtime.kernels import bits_set, compiled, lowest_bit
from equipoise.runtime.machine import run

Ints = npt.NDArray[np.int64]
Items = npt.NDArray[np.int32]

PART = 1 << 24  # stored values that are processed at a time
BLOCK, MOST_BLOCKS = 100_000, 64  # events per task of a thread, and the largest number of tasks

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


def pair_up(offsets: Ints, items: Items, *, places: bool = True) -> tuple[Ints, Items, Ints]:
    """Return the distinct pairs as row offsets and ascending columns, and each event's pair.

    Without `places` the last array stays empty, which saves memory.
    """
    pair_of_event = np.empty(len(items) if places else 0, np.int64)
    ascending, lengths = np.empty_like(items), np.empty(len(offsets) - 1, np.int64)
    ends = int(items.min(initial=0)), int(items.max(initial=0))

    def put(first: int, stop: int) -> None:
        _distinct(offsets, items, first, stop, *ends, ascending, lengths, pair_of_event)

    in_blocks(offsets, put)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    if indptr[-1] < len(items):
        _close_gaps(offsets, indptr, ascending, pair_of_event)
    return indptr, ascending[: indptr[-1]], pair_of_event


def in_blocks(offsets: Ints, work: Any) -> None:
    """Call ``work(first, stop)`` in threads, on ranges of users with about as many events."""
    count = min(int(offsets[-1]) // BLOCK + 1, MOST_BLOCKS)
    cuts = np.searchsorted(offsets, np.linspace(0, offsets[-1], count + 1)[1:-1])
    bounds = [0, *cuts.tolist(), len(offsets) - 1]
    run(lambda number: work(bounds[number], bounds[number + 1]), count)


@compiled
def _distinct(
    offsets: Ints,
    items: Items,
    first: int,
    stop: int,
    least: int,
    most: int,
    ascending: Items,
    lengths: Ints,
    pair_of_event: Ints,
) -> None:
    """Write the distinct items of each user in ascending order, and each event's index in them.

    A bit set of two layers: `words` has a bit per item, `layer` a bit per word in use.
    """
    one = np.uint64(1)
    words = np.zeros((most - least >> 6) + 1, np.uint64)
    layer = np.zeros((most - least >> 12) + 1, np.uint64)
    ranks = np.empty(words.size, np.int64)
    for user in range(first, stop):
        start, end = offsets[user], offsets[user + 1]
        low, high = layer.size, -1
        for place in range(start, end):
            word = items[place] - least >> 6
            words[word] |= one << np.uint64(items[place] - least & 63)
            layer[word >> 6] |= one << np.uint64(word & 63)
            low, high = min(low, word >> 6), max(high, word >> 6)
        at = start
        for top in range(low, high + 1):
            filled, layer[top] = layer[top], 0
            while filled:
                word = (top << 6) + lowest_bit(filled)
                filled &= filled - one
                bits, ranks[word] = words[word], at
                while bits:
                    ascending[at] = least + (word << 6) + lowest_bit(bits)
                    bits &= bits - one
                    at += 1
        lengths[user] = at - start
        if pair_of_event.size:
            for place in range(start, end):
                word = items[place] - least >> 6
                before = (one << np.uint64(items[place] - least & 63)) - one
                pair_of_event[place] = ranks[word] + bits_set(words[word] & before)
        for place in range(start, end):
            words[items[place] - least >> 6] = 0


@compiled
def _close_gaps(offsets: Ints, indptr: Ints, ascending: Items, pair_of_event: Ints) -> None:
    """Move the distinct items of all users together; each block starts at the user's events."""
    for user in range(offsets.size - 1):
        moved = offsets[user] - indptr[user]
        for place in range(indptr[user], indptr[user + 1]):
            ascending[place] = ascending[place + moved]
        if pair_of_event.size:
            for place in range(offsets[user], offsets[user + 1]):
                pair_of_event[place] -= moved
