"""The neighbourhood engine's batched systems, run by torch on the processor and on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.errors import TooBigError
from equipoise.solve import batched, neighbourhood

torch = pytest.importorskip("torch")


def system(rng: np.random.Generator) -> Any:
    """Weighted X with items of one user and of none, weights of users, penalties."""
    chance = np.linspace(0.005, 0.25, 60)
    chance[13] = 0.0
    pattern = rng.random((150, 60)) < chance
    X = sp.csr_array((pattern * (1 + rng.random(pattern.shape))).astype(np.float32))
    return X, rng.random(150) + 0.5, rng.random(60) * 5 + 1


def condition(problem: Any) -> float:
    X, weights, penalty = problem
    dense = X.toarray().astype(np.float64)
    A = (dense.T * weights) @ dense + np.diag(penalty)
    return float(np.linalg.cond(A))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("neighbours", [1, 7, 25, 59])
def test_supports_are_the_same_and_numbers_equal_to_rounding(
    neighbours: int, dtype: str, rng: np.random.Generator
) -> None:
    problem = system(rng)
    # all entries are stored: both solve the same positive definite systems
    one_by_one = neighbourhood.solve(*problem, neighbours, row_entries=59, dtype=dtype)
    together = neighbourhood.solve(*problem, neighbours, row_entries=59, dtype=dtype, card="cpu")
    np.testing.assert_array_equal(together.indptr, one_by_one.indptr)
    np.testing.assert_array_equal(together.indices, one_by_one.indices)
    # n roundings of a system, carried over by its condition number, on either side
    size = 2 * (neighbours + 1) * np.finfo(dtype).eps * condition(problem)
    scale = one_by_one.diagonal_.max()  # as large as any number of these inverses
    np.testing.assert_allclose(together.data, one_by_one.data, rtol=0, atol=size * scale)
    np.testing.assert_allclose(together.diagonal_, one_by_one.diagonal_, rtol=0, atol=size * scale)


def test_batch_size_does_not_change_the_solution(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = system(rng)
    batched_columns = neighbourhood.solve(*problem, 9, dtype="float64", card="cpu")
    monkeypatch.setattr(batched, "ENTRIES", 1)  # one target at a time
    single = neighbourhood.solve(*problem, 9, dtype="float64", card="cpu")
    np.testing.assert_array_equal(single.indices, batched_columns.indices)
    np.testing.assert_allclose(single.data, batched_columns.data, rtol=1e-12, atol=1e-16)


def test_indefinite_systems_are_solved_one_by_one(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # nearly all pairs are alike, so that A without some of them is not positive definite
    X = sp.csr_array((rng.random((90, 30)) < 0.9).astype(np.float32))
    problem = X, np.ones(90), np.full(30, 0.01)
    refused = []
    solve = batched.Batches.solve

    def watched(self: Any, *arguments: Any) -> Any:
        *solution, is_solved = solve(self, *arguments)
        refused.append(~is_solved)
        return *solution, np.zeros_like(is_solved)

    monkeypatch.setattr(batched.Batches, "solve", watched)
    one_by_one = neighbourhood.solve(*problem, 12, row_entries=12)
    together = neighbourhood.solve(*problem, 12, row_entries=12, card="cpu")
    assert np.concatenate(refused).any()
    for name in ("data", "indices", "diagonal_"):
        np.testing.assert_array_equal(getattr(together, name), getattr(one_by_one, name))


def test_a_gpu_without_room_is_an_error_before_the_solve(
    synthetic: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batched, "free_memory", lambda device: 10_000)
    with pytest.raises(TooBigError, match=r"5 neighbours need .* of cuda and .* is free"):
        eq.EASE(l2=5.0).fit(synthetic, engine="neighbourhood", neighbours=5, device="cuda")


def test_a_plan_for_a_gpu_counts_only_the_work_of_the_processor() -> None:
    sizes: dict[str, Any] = {"n_users": 10**6, "n_items": 10**6, "n_interactions": 3 * 10**7}
    near = [
        eq.plan(**sizes, engine="neighbourhood", neighbours=100, device=device)
        for device in ("cpu", "cuda")
    ]
    assert near[1].device == "cuda"
    assert near[0].peak_bytes == near[1].peak_bytes
    assert near[1].seconds < near[0].seconds


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu(synthetic: Interactions) -> None:
    options: dict[str, Any] = {"engine": "neighbourhood", "neighbours": 20, "dtype": "float64"}
    here, there = (
        eq.EASE(l2=5.0, dropout=0.3).fit(synthetic, **options, device=device)
        for device in ("cpu", "cuda")
    )
    np.testing.assert_array_equal(there.inverse_.indices, here.inverse_.indices)
    np.testing.assert_allclose(there.inverse_.data, here.inverse_.data, rtol=0, atol=1e-12)
    users = synthetic.users[:5].tolist()
    assert there.recommend(users, k=5).items == here.recommend(users, k=5).items
