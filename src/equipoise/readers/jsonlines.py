"""JSON lines: one object per line."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from equipoise.errors import DataError
from equipoise.readers.frames import series
from equipoise.readers.opening import text_contents
from equipoise.readers.options import OnBad, Options
from equipoise.readers.table import Source, Table, bad_row

NEWLINE = b"\n"


@dataclass
class JsonLines:
    """The records of one or several files, and which of them could not be parsed.

    Parameters
    ----------
    data
        The content of all files, one after another.
    files
        The offset at which each file starts in the content, and its name.
    frame
        The records.
    starts
        The offset of the line of each record; None where no line was left out.
    skipped
        How many lines could not be parsed, by reason.
    """

    data: bytes
    files: list[tuple[int, str]]
    frame: pl.DataFrame
    starts: list[int] | None
    skipped: dict[str, int]

    def load(self, ids: Sequence[str], others: Sequence[str]) -> Table:
        """Return these columns; ids that are numbers here and text there are refused."""
        for name in ids:
            if self.frame[name].dtype == pl.String and self.starts is None:
                self._refuse_mixture(name)
        wanted = list(dict.fromkeys([*ids, *others]))
        return Table(self.frame.select(wanted), self._locate, self.skipped)

    def _locate(self, row: int) -> str:
        starts = self.starts
        if starts is None:
            starts = [start for start, _ in _lines(self.data)]
        return _line_at(self.data, self.files, starts[row])

    def _refuse_mixture(self, column: str) -> None:
        """Look for numbers in a column of text: polars would turn 1 into "1"."""
        key = re.escape(json.dumps(column).encode())
        for hit in re.finditer(key + rb"\s*:\s*[-0-9tf]", self.data):
            start = self.data.rfind(b"\n", 0, hit.start()) + 1
            stop = self.data.find(b"\n", hit.start())
            record = json.loads(self.data[start : stop if stop >= 0 else None])
            if isinstance(record.get(column), (int, float)):
                raise DataError(
                    f"{_line_at(self.data, self.files, start)}: column {column!r} holds the "
                    f"number {record[column]!r} here and text elsewhere; use one kind of ids"
                )


def jsonlines_parts(name: str, paths: Sequence[Path], options: Options) -> Source:
    """Open files of JSON lines, which are one table as if they were one file."""
    pieces: list[bytes] = []
    files: list[tuple[int, str]] = []
    for path in paths:
        opened = text_contents(path, options.encoding)
        piece = opened if isinstance(opened, bytes) else opened.read_bytes()
        if not piece.strip():
            raise DataError(f"{path} holds only blank lines; it needs at least one row")
        if piece.lstrip()[:1] == b"[":
            raise DataError(f"{path} is one JSON array; write one object per line instead")
        files.append((sum(len(before) for before in pieces), str(path)))
        pieces.append(piece if piece.endswith(b"\n") else piece + b"\n")
    data = b"".join(pieces)
    try:
        frame = pl.read_ndjson(io.BytesIO(data), infer_schema_length=None)
        file = JsonLines(data, files, frame, None, {})
    except pl.exceptions.PolarsError:
        file = _line_by_line(name, data, files, options.on_bad)
    return Source(name, tuple(file.frame.columns), file.load)


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank and where they start."""
    start = 0
    for line in data.split(b"\n"):
        if line.strip():
            yield start, line
        start += len(line) + 1


def _line_at(data: bytes, files: list[tuple[int, str]], start: int) -> str:
    """Name a line by the file it is in and its number there."""
    begin, name = next(entry for entry in reversed(files) if entry[0] <= start)
    return f"{name}, line {data.count(NEWLINE, begin, start) + 1}"


def _line_by_line(
    name: str, data: bytes, files: list[tuple[int, str]], on_bad: OnBad
) -> JsonLines:
    """Parse with the standard library, which says which line is wrong and accepts NaN."""
    records: list[dict[str, Any]] = []
    starts: list[int] = []
    reason = "the line is not a JSON object"
    wrong = 0
    for start, line in _lines(data):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            records.append(record)
            starts.append(start)
            continue
        if on_bad == "error":
            raise bad_row(_line_at(data, files, start), reason)
        wrong += 1
    if not records:
        raise DataError(f"{name}: no line is a JSON object; check that it is a JSON lines file")
    keys = dict.fromkeys(key for record in records for key in record)
    flat = {key: [record.get(key) for record in records] for key in keys}
    columns = [
        series(values, key, lambda row: _line_at(data, files, starts[row]))
        for key, values in flat.items()
        if not _nested(values)
    ]
    frame = pl.DataFrame(columns)
    return JsonLines(data, files, frame, starts, {reason: wrong} if wrong else {})


def _nested(values: list[Any]) -> bool:
    return any(isinstance(value, (list, dict)) for value in values)
