"""A split that hides items: what a model knows about items that nobody has used yet."""

from __future__ import annotations

import numpy as np

from equipoise.checks import MADE_BY_READ, fraction, instance
from equipoise.data.interactions import Interactions, generator
from equipoise.data.matrix import entry_rows
from equipoise.data.split.parts import (
    Part,
    Split,
    check_shares,
    counted,
    leak_notes,
    ranks,
    rounded,
    without_unused,
)
from equipoise.errors import DataError


def new_items(
    data: Interactions,
    *,
    share: float = 0.15,
    valid: float = 0.0,
    history: float = 0.8,
    seed: int = 0,
) -> Split:
    """Hide all events of some items, so that they are new to the model.

    ::

            data            train           test.history    test.target
            a b c d e       a b c d e       a b c d e       a b c d e
        1   x x . x .       x . . . .       x . . . .       . x . x .
        2   . x x . x       . . x . .       . . x . .       . x . . x
        3   x . x . x       x . x . .       (nothing on b)
                            (b is hidden)

    The targets are all pairs with a hidden item, and a part of the other pairs of these users: so
    the lists show what new items gain and what known items lose. All items stay in the columns of
    train. The metrics ``new_ndcg`` and ``known_ndcg`` look at the two groups apart.

    Parameters
    ----------
    data
        Interactions to cut, with a catalogue for models that describe items.
    share
        Share of the items that are hidden for test.
    valid
        Share of the items that are hidden for tuning, other ones; 0 gives no such part.
    history
        Share of the other items of a user that the model learns from and is shown; at least one.
        With 1, only hidden items are targets.
    seed
        Same data and seed, same split.

    Examples
    --------
    >>> import equipoise as eq
    >>> data = eq.Interactions(np.ones((4, 10)))
    >>> split = eq.split.new_items(data, share=0.2)
    >>> int((split.train.item_counts == 0).sum()), split.test.target.n_interactions
    (2, 16)
    """
    check_shares(valid, share)
    fraction("history", history, zero=False)
    instance("data", data, Interactions, MADE_BY_READ)
    rng = generator(seed)
    used = np.flatnonzero(data.item_counts)
    sizes = [int(rounded(part, np.array(len(used)))) for part in (share, valid)]
    if not sizes[0] or (valid and not sizes[1]) or sum(sizes) >= len(used):
        raise DataError(
            f"{len(used):,} items are too few to hide {share:.0%} of them; give more data or "
            "another share"
        )
    order = rng.permutation(used)
    group = np.zeros(data.n_items, np.int64)  # 1 for test, 2 for valid
    group[order[: sizes[0]]] = 1
    group[order[sizes[0] : sum(sizes)]] = 2
    of_pair = group[data.matrix.indices]
    row = entry_rows(data.matrix)
    hides = np.bincount(row[of_pair > 0], minlength=data.n_users) > 0
    others = np.bincount(row[of_pair == 0], minlength=data.n_users)
    n_shown = np.where(hides, np.maximum(rounded(history, others), 1), others)
    key = np.where(of_pair > 0, np.inf, rng.random(data.n_interactions))
    is_other_target = (of_pair == 0) & (ranks(data, key) >= n_shown[row])
    train = data.entries((of_pair == 0) & ~is_other_target)
    notes: list[str] = []
    parts: dict[str, Part] = {}
    for name, number in (("valid", 2), ("test", 1)):
        if number == 2 and not valid:
            continue
        in_part = np.bincount(row[of_pair == number], minlength=data.n_users) > 0
        is_target = (of_pair == number) | (is_other_target & in_part[row])
        users = in_part & (others > 0)
        notes += counted(
            int((in_part & ~users).sum()), "user", f"of {name} left out: no item that is shown"
        )
        if not users.any():
            raise DataError(f"no user of {name} has an item that is shown; hide fewer items")
        parts[name] = Part(train.rows(users), data.entries(is_target).rows(users), "items", name)
    notes += leak_notes(data)
    valid_data = None
    if valid:
        in_test = np.bincount(row[of_pair == 1], minlength=data.n_users) > 0
        is_valid = (of_pair == 2) | (is_other_target & ~in_test[row])
        valid_data = without_unused(data.entries(is_valid))
    return Split(train, parts.get("valid"), parts["test"], "items", seed, tuple(notes), valid_data)
