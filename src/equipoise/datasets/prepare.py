"""Data sets of users and items, made from the raw files as the papers made them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from equipoise.datasets.annotate import annotated
from equipoise.datasets.rawfiles import find
from equipoise.errors import DataError
from equipoise.interactions import Interactions
from equipoise.readers import read

GOOD = 4  # the least rating that counts as an interaction
LABELS = {"movie_title": "title", "release_year": "year", "class": "genres", "genre": "genres"}


def movielens(path: Path, names: Sequence[str], min_rating: float | None) -> Interactions:
    """Ratings with titles, from RecBole files or a folder of GroupLens."""
    return _tidy_labels(read(find(path, names), min_rating=min_rating))


def movielens_20m(path: Path) -> Interactions:
    """Ratings of 4 and more, users with at least 5 of them.

    The paper speaks of a 5-core, but its Table 1 has the counts of the Mult-VAE recipe, which
    filters users only: 136,677 users and 9,990,682 pairs on 20,720 movies. The 20,108 movies of
    the table are those that the training users of the strong split know.
    """
    file = find(path, ["ratings.csv"])
    return read(file, format="movielens", min_rating=GOOD).filter(min_user=5)


def netflix(path: Path) -> Interactions:
    """Ratings of 4 and more, users with at least 5 of them: the recipe of `movielens_20m`."""
    for pattern in ("combined_data_*.txt", "training_set/mv_*.txt", "mv_*.txt"):
        files = sorted(path.glob(pattern))
        if files:
            break
    else:
        raise DataError(f"{path} has neither combined_data_1.txt nor training_set/mv_0000001.txt")
    frame = pl.concat([_netflix_ratings(file) for file in files])
    labels = _netflix_titles(path)
    return read(frame, user="user", item="item", time="time", labels=labels).filter(min_user=5)


def million_songs(path: Path) -> Interactions:
    """Songs with at least 200 users, then users with at least 20 of these songs.

    One pass in this order, as in the Mult-VAE recipe: a few songs end with fewer than 200 users.
    """
    file = find(path, ["train_triplets.txt"])
    data = read(file, format="tsv", header=False, user=0, item=1, time=False, rating=False)
    data = data.columns(data.item_counts >= 200)
    data = data.rows(data.user_counts >= 20)
    if not data.n_interactions:
        raise DataError(f"{file} has no user with 20 songs that 200 users know")
    return data


def gowalla(path: Path) -> Interactions:
    """10-core of the places that users checked in at.

    From the file of SNAP this gives 29,858 users, 40,988 places and 1,027,464 pairs; the LightGCN
    split, and with it the paper, leaves out 7 places that its training part lacks.
    """
    if _is_lightgcn(path):
        return lightgcn(path)
    file = find(path, ["loc-gowalla_totalCheckins.txt"])
    return _ten_core(read(file, format="tsv", header=False, user=0, time=1, item=4))


def yelp(path: Path) -> Interactions:
    """10-core of the businesses that users reviewed."""
    if _is_lightgcn(path):
        return lightgcn(path)
    file = find(path, ["yelp_academic_dataset_review.json", "review.json"])
    return _ten_core(
        read(file, format="jsonl", user="user_id", item="business_id", time="date", rating=False)
    )


def amazon_book(path: Path) -> Interactions:
    """10-core of the books that users rated."""
    if _is_lightgcn(path):
        return lightgcn(path)
    file = find(path, ["ratings_Books.csv"])
    return _ten_core(read(file, format="csv", header=False, user=0, item=1, time=3, rating=False))


def lightgcn(path: Path) -> Interactions:
    """Both parts of a LightGCN folder together; `eq.read` reads them one by one."""
    # The published test parts hold lines of users without items, hence "skip".
    train, test = (
        read(path / name, format="lightgcn", on_bad="skip") for name in ("train.txt", "test.txt")
    )
    return train.union(test)


def _is_lightgcn(path: Path) -> bool:
    return all((path / name).is_file() for name in ("train.txt", "test.txt"))


def _ten_core(data: Interactions) -> Interactions:
    return data.filter(min_user=10, min_item=10)


def _netflix_ratings(file: Path) -> pl.DataFrame:
    """Good ratings of a file in which a line ``7:`` opens the ratings of movie 7.

    The other lines are ``user,rating,date``.
    """
    line = pl.col("line")
    opened = pl.when(line.str.ends_with(":")).then(line.str.strip_suffix(":"))
    cell = line.str.split_exact(",", 2).struct
    try:
        # The separator never occurs: the whole line is one column.
        lines = pl.read_csv(
            file, has_header=False, separator="\x01", schema={"line": pl.String}, glob=False
        )
        return (
            lines.with_columns(item=opened.cast(pl.Int64).forward_fill())
            .filter(~line.str.ends_with(":"))
            .with_columns(rating=cell.field("field_1").cast(pl.Int8))
            .filter(pl.col("rating") >= GOOD)
            .select(
                "item",
                user=cell.field("field_0").cast(pl.Int64),
                time=cell.field("field_2").str.to_date("%Y-%m-%d").dt.epoch("s"),
            )
        )
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{file} is not a file of Netflix ratings: {reason}") from error


def _netflix_titles(path: Path) -> pl.DataFrame | None:
    """Titles as a frame; they are Latin-1 with unquoted commas, which no CSV parser reads."""
    for name in ("movie_titles.csv", "movie_titles.txt"):
        if (path / name).is_file():
            lines = (path / name).read_text(encoding="latin-1").splitlines()
            cells = [line.split(",", 2) for line in lines]
            cells = [row for row in cells if len(row) == 3 and row[0].isdigit()]
            return pl.DataFrame(
                {
                    "item": [int(movie) for movie, _, _ in cells],
                    "title": [title for _, _, title in cells],
                    "year": [int(year) if year.isdigit() else None for _, year, _ in cells],
                }
            )
    return None


def _tidy_labels(data: Interactions) -> Interactions:
    """Call the labels title, year and genres whatever the files call them."""
    if data.labels is None:
        return data
    names = {old: new for old, new in LABELS.items() if old in data.labels.columns}
    return annotated(data, labels=data.labels.rename(names))
