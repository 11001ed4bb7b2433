"""What is computed on tiles in memory: BLAS and LAPACK in place, Gram tiles, and their steps.

Tiles are C-ordered and BLAS wants Fortran order: it is given the transposes, so a lower triangle T
is to BLAS the upper triangle U = T^T.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg import blas, lapack

from equipoise import threads
from equipoise.errors import SolveError
from equipoise.kernels import compiled
from equipoise.matrix import Csr
from equipoise.solve import blocked
from equipoise.solve.blocked import Span

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
    stripes = min(STRIPES * threads.count(), len(out))
    threads.run(lambda stripe: _fill_rows(*arrays, stripe, stripes, out), stripes)


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
