"""Room for large arrays on this machine: its memory, or files where that is too small."""

from __future__ import annotations

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

SPARE = 1.2  # of what is asked for, for work beside it


def rooms(
    wanted: Sequence[tuple[Any, Any]], scratch: str | os.PathLike[str] | None = None
) -> list[npt.NDArray[Any]]:
    """Return arrays of these shapes and types: in memory, or all of them mapped from files.

    A file has no name: its bytes go with the array.
    """
    kinds = [(np.prod(shape, dtype=np.int64), np.dtype(dtype)) for shape, dtype in wanted]
    needed = int(sum(size * dtype.itemsize for size, dtype in kinds))
    if SPARE * needed < free_memory():
        return [np.empty(shape, dtype) for shape, dtype in wanted]
    folder = Path(tempfile.gettempdir() if scratch is None else scratch)
    if needed > free_disk(folder):
        raise TooBigError(
            f"{gigabytes(needed)} do not fit into the {gigabytes(free_memory())} of memory that "
            f"are free here, nor on the {gigabytes(free_disk(folder))} of {folder}; give a folder "
            "on a larger disk with scratch="
        )
    return [_mapped(folder, shape, dtype) for shape, dtype in wanted]


def _mapped(folder: Path, shape: Any, dtype: Any) -> npt.NDArray[Any]:
    kind = np.dtype(dtype)
    size = max(int(np.prod(shape, dtype=np.int64)), 1) * kind.itemsize
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, prefix="equipoise-") as file:
            # now, so that a full disk is an error here and not a crash later
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            return np.asarray(np.memmap(file, kind, "r+", shape=shape))
    except OSError as error:
        raise DataError(f"{folder} cannot be used: {error.strerror or error}") from error
