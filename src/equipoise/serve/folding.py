"""Update saved models with the events in the store."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.data.catalogue import Catalogue
from equipoise.data.events import Events, as_types, summed
from equipoise.data.ids import IdIndex
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import cell_keys
from equipoise.data.training import form_of
from equipoise.errors import EquipoiseError
from equipoise.models import Recommender, load
from equipoise.serve.new_items import add_described
from equipoise.serve.store import Change, Event, Store

logger = logging.getLogger("equipoise.serve")


@dataclass(frozen=True, eq=False)
class Increment:
    """Interactions to add to the data of a model, and those to remove; None for none."""

    added: Interactions | None
    removed: Interactions | None


def fold(model: Recommender, change: Change) -> bool:
    """Update a model with the changes in a store; return whether its data changed.

    Forgotten users are removed with all their interactions.
    """
    before, users = model.data_fingerprint_, model.data_.user_index
    gone = [user for user in dict.fromkeys(change.users) if user in users]
    if gone:
        model.update(removed=gone)
    increment = increment_of(model, change.events)
    if increment.added is not None or increment.removed is not None:
        model.update(increment.added, increment.removed)
    return model.data_fingerprint_ != before


def type_weights(model: Recommender) -> Mapping[str, float]:
    """Return the weights of event types in the signals of a model."""
    return (model.signals.weights if model.signals is not None else None) or {}


def event_value(model: Recommender, event_type: str, weight: float) -> float:
    """Return the weight of an event for a model; 0 is ignored, negative is a dislike.

    Types in the signals of the model have the weight given there, negated if the event's own
    weight is negative. Any other event has its own weight.
    """
    weights = type_weights(model)
    if event_type not in weights:
        return weight
    value = weights[event_type]
    return -value if value > 0 > weight else value


def split_at_dislikes(pairs: Sequence[Any], values: Sequence[float]) -> tuple[list[int], set[Any]]:
    """Return the positions of the events that count, and the pairs with a dislike.

    A dislike removes the item from the user's history with everything before it; later events
    count. `pairs` and `values` are the keys and weights of the events, in the order of arrival.

    >>> split_at_dislikes(["tea", "milk", "tea", "milk", "tea"], [1.0, 1.0, -1.0, 1.0, 5.0])
    ([1, 3, 4], {'tea'})
    """
    dislikes = {pairs[n]: n for n, value in enumerate(values) if value < 0}
    counted = [n for n, value in enumerate(values) if value > 0 and n > dislikes.get(pairs[n], -1)]
    return counted, set(dislikes)


def increment_of(model: Recommender, events: Sequence[Event]) -> Increment:
    """Return the interactions that events add to and remove from the data of a model.

    If the signals have returns="negative", a dislike becomes a negative value until the next event
    of the pair.
    """
    values = [event_value(model, event.type, event.weight) for event in events]
    pairs = [(event.user, event.item) for event in events]
    counted, disliked = split_at_dislikes(pairs, values)
    revived: set[tuple[str, str]] = set()
    if model.signals is not None and model.signals.returns == "negative":
        revived = {pairs[n] for n in counted}
        last = {pairs[n]: n for n, value in enumerate(values) if value < 0}
        counted += [n for pair, n in last.items() if pair not in revived]
        counted = [n for n in sorted(counted) if values[n] > 0 or _can_be_added(model, events[n])]
    added = _as_interactions(model, [events[n] for n in counted])
    return Increment(added, _removed_pairs(model, disliked, revived))


def _can_be_added(model: Recommender, dislike: Event) -> bool:
    """Whether the data can represent a dislike: by a weight, or by its type."""
    return model.data_.weighted or type_weights(model).get(dislike.type, 0.0) < 0


def _removed_pairs(
    model: Recommender, disliked: set[tuple[str, str]], revived: set[tuple[str, str]]
) -> Interactions | None:
    """Return the disliked pairs in the data, and the revived ones with a negative value."""
    if form_of(model.data_) == "none":
        return None
    users = model.data_.user_index
    rows = users.positions([user for user, _ in disliked | revived], unknown="skip")
    rows = np.unique(rows[rows >= 0])
    if not len(rows):
        return None
    data, values = model.data_.rows(rows), model.interactions_.matrix[rows]
    known = cell_keys(data.matrix)
    if data.events is not None:
        known = np.concatenate([known, data.events.keys(data.n_items)])
    negative = cell_keys(values)[values.data < 0]
    gone = np.union1d(
        np.intersect1d(_pair_keys(data, disliked), known),
        np.intersect1d(_pair_keys(data, revived), negative),
    )
    if not len(gone):
        return None
    place = (gone // data.n_items, gone % data.n_items)
    ones = np.ones(len(gone), np.float32)
    matrix = sp.csr_array((ones, place), shape=data.matrix.shape)
    return Interactions(matrix, data.user_index, data.item_index)


def _pair_keys(data: Interactions, pairs: set[tuple[str, str]]) -> npt.NDArray[np.int64]:
    """Return user * n_items + item of the pairs whose user and item are in the data."""
    listed = sorted(pairs)
    users = data.user_index.positions([user for user, _ in listed], unknown="skip")
    items = data.item_index.positions([item for _, item in listed], unknown="skip")
    return np.asarray((users * data.n_items + items)[(users >= 0) & (items >= 0)])


def _as_interactions(model: Recommender, events: Sequence[Event]) -> Interactions | None:
    """Return events as interactions for `update`; None for no events.

    The columns (times, types, weights) are those of the training data. Types that the signals of
    the model do not know are left out, so that the signals do not multiply such events.
    """
    if not events:
        return None
    data, weighing = model.data_, type_weights(model)
    past = data.events
    names = [list(dict.fromkeys(getattr(e, axis) for e in events)) for axis in ("user", "item")]
    places = []
    for ids, axis in zip(names, ("user", "item"), strict=True):
        place = {raw: at for at, raw in enumerate(ids)}
        places.append(np.array([place[getattr(event, axis)] for event in events]))
    columns: dict[str, Any] = {}
    if past is not None and past.times is not None:
        columns["times"] = np.array([event.time for event in events])
    if past is not None and past.types is not None:
        types = (e.type if not weighing or e.type in weighing else None for e in events)
        columns["types"], columns["type_names"] = as_types(types)
    if data.weighted:
        columns["weights"] = np.array([_quantity(event, weighing) for event in events])
    collected = Events.collected(places[0], len(names[0]), places[1], **columns)
    if "weights" in columns:
        matrix: Any = summed(collected, len(names[1]))[0]
    else:
        shape = (len(names[0]), len(names[1]))
        matrix = sp.csr_array((np.ones(len(events), np.float32), tuple(places)), shape=shape)
        matrix.data[:] = 1  # duplicates count once
    catalogue = _catalogue(data, names[1])
    new_events = None if past is None else collected
    return Interactions(matrix, names[0], names[1], events=new_events, catalogue=catalogue)


def _quantity(event: Event, weighing: Mapping[str, float]) -> float:
    """Return the quantity of an event, which signals multiply by the weight of its type."""
    if event.type not in weighing:
        return event.weight
    return -1.0 if weighing[event.type] > 0 > event.weight else 1.0


def _catalogue(data: Interactions, items: list[Any]) -> Catalogue | None:
    """Return the rows of the catalogue for these items, empty for new ones."""
    if data.known_items is None:
        return None
    known_items = data.known_items.over(data.item_index, IdIndex(items, "item"))
    return replace(known_items, new_items=None)


def fold_saved(path: str, store: Store, out: str | None = None) -> dict[str, Any]:
    """Update a saved model with the events in the store; return counts and sizes.

    Events with weight 0 for the model are left out and stay in the store.
    """
    model = load(path)
    change = store.since(model.data_fingerprint_)
    if change.events or change.users:
        # so that an item that gets its first event has its attributes
        add_described(model, store.all_attributes())
    changed = fold(model, change)
    if changed:
        # Recorded before saving: if saving fails, the old fingerprint keeps its own record. If
        # nothing changes, the record stays as well, since another model with the same data may
        # weigh the events differently.
        store.keep_folded(model.data_fingerprint_, change)
    if changed or out is not None:
        model.save(out or path)
    data = model.data_
    sizes = {"users": data.n_users, "items": data.n_items, "interactions": data.n_interactions}
    values = (event_value(model, event.type, event.weight) for event in change.events)
    counts = {
        "events": len(change.events),
        "left_out": sum(value == 0 for value in values),
        "forgotten": len(change.users),
    }
    return {"path": str(out or path), "changed": changed, **counts, **sizes}


def main() -> int:
    """Update the models in the folders given as arguments; EQUIPOISE_STORE names the store."""
    from equipoise.serve.logs import write_lines

    write_lines()
    store, code = Store(os.environ["EQUIPOISE_STORE"]), 0
    for path in sys.argv[1:]:
        try:
            logger.info("model folded", extra={"fields": fold_saved(path, store)})
        except (EquipoiseError, OSError) as error:  # such as a full disk
            logger.error("the model in %s was not updated: %s", path, error)
            code = 1
    store.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
