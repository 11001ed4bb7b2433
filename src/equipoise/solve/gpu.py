"""What lives on the device: interactions, sparse, and a symmetric matrix, dense.

The GPU engine: Gram matrix, inverse and residual on the device.

The card holds one n x n array. Nothing of that size goes through the host, neither on the way in
(the interactions are sent sparse) nor on the way out (the inverse stays where it is).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from equipoise.errors import SettingError, SolveError, TooBigError
from equipoise.solve import blocked, dense
from equipoise.solve.blocked import Span, strips
from equipoise.solve.dense import TOLERANCE
from equipoise.solve.torch_backend import (
    Tensor,
    find_device,
    load_torch,
    precision,
    send,
    sparse_rows,
)
from equipoise.solve.torch_backend import device_name as device_name

if TYPE_CHECKING:
    from equipoise.matrix import Csr

logger = logging.getLogger(__name__)

BLOCK = 512  # of the diagonal: small, because its triangles are multiplied as squares
STRIP = 1024
REFINE_COLUMNS = 512
ALIGN = 32  # rows begin at multiples of 128 bytes, which the fast kernels need


GRAM_SHARE = 0.03  # of the matrix: room for a strip of the Gram matrix


COPY_ROWS = 512

Vector = npt.NDArray[np.float64]


class DeviceMatrix:
    """A symmetric n x n matrix on a device; its diagonal is kept apart.

    Ranking adds up rows in which an item must not count for itself, so the diagonal of `values`
    is zero.

    Parameters
    ----------
    values
        The tensor; taken over, not copied.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self._diagonal = values.diagonal().clone()
        values.diagonal().zero_()

    @classmethod
    def from_host(cls, matrix: npt.NDArray[Any], device: Any) -> DeviceMatrix:
        """Copy a matrix to the device, some rows at a time."""
        torch = load_torch()
        dtype = getattr(torch, matrix.dtype.name)
        values = empty_square(len(matrix), dtype, device)
        for low, high in strips((0, len(matrix)), COPY_ROWS):
            values[low:high] = send(matrix[low:high], device)
        return cls(values)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return (len(self), len(self))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the numbers."""
        return np.dtype(str(self.values.dtype).removeprefix("torch."))

    @property
    def device(self) -> str:
        """Name of the device."""
        return str(self.values.device)

    def diagonal(self) -> npt.NDArray[Any]:
        """Return the diagonal, on the host."""
        return np.asarray(self._diagonal.cpu().numpy())

    def blocks(self) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows in order, some at a time, on the host."""
        diagonal = self.diagonal()
        for low, high in strips((0, len(self)), COPY_ROWS):
            rows = np.array(self.values[low:high].cpu().numpy())
            rows[np.arange(high - low), np.arange(low, high)] = diagonal[low:high]
            yield rows

    def toarray(self) -> npt.NDArray[Any]:
        """Return a copy on the host."""
        matrix = np.empty(self.shape, self.dtype)
        low = 0
        for rows in self.blocks():
            matrix[low : low + len(rows)] = rows
            low += len(rows)
        return matrix

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise SettingError(
            f"this needs the model in the memory of the host, it is on {self.device}; "
            "move it first with model.to('cpu')"
        )


class Gram(dense.Gram):
    """The same on a device: interactions and matrices are there, only vectors come and go.

    Parameters
    ----------
    X
        Users x items.
    user_weights
        Diagonal of W.
    dtype
        "float32" or "float64", of the matrices.
    device
        "cuda" or "cuda:1"; "cpu" runs the same steps without a card.
    tf32
        Let the card round the factors of float32 products to 10 bits: faster, but weights are
        then right to about 3 digits instead of 6, and hard systems are refused.
    """

    block = BLOCK

    def __init__(
        self,
        X: Csr,
        user_weights: Vector,
        dtype: str = "float32",
        device: str = "cuda",
        *,
        tf32: bool = False,
    ) -> None:
        super().__init__(X, user_weights, dtype)
        self.torch, self.device, self.tf32 = load_torch(), find_device(device), tf32
        self._type = getattr(self.torch, dtype)
        columns: Any = X.tocsc()
        self._starts = columns.indptr.astype(np.int64)
        with self._working():
            self._items = self._sent(columns)
            self._users = self._sent(X)
            self._weights = send(user_weights, self.device)

    def empty(self) -> Tensor:
        """Return room for an items x items matrix."""
        with self._working():
            return empty_square(self.X.shape[1], self._type, self.device)

    def fill(self, out: Tensor) -> None:
        """Write the lower triangle of G into a matrix."""
        with self._working():
            self._fill(out)

    def invert(
        self, P: Tensor, penalty: Vector, *, refine: bool = False
    ) -> tuple[DeviceMatrix, float]:
        """Replace G by P = (G + diag(penalty))^-1; return P and its residual.

        With `refine`, one Newton step follows, at about the cost of the solve.
        """
        with self._working():
            P.diagonal().add_(send(penalty, self.device, P.dtype))
            invert_in_place(P, self.block)
            if refine:
                _newton_step(P, self, penalty)
            residual = self.residual(P, penalty)
        limit = TOLERANCE[self.dtype]
        if not residual <= limit:
            raise SolveError(
                f"the solve is not accurate (residual {residual:.1e}, limit {limit:.0e}); "
                f"raise l2 or dropout, or fit with {'tf32=False' if self.tf32 else 'refine=True'}"
            )
        logger.info("residual of the solve: %.1e", residual)
        return DeviceMatrix(P), residual

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Multiply in the precision that was asked for; say what to do when memory runs out."""
        try:
            with precision(self.tf32):
                yield
        except self.torch.OutOfMemoryError as error:
            raise TooBigError(
                f"{self.X.shape[1]:,} items did not fit into the free memory of {self.device}; "
                "free the card, use engine='tiled' or keep fewer items with "
                "data.filter(min_item=...)"
            ) from error

    def _fill(self, G: Tensor) -> None:
        n_users, n_items = self.X.shape
        indptr, users, values = self._items
        weighted = (values * self._weights[users]).to(self._type)
        values = values.to(self._type)
        for low, high in strips((0, n_items), gram_width(n_users, n_items)):
            begin, end = int(self._starts[low]), int(self._starts[high])
            full = self.torch.zeros((n_users, high - low), dtype=self._type, device=self.device)
            column = self.torch.arange(high - low, device=self.device)
            column = column.repeat_interleave(indptr[low : high + 1].diff())
            full[users[begin:end], column] = values[begin:end]
            below = self._csr(indptr[low:] - begin, users[begin:], weighted[begin:], n_users)
            G[low:, low:high] = below @ full

    def times(self, right: Tensor) -> Tensor:
        """Return X^T W X @ right in float64, without the Gram matrix."""
        n_users, n_items = self.X.shape
        middle = self._csr(*self._users, n_items) @ right.double()
        return self._csr(*self._items, n_users) @ (self._weights[:, None] * middle)

    def residual(self, P: Tensor, penalty: Vector) -> float:
        """Relative size of (A P - I) V for four random vectors; A = X^T W X + diag(penalty)."""
        rng = np.random.default_rng(0)
        V = send(rng.standard_normal((len(P), 4)), self.device, P.dtype)
        Y = P @ V
        error = self.times(Y) + send(penalty, self.device)[:, None] * Y - V
        return float(error.norm() / V.norm())

    def _sent(self, matrix: Any) -> tuple[Tensor, Tensor, Tensor]:
        indptr, indices = (send(part.astype(np.int64), self.device) for part in _layout(matrix))
        return indptr, indices, send(matrix.data.astype(np.float64), self.device)

    def _csr(self, indptr: Tensor, indices: Tensor, values: Tensor, width: int) -> Tensor:
        return sparse_rows(indptr, indices, values, (len(indptr) - 1, width))


def gram_width(n_users: int, n_items: int) -> int:
    """Columns of the Gram matrix formed at a time."""
    width = int(GRAM_SHARE * n_items**2 / (n_users + 2 * n_items))
    return max(ALIGN, min(width // ALIGN * ALIGN, 1024))


def row_length(n_items: int) -> int:
    """Numbers from one row to the next."""
    return -(-n_items // ALIGN) * ALIGN


def empty_square(n_items: int, dtype: Any, device: Any) -> Tensor:
    """Return an n x n view of a tensor whose rows are aligned."""
    buffer = load_torch().empty((n_items, row_length(n_items)), dtype=dtype, device=device)
    return buffer[:, :n_items]


def mirror(A: Tensor) -> None:
    """Copy the lower triangle onto the upper one, a strip at a time.

    Single calls on all of a large matrix would count its elements in 32 bits.
    """
    for low, high in strips((0, len(A)), COPY_ROWS):
        corner = A[low:high, low:high]
        corner.copy_(corner.tril() + corner.tril(-1).T)
        A[low:high, high:] = A[high:, low:high].T


def symmetrize(A: Tensor) -> None:
    """Replace A by the mean of A and its transpose."""
    for low, high in strips((0, len(A)), COPY_ROWS):
        A[low:, low:high] = (A[low:, low:high] + A[low:high, low:].T) / 2
    mirror(A)


def _layout(matrix: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    return matrix.indptr, matrix.indices


def invert_in_place(A: Tensor, block: int = BLOCK, strip: int | None = None) -> None:
    """Replace a positive definite matrix, given by its lower triangle, by its inverse."""
    blocked.invert(CardBlocks(A, block, strip))
    mirror(A)


def needed_bytes(n_users: int, n_items: int, n_interactions: int, dtype: str) -> int:
    """Bytes on the card at the peak of a fit: one n x n array and strips beside it."""
    size = np.dtype(dtype).itemsize
    matrix = n_items * row_length(n_items) * size
    gram = (n_users + 2 * n_items) * gram_width(n_users, n_items) * size
    blocks = 2 * n_items * BLOCK * size + 8 * BLOCK**2 * size
    sparse = 64 * n_interactions + 24 * (n_users + n_items)
    workspace = 128 << 20  # of cuBLAS, cuSPARSE and cuSOLVER
    return matrix + max(gram, blocks) + sparse + workspace


class CardBlocks:
    """The steps of `blocked` on views of a tensor; every product is one call.

    Parameters
    ----------
    A
        The matrix; rows may be longer than what is seen of them.
    block, strip
        As for `Blocks`.
    """

    def __init__(self, A: Tensor, block: int = BLOCK, strip: int | None = None) -> None:
        self.A, self.size, self.block = A, len(A), block
        self.strip = strip or block * max(1, STRIP // block)
        self._torch = load_torch()
        self._inverses: dict[int, Tensor] = {}
        self._faults: list[Tensor] = []

    def factor(self, at: Span) -> None:
        """Replace T by its Cholesky factor."""
        T = self._view(at, at)
        L, fault = self._torch.linalg.cholesky_ex(T)
        self._faults.append(fault)
        unit = self._torch.eye(len(L), dtype=L.dtype, device=L.device)
        # kept for `solve` and `invert`: a product is faster than a triangular solve
        self._inverses[at[0]] = self._torch.linalg.solve_triangular(L, unit, upper=False)

    def invert(self, at: Span) -> None:
        """Replace the factor T by its inverse."""
        if self._faults:
            self._refuse_indefinite()
        self._view(at, at).copy_(self._inverses.pop(at[0]))

    def square(self, at: Span) -> None:
        """Replace T by T^T T."""
        T = self._view(at, at)
        T.copy_(T.T @ T)

    def solve(self, rows: Span, at: Span) -> None:
        """A[rows, at] becomes A[rows, at] T^-T."""
        B = self._view(rows, at)
        B.copy_(B @ self._inverses[at[0]].T)

    def left(self, at: Span, columns: Span) -> None:
        """A[at, columns] becomes -T A[at, columns]."""
        B = self._view(at, columns)
        self._torch.neg(self._view(at, at) @ B, out=B)

    def right(self, rows: Span, at: Span) -> None:
        """A[rows, at] becomes A[rows, at] T."""
        B = self._view(rows, at)
        B.copy_(B @ self._view(at, at))

    def left_transposed(self, at: Span, columns: Span) -> None:
        """A[at, columns] becomes T^T A[at, columns]."""
        B = self._view(at, columns)
        B.copy_(self._view(at, at).T @ B)

    def add(self, rows: Span, columns: Span, inner: Span, *, sign: int) -> None:
        """A[rows, columns] += sign A[rows, inner] A[inner, columns]."""
        left, right = self._view(rows, inner), self._view(inner, columns)
        self._view(rows, columns).addmm_(left, right, alpha=sign)

    def subtract_outer(self, rows: Span, columns: Span, inner: Span) -> None:
        """A[rows, columns] -= A[rows, inner] A[columns, inner]^T."""
        left, right = self._view(rows, inner), self._view(columns, inner)
        self._view(rows, columns).addmm_(left, right.T, alpha=-1)

    def add_inner(self, rows: Span, columns: Span, inner: Span) -> None:
        """A[rows, columns] += A[inner, rows]^T A[inner, columns]."""
        left, right = self._view(inner, rows), self._view(inner, columns)
        self._view(rows, columns).addmm_(left.T, right)

    def _view(self, rows: Span, columns: Span) -> Tensor:
        return self.A[rows[0] : rows[1], columns[0] : columns[1]]

    def _refuse_indefinite(self) -> None:
        """Look at the outcome of all diagonal blocks at once: asking each would stall the card."""
        faults = self._torch.stack(self._faults).cpu().numpy()
        self._faults.clear()
        if faults.any():
            wrong = int(np.flatnonzero(faults)[0])
            item = wrong * self.block + int(faults[wrong]) - 1
            raise SolveError(
                f"the matrix is not positive definite (at item {item}); raise l2 or dropout"
            )


def _newton_step(P: Tensor, gram: Gram, penalty: Vector) -> None:
    """Improve P in place by P + P (I - A P), a block of columns at a time."""
    shift = send(penalty, P.device)[:, None]
    for low, high in strips((0, len(P)), REFINE_COLUMNS):
        part = P[:, low:high].double()
        error = -gram.times(part) - shift * part
        error[low:high].diagonal().add_(1)
        P[:, low:high] = part + P @ error.to(P.dtype)
    symmetrize(P)
