from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.errors import DataError
from equipoise.reproduce import load_config, runner
from equipoise.reproduce.config import names
from equipoise.reproduce.kinds import KINDS, kind_of

PAPER = Path(__file__).resolve().parents[2] / "paper"


@pytest.mark.parametrize("name", names(PAPER))
def test_every_config_has_a_runner(name: str) -> None:
    config = load_config(PAPER / f"{name}.toml")
    assert runner(config).__name__ == KINDS[config.kind].run


def test_an_unknown_kind_names_the_known_ones() -> None:
    config = replace(load_config(PAPER / "table3.toml"), kind="poem")
    with pytest.raises(DataError, match="unknown kind 'poem'; known: table, statistics"):
        kind_of(config)
