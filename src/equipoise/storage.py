"""A directory of arrays and tables that is written atomically and read without trust.

A directory holds `manifest.json` and the files it names: `.npy` arrays (memory-mapped when read)
and Parquet tables. New files get new names, and replacing the manifest is the one step that makes
them current, so a crash leaves the old content or the new one. Nothing is ever unpickled.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.checksums import check_file, describe_file
from equipoise.errors import DataError, FileFormatError

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
FILE_NAME = re.compile(r"[a-z][a-z0-9_]*-[0-9a-f]{12}\.(npy|parquet)")
OURS = re.compile(FILE_NAME.pattern + r"|manifest\.json(\.[0-9a-f]{12})?")
LARGEST_MANIFEST = 16 << 20


@dataclass(frozen=True)
class Stored:
    """What a directory holds: settings, arrays (read-only, memory-mapped) and tables."""

    meta: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]
    frames: dict[str, pl.DataFrame]

    def array(self, name: str, shape: tuple[int, ...], kinds: str) -> npt.NDArray[Any]:
        """Array `name`, checked for its shape and dtype kinds ('f', 'iu', ...)."""
        if name not in self.arrays:
            raise FileFormatError(f"the saved directory has no array {name!r}")
        array = self.arrays[name]
        fits = array.dtype.kind in kinds and array.dtype.isnative
        if array.shape != shape or not fits:
            found = f"{array.dtype} {array.shape}"
            raise FileFormatError(f"array {name!r} should have shape {shape}, found {found}")
        return array

    def finite(self, name: str, shape: tuple[int, ...], kinds: str = "f") -> npt.NDArray[Any]:
        """Like `array`, and refuses NaN and infinities."""
        array = self.array(name, shape, kinds)
        if not np.isfinite(array).all():
            raise FileFormatError(f"array {name!r} holds NaN or infinite values")
        return array

    def frame(self, name: str, height: int) -> pl.DataFrame:
        """Table `name`, checked for its number of rows."""
        if name not in self.frames:
            raise FileFormatError(f"the saved directory has no table {name!r}")
        if self.frames[name].height != height:
            found = self.frames[name].height
            raise FileFormatError(f"table {name!r} should have {height} rows, found {found}")
        return self.frames[name]


def write_directory(
    path: str | os.PathLike[str],
    kind: str,
    version: int,
    meta: Mapping[str, Any],
    arrays: Mapping[str, npt.NDArray[Any]],
    frames: Mapping[str, pl.DataFrame],
) -> None:
    """Write a directory; the old content stays valid until the new one is complete.

    `meta` must be what JSON can hold. Names of arrays and frames are lower-case words, all
    different. Saving to a directory that another process is saving to is refused.
    """
    root = Path(path)
    token = secrets.token_hex(6)
    try:
        with _locked(root, kind):
            files = _write_files(root, token, arrays, frames)
            manifest = {"format": kind, "version": version, "meta": dict(meta), "files": files}
            fresh = root / f"{MANIFEST}.{token}"
            _write(fresh, json.dumps(manifest, indent=1, allow_nan=False).encode())
            os.replace(fresh, root / MANIFEST)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"could not write {root}: {reason}; nothing was changed") from error


def _write_files(
    root: Path,
    token: str,
    arrays: Mapping[str, npt.NDArray[Any]],
    frames: Mapping[str, pl.DataFrame],
) -> dict[str, Any]:
    files: dict[str, Any] = {}

    def place(name: str, ending: str) -> Path:
        file = f"{name}-{token}.{ending}"
        if name in files or not FILE_NAME.fullmatch(file):
            raise ValueError(f"{name!r} cannot name a file of a saved directory")
        return root / file

    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise TypeError(f"array {name!r} would need pickle")
        target = place(name, "npy")
        # The bytes go through `write`, whose errors give the reason; numpy's `tofile` hides it.
        blocks = array.blocks() if hasattr(array, "blocks") else (np.ascontiguousarray(array),)
        header = io.BytesIO()
        layout = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
        np.lib.format.write_array_header_1_0(header, layout)
        _write(target, header.getvalue(), (b.reshape(-1).view(np.uint8) for b in blocks))
        files[name] = describe_file(target)
    for name, frame in frames.items():
        target = place(name, "parquet")
        content = io.BytesIO()
        frame.write_parquet(content)
        _write(target, content.getbuffer())
        files[name] = describe_file(target)
    return files


@contextmanager
def _locked(root: Path, kind: str) -> Iterator[None]:
    """Make the directory, hold its lock, and leave in it what its manifest names.

    The system drops the lock when the process dies.
    """
    existed = root.exists()
    check_ours(root, kind)
    root.mkdir(parents=True, exist_ok=True)
    handle = None if os.name == "nt" else _lock(root)
    try:
        yield
    finally:
        # Failing to tidy up does not undo a save: Windows keeps a file that somebody has mapped.
        with suppress(OSError):
            if handle is not None:
                os.fsync(handle)  # the new manifest is on the disk before the old files go
            _sweep(root)
            if not existed and not any(root.iterdir()):
                root.rmdir()
        if handle is not None:
            os.close(handle)


def _lock(root: Path) -> int:
    import fcntl

    handle = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise DataError(f"{root} is being saved to by another process; try again") from error
    except OSError:  # some network file systems have no locks
        logger.debug("%s cannot be locked", root)
    return handle


def check_ours(root: Path, kind: str) -> None:
    """Refuse to write over anything but an earlier save of the same kind."""
    if not root.exists():
        return
    if not root.is_dir():
        raise DataError(f"{root} is a file; give the path of a directory to save to")
    present = [file.name for file in root.iterdir()]
    if MANIFEST in present:
        fine = is_directory_of(root, kind)
    else:  # what a first save that was cut short left behind
        fine = all(OURS.fullmatch(name) for name in present)
    if not fine:
        raise DataError(f"{root} exists and is not a saved {kind}; choose another path")


def _sweep(root: Path) -> None:
    """Remove files that the manifest does not name: of the last save, or of one cut short.

    The manifest on disk decides, so an interrupt at any moment never takes a file it names.
    """
    try:
        listed = {entry.get("file") for entry in read_manifest(root)["files"].values()}
    except (FileFormatError, AttributeError, TypeError):
        if (root / MANIFEST).exists():
            return  # damaged by somebody: keep everything
        listed = set()
    for file in root.iterdir():
        if file.name not in listed | {MANIFEST} and OURS.fullmatch(file.name):
            file.unlink()


def read_directory(
    path: str | os.PathLike[str], kind: str, version: int, *, verify: bool = False
) -> Stored:
    """Read a directory of this kind, at most this version.

    Sizes and the checksums of small files are always checked, large files by sampled blocks;
    ``verify=True`` hashes everything.
    """
    root = Path(path)
    manifest = read_manifest(root)
    while True:
        try:
            return _read_files(root, manifest, kind, version, verify=verify)
        except FileFormatError:
            # A save that finished in between has removed the files of the manifest read before.
            newer = read_manifest(root)
            if newer == manifest:
                raise
            manifest = newer


def _read_files(
    root: Path, manifest: dict[str, Any], kind: str, version: int, *, verify: bool
) -> Stored:
    if manifest["format"] != kind:
        raise FileFormatError(f"{root} holds {manifest['format']!r}, expected {kind!r}")
    if manifest["version"] > version:
        newer = f"{root} has format version {manifest['version']}"
        raise FileFormatError(f"{newer}, this equipoise reads up to {version}; upgrade it")
    arrays: dict[str, npt.NDArray[Any]] = {}
    frames: dict[str, pl.DataFrame] = {}
    for name, entry in manifest["files"].items():
        file = _checked_file(root, name, entry, verify=verify)
        try:
            if file.suffix == ".npy":
                arrays[name] = np.lib.format.open_memmap(file, mode="r")
            else:
                frames[name] = pl.read_parquet(file, glob=False)
        except (Exception, pl.exceptions.PanicException) as error:
            raise FileFormatError(f"{file} cannot be read: {error}") from error
    return Stored(manifest["meta"], arrays, frames)


def read_manifest(root: Path) -> dict[str, Any]:
    """Return the checked manifest of a directory."""
    file = root / MANIFEST
    if not file.is_file():
        raise FileFormatError(f"{root} is not a saved directory: it has no {MANIFEST}")
    try:
        if file.stat().st_size > LARGEST_MANIFEST:
            raise FileFormatError(f"{file} is damaged: it is larger than any manifest")
        manifest = json.loads(file.read_text(encoding="utf-8"))
        well_formed = (
            isinstance(manifest["format"], str)
            and type(manifest["version"]) is int
            and isinstance(manifest["meta"], dict)
            and isinstance(manifest["files"], dict)
        )
    except OSError as error:
        raise FileFormatError(f"{file} cannot be read: {error.strerror}") from error
    except FileFormatError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileFormatError(f"{file} is damaged: {error!r}") from error
    if not well_formed:
        raise FileFormatError(f"{file} is damaged: a field has the wrong type")
    return dict(manifest)


def is_directory_of(path: str | os.PathLike[str], kind: str) -> bool:
    """Whether the path is a saved directory of this kind."""
    root = Path(path)
    try:
        return (root / MANIFEST).is_file() and read_manifest(root)["format"] == kind
    except (FileFormatError, OSError):
        return False


def _write(target: Path, head: Any, blocks: Iterable[Any] = ()) -> None:
    with target.open("wb") as stream:
        for block in chain([head], blocks):
            stream.write(block)
        stream.flush()
        os.fsync(stream.fileno())


def _checked_file(root: Path, name: str, entry: Any, *, verify: bool) -> Path:
    listed = entry.get("file") if isinstance(entry, dict) else None
    if not isinstance(listed, str) or not FILE_NAME.fullmatch(listed):
        raise FileFormatError(f"{root / MANIFEST} names a file that is not allowed: {listed!r}")
    file = root / listed
    if file.is_symlink() or not file.is_file():
        raise FileFormatError(f"{file}, which the manifest names as {name!r}, is missing")
    try:
        check_file(file, entry, verify=verify)
    except OSError as error:
        raise FileFormatError(f"{file} cannot be read: {error.strerror}") from error
    return file
