"""Ends a worker whose event loop hangs, so that the supervisor replaces it.

The supervisor asks a thread of the worker for a sign of life, which answers also if the event loop
hangs in a call that does not return. This watches the loop itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable

logger = logging.getLogger("equipoise.serve")

CODE = 70  # exit code of a worker that hung: an internal error, as in sysexits.h
CHECKS = 10  # in the time after which a loop counts as hung
DEEPEST = 30  # lines of the stack that are logged


class LoopWatchdog:
    """Watches the event loop of this thread from another thread.

    Parameters
    ----------
    seconds
        Time without a turn of the loop after which `end` is called.
    end
        Called with the exit code.
    """

    def __init__(self, seconds: float, end: Callable[[int], object] = os._exit) -> None:
        self._pause, self._end = seconds / CHECKS, end
        self._loop_thread = threading.get_ident()
        self._turns = 0
        self._stopped = threading.Event()
        self._beating = asyncio.create_task(self._beat())
        self._thread = threading.Thread(target=self._watch, name="loop watchdog", daemon=True)
        self._thread.start()

    async def _beat(self) -> None:
        while True:
            self._turns += 1
            await asyncio.sleep(self._pause / 2)

    def _watch(self) -> None:
        # Checks are counted, and not the time: a machine that was suspended is no hung loop.
        seen, missed = -1, 0
        while not self._stopped.wait(self._pause):
            missed = missed + 1 if self._turns == seen else 0
            seen = self._turns
            if missed >= CHECKS:
                self._report(missed * self._pause)
                self._end(CODE)
                return

    def _report(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        stack = traceback.format_stack(frame)[-DEEPEST:] if frame is not None else []
        fields = {"seconds": round(seconds, 1), "trace": "".join(stack)}
        logger.error("the event loop hangs; the worker is replaced", extra={"fields": fields})

    def stop(self) -> None:
        """End the watch."""
        self._stopped.set()
        self._beating.cancel()
