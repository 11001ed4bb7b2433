"""Raw ids of users and items, and their positions in the matrix.

Ids are what the user's table holds: integers or text, one kind per axis, never silently changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from equipoise.errors import DataError, SettingError, UnknownIdError

Unknown = Literal["error", "skip"]
SHOWN = 5  # how many offending ids an error message names


def as_ids(values: Any, axis: str) -> npt.NDArray[Any]:
    """Check ids and return them as an int64 array or as an object array of `str`.

    Parameters
    ----------
    values
        Integers or text. Floats, booleans, nulls and mixtures are refused.
    axis
        "user" or "item", for the error message.
    """
    array = values if isinstance(values, np.ndarray) else np.asarray(values, dtype=object)
    if array.ndim != 1:
        raise DataError(f"{axis} ids must be one-dimensional, got shape {array.shape}")
    if array.dtype.kind in "iu":
        if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
            raise DataError(f"{axis} ids beyond 2^63 do not fit an integer; give them as text")
        return array.astype(np.int64, copy=False)
    if array.dtype.kind in "UT":
        return array.astype(object)
    if array.dtype != object:
        raise DataError(f"{axis} ids must be integers or text, got {array.dtype}")
    kinds = {type(value) for value in array}
    if kinds <= {str, np.str_}:
        return array if kinds <= {str} else np.array([str(v) for v in array], dtype=object)
    if all(issubclass(kind, (int, np.integer)) and kind is not bool for kind in kinds):
        try:
            return array.astype(np.int64)
        except OverflowError as error:
            message = f"{axis} ids beyond 2^63 do not fit an integer; give them as text"
            raise DataError(message) from error
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise DataError(f"{axis} ids must be all integers or all text, got {names}")


class IdIndex:
    """Unique ids of one axis with look-up in both directions.

    Parameters
    ----------
    values
        The ids, position by position.
    axis
        "user" or "item", for error messages.
    """

    def __init__(self, values: Any, axis: str) -> None:
        self.values = as_ids(values, axis)
        self.values.flags.writeable = False
        self.axis = axis
        if len(self._position) != len(self.values):
            twice = Counter(self.values.tolist()).most_common(1)[0][0]
            raise DataError(f"{axis} id {twice!r} occurs twice in the list of {axis} ids")

    @cached_property
    def _position(self) -> dict[Any, int]:
        return {value: place for place, value in enumerate(self.values.tolist())}

    def __len__(self) -> int:
        return len(self.values)

    def __contains__(self, value: object) -> bool:
        return value in self._position

    def same_as(self, other: IdIndex) -> bool:
        """Whether both hold the same ids in the same order."""
        return self.values is other.values or np.array_equal(self.values, other.values)

    def positions(
        self, wanted: Iterable[Any], *, unknown: Unknown = "error"
    ) -> npt.NDArray[np.int64]:
        """Positions of the wanted ids; unknown ones are an error, or -1 with ``"skip"``."""
        if unknown not in ("error", "skip"):
            raise SettingError(f"unknown must be 'error' or 'skip', got {unknown!r}")
        listed = wanted.tolist() if isinstance(wanted, np.ndarray) else list(wanted)
        found = np.fromiter(
            (self._position.get(value, -1) for value in listed), np.int64, len(listed)
        )
        if unknown == "error" and (found < 0).any():
            raise UnknownIdError(self._not_found(listed, found))
        return found

    def _not_found(self, wanted: Sequence[Any], found: npt.NDArray[np.int64]) -> str:
        missing = [value for value, place in zip(wanted, found, strict=True) if place < 0]
        named = ", ".join(repr(value) for value in missing[:SHOWN])
        more = f" and {len(missing) - SHOWN:,} more" if len(missing) > SHOWN else ""
        hint = "pass unknown='skip' to leave them out"
        kind = int if self.values.dtype == np.int64 else str
        if not any(isinstance(value, (kind, np.integer)) for value in missing):
            hint = f"the ids of this data are {'integers' if kind is int else 'text'}"
        plural = "s" if len(missing) > 1 else ""
        return f"unknown {self.axis}{plural} {named}{more}; {hint}"
