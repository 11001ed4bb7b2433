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
from equipoise.data.matrix import Csr, cell_keys, entry_rows
from equipoise.data.split.user_split import shown_and_hidden
from equipoise.errors import DataError, SettingError, SolveError
from equipoise.evaluation.metrics import find_hits, ndcg
from equipoise.models.histories import Unknowns
from equipoise.models.linear import LinearAutoencoder
from equipoise.models.lowpass import LowPass
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
    first = models[0]
    removal = Removal.of(first, history, leave)
    readings = [_reading(model, alpha) for model in models]
    depth = min(k, len(first.item_index_))
    shape = (len(models), history.n_users, depth)
    items = np.full(shape, -1, np.int32)
    scores = np.full(shape, np.nan, first.inverse_.dtype)
    bad = np.zeros(history.n_users, np.bool_)
    lowpasses = [_active_lowpass(model) for model in models]
    companions = list(dict.fromkeys(lowpass for lowpass in lowpasses if lowpass is not None))
    companion_of = [-1 if lowpass is None else companions.index(lowpass) for lowpass in lowpasses]
    sources, groups, families = _arrays(removal, readings, companion_of, first)
    solved = sources, first.diagonal_, first.penalty_
    known = removal.entries, removal.of_user, *solved, groups, families

    def rank_batch(users: npt.NDArray[np.int64], rows: Any, slots: npt.NDArray[np.int32]) -> None:
        extra = _companion_scores(companions, first, removal, users)
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

    for batch in _batches(first.inverse_, removal, len(companions)):
        rank_batch(*batch)
    if bad.any():
        raise SolveError("the model scores NaN; raise l2 or dropout")
    _rank_by_popularity(removal, items, scores)
    for row in _last_event_users(first, history, removal.positions, leave) if exact else []:
        user = history.rows(np.array([row]))
        for number, model in enumerate(_refitted(models, lowpasses, user, leave)):
            ranked = model.rank(user, depth, alpha=alpha)
            items[number, row], scores[number, row] = ranked.items[0], ranked.scores[0]
    return items, scores


def _active_lowpass(model: LinearAutoencoder) -> LowPass | None:
    lowpass = model.lowpass_ or model.lowpass
    return None if lowpass is None or lowpass.strength == 0 else lowpass


def _last_event_users(
    model: LinearAutoencoder, history: Interactions, positions: npt.NDArray[np.int64], leave: Leave
) -> list[int]:
    """Return the users whose removal changes the age of all events.

    Age counts back from the last event of the training data, unless `Signals.reference` is set. If
    that event belongs to a single user, no formula gives the fit without it.
    """
    signals, events = model.signals, model.data_.own_events
    if signals is None or signals.decay is None or signals.reference is not None:
        return []
    if events.times is None:
        return []
    last = events.last_times
    latest = float(last.max(initial=-np.inf))
    rows = np.flatnonzero(last[positions] == latest)
    if (last == latest).sum() > 1 or not len(rows):
        return []
    if leave == "items":
        # an event that stays in the history remains the last one
        rows = rows[history.own_events.last_times[rows] != latest]
    return rows.tolist()


def _refitted(
    models: Sequence[LinearAutoencoder],
    companions: Sequence[LowPass | None],
    history: Interactions,
    leave: Leave,
) -> Iterator[LinearAutoencoder]:
    """Yield the models after an actual refit without a user, or without its other items.

    As in `update`, settings that were "auto" keep their numbers.
    """
    user = models[0].data_.select(users=history.users)
    removed = user if leave == "user" else user.difference(history)
    again = copy.copy(models[0]).update(removed=removed)
    solved = Solved(again.inverse_, again.diagonal_, again.residual_)
    for model, lowpass in zip(models, companions, strict=True):
        data, dtype = again.interactions_, again.inverse_.dtype.name
        companion = None if lowpass is None else lowpass.fit(data, dtype)
        twin = copy.copy(model)
        numbers = model.l2_, model.dropout_
        twin._raw_data = again.data_
        twin._take(data, model.normalizer_, numbers, again.penalty_, solved, companion)
        yield twin


def drawn(
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
    shown, hidden = drawn(data, STRENGTH_USERS, 0.8, 0)
    variants = []
    for strength in STRENGTHS:
        variants.append(copy.copy(model))
        variants[-1].lowpass = dataclasses.replace(lowpass, strength=strength)
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
    flags a count that loses the user, `alone` an item of no other user, and `values` holds the
    history. `cold` flags users whose history has no item that anybody else has used.
    """

    data: Interactions
    positions: npt.NDArray[np.int64]  # of the users in the training data
    history: Csr  # over the model's items, with the weights that the model gives them
    entries: tuple[npt.NDArray[Any], ...]
    of_user: tuple[npt.NDArray[Any], ...]
    values: Vector
    changed: npt.NDArray[np.bool_]
    alone: npt.NDArray[np.bool_]
    cold: npt.NDArray[np.bool_]

    @property
    def indices(self) -> npt.NDArray[np.int32]:
        """Positions of the items of each user, removed ones first."""
        return self.entries[0]

    @classmethod
    def of(cls, model: LinearAutoencoder, history: Interactions, leave: Leave) -> Removal:
        """Compute the removal of these users from a model."""
        data = model._fitted
        positions = data.user_index.positions(history.users)
        train = data.rows(positions)
        rows = model._rows_of(history, Unknowns())
        keys, shown_keys = cell_keys(train.matrix), cell_keys(rows)
        place = np.searchsorted(keys, shown_keys).clip(max=max(len(keys) - 1, 0))
        if len(shown_keys) and not (len(keys) and (keys[place] == shown_keys).all()):
            raise DataError(
                "a history holds items that its user does not have in the training data; take it "
                "from the data the model was fitted on"
            )
        values = np.zeros(len(keys))
        values[place] = rows.data
        shown = np.zeros(len(keys), np.bool_)
        shown[place] = True
        changed = np.ones(len(keys), np.bool_) if leave == "user" else ~shown
        x = train.matrix.data.astype(np.float64)
        indices = train.matrix.indices
        odds = np.where(changed, model.dropout_ / (1 - model.dropout_), 0.0)
        stored = np.bincount(data.matrix.indices, minlength=data.n_items)
        alone = changed & (stored[indices] == 1)
        penalty = model.penalty_[indices] - odds * x**2
        base = model.l2_ * model.normalizer_.penalty_scale(data.n_items)[indices]
        penalty[alone] = np.where(base > 0, base, 1.0)[alone]
        # without l2 such an item would have no penalty left; the remainder affects no other item
        odds = np.where(alone, odds / 2, odds)
        row = entry_rows(train.matrix)
        order = np.lexsort((indices, ~changed, row))
        remaining = np.where(changed, 0.0, x)
        weight = model.normalizer_.user_weights(data)
        after = np.zeros(len(positions))
        if leave == "items":
            gone = np.zeros(data.n_interactions, np.bool_)
            starts = data.matrix.indptr[positions]
            gone[(np.arange(len(keys)) - train.matrix.indptr[row] + starts[row])[changed]] = True
            after = model.normalizer_.user_weights(data.entries(~gone))[positions]
            after[np.diff(rows.indptr) == 0] = 0.0
        uncounted = changed & (x > 0)  # negative values are not counted
        is_used = shown & (data.item_counts[indices] - uncounted > 0)
        cold = np.bincount(row[is_used], minlength=len(positions)) == 0
        columns = (indices.astype(np.int32), x, remaining, odds, penalty, shown)
        return cls(
            data,
            positions,
            rows,
            tuple(np.ascontiguousarray(column[order]) for column in columns),
            (train.matrix.indptr.astype(np.int64), weight[positions], after),
            # an item that only this user has gives no scores without the user
            np.where(alone, 0.0, values)[order],
            uncounted[order],
            alone[order],
            cold,
        )


Reading = tuple[Vector, Vector, Vector, Vector, float, float]
Arrays = tuple[npt.NDArray[Any], ...]


def _reading(model: LinearAutoencoder, alpha: float | None) -> Reading:
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
    readings: Sequence[Reading],
    companion_of: Sequence[int],
    model: LinearAutoencoder,
) -> tuple[npt.NDArray[Any], Arrays, Arrays]:
    """Return the weighted histories of each source scale, the groups of models, the families."""
    indices, changed = removal.indices, removal.changed
    sources: dict[bytes, Vector] = {}
    members: dict[tuple[bytes, bytes, int], list[int]] = {}
    for place, (source, target, *_) in enumerate(readings):
        members.setdefault((source.tobytes(), target.tobytes(), companion_of[place]), []).append(
            place
        )
    columns: list[tuple[Any, ...]] = []
    for (key, _, extra), places in members.items():
        source, target, fewer_source, fewer_target, *_ = readings[places[0]]
        scale = np.where(changed, fewer_source[indices], source[indices])
        sources.setdefault(key, removal.values * scale)
        after = -np.where(changed, fewer_target[indices], target[indices])
        after[removal.alone] = 0.0  # no other user has them
        limits = -target * model.penalty_, -target / model.diagonal_
        columns.append((list(sources).index(key), extra, -target, after, *limits))
    source_of, extras, targets, afters, *bounds = map(np.stack, zip(*columns, strict=True))
    dtype = model.inverse_.dtype
    groups = source_of, extras, targets, afters, *(bound.astype(dtype) for bound in bounds)
    order = np.concatenate([*members.values()])
    a, b = (np.array([reading[at] for reading in readings])[order] for at in (4, 5))
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
    companions: Sequence[LowPass],
    model: LinearAutoencoder,
    removal: Removal,
    users: npt.NDArray[np.int64],
) -> npt.NDArray[Any]:
    """Return the scores of companions, companions x users x items.

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
        for number, companion in enumerate(companions):
            term = companion.fit(train, dtype.name).term
            out[number, members] = score([term], removal.history[users[members]])
    return out


def _rank_by_popularity(
    removal: Removal, items: npt.NDArray[np.int32], scores: npt.NDArray[Any]
) -> None:
    """Rank items for cold users by the number of other users; seen items are left out."""
    offsets, k = removal.of_user[0], items.shape[2]
    for user in np.flatnonzero(removal.cold):
        entries = slice(offsets[user], offsets[user + 1])
        counts = removal.data.item_counts.astype(np.float64)
        counts[removal.indices[entries]] -= removal.changed[entries]
        order = np.argsort(-counts, kind="stable")
        history = removal.history.indices[slice(*removal.history.indptr[user : user + 2])]
        order = order[~np.isin(order, history)][:k]
        items[:, user], scores[:, user] = -1, np.nan
        items[:, user, : len(order)], scores[:, user, : len(order)] = order, counts[order]
