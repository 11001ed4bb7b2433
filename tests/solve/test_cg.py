"""Rows solved on demand against a dense solve."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from equipoise.errors import SolveError
from equipoise.models.session_solver import SolvedRows, narrow
from equipoise.solve import cg
from equipoise.solve.cg import System


@pytest.fixture
def system(rng: np.random.Generator) -> System:
    A = sp.random_array((200, 40), density=0.1, format="csr", rng=rng)
    T = sp.random_array((200, 40), density=0.1, format="csr", rng=rng)
    S = sp.random_array((40, 40), density=0.1, format="csr", rng=rng)
    return System(narrow(A), narrow(T), rng.random(40) + 0.5, narrow(S))


def dense(system: System) -> np.ndarray:
    A, T = system.inputs.toarray(), system.targets.toarray()
    M = A.T @ A + np.diag(system.diagonal)
    return np.linalg.solve(M, A.T @ T + system.right.toarray())


@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-11), ("float32", 1e-6)])
def test_rows_solve_the_equations(system: System, dtype: str, limit: float) -> None:
    items = np.array([39, 0, 7, 8, 9, 21, 3, 5, 30, 12, 1])
    C = dense(system)
    # the tolerance of the solve times the size of the solution
    assert np.abs(system.rows(items, dtype) - C[items]).max() < limit * np.abs(C).max()


def test_rough_rows_have_the_digits_that_a_comparison_needs(system: System) -> None:
    items, C = np.arange(40), dense(system)
    rough = replace(system, rough=True).rows(items, "float32")
    error = np.abs(rough - C).max()
    assert 1e-8 * np.abs(C).max() < error < 1e-3 * np.abs(C).max()


def test_rough_rows_end_after_a_few_steps() -> None:
    # a ring of items, each tied to the next: the condition is (4 + 1e-9) / 1e-9
    n = 500
    rows = np.repeat(np.arange(n), 2)
    columns = np.stack([np.arange(n), (np.arange(n) + 1) % n], axis=1).ravel()
    A = narrow(sp.csr_array((np.ones(2 * n), (rows, columns)), shape=(n, n)))
    system = System(A, A, np.full(n, 1e-9), narrow(sp.csr_array((n, n))), rough=True)
    assert np.isfinite(system.rows(np.array([0, 7]), "float32")).all()


def test_entries_far_below_the_largest_are_accurate_in_float32() -> None:
    # a chain of items, each tied to the next: the entries of row 0 fall from 1e-1 to 1e-7
    ones, steps = np.ones(11), np.arange(11)
    rows, columns = np.repeat(steps, 2), np.stack([steps, steps + 1], axis=1).ravel()
    A = sp.csr_array((np.repeat(ones, 2), (rows, columns)), shape=(11, 12))
    system = System(narrow(A), narrow(A), np.full(12, 3.0), narrow(sp.csr_array((12, 12))))
    C = dense(system)[0]
    assert np.abs(C).min() < 1e-6 * np.abs(C).max()
    # float32's rounding of each entry, and the tolerance of the solve times the largest
    np.testing.assert_allclose(
        system.rows(np.array([0]), "float32")[0], C, rtol=1e-4, atol=1e-10 * np.abs(C).max()
    )


@pytest.mark.parametrize("penalty", [3.0, 0.1, 1e-3])
def test_rows_in_single_precision_are_as_good_where_they_take_many_steps(penalty: float) -> None:
    # a ring of items, each tied to the next: the condition is (4 + penalty) / penalty
    n = 500
    steps = np.arange(n)
    rows, columns = np.repeat(steps, 2), np.stack([steps, (steps + 1) % n], axis=1).ravel()
    A = sp.csr_array((np.ones(2 * n), (rows, columns)), shape=(n, n))
    system = System(narrow(A), narrow(A), np.full(n, penalty), narrow(sp.csr_array((n, n))))
    C = dense(system)[[0, 7]]
    # the remaining residual is divided by the smallest eigenvalue at most
    limit = 1e-6 * np.abs(C).max() + cg.TOLERANCE["float32"] * 4 / penalty
    assert np.abs(system.rows(np.array([0, 7]), "float32") - C).max() < limit


def test_a_row_has_the_same_bits_alone_and_among_others(system: System) -> None:
    for dtype in ("float32", "float64"):
        together = system.rows(np.arange(40), dtype)
        alone = np.concatenate([system.rows(np.array([item]), dtype) for item in range(40)])
        np.testing.assert_array_equal(together, alone)


def test_an_item_without_neighbours_and_hard_systems_are_solved_beside_others() -> None:
    # item 0 is alone; items 1 and 2 are nearly equal
    A = sp.csr_array([[2.0, 0, 0, 0], [0, 1.0, 1.0, 0], [0, 0, 1e-5, 1.0]])
    system = System(
        narrow(A), narrow(A), np.array([1.0, 1e-9, 1e-9, 1.0]), narrow(A[:0].T @ A[:0])
    )
    C = dense(system)
    # the condition is 4e9 at most, and double precision keeps what is left of its 16 digits
    limit = 4e9 * np.finfo(np.float64).eps * np.abs(C).max()
    np.testing.assert_allclose(system.rows(np.arange(4), "float64"), C, rtol=0, atol=limit)
    assert system.rows(np.array([0]), "float32")[0].tolist() == pytest.approx([0.8, 0, 0, 0])


def test_cached_rows_are_the_solved_ones(system: System) -> None:
    rows = SolvedRows(system, "float32")
    first = rows.take(np.array([4, 2]))
    np.testing.assert_array_equal(rows.take(np.array([2, 9, 4]))[[2, 0]], first)


def test_a_solve_that_does_not_converge_is_refused(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cg, "MOST_STEPS", 2)
    with pytest.raises(SolveError, match="2 steps; raise l2"):
        system.rows(np.array([1]), "float64")
