"""Logs of one JSON object a line."""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any


class Lines(logging.Handler):
    """Writes what is logged to stderr, one JSON object a line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; fields come in `extra={"fields": {...}}`."""
        try:
            self._write(record)
        except Exception:  # who reads the log has gone; the request is answered all the same
            self.handleError(record)

    def _write(self, record: logging.LogRecord) -> None:
        line: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "pid": os.getpid(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            line["trace"] = self.format_trace(record)
        sys.stderr.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
        sys.stderr.flush()

    def format_trace(self, record: logging.LogRecord) -> str:
        """Return the trace of an error, for the log alone."""
        return logging.Formatter().formatException(record.exc_info)  # type: ignore[arg-type]


def write_lines() -> None:
    """Let the library and the server log as JSON lines on stderr."""
    for name in ("equipoise", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [Lines()] if name != "uvicorn.error" else []
        logger.propagate = name == "uvicorn.error"
        logger.setLevel(logging.INFO)
