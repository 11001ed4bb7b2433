"""Exploration: a share of the lists is drawn at random, and how likely each item was is logged.

With probability `share` a list is a random draw, in random order, from the first `pool` items of
the ranking; otherwise it is the ranking itself. So the item at each rank had a known probability,
and `replay` can estimate what other lists would have brought.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from equipoise.ranking.rules import ItemRules
from equipoise.serve import schemas
from equipoise.serve.state import Listed

CONTEXT = ("k", "exclude", "candidates", "filters", "rules", "exclude_seen", "alpha")


@dataclass(frozen=True, eq=False)
class Draw:
    """A list and how it was drawn.

    Parameters
    ----------
    listed
        The list that is sent.
    ranked
        Positions of the items of the ranking, as long as the list.
    share, pool
        Share of the lists that are drawn at random, and from how many items.
    """

    listed: Listed
    ranked: Sequence[int]
    share: float
    pool: int

    @property
    def is_random(self) -> bool:
        """Whether the list differs from the ranking."""
        return bool(self.listed.places.tolist() != list(self.ranked))


class Explorer:
    """Draws lists.

    Parameters
    ----------
    share, pool
        As of `Draw`; without a share all lists are rankings and nothing is logged.
    """

    def __init__(self, share: float, pool: int) -> None:
        self._share, self._pool = share, pool
        self._random = np.random.default_rng()

    def explores(self, query: schemas.Recommend, rules: ItemRules | None) -> bool:
        """Whether to draw and log the list of a request.

        Later pages, lists of no user, and lists with pins, quotas or diversity remain as they are.
        """
        if not self._share or query.user is None or query.offset:
            return False
        if rules is None:
            return True
        return not (rules.quotas or rules.diversity or rules.pins.tolist())

    def depth(self, k: int) -> int:
        """Return how many items to rank for a list of k items."""
        return max(k, self._pool)

    def draw(self, listed: Listed, k: int) -> Draw:
        """Return a list of k items from a ranking of `depth` items."""
        pool = min(len(listed.places), max(self._pool, k))
        chosen = np.arange(min(k, pool))
        ranked: list[int] = listed.places[chosen].tolist()
        if self._random.random() < self._share:
            chosen = self._random.permutation(pool)[: len(chosen)]
        shown = replace(listed, places=listed.places[chosen], scores=listed.scores[chosen])
        return Draw(shown, ranked, self._share, pool)


def propensities(
    items: Sequence[Any], ranked: Sequence[Any], share: float, pool: int
) -> list[float]:
    """Return the probability of each item to be at its rank.

    >>> propensities(["a", "x"], ["a", "b"], 0.1, 10)
    [0.91, 0.01]
    """
    at_random = share / pool if pool else 0.0
    return [
        round(at_random + (1 - share) * (item == best), 12)
        for item, best in zip(items, ranked, strict=True)
    ]


def log_entry(
    draw: Draw, items: Sequence[str], ranked: Sequence[str], query: schemas.Recommend
) -> str:
    """Return what is logged of a list, as JSON.

    Parameters
    ----------
    draw
        How the list was drawn.
    items, ranked
        Ids of the listed items and of the ranking.
    query
        The request; what limits its list is logged too.
    """
    entry: dict[str, Any] = {
        "share": draw.share,
        "pool": draw.pool,
        "propensities": propensities(items, ranked, draw.share, draw.pool),
    }
    if draw.is_random:
        entry["ranked"] = list(ranked)
    entry["query"] = query.model_dump(include=set(CONTEXT), exclude_defaults=True)
    return json.dumps(entry)
