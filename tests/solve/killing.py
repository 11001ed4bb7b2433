"""Kill a tiled solve at every step and resume it; run as a script by its test.

Arguments: a folder, and the moment to kill at: "tile" (a new tile is written, the state is old),
"state" (the new state is written beside the old one) or "flip" (the new state counts, the old tile
is still there). Prints the number of kills.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from equipoise.runtime.machine import limited
from equipoise.solve import tiled

# A step calls `os.fsync` for the tile and for the state, then `os.replace` to let it count. Each
# process does one complete step and dies in the next, after this many calls.
MOMENTS = {"tile": ("fsync", 3), "state": ("fsync", 4), "flip": ("replace", 2)}


def problem() -> tuple[sp.csr_array, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = sp.csr_array((rng.random((60, 26)) < 0.2).astype(np.float32))
    return X, rng.random(60) + 0.5, rng.random(26) * 5 + 5


def die_at(name: str, call: int) -> None:
    """Let the process kill itself after this many calls of a function of `os`."""
    original, calls = getattr(os, name), 0

    def counted(*arguments: object) -> object:
        nonlocal calls
        result = original(*arguments)
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(os, name, counted)


def main(folder: Path, moment: str) -> int:
    with limited(1):
        expected, _, _ = tiled.invert(*problem(), tile_rows=9, scratch=folder / "whole")
        expected = np.array(expected)
        kills = 0
        while True:
            child = os.fork()
            if child == 0:
                die_at(*MOMENTS[moment])
                tiled.invert(*problem(), tile_rows=9, scratch=folder / "killed")
                os._exit(0)
            _, status = os.waitpid(child, 0)
            if not os.WIFSIGNALED(status):
                break
            kills += 1
        resumed, _, _ = tiled.invert(*problem(), tile_rows=9, scratch=folder / "killed")
    assert os.waitstatus_to_exitcode(status) == 0
    np.testing.assert_array_equal(resumed, expected)
    assert sorted(f.name for f in (folder / "killed").iterdir()) == ["inverse.npy", "state.json"]
    return kills


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), sys.argv[2]))
