"""One place that decides on the number of threads, for BLAS and for our own kernels.

Kernels are compiled to release the GIL and run on plain Python threads: no second thread pool
that could clash with the caller's threads or processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import threadpoolctl

from equipoise.errors import SettingError

_limit: ContextVar[int | None] = ContextVar("threads", default=None)


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """Use at most this many threads inside the block; None leaves things as they are."""
    if threads is None:
        yield
        return
    if threads < 1:
        raise SettingError(f"threads must be >= 1, got {threads}")
    token = _limit.set(threads)
    try:
        with _blas().limit(limits=threads, user_api="blas"):
            yield
    finally:
        _limit.reset(token)


@contextmanager
def one_blas_thread(wanted: bool = True) -> Iterator[None]:
    """Keep BLAS on one thread inside the block, where that is wanted.

    Its threads wait for one another thousands of times in a small factorisation. On a machine
    that others use too, each wait can take as long as the whole work does on one thread.
    """
    if not wanted:
        yield
        return
    with _blas().limit(limits=1, user_api="blas"):
        yield


@lru_cache(maxsize=1)
def _blas() -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController()


def count() -> int:
    """Return the number of threads in force: the limit, or the processors we may use."""
    limit = _limit.get()
    if limit is not None:
        return limit
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run(task: Callable[[int], None], n_tasks: int) -> None:
    """Call ``task(0)`` ... ``task(n_tasks - 1)`` on the threads in force, in any order."""
    workers = min(count(), n_tasks)
    if workers <= 1:
        for number in range(n_tasks):
            task(number)
        return
    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(task, range(n_tasks)):
            pass
