"""The layouts in which MovieLens has been published: `u.data`, `ratings.dat`, `ratings.csv`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from equipoise.errors import DataError
from equipoise.interactions import Interactions
from equipoise.readers.build import build
from equipoise.readers.delimited import delimited_source
from equipoise.readers.opening import existing_file, first_bytes
from equipoise.readers.options import Options
from equipoise.readers.table import Source, Table

TITLES = {"u.data": "u.item", "ratings.dat": "movies.dat", "ratings.csv": "movies.csv"}
COLUMNS = ("user_id", "item_id", "rating", "timestamp")
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
    if len(source.columns) != len(COLUMNS):
        raise DataError(f"{file} should have 4 columns, {', '.join(COLUMNS)}; check the file")
    return build(_named(source, COLUMNS), options, labels)


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
