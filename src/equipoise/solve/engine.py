"""Dispatch a solve to the engine of its plan, and reuse the Gram matrix between penalties."""

from __future__ import annotations

import hashlib
import logging
import shutil
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr
from equipoise.errors import SettingError, TooBigError
from equipoise.runtime import machine
from equipoise.runtime.machine import free_memory, gigabytes
from equipoise.solve import batched, dense, dual, gpu, neighbourhood, tiled, torch_backend
from equipoise.solve.audit import TARGETS, Audit
from equipoise.solve.gpu import DeviceMatrix
from equipoise.solve.planning import Size, SolveOptions, plan_fit

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

    def solve(self, user_weights: Vector, penalty: Vector, feature_weight: float = 0.0) -> Solved:
        """Return P for these weights and this penalty."""


@dataclass(frozen=True, eq=False)
class System:
    """A = X^T W X + w F F^T + diag(penalty), whose inverse is P.

    Each feature is one more user, of weight w: a row of F^T below those of X.

    Parameters
    ----------
    data
        The training data: X.
    user_weights
        Diagonal of W.
    penalty
        One number for each item.
    features
        F, items x features.
    feature_weight
        w; 0 leaves the features out.
    stacked
        The rows of X and of F^T, if they have been stacked before.
    """

    data: Interactions
    user_weights: Vector
    penalty: Vector
    features: Csr | None = None
    feature_weight: float = 0.0
    stacked: Csr | None = None

    @property
    def has_features(self) -> bool:
        """Whether features are in the system."""
        return self.features is not None and self.feature_weight > 0

    @cached_property
    def matrix(self) -> Csr:
        """The rows of all users, those of features included."""
        if self.features is None or not self.has_features:
            return self.data.matrix
        return with_features(self.data, self.features) if self.stacked is None else self.stacked

    @cached_property
    def weights(self) -> Vector:
        """The weights of all users, those of features included."""
        if self.features is None or not self.has_features:
            return self.user_weights
        of_features = np.full(self.features.shape[1], self.feature_weight)
        return np.concatenate([self.user_weights, of_features])


def with_features(data: Interactions, features: Csr) -> Csr:
    """Return users x items with a row for each feature below."""
    rows: Csr = sp.vstack([data.matrix, features.T.astype(np.float32)], format="csr")
    rows.sort_indices()
    return rows


class Solver:
    """Solves for one penalty after another, and reuses what it can between them.

    In memory and on a GPU every P overwrites the last one, so a result is valid until the next
    solve. The Gram matrix of the last user weights is stored beside it where the budget has room;
    P has the same bits either way. The tiled engine starts from scratch each time, and the Gram
    matrix of the dual engine depends on the penalty.

    `keep_gram` says whether there will be more than one solve. A low-pass companion of rank
    `lowpass_rank` has to fit into the budget too. `features`, items x features, can be part of a
    solve.
    """

    def __init__(
        self,
        train: Interactions,
        options: SolveOptions,
        *,
        lowpass_rank: int = 0,
        keep_gram: bool = True,
        features: Csr | None = None,
    ) -> None:
        self.train, self.options, self.features = train, options, features
        device, dtype, scratch = options.device, options.dtype, options.scratch
        self.plan = plan_fit(Size.of(train, dtype, lowpass_rank, features), options)
        self.plan.require()
        logger.info("%s", self.plan)
        self.engine = self.plan.engine
        if options.precision != "auto" and self.engine != "gpu":
            raise SettingError(f"precision is for the gpu engine, not for {self.engine}")
        on_disk = self.engine in ("tiled", "neighbourhood")
        if scratch is not None and not on_disk and options.engine != "auto":
            raise SettingError(
                f"scratch is for the tiled and the neighbourhood engine, not for {self.engine}"
            )
        if options.refine and on_disk:
            raise SettingError(f"the {self.engine} engine cannot refine; fit with dtype='float64'")
        itemsize = np.dtype(dtype).itemsize
        if self.engine == "gpu":
            _require_companion(train, dtype, lowpass_rank)
        if self.engine == "neighbourhood" and device != "cpu":
            number = self.plan.neighbours
            row_entries = min(neighbourhood.ROW_ENTRIES * number, max(train.n_items - 1, 1))
            batched.require_room(device, train.n_items, number, row_entries, itemsize)
        self._scratch = None if scratch is None else Path(scratch)
        row = gpu.row_length(train.n_items) if self.engine == "gpu" else train.n_items
        has_room = self.plan.peak_bytes + train.n_items * row * itemsize <= self.plan.budget_bytes
        self.keeps_gram = keep_gram and has_room and self.engine in ("dense", "gpu")
        self._repeats = keep_gram
        self._stacked: Csr | None = None  # rows of users and features
        self._gram: Any = None  # of the last user weights
        self._saved_gram: Any = None  # copy of its matrix, where `keeps_gram`
        self._is_saved = False
        self._P: Any = None
        self._last_folder: Path | None = None

    def solve(self, user_weights: Vector, penalty: Vector, feature_weight: float = 0.0) -> Solved:
        """Return P for these weights and this penalty; the last result is overwritten."""
        features = self.features, feature_weight, self._stacked
        system = System(self.train, user_weights, penalty, *features)
        if system.has_features:
            self._stacked = system.matrix
        if self.engine == "tiled":
            return self._solve_tiled(system)
        if self.engine == "neighbourhood":
            return self._solve_neighbourhood(system)
        if self._gram is None or not np.array_equal(self._gram.user_weights, system.weights):
            self._gram, self._is_saved = None, False  # before the next one takes its memory
            self._gram = self._new_gram(system)
        if self.engine == "dual":
            P, residual = self._gram.solve(penalty, self.options.dtype, refine=self.options.refine)
        else:
            self._fill_gram()
            P, residual = self._gram.invert(self._P, penalty, refine=self.options.refine)
        return Solved(P, P.diagonal().astype(np.float64), residual)

    def _new_gram(self, system: System) -> Any:
        X, weights, options = system.matrix, system.weights, self.options
        if self.engine == "dual":
            return dual.Dual(X, weights, options.device)
        if self.engine == "gpu":
            return gpu.Gram(X, weights, options.dtype, options.device, precision=options.precision)
        return dense.Gram(X, weights, options.dtype)

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

    def _solve_neighbourhood(self, system: System) -> Solved:
        X, weights, penalty, options = system.matrix, system.weights, system.penalty, self.options
        problem = _problem(system) if self._scratch else {}
        columns = neighbourhood.solve(
            X,
            weights,
            penalty,
            self.plan.neighbours,
            dtype=options.dtype,
            on_disk=self.plan.disk_bytes > 0,
            scratch=self._folder(problem),
            problem=problem,
            progress=options.progress,
            card=None if options.device == "cpu" else options.device,
        )
        with machine.limited(self.plan.audit_threads):
            audit = Audit(columns, X, weights, penalty, TARGETS)
            residual = audit.residual()
            # a search does not need the slow comparison with exact columns
            columns = replace(columns, audit={} if self._repeats else audit.agreement())
        return Solved(columns, columns.diagonal(), residual)

    def _solve_tiled(self, system: System) -> Solved:
        problem = _problem(system)
        mapped, diagonal, residual = tiled.invert(
            system.matrix,
            system.weights,
            system.penalty,
            tile_rows=self.plan.tile_rows,
            dtype=self.options.dtype,
            scratch=self._folder(problem),
            problem=problem,
            progress=self.options.progress,
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


def _require_companion(data: Interactions, dtype: str, rank: int) -> None:
    """Raise `TooBigError` where the host, not the GPU, has no memory for a low-pass companion."""
    size = Size.of(data, dtype, rank)
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


def _problem(system: System) -> dict[str, Any]:
    """Return JSON values that identify a solve in its scratch folder."""
    vectors = hashlib.sha256()
    for vector in (system.weights, system.penalty):
        vectors.update(np.ascontiguousarray(vector, np.float64).tobytes())
    if system.has_features and system.features is not None:
        for part in (system.features.indptr, system.features.indices, system.features.data):
            vectors.update(np.ascontiguousarray(part).tobytes())
    return {"data": system.data.fingerprint, "vectors": vectors.hexdigest()}
