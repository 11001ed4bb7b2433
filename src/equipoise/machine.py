"""What the machine has free, and sizes and times in words."""

from __future__ import annotations

import os
import re
from pathlib import Path

from equipoise.errors import SettingError

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
BINARY = {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def parse_memory(text: str | float) -> int:
    """Read a size such as "6GB", "700 MB", "2GiB" or a number of bytes.

    >>> parse_memory("1.5GB"), parse_memory("2GiB")
    (1500000000, 2147483648)
    """
    match = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?I?)B?\s*", str(text).upper())
    try:
        assert match is not None
        size = float(match[1]) * (UNITS | BINARY)[match[2]]
    except (AssertionError, ValueError, KeyError):
        raise SettingError(f"memory must look like '6GB' or 6e9, got {text!r}") from None
    if not size > 0:
        raise SettingError(f"memory must be > 0, got {text!r}")
    return int(size)


def free_memory() -> int:
    """Bytes that can be taken now: free memory, and the container's limit where there is one."""
    free = meminfo("MemAvailable")
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        try:
            left = int(Path(limit).read_text()) - int(Path(used).read_text())
        except (OSError, ValueError):
            continue
        free = min(free, max(left, 0))
    return free


def meminfo(field: str) -> int:
    """Return a line of the kernel's memory table in bytes; all memory where there is none."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def gigabytes(size: float) -> str:
    """Return a size for people.

    >>> gigabytes(6.7e9), gigabytes(3e6)
    ('6.7 GB', '0.003 GB')
    """
    return f"{size / 1e9:.2g} GB" if size < 1e10 else f"{size / 1e9:,.0f} GB"


def duration(seconds: float) -> str:
    """Return a time for people.

    >>> duration(0.4), duration(75), duration(7200)
    ('0.4 s', '1 min 15 s', '2 h 0 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds) // 60
    if minutes < 60:
        return f"{minutes} min {round(seconds) % 60} s"
    return f"{minutes // 60:,} h {minutes % 60} min"
