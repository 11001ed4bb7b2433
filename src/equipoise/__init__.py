"""Linear recommenders in balance: closed-form autoencoders with data-adaptive normalization.

Names are loaded on first use, so importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from equipoise import datasets as datasets
    from equipoise import split as split
    from equipoise.comparison import compare as compare
    from equipoise.errors import EquipoiseError as EquipoiseError
    from equipoise.evaluation import evaluate as evaluate
    from equipoise.interactions import Interactions as Interactions
    from equipoise.models import BSPM as BSPM
    from equipoise.models import DLAE as DLAE
    from equipoise.models import EASE as EASE
    from equipoise.models import EDLAE as EDLAE
    from equipoise.models import GFCF as GFCF
    from equipoise.models import LAE as LAE
    from equipoise.models import RDLAE as RDLAE
    from equipoise.models import RLAE as RLAE
    from equipoise.models import SGFCF as SGFCF
    from equipoise.models import SLIS as SLIS
    from equipoise.models import SLIST as SLIST
    from equipoise.models import SLIT as SLIT
    from equipoise.models import SVDAE as SVDAE
    from equipoise.models import ItemKNN as ItemKNN
    from equipoise.models import LightGCN as LightGCN
    from equipoise.models import LowPass as LowPass
    from equipoise.models import MultVAE as MultVAE
    from equipoise.models import Popularity as Popularity
    from equipoise.models import TurboCF as TurboCF
    from equipoise.models import XSimGCL as XSimGCL
    from equipoise.models import load as load
    from equipoise.normalize import DAN as DAN
    from equipoise.normalize import ColumnNorm as ColumnNorm
    from equipoise.normalize import CustomNorm as CustomNorm
    from equipoise.normalize import ItemNorm as ItemNorm
    from equipoise.normalize import NoNorm as NoNorm
    from equipoise.normalize import RandomWalk as RandomWalk
    from equipoise.normalize import Symmetric as Symmetric
    from equipoise.normalize import UserNorm as UserNorm
    from equipoise.readers import read as read
    from equipoise.solve.plan import plan as plan
    from equipoise.statistics import describe as describe
    from equipoise.tuning import tune as tune

# Public name -> module that defines it; None marks a public module. A function never has the name
# of its module: importing the module would hide the function.
_NAMES: dict[str, str | None] = {
    "BSPM": "models",
    "ColumnNorm": "normalize",
    "CustomNorm": "normalize",
    "DAN": "normalize",
    "DLAE": "models",
    "EASE": "models",
    "EDLAE": "models",
    "EquipoiseError": "errors",
    "GFCF": "models",
    "Interactions": "interactions",
    "ItemKNN": "models",
    "ItemNorm": "normalize",
    "LAE": "models",
    "LightGCN": "models",
    "LowPass": "models",
    "MultVAE": "models",
    "NoNorm": "normalize",
    "Popularity": "models",
    "RDLAE": "models",
    "RLAE": "models",
    "RandomWalk": "normalize",
    "SLIS": "models",
    "SLIST": "models",
    "SLIT": "models",
    "SGFCF": "models",
    "SVDAE": "models",
    "Symmetric": "normalize",
    "TurboCF": "models",
    "UserNorm": "normalize",
    "XSimGCL": "models",
    "compare": "comparison",
    "datasets": None,
    "describe": "statistics",
    "evaluate": "evaluation",
    "load": "models",
    "plan": "solve.plan",
    "read": "readers",
    "split": None,
    "tune": "tuning",
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
