"""Models on disk: a directory with a JSON manifest, memory-mapped arrays and Parquet ids."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from inspect import isabstract
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

import equipoise
from equipoise.checks import choice
from equipoise.data.blocks import SavedBlocks, write_blocks
from equipoise.data.interactions import Interactions, pack, unpack
from equipoise.data.signals import Signals
from equipoise.data.storage import (
    LARGEST_SEED,
    Beside,
    Fields,
    Stored,
    load_directory,
    write_directory,
)
from equipoise.data.training import (
    FORMS,
    NotInMemory,
    Weighed,
    form_of,
    pack_facts,
    unpack_facts,
)
from equipoise.errors import DataError, FileFormatError, MissingDataError, SettingError
from equipoise.models.features import Features
from equipoise.models.lowpass import LowPass
from equipoise.models.settings import plain
from equipoise.models.trend import FittedTrend, Trend
from equipoise.normalize import Normalizer

if TYPE_CHECKING:
    from equipoise.models.base import Recommender

KIND = "equipoise-model"
VERSION = 2  # 1 for a model with its training data
TRAIN, WEIGHED = "train_", "weighed_"
SPARSE = "sparse"  # in place of a shape: a sparse matrix, items x items
# settings that had another name in older models; if several are there, the later one counts
RENAMED = {
    "share": "n_factors",
    "factors": "n_factors",
    "batch": "batch_size",
}

model_classes: dict[str, type[Recommender]] = {}  # all classes of models, by name

Shapes = Mapping[str, tuple[int, ...] | str]


def save_model(model: Recommender, path: str | os.PathLike[str], data: str | None = None) -> None:
    """Write the directory atomically; an earlier model there stays valid until the end."""
    train = model.data_
    form = form_of(train) if data is None else choice("data", data, FORMS)
    beside: Beside | None = None
    if form == "with":
        train = train.loaded("saving them with it")
        packed = pack(train, TRAIN)
        train_meta, train_arrays, frames = packed
    else:
        beside = _block_writer(train) if form == "beside" else None
        train_meta, train_arrays, frames = pack_facts(train, TRAIN)
        train_meta["beside"] = beside is not None
        if model._fitted is not model.data_:
            weighed = pack_facts(model._fitted, WEIGHED)
            train_meta["weighed"] = weighed[0]
            train_arrays |= weighed[1]
    state, arrays = model._state()
    meta = {
        "library": equipoise.__version__,
        "settings": model.settings(),
        "state": plain(state),
        "train": train_meta,
    }
    if model.trend_ is not None:
        meta["trend"] = {"level": model.trend_.level, "spread": model.trend_.spread}
        arrays = {**arrays, "trend_counts": model.trend_.counts}
    if model._recent_users is not None:
        arrays = {**arrays, "recent_users": model._recent_users}
    if model.estimate_ is not None:
        meta["estimate"] = model.estimate_

    def restore(stored: Stored) -> None:
        restored = _restored(stored)
        known = type(restored)
        if known is not type(model):
            name = type(model).__name__
            raise DataError(
                f"{name} is also the name of another class, in {known.__module__}; rename yours"
            )
        if form == "none" and train.n_items:
            restored.recommend([train.items[:1].tolist()], k=1)

    version = 1 if form == "with" else VERSION
    content = meta, {**train_arrays, **arrays}, frames
    try:
        if form == "none" and (not model.fold_in or model.ordered):
            raise MissingDataError
        write_directory(path, KIND, version, *content, restore, beside)
    except MissingDataError as error:
        if form == "none":
            raise SettingError(
                f"this {type(model).__name__} ranks with its training data and cannot be saved "
                "without them; use data='with' or data='beside'"
            ) from error
        raise


def _block_writer(data: Interactions) -> Beside:
    """Return the function for `write_directory` that writes the users of training data."""
    blocks = data.blocks if isinstance(data, NotInMemory) else None
    if isinstance(data, NotInMemory) and blocks is None:
        data.loaded("saving them beside it")
    if blocks is not None:
        return blocks.write
    return lambda place, token: write_blocks(place, token, data)


def load(path: str | os.PathLike[str], *, verify: bool = False) -> Recommender:
    """Open a saved model; large arrays are mapped, not read.

    Parameters
    ----------
    path
        Directory that `save` wrote; from a URL its files are copied to the cache folder
        (`EQUIPOISE_DATA`) first.
    verify
        Check every byte against its checksum, not only small files and samples of large ones.
    """
    model = load_directory(path, KIND, VERSION, _restored, verify=verify)
    blocks = getattr(model.data_, "blocks", None)
    if verify and isinstance(blocks, SavedBlocks):
        blocks.check()
    return model


def _restored(stored: Stored) -> Recommender:
    meta = stored.meta
    meta.text("library")
    model = build(meta.group("settings"))
    model._raw_data, model.interactions_ = _restored_data(model, stored, meta.group("train"))
    model._restore(meta.group("state"), stored)
    if model.trend is not None:
        model.trend_ = _restored_trend(model.trend, meta.group("trend"), stored, model)
    if "recent_users" in stored.arrays:
        model._recent_users = _restored_counts(stored, "recent_users", model)
    model._list_new_items()
    if "estimate" in meta:
        model.estimate_ = _restored_estimate(meta.group("estimate"))
    return model


def _restored_data(
    model: Recommender, stored: Stored, train: Fields
) -> tuple[Interactions, Interactions]:
    """Return the training data as passed to `fit`, and as the signals weighed them."""
    if "shape" in train:
        raw = unpack(stored, train, TRAIN)
        return raw, model._weighed(raw)
    blocks = SavedBlocks(stored.place, stored.beside) if train.flag("beside") else None
    away = unpack_facts(stored, train, TRAIN, blocks)
    if "weighed" not in train:
        return away, away
    weighed = None if blocks is None else Weighed(away, model._weighed)
    return away, unpack_facts(stored, train.group("weighed"), WEIGHED, weighed, like=away)


def _restored_trend(
    trend: Trend, saved: Fields, stored: Stored, model: Recommender
) -> FittedTrend:
    """Return the saved trend of a model, checked."""
    counts = _restored_counts(stored, "trend_counts", model)
    level, spread = (saved.number(name, least=0) for name in ("level", "spread"))
    return FittedTrend(trend, counts, level, spread)


def _restored_counts(stored: Stored, name: str, model: Recommender) -> npt.NDArray[np.float64]:
    """Return a saved count of users per item, checked."""
    counts = np.array(stored.finite(name, (model._fitted.n_items,)), np.float64)
    if (counts < 0).any():
        raise FileFormatError(f"its {name.replace('_', ' ')} have a negative number")
    return counts


def _restored_estimate(saved: Fields) -> dict[str, Any]:
    """Return the saved `estimate_` of a model, checked."""
    estimate: dict[str, Any] = {
        name: saved.text(name) for name in ("protocol", "version", "part", "data")
    }
    estimate |= {name: saved.whole_number(name, most=LARGEST_SEED) for name in ("n_users", "seed")}
    for name in ("yardsticks", "periods"):
        if name in saved:
            numbers = saved.group(name)
            estimate[name] = {key: numbers.number(key) for key in numbers}
    if "yardstick_periods" in saved:
        estimate["yardstick_periods"] = _numbers_in_groups(saved.group("yardstick_periods"))
    if "verdict" in saved:
        estimate["verdict"] = saved.text("verdict")
    estimate["values"] = _numbers_in_groups(saved.group("values"))
    return estimate


def _numbers_in_groups(saved: Fields) -> dict[str, dict[str, float]]:
    """Return groups of numbers by their names."""
    groups = {name: saved.group(name) for name in saved}
    return {name: {key: group.number(key) for key in group} for name, group in groups.items()}


def build(settings: Any) -> Recommender:
    """Return an unfitted model from the result of `Recommender.settings`."""
    if not isinstance(settings, dict):
        raise FileFormatError(f"settings must be a group of fields, got {settings!r}")
    fields = dict(settings)
    kind = model_classes.get(str(fields.pop("model", None)))
    if kind is None or isabstract(kind):
        raise FileFormatError(
            f"it holds a model of unknown kind {settings.get('model')!r}; if it is a class of "
            "yours, import it first"
        )
    if "dropout" in fields and fields["dropout"] is None:  # the default of older versions
        fields["dropout"] = "auto" if fields.get("l2") == "auto" else 0.0
    if "normalizer" in fields:
        fields["normalizer"] = build_normalizer(fields["normalizer"])
    if fields.get("lowpass") is not None:
        fields["lowpass"] = build_part("low-pass companion", fields["lowpass"], [LowPass])
    if fields.get("features") is not None:
        fields["features"] = build_part("features", fields["features"], [Features])
    if "signals" in fields:
        fields["signals"] = build_part("signals", fields["signals"], [Signals])
    if fields.get("trend") is not None:
        fields["trend"] = build_part("trend", fields["trend"], [Trend])
    try:
        model: Recommender = _instantiate(kind, fields)
        return model
    except TypeError as error:
        raise FileFormatError(f"its settings are not those of {kind.__name__}: {error}") from error


def build_normalizer(settings: Any) -> Normalizer:
    """Return a normalizer from its name and fields; its class may be a user's."""
    kinds = [*reversed(Normalizer.__subclasses__()), Normalizer]
    normalizer: Normalizer = build_part("normalizer", settings, kinds)
    return normalizer


def build_part(part: str, settings: Any, kinds: Iterable[type]) -> Any:
    """Return a part of a model from its name and fields; `part` is its name in messages."""
    fields = dict(settings) if isinstance(settings, dict) else {}
    kind = {kind.__name__: kind for kind in kinds}.get(str(fields.pop("name", "")))
    if kind is None:
        raise FileFormatError(f"its {part} is of unknown kind: {settings!r}")
    try:
        return _instantiate(kind, fields)
    except TypeError as error:
        raise FileFormatError(f"its {part} is damaged: {error}") from error


def _instantiate(kind: Any, fields: dict[str, Any]) -> Any:
    """Return an object from its fields, which may have names of older versions."""
    known = {entry.name for entry in dataclasses.fields(kind)}
    for old, new in RENAMED.items():
        if old in fields and old not in known and new in known:
            value = fields.pop(old)
            fields |= {} if value is None else {new: value}
    return kind(**fields)


def restore_normalizer(state: Fields, interactions: Interactions) -> Normalizer:
    """Return the normalizer of a fitted model; its vectors must fit the data and be finite."""
    normalizer = build_normalizer(state.group("normalizer"))
    vectors = [
        *normalizer.item_scales(interactions.item_counts),
        normalizer.penalty_scale(interactions.n_items),
    ]
    if interactions.in_memory:
        vectors.append(normalizer.user_weights(interactions))
    if not all(np.isfinite(vector).all() for vector in vectors):
        raise FileFormatError(f"its normalizer {normalizer!r} gives weights that are not finite")
    return normalizer


def restore_lowpass(state: Fields, lowpass: LowPass | None) -> LowPass | None:
    """Return the companion's settings of a fitted model; older models have no separate ones."""
    if lowpass is not None and "lowpass" in state:
        lowpass = build_part("low-pass companion", state["lowpass"], [LowPass])
    if lowpass is not None and lowpass.strength == "auto":
        raise FileFormatError("its low-pass companion has no strength")
    return lowpass


def arrays_to_save(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays by name; a sparse matrix becomes three of them."""
    out: dict[str, Any] = {}
    for name, array in arrays.items():
        out |= sparse_arrays(array, name) if sp.issparse(array) else {name: array}
    return out


def arrays_from(stored: Stored, shapes: Shapes, n_items: int) -> dict[str, Any]:
    """Return the result of `arrays_to_save`, checked for shapes and finite values."""
    return {
        name: sparse_from(stored, name, n_items)
        if isinstance(shape, str)
        else stored.finite(name, shape)
        for name, shape in shapes.items()
    }


def sparse_arrays(matrix: Any, name: str) -> dict[str, Any]:
    """Return a CSR matrix as arrays to save."""
    return {f"{name}_{part}": getattr(matrix, part) for part in ("data", "indices", "indptr")}


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
