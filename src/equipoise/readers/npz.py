"""`.npz` files: pairs of arrays, sessions, and scipy's own sparse matrices."""

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

from equipoise.errors import DataError
from equipoise.interactions import Interactions
from equipoise.readers.build import build
from equipoise.readers.frames import object_source
from equipoise.readers.matrices import from_matrix
from equipoise.readers.options import Options
from equipoise.readers.table import bad_row


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
        raise DataError(f"{path} is not a whole .npz file; fetch it again ({error})") from error


def npz_interactions(path: Path, options: Options) -> Interactions:
    """Read `users` and `items`, or `items` and `offsets` of sessions, or a sparse matrix."""
    arrays = load_arrays(path)
    if {"format", "shape", "data"} <= set(arrays):
        try:
            matrix = sp.load_npz(path)
        except (ValueError, KeyError, NotImplementedError) as error:
            raise DataError(f"{path} is not a whole sparse matrix: {error}") from error
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
    return build(object_source(frame, str(path)), options, options.labels)


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


def _sessions(path: Path, arrays: dict[str, npt.NDArray[Any]], options: Options) -> Interactions:
    """Session s is ``items[offsets[s]:offsets[s + 1]]``; the sessions are numbered from 0."""
    items, offsets = arrays["items"], arrays["offsets"]
    lengths = np.diff(offsets)
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) < 2:
        raise DataError(f"{path}: offsets must be whole numbers, one more than sessions")
    if offsets[0] != 0 or offsets[-1] != len(items) or (lengths < 0).any():
        raise DataError(f"{path}: offsets must rise from 0 to the number of items, {len(items):,}")
    empty = np.flatnonzero(lengths == 0)
    if len(empty) and options.on_bad == "error":
        raise bad_row(f"{path}, session {empty[0]}", "the session has no items", "remove it")
    frame = pl.DataFrame({"session": np.repeat(np.arange(len(lengths)), lengths), "item": items})
    source = object_source(frame, str(path))
    if not len(empty):
        return build(source, replace(options, session="session"), options.labels)

    def load(ids: Any, others: Any) -> Any:
        table = source.load(ids, others)
        table.skipped["the session has no items"] = len(empty)
        return table

    return build(replace(source, load=load), replace(options, session="session"), options.labels)
