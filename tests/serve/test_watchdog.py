"""A worker whose event loop hangs is replaced; one that is only busy is not."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from tests.serve.conftest import READY, Start
from tests.serve.test_processes import ask

from equipoise.serve.watchdog import CODE, LoopWatchdog

# Python imports this module when it starts; the signal makes the event loop hang
HANGING = """
import signal, time
signal.signal(signal.SIGUSR2, lambda *_: time.sleep(3600))
"""


def ended(seconds: float, work: float) -> list[int]:
    """Return the codes that a watchdog ends with while the loop has no turn for a time."""
    codes: list[int] = []

    async def main() -> None:
        watchdog = LoopWatchdog(seconds, codes.append)
        for _ in range(3):
            await asyncio.sleep(seconds / 2)
            time.sleep(work)
        watchdog.stop()
        watchdog._thread.join(READY)

    asyncio.run(main())
    return codes


def test_a_loop_without_a_turn_is_ended_and_its_stack_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert ended(0.3, work=1.0) == [CODE]
    (record,) = caplog.records
    assert "time.sleep(work)" in record.fields["trace"]  # type: ignore[attr-defined]


def test_a_busy_loop_goes_on() -> None:
    assert ended(2.0, work=0.3) == []


def test_a_hung_worker_is_replaced(
    saved: Path, start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "hanging"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HANGING)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("EQUIPOISE_WATCHDOG", "2")
    monkeypatch.setenv("EQUIPOISE_LIMITS", '{"timeout": 1.0}')
    service = start(saved / "dan", "--store", f"sqlite:///{tmp_path}/x.db")
    (hung,) = service.workers()
    os.kill(hung, signal.SIGUSR2)
    service.wait_for("Application startup complete", 2)
    assert "the event loop hangs" in service.log.read_text()
    assert service.workers() != [hung]
    assert ask(service.address, "/v1/recommend/u5")[0] == 200
