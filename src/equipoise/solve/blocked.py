"""The inverse of a positive definite matrix by blocks, in place, for a card or for a disk.

A = L L^T, then L^-1, then A^-1 = L^-T L^-1: each step splits the triangle in two, so nearly all
work is products of large rectangles, no zero is multiplied and nothing but the lower triangle is
computed: n^3 operations in all. What holds the matrix (`Blocks`) decides what a product is: a call
on views in a card's memory, or a loop over tiles read from files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

Span = tuple[int, int]


class Blocks(Protocol):
    """The lower triangle of a matrix A that is worked on block by block.

    Spans are ranges of rows or columns; they begin at multiples of `block`. `at` is the span of
    one diagonal block T, the other spans may cover many blocks and never overlap with it.

    Parameters
    ----------
    size
        Number of rows.
    block
        Rows of a diagonal block.
    strip
        Columns of a symmetric product formed at a time; a multiple of `block`.
    """

    size: int
    block: int
    strip: int

    def factor(self, at: Span) -> None:
        """Replace T by its Cholesky factor."""

    def invert(self, at: Span) -> None:
        """Replace the factor T by its inverse."""

    def square(self, at: Span) -> None:
        """Replace the lower triangle T by the one of T^T T."""

    def solve(self, rows: Span, at: Span) -> None:
        """A[rows, at] becomes A[rows, at] T^-T; T is a factor."""

    def left(self, at: Span, columns: Span) -> None:
        """A[at, columns] becomes -T A[at, columns]."""

    def right(self, rows: Span, at: Span) -> None:
        """A[rows, at] becomes A[rows, at] T."""

    def left_transposed(self, at: Span, columns: Span) -> None:
        """A[at, columns] becomes T^T A[at, columns]."""

    def add(self, rows: Span, columns: Span, inner: Span, *, sign: int) -> None:
        """A[rows, columns] += sign A[rows, inner] A[inner, columns]."""

    def subtract_outer(self, rows: Span, columns: Span, inner: Span) -> None:
        """A[rows, columns] -= A[rows, inner] A[columns, inner]^T; only its lower triangle."""

    def add_inner(self, rows: Span, columns: Span, inner: Span) -> None:
        """A[rows, columns] += A[inner, rows]^T A[inner, columns]; only its lower triangle."""


def invert(A: Blocks) -> None:
    """Replace the lower triangle of A by the one of its inverse."""
    everything = (0, A.size)
    cholesky(A, everything)
    triangular_inverse(A, everything)
    square(A, everything)


def cholesky(A: Blocks, span: Span) -> None:
    """Replace the triangle of A by that of L, A = L L^T."""
    parts = halves(span, A.block)
    if parts is None:
        A.factor(span)
        return
    first, second = parts
    cholesky(A, first)
    _solve(A, second, first)
    for strip in strips(second, A.strip):
        A.subtract_outer((strip[0], second[1]), strip, first)
    cholesky(A, second)


def triangular_inverse(A: Blocks, span: Span) -> None:
    """Replace L by its inverse: the corner of two halves becomes -L22^-1 L21 L11^-1."""
    parts = halves(span, A.block)
    if parts is None:
        A.invert(span)
        return
    first, second = parts
    triangular_inverse(A, first)
    triangular_inverse(A, second)
    _left(A, second, first)
    _right(A, second, first)


def square(A: Blocks, span: Span) -> None:
    """Replace the triangle of L by that of L^T L."""
    parts = halves(span, A.block)
    if parts is None:
        A.square(span)
        return
    first, second = parts
    square(A, first)
    for strip in strips(first, A.strip):
        A.add_inner((strip[0], first[1]), strip, second)
    _left_transposed(A, second, first)
    square(A, second)


def _solve(A: Blocks, rows: Span, triangle: Span) -> None:
    """A[rows, triangle] becomes A[rows, triangle] L^-T."""
    parts = halves(triangle, A.block)
    if parts is None:
        A.solve(rows, triangle)
        return
    first, second = parts
    _solve(A, rows, first)
    A.subtract_outer(rows, second, first)
    _solve(A, rows, second)


def _left(A: Blocks, triangle: Span, columns: Span) -> None:
    """A[triangle, columns] becomes -L A[triangle, columns]; below first, what is above is read."""
    parts = halves(triangle, A.block)
    if parts is None:
        A.left(triangle, columns)
        return
    first, second = parts
    _left(A, second, columns)
    A.add(second, columns, first, sign=-1)
    _left(A, first, columns)


def _right(A: Blocks, rows: Span, triangle: Span) -> None:
    """A[rows, triangle] becomes A[rows, triangle] L."""
    parts = halves(triangle, A.block)
    if parts is None:
        A.right(rows, triangle)
        return
    first, second = parts
    _right(A, rows, first)
    A.add(rows, first, second, sign=1)
    _right(A, rows, second)


def _left_transposed(A: Blocks, triangle: Span, columns: Span) -> None:
    """A[triangle, columns] becomes L^T A[triangle, columns]."""
    parts = halves(triangle, A.block)
    if parts is None:
        A.left_transposed(triangle, columns)
        return
    first, second = parts
    _left_transposed(A, first, columns)
    A.add_inner(first, columns, second)
    _left_transposed(A, second, columns)


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
