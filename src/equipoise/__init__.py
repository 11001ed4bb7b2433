"""Linear recommenders in balance: closed-form autoencoders with data-adaptive normalization.

Names are loaded on first use, so importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from equipoise import datasets, split
    from equipoise.errors import EquipoiseError
    from equipoise.interactions import Interactions
    from equipoise.read import read
    from equipoise.statistics import describe

# public name -> module that defines it; None marks a public module
_NAMES: dict[str, str | None] = {
    "EquipoiseError": "errors",
    "Interactions": "interactions",
    "datasets": None,
    "describe": "statistics",
    "read": "read",
    "split": None,
}

__all__ = [*_NAMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'equipoise' has no attribute {name!r}")
    module = _NAMES[name]
    value = (
        import_module(f"equipoise.{name}")
        if module is None
        else getattr(import_module(f"equipoise.{module}"), name)
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
