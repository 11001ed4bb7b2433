"""Ids given on the command line: text that may stand for integers, or for a title."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Any

from equipoise.errors import SettingError, UnknownIdError

if TYPE_CHECKING:
    from equipoise.ids import IdIndex
    from equipoise.interactions import Interactions

SHOWN = 3


def find_users(data: Interactions, texts: list[str]) -> list[Any]:
    """Return the ids of training users."""
    users = [raw_id(data.user_index, text) for text in texts]
    for user, text in zip(users, texts, strict=True):
        if user not in data.user_index:
            near = difflib.get_close_matches(text, [str(each) for each in data.users], n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UnknownIdError(
                f"the model knows no user {text!r}; {hint}for somebody new give --history"
            )
    return users


def raw_id(index: IdIndex, text: str) -> Any:
    """Return an id of the kind the data have; text that cannot be one is an error."""
    if index.values.dtype == object:
        return text
    try:
        return int(text)
    except ValueError:
        raise UnknownIdError(
            f"{text!r} is no {index.axis} here; the {index.axis} ids of this model are integers"
        ) from None


def find_items(data: Interactions, texts: list[str]) -> list[Any]:
    """Return item ids, each given as an id or, where the data have titles, as a title."""
    return [_find_item(data, text) for text in texts]


def _find_item(data: Interactions, text: str) -> Any:
    try:
        item = raw_id(data.item_index, text)
    except UnknownIdError:
        if data.labels is None:
            raise
        item = None
    if item is not None and item in data.item_index:
        return item
    names = data.items if data.labels is None else data.labels.to_series(0).to_list()
    titles = [str(title) for title in names]
    lower = text.casefold()
    same = [place for place, title in enumerate(titles) if title.casefold() == lower]
    if len(same) == 1:
        return data.items[same[0]]
    near = same or [place for place, title in enumerate(titles) if lower in title.casefold()]
    if not near:
        ids = [str(each) for each in data.items]
        close = difflib.get_close_matches(text, [*ids, *titles], n=1, cutoff=0.5)
        near = [(ids if name in ids else titles).index(name) for name in close]
    shown = [(str(data.items[place]), titles[place]) for place in near[:SHOWN]]
    listed = [item if item == title else f"{item} ({title})" for item, title in shown]
    hint = f"did you mean {', '.join(listed)}?" if listed else "check the id"
    raise UnknownIdError(f"the model knows no item {text!r}; {hint}")


def split_list(text: str) -> list[str]:
    """Return the ids in "a,b,c"; a JSON list serves for ids that hold commas.

    >>> split_list("a, b"), split_list('["Godfather, The (1972)", 7]')
    (['a', 'b'], ['Godfather, The (1972)', '7'])
    """
    if text.lstrip().startswith("["):
        try:
            listed = json.loads(text)
        except ValueError:
            raise SettingError(f"not a JSON list of ids: {text!r}") from None
        return [str(each) for each in listed]
    return [part.strip() for part in text.split(",") if part.strip()]
