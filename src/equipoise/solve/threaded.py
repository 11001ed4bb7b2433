"""The steps of `blocked` on the threads of the machine, each with its own part of a result.

A part is a step again, on fewer rows or columns, so threads wait for one another only at the end
of a step, and BLAS runs on one thread in each of them: its own threads wait inside of every
product (and crash in some, see `dense`). Products are added to the matrix where it lies, which
numpy has no call for; that of BLAS is at the address that scipy gives for it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numba.extending import get_cython_function_address

from equipoise.runtime import machine
from equipoise.solve.blocked import TRIANGULAR, Blocks, Span, Step, halves

PIECE = 2048  # most rows or columns of a part: one that is larger is not faster
# Of a matrix that BLAS sees transposed: the side of the triangle, whether it is transposed, sign
SIDES = {
    "left": (b"R", b"N", -1),
    "left_transposed": (b"R", b"T", 1),
    "right": (b"L", b"N", 1),
    "solve": (b"L", b"T", 1),
}


class ThreadedBlocks(Blocks):
    """The inverse of an array in memory, in place.

    Parameters
    ----------
    A, block
        As for `Blocks`.
    leaf
        Rows of a triangle of a symmetric product of which both halves are computed.
    """

    def __init__(self, A: Any, block: int, leaf: int) -> None:
        super().__init__(A, block, len(A) + block)
        self.leaf = leaf

    def invert(self) -> None:
        """Replace the lower triangle by that of the inverse."""
        with machine.one_blas_thread():
            super().invert()

    def do(self, step: Step) -> None:
        """Do all parts of a step, the largest first."""
        parts = sorted(self.parts(step), key=_operations, reverse=True)
        machine.run(lambda number: super(ThreadedBlocks, self).do(parts[number]), len(parts))

    def parts(self, step: Step) -> Iterator[Step]:
        """Yield steps on parts of the rows or columns, which together do the step."""
        kind, rows, columns, _ = step
        if kind in ("factor", "invert", "square"):
            yield step
        elif kind in ("left", "left_transposed"):
            yield from (step._replace(columns=some) for some in _cut(columns))
        elif kind in TRIANGULAR or rows != columns:
            yield from (step._replace(rows=some) for some in _cut(rows))
        elif (both := halves(rows, self.leaf)) is None:
            yield step
        else:  # of a symmetric product only the lower triangle
            for some in both:
                yield from self.parts(step._replace(rows=some, columns=some))
            yield from self.parts(step._replace(rows=both[1], columns=both[0]))

    def multiply(self, kind: str, C: Any, T: Any) -> None:
        """Do a step with a triangle T where C lies."""
        side, transposed, sign = SIDES[kind]
        size = C.shape[::-1]
        # a lower triangle T is to BLAS, which sees it transposed, an upper one
        _call(
            "trmm", C.dtype, side, b"U", transposed, b"N", *size, float(sign), *_seen(T), *_seen(C)
        )

    def add_product(self, C: Any, left: Any, right: Any, sign: int) -> None:
        """Add sign * left @ right to C where it lies."""
        size = right.shape[1], len(left), left.shape[1]
        ways = (b"N" if array.strides[1] == array.itemsize else b"T" for array in (right, left))
        factors = *_seen(right), *_seen(left)
        _call("gemm", C.dtype, *ways, *size, float(sign), *factors, 1.0, *_seen(C))


def _operations(step: Step) -> int:
    return int(np.prod([high - low for low, high in step[1:]]))


def _cut(span: Span) -> Iterator[Span]:
    """Cut a span evenly, in as many pieces for each thread."""
    low, high = span
    threads = machine.count()
    count = min(threads * -(-(high - low) // (threads * PIECE)), high - low)
    for number in range(count):
        yield low + (high - low) * number // count, low + (high - low) * (number + 1) // count


def _seen(array: Any) -> tuple[Any, int]:
    """Return where a matrix lies, and the distance of its rows, or columns, in numbers."""
    return ctypes.c_void_p(array.ctypes.data), max(array.strides) // array.itemsize


@cache
def _routine(name: str) -> Any:
    return ctypes.CFUNCTYPE(None)(get_cython_function_address("scipy.linalg.cython_blas", name))


def _call(name: str, dtype: np.dtype[Any], *arguments: Any) -> None:
    """Call BLAS, which takes pointers; whole numbers of 64 bits begin with those of 32."""
    single = dtype == np.float32
    kinds = {
        bytes: ctypes.c_char,
        int: ctypes.c_int64,
        float: ctypes.c_float if single else ctypes.c_double,
    }
    given = [kinds.get(type(each), lambda at: at)(each) for each in arguments]
    pointers = [
        each if isinstance(each, ctypes.c_void_p) else ctypes.byref(each) for each in given
    ]
    _routine(("s" if single else "d") + name)(*pointers)
