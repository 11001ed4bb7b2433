"""Thread safety: models change atomically, and queries run on a snapshot."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

Method = TypeVar("Method", bound=Callable[..., Any])


def atomic(method: Method) -> Method:
    """Make a method change the model completely or not at all, and return the model.

    It works on a copy, which shares all arrays and must not write into them; at the end the model
    takes the copy's attributes in one step. A method that fails leaves the model unchanged, and a
    query on another thread (`on_snapshot`) sees the model either before or after the change.
    """

    @functools.wraps(method)
    def wrapper(model: Any, /, *args: Any, **options: Any) -> Any:
        twin = copy.copy(model)
        method(twin, *args, **options)
        model.__dict__ = twin.__dict__
        return model

    return cast(Method, wrapper)


def on_snapshot(method: Method) -> Method:
    """Run a method on the model as it is at the call, even if another thread changes it."""

    @functools.wraps(method)
    def wrapper(model: Any, /, *args: Any, **options: Any) -> Any:
        return method(copy.copy(model), *args, **options)

    return cast(Method, wrapper)
