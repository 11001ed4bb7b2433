"""Events in bulk: from JSON lines and Parquet into the store, and back."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import islice
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

import polars as pl
from pydantic import TypeAdapter, ValidationError

from equipoise.checks import moment
from equipoise.errors import DataError, SettingError
from equipoise.runtime.machine import check_polars
from equipoise.serve.records import COLUMNS
from equipoise.serve.schemas import DescribedItem, NewEvent
from equipoise.serve.store import Event, Mark, Store

AT_ONCE = 2_000  # events in one transaction
DAY = 86_400
FIELDS = (*NewEvent.model_fields,)
KINDS = dict.fromkeys(COLUMNS, pl.String) | {"weight": pl.Float64, "time": pl.Float64}
LISTED = TypeAdapter(list[NewEvent])
ITEMS = TypeAdapter(list[DescribedItem])
Row = TypeVar("Row")
WeightOf = Callable[[str], float]


def as_stored(
    new: Sequence[NewEvent], weight_of: WeightOf, prefix: str, first: int = 0
) -> tuple[list[Event], list[Mark]]:
    """Return events and marks as the store takes them.

    Parameters
    ----------
    new
        Validated events.
    weight_of
        Weight of an event type, for events without a weight.
    prefix, first
        An event without an id gets the prefix and its number, counted from `first`.
    """
    now = time.time()
    events, marks = [], []
    for number, event in enumerate(new, start=first):
        when = now if event.time is None else event.time
        if when > now + DAY:
            raise SettingError(
                "an event is more than a day in the future; times are seconds since 1970"
            )
        if event.mark is not None:
            marks.append(Mark(event.user, event.item, when))
            continue
        weight = weight_of(event.type) if event.weight is None else event.weight
        name = event.id or f"{prefix}-{number:06d}"  # ids in the order of the events
        events.append(Event(name, event.user, event.item, event.type, weight, when, event.list_id))
    return events, marks


def type_weight(event_type: str, tables: Sequence[Mapping[str, float]]) -> float:
    """Return the weight of an event type from the first table that has it."""
    for weights in tables:
        if event_type in weights:
            return weights[event_type]
    known = ", ".join(sorted({name for weights in tables for name in weights}))
    raise SettingError(
        f"no weight for events of type {event_type!r}; known are {known}; "
        "send a weight with it, or add it to weights in the settings"
    )


class Import:
    """Takes events into a store, part by part, and counts them.

    Parameters
    ----------
    store, weight_of
        As of `as_stored`.
    batch
        Name of the import: events without an id get one from it and their place, so that an
        import repeated under the same name counts no event twice.
    check
        Called with the events of each part before they are written; raises to refuse them.
    """

    def __init__(
        self,
        store: Store,
        weight_of: WeightOf,
        batch: str,
        check: Callable[[Sequence[NewEvent]], None] = lambda _: None,
    ) -> None:
        self._store, self._weight_of, self._batch, self._check = store, weight_of, batch, check
        self.rows = self.accepted = self.duplicates = self.seen = 0

    def take(self, records: Sequence[Any], place: Callable[[int], str]) -> None:
        """Write a part; raise with the place of the first record that is not valid."""
        new = validate(records, lambda n: self._located(place(self.rows + n)), LISTED)
        try:
            self._check(new)
            events, marks = as_stored(new, self._weight_of, self._batch, self.rows)
        except (DataError, SettingError):
            self._refuse_one(new, place)
            raise
        accepted = self._store.do(self._store.add(events, marks))
        self.rows += len(new)
        self.accepted += accepted
        self.duplicates += len(events) - accepted
        self.seen += len(marks)

    def _refuse_one(self, new: Sequence[NewEvent], place: Callable[[int], str]) -> None:
        """Raise with the place of the first event that is refused."""
        for number, event in enumerate(new):
            try:
                self._check([event])
                as_stored([event], self._weight_of, self._batch)
            except (DataError, SettingError) as error:
                raise DataError(f"{self._located(place(self.rows + number))}{error}") from error

    def _located(self, place: str) -> str:
        stored = f" ({self.rows:,} rows before it are stored)" if self.rows else ""
        return f"{place}{stored}: "

    def counts(self) -> dict[str, int]:
        """Return the numbers of rows, of new and known events, and of marks."""
        return {name: getattr(self, name) for name in ("rows", "accepted", "duplicates", "seen")}


class ItemImport:
    """Takes attributes of items into a store, part by part, and counts the items.

    The attributes replace those that an item had; of several lines on an item the last one counts.
    """

    def __init__(self, store: Store) -> None:
        self._store, self.rows = store, 0

    def take(self, records: Sequence[Any], place: Callable[[int], str]) -> None:
        """Write a part; raise with the place of the first record that is not valid."""

        def located(number: int) -> str:
            stored = f" ({self.rows:,} items before it are stored)" if self.rows else ""
            return f"{place(self.rows + number)}{stored}: "

        new = validate(records, located, ITEMS)
        values = {item.item: item.model_dump(exclude={"item"}) for item in new}
        self._store.do(self._store.describe_all(values))
        self.rows += len(new)


ID_TYPES = ("constrained-int", "constrained-str")  # how pydantic calls the two kinds of ids


def validate(
    records: Sequence[Any],
    located: Callable[[int], str],
    adapter: TypeAdapter[list[Row]],
) -> list[Row]:
    """Return valid records; raise with the place of the first one that is not valid."""
    try:
        return adapter.validate_python(records)
    except ValidationError as error:
        errors = error.errors()
        number, *path = errors[0]["loc"] or (0,)
        of_field = [
            e for e in errors if e["loc"][1:2] == tuple(path[:1]) and e["loc"][0] == number
        ]
        # an id may be text or an integer, and has an error for either; that of its own type tells
        first = next((e for e in of_field if not e["type"].endswith("_type")), errors[0])
        is_no_id = first["loc"][-1] in ID_TYPES and first["type"].endswith("_type")
        problem = "Input should be text or a whole number" if is_no_id else first["msg"]
        field = ".".join(str(part) for part in first["loc"][1:] if part not in ID_TYPES)[:200]
        where = located(int(number))
        raise DataError(f"{where}{field + ': ' if field else ''}{problem}") from None


class LineSplitter:
    """Splits a stream of bytes into lines of JSON.

    Parameters
    ----------
    longest
        Largest number of bytes of a line.
    """

    def __init__(self, longest: int) -> None:
        self._rest, self._longest, self._number = b"", longest, 0

    def feed(self, data: bytes, *, last: bool = False) -> list[Any]:
        """Return the records of the lines that end in these bytes; empty lines are left out."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if last:
            lines, self._rest = [*lines, self._rest], b""
        if len(self._rest) > self._longest:
            self._refuse(f"longer than {self._longest:,} bytes")
        return [record for line in lines if (record := self._parsed(line)) is not None]

    def _parsed(self, line: bytes) -> Any:
        self._number += 1
        if not line.strip():
            return None
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            self._number -= 1
            self._refuse("not a JSON object")
        if not isinstance(record, dict):
            self._number -= 1
            self._refuse("not a JSON object")
        return record

    def _refuse(self, reason: str) -> NoReturn:
        raise DataError(f"line {self._number + 1:,} is {reason}; send one JSON object per line")


def import_lines(chunks: Iterable[bytes], job: Import, longest: int) -> None:
    """Take JSON lines from a stream."""
    splitter, waiting = LineSplitter(longest), []
    for chunk in chunks:
        waiting += splitter.feed(chunk)
        while len(waiting) >= AT_ONCE:
            job.take(waiting[:AT_ONCE], line_name)
            del waiting[:AT_ONCE]
    waiting += splitter.feed(b"", last=True)
    for start in range(0, len(waiting), AT_ONCE):
        job.take(waiting[start : start + AT_ONCE], line_name)


def line_name(number: int) -> str:
    """Return the place of an event among JSON lines."""
    return f"event {number + 1:,}"


def item_name(number: int) -> str:
    """Return the place of an item among JSON lines."""
    return f"item {number + 1:,}"


def import_parquet(file: IO[bytes], job: Import) -> None:
    """Take the rows of a Parquet file; columns of times may be datetimes."""
    check_polars()
    try:
        schema = pl.read_parquet_schema(file)
        unknown = [name for name in schema if name not in FIELDS]
        if unknown:
            raise DataError(
                f"the file has a column {unknown[0]!r}; columns are {', '.join(FIELDS)}"
            )
        file.seek(0)
        n_rows = pl.scan_parquet(file).select(pl.len()).collect().item()
        for start in range(0, n_rows, 10 * AT_ONCE):
            file.seek(0)
            frame = pl.scan_parquet(file).slice(start, 10 * AT_ONCE).collect()
            records = iter(frame.to_dicts())
            while part := list(islice(records, AT_ONCE)):
                job.take([_without_nulls(record) for record in part], row_name)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"not a whole Parquet file; write it again ({reason})") from error


def row_name(number: int) -> str:
    """Return the place of an event in a table."""
    return f"row {number + 1:,}"


def _without_nulls(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known values of a row, with times in seconds."""
    row = {name: value for name, value in record.items() if value is not None}
    if isinstance(row.get("time"), date):
        row["time"] = moment("time", row["time"])
    return row


def to_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return rows as JSON lines."""
    texts = (json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
    return "".join(texts).encode()


def event_lines(pages: Iterable[Sequence[Mapping[str, Any]]]) -> Iterator[bytes]:
    """Yield pages of events as JSON lines that an import takes."""
    for page in pages:
        yield to_lines(
            {name: row[name] for name in COLUMNS if row[name] is not None} for row in page
        )


@contextlib.contextmanager
def parquet_file(pages: Iterable[Sequence[Mapping[str, Any]]]) -> Iterator[Path]:
    """Write pages of events as a Parquet file that an import takes; delete it at the end."""
    check_polars()
    with tempfile.TemporaryDirectory(prefix="equipoise-export-") as folder:
        for number, page in enumerate(pages):
            rows = {name: [row[name] for row in page] for name in COLUMNS}
            pl.DataFrame(rows, schema=KINDS).write_parquet(Path(folder) / f"{number:09d}.parquet")
        parts = sorted(Path(folder).glob("*.parquet"))
        frame = pl.scan_parquet(parts) if parts else pl.LazyFrame(schema=KINDS)
        out = Path(folder) / "events"
        frame.sink_parquet(out)
        for part in parts:
            part.unlink()
        yield out


def import_file(path: str | os.PathLike[str], job: Import, longest: int) -> None:
    """Take a file of JSON lines or a Parquet file."""
    with open(path, "rb") as file:
        is_parquet = file.read(4) == b"PAR1"
        file.seek(0)
        if is_parquet:
            import_parquet(file, job)
        else:
            import_lines(iter(lambda: file.read(1 << 20), b""), job, longest)
