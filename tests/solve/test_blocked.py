"""The recursion of the blocked inverse, and its steps on an array."""

from __future__ import annotations

import numpy as np
import pytest
from tests.tolerance import assert_close

from equipoise.errors import SolveError
from equipoise.runtime import machine
from equipoise.solve import dense, threaded
from equipoise.solve.blocked import Blocks, steps
from equipoise.solve.threaded import ThreadedBlocks
from equipoise.solve.tiled import all_tasks


def positive_definite(n: int, rng: np.random.Generator, dtype: str = "float64") -> np.ndarray:
    X = rng.standard_normal((2 * n, n))
    return (X.T @ X / n + np.eye(n)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("n", "block", "strip"),
    [
        *[(1, 4, 4), (4, 4, 4), (5, 4, 4), (7, 1, 2), (37, 1, 1), (37, 5, 10)],
        *[(64, 8, 16), (64, 16, 32), (65, 8, 64), (65, 16, 16), (193, 193, 193)],
    ],
)
def test_blocks_give_the_inverse(
    n: int, block: int, strip: int, dtype: str, rng: np.random.Generator
) -> None:
    A = positive_definite(n, rng, dtype)
    for way in (Blocks, ThreadedBlocks):
        buffer = A.copy()
        buffer[np.triu_indices(n, 1)] = np.nan
        way(buffer, block, strip).invert()
        lower = np.tril(buffer)
        inverse = lower + np.tril(lower, -1).T
        assert_close(A.astype(np.float64) @ inverse, np.eye(n), dtype, scale=1.0)


def test_blocks_above_the_diagonal_are_never_read(rng: np.random.Generator) -> None:
    A = positive_definite(40, rng)
    hidden = A.copy()
    hidden[np.arange(40)[:, None] // 8 < np.arange(40)[None] // 8] = np.nan
    lower = np.tril_indices(40)
    for way in (Blocks, ThreadedBlocks):
        buffer = hidden.copy()
        way(buffer, 8, 8).invert()
        assert_close(buffer[lower], np.linalg.inv(A)[lower], "float64", scale=1.0)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_parts_of_a_step_do_each_product_of_the_lower_triangle_once(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threaded, "PIECE", 3)
    blocks = ThreadedBlocks(np.eye(37), 4, 2)
    with machine.limited(threads):
        for step in steps(37, 4, 40):
            done = np.zeros((37, 37), int)
            for part in blocks.parts(step):
                assert (part.kind, part.inner) == (step.kind, step.inner)
                done[slice(*part.rows), slice(*part.columns)] += 1
            expected = np.zeros((37, 37), int)
            expected[slice(*step.rows), slice(*step.columns)] = 1
            below = np.tri(37, dtype=bool) | (step.rows != step.columns)
            np.testing.assert_array_equal(done[below], expected[below])
            assert (done <= expected).all()


def test_work_is_the_cube_of_the_size_and_little_more() -> None:
    n, block = 256, 4
    products = [step for step in steps(n, block, block) if step.kind not in ("factor", "invert")]
    flops = sum(2 * np.prod([high - low for low, high in step[1:]]) for step in products)
    # diagonal blocks are multiplied in full: about 2 block/n more than needed
    assert n**3 * (1 - 2 * block / n) < flops < n**3 * (1 + 3 * block / n)


def test_tiles_are_only_read_when_they_are_up_to_date() -> None:
    """A task may read only tiles of the lower triangle, and never its own target."""
    for task in all_tasks(7):
        assert task.target[0] >= task.target[1]
        assert all(i >= j for i, j in task.inputs)
        assert task.target not in task.inputs


def test_one_tile_takes_only_three_steps() -> None:
    assert [step.kind for step in steps(1, 1, 1)] == ["factor", "invert", "square"]


def test_large_systems_are_inverted_by_blocks_with_the_same_result(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = positive_definite(150, rng, "float32")
    by_lapack, by_blocks = A.copy(), A.copy()
    by_blocks[np.tril_indices(150, -1)] = np.nan
    dense.invert_in_place(by_lapack)
    monkeypatch.setitem(dense.LAPACK_ITEMS, "float32", 100)
    dense.invert_in_place(by_blocks)
    np.testing.assert_array_equal(by_blocks, by_blocks.T)
    assert_close(by_blocks, by_lapack, "float32", scale=float(np.abs(by_lapack).max()))


def test_matrix_that_is_not_positive_definite_is_refused_with_its_item() -> None:
    with pytest.raises(SolveError, match=r"at item 5\)"):
        Blocks(np.diag([1.0, 1, 1, 1, 1, -1, 1]), 2, 2).invert()
