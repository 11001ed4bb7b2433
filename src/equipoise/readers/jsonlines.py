"""JSON lines: one object per line."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from equipoise.errors import DataError
from equipoise.readers.frames import series
from equipoise.readers.opening import text_contents
from equipoise.readers.options import OnBad, Options
from equipoise.readers.table import Source, Table, bad_row


@dataclass
class JsonLines:
    """The records of a file, and which of them could not be parsed."""

    name: str
    data: bytes
    frame: pl.DataFrame
    lines: list[int] | None
    skipped: dict[str, int]

    def load(self, ids: Sequence[str], others: Sequence[str]) -> Table:
        """Return these columns; ids that are numbers here and text there are refused."""
        for name in ids:
            if self.frame[name].dtype == pl.String and self.lines is None:
                self._refuse_mixture(name)
        wanted = list(dict.fromkeys([*ids, *others]))
        return Table(self.frame.select(wanted), self._locate, self.skipped)

    def _locate(self, row: int) -> str:
        lines = self.lines
        if lines is None:
            lines = [n for n, line in enumerate(self.data.split(b"\n"), 1) if line.strip()]
        return f"{self.name}, line {lines[row]}"

    def _refuse_mixture(self, column: str) -> None:
        """Look for numbers in a column of text: polars would turn 1 into "1"."""
        key = re.escape(json.dumps(column).encode())
        for hit in re.finditer(key + rb"\s*:\s*[-0-9tf]", self.data):
            start = self.data.rfind(b"\n", 0, hit.start()) + 1
            stop = self.data.find(b"\n", hit.start())
            record = json.loads(self.data[start : stop if stop >= 0 else None])
            if isinstance(record.get(column), (int, float)):
                line = self.data.count(b"\n", 0, hit.start()) + 1
                raise DataError(
                    f"{self.name}, line {line}: column {column!r} holds the number "
                    f"{record[column]!r} here and text elsewhere; use one kind of ids"
                )


def jsonlines_source(path: Path, options: Options) -> Source:
    """Open a file of JSON lines."""
    data = text_contents(path, options.encoding)
    data = data if isinstance(data, bytes) else data.read_bytes()
    name = str(path)
    if not data.strip():
        raise DataError(f"{name} holds only blank lines; it needs at least one row")
    if data.lstrip()[:1] == b"[":
        raise DataError(f"{name} is one JSON array; write one object per line instead")
    try:
        frame = pl.read_ndjson(io.BytesIO(data), infer_schema_length=None)
        file = JsonLines(name, data, frame, None, {})
    except pl.exceptions.PolarsError:
        file = _line_by_line(name, data, options.on_bad)
    return Source(name, tuple(file.frame.columns), file.load)


def _line_by_line(name: str, data: bytes, on_bad: OnBad) -> JsonLines:
    """Parse with the standard library, which says which line is wrong and accepts NaN."""
    records: list[dict[str, Any]] = []
    lines: list[int] = []
    reason = "the line is not a JSON object"
    wrong = 0
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            records.append(record)
            lines.append(number)
            continue
        if on_bad == "error":
            raise bad_row(f"{name}, line {number}", reason)
        wrong += 1
    if not records:
        raise DataError(f"{name}: no line is a JSON object; check that it is a JSON lines file")
    keys = dict.fromkeys(key for record in records for key in record)
    flat = {key: [record.get(key) for record in records] for key in keys}
    columns = [series(values, key) for key, values in flat.items() if not _nested(values)]
    return JsonLines(name, data, pl.DataFrame(columns), lines, {reason: wrong} if wrong else {})


def _nested(values: list[Any]) -> bool:
    return any(isinstance(value, (list, dict)) for value in values)
