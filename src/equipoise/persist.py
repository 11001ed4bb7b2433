"""Interactions on disk: a directory of `.npy` arrays and Parquet ids."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.errors import FileFormatError
from equipoise.ids import IdIndex
from equipoise.interactions import Interactions
from equipoise.manifest import Fields
from equipoise.sequences import Sequences
from equipoise.storage import Stored, load_directory, write_directory

KIND = "equipoise-interactions"
VERSION = 1


@dataclass(frozen=True)
class Packed:
    """Interactions as a directory holds them: settings, arrays and tables."""

    meta: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]
    frames: dict[str, pl.DataFrame]


def save_interactions(data: Interactions, path: str | os.PathLike[str]) -> None:
    """Write the directory atomically."""
    packed = pack(data)
    write_directory(path, KIND, VERSION, packed.meta, packed.arrays, packed.frames, _restored)


def load_interactions(path: str | os.PathLike[str]) -> Interactions:
    """Read the directory; everything is checked before it is used."""
    return load_directory(path, KIND, VERSION, _restored)


def _restored(stored: Stored) -> Interactions:
    return unpack(stored, stored.meta)


def pack(data: Interactions, prefix: str = "", like: Interactions | None = None) -> Packed:
    """Return what to save, under names that start with `prefix`.

    Items and labels that `like` has too are left out; `unpack` takes them from there.
    """
    arrays: dict[str, npt.NDArray[Any]] = {
        "indptr": data.matrix.indptr.astype(np.int64),
        "indices": data.matrix.indices.astype(np.int32),
        "weights": data.matrix.data,
    }
    if data.times is not None:
        arrays["times"] = data.times
    if data.sequences is not None:
        arrays["events"] = data.sequences.items.astype(np.int32)
        arrays["offsets"] = data.sequences.offsets.astype(np.int64)
    frames = {"users": id_frame(data.user_index)}
    if like is None or not like.item_index.same_as(data.item_index):
        frames["items"] = id_frame(data.item_index)
    if data.labels is not None and (like is None or like.labels is not data.labels):
        frames["labels"] = data.labels
    meta = {
        "shape": [data.n_users, data.n_items],
        "notes": list(data.notes),
        "labelled": data.labels is not None,
        "fingerprint": data.fingerprint,
    }
    return Packed(
        meta,
        {prefix + name: array for name, array in arrays.items()},
        {prefix + name: frame for name, frame in frames.items()},
    )


def unpack(
    stored: Stored, meta: Fields, prefix: str = "", like: Interactions | None = None
) -> Interactions:
    """Return what `pack` was given; anything wrong with it is a `DataError`."""
    shape = meta.wholes("shape")
    if len(shape) != 2:
        raise FileFormatError(f"the field {meta.path + 'shape'!r} must be two sizes, got {shape}")
    meta.text("fingerprint")
    n_users, n_items = shape
    indptr = np.array(stored.array(f"{prefix}indptr", (n_users + 1,), "i"))
    pairs = (int(indptr[-1]),)
    weights = np.array(stored.finite(f"{prefix}weights", pairs))
    indices = np.array(stored.array(f"{prefix}indices", pairs, "i"))
    times = None
    if f"{prefix}times" in stored.arrays:
        times = np.array(stored.finite(f"{prefix}times", pairs))
    data = Interactions(
        _csr(weights, indices, indptr, (n_users, n_items)),
        frame_ids(stored.frame(f"{prefix}users", n_users)),
        _items(stored, prefix, n_items, like),
        times=times,
        labels=_labels(stored, prefix, n_items, like if meta.flag("labelled") else None),
        sequences=_sequences(stored, prefix, n_users),
        notes=meta.texts("notes"),
    )
    if data.n_interactions != pairs[0]:
        raise FileFormatError("a user-item pair occurs twice or with a weight of 0")
    if meta["labelled"] != (data.labels is not None):
        raise FileFormatError(f"the field {meta.path + 'labelled'!r} does not fit its tables")
    return data


def _csr(weights: Any, indices: Any, indptr: Any, shape: tuple[int, int]) -> Any:
    try:
        return sp.csr_array((weights, indices, indptr), shape=shape)
    except ValueError as error:
        raise FileFormatError(f"the sparse matrix is malformed: {error}") from error


def _items(stored: Stored, prefix: str, n_items: int, like: Interactions | None) -> Any:
    if like is not None and f"{prefix}items" not in stored.frames:
        return like.item_index
    return frame_ids(stored.frame(f"{prefix}items", n_items))


def _labels(
    stored: Stored, prefix: str, n_items: int, like: Interactions | None
) -> pl.DataFrame | None:
    if f"{prefix}labels" in stored.frames:
        return stored.frame(f"{prefix}labels", n_items)
    return None if like is None else like.labels


def _sequences(stored: Stored, prefix: str, n_users: int) -> Sequences | None:
    if f"{prefix}offsets" not in stored.arrays:
        return None
    offsets = np.array(stored.array(f"{prefix}offsets", (n_users + 1,), "i"))
    events = np.array(stored.array(f"{prefix}events", (int(offsets[-1]),), "i"))
    return Sequences(events, offsets)


def id_frame(index: IdIndex) -> pl.DataFrame:
    """Return the ids as a one-column frame, for Parquet."""
    return pl.DataFrame({"id": index.to_series()})


def frame_ids(frame: pl.DataFrame) -> npt.NDArray[Any]:
    """Return the ids of a frame that `id_frame` made."""
    if "id" not in frame.columns or frame["id"].dtype not in (pl.Int64, pl.String):
        raise FileFormatError("a table of ids needs a column 'id' of integers or text")
    if frame["id"].null_count():
        raise FileFormatError("a table of ids holds empty ids")
    return frame["id"].to_numpy()
