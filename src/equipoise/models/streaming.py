"""A Parquet file written batch by batch, complete or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import polars as pl
from polars.io.plugins import register_io_source

from equipoise.errors import DataError


def write_parquet(path: str | os.PathLike[str], batches: Iterator[pl.DataFrame]) -> None:
    """Write frames of one schema to a Parquet file as they come; memory holds one at a time."""
    target = Path(path)
    if target.is_dir():
        raise DataError(f"{target} is a folder; give the path of a file")
    first = next(batches, None)
    if first is None:
        raise DataError("there is no user to recommend to; name at least one")

    def source(
        columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        yield first
        yield from batches

    fresh = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    try:
        register_io_source(source, schema=first.schema).sink_parquet(fresh)
        os.replace(fresh, target)
    except OSError as error:
        raise DataError(f"could not write {target}: {error.strerror or error}") from error
    finally:
        fresh.unlink(missing_ok=True)
