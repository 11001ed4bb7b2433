"""Compiled loops: lists of training users as if each had been left out of the solve.

With A = P^-1, S the items of a user, x its values and M what it adds to A there, the solve without
it is P + P[:,S] T P[S,:] with T = (M^-1 - P[S,S])^-1. M is a rank-one matrix and a diagonal, so
its Cholesky factor F is known in closed form and T = F (I - F^T P[S,S] F)^-1 F^T needs one small
Cholesky factorisation, which is safe: what is left of A is positive definite.

Scores need one vector of weights for the rows S of P. The diagonal of the new inverse, which EASE
and RLAE divide by, costs k^2 operations for each item, but it can only grow, so the scores with
the old diagonal are bounds: only items that can reach the list are computed exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.kernels import Floats, compiled
from equipoise.ranking.kernels import SCAN, add_to_sums, select

WIDTH = 512  # columns whose sums stay in the first-level cache
LOWEST = -1e38  # below any score of a sound model
SLACK = 1e-5  # share of a bound, far more than its rounding; the caller adds it


@compiled
def take_out(
    P: Floats, x: Floats, kept: Floats, odds: Floats, weight: float, after: float
) -> tuple[float, Any, Any, Any, Any, float]:
    """Return what turns P[S,S], which is changed, and its columns into those without the user.

    ``A - weight x x^T - diag(odds x^2) + after kept kept^T``: the last summand, of a user that
    keeps some of its items, comes first, so that both steps are those of positive definite
    matrices. Returns its factor and vector, the diagonal and the tail of each column of F, the
    transposed Cholesky factor of I - F^T P F, and by how much the diagonal may have shrunk.
    """
    k = len(x)
    z = np.zeros(k)
    tau, shrunk = 0.0, 1.0
    if after > 0:
        for a in range(k):
            for b in range(k):
                z[a] += P[a, b] * kept[b]
        for a in range(k):
            shrunk += after * kept[a] * z[a]
        tau = after / shrunk
        for a in range(k):
            for b in range(k):
                P[a, b] -= tau * z[a] * z[b]
    # F of weight 1 1^T + diag(odds): all entries below the diagonal of a column are equal
    pivots, tails = np.zeros(k), np.zeros(k)
    left, rank = weight, 0
    while rank < k and odds[rank] + left > 0:
        pivot = odds[rank] + left
        pivots[rank] = np.sqrt(pivot)
        tails[rank] = left / pivots[rank]
        left = left * odds[rank] / pivot
        rank += 1
    half = np.empty((rank, k))  # F^T diag(x) P diag(x)
    below = np.zeros(k)
    for j in range(k - 1, -1, -1):
        for b in range(k):
            value = x[j] * P[j, b] * x[b]
            if j < rank:
                half[j, b] = pivots[j] * value + tails[j] * below[b]
            below[b] += value
    K = np.empty((rank, rank))
    for i in range(rank):
        right = 0.0
        for j in range(k - 1, -1, -1):
            if j < rank:
                K[i, j] = -(pivots[j] * half[i, j] + tails[j] * right)
            right += half[i, j]
        K[i, i] += 1.0
    upper = np.ascontiguousarray(np.linalg.cholesky(K).T)
    return tau, z, pivots, tails, upper, shrunk


@compiled
def _through(
    pivots: Floats, tails: Floats, upper: Floats, y: Floats, x: Floats, out: Floats
) -> None:
    """Set the first entries of out to C^-1 F^T (x y)."""
    rank, below = len(upper), 0.0
    for j in range(len(y) - 1, -1, -1):
        value = x[j] * y[j]
        if j < rank:
            out[j] = pivots[j] * value + tails[j] * below
        below += value
    for j in range(rank):
        out[j] /= upper[j, j]
        for i in range(j + 1, rank):
            out[i] -= upper[j, i] * out[j]


@compiled
def _row_weights(P: Floats, x: Floats, kept: Floats, found: Any, v: Floats) -> Floats:
    """Return q with v^T P(-u) = q^T P[S,:]; P is P[S,S] as `take_out` left it."""
    tau, z, pivots, tails, upper, _ = found
    k, rank = len(x), len(upper)
    y, t = np.zeros(k), np.zeros(k)
    for a in range(k):
        for b in range(k):
            y[a] += P[a, b] * v[b]
    _through(pivots, tails, upper, y, x, t)
    for j in range(rank - 1, -1, -1):
        for i in range(j + 1, rank):
            t[j] -= upper[j, i] * t[i]
        t[j] /= upper[j, j]
    q = np.empty(k)
    above = 0.0
    for a in range(k):
        own = pivots[a] * t[a] if a < rank else 0.0
        q[a] = v[a] + x[a] * (own + above)
        if a < rank:
            above += tails[a] * t[a]
    if tau > 0:
        along = 0.0
        for a in range(k):
            along += q[a] * z[a]
        for a in range(k):
            q[a] -= tau * along * kept[a]
    return q


@compiled
def _growth(column: Floats, x: Floats, kept: Floats, found: Any, t: Floats) -> float:
    """Return P(-u)_jj - P_jj from the column P[S,j], which is changed."""
    tau, z, pivots, tails, upper, _ = found
    growth = 0.0
    if tau > 0:
        along = 0.0
        for a in range(len(x)):
            along += kept[a] * column[a]
        growth = -tau * along * along
        for a in range(len(x)):
            column[a] -= tau * along * z[a]
    _through(pivots, tails, upper, column, x, t)
    for j in range(len(upper)):
        growth += t[j] * t[j]
    return growth


@compiled
def _insert(items: Any, scores: Any, length: int, item: int, score: Any) -> int:
    """Put an item into a list that is sorted; of equal scores the lower position comes first."""
    if score == -np.inf:
        return length
    size = len(items)
    at = length
    while at > 0 and (
        score > scores[at - 1] or (score == scores[at - 1] and item < items[at - 1])
    ):
        at -= 1
    if at == size:
        return length
    for place in range(min(length, size - 1), at, -1):
        items[place], scores[place] = items[place - 1], scores[place - 1]
    items[at], scores[at] = item, score
    return min(length + 1, size)


@compiled
def _bound(total: Floats, high: Floats, low: Floats, more: Floats, out: Floats) -> None:
    """Set what scores are at most: by `high` where they are positive, else by `low`."""
    for j in range(len(total)):
        value, other = total[j] * high[j], total[j] * low[j]
        out[j] = value if value > other else other
    for j in range(len(more)):
        out[j] += more[j]


@compiled
def _next(bounds: Floats, worst: Any, at: int) -> int:
    """Return the first item from `at` on that may belong before the worst; their number if none.

    What was looked at already is minus infinity, below any worst.
    """
    n_items = len(bounds)
    while at < n_items:
        part = bounds[at : min(at + SCAN, n_items)]
        promising = 0
        for j in range(len(part)):
            promising += part[j] >= worst
        if promising > 0:
            for j in range(len(part)):
                if part[j] >= worst:
                    return at + j
        at += SCAN
    return n_items


@compiled
def rank_left_out(
    users: Any,
    rows: Any,
    slots: Any,
    entries: Any,
    of_user: Any,
    sources: Any,
    diagonal: Any,
    penalty: Any,
    readings: Any,
    extra: Any,
    items: Any,
    scores: Any,
    bad: Any,
) -> None:
    """Fill in the lists of these users under every reading of the solve.

    Parameters
    ----------
    users
        Positions of the users among those that are left out.
    rows, slots
        Rows of P, and for each entry the row of its item.
    entries
        Of each item of each user: position, value in training, value that stays in training,
        odds of the dropout that go, penalty afterwards, whether it is in the history, and whether
        no other user has the item.
    of_user
        Offsets of the entries, weight in the Gram matrix, weight afterwards.
    sources
        Value in the history times scale, a row for each alpha.
    diagonal, penalty
        Of P and of L, with all users.
    readings
        Of each reading: its source; a and b of s = max(a penalty, b / diagonal); scale of the
        targets, minus sign included, and the same for each entry; bounds of target times s;
        which extra scores it has.
    extra
        Scores that are added: kinds x users of this call x items, of no kind where there are none.
    items, scores, bad
        Results, readings x all users x k; users with a score that is not a number.
    """
    indices, x_all, kept_all, odds_all, penalty_after, shown, alone = entries
    offsets, weights, afters = of_user
    source_of, of_penalty, of_diagonal, targets, targets_after, highs, lows, extra_of = readings
    n_items, k = len(diagonal), items.shape[2]
    kind = rows.dtype.type
    bounds = np.empty((1, n_items), rows.dtype)
    best, listed = np.empty((1, k), rows.dtype), np.empty((1, k), np.int32)
    length, odd = np.zeros(1, np.int32), np.zeros(1, np.bool_)
    sums = np.empty((len(sources), n_items), rows.dtype)
    growth, known = np.empty(n_items), np.full(n_items, -1, np.int64)
    nothing = np.empty(0, rows.dtype)
    for number in range(len(users)):
        user = users[number]
        start, stop = offsets[user], offsets[user + 1]
        S, x, kept = indices[start:stop], x_all[start:stop], kept_all[start:stop]
        place, size = slots[start:stop], stop - start
        P = np.empty((size, size))
        for a in range(size):
            for b in range(size):
                P[a, b] = rows[place[a], S[b]]
        found = take_out(P, x, kept, odds_all[start:stop], weights[user], afters[user])
        q = np.empty((len(sources), size), rows.dtype)
        for which in range(len(sources)):
            q[which] = _row_weights(P, x, kept, found, sources[which, start:stop])
        sums[:] = 0
        for low in range(0, n_items, WIDTH):
            width = min(WIDTH, n_items - low)
            add_to_sums(sums[:, low : low + width], width, rows, low, place, q, 0, size)
        column, t = np.empty(size), np.empty(size)
        odd[0] = False
        for which in range(len(source_of)):
            total, low = sums[source_of[which]], lows[which]
            more = extra[extra_of[which], number] if extra_of[which] >= 0 else nothing
            from_penalty, from_diagonal = of_penalty[which], of_diagonal[which]
            high = highs[which]
            if found[5] > 1:
                high = high * kind(found[5])
            out, out_scores = items[which, user], scores[which, user]
            _bound(total, high, low, more, bounds[0])
            for each in range(size):
                bounds[0, S[each]] = -np.inf
            if which == 0:
                length[0] = 0
                select(bounds, 0, listed, best, length, odd)
            # the user's own items, likely others, and then all that can still be listed
            count, at, last = 0, 0, size + length[0]
            while True:
                own = -1
                if at < size:
                    j, own = S[at], at
                elif at < last:
                    j = listed[0, at - size]
                else:
                    worst = out_scores[k - 1] if count == k else kind(LOWEST)
                    j = _next(bounds[0], worst, at - last)
                    if j == n_items:
                        break
                    at = last + j
                at += 1
                if (own >= 0 and shown[start + own]) or (own < 0 and bounds[0, j] == -np.inf):
                    continue
                if from_diagonal > 0 and known[j] != user:
                    for a in range(size):
                        column[a] = rows[place[a], j]
                    growth[j], known[j] = _growth(column, x, kept, found, t), user
                scale = from_penalty * (penalty_after[start + own] if own >= 0 else penalty[j])
                if from_diagonal > 0:
                    scale = max(scale, from_diagonal / (diagonal[j] + growth[j]))
                scale *= targets_after[which, start + own] if own >= 0 else targets[which, j]
                value = total[j] * kind(scale)
                if own >= 0 and alone[start + own]:
                    value = kind(0)  # nothing is left that leads to it
                if len(more):
                    value += more[j]
                if value != value:
                    odd[0] = True
                count = _insert(out, out_scores, count, j, value)
                bounds[0, j] = -np.inf
            length[0] = count
            listed[0, :count] = out[:count]  # the next reading has much the same list
        bad[user] = odd[0]
