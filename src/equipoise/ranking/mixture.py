"""Lists chosen from longer ranked lists: pins first, at most n of a kind, unlike neighbours.

A list is chosen place by place from the best items of a user. How many of these are needed is not
known before, so they are asked for again, four times as many, until the list is the one that all
items would give. So a list is full wherever enough items may be shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.ranking.ranker import Ranked, score, sum_dtype
from equipoise.ranking.rules import ItemRules
from equipoise.ranking.terms import Term

CELLS = 1 << 20  # items looked at at a time, over all users
NEVER = -np.inf

Floats = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]
Rank = Callable[[Positions, int], Ranked]  # the best items of users by row, without pinned ones


def with_unknown_pins(
    ranked: Ranked, rules: ItemRules, shown: npt.NDArray[np.bool_], k: int, n_items: int
) -> Ranked:
    """Return lists of k items with pins in their places that the model does not know.

    Parameters
    ----------
    ranked
        Lists under the rules without these pins, at least k long where there are enough items.
    rules
        Whose pins they are; their positions are `n_items` and those after it.
    shown
        Users x such pins: which may be listed.
    k
        Length of the lists.
    n_items
        Number of items that the model knows.
    """
    added = np.where(shown, n_items + np.arange(shown.shape[1]), -1)
    items = np.concatenate([ranked.items, added.astype(np.int32)], axis=1)
    no_scores = np.full(shown.shape, np.nan, ranked.scores.dtype)
    scores = np.concatenate([ranked.scores, no_scores], axis=1)
    pin_order = np.full(n_items + shown.shape[1] + 1, len(rules.pins))
    pin_order[rules.pins] = np.arange(len(rules.pins))
    order = np.where(items >= 0, pin_order[items], len(rules.pins) + 1)
    place = np.argsort(order, axis=1, kind="stable")[:, : min(k, items.shape[1])]
    items = np.take_along_axis(items, place, axis=1)
    lengths = (items >= 0).sum(axis=1).astype(np.int32)
    return Ranked(items, np.take_along_axis(scores, place, axis=1), lengths)


def mixed(rank: Rank, rules: ItemRules, terms: Sequence[Term], pinned: Ranked, k: int) -> Ranked:
    """Return lists of k items under the rules.

    Parameters
    ----------
    rank
        Returns so many of the best items of some users.
    rules
        What to choose by.
    terms
        The scoring matrix, whose rows say which items are alike.
    pinned
        The pinned items that each user may be shown, in the order of the pins.
    k
        Length of the lists.
    """
    n_users, n_items = len(pinned.items), terms[0].n_items
    k = min(k, n_items)
    out = Ranked.empty(n_users, k, sum_dtype(terms))
    rows, width = np.arange(n_users), min(2 * k, n_items)
    while len(rows) and width:
        slots = max([quota.codes.shape[1] for quota in rules.quotas], default=1)
        step, waiting = max(1, CELLS // (width * max(slots, 1))), []
        for at in range(0, len(rows), step):
            some = rows[at : at + step]
            choice = _Choice(rank(some, width), pinned.part(some), rules, terms, k)
            lists, done = choice.made()
            out.put(some[done], lists.part(done))
            waiting.append(some[~done])
        rows, width = np.concatenate(waiting), min(4 * width, n_items)
    return out


@dataclass(frozen=True, eq=False)
class _Choice:
    """The choice of lists from candidates, for some users at a time."""

    found: Ranked
    pinned: Ranked
    rules: ItemRules
    terms: Sequence[Term]
    k: int

    def made(self) -> tuple[Ranked, npt.NDArray[np.bool_]]:
        """Return the lists, and flags of the users whose lists more candidates cannot change."""
        found, k, diversity = self.found, self.k, self.rules.diversity
        n_users, width = found.items.shape
        every = np.arange(n_users)
        relevance = self._relevance()
        # an item beyond the candidates is worth no more than the last of them is without a penalty
        more = (found.lengths == width) & (width < self.terms[0].n_items)
        border = np.where(more, (1 - diversity) * relevance[:, -1], NEVER)
        # of each candidate, how many items above share each of its values
        taken = [
            np.zeros((n_users, width, quota.codes.shape[1]), np.int32)
            for quota in self.rules.quotas
        ]
        nearest = np.zeros((n_users, width))
        lists = Ranked.empty(n_users, k, found.scores.dtype)
        for place in range(min(k, self.pinned.items.shape[1])):
            users = np.flatnonzero(place < self.pinned.lengths)
            shown = self.pinned.items[users, place]
            self._append(lists, users, shown, self.pinned.scores[users, place])
            self._count(users, shown, taken, nearest)
        free, done = relevance > NEVER, np.ones(n_users, np.bool_)
        users = every[lists.lengths < k]
        while len(users):
            value = (1 - diversity) * relevance[users] - diversity * nearest[users]
            value[~free[users]] = NEVER
            for counts, quota in zip(taken, self.rules.quotas, strict=True):
                value[(counts[users] >= quota.most).any(axis=2)] = NEVER
            best = value.argmax(axis=1)
            worth = value[np.arange(len(users)), best]
            sure = (worth > NEVER) & (worth >= border[users])
            # without a choice left the list ends, unless there are more candidates to ask for
            done[users[~sure & more[users]]] = False
            users, best = users[sure], best[sure]
            free[users, best] = False
            shown = found.items[users, best]
            self._append(lists, users, shown, found.scores[users, best])
            self._count(users, shown, taken, nearest)
            users = users[lists.lengths[users] < k]
        return lists, done

    def _relevance(self) -> Floats:
        """Return what each candidate is worth by itself; candidates come best first."""
        found, width = self.found, self.found.items.shape[1]
        listed = np.arange(width) < found.lengths[:, None]
        if not self.rules.diversity:
            return np.where(listed, -np.arange(width, dtype=np.float64), NEVER)
        scores = np.where(listed, found.scores.astype(np.float64), NEVER)
        rows = np.arange(len(scores))
        best = scores[:, 0]
        least = scores[rows, np.minimum(self.k, np.maximum(found.lengths, 1)) - 1]
        with np.errstate(invalid="ignore"):  # users without candidates
            span = best - least
            span = np.where(span > 0, span, np.maximum(np.abs(best), 1.0))
            scaled = (scores - least[:, None]) / span[:, None]
        return np.where(listed, scaled, NEVER)

    @staticmethod
    def _append(
        lists: Ranked, users: Positions, items: npt.NDArray[Any], scores: npt.NDArray[Any]
    ) -> None:
        places = lists.lengths[users]
        lists.items[users, places], lists.scores[users, places] = items, scores
        lists.lengths[users] += 1

    def _count(
        self,
        users: Positions,
        shown: npt.NDArray[np.int32],
        taken: list[npt.NDArray[np.int32]],
        nearest: Floats,
    ) -> None:
        """Take account of an item in the list of each of these users."""
        items = self.found.items[users]
        for counts, quota in zip(taken, self.rules.quotas, strict=True):
            of_candidates = quota.codes[items]
            for own in quota.codes[shown].T:
                own = own[:, None, None]
                counts[users] += (of_candidates == own) & (own >= 0)
        if not self.rules.diversity or not len(users):
            return
        sources, place = np.unique(shown, return_inverse=True)
        step = max(1, CELLS // self.terms[0].n_items)
        for at in range(0, len(sources), step):
            here = np.flatnonzero((place >= at) & (place < at + step))
            alike = similarity(self.terms, sources[at : at + step])
            near = alike[(place[here] - at)[:, None], items[here]]
            nearest[users[here]] = np.maximum(nearest[users[here]], near)


def similarity(terms: Sequence[Term], items: npt.NDArray[np.integer]) -> Floats:
    """Return how alike all items are to these: their scores, 1 for the highest, at least 0."""
    n_items = terms[0].n_items
    varying = [term for term in terms if term.constant is None]
    if not varying:
        return np.zeros((len(items), n_items))
    ones, offsets = np.ones(len(items), np.float32), np.arange(len(items) + 1)
    alone = sp.csr_array((ones, items, offsets), shape=(len(items), n_items))
    alike = np.maximum(score(varying, alone).astype(np.float64), 0.0)
    alike[offsets[:-1], items] = 0.0
    most = alike.max(axis=1, keepdims=True, initial=0.0)
    return np.asarray(alike / np.where(most > 0, most, 1.0))
