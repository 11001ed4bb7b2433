"""OpenBLAS runs the kernel that `make kernels` selects."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import lapack
from threadpoolctl import threadpool_info

CORE_TYPE = os.environ.get("OPENBLAS_CORETYPE", "")
# OpenBLAS names a set of kernels that serves several processors by the first of them
NAMES = {"Prescott": "Katmai", "Zen": "Haswell"}
NEEDS = {"Haswell": "avx2", "Zen": "avx2", "SkylakeX": "avx512f"}


@pytest.mark.skipif(not CORE_TYPE, reason="OPENBLAS_CORETYPE asks for no kernel")
def test_the_selected_kernel_runs() -> None:
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip(f"{platform.machine()} has no kernel {CORE_TYPE}")
    flags = Path("/proc/cpuinfo")
    if CORE_TYPE in NEEDS and flags.exists() and NEEDS[CORE_TYPE] not in flags.read_text():
        pytest.skip(f"this processor cannot run the kernel {CORE_TYPE}")
    lapack.dpotrf(np.eye(2) @ np.eye(2))  # both numpy's library and scipy's are loaded
    libraries = [library for library in threadpool_info() if library["internal_api"] == "openblas"]
    if not libraries:
        pytest.skip("numpy and scipy do not use OpenBLAS here")
    assert {library["architecture"] for library in libraries} == {NAMES.get(CORE_TYPE, CORE_TYPE)}
