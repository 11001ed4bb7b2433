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
        cluster = workers.start_local(2, dashboard_address=None, silence_logs="CRITICAL")
        made = distributed.Client(cluster, set_as_default=False)  # as one by an address is
    yield made
    for each in (made, *workers._clients.values()):
        each.close()
    cluster.close()
