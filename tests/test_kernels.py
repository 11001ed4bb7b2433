"""Kernels are cached where a place can be written to, and compile anyway where none can."""

from __future__ import annotations

from types import FunctionType

from equipoise.kernels import compiled


def twice(x: int) -> int:
    return 2 * x


def test_a_kernel_without_a_place_for_its_cache_compiles_in_memory() -> None:
    nowhere = twice.__code__.replace(co_filename="<nowhere>")  # no folder to write beside
    kernel = compiled(FunctionType(nowhere, {}))
    assert kernel(21) == 42
    assert type(kernel._cache).__name__ == "NullCache"  # type: ignore[attr-defined]


def test_a_kernel_of_a_file_is_cached() -> None:
    assert type(compiled(twice)._cache).__name__ != "NullCache"  # type: ignore[attr-defined]
