"""A report on small data whose titles are as hostile as titles can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from equipoise.data.interactions import Interactions
from equipoise.report.facts import collect
from equipoise.report.page import render

HOSTILE = (
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 2</script>",
    '"><img src=x onerror="window.hacked = 3">',
    "{{ 7 * 7 }} {% raw %}",
    "Tea & 'biscuits'",
    "\u202eright to left\u2028and a line",
)


def titles(n_items: int) -> list[str]:
    return [f"{HOSTILE[n % len(HOSTILE)]} no. {n}" for n in range(n_items)]


@pytest.fixture(scope="session")
def labelled(synthetic: Interactions) -> Interactions:
    """300 users x 80 items with hostile titles."""
    catalogue = pl.DataFrame({"title": titles(synthetic.n_items)})
    return Interactions(synthetic.matrix, synthetic.users, synthetic.items, catalogue=catalogue)


@pytest.fixture(scope="session")
def facts(labelled: Interactions) -> dict[str, Any]:
    """What a report on these data says, lists of 10."""
    options: dict[str, Any] = {"name": "<b>Shop</b>", "k": 10, "sample": 4, "bootstrap": 100}
    return collect(labelled, command="equipoise report '<shop>.csv'", **options)


@pytest.fixture(scope="session")
def html(facts: dict[str, Any]) -> str:
    return render(facts)


@pytest.fixture(scope="session")
def page(html: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(html, encoding="utf-8")
    return path
