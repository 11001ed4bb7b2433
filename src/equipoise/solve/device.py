"""What lives on the device: interactions, sparse, and a symmetric matrix, dense."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from equipoise.errors import SettingError
from equipoise.solve.blocked import strips
from equipoise.solve.card import Tensor, load_torch, send, sparse_rows

if TYPE_CHECKING:
    from equipoise.matrix import Csr

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


class SparseRows:
    """Interactions on the device: users x items, and items x users.

    Parameters
    ----------
    X
        Users x items.
    user_weights
        Diagonal of W.
    device
        Where to; a torch device.
    dtype
        Type of the Gram matrix.
    """

    def __init__(self, X: Csr, user_weights: Vector, device: Any, dtype: str) -> None:
        self.torch, self.device, self.shape = load_torch(), device, X.shape
        self.dtype = getattr(self.torch, dtype)
        columns: Any = X.tocsc()
        self._starts = columns.indptr.astype(np.int64)
        self._items = self._sent(columns)
        self._people = self._sent(X)
        self._weights = send(user_weights, device)

    def gram(self) -> Tensor:
        """Return a matrix whose lower triangle is X^T W X, made strip by strip."""
        n_users, n_items = self.shape
        G = empty_square(n_items, self.dtype, self.device)
        indptr, users, values = self._items
        weighted = (values * self._weights[users]).to(self.dtype)
        values = values.to(self.dtype)
        for low, high in strips((0, n_items), gram_width(n_users, n_items)):
            begin, end = int(self._starts[low]), int(self._starts[high])
            dense = self.torch.zeros((n_users, high - low), dtype=self.dtype, device=self.device)
            column = self.torch.arange(high - low, device=self.device)
            column = column.repeat_interleave(indptr[low : high + 1].diff())
            dense[users[begin:end], column] = values[begin:end]
            below = self._csr(indptr[low:] - begin, users[begin:], weighted[begin:], n_users)
            G[low:, low:high] = below @ dense
        return G

    def times(self, right: Tensor) -> Tensor:
        """Return X^T W X @ right in float64, without the Gram matrix."""
        n_users, n_items = self.shape
        middle = self._csr(*self._people, n_items) @ right.double()
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
