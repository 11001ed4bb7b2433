"""Interactions with further notes or with other labels."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from equipoise.interactions import Interactions


def annotated(
    data: Interactions, *, notes: Iterable[str] = (), labels: pl.DataFrame | None = None
) -> Interactions:
    """Return the same interactions with these notes added, and these labels if given."""
    return Interactions(
        data.matrix,
        data.user_index,
        data.item_index,
        times=data.times,
        labels=data.labels if labels is None else labels,
        sequences=data.sequences,
        notes=[*data.notes, *notes],
    )
