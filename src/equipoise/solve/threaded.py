"""Carry out the steps of `blocked` on several threads, each on its part of the result.

A part is a step on fewer rows or columns, so threads wait for one another only at the end of a
step. BLAS runs on one thread in each of them: its own threads wait inside every product (and crash
in some, see `dense`). Products are added to the matrix in place, for which numpy has no call; the
BLAS routine is called at the address that scipy provides.
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

PIECE = 2048  # most rows or columns of a part: larger ones are not faster
# For a matrix that BLAS sees transposed: side of the triangle, whether to transpose it, sign
SIDES = {
    "left": (b"R", b"N", -1),
    "left_transposed": (b"R", b"T", 1),
    "right": (b"L", b"N", 1),
    "solve": (b"L", b"T", 1),
}


class ThreadedBlocks(Blocks):
    """Inverts an array in memory, in place, on all threads.

    Diagonal blocks of a symmetric product with up to `leaf` rows are computed in full.
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
        """Yield steps on parts of the rows or columns that add up to the step."""
        kind, rows, columns, _ = step
        if kind in ("factor", "invert", "square"):
            yield step
        elif kind in ("left", "left_transposed"):
            yield from (step._replace(columns=part) for part in _cut(columns))
        elif kind in TRIANGULAR or rows != columns:
            yield from (step._replace(rows=part) for part in _cut(rows))
        elif (parts := halves(rows, self.leaf)) is None:
            yield step
        else:  # only the lower triangle of a symmetric product
            for part in parts:
                yield from self.parts(step._replace(rows=part, columns=part))
            yield from self.parts(step._replace(rows=parts[1], columns=parts[0]))

    def multiply(self, kind: str, C: Any, T: Any) -> None:
        """Multiply C by a triangle T in place."""
        side, transposed, sign = SIDES[kind]
        size = C.shape[::-1]
        # BLAS sees the transpose: a lower triangle T is an upper one
        _call(
            "trmm",
            C.dtype,
            side,
            b"U",
            transposed,
            b"N",
            *size,
            float(sign),
            *_address(T),
            *_address(C),
        )

    def add_product(self, C: Any, left: Any, right: Any, sign: int) -> None:
        """Add sign * left @ right to C in place."""
        size = right.shape[1], len(left), left.shape[1]
        ways = (b"N" if array.strides[1] == array.itemsize else b"T" for array in (right, left))
        factors = *_address(right), *_address(left)
        _call("gemm", C.dtype, *ways, *size, float(sign), *factors, 1.0, *_address(C))


def _operations(step: Step) -> int:
    return int(np.prod([high - low for low, high in step[1:]]))


def _cut(span: Span) -> Iterator[Span]:
    """Cut a span into even pieces, the same number for each thread."""
    low, high = span
    threads = machine.count()
    count = min(threads * -(-(high - low) // (threads * PIECE)), high - low)
    for number in range(count):
        yield low + (high - low) * number // count, low + (high - low) * (number + 1) // count


def _address(array: Any) -> tuple[Any, int]:
    """Return the address of a matrix, and the distance of its rows, or columns, in numbers."""
    return ctypes.c_void_p(array.ctypes.data), max(array.strides) // array.itemsize


@cache
def _routine(name: str) -> Any:
    return ctypes.CFUNCTYPE(None)(get_cython_function_address("scipy.linalg.cython_blas", name))


def _call(name: str, dtype: np.dtype[Any], *arguments: Any) -> None:
    """Call BLAS, which takes pointers; a 64-bit integer begins with the 32-bit one."""
    single = dtype == np.float32
    kinds = {
        bytes: ctypes.c_char,
        int: ctypes.c_int64,
        float: ctypes.c_float if single else ctypes.c_double,
    }
    values = [kinds.get(type(value), lambda at: at)(value) for value in arguments]
    pointers = [
        value if isinstance(value, ctypes.c_void_p) else ctypes.byref(value) for value in values
    ]
    _routine(("s" if single else "d") + name)(*pointers)
