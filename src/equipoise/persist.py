"""Interactions on disk: a directory of `.npy` arrays and Parquet ids."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.errors import FileFormatError
from equipoise.ids import IdIndex
from equipoise.interactions import Interactions
from equipoise.sequences import Sequences
from equipoise.storage import read_directory, write_directory

KIND = "equipoise-interactions"
VERSION = 1


def save_interactions(data: Interactions, path: str | os.PathLike[str]) -> None:
    """Write the directory atomically."""
    arrays: dict[str, npt.NDArray[Any]] = {
        "indptr": data.matrix.indptr.astype(np.int64),
        "indices": data.matrix.indices.astype(np.int32),
        "weights": data.matrix.data,
    }
    if data.times is not None:
        arrays["times"] = data.times
    if data.sequences is not None:
        arrays["events"] = data.sequences.items.astype(np.int32)
        arrays["offsets"] = data.sequences.offsets
    frames = {"users": id_frame(data.user_index), "items": id_frame(data.item_index)}
    if data.labels is not None:
        frames["labels"] = data.labels
    meta = {
        "shape": list(data.matrix.shape),
        "notes": list(data.notes),
        "fingerprint": data.fingerprint,
    }
    write_directory(path, KIND, VERSION, meta, arrays, frames)


def load_interactions(path: str | os.PathLike[str]) -> Interactions:
    """Read the directory; everything is checked before it is used."""
    stored = read_directory(path, KIND, VERSION)
    try:
        n_users, n_items = (int(size) for size in stored.meta["shape"])
        notes = [str(note) for note in stored.meta["notes"]]
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"the manifest of {path} is damaged: {error}") from error
    indptr = np.array(stored.array("indptr", (n_users + 1,), "i"))
    nnz = int(indptr[-1])
    weights = np.array(stored.finite("weights", (nnz,)))
    indices = np.array(stored.array("indices", (nnz,), "i"))
    try:
        matrix = sp.csr_array((weights, indices, indptr), shape=(n_users, n_items))
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise FileFormatError(f"the matrix in {path} is damaged: {error}") from error
    sequences = None
    if "offsets" in stored.arrays:
        offsets = np.array(stored.array("offsets", (n_users + 1,), "i"))
        events = np.array(stored.array("events", (int(offsets[-1]),), "i"))
        if events.size and (events.min() < 0 or events.max() >= n_items):
            raise FileFormatError(f"the events in {path} name items that do not exist")
        sequences = Sequences(events, offsets)
    return Interactions(
        matrix,
        frame_ids(stored.frame("users", n_users)),
        frame_ids(stored.frame("items", n_items)),
        times=np.array(stored.finite("times", (nnz,))) if "times" in stored.arrays else None,
        labels=stored.frame("labels", n_items) if "labels" in stored.frames else None,
        sequences=sequences,
        notes=notes,
    )


def id_frame(index: IdIndex) -> pl.DataFrame:
    """Return the ids as a one-column frame, for Parquet."""
    kind = pl.Int64 if index.values.dtype == np.int64 else pl.String
    return pl.DataFrame({"id": pl.Series(index.values.tolist(), dtype=kind)})


def frame_ids(frame: pl.DataFrame) -> npt.NDArray[Any]:
    """Return the ids of a frame that `id_frame` made."""
    if "id" not in frame.columns or frame["id"].dtype not in (pl.Int64, pl.String):
        raise FileFormatError("a table of ids needs a column 'id' of integers or text")
    if frame["id"].null_count():
        raise FileFormatError("a table of ids holds empty ids")
    return frame["id"].to_numpy()
