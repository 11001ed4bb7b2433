"""Tiles of a matrix in a folder: checksummed, replaced one at a time, safe against a crash.

A changed tile is a new file. Replacing the state file, which names the tiles that count and the
steps that are done, is the one moment at which a step becomes true; before it the old tile is
whole, after it the old tile is removed. So a process may die at any point.

The result of the tiled engine: one `.npy` file, written tile by tile and read row by row.

Plain reads and writes instead of a memory map: mapped pages would count as memory of the process.

What is computed on tiles in memory: BLAS and LAPACK in place, Gram tiles, and their steps.

Tiles are C-ordered and BLAS wants Fortran order: it is given the transposes, so a lower triangle T
is to BLAS the upper triangle U = T^T.

The tiled engine: the exact inverse with tiles on disk, in as much memory as is allowed.

The steps are those of `blocked`, on tiles so large that three fill the budget; so almost all time
goes into large products and little into files. Killed at any point, the same call with the same
scratch folder goes on where it was.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg import blas, lapack

from equipoise import machine
from equipoise.errors import DataError, FileFormatError, SolveError, TooBigError
from equipoise.kernels import compiled
from equipoise.manifest import Fields, check_seal, parse, sealed
from equipoise.matrix import Csr
from equipoise.solve import blocked
from equipoise.solve.blocked import Span, strips
from equipoise.solve.dense import LAPACK_ITEMS, gram_times, mirror

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


Tile = npt.NDArray[Any]


Place = tuple[int, int]


STRIPES = 16


@dataclass(frozen=True)
class Task:
    """One tile to be made from itself and others.

    Parameters
    ----------
    kind
        Name of the computation: a function of this module, or a sum of products.
    target
        Row and column of the tile that changes.
    inputs
        Tiles that are read; for a sum of products, one factor after the other.
    """

    kind: str
    target: Place
    inputs: tuple[Place, ...] = ()


@dataclass
class Recorder:
    """Writes down the steps of `blocked` for a matrix of so many tiles, one tile at a time."""

    size: int
    tasks: list[Task] = field(default_factory=list)
    block: int = 1
    strip: int = 1

    def factor(self, at: Span) -> None:
        """Record a Cholesky factor."""
        self.tasks.append(Task("factor", (at[0], at[0])))

    def invert(self, at: Span) -> None:
        """Record a triangular inverse."""
        self.tasks.append(Task("invert", (at[0], at[0])))

    def square(self, at: Span) -> None:
        """Record T^T T."""
        self.tasks.append(Task("square", (at[0], at[0])))

    def solve(self, rows: Span, at: Span) -> None:
        """Record B T^-T."""
        self._triangular("solve", [(i, at[0]) for i in range(*rows)], at)

    def left(self, at: Span, columns: Span) -> None:
        """Record -T B."""
        self._triangular("left", [(at[0], j) for j in range(*columns)], at)

    def right(self, rows: Span, at: Span) -> None:
        """Record B T."""
        self._triangular("right", [(i, at[0]) for i in range(*rows)], at)

    def left_transposed(self, at: Span, columns: Span) -> None:
        """Record T^T B."""
        self._triangular("left_transposed", [(at[0], j) for j in range(*columns)], at)

    def add(self, rows: Span, columns: Span, inner: Span, *, sign: int) -> None:
        """Record C += sign A B."""
        for i in range(*rows):
            for j in range(*columns):
                pairs = [place for k in range(*inner) for place in ((i, k), (k, j))]
                self.tasks.append(Task("add" if sign > 0 else "subtract", (i, j), tuple(pairs)))

    def subtract_outer(self, rows: Span, columns: Span, inner: Span) -> None:
        """Record C -= A B^T."""
        for j in range(*columns):
            for i in range(max(rows[0], j), rows[1]):
                pairs = [place for k in range(*inner) for place in ((i, k), (j, k))]
                self.tasks.append(Task("subtract_outer", (i, j), tuple(pairs)))

    def add_inner(self, rows: Span, columns: Span, inner: Span) -> None:
        """Record C += A^T B."""
        for j in range(*columns):
            for i in range(max(rows[0], j), rows[1]):
                pairs = [place for k in range(*inner) for place in ((k, i), (k, j))]
                self.tasks.append(Task("add_inner", (i, j), tuple(pairs)))

    def _triangular(self, kind: str, targets: list[Place], at: Span) -> None:
        self.tasks += [Task(kind, target, ((at[0], at[0]),)) for target in targets]


def all_tasks(count: int) -> list[Task]:
    """Everything to do for count x count tiles: Gram matrix, inverse, and the result in rows."""
    places = [(i, j) for j in range(count) for i in range(j, count)]
    recorder = Recorder(count)
    blocked.invert(recorder)
    gram = [Task("gram", place) for place in places]
    return [*gram, *recorder.tasks, *(Task("place", place) for place in places)]


def operations(task: Task, rows: int) -> float:
    """Floating point operations of a task on tiles of so many rows."""
    if task.kind in ("gram", "place"):
        return float(rows) ** 2
    diagonal = task.target[0] == task.target[1]
    if not task.inputs:
        return float(rows) ** 3 / 3
    products = 1 if len(task.inputs) == 1 else len(task.inputs) // 2 * (1 if diagonal else 2)
    return products * float(rows) ** 3


def transform(kind: str, target: Tile, triangle: Tile | None, first: int) -> None:
    """Change a tile in place by a step that has at most one input, the triangle T.

    `first` is the item of the tile's first row, for the error.
    """
    potrf, trtri, lauum, trsm, trmm = _routines(target.dtype)
    if kind == "factor":
        result, info = potrf(target.T, lower=0, clean=0, overwrite_a=1)
        if info > 0:
            raise SolveError(
                f"the matrix is not positive definite (at item {first + info - 1}); "
                "raise l2 or dropout"
            )
    elif kind == "invert":
        result, info = trtri(target.T, lower=0, overwrite_c=1)
        if info:
            raise SolveError("the matrix is singular; raise l2 or dropout")
    elif kind == "square":
        result, _ = lauum(target.T, lower=0, overwrite_c=1)
    else:
        assert triangle is not None
        U, B = triangle.T, target.T
        if kind == "solve":  # B T^-T is, transposed, U^-T B^T
            result = trsm(1.0, U, B, side=0, lower=0, trans_a=1, overwrite_b=1)
        elif kind == "left":
            result = trmm(-1.0, U, B, side=1, lower=0, overwrite_b=1)
        elif kind == "right":
            result = trmm(1.0, U, B, side=0, lower=0, overwrite_b=1)
        else:
            result = trmm(1.0, U, B, side=1, lower=0, trans_a=1, overwrite_b=1)
    _keep(result, target)


def accumulate(kind: str, target: Tile, left: Tile, right: Tile, *, symmetric: bool) -> None:
    """Add one product of a sum to the target in place; a symmetric one to its lower triangle."""
    single = target.dtype == np.float32
    if symmetric:
        syrk = blas.ssyrk if single else blas.dsyrk
        sign, trans = (-1.0, 1) if kind == "subtract_outer" else (1.0, 0)
        result = syrk(sign, left.T, beta=1.0, c=target.T, trans=trans, lower=0, overwrite_c=1)
    else:
        gemm = blas.sgemm if single else blas.dgemm
        sign = -1.0 if kind.startswith("subtract") else 1.0
        result = gemm(
            sign,
            right.T,
            left.T,
            beta=1.0,
            c=target.T,
            trans_a=int(kind == "subtract_outer"),
            trans_b=int(kind == "add_inner"),
            overwrite_c=1,
        )
    _keep(result, target)


def gram_tile(
    X: Csr, columns: Any, user_weights: npt.NDArray[np.float64], span: Span, out: Tile
) -> None:
    """Fill a tile with the rows of X^T W X whose items are `columns`, and the items of `span`.

    Parameters
    ----------
    X
        Users x items.
    columns
        CSC part of X for the rows of the tile.
    user_weights
        Diagonal of W.
    span
        Items of the columns of the tile.
    out
        The tile.
    """
    rows: Any = sp.csr_array(X[:, span[0] : span[1]])
    arrays = (
        columns.indptr.astype(np.int64),
        columns.indices.astype(np.int32),
        columns.data.astype(np.float64),
        rows.indptr.astype(np.int64),
        rows.indices.astype(np.int32),
        rows.data.astype(np.float64),
        np.ascontiguousarray(user_weights, np.float64),
    )
    stripes = min(STRIPES * machine.count(), len(out))
    machine.run(lambda stripe: _fill_rows(*arrays, stripe, stripes, out), stripes)


@compiled
def _fill_rows(
    column_start: Any,
    column_user: Any,
    column_value: Any,
    row_start: Any,
    row_item: Any,
    row_value: Any,
    weights: Any,
    first: int,
    step: int,
    out: Any,
) -> None:
    """Fill the rows first, first + step, ...; summed in float64 in a fixed order."""
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


def _routines(dtype: np.dtype[Any]) -> tuple[Any, ...]:
    if dtype == np.float32:
        return lapack.spotrf, lapack.strtri, lapack.slauum, blas.strsm, blas.strmm
    return lapack.dpotrf, lapack.dtrtri, lapack.dlauum, blas.dtrsm, blas.dtrmm


def _keep(result: Any, target: Tile) -> None:
    if not np.shares_memory(result, target):
        target[...] = result.T


logger = logging.getLogger(__name__)

SMALLEST = 256  # rows of a tile below which files would cost more than products


LOG_SECONDS = 30.0


@dataclass(frozen=True)
class Progress:
    """How far a solve has come.

    Parameters
    ----------
    step, steps
        Tiles done, and in all.
    share
        Share of the operations that are done.
    seconds_left
        Expected time to the end.
    """

    step: int
    steps: int
    share: float
    seconds_left: float


Report = Callable[[Progress], None]


def invert(
    X: Csr,
    user_weights: Vector,
    penalty: Vector,
    *,
    tile_rows: int,
    dtype: str = "float32",
    scratch: str | os.PathLike[str] | None = None,
    problem: dict[str, Any] | None = None,
    progress: Report | None = None,
    limit: float = 1e-2,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], float]:
    """Return P = (X^T W X + diag(penalty))^-1 as a read-only memory map, diagonal and residual.

    Parameters
    ----------
    X
        Users x items.
    user_weights
        Diagonal of W.
    penalty
        Diagonal added to the Gram matrix, one number per item.
    tile_rows
        Rows of a tile; three tiles are held in memory.
    dtype
        "float32" or "float64".
    scratch
        Folder for the tiles and the result, kept for going on after a crash and as the home of
        the result; None takes a temporary one that vanishes with the process.
    problem
        Plain values that tell this problem from others.
    progress
        Called after each step.
    limit
        Largest residual that is accepted.
    """
    if scratch is None:
        with tempfile.TemporaryDirectory(prefix="equipoise-", ignore_cleanup_errors=True) as home:
            # on POSIX the map outlives the file
            return invert(
                X,
                user_weights,
                penalty,
                tile_rows=tile_rows,
                dtype=dtype,
                scratch=home,
                problem=problem,
                progress=progress,
                limit=limit,
            )
    folder = Path(scratch)
    with locked(folder):
        # an earlier run may have had less memory: its tiles fit too
        rows = stored_rows(folder)
        rows = rows if 0 < rows < tile_rows else tile_rows
        tiles = TileFolder(folder, problem or {}, X.shape[1], rows, dtype)
        check_disk(tiles)
        _Run(tiles, X, user_weights, penalty).run(progress)
        file = folder / RESULT
        diagonal, residual = check_result(file, X, user_weights, penalty, tiles.dtype)
    if not residual <= limit:
        raise SolveError(
            f"the solve is not accurate (residual {residual:.1e}, limit {limit:.0e}); "
            "raise l2 or dropout, or fit with dtype='float64'"
        )
    logger.info("residual of the solve: %.1e", residual)
    return np.lib.format.open_memmap(file, mode="r"), diagonal, residual


def rows_for(n_items: int, budget: int, itemsize: int) -> int:
    """Return the rows of a tile when tiles may take this much memory; 0 if they cannot."""
    most = int((max(budget, 0) / (BUFFERS * itemsize)) ** 0.5)
    most = min(most, LAPACK_ITEMS["float32" if itemsize == 4 else "float64"])
    if most < min(SMALLEST, n_items):
        return 0
    count = -(-n_items // most)
    return -(-n_items // count)


def disk_bytes(n_items: int, tile_rows: int, itemsize: int) -> int:
    """Bytes on disk at the peak: the triangle in tiles, one tile twice, and the result."""
    count = -(-n_items // tile_rows)
    return (count * (count + 1) // 2 + 1) * tile_rows**2 * itemsize + n_items**2 * itemsize + 4096


def written_bytes(folder: Path) -> int:
    """Bytes on disk that an earlier run has written to its folder."""
    found = [file.stat() for file in (*folder.glob("*.tile"), *folder.glob(RESULT))]
    # the result has its full length at once, but not yet its blocks
    return sum(min(each.st_size, 512 * getattr(each, "st_blocks", 0)) for each in found)


def check_disk(tiles: TileFolder) -> None:
    """Refuse to begin, or to go on, when the disk cannot hold what is still to be written."""
    needed = disk_bytes(tiles.size, tiles.rows, tiles.dtype.itemsize) - written_bytes(tiles.folder)
    free = shutil.disk_usage(tiles.folder).free
    if tiles.done < len(all_tasks(tiles.count)) and needed > free:
        raise TooBigError(
            f"{tiles.size:,} items need {needed / 1e9:.2g} GB more on the disk of {tiles.folder}, "
            f"which has {free / 1e9:.2g} GB free; make room or give another scratch folder"
        )


class _Run:
    """One pass through the tasks, from where the folder is."""

    def __init__(self, tiles: TileFolder, X: Csr, user_weights: Vector, penalty: Vector) -> None:
        self.tiles, self.X = tiles, X
        self.user_weights, self.penalty = user_weights, penalty
        self.tasks = all_tasks(tiles.count)
        self._columns: tuple[int, Any] = (-1, None)

    def run(self, progress: Report | None) -> None:
        """Do what is left, telling how far it is."""
        tiles = self.tiles
        cost = np.cumsum([operations(task, tiles.rows) for task in self.tasks])
        begun = time.perf_counter()
        before = cost[tiles.done - 1] if tiles.done else 0.0
        logged = begun
        if tiles.done:
            logger.info("going on after step %d of %d", tiles.done, len(self.tasks))
        while tiles.done < len(self.tasks):
            self._do(self.tasks[tiles.done])
            now, done = time.perf_counter(), cost[tiles.done - 1]
            left = (now - begun) / max(done - before, 1.0) * (cost[-1] - done)
            state = Progress(tiles.done, len(self.tasks), float(done / cost[-1]), float(left))
            if progress is not None:
                progress(state)
            if now - logged > LOG_SECONDS:
                logger.info("%.0f%% of the solve, %.0f s left", 100 * state.share, left)
                logged = now
        tiles.clear()

    def _do(self, task: Task) -> None:
        if task.kind == "place":
            place_tile(self.tiles, task.target)
            self.tiles.finish()
            return
        with self.tiles.changing(task.target):
            tile = self._gram(task.target) if task.kind == "gram" else self._changed(task)
            self.tiles.put(task.target, tile)

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
