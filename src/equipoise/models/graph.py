"""Linear graph filters: GF-CF, BSPM, Turbo-CF and SVD-AE.

With A = D_U^-1/2 X D_I^-1/2 and P = A^T A, whose eigenvalues lie in [0, 1], a filter scores a
history x by x times a polynomial of P, by the projection of x on the largest eigenvectors V of P,
or by both. D_U and D_I are the sums of rows and columns of X.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import factorial
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.polynomial import Polynomial

from equipoise.errors import SettingError, TooBigError
from equipoise.interactions import Interactions
from equipoise.machine import free_memory, gigabytes
from equipoise.models.filters import Array, GraphFilter, check_factors, check_weight
from equipoise.models.saving import sparse_arrays, sparse_from
from equipoise.normalize import check_number, power
from equipoise.polynomials import PolynomialTerm, filtered_rows
from equipoise.spectra import normalised, spectrum, sums
from equipoise.storage import Stored
from equipoise.terms import LowRank, Sparse, Term

RANK_TOLERANCE = 1e-6  # singular values below this share of the largest count as 0
MOST_STEPS = 100  # of BSPM; numpy raises polynomials to no higher power
POLYNOMIALS = {1: (0, 1), 2: (0, 2, -1), 3: (0, 0.71, 0.1, -0.01)}  # of Turbo-CF


@dataclass(kw_only=True, eq=False)
class GFCF(GraphFilter):
    """Linear plus ideal low-pass filter (Shen et al., CIKM 2021).

    Scores x P + strength * x D_I^-1/2 V V^T D_I^1/2.

    Parameters
    ----------
    factors
        Number of columns of V, the part of the spectrum that passes the ideal filter.
    strength
        Weight of the ideal filter, 0 to 1; 0 leaves it out.

    Examples
    --------
    >>> import equipoise as eq
    >>> data = eq.read([("ann", "tea"), ("ann", "milk"), ("bob", "tea"), ("cleo", "milk")])
    >>> eq.GFCF(factors=1).fit(data).recommend([["tea"]], k=1).items
    [['milk']]
    """

    factors: int = 256
    strength: float = 0.3

    def __post_init__(self) -> None:
        check_factors(self.factors)
        check_weight("strength", self.strength)

    def _learn(self, interactions: Interactions, dtype: str) -> dict[str, Array]:
        if not self.strength:
            return {}
        return {"right": spectrum(interactions, self.factors, dtype=dtype).right}

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        if not self.strength:
            return {}
        m, n = self.interactions_.matrix.shape
        return {"right": (min(self.factors, m, n), n)}

    def _make(self, interactions: Interactions, arrays: dict[str, Any], dtype: str) -> list[Term]:
        ones = np.ones(interactions.n_items, dtype)
        terms: list[Term] = [PolynomialTerm(_filter(interactions, dtype), (0, 1), ones, ones)]
        if self.strength:
            counts = sums(interactions)[1]
            source, target = power(counts, -0.5), self.strength * power(counts, 0.5)
            terms.append(_low_rank(arrays["right"], arrays["right"], source, target))
        return terms


@dataclass(kw_only=True, eq=False)
class BSPM(GraphFilter):
    """Blurring and sharpening of the history (Choi et al., SIGIR 2023).

    Blurred b = x P and i = x D_I^-1/2 V V^T D_I^1/2; sharpened by the equation y' = -y P, solved
    with so few steps that the solver's polynomial is the model.

    Parameters
    ----------
    factors
        Number of columns of V.
    strength
        Weight of i beside b, 0 to 1; 0 leaves it out.
    solver
        "euler" or "rk4".
    time
        How long to sharpen, 0 to 3.
    steps
        Number of equal steps of the solver.
    merge
        "early" sharpens b + strength * i; "late" sharpens b and adds strength * i afterwards.
    average
        Score by the mean of b and the state after each step, not by the last state.
    """

    factors: int = 256
    strength: float = 0.3
    solver: Literal["euler", "rk4"] = "euler"
    time: float = 1.0
    steps: int = 1
    merge: Literal["early", "late"] = "early"
    average: bool = False

    def __post_init__(self) -> None:
        check_factors(self.factors)
        check_weight("strength", self.strength)
        check_weight("time", self.time)
        if self.solver not in ("euler", "rk4"):
            raise SettingError(f"solver must be 'euler' or 'rk4', got {self.solver!r}")
        if self.merge not in ("early", "late"):
            raise SettingError(f"merge must be 'early' or 'late', got {self.merge!r}")
        whole = isinstance(self.steps, int) and not isinstance(self.steps, bool)
        if not whole or not 1 <= self.steps <= MOST_STEPS:
            raise SettingError(
                f"steps must be a whole number from 1 to {MOST_STEPS}, got {self.steps!r}"
            )

    def polynomials(self) -> tuple[list[float], list[float]]:
        """Coefficients of f and g, where the scores are x P f(P) + strength * i g(P)."""
        order = 1 if self.solver == "euler" else 4
        h = self.time / self.steps
        step = Polynomial([(-h) ** j / factorial(j) for j in range(order + 1)])
        states = [step**number for number in range(self.steps + 1)]
        blurred = sharpened = states[-1]
        if self.average:  # the blurred state itself counts for b only
            sharpened = sum(states[1:], Polynomial([0])) / len(states)
            blurred = sharpened + states[0] / len(states)
        return list(blurred.coef), list(sharpened.coef) if self.merge == "early" else [1.0]

    def _learn(self, interactions: Interactions, dtype: str) -> dict[str, Array]:
        if not self.strength:
            return {}
        left = spectrum(interactions, self.factors, dtype=dtype).right
        scale = power(sums(interactions)[1], 0.5).astype(dtype)
        # i g(P) = x D_I^-1/2 V [V^T D_I^1/2 g(P)]: the bracket is a thin factor
        sharpened = self.polynomials()[1]
        right = filtered_rows(_filter(interactions, dtype), sharpened, left * scale)
        return {"left": left, "right": right}

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        if not self.strength:
            return {}
        m, n = self.interactions_.matrix.shape
        return dict.fromkeys(("left", "right"), (min(self.factors, m, n), n))

    def _make(self, interactions: Interactions, arrays: dict[str, Any], dtype: str) -> list[Term]:
        ones = np.ones(interactions.n_items, dtype)
        coefficients = [0.0, *self.polynomials()[0]]
        terms: list[Term] = [
            PolynomialTerm(_filter(interactions, dtype), coefficients, ones, ones)
        ]
        if self.strength:
            source = power(sums(interactions)[1], -0.5)
            target = np.full(interactions.n_items, self.strength)
            terms.append(_low_rank(arrays["left"], arrays["right"], source, target))
        return terms


@dataclass(kw_only=True, eq=False)
class TurboCF(GraphFilter):
    """Polynomial filters of a normalised item graph, without any decomposition (SIGIR 2024).

    With R = D_U^-a X D_I^-(1-a) and Q = R^T R, each entry raised to `power`, scores x Q (order 1),
    x (2 Q - Q^2) (order 2) or x (Q + 0.01 (-Q^3 + 10 Q^2 - 29 Q)) (order 3).

    Parameters
    ----------
    user_exponent
        a, between 0 and 1: larger values discount active users, smaller ones popular items.
    power
        Exponent of each entry, 0.5 to 1.5. At 1 the graph is not formed at all.
    order
        1, 2 or 3; higher orders let through less of the local structure.
    """

    user_exponent: float = 0.5
    power: float = 1.0
    order: int = 1

    def __post_init__(self) -> None:
        check_number("user_exponent", self.user_exponent)
        if check_number("power", self.power) <= 0:
            raise SettingError(f"power must be > 0, got {self.power}")
        if self.order not in POLYNOMIALS:
            raise SettingError(f"order must be 1, 2 or 3, got {self.order!r}")

    def _learn(self, interactions: Interactions, dtype: str) -> dict[str, Array]:
        if self.power == 1:
            return {}
        counts = interactions.user_counts
        most = min(int((counts.astype(np.float64) ** 2).sum()), interactions.n_items**2)
        needed = 2 * most * (np.dtype(dtype).itemsize + 4)
        if needed > free_memory():
            raise TooBigError(
                f"the item graph may need {gigabytes(needed)}; with power=1 it is not formed"
            )
        R = normalised(interactions, self.user_exponent, 1 - self.user_exponent).astype(dtype)
        graph: Any = (R.T @ R).tocsr()
        graph.sort_indices()
        graph.data **= graph.data.dtype.type(self.power)
        return sparse_arrays(graph, "graph")

    def _make(self, interactions: Interactions, arrays: dict[str, Any], dtype: str) -> list[Term]:
        ones = np.ones(interactions.n_items, dtype)
        if self.power == 1:
            R = normalised(interactions, self.user_exponent, 1 - self.user_exponent)
            return [PolynomialTerm(R.astype(dtype), POLYNOMIALS[self.order], ones, ones)]
        data, indices, indptr = (arrays[f"graph_{part}"] for part in ("data", "indices", "indptr"))
        if self.order == 1:
            return [Sparse(data, indices, indptr, ones, ones, zero_diagonal=False)]
        graph: Any = sp.csr_array((data, indices, indptr), shape=(len(ones), len(ones)))
        return [PolynomialTerm(graph, POLYNOMIALS[self.order], ones, ones, gram=False)]

    def _restored(self, stored: Stored) -> dict[str, Any]:
        if self.power == 1:
            return {}
        return sparse_arrays(sparse_from(stored, "graph", len(self.item_index_)), "graph")


@dataclass(kw_only=True, eq=False)
class SVDAE(GraphFilter):
    """Autoencoder by a truncated pseudo-inverse (Hong et al., IJCAI 2024).

    Minimises ||X - A B|| over the matrices B = V S^-1 U^T X on the largest singular triples of A;
    scores x D_I^-1/2 B. The authors' SVD is a rough one, which is better than the exact one here:
    directions of small singular values, which the inverse would blow up, are blurred.

    Parameters
    ----------
    share
        Rank as a share of the shorter side of the matrix.
    factors
        The rank itself, in place of the share.
    power_iterations
        Rounds of the randomised SVD; None for the exact one.
    """

    share: float = 0.04
    factors: int | None = None
    power_iterations: int | None = 2

    def __post_init__(self) -> None:
        if not 0 < check_number("share", self.share) <= 1:
            raise SettingError(f"share must lie in (0, 1], got {self.share}")
        if self.factors is not None:
            check_factors(self.factors)
        if self.power_iterations is not None and (
            isinstance(self.power_iterations, bool)
            or not isinstance(self.power_iterations, int)
            or self.power_iterations < 0
        ):
            raise SettingError(
                f"power_iterations must be a whole number >= 0 or None, got "
                f"{self.power_iterations!r}"
            )

    def rank_on(self, interactions: Interactions) -> int:
        """Return the rank on these data."""
        shorter = min(interactions.matrix.shape)
        return min(self.factors or max(round(self.share * shorter), 1), shorter)

    def _learn(self, interactions: Interactions, dtype: str) -> dict[str, Array]:
        rank, rounds = self.rank_on(interactions), self.power_iterations
        found = spectrum(interactions, rank, dtype=dtype, power_iterations=rounds)
        X = interactions.matrix.astype(dtype)
        # S^-1 U^T X = S^-2 V^T A^T X, since U = A V S^-1
        left = _filter(interactions, dtype) @ found.right.T
        values = found.values.astype(np.float64)
        real = values > RANK_TOLERANCE * values[0]
        inverse = np.where(real, 1 / np.where(real, values, 1) ** 2, 0)
        right = np.ascontiguousarray((X.T @ left).T * inverse[:, None].astype(dtype))
        return {"left": found.right, "right": right.astype(dtype, copy=False)}

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        rank = self.rank_on(self.interactions_)
        return dict.fromkeys(("left", "right"), (rank, self.interactions_.n_items))

    def _make(self, interactions: Interactions, arrays: dict[str, Any], dtype: str) -> list[Term]:
        source = power(sums(interactions)[1], -0.5)
        return [_low_rank(arrays["left"], arrays["right"], source, np.ones(len(source)))]


def _filter(interactions: Interactions, dtype: str) -> Any:
    return normalised(interactions).astype(dtype)


def _low_rank(left: Array, right: Array, source: Array, target: Array) -> LowRank:
    """Term of two factors that both hold a vector per row."""
    return LowRank(np.ascontiguousarray(left.T), right, source, target)
