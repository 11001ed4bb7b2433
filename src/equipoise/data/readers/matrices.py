"""Read users x items matrices, and `.npz` files of pairs, sessions or sparse matrices."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.data.ids import as_ids, as_list
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import entry_rows, keep_entries, lost_in_single
from equipoise.data.read_options import COLUMNS, ReadOptions
from equipoise.data.readers.build import finished, to_interactions
from equipoise.data.tables import bad_row, frame_source, refuse_or_note
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


def load_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Load all arrays; nothing is ever unpickled."""
    try:
        with path.open("rb") as stream:
            stored = np.load(stream, allow_pickle=False)
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise DataError(f"{path} is a single array; give an .npz with users and items")
            with stored:
                return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, KeyError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not a complete .npz file; fetch it again ({error})") from error


def npz_interactions(path: Path, options: ReadOptions) -> Interactions:
    """Read `users` and `items`, or `items` and `offsets` of sessions, or a sparse matrix."""
    arrays = load_arrays(path)
    if {"format", "shape", "data"} <= set(arrays):
        try:
            matrix = sp.load_npz(path)
        except (ValueError, KeyError, NotImplementedError) as error:
            raise DataError(f"{path} is not a complete sparse matrix: {error}") from error
        return from_matrix(matrix, options, str(path))
    if {"items", "offsets"} <= set(arrays):
        return _sessions(path, arrays, options)
    users, items = pair_arrays(path, arrays)
    more = {
        name: pl.Series(array)
        for name, array in arrays.items()
        if name not in ("users", "items") and array.shape == users.shape
    }
    frame = pl.DataFrame({"users": users, "items": items, **more})
    return to_interactions(frame_source(str(path), frame), options)


def pair_arrays(
    path: Path, arrays: dict[str, npt.NDArray[Any]]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the arrays `users` and `items`, checked."""
    if not {"users", "items"} <= set(arrays):
        listed = ", ".join(arrays) or "nothing"
        raise DataError(f"{path} holds {listed}; it needs the arrays users and items")
    users, items = arrays["users"], arrays["items"]
    if users.ndim != 1 or users.shape != items.shape:
        raise DataError(f"{path}: users {users.shape} and items {items.shape} need one shape")
    return users, items


def _sessions(
    path: Path, arrays: dict[str, npt.NDArray[Any]], options: ReadOptions
) -> Interactions:
    """Session s is ``items[offsets[s]:offsets[s + 1]]``; the sessions are numbered from 0."""
    items, offsets = arrays["items"], arrays["offsets"]
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) < 2:
        raise DataError(f"{path}: offsets must be whole numbers, one more than sessions")
    ends = offsets.astype(np.int64)  # unsigned numbers have no negative difference
    lengths = ends[1:] - ends[:-1]
    if offsets[0] != 0 or offsets[-1] != len(items) or (lengths < 0).any():
        raise DataError(f"{path}: offsets must rise from 0 to the number of items, {len(items):,}")
    empty = np.flatnonzero(lengths == 0)
    if len(empty) and options.on_bad == "error":
        raise bad_row(f"{path}, session {empty[0]}", "the session has no items", "remove it")
    frame = pl.DataFrame({"session": np.repeat(np.arange(len(lengths)), lengths), "item": items})
    skipped = {"the session has no items": len(empty)} if len(empty) else {}
    source = frame_source(str(path), frame, skipped=skipped)
    return to_interactions(source, replace(options, session="session"))
