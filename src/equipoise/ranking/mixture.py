"""Lists re-ranked under rules: pins first, at most n items with the same attribute, diversity.

A list is filled place by place from a user's best items. The number of candidates this needs is
not known in advance, so it is quadrupled until the list is the one that all items would give.
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

CELLS = 1 << 20  # candidates in memory at a time, over all users
NEVER = -np.inf

Floats = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]
Rank = Callable[[Positions, int], Ranked]  # from rows and k to the k best items without pins


def with_unknown_pins(
    ranked: Ranked, rules: ItemRules, shown: npt.NDArray[np.bool_], k: int, n_items: int
) -> Ranked:
    """Return lists of k items with the pins that the model does not know in their places.

    `ranked` has the lists without these pins, at least k long if there are enough items; `shown`
    (users x unknown pins) is which of them may be listed. Their positions begin at `n_items`.
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
    """Return lists of k items under the quotas and the diversity of the rules.

    `pinned` has the pinned items that each user may be shown, in the order of the pins; rows of
    the scoring matrix (`terms`) give the similarity of items.
    """
    n_users, n_items = len(pinned.items), terms[0].n_items
    k = min(k, n_items)
    out = Ranked.empty(n_users, k, sum_dtype(terms))
    rows, width = np.arange(n_users), min(2 * k, n_items)
    while len(rows) and width:
        slots = max([quota.codes.shape[1] for quota in rules.quotas], default=1)
        step, waiting = max(1, CELLS // (width * max(slots, 1))), []
        for at in range(0, len(rows), step):
            batch = rows[at : at + step]
            selection = _Selection(rank(batch, width), pinned.part(batch), rules, terms, k)
            lists, done = selection.select()
            out.put(batch[done], lists.part(done))
            waiting.append(batch[~done])
        rows, width = np.concatenate(waiting), min(4 * width, n_items)
    return out


@dataclass(frozen=True, eq=False)
class _Selection:
    """Fills the lists of a batch of users from their candidates."""

    ranked: Ranked  # candidates, best first
    pinned: Ranked
    rules: ItemRules
    terms: Sequence[Term]
    k: int

    def select(self) -> tuple[Ranked, npt.NDArray[np.bool_]]:
        """Return the lists, and flags of the users whose lists more candidates cannot change."""
        ranked, k, diversity = self.ranked, self.k, self.rules.diversity
        n_users, width = ranked.items.shape
        relevance = self._relevance()
        # an item beyond the candidates has at most the value of the last one without a penalty
        has_more = (ranked.lengths == width) & (width < self.terms[0].n_items)
        border = np.where(has_more, (1 - diversity) * relevance[:, -1], NEVER)
        # for each candidate, the number of listed items that share each of its attribute values
        shared = [
            np.zeros((n_users, width, quota.codes.shape[1]), np.int32)
            for quota in self.rules.quotas
        ]
        nearest = np.zeros((n_users, width))
        lists = Ranked.empty(n_users, k, ranked.scores.dtype)
        for place in range(min(k, self.pinned.items.shape[1])):
            users = np.flatnonzero(place < self.pinned.lengths)
            shown = self.pinned.items[users, place]
            self._append(lists, users, shown, self.pinned.scores[users, place])
            self._update(users, shown, shared, nearest)
        free, done = relevance > NEVER, np.ones(n_users, np.bool_)
        users = np.flatnonzero(lists.lengths < k)
        while len(users):
            value = (1 - diversity) * relevance[users] - diversity * nearest[users]
            value[~free[users]] = NEVER
            for counts, quota in zip(shared, self.rules.quotas, strict=True):
                value[(counts[users] >= quota.most).any(axis=2)] = NEVER
            best = value.argmax(axis=1)
            best_value = value[np.arange(len(users)), best]
            is_sure = (best_value > NEVER) & (best_value >= border[users])
            # without a sure candidate the list ends, unless there are more candidates
            unsure = users[~is_sure & has_more[users]]
            done[unsure] = [self._is_exhausted(lists, user) for user in unsure.tolist()]
            users, best = users[is_sure], best[is_sure]
            free[users, best] = False
            shown = ranked.items[users, best]
            self._append(lists, users, shown, ranked.scores[users, best])
            self._update(users, shown, shared, nearest)
            users = users[lists.lengths[users] < k]
        return lists, done

    def _is_exhausted(self, lists: Ranked, user: int) -> bool:
        """Whether a quota leaves no item that could follow, among the candidates or beyond."""
        listed = lists.items[user, : lists.lengths[user]]
        for quota, is_used in self.rules.exhaustible:
            codes = quota.codes[listed].ravel()
            counts = np.bincount(codes[codes >= 0], minlength=len(is_used))
            if (counts[is_used] >= quota.most).all():
                return True
        return False

    def _relevance(self) -> Floats:
        """Return the relevance of each candidate: its scaled score, without diversity its rank."""
        ranked, width = self.ranked, self.ranked.items.shape[1]
        listed = np.arange(width) < ranked.lengths[:, None]
        if not self.rules.diversity:
            return np.where(listed, -np.arange(width, dtype=np.float64), NEVER)
        scores = np.where(listed, ranked.scores.astype(np.float64), NEVER)
        best = scores[:, 0]
        last = np.minimum(self.k, np.maximum(ranked.lengths, 1)) - 1
        least = scores[np.arange(len(scores)), last]
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

    def _update(
        self,
        users: Positions,
        shown: npt.NDArray[np.int32],
        shared: list[npt.NDArray[np.int32]],
        nearest: Floats,
    ) -> None:
        items = self.ranked.items[users]
        for counts, quota in zip(shared, self.rules.quotas, strict=True):
            candidate_codes = quota.codes[items]
            for codes in quota.codes[shown].T[:, :, None, None]:
                counts[users] += (candidate_codes == codes) & (codes >= 0)
        if not self.rules.diversity or not len(users):
            return
        sources, place = np.unique(shown, return_inverse=True)
        step = max(1, CELLS // self.terms[0].n_items)
        for at in range(0, len(sources), step):
            here = np.flatnonzero((place >= at) & (place < at + step))
            similarities = similarity(self.terms, sources[at : at + step])
            near = similarities[(place[here] - at)[:, None], items[here]]
            nearest[users[here]] = np.maximum(nearest[users[here]], near)


def similarity(terms: Sequence[Term], items: npt.NDArray[np.integer]) -> Floats:
    """Return the similarity of all items to these: scores scaled to [0, 1], the highest is 1."""
    n_items = terms[0].n_items
    varying = [term for term in terms if term.constant is None]
    if not varying:
        return np.zeros((len(items), n_items))
    ones, offsets = np.ones(len(items), np.float32), np.arange(len(items) + 1)
    alone = sp.csr_array((ones, items, offsets), shape=(len(items), n_items))
    scores = np.maximum(score(varying, alone).astype(np.float64), 0.0)
    scores[offsets[:-1], items] = 0.0
    highest = scores.max(axis=1, keepdims=True, initial=0.0)
    return np.asarray(scores / np.where(highest > 0, highest, 1.0))
