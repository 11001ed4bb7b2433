"""Solver: dispatches to an engine and reuses the Gram matrix between penalties."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.solve import dense
from equipoise.solve.engine import Solver
from equipoise.solve.planning import SolveOptions

ENGINES: dict[str, dict[str, Any]] = {
    "dense": {},
    "gpu": {"engine": "gpu"},
    "tiled": {"engine": "tiled", "memory": "1MB"},
}


@pytest.mark.parametrize("engine", ENGINES)
def test_each_solve_of_a_solver_has_the_bits_of_a_solve_alone(
    engine: str, synthetic: Interactions, tmp_path: Path
) -> None:
    if engine == "gpu":
        pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    options = SolveOptions(**ENGINES[engine])
    more = {"scratch": tmp_path} if engine == "tiled" else {}
    solver = Solver(synthetic, replace(options, **more))
    assert solver.keeps_gram == (engine != "tiled")
    one, other = np.ones(synthetic.n_users), rng.random(synthetic.n_users)
    for weights, l2 in ((one, 5.0), (one, 9.0), (other, 9.0), (one, 5.0)):
        penalty = np.full(synthetic.n_items, l2)
        solved = solver.solve(weights, penalty)
        alone = Solver(synthetic, options, keep_gram=False).solve(weights, penalty)
        P, expected = (p.toarray() if engine == "gpu" else p for p in (solved.P, alone.P))
        np.testing.assert_array_equal(P, expected)
        np.testing.assert_array_equal(solved.diagonal, expected.diagonal())
        assert solved.residual == alone.residual
    assert len(list(tmp_path.iterdir())) == (engine == "tiled")  # only the last result


def test_gram_matrix_is_computed_again_where_memory_is_short(
    synthetic: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    real = dense.weighted_gram
    monkeypatch.setattr(dense, "weighted_gram", lambda *a: (calls.append(1), real(*a))[1])
    peak = eq.plan(synthetic).peak_bytes
    weights, n_items = np.ones(synthetic.n_users), synthetic.n_items
    for memory, times in ((None, 1), (peak + n_items**2, 3)):
        calls.clear()
        solver = Solver(synthetic, SolveOptions(memory=memory))
        inverses = [solver.solve(weights, np.full(n_items, l2)).P.copy() for l2 in (1.0, 2.0, 1.0)]
        assert len(calls) == times
        np.testing.assert_array_equal(inverses[0], inverses[2])
