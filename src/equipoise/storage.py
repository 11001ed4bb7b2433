"""A directory of arrays and tables that is written atomically and read without trust.

A directory holds `manifest.json` and the files it names: `.npy` arrays (memory-mapped when read)
and Parquet tables. New files get new names, and replacing the manifest is the one step that makes
them current, so a crash leaves the old content or the new one. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.errors import DataError, FileFormatError

MANIFEST = "manifest.json"
SMALL = 16 << 20  # files up to this size are hashed whole at every load
FILE_NAME = re.compile(r"[a-z][a-z0-9_]*-[0-9a-f]{12}\.(npy|parquet)")


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
        if array.shape != shape or array.dtype.kind not in kinds:
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
    """Write a directory; the old content stays valid until the new one is complete."""
    root = Path(path)
    old = _current_files(root)
    token = secrets.token_hex(6)
    written: list[Path] = []
    try:
        root.mkdir(parents=True, exist_ok=True)
        files: dict[str, Any] = {}
        for name, array in arrays.items():
            target = root / f"{name}-{token}.npy"
            written.append(target)
            _write_array(target, array)
            files[name] = _entry(target)
        for name, frame in frames.items():
            target = root / f"{name}-{token}.parquet"
            written.append(target)
            frame.write_parquet(target)
            _sync(target)
            files[name] = _entry(target)
        manifest = {"format": kind, "version": version, "meta": dict(meta), "files": files}
        fresh = root / f"{MANIFEST}.{token}"
        written.append(fresh)
        fresh.write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        _sync(fresh)
        os.replace(fresh, root / MANIFEST)
        _sync(root)
    except BaseException as error:
        for file in written:
            file.unlink(missing_ok=True)
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise DataError(f"could not write {root}: {reason}; nothing was changed") from error
        raise
    for file in old:
        file.unlink(missing_ok=True)


def read_directory(
    path: str | os.PathLike[str], kind: str, version: int, *, verify: bool = False
) -> Stored:
    """Read a directory of this kind, at most this version.

    Sizes and the checksums of small files are always checked, large files by sampled blocks;
    ``verify=True`` hashes everything.
    """
    root = Path(path)
    manifest = read_manifest(root)
    if manifest["format"] != kind:
        raise FileFormatError(f"{root} holds {manifest['format']!r}, expected {kind!r}")
    if manifest["version"] > version:
        newer = manifest["version"]
        raise FileFormatError(
            f"{root} has format version {newer}, this equipoise reads up to {version}; upgrade it"
        )
    arrays: dict[str, npt.NDArray[Any]] = {}
    frames: dict[str, pl.DataFrame] = {}
    for name, entry in manifest["files"].items():
        file = _checked_file(root, name, entry, verify=verify)
        try:
            if file.suffix == ".npy":
                arrays[name] = np.load(file, mmap_mode="r", allow_pickle=False)
            else:
                frames[name] = pl.read_parquet(file)
        except Exception as error:
            raise FileFormatError(f"{file} cannot be read: {error}") from error
    return Stored(manifest["meta"], arrays, frames)


def read_manifest(root: Path) -> dict[str, Any]:
    """Return the checked manifest of a directory."""
    file = root / MANIFEST
    if not file.is_file():
        raise FileFormatError(f"{root} is not a saved directory: it has no {MANIFEST}")
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        well_formed = (
            isinstance(manifest["format"], str)
            and isinstance(manifest["version"], int)
            and isinstance(manifest["meta"], dict)
            and isinstance(manifest["files"], dict)
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileFormatError(f"{file} is damaged: {error}") from error
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


def _current_files(root: Path) -> list[Path]:
    """List the files of an earlier save; refuse a directory that is not ours."""
    if not root.exists():
        return []
    if not root.is_dir():
        raise DataError(f"{root} is a file; give the path of a directory to save to")
    present = list(root.iterdir())
    if present and not (root / MANIFEST).is_file():
        raise DataError(f"{root} exists and is not a saved directory; choose another path")
    return [file for file in present if FILE_NAME.fullmatch(file.name)]


def _write_array(target: Path, array: npt.NDArray[Any]) -> None:
    if array.dtype.hasobject:
        raise TypeError(f"{target.name} would need pickle")
    with target.open("wb") as stream:
        np.lib.format.write_array(stream, np.ascontiguousarray(array), allow_pickle=False)
        stream.flush()
        os.fsync(stream.fileno())


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _entry(file: Path) -> dict[str, Any]:
    size = file.stat().st_size
    entry = {"file": file.name, "bytes": size, "sha256": _digest(file)}
    if size > SMALL:
        entry["sample"] = _sample_digest(file, size)
    return entry


def _checked_file(root: Path, name: str, entry: Any, *, verify: bool) -> Path:
    listed = entry.get("file") if isinstance(entry, dict) else None
    if not isinstance(listed, str) or not FILE_NAME.fullmatch(listed):
        raise FileFormatError(f"{root / MANIFEST} names a file that is not allowed: {listed!r}")
    file = root / listed
    if file.is_symlink() or not file.is_file():
        raise FileFormatError(f"{file}, which the manifest names as {name!r}, is missing")
    size = file.stat().st_size
    if size != entry.get("bytes"):
        raise FileFormatError(f"{file} has {size:,} bytes, the manifest says {entry.get('bytes')}")
    if verify or size <= SMALL:
        sound = _digest(file) == entry.get("sha256")
    else:
        sound = _sample_digest(file, size) == entry.get("sample")
    if not sound:
        raise FileFormatError(f"{file} was changed after it was saved: its checksum differs")
    return file


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sample_digest(file: Path, size: int) -> str:
    """Hash both ends and 62 blocks spread evenly over the file."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        for place in np.linspace(0, size - 4096, 64).astype(np.int64):
            stream.seek(int(place))
            digest.update(stream.read(4096))
    return digest.hexdigest()
