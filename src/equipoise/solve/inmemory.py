"""The blocked inverse in one array in memory, for sizes that LAPACK's threads cannot take.

OpenBLAS gives the threads of a symmetric product buffers that are too small for large matrices
(OpenMathLib/OpenBLAS#2562): its Cholesky factorisation of 30,000 items on two threads ends in a
crash of the process. Beyond `LAPACK_ITEMS` everything large is therefore a plain matrix product.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack

from equipoise.errors import SolveError
from equipoise.solve import blocked
from equipoise.solve.blocked import Span, strips

# The largest sizes that were seen to work on two threads, with a margin
LAPACK_ITEMS = {"float32": 20_000, "float64": 10_000}
BLOCK = 1024
STRIP = 2048  # rows of a product that are held beside the matrix

Array = npt.NDArray[Any]


class MemoryBlocks:
    """The steps of `blocked` on views of an array, with numpy's matrix product.

    Parameters
    ----------
    A
        C-ordered; its lower triangle is the matrix.
    block, strip
        As for `Blocks`.
    """

    def __init__(self, A: Array, block: int = BLOCK, strip: int = STRIP) -> None:
        self.A, self.size, self.block, self.strip = A, len(A), block, max(strip, block)
        self._inverses: dict[int, Array] = {}

    def factor(self, at: Span) -> None:
        """Factor T; its inverse is kept for `solve` and `invert`."""
        single = self.A.dtype == np.float32
        T = np.array(self._view(at, at), order="C")
        # the upper triangle as LAPACK sees it: see `dense` for what is wrong with the lower one
        U, info = (lapack.spotrf if single else lapack.dpotrf)(T.T, lower=0, overwrite_a=1)
        if info > 0:
            item = at[0] + info - 1
            raise SolveError(
                f"the matrix is not positive definite (at item {item}); raise l2 or dropout"
            )
        inverse, _ = (lapack.strtri if single else lapack.dtrtri)(U, lower=0, overwrite_c=1)
        self._inverses[at[0]] = inverse.T

    def invert(self, at: Span) -> None:
        """Replace the factor T by its inverse."""
        self._view(at, at)[...] = self._inverses.pop(at[0])

    def square(self, at: Span) -> None:
        """Replace T by T^T T."""
        T = self._view(at, at)
        T[...] = T.T @ T

    def solve(self, rows: Span, at: Span) -> None:
        """A[rows, at] becomes A[rows, at] T^-T."""
        for some in strips(rows, self.strip):
            B = self._view(some, at)
            B[...] = B @ self._inverses[at[0]].T

    def left(self, at: Span, columns: Span) -> None:
        """A[at, columns] becomes -T A[at, columns]."""
        self._multiply(-self._view(at, at), at, columns)

    def left_transposed(self, at: Span, columns: Span) -> None:
        """A[at, columns] becomes T^T A[at, columns]."""
        self._multiply(self._view(at, at).T, at, columns)

    def right(self, rows: Span, at: Span) -> None:
        """A[rows, at] becomes A[rows, at] T."""
        for some in strips(rows, self.strip):
            B = self._view(some, at)
            B[...] = B @ self._view(at, at)

    def add(self, rows: Span, columns: Span, inner: Span, *, sign: int) -> None:
        """A[rows, columns] += sign A[rows, inner] A[inner, columns]."""
        right = self._view(inner, columns)
        for some in strips(rows, self.strip):
            product = self._view(some, inner) @ right
            self._accumulate(some, columns, product, sign)

    def subtract_outer(self, rows: Span, columns: Span, inner: Span) -> None:
        """A[rows, columns] -= A[rows, inner] A[columns, inner]^T."""
        right = self._view(columns, inner).T
        for some in strips(rows, self.strip):
            self._accumulate(some, columns, self._view(some, inner) @ right, -1)

    def add_inner(self, rows: Span, columns: Span, inner: Span) -> None:
        """A[rows, columns] += A[inner, rows]^T A[inner, columns]."""
        right = self._view(inner, columns)
        for some in strips(rows, self.strip):
            self._accumulate(some, columns, self._view(inner, some).T @ right, 1)

    def _multiply(self, left: Array, at: Span, columns: Span) -> None:
        for some in strips(columns, self.strip):
            B = self._view(at, some)
            B[...] = left @ B

    def _accumulate(self, rows: Span, columns: Span, product: Array, sign: int) -> None:
        target = self._view(rows, columns)
        (np.add if sign > 0 else np.subtract)(target, product, out=target)

    def _view(self, rows: Span, columns: Span) -> Array:
        return self.A[rows[0] : rows[1], columns[0] : columns[1]]


def invert_by_blocks(A: Array, block: int = BLOCK, strip: int = STRIP) -> None:
    """Replace the lower triangle of a positive definite matrix by that of its inverse."""
    blocked.invert(MemoryBlocks(A, block, strip))


def add_outer(A: Array, T: Array, sign: float) -> None:
    """Add sign * T^T T to the upper triangle of A, in strips of plain products."""
    for low, high in strips((0, len(A)), STRIP):
        A[low:high, low:] += A.dtype.type(sign) * (T[:, low:high].T @ T[:, low:])
