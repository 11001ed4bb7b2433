"""All of C = M^-1 R of the session models on a card, where it stays and is ranked from."""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.solve import gpu
from equipoise.solve.blocked import strips
from equipoise.solve.card import Tensor, send, sparse_rows
from equipoise.solve.conjugate import System
from equipoise.solve.device import DeviceMatrix

BLOCK = 1024  # rows of C that are worked on at a time


class FullMatrix(DeviceMatrix):
    """A matrix on a device whose diagonal counts: a click may call for its own item."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self._diagonal = values.diagonal().clone()


def solve_on_card(system: System, dtype: str, device: str) -> FullMatrix:
    """Return C = P R with P = M^-1 from the engine of the card, in the buffer of P."""
    A = system.inputs
    inverse, _ = gpu.invert(A, np.ones(A.shape[0]), system.diagonal, device=device, dtype=dtype)
    C = inverse.values
    diagonal = send(inverse.diagonal(), C.device)
    C.diagonal().copy_(diagonal)
    inputs = _sparse(A, C)
    to_targets, to_right = _sparse(system.targets.T, C), _sparse(system.right.T, C)
    for low, high in strips((0, len(C)), BLOCK):
        some = C[low:high].T.contiguous()
        C[low:high] = (to_targets @ (inputs @ some) + to_right @ some).T
    return FullMatrix(C)


def _sparse(matrix: Any, like: Tensor) -> Tensor:
    """Return a sparse matrix on the device of a tensor and in its precision."""
    rows = matrix.tocsr()
    indptr, indices = (send(part.astype(np.int64), like.device) for part in _layout(rows))
    values = send(rows.data, like.device, like.dtype)
    return sparse_rows(indptr, indices, values, rows.shape)


def _layout(rows: Any) -> tuple[Any, Any]:
    return rows.indptr, rows.indices
