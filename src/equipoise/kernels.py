"""How inner loops are compiled, and the types of arrays they work on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
Positions = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int64]
F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile with numba; cached on disk where some directory can be written to."""
    try:
        return cast(F, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # a read-only installation without a home directory
        return cast(F, numba.njit(nogil=True)(function))
