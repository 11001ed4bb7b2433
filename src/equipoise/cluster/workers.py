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
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, TypeVar

from equipoise.errors import ClusterError, MissingExtraError, SettingError
from equipoise.runtime import machine

F = TypeVar("F", bound=Callable[..., Any])

logger = logging.getLogger(__name__)

TIMEOUT = 10  # seconds to wait for the scheduler, and between checks that workers exist
NO_WORKER_TIMEOUT = 300  # seconds to wait while the cluster has no worker
FAN_IN = 8  # results merged by one step of a reduction
_clients: dict[str, Any] = {}  # open clients, by address or "local"


def connect(client: Any = "local") -> Any:
    """Return a Dask client.

    Parameters
    ----------
    client
        A `distributed.Client`; the address of a scheduler, such as "tcp://host:8786"; or "local",
        which starts one worker process per processor of this machine. These end with this
        process. Their number, and the dashboard's address if Bokeh is installed, go to stderr.
    """
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

    # by default Dask removes a worker for good that is not running 15 s after it died, even if it
    # restarted meanwhile and died again
    dask.config.set({"distributed.deploy.lost-worker-timeout": "24h"})
    return _import_distributed().LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=True,
        env={"POLARS_MAX_THREADS": "1"},
        **options,
    )


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
    without_workers_since = None

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
        if any(future.status == "error" for future in futures):
            return set()  # the caller raises the error without waiting for the remaining futures
        if client.nthreads():
            without_workers_since = None
        elif without_workers_since is None:
            without_workers_since = time.monotonic()
            logger.warning(
                "the cluster has no worker; waiting %s s for one to start", NO_WORKER_TIMEOUT
            )
        elif time.monotonic() - without_workers_since > NO_WORKER_TIMEOUT:
            raise ClusterError(
                f"the cluster had no worker for {NO_WORKER_TIMEOUT} s; read the logs of the "
                "workers for why they ended, start some and run again"
            )


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
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    limits = (worker["memory_limit"] or float("inf") for worker in workers)
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
