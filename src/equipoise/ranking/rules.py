"""Business rules for lists: filters, boosts, pins, quotas and diversity.

Rules name items by id or by their labels. `Rules.on` looks both up in the data of a model: filters
become masks and boosts become vectors, which the ranker applies while it scores; pins, quotas and
diversity re-rank its lists (`mixture`).

A label of an item has one value or several: a list, or a string such as "Drama|Sport". A pinned
item that the model does not know is listed without a score.
"""

from __future__ import annotations

import json
import logging
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date, time, timedelta
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, Literal, Self, get_args
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise import checks
from equipoise.data.ids import IdIndex, as_list, by_id_key, id_key, is_id
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, FileFormatError, SettingError
from equipoise.ranking.ranker import Boost
from equipoise.runtime.machine import check_polars

Seen = Literal["exclude", "include", "only"]
Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]
PER_USER = ("include", "exclude")
SEPARATOR = "|"  # between several values of a label in one string
VALUES = (str, bool, int, float, Decimal, date, time, timedelta, np.generic)  # types of labels
MISSING = {"missing": True}  # stands for None in a file, as TOML has no null
COMPARISONS = {"min", "max"}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rules:
    """Rules for lists: filters, boosts, pins, quotas and diversity.

    Items are selected by id, by labels as in ``{"department": "produce"}`` (several columns: all
    must match; a list of values: any of them), by a function of an item's labels (a dict) or a
    polars expression over them, or by a list of these, of which any must match. A label with
    several values, a list or a string such as "Drama|Sport", matches if any of them does; None
    matches items without the label. Ids that a model does not know have no effect, except as pins.

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
        Factors > 0 by id or label: ``{"tea": 2.0, "brand": {"own": 1.5}}``. A positive score is
        multiplied by the factor, a negative one divided by it, so a factor above 1 raises both;
        several factors of an item are multiplied. Values of a label may also be pairs:
        ``{"organic": [[True, 1.5]]}``.
    bonus
        Numbers to add to the score after the factors, in the same form.
    at_most
        Maximum number of items in a list that share a value of a label: ``{"brand": 2}``. Items
        without the label are not counted, items with several values count for each of them.
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
    boost: Mapping[Any, Any] | None = None
    bonus: Mapping[Any, Any] | None = None
    at_most: Mapping[str, int] | None = None
    pin: Any = None
    diversity: float = 0.0
    seen: Seen | None = None

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

    def on(self, data: Interactions) -> ItemRules:
        """Return the rules over the items of data, by their ids and labels; cached."""
        cached = _cache.setdefault(data, WeakKeyDictionary())
        if self not in cached:
            cached[self] = self._look_up(data)
        return cached[self]

    def _look_up(self, data: Interactions) -> ItemRules:
        items = _Items(data, self.pin or [])
        n_items = data.n_items
        allowed = items.mask(self.include, True) & ~items.mask(self.exclude, False)
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
            for places, number in items.numbers(self.boost):
                factor[places] *= number
            for places, number in items.numbers(self.bonus):
                bonus[places] += number
            boost = Boost(factor, bonus)

        def user_masks(part: slice) -> dict[Any, dict[str, Mask]]:
            return {
                user: {name: mask[part] for name, mask in masks.items()}
                for user, masks in users.items()
            }

        unknown_pins = None
        if items.unknown_pins:
            masks = user_masks(slice(n_items, None))
            unknown_pins = UnknownPins(items.unknown_pins, allowed[n_items:], masks)
        has_filters = self.include is not None or self.exclude is not None
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
    """Pinned items that a model does not know: ids, and masks of those that rules allow.

    `users` has masks by the `id_key` of the user.
    """

    ids: list[Any]
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

    def limit_unknown_pins(self, shown: Callable[[Any], bool]) -> Self:
        """Return the rules without the unknown pins that may not be shown."""
        if self.unknown_pins is None:
            return self
        mask = np.array([shown(item) for item in self.unknown_pins.ids], np.bool_)
        allowed = self.unknown_pins.allowed & mask
        return replace(self, unknown_pins=replace(self.unknown_pins, allowed=allowed))

    def on(self, _: Interactions) -> ItemRules:
        """Return these rules, which were looked up before."""
        return self


RulesLike = Rules | ItemRules | Mapping[str, Any] | str | os.PathLike[str]

_cache: WeakKeyDictionary[Interactions, WeakKeyDictionary[Rules, ItemRules]] = WeakKeyDictionary()


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
    """Return one selector (an id, labels, a function) or several as a list."""
    if isinstance(selection, Mapping) or _is_function(selection):
        return [selection]
    return as_list(selection)


def _checked(name: str, selection: Any) -> Any:
    """Return a checked selection of items, with iterables as lists."""
    if selection is None:
        return None
    if isinstance(selection, Mapping) or _is_function(selection) or is_id(selection):
        return _checked_selector(name, selection)
    return [_checked_selector(name, selector) for selector in as_list(selection)]


def _checked_selector(name: str, selector: Any) -> Any:
    if isinstance(selector, Mapping):
        if not all(isinstance(column, str) for column in selector):
            raise SettingError(
                f"{name} takes labels by the name of their column, got {selector!r}"
            )
        return {column: _checked_label(name, column, value) for column, value in selector.items()}
    if not (_is_function(selector) or is_id(selector)):
        raise SettingError(f"{name} takes item ids, labels or functions, got {selector!r}")
    return selector


def _checked_label(name: str, column: str, label: Any) -> Any:
    """Return the checked value or values of a label in a rule."""
    where = f"{name} of {column!r}"
    if isinstance(label, Mapping) or is_id(label):
        return _label_value(where, label)
    return [_label_value(where, value) for value in as_list(label)]


def _label_value(where: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        if dict(value) == MISSING:
            return None
        if value and value.keys() <= COMPARISONS:
            raise SettingError(
                f"{where} is a comparison, {dict(value)!r}, and rules do not support comparisons "
                "yet; name the values, or use a polars expression such as pl.col('price') < 1.1"
            )
    if value is not None and not isinstance(value, VALUES):
        raise SettingError(
            f"{where} must be a value of a label or a list of values, got {value!r}"
        )
    return value


def _checked_users(users: Any) -> dict[Any, dict[str, Any]]:
    """Return the checked rules of users."""
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
) -> dict[Any, Any]:
    """Return checked numbers by id, or by the values of a label (a mapping or pairs)."""
    out: dict[Any, Any] = {}
    for key, value in _mapping(name, numbers).items():
        if not isinstance(value, (Mapping, list, tuple)):
            check(f"{name} of {key!r}", value)
            out[key] = value
            continue
        if isinstance(value, Mapping) and value and value.keys() <= COMPARISONS:
            raise SettingError(
                f"{name} of {key!r} is a comparison, {dict(value)!r}, and rules do not support "
                "comparisons yet; for a label with this value use a list of pairs: "
                f"{[list(pair) for pair in value.items()]!r}"
            )
        by_value: dict[Any, Any] = {}
        for label, number in _number_pairs(f"{name} of {key!r}", value):
            label = _label_value(f"{name} of {key!r}", label)
            check(f"{name} of {label!r}", number)
            if label in by_value:
                raise SettingError(f"{name} of {key!r} names {label!r} twice; keep one")
            by_value[label] = number
        is_ambiguous = bool(by_value) and by_value.keys() <= COMPARISONS
        out[key] = [[*pair] for pair in by_value.items()] if is_ambiguous else by_value
    return out


def _number_pairs(where: str, numbers: Any) -> list[Any]:
    """Return pairs of label value and number, from a mapping or a list of pairs."""
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
        raise SettingError(f"{where}: {name!r} is no rule; {hint}")


def _is_function(selector: Any) -> bool:
    return isinstance(selector, pl.Expr) or callable(selector)


def label_values(cell: Any) -> list[Any]:
    """Return the values of a label: those of a list, or the parts of a string with `|`.

    A string with an empty part is one value.

    >>> label_values("Drama|Sport"), label_values(["a", "b", "a"]), label_values("a||b")
    (['Drama', 'Sport'], ['a', 'b'], ['a||b'])
    """
    if isinstance(cell, (list, tuple)):
        return list(dict.fromkeys(value for value in cell if isinstance(value, VALUES)))
    if isinstance(cell, str) and SEPARATOR in cell:
        parts = [part.strip() for part in cell.split(SEPARATOR)]
        return list(dict.fromkeys(parts)) if all(parts) else [cell]
    return [cell] if cell is None or isinstance(cell, VALUES) else []


class _Items:
    """Looks up items of rules: the items of the data, followed by unknown pins."""

    def __init__(self, data: Interactions, pins: list[Any]) -> None:
        self.data = data
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
        if self.unknown_pins:
            shown = ", ".join(map(repr, self.unknown_pins[:5]))
            logger.warning("pinned without a score, as the model does not know them: %s", shown)

    def mask(self, selection: Any, default: bool) -> Mask:
        """Return a mask of the items that match any selector; `default` without a selection."""
        out = np.full(self.data.n_items + len(self.unknown_pins), default)
        if selection is None:
            return out
        selectors = _as_selectors(selection)
        out[:] = False
        ids = [item for item in selectors if is_id(item) and not _is_function(item)]
        out[self.positions(ids)] = True
        known = out[: self.data.n_items]
        for selector in selectors:
            if isinstance(selector, Mapping):
                matches = [self._matching(name, as_list(v)) for name, v in selector.items()]
                known |= np.logical_and.reduce(matches) if matches else False
            elif _is_function(selector):
                known |= _apply_function(self.data, selector)
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

    def _places(self, name: str) -> dict[Any, list[int]]:
        """Return the items with each value of a label."""
        if name not in self._by_value:
            places: dict[Any, list[int]] = {}
            for place, cell in enumerate(_column(self.data, name).to_list()):
                values = label_values(cell)
                if isinstance(cell, str) and cell not in values:
                    values.append(cell)  # the complete string
                for value in values:
                    places.setdefault(value, []).append(place)
            self._by_value[name] = places
        return self._by_value[name]

    def _matching(self, name: str, values: list[Any]) -> Mask:
        """Return a mask of the items with any of these values of a label."""
        places = self._places(name)
        matches, missing = np.zeros(self.data.n_items, np.bool_), set()
        for value in values:
            typed = _as_column_value(value, places)
            matches[places.get(typed, [])] = True
            if typed not in places:
                missing.add(repr(value))
        if missing:
            shown = ", ".join(sorted(missing)[:5])
            logger.warning("no item has the %s %s, which the rules name", name, shown)
        return matches

    def numbers(self, rule: Mapping[Any, Any] | None) -> Iterable[tuple[Mask | Positions, float]]:
        """Yield the items and the number of each entry of a boost or bonus."""
        for key, value in (rule or {}).items():
            if isinstance(value, (Mapping, list)):
                for label, number in _number_pairs(str(key), value):
                    yield self._matching(key, [label]), float(number)
            else:
                places = self.positions([key])
                yield places[places < self.data.n_items], float(value)

    def codes(self, name: str) -> npt.NDArray[np.int32]:
        """Return a number for each value of a label, a row for each item, padded with -1."""
        numbers: dict[Any, int] = {}
        cells = _column(self.data, name).to_list()
        labels = [[value for value in label_values(cell) if value is not None] for cell in cells]
        codes = np.full((len(cells), max(map(len, labels), default=0)), -1, np.int32)
        for row, values in zip(codes, labels, strict=True):
            row[: len(values)] = [numbers.setdefault(value, len(numbers)) for value in values]
        return codes


def _as_column_value(value: Any, column: Mapping[Any, Any]) -> Any:
    """Return a value with the type of the column: keys of TOML and JSON are always strings.

    A string stands for a value of another type if no item has the string itself.
    """
    if not isinstance(value, str) or value in column:
        return value
    matches = [typed for typed in column if value in _spellings(typed)]
    return matches[0] if len(matches) == 1 else value


def _spellings(value: Any) -> tuple[str, ...]:
    """Return the ways to write a value that is not a string as a string."""
    if isinstance(value, bool):
        return str(value), str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(value), str(int(value))
    return () if value is None or isinstance(value, str) else (str(value),)


def _column(data: Interactions, name: str) -> pl.Series:
    columns = [] if data.labels is None else data.labels.columns
    if data.labels is None or name not in columns:
        known = f"they have {', '.join(columns)}"
        if not columns:
            known = "they have none: read them with labels="
        raise DataError(f"the rules name the label {name!r}, which the items lack; {known}")
    return data.labels[name]


def _apply_function(data: Interactions, function: Any) -> Mask:
    """Return a mask of the items for which an expression or a function of the labels is true."""
    if data.labels is None:
        raise DataError("the rules look at labels, and the items have none; read with labels=")
    if isinstance(function, pl.Expr):
        check_polars()
        try:
            column = data.labels.select(function.alias("_")).to_series()
        except Exception as error:  # a function inside may raise anything
            raise DataError(f"an expression of the rules failed: {error}") from error
        if column.dtype != pl.Boolean or len(column) != data.n_items:
            raise DataError("an expression of the rules must be true or false for each item")
        return column.fill_null(False).to_numpy()
    mask = np.zeros(data.n_items, np.bool_)
    for place, row in enumerate(data.labels.iter_rows(named=True)):
        try:
            mask[place] = bool(function(row))
        except Exception as error:
            item = data.items[place : place + 1].tolist()[0]
            name = getattr(function, "__name__", repr(function))
            kind = type(error).__name__
            raise DataError(
                f"the function {name} of the rules failed on item {item!r}: {kind}: {error}; make "
                "it return True or False for the labels of every item"
            ) from error
    return mask


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
    """Return a value as TOML."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return _toml(MISSING)
    if _is_function(value):
        name = getattr(value, "__name__", value)
        raise SettingError(f"a function cannot be written to a file; use labels instead of {name}")
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
