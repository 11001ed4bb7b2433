"""Which model of an experiment was clicked more: paired statistics over groups of users.

A user has one model throughout, so users cannot be compared with themselves. They are dealt into
slots by a second stable hash; in each slot both models have users, and the difference of their
click rates is one observation. Under the hypothesis of no difference its sign is as likely to be
the other one, which is what the test flips.
"""

from __future__ import annotations

import bisect
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from equipoise.errors import DataError
from equipoise.evaluation.resampling import bootstrap_interval, holm, sign_flip_test
from equipoise.serve.store import Store

SLOTS = 200  # groups of users, at most
SIZE = 4  # users of a model in a slot, on average, at least
RESAMPLES = 10_000


def compare_clicks(store: Store, tenant: str, name: str, within: float) -> dict[str, Any]:
    """Return click rates by model, and the difference of each model to the first one.

    Parameters
    ----------
    store, tenant, name
        Where the experiment is recorded.
    within
        Seconds after a list in which an event on one of its items is a click on it. An event that
        names its list belongs to that one; others to the latest list of the user with the item.
    """
    shown, clicks = store.experiment(tenant, name)
    if not shown:
        raise DataError(f"the store has no lists of an experiment {name!r}; check its name")
    hit = clicked_lists(shown, clicks, within)
    users: dict[str, tuple[str, float, int]] = {}  # model, share of lists with a click, lists
    counts: dict[str, list[int]] = {}
    for number, user, model, _, _ in shown:
        _, done, lists = users.get(user, (model, 0.0, 0))
        users[user] = (model, done + (number in hit), lists + 1)
        own = counts.setdefault(model, [0, 0])
        own[0] += 1
        own[1] += number in hit
    rates = {user: (model, done / lists) for user, (model, done, lists) in users.items()}
    names = sorted(counts)
    models: list[dict[str, Any]] = []
    for model in names:
        mine = [rate for own, rate in rates.values() if own == model]
        facts = {"users": len(mine), "lists": counts[model][0], "clicked": counts[model][1]}
        models.append({"model": model, **facts, "rate": float(np.mean(mine)) if mine else 0.0})
    smallest = min(each["users"] for each in models)
    slots = max(1, min(SLOTS, smallest // SIZE))
    means = slot_means(rates, names, slots)
    tests = [_test(names[0], other, means) for other in names[1:]]
    for each, p in zip(tests, holm([each["p"] for each in tests]), strict=True):
        each["p_adjusted"] = float(p)
    how = (
        "Rate: mean over users of the share of their lists with a click. Two-sided sign-flip "
        f"test over {slots} slots of users, Holm's correction for {len(tests)} tests."
    )
    return {"experiment": name, "models": models, "tests": tests, "slots": slots, "how": how}


def clicked_lists(shown: Iterable[Any], clicks: Iterable[Any], within: float) -> set[str]:
    """Return the ids of the lists that were followed by an event on one of their items."""
    mine: dict[str, list[tuple[float, str, frozenset[str]]]] = {}
    named: dict[str, tuple[str, float, frozenset[str]]] = {}
    for number, user, _, time, items in shown:
        held = frozenset(json.loads(items))
        mine.setdefault(user, []).append((time, number, held))
        named[number] = user, time, held
    for rows in mine.values():
        rows.sort(key=lambda row: row[0])
    hit = set()
    for user, item, time, number in clicks:
        if number in named:
            owner, _, held = named[number]
            if owner == user and item in held:
                hit.add(number)
            continue
        rows = mine.get(user, [])
        for start, found, held in reversed(
            rows[: bisect.bisect_right(rows, time, key=lambda r: r[0])]
        ):
            if time - start > within:
                break
            if item in held:
                hit.add(found)
                break
    return hit


def slot_means(
    rates: Mapping[str, tuple[str, float]], names: list[str], slots: int
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the mean rate of each model in each slot; NaN where it has no user there."""
    place = {name: row for row, name in enumerate(names)}
    total, count = np.zeros((2, len(names), slots))
    for user, (model, rate) in rates.items():
        digest = hashlib.sha256(f"slot\0{user}".encode()).digest()
        slot = int.from_bytes(digest[:8], "big") % slots
        total[place[model], slot] += rate
        count[place[model], slot] += 1
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return dict(zip(names, mean, strict=True))


def _test(base: str, other: str, means: Mapping[str, Any]) -> dict[str, Any]:
    difference = means[other] - means[base]
    difference = difference[~np.isnan(difference)]
    low, high = bootstrap_interval(difference[:, None], 1000, 0)
    return {
        "model": other,
        "baseline": base,
        "difference": float(difference.mean()) if len(difference) else float("nan"),
        "low": float(low[0]),
        "high": float(high[0]),
        "p": sign_flip_test(difference, RESAMPLES, 0),
    }
