"""Rank training users by models from whose fit each user was left out.

Exact for linear autoencoders: the loops are in `ranking/left_out.py`. A low-pass companion has no
closed form for this; it is refitted without groups of at most a tenth of the users.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from equipoise.data.interactions import Interactions, generator
from equipoise.data.matrix import Csr, cell_keys, in_ascending, segments
from equipoise.data.split.user_split import shown_and_hidden
from equipoise.errors import DataError, SettingError, SolveError
from equipoise.evaluation.metrics import find_hits, ndcg
from equipoise.models.linear import LinearAutoencoder
from equipoise.models.lowpass import LowPass
from equipoise.models.trend import FittedTrend, last_uses, usual_half_life
from equipoise.ranking.left_out import rank_left_out
from equipoise.ranking.left_out_device import rank_left_out_on_device
from equipoise.ranking.ranker import score
from equipoise.runtime import machine
from equipoise.solve.dual import DualMatrix
from equipoise.solve.engine import Solved
from equipoise.solve.gpu import DeviceMatrix

Leave = Literal["user", "items"]
Vector = npt.NDArray[np.float64]

CHUNKS = 8  # per thread, so that no thread waits long for the last one
BATCH_BYTES = 64 << 20  # of rows that the dual engine computes, and of a companion's scores
STRENGTHS = (0.0, 0.05, 0.1, 0.2, 0.4)  # candidates for the strength of a companion
STRENGTH_USERS = 500
FOLD = 0.1  # largest share of the users that a companion is refitted without


def lists_without(
    models: Sequence[LinearAutoencoder],
    history: Interactions,
    k: int,
    *,
    leave: Leave = "user",
    alpha: float | None = None,
    exact: bool = True,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
    """Return lists and scores of models that share a solve, models x users x k.

    Each user is ranked by the models as refitted without that user. Lists are padded with -1.

    Parameters
    ----------
    models
        Fitted, sharing their solve; see `fit_together` and `reuse`.
    history
        Training users with the items to rank them by, a subset of their training items.
    k
        Length of the lists.
    leave
        "user" leaves the user out completely; "items" keeps the history in training and leaves
        out the user's other items.
    alpha
        Replaces the alpha of the models.
    exact
        Raise for signals whose weights would change for all users, and refit without a user who
        sets the age of all events.
    """
    for model in models:
        check_model(model, exact=exact)
    models = [model.without_new_items() for model in models]
    first = models[0]
    trends = [model._active_trend for model in models]
    removal = Removal.of(
        first, history, leave, with_uses=any(trend is not None for trend in trends)
    )
    scalings = [_scales_and_family(model, alpha) for model in models]
    depth = min(k, len(first.item_index_))
    shape = (len(models), history.n_users, depth)
    items = np.full(shape, -1, np.int32)
    scores = np.full(shape, np.nan, first.inverse_.dtype)
    bad = np.zeros(history.n_users, np.bool_)
    lowpasses = [_active_lowpass(model) for model in models]
    additions = Additions.of(models, lowpasses, trends, removal)
    sources, groups, families = _arrays(removal, scalings, additions, first)
    solved = sources, first.diagonal_, first.penalty_
    known = removal.entries, removal.of_user, *solved, groups, families

    def rank_batch(users: npt.NDArray[np.int64], rows: Any, slots: npt.NDArray[np.int32]) -> None:
        extra = additions.scores(first, removal, users)
        n_parts = min(len(users), CHUNKS * machine.count())

        def rank_part(number: int) -> None:
            part = np.arange(number, len(users), n_parts)
            part_extra = np.ascontiguousarray(extra[:, part])
            rank_left_out(users[part], rows, slots, *known, part_extra, items, scores, bad)

        try:
            if isinstance(rows, DeviceMatrix):
                rank_left_out_on_device(users, rows, *known, extra, items, scores, bad)
                return
            with machine.one_blas_thread():
                machine.run(rank_part, n_parts)
        except np.linalg.LinAlgError as error:
            raise SolveError(
                "a user cannot be left out of this solve, which is not accurate enough; fit with "
                "dtype='float64', or with a larger l2"
            ) from error

    for batch in _batches(first.inverse_, removal, additions.n_scores):
        rank_batch(*batch)
    if bad.any():
        raise SolveError("the model scores NaN; raise l2 or dropout")
    _rank_cold_users(removal, models, leave, items, scores)
    for row in _last_event_users(models, history, removal, leave) if exact else []:
        user = history.rows(np.array([row]))
        for number, model in enumerate(_refitted(models, lowpasses, user, leave)):
            ranked = model.rank(user, depth, alpha=alpha)
            items[number, row], scores[number, row] = ranked.items[0], ranked.scores[0]
    return items, scores


def _active_lowpass(model: LinearAutoencoder) -> LowPass | None:
    lowpass = model.lowpass_ or model.lowpass
    return None if lowpass is None or lowpass.strength == 0 else lowpass


def _last_event_users(
    models: Sequence[LinearAutoencoder], history: Interactions, removal: Removal, leave: Leave
) -> list[int]:
    """Return the users whose removal changes the age of all events.

    Age counts back from the last event of the training data, unless `Signals.reference` is set; in
    a trend, from the last use. If that event belongs to a single user, no formula gives the fit
    without it.
    """
    model = models[0]
    signals, events = model.signals, model.data_._own_events
    rows: list[int] = []
    ages_end_with_data = (
        signals is not None and signals.decay is not None and signals.reference is None
    )
    if ages_end_with_data and events.times is not None:
        last = events.last_times
        latest = float(last.max(initial=-np.inf))
        if (last == latest).sum() == 1:
            rows = np.flatnonzero(last[removal.positions] == latest).tolist()
        if leave == "items":
            # an event that stays in the history remains the last one
            rows = [row for row in rows if history._own_events.last_times[row] != latest]
    if removal.ages is not None:
        uses = last_uses(model.data_)
        users = np.unique(uses.keys[uses.ages == 0] // model.data_.n_items)
        if len(users) == 1 and not removal.keeps_last_use:
            rows += np.flatnonzero(removal.positions == users[0]).tolist()
    return sorted(set(rows))


def _refitted(
    models: Sequence[LinearAutoencoder],
    companions: Sequence[LowPass | None],
    history: Interactions,
    leave: Leave,
) -> Iterator[LinearAutoencoder]:
    """Yield the models after an actual refit without a user, or without its other items.

    As in `update`, settings that were "auto" keep their numbers; a trend keeps its level and the
    spread of the scores.
    """
    user = models[0].data_.select(users=history.users)
    removed = user if leave == "user" else user.difference(history)
    again = copy.copy(models[0])
    if isinstance(again.inverse_, DeviceMatrix):
        again.to("cpu")  # where updates are
    again.update(removed=removed)
    solved = Solved(again.inverse_, again.diagonal_, again.residual_)
    for model, lowpass in zip(models, companions, strict=True):
        data, dtype = again.interactions_, again.inverse_.dtype.name
        companion = None if lowpass is None else lowpass.fit(data, dtype)
        twin = copy.copy(model)
        numbers = model.l2_, model.dropout_
        twin._raw_data = again.data_
        twin._take(data, model.normalizer_, numbers, again.penalty_, solved, companion)
        twin._recent_users = again._recent_users
        if model.trend_ is not None:
            twin.trend_ = model.trend_.fitted_to(again.data_)
        yield twin


def draw_users(
    data: Interactions, users: int, history: float, seed: int
) -> tuple[Interactions, Interactions]:
    """Draw users with at least two items; return their shown and their hidden items."""
    rng = generator(seed)
    eligible = np.flatnonzero(data.user_counts >= 2)
    sample = data.rows(np.sort(rng.choice(eligible, min(users, len(eligible)), replace=False)))
    return shown_and_hidden(sample, history, rng.random(sample.n_interactions))


def companion_strength(model: LinearAutoencoder, lowpass: LowPass) -> float:
    """Return the strength with the best NDCG@20 on users left out of the fit.

    It is 0 unless the mean gain over users is larger than its standard error.
    """
    data = model.data_
    if not (data.user_counts >= 2).any():
        return 0.0
    shown, hidden = draw_users(data, STRENGTH_USERS, 0.8, 0)
    variants = []
    for strength in STRENGTHS:
        variants.append(copy.copy(model))
        variants[-1].lowpass = dataclasses.replace(lowpass, strength=strength)
        variants[-1].trend_ = None  # it may be that of an earlier fit
    lists, _ = lists_without(variants, shown, 20, exact=False)
    values = np.stack([ndcg(find_hits(items, hidden.matrix), 20) for items in lists])
    gains = values[1:] - values[0]
    best = int(np.argmax(gains.mean(axis=1)))
    error = float(gains[best].std()) / gains.shape[1] ** 0.5
    return STRENGTHS[1 + best] if gains[best].mean() > error else 0.0


def check_model(model: Any, *, exact: bool = True) -> None:
    """Raise for models that users cannot be left out of, or not exactly."""
    if not isinstance(model, LinearAutoencoder):
        kind = type(model).__name__
        raise SettingError(
            f"users can be left out of linear autoencoders, not of {kind}; evaluate it on a split"
        )
    _ = model._fitted
    model.solution_.require("leave out")
    if exact and model.signals is not None and model.signals.transform == "bm25":
        raise SettingError(
            "users cannot be left out of a model with transform='bm25': its numbers depend on the "
            "histories of all users, and one user less changes them all; evaluate it on a split"
        )


@dataclass(frozen=True, eq=False)
class Removal:
    """The entries of the training matrix that leave with each user.

    `entries` and `of_user` are arguments of `rank_left_out`. For each item of each user, `changed`
    flags a count that loses the user, and `alone` an item of no other user. `cold` flags users
    whose history has no item that anybody else has used. `ages` has the age of the use that a
    trend loses, infinite for none; None without a trend.
    """

    data: Interactions
    positions: npt.NDArray[np.int64]  # of the users in the training data
    shown: Interactions
    history: Csr  # over the model's items, with the weights that the model gives them
    entries: tuple[npt.NDArray[Any], ...]
    of_user: tuple[npt.NDArray[Any], ...]
    keys: npt.NDArray[np.int64]  # row * n_items + item of each entry
    changed: npt.NDArray[np.bool_]
    alone: npt.NDArray[np.bool_]
    cold: npt.NDArray[np.bool_]
    ages: Vector | None
    keeps_last_use: bool

    @property
    def indices(self) -> npt.NDArray[np.int32]:
        """Positions of the items of each user, removed ones first."""
        return self.entries[0]

    @classmethod
    def of(
        cls,
        model: LinearAutoencoder,
        history: Interactions,
        leave: Leave,
        *,
        with_uses: bool = False,
    ) -> Removal:
        """Compute the removal of these users from a model, for a trend with their last uses."""
        data = model._fitted
        positions = data.user_index.positions(history.users)
        train = data.rows(positions)
        rows = model._weigh(history)
        keys, shown_keys = cell_keys(train.matrix), cell_keys(rows)
        if not in_ascending(shown_keys, keys).all():
            raise DataError(
                "a history holds items that its user does not have in the training data; take it "
                "from the data the model was fitted on"
            )
        use_ages, keeps_last_use = None, False
        is_stored = np.ones(len(keys), np.bool_)
        x = train.matrix.data.astype(np.float64)
        if with_uses:
            use_keys, use_ages, keeps_last_use = _uses_to_remove(model, history, positions, leave)
            # a use that was returned has no value, but counts in the trend
            stored_keys, keys = keys, np.union1d(keys, use_keys)
            is_stored = in_ascending(keys, stored_keys)
            x, stored_x = np.zeros(len(keys)), x
            x[is_stored] = stored_x
        row, indices = np.divmod(keys, data.n_items)
        shown = in_ascending(keys, shown_keys)
        changed = np.ones(len(keys), np.bool_) if leave == "user" else ~shown
        odds = np.where(changed, model.dropout_ / (1 - model.dropout_), 0.0)
        stored = np.bincount(data.matrix.indices, minlength=data.n_items)
        alone = changed & is_stored & (stored[indices] == 1)
        penalty = model.penalty_[indices] - odds * x**2
        base = model.l2_ * model.normalizer_.penalty_scale(data.n_items)[indices]
        penalty[alone] = np.where(base > 0, base, 1.0)[alone]
        # without l2 such an item would have no penalty left; the remainder affects no other item
        odds = np.where(alone, odds / 2, odds)
        order = np.lexsort((indices, ~changed, row))
        remaining = np.where(changed, 0.0, x)
        weight = model.normalizer_.user_weights(data)
        after = np.zeros(len(positions))
        if leave == "items":
            gone = np.zeros(data.n_interactions, np.bool_)
            places, _ = segments(data.matrix.indptr[positions], np.diff(train.matrix.indptr))
            gone[places[changed[is_stored]]] = True
            after = model.normalizer_.user_weights(data.entries(~gone))[positions]
            after[np.diff(rows.indptr) == 0] = 0.0
        uncounted = changed & (x > 0)  # negative values are not counted
        is_used = shown & (data.item_counts[indices] - uncounted > 0)
        cold = np.bincount(row[is_used], minlength=len(positions)) == 0
        ages = None
        if use_ages is not None:
            ages = np.full(len(keys), np.inf)
            ages[in_ascending(keys, use_keys)] = use_ages
            ages = ages[order]
        columns = (indices.astype(np.int32), x, remaining, odds, penalty, shown)
        offsets = np.cumsum([0, *np.bincount(row, minlength=len(positions))])
        return cls(
            data,
            positions,
            history,
            rows,
            tuple(np.ascontiguousarray(column[order]) for column in columns),
            (offsets.astype(np.int64), weight[positions], after),
            keys[order],
            uncounted[order],
            alone[order],
            cold,
            ages,
            keeps_last_use,
        )

    def values(self, rows: Csr) -> Vector:
        """Return the weight of each entry in these histories, 0 if it is in none."""
        values, by_key = np.zeros(len(self.keys)), np.argsort(self.keys)
        values[by_key[np.searchsorted(self.keys, cell_keys(rows), sorter=by_key)]] = rows.data
        # an item that only this user has gives no scores without the user
        values[self.alone] = 0.0
        return values

    def counts_after(self, trend: FittedTrend, entries: Any = slice(None)) -> Vector:
        """Return the recent users of the item of each entry, without the user of the entry."""
        assert self.ages is not None
        left = np.exp2(-self.ages[entries] / trend.settings.seconds)
        counts: Vector = np.maximum(trend.counts[self.indices[entries]] - left, 0.0)
        return counts


def _uses_to_remove(
    model: LinearAutoencoder,
    history: Interactions,
    positions: npt.NDArray[np.int64],
    leave: Leave,
) -> tuple[npt.NDArray[np.int64], Vector, bool]:
    """Return the pairs that a trend loses with these users and the ages of their last uses.

    Also return whether the last use of all stays.
    """
    n_items, uses = model.data_.n_items, last_uses(model.data_)
    starts = np.searchsorted(uses.keys, positions * n_items)
    places, offsets = segments(
        starts, np.searchsorted(uses.keys, (positions + 1) * n_items) - starts
    )
    row = np.repeat(np.arange(len(positions)), np.diff(offsets))
    keys = row * n_items + uses.items[places]
    ages = uses.ages[places]
    if leave == "user":
        return keys, ages, False
    shown = history.with_items(model.item_index_)
    pairs = [cell_keys(shown.matrix)]
    if shown.events is not None:
        pairs.append(shown.events.keys(n_items))
    stays = in_ascending(keys, np.unique(np.concatenate(pairs)))
    return keys[~stays], ages[~stays], bool((ages[stays] == 0).any())


@dataclass(frozen=True, eq=False)
class Additions:
    """What models have beside the scores of a solve: a companion, a trend, aged histories.

    `kinds` are the distinct ones, `kind_of` has that of each model, and `extra_of` the row of each
    kind in `scores`, -1 for none.
    """

    kinds: tuple[tuple[LowPass | None, FittedTrend | None, Csr], ...]
    kind_of: tuple[int, ...]
    extra_of: tuple[int, ...]

    @classmethod
    def of(
        cls,
        models: Sequence[LinearAutoencoder],
        lowpasses: Sequence[LowPass | None],
        trends: Sequence[FittedTrend | None],
        removal: Removal,
    ) -> Additions:
        """Collect the additions of models; `lowpasses` and `trends` have None for none."""
        histories = {models[0].signals: removal.history}
        numbers: dict[Any, int] = {}
        kinds: list[tuple[LowPass | None, FittedTrend | None, Csr]] = []
        kind_of: list[int] = []
        for model, lowpass, trend in zip(models, lowpasses, trends, strict=True):
            if model.signals not in histories:
                histories[model.signals] = model._weigh(removal.shown)
            key = (
                lowpass,
                None if trend is None else (trend.settings, trend.level, trend.spread),
                model.signals,
            )
            if key not in numbers:
                numbers[key] = len(kinds)
                kinds.append((lowpass, trend, histories[model.signals]))
            kind_of.append(numbers[key])
        adds = [
            lowpass is not None
            or (trend is not None and bool(trend.scale_and_constant()[1].any()))
            for lowpass, trend, _ in kinds
        ]
        places = np.where(adds, np.cumsum(adds) - 1, -1).tolist()
        return cls(tuple(kinds), tuple(kind_of), tuple(places))

    @property
    def n_scores(self) -> int:
        """Number of kinds that add scores."""
        return sum(place >= 0 for place in self.extra_of)

    def scores(
        self, model: LinearAutoencoder, removal: Removal, users: npt.NDArray[np.int64]
    ) -> npt.NDArray[Any]:
        """Return the scores to add, kinds that add some x users x items."""
        shape = (self.n_scores, len(users), len(model.item_index_))
        out = np.zeros(shape, model.inverse_.dtype)
        adding = [kind for kind, at in zip(self.kinds, self.extra_of, strict=True) if at >= 0]
        companions = list(dict.fromkeys((low, id(rows)) for low, _, rows in adding if low))
        by_id = {id(rows): rows for _, _, rows in adding}
        of_companions = [(lowpass, by_id[name]) for lowpass, name in companions]
        scores = _companion_scores(of_companions, model, removal, users)
        offsets = removal.of_user[0]
        for place, (lowpass, trend, rows) in enumerate(adding):
            if lowpass is not None:
                out[place] = scores[companions.index((lowpass, id(rows)))]
            if trend is None:
                continue
            unscaled = out[place].copy() if lowpass is not None else out[place] * 0
            scale, constant = trend.scale_and_constant()
            out[place] = unscaled * (1.0 if scale is None else scale) + constant
            for row, user in enumerate(users):
                entries = slice(offsets[user], offsets[user + 1])
                scale, constant = trend.scale_and_constant(removal.counts_after(trend, entries))
                items = removal.indices[entries]
                scaled = unscaled[row, items] * (1.0 if scale is None else scale)
                out[place, row, items] = scaled + constant
        return out


Scaling = tuple[Vector, Vector, Vector, Vector, float, float]
Arrays = tuple[npt.NDArray[Any], ...]


def _scales_and_family(model: LinearAutoencoder, alpha: float | None) -> Scaling:
    """Return scales of sources and targets, with and without a user, and the family."""
    counts = model.item_counts_
    source, target = model.normalizer_.item_scales(counts, alpha)
    fewer = model.normalizer_.item_scales(np.maximum(counts - 1, 0), alpha)
    return source, target, *fewer, *_family(model)


def _family(model: LinearAutoencoder) -> tuple[float, float]:
    """Return a and b with which s = max(a penalty, b / diagonal), as in LAE, EASE and RLAE."""
    diagonal, penalty = np.array([1e30, 1.0, 0.5, 3.0]), np.array([1.0, 1e-30, 0.3, 2.0])
    scale = model._column_scale(diagonal, penalty)
    a, b = (float(value) if value > 1e-20 else 0.0 for value in scale[:2])
    if not np.allclose(scale, np.maximum(a * penalty, b / diagonal)):
        raise SettingError(
            f"users cannot be left out of a {type(model).__name__}, whose column scale is not "
            "the larger of a multiple of the penalty and one of 1 / diagonal"
        )
    return a, b


def _arrays(
    removal: Removal,
    scalings: Sequence[Scaling],
    additions: Additions,
    model: LinearAutoencoder,
) -> tuple[npt.NDArray[Any], Arrays, Arrays]:
    """Return the weighted histories of each source scale, the groups of models, the families."""
    indices, changed = removal.indices, removal.changed
    sources: dict[tuple[bytes, int], Vector] = {}
    values: dict[int, Vector] = {}  # of each weighing of the histories
    members: dict[tuple[bytes, bytes, int], list[int]] = {}
    for place, (source, target, *_) in enumerate(scalings):
        member = source.tobytes(), target.tobytes(), additions.kind_of[place]
        members.setdefault(member, []).append(place)
    columns: list[tuple[Any, ...]] = []
    for (source_bytes, _, kind), places in members.items():
        source, target, fewer_source, fewer_target, *_ = scalings[places[0]]
        _, trend, rows = additions.kinds[kind]
        if id(rows) not in values:
            values[id(rows)] = removal.values(rows)
        key = source_bytes, id(rows)
        scale = np.where(changed, fewer_source[indices], source[indices])
        sources.setdefault(key, values[id(rows)] * scale)
        after = -np.where(changed, fewer_target[indices], target[indices])
        after[removal.alone] = 0.0  # no other user has them
        if trend is not None:
            factor, _ = trend.scale_and_constant()
            factor_after, _ = trend.scale_and_constant(removal.counts_after(trend))
            if factor is not None and factor_after is not None:
                target, after = target * factor, after * factor_after
        limits = -target * model.penalty_, -target / model.diagonal_
        extra = additions.extra_of[kind]
        columns.append((list(sources).index(key), extra, -target, after, *limits))
    source_of, extras, targets, afters, *bounds = map(np.stack, zip(*columns, strict=True))
    dtype = model.inverse_.dtype
    groups = source_of, extras, targets, afters, *(bound.astype(dtype) for bound in bounds)
    order = np.concatenate([*members.values()])
    a, b = (np.array([scaling[at] for scaling in scalings])[order] for at in (4, 5))
    starts = np.cumsum([0, *map(len, members.values())])
    return np.stack([*sources.values()]), groups, (starts, order, a, b)


def _batches(
    P: Any, removal: Removal, n_companions: int
) -> Iterator[tuple[npt.NDArray[np.int64], Any, npt.NDArray[np.int32]]]:
    """Yield users with the rows of P of their items, and the row of each entry.

    Of a dual matrix only these rows are computed; other matrices are passed on whole.
    """
    offsets, n_items = removal.of_user[0], P.shape[0]
    users = np.flatnonzero(~removal.cold)
    is_dual = isinstance(P, DualMatrix)
    n_rows = max(BATCH_BYTES // (P.dtype.itemsize * n_items), 1)
    if is_dual:
        batch_of = np.cumsum(np.diff(offsets)[users]) // n_rows
    elif n_companions:
        batch_of = np.arange(len(users)) // max(n_rows // n_companions, 1)
    else:
        batch_of = np.zeros(len(users), np.int64)
    rows = P
    if isinstance(P, np.ndarray):
        rows = np.asarray(P).view()
        rows.flags.writeable = False
    for number in np.unique(batch_of):
        batch = users[batch_of == number]
        if not is_dual:
            yield batch, rows, removal.indices
            continue
        entries = np.concatenate([np.arange(offsets[u], offsets[u + 1]) for u in batch])
        needed, row_of_entry = np.unique(removal.indices[entries], return_inverse=True)
        slots = np.zeros(len(removal.indices), np.int32)
        slots[entries] = row_of_entry
        rows = P.gathered(needed)
        rows.flags.writeable = False
        yield batch, rows, slots


def _companion_scores(
    companions: Sequence[tuple[LowPass, Csr]],
    model: LinearAutoencoder,
    removal: Removal,
    users: npt.NDArray[np.int64],
) -> npt.NDArray[Any]:
    """Return the scores of companions for their histories, companions x users x items.

    The users are divided into groups of at most a tenth of all; a companion that scores a group is
    fitted without it.
    """
    n_items, dtype = len(model.item_index_), model.inverse_.dtype
    out = np.zeros((len(companions), len(users), n_items), dtype)
    if not companions:
        return out
    data = removal.data
    groups = -(-len(removal.positions) // max(int(FOLD * data.n_users), 1))
    for group in np.unique(users % groups):
        members = np.flatnonzero(users % groups == group)
        remains = np.ones(data.n_users, np.bool_)
        remains[removal.positions[np.arange(len(removal.positions)) % groups == group]] = False
        train = data.rows(remains)
        for number, (companion, history) in enumerate(companions):
            term = companion.fit(train, dtype.name).term
            out[number, members] = score([term], history[users[members]])
    return out


def _rank_cold_users(
    removal: Removal,
    models: Sequence[LinearAutoencoder],
    leave: Leave,
    items: npt.NDArray[np.int32],
    scores: npt.NDArray[Any],
) -> None:
    """Rank items for cold users by the number of other users; seen items are left out.

    Where the data have times, by the number of recent ones.
    """
    offsets, k = removal.of_user[0], items.shape[2]
    cold = np.flatnonzero(removal.cold)
    for number, model in enumerate(models if len(cold) else ()):
        trend, data = model._active_trend, model.data_
        half_life = usual_half_life(data) if trend is None else trend.settings.seconds
        for user in cold:
            counts = model._fallback_scores.astype(np.float64)
            if half_life is None:
                entries = slice(offsets[user], offsets[user + 1])
                counts[removal.indices[entries]] -= removal.changed[entries]
            else:
                shown = removal.shown.rows(np.array([user]))
                position = removal.positions[user : user + 1]
                keys, ages, _ = _uses_to_remove(model, shown, position, leave)
                counts[keys % data.n_items] -= np.exp2(-ages / half_life)
                counts = np.maximum(counts, 0.0)
            counts = counts.astype(np.float32)  # as models rank
            order = np.argsort(-counts, kind="stable")
            history = removal.history.indices[slice(*removal.history.indptr[user : user + 2])]
            order = order[~np.isin(order, history)][:k]
            items[number, user], scores[number, user] = -1, np.nan
            items[number, user, : len(order)] = order
            scores[number, user, : len(order)] = counts[order]
