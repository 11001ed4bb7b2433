"""How inner loops are compiled, and the types of arrays they work on."""

from __future__ import annotations

import logging
from collections.abc import Callable
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

# numba's cache, and the same where the folder that it would take first may not be written to
_Kept: Any = FunctionCache
_places = [
    type(place.__name__, (place,), {"ensure_cache_path": lambda _: None})
    for place in _Kept._impl_class._locator_classes
]
_Found = type(
    "Found",
    (_Kept,),
    {"_impl_class": type("Impl", (_Kept._impl_class,), {"_locator_classes": _places})},
)


def compiled(function: F) -> F:
    """Compile with numba; cached on disk where some directory can be written to."""
    return _compiled(function)


def reordered(function: F) -> F:
    """Compile like `compiled`, with sums in an order that suits the processor.

    The order depends on the length of a sum alone, so one machine gives the same bits every time.
    """
    return _compiled(function, fastmath={"reassoc", "contract"})


def _compiled(function: F, **how: Any) -> F:
    kernel: Any = numba.njit(nogil=True, **how)(function)
    kernel._cache = _Cache(function)
    return cast(F, kernel)


class _Cache:
    """Kernels that were kept on disk, looked for when the first one is called.

    numba passes by a folder that it cannot write to, such as an installation of another user; what
    lies there is used all the same. A kernel that cannot be kept is compiled in each process.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @cached_property
    def _places(self) -> list[Any]:
        found = []
        for place in (_Kept, _Found):
            try:
                found.append(place(self._function))
            except RuntimeError:  # no such folder
                continue
        return found

    @property
    def cache_path(self) -> str | None:
        """Folder of new kernels."""
        return str(self._places[0].cache_path) if self._places else None

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the kernel of these types, None where there is none."""
        found = (place.load_overload(signature, context) for place in self._places)
        return next((kernel for kernel in found if kernel is not None), None)

    def save_overload(self, signature: Any, kernel: Any) -> None:
        """Keep a kernel; a folder that is full or read-only is no error."""
        try:
            for place in self._places[:1]:
                place.save_overload(signature, kernel)
        except OSError as error:
            logger.debug("a kernel could not be kept: %s", error)


def _prefetch(_typing: Any, array: Any, index: Any) -> Any:
    """Ask for a place of an array in the caches without waiting for it: `prefetch(array, i)`."""

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
    """Return the place of the lowest bit that is set, of 64: `lowest_bit(word)`."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.uint64), code


def _bits_set(_typing: Any, word: Any) -> Any:
    """Return how many of 64 bits are set: `bits_set(word)`."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), code


prefetch: Any = intrinsic(_prefetch)
lowest_bit: Any = intrinsic(_lowest_bit)
bits_set: Any = intrinsic(_bits_set)


@compiled
def first_at_least(ascending: Any, low: Any, high: Any, wanted: Any) -> Any:
    """Return the first place from `low` on with no less than what is wanted, `high` for none."""
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low
