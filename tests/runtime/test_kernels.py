"""Compiled kernels are cached in writable folders and read from read-only ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import FunctionType

from equipoise.runtime.kernels import compiled

# A module with a kernel; the folder of kernels refuses writes where a reason is given.
KERNEL = """
import errno, os, sys, tempfile
from equipoise.runtime.kernels import compiled

@compiled
def twice(x):
    return 2 * x

def refuse(*args, **options):
    raise OSError(getattr(errno, reason), "no")

for reason in sys.argv[1:]:
    os.replace = refuse
    if reason == "EROFS":  # numba tries a folder by a file of its own
        tempfile.TemporaryFile = os.makedirs = refuse
assert twice(21) == 42
print(twice.stats.cache_hits.total())
"""


def from_the_cache(module: Path, folder: Path, *reason: str) -> int:
    """Run the module; return how many kernels it found on disk."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, str(module), *reason]
    return int(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)


def twice(x: int) -> int:
    return 2 * x


def test_a_kernel_without_a_place_for_its_cache_compiles_in_memory() -> None:
    nowhere = twice.__code__.replace(co_filename="<nowhere>")  # no folder to write beside
    assert compiled(FunctionType(nowhere, {}))(21) == 42


def test_a_kernel_of_a_file_is_found_again_where_nothing_can_be_written(tmp_path: Path) -> None:
    module = tmp_path / "kernel.py"
    module.write_text(KERNEL)
    cache = tmp_path / "cache"
    assert from_the_cache(module, cache) == 0
    assert from_the_cache(module, cache) == 1
    assert from_the_cache(module, cache, "EROFS") == 1
    assert from_the_cache(module, tmp_path / "none", "EROFS") == 0


def test_a_full_disk_only_disables_the_kernel_cache(tmp_path: Path) -> None:
    module = tmp_path / "kernel.py"
    module.write_text(KERNEL)
    assert from_the_cache(module, tmp_path / "full", "ENOSPC") == 0
    assert from_the_cache(module, tmp_path / "full") == 0
