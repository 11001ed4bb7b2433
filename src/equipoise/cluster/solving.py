"""The exact inverse over the workers: the steps of `solve.blocked` on tiles that they hold.

The tasks are those of the tiled engine. Its files are results of workers here: a task makes a new
tile from an old one and others, and the scheduler drops the old one, runs what can run at the same
time and sends tiles where they are needed. Only the lower triangle exists, half of the matrix.
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.checks import count
from equipoise.cluster.room import rooms
from equipoise.cluster.spread import Spread
from equipoise.cluster.workers import Ahead, results, submit, task
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr
from equipoise.solve import dense
from equipoise.solve.engine import Solved
from equipoise.solve.tiled import accumulate, all_tasks, transform

Tile = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]
Place = tuple[int, int]
Span = tuple[int, int]

TILES = 12  # tiles of a row
GRAM_PAIRS = 64_000_000  # pairs of users and items that a worker sums over at a time
SHARES = 8  # pieces of the Gram matrix for a worker, about as much work each
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
        pieces = self._pieces(spans)
        sums: dict[Span, Any] = {piece: None for row in pieces for piece in row}
        # chunk after chunk: the sums are larger, and stay where they are
        parts = self.spread.weighed(user_weights)
        step = max(GRAM_PAIRS * len(parts) // max(self.spread.n_pairs, 1), 1)
        for at in range(0, len(parts), step):
            dtype = self.dtype if at + step >= len(parts) else "float64"
            some = parts[at : at + step]
            for piece, before in sums.items():
                sums[piece] = submit(self.client, gram_rows, before, some, piece, dtype)
        tiles: dict[Place, Any] = {}
        for j, row in enumerate(pieces):
            held = [sums.pop(piece) for piece in row]
            for i in range(j, len(spans)):
                added = penalty[slice(*spans[j])] if i == j else None
                tiles[i, j] = submit(self.client, tile_of, held, row, spans[i], added)
        return tiles

    def _pieces(self, spans: list[Span]) -> list[list[Span]]:
        """Cut the rows of each tile where popular items would make a worker's share too large."""
        counts = self.spread.item_counts().astype(np.float64)
        work = np.cumsum(counts * np.cumsum(counts[::-1])[::-1])
        parts = SHARES * max(len(self.client.nthreads()), 1)
        cuts = np.searchsorted(work, np.linspace(0, work[-1], parts + 1)[1:-1]).tolist()
        return [
            list(pairwise(sorted({low, high, *(cut for cut in cuts if low < cut < high)})))
            for low, high in spans
        ]

    def _span(self, number: int) -> Span:
        return number * self.rows, min((number + 1) * self.rows, self.n_items)


@task
def gram_rows(
    before: Tile | None, parts: list[tuple[Csr, Vector]], span: Span, dtype: str
) -> Tile:
    """Add rows of X^T W X of some users, from the diagonal on, to those of earlier users.

    They are summed in float64, whatever the type of the result.
    """
    out = np.zeros((span[1] - span[0], parts[0][0].shape[1] - span[0]), dtype)
    dense.fill_gram(parts, span, out, before)
    return out


@task
def tile_of(rows: list[Tile], spans: list[Span], columns: Span, added: Vector | None) -> Tile:
    """Return a tile of the lower triangle, which is one of the upper, turned; with the penalty."""
    start = spans[0][0]
    out = np.zeros((columns[1] - columns[0], spans[-1][1] - start), rows[0].dtype)
    for piece, (low, high) in zip(rows, spans, strict=True):
        first = max(low, columns[0])
        part = piece[:, first - low : columns[1] - low]
        out[first - columns[0] :, low - start : high - start] = part.T
    if added is not None:
        out.flat[:: len(out) + 1] += added.astype(out.dtype)
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
