"""Workers that are killed or slow in the middle of a phase, and a scheduler that is killed.

One quick case runs by default: `test_a_killed_worker_does_not_change_the_data` in test_cluster.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import polars as pl
import pytest

import equipoise as eq
from equipoise.cluster import workers

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

GRID = {"l2": [1, 10, 100], "dropout": [0.0, 0.5], "alpha": [0, 0.3]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of three parts."""
    folder = tmp_path_factory.mktemp("events")
    rng = np.random.default_rng(5)
    for number in range(3):
        user, item = rng.integers(0, 60, 200), rng.zipf(1.4, 200).clip(1, 30)
        pl.DataFrame({"user": user, "item": item}).write_parquet(folder / f"part-{number}.parquet")
    return folder


@pytest.fixture(scope="module")
def model(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a saved model."""
    home = tmp_path_factory.mktemp("model") / "model"
    eq.EASE(l2=5.0).fit(eq.read(folder)).save(home)
    return home


def read(client: Any, folder: Path, *_: Any) -> str:
    return eq.cluster.read(folder, client=client, block_rows=150).gather().fingerprint


def exact(client: Any, folder: Path, *_: Any) -> bytes:
    data = eq.cluster.read(folder, client=client, block_rows=150)
    model = eq.cluster.fit(eq.EASE(l2=5.0), data, where="workers", tile_rows=12)
    return model.weights_.tobytes()


def neighbourhood(client: Any, folder: Path, *_: Any) -> bytes:
    data = eq.cluster.read(folder, client=client, block_rows=150)
    near = {"engine": "neighbourhood", "neighbours": 6}
    return eq.cluster.fit(eq.EASE(l2=5.0), data, **near).inverse_.data.tobytes()


def tune(client: Any, folder: Path, _: Path, out: Path) -> Any:
    split = eq.split.strong(eq.read(folder), valid=0.2, test=0.2)
    tuned = eq.cluster.tune(eq.EASE, split, grid=GRID, client=client, storage=out)
    resumed = eq.tune(eq.EASE, split, grid=GRID, storage=out)  # the ledger has each solve once
    return tuned.trials.to_dicts(), tuned.best, (resumed.solves, resumed.resumed)


def evaluate(client: Any, folder: Path, model: Path, _: Path) -> Any:
    split = eq.split.strong(eq.read(folder), valid=0, test=0.5)
    result = eq.cluster.evaluate(model, split.test, client=client, batch_size=4)
    return result.table.to_dicts()


def evaluate_there(client: Any, folder: Path, model: Path, _: Path) -> Any:
    data = eq.cluster.read(folder, client=client, block_rows=100)
    part = data.split(where="workers", valid=0, test=0.8).test
    return eq.cluster.evaluate(model, part).table.to_dicts()


def recommend_to(client: Any, _: Path, model: Path, out: Path) -> Any:
    call = {"client": client, "users_per_file": 7}
    users = eq.cluster.recommend_to(model, out, k=5, **call)
    assert not [file for file in out.iterdir() if file.name[:5] not in ("part-", "lists")]
    return users, pl.read_parquet(sorted(out.glob("part-*.parquet"))).to_dicts()


PHASES = [
    (read, "cut_run", 1),
    (exact, "update_tile", 4),
    (neighbourhood, "solve_targets", 9),
    (tune, "solve_point", 2),
    (evaluate, "rank_users", 3),
    (evaluate_there, "measure", 2),
    (recommend_to, "write_lists", 3),
]


@pytest.mark.parametrize(("phase", "task", "number"), PHASES, ids=[task for _, task, _ in PHASES])
def test_a_worker_killed_in_the_middle_changes_nothing(
    client, fault, folder, model, tmp_path, phase: Callable[..., Any], task, number
):
    expected = phase(client, folder, model, tmp_path / "before")
    with fault(task, number, tmp_path / "died"):
        result = phase(client, folder, model, tmp_path / "after")
    assert (tmp_path / "died").exists()
    assert result == expected


def test_a_slow_worker_changes_nothing(client, fault, folder, model, tmp_path):
    expected = recommend_to(client, folder, model, tmp_path / "before")
    with fault("write_lists", 1, tmp_path / "slow", effect="slow"):
        assert recommend_to(client, folder, model, tmp_path / "after") == expected
    assert (tmp_path / "slow").exists()


@contextmanager
def by_command(folder: Path) -> Iterator[tuple[str, Any, Any]]:
    """Start a scheduler and a worker as on two machines; yield the address and both processes."""
    file = folder / "scheduler.json"
    env = {**os.environ, "POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": env}
    dask = [sys.executable, "-m", "dask"]
    where = ["--scheduler-file", str(file), "--no-dashboard"]
    processes = [
        subprocess.Popen([*dask, "scheduler", "--port", "0", *where], **quiet),
        subprocess.Popen([*dask, "worker", "--nthreads", "1", "--no-nanny", *where], **quiet),
    ]
    try:
        distributed = pytest.importorskip("distributed")
        while not file.exists():
            assert processes[0].poll() is None
            time.sleep(0.05)
        with distributed.Client(scheduler_file=str(file), set_as_default=False) as client:
            client.wait_for_workers(1)
            yield client.scheduler.address, *processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_killed_scheduler_raises_a_clear_error(client, folder, model, tmp_path):
    """Existing files of lists are complete, and the next run writes the missing ones."""
    _, expected = recommend_to(client, folder, model, tmp_path / "expected")
    out = tmp_path / "lists"
    with by_command(tmp_path) as (address, scheduler, _):

        def kill_later() -> None:
            while not any(out.glob("part-*.parquet")):
                time.sleep(0.01)
            scheduler.kill()

        killer = Thread(target=kill_later)
        killer.start()
        with pytest.raises(eq.ClusterError, match=r"the scheduler at .* is gone"):
            eq.cluster.recommend_to(model, out, k=5, client=address, users_per_file=1)
        killer.join()
    # the worker may have finished the tasks it had; every file is complete
    for file in out.glob("part-*.parquet"):
        assert pl.read_parquet(file).height == 5
    eq.cluster.recommend_to(model, out, k=5, client=client, users_per_file=1)
    assert pl.read_parquet(sorted(out.glob("part-*.parquet"))).to_dicts() == expected


def test_a_cluster_without_workers_raises_a_clear_error(folder, tmp_path, monkeypatch, caplog):
    with by_command(tmp_path) as (address, _, worker):
        client = workers.connect(address)
        worker.kill()
        while client.nthreads():
            time.sleep(0.05)
        monkeypatch.setattr(workers, "TIMEOUT", 0.1)
        monkeypatch.setattr(workers, "NO_WORKER_TIMEOUT", 0.2)
        with pytest.raises(
            eq.ClusterError, match=r"for 0\.2 s the cluster has no worker; read the logs"
        ):
            eq.cluster.read(folder, client=client)
        assert "the cluster has no worker" in caplog.text


def test_a_local_worker_restarts_after_any_time():
    """By default Dask removes a worker that has not restarted within a timeout."""
    distributed = pytest.importorskip("distributed")
    import dask

    setting = "distributed.deploy.lost-worker-timeout"
    with dask.config.set({setting: "1ms"}):
        cluster = workers.start_local(1, dashboard_address=None, silence_logs="CRITICAL")
        with cluster, distributed.Client(cluster, set_as_default=False) as client:
            first = set(client.nthreads())
            os.kill(cluster.workers[0].pid, signal.SIGKILL)
            while first & set(client.nthreads()):
                time.sleep(0.02)
            client.wait_for_workers(1, timeout=60)
            assert client.submit(abs, -3).result(timeout=60) == 3


def test_local_workers_end_silently():
    """The client still holds a result when the process ends."""
    script = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from equipoise.cluster import connect\n"
        "if __name__ == '__main__':\n"
        "    future = connect('local').submit(abs, -3)\n"
        "    print(future.result())\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "3\n")
    assert ended.stderr.splitlines() == ["1 workers on this machine"]
