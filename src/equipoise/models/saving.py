"""Models on disk: a directory with a JSON manifest, memory-mapped arrays and Parquet ids."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from inspect import isabstract
from typing import Any

import numpy as np
import scipy.sparse as sp

import equipoise
from equipoise import normalize
from equipoise.errors import DataError, FileFormatError
from equipoise.interactions import Interactions, pack, unpack
from equipoise.manifest import Fields
from equipoise.models.base import Recommender, plain
from equipoise.models.lowpass import build_lowpass
from equipoise.normalize import Normalizer
from equipoise.storage import Stored, load_directory, write_directory

KIND = "equipoise-model"
VERSION = 1
TRAIN = "train_"


def save_model(model: Recommender, path: str | os.PathLike[str]) -> None:
    """Write the directory atomically; an earlier model there stays valid until the end."""
    data = pack(model._fitted, TRAIN)
    state, arrays = model._state()
    meta = {
        "library": equipoise.__version__,
        "settings": model.settings(),
        "state": plain(state),
        "train": data.meta,
    }
    write_directory(
        path, KIND, VERSION, meta, {**data.arrays, **arrays}, data.frames, _same_kind(model)
    )


def _same_kind(model: Recommender) -> Callable[[Stored], Recommender]:
    """Return how to restore this model: by the class of its name, which must be its own."""

    def restore(stored: Stored) -> Recommender:
        found = _restored(stored)
        if type(found) is not type(model):
            taken = f"{type(model).__name__} names another class, {type(found).__module__}"
            raise DataError(f"{taken}; give yours a name of its own")
        return found

    return restore


def load(path: str | os.PathLike[str], *, verify: bool = False) -> Recommender:
    """Open a saved model; large arrays are mapped, not read.

    Parameters
    ----------
    path
        Directory that `save` wrote.
    verify
        Check every byte against its checksum, instead of small files and samples of large ones.
    """
    return load_directory(path, KIND, VERSION, _restored, verify=verify)


def _restored(stored: Stored) -> Recommender:
    meta = stored.meta
    meta.text("library")
    model = build(meta.group("settings"))
    model.interactions_ = unpack(stored, meta.group("train"), TRAIN)
    model._restore(meta.group("state"), stored)
    return model


def build(settings: Any) -> Recommender:
    """Return an unfitted model from what `Recommender.settings` gave."""
    importlib.import_module("equipoise.models")  # fills the registry

    if not isinstance(settings, dict):
        raise FileFormatError(f"settings must be a group of fields, got {settings!r}")
    fields = dict(settings)
    kind = Recommender.registry.get(str(fields.pop("model", None)))
    if kind is None or isabstract(kind):
        raise FileFormatError(
            f"it holds a model of unknown kind {settings.get('model')!r}; if the class is your "
            "own, import it first"
        )
    if "normalizer" in fields:
        fields["normalizer"] = build_normalizer(fields["normalizer"])
    if "lowpass" in fields:
        fields["lowpass"] = build_lowpass(fields["lowpass"])
    try:
        return kind(**fields)
    except TypeError as error:
        raise FileFormatError(f"its settings are not those of {kind.__name__}: {error}") from error


def build_normalizer(settings: Any) -> Normalizer:
    """Return a normalizer from its name and fields."""
    fields = dict(settings) if isinstance(settings, dict) else {}
    name = str(fields.pop("name", ""))
    own = {each.__name__: each for each in Normalizer.__subclasses__()}
    kind = getattr(normalize, name, own.get(name))
    if not (isinstance(kind, type) and issubclass(kind, Normalizer)):
        raise FileFormatError(f"its normalizer is of unknown kind: {settings!r}")
    try:
        return kind(**fields)
    except TypeError as error:
        raise FileFormatError(f"its normalizer is damaged: {error}") from error


def restored_normalizer(state: Fields, interactions: Interactions) -> Normalizer:
    """Return the normalizer of a fitted model; its vectors must fit the data and be finite."""
    found = build_normalizer(state.group("normalizer"))
    vectors = [
        *found.item_scales(interactions.item_counts),
        found.user_weights(interactions),
        found.penalty_scale(interactions.n_items),
    ]
    if not all(np.isfinite(vector).all() for vector in vectors):
        raise FileFormatError(f"its normalizer {found!r} gives weights that are not finite")
    return found


def sparse_arrays(matrix: Any, name: str) -> dict[str, Any]:
    """Return a CSR matrix as arrays to save."""
    parts = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
    return {f"{name}_{part}": array for part, array in parts.items()}


def sparse_from(stored: Stored, name: str, size: int, rows: int | None = None) -> Any:
    """Return the CSR matrix that `sparse_arrays` saved: `size` columns, as many rows or `rows`."""
    rows = size if rows is None else rows
    indptr = np.array(stored.array(f"{name}_indptr", (rows + 1,), "i"))
    length = (int(indptr[-1]),)
    data = np.array(stored.finite(f"{name}_data", length))
    indices = np.array(stored.array(f"{name}_indices", length, "i"))
    try:
        matrix = sp.csr_array((data, indices, indptr), shape=(rows, size))
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise FileFormatError(f"its matrix {name!r} is damaged: {error}") from error
    return matrix
