"""Logs as JSON lines."""

from __future__ import annotations

import io
import json
import logging
import sys

import pytest

from equipoise.serve.logs import Lines


@pytest.fixture
def logger() -> logging.Logger:
    shop_logger = logging.Logger("shop")
    shop_logger.addHandler(Lines())
    return shop_logger


def test_a_record_is_one_line(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("failed", extra={"fields": {"request": "Ω"}})
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["message"], entry["level"], entry["request"]) == ("failed", "error", "Ω")
    assert entry["error"] == "ValueError"


def test_a_log_that_is_gone_fails_no_request(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    logger.info("nobody reads this")
