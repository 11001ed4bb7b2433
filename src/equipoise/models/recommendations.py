"""Results of a model: ranked lists with raw ids, explanations, and files of lists."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp
from polars.io.plugins import register_io_source

from equipoise.checks import path as checked_path
from equipoise.data.matrix import Csr
from equipoise.display.notebook import Cell, fragment, table
from equipoise.errors import DataError, SettingError
from equipoise.ranking.ranker import score_items
from equipoise.ranking.terms import Term
from equipoise.runtime.machine import check_polars

PAIRS = 1 << 20  # contributions computed at a time
FORMATS = {".parquet": "sink_parquet", ".csv": "sink_csv", ".jsonl": "sink_ndjson"}
SHOWN = 10  # lists, and items of each, that a notebook shows
JOINT = "; "  # between the reasons in one text

Reasons = list[list[npt.NDArray[np.int64]]]  # positions, for each item of each list


@dataclass(frozen=True)
class Recommendations:
    """Ranked lists, one per user, best first.

    Parameters
    ----------
    users
        User of each list: user ids, names of histories, or their positions.
    items
        Raw item ids, a list per user; shorter than k if there are fewer candidates.
    scores
        The scores of these items; NaN where the source is "popular", and for pinned items that
        the model does not know.
    source
        "model", or "popular" where the user has no history the model knows.
    titles
        Titles of the items, if the data have labels.
    reasons
        Items of the history that add most to the score of each item, if requested.
    reason_titles
        Titles of these.
    kinds
        Types of the columns of `to_frame`, which empty lists cannot show.
    names
        Titles of `users` where these are items: in lists of similar items.
    """

    users: list[Any]
    items: list[list[Any]]
    scores: list[npt.NDArray[Any]]
    source: list[str]
    titles: list[list[str]] | None = field(default=None, repr=False)
    reasons: list[list[list[Any]]] | None = field(default=None, repr=False)
    reason_titles: list[list[list[str]]] | None = field(default=None, repr=False)
    kinds: dict[str, Any] = field(default_factory=dict, repr=False)
    names: list[str] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.items)

    def to_frame(self, *, details: bool = False) -> pl.DataFrame:
        """Return one row per recommended item: user, item, score, rank (from 1).

        Popular items in place of those of the model have no score (null). ``details=True`` adds
        `source`, `title` if there are labels, and if reasons were requested `reasons`, a list of
        items, and `because`, their titles as text. Names of histories are integers if all of them
        are, else text.
        """
        lengths = [len(row) for row in self.items]
        as_text = self.kinds.get("user") == pl.String
        users = list(map(str, self.users)) if as_text else self.users
        items = [item for row in self.items for item in row]
        # pinned ids may be text beside integers; the results of a service have no kinds
        if self.kinds.get("item") == pl.String or any(isinstance(item, str) for item in items):
            items = list(map(str, items))
        columns: dict[str, Any] = {
            "user": _repeat(users, lengths),
            "item": items,
            "score": pl.Series(
                np.concatenate([*self.scores, np.empty(0, np.float32)]), nan_to_null=True
            ),
            "rank": [rank + 1 for length in lengths for rank in range(length)],
        }
        kinds = {"rank": pl.Int64, **self.kinds}
        if details:
            columns["source"] = _repeat(self.source, lengths)
            kinds["source"] = pl.String
            if self.titles is not None:
                columns["title"] = [title for row in self.titles for title in row]
                kinds["title"] = pl.String
            if self.reasons is not None:
                columns["reasons"] = [ids for row in self.reasons for ids in row]
                if self.kinds["item"] == pl.String:
                    columns["reasons"] = [list(map(str, ids)) for ids in columns["reasons"]]
                kinds["reasons"] = pl.List(self.kinds["item"])
                titles = self.reason_titles or self.reasons
                columns["because"] = [JOINT.join(map(str, t)) for row in titles for t in row]
                kinds["because"] = pl.String
        return pl.DataFrame(columns, schema_overrides=kinds)

    def _repr_html_(self) -> str:
        longest = max(map(len, self.items), default=0)
        width = min(longest, SHOWN)
        rows: list[list[Any]] = []
        for place, user in enumerate(self.users[:SHOWN]):
            popular = " (popular)" if self.source[place] == "popular" else ""
            first: Any = f"{user}{popular}"
            if self.names is not None:
                first = Cell(f"{self.names[place]}{popular}", str(user))
            ranks = range(min(len(self.items[place]), width))
            rows.append([first, *(self._cell(place, rank) for rank in ranks)])
        notes = [f"{len(self) - SHOWN:,} more lists"] if len(self) > SHOWN else []
        notes += [f"ranks after {width} are left out"] if longest > width else []
        head = ["user" if self.names is None else "item", *map(str, range(1, width + 1))]
        title = f"Recommendations: {len(self):,} list{'' if len(self) == 1 else 's'}"
        return fragment(title, table(head, rows, words=width + 1), notes=notes)

    def _cell(self, user: int, rank: int) -> Cell:
        """Return the title of an item, with its id, score and reasons as a hint."""
        item, score = self.items[user][rank], self.scores[user][rank]
        hint = [str(item), "" if np.isnan(score) else f"score {score:.4g}"]
        reasons = self.reason_titles or self.reasons
        if reasons is not None and reasons[user][rank]:
            hint.append(f"because of {JOINT.join(map(str, reasons[user][rank]))}")
        name = str(item) if self.titles is None else self.titles[user][rank]
        return Cell(name, ", ".join(filter(None, hint)))


@dataclass(frozen=True)
class Explanation:
    """Explanation of a score: the contribution of each item of the history.

    Parameters
    ----------
    item
        The explained item.
    score
        Its score, as `recommend` gives it.
    sources
        Items of the history, the strongest contribution first.
    contributions
        Contribution of each of them; they sum to `score`. Summed from left to right they give it
        exactly, unless it is smaller than every contribution.
    titles, title
        Titles of `sources` and of the item, if the data have labels.
    """

    item: Any
    score: float
    sources: list[Any]
    contributions: list[float]
    titles: list[str] | None = field(default=None, repr=False)
    title: str | None = field(default=None, repr=False)

    def to_frame(self) -> pl.DataFrame:
        """Return one row per item of the history: item, contribution (and title)."""
        columns: dict[str, Any] = {"item": self.sources, "contribution": self.contributions}
        if self.titles is not None:
            columns["title"] = self.titles
        return pl.DataFrame(columns)

    def _repr_html_(self) -> str:
        ids = [str(source) for source in self.sources]
        cells = [Cell(*pair) for pair in zip(self.titles or ids, ids, strict=True)]
        rows = [(c, f"{part:.4g}") for c, part in zip(cells, self.contributions, strict=True)]
        name = self.item if self.title is None else f"{self.title} ({self.item})"
        return fragment(f"{name}: {self.score:.4g}", table(["item", "contribution"], rows))


def _repeat(values: list[Any], lengths: list[int]) -> list[Any]:
    return [value for value, times in zip(values, lengths, strict=True) for _ in range(times)]


def add_up(parts: npt.NDArray[np.float64], total: float) -> npt.NDArray[np.float64]:
    """Change the last digits of parts, largest first, so that they sum to `total`.

    The first part takes the difference between their exact sum and the total, which was rounded;
    the last one that is not 0 takes the rounding of a sum from left to right. The result is exact
    if that part is no larger than the total and so can hold the total's last digit.

    >>> parts = add_up(np.array([0.7, 0.2, 0.1000001]), 1.0)
    >>> float(np.cumsum(parts)[-1]), parts.round(6).tolist()
    (1.0, [0.7, 0.2, 0.1])
    """
    if not len(parts):
        return parts
    moved = parts.copy()
    moved[0] += math.fsum([total, *-parts])
    last = int(np.append(0, np.flatnonzero(moved))[-1])
    moved[last] = 0
    moved[last] = total - np.cumsum(moved)[last]
    return moved


def find_reasons(
    terms: Sequence[Term],
    history: Csr,
    lists: Sequence[npt.NDArray[Any]],
    skipped: npt.NDArray[np.bool_],
    most: int,
) -> Reasons:
    """Return the items of each history that add most to the score of each listed item.

    Only positive contributions count, the largest first; skipped users have no reasons. W is
    gathered for pairs of items, a row for each distinct item of the histories.
    """
    varying = [term for term in terms if term.constant is None]
    sources, place = np.unique(history.indices, return_inverse=True)
    ones, offsets = np.ones(len(sources), np.float32), np.arange(len(sources) + 1)
    alone: Csr = sp.csr_array((ones, sources, offsets), shape=(len(sources), history.shape[1]))
    ends, n_listed = history.indptr.tolist(), [len(row) for row in lists]
    sizes = np.where(skipped | (not varying), 0, np.diff(history.indptr) * n_listed)
    chunk = np.cumsum(sizes) // PAIRS
    out: Reasons = []
    for number in np.unique(chunk):
        users: list[int] = np.flatnonzero(chunk == number).tolist()
        spans = {user: slice(ends[user], ends[user + 1]) for user in users if sizes[user]}
        rows = [np.repeat(place[span], n_listed[user]) for user, span in spans.items()]
        items = [np.tile(lists[user], span.stop - span.start) for user, span in spans.items()]
        parts: Any = np.empty(0)
        if spans:
            parts = score_items(varying, alone, np.concatenate(rows), np.concatenate(items))
        at = 0
        for user in users:
            if user not in spans:
                out.append([np.empty(0, np.int64)] * n_listed[user])
                continue
            user_items, weight = history.indices[spans[user]], history.data[spans[user]]
            block = parts[at : at + sizes[user]].reshape(-1, n_listed[user]) * weight[:, None]
            at += sizes[user]
            order = np.argsort(-block, axis=0, kind="stable")[:most]
            positive = np.take_along_axis(block, order, axis=0) > 0
            columns = zip(order.T, positive.T, strict=True)
            out.append([user_items[places[p]].astype(np.int64) for places, p in columns])
    return out


def write_lists(path: str | os.PathLike[str], batches: Iterator[pl.DataFrame]) -> None:
    """Write frames of one schema to a file, one at a time."""
    check_polars()
    target = checked_path("path", path)
    if target.is_dir():
        raise DataError(f"{target} is a folder; give the path of a file")
    if target.suffix not in FORMATS:
        raise SettingError(f"{target} must end in {', '.join(FORMATS)}, which sets the format")
    frames = map(_flat, batches) if target.suffix == ".csv" else batches
    first = next(frames, None)
    if first is None:
        raise DataError("there is no user to recommend to; pass at least one")

    context = copy_context()  # polars calls on another thread, without our limit of threads
    failures: list[Exception] = []  # polars may raise its own error for one of a later batch

    def source(*_: Any) -> Iterator[pl.DataFrame]:
        frame: pl.DataFrame | None = first
        while frame is not None:
            yield frame
            try:
                frame = context.run(next, frames, None)
            except Exception as error:
                failures.append(error)
                raise

    partial = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    try:
        getattr(register_io_source(source, schema=first.schema), FORMATS[target.suffix])(partial)
        os.replace(partial, target)
    except OSError as error:
        raise DataError(f"could not write {target}: {error.strerror or error}") from error
    except pl.exceptions.PolarsError:
        if failures:
            raise failures[0] from None
        raise
    finally:
        partial.unlink(missing_ok=True)


def _flat(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame without lists, which a CSV file cannot hold."""
    lists = [name for name, kind in frame.schema.items() if isinstance(kind, pl.List)]
    return frame.with_columns(pl.col(lists).cast(pl.List(pl.String)).list.join(JOINT))
