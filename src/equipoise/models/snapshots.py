"""A model changes in one step, and answers from what it was when it was asked."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

Method = TypeVar("Method", bound=Callable[..., Any])


def at_once(method: Method) -> Method:
    """Let a method change the model wholly or not at all, and return the model.

    It works on a copy, which shares all arrays and must write into none, and the model takes the
    copy's attributes in one step at the end. A method that fails leaves the model as it was, and
    a request of another thread (`on_snapshot`) sees the model before or after it.
    """

    @functools.wraps(method)
    def changed(model: Any, /, *args: Any, **options: Any) -> Any:
        twin = copy.copy(model)
        method(twin, *args, **options)
        model.__dict__ = twin.__dict__
        return model

    return cast(Method, changed)


def on_snapshot(method: Method) -> Method:
    """Let a method answer from the model as it is when it is called, whatever changes it then."""

    @functools.wraps(method)
    def asked(model: Any, /, *args: Any, **options: Any) -> Any:
        return method(copy.copy(model), *args, **options)

    return cast(Method, asked)
