"""One tolerance by dtype; anything else carries a comment in the test that uses it."""

from __future__ import annotations

from typing import Any

import numpy as np

RTOL = {"float64": 1e-7, "float32": 1e-4}


def assert_close(actual: Any, desired: Any, dtype: str, *, scale: float = 0.0) -> None:
    """Compare to the dtype's relative tolerance; `scale` is the size rounding is relative to."""
    np.testing.assert_allclose(actual, desired, rtol=RTOL[dtype], atol=RTOL[dtype] * scale)
