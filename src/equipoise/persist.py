"""Interactions on disk: a directory of `.npy` arrays and Parquet ids."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.errors import DataError, FileFormatError
from equipoise.ids import IdIndex
from equipoise.interactions import Interactions
from equipoise.sequences import Sequences
from equipoise.storage import Stored, read_directory, write_directory

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
    write_directory(path, KIND, VERSION, packed.meta, packed.arrays, packed.frames)


def load_interactions(path: str | os.PathLike[str]) -> Interactions:
    """Read the directory; everything is checked before it is used."""
    stored = read_directory(path, KIND, VERSION)
    try:
        return unpack(stored, stored.meta)
    except FileFormatError as error:
        raise FileFormatError(f"{path} is damaged: {error}") from error


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
    stored: Stored, meta: Any, prefix: str = "", like: Interactions | None = None
) -> Interactions:
    """Return what `pack` was given; anything wrong with it is a `FileFormatError`."""
    n_users, n_items, notes, labelled = _checked_meta(meta)
    indptr = np.array(stored.array(f"{prefix}indptr", (n_users + 1,), "i"))
    pairs = (int(indptr[-1]),)
    weights = np.array(stored.finite(f"{prefix}weights", pairs))
    indices = np.array(stored.array(f"{prefix}indices", pairs, "i"))
    times = None
    if f"{prefix}times" in stored.arrays:
        times = np.array(stored.finite(f"{prefix}times", pairs))
    if like is not None and f"{prefix}items" not in stored.frames:
        items: Any = like.item_index
    else:
        items = frame_ids(stored.frame(f"{prefix}items", n_items))
    labels = like.labels if like is not None and labelled else None
    if f"{prefix}labels" in stored.frames:
        labels = stored.frame(f"{prefix}labels", n_items)
    try:
        return Interactions(
            sp.csr_array((weights, indices, indptr), shape=(n_users, n_items)),
            frame_ids(stored.frame(f"{prefix}users", n_users)),
            items,
            times=times,
            labels=labels,
            sequences=_sequences(stored, prefix, n_users),
            notes=notes,
        )
    except FileFormatError:
        raise
    except (DataError, ValueError) as error:
        raise FileFormatError(str(error)) from error


def _checked_meta(meta: Any) -> tuple[int, int, list[str], bool]:
    shape = meta.get("shape") if isinstance(meta, dict) else None
    if not isinstance(shape, list) or len(shape) != 2:
        raise FileFormatError(f"the manifest needs a shape of two sizes, found {shape!r}")
    if any(type(size) is not int or size < 0 for size in shape):
        raise FileFormatError(f"the manifest needs two sizes >= 0, found {shape}")
    notes = meta.get("notes")
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise FileFormatError("the notes of the manifest must be sentences")
    return shape[0], shape[1], notes, bool(meta.get("labelled"))


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
