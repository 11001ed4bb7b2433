"""Compiled inner loops of ranking: gather rows, add them up, mask items, keep the best k.

Every sum runs from left to right in plain IEEE arithmetic (no fast-math, no fused operations), and
each loop runs over columns, which are independent. So a score has the same bits however users,
columns and threads are divided. The kernels release the GIL; the caller brings the threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.runtime.kernels import Floats, Offsets, Positions, compiled, first_at_least

SCAN = 32  # scores compared with the list's worst before any of them is looked at
GROUP = 8  # rows added in one pass over the accumulator, which `_add_eight` is written for


@compiled
def _add_eight(
    total: Floats, matrix: Floats, low: int, indices: Positions, weights: Floats, place: int
) -> None:
    """Add eight weighted rows to the total, each row's columns from `low` on."""
    high, number = low + len(total), total.dtype.type
    r0, w0 = matrix[indices[place], low:high], weights[place]
    r1, w1 = matrix[indices[place + 1], low:high], weights[place + 1]
    r2, w2 = matrix[indices[place + 2], low:high], weights[place + 2]
    r3, w3 = matrix[indices[place + 3], low:high], weights[place + 3]
    r4, w4 = matrix[indices[place + 4], low:high], weights[place + 4]
    r5, w5 = matrix[indices[place + 5], low:high], weights[place + 5]
    r6, w6 = matrix[indices[place + 6], low:high], weights[place + 6]
    r7, w7 = matrix[indices[place + 7], low:high], weights[place + 7]
    for j in range(len(total)):
        value = total[j] + w0 * number(r0[j])
        value = value + w1 * number(r1[j])
        value = value + w2 * number(r2[j])
        value = value + w3 * number(r3[j])
        value = value + w4 * number(r4[j])
        value = value + w5 * number(r5[j])
        value = value + w6 * number(r6[j])
        total[j] = value + w7 * number(r7[j])


@compiled
def _add_four(
    total: Floats, matrix: Floats, low: int, indices: Positions, weights: Floats, place: int
) -> None:
    high, number = low + len(total), total.dtype.type
    r0, w0 = matrix[indices[place], low:high], weights[place]
    r1, w1 = matrix[indices[place + 1], low:high], weights[place + 1]
    r2, w2 = matrix[indices[place + 2], low:high], weights[place + 2]
    r3, w3 = matrix[indices[place + 3], low:high], weights[place + 3]
    for j in range(len(total)):
        value = total[j] + w0 * number(r0[j])
        value = value + w1 * number(r1[j])
        value = value + w2 * number(r2[j])
        total[j] = value + w3 * number(r3[j])


@compiled
def _add_two(
    total: Floats, matrix: Floats, low: int, indices: Positions, weights: Floats, place: int
) -> None:
    high, number = low + len(total), total.dtype.type
    r0, w0 = matrix[indices[place], low:high], weights[place]
    r1, w1 = matrix[indices[place + 1], low:high], weights[place + 1]
    for j in range(len(total)):
        value = total[j] + w0 * number(r0[j])
        total[j] = value + w1 * number(r1[j])


@compiled
def _add_one(total: Floats, row: Floats, weight: Any) -> None:
    for j in range(len(total)):
        total[j] = total[j] + weight * total.dtype.type(row[j])


@compiled
def _add_group(
    total: Floats,
    matrix: Floats,
    low: int,
    indices: Positions,
    weights: Floats,
    first: int,
    last: int,
) -> None:
    """Add at most eight rows from left to right, in as few passes as possible."""
    if last - first == GROUP:
        _add_eight(total, matrix, low, indices, weights, first)
        return
    if last - first >= 4:
        _add_four(total, matrix, low, indices, weights, first)
        first += 4
    if last - first >= 2:
        _add_two(total, matrix, low, indices, weights, first)
        first += 2
    if first < last:
        _add_one(total, matrix[indices[first], low : low + len(total)], weights[first])


@compiled
def _without_diagonal(
    total: Floats,
    before: Floats,
    matrix: Floats,
    low: int,
    indices: Positions,
    weights: Floats,
    first: int,
    last: int,
) -> None:
    """Recompute the sums of the group's own items without the diagonal of the matrix."""
    for place in range(first, last):
        item = indices[place]
        if low <= item < low + len(total):
            value = before[place - first]
            for other in range(first, last):
                if other != place:
                    cell = total.dtype.type(matrix[indices[other], item])
                    value = value + weights[other] * cell
            total[item - low] = value


@compiled
def add_rows(
    scores: Floats,
    low: int,
    matrix: Floats,
    indptr: Offsets,
    indices: Positions,
    weights: Floats,
    target: Floats,
    zero_diagonal: bool,
) -> None:
    """Add (sum over i of weight_i * matrix[i]) * target, columns from `low` on.

    The matrix may have integers; sums have the precision of the weights.
    """
    width = scores.shape[1]
    total = np.empty(width, weights.dtype)
    before = np.empty(GROUP, weights.dtype)
    scale = target[low : low + width]
    for user in range(scores.shape[0]):
        total[:] = 0
        for first in range(indptr[user], indptr[user + 1], GROUP):
            last = min(first + GROUP, indptr[user + 1])
            if zero_diagonal:
                for place in range(first, last):
                    column = indices[place] - low
                    if 0 <= column < width:
                        before[place - first] = total[column]
            _add_group(total, matrix, low, indices, weights, first, last)
            if zero_diagonal:
                _without_diagonal(total, before, matrix, low, indices, weights, first, last)
        out = scores[user]
        for j in range(width):
            out[j] = out[j] + total[j] * scale[j]


@compiled
def add_to_sums(
    sums: Floats,
    size: int,
    matrix: Floats,
    low: int,
    indices: Positions,
    weights: Floats,
    start: int,
    stop: int,
) -> None:
    """Add weighted rows to the sums of every source, four rows at a time."""
    place = start
    while place + 4 <= stop:
        r0 = matrix[indices[place], low : low + size]
        r1 = matrix[indices[place + 1], low : low + size]
        r2 = matrix[indices[place + 2], low : low + size]
        r3 = matrix[indices[place + 3], low : low + size]
        for source in range(len(sums)):
            total, weight = sums[source], weights[source]
            w0, w1, w2, w3 = weight[place], weight[place + 1], weight[place + 2], weight[place + 3]
            for j in range(size):
                value = total[j] + w0 * r0[j]
                value = value + w1 * r1[j]
                value = value + w2 * r2[j]
                total[j] = value + w3 * r3[j]
        place += 4
    while place < stop:
        row = matrix[indices[place], low : low + size]
        for source in range(len(sums)):
            total, factor = sums[source], weights[source, place]
            for j in range(size):
                total[j] = total[j] + factor * row[j]
        place += 1


@compiled
def add_product(
    scores: Floats, low: int, left: Floats, right: Floats, target: Floats, everything: Positions
) -> None:
    """Add left @ right * target, columns from `low` on; `everything` is 0, 1, 2, ...

    Eight rows of `right` stay in the first-level cache for all users.
    """
    width = scores.shape[1]
    total = np.zeros((scores.shape[0], width), right.dtype)
    for first in range(0, right.shape[0], GROUP):
        last = min(first + GROUP, right.shape[0])
        for user in range(scores.shape[0]):
            _add_group(total[user], right, low, everything, left[user], first, last)
    for user in range(scores.shape[0]):
        for j in range(width):
            scores[user, j] = scores[user, j] + total[user, j] * target[low + j]


@compiled
def add_sparse_rows(
    scores: Floats,
    low: int,
    data: Floats,
    columns: Positions,
    cursor: Offsets,
    ends: Offsets,
    indptr: Offsets,
    indices: Positions,
    weights: Floats,
    target: Floats,
    zero_diagonal: bool,
) -> None:
    """Like `add_rows` for sparse rows; the cursor has the position of each row's next column.

    Blocks must come in ascending order of `low`; a new pass needs a new cursor.
    """
    width = scores.shape[1]
    total = np.empty(width, data.dtype)
    for user in range(scores.shape[0]):
        total[:] = 0
        for place in range(indptr[user], indptr[user + 1]):
            at, end = cursor[place], ends[place]
            while at < end and columns[at] < low:
                at += 1
            while at < end and columns[at] < low + width:
                j = columns[at] - low
                # negative only if a damaged file has unsorted columns: stay in bounds
                if j >= 0 and not (zero_diagonal and columns[at] == indices[place]):
                    total[j] = total[j] + weights[place] * data[at]
                at += 1
            cursor[place] = at
        for j in range(width):
            scores[user, j] = scores[user, j] + total[j] * target[low + j]


@compiled
def gather_users(
    sums: Floats,
    values: Floats,
    users: Positions,
    starts: Offsets,
    indptr: Offsets,
    indices: Positions,
    weights: Floats,
) -> None:
    """Add the weighted users of each history's items to its sums; rows of items are sparse."""
    for row in range(sums.shape[0]):
        for place in range(indptr[row], indptr[row + 1]):
            item, weight = indices[place], weights[place]
            for at in range(starts[item], starts[item + 1]):
                sums[row, users[at]] += weight * values[at]


@compiled
def add_users(
    scores: Floats,
    low: int,
    sums: Floats,
    values: Floats,
    users: Positions,
    starts: Offsets,
    indptr: Offsets,
    indices: Positions,
    diagonal: Floats,
    target: Floats,
) -> None:
    """Add the weighted sums of each item's users, without an item's effect on its own score.

    `sums` has a row for each training user and a column for each history.
    """
    width = scores.shape[1]
    total = np.empty(scores.shape[0], sums.dtype)
    for j in range(width):
        total[:] = 0
        for at in range(starts[low + j], starts[low + j + 1]):
            row, value = sums[users[at]], values[at]
            for column in range(len(total)):
                total[column] = total[column] + value * row[column]
        for column in range(len(total)):
            scores[column, j] = scores[column, j] + total[column] * target[low + j]
    for row in range(scores.shape[0]):
        for place in range(indptr[row], indptr[row + 1]):
            j = indices[place] - low
            if 0 <= j < width:
                scores[row, j] = scores[row, j] - diagonal[place] * target[low + j]


@compiled
def mask_items(
    scores: Floats, low: int, starts: Offsets, stops: Offsets, indices: Positions
) -> None:
    """Set scores[u, j - low] to minus infinity for j in the sorted indices[starts[u]:stops[u]]."""
    width = scores.shape[1]
    for user in range(scores.shape[0]):
        place = first_at_least(indices, starts[user], stops[user], low)
        while place < stops[user] and indices[place] < low + width:
            scores[user, indices[place] - low] = -np.inf
            place += 1


@compiled
def keep_items(
    scores: Floats, low: int, starts: Offsets, stops: Offsets, indices: Positions
) -> None:
    """Set all other scores than `mask_items` does to minus infinity; a start below 0: none."""
    width = scores.shape[1]
    for user in range(scores.shape[0]):
        if starts[user] < 0:
            continue
        done = 0
        for place in range(starts[user], stops[user]):
            column = min(indices[place] - low, width)
            if column >= done:
                scores[user, done:column] = -np.inf
                done = column + 1
        scores[user, done:] = -np.inf


@compiled
def boost_items(scores: Floats, low: int, factor: Floats, bonus: Floats) -> None:
    """Multiply positive scores by a factor, divide negative ones by it, and add a bonus."""
    for user in range(scores.shape[0]):
        row = scores[user]
        for j in range(len(row)):
            scale = factor[low + j]
            value = row[j] * scale if row[j] > 0 else row[j] / scale
            row[j] = value + bonus[low + j]


@compiled
def _sink(items: Positions, best: Floats, size: int, item: Any, score: Any) -> None:
    """Replace the root, the worst entry of a heap, and restore the heap order.

    Of two equal scores the higher position is the worse.
    """
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            best[other] < best[child]
            or (best[other] == best[child] and items[other] > items[child])
        ):
            child = other
        if best[child] > score or (best[child] == score and items[child] < item):
            break
        best[at], items[at] = best[child], items[child]
        at = child
    best[at], items[at] = score, item


@compiled
def _rise(items: Positions, best: Floats, at: int) -> None:
    """Restore the heap order after an entry was appended; it is worse than all its equals."""
    score, item = best[at], items[at]
    while at > 0:
        parent = (at - 1) // 2
        if best[parent] < score:
            break
        best[at], items[at] = best[parent], items[parent]
        at = parent
    best[at], items[at] = score, item


@compiled
def select(
    scores: Floats, low: int, items: Positions, best: Floats, lengths: Positions, bad: Any
) -> None:
    """Offer a block of scores to each user's heap; blocks come in ascending order of `low`.

    A later item never replaces an equal one, so ties keep the lowest positions. Minus infinity is
    never listed; NaN fails the comparison and marks the user as bad.
    """
    k, width = items.shape[1], scores.shape[1]
    for user in range(scores.shape[0]):
        row, heap, listed, size = scores[user], best[user], items[user], lengths[user]
        worst = heap[0] if size == k else scores.dtype.type(-np.inf)
        for first in range(0, width, SCAN):
            part = row[first : min(first + SCAN, width)]
            promising = 0
            for j in range(len(part)):
                promising += not (part[j] <= worst)
            if promising == 0:
                continue
            for j in range(len(part)):
                if part[j] <= worst:
                    continue
                if part[j] != part[j]:
                    bad[user] = True
                elif size < k:
                    heap[size], listed[size] = part[j], low + first + j
                    _rise(listed, heap, size)
                    size += 1
                else:
                    _sink(listed, heap, size, low + first + j, part[j])
                if size == k:
                    worst = heap[0]
        lengths[user] = size


@compiled
def sort_heaps(items: Positions, best: Floats, lengths: Positions) -> None:
    """Sort each heap into a list, best first."""
    for user in range(items.shape[0]):
        heap, listed = best[user], items[user]
        for size in range(lengths[user] - 1, 0, -1):
            score, item = heap[size], listed[size]
            heap[size], listed[size] = heap[0], listed[0]
            _sink(listed, heap, size, item, score)


@compiled
def rank_history(
    matrix: Floats,
    source: Floats,
    target: Floats,
    base: Floats,
    zero_diagonal: bool,
    indices: Positions,
    values: Floats,
    allowed: Any,
    hidden: Positions,
    items: Positions,
    best: Floats,
) -> int:
    """Rank for one history what `add_rows`, `mask_items` and `select` rank for many.

    Returns the length of the list, or -1 if a score is NaN. `allowed` has a flag for every item;
    `hidden` are positions in any order. `source` and `target` have the precision of the sums.
    """
    n_items = len(target)
    number = target.dtype.type
    weights = np.empty(len(indices), target.dtype)
    for place in range(len(indices)):
        weights[place] = number(values[place]) * source[indices[place]]
    total = np.zeros(n_items, target.dtype)
    before = np.empty(GROUP, target.dtype)
    for first in range(0, len(indices), GROUP):
        last = min(first + GROUP, len(indices))
        if zero_diagonal:
            for place in range(first, last):
                before[place - first] = total[indices[place]]
        _add_group(total, matrix, 0, indices, weights, first, last)
        if zero_diagonal:
            _without_diagonal(total, before, matrix, 0, indices, weights, first, last)
    for j in range(n_items):
        score = base[j] + total[j] * target[j]
        total[j] = score if allowed[j] else number(-np.inf)
    for place in range(len(hidden)):
        total[hidden[place]] = -np.inf
    lengths, bad = np.zeros(1, np.int32), np.zeros(1, np.bool_)
    lists, scores = items.reshape((1, len(items))), best.reshape((1, len(best)))
    select(total.reshape((1, n_items)), 0, lists, scores, lengths, bad)
    sort_heaps(lists, scores, lengths)
    return -1 if bad[0] else lengths[0]
