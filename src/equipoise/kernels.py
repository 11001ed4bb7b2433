"""How inner loops are compiled, and the types of arrays they work on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

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


def _prefetch(_typing: Any, array: Any, index: Any) -> Any:
    """Ask for a place of an array in the caches without waiting for it: `prefetch(array, i)`."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        place = builder.bitcast(builder.gep(view.data, [arguments[1]]), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        call = cast(Any, cgutils).get_or_insert_function(
            builder.module, kind, "llvm.prefetch.p0i8"
        )
        builder.call(call, [place, number(0), number(3), number(1)])  # to read, again and again
        return context.get_dummy_value()

    return types.void(array, types.intp), code


prefetch: Any = intrinsic(_prefetch)
