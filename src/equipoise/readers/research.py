"""The layouts in which MovieLens has been published: `u.data`, `ratings.dat`, `ratings.csv`.

Folders that hold a published split: every part as `Interactions` over the same items.

Formats of the research world, chosen by `format=` or recognised by name and content.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.errors import DataError
from equipoise.ids import IdIndex
from equipoise.interactions import Interactions
from equipoise.readers.build import build, factorize, pairs_to_csr
from equipoise.readers.delimited import delimited_source, whole_numbers
from equipoise.readers.matrices import load_arrays, npz_interactions, pair_arrays
from equipoise.readers.opening import contents, existing_file, first_bytes
from equipoise.readers.options import COLUMNS, BadRows, Options, Source, Table, bad_row, row_of
from equipoise.readers.values import id_column

TITLES = {"u.data": "u.item", "ratings.dat": "movies.dat", "ratings.csv": "movies.csv"}


FIELDS = ("user_id", "item_id", "rating", "timestamp")


GENRES = (
    "unknown Action Adventure Animation Children Comedy Crime Documentary Drama Fantasy Film-Noir "
    "Horror Musical Mystery Romance Sci-Fi Thriller War Western"
)


U_ITEM = ("item_id", "title", "release_date", "video_release_date", "imdb_url", *GENRES.split())


def movielens_file(path: Path) -> Path | None:
    """Return the file of ratings that a path is or holds, if it is laid out as MovieLens."""
    if path.is_dir():
        present = [name for name, titles in TITLES.items() if (path / name).is_file()]
        known = [
            name for name in present if name != "ratings.csv" or (path / TITLES[name]).is_file()
        ]
        return path / known[0] if len(known) == 1 else None
    name = path.name
    if name not in TITLES or not path.is_file():
        return None
    if name == "ratings.csv":
        return path if (path.parent / TITLES[name]).is_file() and _has_movies(path) else None
    return path


def _has_movies(path: Path) -> bool:
    return b"movieId" in first_bytes(path, 200)


def movielens(path: Path, options: Options) -> Interactions:
    """Read ratings, with titles and genres from the file beside them."""
    file = movielens_file(path) if path.is_dir() else existing_file(path)
    if file is None:
        raise DataError(f"{path} holds none of {', '.join(TITLES)}; give the path of a file")
    labels: Any = options.labels
    titles = file.parent / TITLES.get(file.name, "")
    if labels is None and titles.is_file():
        labels = _titles(titles, options)
    if file.name.endswith(".csv"):
        return build(delimited_source(file, options), options, labels)
    separator = options.separator or ("\t" if file.name.endswith("u.data") else "::")
    plain = replace(options, separator=separator, header=False)
    source = delimited_source(file, plain, quotes=False)
    if len(source.columns) != len(FIELDS):
        raise DataError(f"{file} should have 4 columns, {', '.join(COLUMNS)}; check the file")
    return build(_named(source, FIELDS), options, labels)


def _titles(path: Path, options: Options) -> Source:
    plain = replace(options, header=None, separator=None, labels=None)
    if path.name == "movies.csv":
        return delimited_source(path, plain)
    # Both older files are Latin-1 and have no header.
    if path.name == "movies.dat":
        old = replace(plain, separator="::", header=False, encoding="latin-1")
        return _named(delimited_source(path, old, quotes=False), ("item_id", "title", "genres"))
    old = replace(plain, separator="|", header=False, encoding="latin-1")
    return _with_genres(_named(delimited_source(path, old, quotes=False), U_ITEM))


def _named(source: Source, names: tuple[str, ...]) -> Source:
    """Give the columns of a file without a header their names."""
    if len(names) != len(source.columns):
        raise DataError(f"{source.name} should have {len(names)} columns; check the file")
    return source.renamed(names)


def _with_genres(source: Source) -> Source:
    """Turn the 19 columns of flags into one column, as the later releases have it."""
    kinds = GENRES.split()

    def load(ids: Sequence[str], others: Sequence[str]) -> Table:
        table = source.load(ids, [*(name for name in others if name != "genres"), *kinds])
        flags = table.frame.select(kinds).to_numpy()
        genres = [
            "|".join(g for g, on in zip(kinds, row, strict=True) if on == 1) for row in flags
        ]
        table.frame = table.frame.drop(kinds).with_columns(pl.Series("genres", genres))
        return table

    return Source(source.name, ("item_id", "title", "genres", "release_date"), load)


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


ADJACENCY = re.compile(rb"\d+( \d+)*\s*")


def from_research(path: Path, options: Options) -> Interactions | None:
    """Read a research format, or return None where the path holds none."""
    kind = options.format or recognised(path)
    if kind in ("multvae", "strong", "weak"):
        options.refuse((*COLUMNS, "min_rating", "labels"), f"a {kind} folder")
        whole = {"multvae": read_multvae, "strong": read_strong, "weak": read_weak}[kind](path)
        others = ", ".join(name for name in whole if name != "train")
        notes = [f"train part of a {kind} folder; readers.read_{kind} gives {others} too"]
        train = whole["train"]
        return Interactions(train.matrix, train.user_index, train.item_index, notes=notes)
    if kind == "npz":
        return npz_interactions(existing_file(path), options)
    if kind == "lightgcn":
        return build(lightgcn_source(existing_file(path), options), options, options.labels)
    if kind == "recbole":
        return recbole(path, options)
    if kind == "movielens":
        return movielens(path, options)
    return None


def recognised(path: Path) -> str | None:
    """Return the research format of a file or folder, or None."""
    if path.is_dir():
        return _folder_kind(path)
    if not path.is_file():
        return None
    name = path.name.removesuffix(".gz")
    if name.endswith(".npz"):
        return "npz"
    if name.endswith(".inter"):
        return "recbole"
    if name.endswith(".txt") and _looks_adjacent(first_bytes(path)):
        return "lightgcn"
    return "movielens" if movielens_file(path) == path else None


def _folder_kind(folder: Path) -> str | None:
    if (folder / "unique_sid.txt").is_file() and (folder / "train.csv").is_file():
        return "multvae"
    present = part_names(folder)
    if {"train", "valid_in", "test_in"} <= present:
        return "strong"
    if {"train", "test"} <= present:
        return "weak"
    if len(list(folder.glob("*.inter"))) == 1:
        return "recbole"
    return "movielens" if movielens_file(folder) else None


def _looks_adjacent(sample: bytes) -> bool:
    """Whether the lines are whole numbers between single blanks, not all equally many."""
    lines = sample.split(b"\n")[:50]
    lines = [line for line in (lines[:-1] if len(lines) > 1 else lines) if line.strip()]
    counts = {len(line.split()) for line in lines}
    return len(counts) > 1 and all(ADJACENCY.fullmatch(line) for line in lines)


def lightgcn_source(path: Path, options: Options) -> Source:
    """Open an adjacency list: each line is a user and then the items of that user."""
    users, items, lines, lonely = _adjacency(path, options)
    frame = pl.DataFrame({"user": users, "item": items})
    reason = "the line names a user without items"

    def load(ids: Sequence[str], others: Sequence[str]) -> Table:
        skipped = {reason: lonely} if lonely else {}
        chosen = frame.select([*ids, *others])
        return Table(chosen, lambda row: f"{path}, line {lines[row]}", skipped)

    return Source(str(path), ("user", "item"), load)


def _adjacency(
    path: Path, options: Options
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    data = contents(path)
    text = data if isinstance(data, bytes) else data.read_bytes()
    values: list[npt.NDArray[np.int64]] = []
    numbers: list[int] = []
    lonely = 0
    for number, line in enumerate(text.split(b"\n"), 1):
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
            lonely += 1
    if not values:
        raise DataError(f"{path} has no user with items; nothing can be read from it")
    lengths = np.array([len(row) - 1 for row in values])
    users = np.repeat(np.array([row[0] for row in values]), lengths)
    items = np.concatenate([row[1:] for row in values])
    return users, items, np.repeat(np.array(numbers), lengths), lonely


def recbole(path: Path, options: Options) -> Interactions:
    """Read a RecBole `.inter` file, with labels from the `.item` file beside it."""
    if path.is_dir():
        found = sorted(path.glob("*.inter"))
        if len(found) != 1:
            raise DataError(f"{path} holds {len(found)} .inter files; give the path of one")
        path = found[0]
    plain = replace(options, separator=options.separator or "\t", header=True)
    source = _untyped(delimited_source(existing_file(path), plain, quotes=False))
    labels: Any = options.labels
    beside = path.with_name(path.name.removesuffix(".gz")).with_suffix(".item")
    if labels is None and beside.is_file():
        labels = _untyped(delimited_source(beside, plain, quotes=False))
    return build(source, options, labels)


def _untyped(source: Source) -> Source:
    """Drop the type from names such as `user_id:token`."""
    return source.renamed(tuple(name.split(":")[0] for name in source.columns))
