"""Workers that are paused, have other versions, or do not start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import equipoise as eq
from equipoise.cluster import workers


def test_paused_workers_are_named_and_end_in_an_error(client, tmp_path, monkeypatch, caplog):
    pl.DataFrame({"user": [1, 2], "item": [1, 2]}).write_parquet(tmp_path / "part.parquet")

    def set_status(name: str) -> None:
        def change(dask_worker: Any) -> None:
            from distributed.core import Status

            dask_worker.memory_manager.memory_pause_fraction = name == "paused" and 1e-9
            dask_worker.status = Status[name]

        client.run(change)

    monkeypatch.setattr(workers, "TIMEOUT", 0.2)
    monkeypatch.setattr(workers, "NO_WORKER_TIMEOUT", 0.5)
    set_status("paused")
    try:
        with pytest.raises(eq.ClusterError, match=r"all workers are paused.*more memory"):
            eq.cluster.read(tmp_path / "part.parquet", client=client)
        assert "all workers are paused" in caplog.text
    finally:
        set_status("running")
    assert eq.cluster.read(tmp_path / "part.parquet", client=client).n_users == 2


def test_workers_with_other_versions_are_refused(client, monkeypatch):
    monkeypatch.setattr(workers, "_seen", {})
    version = eq.__version__
    monkeypatch.setattr(eq, "__version__", "9.9")
    pattern = rf"same versions, here equipoise 9\.9, .* but tcp://.* has equipoise {version};"
    with pytest.raises(eq.ClusterError, match=pattern):
        workers.connect(client)


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import equipoise as eq\neq.cluster.connect('local')\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "ClusterError: the workers on this machine did not start" in done.stderr
    assert "if __name__ == '__main__':" in done.stderr
    assert done.stderr.count("Traceback") == 1
