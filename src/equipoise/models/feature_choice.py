"""The automatic settings of `Features`: measured on users and items that the model left out.

The weight in the solve is chosen by NDCG@20 of training users, each left out of the fit. The map
of new items is chosen on known items that are hidden: P without the items N is the Schur
complement P_kk - P_kN P_NN^-1 P_Nk, so it needs no other solve.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.data.interactions import Interactions, generator
from equipoise.data.matrix import Csr, keep_entries
from equipoise.data.split.user_split import shown_and_hidden
from equipoise.evaluation.metrics import find_hits, ndcg
from equipoise.models.features import MAPS, Features
from equipoise.models.leaving_out import draw_users, lists_without
from equipoise.models.new_items import ALPHA, RIDGE_PART, ItemFeatures, nearest, ridge_solve
from equipoise.normalize import CustomNorm, Normalizer
from equipoise.ranking.ranker import score
from equipoise.solve.engine import Solver
from equipoise.solve.planning import SolveOptions

if TYPE_CHECKING:
    from equipoise.models.linear import LinearAutoencoder

Vector = npt.NDArray[np.float64]
Array = npt.NDArray[np.float64]

WEIGHTS = (0.0, 1.0, 3.0, 10.0)  # of the features in the solve
RARITIES = (0.0, 0.5, 1.0)
PENALTIES = (1.0, 3.0)
SHARES = (0.3,)  # not searched: the solve has seen the users, which makes a small share look good
NEIGHBOURS = (10, 50)
SCALES = (0.5, 0.6, 0.7, 0.85, 1.0, 1.2, 1.4, 1.7, 2.0, 2.4, 2.8)
LOSS = 0.02  # of NDCG that lists may lose so that new items are shown
CHOSEN = ("map", "rarity", "mu", "share", "neighbours", "scale")
# where there is too little to choose by, or nothing is clearly better
DEFAULTS = Features(map="both", rarity=0.0, mu=1.0, share=0.3, neighbours=10, scale=1.0)
K = 20
USERS = 500
SAMPLE = 4000  # items of the solves that choose the weight
DRAWS = 3  # of hidden items, all different
HIDDEN_SHARE, MOST_HIDDEN = 0.15, 1000
FEWEST_HIDDEN = 5  # hidden items below which the defaults are used
DEPTH = 3 * K  # of the lists of known items, so that K are left without hidden ones
MOST_SCORES = 50_000_000  # scores of users and items that are held at a time


def choose_weight(
    model: LinearAutoencoder,
    data: Interactions,
    rows: Csr,
    normalizer: Normalizer,
    numbers: tuple[float, float],
) -> tuple[float, dict[str, float]]:
    """Return the weight of features in the solve, and the NDCG of each that was tried.

    Of more than `SAMPLE` items a random sample is solved. The weight is 0 unless the mean gain of
    another one over users is larger than its standard error.
    """
    if data.n_items > SAMPLE and not isinstance(normalizer, CustomNorm):
        sample = np.sort(generator(0).choice(data.n_items, SAMPLE, replace=False))
        data, rows = data.columns(sample), rows[sample]
    if not (data.user_counts >= 2).any():
        return 0.0, {}
    shown, hidden = draw_users(data, USERS, 0.8, 0)
    solver = Solver(data, SolveOptions(dtype="float64", engine="dense"), features=rows)
    twin = copy.copy(model)
    twin.signals = twin.trend = twin.trend_ = twin.lowpass = None
    twin._raw_data = data
    penalty = model._penalty(data, normalizer, *numbers)
    values = []
    for weight in WEIGHTS:
        solved = solver.solve(normalizer.user_weights(data), penalty, weight)
        twin._take(data, normalizer, numbers, penalty, solved)
        (lists,), _ = lists_without([twin], shown, K, exact=False)
        values.append(ndcg(find_hits(lists, hidden.matrix), K))
    gains = np.stack(values[1:]) - values[0]
    best = int(np.argmax(gains.mean(axis=1)))
    error = float(gains[best].std()) / gains.shape[1] ** 0.5
    figures = {
        f"weight {weight:g}": float(value.mean())
        for weight, value in zip(WEIGHTS, values, strict=True)
    }
    return (WEIGHTS[1 + best] if gains[best].mean() > error else 0.0), figures


def choose_map(model: LinearAutoencoder) -> tuple[Features, dict[str, float]]:
    """Return settings without "auto" for the new items of a fitted model, and their NDCG@20."""
    fitted = model.item_features_
    assert fitted is not None
    settings = fitted.settings
    if not any(getattr(settings, name) == "auto" for name in CHOSEN):
        return settings, {}
    trials = [] if model.solution_.is_sparse else HiddenItems.draws(model, fitted)
    if not trials:
        # the columns of features would be dense where the solve is sparse
        defaults = replace(DEFAULTS, map="nearest") if model.solution_.is_sparse else DEFAULTS
        return _filled(settings, defaults), {}
    values: dict[Features, list[Array]] = defaultdict(list)
    for trial in trials:
        for candidate, scores in trial.candidates(settings):
            values[candidate].append(trial.ndcg_of_hidden(scores))
    by_user = {candidate: np.concatenate(parts) for candidate, parts in values.items()}
    default = replace(_filled(settings, DEFAULTS), scale=settings.scale)
    best = max(by_user, key=lambda candidate: by_user[candidate].mean())
    gain = by_user[best] - by_user[default]
    if not gain.mean() > gain.std() / len(gain) ** 0.5:
        best = default
    figures = {
        name: max(
            float(value.mean()) for candidate, value in by_user.items() if candidate.map == name
        )
        for name in _options(settings.map, MAPS)
    }
    if settings.scale != "auto":
        return best, figures
    lists = [trial.ndcg_by_scale(trial.scores_of(best)) for trial in trials]
    of_scale = np.concatenate(lists, axis=1)
    # new items are shown as much as lists can bear, so that they find their users
    means = of_scale.mean(axis=1)
    scale = SCALES[int(np.flatnonzero(means >= (1 - LOSS) * means.max()).max())]
    of_scales = dict(zip(SCALES, means.tolist(), strict=True))
    figures |= {f"scale {number:g}": value for number, value in of_scales.items()}
    return replace(best, scale=scale), figures


def _filled(settings: Features, defaults: Features) -> Features:
    """Return settings with those of others in place of "auto"."""
    unset = {name: getattr(defaults, name) for name in CHOSEN if getattr(settings, name) == "auto"}
    return replace(settings, **unset)


class HiddenItems:
    """Known items that are hidden from a model, and users who have them.

    Parameters
    ----------
    model, fitted
        A solved model and its features.
    hidden
        Positions of the hidden items.
    shown
        For each user, the known items to rank by.
    targets
        A fifth of all items of each user, hidden or not: those to be found among all items.
    used
        The other hidden items of each user, which are not listed among all items.
    """

    def __init__(
        self,
        model: LinearAutoencoder,
        fitted: ItemFeatures,
        hidden: npt.NDArray[np.int64],
        shown: Interactions,
        targets: Csr,
        used: Csr,
    ) -> None:
        self.model, self.fitted, self.hidden, self.shown = model, fitted, hidden, shown
        self.targets, self.used = targets, used
        self.history = model._weigh(shown).astype(np.float64)
        self.scores = self._known_scores()

    @classmethod
    def draws(cls, model: LinearAutoencoder, fitted: ItemFeatures) -> list[HiddenItems]:
        """Hide different items in turn; none if too few have features and users."""
        data = model._fitted
        described = np.flatnonzero((np.diff(fitted.rows.indptr) > 0) & (data.item_counts > 0))
        number = min(int(HIDDEN_SHARE * len(described)), MOST_HIDDEN)
        if number < FEWEST_HIDDEN:
            return []
        rng = generator(0)
        order = rng.permutation(described)[: DRAWS * number]
        trials = [cls.of(model, fitted, np.sort(part), rng) for part in np.split(order, DRAWS)]
        return [trial for trial in trials if trial is not None]

    @classmethod
    def of(
        cls,
        model: LinearAutoencoder,
        fitted: ItemFeatures,
        hidden: npt.NDArray[np.int64],
        rng: np.random.Generator,
    ) -> HiddenItems | None:
        """Hide these items; None if too few users have them beside others."""
        data = model._fitted
        is_hidden = np.zeros(data.n_items, np.bool_)
        is_hidden[hidden] = True
        raw = model.data_
        counts = np.diff(raw.matrix.indptr)
        n_hidden = np.diff(keep_entries(raw.matrix, is_hidden[raw.matrix.indices]).indptr)
        eligible = np.flatnonzero((n_hidden > 0) & (counts - n_hidden >= 2))
        if len(eligible) < FEWEST_HIDDEN:
            return None
        most = min(USERS, max(MOST_SCORES // data.n_items, 1))
        users = np.sort(rng.choice(eligible, min(most, len(eligible)), replace=False))
        sample = raw.rows(users)
        earlier, later = shown_and_hidden(sample, 0.8, rng.random(sample.n_interactions))
        in_hidden = is_hidden[earlier.matrix.indices]
        shown = earlier.entries(~in_hidden)
        used = keep_entries(earlier.matrix, in_hidden)
        has_history = np.diff(shown.matrix.indptr) > 0
        parts = (later.matrix[has_history], used[has_history])
        return cls(model, fitted, hidden, shown.rows(has_history), *parts)

    def _known_scores(self) -> Array:
        """Return the scores of all items without the hidden ones in the solve, at alpha 1/2."""
        model, history = self.model, self.history
        counts = model._fitted.item_counts
        source, inner_target = (
            vector.astype(np.float64) for vector in model.normalizer_.item_scales(counts, ALPHA)
        )
        solution = model.solution_
        P = solution.gathered(self.hidden).astype(np.float64)  # P_N
        T = np.linalg.solve(P[:, self.hidden], P)  # P_NN^-1 P_N
        removed = (P * T).sum(axis=0)  # from the diagonal of P
        ones = np.ones(len(source), solution.dtype)
        term = solution.term(source.astype(solution.dtype), ones)
        scaled: Any = (history @ sp.diags_array(source)).tocsr()
        scores = score([term], history.astype(np.float32)).astype(np.float64)
        scores -= (scaled @ P.T) @ T
        scores += (scaled @ sp.diags_array(removed)).toarray()  # the diagonal stays zero
        diagonal = np.maximum(model.diagonal_ - removed, np.finfo(np.float64).tiny)
        target = -inner_target * model._column_scale(diagonal, model.penalty_)
        target[self.hidden] = 0
        scores *= target
        return scores

    def candidates(self, settings: Features) -> Iterator[tuple[Features, Array]]:
        """Yield the settings to try, each with the scores of the hidden items."""
        maps, shares = _options(settings.map, MAPS), _options(settings.share, SHARES)
        numbers = _options(settings.neighbours, NEIGHBOURS)
        for rarity in _options(settings.rarity, RARITIES):
            known, hidden = self._rows(float(rarity))
            base = replace(settings, rarity=rarity)
            means = {number: self._means(known, hidden, int(number)) for number in numbers}
            sums: dict[Any, tuple[Array, Array]] = {None: (np.zeros(0), np.zeros(0))}
            if {*maps} != {"nearest"}:
                sums = {
                    mu: self._sums(known, hidden, float(mu))
                    for mu in _options(settings.mu, PENALTIES)
                }
            for share, (mu, ridge), (number, mean) in product(shares, sums.items(), means.items()):
                candidate = replace(base, share=share, neighbours=number)
                if mu is not None:
                    candidate = replace(candidate, mu=mu)
                    of_ridge = ridge[0] + share * ridge[1]
                of_nearest = mean[0] + share * mean[1]
                first_number, first_mu = number == numbers[0], mu in (None, next(iter(sums)))
                if "ridge" in maps and first_number:
                    yield replace(candidate, map="ridge"), of_ridge
                if "nearest" in maps and first_mu:
                    filled = _filled(replace(candidate, map="nearest"), DEFAULTS)
                    yield replace(filled, scale=settings.scale), of_nearest
                if "both" in maps:
                    mixed = RIDGE_PART * of_ridge + (1 - RIDGE_PART) * of_nearest
                    yield replace(candidate, map="both"), mixed

    def scores_of(self, settings: Features) -> Array:
        """Return the scores of the hidden items by settings without "auto"."""
        return next(scores for _, scores in self.candidates(settings))

    def _rows(self, rarity: float) -> tuple[Csr, Csr]:
        """Return features of the known items, without the hidden ones, and of the hidden ones."""
        data, fitted = self.model._fitted, self.fitted
        rows = fitted.rows
        if rarity != 1 and data.catalogue is not None:
            vocabulary = fitted.vocabulary.weighted(data.catalogue, rarity)
            rows = vocabulary.encode(data.catalogue, data.n_items)
        stays = np.diff(fitted.rows.indptr) > 0
        stays[self.hidden] = False
        known: Csr = (sp.diags_array(stays.astype(np.float32)) @ rows).tocsr()
        known.eliminate_zeros()
        return known, rows[self.hidden]

    def _sums(self, known: Csr, hidden: Csr, mu: float) -> tuple[Array, Array]:
        """Return the scores of hidden items by "ridge": of the weights, and of shares."""
        inner = ridge_solve(known, mu, hidden.toarray().T).astype(np.float64)
        scores: Any = self.scores @ known
        return scores @ inner, (self.history @ known).toarray() @ inner

    def _means(self, known: Csr, hidden: Csr, number: int) -> tuple[Array, Array]:
        """Return the scores of hidden items by "nearest": of the weights, and of shares."""
        mixtures: Any = nearest(hidden, known, number).astype(np.float64)
        return self.scores @ mixtures, (self.history @ mixtures).toarray()

    def ndcg_of_hidden(self, scores: Array) -> Array:
        """Return the NDCG of each user, of lists of hidden items; all of a user are targets."""
        targets: Csr = (self.targets + self.used)[:, self.hidden].tocsr()
        targets.sort_indices()
        lists = np.argsort(-scores, axis=1, kind="stable")[:, :K].astype(np.int32)
        values = ndcg(find_hits(lists, targets), K)
        return values[~np.isnan(values)]

    def ndcg_by_scale(self, new_scores: Array) -> Array:
        """Return the NDCG of lists of all items, scales of new items x users.

        The scores of known items are those without the user in the fit.
        """
        model = copy.copy(self.model)
        model.trend_ = None
        depth = min(DEPTH, model._fitted.n_items)
        (items,), (scores,) = lists_without([model], self.shown, depth, exact=False)
        is_hidden = np.zeros(model._fitted.n_items + 1, np.bool_)
        is_hidden[self.hidden] = True
        barred = is_hidden[items] | (items < 0)
        known_scores = np.where(barred, -np.inf, scores)
        width = min(K, len(self.hidden))
        used = self.used[:, self.hidden].toarray() > 0
        new_scores = np.where(used, -np.inf, new_scores)
        top = np.argsort(-new_scores, axis=1, kind="stable")[:, :width]
        best_new = np.take_along_axis(new_scores, top, axis=1)
        candidates = np.concatenate([items, self.hidden[top].astype(np.int32)], axis=1)
        values = []
        for scale in SCALES:
            joined = np.concatenate([known_scores, scale * best_new], axis=1)
            order = np.argsort(-joined, axis=1, kind="stable")[:, :K]
            lists = np.take_along_axis(candidates, order, axis=1)
            lists[np.isneginf(np.take_along_axis(joined, order, axis=1))] = -1
            values.append(ndcg(find_hits(lists, self.targets), K))
        return np.stack(values)


def _options(value: Any, options: Sequence[Any]) -> Sequence[Any]:
    """Return the values to try: all options for "auto"."""
    return options if value == "auto" else (value,)
