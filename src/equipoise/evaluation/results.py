"""Result: the numbers of one evaluation, with everything needed to compare and reproduce them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import polars as pl

from equipoise.data.storage import LARGEST_SEED, Stored, load_directory, write_directory
from equipoise.display.notebook import Interval, fragment, intervals, table
from equipoise.errors import DataError, FileFormatError, UnknownIdError
from equipoise.evaluation.metrics import Named, nearest
from equipoise.runtime.machine import check_polars

KIND = "equipoise-result"
VERSION = 1
TUNED = "tuned on the part it is measured on, so too optimistic for new users"
SCHEMA: dict[str, type[pl.DataType]] = {
    "metric": pl.String,
    "k": pl.Int64,
    "slice": pl.String,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "n_users": pl.Int64,
}
FRAMES = ("table", "per_user")
LEFT_OUT = {
    "leave-one-out": "each user was left out of the fit, exactly, while it was ranked",
    "leave-items-out": "the held-out items were left out of the fit, exactly, user by user",
}
COMPANION = "the low-pass companion was fitted without groups of users, at most a tenth at a time"
REPEATED = {"all": ", targets include known items", "again": ", targets are known items"}


@dataclass(frozen=True, eq=False)
class Result:
    """Numbers of one model on one part of a split. Made by `evaluate`.

    ``result["ndcg@20"]`` is a number; ``"ndcg@20" in result`` is whether there is one.

    `table` has one row per metric, cut-off and slice (see `to_frame`), `per_user` one row per user
    of the part: "user", then every metric that has a value per user.
    """

    name: str  # of the model
    table: pl.DataFrame
    per_user: pl.DataFrame
    k: tuple[int, ...]  # cut-offs, ascending
    protocol: str  # of the split
    part: str  # name of the part
    fingerprint: str  # of the part
    data_fingerprint: str  # of the data the model was fitted on
    n_users: int  # users of the part, events for sessions
    n_items: int  # items of the model
    exclude_seen: bool  # whether the lists exclude items of the history
    settings: dict[str, Any]  # of the model
    definitions: dict[str, str]  # of each metric, in words
    tuned_on_test: bool  # whether settings were chosen on this part
    bootstrap: int  # resamples for the 95% intervals, over users
    seed: int  # of the resamples
    seconds: dict[str, float]  # spent on "rank", "metrics" and "bootstrap"
    version: str  # of equipoise
    repeats: str = "new"  # which items are targets: "new", "all", or known ones "again"

    @property
    def label(self) -> str:
        """The model's name, marked if its settings were chosen on this part."""
        return f"{self.name} (tuned on test)" if self.tuned_on_test else self.name

    @property
    def notes(self) -> tuple[str, ...]:
        """Caveats for readers of the numbers."""
        notes = [TUNED] if self.tuned_on_test else []
        if self.protocol in LEFT_OUT:
            notes.append(LEFT_OUT[self.protocol])
            notes += [COMPANION] if self.settings.get("lowpass") else []
        return tuple(notes)

    @property
    def values(self) -> dict[str, float]:
        """Every number by its name, such as "head_ndcg@20"; NaN if it is not defined."""
        check_polars()
        return {
            Named(part, base).at(k): math.nan if value is None else value
            for base, k, part, value in self.table.select("metric", "k", "slice", "value").rows()
        }

    def __getitem__(self, name: str) -> float:
        values = self.values
        if not isinstance(name, str) or name not in values:
            raise UnknownIdError(f"the result has no {name!r}; {nearest(name, values)}")
        return values[name]

    def __contains__(self, name: object) -> bool:
        return name in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def to_frame(self) -> pl.DataFrame:
        """Return one row per number: model, metric, k, slice, value, low, high, n_users.

        `low` and `high` bound a 95% interval; `n_users` is the number of users behind the mean.
        """
        check_polars()
        return self.table.select(pl.lit(self.label).alias("model"), pl.all())

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the values per user, as plain values; NaN is None."""
        values = {name: None if math.isnan(v) else v for name, v in self.values.items()}
        table = self.table.to_dicts()
        return {**self._meta(), "notes": list(self.notes), "values": values, "table": table}

    def _meta(self) -> dict[str, Any]:
        """Return every field but the frames as plain values."""
        meta = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in FRAMES}
        return {**meta, "k": list(self.k)}

    def to_json(self) -> str:
        """Return `to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    def to_markdown(self) -> str:
        """Return a Markdown table: a row per metric and slice, a column per cut-off."""
        table = markdown_table(self._rows("{} [{}, {}]"))
        lines = [f"**{self.label}**, {self._description}.", "", table, *self._footer()]
        return "\n".join(lines) + "\n"

    def to_latex(self) -> str:
        """Return the same table in LaTeX; needs the package booktabs."""
        rows = self._rows(r"{} {{\scriptsize [{}, {}]}}")
        head, *body = (" & ".join(row).replace("_", r"\_") + r" \\" for row in rows)
        columns = rf"\begin{{tabular}}{{ll{'r' * len(self.k)}}}"
        top = [f"% {self.label}, {self._description}", columns]
        notes = [f"% {line}" for line in self._footer() if line]
        lines = [*top, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
        return "\n".join([*lines, *notes]) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a directory, including the values per user, that `Result.load` reads."""
        frames = {name: getattr(self, name) for name in FRAMES}
        write_directory(path, KIND, VERSION, self._meta(), {}, frames, _restore)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read a directory of `save`; raise if it is damaged or something else."""
        return load_directory(path, KIND, VERSION, _restore)

    def __repr__(self) -> str:
        width = max(map(len, self.values), default=0)
        lines = [f"  {name:<{width}}  {_number(value)}" for name, value in self.values.items()]
        return "\n".join([f"{self.label}: {self._description}", *lines, *self.notes])

    def plot(self, metric: str = "ndcg", *, k: int | None = None, ax: Any = None) -> Any:
        """Plot a metric of all, head and tail items with its intervals; needs matplotlib.

        Parameters
        ----------
        metric
            Its name without a slice and a cut-off, such as "ndcg" or "recall".
        k
            The cut-off (default: the largest one).
        ax
            Axes to draw into (default: new ones). They are returned.
        """
        from equipoise.display.plot import intervals as draw

        k = self.k[-1] if k is None else k
        return draw(self.slices(metric, k), f"{metric}@{k}", title=self.label, ax=ax)

    def interval(self, name: str) -> Interval:
        """Return a number such as "tail_ndcg@20" with the ends of its 95% interval."""
        check_polars()
        if math.isnan(self[name]):
            raise DataError(f"{name} of {self.label!r} is not defined; choose another metric")
        rows = self.table.select("metric", "k", "slice", "value", "low", "high").rows()
        (numbers,) = (row[3:] for row in rows if Named(row[2], row[0]).at(row[1]) == name)
        return Interval(name, *numbers)

    def slices(self, metric: str, k: int) -> list[Interval]:
        """Return the values of a metric by slice, with the ends of their intervals."""
        check_polars()
        is_match = [(metric, k) == pair for pair in self.table.select("metric", "k").rows()]
        rows = self.table.filter(pl.Series(is_match, dtype=pl.Boolean))
        if not rows.height:
            raise UnknownIdError(
                f"the result has no {metric}@{k}; {nearest(f'{metric}@{k}', self.values)}"
            )
        defined = rows.filter(pl.col("value").is_not_null() & pl.col("value").is_not_nan())
        return [Interval(*row) for row in defined.select("slice", "value", "low", "high").rows()]

    def _repr_html_(self) -> str:
        head, *rows = self._rows("{} [{}, {}]")
        parts = [table(head, rows, words=2)]
        if "ndcg" in self.table["metric"]:
            k = self.k[-1]
            parts.insert(0, intervals(f"ndcg@{k} of {self.label}", self.slices("ndcg", k)))
        footer = [line.removeprefix("Note: ") for line in self._footer() if line]
        return fragment(f"{self.label}: {self._description}", *parts, notes=footer)

    @property
    def _description(self) -> str:
        rows = "events" if self.protocol == "session" else "users"
        part = f"{self.protocol} {self.part} part {self.fingerprint}, {self.n_users:,} {rows}"
        return part + REPEATED.get(self.repeats, "")

    def _rows(self, with_interval: str) -> list[list[str]]:
        """Return the cells of the table, its head first."""
        check_polars()
        rows: dict[tuple[str, str], list[str]] = {}
        for base, _, part, *numbers, _ in self.table.sort("k", maintain_order=True).rows():
            value, low, high = map(_number, numbers)
            cell = value if numbers[1] is None else with_interval.format(value, low, high)
            rows.setdefault((base, part), [base, part]).append(cell)
        order = self.table.select("metric", "slice").unique(maintain_order=True).rows()
        head = ["metric", "over", *(f"@{k}" for k in self.k)]
        return [head, *(rows[base, part] for base, part in order)]

    def _footer(self) -> list[str]:
        recall = self.definitions.get("recall")
        lines = ["", f"Recall: {recall}."] if recall else []
        if self.bootstrap:
            lines += ["", f"In brackets: 95% bootstrap intervals over users ({self.bootstrap:,})."]
        return lines + [line for note in self.notes for line in ("", f"Note: {note}.")]


def _restore(stored: Stored) -> Result:
    meta = stored.meta
    content = {"repeats": "new", **meta, **stored.frames}
    names = {f.name for f in fields(Result)}
    if set(content) != names:
        differing = ", ".join(sorted(names ^ set(content)))
        raise FileFormatError(f"it is not a complete result: {differing}")
    for name in ("name", "protocol", "part", "fingerprint", "data_fingerprint", "version"):
        meta.text(name)
    if "repeats" in meta:
        meta.text("repeats", ("new", *REPEATED))
    for name in ("exclude_seen", "tuned_on_test"):
        meta.flag(name)
    for name in ("n_users", "n_items", "bootstrap"):
        meta.whole_number(name)
    meta.whole_number("seed", most=LARGEST_SEED)
    meta.group("settings")
    definitions, seconds = meta.group("definitions"), meta.group("seconds")
    content["definitions"] = {name: definitions.text(name) for name in definitions}
    content["seconds"] = {name: seconds.number(name, least=0) for name in seconds}
    content["k"] = tuple(meta.wholes("k", least=1))
    if not content["k"] or list(content["k"]) != sorted(set(content["k"])):
        raise FileFormatError(f"its cut-offs must ascend, got {meta['k']}")
    stored.frame("per_user", meta["n_users"])
    result = Result(**content)
    _check_tables(result)
    return result


def _check_tables(result: Result) -> None:
    """Raise unless the tables have the types and the unique rows that `evaluate` makes."""
    table, per_user = result.table, result.per_user
    if table.schema != pl.Schema(SCHEMA):
        raise FileFormatError(f"its table should have the columns {', '.join(SCHEMA)}")
    if "user" not in per_user.columns or any(
        not kind.is_float() for name, kind in per_user.schema.items() if name != "user"
    ):
        raise FileFormatError("its values per user should be a column 'user' and numbers")
    numbers = [*table.select("value", "low", "high"), *per_user.drop("user")]
    if any(column.is_infinite().any() for column in numbers):
        raise FileFormatError("its tables hold infinite values")
    keys = table.select("metric", "slice", "k")
    if any(keys.null_count().row(0)) or keys.is_duplicated().any():
        raise FileFormatError("a number of its table occurs twice or has no name")
    cells = keys.select("metric", "slice").unique().height * len(result.k)
    if cells != keys.height or not set(keys["k"]) <= set(result.k):
        raise FileFormatError("its table does not hold every metric at every cut-off")
    named = {Named(part, base).name for base, part in keys.select("metric", "slice").rows()}
    if named != set(result.definitions) or not set(per_user.columns) <= {"user", *result}:
        raise FileFormatError("its tables, definitions and values per user are not of one result")
    known = table["n_users"].drop_nulls()
    if ((known < 0) | (known > result.n_users)).any():
        raise FileFormatError("its table counts more users than there are")


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, its head first; columns after the second are right-aligned."""
    ruler = ["---", "---", *["---:"] * (len(rows[0]) - 2)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], ruler, *rows[1:]))


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.1f}"
