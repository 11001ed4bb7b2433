"""Files, frames, matrices and research formats to `Interactions`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from equipoise.interactions import KIND, Interactions
from equipoise.readers.build import build
from equipoise.readers.files import path_source
from equipoise.readers.frames import is_path, object_source, row_options
from equipoise.readers.matrices import from_matrix
from equipoise.readers.options import COLUMNS, Column, OnBad, OptionalColumn, Options, TimeUnit
from equipoise.readers.research import from_research, read_multvae, read_strong, read_weak
from equipoise.storage import is_directory_of

__all__ = ["read", "read_multvae", "read_strong", "read_weak"]


def read(
    source: Any,
    *,
    user: Column = None,
    item: Column = None,
    time: OptionalColumn = None,
    time_unit: TimeUnit | None = None,
    rating: OptionalColumn = None,
    weight: Column = None,
    session: Column = None,
    gap: float | str | None = None,
    min_rating: float | None = None,
    labels: Any = None,
    users: Any = None,
    items: Any = None,
    separator: str | None = None,
    header: bool | None = None,
    encoding: str = "utf-8",
    format: str | None = None,
    on_bad: OnBad = "error",
) -> Interactions:
    r"""Read interactions from nearly anything that holds who used what.

    Parameters
    ----------
    source
        A path: CSV, TSV and other delimited text, JSON lines, Parquet, each also gzipped; a folder
        of such files with one schema, read as if their rows were in one file; a pattern
        (``part-*.parquet``), where no file or folder has that name; a research format; a directory
        written by `Interactions.save`. Or an object: a frame of pandas, polars or
        pyarrow; a scipy sparse matrix or a two-dimensional array (rows are users); a list of
        (user, item), (user, item, weight) or (user, item, weight, time).
    user, item, time, rating
        Names of columns (or positions from 0). Left out, they are found by the usual spellings,
        and `Interactions.notes` says which were taken. ``time=False`` reads no times.
    time_unit
        Unit of times that are numbers: "s", "ms", "us" or "ns". Left out, their size tells it.
    weight
        Column whose values become the matrix; without it every pair counts 1.
    session
        Column that groups events into sessions, in place of `user`. Events keep their order (by
        time where there is one, else as they came) and their repeats in `Interactions.sequences`.
    gap
        Cuts the events of a user into sessions where the pause is longer: seconds, or text such
        as "30m" or "1h". The sessions of user "ann" are "ann/1", "ann/2", ...
    min_rating
        Keeps only rows with at least this rating.
    labels
        A table with an item column and titles, genres, ...; rows are matched to the items.
    users, items
        Ids of the rows and columns of a matrix; positions when left out.
    separator, header, encoding
        How delimited text is written; found or UTF-8 when left out. A first line that may be the
        names of the columns or data is refused until `header` settles it. Numbers may have
        decimal commas where another character separates the fields.
    format
        "csv", "tsv", "jsonl", "parquet", "npz", "lightgcn", "multvae", "recbole", "movielens",
        "strong" or "weak", where the name of the file does not tell.
    on_bad
        "error" stops at the first bad row and names its line; "skip" leaves bad rows out, counts
        them by reason in `Interactions.notes` and logs a warning.

    Notes
    -----
    Ids are never changed: integers stay integers, text stays text, and "007" is text. Repeated
    pairs are merged: weights add up, the latest time stays. Times become seconds since 1970 (UTC)
    from seconds to nanoseconds (told by their size, which must be one unit for all), ISO text or
    datetimes. The matrix is of single precision, so weights lie between 1e-45 and 3e38.

    Examples
    --------
    >>> import equipoise as eq
    >>> import polars as pl
    >>> frame = pl.DataFrame(
    ...     {"user_id": [1, 1, 2, 2], "movieId": [10, 20, 10, 30], "rating": [5, 2, 4, 5]}
    ... )
    >>> data = eq.read(frame, min_rating=4)
    >>> data.items.tolist()
    [10, 30]
    >>> print(*data.notes, sep="\n")
    columns found by name: user = 'user_id', item = 'movieId', rating = 'rating'
    1 of 4 rows have a rating below 4
    >>> eq.read([("ann", "tea"), ("bob", "milk"), ("bob", "tea")]).history("bob")
    ['milk', 'tea']
    """
    options = Options(
        user=user,
        item=item,
        time=time,
        time_unit=time_unit,
        rating=rating,
        weight=weight,
        session=session,
        gap=gap,
        min_rating=min_rating,
        labels=labels,
        users=users,
        items=items,
        separator=separator,
        header=header,
        encoding=encoding,
        format=format,
        on_bad=on_bad,
    )
    if is_path(source):
        return _from_path(source, options)
    if sp.issparse(source) or isinstance(source, np.ndarray):
        return from_matrix(source, options)
    options.refuse(("users", "items"), "a table")
    return build(object_source(source), row_options(source, options), labels)


def _from_path(path: str | os.PathLike[str], options: Options) -> Interactions:
    if is_directory_of(path, KIND):
        options.refuse(
            (*COLUMNS, "min_rating", "labels", "format"), f"saved interactions ({path})"
        )
        return Interactions.load(path)
    options.refuse(("users", "items"), "a file")
    research = from_research(Path(path), options)
    if research is not None:
        return research
    return build(path_source(path, options), options, options.labels)
