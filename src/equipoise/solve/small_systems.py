"""The small systems of the neighbourhood engine: one for each target, on the items of its support.

Gathering a system takes longer than solving it: the rows of its items are scattered in memory, so
the next rows are prefetched while one is scanned. Conjugate gradients converge in a few steps
because the penalties dominate; a system that they do not solve is factored.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.runtime.kernels import compiled, prefetch, reordered

SLOTS = 1 << 14  # of the hash map from items to places in a support; a byte each fits the L1 cache
AHEAD = 4  # rows that are prefetched
LINE = 16  # positions in a cache line
ROOM = 1 << 16  # entries that are gathered before the arrays are enlarged
MOST_STEPS = 40  # of conjugate gradients; factoring 100 items takes as long as 120 steps


@compiled
def solve_targets(
    lists: Any,
    supports: Any,
    item_vectors: Any,
    targets: Any,
    widest: int,
    longest: int,
    out: Any,
) -> None:
    """Solve A_NN x = e_j for each target j, which comes last in its N.

    All entries of the target's own row count; of other rows those after the first `n_foreign`.
    """
    starts, lengths, n_foreign, list_items, list_values = lists
    support_starts, support_lengths, support_items = supports
    diagonal, penalty, names = item_vectors
    offsets, out_items, out_values, out_diagonal = out
    room = _padded(widest)
    A = np.empty((room, room), diagonal.dtype)
    vectors = np.empty((6, room), diagonal.dtype)
    x = vectors[0]
    lower_bounds = np.empty(widest, diagonal.dtype)
    N = np.empty(widest, np.int32)
    begins, ends = np.empty(widest, np.int64), np.empty(widest, np.int64)
    near = np.zeros(SLOTS, np.uint8)  # whether a slot has members at all
    slot = np.full(SLOTS, -1, np.int32)  # its last member, a place in N
    chain = np.empty(widest, np.int32)  # the member before it
    hits = np.empty(longest + 1, np.int32)
    for j in targets:
        size = support_lengths[j] + 1
        N[size - 1] = j
        for place in range(size - 1):
            N[place] = support_items[support_starts[j] + place]
        A[: _padded(size), : _padded(size)] = 0
        for place in range(size):
            begins[place] = starts[N[place]] + (n_foreign[N[place]] if place < size - 1 else 0)
            ends[place] = starts[N[place]] + lengths[N[place]]
            if place < AHEAD:
                _prefetch_row(list_items, list_values, begins[place], ends[place])
            here = N[place] & (SLOTS - 1)
            near[here] = 1
            chain[place], slot[here] = slot[here], place
            lower_bounds[place] = penalty[N[place]]
            A[place, place] = diagonal[N[place]]
        for place in range(size):
            if place + AHEAD < size:
                _prefetch_row(list_items, list_values, begins[place + AHEAD], ends[place + AHEAD])
            n_hits, start = 0, begins[place]
            # as in `_in_support`, whose call would take a tenth longer
            for at_entry in range(ends[place] - start):
                hits[n_hits] = at_entry  # without a branch: most items are in no slot
                n_hits += near[list_items[start + at_entry] & (SLOTS - 1)]
            for hit in range(n_hits):
                entry = start + hits[hit]
                item = list_items[entry]
                other = slot[item & (SLOTS - 1)]
                while other >= 0 and N[other] != item:
                    other = chain[other]
                if other >= 0:
                    A[place, other] = A[other, place] = list_values[entry]
        for place in range(size):
            here = N[place] & (SLOTS - 1)
            near[here], slot[here] = 0, -1
        _solve_last(A, size, lower_bounds, vectors)
        offset = offsets[names[j]]
        for place in range(size - 1):
            out_items[offset + place], out_values[offset + place] = names[N[place]], x[place]
        out_diagonal[names[j]] = x[size - 1]


@compiled
def gather_entries(lists: Any, span: Any, supports: Any, targets: Any, width: int) -> Any:
    """Return what a strip of rows, `span`, contributes to the systems of these targets.

    Support number t is that of targets[t]. Entry (place, other) of its system has the code
    place * width + other. Returns the number of entries of each target, their codes and values.
    """
    starts, lengths, n_foreign, list_items, list_values = lists
    support_starts, support_lengths, support_items = supports
    low, high = span
    N, chain = np.empty(width, np.int32), np.empty(width, np.int32)
    near, slot = np.zeros(SLOTS, np.uint8), np.full(SLOTS, -1, np.int32)
    hits, others = np.empty(np.max(lengths) + 1, np.int32), np.empty(width, np.int32)
    rows = np.empty(width, np.int32)  # places of the members whose rows are here
    counts = np.zeros(len(targets), np.int64)
    codes = np.empty(ROOM, np.uint32)
    values = np.empty(ROOM, list_values.dtype)
    gathered = 0
    for t in range(len(targets)):
        size, n_rows, before = support_lengths[t] + 1, 0, gathered
        for place in range(size):
            is_target = place == size - 1
            N[place] = targets[t] if is_target else support_items[support_starts[t] + place]
            rows[n_rows] = place
            n_rows += low <= N[place] < high
        for place in range(size if n_rows > 0 else 0):
            here = N[place] & (SLOTS - 1)
            near[here] = 1
            chain[place], slot[here] = slot[here], place
        for at in range(n_rows):
            place = rows[at]
            row = N[place] - low
            start, end = starts[row], starts[row] + lengths[row]
            start += n_foreign[row] if place < size - 1 else 0
            if at + 1 < n_rows:
                later = N[rows[at + 1]] - low
                begin = starts[later]
                _prefetch_row(list_items, list_values, begin, begin + lengths[later])
            n_hits = _in_support(list_items[start:end], N, near, slot, chain, hits, others)
            if gathered + n_hits > len(codes):
                more = 2 * len(codes) + n_hits
                codes, values = _longer(codes, gathered, more), _longer(values, gathered, more)
            for hit in range(n_hits):
                codes[gathered] = place * width + others[hit]
                values[gathered] = list_values[start + hits[hit]]
                gathered += 1
        for place in range(size if n_rows > 0 else 0):
            here = N[place] & (SLOTS - 1)
            near[here], slot[here] = 0, -1
        counts[t] = gathered - before
    return counts, codes[:gathered].copy(), values[:gathered].copy()


@compiled
def solve_gathered(
    entries: Any, supports: Any, item_vectors: Any, targets: Any, width: int, out: Any
) -> None:
    """Solve A_NN x = e_j for each target j from the entries of all strips.

    The entries of a strip are a row of `begins` and of `counts`, with a column for each target.
    """
    begins, counts, codes, values = entries
    support_starts, support_lengths, support_items = supports
    diagonal, penalty, names = item_vectors
    offsets, out_items, out_values, out_diagonal = out
    room = _padded(width)
    A = np.empty((room, room), diagonal.dtype)
    vectors = np.empty((6, room), diagonal.dtype)
    x = vectors[0]
    lower_bounds = np.empty(width, diagonal.dtype)
    for t in range(len(targets)):
        size, first = support_lengths[t] + 1, support_starts[t]
        A[: _padded(size), : _padded(size)] = 0
        for place in range(size):
            item = targets[t] if place == size - 1 else support_items[first + place]
            lower_bounds[place] = penalty[item]
            A[place, place] = diagonal[item]
        for strip in range(len(begins)):
            begin = begins[strip, t]
            for entry in range(begin, begin + counts[strip, t]):
                place, other = codes[entry] // width, codes[entry] % width
                A[place, other] = A[other, place] = values[entry]
        _solve_last(A, size, lower_bounds, vectors)
        for place in range(size - 1):
            out_items[offsets[t] + place] = names[support_items[first + place]]
            out_values[offsets[t] + place] = x[place]
        out_diagonal[t] = x[size - 1]


@compiled
def _longer(array: Any, used: int, size: int) -> Any:
    """Return a longer array that begins with the used part of this one."""
    longer = np.empty(size, array.dtype)
    longer[:used] = array[:used]
    return longer


@compiled
def _in_support(row: Any, N: Any, near: Any, slot: Any, chain: Any, hits: Any, others: Any) -> Any:
    """Return how many entries of a row are in N; write their places in the row and in N."""
    n_near, n_hits = 0, 0
    for at in range(len(row)):
        hits[n_near] = at
        n_near += near[row[at] & (SLOTS - 1)]
    for hit in range(n_near):
        at = hits[hit]
        item = row[at]
        other = slot[item & (SLOTS - 1)]
        while other >= 0 and N[other] != item:
            other = chain[other]
        if other >= 0:
            hits[n_hits], others[n_hits] = at, other
            n_hits += 1
    return n_hits


@compiled
def _solve_last(A: Any, size: int, lower_bounds: Any, vectors: Any) -> None:
    """Solve A x = e for the last unit vector e; x is vectors[0]."""
    if not _by_gradients(A, size, lower_bounds, vectors):
        _factor(A, size, lower_bounds)
        _last_column(A, size, vectors[0])


@compiled
def _prefetch_row(items: Any, values: Any, start: int, end: int) -> None:
    for entry in range(start, end, LINE):
        prefetch(items, entry)
        prefetch(values, entry)


@reordered
def _dot(a: Any, b: Any, size: int) -> Any:
    total = a.dtype.type(0)
    for i in range(size):
        total += a[i] * b[i]
    return total


@compiled
def _padded(size: int) -> int:
    """Round up to full SIMD vectors; the padding of a system is 0."""
    return (size + 7) // 8 * 8


@reordered
def _times(A: Any, p: Any, q: Any, size: int) -> None:
    """Write A p for a symmetric A of a padded size into q, eight rows at a time."""
    q[:size] = 0
    for i in range(0, size, 8):
        r0, r1, r2, r3 = A[i], A[i + 1], A[i + 2], A[i + 3]
        r4, r5, r6, r7 = A[i + 4], A[i + 5], A[i + 6], A[i + 7]
        p0, p1, p2, p3 = p[i], p[i + 1], p[i + 2], p[i + 3]
        p4, p5, p6, p7 = p[i + 4], p[i + 5], p[i + 6], p[i + 7]
        for j in range(size):
            q[j] += (p0 * r0[j] + p1 * r1[j] + p2 * r2[j] + p3 * r3[j]) + (
                p4 * r4[j] + p5 * r5[j] + p6 * r6[j] + p7 * r7[j]
            )


@compiled
def _by_gradients(A: Any, size: int, lower_bounds: Any, vectors: Any) -> Any:
    """Solve A x = e for the last unit vector e to rounding; return whether that succeeded.

    A - L is positive semidefinite, so the last number lies between 0 and 1 / L_j. Missing entries
    of A can break that: then the caller factors A, which takes L into account.
    """
    x, r, z = vectors[0], vectors[1], vectors[2]
    p, q, inverse = vectors[3], vectors[4], vectors[5]
    one, eps = A.dtype.type(1), np.finfo(A.dtype).eps
    last, width = size - 1, _padded(size)
    for i in range(width):
        x[i] = r[i] = p[i] = inverse[i] = 0
    for i in range(size):
        inverse[i] = one / A[i, i]
    r[last] = one
    p[last] = inverse[last]
    r_dot_z = p[last]
    enough = eps * eps * r_dot_z
    for _ in range(MOST_STEPS):
        _times(A, p, q, width)
        curve = _dot(p, q, width)
        if not curve > 0:
            return False
        step = r_dot_z / curve
        for i in range(width):
            x[i] += step * p[i]
            r[i] -= step * q[i]
            z[i] = r[i] * inverse[i]
        after = _dot(r, z, width)
        if after <= enough:
            return bool(x[last] > 0 and x[last] * lower_bounds[last] <= one + 64 * eps)
        turn = after / r_dot_z
        r_dot_z = after
        for i in range(width):
            p[i] = z[i] + turn * p[i]
    return False


@compiled
def _subtract_eight(total: Any, U: Any, row: int, low: int, high: int) -> None:
    """Subtract eight rows of U, each times its entry in column `low`, from left to right."""
    rows = U[row : row + 8, low:high]
    r0, r1, r2, r3 = rows[0], rows[1], rows[2], rows[3]
    r4, r5, r6, r7 = rows[4], rows[5], rows[6], rows[7]
    w0, w1, w2, w3, w4, w5, w6, w7 = r0[0], r1[0], r2[0], r3[0], r4[0], r5[0], r6[0], r7[0]
    for j in range(len(total)):
        value = total[j] - w0 * r0[j]
        value = value - w1 * r1[j]
        value = value - w2 * r2[j]
        value = value - w3 * r3[j]
        value = value - w4 * r4[j]
        value = value - w5 * r5[j]
        value = value - w6 * r6[j]
        total[j] = value - w7 * r7[j]


@compiled
def _factor(A: Any, size: int, lower_bounds: Any) -> None:
    """Replace the upper triangle of A by U with U^T U = A.

    The pivot of item i is at least its penalty L_i, because A - L is positive semidefinite.
    Missing entries of A can make it smaller: then it is raised to L_i.
    """
    for i in range(size):
        row = A[i, i:size]
        above = 0
        while above + 8 <= i:
            _subtract_eight(row, A, above, i, size)
            above += 8
        while above < i:
            weight, upper_row = A[above, i], A[above, i:size]
            for j in range(len(row)):
                row[j] = row[j] - weight * upper_row[j]
            above += 1
        row[0] = max(row[0], lower_bounds[i])
        factor = A.dtype.type(1) / np.sqrt(row[0])
        for j in range(len(row)):
            row[j] *= factor


@compiled
def _last_column(U: Any, size: int, x: Any) -> None:
    """Solve U^T U x = e for the last unit vector e."""
    zero = U.dtype.type(0)
    x[size - 1] = U.dtype.type(1) / (U[size - 1, size - 1] * U[size - 1, size - 1])
    for i in range(size - 2, -1, -1):
        row = U[i]
        s0, s1, s2, s3 = zero, zero, zero, zero
        j = i + 1
        while j + 4 <= size:
            s0 -= row[j] * x[j]
            s1 -= row[j + 1] * x[j + 1]
            s2 -= row[j + 2] * x[j + 2]
            s3 -= row[j + 3] * x[j + 3]
            j += 4
        while j < size:
            s0 -= row[j] * x[j]
            j += 1
        x[i] = ((s0 + s1) + (s2 + s3)) / row[i]
