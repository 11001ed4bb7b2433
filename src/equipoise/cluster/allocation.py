"""Allocate large arrays on this machine: in memory, or in temporary files where it is short."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.errors import DataError, TooBigError
from equipoise.runtime.machine import free_memory, gigabytes
from equipoise.solve.planning import free_disk

SPARE = 1.2  # memory to have free, as a multiple of the arrays


def allocate(
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[np.dtype[Any]],
    scratch: str | os.PathLike[str] | None = None,
) -> list[npt.NDArray[Any]]:
    """Return uninitialised arrays, all in memory or all mapped from files in `scratch`.

    The files have no name: their space is free again when the array is.
    """
    layout = list(zip(shapes, dtypes, strict=True))
    needed = sum(math.prod(shape) * dtype.itemsize for shape, dtype in layout)
    if SPARE * needed < free_memory():
        return [np.empty(shape, dtype) for shape, dtype in layout]
    folder = Path(tempfile.gettempdir() if scratch is None else scratch)
    if needed > free_disk(folder):
        raise TooBigError(
            f"{gigabytes(needed)} fit neither into the free memory of this machine "
            f"({gigabytes(free_memory())}) nor into {folder} ({gigabytes(free_disk(folder))} "
            "free); give a folder on a larger disk with scratch="
        )
    arrays = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for shape, dtype in layout:
            size = max(math.prod(shape), 1) * dtype.itemsize
            with tempfile.TemporaryFile(dir=folder, prefix="equipoise-") as file:
                # reserve the space now: a disk that is full later would crash the process
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                else:
                    file.truncate(size)
                arrays.append(np.asarray(np.memmap(file, dtype, "r+", shape=shape)))
    except OSError as error:
        raise DataError(f"{folder} cannot be used: {error.strerror or error}") from error
    return arrays
