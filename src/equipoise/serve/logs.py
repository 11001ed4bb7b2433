"""Logging as JSON lines."""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any


class Lines(logging.Handler):
    """Writes log records to stderr, one JSON object per line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; fields come in `extra={"fields": {...}}`."""
        try:
            self._write(record)
        except Exception:  # stderr is closed; the request goes on
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
            line["trace"] = logging.Formatter().formatException(record.exc_info)
        sys.stderr.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
        sys.stderr.flush()


def write_lines() -> None:
    """Make the library and uvicorn log JSON lines to stderr."""
    for name in ("equipoise", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [Lines()] if name != "uvicorn.error" else []
        logger.propagate = name == "uvicorn.error"
        logger.setLevel(logging.INFO)
