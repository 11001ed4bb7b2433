"""Checksummed JSON documents, and saved directories of arrays and tables.

A document (a manifest, the state of a tiled solve, a line of a search) is a JSON object with a
checksum of its content; every field is read with a check of its type and range. Documents of older
versions have no checksum.

A directory holds `manifest.json` and the files it lists: `.npy` arrays (memory-mapped when read)
and Parquet tables. New files get new names, and replacing the manifest is the single step that
makes them current, so a crash leaves either the old content or the new one. Before that step the
new files are loaded as a reader would load them. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.checks import is_address
from equipoise.checks import path as checked_path
from equipoise.data.remote import (
    cache_folder,
    download_files,
    read_remote,
    remote_names,
    remove_files,
    upload_folder,
)
from equipoise.errors import (
    DataError,
    EquipoiseError,
    FileFormatError,
    MissingDataError,
    MissingExtraError,
    TooBigError,
)
from equipoise.runtime.locks import locked_folder
from equipoise.runtime.machine import check_polars

T = TypeVar("T")
# writes files beside the others; gets the folder or address, and a token for their names
Beside = Callable[[str, str], list[dict[str, Any]]]

SEAL = "seal"
LARGEST = 2**63 - 1
LARGEST_SEED = 2**1023  # numpy takes seeds of any length, JSON those that a float can hold
CANONICAL = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False)
SHOWN = 60  # characters of a wrong value that an error shows
MANIFEST = "manifest.json"
FILE_NAME = re.compile(r"[a-z][a-z0-9_]*-[0-9a-f]{12}\.(npy|parquet)")
OURS = re.compile(FILE_NAME.pattern + r"|manifest\.json(\.[0-9a-f]{12})?")
LARGEST_MANIFEST = 16 << 20
ABANDONED = 3600.0  # seconds after which nobody writes a file any more
FIRST_SAVE = 1.0  # seconds that a reader waits for the end of a first save
SMALL = 16 << 20  # files up to this size are hashed whole at every load, larger ones by samples
BLOCK = 4096  # bytes of a sample
CHECKED_CELLS = 1 << 22  # arrays up to this size are looked through when they are loaded
LONGEST_LIST = 64  # numbers that stand in the manifest itself; longer lists become arrays
LISTED = "$array"
LIST_NAME = re.compile(r"list_[0-9]+")
# errors that reading malformed values can raise
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with a checksum of its content; ValueError if JSON cannot hold it."""
    return {**document, SEAL: _content_digest(document)}


def check_seal(document: Mapping[str, Any]) -> None:
    """Raise if the content of a document does not match its checksum."""
    if SEAL in document and document[SEAL] != _content_digest(document):
        raise FileFormatError("it was changed after it was saved: its checksum differs")


def parse(text: str | bytes) -> Fields:
    """Parse a JSON object; NaN, numbers too large for a float and invalid Unicode are errors."""
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        document = json.loads(
            text, parse_int=_integer, parse_float=_number, parse_constant=_no_constant
        )
        _canonical(document)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(_short(str(error))) from error
    if not isinstance(document, dict):
        raise FileFormatError(f"it holds {_short(repr(document))}, expected a JSON object")
    return Fields(document)


def _content_digest(document: Mapping[str, Any]) -> str:
    content = {name: value for name, value in document.items() if name != SEAL}
    return hashlib.sha256(_canonical(content)).hexdigest()


def _canonical(document: Any) -> bytes:
    return CANONICAL.encode(document).encode()


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {_short(text)} is too large")
    return value


def _integer(text: str) -> int:
    _number(text)
    return int(text)


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")


class Fields(dict[str, Any]):
    """Fields of a JSON document; a missing, mistyped or out-of-range one is an error.

    `path` names the enclosing fields, for the error message.
    """

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        super().__init__(values)
        self.path = path

    def text(self, name: str, among: Collection[str] | None = None) -> str:
        """Text, one of `among` if given."""
        expected = "text" if among is None else f"one of {', '.join(among)}"
        text: str = self._read(name, str, expected)
        return text if among is None or text in among else self._refuse(name, expected)

    def texts(self, name: str) -> list[str]:
        """A list of text."""
        return self._read_list(name, lambda entry: isinstance(entry, str), "text")

    def whole_number(self, name: str, least: int = 0, most: int = LARGEST) -> int:
        """An integer in this range."""
        expected = f"a whole number from {least} to {most:.3g}"
        number: int = self._read(name, int, expected)
        return number if least <= number <= most else self._refuse(name, expected)

    def wholes(self, name: str, least: int = 0) -> list[int]:
        """A list of integers from `least` on."""
        expected = f"whole numbers from {least} to {LARGEST:.3g}"
        return self._read_list(name, lambda n: type(n) is int and least <= n <= LARGEST, expected)

    def number(self, name: str, least: float = -math.inf) -> float:
        """A finite number, at least `least`."""
        expected = "a number" if least == -math.inf else f"a number >= {least}"
        number = self._read(name, (int, float), expected)
        return float(number) if number >= least else self._refuse(name, expected)

    def flag(self, name: str) -> bool:
        """True or False."""
        return bool(self._read(name, bool, "true or false"))

    def group(self, name: str) -> Fields:
        """Fields inside this one."""
        return Fields(self._read(name, dict, "a group of fields"), f"{self.path}{name}.")

    def groups(self, name: str) -> list[Fields]:
        """A list of groups of fields."""
        entries = self._read_list(name, lambda entry: isinstance(entry, dict), "groups of fields")
        return [Fields(entry, f"{self.path}{name}.{i}.") for i, entry in enumerate(entries)]

    def _read(self, name: str, kind: type | tuple[type, ...], expected: str) -> Any:
        if name not in self:
            raise FileFormatError(f"the field {self.path + name!r} is missing")
        value = self[name]
        is_bool = isinstance(value, bool) and kind is not bool  # a bool is an int in Python
        if is_bool or not isinstance(value, kind):
            self._refuse(name, expected)
        return value

    def _read_list(self, name: str, fits: Callable[[Any], bool], expected: str) -> list[Any]:
        entries: list[Any] = self._read(name, list, f"a list of {expected}")
        return entries if all(map(fits, entries)) else self._refuse(name, f"a list of {expected}")

    def _refuse(self, name: str, expected: str) -> NoReturn:
        shown = _short(repr(self[name]))
        raise FileFormatError(f"the field {self.path + name!r} must be {expected}, got {shown}")


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


@dataclass(frozen=True)
class Stored:
    """Content of a saved directory: settings, arrays (read-only, memory-mapped) and tables.

    Files `beside` them are those that a function of `write_directory` wrote.
    """

    meta: Fields
    arrays: dict[str, npt.NDArray[Any]]
    frames: dict[str, pl.DataFrame]
    beside: Sequence[Fields] = ()  # files that are read when they are asked for
    place: str = ""  # folder or address of these

    def array(
        self, name: str, shape: tuple[int, ...], kinds: str, *, sizes: tuple[int, ...] = (4, 8)
    ) -> npt.NDArray[Any]:
        """Array `name` in C order, checked for its shape, dtype kinds ('f', 'iu') and sizes."""
        if name not in self.arrays:
            raise FileFormatError(f"the saved directory has no array {name!r}")
        array = self.arrays[name]
        number = array.dtype.kind in kinds and array.dtype.itemsize in sizes
        if not (array.shape == shape and number and array.dtype.isnative):
            actual = f"{array.dtype} {array.shape}"
            raise FileFormatError(f"array {name!r} should have shape {shape}, found {actual}")
        if not array.flags.c_contiguous:
            raise FileFormatError(f"array {name!r} should be stored row by row")
        return array

    def finite(
        self, name: str, shape: tuple[int, ...], kinds: str = "f", **sizes: tuple[int, ...]
    ) -> npt.NDArray[Any]:
        """Like `array`, but NaN and infinities are errors."""
        array = self.array(name, shape, kinds, **sizes)
        if not np.isfinite(array).all():
            raise FileFormatError(f"array {name!r} holds NaN or infinite values")
        return array

    def mapped(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Float array; a large one stays memory-mapped and is not searched for NaN."""
        small = np.prod(shape, dtype=np.float64) <= CHECKED_CELLS
        return self.finite(name, shape) if small else self.array(name, shape, "f")

    def frame(self, name: str, height: int) -> pl.DataFrame:
        """Table `name`, checked for its number of rows."""
        if name not in self.frames:
            raise FileFormatError(f"the saved directory has no table {name!r}")
        if self.frames[name].height != height:
            actual = self.frames[name].height
            raise FileFormatError(f"table {name!r} should have {height} rows, found {actual}")
        return self.frames[name]


def write_directory(
    path: str | os.PathLike[str],
    kind: str,
    version: int,
    meta: Mapping[str, Any],
    arrays: Mapping[str, npt.NDArray[Any]],
    frames: Mapping[str, pl.DataFrame],
    restore: Callable[[Stored], object] = lambda stored: stored,
    beside: Beside | None = None,
) -> None:
    """Write a directory atomically: the old content stays valid until the new one is complete.

    `meta` must be serialisable as JSON; its long lists of numbers are stored as arrays. Names of
    arrays and frames are distinct lower-case words. `restore` is the function later passed to
    `load_directory`: if it fails on the new files, nothing is changed. It is an error to save to
    a directory while another process does; where the system has no locks, the last save wins.

    `beside` gets the folder or address and a token, writes more files there, whose names
    `FILE_NAME` allows, and returns their entries. They are listed in the manifest, but are neither
    read nor copied when the directory is loaded.
    """
    check_polars()
    if is_address(path):
        _check_ours_there(os.fspath(path), kind)
        token, url = secrets.token_hex(6), _url(path)
        try:
            entries = [] if beside is None else beside(url, token)
            block_files = {entry["file"] for entry in entries}
            with tempfile.TemporaryDirectory(prefix="equipoise-") as parent:
                folder = Path(parent) / "saved"
                content = meta, arrays, frames, restore
                written = None if beside is None else lambda *_: entries
                write_directory(folder, kind, version, *content, written)
                upload_folder(
                    folder,
                    url,
                    MANIFEST,
                    lambda name: bool(OURS.fullmatch(name)) and name not in block_files,
                )
        except BaseException:
            if beside is not None:
                remove_files(url, lambda name: token in name)
            raise
        return
    root = checked_path("path", path)
    token = secrets.token_hex(6)
    lists: dict[str, npt.NDArray[Any]] = {}
    try:
        with _locked(root, kind, token):
            fresh = root / f"{MANIFEST}.{token}"
            content = _encoded(dict(meta), lists)
            files = _write_files(root, token, chain(arrays.items(), lists.items()), frames)
            manifest = {"format": kind, "version": version, "meta": content, "files": files}
            if beside is not None:
                manifest["beside"] = beside(str(root), token)
            _write(fresh, json.dumps(sealed(manifest), indent=1).encode())
            _restored(root, read_manifest(fresh), kind, version, restore, str(root), verify=False)
            os.replace(fresh, root / MANIFEST)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"could not write {root}: {reason}; nothing was changed") from error
    except FileFormatError as error:
        raise DataError(
            f"{root} was not saved, since it could not be loaded again: {error}; "
            "nothing was changed"
        ) from error


def _encoded(meta: dict[str, Any], lists: dict[str, npt.NDArray[Any]]) -> Any:
    """Return the settings for the manifest; long lists of numbers are moved to `lists`."""

    def encoded(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: encoded(part) for name, part in value.items()}
        if not isinstance(value, list | tuple):
            return value
        if len(value) <= LONGEST_LIST or set(map(type, value)) not in ({int}, {float}):
            return [encoded(part) for part in value]
        name = f"list_{len(lists)}"
        lists[name] = np.array(value, np.float64 if type(value[0]) is float else np.int64)
        return {LISTED: name}

    try:
        content = encoded(meta)
        sealed(content)  # fails now if the manifest could not be written
    except (OverflowError, RecursionError, TypeError, ValueError) as error:
        raise FileFormatError(f"its settings do not fit a manifest: {error}") from error
    return content


def _decoded(meta: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Fields:
    """Invert `_encoded`; the long lists are removed from `arrays`."""
    lists = Stored(Fields({}), {n: a for n, a in arrays.items() if LIST_NAME.fullmatch(n)}, {})

    def decoded(value: Any) -> Any:
        if isinstance(value, list):
            return [decoded(part) for part in value]
        if not isinstance(value, dict):
            return value
        if set(value) == {LISTED}:
            name = str(value[LISTED])
            size = lists.arrays[name].size if name in lists.arrays else 0
            return lists.finite(name, (size,), "fi", sizes=(8,)).tolist()
        return {name: decoded(part) for name, part in value.items()}

    content = decoded(meta)
    for name in lists.arrays:
        arrays.pop(name)
    return Fields(content)


def _write_files(
    root: Path,
    token: str,
    arrays: Iterable[tuple[str, npt.NDArray[Any]]],
    frames: Mapping[str, pl.DataFrame],
) -> dict[str, Any]:
    files: dict[str, Any] = {}

    def write(name: str, ending: str, head: Any, blocks: Iterable[Any] = ()) -> None:
        file = f"{name}-{token}.{ending}"
        if name in files or not FILE_NAME.fullmatch(file):
            raise ValueError(f"{name!r} cannot name a file of a saved directory")
        _write(root / file, head, blocks)
        files[name] = file_entry(root / file)

    for name, array in arrays:
        if array.dtype.hasobject:
            raise TypeError(f"array {name!r} would need pickle")
        # `write` reports the reason of an error; numpy's `tofile` hides it
        blocks = array.blocks() if hasattr(array, "blocks") else (np.ascontiguousarray(array),)
        header = io.BytesIO()
        layout = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
        np.lib.format.write_array_header_1_0(header, layout)
        write(name, "npy", header.getvalue(), (b.reshape(-1).view(np.uint8) for b in blocks))
    for name, frame in frames.items():
        content = io.BytesIO()
        frame.write_parquet(content)
        write(name, "parquet", content.getbuffer())
    return files


def _write(target: Path, head: Any, blocks: Iterable[Any] = ()) -> None:
    with target.open("wb") as stream:
        for block in chain([head], blocks):
            stream.write(block)
        stream.flush()
        os.fsync(stream.fileno())


def file_entry(file: Path) -> dict[str, Any]:
    """Name, size and checksums of a file, for the manifest."""
    size = file.stat().st_size
    entry = {"file": file.name, "bytes": size, "sha256": _digest(file)}
    if size > SMALL:
        entry["sample"] = _sample_digest(file, size)
    return entry


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sample_digest(file: Path, size: int) -> str:
    """Hash both ends and 62 blocks spread evenly over the file."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        for place in np.linspace(0, size - BLOCK, 64).astype(np.int64):
            stream.seek(int(place))
            digest.update(stream.read(BLOCK))
    return digest.hexdigest()


@contextmanager
def _locked(root: Path, kind: str, token: str) -> Iterator[None]:
    """Create and lock the directory; afterwards remove the files that its manifest does not list.

    The system releases the lock when the process dies. Without a lock another process may be
    writing, so only files of this save, of the one it replaces and old files are removed.
    """
    existed = root.exists()
    check_ours(root, kind)
    root.mkdir(parents=True, exist_ok=True)
    in_use = f"{root} is being saved to by another process; wait until it is done"
    with locked_folder(root, in_use) as (handle, is_locked):
        replaced = set() if is_locked else _listed(root) or set()

        def can_go(file: Path) -> bool:
            ours = is_locked or file.name in replaced or token in file.name
            return ours or time.time() - file.stat().st_mtime > ABANDONED

        try:
            yield
        finally:
            # A failed clean-up does not undo a save: Windows cannot delete a mapped file.
            with suppress(OSError):
                if handle is not None:
                    os.fsync(handle)  # the new manifest is on the disk before the old files go
                _sweep(root, can_go)
                if not existed and not any(root.iterdir()):
                    root.rmdir()


def check_ours(root: Path, kind: str) -> None:
    """Raise if the path holds anything but an earlier save of the same kind."""
    if not root.exists():
        return
    if not root.is_dir():
        raise DataError(f"{root} is a file; give the path of a directory to save to")
    present = [file.name for file in root.iterdir()]
    if MANIFEST in present:
        fine = is_directory_of(root, kind)
    else:  # left behind by an interrupted first save
        fine = all(OURS.fullmatch(name) for name in present)
    if not fine:
        raise DataError(f"{root} exists and is not a saved {kind}; choose another path")


def _url(path: str | os.PathLike[str]) -> str:
    return os.fspath(path).rstrip("/")


def _check_ours_there(url: str, kind: str) -> None:
    """Raise if a remote folder holds anything but an earlier save of the same kind."""
    names = remote_names(url)
    content = read_remote(f"{_url(url)}/{MANIFEST}") if MANIFEST in names else None
    if content is None:
        fine = all(OURS.fullmatch(name) for name in names)
    else:
        fine = parse(content).get("format") == kind
    if not fine:
        raise DataError(f"{url} exists and is not a saved {kind}; choose another address")


def local_directory(path: str | os.PathLike[str]) -> Path:
    """Return the path of a saved directory; one at an address is copied to the cache folder.

    Only files that are not there yet are fetched.
    """
    if not is_address(path):
        return checked_path("path", path)
    url = _url(path)
    folder = cache_folder() / "remote" / hashlib.sha256(url.encode()).hexdigest()[:16]
    content = read_remote(f"{url}/{MANIFEST}")
    if content is None:
        raise FileFormatError(f"{url} is not a saved directory: it has no {MANIFEST}")
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f"{MANIFEST}.{secrets.token_hex(6)}"
    fresh.write_bytes(content)
    listed = [entry.get("file") for entry in read_manifest(fresh).group("files").values()]
    download_files(url, [name for name in listed if FILE_NAME.fullmatch(str(name))], folder)
    os.replace(fresh, folder / MANIFEST)
    _sweep(folder, lambda file: time.time() - file.stat().st_mtime > ABANDONED)
    return folder


def _sweep(root: Path, can_go: Callable[[Path], bool]) -> None:
    """Remove the files of earlier or interrupted saves: those that the manifest does not list."""
    files = list(root.iterdir())
    listed = _listed(root)  # read after `files`, so that no newer file is removed
    if listed is None:
        return  # damaged: keep everything
    for file in files:
        if file.name not in listed | {MANIFEST} and OURS.fullmatch(file.name) and can_go(file):
            file.unlink(missing_ok=True)


def _listed(root: Path) -> set[Any] | None:
    """Return the file names in the manifest, empty without a manifest; None if it is damaged."""
    try:
        manifest = read_manifest(root / MANIFEST)
        entries = chain(manifest["files"].values(), manifest.get("beside", ()))
        return {entry.get("file") for entry in entries}
    except (FileFormatError, AttributeError, TypeError):
        return None if (root / MANIFEST).exists() else set()


def load_directory(
    path: str | os.PathLike[str],
    kind: str,
    version: int,
    restore: Callable[[Stored], T],
    *,
    verify: bool = False,
) -> T:
    """Read a directory of this kind and of at most this version, and pass it to `restore`.

    Any damage is a `FileFormatError`. Sizes and the checksums of small files are always checked,
    large files by sampled blocks; ``verify=True`` hashes everything. From a URL, files are first
    copied to the cache folder (`EQUIPOISE_DATA`).
    """
    check_polars()
    root = local_directory(path)
    patience = time.monotonic() + FIRST_SAVE
    while _is_being_made(root) and time.monotonic() < patience:
        time.sleep(0.01)
    manifest = read_manifest(root / MANIFEST)
    while True:
        try:
            return _restored(
                root, manifest, kind, version, restore, os.fspath(path), verify=verify
            )
        except FileFormatError:
            # A save that finished in the meantime has removed the files of the old manifest.
            newer = read_manifest(root / MANIFEST)
            if newer == manifest:
                raise
            manifest = newer


def _restored(
    root: Path,
    manifest: Fields,
    kind: str,
    version: int,
    restore: Callable[[Stored], T],
    place: str,
    *,
    verify: bool,
) -> T:
    if manifest["format"] != kind:
        raise FileFormatError(f"{root} holds {manifest['format']!r}, expected {kind!r}")
    if manifest["version"] > version:
        newer = f"{root} has format version {manifest['version']}"
        raise FileFormatError(f"{newer}, this equipoise reads up to {version}; upgrade it")
    arrays, frames = _read_files(root, manifest.group("files"), verify=verify)
    try:
        beside = manifest.groups("beside") if "beside" in manifest else []
        with np.errstate(all="ignore"):
            content = _decoded(manifest["meta"], arrays), arrays, frames
            restored = restore(Stored(*content, beside, place))
        check_seal(manifest)  # last, because an error that names the field is more useful
    except (MissingDataError, MissingExtraError, TooBigError):
        raise
    except (EquipoiseError, *MALFORMED) as error:
        raise FileFormatError(f"{root} is damaged: {error}") from error
    return restored


def _is_being_made(root: Path) -> bool:
    """Whether a directory holds files of an unfinished first save."""
    if (root / MANIFEST).is_file() or not root.is_dir():
        return False
    names = [file.name for file in root.iterdir()]
    return MANIFEST not in names and any(OURS.fullmatch(name) for name in names)


def read_manifest(file: Path) -> Fields:
    """Read and check the manifest of a directory."""
    if not file.is_file():
        if _is_being_made(file.parent):
            raise FileFormatError(
                f"{file.parent} has no {MANIFEST} yet: its first save is still running or was "
                "interrupted; wait, or save again"
            )
        raise FileFormatError(f"{file.parent} is not a saved directory: it has no {MANIFEST}")
    try:
        if file.stat().st_size > LARGEST_MANIFEST:
            raise FileFormatError("it is larger than any manifest")
        manifest = parse(file.read_bytes())
        manifest.text("format")
        manifest.whole_number("version", least=1)
        manifest.group("meta")
        manifest.group("files")
    except OSError as error:
        raise FileFormatError(f"{file} cannot be read: {error.strerror}") from error
    except FileFormatError as error:
        raise FileFormatError(f"{file} is damaged: {error}") from error
    return manifest


def is_directory_of(path: str | os.PathLike[str], kind: str) -> bool:
    """Whether the path is a saved directory of this kind."""
    try:
        return bool(read_manifest(Path(path) / MANIFEST)["format"] == kind)
    except (FileFormatError, OSError):
        return False


def _read_files(
    root: Path, files: Fields, *, verify: bool
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, pl.DataFrame]]:
    arrays: dict[str, npt.NDArray[Any]] = {}
    frames: dict[str, pl.DataFrame] = {}
    for name, entry in files.items():
        file = checked_file(root, name, entry, verify=verify)
        try:
            if file.suffix == ".npy":
                arrays[name] = np.lib.format.open_memmap(file, mode="r")
            else:
                frames[name] = pl.read_parquet(file, glob=False)
        except (Exception, pl.exceptions.PanicException) as error:
            raise FileFormatError(f"{file} cannot be read: {error}") from error
    return arrays, frames


def checked_file(root: Path, name: str, entry: Any, *, verify: bool) -> Path:
    """Return the file of a manifest entry after checking it; `verify` hashes all of it."""
    listed = entry.get("file") if isinstance(entry, dict) else None
    if not isinstance(listed, str) or not FILE_NAME.fullmatch(listed):
        raise FileFormatError(f"{root / MANIFEST} names a file that is not allowed: {listed!r}")
    if not listed.startswith(f"{name}-"):
        raise FileFormatError(f"{root / MANIFEST} is damaged: it names {listed!r} as {name!r}")
    file = root / listed
    if file.is_symlink() or not file.is_file():
        raise FileFormatError(f"{file}, which the manifest names as {name!r}, is missing")
    try:
        size, expected = file.stat().st_size, entry.get("bytes")
        if size != expected:
            raise FileFormatError(f"{file} has {size:,} bytes, the manifest says {expected}")
        if verify or size <= SMALL:
            sound = _digest(file) == entry.get("sha256")
        else:
            sound = _sample_digest(file, size) == entry.get("sample")
    except OSError as error:
        raise FileFormatError(f"{file} cannot be read: {error.strerror}") from error
    if not sound:
        raise FileFormatError(f"{file} was changed after it was saved: its checksum differs")
    return file
