"""Free memory, sizes and durations as text, remaining time, and threads.

Kernels release the GIL and run on plain Python threads: no second thread pool that could clash
with the caller's threads or processes.
"""

from __future__ import annotations

import io
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any

import threadpoolctl

from equipoise import checks
from equipoise.errors import ForkError, SettingError

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
CGROUPS = (  # limit and usage of the container, in cgroup v2 and v1
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


def parse_memory(text: str | float) -> int:
    """Return a size such as "6GB", "700 MB" or "2GiB" in bytes.

    >>> parse_memory("1.5GB"), parse_memory("2GiB")
    (1500000000, 2147483648)
    """
    match = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?I?)B?\s*", str(text).upper())
    try:
        size = float(match[1]) * UNITS[match[2]] if match else float("nan")
    except (ValueError, KeyError):
        match = None
    if match is None:
        raise SettingError(f"memory must look like '6GB' or 6e9, got {text!r}")
    if not size > 0:
        raise SettingError(f"memory must be > 0, got {text!r}")
    return int(size)


def free_memory() -> int:
    """Return the free memory in bytes, within the limit of the container if there is one."""
    free = meminfo("MemAvailable")
    for names in CGROUPS:
        try:
            limit, used = (int((Path("/sys/fs/cgroup") / name).read_text()) for name in names)
        except (OSError, ValueError):
            continue
        free = min(free, max(limit - used, 0))
    return free


def meminfo(field: str) -> int:
    """Return a field of /proc/meminfo in bytes; the installed memory where it does not exist."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def gigabytes(size: float) -> str:
    """Return a size as text.

    >>> gigabytes(6.7e9), gigabytes(3e6)
    ('6.7 GB', '0.003 GB')
    """
    return f"{size / 1e9:.2g} GB" if size < 1e10 else f"{size / 1e9:,.0f} GB"


def duration(seconds: float) -> str:
    """Return a duration as text.

    >>> duration(0.4), duration(75), duration(7200)
    ('0.4 s', '1 min 15 s', '2 h 0 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds) // 60
    if minutes < 60:
        return f"{minutes} min {round(seconds) % 60} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


class Pace:
    """Estimate the remaining time of a job from its steps after the first one.

    The first step is ignored because it also compiles kernels and prepares the data.
    """

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None

    def left(self, done: float, total: float) -> float | None:
        """Return the seconds left, or None if unknown yet. Call it after each step."""
        now = time.perf_counter()
        if done >= total:
            return 0.0
        if self._first is None and done > 0:
            self._first = done, now
        before, since = self._first or (done, now)
        return (now - since) / (done - before) * (total - done) if done > before else None


MOST_THREADS = 1 << 16
_limit: ContextVar[int | None] = ContextVar("threads", default=None)


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """Use at most this many threads inside the block; None changes nothing."""
    if threads is None:
        yield
        return
    threads = checks.count("threads", threads, 1, MOST_THREADS)
    token = _limit.set(threads)
    try:
        with _blas().limit(limits=threads, user_api="blas"):
            yield
    finally:
        _limit.reset(token)


def one_blas_thread(condition: bool = True) -> AbstractContextManager[Any]:
    """Limit BLAS to one thread inside the block, if the condition holds.

    Its threads wait for one another thousands of times in a small factorisation. On a busy
    machine each wait can take as long as the factorisation does on one thread.
    """
    return _blas().limit(limits=1, user_api="blas") if condition else nullcontext()


@lru_cache(maxsize=1)
def _blas() -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController()


POLARS_STARTS = 5.0  # seconds in which polars does next to nothing, however busy the machine
_polars_state = "usable"  # in this process: "usable", "unknown" after a fork, or "broken"


def _doubt_polars() -> None:
    global _polars_state
    if _polars_state == "usable":
        _polars_state = "unknown"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_doubt_polars)


def check_polars() -> None:
    """Refuse to use polars in a fork of a process that used it: it would wait for ever.

    A fork has one thread, and polars counts on those of its pools, which it starts when they are
    first needed. Where they were not needed before the fork, everything works.
    """
    global _polars_state
    if _polars_state == "unknown":
        attempt = threading.Thread(target=_use_polars, daemon=True)
        attempt.start()
        attempt.join(POLARS_STARTS)
        _polars_state = "broken" if attempt.is_alive() else "usable"
    if _polars_state == "broken":
        raise ForkError(
            "polars, which reads and writes tables, cannot work in this process: it was forked "
            "from one that had used polars; start processes with "
            "multiprocessing.get_context('spawn') or 'forkserver', or fork before reading"
        )


def _use_polars() -> None:
    """Need each pool of threads that polars has: of columns, of queries and of files."""
    import polars as pl

    content = io.BytesIO()
    pl.DataFrame({"text": ["b", "a"]}).lazy().sort("text").collect().write_parquet(content)
    pl.read_parquet(content).filter(pl.col("text").str.contains("a"))


def count() -> int:
    """Return the number of threads to use: the limit, or the available processors."""
    limit = _limit.get()
    if limit is not None:
        return limit
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run(task: Callable[[int], None], n_tasks: int) -> None:
    """Call ``task(0)`` ... ``task(n_tasks - 1)`` on `count` threads, in any order."""
    workers = min(count(), n_tasks)
    if workers <= 1:
        for number in range(n_tasks):
            task(number)
        return
    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(task, range(n_tasks)):
            pass
