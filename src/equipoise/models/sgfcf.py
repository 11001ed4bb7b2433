"""SGFCF: a graph filter whose strength follows each person's and each item's homophily."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.errors import SettingError
from equipoise.interactions import Interactions
from equipoise.kernels import Floats, compiled
from equipoise.matrix import Csr
from equipoise.models.filters import (
    Array,
    GraphFilter,
    PolynomialTerm,
    check_factors,
    check_weight,
)
from equipoise.models.neural.graph import KnownUsers
from equipoise.normalize import check_number, power
from equipoise.ranking.terms import Adder, LowRank, Rows, Term
from equipoise.svd import normalised, spectrum, sums

RANK_TOLERANCE = 1e-6  # singular values below this share of the largest count as 0


@dataclass(kw_only=True, eq=False)
class SGFCF(GraphFilter):
    """Simplified graph filter with individual strength (Peng et al., KDD 2024).

    With A = (D_U + shift)^-e X (D_I + shift)^-e = U S V^T and singular values v relative to the
    largest, the score of person u and item i is r / sum(r) + strength * t / sum(t), where
    r = sum_j U_uj v_j^(w_u + w_i) V_ij and t is row u of A A^T A. The exponents w rise from
    `weakest` to `strongest` with the homophily of the person and of the item.

    The exponents belong to the people of the training data: anybody else is refused.

    Parameters
    ----------
    factors
        Number of singular triples.
    exponent
        e, 0 to 0.5: how much active people and popular items are discounted.
    shift
        Added to the counts; another way to discount them less, with an exponent of 0.5.
    strength
        gamma, the weight of the unfiltered part beside the filtered one.
    weakest, strongest
        Smoothing at the lowest and at the highest homophily; equal values smooth all alike.
    """

    factors: int = 650
    exponent: float = 0.34
    shift: float = 0.0
    strength: float = 1.6
    weakest: float = 0.3
    strongest: float = 2.5

    def __post_init__(self) -> None:
        check_factors(self.factors)
        for name in ("shift", "strength", "weakest", "strongest"):
            check_weight(name, getattr(self, name))
        check_number("exponent", self.exponent)
        if self.strongest < self.weakest:
            raise SettingError(
                f"strongest must be >= weakest, got {self.strongest} and {self.weakest}"
            )

    def _learn(self, interactions: Interactions, dtype: str) -> dict[str, Array]:
        found = spectrum(
            interactions,
            self.factors,
            user_exponent=self.exponent,
            item_exponent=self.exponent,
            shift=self.shift,
            dtype=dtype,
        )
        X = interactions.matrix
        return {
            "values": found.values,
            "right": found.right,
            "smoothing_users": self._smoothing(homophily_of_rows(X)).astype(dtype),
            "smoothing_items": self._smoothing(homophily_of_rows(X.T.tocsr())).astype(dtype),
        }

    def _smoothing(self, homophily: Array) -> Array:
        """Map homophily linearly to the exponents, the lowest to `weakest`."""
        spread = np.ptp(homophily)
        share = (homophily - homophily.min()) / (spread if spread else 1)
        return np.asarray(self.weakest + (self.strongest - self.weakest) * share)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        m, n = self.interactions_.matrix.shape
        q = min(self.factors, m, n)
        people = {"smoothing_users": (m,), "smoothing_items": (n,)}
        return {"values": (q,), "right": (q, n), **people}

    def _make(self, interactions: Interactions, arrays: dict[str, Any], dtype: str) -> list[Term]:
        A = normalised(interactions, self.exponent, self.exponent, self.shift).astype(dtype)
        values, right = np.asarray(arrays["values"]), np.asarray(arrays["right"])
        real = values > RANK_TOLERANCE * values[0]
        relative = np.where(real, values / values[0], 1)
        inverse = np.where(real, 1 / np.where(real, values, 1), 0)
        ones = np.ones(interactions.n_items, dtype)
        source = power(sums(interactions)[1] + self.shift, -self.exponent).astype(dtype)
        # U = A V S^-1: a person's row of U is the scaled history times V S^-1
        left = np.ascontiguousarray((right * inverse[:, None]).T)
        right = right * relative[:, None] ** arrays["smoothing_items"]
        return [
            PersonalTerm(
                # the exponents follow from the histories
                known=KnownUsers("SGFCF", interactions.matrix, alike=True),
                smoothing=arrays["smoothing_users"],
                relative=relative,
                low=LowRank(left, right, source, ones),
                low_sums=right.sum(axis=1),
                rest=PolynomialTerm(A, (0, 1), source, ones),
                rest_sums=source * (A.T @ (A @ ones)),
                strength=self.strength,
            )
        ]


@dataclass(frozen=True, eq=False)
class PersonalTerm(Term):
    """Scores r / sum(r) + strength * t / sum(t) of the people whose histories it knows.

    Factors of a person that both a row and its sum have, such as a power of the number of items,
    cancel and are left out.

    Parameters
    ----------
    known
        The users who have an exponent.
    smoothing
        Exponent of each person.
    relative
        Singular values relative to the largest.
    low, low_sums
        r without the person's exponent as a term, and the sums of its right factor's rows.
    rest, rest_sums
        t as a term, and what each item of a history adds to its sum.
    strength
        Weight of t.
    """

    known: KnownUsers
    smoothing: Array
    relative: Array
    low: LowRank
    low_sums: Array
    rest: PolynomialTerm
    rest_sums: Array
    strength: float

    @property
    def n_items(self) -> int:
        """Number of items."""
        return self.low.n_items

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the sums."""
        return self.low.dtype

    @property
    def held(self) -> int:
        """A hidden vector and all scores of the rest."""
        return self.low.held + self.rest.held

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds this term's scores to a block of columns."""
        hidden = self.low.hidden(rows)
        for row, person in enumerate(self.known.places(rows)):
            hidden[row] *= self.relative ** self.smoothing[person]
        hidden /= _nonzero((hidden * self.low_sums).sum(axis=1))[:, None]
        parts = rows.weights(self.rest_sums, self.dtype)
        ends = itertools.pairwise(rows.indptr.tolist())
        total = np.array([parts[start:stop].sum() for start, stop in ends], self.dtype)
        share = (self.dtype.type(self.strength) / _nonzero(total))[:, None]
        add_low, add_rest = self.low.product(hidden), self.rest.adder(rows)

        def add(scores: Floats, low: int) -> None:
            add_low(scores, low)
            rest = np.zeros_like(scores)
            add_rest(rest, low)
            scores += share * rest

        return add


def homophily_of_rows(X: Csr) -> npt.NDArray[np.float64]:
    """Share of the ordered pairs of a row's columns that some other row has too; 0 without pairs.

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
        mine = rows[starts[column] : starts[column + 1]]
        for row in mine:
            for place in range(indptr[row], indptr[row + 1]):
                together[indices[place]] += 1
        for row in mine:
            for place in range(indptr[row], indptr[row + 1]):
                other = indices[place]
                pairs[row] += other != column and together[other] >= 2
        for row in mine:
            for place in range(indptr[row], indptr[row + 1]):
                together[indices[place]] = 0


def _nonzero(total: Array) -> Array:
    """Return the size of sums, 1 for those of 0: dividing by it never turns an order around."""
    size = np.abs(total)
    return np.where(size > 0, size, np.ones_like(size))
