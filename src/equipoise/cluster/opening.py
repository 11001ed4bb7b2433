"""Share a saved model between this machine and the workers, each of which opens it once."""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from equipoise.checks import is_address
from equipoise.cluster.training import WorkerBlocks
from equipoise.cluster.workers import run_on_all
from equipoise.data.remote import open_filesystem, read_remote, translate_remote
from equipoise.data.storage import MANIFEST
from equipoise.errors import DataError, SettingError
from equipoise.models.base import Recommender
from equipoise.models.saving import load


@contextmanager
def saved_folder(
    client: Any,
    model: Recommender | str | os.PathLike[str],
    shared: str | os.PathLike[str] | None,
) -> Iterator[Path | str]:
    """Give the folder or URL of a saved model; a fitted one is saved below `shared` meanwhile."""
    if is_address(model):
        yield os.fspath(model)  # type: ignore[arg-type]
        return
    if isinstance(model, (str, os.PathLike)) and not Path(model).is_file():
        yield Path(model).absolute()
        return
    if not isinstance(model, Recommender):
        raise SettingError(
            "workers need a fitted model or the folder of a saved one; evaluate existing lists "
            "with equipoise.evaluate, without a cluster"
        )
    with _folder_below(shared) as parent:
        folder = f"{parent}/model" if is_address(parent) else Path(parent).absolute() / "model"
        # workers that hold the users need no files of them
        blocks = getattr(model.data_, "blocks", None)
        model.save(folder, data="none" if isinstance(blocks, WorkerBlocks) else None)
        yield folder
        run_on_all(client, _load.cache_clear)  # mapped files would stay on the disk


@contextmanager
def _folder_below(shared: str | os.PathLike[str] | None) -> Iterator[str]:
    """Give a new folder below a folder or URL, which is removed at the end."""
    if not is_address(shared):
        if shared is not None:
            Path(shared).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="equipoise-", dir=shared) as folder:
            yield folder
        return
    assert shared is not None
    url = f"{os.fspath(shared).rstrip('/')}/equipoise-{secrets.token_hex(6)}"
    try:
        yield url
    finally:
        system, path = open_filesystem(url)
        with translate_remote(f"{url} cannot be removed"):
            if system.exists(path):
                system.rm(path, recursive=True)


@lru_cache(maxsize=1)
def _load(folder: str, digest: str) -> Recommender:
    return load(folder)


def open_model(folder: str) -> Recommender:
    """Return a saved model on a worker; it is loaded again only when the folder changed."""
    try:
        manifest = (
            read_remote(f"{folder}/{MANIFEST}")
            if is_address(folder)
            else (Path(folder) / MANIFEST).read_bytes()
        )
        if manifest is None:
            raise FileNotFoundError(folder)
    except OSError as error:
        raise DataError(
            f"a worker cannot read the model in {folder}; save it in a folder that this machine "
            "and all workers see, or name one with shared="
        ) from error
    return _load(folder, hashlib.sha256(manifest).hexdigest())
