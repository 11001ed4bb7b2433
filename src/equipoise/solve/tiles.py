"""Tiles of a matrix in a folder: checksummed, replaced one at a time, safe against a crash.

A changed tile is a new file. Replacing the state file, which names the tiles that count and the
steps that are done, is the one moment at which a step becomes true; before it the old tile is
whole, after it the old tile is removed. So a process may die at any point.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.errors import DataError, FileFormatError
from equipoise.manifest import Fields, check_seal, parse, sealed
from equipoise.solve.tilework import Place, Tile, all_tasks

STATE = "state.json"
FORMAT = "equipoise-tiles"
ENTRY = ("row", "column", "file", "checksum")
BUFFERS = 3  # tiles in memory: a target and two factors


class TileFolder:
    """The lower triangle of an n x n matrix as files of tiles, and how far the work has come.

    Parameters
    ----------
    folder
        Where to; it exists.
    problem
        What is solved, as plain values; a folder that holds another problem is refused.
    size
        Rows of the matrix.
    rows
        Rows of a tile; the last ones may have fewer.
    dtype
        Type of the numbers.
    """

    def __init__(
        self, folder: Path, problem: dict[str, Any], size: int, rows: int, dtype: str
    ) -> None:
        self.folder, self.size, self.rows = folder, size, rows
        self.count = -(-size // rows)
        self.dtype = np.dtype(dtype)
        self._problem = {**problem, "size": size, "rows": rows, "dtype": dtype}
        self.done, self._files = self._read_state()
        self._sweep()
        self._buffers = [np.empty(rows * rows, self.dtype) for _ in range(BUFFERS)]
        self._holds: list[Place | None] = [None] * BUFFERS  # least recently used first

    def span(self, number: int) -> tuple[int, int]:
        """Return the items of a row or column of tiles."""
        return number * self.rows, min((number + 1) * self.rows, self.size)

    def get(self, place: Place) -> Tile:
        """Return a tile, read from its file unless a buffer holds it; valid for two more calls."""
        if place in self._holds:
            return self._buffer(place, self._holds.index(place))
        tile = self._buffer(place, 0)
        self._holds[-1] = None  # until it has been read in full
        file, checksum = self._files[place]
        self._read(self.folder / file, tile, checksum)
        self._holds[-1] = place
        return tile

    def fresh(self, place: Place) -> Tile:
        """Return room for a tile that is to be made from nothing."""
        found = self._holds.index(place) if place in self._holds else 0
        return self._buffer(place, found)

    @contextmanager
    def changing(self, place: Place) -> Iterator[None]:
        """Forget a tile that was left half changed in memory."""
        try:
            yield
        except BaseException:
            self._holds = [None if held == place else held for held in self._holds]
            raise

    def put(self, place: Place, tile: Tile) -> None:
        """Make the changed tile count, and the step that changed it done."""
        file = f"{place[0]:04d}-{place[1]:04d}-{self.done:08d}.tile"
        data = _bytes(tile)
        checksum = zlib.crc32(data)
        self._write(self.folder / file, data)
        old = self._files.get(place)
        self._files[place] = file, checksum
        self.finish()
        if old is not None:
            (self.folder / old[0]).unlink(missing_ok=True)

    def finish(self) -> None:
        """Count one more step as done."""
        self.done += 1
        state = {
            "format": FORMAT,
            "problem": self._problem,
            "done": self.done,
            "tiles": [[*place, *entry] for place, entry in self._files.items()],
        }
        fresh = self.folder / f"{STATE}.new"
        self._write(fresh, json.dumps(sealed(state)).encode())
        os.replace(fresh, self.folder / STATE)

    def clear(self) -> None:
        """Remove the tiles, also from memory; the state stays and says that all is done."""
        self._buffers.clear()
        for file, _ in self._files.values():
            (self.folder / file).unlink(missing_ok=True)

    def _buffer(self, place: Place, at: int) -> Tile:
        """Return the view of a buffer in the shape of a tile; it becomes the latest used."""
        self._buffers.append(self._buffers.pop(at))
        self._holds.pop(at)
        self._holds.append(place)
        shape = [stop - start for start, stop in map(self.span, place)]
        return self._buffers[-1][: shape[0] * shape[1]].reshape(shape)

    def _read(self, file: Path, tile: Tile, checksum: int) -> None:
        data = _bytes(tile)
        try:
            with file.open("rb", buffering=0) as stream:
                filled = 0
                while filled < len(data) and (got := stream.readinto(data[filled:])):
                    filled += got
                whole = filled == len(data) and not stream.read(1)
        except OSError as error:
            raise FileFormatError(f"{file} cannot be read: {error.strerror}") from error
        if not whole or zlib.crc32(data) != checksum:
            raise FileFormatError(
                f"{file} is damaged; remove the folder {self.folder} and fit again"
            )

    def _write(self, file: Path, data: Any) -> None:
        try:
            with file.open("wb", buffering=0) as stream:
                written, view = 0, memoryview(data)
                while written < len(view):
                    written += stream.write(view[written:]) or 0
                os.fsync(stream.fileno())
        except OSError as error:
            with suppress(OSError):
                file.unlink(missing_ok=True)
            raise DataError(write_failure(file, error)) from error

    def _read_state(self) -> tuple[int, dict[Place, tuple[str, int]]]:
        file = self.folder / STATE
        if not file.exists():
            self._refuse_foreign()
            return 0, {}
        try:
            state = parse(file.read_bytes())
            state.text("format", (FORMAT,))
            problem = state.group("problem")
            done, files = state.whole("done"), _listed(state)
            if problem == self._problem:
                self._check_places(done, list(files))
                check_seal(state)
        except (OSError, FileFormatError) as error:
            raise FileFormatError(
                f"{file} is damaged; remove the folder {self.folder} and fit again ({error})"
            ) from error
        if problem != self._problem:
            raise DataError(
                f"{self.folder} holds the tiles of another fit (data, settings or memory differ); "
                "give another scratch folder, or remove this one"
            )
        return done, files

    def _check_places(self, done: int, places: list[Place]) -> None:
        """Refuse other tiles than those that so many steps have made, in their order."""
        tasks = all_tasks(self.count)
        made = [task.target for task in tasks[:done] if task.kind == "gram"]
        if done > len(tasks) or places != made:
            raise FileFormatError(f"its tiles are not those of {done} steps")

    def _refuse_foreign(self) -> None:
        strange = [f for f in self.folder.iterdir() if not f.match("*.tile")]
        strange = [f for f in strange if f.name != f"{STATE}.new"]
        if strange:
            raise DataError(
                f"{self.folder} is not empty ({strange[0].name}); give one for the tiles alone"
            )

    def _sweep(self) -> None:
        """Remove tiles of a step that was cut short."""
        listed = {file for file, _ in self._files.values()}
        for file in self.folder.glob("*.tile"):
            if file.name not in listed:
                file.unlink(missing_ok=True)


def _listed(state: Fields) -> dict[Place, tuple[str, int]]:
    """Return the file and the checksum of each tile that the state names."""
    files: dict[Place, tuple[str, int]] = {}
    listed = state.get("tiles")
    for entry in listed if isinstance(listed, list) else [listed]:
        tile = Fields(dict(zip(ENTRY, entry, strict=False)) if isinstance(entry, list) else {})
        place = tile.whole("row"), tile.whole("column")
        name, checksum = tile.text("file"), tile.whole("checksum", most=2**32 - 1)
        if not re.fullmatch(rf"{place[0]:04d}-{place[1]:04d}-\d{{8,}}\.tile", name):
            raise FileFormatError(f"{name!r} does not name the tile {place}")
        files[place] = name, checksum
    return files


def stored_rows(folder: Path) -> int:
    """Return the rows of the tiles that a folder holds; 0 where it holds none."""
    try:
        return parse((folder / STATE).read_bytes()).group("problem").whole("rows")
    except (OSError, FileFormatError):
        return 0  # what is wrong with it is told when it is opened


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder; the system drops the lock of one that dies."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder} cannot be used: {error.strerror}") from error
    if os.name == "nt":
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise DataError(
                    f"{folder} is in use by another fit; give another scratch folder"
                ) from error
        yield
    finally:
        os.close(handle)


def _bytes(tile: Tile) -> memoryview:
    flat: Any = tile.reshape(-1).view(np.uint8)
    return memoryview(flat)


def write_failure(file: Path, error: OSError) -> str:
    """Return what to do about a file that could not be written."""
    return (
        f"could not write {file}: {error.strerror or error}; "
        "make room and fit again with the same scratch folder to go on from here"
    )
