"""Compiled inner loops of ranking: keep the best k of scores that come block by block."""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.kernels import Floats, Positions, compiled

SCAN = 32  # scores compared with the list's worst before any of them is looked at


@compiled
def _sink(items: Positions, best: Floats, size: int, item: Any, score: Any) -> None:
    """Put an entry at the root of a heap whose root is the worst entry, and let it sink.

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
    """Let the entry that was appended to the heap rise; it is worse than all its equals."""
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
    never taken; NaN fails the comparison, gets looked at, and marks the user as bad.
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
    """Turn each heap into a list, best first."""
    for user in range(items.shape[0]):
        heap, listed = best[user], items[user]
        for size in range(lengths[user] - 1, 0, -1):
            score, item = heap[size], listed[size]
            heap[size], listed[size] = heap[0], listed[0]
            _sink(listed, heap, size, item, score)
