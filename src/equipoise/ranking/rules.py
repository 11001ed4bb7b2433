"""Business rules for lists: filters, boosts, pins, quotas and diversity.

Rules name items by id or by attributes. `Rules.on` looks both up in the data of a model: filters
become masks and boosts become vectors, which the ranker applies while it scores; pins, quotas and
diversity re-rank its lists (`mixture`).

An attribute has one value or several: a list, or a string such as "Drama|Sport". Numbers and dates
are compared (`COMPARISONS`), dates with the time of the request. A pinned item that the model does
not know is listed without a score.
"""

from __future__ import annotations

import json
import logging
import os
import time as clock
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date, time, timedelta
from decimal import Decimal
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Literal, Self, get_args
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise import checks
from equipoise.data.catalogue import gathered_rows
from equipoise.data.ids import IdIndex, as_list, by_id_key, id_key, is_id
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, FileFormatError, SettingError
from equipoise.ranking.attribute_index import AttributeCodes, AttributeIndex
from equipoise.ranking.ranker import Boost
from equipoise.runtime.machine import check_polars

Seen = Literal["exclude", "include", "only"]
Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Numbers = Mapping[Any, Any] | Sequence[Any]  # numbers by id and attribute, or pairs
PER_USER = ("include", "exclude")
NUMBERED = ("boost", "bonus")
SEPARATOR = "|"  # between several values of an attribute in one string
VALUES = (str, bool, int, float, Decimal, date, time, timedelta, np.generic)  # types of attributes
MISSING = {"missing": True}  # stands for None in a file, as TOML has no null
BOUNDS = {"min", "max"}  # of numbers, both included
MOMENTS = {"after", "before", "within"}  # of dates: from a moment on, until it, not longer ago
LARGEST = 1e30  # boost or bonus; larger ones count as this
HALF_LIFE = "half_life"  # of the factor of a boost on a date
COMPARISONS = BOUNDS | MOMENTS | {HALF_LIFE}
REFRESH = 60.0  # seconds after which masks that depend on the time are computed again

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rules:
    """Rules for lists: filters, boosts, pins, quotas and diversity.

    Items are selected by id, by attributes as in ``{"department": "produce"}`` (several columns:
    all must match; a list of values: any of them), by a function of an item's attributes (a dict)
    or a polars expression over them, or by a list of these, of which any must match. An attribute
    with several values, a list or a string such as "Drama|Sport", matches if any of them does;
    None matches items without the attribute. Ids that a model does not know have no effect, except
    as pins.

    In the place of a value, ``{"min": 1, "max": 20}`` compares numbers, and ``{"after":
    "2026-01-01", "before": "2026-02-01"}`` or ``{"within": "30d"}``, the time before the request,
    compares dates. Bounds are included, except `before`. Items without the attribute never match.

    Parameters
    ----------
    include
        List only these items.
    exclude
        Never list these items.
    users
        Rules by user: ``{"ann": {"exclude": [...], "include": [...]}}``. They apply to users
        requested by id or by the name of their history, not to bare histories or items.
    boost
        Factors > 0 by id or attribute: ``{"tea": 2.0, "brand": {"own": 1.5}}``. A positive score
        is multiplied by the factor, a negative one divided by it, so a factor above 1 raises both;
        several factors of an item are multiplied, up to 1e30. Values of an attribute may also be
        pairs: ``{"organic": [[True, 1.5]]}``. Or pairs of a selection of items and a factor:
        ``[({"price": {"max": 20}}, 1.5)]``. In these ``{"published": {"half_life": "14d"}}``
        fades: new items get the whole factor, items 14 days old half of what it adds, and so on.
    bonus
        Numbers to add to the score after the factors, in the same form.
    at_most
        Maximum number of items in a list that share a value of an attribute: ``{"brand": 2}``.
        Items without the attribute are not counted, items with several values count for each.
    pin
        Items at the front of every list in this order, if they may be listed at all; they count
        in `at_most` but are not limited by it. Items that the model does not know are listed
        without a score.
    diversity
        From 0 to below 1: each place goes to the item with the largest
        ``(1 - diversity) * relevance - diversity * similarity``. Relevance is the score, scaled
        so that the best item has 1 and the k-th best 0; similarity is that to the nearest item
        above, as `similar` scores it, with 1 for the item most similar to it.
    seen
        Items of the history: "exclude", "include", or "only" them ("buy again"). Default: the
        caller's `exclude_seen`.
    min_users
        List only items with at least this many users, except those that `include` or `pin` name
        by id.
    now
        The moment with which dates are compared, as a date, ISO text or seconds since 1970; by
        default the time of the request.

    Examples
    --------
    >>> import equipoise as eq
    >>> data = eq.read([("ann", "tea"), ("ann", "milk"), ("bob", "tea"), ("cleo", "rice")])
    >>> rules = eq.Rules(exclude=["milk"], pin=["rice"])
    >>> eq.Popularity().fit(data).recommend([[]], k=3, rules=rules).items
    [['rice', 'tea']]
    """

    include: Any = None
    exclude: Any = None
    users: Mapping[Any, Mapping[str, Any]] | None = None
    boost: Numbers | None = None
    bonus: Numbers | None = None
    at_most: Mapping[str, int] | None = None
    pin: Any = None
    diversity: float = 0.0
    seen: Seen | None = None
    min_users: int | None = None
    now: checks.Moment | None = None

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {name: _checked(name, getattr(self, name)) for name in PER_USER}
        if self.users is not None:
            checked["users"] = _checked_users(self.users)
        for name, check in (("boost", checks.positive), ("bonus", checks.number)):
            if getattr(self, name) is not None:
                checked[name] = _checked_numbers(name, getattr(self, name), check)
        for column, most in _mapping("at_most", self.at_most).items():
            checks.count(f"at_most of {column!r}", most)
        if self.pin is not None:
            checked["pin"] = _as_selectors(self.pin)
            if not all(_is_item_id(item) for item in checked["pin"]):
                raise SettingError(f"pin must be item ids, got {self.pin!r}")
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        checks.fraction("diversity", self.diversity, one=False)
        if self.seen is not None:
            checks.choice("seen", self.seen, get_args(Seen))
        if self.min_users is not None:
            checks.count("min_users", self.min_users)
        if self.now is not None:
            checks.moment("now", self.now)

    def settings(self) -> dict[str, Any]:
        """Return the rules that are set, as plain values; a function is shown by its name."""
        return {name: _plain(value) for name, value in self._values().items()}

    def _values(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in RULE_NAMES}
        values["diversity"] = self.diversity or None
        return {name: value for name, value in values.items() if value is not None}

    def to_toml(self) -> str:
        """Return the rules as the text of a TOML file; functions cannot be written."""
        values = self._values()
        for name in {"boost", "bonus"} & values.keys():
            if isinstance(values[name], Mapping):
                values[name] = {key: _writable(numbers) for key, numbers in values[name].items()}
        return "".join(f"{name} = {_toml(value)}\n" for name, value in values.items())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a TOML file that `Rules.load` and the command line read."""
        text = self.to_toml()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Rules:
        """Read rules from a TOML file; raise for unknown names."""
        try:
            with open(path, "rb") as file:
                content = tomllib.load(file)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise FileFormatError(f"{path} is not a TOML file: {error}") from error
        for name in content:
            _check_name(name, RULE_NAMES, str(path))
        try:
            return cls(**content)
        except SettingError as error:
            raise SettingError(f"{path}: {error}") from error

    @cached_property
    def follows_the_clock(self) -> bool:
        """Whether dates are compared with the time of the request."""
        selections = [self.include, self.exclude, self.boost, self.bonus, self.users]
        return self.now is None and any(map(is_timed, selections))

    def on(self, data: Interactions, counts: Counts | None = None) -> ItemRules:
        """Return the rules over the items of data, by their ids and attributes; cached.

        `counts` has the number of users of each item, by default those of the data.
        """
        cached = _cache.setdefault(data, WeakKeyDictionary())
        entry = cached.get(self)
        if entry is None or (self.follows_the_clock and clock.time() - entry[0] > REFRESH):
            entry = clock.time(), self._look_up(data, counts)
            cached[self] = entry
        return entry[1]

    def _look_up(self, data: Interactions, counts: Counts | None) -> ItemRules:
        now = clock.time() if self.now is None else checks.moment("now", self.now)
        items = _Items(data, self.pin or [], now)
        n_items = data.n_items
        allowed = items.mask(self.include, True) & ~items.mask(self.exclude, False)
        if self.min_users is not None:
            enough = (data.item_counts if counts is None else counts) >= self.min_users
            named = [item for item in _as_selectors(self.include or []) if _is_item_id(item)]
            enough[items.known(named)] = True
            enough[items.pins[items.pins < n_items]] = True
            allowed[:n_items] &= enough
        users = {
            id_key(user): {
                name: items.mask(selection, name == "include") for name, selection in rules.items()
            }
            for user, rules in (self.users or {}).items()
        }
        quotas = [Quota(items.codes(name), most) for name, most in (self.at_most or {}).items()]
        boost = None
        if self.boost or self.bonus:
            factor, bonus = np.ones(n_items), np.zeros(n_items)
            # beyond single precision, scores would be infinite or NaN
            for share, number in items.numbers(self.boost):
                number = min(max(number, 1 / LARGEST), LARGEST)
                factor *= np.where(share == 1, number, 1 + (number - 1) * share)
                factor = factor.clip(1 / LARGEST, LARGEST)
            for share, number in items.numbers(self.bonus):
                bonus += min(max(number, -LARGEST), LARGEST) * share
            boost = Boost(factor, bonus.clip(-LARGEST, LARGEST))

        def user_masks(part: slice) -> dict[Any, dict[str, Mask]]:
            return {
                user: {name: mask[part] for name, mask in masks.items()}
                for user, masks in users.items()
            }

        unknown_pins = None
        if items.unknown_pins:
            masks = user_masks(slice(n_items, None))
            unknown_pins = UnknownPins(
                items.unknown_pins, items.pin_titles(), allowed[n_items:], masks
            )
        filters = (self.include, self.exclude, self.min_users)
        has_filters = any(filter is not None for filter in filters)
        return ItemRules(
            allowed=allowed[:n_items] if has_filters else None,
            users=user_masks(slice(n_items)),
            boost=boost,
            quotas=quotas,
            pins=items.pins,
            diversity=float(self.diversity),
            seen=self.seen,
            unknown_pins=unknown_pins,
        )


RULE_NAMES = [field.name for field in fields(Rules)]


@dataclass(frozen=True, eq=False)
class Quota:
    """Maximum number of items with the same code; each item has a row of codes, padded with -1."""

    codes: npt.NDArray[np.int32]
    most: int


@dataclass(frozen=True, eq=False)
class UnknownPins:
    """Pinned items that a model does not know: ids, titles, and masks of those that rules allow.

    `users` has masks by the `id_key` of the user.
    """

    ids: list[Any]
    titles: list[str]
    allowed: Mask
    users: dict[Any, dict[str, Mask]]

    @property
    def index(self) -> IdIndex:
        """The ids as strings, for comparison with ids of either type."""
        return IdIndex([id_key(item) for item in self.ids], "item")


@dataclass(frozen=True, eq=False)
class ItemRules:
    """Rules over the positions of items; `users` has masks by the `id_key` of the user.

    Pins that the model does not know have positions after its last item, in the order of
    `unknown_pins`.
    """

    allowed: Mask | None
    users: dict[Any, dict[str, Mask]]
    boost: Boost | None
    quotas: list[Quota]
    pins: Positions
    diversity: float
    seen: Seen | None
    unknown_pins: UnknownPins | None = None

    def known_pins(self, n_items: int) -> Positions:
        """Return the pins among the items of the model."""
        return self.pins[self.pins < n_items]

    def mixes(self, n_items: int) -> bool:
        """Whether lists have to be re-ranked by `mixture`."""
        return bool(self.quotas or len(self.known_pins(n_items)) or self.diversity)

    @cached_property
    def exhaustible(self) -> list[tuple[Quota, Mask]]:
        """Quotas that limit every item the rules allow, and the codes which these items have."""
        quotas = []
        for quota in self.quotas:
            codes = quota.codes if self.allowed is None else quota.codes[self.allowed]
            if (codes >= 0).any(axis=1).all():
                highest = int(quota.codes.max(initial=-1))
                is_used = np.zeros(highest + 1, np.bool_)
                is_used[codes[codes >= 0]] = True
                quotas.append((quota, is_used))
        return quotas

    def limit_unknown_pins(self, shown: Callable[[Any], bool]) -> Self:
        """Return the rules without the unknown pins that may not be shown."""
        if self.unknown_pins is None:
            return self
        mask = np.array([shown(item) for item in self.unknown_pins.ids], np.bool_)
        allowed = self.unknown_pins.allowed & mask
        return replace(self, unknown_pins=replace(self.unknown_pins, allowed=allowed))

    def on(self, _: Interactions, counts: Counts | None = None) -> ItemRules:
        """Return these rules, which were looked up before."""
        return self


RulesLike = Rules | ItemRules | Mapping[str, Any] | str | os.PathLike[str]

Made = tuple[float, ItemRules]  # when, and what
_cache: WeakKeyDictionary[Interactions, WeakKeyDictionary[Rules, Made]] = WeakKeyDictionary()


def as_rules(rules: Any) -> Rules | ItemRules | None:
    """Return rules from an object, a mapping of their names, or the path of a TOML file."""
    if rules is None or isinstance(rules, (Rules, ItemRules)):
        return rules
    if isinstance(rules, (str, os.PathLike)):
        return Rules.load(rules)
    if isinstance(rules, Mapping):
        for name in rules:
            _check_name(name, RULE_NAMES, "rules")
        return Rules(**rules)
    raise SettingError(f"rules must be eq.Rules or the path of a TOML file, got {rules!r}")


def _as_selectors(selection: Any) -> list[Any]:
    """Return one selector (an id, attributes, a function) or several as a list."""
    if isinstance(selection, Mapping) or _is_function(selection):
        return [selection]
    return as_list(selection)


def is_timed(selection: Any) -> bool:
    """Whether a selection, or one inside it, compares dates with the time of the request."""
    if isinstance(selection, Mapping):
        if selection.keys() & {"within", HALF_LIFE} and selection.keys() <= COMPARISONS:
            return True
        return any(map(is_timed, selection.values()))
    return isinstance(selection, (list, tuple)) and any(map(is_timed, selection))


def _checked(name: str, selection: Any) -> Any:
    if selection is None:
        return None
    if isinstance(selection, Mapping) or _is_function(selection) or is_id(selection):
        return _checked_selector(name, selection)
    return [_checked_selector(name, selector) for selector in as_list(selection)]


def _checked_selector(name: str, selector: Any) -> Any:
    if isinstance(selector, Mapping):
        if not all(isinstance(column, str) for column in selector):
            raise SettingError(
                f"{name} takes attributes by the name of their column, got {selector!r}"
            )
        return {
            column: _checked_attribute(name, column, value) for column, value in selector.items()
        }
    if not (_is_function(selector) or is_id(selector)):
        raise SettingError(f"{name} takes item ids, attributes or functions, got {selector!r}")
    return selector


def _checked_attribute(name: str, column: str, attribute: Any) -> Any:
    where = f"{name} of {column!r}"
    if isinstance(attribute, Mapping) or is_id(attribute):
        return _attribute_value(where, attribute)
    return [_attribute_value(where, value) for value in as_list(attribute)]


def _attribute_value(where: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        if dict(value) == MISSING:
            return None
        if value and value.keys() <= COMPARISONS:
            return _checked_comparison(where, value)
    if value is not None and not isinstance(value, VALUES):
        raise SettingError(
            f"{where} must be a value of an attribute or a list of values, got {value!r}"
        )
    return value


def _checked_comparison(where: str, comparison: Mapping[str, Any]) -> dict[str, Any]:
    """Return a comparison with an interval that is not empty; text stays as it was written."""
    names, kinds = comparison.keys(), (BOUNDS, MOMENTS, {HALF_LIFE})
    if sum(bool(names & kind) for kind in kinds) > 1:
        raise SettingError(
            f"{where} mixes {', '.join(map(repr, comparison))}; numbers have 'min' and 'max', "
            "dates have 'after', 'before' and 'within'"
        )
    if HALF_LIFE in names and not where.startswith(NUMBERED):
        raise SettingError(f"{where} has a half_life, which is for boost and bonus")
    checkers = dict.fromkeys(BOUNDS, checks.number) | dict.fromkeys(MOMENTS, checks.moment)
    checkers |= {"within": checks.period, HALF_LIFE: checks.period}
    values = {name: checkers[name](f"{name} of {where}", comparison[name]) for name in names}
    for low, high in (("min", "max"), ("after", "before")):
        if {low, high} <= names:
            empty = values[low] > values[high] or (low == "after" and values[low] == values[high])
            if empty:
                raise SettingError(
                    f"{where}: no value is from {comparison[low]!r} to {comparison[high]!r}; "
                    f"exchange {low} and {high}"
                )
    return dict(comparison)


def _checked_users(users: Any) -> dict[Any, dict[str, Any]]:
    out: dict[Any, dict[str, Any]] = {}
    for user, rules in _mapping("users", users).items():
        out[user] = {}
        for name, selection in _mapping(f"users[{user!r}]", rules).items():
            _check_name(name, PER_USER, f"the rules of user {user!r}")
            out[user][name] = _checked(name, selection)
    by_id_key("users", out)
    return out


def _checked_numbers(
    name: str, numbers: Any, check: Callable[[str, Any], float]
) -> dict[Any, Any] | list[Any]:
    if isinstance(numbers, (list, tuple)):
        return [_checked_pair(name, pair, check) for pair in numbers]
    out: dict[Any, Any] = {}
    for key, value in _mapping(name, numbers).items():
        if not isinstance(value, (Mapping, list, tuple)):
            check(f"{name} of {key!r}", value)
            out[key] = value
            continue
        if isinstance(value, Mapping) and value and value.keys() <= COMPARISONS:
            raise SettingError(
                f"{name} of {key!r} is a comparison, {dict(value)!r}, without a number to apply; "
                f"give pairs of items and numbers, as in {name}=[({{{key!r}: {dict(value)!r}}}, "
                f"1.5)], or for an attribute with these values {[*map(list, value.items())]!r}"
            )
        by_value: dict[Any, Any] = {}
        for attribute, number in _number_pairs(f"{name} of {key!r}", value):
            attribute = _attribute_value(f"{name} of {key!r}", attribute)
            check(f"{name} of {attribute!r}", number)
            if attribute in by_value:
                raise SettingError(f"{name} of {key!r} names {attribute!r} twice; keep one")
            by_value[attribute] = number
        is_ambiguous = bool(by_value) and by_value.keys() <= COMPARISONS
        out[key] = [[*pair] for pair in by_value.items()] if is_ambiguous else by_value
    return out


def _checked_pair(name: str, pair: Any, check: Callable[[str, Any], float]) -> list[Any]:
    """Return a selection of items and its number, as a list for files."""
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        raise SettingError(
            f"{name} must be a mapping, or pairs of items and a number, such as "
            f"({{'price': {{'max': 20}}}}, 1.5); got {pair!r}"
        )
    selection, number = pair
    check(f"{name} of {selection!r}", number)
    return [_checked(name, selection), number]


def _number_pairs(where: str, numbers: Any) -> list[Any]:
    pairs = list(numbers.items()) if isinstance(numbers, Mapping) else list(numbers)
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
        raise SettingError(
            f"{where} must be a number, or pairs of value and number, got {numbers!r}"
        )
    return pairs


def _is_item_id(value: Any) -> bool:
    return isinstance(value, (str, int, np.integer)) and not isinstance(value, bool)


def _mapping(name: str, value: Any) -> Mapping[Any, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise SettingError(f"{name} must be a mapping, got {value!r}")
    return value or {}


def _check_name(name: Any, known: Sequence[str], where: str) -> None:
    if name not in known:
        near = get_close_matches(str(name), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise SettingError(f"{where}: {name!r} is not a rule; {hint}")


def _is_function(selector: Any) -> bool:
    return isinstance(selector, pl.Expr) or callable(selector)


def attribute_values(cell: Any) -> list[Any]:
    """Return the values of an attribute: those of a list, or the parts of a string with `|`.

    A string with an empty part is one value.

    >>> attribute_values("Drama|Sport"), attribute_values(["a", "b", "a"])
    (['Drama', 'Sport'], ['a', 'b'])
    >>> attribute_values("a||b")
    ['a||b']
    """
    if isinstance(cell, (list, tuple)):
        return list(dict.fromkeys(value for value in cell if isinstance(value, VALUES)))
    if isinstance(cell, str) and SEPARATOR in cell:
        parts = [part.strip() for part in cell.split(SEPARATOR)]
        return list(dict.fromkeys(parts)) if all(parts) else [cell]
    return [cell] if cell is None or isinstance(cell, VALUES) else []


def written_values(cell: Any) -> list[Any]:
    """Return the values of an attribute and the complete text of several.

    >>> written_values("Drama| Sport")
    ['Drama', 'Sport', 'Drama|Sport', 'Drama| Sport']
    """
    values = attribute_values(cell)
    text = SEPARATOR.join(values) if len(values) > 1 and _all_text(values) else cell
    if isinstance(text, str) and text not in values:
        values.append(text)
    if isinstance(cell, str) and cell not in values:
        values.append(cell)
    return values


class _Items:
    """Looks up items of rules: the items of the data, followed by unknown pins.

    Of unknown pins, those that the catalogue has as new items have attributes; the others match
    nothing.
    """

    def __init__(self, data: Interactions, pins: list[Any], now: float) -> None:
        self.data, self._now = data, now
        self.unknown_pins: list[Any] = []
        self._index = data.item_index
        self._unknown_places: dict[Any, int] = {}
        self._by_value: dict[str, dict[Any, list[int]]] = {}
        places = self._index.positions(pins, unknown="skip").tolist()
        for at, item in enumerate(pins):
            if places[at] < 0:
                if id_key(item) not in self._unknown_places:
                    self._unknown_places[id_key(item)] = data.n_items + len(self.unknown_pins)
                    self.unknown_pins.append(self._index.spelled(item))
                places[at] = self._unknown_places[id_key(item)]
        self.pins = np.array(list(dict.fromkeys(places)), np.int64)
        self.size = data.n_items + len(self.unknown_pins)
        self._pin_rows = np.full(len(self.unknown_pins), -1, np.int64)
        if self.unknown_pins and data.known_items is not None:
            new_index = data.known_items.new_index
            self._pin_rows = new_index.positions(self.unknown_pins, unknown="skip")
        strange = [
            pin for pin, row in zip(self.unknown_pins, self._pin_rows, strict=True) if row < 0
        ]
        if strange:
            shown = ", ".join(map(repr, strange[:5]))
            logger.warning("pinned without a score, as the model does not know them: %s", shown)

    @cached_property
    def has_attributes(self) -> Mask:
        """Mask of the items whose attributes are known, if they have any."""
        return np.concatenate([np.ones(self.data.n_items, np.bool_), self._pin_rows >= 0])

    @cached_property
    def table(self) -> pl.DataFrame | None:
        """The attributes of the items and, in the same columns, those of unknown pins."""
        frame, new_items = self.data.catalogue, self.data.new_items
        if frame is None or not self.unknown_pins:
            return frame
        rows = frame.clear() if new_items is None else new_items.select(frame.columns)
        return pl.concat([frame, gathered_rows(rows, self._pin_rows)])

    def pin_titles(self) -> list[str]:
        """Return the titles of unknown pins, or their ids as text."""
        titles = [None] * len(self.unknown_pins)
        if self.table is not None and self.table.width:
            titles = self.table.to_series(0)[self.data.n_items :].to_list()
        return [str(title or pin) for title, pin in zip(titles, self.unknown_pins, strict=True)]

    def column(self, name: str) -> pl.Series:
        """Return an attribute of the items and unknown pins."""
        columns = [] if self.table is None else self.table.columns
        if self.table is None or name not in columns:
            known = f"they have {', '.join(columns)}"
            if not columns:
                known = "they have none: read them with catalogue="
            raise DataError(
                f"the rules name the attribute {name!r}, which the items lack; {known}"
            )
        return self.table[name]

    def mask(self, selection: Any, default: bool) -> Mask:
        """Return a mask of the items that match any selector; `default` without a selection."""
        out = np.full(self.size, default)
        if selection is None:
            return out
        selectors = _as_selectors(selection)
        out[:] = False
        ids = [item for item in selectors if is_id(item) and not _is_function(item)]
        out[self.positions(ids)] = True
        for selector in selectors:
            if isinstance(selector, Mapping):
                out |= self._shares(selector) > 0
            elif _is_function(selector):
                out |= self._apply_function(selector)
        return out

    def positions(self, ids: list[Any]) -> Positions:
        """Return the positions of known and pinned ids; log the others."""
        places = self._index.positions(ids, unknown="skip")
        for at in np.flatnonzero(places < 0).tolist():
            places[at] = self._unknown_places.get(id_key(ids[at]), -1)
        if (places < 0).any():
            unknown = [repr(item) for item, at in zip(ids, places, strict=True) if at < 0]
            logger.warning("rules name items the model does not know: %s", ", ".join(unknown[:5]))
        return places[places >= 0]

    def known(self, ids: list[Any]) -> Positions:
        """Return the positions of those of these ids that the model knows."""
        places = self._index.positions(ids, unknown="skip")
        return places[places >= 0]

    def _shares(self, selector: Mapping[str, Any]) -> Floats:
        """Return how far each item matches a selector: 0 or 1, or between them with half-lives."""
        shares = self.has_attributes.astype(np.float64) if selector else np.zeros(self.size)
        for name, values in selector.items():
            listed = [values] if isinstance(values, Mapping) else as_list(values)
            comparisons = [value for value in listed if isinstance(value, Mapping)]
            plain = [value for value in listed if not isinstance(value, Mapping)]
            share = self._matching(name, plain).astype(np.float64) if plain else 0.0
            for comparison in comparisons:
                share = np.maximum(share, self._compared(name, comparison))
            shares *= share
        return shares

    def _compared(self, name: str, comparison: Mapping[str, Any]) -> Floats:
        """Return 1 for each item that satisfies a comparison, or its share of a half-life.

        A missing value is NaN, which satisfies none.
        """
        column, now = self.column(name), self._now
        if comparison.keys() <= BOUNDS:
            values = _numbers_of(column)
            matches = values >= float(comparison.get("min", -np.inf))
            matches &= values <= float(comparison.get("max", np.inf))
            return matches.astype(np.float64)
        values = _seconds_of(column)
        if HALF_LIFE in comparison:
            ages = np.maximum(now - values, 0.0)
            return np.nan_to_num(np.exp2(-ages / checks.period(HALF_LIFE, comparison[HALF_LIFE])))
        matches = ~np.isnan(values)
        if "after" in comparison:
            matches &= values >= checks.moment("after", comparison["after"])
        if "before" in comparison:
            matches &= values < checks.moment("before", comparison["before"])
        if "within" in comparison:
            matches &= values >= now - checks.period("within", comparison["within"])
            matches &= values <= now
        return matches.astype(np.float64)

    def _places(self, name: str) -> dict[Any, list[int]]:
        """Return the items with each value of an attribute, and with each complete text."""
        if name not in self._by_value:
            index = self._known_index(name)
            if index is None:
                index = AttributeIndex(self.column(name).to_list(), written_values)
            self._by_value[name] = index.places
        return self._by_value[name]

    def _known_index(self, name: str) -> AttributeIndex | None:
        """Return what the data keep of an attribute, which has no unknown pins."""
        keeps = getattr(self.data, "attribute_index", None)
        return None if keeps is None or self.unknown_pins else keeps(name)

    def _matching(self, name: str, values: list[Any]) -> Mask:
        """Return a mask of the items with any of these values of an attribute."""
        places = self._places(name)
        matches, missing = np.zeros(self.size, np.bool_), set()
        for value in values:
            typed = _as_column_value(value, places)
            matches[places.get(typed, [])] = True
            if typed not in places:
                missing.add(repr(value))
        if missing:
            shown = ", ".join(sorted(missing)[:5])
            logger.warning("no item has the %s %s, which the rules name", name, shown)
        return matches & self.has_attributes

    def numbers(self, rule: Numbers | None) -> Iterable[tuple[Floats, float]]:
        """Yield how far items match each entry of a boost or bonus, and its number."""
        n_items = self.data.n_items
        for selection, number in _as_pairs(rule):
            if isinstance(selection, Mapping):
                share = self._shares(selection)
            elif isinstance(selection, list):
                parts = [self._shares(s) for s in selection if isinstance(s, Mapping)]
                plain_selectors = [s for s in selection if not isinstance(s, Mapping)]
                share = np.max([*parts, self.mask(plain_selectors, False)], axis=0)
            else:
                share = self.mask(selection, False).astype(np.float64)
            yield share[:n_items], float(number)

    def codes(self, name: str) -> npt.NDArray[np.int32]:
        """Return a number for each value of an attribute, a row for each item, padded with -1."""
        keeps = getattr(self.data, "attribute_codes", None)
        codes = None if keeps is None else keeps(name)
        if codes is None:
            cells = self.column(name)[: self.data.n_items].to_list()
            codes = AttributeCodes(cells, attribute_values)
        return codes.array

    def _apply_function(self, function: Any) -> Mask:
        """Return a mask of the items for whose attributes a function is true."""
        if self.table is None:
            raise DataError(
                "the rules look at attributes, and the items have none; read with catalogue="
            )
        if isinstance(function, pl.Expr):
            return _apply_expression(self.table, function) & self.has_attributes
        mask = np.zeros(self.size, np.bool_)
        for place, row in enumerate(self.table.iter_rows(named=True)):
            if not self.has_attributes[place]:
                continue
            try:
                mask[place] = bool(function(row))
            except Exception as error:
                item = [*self.data.items[place : place + 1].tolist(), *self.unknown_pins]
                name = getattr(function, "__name__", repr(function))
                kind = type(error).__name__
                raise DataError(
                    f"the function {name} of the rules failed on item {item[0]!r}: {kind}: "
                    f"{error}; make it return True or False for the attributes of every item"
                ) from error
        return mask


def _as_pairs(rule: Numbers | None) -> list[tuple[Any, float]]:
    """Return a boost or bonus as pairs of a selection and a number."""
    if rule is None or not isinstance(rule, Mapping):
        return [(selection, number) for selection, number in rule or ()]
    pairs = []
    for key, value in rule.items():
        if isinstance(value, (Mapping, list)):
            pairs += [({key: [cell]}, number) for cell, number in _number_pairs(str(key), value)]
        else:
            pairs.append((key, value))
    return pairs


def _all_text(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _numbers_of(column: pl.Series) -> Floats:
    """Return an attribute as numbers, NaN where it is missing; other values are an error."""
    if column.dtype.is_numeric() or column.dtype == pl.Null:
        return column.cast(pl.Float64).fill_null(np.nan).to_numpy()
    if column.dtype == pl.Object:  # values from JSON
        cells = column.to_list()
        if all(cell is None or _is_number(cell) for cell in cells):
            return np.array([np.nan if cell is None else float(cell) for cell in cells])
    raise DataError(
        f"the rules compare {column.name!r} with numbers, but it holds {_shown_kind(column)}; "
        "name its values, or read it as numbers with catalogue_types="
    )


def _seconds_of(column: pl.Series) -> Floats:
    """Return an attribute as seconds since 1970, NaN where it is missing; others are an error."""
    if column.dtype.is_temporal() and column.dtype not in (pl.Time, pl.Duration):
        moments = column.cast(pl.Datetime("us"))
        return (moments.dt.epoch("us").cast(pl.Float64) / 1e6).fill_null(np.nan).to_numpy()
    if column.dtype == pl.Null:
        return np.full(len(column), np.nan)
    if column.dtype in (pl.String, pl.Object):  # dates from JSON are text
        try:
            return np.array(
                [np.nan if cell is None else checks.moment(column.name, cell) for cell in column]
            )
        except (SettingError, TypeError):
            pass
    raise DataError(
        f"the rules compare {column.name!r} with dates, but it holds {_shown_kind(column)}; name "
        "its values, or read it as dates with catalogue_types="
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)


def _shown_kind(column: pl.Series) -> str:
    kinds = {pl.String: "text", pl.Boolean: "true and false", pl.Object: "values of many kinds"}
    if isinstance(column.dtype, (pl.List, pl.Array)):
        return "lists"
    return kinds.get(type(column.dtype), str(column.dtype))


def _as_column_value(value: Any, column: Mapping[Any, Any]) -> Any:
    """Return a value with the type of the column: keys of TOML and JSON are always strings.

    A string stands for a value of another type if no item has the string itself, and the other
    way round.
    """
    if value in column or value is None:
        return value
    if not isinstance(value, str):  # lists of a catalogue hold text
        written = [text for text in _spellings(value) if text in column]
        return written[0] if written else value
    matches = [typed for typed in column if value in _spellings(typed)]
    return matches[0] if len(matches) == 1 else value


def _spellings(value: Any) -> tuple[str, ...]:
    """Return the ways to write a value that is not a string as a string."""
    if isinstance(value, bool):
        return str(value), str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(value), str(int(value))
    return () if value is None or isinstance(value, str) else (str(value),)


def _apply_expression(table: pl.DataFrame, expression: pl.Expr) -> Mask:
    check_polars()
    try:
        column = table.select(expression.alias("_")).to_series()
    except Exception as error:  # a function inside may raise anything
        raise DataError(f"an expression of the rules failed: {error}") from error
    if column.dtype != pl.Boolean or len(column) != table.height:
        raise DataError("an expression of the rules must be true or false for each item")
    return column.fill_null(False).to_numpy()


def _plain(value: Any) -> Any:
    """Return nested mappings, lists and values as plain ones; others as strings."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return str(getattr(value, "__name__", value))


def _toml(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return _toml(MISSING)
    if _is_function(value):
        name = getattr(value, "__name__", value)
        raise SettingError(
            f"a function cannot be written to a file; use attributes instead of {name}"
        )
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_quoted(str(key))} = {_toml(part)}" for key, part in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (date, time)):
        return value.isoformat()
    return repr(value) if isinstance(value, (int, float)) else _quoted(str(value))


def _writable(numbers: Any) -> Any:
    """Return numbers by value as pairs, unless all values are strings, as TOML keys must be."""
    if not isinstance(numbers, Mapping) or all(isinstance(value, str) for value in numbers):
        return numbers
    return [[value, number] for value, number in numbers.items()]


def _quoted(text: str) -> str:
    # a JSON string is a TOML string, except that TOML escapes DEL as well
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
