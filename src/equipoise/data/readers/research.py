"""Read formats of published data, chosen by `format=` or recognised by name and content.

MovieLens, RecBole files, LightGCN adjacency lists, `.npz` arrays, and folders with a published
split, each part as `Interactions` over the same items.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.data.columns import id_column
from equipoise.data.ids import IdIndex
from equipoise.data.interactions import Interactions
from equipoise.data.read_options import COLUMNS, ReadOptions
from equipoise.data.readers.build import Log, factorize, gathered, to_interactions
from equipoise.data.readers.delimited import delimited_source, whole_numbers
from equipoise.data.readers.files import (
    STRONG,
    TITLES,
    WEAK,
    all_bytes,
    contents,
    existing_file,
    movielens_file,
)
from equipoise.data.readers.matrices import from_matrix
from equipoise.data.tables import (
    BadRows,
    Source,
    Table,
    bad_row,
    frame_source,
    row_of,
)
from equipoise.errors import DataError
from equipoise.runtime.machine import check_polars

RATINGS = ("user_id", "item_id", "rating", "timestamp")
KINDS = (
    "unknown Action Adventure Animation Children Comedy Crime Documentary Drama Fantasy Film-Noir "
    "Horror Musical Mystery Romance Sci-Fi Thriller War Western"
)
GENRES = KINDS.split()
U_ITEM = ("item_id", "title", "release_date", "video_release_date", "imdb_url", *GENRES)

MULTVAE = {
    "train": "train.csv",
    "valid_in": "validation_tr.csv",
    "valid_target": "validation_te.csv",
    "test_in": "test_tr.csv",
    "test_target": "test_te.csv",
}


def from_research(path: Path, kind: str, options: ReadOptions) -> Interactions:
    """Read a research format."""
    if kind in ("multvae", "strong", "weak"):
        options.refuse((*COLUMNS, "min_rating", "catalogue"), f"a {kind} folder")
        parts = {"multvae": read_multvae, "strong": read_strong, "weak": read_weak}[kind](path)
        other_parts = ", ".join(name for name in parts if name != "train")
        train = parts["train"]
        note = f"train part of a {kind} folder; readers.read_{kind} gives {other_parts} too"
        notes = [note, *train.notes]
        return Interactions(train.matrix, train.user_index, train.item_index, notes=notes)
    if kind == "npz":
        return _npz_interactions(existing_file(path), options)
    if kind == "lightgcn":
        return to_interactions(_adjacency(path, options), options)
    if kind == "recbole":
        return _recbole(path, options)
    return _movielens(path, options)


def _movielens(path: Path, options: ReadOptions) -> Interactions:
    """Read ratings, with titles and genres from the file beside them."""
    file = movielens_file(path) if path.is_dir() else path
    if file is None:
        raise DataError(f"{path} holds none of {', '.join(TITLES)}; give the path of a file")
    titles = file.parent / TITLES.get(file.name, "")
    if options.catalogue is None and titles.is_file():
        options = replace(options, catalogue=[_titles(titles, options)])
    if file.name.endswith(".csv"):
        return to_interactions(delimited_source(file, options), options)
    separator = options.separator or ("\t" if file.name.endswith("u.data") else "::")
    source = _without_header(file, separator, RATINGS, options)
    return to_interactions(source, options)


def _without_header(
    file: Path, separator: str, names: tuple[str, ...], options: ReadOptions
) -> Source:
    plain = replace(options, separator=separator, header=False, quote="")
    return delimited_source(file, plain).renamed(names)


def _titles(path: Path, options: ReadOptions) -> Source:
    if path.name == "movies.csv":
        return delimited_source(path, replace(options, header=None, separator=None))
    old = replace(options, encoding="latin-1")  # encoding of both older formats
    if path.name == "movies.dat":
        return _without_header(path, "::", ("item_id", "title", "genres"), old)
    source = _without_header(path, "|", U_ITEM, old)

    def load(names: list[str], ids: Collection[str]) -> Table:
        """Combine the 19 columns of flags into one column, as in later releases."""
        table = source.load(list(ids), [*(name for name in names if name != "genres"), *GENRES])
        flags = table.frame.select(GENRES).rows()
        genres = [
            "|".join(g for g, on in zip(GENRES, row, strict=True) if on == 1) for row in flags
        ]
        table.frame = table.frame.drop(GENRES).with_columns(pl.Series("genres", genres))
        return table

    return Source(source.name, ("item_id", "title", "genres", "release_date"), load)


def _recbole(path: Path, options: ReadOptions) -> Interactions:
    """Read a RecBole `.inter` file, with a catalogue from the `.item` file beside it."""
    if path.is_dir():
        inter_files = sorted(path.glob("*.inter"))
        if len(inter_files) != 1:
            raise DataError(f"{path} holds {len(inter_files)} .inter files; give the path of one")
        path = inter_files[0]
    source = _untyped(path, options)
    beside = path.with_name(path.name.removesuffix(".gz")).with_suffix(".item")
    if options.catalogue is None and beside.is_file():
        options = replace(options, catalogue=[_untyped(beside, options)])
    return to_interactions(source, options)


def _untyped(path: Path, options: ReadOptions) -> Source:
    """Open a RecBole file without the types in names such as `user_id:token`."""
    plain = replace(options, separator=options.separator or "\t", header=True, quote="")
    source = delimited_source(path, plain)
    return source.renamed(tuple(name.split(":")[0] for name in source.columns))


def _adjacency(path: Path, options: ReadOptions) -> Source:
    """Open an adjacency list: each line is a user, then the user's items."""
    values: list[npt.NDArray[np.int64]] = []
    numbers: list[int] = []
    skipped: Counter[str] = Counter()
    for number, line in enumerate(all_bytes(contents(path)).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = np.array(line.split(), dtype=np.int64)
        except (ValueError, OverflowError):
            raise DataError(
                f"{path}, line {number}: not a list of whole numbers; a LightGCN file has lines "
                "like '0 12 7'"
            ) from None
        if len(row) > 1:
            values.append(row)
            numbers.append(number)
        elif options.on_bad == "error":
            raise bad_row(f"{path}, line {number}", f"user {row[0]} has no items", "add items")
        else:
            skipped["the line names a user without items"] += 1
    if not values:
        raise DataError(f"{path} has no user with items; nothing can be read from it")
    lengths = np.array([len(row) - 1 for row in values])
    users = np.repeat(np.array([row[0] for row in values]), lengths)
    items = np.concatenate([row[1:] for row in values])
    lines = np.repeat(np.array(numbers), lengths)
    frame = pl.DataFrame({"user": users, "item": items})
    return frame_source(str(path), frame, lambda row: f"{path}, line {lines[row]}", skipped)


def _npz_interactions(path: Path, options: ReadOptions) -> Interactions:
    """Read `users` and `items`, or `items` and `offsets` of sessions, or a sparse matrix."""
    arrays = _load_arrays(path)
    if {"format", "shape", "data"} <= set(arrays):
        try:
            matrix = sp.load_npz(path)
        except (ValueError, KeyError, NotImplementedError) as error:
            raise DataError(f"{path} is not a complete sparse matrix: {error}") from error
        return from_matrix(matrix, options, str(path))
    if {"items", "offsets"} <= set(arrays):
        return _sessions(path, arrays, options)
    users, items = _pair_arrays(path, arrays)
    more = {
        name: pl.Series(array)
        for name, array in arrays.items()
        if name not in ("users", "items") and array.shape == users.shape
    }
    frame = pl.DataFrame({"users": users, "items": items, **more})
    return to_interactions(frame_source(str(path), frame), options)


def _sessions(
    path: Path, arrays: dict[str, npt.NDArray[Any]], options: ReadOptions
) -> Interactions:
    """Session s is ``items[offsets[s]:offsets[s + 1]]``; the sessions are numbered from 0."""
    items, offsets = arrays["items"], arrays["offsets"]
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) < 2:
        raise DataError(f"{path}: offsets must be whole numbers, one more than sessions")
    ends = offsets.astype(np.int64)  # unsigned numbers have no negative difference
    lengths = ends[1:] - ends[:-1]
    if offsets[0] != 0 or offsets[-1] != len(items) or (lengths < 0).any():
        raise DataError(f"{path}: offsets must rise from 0 to the number of items, {len(items):,}")
    empty = np.flatnonzero(lengths == 0)
    if len(empty) and options.on_bad == "error":
        raise bad_row(f"{path}, session {empty[0]}", "the session has no items", "remove it")
    frame = pl.DataFrame({"session": np.repeat(np.arange(len(lengths)), lengths), "item": items})
    skipped = {"the session has no items": len(empty)} if len(empty) else {}
    source = frame_source(str(path), frame, skipped=skipped)
    return to_interactions(source, replace(options, session="session"))


def read_strong(folder: str | os.PathLike[str]) -> dict[str, Interactions]:
    """Read a split over users: train, valid_in, valid_target, test_in and test_target.

    The files are `.npz` pairs of `users` and `items`. All parts share the items of all files, and
    the rows of a history (`*_in`) and its targets are the same users.
    """
    check_polars()
    root = Path(folder)
    pairs = {name: _npz_pairs(root / f"{name}.npz") for group in STRONG for name in group}
    return _assembled(root, pairs, STRONG)


def read_weak(folder: str | os.PathLike[str]) -> dict[str, Interactions]:
    """Read a split within users: train and test over the same users and items.

    The files are `.npz` pairs, or LightGCN adjacency lists `train.txt` and `test.txt`. A third
    file `valid_subset_of_train.npz`, where there is one, is returned too.
    """
    check_polars()
    root = Path(folder)
    names = [name for name in WEAK if name in WEAK[:2] or (root / f"{name}.npz").is_file()]
    pairs = {}
    for name in names:
        listed = root / f"{name}.txt"
        # Published test files list users without test items, whose row stays empty.
        pairs[name] = (
            _adjacency(listed, ReadOptions(on_bad="skip")).load(["user", "item"], []).frame
            if listed.is_file()
            else _npz_pairs(root / f"{name}.npz")
        )
    return _assembled(root, pairs, (tuple(names),))


def read_multvae(folder: str | os.PathLike[str]) -> dict[str, Interactions]:
    """Read a `pro_sg` folder of the Mult-VAE authors, with the parts named as in `read_strong`.

    The items are the raw ids of `unique_sid.txt` in its order, so column s is the file's item s.
    """
    check_polars()
    root = Path(folder)
    listed = existing_file(root / "unique_sid.txt").read_text(encoding="utf-8").splitlines()
    items = IdIndex(whole_numbers(pl.Series(listed, dtype=pl.String)).to_numpy(), "item")
    pairs = {}
    for name, file in MULTVAE.items():
        path = root / file
        source = delimited_source(path, ReadOptions(separator=",", header=True))
        if not {"uid", "sid"} <= set(source.columns):
            raise DataError(f"{path} needs the columns uid and sid, found {source.columns}")
        table = source.load(["uid", "sid"], [])
        if not table.frame.height:
            raise DataError(f"{path} has no rows; nothing can be read from it")
        bad = BadRows(table, "error")
        pairs[name] = _checked_pairs(bad, "uid", "sid")
        places = pairs[name]["item"]
        outside = ((places < 0) | (places >= len(items))).to_numpy()
        bad.refuse(outside, "sid", f"is not a line of unique_sid.txt ({len(items):,} lines)")
    return _assembled(root, pairs, STRONG, items)


def _load_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Load all arrays; nothing is ever unpickled."""
    try:
        with path.open("rb") as stream:
            stored = np.load(stream, allow_pickle=False)
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise DataError(f"{path} is a single array; give an .npz with users and items")
            with stored:
                return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, KeyError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not a complete .npz file; fetch it again ({error})") from error


def _pair_arrays(
    path: Path, arrays: dict[str, npt.NDArray[Any]]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the arrays `users` and `items`, checked."""
    if not {"users", "items"} <= set(arrays):
        listed = ", ".join(arrays) or "nothing"
        raise DataError(f"{path} holds {listed}; it needs the arrays users and items")
    users, items = arrays["users"], arrays["items"]
    if users.ndim != 1 or users.shape != items.shape:
        raise DataError(f"{path}: users {users.shape} and items {items.shape} need one shape")
    return users, items


def _npz_pairs(path: Path) -> pl.DataFrame:
    users, items = _pair_arrays(path, _load_arrays(existing_file(path)))
    frame = pl.DataFrame({"users": users, "items": items})
    return _checked_pairs(BadRows(Table(frame, row_of(str(path))), "error"), "users", "items")


def _checked_pairs(bad: BadRows, user: str, item: str) -> pl.DataFrame:
    frame = bad.table.frame
    users, items = id_column(frame[user], "user", bad)[0], id_column(frame[item], "item", bad)[0]
    return pl.DataFrame({"user": users, "item": items})


def _assembled(
    root: Path,
    pairs: dict[str, pl.DataFrame],
    groups: tuple[tuple[str, ...], ...],
    items: IdIndex | None = None,
) -> dict[str, Interactions]:
    """Make the matrices; the parts of a group share their users, all parts share the items.

    With an index of items, the items in `pairs` are positions, else ids.
    """
    coded = items is not None
    if items is None:
        items = IdIndex(
            _together(root, pairs, tuple(pairs), "item").unique().sort().to_numpy(), "item"
        )
    out: dict[str, Interactions] = {}
    for group in groups:
        codes, ids = factorize(_together(root, pairs, group, "user"))
        users = IdIndex(ids, "user")
        start = 0
        for name in group:
            column = pairs[name]["item"].to_numpy()
            places = column if coded else np.searchsorted(items.values, column)
            rows = codes[start : start + len(column)]
            start += len(column)
            shape = (len(users), len(items))
            matrix, _, repeats = gathered(Log(rows, places.astype(np.int32)), shape)
            notes = [f"merged {repeats:,} repeated pairs"] if repeats else []
            out[name] = Interactions(matrix, users, items, notes=notes)
    return out


def _together(
    root: Path, pairs: dict[str, pl.DataFrame], group: tuple[str, ...], axis: str
) -> pl.Series:
    """Concatenate the ids of the parts, which must have one type."""
    columns = {name: pairs[name][axis] for name in group}
    first = group[0]
    for name, column in columns.items():
        if column.dtype != columns[first].dtype:
            kinds = f"{columns[first].dtype} in {first} and {column.dtype} in {name}"
            raise DataError(f"{root}: {axis} ids are {kinds}; write the parts with one type")
    return pl.concat(list(columns.values()))
