"""JSON documents that are written sealed and read without trust.

A manifest, the state of a tiled solve and a line of a search are all such documents: parsed with
numbers that make sense, read field by field with a type and a range, and closed by a checksum of
their own content. Documents of older versions have no seal.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from equipoise.errors import FileFormatError

SEAL = "seal"
LARGEST = 2**63 - 1
LARGEST_SEED = 2**1023  # numpy takes seeds of any length, JSON those that a float can hold
CANONICAL = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False)
SHOWN = 60  # characters of a wrong value that an error shows


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with the checksum of its content; raises ValueError for NaN and such."""
    return {**document, SEAL: _digest(document)}


def check_seal(document: Mapping[str, Any]) -> None:
    """Refuse a document whose content is not what was sealed."""
    if SEAL in document and document[SEAL] != _digest(document):
        raise FileFormatError("it was changed after it was saved: its checksum differs")


def parse(text: str | bytes) -> Fields:
    """Return a JSON object; NaN, numbers beyond floats and text that is no Unicode are refused."""
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        found = json.loads(
            text, parse_int=_whole, parse_float=_number, parse_constant=_no_constant
        )
        _canonical(found)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(_short(str(error))) from error
    if not isinstance(found, dict):
        raise FileFormatError(f"it holds {_short(repr(found))} in place of named fields")
    return Fields(found)


def _digest(document: Mapping[str, Any]) -> str:
    content = {name: value for name, value in document.items() if name != SEAL}
    return hashlib.sha256(_canonical(content)).hexdigest()


def _canonical(document: Any) -> bytes:
    return CANONICAL.encode(document).encode()


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {_short(text)} is too large")
    return value


def _whole(text: str) -> int:
    _number(text)
    return int(text)


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")


class Fields(dict[str, Any]):
    """Named values of a document; each is read with its type and range, or refused by its name.

    Parameters
    ----------
    values
        The values, as JSON gives them.
    path
        Names of the groups around them, for the error.
    """

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        super().__init__(values)
        self.path = path

    def text(self, name: str, among: Collection[str] | None = None) -> str:
        """Text, one of `among` where that is given."""
        wanted = "text" if among is None else f"one of {', '.join(among)}"
        found: str = self._read(
            name,
            lambda value: isinstance(value, str) and (among is None or value in among),
            wanted,
        )
        return found

    def texts(self, name: str) -> list[str]:
        """A list of text."""
        found: list[str] = self._read(
            name, lambda value: _is_list(value, _is_text), "a list of text"
        )
        return found

    def whole(self, name: str, least: int = 0, most: int = LARGEST) -> int:
        """A whole number in this range."""
        wanted = f"a whole number from {least} to {most:.3g}"
        found: int = self._read(name, lambda value: _is_whole(value, least, most), wanted)
        return found

    def wholes(self, name: str, least: int = 0, most: int = LARGEST) -> list[int]:
        """A list of whole numbers in this range."""
        wanted = f"a list of whole numbers from {least} to {most:.3g}"
        found: list[int] = self._read(
            name, lambda value: _is_list(value, lambda each: _is_whole(each, least, most)), wanted
        )
        return found

    def number(self, name: str, least: float = -math.inf) -> float:
        """A finite number, at least `least`."""
        wanted = "a number" if least == -math.inf else f"a number >= {least}"
        return float(self._read(name, lambda value: _is_number(value, least), wanted))

    def flag(self, name: str) -> bool:
        """True or False."""
        found: bool = self._read(name, lambda value: isinstance(value, bool), "true or false")
        return found

    def group(self, name: str) -> Fields:
        """Fields inside this one."""
        found = self._read(name, lambda value: isinstance(value, dict), "a group of fields")
        return Fields(found, f"{self.path}{name}.")

    def groups(self, name: str) -> list[Fields]:
        """A list of groups of fields."""
        wanted = "a list of groups of fields"
        found = self._read(name, lambda value: _is_list(value, _is_group), wanted)
        return [Fields(each, f"{self.path}{name}.{place}.") for place, each in enumerate(found)]

    def _read(self, name: str, fits: Callable[[Any], bool], wanted: str) -> Any:
        if name not in self:
            raise FileFormatError(f"the field {self.path + name!r} is missing")
        if not fits(self[name]):
            found = _short(repr(self[name]))
            raise FileFormatError(f"the field {self.path + name!r} must be {wanted}, got {found}")
        return self[name]


def _is_list(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(fits, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_group(value: Any) -> bool:
    return isinstance(value, dict)


def _is_whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _is_number(value: Any, least: float) -> bool:
    return type(value) in (int, float) and value >= least


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
