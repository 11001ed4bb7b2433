"""One door to all engines: `Solver` solves where the plan says.

It keeps the Gram matrix from one penalty to the next where the memory allows.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from equipoise.data.interactions import Interactions
from equipoise.errors import SettingError, TooBigError
from equipoise.runtime.machine import free_memory, gigabytes
from equipoise.solve import batched, dense, dual, gpu, neighbourhood, tiled, torch_backend
from equipoise.solve.audit import TARGETS, Audit
from equipoise.solve.gpu import DeviceMatrix
from equipoise.solve.planning import Size, plan
from equipoise.solve.tiled import SolveProgress

logger = logging.getLogger(__name__)

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Solved:
    """P = (X^T W X + diag(penalty))^-1 and how accurate it is.

    Parameters
    ----------
    P
        Symmetric n x n array, in memory or mapped from a file; a `DeviceMatrix`, a `DualMatrix` or
        the `Columns` of the neighbourhood engine.
    diagonal
        Diagonal of P.
    residual
        Relative size of (A P - I) v over random vectors v; of `Columns` over sampled targets, on
        their supports.
    """

    P: Any
    diagonal: Vector
    residual: float


class Solving(Protocol):
    """What solves linear systems of its training data, here or elsewhere."""

    train: Interactions

    def solve(self, user_weights: Vector, penalty: Vector) -> Solved:
        """Return P for these weights and this penalty."""


class Solver:
    """Solves for one penalty after another, and keeps what can be kept between them.

    In memory and on a card every P lies where the last one was, so a result is valid until the
    next solve. The Gram matrix of the last user weights is kept beside it where the budget has
    room; P has the same bits either way. The tiled engine solves anew each time, and the Gram
    matrix of the dual engine depends on the penalty.

    Parameters
    ----------
    train
        Training data.
    keep_gram
        Whether there will be more than one solve.
    lowpass_rank
        Rank of a low-pass companion, which the budget has to have room for too.

    The other parameters are those of `LinearAutoencoder.fit`.
    """

    def __init__(
        self,
        train: Interactions,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        engine: str = "auto",
        memory: str | float | None = None,
        scratch: str | os.PathLike[str] | None = None,
        refine: bool = False,
        precision: str = "auto",
        neighbours: int | str | None = None,
        progress: Callable[[SolveProgress], None] | None = None,
        lowpass_rank: int = 0,
        keep_gram: bool = True,
    ) -> None:
        self.train, self.device, self.dtype = train, device, dtype
        self.plan = plan(
            train,
            dtype=dtype,
            memory=memory,
            engine=engine,
            device=device,
            scratch=scratch,
            lowpass_rank=lowpass_rank,
            neighbours=neighbours,
        )
        self.plan.require()
        logger.info("%s", self.plan)
        self.engine = self.plan.engine
        if precision != "auto" and self.engine != "gpu":
            raise SettingError(f"precision is for the gpu engine, not for {self.engine}")
        on_disk = self.engine in ("tiled", "neighbourhood")
        if scratch is not None and not on_disk and engine != "auto":
            raise SettingError(
                f"scratch is for the tiled and the neighbourhood engine, not for {self.engine}"
            )
        if refine and on_disk:
            raise SettingError(f"the {self.engine} engine cannot refine; fit with dtype='float64'")
        if self.engine == "gpu":
            _require_companion(train, dtype, lowpass_rank)
        if self.engine == "neighbourhood" and device != "cpu":
            kept = min(neighbourhood.KEPT * self.plan.neighbours, max(train.n_items - 1, 1))
            sizes = self.plan.neighbours, kept, np.dtype(dtype).itemsize
            batched.require_room(device, train.n_items, *sizes)
        self._refine, self._scratch, self._progress = refine, scratch, progress
        self._card = {"device": device, "precision": precision}
        row = gpu.row_length(train.n_items) if self.engine == "gpu" else train.n_items
        second = train.n_items * row * np.dtype(dtype).itemsize
        room = self.plan.peak_bytes + second <= self.plan.budget_bytes
        self.keeps_gram = keep_gram and room and self.engine in ("dense", "gpu")
        self._repeats = keep_gram
        self._gram: Any = None  # of the last user weights
        self._numbers: Any = None  # of the Gram matrix, where they are kept
        self._kept = False
        self._P: Any = None  # the matrix, or the folder of its tiles

    @property
    def seconds(self) -> float:
        """Expected time of a solve."""
        return self.plan.seconds

    def solve(self, user_weights: Vector, penalty: Vector) -> Solved:
        """Return P for these weights and this penalty; the last result is overwritten."""
        if self.engine == "tiled":
            return self._tiled(user_weights, penalty)
        if self.engine == "neighbourhood":
            return self._near(user_weights, penalty)
        if self.engine == "dual":
            return self._dual(user_weights, penalty)
        same = self._gram is not None and np.array_equal(self._gram.user_weights, user_weights)
        if not same:
            self._gram, self._kept = None, False  # before the next one takes its memory
            X = self.train.matrix
            if self.engine == "gpu":
                self._gram = gpu.Gram(X, user_weights, self.dtype, **self._card)
            else:
                self._gram = dense.Gram(X, user_weights, self.dtype)
        if self._P is None:
            self._P = self._gram.empty()
        if self._kept:
            self._P[...] = self._numbers
        else:
            self._gram.fill(self._P)
            if self.keeps_gram:
                self._numbers = self._gram.empty() if self._numbers is None else self._numbers
                self._numbers[...] = self._P
                self._kept = True
        P, residual = self._gram.invert(self._P, penalty, refine=self._refine)
        return Solved(P, P.diagonal().astype(np.float64), residual)

    def _near(self, user_weights: Vector, penalty: Vector) -> Solved:
        problem: dict[str, Any] | None = None
        folder: Path | None = None
        if self._scratch is not None:
            problem = _problem(self.train, user_weights, penalty)
            folder = self._folder(problem)
        X = self.train.matrix
        found = neighbourhood.solve(
            X,
            user_weights,
            penalty,
            self.plan.neighbours,
            dtype=self.dtype,
            on_disk=self.plan.disk_bytes > 0,
            scratch=folder,
            problem=problem,
            progress=self._progress,
            card=None if self.device == "cpu" else self.device,
        )
        # a search has no use for the comparison with exact columns, which takes longer
        audit = Audit(found, X, user_weights, penalty, TARGETS)
        residual = audit.residual()
        found = replace(found, audit={} if self._repeats else audit.agreement())
        return Solved(found, found.diagonal(), residual)

    def _folder(self, problem: dict[str, Any]) -> Path | None:
        """Return the scratch folder; where there are more solves, a folder for each problem.

        So a solve that was cut short is found again.
        """
        if self._scratch is None or not self._repeats:
            return None if self._scratch is None else Path(self._scratch)
        scratch: Path = Path(self._scratch) / str(problem["vectors"])[:16]
        if self._P not in (None, scratch):
            shutil.rmtree(self._P, ignore_errors=True)
        self._P = scratch
        return scratch

    def _dual(self, user_weights: Vector, penalty: Vector) -> Solved:
        if self._gram is None or not np.array_equal(self._gram.user_weights, user_weights):
            self._gram = dual.Dual(self.train.matrix, user_weights, self.device)
        P, residual = self._gram.solve(penalty, self.dtype, refine=self._refine)
        return Solved(P, P.diagonal(), residual)

    def _tiled(self, user_weights: Vector, penalty: Vector) -> Solved:
        problem = _problem(self.train, user_weights, penalty)
        scratch = self._folder(problem)
        mapped, diagonal, residual = tiled.invert(
            self.train.matrix,
            user_weights,
            penalty,
            tile_rows=self.plan.tile_rows,
            dtype=self.dtype,
            scratch=scratch,
            problem=problem,
            progress=self._progress,
        )
        return Solved(mapped, diagonal.astype(np.float64), residual)


def solve(data: Interactions, user_weights: Vector, penalty: Vector, **options: Any) -> Solved:
    """Solve once within a memory budget; options as for `Solver`."""
    return Solver(data, **options, keep_gram=False).solve(user_weights, penalty)


def _require_companion(data: Interactions, dtype: str, rank: int) -> None:
    """Refuse a low-pass companion that the machine, not the card, has no memory for."""
    size = Size(data.n_users, data.n_items, data.n_interactions, dtype, rank)
    if size.companion_bytes > free_memory():
        raise TooBigError(
            f"a LowPass of rank {rank:,} needs {gigabytes(size.companion_bytes)} of the machine's "
            f"memory and {gigabytes(free_memory())} is free; take a smaller rank"
        )


def move(matrix: Any, device: str, *, zero_diagonal: bool = True) -> Any:
    """Return the matrix in the memory of the machine ("cpu") or of a card."""
    if isinstance(matrix, DeviceMatrix):
        if device == matrix.device != "cpu":
            return matrix
        if device != "cpu":
            return move(move(matrix, "cpu"), device, zero_diagonal=matrix.zero_diagonal)
        needed = len(matrix) ** 2 * matrix.dtype.itemsize
        if needed > free_memory():
            raise TooBigError(
                f"the model needs {gigabytes(needed)} of memory and "
                f"{gigabytes(free_memory())} is free; save it instead"
            )
        return matrix.toarray()
    if isinstance(device, str) and device == "cpu":
        return matrix
    where = torch_backend.find_device(device)
    return DeviceMatrix.from_host(matrix, where, zero_diagonal=zero_diagonal)


def require_host(matrix: Any) -> None:
    """Refuse a matrix that is on a card, and say how to move it."""
    np.asarray(matrix)  # a `DeviceMatrix` refuses this


def _problem(data: Interactions, user_weights: Vector, penalty: Vector) -> dict[str, Any]:
    """Return what tells this solve from others, for the folder of its tiles."""
    vectors = hashlib.sha256()
    for vector in (user_weights, penalty):
        vectors.update(np.ascontiguousarray(vector, np.float64).tobytes())
    return {"data": data.fingerprint, "vectors": vectors.hexdigest()}
