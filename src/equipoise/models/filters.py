"""Linear graph filters: GF-CF, BSPM, Turbo-CF, SVD-AE and SGFCF.

With A = D_U^-1/2 X D_I^-1/2 and P = A^T A, whose eigenvalues lie in [0, 1], a filter scores a
history x by x times a polynomial of P, by the projection of x on the largest eigenvectors V of P,
or by both. D_U and D_I are the sums of rows and columns of X.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from math import factorial
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from numpy.polynomial import Polynomial

from equipoise.checks import choice, count, fraction, non_negative, number, positive
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr
from equipoise.data.storage import Fields, Stored
from equipoise.errors import DataError, FileFormatError, SettingError, TooBigError
from equipoise.models.base import Recommender, SearchSpace, names_fit_options
from equipoise.models.histories import KnownUsers
from equipoise.models.saving import SPARSE, Shapes
from equipoise.normalize import power
from equipoise.ranking.polynomial import PolynomialTerm, filtered_rows
from equipoise.ranking.terms import Adder, DerivedTerm, LowRank, Rows, Sparse, Term
from equipoise.runtime.kernels import Floats, compiled
from equipoise.runtime.machine import free_memory, gigabytes
from equipoise.solve.planning import DTYPES, SolveOptions
from equipoise.solve.svd import normalised, spectrum, sums

Array = npt.NDArray[Any]
# falling: a smaller spectrum is cut from a larger one, so that one SVD serves a search
FACTORS = (512, 256, 128, 64, 32)


@dataclass(kw_only=True, eq=False)
class GraphFilter(Recommender):
    """Base of the graph filters: a subclass computes arrays, and terms from these.

    Attributes
    ----------
    dtype_
        Precision of arrays and scores.
    """

    dtype_: str = field(init=False, repr=False)

    @names_fit_options
    def fit(
        self, interactions: Any, *, dtype: str = "float32", threads: int | None = None
    ) -> Self:
        """Fit the model as `Recommender.fit`, with scores of the precision `dtype`."""
        return self._fit_model(interactions, SolveOptions(dtype=dtype, threads=threads))

    def _fit(self, data: Interactions, options: SolveOptions) -> None:
        self.dtype_ = options.dtype
        if not data.n_interactions:
            raise DataError("fit needs at least one interaction; the data have none")
        self._keep(data, self._learn(data))

    def _refit_options(self) -> SolveOptions:
        return SolveOptions(dtype=self.dtype_)

    def _learn(self, interactions: Interactions) -> dict[str, Any]:
        """Return the arrays to compute and save, by name, in the precision `dtype_`."""
        return {}

    def _state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        return {"dtype": self.dtype_}, super()._state()[1]

    def _restore(self, state: Fields, stored: Stored) -> None:
        self.dtype_ = state.text("dtype", DTYPES)
        super()._restore(state, stored)
        if any(array.dtype != self.dtype_ for array in self.arrays_.values()):
            raise FileFormatError(f"its arrays are not {self.dtype_}")

    def _thin(self, n_factors: int) -> tuple[int, int]:
        """Return the shape of an array with a row for each singular vector."""
        m, n = self.interactions_.n_users, self.interactions_.n_items
        return min(n_factors, m, n), n


RANK_TOLERANCE = 1e-6  # singular values below this share of the largest count as 0
MOST_STEPS = 100  # of BSPM; numpy raises polynomials to no higher power
POLYNOMIALS = {1: (0, 1), 2: (0, 2, -1), 3: (0, 0.71, 0.1, -0.01)}  # of Turbo-CF


@dataclass(kw_only=True, eq=False)
class GFCF(GraphFilter):
    """Linear plus ideal low-pass filter (Shen et al., CIKM 2021).

    Scores x P + strength * x D_I^-1/2 V V^T D_I^1/2.

    Parameters
    ----------
    n_factors
        Number of columns of V, the eigenvectors that pass the ideal filter.
    strength
        Weight of the ideal filter, 0 to 1; 0 leaves it out.

    Examples
    --------
    >>> import equipoise as eq
    >>> data = eq.read([("ann", "tea"), ("ann", "milk"), ("bob", "tea"), ("cleo", "milk")])
    >>> eq.GFCF(n_factors=1).fit(data).recommend([["tea"]], k=1).items
    [['milk']]
    """

    search_space: ClassVar[SearchSpace] = {
        "n_factors": FACTORS,
        "strength": (0.0, 0.1, 0.2, 0.3, 0.5, 1.0),
    }

    n_factors: int = 256
    strength: float = 0.3

    def __post_init__(self) -> None:
        count("n_factors", self.n_factors)
        non_negative("strength", self.strength)

    def _learn(self, interactions: Interactions) -> dict[str, Array]:
        if not self.strength:
            return {}
        return {"right": spectrum(interactions, self.n_factors, dtype=self.dtype_).right}

    def _shapes(self) -> Shapes:
        return {"right": self._thin(self.n_factors)} if self.strength else {}

    def _make(self, interactions: Interactions, arrays: dict[str, Any]) -> list[Term]:
        ones = np.ones(interactions.n_items, self.dtype_)
        A = _filter(interactions, self.dtype_)
        terms: list[Term] = [PolynomialTerm(A, (0, 1), ones, ones)]
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
    n_factors
        Number of columns of V.
    strength
        Weight of i beside b, 0 to 1; 0 leaves it out.
    solver
        "euler" or "rk4".
    time
        Duration of the sharpening, 0 to 3.
    steps
        Number of equal steps of the solver.
    merge
        "early" sharpens b + strength * i; "late" sharpens b and adds strength * i afterwards.
    average
        Score by the mean of b and the state after each step, not by the last state.
    """

    search_space: ClassVar[SearchSpace] = {
        "n_factors": FACTORS[:4],
        "strength": (0.1, 0.3, 0.5),
        "time": (0.5, 1.0, 2.0),
        "merge": ("early", "late"),
    }

    n_factors: int = 256
    strength: float = 0.3
    solver: Literal["euler", "rk4"] = "euler"
    time: float = 1.0
    steps: int = 1
    merge: Literal["early", "late"] = "early"
    average: bool = False

    def __post_init__(self) -> None:
        count("n_factors", self.n_factors)
        non_negative("strength", self.strength)
        non_negative("time", self.time)
        choice("solver", self.solver, ("euler", "rk4"))
        choice("merge", self.merge, ("early", "late"))
        choice("average", self.average, (False, True))
        count("steps", self.steps, most=MOST_STEPS)

    def polynomials(self) -> tuple[list[float], list[float]]:
        """Return the coefficients of f and g: the scores are x P f(P) + strength * i g(P)."""
        order = 1 if self.solver == "euler" else 4
        h = self.time / self.steps
        step = Polynomial([(-h) ** j / factorial(j) for j in range(order + 1)])
        states = [step**number for number in range(self.steps + 1)]
        blurred = sharpened = states[-1]
        if self.average:  # the blurred state itself counts for b only
            sharpened = sum(states[1:], Polynomial([0])) / len(states)
            blurred = sharpened + states[0] / len(states)
        return list(blurred.coef), list(sharpened.coef) if self.merge == "early" else [1.0]

    def _learn(self, interactions: Interactions) -> dict[str, Array]:
        if not self.strength:
            return {}
        left = spectrum(interactions, self.n_factors, dtype=self.dtype_).right
        scale = power(sums(interactions)[1], 0.5).astype(self.dtype_)
        # i g(P) = x D_I^-1/2 V [V^T D_I^1/2 g(P)]: the bracket is a thin factor
        sharpened = self.polynomials()[1]
        right = filtered_rows(_filter(interactions, self.dtype_), sharpened, left * scale)
        return {"left": left, "right": right}

    def _shapes(self) -> Shapes:
        both = dict.fromkeys(("left", "right"), self._thin(self.n_factors))
        return both if self.strength else {}

    def _make(self, interactions: Interactions, arrays: dict[str, Any]) -> list[Term]:
        ones = np.ones(interactions.n_items, self.dtype_)
        A = _filter(interactions, self.dtype_)
        terms: list[Term] = [PolynomialTerm(A, [0.0, *self.polynomials()[0]], ones, ones)]
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
        1, 2 or 3; higher orders pass less of the local structure.
    """

    search_space: ClassVar[SearchSpace] = {
        "order": (1, 2, 3),
        "user_exponent": (0.3, 0.4, 0.5, 0.6),
        "power": (0.6, 0.8, 1.0, 1.3),
    }

    user_exponent: float = 0.5
    power: float = 1.0
    order: int = 1

    def __post_init__(self) -> None:
        number("user_exponent", self.user_exponent)
        positive("power", self.power)
        choice("order", self.order, POLYNOMIALS)

    def _learn(self, interactions: Interactions) -> dict[str, Any]:
        if self.power == 1:
            return {}
        counts = interactions.user_counts
        most = min(int((counts.astype(np.float64) ** 2).sum()), interactions.n_items**2)
        needed = 2 * most * (np.dtype(self.dtype_).itemsize + 4)
        if needed > free_memory():
            raise TooBigError(
                f"the item graph may need {gigabytes(needed)}; with power=1 it is not formed"
            )
        R = self._graph_root(interactions)
        graph: Any = (R.T @ R).tocsr()
        graph.sort_indices()
        graph.data **= graph.data.dtype.type(self.power)
        return {"graph": graph}

    def _shapes(self) -> Shapes:
        return {} if self.power == 1 else {"graph": SPARSE}

    def _make(self, interactions: Interactions, arrays: dict[str, Any]) -> list[Term]:
        ones = np.ones(interactions.n_items, self.dtype_)
        coefficients = POLYNOMIALS[self.order]
        if self.power == 1:
            return [PolynomialTerm(self._graph_root(interactions), coefficients, ones, ones)]
        Q = arrays["graph"]
        if self.order == 1:
            return [Sparse(Q.data, Q.indices, Q.indptr, ones, ones, zero_diagonal=False)]
        return [PolynomialTerm(Q, coefficients, ones, ones, gram=False)]

    def _graph_root(self, interactions: Interactions) -> Any:
        """Return R, of which Q = R^T R."""
        R = normalised(interactions, self.user_exponent, 1 - self.user_exponent)
        return R.astype(self.dtype_)


@dataclass(kw_only=True, eq=False)
class SVDAE(GraphFilter):
    """Autoencoder by a truncated pseudo-inverse (Hong et al., IJCAI 2024).

    Minimises ||X - A B|| over the matrices B = V S^-1 U^T X on the largest singular triples of A;
    scores x D_I^-1/2 B. The authors' approximate SVD gives better results than an exact one: it
    blurs directions of small singular values, which the inverse would amplify.

    Parameters
    ----------
    n_factors
        Number of singular triples; a float is a share of the shorter side of the matrix.
    power_iterations
        Rounds of the randomised SVD; None for the exact one.
    """

    search_space: ClassVar[SearchSpace] = {"n_factors": (0.01, 0.02, 0.04, 0.08, 0.16)}

    n_factors: int | float = 0.04
    power_iterations: int | None = 2

    def __post_init__(self) -> None:
        if isinstance(self.n_factors, float):
            fraction("n_factors", self.n_factors, zero=False)
        else:
            count("n_factors", self.n_factors)
        if self.power_iterations is not None:
            count("power_iterations", self.power_iterations, least=0)

    def rank_on(self, interactions: Interactions) -> int:
        """Return the number of singular triples on these data."""
        shorter = min(interactions.n_users, interactions.n_items)
        if isinstance(self.n_factors, float):
            return max(round(self.n_factors * shorter), 1)
        return min(self.n_factors, shorter)

    def _learn(self, interactions: Interactions) -> dict[str, Array]:
        rank, rounds, dtype = self.rank_on(interactions), self.power_iterations, self.dtype_
        triples = spectrum(interactions, rank, dtype=dtype, power_iterations=rounds)
        X = interactions.matrix.astype(dtype)
        # S^-1 U^T X = S^-2 V^T A^T X, since U = A V S^-1
        left = _filter(interactions, dtype) @ triples.right.T
        values = triples.values.astype(np.float64)
        real = values > RANK_TOLERANCE * values[0]
        inverse = np.where(real, 1 / np.where(real, values, 1) ** 2, 0)
        right = np.ascontiguousarray((X.T @ left).T * inverse[:, None].astype(dtype))
        return {"left": triples.right, "right": right.astype(dtype, copy=False)}

    def _shapes(self) -> Shapes:
        return dict.fromkeys(("left", "right"), self._thin(self.rank_on(self.interactions_)))

    def _make(self, interactions: Interactions, arrays: dict[str, Any]) -> list[Term]:
        source = power(sums(interactions)[1], -0.5)
        return [_low_rank(arrays["left"], arrays["right"], source, np.ones(len(source)))]


@dataclass(kw_only=True, eq=False)
class SGFCF(GraphFilter):
    """Simplified graph filter with individual strength (Peng et al., KDD 2024).

    With A = (D_U + shift)^-e X (D_I + shift)^-e = U S V^T and singular values v relative to the
    largest, the score of user u and item i is r / sum(r) + strength * t / sum(t), where
    r = sum_j U_uj v_j^(w_u + w_i) V_ij and t is row u of A A^T A. The exponents w rise from
    `weakest` to `strongest` with the homophily of the user and of the item.

    The exponents belong to the training users: other histories are an error.

    Parameters
    ----------
    n_factors
        Number of singular triples.
    exponent
        e, 0 to 0.5: discount of active users and popular items.
    shift
        Added to the counts, which lowers the discount.
    strength
        gamma, the weight of the unfiltered part beside the filtered one.
    weakest, strongest
        Smoothing at the lowest and at the highest homophily; equal values smooth all alike.
    """

    search_space: ClassVar[SearchSpace] = {
        "n_factors": FACTORS[:3],
        "exponent": (0.25, 0.34, 0.43),
        "strength": (0.5, 1.0, 1.6, 2.2),
        "strongest": (1.5, 2.5),
    }

    fold_in: ClassVar[bool] = False
    explains: ClassVar[bool] = False

    n_factors: int = 650
    exponent: float = 0.34
    shift: float = 0.0
    strength: float = 1.6
    weakest: float = 0.3
    strongest: float = 2.5

    def __post_init__(self) -> None:
        count("n_factors", self.n_factors)
        for name in ("shift", "strength", "weakest", "strongest"):
            non_negative(name, getattr(self, name))
        number("exponent", self.exponent)
        if self.strongest < self.weakest:
            raise SettingError(
                f"strongest must be >= weakest, got {self.strongest} and {self.weakest}"
            )

    def _learn(self, interactions: Interactions) -> dict[str, Array]:
        dtype = self.dtype_
        triples = spectrum(
            interactions,
            self.n_factors,
            user_exponent=self.exponent,
            item_exponent=self.exponent,
            shift=self.shift,
            dtype=dtype,
        )
        X = interactions.matrix
        return {
            "values": triples.values,
            "right": triples.right,
            "smoothing_users": self._smoothing(homophily_of_rows(X)).astype(dtype),
            "smoothing_items": self._smoothing(homophily_of_rows(X.T.tocsr())).astype(dtype),
        }

    def _smoothing(self, homophily: Array) -> Array:
        """Map homophily linearly to the exponents, the lowest to `weakest`."""
        spread = np.ptp(homophily)
        share = (homophily - homophily.min()) / (spread if spread else 1)
        return np.asarray(self.weakest + (self.strongest - self.weakest) * share)

    def _shapes(self) -> Shapes:
        (rank, n), m = self._thin(self.n_factors), self.interactions_.n_users
        smoothing = {"smoothing_users": (m,), "smoothing_items": (n,)}
        return {"values": (rank,), "right": (rank, n), **smoothing}

    def _make(self, interactions: Interactions, arrays: dict[str, Any]) -> list[Term]:
        dtype = self.dtype_
        A = normalised(interactions, self.exponent, self.exponent, self.shift).astype(dtype)
        values, right = np.asarray(arrays["values"]), np.asarray(arrays["right"])
        real = values > RANK_TOLERANCE * values[0]
        relative = np.where(real, values / values[0], 1)
        inverse = np.where(real, 1 / np.where(real, values, 1), 0)
        ones = np.ones(interactions.n_items, dtype)
        source = power(sums(interactions)[1] + self.shift, -self.exponent).astype(dtype)
        # U = A V S^-1: a user's row of U is the scaled history times V S^-1
        left = np.ascontiguousarray((right * inverse[:, None]).T)
        right = right * relative[:, None] ** arrays["smoothing_items"]
        return [
            PerUserTerm(
                term=LowRank(left, right, source, ones),
                # the exponents follow from the histories
                known=KnownUsers("SGFCF", interactions.matrix, alike=True),
                smoothing=arrays["smoothing_users"],
                relative=relative,
                largest=float(values[0]),
                sums=right.sum(axis=1),
                unfiltered=PolynomialTerm(A, (0, 1), source, ones),
                unfiltered_sums=source * (A.T @ (A @ ones)),
                strength=self.strength,
            )
        ]


@dataclass(frozen=True, eq=False)
class PerUserTerm(DerivedTerm):
    """Scores r / sum(r) + strength * t / sum(t) of known users; `term` is r without exponents.

    Factors of a user that cancel between a row and its sum, such as a power of the number of
    items, are left out.
    """

    term: LowRank
    known: KnownUsers  # the users with an exponent
    smoothing: Array  # exponent of each user
    relative: Array  # singular values relative to the largest
    largest: float  # singular value
    sums: Array  # of the rows of the term's right factor
    unfiltered: PolynomialTerm  # t
    unfiltered_sums: Array  # contribution of each item of a history to the sum of t
    strength: float

    @property
    def buffer_size(self) -> int:
        """A hidden vector and the unfiltered scores."""
        return super().buffer_size + self.unfiltered.buffer_size

    def _are_outside(self, rows: Rows, hidden: Floats) -> npt.NDArray[np.bool_]:
        """Flag the users whose factors are nothing but rounding errors.

        They have no connection to the users of the largest factors, and the sum that their part
        is divided by would be a rounding error too.
        """
        weights = rows.weights(self.term.source, self.dtype).astype(np.float64) ** 2
        lengths = np.add.reduceat(np.append(weights, 0), rows.indptr[:-1])
        # hidden is the history times V S^-1
        inside = (np.square(hidden, dtype=np.float64) * self.relative**2).sum(axis=1)
        return np.asarray(inside * self.largest**2 <= np.finfo(self.dtype).eps ** 1.5 * lengths)

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds this term's scores to a block of columns."""
        hidden = self.term.hidden(rows)
        hidden[self._are_outside(rows, hidden)] = 0
        for row, user in enumerate(self.known.places(rows)):
            hidden[row] *= self.relative ** self.smoothing[user]
        hidden /= _nonzero((hidden * self.sums).sum(axis=1))[:, None]
        parts = rows.weights(self.unfiltered_sums, self.dtype)
        ends = itertools.pairwise(rows.indptr.tolist())
        total = np.array([parts[start:stop].sum() for start, stop in ends], self.dtype)
        share = (self.dtype.type(self.strength) / _nonzero(total))[:, None]
        add_low, add_unfiltered = self.term.product(hidden), self.unfiltered.adder(rows)

        def add(scores: Floats, low: int) -> None:
            add_low(scores, low)
            unfiltered = np.zeros_like(scores)
            add_unfiltered(unfiltered, low)
            scores += share * unfiltered

        return add


def homophily_of_rows(X: Csr) -> npt.NDArray[np.float64]:
    """Return the share of a row's ordered pairs of columns that another row has; 0 without pairs.

    A row with d columns has d (d - 1) ordered pairs.
    """
    columns: Any = X.T.tocsr()
    pairs = np.zeros(X.shape[0], np.int64)
    _count_pairs(X.indptr, X.indices, columns.indptr, columns.indices, pairs)
    size = np.diff(X.indptr).astype(np.float64)
    return np.asarray(pairs / np.maximum(size * (size - 1), 1))


@compiled
def _count_pairs(indptr: Any, indices: Any, starts: Any, rows: Any, pairs: Any) -> None:
    """Count for each row the pairs of its columns that two or more rows share."""
    n_columns = len(starts) - 1
    together = np.zeros(n_columns, np.int64)
    for column in range(n_columns):
        column_rows = rows[starts[column] : starts[column + 1]]
        for row in column_rows:
            for place in range(indptr[row], indptr[row + 1]):
                together[indices[place]] += 1
        for row in column_rows:
            for place in range(indptr[row], indptr[row + 1]):
                other = indices[place]
                pairs[row] += other != column and together[other] >= 2
        for row in column_rows:
            for place in range(indptr[row], indptr[row + 1]):
                together[indices[place]] = 0


def _nonzero(total: Array) -> Array:
    """Return absolute sums, 1 in place of 0: dividing by them never reverses an order."""
    size = np.abs(total)
    return np.where(size > 0, size, np.ones_like(size))


def _filter(interactions: Interactions, dtype: str) -> Any:
    return normalised(interactions).astype(dtype)


def _low_rank(left: Array, right: Array, source: Array, target: Array) -> LowRank:
    """Return the term of two factors with a vector per row."""
    return LowRank(np.ascontiguousarray(left.T), right, source, target)
