"""Titles, genres and the like, aligned to the items of a matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.errors import DataError
from equipoise.readers.columns import given_column, spelled_like
from equipoise.readers.delimited import WHOLE
from equipoise.readers.options import Options
from equipoise.readers.table import Source


def aligned_labels(
    labels: Any, items: npt.NDArray[Any], options: Options
) -> tuple[pl.DataFrame | None, list[str]]:
    """Return one row per item, the title first, and notes; items without labels get nulls.

    Parameters
    ----------
    labels
        None, a `Source`, or anything `equipoise.read` accepts as a table.
    items
        Raw ids of the items, in order.
    options
        The settings of the read; the item column may have the name it has in the interactions.
    """
    if labels is None:
        return None, []
    source = labels if isinstance(labels, Source) else _opened(labels, options)
    key = _item_column(source, options)
    titles = [name for name in spelled_like(source.columns, "title") if name != key]
    others = [name for name in source.columns if name not in (key, *titles)]
    if not titles and not others:
        raise DataError(f"{source.name} has no column beside {key!r}; labels need a title")
    table = source.load([key], [*titles, *others])
    frame = table.frame.select([key, *titles, *others])
    wanted = pl.Series("item", items.tolist())
    keys = _same_type(wanted, frame[key], table.written)
    frame = frame.with_columns(keys.alias(key)).filter(pl.col(key).is_not_null())
    unique = frame.unique(subset=[key], keep="first", maintain_order=True)
    joined = wanted.to_frame().join(
        unique.with_columns(pl.lit(True).alias("\x00found")),
        left_on="item",
        right_on=key,
        how="left",
        maintain_order="left",
    )
    missing = joined["\x00found"].null_count()
    if missing == len(items):
        raise DataError(
            f"{source.name}: none of the items is labelled; check that column {key!r} holds "
            f"ids such as {items.tolist()[0]!r}"
        )
    notes = [f"labels from {source.name}"]
    if missing:
        notes.append(f"{missing:,} of {len(items):,} items have no label")
    if unique.height < frame.height:
        notes.append(f"{frame.height - unique.height:,} repeated labels ignored, the first kept")
    return joined.drop("item", "\x00found"), notes


def _opened(labels: Any, options: Options) -> Source:
    from equipoise.readers.files import path_source
    from equipoise.readers.frames import is_path, object_source

    plain = replace(options, separator=None, header=None, format=None, labels=None)
    if is_path(labels):
        return path_source(labels, plain)
    return object_source(labels, "the labels")


def _item_column(source: Source, options: Options) -> str:
    if isinstance(options.item, str) and options.item in source.columns:
        return options.item
    found = spelled_like(source.columns, "item")
    if not source.named or (not found and len(source.columns) == 2):
        return source.columns[0]
    if len(found) == 1:
        return found[0]
    return given_column(source, options.item or "item_id", "item")


def _same_type(
    items: pl.Series, keys: pl.Series, written: Callable[[str], pl.Series] | None
) -> pl.Series:
    """Bring the keys of the labels to the type of the ids; what does not fit becomes null."""
    if items.dtype == pl.String:
        return keys.cast(pl.String) if written is None else written(keys.name)
    if keys.dtype.is_float():
        keys = keys.set((keys != keys.floor()) | ~keys.is_finite(), None)
    if keys.dtype == pl.String:  # "007" is not 7
        keys = keys.set(~keys.str.contains(WHOLE), None)
    if keys.dtype.is_numeric() or keys.dtype == pl.String:
        return keys.cast(pl.Int64, strict=False)
    kind = np.asarray(items).dtype
    raise DataError(f"labels have ids of type {keys.dtype} for items of type {kind}; convert them")
