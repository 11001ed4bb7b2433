"""What a request costs, known before the work is done; and caches that keep to a number of bytes.

A step is about a nanosecond of one processor. The numbers below are the orders of magnitude of the
parts of the service, so that one limit holds for all of them together.
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

LIST_STEPS = 100_000  # make any list
ID_STEPS = 1_000  # look an id up
ROW_STEPS = 2_000  # write an item of a list, or a reason
PAIR_STEPS = 200  # sort what an item of the history adds to a listed one
RULE_STEPS = 20_000  # look an entry of the rules up
LABEL_STEPS = 2_500  # compare the label of an item with that of a rule
QUOTA_STEPS = 5  # compare an item with one above, under at_most
DIVERSITY_STEPS = 50  # the same, under diversity
PAIRS = 1 << 20  # items of the history x listed ones that are looked at at a time
LABELLED = ("include", "exclude")  # rules that choose by labels
NUMBERED = ("boost", "bonus")  # rules with numbers by id or label


class Budget:
    """What a request may still cost; `spend` raises where that is too little."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._steps = 0.0
        self._rules: set[str] = set()  # looked up already, so free

    def spend(self, steps: float, remedy: str) -> None:
        """Count work that is about to be done; `remedy` says what would make it less."""
        if self._steps + steps > self._limits.cost:
            total = f"{self._steps + steps:,.0f}"
            raise SettingError(
                f"the request costs {total} steps and limits.cost is {self._limits.cost:,}; "
                f"reduce {remedy}"
            )
        self._steps += steps

    def spend_rules(self, rules: Mapping[str, Any], n_items: int) -> None:
        """Count the rules of a list; those that an earlier list had are looked up."""
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


def check_size(lists: Sequence[schemas.Recommend], limits: Limits) -> None:
    """Refuse requests that name too many ids, or whose answers would be too long."""
    ids = sum(count_ids(asked) for asked in lists)
    if ids > limits.ids:
        raise SettingError(
            f"the request names {ids:,} ids and values, and limits.ids is {limits.ids:,}; reduce "
            "history, exclude, candidates, filters or rules, or send it in parts"
        )
    rows = sum(asked.k * (1 + asked.explain) for asked in lists)
    if rows > limits.rows:
        raise SettingError(
            f"the answer would have {rows:,} items and reasons, and limits.rows is "
            f"{limits.rows:,}; reduce k or explain, or send fewer requests in a batch"
        )


def count_ids(asked: schemas.Recommend) -> int:
    """Return the number of ids and values that a request names."""
    lists = (asked.history, asked.session, asked.exclude, asked.candidates)
    values = sum(len(each) if isinstance(each, list) else 1 for each in asked.filters.values())
    rules = {} if asked.rules is None else rules_of_user(asked.rules, asked.user)
    return sum(len(each) for each in lists if each is not None) + values + count_entries(rules)


def is_long(asked: schemas.Recommend) -> bool:
    """Whether other requests should not wait for this one."""
    return bool(asked.rules) or asked.k * (1 + asked.explain) > 2_000 or count_ids(asked) > 2_000


def rules_of_user(rules: Mapping[str, Any], user: Any) -> dict[str, Any]:
    """Return rules without those of other users, which nobody has to look up.

    >>> rules_of_user({"pin": ["tea"], "users": {"ann": {}, "bob": {}}}, "ann")
    {'pin': ['tea'], 'users': {'ann': {}}}
    """
    users = rules.get("users")
    if not isinstance(users, Mapping):
        return dict(rules)
    own = {} if user is None else {name: users[name] for name in (str(user),) if name in users}
    return {**rules, "users": own}


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
    """Return how often rules compare a label of all items with something."""
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
    """Return the steps to score all items: for any history, and for each of its items."""
    fixed, per_item = float(n_items), 0.0
    for term in terms:
        stored = [getattr(term, name, None) for name in ("matrix", "data", "left")]
        sizes = [array.size for array in stored if isinstance(array, np.ndarray)]
        if term.constant is None:
            per_item += sum(sizes) / max(n_items, 1) if sizes else n_items
        fixed += term.buffer_size * n_items
    return fixed, per_item


class ByteCache:
    """Values by key; the least recently used ones leave when all take more than some bytes."""

    def __init__(self, most: int) -> None:
        self._most, self.size = most, 0
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._changing = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of a key; a new one is made, and kept if it fits."""
        with self._changing:
            known = self._values.get(key)
            if known is not None:
                self._values.move_to_end(key)
                kept: Value = known[0]
                return kept
        value = make()
        size = count_bytes(key) + count_bytes(value)
        with self._changing:
            if size <= self._most and key not in self._values:
                self._values[key] = value, size
                self.size += size
            while self.size > self._most:
                _, (_, freed) = self._values.popitem(last=False)
                self.size -= freed
        return value


def count_bytes(value: Any) -> int:
    """Return about how much memory a value takes: arrays, texts, and what holds them."""
    if isinstance(value, np.ndarray):
        return value.nbytes + 128
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, each.name) for each in dataclasses.fields(value)]
        return 64 + sum(map(count_bytes, parts))
    if isinstance(value, Mapping):
        return sys.getsizeof(value) + sum(map(count_bytes, [*value, *value.values()]))
    if isinstance(value, (list, tuple, set, frozenset)):
        return sys.getsizeof(value) + sum(map(count_bytes, value))
    return sys.getsizeof(value)
