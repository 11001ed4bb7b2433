"""Prepare the named data sets from their raw files as in the papers.

Session data follow the usual preparation of session-based recommendation (GRU4Rec, SR-GNN, SLIST):
sessions of a single event are dropped, then items with fewer than 5 events, then the sessions that
have a single event left.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from equipoise.data.catalogue import Catalogue
from equipoise.data.interactions import Interactions
from equipoise.data.readers import read
from equipoise.errors import DataError, SettingError

INT, TEXT = pl.Int64, pl.String
GOOD = 4  # smallest rating that counts as an interaction
MIN_EVENTS = 5
PAUSE = 30 * 60  # seconds without a view that end a session
ATTRIBUTES = {"movie_title": "title", "release_year": "year", "class": "genres", "genre": "genres"}
# Files of MovieLens, as downloaded and as published by GroupLens.
MOVIELENS = {
    "movielens-100k": ["ml-100k.inter", "u.data"],
    "movielens-1m": ["ml-1m.inter", "ratings.dat"],
}
# Data sets of a 10-core: possible file names, and options of `read`.
TEN_CORE: dict[str, tuple[list[str], dict[str, Any]]] = {
    "gowalla": (
        ["loc-gowalla_totalCheckins.txt"],
        {"format": "tsv", "header": False, "user": 0, "time": 1, "item": 4},
    ),
    "yelp2018": (
        ["yelp_academic_dataset_review.json", "review.json"],
        {"format": "jsonl", "user": "user_id", "item": "business_id", "time": "date"},
    ),
    "amazon-book": (
        ["ratings_Books.csv"],
        {"format": "csv", "header": False, "user": 0, "item": 1, "time": 3},
    ),
}


def prepared(name: str, path: Path, min_rating: float | None = None) -> Interactions:
    """Prepare the data set of this name from the files at this path."""
    if name in MOVIELENS:
        data = read(find(path, MOVIELENS[name]), min_rating=min_rating)
        return (
            data if data.known_items is None else data._replace(catalogue=_tidy(data.known_items))
        )
    if name == "book-crossing":
        return _book_crossing(path, min_rating)
    if min_rating is not None:
        raise SettingError(f"{name} has no ratings; leave min_rating out")
    return _ten_core(name, path) if name in TEN_CORE else RECIPES[name](path)


def find(path: Path, names: Sequence[str]) -> Path:
    """Return the path if it is a file, else the first of these files (or .gz) in the folder."""
    expected = " or ".join(names)
    if path.is_file():
        return path
    if not path.is_dir():
        raise DataError(f"{path} does not exist; give the folder that holds {expected}")
    for name in names:
        for file in (path / name, path / f"{name}.gz"):
            if file.is_file():
                return file
    raise DataError(f"{path} has no {expected}; download it or correct the path")


def _tidy(catalogue: Catalogue) -> Catalogue:
    """Rename the columns of a catalogue to title, year and genres."""
    return catalogue.renamed(
        {name: ATTRIBUTES.get(name, name) for name in catalogue.frame.columns}
    )


def _ten_core(name: str, path: Path) -> Interactions:
    """10-core of the pairs of a file, or both parts of a LightGCN folder (a 10-core already).

    From the file of SNAP this gives 29,858 users, 40,988 places and 1,027,464 pairs of Gowalla;
    the LightGCN split, and with it the paper, leaves out 7 places that its training part lacks.
    """
    parts = [path / "train.txt", path / "test.txt"]
    if all(part.is_file() for part in parts):
        # "skip", because published test parts have lines of users without items
        train, test = (read(part, format="lightgcn", on_bad="skip") for part in parts)
        return train.union(test)
    files, settings = TEN_CORE[name]
    return read(find(path, files), rating=False, **settings).filter(min_user=10, min_item=10)


def _movielens_20m(path: Path) -> Interactions:
    """Ratings of 4 and more, users with at least 5 of them.

    The paper speaks of a 5-core, but its Table 1 has the counts of the Mult-VAE recipe, which
    filters users only: 136,677 users and 9,990,682 pairs on 20,720 movies. The 20,108 movies of
    the table are those that the training users of the strong split know.
    """
    file = find(path, ["ratings.csv"])
    return read(file, format="movielens", min_rating=GOOD).filter(min_user=5)


def _million_songs(path: Path) -> Interactions:
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


def _netflix(path: Path) -> Interactions:
    """Ratings of 4 and more, users with at least 5 of them: the recipe of MovieLens 20M."""
    patterns = ("combined_data_*.txt", "training_set/mv_*.txt", "mv_*.txt")
    files = next(filter(None, (sorted(path.glob(pattern)) for pattern in patterns)), [])
    if not files:
        raise DataError(
            f"{path} has neither combined_data_1.txt nor training_set/mv_0000001.txt; "
            "give the folder that has one"
        )
    frame = pl.concat([_netflix_ratings(file) for file in files])
    catalogue = _netflix_titles(path)
    return read(frame, user="user", item="item", time="time", catalogue=catalogue).filter(
        min_user=5
    )


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
        raise DataError(
            f"{file} is not a file of Netflix ratings: {reason}; download it again"
        ) from error


def _netflix_titles(path: Path) -> pl.DataFrame | None:
    """Titles as a frame; they are Latin-1 with unquoted commas, which no CSV parser reads."""
    for name in ("movie_titles.csv", "movie_titles.txt"):
        if (path / name).is_file():
            lines = (path / name).read_text(encoding="latin-1").splitlines()
            cells = [line.split(",", 2) for line in lines if line.count(",") > 1]
            rows = [
                (int(movie), title, int(year) if year.isdigit() else None)
                for movie, year, title in cells
                if movie.isdigit()
            ]
            return pl.DataFrame(rows, schema=["item", "title", "year"], orient="row")
    return None


def _book_crossing(path: Path, min_rating: float | None) -> Interactions:
    """Ratings and books: ``"User-ID";"ISBN";"Book-Rating"``, marks escaped by backslashes."""
    file = find(path, ["BX-Book-Ratings.csv"])
    books = file.with_name("BX-Books.csv")
    data = read(
        file,
        catalogue=books if books.is_file() else None,
        min_rating=min_rating,
        encoding="latin-1",
        escape="\\",
    )
    if data.known_items is None:
        return data
    new = ("title", "author", "year", "publisher")
    names = dict(zip(data.known_items.frame.columns, new, strict=False))
    return data._replace(catalogue=data.known_items.renamed(names))


def _online_retail(path: Path) -> Interactions:
    """Lines of invoices with a customer and a positive quantity; cancellations are negative."""
    file = find(path, ["ecommerce_sales.csv"])
    try:
        frame = pl.read_csv(file, encoding="latin-1", infer_schema=False)
        bought = frame.filter(
            pl.col("CustomerID").is_not_null(), pl.col("Quantity").cast(pl.Float64) > 0
        )
        titles = bought.group_by("StockCode", maintain_order=True).agg(
            title=pl.col("Description").str.strip_chars().drop_nulls().first()
        )
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{file} is not the expected file: {reason}; download it again") from error
    return read(
        bought.with_columns(pl.col("CustomerID").cast(pl.Int64)),
        user="CustomerID",
        item="StockCode",
        time="InvoiceDate",
        time_format="%m/%d/%Y %H:%M",
        weight="Quantity",
        catalogue=titles,
    )


def _complete_journey(path: Path) -> Interactions:
    """Lines of receipts, with product categories as attributes."""
    file = find(path, ["transactions.parquet"])
    products = file.with_name("products.parquet")
    return read(
        file,
        user="household_id",
        item="product_id",
        time="transaction_timestamp",
        weight="quantity",
        catalogue=products if products.is_file() else None,
    )


def _diginetica(path: Path) -> Interactions:
    """Item views of the CIKM Cup 2016: ``sessionId;userId;itemId;timeframe;eventdate``.

    The time of an event is its date plus `timeframe`, the milliseconds since the session began.
    """
    file = find(path, ["train-item-views.csv"])
    columns = {"session": INT, "_user": TEXT, "item": INT, "since": INT, "date": TEXT}
    events = _table(file, columns, separator=";")
    try:
        day = events["date"].str.to_date("%Y-%m-%d").dt.epoch("s")
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{file} has a time that does not look like %Y-%m-%d") from error
    # A session that runs past midnight has two dates; counting from the first keeps its order.
    began = pl.col("date").min().over("session")
    events = events.with_columns(day).with_columns(time=began + pl.col("since") / 1000)
    return _long_enough(read(events, session="session", item="item", time="time"))


def _retailrocket(path: Path) -> Interactions:
    """Views of the RetailRocket shop: ``timestamp,visitorid,event,itemid,transactionid``.

    A visitor's views are cut into sessions wherever more than 30 minutes pass without one.
    """
    columns = {"time": INT, "visitor": INT, "event": TEXT, "item": INT, "_transaction": TEXT}
    views = _table(find(path, ["events.csv"]), columns).filter(pl.col("event") == "view")
    return _long_enough(read(views, user="visitor", item="item", time="time", gap=PAUSE))


def _yoochoose(path: Path) -> Interactions:
    """Clicks of the RecSys Challenge 2015: ``session,time,item,category`` without a header."""
    file = find(path, ["yoochoose-clicks.dat"])
    return _long_enough(read(file, format="csv", header=False, session=0, time=1, item=2))


def _long_enough(data: Interactions) -> Interactions:
    """Drop sessions of a single event and rare items; repeated events count."""
    filtered = _several(data)
    common = np.bincount(_events(filtered), minlength=filtered.n_items) >= MIN_EVENTS
    filtered = _several(filtered.columns(common))
    if not filtered.n_interactions:
        raise DataError(f"no session has two events on items with {MIN_EVENTS} events")
    n_events = len(_events(data))
    n_dropped = n_events - len(_events(filtered))
    note = f"{n_dropped:,} of {n_events:,} events dropped: on rare items, or alone in a session"
    return filtered._replace(notes=[*filtered.notes, note])


def _events(data: Interactions) -> Any:
    assert data._sequences is not None
    return data._sequences.items


def _several(data: Interactions) -> Interactions:
    assert data._sequences is not None
    return data.rows(data._sequences.lengths >= 2)


def _table(
    file: Path, columns: Mapping[str, type[pl.DataType]], *, separator: str = ","
) -> pl.DataFrame:
    """Parse a delimited file into these columns, by position.

    Columns whose name begins with "_" are left out; an empty cell in another one is an error. Some
    copies have a header: if the first column should hold integers but starts with a letter, the
    first line is skipped.
    """
    header = next(iter(columns.values())) is INT and _starts_with_name(file)
    used_columns = [name for name in columns if not name.startswith("_")]
    try:
        frame = pl.read_csv(
            file,
            has_header=False,
            skip_rows=int(header),
            schema=dict(columns),
            separator=separator,
            quote_char=None,
            glob=False,
        ).select(used_columns)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{file} is not the expected file: {reason}; download it again") from error
    for name in used_columns:
        if frame[name].null_count():
            line = int(frame[name].is_null().arg_max() or 0) + 1 + header
            raise DataError(f"{file}, line {line}: {name} is empty; download the file again")
    return frame


def _starts_with_name(file: Path) -> bool:
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            return stream.read(1).isalpha()
    except (OSError, EOFError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error


RECIPES = {
    "online-retail": _online_retail,
    "complete-journey": _complete_journey,
    "ml-20m": _movielens_20m,
    "netflix": _netflix,
    "msd": _million_songs,
    "diginetica": _diginetica,
    "retailrocket": _retailrocket,
    "yoochoose": _yoochoose,
}
