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
from equipoise.ranking.terms import Term, TrendShare
from equipoise.runtime.machine import check_polars

PAIRS = 1 << 20  # contributions computed at a time
FORMATS = {".parquet": "sink_parquet", ".csv": "sink_csv", ".jsonl": "sink_ndjson"}
SHOWN = 10  # lists, and items of each, that a notebook shows
JOINT = "; "  # between the reasons in one text
POPULAR_LATELY = "popular lately"  # the reason in words where a trend is one

Reasons = list[tuple[int, float]]  # positions of items, and what each adds to a score


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
        Titles of the items, if the data have a catalogue.
    reasons
        Items of the history that add most to the score of each item, if requested.
    reason_titles
        Titles of these.
    kinds
        Types of the columns of `to_frame`, which empty lists cannot show.
    names
        Titles of `users` where these are items: in lists of similar items.
    trending
        Whether being popular lately is a reason too: for each item, whether the trend adds more to
        its score than the weakest of its listed reasons. None without a trend or without reasons.
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
    trending: list[list[bool]] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.items)

    def to_frame(self, *, details: bool = False) -> pl.DataFrame:
        """Return one row per recommended item: user, item, score, rank (from 1).

        Popular items in place of those of the model have no score (null). ``details=True`` adds
        `source`, `title` if there is a catalogue, and if reasons were requested `reasons`, a list
        of items, and `because`, their titles as text; with a trend also `trending`, and "popular
        lately" in `because` where it is true. Names of histories are integers if all of them are,
        else text.
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
                columns["because"] = [
                    self._because(user, rank)
                    for user, length in enumerate(lengths)
                    for rank in range(length)
                ]
                kinds["because"] = pl.String
            if self.trending is not None:
                columns["trending"] = [flag for row in self.trending for flag in row]
                kinds["trending"] = pl.Boolean
        return pl.DataFrame(columns, schema_overrides=kinds)

    def _because(self, user: int, rank: int) -> str:
        """Return the reasons of an item in words, empty without any."""
        reasons = self.reason_titles or self.reasons
        if reasons is None:
            return ""
        is_trending = self.trending is not None and self.trending[user][rank]
        return JOINT.join([*map(str, reasons[user][rank]), *[POPULAR_LATELY] * is_trending])

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
        because = self._because(user, rank)
        if because:
            hint.append(f"because of {because}")
        name = str(item) if self.titles is None else self.titles[user][rank]
        return Cell(name, ", ".join(filter(None, hint)))


@dataclass(frozen=True)
class Explanation:
    """Explanation of a score: the contribution of each item of the history, and of a trend.

    Parameters
    ----------
    item
        The explained item.
    score
        Its score, as `recommend` gives it.
    sources
        Items of the history, the strongest contribution first.
    contributions
        Contribution of each of them; they sum to ``score - trend``. Summed from left to right they
        give it exactly, unless it is smaller than every contribution.
    titles, title
        Titles of `sources` and of the item, if the data have a catalogue.
    trend
        What the item's recent popularity adds whatever the history is; 0 without a trend. In the
        form "multiply" a trend also scales the contributions.
    shared
        Of an item without users: for each of `sources`, the attributes that both have, as pairs of
        column and value, the most telling ones first. None for other items.
    """

    item: Any
    score: float
    sources: list[Any]
    contributions: list[float]
    titles: list[str] | None = field(default=None, repr=False)
    title: str | None = field(default=None, repr=False)
    trend: float = 0.0
    shared: list[list[tuple[str, str]]] | None = field(default=None, repr=False)

    def strongest(self, most: int) -> list[dict[str, Any]]:
        """Return item, title, contribution and share of the items that raise the score most.

        The share is that of everything that raises the score. A trend that adds more than the
        weakest of them is listed too: its item is None, its title "popular lately". An item
        without users also has the attributes that it shares with each, as text: "shared".
        """
        titles = self.titles or map(str, self.sources)
        raised = sum(max(part, 0.0) for part in (*self.contributions, self.trend))
        shares = [part / raised if raised else 0.0 for part in self.contributions]
        columns = [self.sources, titles, self.contributions, shares]
        names = ["item", "title", "contribution", "share"]
        if self.shared is not None:
            columns.append(self._shared_text())
            names.append("shared")
        rows = zip(*columns, strict=True)
        reasons = [dict(zip(names, row, strict=True)) for row in rows if row[2] > 0][:most]
        if self.trend > (reasons[-1]["contribution"] if reasons else 0.0):
            of_trend = [None, POPULAR_LATELY, self.trend, self.trend / raised, ""]
            reasons.append(dict(zip(names, of_trend, strict=False)))
            reasons.sort(key=lambda reason: -reason["contribution"])
        return reasons

    def _shared_text(self) -> list[str]:
        return [", ".join(" ".join(pair) for pair in row) for row in self.shared or []]

    def to_frame(self) -> pl.DataFrame:
        """Return one row per item of the history: item, contribution (title, shared)."""
        columns: dict[str, Any] = {"item": self.sources, "contribution": self.contributions}
        if self.titles is not None:
            columns["title"] = self.titles
        if self.shared is not None:
            columns["shared"] = self._shared_text()
        return pl.DataFrame(columns)

    def _repr_html_(self) -> str:
        ids = [str(source) for source in self.sources]
        cells = [Cell(*pair) for pair in zip(self.titles or ids, ids, strict=True)]
        parts = [*self.contributions]
        if self.trend:
            cells, parts = [*cells, Cell(POPULAR_LATELY, "")], [*parts, self.trend]
        rows = [(c, f"{part:.4g}") for c, part in zip(cells, parts, strict=True)]
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
    most: int | None,
    *,
    positive: bool = False,
) -> list[list[Reasons]]:
    """Return the items of each history that add most to the score of each listed item.

    Skipped users have no reasons, nor have positions beyond the items. All contributions to an
    item sum to its score without the share of a trend, except that with `positive` only those
    above 0 count, as they are. W is gathered for pairs of items, a row for each distinct item of
    the histories.
    """
    terms = without_trend_share(terms)
    varying = [term for term in terms if term.constant is None]
    sources, place = np.unique(history.indices, return_inverse=True)
    ones, offsets = np.ones(len(sources), np.float32), np.arange(len(sources) + 1)
    alone: Csr = sp.csr_array((ones, sources, offsets), shape=(len(sources), history.shape[1]))
    out: list[list[Reasons]] = [[[] for _ in row] for row in lists]
    for pieces in _pieces(history, lists, skipped):
        items = [lists[user][ranks] for user, _, ranks in pieces]
        sizes = [span.stop - span.start for _, span, _ in pieces]
        parts: Any = np.zeros(sum(len(row) * size for row, size in zip(items, sizes, strict=True)))
        if varying:
            rows = [np.repeat(place[span], len(ranks)) for _, span, ranks in pieces]
            columns = [np.tile(row, size) for row, size in zip(items, sizes, strict=True)]
            parts = score_items(varying, alone, np.concatenate(rows), np.concatenate(columns))
        totals: Any = None
        if not positive:
            users = np.repeat([user for user, _, _ in pieces], [len(row) for row in items])
            totals = score_items(terms, history, users, np.concatenate(items))
        for (user, span, ranks), size in zip(pieces, sizes, strict=True):
            block, parts = np.split(parts, [size * len(ranks)])
            block = block.reshape(size, -1) * history.data[span, None]
            user_totals = None
            if totals is not None:
                user_totals, totals = np.split(totals, [len(ranks)])
            reasons = _strongest(block, history.indices[span], user_totals, most)
            for rank, reason in zip(ranks.tolist(), reasons, strict=True):
                out[user][rank] = reason
    return out


def without_trend_share(terms: Sequence[Term]) -> list[Term]:
    """Return the terms without what a trend adds whatever the history is."""
    return [term for term in terms if not isinstance(term, TrendShare)]


def find_trending(
    terms: Sequence[Term],
    lists: Sequence[npt.NDArray[Any]],
    reasons: Sequence[Sequence[Reasons]],
    skipped: npt.NDArray[np.bool_],
) -> list[list[bool]] | None:
    """Return whether a trend adds more to each item than the weakest of its reasons.

    None if the terms have no trend. `reasons` are those above 0, the strongest first; an item
    without any is flagged if the trend adds to its score. Skipped users have no flags.
    """
    shares = [term.scores for term in terms if isinstance(term, TrendShare)]
    if not shares:
        return None
    (share,) = shares
    flags = []
    for items, row, is_skipped in zip(lists, reasons, skipped, strict=True):
        known = items < len(share)
        added = np.where(known, share[np.where(known, items, 0)], 0.0)
        weakest = [item[-1][1] if item else 0.0 for item in row]
        flags.append(((added > np.array(weakest)) & ~is_skipped).tolist())
    return flags


def _pieces(
    history: Csr, lists: Sequence[npt.NDArray[Any]], skipped: npt.NDArray[np.bool_]
) -> Iterator[list[tuple[int, slice, npt.NDArray[np.int64]]]]:
    """Yield users, the spans of their histories and ranks in their lists.

    At a time, at most `PAIRS` pairs of a history item and a listed item.
    """
    pieces: list[tuple[int, slice, npt.NDArray[np.int64]]] = []
    n_pairs = 0
    ends = history.indptr.tolist()
    for user in np.flatnonzero(~skipped & (np.diff(history.indptr) > 0)).tolist():
        span = slice(ends[user], ends[user + 1])
        size = span.stop - span.start
        known, step = np.flatnonzero(lists[user] < history.shape[1]), max(1, PAIRS // size)
        for start in range(0, len(known), step):
            ranks = known[start : start + step]
            if pieces and n_pairs + size * len(ranks) > PAIRS:
                yield pieces
                pieces, n_pairs = [], 0
            pieces.append((user, span, ranks))
            n_pairs += size * len(ranks)
    if pieces:
        yield pieces


def _strongest(
    block: npt.NDArray[Any],
    items: npt.NDArray[Any],
    totals: npt.NDArray[Any] | None,
    most: int | None,
) -> list[Reasons]:
    """Return the largest contributions of each column, which sum to the total if there is one.

    Without totals only contributions above 0 count.
    """
    sizes = -block if totals is None else -np.abs(block)
    order = np.argsort(sizes, axis=0, kind="stable")
    sorted_parts = np.take_along_axis(block, order, axis=0).T.astype(np.float64)
    reasons = []
    for number, (places, parts) in enumerate(zip(order.T, sorted_parts, strict=True)):
        parts = parts[parts > 0] if totals is None else add_up(parts, float(totals[number]))
        parts = parts[:most]
        names = items[places[: len(parts)]].tolist()
        reasons.append(list(zip(names, parts.tolist(), strict=True)))
    return reasons


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
