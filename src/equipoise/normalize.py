"""Normalizers: the weight of each user in the solve, and the scales of each item around it.

A normalizer only yields vectors. With counts d_u and d_i of the training matrix X,

    G = X^T diag(d_u^-beta) X                      user weights, inside the solve
    W = diag(d_i^alpha) B diag(d_i^-(alpha+gamma))   item scales, around its solution B

so every named normalization is a point (alpha, beta, gamma). A count of 0 gives weight 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from equipoise.automatic import Auto, alpha_from_gini, beta_from_homophily
from equipoise.checks import choice, number
from equipoise.data.interactions import Interactions
from equipoise.data.statistics import gini, homophily
from equipoise.errors import DataError, SettingError
from equipoise.names import NORMALIZERS

Vector = npt.NDArray[np.float64]
EXPONENTS = ("alpha", "beta", "gamma")


def power(counts: npt.NDArray[Any], exponent: float) -> Vector:
    """Raise counts to an exponent; a count of 0 gives 1, never inf or nan."""
    base = np.where(counts > 0, counts, 1).astype(np.float64)
    return np.asarray(base**exponent)


@dataclass(frozen=True)
class Normalizer:
    """Base of all normalizers: a point (alpha, beta, gamma) that a subclass names.

    A subclass has fields of these names, or sets `_point`. A subclass whose weights are not powers
    of counts overrides `user_weights` and `item_scales`.
    """

    _point: ClassVar[tuple[float, float, float]] = (0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        for name in EXPONENTS:
            number(name, getattr(self, name, 0.0))

    def exponents(self) -> tuple[float, float, float]:
        """Return alpha (items, both sides), beta (users) and gamma (target items only)."""
        named = zip(EXPONENTS, self._point, strict=True)
        alpha, beta, gamma = (float(getattr(self, name, fixed)) for name, fixed in named)
        return alpha, beta, gamma

    def resolve(self, interactions: Interactions) -> Normalizer:
        """Return the same normalizer with every "auto" replaced by a number from the data."""
        return self

    def user_weights(self, interactions: Interactions) -> Vector:
        """Return the weight of each user in the Gram matrix, d_u^-beta."""
        return power(interactions.user_counts, -self.exponents()[1])

    def penalty_scale(self, n_items: int) -> Vector:
        """Return the factor of `l2` for each item; 1 except for `CustomNorm`."""
        return np.ones(n_items)

    def item_scales(
        self, item_counts: npt.NDArray[Any], alpha: float | None = None
    ) -> tuple[Vector, Vector]:
        """Return the scales of source and target items, d_i^alpha and d_i^-(alpha + gamma).

        `item_counts` are the training users of each item; `alpha`, the popularity dial, replaces
        the normalizer's alpha.
        """
        own_alpha, _, gamma = self.exponents()
        alpha = own_alpha if alpha is None else number("alpha", alpha)
        return power(item_counts, alpha), power(item_counts, -(alpha + gamma))


@singledispatch
def weights_of_users(interactions: Interactions, normalizer: Normalizer) -> Any:
    """Return the weight of each user in the Gram matrix, in the form that a solver takes."""
    return normalizer.user_weights(interactions)


def as_normalizer(normalizer: Any) -> Any:
    """Return a normalizer from a normalizer, its name, or None for no normalization.

    >>> as_normalizer("dan")
    DAN(alpha='auto', beta='auto')
    """
    if isinstance(normalizer, str):
        name = choice("normalizer", normalizer.lower(), NORMALIZERS)
        return globals()[NORMALIZERS[name]]()
    if not isinstance(normalizer, Normalizer | None):
        raise SettingError(f"normalizer must be a Normalizer or its name, got {normalizer!r}")
    return NoNorm() if normalizer is None else normalizer


@dataclass(frozen=True)
class NoNorm(Normalizer):
    """No normalization: every user and every item counts the same."""


@dataclass(frozen=True)
class RandomWalk(Normalizer):
    """Random-walk normalization: alpha 0, beta 1. Use it with ``l2=0`` and a `dropout`."""

    _point = (0.0, 1.0, 0.0)


@dataclass(frozen=True)
class Symmetric(Normalizer):
    """Symmetric normalization: alpha 1/2, beta 1. Use it with ``l2=0`` and a `dropout`."""

    _point = (0.5, 1.0, 0.0)


@dataclass(frozen=True)
class ColumnNorm(Normalizer):
    """Target items divided by a power of their count, after the solve: W = B D_I^-gamma.

    Parameters
    ----------
    gamma
        0 changes nothing; larger values push popular items down.
    """

    gamma: float = 0.5


@dataclass(frozen=True)
class UserNorm(Normalizer):
    """Users weighted by degree^-beta, items left as they are.

    Parameters
    ----------
    beta
        0 lets active users dominate, 1 gives every user the same say.
    """

    beta: float = 0.5


@dataclass(frozen=True)
class ItemNorm(Normalizer):
    """Items scaled by degree^alpha around the solution, users left as they are.

    Parameters
    ----------
    alpha
        Larger values favour the long tail.
    """

    alpha: float = 0.5


@dataclass(frozen=True)
class DAN(Normalizer):
    """Data-adaptive normalization: users weighted by degree^-beta, items scaled by degree^alpha.

    Minimises ||D_U^(-beta/2) (X D_I^-alpha - X D_I^-alpha B)||^2 plus the model's penalty.

    Parameters
    ----------
    alpha
        Popularity dial, usually 0 to 0.5: larger values favour the long tail. "auto" takes it
        from the Gini index of the items, lower where popularity is more concentrated.
    beta
        Neighbourhood dial, usually 0 to 1: larger values discount active users and let global
        patterns through. "auto" takes it from the weighted homophily of the data.

    References
    ----------
    "Why is Normalization Necessary for Linear Recommenders?", SIGIR 2025.
    """

    alpha: float | Auto = "auto"
    beta: float | Auto = "auto"

    def __post_init__(self) -> None:
        for name, value in (("alpha", self.alpha), ("beta", self.beta)):
            if value != "auto":
                number(name, value)

    def exponents(self) -> tuple[float, float, float]:
        """Return (alpha, beta, 0); "auto" must have been resolved."""
        if "auto" in (self.alpha, self.beta):
            raise SettingError("DAN with 'auto' has numbers only once it is resolved on data")
        return super().exponents()

    def resolve(self, interactions: Interactions) -> DAN:
        """Replace "auto" by numbers from the data's Gini index and weighted homophily."""
        alpha, beta = self.alpha, self.beta
        if alpha == "auto":
            alpha = alpha_from_gini(gini(interactions.item_counts))
        if beta == "auto":
            beta = beta_from_homophily(homophily(interactions))
        return DAN(alpha, beta)


@dataclass(frozen=True, eq=False)
class CustomNorm(Normalizer):
    """The paper's generalised objective, with explicit weights.

    Minimises ||W_U (X W_1 - X W_1 B)||^2 + l2 ||W_2 B||^2 with diagonal W_U, W_1, W_2.

    Parameters
    ----------
    users
        Diagonal of W_U, one number > 0 per training user; None for 1.
    items
        Diagonal of W_1, one number > 0 per item, on input and target; None for 1.
    penalty
        Diagonal of W_2, one number > 0 per item, in the penalty; None for 1.
    """

    users: npt.ArrayLike | None = None
    items: npt.ArrayLike | None = None
    penalty: npt.ArrayLike | None = None
    _names: ClassVar[tuple[str, ...]] = ("users", "items", "penalty")

    def __post_init__(self) -> None:
        for name in self._names:
            weights = getattr(self, name)
            if weights is None:
                continue
            try:
                array = np.array(weights, np.float64)
            except (OverflowError, TypeError, ValueError) as error:
                raise SettingError(f"{name} must be a list of finite numbers > 0") from error
            if array.ndim != 1 or not np.isfinite(array).all() or (array <= 0).any():
                raise SettingError(f"{name} must be a list of finite numbers > 0")
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    def _vector(self, name: str, size: int) -> Vector:
        weights = getattr(self, name)
        if weights is None:
            return np.ones(size)
        if len(weights) != size:
            raise DataError(f"{name} has {len(weights)} weights for {size}; give one each")
        return np.asarray(weights)

    def user_weights(self, interactions: Interactions) -> Vector:
        """Return W_U squared, as it stands in the Gram matrix."""
        return self._vector("users", interactions.n_users) ** 2

    def penalty_scale(self, n_items: int) -> Vector:
        """Return W_2^2 / W_1^2: the penalty after the item weights have left the solve."""
        # (W1 G W1 + l2 W2^2)^-1 W1 G W1 = W1^-1 [(G + l2 W2^2/W1^2)^-1 G] W1
        return np.asarray((self._vector("penalty", n_items) / self._vector("items", n_items)) ** 2)

    def item_scales(
        self, item_counts: npt.NDArray[Any], alpha: float | None = None
    ) -> tuple[Vector, Vector]:
        """Return 1 / W_1 and W_1; the dial `alpha` comes on top of them."""
        source, target = super().item_scales(item_counts, alpha)
        weight = self._vector("items", len(item_counts))
        return source / weight, target * weight
