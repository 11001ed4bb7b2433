"""Rules that choose the settings called "auto" from the data.

`benchmarks/calibrate_auto.py` fits the constants of these rules to real data sets;
docs/evidence-tuning.md compares them with tuning on other data sets.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Literal

import numpy as np
import numpy.typing as npt

from equipoise.data.interactions import Interactions

Auto = Literal["auto"]
WeighUsers = Callable[[Interactions], npt.NDArray[np.float64]]
Sums = tuple[int, float, float]

ALPHA_AT_NO_GINI, ALPHA_PER_GINI, LARGEST_ALPHA = 0.3, -0.1, 0.5
BETA_AT_NO_HOMOPHILY, BETA_PER_HOMOPHILY, LARGEST_BETA = 0.2, 1.0, 0.5
FEWEST_NEIGHBOURS, SHRINK_PER_COUNT, LARGEST_SHRINK = 5, 1 / 6, 10.0
L2_PER_ROOT, ODDS_PER_FOURTH_ROOT, LARGEST_DROPOUT = 8.0, 8.0, 0.9


def alpha_from_gini(gini: float) -> float:
    """Return the automatic alpha, which falls as popularity concentrates.

    >>> alpha_from_gini(0.4) > alpha_from_gini(0.8) >= 0
    True
    """
    return float(np.clip(ALPHA_AT_NO_GINI + ALPHA_PER_GINI * gini, 0.0, LARGEST_ALPHA))


def beta_from_homophily(homophily: float) -> float:
    """Return the automatic beta, which grows with the homophily of the items.

    >>> 0 <= beta_from_homophily(0.05) < beta_from_homophily(0.1) < 1
    True
    """
    beta = BETA_AT_NO_HOMOPHILY + BETA_PER_HOMOPHILY * homophily
    return float(np.clip(beta, 0.0, LARGEST_BETA))


def penalty_from_counts(
    item_count: float, user_count: float, mean_weight: float = 1.0
) -> tuple[float, float]:
    """Return the automatic l2 and dropout.

    With mean counts m of items and k of users, and the mean user weight w, l2 = c1 w sqrt(k) and
    p/(1-p) = c2 w / m^(1/4). A ridge penalty is the noise of one user divided by the variance of a
    weight. Neither depends on the number of users, so l2 does not either. Longer histories spread
    a score over more items, so weights are smaller. The dropout penalty, which is proportional to
    an item's count, falls as counts become reliable.

    Parameters
    ----------
    item_count
        Mean number of users of an item, over items that have any.
    user_count
        Mean number of items of a user, over users who have any.
    mean_weight
        Mean weight of a user in the Gram matrix, over all interactions; 1 without weights.

    >>> few, many = penalty_from_counts(20, 10), penalty_from_counts(200, 10)
    >>> few[0] == many[0], few[1] > many[1], penalty_from_counts(20, 40)[0] > few[0]
    (True, True, True)
    """
    item_count, user_count = max(item_count, 1.0), max(user_count, 1.0)
    odds = ODDS_PER_FOURTH_ROOT * mean_weight / item_count**0.25
    l2 = L2_PER_ROOT * mean_weight * user_count**0.5
    return l2, min(odds / (1 + odds), LARGEST_DROPOUT)


def neighbourhood_from_counts(item_count: float, user_count: float) -> tuple[int, float]:
    """Return the automatic number of neighbours and the shrink of an item-kNN.

    The arguments are those of `penalty_from_counts`. In longer histories more items support the
    same recommendation, so more neighbours help before unrelated ones outweigh them: sqrt(k) for k
    items per user. Shrink is a share of the mean count of an item, so that it has little effect on
    data whose counts are all small.

    >>> neighbourhood_from_counts(30, 100)
    (10, 5.0)
    """
    neighbours = max(round(user_count**0.5), FEWEST_NEIGHBOURS)
    return neighbours, float(min(SHRINK_PER_COUNT * item_count, LARGEST_SHRINK))


def penalty_numbers(
    l2: float | Auto,
    dropout: float | Auto,
    interactions: Interactions,
    weigh_users: WeighUsers,
) -> tuple[float, float]:
    """Return l2 and dropout as numbers, "auto" replaced by the rule.

    `weigh_users` returns the weight of each user in the Gram matrix.
    """
    n_users, total, weighed = sums_of_users(interactions, weigh_users)
    n_items = max(int((interactions.item_counts > 0).sum()), 1)
    mean_weight = weighed / total if total > 0 else 1.0
    automatic = penalty_from_counts(total / n_items, total / max(n_users, 1), mean_weight)
    return (
        automatic[0] if l2 == "auto" else float(l2),
        automatic[1] if dropout == "auto" else float(dropout),
    )


@singledispatch
def sums_of_users(
    interactions: Interactions, weigh_users: WeighUsers, before: Sums = (0, 0.0, 0.0)
) -> Sums:
    """Return the number of users with items, their squared values, and these times the weights.

    The sums go from user to user and continue those of earlier users, `before`.
    """
    matrix = interactions.matrix
    squares = np.append(matrix.data.astype(np.float64) ** 2, 0.0)
    # `reduceat` gives an empty row the value of the next one
    square = np.where(
        np.diff(matrix.indptr) > 0, np.add.reduceat(squares, matrix.indptr[:-1]), 0.0
    )
    n_users, total, weighed = before
    return (
        n_users + int((interactions.user_counts > 0).sum()),
        _added(total, square),
        _added(weighed, square * weigh_users(interactions)),
    )


def _added(total: float, values: npt.NDArray[np.float64]) -> float:
    """Return the sum, added one by one: NumPy's `sum` would depend on where the values begin."""
    return float(np.cumsum(np.concatenate([[total], values]))[-1])
