"""Invert a positive definite matrix by blocks, in place.

A = L L^T, then L^-1, then A^-1 = L^-T L^-1. Each of the three recursively splits the triangle in
two, so nearly all work is products of large rectangles, no zero is multiplied and only the lower
triangle is computed: n^3 operations in all. `steps` lists the operations. `Blocks` carries them
out on views of one array: `threaded` on several threads, the GPU engine on tensors. The tiled
engine and the cluster carry them out on tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import get_lapack_funcs

from equipoise.errors import SolveError

Span = tuple[int, int]

TRIANGULAR = ("solve", "left", "left_transposed", "right")


class Step(NamedTuple):
    """One step on C = A[rows, columns]; all spans begin at multiples of the block size.

    With the diagonal block T = A[inner, inner], which no other span overlaps:

    - factor: T becomes its Cholesky factor; invert: T^-1; square: T^T T
    - solve: C becomes C T^-T; left: -T C; left_transposed: T^T C; right: C T

    With off-diagonal blocks; of a symmetric C only the lower triangle is needed:

    - add, subtract: C +- A[rows, inner] A[inner, columns]
    - subtract_outer: C - A[rows, inner] A[columns, inner]^T
    - add_inner: C + A[inner, rows]^T A[inner, columns]
    """

    kind: str
    rows: Span
    columns: Span
    inner: Span


def steps(size: int, block: int, strip: int) -> Iterator[Step]:
    """Yield the steps that turn the lower triangle of A into that of its inverse.

    A has `size` rows and a diagonal block `block` rows; `strip` columns of a symmetric product, a
    multiple of `block`, are formed at a time.
    """
    all_rows = (0, size)
    yield from cholesky(all_rows, block, strip)
    yield from triangular_inverse(all_rows, block)
    yield from square(all_rows, block, strip)


def cholesky(span: Span, block: int, strip: int) -> Iterator[Step]:
    """Yield the steps that replace the triangle of A by that of L, A = L L^T."""
    parts = halves(span, block)
    if parts is None:
        yield Step("factor", span, span, span)
        return
    first, second = parts
    yield from cholesky(first, block, strip)
    yield from _triangular("solve", first, second, block)
    for columns in strips(second, strip):
        yield Step("subtract_outer", (columns[0], second[1]), columns, first)
    yield from cholesky(second, block, strip)


def triangular_inverse(span: Span, block: int) -> Iterator[Step]:
    """Yield the steps that replace L by L^-1, whose lower left part is -L22^-1 L21 L11^-1."""
    parts = halves(span, block)
    if parts is None:
        yield Step("invert", span, span, span)
        return
    first, second = parts
    yield from triangular_inverse(first, block)
    yield from triangular_inverse(second, block)
    yield from _triangular("left", second, first, block)
    yield from _triangular("right", first, second, block)


def square(span: Span, block: int, strip: int) -> Iterator[Step]:
    """Yield the steps that replace the triangle of L by that of L^T L."""
    parts = halves(span, block)
    if parts is None:
        yield Step("square", span, span, span)
        return
    first, second = parts
    yield from square(first, block, strip)
    for columns in strips(first, strip):
        yield Step("add_inner", (columns[0], first[1]), columns, second)
    yield from _triangular("left_transposed", second, first, block)
    yield from square(second, block, strip)


def _triangular(kind: str, triangle: Span, beside: Span, block: int) -> Iterator[Step]:
    """Yield the steps that multiply the rows or columns `beside` a triangle by that triangle."""
    on_the_left = kind.startswith("left")
    parts = halves(triangle, block)
    if parts is None:
        rows, columns = (triangle, beside) if on_the_left else (beside, triangle)
        yield Step(kind, rows, columns, triangle)
        return
    first, second = parts
    # the half that is changed by the other one, which has to be unchanged (left, right,
    # left_transposed) or finished (solve)
    changed, inner = (second, first) if kind in ("solve", "left") else (first, second)
    rows, columns = (changed, beside) if on_the_left else (beside, changed)
    product = {"solve": "subtract_outer", "left": "subtract", "right": "add"}
    begin, end = (second, first) if kind == "left" else (first, second)
    yield from _triangular(kind, begin, beside, block)
    yield Step(product.get(kind, "add_inner"), rows, columns, inner)
    yield from _triangular(kind, end, beside, block)


class Blocks:
    """Carries out the steps on views of a C-ordered array whose lower triangle is the matrix."""

    def __init__(self, A: Any, block: int, strip: int) -> None:
        self.A, self.block, self.strip = A, block, strip
        self._inverses: dict[int, Any] = {}  # of diagonal factors: products are faster than solves

    def invert(self) -> None:
        """Replace the lower triangle by that of the inverse."""
        for step in steps(len(self.A), self.block, self.strip):
            self.do(step)

    def do(self, step: Step) -> None:
        """Do one step."""
        kind, rows, columns, inner = step
        C = self._view(rows, columns)
        if kind == "factor":
            self._inverses[inner[0]] = self.inverse_factor(C, inner[0])
        elif kind == "invert":
            C[...] = self._inverses.pop(inner[0])
        elif kind == "square":
            C[...] = C.T @ C
        elif kind in TRIANGULAR:
            solve = kind == "solve"
            T = self._inverses[inner[0]] if solve else self._view(inner, inner)
            self.multiply(kind, C, T)
        else:
            outer, inside = kind == "subtract_outer", kind == "add_inner"
            left = self._view(inner, rows).T if inside else self._view(rows, inner)
            right = self._view(columns, inner).T if outer else self._view(inner, columns)
            self.add_product(C, left, right, -1 if kind.startswith("subtract") else 1)

    def inverse_factor(self, T: Any, first: int) -> Any:
        """Return L^-1 of T = L L^T; `first` is the item of its first row."""
        routines: Any = get_lapack_funcs(("potrf", "trtri"), (T,))
        potrf, trtri = routines
        # the upper triangle as LAPACK sees it: `dense` explains why the lower one is not safe
        U, info = potrf(np.array(T, order="C").T, lower=0, overwrite_a=1)
        if info > 0:
            raise indefinite(first + info - 1)
        return trtri(U, lower=0, overwrite_c=1)[0].T

    def multiply(self, kind: str, C: Any, T: Any) -> None:
        """Do a step with a triangle T; for "solve" it is the inverse of the triangle."""
        if kind in ("left", "left_transposed"):
            C[...] = (-T if kind == "left" else T.T) @ C
        else:
            C[...] = C @ (T.T if kind == "solve" else T)

    def add_product(self, C: Any, left: Any, right: Any, sign: int) -> None:
        """Add sign * left @ right to C."""
        C += sign * (left @ right)

    def _view(self, rows: Span, columns: Span) -> Any:
        return self.A[rows[0] : rows[1], columns[0] : columns[1]]


def indefinite(item: int) -> SolveError:
    """Return the error for a matrix whose Cholesky factor does not exist from this item on."""
    return SolveError(f"the matrix is not positive definite (at item {item}); raise l2 or dropout")


def halves(span: Span, block: int) -> tuple[Span, Span] | None:
    """Split a span at a multiple of the block near its middle; None for a single block.

    >>> halves((0, 10), 4), halves((8, 10), 4)
    (((0, 8), (8, 10)), None)
    """
    low, high = span
    count = -(-(high - low) // block)
    if count <= 1:
        return None
    middle = low + block * ((count + 1) // 2)
    return (low, middle), (middle, high)


def strips(span: Span, width: int) -> Iterator[Span]:
    """Cut a span into pieces of this width; the last may be narrower.

    >>> list(strips((4, 10), 4))
    [(4, 8), (8, 10)]
    """
    for low in range(span[0], span[1], width):
        yield low, min(low + width, span[1])
