"""Cost of requests, estimated before any work is done; and a cache with a limit in bytes.

A step is about a nanosecond of one processor. The numbers below are orders of magnitude.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from equipoise.errors import SettingError
from equipoise.ranking.terms import Term
from equipoise.serve import schemas
from equipoise.serve.config import Limits

Value = TypeVar("Value")

LIST_STEPS = 100_000  # per list
ID_STEPS = 1_000  # per id
ROW_STEPS = 2_000  # per listed item or reason
PAIR_STEPS = 200  # per pair of a history item and a listed item
RULE_STEPS = 20_000  # per entry of the rules
LABEL_STEPS = 2_500  # per comparison of a label with a rule
QUOTA_STEPS = 5  # per comparison of two items under at_most
DIVERSITY_STEPS = 50  # per comparison of two items under diversity
PAIRS = 1 << 20  # history items x listed items in one batch of reasons
LABELLED = ("include", "exclude")  # rules that select by labels
NUMBERED = ("boost", "bonus")  # rules with numbers by id or label


class Budget:
    """Remaining budget of a request; `spend` raises when it is exceeded."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._steps = 0.0
        self._rules: set[str] = set()  # counted already

    def spend(self, steps: float, remedy: str) -> None:
        """Count steps before they are done; `remedy` names what to reduce."""
        if self._steps + steps > self._limits.cost:
            total = f"{self._steps + steps:,.0f}"
            raise SettingError(
                f"the request costs {total} steps and limits.cost is {self._limits.cost:,}; "
                f"reduce {remedy}"
            )
        self._steps += steps

    def spend_rules(self, rules: Mapping[str, Any], n_items: int) -> None:
        """Count the rules of a list; rules of an earlier list are free."""
        entries, lookups = count_entries(rules), count_lookups(rules)
        if entries > self._limits.rules:
            raise SettingError(
                f"the rules have {entries:,} entries and limits.rules is {self._limits.rules:,}; "
                "reduce the ids and labels they name"
            )
        text = json.dumps(rules, sort_keys=True)
        if text not in self._rules:
            steps = RULE_STEPS * entries + LABEL_STEPS * lookups * n_items
            self.spend(steps, f"the {lookups:,} labels and {entries:,} entries of the rules")
            self._rules.add(text)


def check_size(queries: Sequence[schemas.Recommend], limits: Limits) -> None:
    """Refuse requests that name too many ids, or whose answers would be too long."""
    ids = sum(count_ids(query) for query in queries)
    if ids > limits.ids:
        raise SettingError(
            f"the request names {ids:,} ids and values, and limits.ids is {limits.ids:,}; reduce "
            "history, exclude, candidates, filters or rules, or send it in parts"
        )
    rows = sum(query.k * (1 + query.explain) for query in queries)
    if rows > limits.rows:
        raise SettingError(
            f"the answer would have {rows:,} items and reasons, and limits.rows is "
            f"{limits.rows:,}; reduce k or explain, or send fewer requests in a batch"
        )


def count_ids(query: schemas.Recommend) -> int:
    """Return the number of ids and values that a request names."""
    lists = (query.history, query.session, query.exclude, query.candidates)
    values = sum(len(value) if isinstance(value, list) else 1 for value in query.filters.values())
    rules = {} if query.rules is None else rules_of_user(query.rules, query.user)
    return sum(len(ids) for ids in lists if ids is not None) + values + count_entries(rules)


def is_long(query: schemas.Recommend) -> bool:
    """Whether to compute a list in another thread, so that other requests do not wait."""
    return bool(query.rules) or query.k * (1 + query.explain) > 2_000 or count_ids(query) > 2_000


def rules_of_user(rules: Mapping[str, Any], user: Any) -> dict[str, Any]:
    """Return rules without those of other users.

    >>> rules_of_user({"pin": ["tea"], "users": {"ann": {}, "bob": {}}}, "ann")
    {'pin': ['tea'], 'users': {'ann': {}}}
    """
    users = rules.get("users")
    if not isinstance(users, Mapping):
        return dict(rules)
    user_rules = (
        {} if user is None else {name: users[name] for name in (str(user),) if name in users}
    )
    return {**rules, "users": user_rules}


def count_entries(rules: Any) -> int:
    """Return the number of plain values in nested mappings and lists."""
    entries, waiting = 0, [rules]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        else:
            entries += 1
    return entries


def count_lookups(rules: Mapping[str, Any]) -> int:
    """Return the number of comparisons of a label column that rules need."""
    users = rules.get("users")
    parts = [rules, *(users.values() if isinstance(users, Mapping) else ())]
    lookups = 0
    for part in parts:
        for name in LABELLED if isinstance(part, Mapping) else ():
            chosen = part.get(name)
            for choice in chosen if isinstance(chosen, list) else [chosen]:
                lookups += len(choice) if isinstance(choice, Mapping) else 0
    for name in NUMBERED:
        numbers = rules.get(name)
        for value in numbers.values() if isinstance(numbers, Mapping) else ():
            lookups += len(value) if isinstance(value, Mapping) else 0
    quotas = rules.get("at_most")
    return lookups + (len(quotas) if isinstance(quotas, Mapping) else 0)


def scoring_steps(terms: Sequence[Term], n_items: int) -> tuple[float, float]:
    """Return the steps to score all items: fixed ones, and those per history item."""
    fixed, per_item = float(n_items), 0.0
    for term in terms:
        stored = [getattr(term, name, None) for name in ("matrix", "data", "left")]
        sizes = [array.size for array in stored if isinstance(array, np.ndarray)]
        if term.constant is None:
            per_item += sum(sizes) / max(n_items, 1) if sizes else n_items
        fixed += term.buffer_size * n_items
    return fixed, per_item


class ByteCache:
    """LRU cache with a limit in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit, self.size = limit, 0
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._changing = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of a key; a missing one is made, and stored if it fits."""
        with self._changing:
            if key in self._values:
                self._values.move_to_end(key)
                cached: Value = self._values[key][0]
                return cached
        value = make()
        size = count_bytes(key) + count_bytes(value)
        with self._changing:
            if size <= self._limit and key not in self._values:
                self._values[key] = value, size
                self.size += size
            while self.size > self._limit:
                _, (_, freed) = self._values.popitem(last=False)
                self.size -= freed
        return value


def count_bytes(value: Any) -> int:
    """Return the approximate memory of a value and its parts."""
    if isinstance(value, np.ndarray):
        return value.nbytes + 128
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
        return 64 + sum(map(count_bytes, parts))
    if isinstance(value, Mapping):
        return sys.getsizeof(value) + sum(map(count_bytes, [*value, *value.values()]))
    if isinstance(value, (list, tuple, set, frozenset)):
        return sys.getsizeof(value) + sum(map(count_bytes, value))
    return sys.getsizeof(value)
