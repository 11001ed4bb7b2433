"""Data that searches run on, and a count of their solves."""

from __future__ import annotations

from typing import Any

import pytest

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.data.split import Split
from equipoise.solve import dense


@pytest.fixture(scope="session")
def split(synthetic: Interactions) -> Split:
    """300 users x 80 items, a fifth of the users to tune on."""
    return eq.split.strong(synthetic, valid=0.2, test=0.2)


@pytest.fixture
def solves(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collects the sizes of inversions, wherever they are made; probes of the speed too."""
    counted: list[int] = []
    real = dense.invert_in_place

    def counting(A: Any) -> None:
        counted.append(len(A))
        real(A)

    monkeypatch.setattr(dense, "invert_in_place", counting)
    return counted
