"""From the store into the models: what happened since a model was fitted becomes part of it."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import polars as pl
import scipy.sparse as sp

from equipoise.errors import EquipoiseError
from equipoise.events import Events, as_types
from equipoise.interactions import Interactions
from equipoise.models import Recommender, load
from equipoise.pairs import summed
from equipoise.serve.store import Change, Event, Store

logger = logging.getLogger("equipoise.serve")


def fold(model: Recommender, change: Change) -> bool:
    """Take the changes of a store into a model; return whether anything changed.

    Users who asked to be forgotten leave it, with all they had before.
    """
    before, users = model.data_fingerprint_, model.data_.user_index
    gone = [user for user in dict.fromkeys(change.users) if user in users]
    if gone:
        model.update(removed=gone)
    added = as_interactions(model, change.events)
    if added is not None:
        model.update(added)
    return model.data_fingerprint_ != before


def as_interactions(model: Recommender, events: Sequence[Event]) -> Interactions | None:
    """Return events as data that a model can add to its own; None where there are none.

    Ids are text on their way through the service; an update compares them by the kind that the
    training data have. The events have what these have: times, kinds, weights. Where the training
    data count each item once, a pair whose weights sum to nothing or less is left out. Where the
    model's signals weigh kinds of events, they do so here too, and a kind that they do not know is
    left out.
    """
    data, signals = model.data_, model.signals
    own = data.events
    typed = own is not None and own.types is not None
    by_kind = typed and signals is not None and signals.weights is not None
    users = [event.user for event in events]
    items = [event.item for event in events]
    kept = [
        n
        for n, event in enumerate(events)
        if not by_kind or event.type in cast(Any, signals).weights
    ]
    if not (by_kind or data.weighted):
        total: dict[tuple[Any, Any], float] = {}
        for n in kept:
            total[users[n], items[n]] = total.get((users[n], items[n]), 0) + events[n].weight
        kept = [n for n in kept if events[n].weight > 0 and total[users[n], items[n]] > 0]
    if len(kept) < len(events):
        logger.info("events left out", extra={"fields": {"events": len(events) - len(kept)}})
    if not kept:
        return None
    names = [list(dict.fromkeys(ids[n] for n in kept)) for ids in (users, items)]
    places = []
    for known, ids in zip(names, (users, items), strict=True):
        at = {raw: place for place, raw in enumerate(known)}
        places.append(np.array([at[ids[n]] for n in kept]))
    columns: dict[str, Any] = {}
    if own is not None and own.times is not None:
        columns["times"] = np.array([events[n].time for n in kept])
    if typed:
        columns["types"], columns["type_names"] = as_types(events[n].type for n in kept)
    weights = np.array([events[n].weight for n in kept])
    if by_kind:
        weights = np.sign(weights)
    if data.weighted or by_kind:
        columns["weights"] = weights
    found = Events.collected(places[0], len(names[0]), places[1], **columns)
    if "weights" in columns:
        matrix: Any = summed(found, len(names[1]))[0]
    else:
        shape = (len(names[0]), len(names[1]))
        matrix = sp.csr_array((np.ones(len(kept), np.float32), tuple(places)), shape=shape)
        matrix.data[:] = 1  # one for each pair, however often
    labels = _labels(data, names[1])
    kept_events = None if own is None else found
    return Interactions(matrix, names[0], names[1], events=kept_events, labels=labels)


def _labels(data: Interactions, items: list[Any]) -> pl.DataFrame | None:
    """Return the labels of these items, empty for new ones."""
    if data.labels is None:
        return None
    places = data.item_index.positions(items, unknown="skip")
    wanted = [int(place) if place >= 0 else None for place in places]
    return data.labels[pl.Series(wanted, dtype=pl.UInt32).fill_null(0).to_list()].with_columns(
        pl.when(pl.Series([place is not None for place in wanted])).then(pl.all())
    )


def fold_saved(path: str, store: Store, tenant: str, out: str | None = None) -> dict[str, Any]:
    """Bring a saved model up to date with the store and save it; return what was done."""
    model = load(path)
    change = store.since(tenant, model.data_fingerprint_)
    changed = fold(model, change)
    # the mark goes first: a model that is not saved keeps its fingerprint, and so its own mark
    store.keep_folded(tenant, model.data_fingerprint_, change)
    if changed or out is not None:
        model.save(out or path)
    data = model.data_
    sizes = {"users": data.n_users, "items": data.n_items, "interactions": data.n_interactions}
    counts = {"events": len(change.events), "forgotten": len(change.users)}
    return {"path": str(out or path), "changed": changed, **counts, **sizes}


def main() -> int:
    """Fold a list of tenants and folders, given as JSON; the store is in the environment."""
    from equipoise.serve.logs import write_lines

    write_lines()
    store, code = Store(os.environ["EQUIPOISE_STORE"]), 0
    for tenant, path in json.loads(sys.argv[1]):
        try:
            logger.info("model folded", extra={"fields": fold_saved(path, store, tenant)})
        except EquipoiseError as error:
            logger.error("%s", error)
            code = 1
    store.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
