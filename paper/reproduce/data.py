"""Find and load the data sets of the paper, and their substitutes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from equipoise.data import datasets
from equipoise.data import split as splits
from equipoise.data.interactions import Interactions
from equipoise.data.readers import read, read_multvae, read_strong, read_weak
from equipoise.data.readers.files import movielens_file, part_names
from equipoise.data.split import Split
from equipoise.errors import DataError

# Prepared as the paper's ML-20M: ratings of 4 and more, users with at least 5 of them.
NAMED = {"ML-1M": "movielens-1m", "ML-100K": "movielens-100k"}
GOOD, FEWEST = 4, 5
MULTVAE = "unique_sid.txt"


def find_split(data: Path, dataset: str, protocol: str) -> Callable[[], Split] | None:
    """Return a function that loads a split, None where its data are missing.

    Searched in this order: the folder DATA/name/protocol with the published parts; a folder of
    the Mult-VAE authors' script, DATA/name or DATA/name/pro_sg, for the strong protocol; ratings
    of MovieLens in DATA/name or fetched earlier, of which users are then held out (seed 0).
    """
    home = data / dataset.lower()
    if part_names(home / protocol):
        return partial(published_split, home / protocol, protocol)
    if protocol != "strong":
        return None
    for folder in (home, home / "strong", home / "pro_sg"):
        if (folder / MULTVAE).is_file():
            return partial(published_split, folder, protocol)
    ratings = find_ratings(data, dataset)
    return None if ratings is None else lambda: splits.strong(ratings(), seed=0)


def find_ratings(data: Path, dataset: str) -> Callable[[], Interactions] | None:
    """Return a function that loads the good ratings of a MovieLens set, with titles."""
    home = data / dataset.lower()
    if movielens_file(home) is not None:
        return lambda: read(home, min_rating=GOOD).filter(min_user=FEWEST)
    name = NAMED.get(dataset)
    folder = datasets.cache_folder() / (name or "")
    if name is None or not folder.is_dir() or not any(folder.iterdir()):
        return None
    return lambda: datasets.load(name, min_rating=GOOD).filter(min_user=FEWEST)


def published_split(folder: Path, protocol: str) -> Split:
    """Read a split as it was published: the authors' own held-out users or pairs."""
    if protocol == "strong":
        parts = (read_multvae if (folder / MULTVAE).is_file() else read_strong)(folder)
        return splits.from_parts(
            parts["train"],
            valid=(parts["valid_in"], parts["valid_target"]),
            test=(parts["test_in"], parts["test_target"]),
            protocol="strong",
        )
    if protocol != "weak":
        raise DataError(f"no published split is known for the protocol {protocol!r}")
    parts = read_weak(folder)
    return splits.from_parts(parts["train"], test=(parts["train"], parts["test"]), protocol="weak")
