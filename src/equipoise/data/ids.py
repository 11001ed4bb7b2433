"""Raw ids of users and items, and their positions in the matrix.

Ids are integers or text, one type per axis, as in the user's table. Look-ups convert between the
two: "7" finds 7, but "007" does not. Where data with text ids are added to data with integer ids,
these become text (`IdIndex.extended`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.checks import choice
from equipoise.errors import DataError, SettingError, UnknownIdError

Unknown = Literal["error", "skip"]
UNKNOWN = ("error", "skip")
WHOLE = re.compile("0|-?[1-9][0-9]*")  # how an integer is written as text
SHOWN = 5  # how many offending ids an error message names
CHECK = "check the id"


def as_ids(values: Any, axis: str) -> npt.NDArray[Any]:
    """Return ids as an int64 array or an object array of `str`; any other type is an error."""
    array = values if isinstance(values, np.ndarray) else np.asarray(values, dtype=object)
    if array.ndim != 1:
        raise DataError(f"{axis} ids must be one-dimensional, got shape {array.shape}")
    too_big = f"{axis} ids beyond 2^63 do not fit an integer; give them as text"
    if array.dtype.kind in "iu":
        if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
            raise DataError(too_big)
        return array.astype(np.int64, copy=False)
    if array.dtype.kind in "UT":
        array = array.astype(object)
    if array.dtype != object:
        raise DataError(f"{axis} ids must be integers or text, got {array.dtype}")
    kinds = set(map(type, array))
    if kinds <= {str, np.str_}:
        return array if kinds <= {str} else np.array([str(v) for v in array], dtype=object)
    if all(issubclass(kind, (int, np.integer)) and kind is not bool for kind in kinds):
        try:
            return array.astype(np.int64)
        except OverflowError as error:
            raise DataError(too_big) from error
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise DataError(f"{axis} ids must be all integers or all text, got {names}")


def is_id(value: Any) -> bool:
    """Whether this is a single id rather than a collection; text is a single id."""
    if isinstance(value, np.ndarray):
        return value.ndim == 0
    return isinstance(value, (str, bytes, bytearray)) or not isinstance(value, Iterable)


def as_list(ids: Any) -> list[Any]:
    """Return a single id or any collection of ids as a list.

    >>> as_list("ab"), as_list(np.array([1, 2])), as_list(iter("ab"))
    (['ab'], [1, 2], ['a', 'b'])
    """
    values = ids.tolist() if isinstance(ids, np.ndarray) else ids
    return [values] if is_id(values) else list(values)


def id_key(value: Any) -> Any:
    """Return a key that is equal for two ids if they name the same user or item.

    >>> id_key(7) == id_key("7"), id_key(7) == id_key("07"), id_key(7) == id_key(7.0)
    (True, False, False)
    """
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return str(int(value))
    return type(value), value


def by_id_key(name: str, values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the values keyed by `id_key`; a user that occurs twice is an error."""
    keyed: dict[Any, Any] = {}
    spelled: dict[Any, Any] = {}
    for user, value in values.items():
        key = id_key(user)
        if key in keyed:
            raise SettingError(
                f"{name} names the user {key} twice, as {spelled[key]!r} and as {user!r}; keep one"
            )
        keyed[key], spelled[key] = value, user
    return keyed


def some(ids: npt.NDArray[Any]) -> str:
    """Return the first few ids as text for a message."""
    named = ", ".join(repr(value) for value in ids[:SHOWN].tolist())
    return named + (", ..." if len(ids) > SHOWN else "")


class IdIndex:
    """Unique ids of one axis, "user" or "item", with look-up in both directions.

    The values are copied, unless the array is already read-only.
    """

    def __init__(self, values: Any, axis: str) -> None:
        self.axis = axis
        self.values = as_ids(values, axis)
        if self.values.flags.writeable:
            self.values = self.values.copy()
            self.values.flags.writeable = False
        if not self._are_unique():
            twice = Counter(self.values.tolist()).most_common(1)[0][0]
            raise DataError(
                f"{axis} id {twice!r} occurs twice in the list of {axis} ids; keep one"
            )

    def take(self, positions: npt.NDArray[np.integer]) -> IdIndex:
        """Return the ids at these positions, which must be distinct."""
        times = np.bincount(positions, minlength=1)
        if times.max() > 1:
            twice = self.values.tolist()[int(times.argmax())]
            raise DataError(f"{self.axis} {twice!r} is requested twice; name it once")
        return unchecked(self.values[positions], self.axis)

    def to_series(self) -> pl.Series:
        """Return the ids as a polars series of integers or text."""
        if self._are_integers:
            return pl.Series("id", self.values)
        try:
            return pl.Series("id", self.values.tolist(), dtype=pl.String)
        except UnicodeEncodeError as error:
            wrong = error.object
            raise DataError(f"{self.axis} id {wrong!r} is not valid Unicode text") from error

    @property
    def kind(self) -> type[pl.Int64] | type[pl.String]:
        """Type of a column of these ids."""
        return pl.Int64 if self._are_integers else pl.String

    @property
    def kind_name(self) -> Literal["integer", "text"]:
        """Kind of these ids in words."""
        return "integer" if self._are_integers else "text"

    @property
    def _are_integers(self) -> bool:
        return bool(self.values.dtype == np.int64)

    @property
    def _types(self) -> tuple[type, ...]:
        return (int, np.integer) if self._are_integers else (str,)

    def _are_unique(self) -> bool:
        if not self._are_integers:
            return len(self._position) == len(self.values)
        if self._table is not None:
            return int((self._table >= 0).sum()) == len(self.values)
        return not (np.diff(self._sorted[0]) == 0).any()

    @cached_property
    def _position(self) -> dict[Any, int]:
        return dict(zip(self.values.tolist(), range(len(self.values)), strict=True))

    @cached_property
    def _table(self) -> npt.NDArray[np.int64] | None:
        """Position of every integer from the smallest to the largest id; None if sparse."""
        if not len(self.values):
            return None
        least, most = int(self.values.min()), int(self.values.max())
        if most - least >= 8 * len(self.values):
            return None
        table = np.full(most - least + 1, -1, np.int64)
        table[self.values - least] = np.arange(len(self.values))
        return table

    @cached_property
    def _sorted(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Integer ids in ascending order, and their positions."""
        order = np.argsort(self.values)
        return self.values[order], order

    def __len__(self) -> int:
        return len(self.values)

    def __contains__(self, value: object) -> bool:
        return bool(self.positions([value], unknown="skip")[0] >= 0)

    def __repr__(self) -> str:
        return f"IdIndex: {len(self):,} {self.axis}s with {self.kind_name} ids"

    def same_as(self, other: IdIndex) -> bool:
        """Whether both hold the same ids in the same order."""
        return self.values is other.values or np.array_equal(self.values, other.values)

    def position(self, value: Any) -> int:
        """Position of one id; an unknown one is an error."""
        if not is_id(value):
            raise DataError(f"one {self.axis} id is needed, got {value!r}")
        position = self.positions(value, unknown="skip")
        if position[0] < 0:
            # the message may be shown to clients, and user ids are private
            hint = f"known are {some(self.values)}" if self.axis == "item" else CHECK
            raise UnknownIdError(self._not_found([value], position, hint))
        return int(position[0])

    def find(self, text: str) -> int:
        """Position of one id given as text, -1 if it is unknown."""
        value = self._translated(text) if self._are_integers else text
        return -1 if value is None else self._position.get(value, -1)

    def positions(
        self, ids: Any, *, unknown: Unknown = "error", hint: str = CHECK
    ) -> npt.NDArray[np.int64]:
        """Positions of these ids; unknown ones are an error, or -1 with ``"skip"``.

        1 is "1", but neither 1.0 nor True nor "01". A single text is one id. `hint` ends the error
        message.
        """
        choice("unknown", unknown, UNKNOWN)
        listed: Any = ids
        kind = ids.dtype if isinstance(ids, np.ndarray) and ids.ndim == 1 else None
        # uint64 does not fit int64 and takes the slow path
        if self._are_integers and kind is not None and kind.kind in "iu" and kind != np.uint64:
            positions = self._integer_positions(listed.astype(np.int64, copy=False))
        else:
            listed = as_list(ids)
            positions = self._listed_positions(listed)
        if unknown == "error" and (positions < 0).any():
            raise UnknownIdError(self._not_found(listed, positions, hint))
        return positions

    def _integer_positions(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        out = np.full(len(ids), -1, np.int64)
        if self._table is not None:
            least = int(self.values.min())
            inside = np.flatnonzero((ids >= least) & (ids < least + len(self._table)))
            out[inside] = self._table[ids[inside] - least]
        elif len(self.values):
            ascending, order = self._sorted
            # Searching in ascending order is kinder to the cache.
            ascending_ids = np.argsort(ids)
            place = np.searchsorted(ascending, ids[ascending_ids]).clip(max=len(ascending) - 1)
            out[ascending_ids] = np.where(ascending[place] == ids[ascending_ids], order[place], -1)
        return out

    def _listed_positions(self, ids: Sequence[Any]) -> npt.NDArray[np.int64]:
        # Test each type once, so that the common case, a single type, is a plain look-up.
        kinds = set(map(type, ids))
        fit = {kind for kind in kinds if issubclass(kind, self._types) and kind is not bool}
        if kinds == fit:
            positions = (self._position.get(value, -1) for value in ids)
        else:
            translated = (v if type(v) in fit else self._translated(v) for v in ids)
            positions = (-1 if v is None else self._position.get(v, -1) for v in translated)
        return np.fromiter(positions, np.int64, len(ids))

    def _translated(self, value: Any) -> Any:
        """Convert an id to the type of this index; None if that is impossible."""
        if self._are_integers:
            # an int64 has at most 20 characters, and Python refuses to parse very long numbers
            if not isinstance(value, str) or len(value) > 20 or not WHOLE.fullmatch(value):
                return None
            integer = int(value)
            return integer if -(2**63) <= integer < 2**63 else None
        is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        return str(int(value)) if is_whole else None

    def spelled(self, value: Any) -> Any:
        """Convert an id to the type of this index if possible, else return it."""
        translated = None if isinstance(value, self._types) else self._translated(value)
        converted = value if translated is None else translated
        return converted.item() if isinstance(converted, np.generic) else converted

    def extended(self, values: npt.NDArray[Any]) -> IdIndex:
        """Return the index with new ids appended, converted to its type.

        If a new id is text that is no integer, integer ids become text: 7 is then "7".
        """
        if not len(self):
            return IdIndex(values, self.axis)
        known, fresh = self.values, values[self.positions(values, unknown="skip") < 0]
        if not len(fresh):
            return self
        if fresh.dtype != known.dtype:
            translated = [self._translated(value) for value in fresh.tolist()]
            if None in translated:
                known = np.array([str(value) for value in known.tolist()], dtype=object)
            else:
                fresh = as_ids(translated, self.axis)
        return IdIndex(np.concatenate([known, fresh]), self.axis)

    def _not_found(self, ids: Sequence[Any], positions: npt.NDArray[np.int64], hint: str) -> str:
        places = np.flatnonzero(positions < 0)
        shown = [ids[place] for place in places[:SHOWN]]
        named = ", ".join(repr(v.item() if isinstance(v, np.generic) else v) for v in shown)
        more = f" and {len(places) - SHOWN:,} more" if len(places) > SHOWN else ""
        if not any(isinstance(value, self._types) for value in shown):
            hint = f"the ids of this data are {'integers' if self._are_integers else 'text'}"
        plural = "s" if len(places) > 1 else ""
        return f"unknown {self.axis}{plural} {named}{more}; {hint}"


def unchecked(values: npt.NDArray[Any], axis: str) -> IdIndex:
    """Return an index of int64 or `str` ids that are known to be unique."""
    index = IdIndex.__new__(IdIndex)
    index.axis, index.values = axis, values
    index.values.flags.writeable = False
    return index
