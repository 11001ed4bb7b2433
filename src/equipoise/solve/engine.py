"""Dispatch a solve to the engine of its plan, and reuse the Gram matrix between penalties."""

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

from equipoise.checks import path as checked_path
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
    """P = (X^T W X + diag(penalty))^-1, its diagonal, and how accurate it is.

    P is a symmetric n x n array, in memory or mapped from a file; a `DeviceMatrix`, a `DualMatrix`
    or the `Columns` of the neighbourhood engine. The residual is the relative size of (A P - I) v
    for random vectors v; for `Columns` that of sampled targets, on their supports.
    """

    P: Any
    diagonal: Vector
    residual: float


class Solving(Protocol):
    """A solver of the linear systems of its training data, on this machine or on a cluster."""

    train: Interactions

    def solve(self, user_weights: Vector, penalty: Vector) -> Solved:
        """Return P for these weights and this penalty."""


class Solver:
    """Solves for one penalty after another, and reuses what it can between them.

    In memory and on a GPU every P overwrites the last one, so a result is valid until the next
    solve. The Gram matrix of the last user weights is stored beside it where the budget has room;
    P has the same bits either way. The tiled engine starts from scratch each time, and the Gram
    matrix of the dual engine depends on the penalty.

    `keep_gram` says whether there will be more than one solve. A low-pass companion of rank
    `lowpass_rank` has to fit into the budget too. The other parameters are those of
    `LinearAutoencoder.fit`.
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
        itemsize = np.dtype(dtype).itemsize
        if self.engine == "gpu":
            _require_companion(train, dtype, lowpass_rank)
        if self.engine == "neighbourhood" and device != "cpu":
            number = self.plan.neighbours
            row_entries = min(neighbourhood.KEPT * number, max(train.n_items - 1, 1))
            batched.require_room(device, train.n_items, number, row_entries, itemsize)
        self._refine, self._precision, self._progress = refine, precision, progress
        self._scratch = None if scratch is None else checked_path("scratch", scratch)
        row = gpu.row_length(train.n_items) if self.engine == "gpu" else train.n_items
        has_room = self.plan.peak_bytes + train.n_items * row * itemsize <= self.plan.budget_bytes
        self.keeps_gram = keep_gram and has_room and self.engine in ("dense", "gpu")
        self._repeats = keep_gram
        self._gram: Any = None  # of the last user weights
        self._saved_gram: Any = None  # copy of its matrix, where `keeps_gram`
        self._is_saved = False
        self._P: Any = None
        self._last_folder: Path | None = None

    def solve(self, user_weights: Vector, penalty: Vector) -> Solved:
        """Return P for these weights and this penalty; the last result is overwritten."""
        if self.engine == "tiled":
            return self._solve_tiled(user_weights, penalty)
        if self.engine == "neighbourhood":
            return self._solve_neighbourhood(user_weights, penalty)
        if self._gram is None or not np.array_equal(self._gram.user_weights, user_weights):
            self._gram, self._is_saved = None, False  # before the next one takes its memory
            self._gram = self._new_gram(user_weights)
        if self.engine == "dual":
            P, residual = self._gram.solve(penalty, self.dtype, refine=self._refine)
        else:
            self._fill_gram()
            P, residual = self._gram.invert(self._P, penalty, refine=self._refine)
        return Solved(P, P.diagonal().astype(np.float64), residual)

    def _new_gram(self, user_weights: Vector) -> Any:
        X = self.train.matrix
        if self.engine == "dual":
            return dual.Dual(X, user_weights, self.device)
        if self.engine == "gpu":
            return gpu.Gram(X, user_weights, self.dtype, self.device, precision=self._precision)
        return dense.Gram(X, user_weights, self.dtype)

    def _fill_gram(self) -> None:
        """Write the Gram matrix into the memory of P."""
        if self._P is None:
            self._P = self._gram.empty()
        if self._is_saved:
            self._P[...] = self._saved_gram
            return
        self._gram.fill(self._P)
        if self.keeps_gram:
            if self._saved_gram is None:
                self._saved_gram = self._gram.empty()
            self._saved_gram[...] = self._P
            self._is_saved = True

    def _solve_neighbourhood(self, user_weights: Vector, penalty: Vector) -> Solved:
        X = self.train.matrix
        problem = _problem(self.train, user_weights, penalty) if self._scratch else {}
        columns = neighbourhood.solve(
            X,
            user_weights,
            penalty,
            self.plan.neighbours,
            dtype=self.dtype,
            on_disk=self.plan.disk_bytes > 0,
            scratch=self._folder(problem),
            problem=problem,
            progress=self._progress,
            card=None if self.device == "cpu" else self.device,
        )
        audit = Audit(columns, X, user_weights, penalty, TARGETS)
        residual = audit.residual()
        # a search does not need the slow comparison with exact columns
        columns = replace(columns, audit={} if self._repeats else audit.agreement())
        return Solved(columns, columns.diagonal(), residual)

    def _solve_tiled(self, user_weights: Vector, penalty: Vector) -> Solved:
        problem = _problem(self.train, user_weights, penalty)
        mapped, diagonal, residual = tiled.invert(
            self.train.matrix,
            user_weights,
            penalty,
            tile_rows=self.plan.tile_rows,
            dtype=self.dtype,
            scratch=self._folder(problem),
            problem=problem,
            progress=self._progress,
        )
        return Solved(mapped, diagonal.astype(np.float64), residual)

    def _folder(self, problem: dict[str, Any]) -> Path | None:
        """Return the scratch folder; where there are more solves, a subfolder for each problem.

        So an interrupted solve of a search is resumed. The folder of the last solve is removed.
        """
        if self._scratch is None or not self._repeats:
            return self._scratch
        folder = self._scratch / str(problem["vectors"])[:16]
        if self._last_folder not in (None, folder):
            shutil.rmtree(str(self._last_folder), ignore_errors=True)
        self._last_folder = folder
        return folder


def solve(data: Interactions, user_weights: Vector, penalty: Vector, **options: Any) -> Solved:
    """Solve once within a memory budget; options as for `Solver`."""
    return Solver(data, **options, keep_gram=False).solve(user_weights, penalty)


def _require_companion(data: Interactions, dtype: str, rank: int) -> None:
    """Raise `TooBigError` where the host, not the GPU, has no memory for a low-pass companion."""
    size = Size(data.n_users, data.n_items, data.n_interactions, dtype, rank)
    if size.companion_bytes > free_memory():
        raise TooBigError(
            f"a LowPass of rank {rank:,} needs {gigabytes(size.companion_bytes)} of the machine's "
            f"memory and {gigabytes(free_memory())} is free; take a smaller rank"
        )


def move(matrix: Any, device: str, *, zero_diagonal: bool = True) -> Any:
    """Return the matrix in host memory ("cpu") or on a GPU."""
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
    target = torch_backend.find_device(device)
    return DeviceMatrix.from_host(matrix, target, zero_diagonal=zero_diagonal)


def require_host(matrix: Any) -> None:
    """Raise `SettingError` for a matrix on a GPU, with advice on how to move it."""
    np.asarray(matrix)  # a `DeviceMatrix` refuses this


def _problem(data: Interactions, user_weights: Vector, penalty: Vector) -> dict[str, Any]:
    """Return JSON values that identify a solve in its scratch folder."""
    vectors = hashlib.sha256()
    for vector in (user_weights, penalty):
        vectors.update(np.ascontiguousarray(vector, np.float64).tobytes())
    return {"data": data.fingerprint, "vectors": vectors.hexdigest()}
