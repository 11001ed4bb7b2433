"""Read users x items matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.data.ids import as_ids, as_list
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import entry_rows, keep_entries, lost_in_single
from equipoise.data.read_options import COLUMNS, ReadOptions
from equipoise.data.readers.build import finished
from equipoise.data.tables import refuse_or_note
from equipoise.errors import DataError


def from_matrix(matrix: Any, options: ReadOptions, name: str = "the matrix") -> Interactions:
    """Make interactions of a matrix: values are weights, or ratings with `min_rating`."""
    options.refuse(COLUMNS, name)
    if len(matrix.shape) != 2:
        shape = matrix.shape
        raise DataError(
            f"{name} must be two-dimensional (users x items), got shape {shape}; reshape it"
        )
    if matrix.dtype.kind not in "fiub":
        raise DataError(
            f"{name} must hold numbers, got {matrix.dtype}; give pairs as a list of (user, item)"
        )
    try:
        csr: Any = sp.csr_array(matrix)
        csr = csr if csr.dtype.kind == "f" else csr.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} must hold numbers: {error}") from error
    users = _ids(options.users, csr.shape[0], "user")
    items = _ids(options.items, csr.shape[1], "item")
    notes = [f"read as a matrix of {csr.shape[0]:,} users x {csr.shape[1]:,} items"]
    if csr.has_canonical_format is False:
        before = csr.nnz
        csr = csr.copy()
        csr.sum_duplicates()
        if csr.nnz < before:
            notes.append(f"merged {before - csr.nnz:,} repeated pairs, their weights added up")
    csr = _without_bad_cells(csr, name, options, notes)
    csr = keep_entries(csr, csr.data != 0)
    if options.min_rating is not None:
        high = csr.data >= options.min_rating
        notes.append(f"{(~high).sum():,} pairs have a rating below {options.min_rating:g}")
        csr = keep_entries(csr, high)
        csr.data[:] = 1
    csr, users, items = _without_empty(csr, users, items, name, options, notes)
    return finished(name, csr, users, items, options, notes)


def _ids(values: Any, size: int, axis: str) -> npt.NDArray[Any]:
    if values is None:
        return np.arange(size, dtype=np.int64)
    ids = as_ids(values if isinstance(values, np.ndarray) else as_list(values), axis)
    if len(ids) != size:
        raise DataError(f"{axis}s= has {len(ids):,} ids for {size:,} {axis}s; give one each")
    return ids


def _without_bad_cells(csr: Any, name: str, options: ReadOptions, notes: list[str]) -> Any:
    faults = [
        (~np.isfinite(csr.data) | (csr.data < 0), "NaN, infinite or negative", "finite and >= 0")
    ]
    if options.min_rating is None:  # the values are weights, else they only filter
        fit = "between 1e-45 and 3e38"
        faults.append((lost_in_single(csr.data), f"not {fit}", f"{fit} or 0"))
    usable = np.ones(csr.nnz, bool)
    for wrong, fault, needed in faults:
        if wrong.any():
            place = int(np.argmax(wrong))
            cell = f"row {entry_rows(csr)[place]}, column {csr.indices[place]}"
            error = (
                f"{name}, {cell}: {csr.data[place]} is not a weight, which is {needed}; "
                "correct it, or pass on_bad='skip' to leave such cells out"
            )
            note = f"skipped {wrong.sum():,} cells that are {fault}"
            refuse_or_note(options.on_bad == "error", error, name, note, notes)
            usable &= ~wrong
    return csr if usable.all() else keep_entries(csr, usable)


def _without_empty(
    csr: Any,
    users: npt.NDArray[Any],
    items: npt.NDArray[Any],
    name: str,
    options: ReadOptions,
    notes: list[str],
) -> tuple[Any, npt.NDArray[Any], npt.NDArray[Any]]:
    """Drop users without items and items without users, or raise (`on_bad`)."""
    row_full = np.diff(csr.indptr) > 0
    column_full = np.bincount(csr.indices, minlength=csr.shape[1]) > 0
    if not row_full.any():
        raise DataError(f"{name}: no value is left; check its values and min_rating")
    for full, ids, axis, other in (
        (row_full, users, "user", "items"),
        (column_full, items, "item", "users"),
    ):
        if not full.all():
            lost = ids[~full].tolist()
            error = (
                f"{name}: {axis} {lost[0]!r} has no {other} ({len(lost):,} such); "
                "remove them, or pass on_bad='skip' to leave them out"
            )
            note = f"left out {len(lost):,} {axis}s without {other}"
            # `min_rating` may empty rows; otherwise empty rows are a fault of the data.
            stop = options.on_bad == "error" and options.min_rating is None
            refuse_or_note(stop, error, name, note, notes)
    csr = csr[np.flatnonzero(row_full)]
    if not column_full.all():
        csr = csr[:, np.flatnonzero(column_full)]
    return csr, users[row_full], items[column_full]
