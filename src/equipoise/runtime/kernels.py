"""Compile inner loops with numba, and name the types of arrays they work on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.caching import FunctionCache
from numba.extending import intrinsic

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.floating[Any]]
Positions = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int64]
F = TypeVar("F", bound=Callable[..., Any])

# numba's cache, and a variant that also reads folders without write permission
_FunctionCache: Any = FunctionCache
_locators = [
    type(locator.__name__, (locator,), {"ensure_cache_path": lambda _: None})
    for locator in _FunctionCache._impl_class._locator_classes
]
_ReadOnlyCache = type(
    "ReadOnlyCache",
    (_FunctionCache,),
    {"_impl_class": type("Impl", (_FunctionCache._impl_class,), {"_locator_classes": _locators})},
)


def compiled(function: F) -> F:
    """Compile with numba; cached on disk where a directory is writable."""
    return _compiled(function)


def reordered(function: F) -> F:
    """Compile like `compiled`, but let the compiler reorder sums for speed.

    The order depends only on the length of a sum, so a machine gives the same bits every time.
    """
    return _compiled(function, fastmath={"reassoc", "contract"})


def _compiled(function: F, **options: Any) -> F:
    kernel: Any = numba.njit(nogil=True, **options)(function)
    kernel._cache = _Cache(function)
    return cast(F, kernel)


class _Cache:
    """Cache of compiled kernels on disk, opened when the first kernel is called.

    numba ignores folders that it cannot write to, such as an installation of another user; kernels
    stored there are used all the same. A kernel that cannot be stored is compiled in each process.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @cached_property
    def _caches(self) -> list[Any]:
        caches = []
        for kind in (_FunctionCache, _ReadOnlyCache):
            with suppress(RuntimeError):  # no such folder
                caches.append(kind(self._function))
        return caches

    @property
    def cache_path(self) -> str | None:
        """Folder of new kernels."""
        return str(self._caches[0].cache_path) if self._caches else None

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the stored kernel of these types, or None."""
        kernels = (cache.load_overload(signature, context) for cache in self._caches)
        return next((kernel for kernel in kernels if kernel is not None), None)

    def save_overload(self, signature: Any, kernel: Any) -> None:
        """Store a kernel; a full or read-only folder is not an error."""
        try:
            for cache in self._caches[:1]:
                cache.save_overload(signature, kernel)
        except OSError as error:
            logger.debug("a kernel could not be stored: %s", error)


def _prefetch(_typing: Any, array: Any, index: Any) -> Any:
    """Load an entry of an array into the cache without waiting for it: `prefetch(array, i)`."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        place = builder.bitcast(builder.gep(view.data, [arguments[1]]), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        declare: Any = cgutils.get_or_insert_function
        call = declare(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(call, [place, number(0), number(3), number(1)])  # to read, again and again
        return context.get_dummy_value()

    return types.void(array, types.intp), code


def _lowest_bit(_typing: Any, word: Any) -> Any:
    """Return the position of the lowest set bit of 64: `lowest_bit(word)`."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.uint64), code


def _bits_set(_typing: Any, word: Any) -> Any:
    """Return the number of set bits of 64: `bits_set(word)`."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), code


prefetch: Any = intrinsic(_prefetch)
lowest_bit: Any = intrinsic(_lowest_bit)
bits_set: Any = intrinsic(_bits_set)


@compiled
def first_at_least(ascending: Any, low: Any, high: Any, value: Any) -> Any:
    """Return the first place in [low, high) whose entry is >= value, or `high`."""
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low
