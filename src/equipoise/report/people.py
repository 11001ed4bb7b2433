"""Sample people: what is known of them, what a model recommends to them, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.errors import SettingError, UnknownIdError
from equipoise.ids import as_list
from equipoise.interactions import Interactions
from equipoise.metrics import head_items
from equipoise.models import Recommender
from equipoise.models.recommendations import Explanation
from equipoise.split import Part

LISTED = 10  # items of a recommendation list that are shown
REMEMBERED = 12  # items of a history that are shown
REASONS = 2


def sampled(part: Part, count: int, seed: int) -> list[int]:
    """Draw rows of a part, one from each of `count` groups of people of similar activity.

    >>> import equipoise as eq
    >>> part = eq.split.strong(eq.Interactions(np.tri(40, 9) + np.eye(40, 9, 1)), test=0.5).test
    >>> rows = sampled(part, 3, seed=0)
    >>> bool((np.diff(part.history.user_counts[rows]) >= 0).all())
    True
    """
    if count < 0:
        raise SettingError(f"the number of sample people must be >= 0, got {count}")
    order = np.argsort(part.history.user_counts, kind="stable")
    rng = np.random.default_rng(seed)
    groups = np.array_split(order, min(count, len(order))) if count else []
    return [int(rng.choice(group)) for group in groups]


def named(part: Part, users: Any) -> list[int]:
    """Return the rows of people that were asked for by id."""
    index = part.history.user_index
    wanted = as_list(users)
    for user in wanted:
        if user not in index:
            some = ", ".join(str(each) for each in index.values[:5])
            raise UnknownIdError(
                f"nobody in the {part.name} part is {user!r}; choose among {some}, ..."
            )
    return [int(row) for row in index.positions(wanted)]


def portraits(
    model: Recommender, part: Part, rows: Sequence[int], alphas: Sequence[float | None]
) -> list[dict[str, Any]]:
    """Describe people: history, what is hidden, and their list at each position of the dial."""
    tail = tail_lookup(model)
    out = []
    for row in rows:
        person = part.history.rows([row])
        start, stop = part.target.matrix.indptr[row : row + 2]
        hidden = set(part.target.items[part.target.matrix.indices[start:stop]].tolist())
        items = remembered(person)
        out.append(
            {
                "user": str(part.history.users[row]),
                "known": len(items),
                "hidden": len(hidden),
                "history": [entry(person, item, tail) for item in items[:REMEMBERED]],
                "more": max(len(items) - REMEMBERED, 0),
                "lists": [
                    _list(model, part, person, items, hidden, tail, alpha) for alpha in alphas
                ],
            }
        )
    return out


def remembered(person: Interactions) -> list[Any]:
    """Items of one row: in order of events, latest first where times are known, else as stored."""
    items = person.history(person.users[0])
    if person.sequences is None and person.times is not None:
        order = np.argsort(-person.times, kind="stable")
        return [items[place] for place in order]
    return items


def tail_lookup(model: Recommender) -> dict[Any, bool]:
    """Return for each item whether it is in the tail of the training data."""
    flags: npt.NDArray[np.bool_] = ~head_items(model.item_counts_)
    return dict(zip(model.item_index_.values.tolist(), flags.tolist(), strict=True))


def entry(data: Interactions, item: Any, tail: dict[Any, bool]) -> dict[str, Any]:
    """Return an item for display."""
    return {"item": str(item), "title": data.label(item), "tail": tail.get(item, True)}


def _list(
    model: Recommender,
    part: Part,
    person: Interactions,
    items: list[Any],
    hidden: set[Any],
    tail: dict[Any, bool],
    alpha: float | None,
) -> list[dict[str, Any]]:
    seen_out = part.protocol != "session"
    found = model.recommend(person, LISTED, exclude_seen=seen_out, alpha=alpha)
    reasoned = found.source[0] == "model"
    return [
        {
            **entry(person, item, tail),
            "found": item in hidden,
            "why": reasons(model.explain(items, item, alpha=alpha)) if reasoned else [],
        }
        for item in found.items[0]
    ]


def reasons(explanation: Explanation, count: int = REASONS) -> list[str]:
    """Return the titles of the items of the history that add most to a score."""
    names = explanation.titles or [str(source) for source in explanation.sources]
    parts = zip(names, explanation.contributions, strict=True)
    adding = sorted((pair for pair in parts if pair[1] > 0), key=lambda pair: -pair[1])
    return [name for name, _ in adding[:count]]
