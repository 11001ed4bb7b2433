"""The exact inverse, computed by the workers: the steps of `solve.blocked` on tiles they hold.

The tasks are those of the tiled engine, with results of workers in place of its files: a task
makes a new tile from the old one and others. The scheduler drops the old one, runs independent
tasks in parallel and moves tiles between workers. Only the lower triangle exists, half of the
matrix.
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.checks import count
from equipoise.cluster.allocation import allocate
from equipoise.cluster.spread import Spread, Weights
from equipoise.cluster.workers import Throttle, fetch, submit, task
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr
from equipoise.solve import dense
from equipoise.solve.blocked import strips
from equipoise.solve.engine import Solved
from equipoise.solve.tiled import accumulate, all_tasks, transform

Tile = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]
Place = tuple[int, int]
Span = tuple[int, int]

TILES = 12  # tiles of a row
GRAM_PAIRS = 64_000_000  # user-item pairs that a task of the Gram matrix sums over
SHARES = 8  # pieces of the Gram matrix for each worker, of about equal work
TASKS_AHEAD = 3  # unfinished tasks for each worker, all of which hold copies of their inputs
SMALLEST, LARGEST = 256, 4096  # rows of a tile


class WorkerSolver:
    """Computes exact inverses on the workers; replaces `solve.engine.Solver`.

    `spread` is the matrix on the workers and `train` the same data here, which the model keeps;
    the other options are those of `fit`.
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
        rows = rows if tile_rows is None else count("tile_rows", tile_rows)
        self.spans = list(strips((0, self.n_items), rows))

    def solve(self, user_weights: Weights, penalty: Vector, feature_weight: float = 0.0) -> Solved:
        """Return P for these weights and this penalty, on this machine."""
        weights = self.spread.weights(user_weights, feature_weight)
        (P,) = allocate([(self.n_items, self.n_items)], [np.dtype(self.dtype)], self.scratch)
        tiles = self.system(weights, penalty)
        throttle = Throttle(self.client, TASKS_AHEAD)
        for step in all_tasks(len(self.spans)):
            i, j = step.target
            if step.kind == "gram":
                continue
            if step.kind == "place":
                tile = fetch(self.client, tiles.pop((i, j)))
                if i == j:
                    dense.mirror(tile.T)
                rows, columns = slice(*self.spans[i]), slice(*self.spans[j])
                P[rows, columns] = tile
                P[columns, rows] = tile.T
            else:
                # `tiles` has only the newest version: workers drop an old one after its last use
                inputs = [tiles[place] for place in step.inputs]
                first_row, diagonal = self.spans[i][0], i == j
                tiles[i, j] = submit(
                    self.client, update_tile, step.kind, tiles[i, j], inputs, diagonal, first_row
                )
                throttle.add(tiles[i, j])
        residual = self._residual(P, weights, penalty)
        return Solved(P, P.diagonal().astype(np.float64), residual)

    def _residual(self, P: Tile, user_weights: list[Any], penalty: Vector) -> float:
        """Return the residual of `dense.check_residual`, with products from the workers."""
        V = dense.probes(self.n_items, P.dtype)
        Y = P @ V
        error = self.spread.times(self.spread.roots(user_weights), Y) + penalty[:, None] * Y - V
        residual = float(np.linalg.norm(error) / np.linalg.norm(V))
        return dense.check_accuracy(residual, P.dtype.name, "fit with dtype='float64'")

    def system(self, user_weights: Weights, penalty: Vector) -> dict[Place, Any]:
        """Return the lower triangle of X^T W X + diag(penalty) as tiles on the workers."""
        pieces = self._gram_pieces()
        sums: dict[Span, Any] = {piece: None for row in pieces for piece in row}
        # chunk after chunk: the sums are larger than the chunks, and stay on their workers
        weights = self.spread.weights(user_weights)
        blocks = self.spread.with_weights(weights)
        step = max(GRAM_PAIRS * len(blocks) // max(self.spread.n_pairs, 1), 1)
        for low, high in strips((0, len(blocks)), step):
            dtype = self.dtype if high == len(blocks) else "float64"
            for piece, before in sums.items():
                chunk = blocks[low:high]
                sums[piece] = submit(self.client, gram_rows, before, chunk, piece, dtype)
        tiles: dict[Place, Any] = {}
        for j, row in enumerate(pieces):
            row_sums = [sums.pop(piece) for piece in row]
            for i in range(j, len(self.spans)):
                added = penalty[slice(*self.spans[j])] if i == j else None
                tiles[i, j] = submit(self.client, cut_tile, row_sums, row, self.spans[i], added)
        return tiles

    def _gram_pieces(self) -> list[list[Span]]:
        """Cut the rows of each tile where popular items would make a worker's share too large."""
        counts = self.spread.item_counts().astype(np.float64)
        work = np.cumsum(counts * np.cumsum(counts[::-1])[::-1])
        n_shares = SHARES * max(len(self.client.nthreads()), 1)
        cuts = np.searchsorted(work, np.linspace(0, work[-1], n_shares + 1)[1:-1]).tolist()
        return [
            list(pairwise(sorted({low, high, *(cut for cut in cuts if low < cut < high)})))
            for low, high in self.spans
        ]


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
def cut_tile(rows: list[Tile], spans: list[Span], columns: Span, added: Vector | None) -> Tile:
    """Return a tile of the lower triangle, transposed from the upper, plus `added` if diagonal."""
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
def update_tile(kind: str, tile: Tile, inputs: list[Tile], diagonal: bool, row: int) -> Tile:
    """Return a tile after a task of the tiled engine."""
    out = np.array(tile, order="C")  # results on workers must not change
    if len(inputs) < 2:
        transform(kind, out, inputs[0] if inputs else None, row)
    else:
        for left, right in zip(inputs[::2], inputs[1::2], strict=True):
            accumulate(kind, out, left, right, symmetric=diagonal)
    return out
