"""The tiled engine: the exact inverse with tiles on disk, in as much memory as is allowed.

The steps are those of `blocked`, on tiles so large that three fill the budget; so almost all time
goes into large products and little into files. Killed at any point, the same call with the same
scratch folder goes on where it was.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.errors import SolveError, TooBigError
from equipoise.matrix import Csr
from equipoise.solve.inmemory import LAPACK_ITEMS
from equipoise.solve.tileresult import RESULT, check_result, place_tile
from equipoise.solve.tiles import BUFFERS, TileFolder, locked, stored_rows
from equipoise.solve.tilework import (
    Place,
    Task,
    Tile,
    accumulate,
    all_tasks,
    gram_tile,
    operations,
    transform,
)

logger = logging.getLogger(__name__)

SMALLEST = 256  # rows of a tile below which files would cost more than products
LOG_SECONDS = 30.0

Vector = npt.NDArray[np.float64]


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
