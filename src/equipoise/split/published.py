"""Splits that others made: the parts are given, checked and aligned."""

from __future__ import annotations

import numpy as np

from equipoise.errors import SettingError
from equipoise.ids import Unknown
from equipoise.interactions import Interactions
from equipoise.matrix import cell_keys, in_ascending
from equipoise.split.parts import PROTOCOLS, Part, Protocol, Split, counted

Pair = tuple[Interactions, Interactions]


def from_parts(
    train: Interactions,
    *,
    test: Pair,
    valid: Pair | None = None,
    protocol: Protocol,
    unknown: Unknown = "error",
) -> Split:
    """Make a split of parts that were published, such as a paper's own held-out users.

    ::

        test_in          test_target          test.history     test.target
            a b c            a b c d              a b c            a b c
        1   x x .        1   . . x .          1   x x .        1   . . x
        2   x . .        3   x . . x          (2 has no target, 3 no history: left out)

    Users are matched by their ids; those without a history or a target are left out, as is item
    d, which train lacks, with ``unknown="skip"``. `Split.notes` counts both.

    Parameters
    ----------
    train
        What models are fitted on; its items are the items of the split.
    test, valid
        Pairs (history, target). For a weak split the history is train itself.
    protocol
        "strong", "weak", "last", "time" or "session"; the metrics follow its conventions.
    unknown
        What to do about items that train lacks: an error, or "skip".

    Examples
    --------
    >>> import equipoise as eq
    >>> train = eq.Interactions([[1, 1, 0], [0, 1, 1]])
    >>> test = eq.Interactions([[0, 0, 1], [1, 0, 0]])
    >>> eq.split.from_parts(train, test=(train, test), protocol="weak")
    Split: weak
      train 2 users x 3 items, 4 interactions (density 66.7%)
      test 2 users, 4 known, 2 to find
    """
    if protocol not in PROTOCOLS:
        raise SettingError(f"protocol must be one of {PROTOCOLS}, got {protocol!r}")
    notes: list[str] = []
    parts: dict[str, Part] = {}
    for name, pair in (("valid", valid), ("test", test)):
        if pair is not None:
            parts[name], said = _aligned(train, pair, name, protocol, unknown)
            notes += said
    return Split(train, parts.get("valid"), parts["test"], protocol, None, tuple(notes))


def _aligned(
    train: Interactions, pair: Pair, name: str, protocol: str, unknown: Unknown
) -> tuple[Part, list[str]]:
    """Part over the items of train and the users of both sides, and what was left out."""
    history, target = (side.with_items(train.item_index, unknown=unknown) for side in pair)
    lost = sum(side.n_interactions for side in pair)
    lost -= history.n_interactions + target.n_interactions
    notes = counted(lost, "pair", f"of {name} left out: train lacks the item")
    shown, hidden = (
        side.user_index.take(np.flatnonzero(side.user_counts)) for side in (history, target)
    )
    common = shown.values[hidden.positions(shown.values, unknown="skip") >= 0]
    for what, index in (("target", shown), ("history", hidden)):
        missing = len(index) - len(common)
        if what == "history" or protocol != "weak":
            notes += counted(missing, "user", f"of {name} left out: no {what}")
    history, target = history.select(users=common), target.select(users=common)
    both = int(in_ascending(cell_keys(target.matrix), cell_keys(history.matrix)).sum())
    if protocol != "session":
        notes += counted(both, "pair", f"of {name} both in the history and to be found")
    return Part(history, target, protocol, name), notes
