"""Polynomials of a sparse item-item matrix, as a term of the ranker and on blocks of vectors.

What graph filters share as models: fitting, asking and saving.

Linear graph filters: GF-CF, BSPM, Turbo-CF and SVD-AE.

With A = D_U^-1/2 X D_I^-1/2 and P = A^T A, whose eigenvalues lie in [0, 1], a filter scores a
history x by x times a polynomial of P, by the projection of x on the largest eigenvectors V of P,
or by both. D_U and D_I are the sums of rows and columns of X.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import factorial
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numpy.polynomial import Polynomial

from equipoise import machine
from equipoise.errors import DataError, FileFormatError, NotFittedError, SettingError, TooBigError
from equipoise.interactions import Interactions
from equipoise.kernels import Floats, compiled
from equipoise.machine import free_memory, gigabytes, limited
from equipoise.manifest import Fields
from equipoise.models.base import Recommender, at_once
from equipoise.models.saving import sparse_arrays, sparse_from
from equipoise.normalize import check_number, power
from equipoise.ranking.terms import Adder, LowRank, Rows, Sparse, Term
from equipoise.storage import Stored
from equipoise.svd import normalised, spectrum, sums

Array = npt.NDArray[Any]


LANES = 32  # vectors multiplied at a time: two cache lines of each


@dataclass(frozen=True, eq=False)
class PolynomialTerm(Term):
    """Scores ``(x * source) @ (c_0 I + c_1 M + c_2 M^2 + ...) * target``.

    The powers are products of M with the history, one after the other: neither they nor M = A^T A
    are formed. Users are independent lanes of these products, so their scores have the same bits
    in any batch.

    Parameters
    ----------
    matrix
        A, sparse with n columns; or M itself, symmetric, with ``gram=False``.
    coefficients
        c_0, c_1, ...
    source, target
        A factor for each item of the history, and for each item that is scored.
    """

    matrix: Any
    coefficients: Sequence[float]
    source: Array
    target: Array
    gram: bool = True

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.target)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the sums."""
        found: np.dtype[Any] = self.matrix.dtype
        return found

    @property
    def held(self) -> int:
        """The scores of all items: they come at once."""
        return self.n_items

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds this term's scores to a block of columns."""
        weights = rows.weights(self.source, self.dtype)
        user = np.repeat(np.arange(len(rows)), np.diff(rows.indptr))
        target = self.target.astype(self.dtype, copy=False)
        total = np.empty((len(rows), self.n_items), self.dtype)
        for low in range(0, len(rows), LANES):
            high = min(low + LANES, len(rows))
            part = slice(rows.indptr[low], rows.indptr[high])
            Y = np.zeros((self.n_items, high - low), self.dtype)
            Y[rows.indices[part], user[part] - low] = weights[part]
            Y = polynomial_of(self.matrix, self.coefficients, Y, gram=self.gram)
            np.multiply(Y.T, target, out=total[low:high])

        def add(scores: Floats, low: int) -> None:
            scores += total[:, low : low + scores.shape[1]]

        return add


def polynomial_of(
    matrix: Any, coefficients: Sequence[float], Y: Array, *, gram: bool = True
) -> Array:
    """Return c_0 Y + c_1 M Y + c_2 M^2 Y + ... with M = A^T A, or M itself if not `gram`."""
    product = _gram_product if gram else _product
    csr = (matrix.indptr, matrix.indices, matrix.data)
    factors = [matrix.dtype.type(factor) for factor in coefficients]
    total: Array = factors[0] * Y
    for factor in factors[1:]:
        fresh = np.zeros_like(Y)
        product(*csr, Y, fresh)
        Y = fresh
        if factor:
            total += factor * Y
    return total


def filtered_rows(matrix: Any, coefficients: Sequence[float], right: Array) -> Array:
    """Return right @ (c_0 I + c_1 M + ...), strip by strip on the threads in force; M = A^T A."""
    out = np.empty_like(right)

    def strip(number: int) -> None:
        some = slice(number * LANES, (number + 1) * LANES)
        columns = np.ascontiguousarray(right[some].T)
        out[some] = polynomial_of(matrix, coefficients, columns).T

    machine.run(strip, -(-len(right) // LANES))
    return out


@compiled
def _gram_product(indptr: Any, indices: Any, data: Any, Y: Any, out: Any) -> None:
    """Add A^T (A Y) to `out` in one pass over the rows of A."""
    lanes = Y.shape[1]
    inner = np.empty(lanes, Y.dtype)
    for row in range(len(indptr) - 1):
        inner[:] = 0
        for place in range(indptr[row], indptr[row + 1]):
            value, item = data[place], indices[place]
            for lane in range(lanes):
                inner[lane] += value * Y[item, lane]
        for place in range(indptr[row], indptr[row + 1]):
            value, item = data[place], indices[place]
            for lane in range(lanes):
                out[item, lane] += value * inner[lane]


@compiled
def _product(indptr: Any, indices: Any, data: Any, Y: Any, out: Any) -> None:
    """Add A Y to `out`."""
    lanes = Y.shape[1]
    for row in range(len(indptr) - 1):
        total = out[row]
        for place in range(indptr[row], indptr[row + 1]):
            value, item = data[place], indices[place]
            for lane in range(lanes):
                total[lane] += value * Y[item, lane]


DTYPES = ("float32", "float64")


@dataclass(kw_only=True, eq=False)
class GraphFilter(Recommender):
    """Base of the graph filters: a subclass learns arrays and makes terms of them.

    Attributes
    ----------
    arrays_
        What fitting learned beyond the data, by name; saved with the model.
    dtype_
        Precision of arrays and scores.
    """

    arrays_: dict[str, Any] = field(init=False, repr=False)
    dtype_: str = field(init=False, repr=False)
    _built: list[Term] = field(init=False, repr=False)

    @at_once
    def fit(
        self,
        interactions: Interactions,
        *,
        dtype: str = "float32",
        threads: int | None = None,
    ) -> Self:
        """Learn the filter and return self.

        Parameters
        ----------
        interactions
            Training data.
        dtype
            "float32" or "float64".
        threads
            Number of threads; None uses all.
        """
        if not isinstance(interactions, Interactions):
            raise DataError("fit needs Interactions; make them with eq.read(...)")
        if dtype not in DTYPES:
            raise SettingError(f"dtype must be 'float32' or 'float64', got {dtype!r}")
        if not interactions.n_interactions:
            raise DataError("fit needs at least one interaction")
        with limited(threads):
            arrays = self._learn(interactions, dtype)
        self._take(interactions, arrays, dtype)
        return self

    def terms(self, alpha: float | None = None) -> list[Term]:
        """Return the terms of the filter; it has no popularity dial, so `alpha` must be None."""
        if alpha is not None:
            raise SettingError(f"{type(self).__name__} has no popularity dial; leave alpha out")
        if not hasattr(self, "_built"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")
        return self._built

    def _learn(self, interactions: Interactions, dtype: str) -> dict[str, Any]:
        """Return what has to be computed and saved, by name."""
        return {}

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the names and shapes of what `_learn` gives, for `load` to check."""
        return {}

    @abstractmethod
    def _make(self, interactions: Interactions, arrays: dict[str, Any], dtype: str) -> list[Term]:
        """Return the terms."""

    def _take(self, interactions: Interactions, arrays: dict[str, Any], dtype: str) -> None:
        self._built = self._make(interactions, arrays, dtype)
        self.interactions_, self.arrays_, self.dtype_ = interactions, arrays, dtype

    def _state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        return {"dtype": self.dtype_}, self.arrays_

    def _restore(self, state: Fields, stored: Stored) -> None:
        dtype = state.text("dtype", DTYPES)
        arrays = self._restored(stored)
        if any(array.dtype != dtype for array in arrays.values() if array.dtype.kind == "f"):
            raise FileFormatError(f"its arrays are not {dtype}")
        self._take(self.interactions_, arrays, dtype)

    def _restored(self, stored: Stored) -> dict[str, Any]:
        return {name: stored.finite(name, shape) for name, shape in self._shapes().items()}


def check_factors(factors: Any) -> None:
    """Refuse what cannot be a number of vectors."""
    if isinstance(factors, bool) or not isinstance(factors, int) or factors < 1:
        raise SettingError(f"factors must be a whole number >= 1, got {factors!r}")


def check_weight(name: str, value: Any) -> None:
    """Refuse what cannot be a weight."""
    if check_number(name, value) < 0:
        raise SettingError(f"{name} must be >= 0, got {value}")


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
