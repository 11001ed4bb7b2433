"""Access to torch and its devices; torch is only imported when it is needed."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.errors import MissingExtraError, SettingError

Tensor = Any  # torch.Tensor; torch may be absent


def load_torch() -> Any:
    """Return the module torch; raise an error with install instructions where it is missing."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError(
            "the GPU engine needs torch; install it with `pip install 'equipoise[gpu]'`"
        ) from error
    return torch


def find_device(name: str) -> Any:
    """Return the torch device of this name; raise `SettingError` if it does not exist."""
    torch = load_torch()
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError, ValueError):
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise SettingError(f"device must be 'cpu', 'cuda' or 'cuda:1', got {name!r}")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise SettingError(f"device {name!r} does not exist; torch sees {count} CUDA devices")
    return device


def device_name(name: str) -> str:
    """Return the product name of a GPU."""
    return str(load_torch().cuda.get_device_name(find_device(name)))


def free_memory(name: str) -> int:
    """Return the free memory of a GPU in bytes."""
    torch, device = load_torch(), find_device(name)
    if device.type != "cuda":
        raise SettingError(f"device {name!r} has no memory of its own")
    free: int = torch.cuda.mem_get_info(device)[0]
    # memory that torch caches for reuse is free for us
    cached: int = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + cached


def multiplies_pairs(device: Any) -> bool:
    """Whether a device multiplies float16 with float32 sums, faster than float32."""
    torch = load_torch()
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (7, 0):
        return False
    one = torch.ones((16, 16), dtype=torch.float16, device=device)
    try:
        add_halves(one.float(), one, one, 1.0)
    except (TypeError, RuntimeError):  # a torch that knows no products of mixed types
        return False
    return True


def add_halves(C: Tensor, left: Tensor, right: Tensor, alpha: float) -> None:
    """Add alpha * left @ right of float16 factors to C in float32."""
    torch = load_torch()
    if C.device.type == "cuda":
        torch.addmm(C, left, right, out_dtype=torch.float32, alpha=alpha, out=C)
    else:  # the same sums, for machines without a GPU
        C.addmm_(left.float(), right.float(), alpha=alpha)


def product_rate(name: str, dtype: str) -> float:
    """Return the operations per second of a large product on a GPU, measured in milliseconds."""
    torch, device = load_torch(), find_device(name)
    n, best = 4096, 0.0
    A = torch.ones((n, n), dtype=getattr(torch, dtype), device=device)
    half, pairs = A.half(), dtype == "float32" and multiplies_pairs(device)
    with full_precision():
        for _ in range(3):
            torch.cuda.synchronize(device)
            start = time.perf_counter()
            if pairs:
                for _ in range(3):
                    add_halves(A, half, half, 0.0)
            else:
                A @ A
            torch.cuda.synchronize(device)
            best = max(best, 2.0 * n**3 / (time.perf_counter() - start))
    return best


def send(array: npt.NDArray[Any], device: Any, dtype: Any = None) -> Tensor:
    """Copy an array to the device; to a GPU through pinned memory, asynchronously."""
    torch = load_torch()
    # a copy, because torch would share a read-only array and could write to it
    tensor = torch.from_numpy(np.array(array, order="C"))
    if device.type == "cuda":
        tensor = tensor.pin_memory().to(device, non_blocking=True)
    return tensor if dtype is None else tensor.to(dtype)


def sparse_rows(indptr: Tensor, indices: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return a CSR matrix of valid arrays that are on the device already."""
    with warnings.catch_warnings():
        # torch warns that these matrices are in beta, and that they are not checked
        warnings.filterwarnings("ignore", message=".*[Ss]parse (CSR|invariant)")
        return load_torch().sparse_csr_tensor(
            indptr, indices, values, size=shape, check_invariants=False
        )


@contextmanager
def full_precision() -> Iterator[None]:
    """Multiply float32 matrices without rounding their entries to TF32 inside the block."""
    torch = load_torch()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
