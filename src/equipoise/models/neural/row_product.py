"""The product of a sparse matrix with a table of embeddings on a card, one program for each row.

torch's own product of this shape takes several times as long: the table stays in the card's
cache, and a row is a short sum of its rows. Without Triton torch's product is taken.
"""

from __future__ import annotations

from equipoise.solve.torch_backend import Tensor, load_torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

BLOCK = 32  # entries of a row that are added up at once


class RowProduct:
    """A sparse float32 matrix on a card, of which `matrix @ table` is asked many times."""

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix
        self._rows = (matrix.crow_indices(), matrix.col_indices(), matrix.values())

    def __matmul__(self, table: Tensor) -> Tensor:
        """Return the product; each row is added up in the same order every time."""
        width = table.shape[1]
        if triton is None or width & (width - 1) or table.dtype != self._matrix.dtype:
            return self._matrix @ table
        n_rows = self._matrix.shape[0]
        out = load_torch().empty((n_rows, width), dtype=table.dtype, device=table.device)
        _add_rows[(n_rows,)](*self._rows, table.contiguous(), out, width, BLOCK, num_warps=2)
        return out


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _add_rows(starts, columns, values, table, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        last = tl.load(starts + row + 1)
        feature = tl.arange(0, WIDTH)
        total = tl.zeros((WIDTH,), tl.float32)
        for first in range(tl.load(starts + row), last, BLOCK):
            place = first + tl.arange(0, BLOCK)
            inside = place < last
            column = tl.load(columns + place, mask=inside, other=0).to(tl.int64)
            value = tl.load(values + place, mask=inside, other=0.0)
            cells = table + column[:, None] * WIDTH + feature[None, :]
            part = tl.load(cells, mask=inside[:, None], other=0.0)
            total += tl.sum(value[:, None] * part, 0)
        tl.store(out + row * WIDTH + feature, total)
