"""Exact updates of a fitted linear autoencoder.

The Gram matrix is a sum over users, so new, changed and forgotten users are low-rank changes of
A = X^T W X + L, and the Woodbury identity carries them over to P = A^-1.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg import cholesky, solve_triangular

from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr
from equipoise.data.readers import read
from equipoise.data.tables import is_frame
from equipoise.errors import DataError, SettingError, SolveError
from equipoise.normalize import CustomNorm
from equipoise.runtime.machine import free_memory, gigabytes
from equipoise.solve.dense import TOLERANCE, add_outer, mirror, residual_and_level
from equipoise.solve.engine import Solved, System
from equipoise.solve.planning import Size, update_cost

if TYPE_CHECKING:
    from equipoise.models.linear import LinearAutoencoder

logger = logging.getLogger(__name__)

PAYS = 0.2  # largest rank of an update, as a share of n, that beats a new solve


@dataclass(frozen=True, eq=False)
class Change:
    """A system before and after an update; items may be added but not removed.

    `lowpass_rank` is that of the companion, which is fitted anew.
    """

    before: System
    after: System
    lowpass_rank: int = 0


def update_linear(
    model: LinearAutoencoder, added: Interactions | None, removed: Any, *, replace: bool = False
) -> None:
    """Make a model equal to a refit on the changed data; does not write into its arrays."""
    old = model._fitted
    model.solution_.require("update")
    if isinstance(model.normalizer_, CustomNorm):
        raise SettingError("a CustomNorm has fixed users and items; fit again on changed data")
    present = model.data_.loaded("update")
    raw_data = changed_data(present, added, removed, replace=replace)
    if raw_data.fingerprint == present.fingerprint:
        return
    new = model._weighed(raw_data)
    normalizer, numbers = model.normalizer_, (model.l2_, model.dropout_)  # "auto" stays resolved
    before = model._system(old, normalizer, model.penalty_)
    model._raw_data = raw_data
    if model.item_features_ is not None:  # so does the vocabulary
        model.item_features_ = model.item_features_.on(new)
    penalty = model._penalty(new, normalizer, *numbers)
    after = model._system(new, normalizer, penalty)
    solved = model.solution_.updated(Change(before, after, model._lowpass_rank))
    if solved is None:
        model._solve(new, normalizer, numbers, model.solution_.solve_options())
    else:
        model._take(new, normalizer, numbers, penalty, solved)
    model._fit_trend()
    model._list_new_items()


def updated_array(P: npt.NDArray[Any], change: Change) -> Solved | None:
    """Return the inverse after a change of low rank; None if a new solve is better."""
    before, after = change.before, change.after
    n_items = after.data.n_items
    rows, weights = gram_change(before, after)
    # a new item has its penalty from the start, so that it adds nothing to the rank
    start_penalty = np.append(before.penalty, after.penalty[len(before.penalty) :])
    moved = after.penalty - start_penalty
    touched = np.flatnonzero(moved)
    rank = len(weights) + len(touched)
    if not _pays(change, rank, P.dtype.name):
        return None
    logger.info("rank %d of %d: updating the inverse", rank, n_items)
    unit = (np.ones(len(touched)), (np.arange(len(touched)), touched))
    diagonal = sp.csr_array(unit, shape=(len(touched), n_items))
    changed: Csr = sp.vstack([rows, diagonal], format="csr")
    larger = with_new_items(P, start_penalty)
    return _updated(larger, after, changed, np.concatenate([weights, moved[touched]]))


def _pays(change: Change, rank: int, dtype: str) -> bool:
    """Whether an update of this rank is faster than a solve, and fits into memory."""
    new = change.after.data
    if rank > PAYS * new.n_items:
        logger.info("rank %d of %d: solving again", rank, new.n_items)
        return False
    size = Size.of(new, dtype, change.lowpass_rank)
    needed, free = update_cost(size, rank).peak_bytes, free_memory()
    if needed > free:
        sizes = gigabytes(needed), gigabytes(free)
        logger.info("an update needs %s and %s is free: solving again", *sizes)
    return needed <= free


def _updated(
    P: npt.NDArray[Any], after: System, rows: Csr, weights: npt.NDArray[np.float64]
) -> Solved | None:
    """Change A by R^T diag(w) R in its inverse P, in place; None if it is not accurate.

    Rounding errors of updates accumulate, and removing users can enlarge them. Each entry of a
    solved inverse is a sum of up to n products, whose rounding errors grow like a random walk, to
    about sqrt(n) roundings: beyond that, a new solve is better.
    """
    try:
        low_rank_update(P, rows, weights)
    except SolveError:
        logger.info("the updated matrix is not positive definite: solving again")
        return None
    system = after.matrix, after.weights, after.penalty
    residual, level = residual_and_level(P, *system)
    limit = min(level * len(P) ** 0.5, TOLERANCE[P.dtype.name])
    if not residual <= limit:
        logger.info("residual %.1e, above %.1e of a solve: solving again", residual, limit)
        return None
    return Solved(P, P.diagonal(), residual)


def changed_data(
    old: Interactions, added: Any, removed: Any, *, replace: bool = False
) -> Interactions:
    """Return the data after the change.

    Users that the removal leaves without any pair or event are dropped. Other users stay, even if
    their weights sum to zero, and so do items.
    """
    new = old
    added = read(added) if is_frame(added) else added
    removed = read(removed) if is_frame(removed) else removed
    if removed is not None:
        if not isinstance(removed, Interactions):
            if isinstance(removed, Mapping):
                raise DataError("removed must be Interactions, a frame or user ids, not a mapping")
            hint = "only users of the training data can be removed"
            removed = old.rows(np.unique(old.user_index.positions(removed, hint=hint)))
        unknown = removed.difference(old)
        if unknown.n_interactions:
            raise DataError(
                f"{unknown.n_interactions:,} of the pairs to remove are not in the data; leave "
                "them out"
            )
        new = new.difference(removed)
    if added is not None:
        if not isinstance(added, Interactions):
            raise DataError("added must be Interactions or a frame; make them with eq.read(...)")
        new = new.union(added, replace=replace)
    if not new.n_interactions:
        raise DataError("the update would leave no interactions; keep some")
    if removed is None:
        return new
    touched = new.user_index.positions(removed.users, unknown="skip")
    emptied = np.zeros(new.n_users, np.bool_)
    emptied[touched[touched >= 0]] = True
    emptied &= new._empty_users
    return new.rows(~emptied) if emptied.any() else new


def gram_change(old: System, new: System) -> tuple[Csr, npt.NDArray[np.float64]]:
    """Return rows R and weights w with A_new - A_old = R^T diag(w) R, without the penalty.

    They are those of the users that changed, and of the features that did.
    """
    rows, weights = _user_change(old, new)
    if new.features is None or not new.has_features:
        return rows, weights
    of_features, feature_weights = _feature_change(old, new)
    stacked: Csr = sp.vstack([rows, of_features], format="csr")
    return stacked, np.concatenate([weights, feature_weights])


def _feature_change(old: System, new: System) -> tuple[Csr, npt.NDArray[np.float64]]:
    """Return the rows of features after and before the change, where they differ."""
    assert old.features is not None
    assert new.features is not None
    after: Csr = new.features.T.tocsr()
    narrow: Csr = old.features.T.tocsr()
    before: Csr = sp.csr_array((narrow.data, narrow.indices, narrow.indptr), shape=after.shape)
    difference: Csr = (after - before).tocsr()
    difference.eliminate_zeros()
    differs = np.diff(difference.indptr) > 0
    rows: Csr = sp.vstack([after[differs], before[differs]], format="csr")
    weights = np.full(int(differs.sum()), new.feature_weight)
    return rows, np.concatenate([weights, -weights])


def _user_change(old: System, new: System) -> tuple[Csr, npt.NDArray[np.float64]]:
    before, after = old.data.with_items(new.data.item_index), new.data
    match = after.user_index.positions(before.users, unknown="skip")
    stays = match >= 0
    place: Csr = sp.csr_array(
        (np.ones(int(stays.sum()), np.float32), (match[stays], np.flatnonzero(stays))),
        shape=(after.n_users, before.n_users),
    )
    difference: Csr = (after.matrix - place @ before.matrix).tocsr()
    difference.eliminate_zeros()
    differs = np.diff(difference.indptr) > 0
    gone = ~stays
    gone[stays] = differs[match[stays]]
    rows: Csr = sp.vstack([after.matrix[differs], before.matrix[gone]], format="csr")
    return rows, np.concatenate([new.user_weights[differs], -old.user_weights[gone]])


def low_rank_update(P: npt.NDArray[Any], rows: Csr, weights: npt.NDArray[np.float64]) -> None:
    """Replace P = A^-1 by (A + R^T diag(w) R)^-1 in place.

    Rows are added first and removed second, so that the matrix stays positive definite and both
    steps are Cholesky solves.
    """
    for sign in (1.0, -1.0):
        chosen = np.flatnonzero(sign * weights > 0)
        if not len(chosen):
            continue
        root = np.sqrt(np.abs(weights[chosen])).astype(P.dtype)
        U = sp.diags_array(root) @ rows[chosen].astype(P.dtype)
        Z = np.ascontiguousarray(U @ P)  # U A^-1, rank x n
        K = sign * (U @ Z.T).astype(np.float64)
        K.flat[:: len(chosen) + 1] += 1
        try:
            factor = cholesky(K, lower=True, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError as error:
            raise SolveError("the updated matrix is not positive definite") from error
        T = solve_triangular(factor.astype(P.dtype), Z, lower=True, overwrite_b=True)
        add_outer(P, np.ascontiguousarray(T), -sign)
        mirror(P)


def with_new_items(P: npt.NDArray[Any], penalty: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    """Return a copy of P with a row 1 / penalty on the diagonal for each new item."""
    larger = np.zeros((len(penalty), len(penalty)), P.dtype)
    larger[: len(P), : len(P)] = P
    fresh = np.arange(len(P), len(penalty))
    larger[fresh, fresh] = 1 / penalty[fresh]
    return larger
