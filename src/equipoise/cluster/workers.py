"""The client of a cluster, tasks on its workers, and what can go wrong with them.

Tasks are plain functions of this package. What they return stays with the worker until it is
gathered; a worker that is lost takes its results with it, and the scheduler makes them again from
what they were made of, so that a result never depends on which worker was lost when.
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
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, TypeVar

from equipoise.errors import ClusterError, MissingExtraError, SettingError
from equipoise.runtime import machine

F = TypeVar("F", bound=Callable[..., Any])

logger = logging.getLogger(__name__)

SECONDS = 10  # in which a scheduler has to answer
PATIENCE = 300  # seconds that work waits while there is no worker at all
FAN_IN = 8  # results that a step of a reduction puts together
_clients: dict[str, Any] = {}  # by address, and of this machine's own workers


def connect(client: Any = "local") -> Any:
    """Return a Dask client.

    Parameters
    ----------
    client
        A `distributed.Client`; the address of a scheduler, such as "tcp://host:8786"; or "local",
        which starts a process for each processor of this machine, once, and ends them with this
        process; it says so on stderr, and where the dashboard is if Bokeh is installed.
    """
    distributed = _distributed()
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
        return _local_client(distributed)
    try:
        _clients[client] = distributed.Client(client, timeout=SECONDS, set_as_default=False)
        return _clients[client]
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"no scheduler answers at {client}; start one with `dask scheduler` or check the "
            "address"
        ) from error


def _local_client(distributed: Any) -> Any:
    # an error of a task is raised here: workers need not print it too
    cluster = start_local(machine.count(), dashboard_address=":0", silence_logs=logging.CRITICAL)
    client = _clients["local"] = distributed.Client(cluster, set_as_default=False)
    atexit.register(_close, client, cluster)
    page = f"; dashboard at {cluster.dashboard_link}" if find_spec("bokeh") else ""
    print(f"{len(cluster.workers)} workers on this machine{page}", file=sys.stderr)
    return client


def _close(client: Any, cluster: Any) -> None:
    """End the workers of this machine, the client first: what it waits for would be made again."""
    client.close()
    cluster.close()


def start_local(workers: int, **options: Any) -> Any:
    """Start worker processes of one thread on this machine, which come back whenever they die."""
    import dask

    # 15 s after a worker died Dask takes it away for good if it is not there, be it that it came
    # back meanwhile, died once more and is starting
    dask.config.set({"distributed.deploy.lost-worker-timeout": "24h"})
    return _distributed().LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=True,
        env={"POLARS_MAX_THREADS": "1"},
        **options,
    )


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise MissingExtraError(
            "a cluster needs dask; install it with `pip install 'equipoise[cluster]'`"
        ) from error
    return distributed


def task(function: F) -> F:
    """Mark what workers run: with as many threads as the worker has."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        with machine.limited(_threads()):
            return function(*args, **options)

    return run  # type: ignore[return-value]


def _threads() -> int | None:
    from distributed import get_worker

    try:
        return int(get_worker().state.nthreads)
    except ValueError:  # not on a worker
        return None


def submit(client: Any, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Let a worker call a function; what it returns stays there."""
    with watched(client), warnings.catch_warnings():
        # data in the arguments stay with the scheduler, from where a lost worker's are sent again
        warnings.filterwarnings("ignore", "Sending large graph")
        if client.status == "closed":
            raise asyncio.CancelledError
        return client.submit(function, *args, pure=False, **options)


def same(value: Any) -> Any:
    """Keep a value on a worker, for tasks that all need it."""
    return value


def results(client: Any, futures: Any) -> Any:
    """Fetch what workers hold; an error of a task is raised as it was there."""
    with watched(client):
        _wait(client, _distributed().futures_of(futures), "ALL_COMPLETED")
        return client.gather(futures)


def _wait(client: Any, futures: Iterable[Any], until: str) -> set[Any]:
    """Wait for all futures, or one, as long as there are workers; return those not done."""
    wait = _distributed().wait
    alone = None  # since when there is no worker

    async def waited() -> set[Any] | None:
        # an error that came to this thread would keep its frames, and with them all futures
        # and what workers hold for them, until the garbage is collected
        try:
            with client.as_current():  # `wait` knows no other way
                return set((await wait(futures, SECONDS, until)).not_done)
        except TimeoutError:
            return None

    while True:
        left: set[Any] | None = client.sync(waited)
        if left is not None:
            return left
        if any(each.status == "error" for each in futures):
            return set()  # the caller finds it, and others need not be waited for
        if client.nthreads():
            alone = None
        elif alone is None:
            alone = time.monotonic()
            logger.warning("no worker is there; waiting %d s for one", PATIENCE)
        elif time.monotonic() - alone > PATIENCE:
            raise ClusterError(
                f"there has been no worker for {PATIENCE} s; start some, look into their log for "
                "why they ended, and run again"
            )


def reduced(client: Any, merge: Callable[[list[Any]], Any], futures: Sequence[Any]) -> Any:
    """Put results together in a tree of fixed shape; a worker holds a few of them at a time."""
    level = list(futures)
    while True:
        groups = [level[at : at + FAN_IN] for at in range(0, len(level), FAN_IN)]
        level = [submit(client, merge, group) for group in groups]
        if len(level) == 1:
            return level[0]


def in_order(client: Any, calls: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    """Yield what calls of functions give, which are made a few tasks ahead of each worker.

    So the scheduler has the arguments of a few of them at a time.
    """
    room, begun = _room(client, 4), deque[Any]()
    for call in calls:
        begun.append(submit(client, *call))
        if len(begun) == room:
            yield results(client, begun.popleft())
    while begun:
        yield results(client, begun.popleft())


def _room(client: Any, tasks: int) -> int:
    """Return a number of tasks for each worker in that of all."""
    return tasks * max(len(client.nthreads()), 1)


class Ahead:
    """Lets a caller be only a few tasks ahead of each worker, which fetches what they need.

    Parameters
    ----------
    client
        Client of the cluster.
    tasks
        So many for each worker.
    """

    def __init__(self, client: Any, tasks: int = 2) -> None:
        self.client = client
        self._room = _room(client, tasks)
        self._under_way: set[Any] = set()

    def begun(self, future: Any) -> Any:
        """Return a future, when few enough are not done."""
        self._under_way.add(future)
        if len(self._under_way) >= self._room:
            with watched(self.client):
                self._under_way = _wait(self.client, self._under_way, "FIRST_COMPLETED")
        return future


def forget(client: Any, drop: Callable[[], object]) -> None:
    """Let every worker drop what it keeps between tasks; one that is lost has."""
    with watched(client):
        client.run(drop, on_error="ignore")


def least_memory(client: Any) -> float:
    """Bytes of the worker with the least memory; endless where none has a limit."""
    held = client.scheduler_info(n_workers=-1)["workers"].values()
    return min((each["memory_limit"] or float("inf") for each in held), default=float("inf"))


@contextmanager
def watched(client: Any) -> Iterator[None]:
    """Turn what the cluster itself does wrong into one error that says what to do."""
    from concurrent.futures import CancelledError

    from distributed import KilledWorker
    from distributed.comm.core import CommClosedError

    try:
        yield
    except KilledWorker as error:
        raise ClusterError(
            f"several workers died on the same task, the last at {error.last_worker.address}; "
            "give workers more memory, or the data in more and smaller parts"
        ) from error
    except (CommClosedError, CancelledError, asyncio.CancelledError, TimeoutError) as error:
        address = getattr(getattr(client, "scheduler", None), "address", "its address")
        raise ClusterError(
            f"the scheduler at {address} is gone, or dropped the work of a client that was "
            "closed; start it, connect and run again"
        ) from error
