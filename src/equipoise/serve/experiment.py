"""Compare the click rates of the models of an experiment by a permutation test over users.

A user has one model and counts once, with the share of the user's lists that were clicked. Users
are assigned at random, so without an effect every other assignment is as likely; the level of the
test holds for arms of any size. The number of users per model is checked against the shares of the
experiment (sample ratio mismatch).
"""

from __future__ import annotations

import bisect
import json
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

import numpy as np

from equipoise.errors import DataError
from equipoise.evaluation.metrics import Floats
from equipoise.evaluation.resampling import holm, permutation_test
from equipoise.serve.store import Store

RESAMPLES = 9_999
ALPHA = 0.05
SMALLEST_ARM = 10  # users; the variance of fewer is too uncertain
RATIO_ALPHA = 0.001  # strict, as a false alarm stops a valid experiment
DAY = 86_400.0
SHOWN_FOR = 60.0  # seconds that a service shows a comparison
MOST_LISTS = 50_000  # that a service compares, in about a second


def compare_clicks(
    store: Store,
    name: str,
    within: float,
    shares: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Return click rates by model, and the difference of each model to the first one.

    Parameters
    ----------
    store, name
        Store and name of the experiment.
    within
        Seconds after a list in which an event on one of its items is a click on it. An event that
        names its list belongs to that one; others to the latest list of the user with the item.
    shares
        Shares of the users by model; those that the service recorded if left out.
    """
    shown, clicks = store.experiment(name)
    if not shown:
        raise DataError(f"the store has no lists of an experiment {name!r}; check its name")
    recorded = store.shares(name) if shares is None else [dict(shares)]
    clicked = clicked_lists(shown, clicks, within)
    models_of_user: dict[str, set[str]] = {}
    for _, user, model, _, _ in shown:
        models_of_user.setdefault(user, set()).add(model)
    list_counts: dict[str, list[int]] = {}  # lists and clicked lists, by user
    totals: dict[str, list[int]] = {
        model: [0, 0] for arm_shares in recorded for model in arm_shares
    }
    for number, user, model, _, _ in shown:
        for counts in (list_counts.setdefault(user, [0, 0]), totals.setdefault(model, [0, 0])):
            counts[0] += 1
            counts[1] += number in clicked
    arms: dict[str, list[float]] = {model: [] for model in sorted(totals)}
    for user, (lists, hits) in list_counts.items():
        if len(models_of_user[user]) == 1:  # else the user saw several models
            arms[next(iter(models_of_user[user]))].append(hits / lists)
    rates = {model: np.array(values) for model, values in arms.items()}
    models = [
        {
            "model": model,
            "users": len(values),
            "lists": totals[model][0],
            "clicked": totals[model][1],
            "rate": float(values.mean()) if len(values) else math.nan,
        }
        for model, values in rates.items()
    ]
    baseline, *challengers = rates
    tests = [compare_arms(baseline, model, rates) for model in challengers]
    for test, p in zip(tests, holm([test["p"] for test in tests]), strict=True):
        test["p_adjusted"] = float(p)
        test["verdict"] = _verdict(test, rates)
    method = (
        "Rate: mean over users of the share of their lists with a click. Two-sided permutation "
        f"test of users by Welch's t, {RESAMPLES:,} permutations, Holm's correction for "
        f"{len(tests)} tests. Detectable: the true difference that an experiment of this size "
        "finds in 4 of 5 cases."
    )
    return {
        "experiment": name,
        "models": models,
        "tests": tests,
        "shares": check_shares({model: len(users) for model, users in rates.items()}, recorded),
        "switched_users": sum(len(seen) > 1 for seen in models_of_user.values()),
        "how": method,
    }


class RunningComparison:
    """The comparison of an experiment that a service shows; made anew at most once a minute."""

    def __init__(self, store: Store) -> None:
        self._store, self._comparing = store, threading.Lock()
        self._comparison: dict[str, Any] = {}
        self._compared = -math.inf

    def of(self, name: str | None) -> dict[str, Any]:
        """Return the comparison, by clicks within a day; one thread at a time."""
        with self._comparing:
            if monotonic() - self._compared > SHOWN_FOR:
                self._comparison, self._compared = self._compare(name), monotonic()
            return self._comparison

    def _compare(self, name: str | None) -> dict[str, Any]:
        n_lists = 0 if name is None else self._store.count_lists(name)
        if name is not None and 0 < n_lists <= MOST_LISTS:
            return compare_clicks(self._store, name, DAY)
        reason = "No experiment is running." if name is None else "It has no lists yet."
        if n_lists:
            reason = (
                f"Its {n_lists:,} lists are too many to compare while the service answers; "
                f"run `equipoise experiment {name}`."
            )
        empty: dict[str, Any] = {"models": [], "tests": [], "shares": None, "switched_users": 0}
        return {"experiment": name, **empty, "how": reason}


def compare_arms(baseline: str, other: str, rates: Mapping[str, Floats]) -> dict[str, Any]:
    """Return the difference of two models with interval, p-value and detectable difference."""
    first, second = rates[baseline], rates[other]
    p, low, high = permutation_test(first, second, RESAMPLES, 0)
    difference = error = math.nan
    if len(first) and len(second):
        difference = float(second.mean() - first.mean())
    if min(len(first), len(second)) > 1:
        error = math.sqrt(first.var(ddof=1) / len(first) + second.var(ddof=1) / len(second))
    return {
        "model": other,
        "baseline": baseline,
        "difference": difference,
        "low": max(low, -1.0),  # rates lie between 0 and 1
        "high": min(high, 1.0),
        "p": p,
        "detectable": 2.8 * error,  # quantiles of the normal law: 1.96 for 5%, 0.84 for 4 of 5
    }


def _verdict(test: Mapping[str, Any], rates: Mapping[str, Floats]) -> str:
    model, baseline = test["model"], test["baseline"]
    smaller = min((model, baseline), key=lambda name: len(rates[name]))
    if len(rates[smaller]) < SMALLEST_ARM:
        return (
            f"too few users to tell: {smaller} has {len(rates[smaller])}, "
            f"and at least {SMALLEST_ARM} are needed"
        )
    if not (rates[model].any() or rates[baseline].any()):
        return "too few clicks to tell: there are none"
    if test["p_adjusted"] > ALPHA:
        return f"no difference found; one below {test['detectable']:.2g} would often go undetected"
    better = "more" if test["difference"] > 0 else "less"
    return f"{model} is clicked {better} often than {baseline}"


def check_shares(
    users: Mapping[str, int], recorded: Sequence[Mapping[str, float]]
) -> dict[str, Any]:
    """Return whether the users of each model fit the shares of the experiment.

    Each number of users has an exact binomial test, Holm's correction for the number of models.

    Parameters
    ----------
    users
        Users by model.
    recorded
        All shares that the experiment has had.
    """
    if len(recorded) != 1:
        reason = (
            "not checked: the store does not say which shares were set; give them with --share"
            if not recorded
            else "not checked: the shares were changed while the experiment ran, so users of "
            "different times are mixed; start one with a new name"
        )
        return {"expected": None, "p": None, "verdict": reason}
    from scipy.stats import binomtest

    total_share, total = sum(recorded[0].values()), sum(users.values())
    expected = {model: recorded[0].get(model, 0.0) / total_share for model in users}
    tested = list(users)[1:] if len(users) == 2 else list(users)  # two arms are one number
    p_values = [
        binomtest(users[model], total, expected[model]).pvalue if total else 1.0
        for model in tested
    ]
    p = float(min(holm(p_values))) if p_values else 1.0
    counts = ", ".join(f"{model} {users[model]:,}" for model in users)
    planned = ", ".join(f"{model} {total * share:,.0f}" for model, share in expected.items())
    verdict = "the numbers of users match the shares"
    if p < RATIO_ALPHA:
        verdict = (
            f"the numbers of users do not match the shares: {counts}, expected {planned}; do not "
            "trust the comparison before you know why"
        )
    return {"expected": expected, "p": p, "verdict": verdict}


def clicked_lists(shown: Iterable[Any], clicks: Iterable[Any], within: float) -> set[str]:
    """Return the ids of the lists that were followed by an event on one of their items."""
    return set(clicked_items(shown, clicks, within))


def clicked_items(
    shown: Iterable[Any], clicks: Iterable[Any], within: float
) -> dict[str, set[str]]:
    """Return the clicked items by list: those with an event, of the lists that have any."""
    lists_of_user: dict[str, list[tuple[float, str, frozenset[str]]]] = {}
    list_by_id: dict[str, tuple[str, frozenset[str]]] = {}
    for list_id, user, _, time, text in shown:
        items = frozenset(json.loads(text))
        lists_of_user.setdefault(user, []).append((time, list_id, items))
        list_by_id[list_id] = user, items
    for rows in lists_of_user.values():
        rows.sort(key=lambda row: row[0])
    clicked: dict[str, set[str]] = {}
    for user, item, time, list_id in clicks:
        if list_id in list_by_id:
            owner, items = list_by_id[list_id]
            if owner == user and item in items:
                clicked.setdefault(list_id, set()).add(item)
            continue
        rows = lists_of_user.get(user, [])
        earlier = rows[: bisect.bisect_right(rows, time, key=lambda row: row[0])]
        for start, earlier_id, items in reversed(earlier):
            if time - start > within:
                break
            if item in items:
                clicked.setdefault(earlier_id, set()).add(item)
                break
    return clicked
