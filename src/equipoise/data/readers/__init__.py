"""Read files, frames, matrices and research formats into `Interactions`.

`read` opens a `Source` (here for paths, in `tables` for objects), whose columns are chosen and
checked (`columns`) and built into a matrix (`build`). Matrices and the formats of published data
have separate modules.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from equipoise.data.catalogue import is_several, object_catalogue
from equipoise.data.interactions import KIND, Interactions
from equipoise.data.read_options import (
    COLUMNS,
    RESEARCH,
    Column,
    OnBad,
    OptionalColumn,
    ReadOptions,
    TimeUnit,
)
from equipoise.data.readers.baskets import looks_like_baskets, read_baskets
from equipoise.data.readers.build import to_interactions
from equipoise.data.readers.delimited import delimited_parts
from equipoise.data.readers.files import (
    check_one_kind,
    excel_parts,
    is_blank,
    is_utf8,
    json_parts,
    parquet_parts,
    part_notes,
    recognised,
    table_kind,
)
from equipoise.data.readers.folders import TableFile, part_files, with_constants
from equipoise.data.readers.matrices import from_matrix
from equipoise.data.readers.research import from_research, read_multvae, read_strong, read_weak
from equipoise.data.storage import is_directory_of
from equipoise.data.tables import Source, Table, object_source, row_options
from equipoise.errors import DataError, SettingError
from equipoise.runtime.machine import check_polars

__all__ = ["read", "read_multvae", "read_strong", "read_weak"]

LONGEST = 200  # characters of a path shown in a message
OPENERS = {
    "parquet": parquet_parts,
    "jsonl": json_parts,
    "excel": excel_parts,
    "text": delimited_parts,
}


def read(
    source: Any,
    *,
    user: Column = None,
    item: Column = None,
    time: OptionalColumn = None,
    time_unit: TimeUnit | None = None,
    time_format: str | None = None,
    rating: OptionalColumn = None,
    weight: Column = None,
    type: OptionalColumn = None,
    session: Column = None,
    gap: float | str | None = None,
    min_rating: float | None = None,
    catalogue: Any = None,
    catalogue_id: Column = None,
    catalogue_types: Mapping[str, str] | None = None,
    title: Column = None,
    ids: Literal["text"] | None = None,
    users: Any = None,
    items: Any = None,
    separator: str | None = None,
    header: bool | None = None,
    quote: str | None = None,
    escape: str | None = None,
    encoding: str = "utf-8",
    sheet: str | None = None,
    format: str | None = None,
    on_bad: OnBad = "error",
) -> Interactions:
    r"""Read interactions from a file, folder, frame, matrix or list of user-item pairs.

    Parameters
    ----------
    source
        A path: CSV, TSV and other delimited text, JSON lines, Parquet, each also gzipped; Excel
        (with the extra `excel`); a folder of such files with one schema, read as if their rows
        were in one file; a pattern (``part-*.parquet``), where no file or folder has that name; a
        research format; a directory written by `Interactions.save`. Or an object: a frame of
        pandas, polars or pyarrow; a scipy sparse matrix or a two-dimensional array (rows are
        users); a list of (user, item), (user, item, weight) or (user, item, weight, time), or of
        dictionaries.
    user, item, time, rating
        Names of columns (or positions from 0). By default they are recognised by usual names, and
        `Interactions.notes` reports which. ``time=False`` reads no times.
    time_unit
        Unit of times that are numbers: "s", "ms", "us" or "ns"; by default guessed from their
        size.
    time_format
        Format of times that are neither numbers nor ISO dates, such as "%m/%d/%Y %H:%M"; or of
        dates in digits, such as "%d%m%y" for 010124. Leading zeros that a column of numbers has
        lost are restored if the format has a fixed number of digits.
    weight
        Column whose values, summed for each pair, become the matrix; by default every pair
        counts 1. A negative weight is a return: it is subtracted, and a pair with nothing left
        has no value in the matrix.
    type
        Column with the type of each event, such as "view" or "buy", for `Signals`. By default a
        column with a usual name (event, event_type, action, type); False reads none.
    session
        Column that groups events into sessions, in place of `user`. Events are ordered by time if
        there is one, else as in the table.
    gap
        Longest pause within a session: seconds, or text such as "30m" or "1h". Events of a user
        are cut at longer pauses; the sessions of user "ann" are "ann/1", "ann/2", ...
    min_rating
        Keeps only rows with at least this rating.
    catalogue
        What is known about the items: a table with an item column and titles, genres, prices,
        ..., or a list of tables, joined by their item columns. Rows are matched to the items;
        those of other items become `Interactions.new_items`. Or a dictionary from items to
        titles. `quote` and `escape` also apply to a file; its separator and header are detected,
        and `encoding` is used if it is not UTF-8.
    catalogue_id
        Its column with the item ids; by default recognised by usual names.
    catalogue_types
        What columns of the catalogue are, where reading would tell otherwise: "category", "list",
        "text", "number", "date", a form of dates such as "%d/%m/%Y", "vector", or "skip" to leave
        one out, as in ``{"genres": "list"}``. `Interactions.attributes` has what was decided.
    title
        Its column that is the title; by default recognised by its name or content.
    ids
        "text" reads ids as text even if all of them are digits. Otherwise ids that are all
        integers are read as integers; "007" is text.
    users, items
        Ids of the rows and columns of a matrix; by default positions.
    separator, header, encoding
        Format of delimited text; by default detected, and UTF-8. If the first line may be a header
        or data, that is an error until `header` is given. Numbers may have decimal commas if
        another character separates the fields.
    quote, escape
        The mark that encloses fields, by default ``'"'``, and ``""`` for none; and the character
        that escapes a mark within such a field, if marks are not doubled. A backslash is detected
        if it makes every mark correct. A mark that is never closed spoils only its line. So does,
        unless `quote` is given, one that encloses five or more complete rows.
    sheet
        Sheet of an Excel workbook; by default the first.
    format
        "csv", "tsv", "jsonl", "parquet", "xlsx", "npz", "lightgcn", "multvae", "recbole",
        "movielens", "strong" or "weak", if the file name does not show it. "baskets": each line
        is a basket, its item ids separated by commas, semicolons, tabs or blanks; the user is the
        line number.
    on_bad
        "error" stops at the first bad row and names its line; "skip" leaves bad rows out, counts
        them by reason in `Interactions.notes` and logs a warning.

    Notes
    -----
    Combined data (`Interactions.union`, `update`, a folder) have ids of the type of the first.
    Repeated pairs have one value in the matrix, and every row is kept with its time, weight and
    type in `Interactions.events`. Times become seconds since 1970 (UTC). The matrix has single
    precision, so weights must lie between 1e-45 and 3e38.

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
    left out 1 of 4 rows that have a rating below 4
    >>> eq.read([("ann", "tea"), ("bob", "milk"), ("bob", "tea")]).history("bob")
    ['milk', 'tea']
    """
    settings = {
        name: value for name, value in locals().items() if name not in ("source", "catalogue")
    }
    check_polars()
    options = open_catalogue(ReadOptions(**settings), catalogue)
    if is_path(source):
        return _from_path(source, options)
    tables = catalogue if is_several(catalogue) else [catalogue]
    options.refuse_text("an object in memory", catalogue_is_file=any(map(is_path, tables)))
    if isinstance(source, np.ndarray) and source.dtype.names is not None:  # named fields
        source = {name: source[name] for name in source.dtype.names}
    if sp.issparse(source) or isinstance(source, np.ndarray):
        return from_matrix(source, options)
    options.refuse(("users", "items"), "a table")
    return to_interactions(object_source(source), row_options(source, options))


def open_catalogue(options: ReadOptions, catalogue: Any) -> ReadOptions:
    """Return the options with the catalogue opened, if there is one."""
    if catalogue is not None:
        return replace(options, catalogue=catalogue_sources(catalogue, options))
    for name in ("catalogue_id", "catalogue_types"):
        if getattr(options, name) is not None:
            raise SettingError(f"{name}= is about columns of the catalogue; pass catalogue= too")
    return options


def catalogue_sources(catalogue: Any, options: ReadOptions) -> list[Source]:
    """Open the tables of a catalogue: paths, tables in memory, a mapping from items to titles."""
    if is_path(catalogue):
        return [table_source(catalogue, catalogue_options(os.fspath(catalogue), options))]
    if is_several(catalogue):
        return [source for table in catalogue for source in catalogue_sources(table, options)]
    return object_catalogue(catalogue)


def catalogue_options(path: str, options: ReadOptions) -> ReadOptions:
    """Return the options for the file of a catalogue, whose format may differ from the events'."""
    plain = replace(options, separator=None, header=None, sheet=None, format=None)
    files = part_files(path) or [TableFile(path)]
    if options.encoding != "utf-8" and all(is_utf8(file.path) for file in files):
        return replace(plain, encoding="utf-8")
    return plain


def is_path(source: object) -> bool:
    return isinstance(source, (str, os.PathLike))


def _from_path(path: str | os.PathLike[str], options: ReadOptions) -> Interactions:
    _check_path(path)
    place = Path(path)
    if place.is_dir() and is_directory_of(place, KIND):
        inapplicable = (
            "min_rating",
            "catalogue",
            "catalogue_id",
            "catalogue_types",
            "title",
            "users",
            "items",
            "format",
        )
        options.refuse((*COLUMNS, *inapplicable), f"saved interactions ({path})")
        return Interactions.load(path)
    options.refuse(("users", "items"), "a file")
    if options.format == "baskets":
        return read_baskets(place, options)
    try:
        kind = options.format or recognised(place)
        if kind in RESEARCH:
            return from_research(place, kind, options)
        return to_interactions(table_source(path, options), options)
    except DataError as error:
        is_text = (
            options.format in (None, "csv", "tsv")
            and place.is_file()
            and table_kind(place, options) == "text"
        )
        if not (is_text and looks_like_baskets(place, options.encoding)):
            raise
        hint = "if each line is a basket of items, pass format='baskets'"
        raise DataError(f"{error}; {hint}") from error


def _check_path(path: str | os.PathLike[str]) -> None:
    """Raise if this cannot be the path of a file or folder."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise DataError(f"a path must be text, got {text!r}; decode it with os.fsdecode(...)")
    if not text:
        raise DataError("the path is empty; give the path of a file or a folder")
    if "://" in text and not Path(text).exists():
        raise DataError(
            f"{text} is an address, and eq.read reads local files; download it first, or read it "
            "with equipoise.cluster.read"
        )
    try:
        os.stat(text)
    except (FileNotFoundError, NotADirectoryError):
        return  # a pattern, or an error that names a similar file
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        shown = text if len(text) < LONGEST else f"{text[:LONGEST]}..."
        raise DataError(f"{shown!r} cannot be read: {reason}; check the path") from error


def table_source(path: str | os.PathLike[str], options: ReadOptions) -> Source:
    """Open a table file, a folder of parts, or the files that match a pattern."""
    text = os.fspath(path)
    files = None if os.path.isfile(text) else part_files(text)
    if files is None:
        return OPENERS[table_kind(Path(text), options)](text, [Path(text)], options)
    return _parts(text, files, options)


def _parts(name: str, files: list[TableFile], options: ReadOptions) -> Source:
    """Concatenate files of one format."""
    full = [file for file in files if not is_blank(file.path)]
    notes = part_notes(name, len(files), len(full))
    source = parts_source(name, full, options)

    def load(names: list[str], ids: Collection[str]) -> Table:
        table = source.loader(names, ids)
        return replace(table, notes=[*notes, *table.notes])

    return replace(source, loader=load)


def parts_source(name: str, files: Sequence[TableFile], options: ReadOptions) -> Source:
    """Open files that are not blank as one table."""
    kinds = [table_kind(file.path, options) for file in files]
    check_one_kind([file.name for file in files], kinds)
    source = OPENERS[kinds[0]](name, [file.path for file in files], options)
    return with_constants(source, [file.constants for file in files])
