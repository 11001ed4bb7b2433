"""C = M^-1 R of the session models: its rows as histories ask for them, or all at once."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.kernels import Floats, add_rows
from equipoise.models.session_device import FullMatrix, solve_on_card
from equipoise.solve.card import find_device
from equipoise.solve.conjugate import System
from equipoise.solve.dense import invert
from equipoise.solve.engine import move
from equipoise.terms import Adder, Rows

CACHE_BYTES = 1 << 29  # of solved rows that a model keeps; those asked for last stay
DENSE_SHARE = 1 / 64  # entries of the inputs, of n^2, from which one dense solve is cheaper
BLOCK = 256  # rows of a dense C that are worked on at a time


@dataclass(eq=False)
class SolvedRows:
    """Rows of C = M^-1 R, solved on first use and kept while there is room.

    Parameters
    ----------
    system
        The matrices of the solve.
    dtype
        "float32" or "float64", of the rows.
    """

    system: System
    dtype: str
    _kept: OrderedDict[int, npt.NDArray[Any]] = field(default_factory=OrderedDict, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def take(self, items: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the rows of these items, each named once."""
        n_items = len(self.system.diagonal)
        out = np.empty((len(items), n_items), self.dtype)
        missing = []
        with self._lock:
            for place, item in enumerate(items.tolist()):
                row = self._kept.get(item)
                if row is None:
                    missing.append(place)
                else:
                    self._kept.move_to_end(item)
                    out[place] = row
        if missing:
            out[missing] = self.system.rows(items[missing], self.dtype)
            self._keep(items[missing].tolist(), out[missing])
        return out

    def _keep(self, items: list[int], rows: npt.NDArray[Any]) -> None:
        room = CACHE_BYTES // (rows.shape[1] * rows.itemsize)
        with self._lock:
            for item, row in zip(items[:room], rows, strict=False):
                self._kept[item] = row.copy()  # a view would keep its neighbours alive
            while len(self._kept) > room:
                self._kept.popitem(last=False)


@dataclass(frozen=True, eq=False)
class Solved:
    """Scores ``(x * source) @ C * target`` with the rows of C solved on demand."""

    rows: SolvedRows
    source: npt.NDArray[Any]
    target: npt.NDArray[Any]

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.target)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the sums."""
        return np.dtype(self.rows.dtype)

    @property
    def held(self) -> int:
        """The rows of one history, taken to share most of theirs with others."""
        return self.n_items

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds this term's scores to a block of columns."""
        items, places = np.unique(rows.indices, return_inverse=True)
        matrix = self.rows.take(items.astype(np.int64))
        weights = rows.weights(self.source, self.dtype)
        target = np.asarray(self.target, self.dtype)
        matrix.flags.writeable = target.flags.writeable = False
        indices = places.astype(np.int32)

        def add(scores: Floats, low: int) -> None:
            add_rows(scores, low, matrix, rows.indptr, indices, weights, target, False)

        return add


def better_dense(system: System, device: str) -> bool:
    """Whether one dense solve is cheaper; on a card it is, where there is something to solve."""
    share = DENSE_SHARE if device == "cpu" else 0.0
    return bool(system.inputs.nnz > share * len(system.diagonal) ** 2)


def solve_all(system: System, dtype: str, device: str = "cpu") -> Any:
    """Return all of C = P R with P = M^-1 from the dense engine, in the buffer of P."""
    if device != "cpu":
        return solve_on_card(system, dtype, device)
    A, T, S = (part.astype(dtype) for part in (system.inputs, system.targets, system.right))
    C = invert(A, np.ones(A.shape[0]), system.diagonal, dtype=dtype).P
    to_right, to_targets = S.T.tocsr(), T.T.tocsr()
    for start in range(0, len(C), BLOCK):
        some = np.ascontiguousarray(C[start : start + BLOCK].T)
        C[start : start + BLOCK] = (to_targets @ (A @ some) + to_right @ some).T
    return C


def move_all(C: Any, device: str) -> Any:
    """Return a dense C in the memory of the machine ("cpu") or of a card."""
    if not isinstance(C, FullMatrix):
        return C if device == "cpu" else FullMatrix.from_host(C, find_device(device))
    if device == "cpu":
        return move(C, "cpu")
    return C if device == C.device else move_all(move(C, "cpu"), device)
