"""The wording of refused settings; other tests only check which setting is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from equipoise import checks
from equipoise.errors import SettingError

NAN, INFINITE = float("nan"), float("inf")
REFUSED: list[tuple[Callable[..., Any], Any, dict[str, Any], str]] = [
    (checks.number, "much", {}, "x must be a number, got 'much'"),
    (checks.number, True, {}, "x must be a number, got True"),
    (checks.number, NAN, {}, "x must be finite, got nan"),
    (checks.number, 10**400, {}, "x must be finite, got 1000"),
    (checks.non_negative, -0.5, {}, "x must be >= 0, got -0.5"),
    (checks.positive, 0, {}, "x must be > 0, got 0"),
    (checks.fraction, 1.5, {}, "x must lie in [0, 1], got 1.5"),
    (checks.fraction, 1.0, {"one": False}, "x must lie in [0, 1), got 1.0"),
    (checks.fraction, 0, {"zero": False}, "x must lie in (0, 1], got 0"),
    (checks.fraction, INFINITE, {}, "x must be finite, got inf"),
    (checks.count, 0, {}, "x must be a whole number >= 1, got 0"),
    (checks.count, 2.0, {}, "x must be a whole number >= 1, got 2.0"),
    (checks.count, "20", {}, "x must be a whole number >= 1, got '20'"),
    (checks.count, True, {}, "x must be a whole number >= 1, got True"),
    (checks.count, 101, {"most": 100}, "x must be a whole number from 1 to 100, got 101"),
    (checks.choice, "c", {"allowed": ("a", "b")}, "x must be 'a' or 'b', got 'c'"),
    (checks.choice, [], {"allowed": "abc"}, "x must be 'a', 'b' or 'c', got []"),
    (checks.cutoff, 2**31, {}, "x must be a whole number from 1 to 2147483647, got 2147483648"),
    (checks.flag, 1, {}, "x must be True or False, got 1"),
    (checks.function, 3, {}, "x must be a function or None, got 3"),
    (checks.path, 3, {}, "x must be the path of a file or folder, got 3"),
    (checks.instance, 3, {"kind": str, "remedy": "quote it"}, "x must be str, got int; quote it"),
    (checks.period, "soon", {}, "x must look like '10m', '90s' or '30d', got 'soon'"),
    (checks.period, "14", {}, "x='14' has no unit; write 14d for days, 14s for seconds"),
    (checks.moment, "soon", {}, "x must be an ISO date or time, got 'soon'"),
]


@pytest.mark.parametrize(("check", "value", "options", "message"), REFUSED)
def test_refused_values_are_named_with_the_setting_and_what_it_takes(
    check: Callable[..., Any], value: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=f"^{re.escape(message)}"):
        check("x", value, **options)
