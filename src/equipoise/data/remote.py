"""Files at addresses such as ``s3://bucket/events``, through fsspec."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from equipoise.checks import is_address
from equipoise.errors import DataError, EquipoiseError, MissingExtraError

StorageOptions = Mapping[str, Any]

VARIABLE = "EQUIPOISE_DATA"
BUCKETS = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci"}


def cache_folder() -> Path:
    """Return the folder for downloads: `EQUIPOISE_DATA`, or the platform's cache folder."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "equipoise"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "equipoise"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "equipoise"


def open_filesystem(url: str, options: StorageOptions | None = None) -> tuple[Any, str]:
    """Return the file system of an address, and the path within it."""
    try:
        import fsspec
    except ImportError as error:
        raise MissingExtraError(
            f"{url} needs fsspec; install it with `pip install fsspec`, and the package of its "
            "protocol, such as s3fs"
        ) from error
    try:
        system, path = fsspec.core.url_to_fs(url, **(options or {}))
    except ImportError as error:
        raise MissingExtraError(f"{url} needs another package: {error}") from error
    except (OSError, TypeError, ValueError) as error:
        raise DataError(f"{url} cannot be opened: {error}; check the address") from error
    return system, str(path)


@contextmanager
def translate_remote(action: str) -> Iterator[None]:
    """Raise any error of a remote file system as a `DataError` that starts with the action.

    The packages of protocols have errors of their own, such as for missing credentials.
    """
    try:
        yield
    except EquipoiseError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{action}: {reason}; check the address and your rights") from error


@contextmanager
def local_copy(source: Any, options: StorageOptions | None = None) -> Iterator[Any]:
    """Give the path of a temporary copy if the source is the address of a file."""
    if not is_address(source):
        yield source
        return
    url = os.fspath(source)
    with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
        copy = Path(folder) / url.rstrip("/").rsplit("/", 1)[-1]
        system, path = open_filesystem(url, options)
        with translate_remote(f"{url} cannot be fetched"):
            system.get_file(path, str(copy))
        yield copy


def make_folder(system: Any, path: str) -> None:
    """Create a folder, where there are folders; in a bucket that would create the bucket."""
    protocols = {system.protocol} if isinstance(system.protocol, str) else {*system.protocol}
    if not protocols & BUCKETS:
        system.makedirs(path, exist_ok=True)


def upload_folder(folder: Path, url: str, last: str, replaces: Callable[[str], bool]) -> None:
    """Copy the files of a folder to an address, the one named `last` after all others.

    Then remove the earlier files there that `replaces` tells by their names.
    """
    system, root = open_filesystem(url)
    with translate_remote(f"{url} cannot be written"):
        make_folder(system, root)
        earlier = remote_names(url)
        names = sorted((file.name for file in folder.iterdir()), key=lambda name: name == last)
        for name in names:
            system.put_file(str(folder / name), f"{root}/{name}")
        for name in earlier:
            if name not in names and replaces(name):
                system.rm_file(f"{root}/{name}")


def remove_files(url: str, can_go: Callable[[str], bool]) -> None:
    """Remove files of a remote folder by their names; one that cannot be removed stays."""
    system, root = open_filesystem(url)
    with suppress(Exception):
        for name in filter(can_go, remote_names(url)):
            system.rm_file(f"{root}/{name}")


def remote_names(url: str) -> list[str]:
    """Return the names of the files in a remote folder, which may not exist."""
    system, root = open_filesystem(url)
    with translate_remote(f"{url} cannot be listed"):
        system.invalidate_cache()
        try:
            paths = system.ls(root, detail=False)
        except FileNotFoundError:
            return []
    return [str(path).rstrip("/").rsplit("/", 1)[-1] for path in paths]


def read_remote(url: str) -> bytes | None:
    """Return the content of a remote file; None if there is none."""
    system, path = open_filesystem(url)
    with translate_remote(f"{url} cannot be read"):
        system.invalidate_cache()
        try:
            return bytes(system.cat_file(path))
        except FileNotFoundError:
            return None


def download_files(url: str, names: Collection[str], folder: Path) -> None:
    """Copy files of a remote folder that are not here yet; each appears when it is complete."""
    system, root = open_filesystem(url)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if not (folder / name).exists():
            partial = folder / f".{name}.{secrets.token_hex(6)}"
            try:
                with translate_remote(f"{url}/{name} cannot be fetched"):
                    system.get_file(f"{root}/{name}", str(partial))
                os.replace(partial, folder / name)
            finally:
                partial.unlink(missing_ok=True)
