"""GPU engine: Gram matrix, inverse and residual on the device.

The GPU holds one n x n array. Nothing of that size passes through the host: the interactions are
sent as a sparse matrix, and the inverse stays on the device.

Tensor cores multiply float16 numbers many times faster than float32. A float32 number is the sum
of two float16 numbers to its last bit, so a float32 product is three float16 products; the fourth,
small x small, is below rounding (`PairBlocks`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from equipoise.errors import SettingError, SolveError, TooBigError
from equipoise.solve import dense
from equipoise.solve.blocked import Blocks, Step, indefinite, strips
from equipoise.solve.torch_backend import (
    Tensor,
    add_halves,
    find_device,
    full_precision,
    load_torch,
    multiplies_pairs,
    send,
    sparse_rows,
)

if TYPE_CHECKING:
    from equipoise.data.matrix import Csr

BLOCK = 512  # rows of a diagonal block: small, because its triangles are multiplied as squares
STRIP = 1024
PAIR_STRIP = 4096
PAIR_INNER = 4096  # terms of a sum on tensor cores, which round it towards zero at every step
PAIR_LEAST = 512  # smallest side of a product that repays the splitting
PAIR_SCALE = 16.0  # float16 reaches from 6e-8 to 65,504: room for factors up to 4,000
PAIR_SHARE = 0.04  # memory for the pairs of a product, as a share of the matrix
PAIR_BYTES = 16  # bytes per number of two pairs, one of them under construction
REFINE_COLUMNS = 512
ALIGN = 32  # rows begin at multiples of 128 bytes, which the fast kernels need
GRAM_SHARE = 0.03  # memory for a strip of the Gram matrix, as a share of the matrix
COPY_ROWS = 512

logger = logging.getLogger(__name__)

Vector = npt.NDArray[np.float64]


class DeviceMatrix:
    """An n x n matrix on a device; its diagonal is stored separately.

    The tensor is taken over, not copied. `zero_diagonal` sets its diagonal to zero: ranking sums
    its rows, and an item of the history may not contribute to its own score.
    """

    def __init__(self, values: Tensor, *, zero_diagonal: bool = True) -> None:
        self.values, self.zero_diagonal = values, zero_diagonal
        self._diagonal = values.diagonal().clone()
        if zero_diagonal:
            values.diagonal().zero_()

    @classmethod
    def from_host(
        cls, matrix: npt.NDArray[Any], device: Any, *, zero_diagonal: bool = True
    ) -> DeviceMatrix:
        """Copy a matrix to the device, a block of rows at a time."""
        values = empty_square(len(matrix), getattr(load_torch(), matrix.dtype.name), device)
        for low, high in strips((0, len(matrix)), COPY_ROWS):
            values[low:high] = send(matrix[low:high], device)
        return cls(values, zero_diagonal=zero_diagonal)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return (len(self), len(self))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the entries."""
        return np.dtype(str(self.values.dtype).removeprefix("torch."))

    @property
    def device(self) -> str:
        """Name of the device."""
        return str(self.values.device)

    def diagonal(self) -> npt.NDArray[Any]:
        """Return the diagonal on the host."""
        return np.asarray(self._diagonal.cpu().numpy())

    def release(self) -> Tensor:
        """Return the tensor with its diagonal; do not use this object afterwards."""
        self.values.diagonal().copy_(self._diagonal)
        return self.values

    def rows(self, low: int, high: int) -> npt.NDArray[Any]:
        """Return a range of rows on the host."""
        rows = np.array(self.values[low:high].cpu().numpy())
        rows[np.arange(high - low), np.arange(low, high)] = self._diagonal[low:high].cpu().numpy()
        return rows

    def blocks(self) -> Iterator[npt.NDArray[Any]]:
        """Yield blocks of rows in order, on the host."""
        for low, high in strips((0, len(self)), COPY_ROWS):
            yield self.rows(low, high)

    def toarray(self) -> npt.NDArray[Any]:
        """Return a copy on the host."""
        matrix = np.empty(self.shape, self.dtype)
        for low, high in strips((0, len(self)), COPY_ROWS):
            matrix[low:high] = self.rows(low, high)
        return matrix

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise SettingError(
            f"this needs the model in host memory, but it is on {self.device}; "
            "move it first with model.to('cpu')"
        )


class Gram(dense.Gram):
    """`dense.Gram` on a device: only vectors are copied between host and device.

    The device "cpu" runs the same steps without a GPU. The precision "auto" multiplies pairs of
    float16 numbers where the GPU can, and solves again in "float32" where the residual is then too
    large.
    """

    block = BLOCK

    def __init__(
        self,
        X: Csr,
        user_weights: Vector,
        dtype: str = "float32",
        device: str = "cuda",
        *,
        precision: str = "auto",
    ) -> None:
        super().__init__(X, user_weights, dtype)
        self.torch, self.device = load_torch(), find_device(device)
        self.pairs = precision == "auto" and dtype == "float32" and multiplies_pairs(self.device)
        self._type = getattr(self.torch, dtype)
        columns: Any = X.tocsc()
        self._starts = columns.indptr.astype(np.int64)
        with self._on_device():
            self._items = _send_csr(columns, self.device)
            self._users = _send_csr(X, self.device)
            self._weights = send(user_weights, self.device)

    def empty(self) -> Tensor:
        """Return an uninitialised items x items matrix."""
        with self._on_device():
            return empty_square(self.X.shape[1], self._type, self.device)

    def fill(self, out: Tensor) -> None:
        """Write the lower triangle of G into a matrix, strip by strip."""
        n_users, n_items = self.X.shape
        indptr, users, values = self._items
        with self._on_device():
            weighted = (values * self._weights[users]).to(self._type)
            values = values.to(self._type)
            for low, high in strips((0, n_items), gram_width(n_users, n_items)):
                begin, end = int(self._starts[low]), int(self._starts[high])
                full = self.torch.zeros((n_users, high - low), dtype=self._type, device=out.device)
                column = self.torch.arange(high - low, device=out.device)
                column = column.repeat_interleave(indptr[low : high + 1].diff())
                full[users[begin:end], column] = values[begin:end]
                below = indptr[low:] - begin, users[begin:], weighted[begin:]
                out[low:, low:high] = sparse_rows(*below, (n_items - low, n_users)) @ full

    def invert(
        self, P: Tensor, penalty: Vector, *, refine: bool = False
    ) -> tuple[DeviceMatrix, float]:
        """Replace G by P = A^-1; return P and its residual.

        `refine` adds a Newton step, at about the cost of the solve.
        """
        with self._on_device():
            if self.pairs:
                try:
                    return self._invert(P, penalty, refine, pairs=True)
                except SolveError as error:
                    logger.info("pairs of float16 failed (%s); solving again in float32", error)
                    self.fill(P)
            return self._invert(P, penalty, refine, pairs=False)

    def _invert(
        self, P: Tensor, penalty: Vector, refine: bool, *, pairs: bool
    ) -> tuple[DeviceMatrix, float]:
        P.diagonal().add_(send(penalty, self.device, P.dtype))
        invert_in_place(P, self.block, pairs=pairs)
        if refine:
            self.newton_step(P, penalty)
        residual = self.residual(P, penalty)
        dense.check_accuracy(residual, self.dtype, "fit with refine=True")
        return DeviceMatrix(P), residual

    def residual(self, P: Tensor, penalty: Vector) -> float:
        """Return the relative size of (A P - I) V for four random vectors."""
        V = send(dense.probes(len(P), self.dtype), self.device)
        error = self._times_system(P @ V, penalty) - V
        return float(error.norm() / V.norm())

    def newton_step(self, P: Tensor, penalty: Vector) -> None:
        """Improve P in place by P + P (I - A P), a block of columns at a time."""
        for low, high in strips((0, len(P)), REFINE_COLUMNS):
            part = P[:, low:high].double()
            error = -self._times_system(part, penalty)
            error[low:high].diagonal().add_(1)
            P[:, low:high] = part + P @ error.to(P.dtype)
        symmetrize(P)

    def _times_system(self, right: Tensor, penalty: Vector) -> Tensor:
        """Return A @ right in float64, without the Gram matrix."""
        n_users, n_items = self.X.shape
        middle = sparse_rows(*self._users, (n_users, n_items)) @ right.double()
        weighted = self._weights[:, None] * middle
        product = sparse_rows(*self._items, (n_items, n_users)) @ weighted
        return product + send(penalty, self.device)[:, None] * right

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """Multiply in full float32 precision; translate torch's out-of-memory error into ours."""
        try:
            with full_precision():
                yield
        except self.torch.OutOfMemoryError as error:
            raise TooBigError(
                f"{self.X.shape[1]:,} items did not fit into the free memory of {self.device}; "
                "free GPU memory, use engine='tiled' or keep fewer items with "
                "data.filter(min_item=...)"
            ) from error


class CardBlocks(Blocks):
    """The steps of `blocked` on views of a tensor; every product is one call."""

    def __init__(self, A: Tensor, block: int = BLOCK, strip: int | None = None) -> None:
        super().__init__(A, block, strip or block * max(1, STRIP // block))
        self._faults: list[Tensor] = []

    def do(self, step: Step) -> None:
        """Do one step."""
        if step.kind == "invert" and self._faults:
            # all diagonal blocks at once: checking each one would stall the GPU
            faults = load_torch().stack(self._faults).cpu().numpy()
            self._faults.clear()
            if faults.any():
                failed = int(np.flatnonzero(faults)[0])
                raise indefinite(failed * self.block + int(faults[failed]) - 1)
        super().do(step)

    def inverse_factor(self, T: Tensor, first: int) -> Tensor:
        """Return L^-1 of T = L L^T."""
        linalg = load_torch().linalg
        L, fault = linalg.cholesky_ex(T)
        self._faults.append(fault)
        unit = load_torch().eye(len(L), dtype=L.dtype, device=L.device)
        return linalg.solve_triangular(L, unit, upper=False)

    def add_product(self, C: Tensor, left: Tensor, right: Tensor, sign: int) -> None:
        """Add sign * left @ right to C."""
        C.addmm_(left, right, alpha=sign)


class PairBlocks(CardBlocks):
    """`CardBlocks` with float32 products made of float16 pairs.

    The diagonal of A has to be near 1 (`unit_scale`). No factor L of such a matrix has an entry
    above 1, and those of L^-1 stay below the root of its condition number, so one scale brings all
    of them into the range of float16. An overflow becomes infinite and shows in the residual.
    """

    def __init__(self, A: Tensor, block: int = BLOCK, strip: int | None = None) -> None:
        super().__init__(A, block, strip or block * max(1, PAIR_STRIP // block))
        self._width = pair_width(len(A))

    def add_product(self, C: Tensor, left: Tensor, right: Tensor, sign: int) -> None:
        """Add sign * left @ right to C, small terms first."""
        if min(*left.shape, right.shape[1]) < PAIR_LEAST:
            return super().add_product(C, left, right, sign)
        for inner in strips((0, left.shape[1]), PAIR_INNER):
            for columns in strips((0, right.shape[1]), self._width):
                right_high, right_low = _pair(right[slice(*inner), slice(*columns)])
                for rows in strips((0, len(left)), self._width):
                    left_high, left_low = _pair(left[slice(*rows), slice(*inner)])
                    part = C[slice(*rows), slice(*columns)]
                    for a, b in (
                        (left_low, right_high),
                        (left_high, right_low),
                        (left_high, right_high),
                    ):
                        add_halves(part, a, b, sign / PAIR_SCALE**2)
        return None


def _pair(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return two float16 tensors whose sum is PAIR_SCALE * values, in the same memory order."""
    if values.stride(0) == 1:
        high, low = _pair(values.T)
        return high.T, low.T
    scaled = values * PAIR_SCALE
    high = scaled.half()
    return high, scaled.sub_(high).half()


def invert_in_place(
    A: Tensor, block: int = BLOCK, strip: int | None = None, *, pairs: bool = False
) -> None:
    """Replace a positive definite matrix, given by its lower triangle, by its inverse."""
    if pairs:
        scale = unit_scale(A)
        _scale(A, scale)
        PairBlocks(A, block, strip).invert()
        _scale(A, scale)
    else:
        CardBlocks(A, block, strip).invert()
    mirror(A)


def unit_scale(A: Tensor) -> Tensor:
    """Return powers of two s, so that the diagonal of S A S is near 1 and no bit is lost."""
    diagonal = A.diagonal()
    torch = load_torch()
    scale = torch.exp2(torch.round(-torch.log2(diagonal) / 2))
    return torch.where(diagonal > 0, scale, torch.ones_like(scale))


def _scale(A: Tensor, scale: Tensor) -> None:
    for low, high in strips((0, len(A)), COPY_ROWS):
        A[low:high].mul_(scale).mul_(scale[low:high, None])


def mirror(A: Tensor) -> None:
    """Copy the lower triangle onto the upper one, a strip at a time.

    A single call on a large matrix would overflow torch's 32-bit element counts.
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


def sparse_like(matrix: Any, like: Tensor) -> Tensor:
    """Return a scipy matrix on the device of a tensor and in its precision."""
    rows = matrix.tocsr()
    indptr, indices, values = _send_csr(rows, like.device)
    return sparse_rows(indptr, indices, values.to(like.dtype), rows.shape)


def _send_csr(matrix: Any, device: Any) -> tuple[Tensor, Tensor, Tensor]:
    indptr, indices = (
        send(part.astype(np.int64), device) for part in (matrix.indptr, matrix.indices)
    )
    return indptr, indices, send(matrix.data.astype(np.float64), device)


def needed_bytes(n_users: int, n_items: int, n_interactions: int, dtype: str) -> int:
    """Return the peak GPU memory of a fit: one n x n array and strips beside it."""
    size = np.dtype(dtype).itemsize
    matrix = n_items * row_length(n_items) * size
    gram = (n_users + 2 * n_items) * gram_width(n_users, n_items) * size
    blocks = 2 * n_items * BLOCK * size + 8 * BLOCK**2 * size
    pairs = PAIR_BYTES * PAIR_INNER * pair_width(n_items)
    sparse = 64 * n_interactions + 24 * (n_users + n_items)
    workspace = 128 << 20  # of cuBLAS, cuSPARSE and cuSOLVER
    return matrix + max(gram, blocks + pairs) + sparse + workspace


def gram_width(n_users: int, n_items: int) -> int:
    """Return how many columns of the Gram matrix are formed at a time."""
    width = int(GRAM_SHARE * n_items**2 / (n_users + 2 * n_items))
    return max(ALIGN, min(width // ALIGN * ALIGN, 1024))


def pair_width(n_items: int) -> int:
    """Return how many rows and columns of a product of pairs are formed at a time."""
    width = int(PAIR_SHARE * 4 * n_items**2 / (PAIR_BYTES * PAIR_INNER))
    return max(PAIR_LEAST, width // PAIR_LEAST * PAIR_LEAST)


def row_length(n_items: int) -> int:
    """Return the length of an aligned row, in numbers."""
    return -(-n_items // ALIGN) * ALIGN


def empty_square(n_items: int, dtype: Any, device: Any) -> Tensor:
    """Return an n x n view of a tensor whose rows are aligned."""
    buffer = load_torch().empty((n_items, row_length(n_items)), dtype=dtype, device=device)
    return buffer[:, :n_items]
