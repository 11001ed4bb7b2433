"""The recursion of the blocked inverse, on plain numpy views."""

from __future__ import annotations

import numpy as np
import pytest
from tests.tolerance import assert_close

from equipoise.solve import blocked
from equipoise.solve.blocked import Span
from equipoise.solve.tiled import Recorder, all_tasks


class Views:
    """Every step on views of an array; counts multiplications and additions."""

    def __init__(self, A: np.ndarray, block: int, strip: int) -> None:
        self.A, self.size, self.block, self.strip = A, len(A), block, strip
        self.flops = 0

    def factor(self, at: Span) -> None:
        self[at, at] = np.linalg.cholesky(self[at, at])

    def invert(self, at: Span) -> None:
        self[at, at] = np.linalg.inv(self[at, at])

    def square(self, at: Span) -> None:
        self[at, at] = self.product(self[at, at].T, self[at, at])

    def solve(self, rows: Span, at: Span) -> None:
        self[rows, at] = self.product(self[rows, at], np.linalg.inv(self[at, at]).T)

    def left(self, at: Span, columns: Span) -> None:
        self[at, columns] = -self.product(self[at, at], self[at, columns])

    def right(self, rows: Span, at: Span) -> None:
        self[rows, at] = self.product(self[rows, at], self[at, at])

    def left_transposed(self, at: Span, columns: Span) -> None:
        self[at, columns] = self.product(self[at, at].T, self[at, columns])

    def add(self, rows: Span, columns: Span, inner: Span, *, sign: int) -> None:
        self[rows, columns] += sign * self.product(self[rows, inner], self[inner, columns])

    def subtract_outer(self, rows: Span, columns: Span, inner: Span) -> None:
        self[rows, columns] -= self.product(self[rows, inner], self[columns, inner].T)

    def add_inner(self, rows: Span, columns: Span, inner: Span) -> None:
        self[rows, columns] += self.product(self[inner, rows].T, self[inner, columns])

    def product(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        self.flops += 2 * left.shape[0] * left.shape[1] * right.shape[1]
        return left @ right

    def __getitem__(self, spans: tuple[Span, Span]) -> np.ndarray:
        return self.A[slice(*spans[0]), slice(*spans[1])]

    def __setitem__(self, spans: tuple[Span, Span], value: np.ndarray) -> None:
        self.A[slice(*spans[0]), slice(*spans[1])] = value


def positive_definite(n: int, rng: np.random.Generator) -> np.ndarray:
    X = rng.standard_normal((2 * n, n))
    return X.T @ X / n + np.eye(n)


@pytest.mark.parametrize(
    ("n", "block", "strip"),
    [(1, 4, 4), (4, 4, 4), (5, 4, 4), (37, 1, 1), (37, 5, 10), (64, 8, 16), (65, 8, 64)],
)
def test_blocks_give_the_inverse(n: int, block: int, strip: int, rng: np.random.Generator) -> None:
    A = positive_definite(n, rng)
    views = Views(A.copy(), block, strip)
    blocked.invert(views)
    lower = np.tril_indices(n)
    assert_close(views.A[lower], np.linalg.inv(A)[lower], "float64", scale=1.0)


def test_blocks_above_the_diagonal_are_never_read(rng: np.random.Generator) -> None:
    A = positive_definite(40, rng)
    hidden = A.copy()
    hidden[np.arange(40)[:, None] // 8 < np.arange(40)[None] // 8] = np.nan
    views = Views(hidden, 8, 8)
    blocked.invert(views)
    lower = np.tril_indices(40)
    assert_close(views.A[lower], np.linalg.inv(A)[lower], "float64", scale=1.0)


def test_work_is_the_cube_of_the_size_and_little_more(rng: np.random.Generator) -> None:
    n, block = 256, 4
    views = Views(positive_definite(n, rng), block, block)
    blocked.invert(views)
    # diagonal blocks are multiplied in full: about 2 block/n more than needed
    assert n**3 * (1 - 2 * block / n) < views.flops < n**3 * (1 + 3 * block / n)


def test_tiles_are_only_read_when_they_are_up_to_date() -> None:
    """A task may read only tiles of the lower triangle, and never its own target."""
    for task in all_tasks(7):
        assert task.target[0] >= task.target[1]
        assert all(i >= j for i, j in task.inputs)
        assert task.target not in task.inputs


def test_one_tile_takes_the_three_steps_alone() -> None:
    recorder = Recorder(1)
    blocked.invert(recorder)
    assert [task.kind for task in recorder.tasks] == ["factor", "invert", "square"]
