"""Logging as JSON lines, or as text for people."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import to_json


class Lines(logging.Handler):
    """Writes log records to stderr, one JSON object per line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; fields come in `extra={"fields": {...}}`.

        A record with `extra={"entries": [...]}` has a line for each entry, a mapping with the time
        of the line and its fields.
        """
        try:
            self._write(record)
        except Exception:  # stderr is closed; the request goes on
            self.handleError(record)

    def _write(self, record: logging.LogRecord) -> None:
        entries: Sequence[Mapping[str, Any]] = getattr(record, "entries", ())
        if entries:
            level, message, process = record.levelname.lower(), record.getMessage(), os.getpid()
            start = {"level": level, "message": message, "pid": process}
            lines = [to_json({**start, **entry}).decode() for entry in entries]
            self._print("\n".join(lines))
            return
        line: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "pid": os.getpid(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            line["trace"] = logging.Formatter().formatException(record.exc_info)
        self._print(json.dumps(line, ensure_ascii=False, default=str))

    def _print(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


class TextLines(Lines):
    """Writes log records to stderr for people: time, level, message and fields."""

    def _write(self, record: logging.LogRecord) -> None:
        entries = getattr(record, "entries", None) or [getattr(record, "fields", {})]
        error = record.exc_info and record.exc_info[0] is not None
        for entry in entries:
            fields = dict(entry)
            when = time.strftime("%H:%M:%S", time.localtime(fields.pop("time", record.created)))
            trace = fields.pop("trace", None)
            if error and record.exc_info:
                trace = logging.Formatter().formatException(record.exc_info)
            words = [when, record.levelname.lower().ljust(7), record.getMessage()]
            words += [f"{name}={value}" for name, value in fields.items() if value != ""]
            sys.stderr.write(_printable(" ".join(words)) + "\n")
            for line in str(trace).splitlines() if trace else ():
                sys.stderr.write(f"    {_printable(line)}\n")
        sys.stderr.flush()


def _printable(text: str) -> str:
    """Replace control characters, which could steer a terminal, by question marks."""
    return "".join(c if c.isprintable() else "?" for c in text)


def write_lines(form: str = "auto") -> None:
    """Make the library and uvicorn log to stderr as "json" or "text"; "auto" asks the terminal."""
    is_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    kind = TextLines if is_text else Lines
    for name in ("equipoise", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [kind()] if name != "uvicorn.error" else []
        logger.propagate = name == "uvicorn.error"
        logger.setLevel(logging.INFO)
