from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.errors import DataError
from equipoise.reproduce import load_config, run_table, runner
from equipoise.reproduce.config import names
from equipoise.reproduce.efficiency import run_efficiency
from equipoise.reproduce.figures import run_figure
from equipoise.reproduce.kinds import kind_of
from equipoise.reproduce.sessions import run_sessions
from equipoise.reproduce.statistics import run_statistics

PAPER = Path(__file__).resolve().parents[2] / "paper"
SPECIAL = {
    "table1": run_statistics,
    "table6": run_efficiency,
    "table6_cut": run_efficiency,
    "table7": run_sessions,
}


@pytest.mark.parametrize("name", names(PAPER))
def test_every_config_is_run_as_what_it_is(name: str) -> None:
    usual = run_figure if name.startswith("figure") else run_table
    assert runner(load_config(PAPER / f"{name}.toml")) is SPECIAL.get(name, usual)


def test_an_unknown_kind_names_the_known_ones() -> None:
    config = replace(load_config(PAPER / "table3.toml"), kind="poem")
    with pytest.raises(DataError, match="unknown kind 'poem'; known: table, statistics"):
        kind_of(config)
