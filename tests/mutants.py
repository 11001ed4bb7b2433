"""Systematic damage to the JSON and the arrays of saved things, for tests that load them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.storage import SEAL, sealed

Place = tuple[Any, ...]
VALUES: list[Any] = [
    *(None, True, -1, 2.5, 10**30, 10**400, float("nan"), "auto", "\ud800", "x" * 1000),
    *([], [[None]], {"name": {"deep": [0]}}, {"$array": "inverse"}),
]


def places(document: Any, at: Place = ()) -> Iterator[Place]:
    """Every field and the first entry of every list, from the outside in."""
    inside = document.items() if isinstance(document, dict) else enumerate(document[:1])
    for name, value in inside:
        yield (*at, name)
        if isinstance(value, (dict, list)):
            yield from places(value, (*at, name))


def mutants(document: dict[str, Any], under: Place = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field deleted, renamed, doubled, or given a value it should not have."""
    for place in places(document):
        if place[: len(under)] != under or place == (SEAL,):
            continue
        for value in VALUES:
            changed, holder = _copy(document, place)
            if type(holder[place[-1]]) is not type(value) or holder[place[-1]] != value:
                holder[place[-1]] = value
                yield f"{place} = {str(value)[:20]!r}", changed
        changed, holder = _copy(document, place)
        removed = holder.pop(place[-1])
        yield f"{place} deleted", changed
        changed, holder = _copy(document, place)
        if isinstance(holder, dict):
            holder[f"{place[-1]}_"] = holder.pop(place[-1])
            yield f"{place} renamed", changed
        else:
            holder.append(removed)
            yield f"{place} doubled", changed


def near_misses(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every number, text and flag changed to another that looks just as good."""
    for place in places(document):
        changed, holder = _copy(document, place)
        value = holder[place[-1]]
        if isinstance(value, bool):
            holder[place[-1]] = not value
        elif isinstance(value, (int, float)):
            holder[place[-1]] = value + 1
        elif isinstance(value, str):
            holder[place[-1]] = f"{value}0"
        else:
            continue
        yield f"{place}", changed


def damaged(array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Arrays of other types, orders, lengths and values."""
    yield "float16", array.astype(np.float16)
    yield "longdouble", array.astype(np.longdouble)
    yield "complex", array.astype(np.complex128)
    yield "text", array.astype(str)
    yield "other kind", array.astype(np.int64 if array.dtype.kind == "f" else np.float64)
    yield "swapped", array.astype(array.dtype.newbyteorder(">"))
    yield "by columns", np.asfortranarray(array)
    yield "short", array[:-1]
    yield "long", np.concatenate([array, array[-1:]])
    yield "nested", array[None]
    yield "scalar", np.array(7, array.dtype)
    yield "negative", -1 - array
    yield "constant", np.full_like(array, 3)
    yield "huge", np.full_like(array, np.finfo(array.dtype).max if array.dtype.kind == "f" else 99)
    if array.dtype.kind == "f":
        yield "nan", np.full_like(array, np.nan)
    else:
        yield "backwards", np.ascontiguousarray(array[::-1])


def write(file: Path, document: dict[str, Any]) -> None:
    """Write a document with a seal that fits it."""
    try:
        document = sealed(document)
    except (ValueError, TypeError):  # it cannot be sealed; an old document has no seal
        document = {name: value for name, value in document.items() if name != SEAL}
    file.write_text(json.dumps(document))


def _copy(document: dict[str, Any], place: Place) -> tuple[dict[str, Any], Any]:
    """Return a copy of the document, and what holds the field in it."""
    changed = copy.deepcopy(document)
    holder: Any = changed
    for name in place[:-1]:
        holder = holder[name]
    return changed, holder
