"""Compiled leave-one-out ranking: lists of training users, each left out of the solution.

With A = P^-1, S the items of a user, x their values and M the user's contribution to A[S,S], the
inverse without the user is P + P[:,S] T P[S,:] with T = (M^-1 - P[S,S])^-1. M is a rank-one matrix
plus a diagonal, so its Cholesky factor F has a closed form, and T = F (I - F^T P[S,S] F)^-1 F^T
needs one small Cholesky factorisation; it exists because A without the user is positive definite.

Scores need one vector of weights for the rows S of P. The diagonal of the new inverse, which EASE
and RLAE divide by, costs k^2 operations for each item, but it can only grow. So the scores with
the old diagonal are upper bounds: only items that can reach the list are computed exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.ranking.kernels import SCAN, add_to_sums, select
from equipoise.runtime.kernels import Floats, compiled

WIDTH = 512  # columns whose sums stay in the first-level cache
LOWEST = -1e38  # below any score of a sound model
SLACK = 1e-5  # share of a bound, far more than its rounding
LANES = 32  # items whose diagonal is computed side by side


@compiled
def take_out(
    P: Floats, x: Floats, remaining: Floats, odds: Floats, weight: float, after: float
) -> tuple[float, Any, Any, Any, Any, float]:
    """Return the update of P[S,S] (changed in place) to the inverse without the user.

    The inverse is that of ``A - weight x x^T - diag(odds x^2) + after remaining remaining^T``. The
    last summand, for users with remaining items, is added first, so that both steps have positive
    definite matrices. Returns its factor and vector, the diagonal and the tail of each column of
    F, the transposed Cholesky factor of I - F^T P F, and the largest shrinkage of the diagonal.
    """
    k = len(x)
    z = np.zeros(k)
    tau, shrunk = 0.0, 1.0
    if after > 0:
        for a in range(k):
            for b in range(k):
                z[a] += P[a, b] * remaining[b]
        for a in range(k):
            shrunk += after * remaining[a] * z[a]
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
def _solve_lower(
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
def _row_weights(P: Floats, x: Floats, remaining: Floats, update: Any, v: Floats) -> Floats:
    """Return q with v^T P(-u) = q^T P[S,:]; P is P[S,S] as `take_out` left it."""
    tau, z, pivots, tails, upper, _ = update
    k, rank = len(x), len(upper)
    y, t = np.zeros(k), np.zeros(k)
    for a in range(k):
        for b in range(k):
            y[a] += P[a, b] * v[b]
    _solve_lower(pivots, tails, upper, y, x, t)
    for j in range(rank - 1, -1, -1):
        for i in range(j + 1, rank):
            t[j] -= upper[j, i] * t[i]
        t[j] /= upper[j, j]
    q = np.empty(k)
    above = 0.0
    for a in range(k):
        on_diagonal = pivots[a] * t[a] if a < rank else 0.0
        q[a] = v[a] + x[a] * (on_diagonal + above)
        if a < rank:
            above += tails[a] * t[a]
    if tau > 0:
        along = 0.0
        for a in range(k):
            along += q[a] * z[a]
        for a in range(k):
            q[a] -= tau * along * remaining[a]
    return q


@compiled
def _invert_diagonal(
    rows: Floats,
    place: Any,
    columns: Any,
    x: Floats,
    remaining: Floats,
    update: Any,
    diagonal: Floats,
    out: Floats,
) -> None:
    """Set 1 / P(-u)_jj for the items j in `columns`, `LANES` of them at a time."""
    tau, z, pivots, tails, upper, _ = update
    k, rank = len(x), len(upper)
    block, below, growth = np.empty((k, LANES)), np.empty(LANES), np.empty(LANES)
    for first in range(0, len(columns), LANES):
        part = columns[first : first + LANES]
        width = len(part)
        below[:], growth[:] = 0, 0
        for a in range(k):
            row, lane = rows[place[a]], block[a]
            for c in range(width):
                lane[c] = row[part[c]]
        if tau > 0:
            for a in range(k):
                for c in range(width):
                    growth[c] += remaining[a] * block[a, c]
            for a in range(k):
                for c in range(width):
                    block[a, c] -= tau * growth[c] * z[a]
            for c in range(width):
                growth[c] *= -tau * growth[c]
        for a in range(k - 1, -1, -1):
            lane = block[a]
            for c in range(width):
                value = x[a] * lane[c]
                if a < rank:
                    lane[c] = pivots[a] * value + tails[a] * below[c]
                below[c] += value
        for a in range(rank):
            lane = block[a]
            for c in range(width):
                lane[c] /= upper[a, a]
                growth[c] += lane[c] * lane[c]
            for b in range(a + 1, rank):
                other, weight = block[b], upper[a, b]
                for c in range(width):
                    other[c] -= weight * lane[c]
        for c in range(width):
            out[part[c]] = 1 / (diagonal[part[c]] + growth[c])


@compiled
def _insert(items: Any, scores: Any, length: int, item: int, score: Any) -> int:
    """Insert an item into a sorted list; of equal scores the lower position comes first."""
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
def _bound(
    total: Floats, by_penalty: Floats, by_diagonal: Floats, a: Any, b: Any, out: Floats
) -> None:
    """Set upper bounds of scores, where s is max(a penalty, b / diagonal); 0 if negative."""
    zero = out.dtype.type(0)
    for j in range(len(total)):
        value, other = a * (total[j] * by_penalty[j]), b * (total[j] * by_diagonal[j])
        value = value if value > other else other
        out[j] = zero if value < zero else value


@compiled
def _promising(bounds: Floats, worst: Any, seen: Any, stamp: int, out: Any) -> int:
    """Collect the items whose bound is at least the worst listed score; return their number."""
    count = 0
    for at in range(0, len(bounds), SCAN):
        part = bounds[at : at + SCAN]
        promising = 0
        for j in range(len(part)):
            promising += part[j] >= worst
        if promising > 0:
            for j in range(len(part)):
                if part[j] >= worst and seen[at + j] != stamp:
                    out[count] = at + j
                    count += 1
    return count


@compiled
def _reaches(
    product: float, more: float, penalty: float, inverse: float, families: Any, worsts: Any
) -> bool:
    """Whether an item can reach the list of any reading; product is sum times target."""
    of_penalty, of_diagonal = families
    for reading in range(len(worsts)):
        a, b = of_penalty[reading], of_diagonal[reading]
        if product > 0:
            most = product * (1 + SLACK) * max(a * penalty, b * inverse)
        else:
            most = product * (1 - SLACK) * max(a, b) * penalty
        if most + more >= worsts[reading]:
            return True
    return False


@compiled
def _offer(
    candidates: Any,
    penalties: Floats,
    factors: Floats,
    inverses: Floats,
    total: Floats,
    more: Floats,
    families: Any,
    places: Any,
    user: int,
    items: Any,
    scores: Any,
    lengths: Any,
    worsts: Any,
) -> bool:
    """Insert items into the lists of the readings; return whether a score is NaN."""
    of_penalty, of_diagonal = families
    kind, k = scores.dtype.type, items.shape[2]
    has_nan = False
    for reading in range(len(places)):
        a, b = of_penalty[reading], of_diagonal[reading]
        listed, best = items[places[reading], user], scores[places[reading], user]
        for at in range(len(candidates)):
            j = candidates[at]
            scale = max(a * penalties[at], b * inverses[j]) if b > 0 else a * penalties[at]
            value = total[j] * kind(scale * factors[at])
            if len(more):
                value += more[j]
            has_nan |= value != value
            lengths[reading] = _insert(listed, best, lengths[reading], j, value)
        worsts[reading] = best[k - 1] if lengths[reading] == k else kind(LOWEST)
    return has_nan


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
    groups: Any,
    readings: Any,
    extra: Any,
    items: Any,
    scores: Any,
    bad: Any,
) -> None:
    """Fill the lists of these users for every reading (family, alpha, bound) of the solution.

    Readings that differ only in their family are a group: one bound finds the candidates for all
    of them, and few items are scored one by one.

    Parameters
    ----------
    users
        Positions of the users among those that are left out.
    rows, slots
        Rows of P, and for each entry the row of its item.
    entries
        For each item of each user: position, value in training, value that remains in training,
        dropout odds to remove, penalty afterwards, and whether it is in the history.
    of_user
        Offsets of the entries, weight in the Gram matrix, weight afterwards.
    sources
        Value in the history times scale, a row for each alpha.
    diagonal, penalty
        Of P and of L, with all users.
    groups
        For each group: its source; its kind of extra scores; scale of the targets, including the
        minus sign, and the same for each entry; target times penalty, and by diagonal.
    readings
        Offsets of the groups; for each reading, group by group: its place in the results; a and b
        of s = max(a penalty, b / diagonal).
    extra
        Scores to add: kinds x users of this call x items; no kinds if there are none.
    items, scores, bad
        Results, readings x all users x k; users with a NaN score.
    """
    indices, x_all, remaining_all, odds_all, penalty_after, shown = entries
    offsets, weights, afters = of_user
    source_of, extra_of, targets, targets_after, by_penalty, by_diagonal = groups
    starts, places, of_penalty, of_diagonal = readings
    n_items, k = len(diagonal), items.shape[2]
    kind = rows.dtype.type
    bounds = np.empty((1, n_items), rows.dtype)
    best, likely = np.empty((1, k), rows.dtype), np.empty((1, k), np.int32)
    length, has_nan = np.zeros(1, np.int32), np.zeros(1, np.bool_)
    lengths, worsts = np.zeros(len(places), np.int64), np.empty(len(places), rows.dtype)
    sums = np.empty((len(sources), n_items), rows.dtype)
    strip = np.empty((len(sources), WIDTH), rows.dtype)
    inverses, known = np.empty(n_items), np.full(n_items, -1, np.int64)
    seen, stamp = np.full(n_items, -1, np.int64), 0
    left, candidates = np.empty(n_items, np.int32), np.empty(n_items, np.int32)
    missing = np.empty(n_items, np.int32)
    penalties, factors = np.empty(n_items), np.empty(n_items)  # and targets of the candidates
    nothing = np.empty(0, rows.dtype)
    for number in range(len(users)):
        user = users[number]
        start, stop = offsets[user], offsets[user + 1]
        S, x, remaining = indices[start:stop], x_all[start:stop], remaining_all[start:stop]
        place, size = slots[start:stop], stop - start
        P = np.empty((size, size))
        for a in range(size):
            for b in range(size):
                P[a, b] = rows[place[a], S[b]]
        update = take_out(P, x, remaining, odds_all[start:stop], weights[user], afters[user])
        q = np.empty((len(sources), size), rows.dtype)
        for source in range(len(sources)):
            q[source] = _row_weights(P, x, remaining, update, sources[source, start:stop])
        for low in range(0, n_items, WIDTH):
            width = min(WIDTH, n_items - low)
            strip[:] = 0
            add_to_sums(strip, width, rows, low, place, q, 0, size)
            sums[:, low : low + width] = strip[:, :width]
        has_nan[0] = False
        for group in range(len(source_of)):
            total, target = sums[source_of[group]], targets[group]
            more = extra[extra_of[group], number] if extra_of[group] >= 0 else nothing
            members = slice(starts[group], starts[group + 1])
            families = of_penalty[members], of_diagonal[members]
            divides = families[1].max() > 0
            scales = total, by_penalty[group], by_diagonal[group]
            most = (1 + SLACK) * families[0].max(), (1 + SLACK) * update[5] * families[1].max()
            lengths[members], worsts[members] = 0, kind(LOWEST)
            stamp += 1
            for entry in range(size):
                seen[S[entry]] = stamp
            if group == 0:
                _bound(*scales, kind(most[0]), kind(most[1]), bounds[0])
                bounds[0, : len(more)] += more
                for entry in range(size):
                    bounds[0, S[entry]] = -np.inf
                length[0] = 0
                select(bounds, 0, likely, best, length, has_nan)
            count = 0
            for entry in range(start, stop):
                if not shown[entry]:
                    candidates[count], factors[count] = indices[entry], targets_after[group, entry]
                    penalties[count] = penalty_after[entry]
                    count += 1
            for at in range(length[0]):
                j = likely[0, at]
                if seen[j] != stamp:
                    candidates[count], penalties[count], factors[count] = j, penalty[j], target[j]
                    seen[j] = stamp
                    count += 1
            # first the user's hidden items and likely ones, then all that can still be listed
            at, n_left = -1, 0
            while at < n_left:
                if at >= 0:
                    j = left[at]
                    inverse = inverses[j] if known[j] == user else update[5] / diagonal[j]
                    product, added = total[j] * target[j], more[j] if len(more) else 0.0
                    if _reaches(product, added, penalty[j], inverse, families, worsts[members]):
                        candidates[count], penalties[count] = j, penalty[j]
                        factors[count] = target[j]
                        count += 1
                if at < 0 or count == LANES or at == n_left - 1:
                    n_missing = 0
                    for c in range(count if divides else 0):
                        j = candidates[c]
                        if known[j] != user:
                            known[j], missing[n_missing] = user, j
                            n_missing += 1
                    columns = missing[:n_missing]
                    _invert_diagonal(
                        rows, place, columns, x, remaining, update, diagonal, inverses
                    )
                    has_nan[0] |= _offer(
                        *(candidates[:count], penalties, factors, inverses, total, more, families),
                        *(places[members], user, items, scores, lengths[members], worsts[members]),
                    )
                    count = 0
                if at < 0:
                    worst = worsts[members].min()
                    if worst > 0 and len(more) == 0:
                        # relative to the worst score of each family, one bound serves all
                        most = (
                            (1 + SLACK) * (families[0] / worsts[members]).max(),
                            (1 + SLACK) * update[5] * (families[1] / worsts[members]).max(),
                        )
                        worst = kind(1)
                    _bound(*scales, kind(most[0]), kind(most[1]), bounds[0])
                    bounds[0, : len(more)] += more
                    n_left = _promising(bounds[0], worst, seen, stamp, left)
                at += 1
            # the next group has much the same lists
            length[0] = lengths[members][-1]
            likely[0, : length[0]] = items[places[members][-1], user, : length[0]]
        bad[user] = has_nan[0]
