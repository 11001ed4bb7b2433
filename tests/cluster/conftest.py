"""A real cluster: two worker processes of one thread each."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from equipoise.cluster import workers


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cluster = distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            env={"POLARS_MAX_THREADS": "1"},
            silence_logs="CRITICAL",
        )
        made = distributed.Client(cluster, set_as_default=False)  # as one by an address is
    yield made
    for each in (made, *workers._clients.values()):
        each.close()
    cluster.close()
