"""Checks of settings: each returns a valid value or raises an error that names the setting."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Collection, Hashable
from datetime import UTC, date, datetime
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

from equipoise.errors import SettingError

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
PERIOD = re.compile(r"\s*((?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*([smhdw]?)\s*", re.IGNORECASE)
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
Moment = float | str | date
LONGEST = 2**31 - 1  # of lists, whose places are counted in 32 bits
MADE_BY_READ = "make it with eq.read(...)"

T = TypeVar("T")


def number(name: str, value: Any) -> float:
    """Return a finite number.

    >>> number("alpha", 1)
    1.0
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise SettingError(f"{name} must be a number, got {value!r}")
    try:
        result = float(value)
    except OverflowError:  # an integer beyond the range of floats
        result = math.inf
    if not math.isfinite(result):
        raise SettingError(f"{name} must be finite, got {value}")
    return result


def non_negative(name: str, value: Any) -> float:
    """Return a number that is 0 or more."""
    result = number(name, value)
    if result < 0:
        raise SettingError(f"{name} must be >= 0, got {value}")
    return result


def positive(name: str, value: Any) -> float:
    """Return a number above 0."""
    result = number(name, value)
    if result <= 0:
        raise SettingError(f"{name} must be > 0, got {value}")
    return result


def fraction(name: str, value: Any, *, zero: bool = True, one: bool = True) -> float:
    """Return a number between 0 and 1; `zero` and `one` allow the ends.

    >>> fraction("dropout", 0.5, one=False)
    0.5
    """
    result = number(name, value)
    if not 0 <= result <= 1 or (result == 0 and not zero) or (result == 1 and not one):
        ends = f"{'[' if zero else '('}0, 1{']' if one else ')'}"
        raise SettingError(f"{name} must lie in {ends}, got {value}")
    return result


def count(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Return a whole number from `least` to `most`.

    >>> count("k", 20)
    20
    """
    try:
        result = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        result = least - 1
    if result < least or (most is not None and result > most):
        bounds = f">= {least}" if most is None else f"from {least} to {most}"
        raise SettingError(f"{name} must be a whole number {bounds}, got {value!r}")
    return result


def choice(name: str, value: Any, allowed: Collection[Any]) -> Any:
    """Return one of the allowed values.

    >>> choice("solver", "rk4", ("euler", "rk4"))
    'rk4'
    """
    if not isinstance(value, Hashable) or value not in tuple(allowed):
        *first, last = map(repr, allowed)
        raise SettingError(f"{name} must be {', '.join(first)} or {last}, got {value!r}")
    return value


def cutoff(name: str, value: Any) -> int:
    """Return the length of a list, a whole number from 1."""
    count(name, value)
    return count(name, value, 1, LONGEST)


def flag(name: str, value: Any) -> bool:
    """Return True or False.

    >>> flag("exclude_seen", True)
    True
    """
    if type(value).__name__ not in ("bool", "bool_"):  # of Python or numpy
        raise SettingError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def function(name: str, value: Any) -> Any:
    """Return something that can be called, or None."""
    if value is not None and not callable(value):
        raise SettingError(f"{name} must be a function or None, got {value!r}")
    return value


def path(name: str, value: Any) -> Path:
    """Return the path of a file or folder."""
    if not isinstance(value, (str, os.PathLike)):
        raise SettingError(f"{name} must be the path of a file or folder, got {value!r}")
    text = os.fspath(value)
    # a Path of s3://bucket is s3:/bucket
    if ADDRESS.match(str(text)) and not Path(value).exists():
        raise SettingError(
            f"{name} must be the path of a file or folder, got the address {text!r}; pass "
            "an address as text, which save() and the lists of a cluster accept in Python"
        )
    return Path(value)


def instance(name: str, value: Any, kind: type[T], remedy: str) -> T:
    """Return an object of a class; otherwise the error ends in the remedy."""
    if not isinstance(value, kind):
        wrong = f"{name} must be {kind.__name__}, got {type(value).__name__}"
        raise SettingError(f"{wrong}; {remedy}")
    return value


def period(name: str, value: Any) -> float:
    """Return a time span in seconds, from a number of seconds or text such as "30m" or "1.5h".

    Text needs a unit: "14" may mean seconds or days.

    >>> period("gap", "30m"), period("gap", "1.5h"), period("gap", 90)
    (1800.0, 5400.0, 90.0)
    """
    if not isinstance(value, str):
        return positive(name, value)
    match = PERIOD.fullmatch(value)
    if match is None:
        raise SettingError(f"{name} must look like '10m', '90s' or '30d', got {value!r}")
    if not match[2]:
        number_text = value.strip()
        raise SettingError(
            f"{name}={number_text!r} has no unit; write {number_text}d for days, {number_text}s "
            "for seconds"
        )
    return positive(name, float(match[1]) * UNITS[match[2].lower()])


def moment(name: str, value: Moment) -> float:
    """Return a number, an ISO text or a date as seconds since 1970; UTC without a time zone.

    >>> moment("test_from", "1970-01-02")
    86400.0
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError as error:
            raise SettingError(f"{name} must be an ISO date or time, got {value!r}") from error
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if isinstance(value, datetime):
        value = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    return number(name, value)


def check_penalty(l2: Any, dropout: Any) -> None:
    """Raise `SettingError` for an l2 or dropout that is neither "auto" nor a valid number."""
    if l2 != "auto":
        non_negative("l2", l2)
    if dropout != "auto":
        fraction("dropout", dropout, one=False)
    if l2 == 0 and not dropout:
        raise SettingError("l2 and dropout must not both be 0; the solve needs a penalty")


def is_address(path: object) -> bool:
    """Whether this is the address of something that fsspec opens, and not a path."""
    if not isinstance(path, (str, os.PathLike)):
        return False
    text = os.fspath(path)
    return isinstance(text, str) and "://" in text and not Path(text).exists()
