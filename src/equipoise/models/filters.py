"""What graph filters share as models: fitting, asking and saving."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, Self

import numpy.typing as npt

from equipoise.errors import DataError, FileFormatError, NotFittedError, SettingError
from equipoise.interactions import Interactions
from equipoise.manifest import Fields
from equipoise.models.base import Recommender, at_once
from equipoise.normalize import check_number
from equipoise.storage import Stored
from equipoise.terms import Term
from equipoise.threads import limited

Array = npt.NDArray[Any]
DTYPES = ("float32", "float64")


@dataclass(kw_only=True, eq=False)
class GraphFilter(Recommender):
    """Base of the graph filters: a subclass learns arrays and makes terms of them.

    Attributes
    ----------
    arrays_
        What fitting learned beyond the data, by name; saved with the model.
    dtype_
        Precision of arrays and scores.
    """

    arrays_: dict[str, Any] = field(init=False, repr=False)
    dtype_: str = field(init=False, repr=False)
    _built: list[Term] = field(init=False, repr=False)

    @at_once
    def fit(
        self,
        interactions: Interactions,
        *,
        dtype: str = "float32",
        threads: int | None = None,
    ) -> Self:
        """Learn the filter and return self.

        Parameters
        ----------
        interactions
            Training data.
        dtype
            "float32" or "float64".
        threads
            Number of threads; None uses all.
        """
        if not isinstance(interactions, Interactions):
            raise DataError("fit needs Interactions; make them with eq.read(...)")
        if dtype not in DTYPES:
            raise SettingError(f"dtype must be 'float32' or 'float64', got {dtype!r}")
        if not interactions.n_interactions:
            raise DataError("fit needs at least one interaction")
        with limited(threads):
            arrays = self._learn(interactions, dtype)
        self._take(interactions, arrays, dtype)
        return self

    def terms(self, alpha: float | None = None) -> list[Term]:
        """Return the terms of the filter; it has no popularity dial, so `alpha` must be None."""
        if alpha is not None:
            raise SettingError(f"{type(self).__name__} has no popularity dial; leave alpha out")
        if not hasattr(self, "_built"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")
        return self._built

    def _learn(self, interactions: Interactions, dtype: str) -> dict[str, Any]:
        """Return what has to be computed and saved, by name."""
        return {}

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the names and shapes of what `_learn` gives, for `load` to check."""
        return {}

    @abstractmethod
    def _make(self, interactions: Interactions, arrays: dict[str, Any], dtype: str) -> list[Term]:
        """Return the terms."""

    def _take(self, interactions: Interactions, arrays: dict[str, Any], dtype: str) -> None:
        self._built = self._make(interactions, arrays, dtype)
        self.interactions_, self.arrays_, self.dtype_ = interactions, arrays, dtype

    def _state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        return {"dtype": self.dtype_}, self.arrays_

    def _restore(self, state: Fields, stored: Stored) -> None:
        dtype = state.text("dtype", DTYPES)
        arrays = self._restored(stored)
        if any(array.dtype != dtype for array in arrays.values() if array.dtype.kind == "f"):
            raise FileFormatError(f"its arrays are not {dtype}")
        self._take(self.interactions_, arrays, dtype)

    def _restored(self, stored: Stored) -> dict[str, Any]:
        return {name: stored.finite(name, shape) for name, shape in self._shapes().items()}


def check_factors(factors: Any) -> None:
    """Refuse what cannot be a number of vectors."""
    if isinstance(factors, bool) or not isinstance(factors, int) or factors < 1:
        raise SettingError(f"factors must be a whole number >= 1, got {factors!r}")


def check_weight(name: str, value: Any) -> None:
    """Refuse what cannot be a weight."""
    if check_number(name, value) < 0:
        raise SettingError(f"{name} must be >= 0, got {value}")
