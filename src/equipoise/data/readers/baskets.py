"""Read baskets, one per line: a line lists the items of a basket; the user is the line number."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from equipoise.data.columns import spelled_like
from equipoise.data.interactions import Interactions
from equipoise.data.read_options import COLUMNS, ReadOptions
from equipoise.data.readers.build import to_interactions
from equipoise.data.readers.delimited import LOOK, SEPARATORS, whole_numbers
from equipoise.data.readers.files import SAMPLE, all_bytes, first_bytes, text_contents
from equipoise.data.tables import Source, Table
from equipoise.errors import DataError

# Options about columns, which a line of items does not have.
REFUSED = (*(name for name in COLUMNS if name != "ids"), "min_rating", "header", "sheet")


def read_baskets(path: Path, options: ReadOptions) -> Interactions:
    """Read a file whose lines are baskets."""
    options.refuse(REFUSED, f"baskets ({path})")
    return to_interactions(
        _basket_source(path, options), replace(options, user="user", item="item")
    )


def _basket_source(path: Path, options: ReadOptions) -> Source:
    """Open the baskets as a table of line numbers and items."""
    lines = _text(path, options.encoding).removesuffix("\n").split("\n")
    separator = options.separator or basket_separator(lines)
    baskets = []
    for number, line in enumerate(lines, 1):
        try:
            baskets.append(items_of_line(line, separator, options.quote, options.escape))
        except csv.Error as error:
            raise DataError(
                f"{path}, line {number}: {error}; correct it, or pass quote='' if no "
                "marks enclose the items"
            ) from error
    sizes = np.array([len(basket) for basket in baskets])
    if not sizes.any():
        raise DataError(f"{path} has no basket with items; nothing can be read from it")
    line_numbers = np.repeat(np.arange(1, len(lines) + 1), sizes)
    items = pl.Series([item for basket in baskets for item in basket], dtype=pl.String)
    frame = pl.DataFrame({"user": line_numbers, "item": whole_numbers(items)})
    between = SEPARATORS.get(separator, repr(separator))
    notes = [f"each line is a basket of items separated by {between}; separator= sets another"]
    n_empty = int((sizes == 0).sum())
    if n_empty:
        notes.append(f"ignored {n_empty:,} of {len(lines):,} lines, which have no item")

    def locate(row: int) -> str:
        return f"{path}, line {line_numbers[row]}"

    return Source(
        str(path),
        ("user", "item"),
        lambda names, ids: Table(frame.select(names), locate, notes=list(notes)),
    )


def _text(path: Path, encoding: str) -> str:
    data = all_bytes(text_contents(path, encoding))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, line {line}: not UTF-8; save the file as UTF-8 or pass encoding='latin-1'"
        ) from error


def basket_separator(lines: list[str]) -> str:
    """Return the separator of most lines: comma, semicolon or tab, else a blank.

    >>> basket_separator(["whole milk,tea", "tea"]), basket_separator(["38 39", "39"])
    (',', ' ')
    """
    n_lines = {mark: sum(mark in line for line in lines) for mark in (",", ";", "\t")}
    most = max(n_lines, key=lambda mark: n_lines[mark])
    return most if n_lines[most] else " "


def items_of_line(
    line: str, separator: str, quote: str | None = None, escape: str | None = None
) -> list[str]:
    """Return the items of a line, without empty ones.

    >>> items_of_line('tea, "ham, smoked",,', ",")
    ['tea', 'ham, smoked']
    """
    mark = '"' if quote is None else quote
    line = line.removesuffix("\r")
    fields = line.split(separator)
    if mark and mark in line and len(separator) == 1:
        reader = csv.reader(
            [line],
            delimiter=separator,
            quotechar=mark,
            escapechar=escape or None,
            skipinitialspace=True,
        )
        fields = next(reader)
    return [field.strip() for field in fields if field.strip()]


def looks_like_baskets(path: Path, encoding: str) -> bool:
    """Whether lines have varying numbers of items and the first is not a header with a user."""
    try:
        sample = first_bytes(text_contents(path, encoding))
    except DataError:
        return False
    lines = sample.decode("utf-8", "replace").split("\n")
    if len(sample) == SAMPLE:
        lines.pop()  # possibly incomplete
    lines = [line for line in lines if line.strip()][:LOOK]
    if len(lines) < 2 or b"\x00" in sample:
        return False
    separator = basket_separator(lines)
    try:
        baskets = [items_of_line(line, separator) for line in lines]
    except csv.Error:
        return False
    sizes = [len(basket) for basket in baskets]
    most_usual = max(map(sizes.count, sizes))
    return most_usual <= len(sizes) / 2 and not spelled_like(tuple(baskets[0]), "user")
