"""Data that searches run on."""

from __future__ import annotations

import pytest

import equipoise as eq
from equipoise.interactions import Interactions
from equipoise.split import Split


@pytest.fixture(scope="session")
def split(synthetic: Interactions) -> Split:
    """300 users x 80 items, a fifth of the users to tune on."""
    return eq.split.strong(synthetic, valid=0.2, test=0.2)
