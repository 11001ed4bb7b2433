"""Ranked lists that another system made, in the place of a model for `evaluate`."""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.checks import MADE_BY_READ, instance
from equipoise.data.ids import WHOLE, IdIndex, some
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import cell_keys, in_ascending, segments
from equipoise.data.readers.columns import EXACT, spelled_like
from equipoise.data.readers.frames import is_frame, object_source
from equipoise.errors import DataError, FileFormatError, SettingError
from equipoise.evaluation.metrics import ITEM_SLICES, Named
from equipoise.ranking.ranker import Ranked

COUNTED = ("popularity", "novelty", "lift")  # metrics and slices that need training counts
COUNTED_SLICES = (*ITEM_SLICES, "unbiased")

logger = logging.getLogger(__name__)


class GivenLists:
    """Lists by user, over the items of a part and the other items they hold.

    Parameters
    ----------
    source
        A frame, or the path of a CSV, TSV, JSON lines or Parquet file: user, item, and rank (1 is
        the first) or score (the highest is the first).
    part
        What the lists are for; users without a list are evaluated on an empty one.
    train
        The data whose counts say what is popular; None where they are not known.
    exclude_seen
        Take items of the history out of the lists. Left out, `hides_seen` tells whether there are
        any.
    """

    def __init__(
        self, source: Any, part: Any, train: Interactions | None, exclude_seen: bool | None
    ) -> None:
        if train is not None:
            instance("train", train, Interactions, MADE_BY_READ)
        frame = _table(source, part.target.user_index, part.target.item_index)
        self.train, self._users = train, part.target.user_index
        extra = IdIndex(frame["item"].unique(maintain_order=True).to_numpy(), "item")
        known = part.target.item_index.extended(part.history.items)
        fresh = extra.values[known.positions(extra.values, unknown="skip") < 0]
        self.item_index_ = IdIndex(np.concatenate([known.values, fresh]), "item")
        user = self._users.positions(frame["user"].to_numpy(), unknown="skip")
        item = self.item_index_.positions(frame["item"].to_numpy())
        if not (user >= 0).any():
            raise DataError(
                f"none of the users in the lists ({some(frame['user'].to_numpy())}) is in the "
                "part; give the lists of the users to be evaluated"
            )
        history = part.history.with_items(self.item_index_).matrix
        cells = np.maximum(user, 0) * len(self.item_index_) + item
        seen = in_ascending(cells, cell_keys(history)) & (user >= 0)
        kept = (user >= 0) & ~(seen & bool(exclude_seen))
        self.hides_seen = not seen[kept].any()
        # frames are in the order of the lists already
        self._pairs = pl.DataFrame({"user": user[kept], "item": item[kept]})
        self._starts = np.searchsorted(user[kept], np.arange(len(self._users) + 1))
        bare = len(self._users) - self._pairs["user"].n_unique()
        if bare:
            logger.warning("%d of %d users have no list: all is missed", bare, len(self._users))

    @property
    def item_counts_(self) -> npt.NDArray[np.int64]:
        """Training users of each item; 0 where they are not known."""
        if self.train is None:
            return np.zeros(len(self.item_index_), np.int64)
        counts = np.append(self.train.item_counts, 0)
        return counts[self.train.item_index.positions(self.item_index_.values, unknown="skip")]

    @property
    def data_fingerprint_(self) -> str:
        """Fingerprint of the training data where they are known, else of the lists."""
        if self.train is not None:
            return self.train.fingerprint
        return hashlib.sha256(self._pairs.write_csv().encode()).hexdigest()[:12]

    def rank(self, history: Interactions, k: int, *, exclude_seen: bool = True) -> Ranked:
        """Return the first k items of each user's list."""
        ranked = Ranked.empty(history.n_users, k, np.dtype(np.float32))
        users = self._users.positions(history.users)
        ranked.lengths[:] = np.minimum(np.diff(self._starts)[users], k)
        places, offsets = segments(self._starts[users], ranked.lengths)
        row = np.repeat(np.arange(len(users)), ranked.lengths)
        rank = np.arange(len(places)) - offsets[row]
        ranked.items[row, rank] = self._pairs["item"].to_numpy()[places]
        ranked.scores[row, rank] = -rank
        return ranked

    def settings(self) -> dict[str, Any]:
        """Return what is known of the system: nothing."""
        return {"model": "lists"}

    def measurable(self, wanted: list[Named], *, chosen: bool) -> list[Named]:
        """Return the metrics that can be computed; a chosen one that cannot is an error."""
        if self.train is not None:
            return wanted
        fine = [
            named
            for named in wanted
            if named.base not in COUNTED and named.slice not in COUNTED_SLICES
        ]
        if chosen and len(fine) < len(wanted):
            named = next(each for each in wanted if each not in fine)
            raise SettingError(f"{named.name} needs the counts of the training data; pass train=")
        return fine


@dataclass(frozen=True)
class _Columns:
    user: str
    item: str
    order: str
    descending: bool


def _table(source: Any, users: IdIndex, items: IdIndex) -> pl.DataFrame:
    """Return the columns user and item, the lists in their order and one after another."""
    name, frame = _frame(source)
    found = _columns(name, frame.columns)
    columns = [
        _as_ids(frame[found.user], users, name).alias("user"),
        _as_ids(frame[found.item], items, name).alias("item"),
        _as_numbers(frame[found.order], name).alias("order"),
    ]
    pairs = pl.DataFrame(columns)
    twice = pairs.filter(pairs.select("user", "item").is_duplicated())
    if twice.height:
        user, item, _ = twice.row(0)
        raise DataError(f"{name}: item {item!r} is twice in the list of user {user!r}; keep one")
    ranked = pairs.sort("order", descending=found.descending, maintain_order=True)
    place = users.positions(ranked["user"].to_numpy(), unknown="skip")
    return ranked.with_columns(place=place).sort("place", maintain_order=True)


def _frame(source: Any) -> tuple[str, pl.DataFrame]:
    """Read a table whole; numbers of a text file stay text until it is known what they are."""
    if not isinstance(source, (str, os.PathLike)):
        if not is_frame(source):
            kind = type(source).__name__
            raise SettingError(
                f"evaluate takes a fitted model, or a frame or file of lists, got {kind}"
            )
        opened = object_source(source, "the lists")
        return "the lists", opened.loader(list(opened.columns), []).frame
    path = Path(source)
    readers: dict[str, Any] = {
        ".csv": lambda file: pl.read_csv(file, infer_schema=False),
        ".tsv": lambda file: pl.read_csv(file, infer_schema=False, separator="\t"),
        ".jsonl": lambda file: pl.read_ndjson(file, infer_schema_length=None),
        ".parquet": pl.read_parquet,
    }
    if path.suffix not in readers:
        raise SettingError(f"lists are read from {', '.join(readers)}, got {path}")
    try:
        with path.open("rb") as file:  # which has no name that could be a pattern
            frame: pl.DataFrame = readers[path.suffix](file)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except pl.exceptions.PolarsError as error:
        raise FileFormatError(f"{path} is not a table of lists: {error}") from error
    return str(path), frame


def _columns(name: str, held: list[str]) -> _Columns:
    """Return which columns are users, items and the order of the lists."""
    roles = {}
    for role in ("user", "item"):
        hits = [role] if role in held else spelled_like(tuple(held), role)
        if len(hits) != 1:
            raise DataError(f"{name} needs one column {role!r}; it has {_named(held)}")
        roles[role] = hits[0]
    for order, descending in (("rank", False), ("score", True)):
        if order in held:
            return _Columns(roles["user"], roles["item"], order, descending)
    raise DataError(f"{name} needs a column 'rank' or 'score'; it has {_named(held)}")


def _named(columns: list[str]) -> str:
    return ", ".join(columns) or "no columns"


def _as_ids(column: pl.Series, index: IdIndex, name: str) -> pl.Series:
    """Return ids of the kind the part has, by the rule of `IdIndex`: "7" is 7, "007" is not.

    Floats without fractions are integers, such as pandas makes of integers with gaps.
    """
    if column.null_count():
        raise DataError(f"{name}: the column {column.name!r} has empty cells; fill or drop them")
    kind = column.dtype
    wrong: Any = None
    if kind.is_float():
        broken = column.filter(
            ~((column == column.floor()) & (column.abs() < 2.0 ** EXACT[str(kind)]))
        )
        wrong = broken[0] if len(broken) else None
        column = column if len(broken) else column.cast(pl.Int64)
    elif kind == pl.String and index.kind == pl.Int64:
        broken = column.filter(~column.str.contains(f"^(?:{WHOLE.pattern})$"))
        wrong = broken[0] if len(broken) else None
    elif kind != pl.String and not kind.is_integer():
        wrong = kind
    if wrong is None:
        try:
            return column.cast(index.kind)
        except pl.exceptions.PolarsError:  # integers beyond 2^63
            wrong = kind
    known = "integers" if index.kind == pl.Int64 else "text"
    shown = str(wrong) if wrong is kind else f"{wrong!r}, which is no such id"
    raise DataError(
        f"{name}: the {index.axis} ids of the part are {known}, and the column {column.name!r} "
        f"holds {shown}; give the ids of the data"
    )


def _as_numbers(column: pl.Series, name: str) -> pl.Series:
    try:
        numbers = column.cast(pl.String if column.dtype == pl.Boolean else pl.Float64)
        numbers = numbers.cast(pl.Float64)
    except pl.exceptions.PolarsError:
        numbers = pl.Series([None], dtype=pl.Float64)
    if numbers.null_count() or numbers.is_nan().any():
        raise DataError(f"{name}: the column {column.name!r} must hold numbers alone")
    return numbers
