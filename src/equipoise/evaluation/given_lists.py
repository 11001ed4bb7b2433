"""Ranked lists of another system, in the place of a model for `evaluate`."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.checks import MADE_BY_READ, instance
from equipoise.data.columns import EXACT, spelled_like
from equipoise.data.ids import WHOLE, IdIndex, some
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import cell_keys, in_ascending, segments
from equipoise.data.tables import is_frame, object_source
from equipoise.errors import DataError, FileFormatError, SettingError
from equipoise.evaluation.metrics import ITEM_SLICES, Named
from equipoise.ranking.ranker import Ranked

COUNTED = (
    "popularity",
    "novelty",
    "lift",
    "new_share",
)  # metrics and slices that need training counts
COUNTED_SLICES = (*ITEM_SLICES, "unbiased")

logger = logging.getLogger(__name__)


class GivenLists:
    """Lists by user, over the items of a part and further items of the lists.

    `source` is a frame, or the path of a CSV, TSV, JSON lines or Parquet file: user, item, and
    rank (1 is the first) or score (the highest is the first). Users without a list have an empty
    one. `exclude_seen` removes items of the history; `hides_seen` is whether none are left.
    """

    def __init__(
        self, source: Any, part: Any, train: Interactions | None, exclude_seen: bool | None
    ) -> None:
        if train is not None:
            instance("train", train, Interactions, MADE_BY_READ)
        frame = _read_lists(source, part.target.user_index, part.target.item_index)
        self.train, self._users = train, part.target.user_index
        listed = IdIndex(frame["item"].unique(maintain_order=True).to_numpy(), "item")
        known = part.target.item_index.extended(part.history.items)
        new_items = listed.values[known.positions(listed.values, unknown="skip") < 0]
        self.item_index_ = IdIndex(np.concatenate([known.values, new_items]), "item")
        user = self._users.positions(frame["user"].to_numpy(), unknown="skip")
        item = self.item_index_.positions(frame["item"].to_numpy())
        if not (user >= 0).any():
            raise DataError(
                f"none of the users in the lists ({some(frame['user'].to_numpy())}) is in the "
                "part; pass the lists of the users to be evaluated"
            )
        history = part.history.with_items(self.item_index_).matrix
        cells = np.maximum(user, 0) * len(self.item_index_) + item
        seen = in_ascending(cells, cell_keys(history)) & (user >= 0)
        used = (user >= 0) & ~(seen & bool(exclude_seen))
        self.hides_seen = not seen[used].any()
        # the frame is sorted by user and rank
        self._pairs = pl.DataFrame({"user": user[used], "item": item[used]})
        self._starts = np.searchsorted(user[used], np.arange(len(self._users) + 1))
        n_missing = len(self._users) - self._pairs["user"].n_unique()
        if n_missing:
            logger.warning(
                "%d of %d users have no list: they count as misses", n_missing, len(self._users)
            )

    @property
    def item_counts_(self) -> npt.NDArray[np.int64]:
        """Training users of each item; 0 if unknown."""
        if self.train is None:
            return np.zeros(len(self.item_index_), np.int64)
        counts = np.append(self.train.item_counts, 0)
        return counts[self.train.item_index.positions(self.item_index_.values, unknown="skip")]

    @property
    def data_fingerprint_(self) -> str:
        """Fingerprint of the training data if known, else of the lists."""
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
        """Return placeholder settings: those of the other system are unknown."""
        return {"model": "lists"}

    def measurable(self, metrics: list[Named], *, chosen: bool) -> list[Named]:
        """Return the metrics that can be computed; raise for a chosen one that cannot."""
        needs_counts = [
            named for named in metrics if named.base in COUNTED or named.slice in COUNTED_SLICES
        ]
        if self.train is not None or not needs_counts:
            return metrics
        if chosen:
            name = needs_counts[0].name
            raise SettingError(f"{name} needs the counts of the training data; pass train=")
        return [named for named in metrics if named not in needs_counts]


def _read_lists(source: Any, users: IdIndex, items: IdIndex) -> pl.DataFrame:
    """Return the columns user and item, sorted by user and rank."""
    name, frame = _read_frame(source)
    order = _order_column(name, frame.columns)
    pairs = pl.DataFrame(
        [
            _as_ids(frame[_id_column(name, frame.columns, "user")], users, name).alias("user"),
            _as_ids(frame[_id_column(name, frame.columns, "item")], items, name).alias("item"),
            _as_numbers(frame[order], name).alias("order"),
        ]
    )
    duplicates = pairs.filter(pairs.select("user", "item").is_duplicated())
    if duplicates.height:
        user, item, _ = duplicates.row(0)
        raise DataError(
            f"{name}: item {item!r} occurs twice in the list of user {user!r}; keep one"
        )
    ranked = pairs.sort("order", descending=order == "score", maintain_order=True)
    place = users.positions(ranked["user"].to_numpy(), unknown="skip")
    return ranked.with_columns(place=place).sort("place", maintain_order=True)


def _read_frame(source: Any) -> tuple[str, pl.DataFrame]:
    """Return the name and the complete table of a source; ids of a text file stay text."""
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
        with path.open("rb") as file:  # polars would take a path as a glob pattern
            frame: pl.DataFrame = readers[path.suffix](file)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except pl.exceptions.PolarsError as error:
        raise FileFormatError(f"{path} is not a table of lists: {error}") from error
    return str(path), frame


def _id_column(name: str, columns: list[str], role: str) -> str:
    matches = [role] if role in columns else spelled_like(tuple(columns), role)
    if len(matches) != 1:
        shown = ", ".join(columns) or "no columns"
        raise DataError(f"{name} needs one column {role!r}; it has {shown}")
    return matches[0]


def _order_column(name: str, columns: list[str]) -> str:
    for order in ("rank", "score"):
        if order in columns:
            return order
    shown = ", ".join(columns) or "no columns"
    raise DataError(f"{name} needs a column 'rank' or 'score'; it has {shown}")


def _as_ids(column: pl.Series, index: IdIndex, name: str) -> pl.Series:
    """Return ids of the type of the part, by the rule of `IdIndex`: "7" is 7, "007" is not.

    Floats without fractions are integers: pandas makes them from integers with gaps.
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
    shown = str(wrong) if wrong is kind else f"{wrong!r}, which is not such an id"
    raise DataError(
        f"{name}: the {index.axis} ids of the part are {known}, and the column {column.name!r} "
        f"holds {shown}; use the ids of the data"
    )


def _as_numbers(column: pl.Series, name: str) -> pl.Series:
    try:
        numbers = column.cast(pl.String if column.dtype == pl.Boolean else pl.Float64)
        numbers = numbers.cast(pl.Float64)
    except pl.exceptions.PolarsError:
        numbers = pl.Series([None], dtype=pl.Float64)
    if numbers.null_count() or numbers.is_nan().any():
        raise DataError(f"{name}: the column {column.name!r} must have only numbers")
    return numbers
