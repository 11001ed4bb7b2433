"""Logs as JSON lines, and as text on a terminal."""

from __future__ import annotations

import io
import json
import logging
import sys

import pytest

from equipoise.serve.logs import Lines, TextLines, write_lines


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


def test_a_record_with_entries_has_a_line_for_each(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [{"time": 1.5, "route": "/v1/items", "token": "Ω"}, {"time": 2.5, "route": "/"}]
    logger.info("request", extra={"entries": entries})
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["message"], first["level"], first["time"]) == ("request", "info", 1.5)
    assert (first["route"], first["token"], second["route"]) == ("/v1/items", "Ω", "/")


def test_a_missing_log_fails_no_request(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    logger.info("nobody reads this")


def test_text_for_people_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    shop_logger = logging.Logger("shop")
    shop_logger.addHandler(TextLines())
    shop_logger.info("request", extra={"fields": {"route": "/v1/x", "ms": 1.5, "token": ""}})
    shop_logger.warning("bad \x1b[31m id", extra={"fields": {"item": "a\nb"}})
    try:
        raise ValueError("broken")
    except ValueError:
        shop_logger.exception("failed")
    first, second, third, *trace = capsys.readouterr().err.splitlines()
    assert first[8:] == " info    request route=/v1/x ms=1.5"
    assert second[8:] == " warning bad ?[31m id item=a?b"
    assert third[8:] == " error   failed"
    assert trace[-1] == "    ValueError: broken"


@pytest.mark.parametrize(
    ("form", "terminal", "kind"),
    [
        ("auto", True, TextLines),
        ("auto", False, Lines),
        ("json", True, Lines),
        ("text", False, TextLines),
    ],
)
def test_a_terminal_gets_text_and_a_file_json(
    form: str, terminal: bool, kind: type[Lines], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    loggers = [logging.getLogger(name) for name in ("equipoise", "uvicorn", "uvicorn.error")]
    before = [(entry, entry.handlers[:], entry.propagate, entry.level) for entry in loggers]
    try:
        write_lines(form)
        assert [type(handler) for handler in logging.getLogger("equipoise").handlers] == [kind]
    finally:
        for entry, handlers, propagate, level in before:
            entry.handlers[:], entry.propagate = handlers, propagate
            entry.setLevel(level)
