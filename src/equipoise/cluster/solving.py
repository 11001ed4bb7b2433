"""The exact inverse over the workers: the steps of `solve.blocked` on tiles that they hold.

The tasks are those of the tiled engine. Its files are results of workers here: a task makes a new
tile from an old one and others, and the scheduler drops the old one, runs what can run at the same
time and sends tiles where they are needed. Only the lower triangle exists, half of the matrix.
"""

from __future__ import annotations

import os
import secrets
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.checks import count
from equipoise.cluster.room import rooms
from equipoise.cluster.spread import Spread, one_matrix
from equipoise.cluster.workers import Ahead, results, submit, task
from equipoise.interactions import Interactions
from equipoise.matrix import Csr
from equipoise.solve import dense
from equipoise.solve.engine import Solved
from equipoise.solve.tiled import accumulate, all_tasks, transform

Tile = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]
Place = tuple[int, int]
Span = tuple[int, int]

TILES = 12  # tiles of a row
AHEAD = 3  # tasks of each worker that are begun with: all of them have copies of their inputs
SMALLEST, LARGEST = 256, 4096  # rows of a tile


class WorkerSolver:
    """Solves where the workers are; stands in for `solve.engine.Solver`.

    Parameters
    ----------
    spread
        The matrix on the workers.
    train
        The same data here, which the model keeps.
    dtype
        "float32" or "float64".
    tile_rows
        Rows of a tile; None chooses.
    scratch
        Folder for an inverse that does not fit into memory here.
    """

    def __init__(
        self,
        spread: Spread,
        train: Interactions,
        dtype: str = "float32",
        tile_rows: int | None = None,
        scratch: str | os.PathLike[str] | None = None,
    ) -> None:
        self.spread, self.train, self.dtype, self.scratch = spread, train, dtype, scratch
        self.client, self.n_items = spread.client, spread.shape[1]
        rows = min(max(-(-self.n_items // TILES), SMALLEST), LARGEST)
        self.rows = rows if tile_rows is None else count("tile_rows", tile_rows)

    def solve(self, user_weights: Vector, penalty: Vector) -> Solved:
        """Return P for these weights and this penalty, in the memory of this machine or mapped."""
        (P,) = rooms([((self.n_items, self.n_items), self.dtype)], self.scratch)
        tiles = self.system(user_weights, penalty)
        ahead = Ahead(self.client, AHEAD)
        for each in all_tasks(-(-self.n_items // self.rows)):
            i, j = each.target
            spans = self._span(i), self._span(j)
            if each.kind == "gram":
                continue
            if each.kind == "place":
                tile = results(self.client, tiles.pop((i, j)))
                if i == j:
                    dense.mirror(tile.T)
                P[slice(*spans[0]), slice(*spans[1])] = tile
                P[slice(*spans[1]), slice(*spans[0])] = tile.T
            else:
                # only tiles of the newest state are held: the old one is dropped when it is used
                inputs = [tiles[place] for place in each.inputs]
                diagonal = i == j
                tiles[i, j] = submit(
                    self.client, changed, each.kind, tiles[i, j], inputs, diagonal, spans[0][0]
                )
                ahead.begun(tiles[i, j])
        residual = self._residual(P, user_weights, penalty)
        return Solved(P, P.diagonal().astype(np.float64), residual)

    def _residual(self, P: Tile, user_weights: Vector, penalty: Vector) -> float:
        """Return the residual of `dense.check_residual`, with the matrix where it is."""
        V = dense.probes(self.n_items, P.dtype)
        Y = P @ V
        error = self.spread.times(self.spread.roots(user_weights), Y) + penalty[:, None] * Y - V
        residual = float(np.linalg.norm(error) / np.linalg.norm(V))
        return dense.accepted(residual, P.dtype.name, "fit with dtype='float64'")

    def system(self, user_weights: Vector, penalty: Vector) -> dict[Place, Any]:
        """Return the lower triangle of X^T W X + diag(penalty) as tiles on the workers."""
        spans = [self._span(number) for number in range(-(-self.n_items // self.rows))]
        strips: list[Any] = [None] * len(spans)
        # chunk after chunk: the strips are larger, and stay where they are
        for chunk in self.spread.chunks(held_rows, user_weights):
            strips = [
                submit(self.client, gram_strip, strip, chunk, span)
                for strip, span in zip(strips, spans, strict=True)
            ]
        tiles: dict[Place, Any] = {}
        for j, span in enumerate(spans):
            for i in range(j, len(spans)):
                added = penalty[slice(*span)] if i == j else None
                below = (spans[i][0] - span[0], spans[i][1] - span[0])
                tiles[i, j] = submit(self.client, tile_of, strips[j], below, added, self.dtype)
            strips[j] = None
        return tiles

    def _span(self, number: int) -> Span:
        return number * self.rows, min((number + 1) * self.rows, self.n_items)


@task
def held_rows(blocks: list[Csr], user_weights: Vector) -> tuple[str, Csr, Vector]:
    """Keep rows of the matrix, the weights of their users and a name for them on a worker."""
    return secrets.token_hex(8), one_matrix(blocks), user_weights


@lru_cache(maxsize=1)
def _prepared(token: str) -> list[dense.GramArrays]:
    """Return room for rows by columns too, which strips of one chunk share on a worker."""
    return []


@task
def gram_strip(strip: Tile | None, chunk: tuple[str, Csr, Vector], span: Span) -> Tile:
    """Add a strip of X^T W X of some users, from its diagonal on, to those before, in float64."""
    token, X, user_weights = chunk
    prepared = _prepared(token)
    if not prepared:
        prepared.append(dense.gram_arrays(X, user_weights))
    out = np.zeros((span[1] - span[0], X.shape[1] - span[0]))
    dense.fill_gram(prepared[0], span, out)
    if strip is not None:
        out += strip
    return out


@task
def tile_of(strip: Tile, columns: Span, added: Vector | None, dtype: str) -> Tile:
    """Return a tile of the lower triangle, which is one of the upper, turned; with the penalty."""
    _prepared.cache_clear()
    out = np.array(strip[:, columns[0] : columns[1]].T, dtype, order="C")
    if added is not None:
        out.flat[:: len(out) + 1] += added.astype(dtype)
    return out


@task
def changed(kind: str, tile: Tile, inputs: list[Tile], diagonal: bool, row: int) -> Tile:
    """Return what a task of the tiled engine makes of a tile."""
    out = np.array(tile, order="C")  # what a worker holds is not to be changed
    if len(inputs) < 2:
        transform(kind, out, inputs[0] if inputs else None, row)
    else:
        for left, right in zip(inputs[::2], inputs[1::2], strict=True):
            accumulate(kind, out, left, right, symmetric=diagonal)
    return out
