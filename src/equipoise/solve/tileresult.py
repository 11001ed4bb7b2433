"""The result of the tiled engine: one `.npy` file, written tile by tile and read row by row.

Plain reads and writes instead of a memory map: mapped pages would count as memory of the process.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.errors import DataError, FileFormatError
from equipoise.matrix import Csr
from equipoise.solve.blocked import strips
from equipoise.solve.dense import mirror
from equipoise.solve.gram import gram_times
from equipoise.solve.tiles import TileFolder, write_failure
from equipoise.solve.tilework import Place, Tile

RESULT = "inverse.npy"
FIRST = (0, 0)  # of the tiles, in the order they are placed
TURN_COLUMNS = 256  # of a tile, transposed at a time
READ_BYTES = 8 << 20

Vector = npt.NDArray[np.float64]


def place_tile(tiles: TileFolder, place: Place) -> None:
    """Write a tile and its mirror image into the rows of the result; may be done again."""
    file = tiles.folder / RESULT
    rows, columns = map(tiles.span, place)
    tile = tiles.get(place)
    try:
        with _Rows(file, tiles.size, tiles.dtype, make=place == FIRST) as result:
            if place[0] == place[1]:
                with tiles.changing(place):
                    mirror(tile.T)  # from the lower triangle to the upper one
                result.write(tile, rows[0], columns[0])
            else:
                result.write(tile, rows[0], columns[0])
                for low, high in strips((0, tile.shape[1]), TURN_COLUMNS):
                    turned = np.ascontiguousarray(tile[:, low:high].T)
                    result.write(turned, columns[0] + low, rows[0])
    except OSError as error:
        raise DataError(write_failure(file, error)) from error


def check_result(
    file: Path, X: Csr, user_weights: Vector, penalty: Vector, dtype: np.dtype[Any]
) -> tuple[npt.NDArray[Any], float]:
    """Return the diagonal of P, and the relative size of (A P - I) V for four random vectors."""
    n_items = X.shape[1]
    V = np.random.default_rng(0).standard_normal((n_items, 4)).astype(dtype)
    Y = np.empty_like(V)
    diagonal = np.empty(n_items, dtype)
    start = len(_header(n_items, dtype))
    _check_head(file, n_items, dtype)
    step = max(1, READ_BYTES // (n_items * dtype.itemsize))
    for low, high in strips((0, n_items), step):
        offset = start + low * n_items * dtype.itemsize
        rows = np.fromfile(file, dtype, (high - low) * n_items, offset=offset)
        rows = rows.reshape(high - low, n_items)
        diagonal[low:high] = rows[:, low:high].diagonal()
        Y[low:high] = rows @ V
    error = gram_times(X, user_weights, Y) + penalty[:, None] * Y - V
    return diagonal, float(np.linalg.norm(error) / np.linalg.norm(V))


class _Rows:
    """A `.npy` file of n x n numbers that is filled in piece by piece.

    The step that places the first tile makes the file, and makes it again whatever a kill left of
    it; for all others it must be there, with its head and its full length.
    """

    def __init__(self, file: Path, size: int, dtype: np.dtype[Any], *, make: bool = False) -> None:
        header = _header(size, dtype)
        self._start, self._length, self._itemsize = len(header), size, dtype.itemsize
        if not make:
            _check_head(file, size, dtype)
        self._handle = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
        if make:
            os.ftruncate(self._handle, len(header) + size * size * dtype.itemsize)
            self._write_at(header, 0)

    def __enter__(self) -> _Rows:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if kind is None:
                os.fsync(self._handle)
        finally:
            os.close(self._handle)

    def write(self, block: Tile, row: int, column: int) -> None:
        """Write a block whose first number stands at this row and column."""
        for number, line in enumerate(block):
            place = (row + number) * self._length + column
            self._write_at(memoryview(line).cast("B"), self._start + place * self._itemsize)

    def _write_at(self, data: Any, offset: int) -> None:
        written = 0
        while written < len(data):
            os.lseek(self._handle, offset + written, os.SEEK_SET)
            written += os.write(self._handle, data[written:])


def _check_head(file: Path, size: int, dtype: np.dtype[Any]) -> None:
    """Refuse a result without its head or of another length."""
    header = _header(size, dtype)
    whole = file.is_file() and file.stat().st_size == len(header) + size * size * dtype.itemsize
    if whole:
        with file.open("rb") as stream:
            whole = stream.read(len(header)) == header
    if not whole:
        raise FileFormatError(f"{file} is damaged; remove the folder {file.parent} and fit again")


def _header(size: int, dtype: np.dtype[Any]) -> bytes:
    """Return the head of a `.npy` file of this size."""
    stream = io.BytesIO()
    fields = {"descr": dtype.str, "fortran_order": False, "shape": (size, size)}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue()
