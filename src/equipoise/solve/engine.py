"""One door to all exact engines: plan, then solve where the plan says."""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from equipoise.errors import SettingError, TooBigError
from equipoise.interactions import Interactions
from equipoise.machine import free_memory, gigabytes
from equipoise.solve import dense, gpu, tiled, torch_backend
from equipoise.solve.gpu import DeviceMatrix
from equipoise.solve.plan import Size, plan
from equipoise.solve.tiled import Report

logger = logging.getLogger(__name__)

Vector = npt.NDArray[np.float64]


class Options(TypedDict, total=False):
    """How to solve; `LinearAutoencoder.fit` says what each option does."""

    engine: str
    memory: str | float | None
    scratch: str | os.PathLike[str] | None
    refine: bool
    tf32: bool
    progress: Report | None


@dataclass(frozen=True)
class Solved:
    """P = (X^T W X + diag(penalty))^-1 and how it came about.

    Parameters
    ----------
    P
        Symmetric n x n array: in memory, mapped from a file, or a `DeviceMatrix`.
    diagonal
        Diagonal of P.
    residual
        Relative size of (A P - I) v over random vectors v.
    engine
        The engine that solved.
    """

    P: Any
    diagonal: Vector
    residual: float
    engine: str


def solve(
    data: Interactions,
    user_weights: Vector,
    penalty: Vector,
    *,
    engine: str = "auto",
    device: str = "cpu",
    dtype: str = "float32",
    memory: str | float | None = None,
    refine: bool = False,
    tf32: bool = False,
    scratch: str | os.PathLike[str] | None = None,
    progress: Report | None = None,
    lowpass_rank: int = 0,
) -> Solved:
    """Solve for P within a memory budget; parameters as for `LinearAutoencoder.fit`.

    With the rank of a low-pass companion, the budget has to have room for that too.
    """
    cost = plan(
        data,
        dtype=dtype,
        memory=memory,
        engine=engine,
        device=device,
        scratch=scratch,
        lowpass_rank=lowpass_rank,
    )
    cost.require()
    logger.info("%s", cost)
    if tf32 and cost.engine != "gpu":
        raise SettingError("tf32 is for a card; leave it out on device='cpu'")
    if scratch is not None and cost.engine != "tiled" and engine != "auto":
        raise SettingError(f"scratch is for the tiled engine, not for {cost.engine}")
    X = data.matrix
    if cost.engine == "gpu":
        _require_companion(data, dtype, lowpass_rank)
        matrix, residual = gpu.invert(
            X, user_weights, penalty, device=device, dtype=dtype, refine=refine, tf32=tf32
        )
        return Solved(matrix, matrix.diagonal().astype(np.float64), residual, "gpu")
    if cost.engine == "tiled":
        if refine:
            raise SettingError("the tiled engine cannot refine; fit with dtype='float64'")
        mapped, diagonal, residual = tiled.invert(
            X,
            user_weights,
            penalty,
            tile_rows=cost.tile_rows,
            dtype=dtype,
            scratch=scratch,
            problem=_problem(data, user_weights, penalty),
            progress=progress,
            limit=dense.TOLERANCE[dtype],
        )
        return Solved(mapped, diagonal.astype(np.float64), residual, "tiled")
    found = dense.invert(X, user_weights, penalty, dtype=dtype, refine=refine)
    return Solved(found.P, found.P.diagonal().astype(np.float64), found.residual, "dense")


def _require_companion(data: Interactions, dtype: str, rank: int) -> None:
    """Refuse a low-pass companion that the machine, not the card, has no memory for."""
    size = Size(data.n_users, data.n_items, data.n_interactions, dtype, rank)
    if size.companion_bytes > free_memory():
        raise TooBigError(
            f"a LowPass of rank {rank:,} needs {gigabytes(size.companion_bytes)} of the machine's "
            f"memory and {gigabytes(free_memory())} is free; take a smaller rank"
        )


def move(matrix: Any, device: str) -> Any:
    """Return the matrix in the memory of the machine ("cpu") or of a card."""
    if isinstance(matrix, DeviceMatrix):
        if device != "cpu":
            return matrix if device == matrix.device else move(move(matrix, "cpu"), device)
        needed = len(matrix) ** 2 * matrix.dtype.itemsize
        if needed > free_memory():
            raise TooBigError(
                f"the model needs {gigabytes(needed)} of memory and "
                f"{gigabytes(free_memory())} is free; save it instead"
            )
        return matrix.toarray()
    if device == "cpu":
        return matrix
    return DeviceMatrix.from_host(matrix, torch_backend.find_device(device))


def require_host(matrix: Any) -> None:
    """Refuse a matrix that is on a card, and say how to move it."""
    if isinstance(matrix, DeviceMatrix):
        np.asarray(matrix)


def _problem(data: Interactions, user_weights: Vector, penalty: Vector) -> dict[str, Any]:
    """Return what tells this solve from others, for the folder of its tiles."""
    vectors = hashlib.sha256()
    for vector in (user_weights, penalty):
        vectors.update(np.ascontiguousarray(vector, np.float64).tobytes())
    return {"data": data.fingerprint, "vectors": vectors.hexdigest()}
