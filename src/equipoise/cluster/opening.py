"""Share a saved model between this machine and the workers, each of which opens it once."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from equipoise.cluster.workers import run_on_all
from equipoise.errors import DataError, SettingError
from equipoise.models.base import Recommender
from equipoise.models.saving import load


@contextmanager
def saved_folder(
    client: Any,
    model: Recommender | str | os.PathLike[str],
    shared: str | os.PathLike[str] | None,
) -> Iterator[Path]:
    """Give the folder of a saved model; a fitted one is saved below `shared` meanwhile."""
    if isinstance(model, (str, os.PathLike)) and not Path(model).is_file():
        yield Path(model).absolute()
        return
    if not isinstance(model, Recommender):
        raise SettingError(
            "workers need a fitted model or the folder of a saved one; evaluate existing lists "
            "with equipoise.evaluate, without a cluster"
        )
    if shared is not None:
        Path(shared).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="equipoise-", dir=shared) as parent:
        folder = Path(parent).absolute() / "model"
        model.save(folder)
        yield folder
        run_on_all(client, _load.cache_clear)  # mapped files would stay on the disk


@lru_cache(maxsize=1)
def _load(folder: str, digest: str) -> Recommender:
    return load(folder)


def open_model(folder: str) -> Recommender:
    """Return a saved model on a worker; it is loaded again only when the folder changed."""
    try:
        manifest = (Path(folder) / "manifest.json").read_bytes()
    except OSError as error:
        raise DataError(
            f"a worker cannot read the model in {folder}; save it in a folder that this machine "
            "and all workers see, or name one with shared="
        ) from error
    return _load(folder, hashlib.sha256(manifest).hexdigest())
