"""Linear recommenders in balance: closed-form autoencoders with data-adaptive normalization.

The public names stand in `__init__.pyi`, which type checkers and the loader below both read. A
name is imported when it is first used, so importing the package costs next to nothing.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

__version__ = "0.1.0"


@cache
def _public() -> dict[str, str]:
    """Return the module of each public name; for a public module, the package that holds it."""
    import ast
    import pkgutil

    stub = pkgutil.get_data(__name__, "__init__.pyi") or b""
    imports = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return [*_public(), "__version__"]
    if name.startswith("__") or name not in _public():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _public()[name]
    value: Any = None if module == __name__ else getattr(import_module(module), name, None)
    if value is None:
        value = import_module(f"{module}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))
