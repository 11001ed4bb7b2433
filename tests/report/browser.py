"""A headless Chromium driven over a pipe, by the DevTools protocol and the standard library."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PATIENCE = 60.0  # seconds until an answer; a busy machine is no failure
# Chromium reads commands from descriptor 3 and answers on 4.
LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def find_browser() -> str | None:
    """Return the path of a Chromium, None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


class Browser:
    """One page in one browser.

    Attributes
    ----------
    complaints
        What the page wrote to the console as a warning or error, and exceptions it did not catch.
    requests
        Addresses the page asked for.
    """

    def __init__(self, program: str, profile: Path) -> None:
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        command = [sys.executable, "-c", LAUNCH, str(to_read), str(to_write), program, *OPTIONS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        try:
            self._attach()
        except Exception:
            self._process.kill()
            raise

    def _attach(self) -> None:
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its answer; events on the way are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def open(self, page: Path | str, *, width: int = 1100, dark: bool = False) -> None:
        """Load a file or an address and wait until it is there."""
        self.ask("Page.navigate", url="about:blank")  # the page before complains no more
        self.complaints, self.requests = [], []
        self.resize(width)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", media="screen", features=[scheme])
        address = page if isinstance(page, str) else page.as_uri()
        self.ask("Page.navigate", url=address)
        end = time.monotonic() + PATIENCE
        while self.run("document.readyState + location.protocol") not in (
            "completefile:",
            "completehttp:",
        ):
            assert time.monotonic() < end, "the page did not load"
            time.sleep(0.02)

    def resize(self, width: int) -> None:
        """Set the width of the window."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", **size)

    def scripts(self, allowed: bool) -> None:
        """Let pages run scripts, or not; `run` works either way."""
        self.ask("Emulation.setScriptExecutionDisabled", value=not allowed)

    def run(self, expression: str) -> Any:
        """Evaluate JavaScript in the page and return its value."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press and release a key."""
        for kind in ("rawKeyDown", "keyUp"):
            event = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code}
            self.ask("Input.dispatchKeyEvent", **event)

    def screenshot(self, path: Path) -> None:
        """Write the whole page as PNG."""
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """End the browser."""
        self._session = None
        self.ask("Browser.close")
        self._process.wait(PATIENCE)
        os.close(self._out)
        os.close(self._in)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], PATIENCE)
            chunk = os.read(self._in, 1 << 20) if ready else b""
            if not chunk:
                raise RuntimeError("the browser gave no answer")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = dict(json.loads(line))
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event: str | None, params: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("warning", "error"):
            self.complaints.append(params["entry"]["text"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"]["text"])
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("warning", "error"):
            self.complaints.append(str(params["args"]))
