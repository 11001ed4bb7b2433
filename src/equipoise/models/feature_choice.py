"""The automatic settings of `Features`: measured on users and items that the model left out.

The weight in the solve is chosen by NDCG@20 of training users, each left out of the fit. The map
of new items is chosen on known items that are hidden: P without the items N is the Schur
complement P_kk - P_kN P_NN^-1 P_Nk, so it needs no other solve.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

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
from equipoise.ranking.terms import Term
from equipoise.solve.engine import Solver
from equipoise.solve.planning import SolveOptions

if TYPE_CHECKING:
    from equipoise.models.linear import LinearAutoencoder

Result = TypeVar("Result")
Vector = npt.NDArray[np.float64]
Array = npt.NDArray[np.float64]

WEIGHTS = (0.0, 1.0, 3.0, 10.0)  # of the features in the solve
OPTIONS: dict[str, tuple[Any, ...]] = {  # of the map, tried in this order
    "map": MAPS,
    "rarity": (0.0, 0.5, 1.0),
    "mu": (0.3, 1.0, 3.0, 10.0),
    "neighbours": (5, 10, 20, 50),
    "share": (0.1, 0.3, 1.0),
}
ROUNDS, CLEAR = 2, 2.0
SCALES = (0.5, 0.6, 0.7, 0.85, 1.0, 1.2, 1.4, 1.7, 2.0, 2.4, 2.8)
LEAST = 1e-6  # of what a user leaves of the solve
LOSS = 0.02  # of NDCG that lists may lose so that new items are shown
UNUSED = {"mu": "nearest", "neighbours": "ridge"}  # settings, and the maps that lack them
CHOSEN = (*OPTIONS, "scale")
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
    default = replace(_filled(settings, DEFAULTS), scale=settings.scale)
    best, by_user = _search(trials, settings, default)
    figures: dict[str, float] = {}
    for candidate, value in by_user.items():
        figures[candidate.map] = max(figures.get(candidate.map, 0.0), float(value.mean()))
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


def _search(
    trials: Sequence[HiddenItems], settings: Features, start: Features
) -> tuple[Features, dict[Features, Array]]:
    """Return the best settings, and the NDCG of hidden items of each user by those tried.

    One setting after another that is "auto" takes its best value, `ROUNDS` times, if the mean gain
    over users is larger than `CLEAR` times its standard error.
    """
    by_user: dict[Features, Array] = {}

    def mean(candidate: Features) -> float:
        if candidate not in by_user:
            parts = [trial.ndcg_of_hidden(trial.scores_of(candidate)) for trial in trials]
            by_user[candidate] = np.concatenate(parts)
        return float(by_user[candidate].mean())

    best = start
    mean(best)
    for _, (name, options) in product(range(ROUNDS), OPTIONS.items()):
        is_used = name not in ("mu", "neighbours") or best.map != UNUSED[name]
        if is_used and getattr(settings, name) == "auto":
            other = max((replace(best, **{name: value}) for value in options), key=mean)
            gain = by_user[other] - by_user[best]
            if gain.mean() > CLEAR * gain.std() / len(gain) ** 0.5:
                best = other
    return best, by_user


def _filled(settings: Features, defaults: Features) -> Features:
    """Return settings with those of others in place of "auto"."""
    unset = {name: getattr(defaults, name) for name in CHOSEN if getattr(settings, name) == "auto"}
    return replace(settings, **unset)


def memoised(method: Callable[..., Result]) -> Callable[..., Result]:
    """Remember the results of a method of `HiddenItems` by its arguments."""

    @functools.wraps(method)
    def wrapper(trial: HiddenItems, *arguments: Any) -> Result:
        key = (method.__name__, *arguments)
        if key not in trial._results:
            trial._results[key] = method(trial, *arguments)
        result: Result = trial._results[key]
        return result

    return wrapper


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
    trained, weights
        The rows of the users in the solve, and their weights.
    """

    def __init__(
        self,
        model: LinearAutoencoder,
        fitted: ItemFeatures,
        hidden: npt.NDArray[np.int64],
        shown: Interactions,
        targets: Csr,
        used: Csr,
        trained: Csr,
        weights: Vector,
    ) -> None:
        self.model, self.fitted, self.hidden, self.shown = model, fitted, hidden, shown
        self.targets, self.used = targets, used
        self.history: Any = model._weigh(shown).astype(np.float64)
        self._results: dict[Any, Any] = {}
        self.scores = self._known_scores(trained, weights)
        self.history = self.history.astype(np.float32)

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
        users = users[has_history]
        trained: Any = data.matrix[users]
        trained = keep_entries(trained, ~is_hidden[trained.indices]).astype(np.float64)
        weights = model.normalizer_.user_weights(data)[users].astype(np.float64)
        parts = (later.matrix[has_history], used[has_history], trained, weights)
        return cls(model, fitted, hidden, shown.rows(has_history), *parts)

    def _known_scores(self, trained: Csr, weights: Vector) -> Array:
        """Return the scores of all items at alpha 1/2, without the hidden ones and the user.

        `trained` and `weights` are the rows of the users in the solve, and their weights.
        """
        model, history = self.model, self.history
        counts = model._fitted.item_counts
        source, inner_target = (
            vector.astype(np.float64) for vector in model.normalizer_.item_scales(counts, ALPHA)
        )
        solution = model.solution_
        P: Array = solution.gathered(self.hidden).astype(np.float64)  # P_N
        T: Any = np.linalg.solve(P[:, self.hidden], P)  # P_NN^-1 P_N
        diagonal: Vector = model.diagonal_ - (P * T).sum(axis=0)
        ones = np.ones(len(source), solution.dtype)
        term = solution.term(ones, ones)
        scaled: Any = (history @ sp.diags_array(source)).tocsr()
        of_history, of_user = (self._times(rows, term, P, T) for rows in (scaled, trained))
        # Q_-u = Q + w Qx (Qx)^T / (1 - w x^T Q x), with the row x of user u
        room = 1 - weights * _row_products(trained, of_user)
        factors = (weights / np.maximum(room, LEAST))[:, None]
        inner = _row_products(scaled, of_user)[:, None]
        scores: Array = of_history + factors * inner * of_user
        diagonals = np.maximum(diagonal + factors * of_user**2, np.finfo(np.float64).tiny)
        scores -= scaled.toarray() * diagonals  # the diagonal of the weights is zero
        scores *= -inner_target * model._column_scale(diagonals, model.penalty_)
        scores[:, self.hidden] = 0
        return scores.astype(np.float32)

    def _times(self, rows: Csr, term: Term, P: Array, T: Array) -> Array:
        """Return rows times the inverse without the hidden items."""
        product: Array = score([term], rows.astype(np.float32)).astype(np.float64)
        diagonal: Any = rows @ sp.diags_array(self.model.diagonal_)
        product += diagonal.toarray() - (rows @ P.T) @ T
        return product

    def scores_of(self, settings: Features) -> Array:
        """Return the scores of the hidden items by settings without "auto"."""
        rarity, share = float(settings.rarity), float(settings.share)
        parts = []
        if settings.map != "nearest":
            parts.append(self._sums(rarity, float(settings.mu)))
        if settings.map != "ridge":
            parts.append(self._means(rarity, int(settings.neighbours)))
        scores = [of_weights + share * of_history for of_weights, of_history in parts]
        if len(scores) == 1:
            return scores[0]
        return RIDGE_PART * scores[0] + (1 - RIDGE_PART) * scores[1]

    @memoised
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

    @memoised
    def _sums(self, rarity: float, mu: float) -> tuple[Array, Array]:
        """Return the scores of hidden items by "ridge": of the weights, and of the history."""
        known, hidden = self._rows(rarity)
        inner = ridge_solve(known, mu, hidden.toarray().T)
        scores, history = self._of_features(rarity)
        return scores @ inner, history @ inner

    @memoised
    def _of_features(self, rarity: float) -> tuple[Array, Array]:
        """Return scores and histories, summed over the known items that have each feature."""
        known, _ = self._rows(rarity)
        scores: Any = self.scores @ known
        history: Any = self.history @ known
        return scores, history.toarray()

    @memoised
    def _means(self, rarity: float, number: int) -> tuple[Array, Array]:
        """Return the scores of hidden items by "nearest": of the weights, and of the history."""
        known, hidden = self._rows(rarity)
        mixtures: Any = nearest(hidden, known, number)
        history: Any = self.history @ mixtures
        return self.scores @ mixtures, history.toarray()

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


def _row_products(rows: Csr, others: Array) -> Vector:
    """Return the inner product of each row with the same row of an array."""
    products: Any = rows.multiply(others)
    return np.asarray(products.sum(axis=1), np.float64).ravel()
