"""Dense transcriptions of the graph filters' formulas, and a model for each."""

from __future__ import annotations

from collections.abc import Callable
from math import factorial
from typing import Any

import numpy as np

import equipoise as eq
from equipoise.models.base import Recommender

Matrix = np.ndarray[Any, np.dtype[np.float64]]


def symmetric(X: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """D_U^-1/2 X D_I^-1/2, its P, and the item sums, with 1 for sums of 0."""
    users, items = (np.where(total > 0, total, 1) for total in (X.sum(1), X.sum(0)))
    A = X / np.sqrt(users)[:, None] / np.sqrt(items)
    return A, A.T @ A, items


def ideal(X: Matrix, rank: int) -> Matrix:
    A, _, items = symmetric(X)
    V = np.linalg.svd(A)[2][:rank].T
    return V @ V.T / np.sqrt(items)[:, None] * np.sqrt(items)


def dense_gfcf(X: Matrix) -> Matrix:
    return X @ (symmetric(X)[1] + 0.3 * ideal(X, 6))


def sharpened(y: Matrix, P: Matrix, h: float, order: int) -> Matrix:
    term, total = y, y
    for j in range(1, order + 1):
        term = term @ P
        total = total + (-h) ** j / factorial(j) * term
    return total


def dense_bspm_rk4(X: Matrix) -> Matrix:
    P = symmetric(X)[1]
    return sharpened(X @ P + 0.2 * X @ ideal(X, 7), P, 2.5, 4)


def dense_bspm_average(X: Matrix) -> Matrix:
    P = symmetric(X)[1]
    b, i = X @ P, X @ ideal(X, 7)
    one = sharpened(b + 0.3 * i, P, 0.6, 1)
    return (b + one + sharpened(one, P, 0.6, 1)) / 3


def dense_bspm_late(X: Matrix) -> Matrix:
    P = symmetric(X)[1]
    b, i = X @ P, X @ ideal(X, 7)
    one = sharpened(b, P, 1.1, 4)
    return sharpened(one, P, 1.1, 4) + 0.3 * i


def dense_bspm_late_average(X: Matrix) -> Matrix:
    P = symmetric(X)[1]
    b = X @ P
    return (b + sharpened(b, P, 1.2, 1)) / 2 + 0.3 * X @ ideal(X, 7)


def turbo_graph(X: Matrix, a: float, s: float) -> Matrix:
    users, items = (np.where(total > 0, total, 1) for total in (X.sum(1), X.sum(0)))
    R = X / users[:, None] ** a / items ** (1 - a)
    return np.asarray((R.T @ R) ** s)


def dense_turbo(X: Matrix, a: float, s: float, order: int) -> Matrix:
    Q = turbo_graph(X, a, s)
    H = {
        1: Q,
        2: 2 * Q - Q @ Q,
        3: Q + 0.01 * (-Q @ Q @ Q + 10 * Q @ Q - 29 * Q),
    }[order]
    return X @ H


def dense_svdae(X: Matrix) -> Matrix:
    A, _, items = symmetric(X)
    U, S, Vt = np.linalg.svd(A, full_matrices=False)
    B = Vt[:8].T / S[:8] @ U[:, :8].T @ X
    return X / np.sqrt(items) @ B


def homophily_by_loop(X: Matrix) -> Matrix:
    out = np.zeros(len(X))
    for u, row in enumerate(X):
        items = np.flatnonzero(row)
        pairs = [(i, j) for i in items for j in items if i != j]
        shared = [(np.delete(X[:, i] * X[:, j], u) > 0).any() for i, j in pairs]
        out[u] = np.mean(shared) if pairs else 0
    return out


def dense_sgfcf(X: Matrix, shift: float = 0.0, exponent: float = 0.34) -> Matrix:
    users, items = (np.where(X.sum(axis) + shift > 0, X.sum(axis) + shift, 1) for axis in (1, 0))
    A = X / users[:, None] ** exponent / items**exponent
    U, S, Vt = np.linalg.svd(A, full_matrices=False)
    U, v, V = U[:, :9], S[:9] / S[0], Vt[:9].T

    def smoothing(h: Matrix) -> Matrix:
        return 0.3 + 2.2 * (h - h.min()) / np.ptp(h)

    w_u, w_i = smoothing(homophily_by_loop(X)), smoothing(homophily_by_loop(X.T))
    r = (U * v ** w_u[:, None]) @ (V * v ** w_i[:, None]).T
    t = A @ A.T @ A
    return r / np.abs(r.sum(1, keepdims=True)) + 1.6 * t / t.sum(1, keepdims=True)


BSPM_LATE = {"merge": "late", "strength": 0.3, "n_factors": 7}
CASES: dict[str, tuple[Callable[[], Recommender], Callable[[Matrix], Matrix]]] = {
    "GFCF": (lambda: eq.GFCF(n_factors=6, strength=0.3), dense_gfcf),
    "GFCF linear": (lambda: eq.GFCF(strength=0.0), lambda X: X @ symmetric(X)[1]),
    "BSPM rk4": (
        lambda: eq.BSPM(n_factors=7, strength=0.2, solver="rk4", time=2.5),
        dense_bspm_rk4,
    ),
    "BSPM average": (
        lambda: eq.BSPM(n_factors=7, strength=0.3, time=1.2, steps=2, average=True),
        dense_bspm_average,
    ),
    "BSPM late": (lambda: eq.BSPM(**BSPM_LATE, solver="rk4", steps=2, time=2.2), dense_bspm_late),
    "BSPM late average": (
        lambda: eq.BSPM(**BSPM_LATE, time=1.2, average=True),
        dense_bspm_late_average,
    ),
    "BSPM linear": (
        lambda: eq.BSPM(strength=0.0, time=0.5),
        lambda X: sharpened(X @ symmetric(X)[1], symmetric(X)[1], 0.5, 1),
    ),
    **{
        f"TurboCF {a} {s} {order}": (
            lambda a=a, s=s, order=order: eq.TurboCF(user_exponent=a, power=s, order=order),
            lambda X, a=a, s=s, order=order: dense_turbo(X, a, s, order),
        )
        for a, s, order in [(0.6, 0.7, 1), (0.6, 0.7, 2), (0.4, 1.3, 3), (0.6, 1.0, 2)]
    },
    "TurboCF 1": (lambda: eq.TurboCF(), lambda X: dense_turbo(X, 0.5, 1.0, 1)),
    "TurboCF 3": (lambda: eq.TurboCF(order=3), lambda X: dense_turbo(X, 0.5, 1.0, 3)),
    "SVDAE": (lambda: eq.SVDAE(n_factors=8, power_iterations=None), dense_svdae),
    "SGFCF": (lambda: eq.SGFCF(n_factors=9), dense_sgfcf),
    "SGFCF shift": (
        lambda: eq.SGFCF(n_factors=9, shift=4.0, exponent=0.5),
        lambda X: dense_sgfcf(X, 4.0, 0.5),
    ),
}
STRONG = [name for name in CASES if not name.startswith("SGFCF")]
