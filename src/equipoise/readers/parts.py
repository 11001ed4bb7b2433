"""Folders that hold a published split: every part as `Interactions` over the same items."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.errors import DataError
from equipoise.ids import IdIndex
from equipoise.interactions import Interactions
from equipoise.readers.counting import factorize, pairs_to_csr
from equipoise.readers.delimited import delimited_source, whole_numbers
from equipoise.readers.npz import load_arrays, pair_arrays
from equipoise.readers.opening import existing_file
from equipoise.readers.options import Options
from equipoise.readers.table import BadRows, Table, row_of
from equipoise.readers.values import id_column

STRONG = (("train",), ("valid_in", "valid_target"), ("test_in", "test_target"))
WEAK = (("train", "test", "valid_subset_of_train"),)
MULTVAE = {
    "train": "train.csv",
    "valid_in": "validation_tr.csv",
    "valid_target": "validation_te.csv",
    "test_in": "test_tr.csv",
    "test_target": "test_te.csv",
}


@dataclass(frozen=True)
class Part:
    """The pairs of one file, as raw ids."""

    users: pl.Series
    items: pl.Series


def read_strong(folder: str | os.PathLike[str]) -> dict[str, Interactions]:
    """Read a split over users: train, valid_in, valid_target, test_in and test_target.

    The files are `.npz` pairs of `users` and `items`. All parts share the items of all files, and
    the rows of a history (`*_in`) and its targets are the same users.
    """
    root = Path(folder)
    parts = {name: _npz_part(root / f"{name}.npz") for group in STRONG for name in group}
    return _assembled(root, parts, STRONG, _all_items(root, parts))


def read_weak(folder: str | os.PathLike[str]) -> dict[str, Interactions]:
    """Read a split within users: train and test over the same users and items.

    The files are `.npz` pairs, or LightGCN adjacency lists `train.txt` and `test.txt`. A third
    file `valid_subset_of_train.npz`, where there is one, is returned too.
    """
    root = Path(folder)
    names = list(WEAK[0][:2])
    names += [name for name in WEAK[0][2:] if (root / f"{name}.npz").is_file()]
    parts = {name: _weak_part(root, name) for name in names}
    return _assembled(root, parts, (tuple(names),), _all_items(root, parts))


def read_multvae(folder: str | os.PathLike[str]) -> dict[str, Interactions]:
    """Read a `pro_sg` folder of the Mult-VAE authors, with the parts named as in `read_strong`.

    The items are the raw ids of `unique_sid.txt` in its order, so column s is the file's item s.
    """
    root = Path(folder)
    listed = existing_file(root / "unique_sid.txt").read_text(encoding="utf-8").splitlines()
    items = IdIndex(whole_numbers(pl.Series(listed, dtype=pl.String)).to_numpy(), "item")
    parts = {}
    for name, file in MULTVAE.items():
        path = existing_file(root / file)
        source = delimited_source(path, Options(separator=",", header=True))
        if not {"uid", "sid"} <= set(source.columns):
            raise DataError(f"{path} needs the columns uid and sid, found {source.columns}")
        table = source.load(["uid", "sid"], [])
        bad = BadRows(table, "error")
        users, _ = id_column(table.frame["uid"], "user", bad)
        places, _ = id_column(table.frame["sid"], "item", bad)
        outside = ((places < 0) | (places >= len(items))).to_numpy()
        bad.refuse(outside, "sid", f"is no line of unique_sid.txt ({len(items):,} lines)")
        parts[name] = Part(users, places)
    return _assembled(root, parts, STRONG, items, coded=True)


def part_names(folder: Path) -> set[str]:
    """Return the names of the parts that a folder holds as `.npz` or adjacency lists."""
    known = {name for groups in (STRONG, WEAK) for group in groups for name in group}
    present = {name for name in known if (folder / f"{name}.npz").is_file()}
    lists = {name for name in ("train", "test") if (folder / f"{name}.txt").is_file()}
    return present or (lists if len(lists) == 2 else set())


def _npz_part(path: Path) -> Part:
    users, items = pair_arrays(path, load_arrays(existing_file(path)))
    frame = pl.DataFrame({"users": users, "items": items})
    bad = BadRows(Table(frame, row_of(str(path))), "error")
    return Part(
        id_column(frame["users"], "user", bad)[0], id_column(frame["items"], "item", bad)[0]
    )


def _weak_part(root: Path, name: str) -> Part:
    if not (root / f"{name}.txt").is_file():
        return _npz_part(root / f"{name}.npz")
    from equipoise.readers.research import lightgcn_source

    # Published test files list users without test items; here such a row is simply empty.
    source = lightgcn_source(root / f"{name}.txt", Options(on_bad="skip"))
    frame = source.load(["user", "item"], []).frame
    return Part(frame["user"], frame["item"])


def _all_items(root: Path, parts: dict[str, Part]) -> IdIndex:
    items = {name: part.items for name, part in parts.items()}
    distinct = _concat(root, items, "item").unique().sort()
    return IdIndex(distinct.to_numpy(), "item")


def _concat(root: Path, columns: dict[str, pl.Series], axis: str) -> pl.Series:
    """Put the ids of the parts one after another; they must be of one type."""
    first = next(iter(columns))
    for name, column in columns.items():
        if column.dtype != columns[first].dtype:
            kinds = f"{columns[first].dtype} in {first} and {column.dtype} in {name}"
            raise DataError(f"{root}: {axis} ids are {kinds}; write the parts with one type")
    return pl.concat(list(columns.values()))


def _assembled(
    root: Path,
    parts: dict[str, Part],
    groups: tuple[tuple[str, ...], ...],
    items: IdIndex,
    *,
    coded: bool = False,
) -> dict[str, Interactions]:
    """Make the matrices; the parts of a group have the same users in the same rows."""
    out: dict[str, Interactions] = {}
    for group in groups:
        codes, ids = factorize(_concat(root, {name: parts[name].users for name in group}, "user"))
        users = IdIndex(ids, "user")
        start = 0
        for name in group:
            part = parts[name]
            rows = codes[start : start + len(part.users)]
            start += len(part.users)
            places = part.items.to_numpy() if coded else _places(items.values, part.items)
            shape = (len(users), len(items))
            pairs = pairs_to_csr(rows, places.astype(np.int32), shape, None, None)
            notes = [f"merged {pairs.repeats:,} repeated pairs"] if pairs.repeats else []
            out[name] = Interactions(pairs.matrix, users, items, notes=notes)
    return out


def _places(sorted_ids: npt.NDArray[Any], wanted: pl.Series) -> npt.NDArray[np.int64]:
    return np.searchsorted(sorted_ids, wanted.to_numpy())
