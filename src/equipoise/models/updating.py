"""Exact updates of a fitted linear autoencoder.

The Gram matrix is a sum over users, so new, changed and forgotten users are low-rank changes of
A = X^T W X + L, and the Woodbury identity carries them over to P = A^-1.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg import cholesky, solve_triangular

from equipoise.errors import DataError, SettingError, SolveError
from equipoise.interactions import Interactions
from equipoise.machine import free_memory, gigabytes
from equipoise.matrix import Csr
from equipoise.normalize import CustomNorm
from equipoise.solve.dense import TOLERANCE, add_outer, mirror, residual_and_level
from equipoise.solve.engine import Size, Solved, update_cost

if TYPE_CHECKING:
    from equipoise.models.linear import LinearAutoencoder

logger = logging.getLogger(__name__)

PAYS = 0.2  # largest rank of an update, as a share of n, that beats a new solve


def update_linear(
    model: LinearAutoencoder, added: Interactions | None, removed: Any, *, replace: bool = False
) -> None:
    """Bring a model to the state of a refit on the changed data; writes into no array it has."""
    old = model._fitted
    if model._is_pruned:
        raise SettingError("a pruned model cannot be updated; update the full one and prune it")
    if isinstance(model.normalizer_, CustomNorm):
        raise SettingError("weights brought per user or item do not fit changed data; fit again")
    given = changed_data(model.data_, added, removed, replace=replace)
    if given.fingerprint == model.data_fingerprint_:
        return
    new = model._weighed(given)
    model._given = given
    numbers = model.l2_, model.dropout_  # also where "auto" was asked for
    penalty = model._penalty(new, model.normalizer_, *numbers)
    rows, weights = gram_change(old, new, model)
    moved = penalty - _extended(model, new.n_items)
    touched = np.flatnonzero(moved)
    rank = len(weights) + len(touched)
    if _pays(model, new, rank):
        logger.info("rank %d of %d: updating the inverse", rank, new.n_items)
        unit = (np.ones(len(touched)), (np.arange(len(touched)), touched))
        diagonal = sp.csr_array(unit, shape=(len(touched), new.n_items))
        change: Csr = sp.vstack([rows, diagonal], format="csr")
        found = _updated(model, new, penalty, change, np.concatenate([weights, moved[touched]]))
        if found is not None:
            model._take(new, model.normalizer_, numbers, penalty, found)
            return
    model._solve(new, model.normalizer_, numbers, dtype=model.inverse_.dtype.name)


def _pays(model: LinearAutoencoder, new: Interactions, rank: int) -> bool:
    """Whether an update of this rank is faster than a solve, and the memory has room for it."""
    if rank > PAYS * new.n_items or (new.n_items > len(model.penalty_) and model.l2_ == 0):
        logger.info("rank %d of %d: solving again", rank, new.n_items)
        return False
    dtype = model.inverse_.dtype.name
    size = Size(new.n_users, new.n_items, new.n_interactions, dtype, model._lowpass_rank)
    needed, free = update_cost(size, rank).peak_bytes, free_memory()
    if needed > free:
        sizes = gigabytes(needed), gigabytes(free)
        logger.info("an update needs %s and %s is free: solving again", *sizes)
    return needed <= free


def _updated(
    model: LinearAutoencoder,
    new: Interactions,
    penalty: npt.NDArray[np.float64],
    rows: Csr,
    weights: npt.NDArray[np.float64],
) -> Solved | None:
    """Return the inverse after a change of A by R^T diag(w) R; None if it is not accurate.

    The rounding errors of updates add up, and taking users out can enlarge those that are there.
    Each number of a solved inverse comes from sums of up to n products, whose rounding errors add
    up like a random walk, to the size of sqrt(n) roundings: beyond that, a solve is better.
    """
    P = grown(model, new.n_items)
    try:
        low_rank_update(P, rows, weights)
    except SolveError:
        logger.info("the updated matrix is not positive definite: solving again")
        return None
    user_weights = model.normalizer_.user_weights(new)
    residual, level = residual_and_level(P, new.matrix, user_weights, penalty)
    limit = min(level * new.n_items**0.5, TOLERANCE[P.dtype.name])
    if not residual <= limit:
        logger.info("residual %.1e, above %.1e of a solve: solving again", residual, limit)
        return None
    return Solved(P, P.diagonal(), residual)


def changed_data(
    old: Interactions, added: Interactions | None, removed: Any, *, replace: bool = False
) -> Interactions:
    """Return the data after the change; users left without items are gone, items stay."""
    new = old
    if removed is not None:
        if not isinstance(removed, Interactions):
            removed = old.rows(np.unique(old.user_index.positions(removed)))
        strange = removed.difference(old)
        if strange.n_interactions:
            raise DataError(f"{strange.n_interactions:,} pairs to remove are not in the data")
        new = new.difference(removed)
    if added is not None:
        if not isinstance(added, Interactions):
            raise DataError("added must be Interactions; make them with eq.read(...)")
        new = new.union(added, replace=replace)
    if not new.n_interactions:
        raise DataError("the update would leave no interactions")
    kept = new.user_counts > 0
    return new if kept.all() else new.rows(kept)


def gram_change(
    old: Interactions, new: Interactions, model: LinearAutoencoder
) -> tuple[Csr, npt.NDArray[np.float64]]:
    """Rows R and weights w with G_new - G_old = R^T diag(w) R: changed users, after and before."""
    before, after = old.with_items(new.item_index), new
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
    weight_after = model.normalizer_.user_weights(after)[differs]
    weight_before = model.normalizer_.user_weights(old)[gone]
    rows: Csr = sp.vstack([after.matrix[differs], before.matrix[gone]], format="csr")
    return rows, np.concatenate([weight_after, -weight_before])


def low_rank_update(P: npt.NDArray[Any], rows: Csr, weights: npt.NDArray[np.float64]) -> None:
    """Replace P = A^-1 by (A + R^T diag(w) R)^-1 in place.

    What is added comes first and what is taken out second, so that the matrix stays positive
    definite and both steps are Cholesky solves.
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


def grown(model: LinearAutoencoder, n_items: int) -> npt.NDArray[Any]:
    """Return a copy of P for n_items, the new ones apart."""
    P = model.inverse_
    larger = np.zeros((n_items, n_items), P.dtype)
    larger[: len(P), : len(P)] = P
    fresh = np.arange(len(P), n_items)
    larger[fresh, fresh] = 1 / _extended(model, n_items)[fresh]
    return larger


def _extended(model: LinearAutoencoder, n_items: int) -> npt.NDArray[np.float64]:
    """Return the old penalty, with that of an item without users for each new item."""
    fresh = np.full(n_items - len(model.penalty_), model.l2_ if model.l2_ > 0 else 1.0)
    return np.concatenate([model.penalty_, fresh])
