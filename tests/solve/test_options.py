"""SolveOptions: checks, and the keywords that differ from the defaults."""

from __future__ import annotations

import re
from typing import Any

import pytest

from equipoise.errors import SettingError
from equipoise.solve.planning import SolveOptions


def test_keywords_are_the_options_that_differ_from_their_defaults() -> None:
    assert SolveOptions().keywords() == {}
    options = SolveOptions(dtype="float64", device="cpu", threads=2)
    assert options.keywords() == {"dtype": "float64", "threads": 2}
    assert SolveOptions(**options.keywords()) == options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "device must be 'cpu', 'cuda' or 'cuda:1', got 'tpu'"),
        ({"dtype": "float16"}, "dtype must be 'float32' or 'float64'"),
        ({"precision": "half"}, "precision must be 'auto' or 'float32'"),
        ({"memory": "much"}, "memory must look like '6GB'"),
        ({"scratch": 3}, "scratch must be the path of a file or folder"),
        ({"threads": 0}, "threads must be a whole number"),
        ({"neighbours": 0}, "neighbours must be a whole number"),
        ({"neighbours": "soon"}, "neighbours must look like"),
        ({"progress": 1}, "progress must be a function or None"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=re.escape(message)):
        SolveOptions(**options)
