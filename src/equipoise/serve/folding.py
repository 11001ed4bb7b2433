"""From the store into the models: what happened since a model was fitted becomes part of it."""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

import numpy as np
import polars as pl
import scipy.sparse as sp

from equipoise.errors import EquipoiseError
from equipoise.ids import IdIndex
from equipoise.interactions import Interactions
from equipoise.models import Recommender, load
from equipoise.serve.store import Change, Event, Store

logger = logging.getLogger("equipoise.serve")


def fold(model: Recommender, change: Change) -> bool:
    """Take the changes of a store into a model; return whether anything changed.

    Users who asked to be forgotten leave it, with all they had before. An item counts once where
    the training data count it once; otherwise weights add up. An item whose weights sum to nothing
    or less is not added, and stays where the training data have it.
    """
    data = model.interactions_
    before = data.fingerprint
    gone = [raw for user in change.users if (raw := _raw(data.user_index, user)) is not None]
    gone = [user for user in dict.fromkeys(gone) if user in data.user_index]
    if gone:
        model.update(removed=gone)
    added = new_interactions(model.interactions_, change.events)
    if added is not None:
        model.update(added)
    return model.interactions_.fingerprint != before


def new_interactions(data: Interactions, events: list[Event]) -> Interactions | None:
    """Return the pairs that events add to the data, with their values; None for none."""
    total: dict[tuple[Any, Any], list[float]] = {}
    for event in events:
        pair = _raw(data.user_index, event.user), _raw(data.item_index, event.item)
        if None in pair:
            logger.warning("an event whose ids are no integers was left out")
            continue
        known = total.setdefault(pair, [0.0, 0.0])
        known[0] += event.weight
        known[1] = max(known[1], event.time)
    kept = {pair: value for pair, value in total.items() if value[0] > 0}
    if not kept:
        return None
    users, items = (list(dict.fromkeys(pair[axis] for pair in kept)) for axis in (0, 1))
    row = {user: place for place, user in enumerate(users)}
    column = {item: place for place, item in enumerate(items)}
    places = [(row[user], column[item]) for user, item in kept]
    weighted = bool((data.matrix.data != 1).any())
    weights = [value[0] if weighted else 1.0 for value in kept.values()]
    if weighted:
        weights = [w + _held(data, *pair) for w, pair in zip(weights, kept, strict=True)]
    matrix = sp.csr_array(
        (np.array(weights, np.float32), tuple(np.array(places).T)), shape=(len(users), len(items))
    )
    times = None
    if data.times is not None:
        when = sp.csr_array(
            (np.arange(1, len(kept) + 1), tuple(np.array(places).T)), shape=matrix.shape
        )
        latest = np.array([value[1] for value in kept.values()])
        times = latest[when.data - 1]
        matrix = sp.csr_array(
            (np.array(weights)[when.data - 1], when.indices, when.indptr), when.shape
        )
    return Interactions(matrix, users, items, times=times, labels=_labels(data, items))


def _held(data: Interactions, user: Any, item: Any) -> float:
    """Return the value of a pair in the data, 0 where there is none."""
    places = [index.positions([each], unknown="skip")[0] for index, each in
              ((data.user_index, user), (data.item_index, item))]  # fmt: skip
    return float(data.matrix[places[0], places[1]]) if min(places) >= 0 else 0.0


def _labels(data: Interactions, items: list[Any]) -> pl.DataFrame | None:
    """Return the labels of these items, empty for new ones."""
    if data.labels is None:
        return None
    places = data.item_index.positions(items, unknown="skip")
    wanted = [int(place) if place >= 0 else None for place in places]
    return data.labels[pl.Series(wanted, dtype=pl.UInt32).fill_null(0).to_list()].with_columns(
        pl.when(pl.Series([place is not None for place in wanted])).then(pl.all())
    )


def _raw(index: IdIndex, text: str) -> Any:
    """Return an id of the kind the data have; None where the text cannot be one."""
    if index.values.dtype == object:
        return text
    return int(text) if text.lstrip("-").isdecimal() and str(int(text)) == text else None


def fold_saved(path: str, store: Store, tenant: str, out: str | None = None) -> dict[str, Any]:
    """Bring a saved model up to date with the store and save it; return what was done."""
    model = load(path)
    change = store.since(tenant, model.data_fingerprint_)
    changed = fold(model, change)
    # the mark goes first: a model that is not saved keeps its fingerprint, and so its own mark
    store.keep_folded(tenant, model.data_fingerprint_, change)
    if changed or out is not None:
        model.save(out or path)
    data = model.interactions_
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
