"""Scores and top-k lists: one path for recommending, evaluating and serving.

A user's scores are summed from the rows of the history's items, block of columns by block of
columns, and offered to the user's heap at once. Neither users x items nor the scoring matrix is
ever formed, and the lists do not depend on threads, batches or the other users.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.blocks import SCRATCH, Job, Ranked, adders, constant_scores, sum_dtype
from equipoise.errors import DataError, SettingError, SolveError
from equipoise.matrix import Csr, as_positions
from equipoise.terms import Term
from equipoise.threads import count, limited, run

__all__ = ["Ranked", "score", "score_items", "top_k"]


def top_k(
    terms: Sequence[Term],
    history: Csr,
    k: int,
    *,
    exclude_seen: bool = True,
    exclude: Csr | None = None,
    candidates: npt.NDArray[np.bool_] | None = None,
    users: npt.NDArray[np.int64] | None = None,
    threads: int | None = None,
) -> Ranked:
    """Return the k items with the highest scores for each history.

    Equal scores are ordered by item position, lowest first. An item whose score is minus infinity
    is never listed.

    Parameters
    ----------
    terms
        Their sum is the scoring matrix.
    history
        Users x items; values are weights, 1 for an interaction.
    k
        Length of the lists; there is room for no more than there are items.
    exclude_seen
        Leave out the items of the history.
    exclude
        Users x items; stored pairs are left out, whatever their value.
    candidates
        Mask of the items that may be listed, for all users.
    users
        Positions of the training users that the rows belong to, -1 for anybody else; for terms
        that know more of these than the history.
    threads
        Number of threads; all that are in force when left out.

    Raises
    ------
    SolveError
        If a score is NaN; names the first such row.
    """
    if k < 1:
        raise SettingError(f"k must be >= 1, got {k}")
    history = _checked(terms, history)
    n_users, n_items = history.shape
    hidden = [history] if exclude_seen else []
    if exclude is not None:
        if exclude.shape != history.shape:
            raise DataError(f"exclude must have shape {history.shape}, got {exclude.shape}")
        hidden.append(_canonical(exclude))
    allowed = np.ones(n_items, np.bool_) if candidates is None else np.asarray(candidates)
    if allowed.shape != (n_items,) or allowed.dtype != np.bool_:
        found = f"{allowed.dtype} {allowed.shape}"
        raise DataError(f"candidates must be a mask of {n_items} items, got {found}")
    job = Job(terms, history, hidden, allowed, min(k, n_items), users)
    ranked = Ranked.empty(n_users, job.k, sum_dtype(terms))
    with limited(threads):
        chunks = job.chunks(count())
        bad = [np.empty(0, np.int64)] * len(chunks)

        def rank_chunk(number: int) -> None:
            bad[number] = job.run(chunks[number], ranked)

        run(rank_chunk, len(chunks))
    _refuse_nan(np.concatenate([*bad, np.empty(0, np.int64)]))
    return ranked


def score(
    terms: Sequence[Term],
    history: Csr,
    rows: npt.ArrayLike | None = None,
    *,
    users: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[Any]:
    """Return the scores of all items, users x items; meant for a few users at a time.

    Parameters
    ----------
    terms, history, users
        As for `top_k`; the numbers are the same, bit for bit.
    rows
        Rows of the history, by position; all when left out.
    """
    history = _checked(terms, history)
    chosen = np.arange(history.shape[0]) if rows is None else as_positions(rows, history.shape[0])
    scores = _dense_scores(terms, history, chosen, users)
    _refuse_nan(chosen[np.isnan(scores).any(axis=1)])
    return scores


def score_items(
    terms: Sequence[Term], history: Csr, user_rows: npt.ArrayLike, items: npt.ArrayLike
) -> npt.NDArray[Any]:
    """Return the scores of pairs of a history row and an item, as `top_k` would give them.

    Costs as much as a top-k list for each distinct row.
    """
    history = _checked(terms, history)
    rows = as_positions(user_rows, history.shape[0])
    wanted = as_positions(items, history.shape[1])
    if rows.shape != wanted.shape:
        raise DataError(f"{rows.size} user rows for {wanted.size} items")
    found = np.empty(len(rows), sum_dtype(terms))
    order = np.argsort(rows, kind="stable")
    users, starts = np.unique(rows[order], return_index=True)
    ends = np.append(starts, len(rows))
    step = max(1, SCRATCH // (8 * max(history.shape[1], 1)))
    for first in range(0, len(users), step):
        some = users[first : first + step]
        pairs = order[ends[first] : ends[first + len(some)]]
        scores = _dense_scores(terms, history, some)
        found[pairs] = scores[np.searchsorted(some, rows[pairs]), wanted[pairs]]
    _refuse_nan(rows[np.isnan(found)])
    return found


def _dense_scores(
    terms: Sequence[Term],
    history: Csr,
    users: npt.NDArray[np.int64],
    known: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[Any]:
    scores = np.tile(constant_scores(terms, history.shape[1]), (len(users), 1))
    for add in adders(terms, history, users, known):
        add(scores, 0)
    return scores


def _checked(terms: Sequence[Term], history: Csr) -> Csr:
    if not terms:
        raise DataError("at least one term is needed to score")
    for term in terms:
        if term.n_items != history.shape[1]:
            raise DataError(
                f"the history has {history.shape[1]} items, the model has {term.n_items}"
            )
    return _canonical(history)


def _canonical(csr: Csr) -> Csr:
    """Sort the positions of each row, so that the order of the sums is fixed."""
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    return csr


def _refuse_nan(rows: npt.NDArray[np.int64]) -> None:
    if rows.size:
        raise SolveError(
            f"row {rows.min()} of the histories has scores that are not numbers; "
            "the model holds NaN or infinite values: fit it again with a larger l2 or in float64"
        )
