"""One solve after the other in the same memory, with the Gram matrix kept where it fits."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.interactions import Interactions
from equipoise.solve.dense import check_residual, invert_in_place
from equipoise.solve.gram import weighted_gram
from equipoise.solve.plan import plan

logger = logging.getLogger(__name__)

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Solve:
    """P = (X^T W X + L)^-1, valid until the next solve, and how accurate it is."""

    P: npt.NDArray[Any]
    penalty: Vector
    residual: float


class Solver:
    """Solves for different penalties and user weights, one n x n buffer at a time.

    A second buffer keeps the Gram matrix of the last user weights where memory allows; the
    inverse has the same bits either way.

    Parameters
    ----------
    train
        Training data.
    dtype
        Of the solve.
    memory
        Budget such as "6GB"; None takes what the machine has free.
    """

    def __init__(
        self, train: Interactions, *, dtype: str = "float32", memory: str | float | None = None
    ) -> None:
        cost = plan(train, dtype=dtype, memory=memory, engine="dense")
        cost.require()
        self.train = train
        self.seconds = cost.seconds
        n_items = train.n_items
        extra = n_items * n_items * np.dtype(dtype).itemsize
        self.P = np.empty((n_items, n_items), np.dtype(dtype))
        self.keeps_gram = cost.peak_bytes + extra <= cost.budget_bytes
        self._gram: npt.NDArray[Any] | None = None
        self._weights: Vector | None = None
        self.grams = 0

    def solve(self, user_weights: Vector, penalty: Vector) -> Solve:
        """Solve for one penalty; the result lives in the same memory as the last one."""
        self._fill(user_weights)
        P = self.P
        P.flat[:: len(P) + 1] += penalty.astype(P.dtype)
        invert_in_place(P)
        residual = check_residual(P, self.train.matrix, user_weights, penalty)
        return Solve(P, penalty, residual)

    def _fill(self, user_weights: Vector) -> None:
        same = self._weights is not None and np.array_equal(self._weights, user_weights)
        if self._gram is not None and same:
            self.P[...] = self._gram
            return
        self.grams += 1
        weighted_gram(self.train.matrix, user_weights, self.P)
        if self.keeps_gram:
            if self._gram is None:
                self._gram = np.empty_like(self.P)
            self._gram[...] = self.P
            self._weights = user_weights
