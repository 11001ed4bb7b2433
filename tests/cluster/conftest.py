"""A real cluster: two worker processes of one thread each."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from equipoise.cluster import planning, workers


@pytest.fixture(scope="session", autouse=True)
def parts_of_a_file() -> Iterator[None]:
    """Let every file be a part, however small: then a few small files are several tasks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "FILE_ROWS", planning.PART_ROWS)
        yield


@contextmanager
def local_cluster() -> Iterator[Any]:
    """Start a cluster of two workers; give its client."""
    distributed = pytest.importorskip("distributed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cluster = workers.start_local(2, dashboard_address=None, silence_logs="CRITICAL")
        client = distributed.Client(cluster, set_as_default=False)  # as `connect` makes them
    address = client.scheduler.address
    yield client
    client.close()
    if address in workers._clients:  # a test connected to this address
        workers._clients.pop(address).close()
    cluster.close()


@pytest.fixture(scope="session")
def client() -> Iterator[Any]:
    """Return a client of the cluster that all modules share."""
    with local_cluster() as client:
        yield client


@pytest.fixture
def fault(client: Any) -> Callable[..., AbstractContextManager[None]]:
    """Return a context in which one worker dies, or is slow, at the n-th start of a task."""
    distributed = pytest.importorskip("distributed")

    @contextmanager
    def inject(task: str, number: int, marker: Path, effect: str = "die") -> Iterator[None]:
        """Inject the fault once; the marker file shows that it happened."""

        class Fault(distributed.WorkerPlugin):  # type: ignore[misc, name-defined]
            def setup(self, worker: Any) -> None:
                self.n_started = 0

            def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
                if finish != "executing" or not str(key).startswith(f"{task}-"):
                    return
                self.n_started += 1
                if self.n_started == number and not marker.exists():
                    marker.touch()
                    if effect == "slow":
                        time.sleep(2)
                    else:
                        os.kill(os.getpid(), signal.SIGKILL)

        client.register_plugin(Fault(), name=task)
        try:
            yield
        finally:
            client.unregister_worker_plugin(task)

    return inject
