"""A saved model that this machine and the workers see, and that each worker opens once."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from equipoise.cluster.workers import forget
from equipoise.errors import DataError, SettingError
from equipoise.models.base import Recommender
from equipoise.models.saving import load


@contextmanager
def saved(
    client: Any,
    model: Recommender | str | os.PathLike[str],
    shared: str | os.PathLike[str] | None,
) -> Iterator[Path]:
    """Give the folder of a saved model; one that is not saved is, for as long as it is needed."""
    if isinstance(model, (str, os.PathLike)) and not Path(model).is_file():
        yield Path(model).absolute()
        return
    if not isinstance(model, Recommender):
        raise SettingError(
            "workers make the lists of a fitted model or of the folder of a saved one; lists that "
            "are there already are evaluated without a cluster"
        )
    if shared is not None:
        Path(shared).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="equipoise-", dir=shared) as home:
        folder = Path(home).absolute() / "model"
        model.save(folder)
        yield folder
        forget(client, _opened.cache_clear)  # files that are mapped stay on the disk


@lru_cache(maxsize=1)
def _opened(folder: str, version: str) -> Recommender:
    return load(folder)


def opened(folder: str) -> Recommender:
    """Return a model that this worker has mapped; it is opened again when the folder changed."""
    try:
        manifest = (Path(folder) / "manifest.json").read_bytes()
    except OSError as error:
        raise DataError(
            f"a worker cannot read the model in {folder}; save it in a folder that this machine "
            "and all workers see, or name one with shared="
        ) from error
    return _opened(folder, hashlib.sha256(manifest).hexdigest())
