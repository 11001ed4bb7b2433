"""Data that several test files share."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from equipoise.data.interactions import Interactions
from tests.absent import absent
from tests.report.browser import Browser, find_browser

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked `data` where the development data are not there."""
    if SHARED.is_dir():
        return
    missing = pytest.mark.skip(reason="development data are not present")
    for item in items:
        if item.get_closest_marker("data") is not None:
            item.add_marker(missing)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests marked `gpu` where there is no card."""
    if (
        item.get_closest_marker("gpu") is not None
        and not pytest.importorskip("torch").cuda.is_available()
    ):
        pytest.skip("there is no CUDA device")


@pytest.fixture(autouse=True)
def untouched_loggers() -> None:
    """Undo what an earlier test's command line did to loggers, which live as long as a worker."""
    for part in ("", ".data.datasets", ".data.readers"):
        logger = logging.getLogger(f"equipoise{part}")
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return a headless browser; without one tests are skipped, and fail in CI."""
    program = find_browser()
    if program is None:
        absent("no chromium found; install it with `apt-get install chromium`")
    browser_process = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser_process
    browser_process.close()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20250713)


@pytest.fixture
def shared_data() -> Path:
    return SHARED


@pytest.fixture
def toy() -> Interactions:
    """7 users x 4 items, written by hand: neither square nor symmetric, counts 5 5 3 2."""
    rows = ["1100", "1010", "1111", "0110", "1000", "1101", "0100"]
    matrix = np.array([[int(cell) for cell in row] for row in rows], dtype=np.float32)
    users = ["ann", "bob", "cleo", "dan", "eve", "finn", "gus"]
    return Interactions(matrix, users, ["tea", "milk", "salt", "rice"])


@pytest.fixture(scope="session")
def synthetic() -> Interactions:
    """300 users x 80 items with a long tail; every user has at least 5 items."""
    rng = np.random.default_rng(7)
    weight = 1 / np.arange(1, 81) ** 0.8
    rows = [
        rng.choice(
            80, size=5 + min(int(rng.exponential(8)), 30), replace=False, p=weight / weight.sum()
        )
        for _ in range(300)
    ]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    matrix = sp.csr_array((np.ones(offsets[-1]), np.concatenate(rows), offsets), shape=(300, 80))
    return Interactions(matrix, [f"u{n}" for n in range(300)], np.arange(80) * 10 + 3)
