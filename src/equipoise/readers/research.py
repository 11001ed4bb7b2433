"""Formats of the research world, chosen by `format=` or recognised by name and content."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.errors import DataError
from equipoise.interactions import Interactions
from equipoise.readers.build import build
from equipoise.readers.delimited import delimited_source
from equipoise.readers.movielens import movielens, movielens_file
from equipoise.readers.npz import npz_interactions
from equipoise.readers.opening import contents, existing_file, first_bytes
from equipoise.readers.options import COLUMNS, Options
from equipoise.readers.parts import part_names, read_multvae, read_strong, read_weak
from equipoise.readers.table import Source, Table, bad_row

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
