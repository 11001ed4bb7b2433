"""Connect to a Dask cluster, run tasks on its workers and translate its errors into ours.

Tasks are plain functions of this package. A result stays on its worker until it is fetched. When a
worker is lost, the scheduler computes its results again from their inputs, so results never depend
on which worker was lost when.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import multiprocessing
import platform
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np
import polars as pl

import equipoise
from equipoise.errors import ClusterError, MissingExtraError, SettingError
from equipoise.runtime import machine

F = TypeVar("F", bound=Callable[..., Any])

logger = logging.getLogger(__name__)

TIMEOUT = 10  # seconds to wait for the scheduler, and between checks that workers exist
NO_WORKER_TIMEOUT = 300  # seconds to wait while the cluster has no worker
FAN_IN = 8  # results merged by one step of a reduction
NO_WORKER, ALL_PAUSED = "the cluster has no worker", "all workers are paused: their memory is full"
REMEDIES = {
    NO_WORKER: "read the logs of the workers for why they ended, start some and run again",
    ALL_PAUSED: (
        "give them more memory, add workers, or close other programs and clients that keep data "
        "on them, and run again"
    ),
}
SHOWN = 5  # workers that a message names
_clients: dict[str, Any] = {}  # open clients, by address or "local"
_seen: dict[str, set[str]] = {}  # workers whose versions are right, by id of the client


def connect(client: Any = "local") -> Any:
    """Return a Dask client, whose workers have the versions of this process.

    Parameters
    ----------
    client
        A `distributed.Client`; the address of a scheduler, such as "tcp://host:8786"; or "local",
        which starts one worker process per processor of this machine. These end with this
        process. Their number, and the dashboard's address if Bokeh is installed, go to stderr.
    """
    connected = _open_client(client)
    _check_versions(connected)
    return connected


def _open_client(client: Any) -> Any:
    distributed = _import_distributed()
    if isinstance(client, distributed.Client):
        if client.asynchronous:
            raise SettingError("the client is asynchronous; make one with asynchronous=False")
        if client.status != "running":
            raise ClusterError(
                f"the client is {client.status}; make another one with the scheduler's address"
            )
        return client
    if not isinstance(client, str):
        raise SettingError(
            "client must be a distributed.Client, the address of a scheduler or 'local', got "
            f"{client!r}"
        )
    if client in _clients and _clients[client].status == "running":
        return _clients[client]
    if client == "local":
        return _start_local_client(distributed)
    try:
        _clients[client] = distributed.Client(client, timeout=TIMEOUT, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"no scheduler answers at {client}; start one with `dask scheduler` or check the "
            "address"
        ) from error
    return _clients[client]


def versions() -> dict[str, str]:
    """Return the versions that results depend on."""
    return {
        "equipoise": equipoise.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "numpy": np.__version__,
        "polars": pl.__version__,
    }


def _check_versions(client: Any) -> None:
    """Raise if a worker that was not seen before has other versions than this process."""
    seen = _seen.setdefault(client.id, set())
    new = set(client.nthreads()) - seen
    if not new:
        return
    with translate_errors(client):
        answers = client.run(versions, workers=sorted(new), on_error="return")
    expected = versions()
    wrong = []
    for worker, answer in sorted(answers.items()):
        if isinstance(answer, ModuleNotFoundError):
            wrong.append(f"{worker} has no {answer.name}")
        elif isinstance(answer, dict):
            other = [
                f"{name} {value}" for name, value in answer.items() if expected[name] != value
            ]
            wrong += [f"{worker} has {' and '.join(other)}"] if other else []
    if wrong:
        shown = "; ".join(wrong[:SHOWN]) + ("; ..." if len(wrong) > SHOWN else "")
        here = ", ".join(f"{name} {value}" for name, value in expected.items())
        raise ClusterError(
            f"all machines need the same versions, here {here}, but {shown}; install these on the "
            "workers and start them again"
        )
    seen |= new


def _start_local_client(distributed: Any) -> Any:
    # errors of tasks are raised in this process, so workers need not print them too
    cluster = start_local(machine.count(), dashboard_address=":0", silence_logs=logging.CRITICAL)
    client = _clients["local"] = distributed.Client(cluster, set_as_default=False)
    # exit handlers run last to first: the client must close before its cluster, or the cluster
    # would compute again what the client waits for
    atexit.register(cluster.close)
    atexit.register(client.close)
    dashboard = f"; dashboard at {cluster.dashboard_link}" if find_spec("bokeh") else ""
    print(f"{len(cluster.workers)} workers on this machine{dashboard}", file=sys.stderr)
    return client


def start_local(workers: int, **options: Any) -> Any:
    """Start single-threaded worker processes on this machine that restart whenever they die."""
    import dask

    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # this process is a worker that imports the script: the error comes from the one above
        raise SystemExit(1)
    # by default Dask removes a worker for good that is not running 15 s after it died, even if it
    # restarted meanwhile and died again
    dask.config.set({"distributed.deploy.lost-worker-timeout": "24h"})
    try:
        return _import_distributed().LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            env={"POLARS_MAX_THREADS": "1"},
            **options,
        )
    except RuntimeError as error:
        raise ClusterError(
            "the workers on this machine did not start; a script that starts them needs the line "
            "`if __name__ == '__main__':` before its work, because each worker imports the script"
        ) from (error if logger.isEnabledFor(logging.DEBUG) else None)


def _import_distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise MissingExtraError(
            "a cluster needs dask; install it with `pip install 'equipoise[cluster]'`"
        ) from error
    return distributed


def task(function: F) -> F:
    """Decorate a function that runs on workers: it uses as many threads as its worker has."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        from distributed import get_worker

        threads: int | None
        try:
            threads = int(get_worker().state.nthreads)
        except ValueError:  # not on a worker
            threads = None
        with machine.limited(threads):
            return function(*args, **options)

    return run  # type: ignore[return-value]


def submit(client: Any, function: Callable[..., Any], *args: Any) -> Any:
    """Return the future of a function call on a worker; its result stays there."""
    with translate_errors(client), warnings.catch_warnings():
        # the scheduler keeps the arguments, to send them again when a worker is lost
        warnings.filterwarnings("ignore", "Sending large graph")
        if client.status == "closed":
            raise asyncio.CancelledError
        return client.submit(function, *args, pure=False)


def submit_each(
    client: Any, function: Callable[..., Any], inputs: Iterable[Any], *args: Any
) -> list[Any]:
    """Return the futures of one call for each input, all with the same further arguments."""
    return [submit(client, function, value, *args) for value in inputs]


def identity(value: Any) -> Any:
    """Return the value."""
    return value


def send(client: Any, value: Any) -> Any:
    """Return the future of a value, which is sent once for all tasks that need it."""
    return submit(client, identity, value)


def fetch(client: Any, futures: Any) -> Any:
    """Return the results of futures; an error of a task is raised as it was there."""
    with translate_errors(client):
        _wait(client, _import_distributed().futures_of(futures), "ALL_COMPLETED")
        return client.gather(futures)


def _wait(client: Any, futures: Iterable[Any], until: str) -> set[Any]:
    """Wait for all futures, or one, as long as there are workers; return the unfinished ones."""
    wait = _import_distributed().wait
    idle_since = None
    waiting = set(futures)

    async def wait_once() -> set[Any] | None:
        # an exception that reached this thread would keep its frames alive, and with them all
        # futures and their results on the workers, until the next garbage collection
        try:
            with client.as_current():  # `wait` takes no client
                return set((await wait(futures, TIMEOUT, until)).not_done)
        except TimeoutError:
            return None

    while True:
        unfinished: set[Any] | None = client.sync(wait_once)
        if unfinished is not None:
            return unfinished
        if any(future.status == "error" for future in waiting):
            return set()  # the caller raises the error without waiting for the remaining futures
        problem = _idle_workers(client)
        n_unfinished = sum(not future.done() for future in waiting)
        if problem is None or (idle_since is not None and n_unfinished < idle_since[1]):
            idle_since = None
        elif idle_since is None:
            idle_since = time.monotonic(), n_unfinished
            logger.warning("%s; waiting %s s for one to start", problem, NO_WORKER_TIMEOUT)
        elif time.monotonic() - idle_since[0] > NO_WORKER_TIMEOUT:
            raise ClusterError(f"for {NO_WORKER_TIMEOUT} s {problem}; {REMEDIES[problem]}")


def _idle_workers(client: Any) -> str | None:
    """Return why no worker works: there is none, or their memory is full; else None."""
    if not client.nthreads():
        return NO_WORKER
    states = [worker["status"] for worker in worker_facts(client)]
    return ALL_PAUSED if states and set(states) == {"paused"} else None


def worker_facts(client: Any) -> list[dict[str, Any]]:
    """Return what the scheduler knows about each worker."""
    return list(client.scheduler_info(n_workers=-1)["workers"].values())


def reduce_tree(client: Any, merge: Callable[[list[Any]], Any], futures: Sequence[Any]) -> Any:
    """Return the future of all results merged, a few at a time in a tree of fixed shape."""
    level = list(futures)
    while len(level) > 1:
        groups = [level[start : start + FAN_IN] for start in range(0, len(level), FAN_IN)]
        level = submit_each(client, merge, groups)
    return level[0]


def run_in_order(client: Any, calls: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    """Yield the results of calls (function, *arguments) in their order.

    A few calls per worker are submitted ahead, so that the scheduler holds few arguments.
    """
    limit, pending = _limit_tasks(client, 4), deque[Any]()
    for call in calls:
        pending.append(submit(client, *call))
        if len(pending) == limit:
            yield fetch(client, pending.popleft())
    while pending:
        yield fetch(client, pending.popleft())


def _limit_tasks(client: Any, per_worker: int) -> int:
    return per_worker * max(len(client.nthreads()), 1)


class Throttle:
    """Limits the unfinished tasks: workers copy the inputs of a task before it runs."""

    def __init__(self, client: Any, per_worker: int = 2) -> None:
        self.client, self._limit = client, _limit_tasks(client, per_worker)
        self._unfinished: set[Any] = set()

    def add(self, future: Any) -> None:
        """Count a future; at the limit, wait until one of them is finished."""
        self._unfinished.add(future)
        if len(self._unfinished) >= self._limit:
            with translate_errors(self.client):
                self._unfinished = _wait(self.client, self._unfinished, "FIRST_COMPLETED")


def run_on_all(client: Any, function: Callable[[], object]) -> None:
    """Call a function on every worker; workers that are lost are left out."""
    with translate_errors(client):
        client.run(function, on_error="ignore")


def smallest_memory(client: Any) -> float:
    """Return the memory limit of the smallest worker in bytes; infinite without limits."""
    limits = (worker["memory_limit"] or float("inf") for worker in worker_facts(client))
    return min(limits, default=float("inf"))


@contextmanager
def translate_errors(client: Any) -> Iterator[None]:
    """Raise Dask's errors as `ClusterError` that names the remedy."""
    from distributed import KilledWorker
    from distributed.comm.core import CommClosedError

    try:
        yield
    except KilledWorker as error:
        raise ClusterError(
            f"several workers died on the same task, the last at {error.last_worker.address}; "
            "give workers more memory, or split the data into more and smaller parts"
        ) from error
    except (CommClosedError, CancelledError, asyncio.CancelledError, TimeoutError) as error:
        address = getattr(getattr(client, "scheduler", None), "address", "its address")
        raise ClusterError(
            f"the scheduler at {address} is gone, or dropped the work of a client that was "
            "closed; start it, connect and run again"
        ) from error
