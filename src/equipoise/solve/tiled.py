"""Tiled engine: the exact inverse with tiles on disk, within a given amount of memory.

The steps are those of `blocked`, on tiles so large that three fill the budget. So almost all time
goes into large products and little into files. A killed solve is resumed by the same call with the
same scratch folder: every changed tile is a new file, and a step counts once the state file, which
names the valid tiles and the number of completed steps, is replaced. The result is one `.npy`
file, written tile by tile. Files are read and written with plain calls instead of memory maps,
whose pages would count as memory of the process.
"""

from __future__ import annotations

import io
import logging
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg import get_blas_funcs, get_lapack_funcs

from equipoise.data.matrix import Csr
from equipoise.data.storage import Fields, parse
from equipoise.errors import DataError, FileFormatError, SolveError, TooBigError
from equipoise.runtime import machine
from equipoise.runtime.kernels import compiled
from equipoise.runtime.machine import Pace, gigabytes
from equipoise.runtime.resume import (
    locked,
    read_state,
    write_error,
    write_file,
    write_state,
)
from equipoise.solve import blocked, dense
from equipoise.solve.blocked import Span, indefinite, strips

logger = logging.getLogger(__name__)

STATE, RESULT = "state.json", "inverse.npy"
FORMAT = "equipoise-tiles"
ENTRY = ("row", "column", "file", "checksum")
BUFFERS = 3  # tiles in memory: a target and two factors
SMALLEST = 256  # rows of a tile below which files would cost more than products
TURN_COLUMNS = 256  # columns of a tile that are transposed at a time
READ_BYTES = 8 << 20
LOG_SECONDS = 30.0

Tile = npt.NDArray[Any]
Place = tuple[int, int]
Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SolveProgress:
    """Progress of a solve: steps done and in all, share of the operations, seconds left.

    `seconds_left` is None after the first step, which may have compiled kernels.
    """

    step: int
    steps: int
    share: float
    seconds_left: float | None


def invert(
    X: Csr,
    user_weights: Vector,
    penalty: Vector,
    *,
    tile_rows: int,
    dtype: str = "float32",
    scratch: str | os.PathLike[str] | None = None,
    problem: dict[str, Any] | None = None,
    progress: Callable[[SolveProgress], None] | None = None,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], float]:
    """Return P = (X^T W X + diag(penalty))^-1 as a read-only memory map, diagonal and residual.

    Three tiles of `tile_rows` rows are in memory. The folder `scratch` holds the tiles and the
    result: it is needed to resume after a crash, and as long as the result is used. None takes a
    temporary folder that is removed at once. `problem` has JSON values that identify the solve,
    and `progress` is called after each step.
    """
    with ExitStack() as stack:
        if scratch is None:
            temporary = TemporaryDirectory(prefix="equipoise-", ignore_cleanup_errors=True)
            scratch = stack.enter_context(temporary)
        folder = Path(scratch)
        stack.enter_context(locked(folder))
        # an earlier run may have had less memory: its tiles fit too
        rows = stored_rows(folder)
        rows = rows if 0 < rows < tile_rows else tile_rows
        tiles = TileFolder(folder, problem or {}, X.shape[1], rows, dtype)
        tiles.check_disk()
        _Solve(tiles, X, user_weights, penalty).run(progress)
        diagonal, residual = tiles.result.check(X, user_weights, penalty)
        dense.check_accuracy(residual, dtype, "fit with dtype='float64'")
        # on POSIX the map outlives the file of a temporary folder
        return np.lib.format.open_memmap(folder / RESULT, mode="r"), diagonal, residual


def rows_for(n_items: int, budget: int, itemsize: int) -> int:
    """Return the rows of a tile when tiles may take this much memory; 0 if they cannot."""
    most = int((max(budget, 0) / (BUFFERS * itemsize)) ** 0.5)
    most = min(most, dense.LAPACK_ITEMS["float32" if itemsize == 4 else "float64"])
    if most < min(SMALLEST, n_items):
        return 0
    return -(-n_items // -(-n_items // most))  # as even as possible


def disk_bytes(n_items: int, tile_rows: int, itemsize: int) -> int:
    """Return the peak disk use: the triangle in tiles, one tile twice, and the result."""
    count = -(-n_items // tile_rows)
    return (count * (count + 1) // 2 + 1) * tile_rows**2 * itemsize + n_items**2 * itemsize + 4096


def written_bytes(folder: Path) -> int:
    """Return the disk use of the files that an earlier run left in its folder."""
    files = [file.stat() for file in (*folder.glob("*.tile"), *folder.glob(RESULT))]
    # the result has its full length at once, but not yet its blocks
    return sum(min(file.st_size, 512 * getattr(file, "st_blocks", 0)) for file in files)


def stored_rows(folder: Path) -> int:
    """Return the rows of the tiles in a folder; 0 without tiles or with a damaged state."""
    try:
        return parse((folder / STATE).read_bytes()).group("problem").whole_number("rows")
    except (OSError, FileFormatError):
        return 0  # `TileFolder` reports the damage


@dataclass(frozen=True)
class Task:
    """One change of the tile at `target`, given by row and column.

    `kind` is "gram", a kind of `blocked.Step`, or "place", which writes the tile into the result.
    `inputs` are the tiles that are read; for a sum of products, one factor after the other.
    """

    kind: str
    target: Place
    inputs: tuple[Place, ...] = ()

    def operations(self, rows: int) -> float:
        """Return the floating point operations on tiles of this many rows."""
        if self.kind in ("gram", "place"):
            return float(rows) ** 2
        if not self.inputs:
            return float(rows) ** 3 / 3
        per_product = 1 if self.target[0] == self.target[1] else 2
        return (per_product * (len(self.inputs) // 2) or 1) * float(rows) ** 3


def all_tasks(count: int) -> list[Task]:
    """Return all tasks for count x count tiles: Gram matrix, inverse, and writing the result.

    A folder counts the tasks that are done, so their order is part of its format.
    """
    places = [(i, j) for j in range(count) for i in range(j, count)]
    tasks = [Task("gram", place) for place in places]
    for kind, rows, columns, inner in blocked.steps(count, 1, 1):
        if kind in ("add", "subtract"):
            targets = [(i, j) for i in range(*rows) for j in range(*columns)]
        else:
            targets = [(i, j) for j in range(*columns) for i in range(max(rows[0], j), rows[1])]
        tasks += [Task(kind, target, _inputs(kind, target, inner)) for target in targets]
    return [*tasks, *(Task("place", place) for place in places)]


def _inputs(kind: str, target: Place, inner: Span) -> tuple[Place, ...]:
    i, j = target
    if kind in ("factor", "invert", "square"):
        return ()
    if kind in blocked.TRIANGULAR:
        return ((inner[0], inner[0]),)
    places: list[Place] = []
    for k in range(*inner):
        left = (k, i) if kind == "add_inner" else (i, k)
        right = (j, k) if kind == "subtract_outer" else (k, j)
        places += left, right
    return tuple(places)


class TileFolder:
    """The lower triangle of a size x size matrix as files of tiles, and the number of steps done.

    After an exception, make a new one: a tile in memory may be half changed.

    Tiles have `rows` rows; the last ones may have fewer. `problem` has JSON values that identify
    what is solved; a folder of another problem is refused.
    """

    def __init__(
        self, folder: Path, problem: dict[str, Any], size: int, rows: int, dtype: str
    ) -> None:
        self.folder, self.size, self.rows = folder, size, rows
        self.dtype = np.dtype(dtype)
        self.tasks = all_tasks(-(-size // rows))
        self.result = _Result(folder / RESULT, size, self.dtype)
        self._problem = {**problem, "size": size, "rows": rows, "dtype": dtype}
        remedy = f"remove the folder {folder} and fit again"
        state = read_state(folder / STATE, self._problem, remedy, self._read_state)
        if state is None:
            self._require_empty()
        self.done, self._files = state or (0, {})
        valid = {file for file, _ in self._files.values()}
        for file in folder.glob("*.tile"):  # of a step that was interrupted
            if file.name not in valid:
                file.unlink(missing_ok=True)
        self._buffers = [np.empty(rows * rows, self.dtype) for _ in range(BUFFERS)]
        self._buffered: list[Place | None] = [None] * BUFFERS  # least recently used first

    def span(self, number: int) -> Span:
        """Return the items of a row or column of tiles."""
        return number * self.rows, min((number + 1) * self.rows, self.size)

    def get(self, place: Place) -> Tile:
        """Return a tile, read from its file unless it is in a buffer; valid for two more calls."""
        if place in self._buffered:
            return self.fresh(place)
        tile = self._buffer(place, 0)
        self._read(tile, *self._files[place])
        return tile

    def fresh(self, place: Place) -> Tile:
        """Return the buffer of a tile without reading its file."""
        return self._buffer(place, self._buffered.index(place) if place in self._buffered else 0)

    def put(self, place: Place, tile: Tile) -> None:
        """Store the changed tile and count the step that changed it as done."""
        name = f"{place[0]:04d}-{place[1]:04d}-{self.done:08d}.tile"
        content = _bytes(tile)
        write_file(self.folder / name, content)
        old = self._files.get(place)
        self._files[place] = name, zlib.crc32(content)
        self.finish()
        if old is not None:
            (self.folder / old[0]).unlink(missing_ok=True)

    def finish(self) -> None:
        """Count one more step as done."""
        self.done += 1
        tiles = [[*place, *entry] for place, entry in self._files.items()]
        state = self.folder / STATE
        write_state(state, self._problem, format=FORMAT, done=self.done, tiles=tiles)

    def clear(self) -> None:
        """Remove the tiles, also from memory; the state stays and says that all is done."""
        self._buffers.clear()
        for name, _ in self._files.values():
            (self.folder / name).unlink(missing_ok=True)

    def check_disk(self) -> None:
        """Raise `TooBigError` where the disk cannot hold what is still to be written."""
        needed = disk_bytes(self.size, self.rows, self.dtype.itemsize) - written_bytes(self.folder)
        free = shutil.disk_usage(self.folder).free
        if self.done < len(self.tasks) and needed > free:
            raise TooBigError(
                f"{self.size:,} items need {gigabytes(needed)} more on the disk of {self.folder}, "
                f"which has {gigabytes(free)} free; make room or give another scratch folder"
            )

    def _buffer(self, place: Place, at: int) -> Tile:
        """Return a buffer in the shape of a tile; it becomes the most recently used."""
        self._buffers.append(self._buffers.pop(at))
        self._buffered.pop(at)
        self._buffered.append(place)
        shape = [stop - start for start, stop in map(self.span, place)]
        return self._buffers[-1][: shape[0] * shape[1]].reshape(shape)

    def _read(self, tile: Tile, name: str, checksum: int) -> None:
        file, content = self.folder / name, _bytes(tile)
        try:
            with file.open("rb") as stream:
                is_complete = stream.readinto(content) == len(content) and not stream.read(1)
        except OSError as error:
            raise FileFormatError(f"{file} cannot be read: {error.strerror}") from error
        if not is_complete or zlib.crc32(content) != checksum:
            raise _damaged(file)

    def _require_empty(self) -> None:
        for file in self.folder.iterdir():
            if not file.match("*.tile") and file.name != f"{STATE}.new":
                raise DataError(
                    f"{self.folder} is not empty ({file.name}); give a folder for the tiles alone"
                )

    def _read_state(self, state: Fields) -> tuple[int, dict[Place, tuple[str, int]]]:
        """Return the number of steps done, and the file and the checksum of each tile."""
        state.text("format", (FORMAT,))
        done = state.whole_number("done")
        files: dict[Place, tuple[str, int]] = {}
        entries = state.get("tiles")
        for entry in entries if isinstance(entries, list) else [entries]:
            tile = Fields(dict(zip(ENTRY, entry, strict=False)) if isinstance(entry, list) else {})
            place = tile.whole_number("row"), tile.whole_number("column")
            name, checksum = tile.text("file"), tile.whole_number("checksum", most=2**32 - 1)
            if not re.fullmatch(rf"{place[0]:04d}-{place[1]:04d}-\d{{8,}}\.tile", name):
                raise FileFormatError(f"{name!r} does not name the tile {place}")
            files[place] = name, checksum
        places = [task.target for task in self.tasks[:done] if task.kind == "gram"]
        if done > len(self.tasks) or list(files) != places:
            raise FileFormatError(f"its tiles are not those of {done} steps")
        return done, files


def _bytes(tile: Tile) -> memoryview:
    flat: Any = tile.reshape(-1).view(np.uint8)
    return memoryview(flat)


def _damaged(file: Path) -> FileFormatError:
    return FileFormatError(f"{file} is damaged; remove the folder {file.parent} and fit again")


class _Result:
    """The `.npy` file of the n x n inverse, written tile by tile and read row by row."""

    def __init__(self, file: Path, size: int, dtype: np.dtype[Any]) -> None:
        self.file, self.size, self.dtype = file, size, dtype
        stream = io.BytesIO()
        fields = {"descr": dtype.str, "fortran_order": False, "shape": (size, size)}
        np.lib.format.write_array_header_1_0(stream, fields)
        self._head = stream.getvalue()
        self._length = len(self._head) + size * size * dtype.itemsize

    def place(self, tile: Tile, row: int, column: int) -> None:
        """Write a tile that begins at this row and column, and its transpose.

        The tile at the corner creates the file anew, whatever a killed run left of it; for all
        others the file must exist with its header and full length.
        """
        is_first = row == column == 0
        if not is_first:
            self._check_head()
        try:
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
            handle = os.open(self.file, flags, 0o644)
            try:
                if is_first:
                    os.ftruncate(handle, self._length)
                    self._write_at(handle, memoryview(self._head), 0)
                self._write(handle, tile, row, column)
                if row != column:
                    for low, high in strips((0, tile.shape[1]), TURN_COLUMNS):
                        transposed = np.ascontiguousarray(tile[:, low:high].T)
                        self._write(handle, transposed, column + low, row)
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise write_error(self.file, error) from error

    def check(self, X: Csr, user_weights: Vector, penalty: Vector) -> tuple[Tile, float]:
        """Return the diagonal of P, and the relative size of (A P - I) V for random vectors."""
        self._check_head()
        n_items, dtype = self.size, self.dtype
        V = dense.probes(n_items, dtype)
        Y, diagonal = np.empty_like(V), np.empty(n_items, dtype)
        for low, high in strips((0, n_items), max(1, READ_BYTES // (n_items * dtype.itemsize))):
            offset = len(self._head) + low * n_items * dtype.itemsize
            rows = np.fromfile(self.file, dtype, (high - low) * n_items, offset=offset)
            rows = rows.reshape(high - low, n_items)
            diagonal[low:high] = rows[:, low:high].diagonal()
            Y[low:high] = rows @ V
        return diagonal, dense.relative_error(X, user_weights, penalty, Y, V)

    def _check_head(self) -> None:
        if not self.file.is_file() or self.file.stat().st_size != self._length:
            raise _damaged(self.file)
        with self.file.open("rb") as stream:
            if stream.read(len(self._head)) != self._head:
                raise _damaged(self.file)

    def _write(self, handle: int, block: Tile, row: int, column: int) -> None:
        for number, line in enumerate(block):
            place = (row + number) * self.size + column
            offset = len(self._head) + place * self.dtype.itemsize
            self._write_at(handle, memoryview(line).cast("B"), offset)

    def _write_at(self, handle: int, content: memoryview, offset: int) -> None:
        written = 0
        while written < len(content):
            os.lseek(handle, offset + written, os.SEEK_SET)
            written += os.write(handle, content[written:])


class _Solve:
    """Carries out the tasks of a folder that are not done yet."""

    def __init__(self, tiles: TileFolder, X: Csr, user_weights: Vector, penalty: Vector) -> None:
        self.tiles, self.X = tiles, X
        self.user_weights, self.penalty = user_weights, penalty
        self._columns: tuple[int, Any] = (-1, None)

    def run(self, progress: Callable[[SolveProgress], None] | None) -> None:
        """Do all remaining tasks and report the progress."""
        tiles, tasks = self.tiles, self.tiles.tasks
        cost = np.cumsum([task.operations(tiles.rows) for task in tasks])
        pace, logged = Pace(), time.perf_counter()
        if tiles.done:
            logger.info("resuming after step %d of %d", tiles.done, len(tasks))
        while tiles.done < len(tasks):
            self._do(tasks[tiles.done])
            now, done = time.perf_counter(), cost[tiles.done - 1]
            share, left = float(done / cost[-1]), pace.left(float(done), float(cost[-1]))
            if progress is not None:
                progress(SolveProgress(tiles.done, len(tasks), share, left))
            if now - logged > LOG_SECONDS and left is not None:
                logger.info("%.0f%% of the solve, %.0f s left", 100 * share, left)
                logged = now
        tiles.clear()

    def _do(self, task: Task) -> None:
        tiles, target = self.tiles, task.target
        if task.kind == "place":
            tile = tiles.get(target)
            if target[0] == target[1]:
                dense.mirror(tile.T)  # from the lower triangle to the upper one
            tiles.result.place(tile, *(tiles.span(number)[0] for number in target))
            tiles.finish()
        else:
            tile = self._gram(target) if task.kind == "gram" else self._changed(task)
            tiles.put(target, tile)

    def _gram(self, place: Place) -> Tile:
        rows, columns = map(self.tiles.span, place)
        if self._columns[0] != place[0]:
            self._columns = place[0], self.X[:, rows[0] : rows[1]].tocsc()
        tile = self.tiles.fresh(place)
        gram_tile(self.X, self._columns[1], self.user_weights, columns, tile)
        if place[0] == place[1]:
            tile.flat[:: len(tile) + 1] += self.penalty[rows[0] : rows[1]].astype(tile.dtype)
        return tile

    def _changed(self, task: Task) -> Tile:
        tiles, target = self.tiles, task.target
        if len(task.inputs) < 2:
            triangle = tiles.get(task.inputs[0]) if task.inputs else None
            tile = tiles.get(target)
            transform(task.kind, tile, triangle, tiles.span(target[0])[0])
            return tile
        for left, right in zip(task.inputs[::2], task.inputs[1::2], strict=True):
            tile = tiles.get(target)  # first, so that it is the last to lose its buffer
            factors = tiles.get(left), tiles.get(right)
            accumulate(task.kind, tile, *factors, symmetric=target[0] == target[1])
        return tile


def transform(kind: str, target: Tile, triangle: Tile | None, first: int) -> None:
    """Change a tile in place by a step that has at most one input, the triangle T.

    Tiles are C-ordered and BLAS expects Fortran order: it gets the transposes, so a lower triangle
    T becomes the upper triangle U = T^T. `first` is the item of the tile's first row.
    """
    info = 0
    if triangle is None:
        name = {"factor": "potrf", "invert": "trtri", "square": "lauum"}[kind]
        routine: Any = get_lapack_funcs(name, (target,))
        if kind == "factor":
            result, info = routine(target.T, lower=0, clean=0, overwrite_a=1)
        else:
            result, info = routine(target.T, lower=0, overwrite_c=1)
    else:
        trsm, trmm = get_blas_funcs(("trsm", "trmm"), (target,))
        U, B = triangle.T, target.T
        if kind == "solve":  # B T^-T is, transposed, U^-T B^T
            result = trsm(1.0, U, B, side=0, lower=0, trans_a=1, overwrite_b=1)
        elif kind == "left":
            result = trmm(-1.0, U, B, side=1, lower=0, overwrite_b=1)
        elif kind == "right":
            result = trmm(1.0, U, B, side=0, lower=0, overwrite_b=1)
        else:
            result = trmm(1.0, U, B, side=1, lower=0, trans_a=1, overwrite_b=1)
    if info > 0 and kind == "factor":
        raise indefinite(first + info - 1)
    if info:
        raise SolveError("the matrix is singular; raise l2 or dropout")
    _copy_back(result, target)


def accumulate(kind: str, target: Tile, left: Tile, right: Tile, *, symmetric: bool) -> None:
    """Add one product of a sum to the target in place; a symmetric one to its lower triangle."""
    syrk, gemm = get_blas_funcs(("syrk", "gemm"), (target,))
    sign, outer = -1.0 if kind.startswith("subtract") else 1.0, int(kind == "subtract_outer")
    in_place = {"beta": 1.0, "c": target.T, "overwrite_c": 1}
    if symmetric:
        result = syrk(sign, left.T, trans=outer, lower=0, **in_place)
    else:
        inner = int(kind == "add_inner")
        result = gemm(sign, right.T, left.T, trans_a=outer, trans_b=inner, **in_place)
    _copy_back(result, target)


def _copy_back(result: Any, target: Tile) -> None:
    if not np.shares_memory(result, target):
        target[...] = result.T


def gram_tile(X: Csr, columns: Any, user_weights: Vector, span: Span, out: Tile) -> None:
    """Fill a tile of X^T W X, from the CSC part of X for its rows and the items of its columns."""
    rows: Any = sp.csr_array(X[:, span[0] : span[1]])
    by_column, by_row = (
        (part.indptr.astype(np.int64), part.indices.astype(np.int32), part.data.astype(np.float64))
        for part in (columns, rows)
    )
    weights = np.ascontiguousarray(user_weights, np.float64)
    stripes = min(dense.STRIPES * machine.count(), len(out))
    machine.run(
        lambda stripe: _fill_rows(by_column, by_row, weights, stripe, stripes, out), stripes
    )


@compiled
def _fill_rows(columns: Any, rows: Any, weights: Any, first: int, step: int, out: Any) -> None:
    """Fill the rows first, first + step, ...; summed in float64 in a fixed order."""
    column_start, column_user, column_value = columns
    row_start, row_item, row_value = rows
    total = np.empty(out.shape[1], np.float64)
    for i in range(first, out.shape[0], step):
        total[:] = 0.0
        for entry in range(column_start[i], column_start[i + 1]):
            user = column_user[entry]
            weight = weights[user] * column_value[entry]
            for place in range(row_start[user], row_start[user + 1]):
                total[row_item[place]] += weight * row_value[place]
        for j in range(out.shape[1]):
            out[i, j] = total[j]
