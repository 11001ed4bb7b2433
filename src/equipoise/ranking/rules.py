"""Rules: what may be shown, and in what mixture; the same in every place that makes lists.

A rule speaks of items by id or by their labels. `Rules.on` looks both up in the data of a model:
filters become masks and boosts become vectors, which the ranker applies while it scores; what is
left (pins, at most n of a kind, diversity) is chosen from ranked lists (`mixture`).

An item has one value of a label or several: a cell that is a list, or a text such as "Drama|Sport"
whose parts `|` separates. A pinned item that the model does not know is listed without a score.
"""

from __future__ import annotations

import json
import logging
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
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
SEPARATOR = "|"  # between the values of a label that is one text
VALUES = (
    str,
    bool,
    int,
    float,
    Decimal,
    date,
    time,
    timedelta,
    np.generic,
)  # what a label may be, beside None
MISSING = {"missing": True}  # stands for no value in a file, as TOML has no null
COMPARISONS = {"min", "max"}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rules:
    """What lists may hold, and in what mixture.

    Items are chosen by id, by labels as in ``{"department": "produce"}`` (several columns: all
    must fit; a list of values: any of them), by a function of an item's labels (a dict) or a
    polars expression over them, or by a list of such choices, of which any must fit. A label with
    several values, a list or a text such as "Drama|Sport", fits if any of them does; None fits
    items without the label. Ids that a model does not know have no effect, except as pins.

    Parameters
    ----------
    include
        Items that alone may be listed.
    exclude
        Items that may not.
    users
        More rules by user: ``{"ann": {"exclude": [...], "include": [...]}}``. They hold for users
        asked for by id or by the name of their history, not for bare histories or items.
    boost
        Factors > 0 by id or label: ``{"tea": 2.0, "brand": {"own": 1.5}}``. A positive score is
        multiplied by the factor, a negative one divided by it, so above 1 always raises; several
        that fit an item are multiplied. Values of a label may be pairs as well:
        ``{"organic": [[True, 1.5]]}``.
    bonus
        Numbers that are added to the score after the factors, in the same form.
    at_most
        The most items of a list that share a value of a label: ``{"brand": 2}``. Items without
        the label count nowhere, items with several values for each of them.
    pin
        Items at the front of every list in this order, where they may be listed at all; they
        count in `at_most` but are not held back by it. Items that the model does not know are
        listed too, without a score.
    diversity
        From 0 to below 1: each place goes to the item with the largest
        ``(1 - diversity) * relevance - diversity * similarity``. Relevance is the score, scaled
        so that the best item has 1 and the k-th best 0; similarity is that to the nearest item
        above, as `similar` scores it, with 1 for the item most similar to it.
    seen
        Items of the history: "exclude", "include", or "only" them ("buy again"). Left out, the
        caller's `exclude_seen` decides.

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
        sound: dict[str, Any] = {name: _choice(name, getattr(self, name)) for name in PER_USER}
        if self.users is not None:
            sound["users"] = _user_choices(self.users)
        for name, check in (("boost", checks.positive), ("bonus", checks.number)):
            if getattr(self, name) is not None:
                sound[name] = _checked_numbers(name, getattr(self, name), check)
        for column, most in _mapping("at_most", self.at_most).items():
            checks.count(f"at_most of {column!r}", most)
        if self.pin is not None:
            sound["pin"] = _listed(self.pin)
            if not all(_is_item_id(item) for item in sound["pin"]):
                raise SettingError(f"pin must be item ids, got {self.pin!r}")
        for name, value in sound.items():
            object.__setattr__(self, name, value)
        checks.fraction("diversity", self.diversity, one=False)
        if self.seen is not None:
            checks.choice("seen", self.seen, get_args(Seen))

    def settings(self) -> dict[str, Any]:
        """Return what is set, as plain values; a function is shown by its name."""
        return {name: _plain(value) for name, value in self._given().items()}

    def _given(self) -> dict[str, Any]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values["diversity"] = self.diversity or None
        return {name: value for name, value in values.items() if value is not None}

    def to_toml(self) -> str:
        """Return the rules as the text of a TOML file; functions cannot be written."""
        values = self._given()
        for name in {"boost", "bonus"} & values.keys():
            values[name] = {key: _writable(each) for key, each in values[name].items()}
        return "".join(f"{name} = {_toml(value)}\n" for name, value in values.items())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a TOML file that `Rules.load` and the command read."""
        text = self.to_toml()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Rules:
        """Read rules from a TOML file; a word that is no rule is an error."""
        try:
            with open(path, "rb") as file:
                content = tomllib.load(file)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise FileFormatError(f"{path} is not a TOML file: {error}") from error
        for name in content:
            _check_name(name, [each.name for each in fields(cls)], str(path))
        try:
            return cls(**content)
        except SettingError as error:
            raise SettingError(f"{path}: {error}") from error

    def on(self, data: Interactions) -> ItemRules:
        """Return the rules over the items of data, by their ids and labels, looked up once."""
        known = _looked_up.setdefault(data, WeakKeyDictionary())
        if self not in known:
            known[self] = self._look_up(data)
        return known[self]

    def _look_up(self, data: Interactions) -> ItemRules:
        items = _Items(data, self.pin or [])
        n_items = data.n_items
        allowed = items.mask(self.include, True) & ~items.mask(self.exclude, False)
        users = {
            id_key(user): {
                name: items.mask(chosen, name == "include") for name, chosen in rules.items()
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
        outside = None
        if items.unknown_pins:
            outside = UnknownPins(
                items.unknown_pins,
                allowed[n_items:],
                {user: _cut(masks, slice(n_items, None)) for user, masks in users.items()},
            )
        filters = self.include is not None or self.exclude is not None
        return ItemRules(
            allowed[:n_items] if filters else None,
            {user: _cut(masks, slice(n_items)) for user, masks in users.items()},
            boost,
            quotas,
            items.pins,
            float(self.diversity),
            self.seen,
            outside,
        )


@dataclass(frozen=True, eq=False)
class Quota:
    """The most items of a list with the same code; items have a row of codes, padded with -1."""

    codes: npt.NDArray[np.int32]
    most: int


@dataclass(frozen=True, eq=False)
class UnknownPins:
    """Pinned items that a model does not know: their ids, and where rules allow them.

    `users` has masks over them by the `id_key` of the user.
    """

    ids: list[Any]
    allowed: Mask
    users: dict[Any, dict[str, Mask]]

    @property
    def index(self) -> IdIndex:
        """The ids as text, which ids of either kind are compared with."""
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
        """Whether lists have to be chosen from longer ones."""
        return bool(self.quotas or len(self.known_pins(n_items)) or self.diversity)

    def limit_unknown_pins(self, shown: Callable[[Any], bool]) -> Self:
        """Return the rules with those pins alone, among the unknown ones, that may be shown."""
        if self.unknown_pins is None:
            return self
        mask = np.array([shown(item) for item in self.unknown_pins.ids], np.bool_)
        allowed = self.unknown_pins.allowed & mask
        return replace(self, unknown_pins=replace(self.unknown_pins, allowed=allowed))

    def on(self, _: Interactions) -> ItemRules:
        """Return these rules: they were looked up already, if in other labels than the model's."""
        return self


RulesLike = Rules | ItemRules | Mapping[str, Any] | str | os.PathLike[str]

_looked_up: WeakKeyDictionary[Interactions, WeakKeyDictionary[Rules, ItemRules]] = (
    WeakKeyDictionary()
)


def as_rules(given: Any) -> Rules | ItemRules | None:
    """Return rules given as such, as a mapping of their names, or as the path of a TOML file."""
    if given is None or isinstance(given, (Rules, ItemRules)):
        return given
    if isinstance(given, (str, os.PathLike)):
        return Rules.load(given)
    if isinstance(given, Mapping):
        for name in given:
            _check_name(name, [each.name for each in fields(Rules)], "rules")
        return Rules(**given)
    raise SettingError(f"rules must be eq.Rules or the path of a TOML file, got {given!r}")


def _listed(given: Any) -> list[Any]:
    """Return one choice or several as a list of choices."""
    if isinstance(given, (Mapping, pl.Expr)) or callable(given):
        return [given]
    return as_list(given)


def _choice(name: str, given: Any) -> Any:
    """Return a choice of items, checked, with iterables as lists."""
    if given is None:
        return None
    if _is_one(given):
        return _one_choice(name, given)
    return [_one_choice(name, each) for each in as_list(given)]


def _is_one(given: Any) -> bool:
    return isinstance(given, Mapping) or _is_test(given) or is_id(given)


def _one_choice(name: str, choice: Any) -> Any:
    if isinstance(choice, Mapping):
        if not all(isinstance(column, str) for column in choice):
            raise SettingError(f"{name} takes labels by the name of their column, got {choice!r}")
        return {column: _label_values(name, column, value) for column, value in choice.items()}
    if not (_is_test(choice) or is_id(choice)):
        raise SettingError(f"{name} takes item ids, labels or functions, got {choice!r}")
    return choice


def _label_values(name: str, column: str, value: Any) -> Any:
    """Return the value or the values of a label that a rule names, checked."""
    if isinstance(value, Mapping) or is_id(value):
        return _label_value(f"{name} of {column!r}", value)
    return [_label_value(f"{name} of {column!r}", each) for each in as_list(value)]


def _label_value(where: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        if dict(value) == MISSING:
            return None
        if value and value.keys() <= COMPARISONS:
            raise SettingError(
                f"{where} is a comparison, {dict(value)!r}, and rules do not support comparisons "
                "yet; name the values, or give a polars expression such as pl.col('price') < 1.1"
            )
    if value is not None and not isinstance(value, VALUES):
        raise SettingError(
            f"{where} must be a value of a label or a list of values, got {value!r}"
        )
    return value


def _user_choices(given: Any) -> dict[Any, dict[str, Any]]:
    """Return the rules of users, checked."""
    out: dict[Any, dict[str, Any]] = {}
    for user, rules in _mapping("users", given).items():
        out[user] = {}
        for name, chosen in _mapping(f"users[{user!r}]", rules).items():
            _check_name(name, PER_USER, f"the rules of user {user!r}")
            out[user][name] = _choice(name, chosen)
    by_id_key("users", out)
    return out


def _checked_numbers(name: str, given: Any, check: Callable[[str, Any], float]) -> dict[Any, Any]:
    """Return numbers by id or by the value of a label; the latter may be given as pairs."""
    out: dict[Any, Any] = {}
    for key, value in _mapping(name, given).items():
        if not isinstance(value, (Mapping, list, tuple)):
            check(f"{name} of {key!r}", value)
            out[key] = value
            continue
        if isinstance(value, Mapping) and value and value.keys() <= COMPARISONS:
            raise SettingError(
                f"{name} of {key!r} is a comparison, {dict(value)!r}, and rules do not support "
                "comparisons yet; for a label with this value give a list of pairs: "
                f"{[list(pair) for pair in value.items()]!r}"
            )
        by_value: dict[Any, Any] = {}
        for label, number in _number_pairs(f"{name} of {key!r}", value):
            found = _label_value(f"{name} of {key!r}", label)
            check(f"{name} of {found!r}", number)
            if found in by_value:
                raise SettingError(f"{name} of {key!r} names {found!r} twice; keep one")
            by_value[found] = number
        is_odd = bool(by_value) and by_value.keys() <= COMPARISONS
        out[key] = [[*pair] for pair in by_value.items()] if is_odd else by_value
    return out


def _number_pairs(where: str, given: Any) -> list[Any]:
    """Return values of a label with their numbers, given as a mapping or as a list of pairs."""
    pairs = list(given.items()) if isinstance(given, Mapping) else list(given)
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
        raise SettingError(
            f"{where} must be a number, or pairs of value and number, got {given!r}"
        )
    return pairs


def _is_item_id(value: Any) -> bool:
    return isinstance(value, (str, int, np.integer)) and not isinstance(value, bool)


def _mapping(name: str, given: Any) -> Mapping[Any, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise SettingError(f"{name} must be a mapping, got {given!r}")
    return given or {}


def _check_name(name: Any, known: Iterable[str], where: str) -> None:
    known = list(known)
    if name not in known:
        near = get_close_matches(str(name), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise SettingError(f"{where}: {name!r} is no rule; {hint}")


def _is_test(choice: Any) -> bool:
    return isinstance(choice, pl.Expr) or callable(choice)


def _cut(masks: dict[str, Mask], part: slice) -> dict[str, Mask]:
    return {name: mask[part] for name, mask in masks.items()}


def label_values(cell: Any) -> list[Any]:
    """Return the values of a label: those of a list, and the parts of a text that `|` separates.

    A text with an empty part is one value.

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
    """The items that rules speak of: those of the data, and after them pins that it lacks."""

    def __init__(self, data: Interactions, pins: list[Any]) -> None:
        self.data = data
        self.unknown_pins: list[Any] = []
        self._outside: dict[Any, int] = {}
        self._by_value: dict[str, dict[Any, list[int]]] = {}
        places = self._index.positions(pins, unknown="skip").tolist()
        for at, item in enumerate(pins):
            if places[at] < 0 and id_key(item) not in self._outside:
                self._outside[id_key(item)] = data.n_items + len(self.unknown_pins)
                self.unknown_pins.append(self._index.spelled(item))
            if places[at] < 0:
                places[at] = self._outside[id_key(item)]
        self.pins = np.array(list(dict.fromkeys(places)), np.int64)
        if self.unknown_pins:
            shown = ", ".join(map(repr, self.unknown_pins[:5]))
            logger.warning("pinned without a score, as the model does not know them: %s", shown)

    @property
    def _index(self) -> IdIndex:
        return self.data.item_index

    def mask(self, chosen: Any, otherwise: bool) -> Mask:
        """Return the items that any of the choices fits; `otherwise` where there is no choice."""
        out = np.full(self.data.n_items + len(self.unknown_pins), otherwise)
        if chosen is None:
            return out
        listed = _listed(chosen)
        out[:] = False
        out[self.known([item for item in listed if is_id(item) and not _is_test(item)])] = True
        within = out[: self.data.n_items]
        for choice in listed:
            if isinstance(choice, Mapping):
                fits = [self._fitting(name, as_list(value)) for name, value in choice.items()]
                within |= np.logical_and.reduce(fits) if fits else False
            elif _is_test(choice):
                within |= _tested(self.data, choice)
        return out

    def known(self, ids: list[Any]) -> Positions:
        """Positions of the ids that are known, or pinned; others are logged."""
        places = self._index.positions(ids, unknown="skip")
        for at in np.flatnonzero(places < 0).tolist():
            places[at] = self._outside.get(id_key(ids[at]), -1)
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
                    values.append(cell)  # the text as it is
                for value in values:
                    places.setdefault(value, []).append(place)
            self._by_value[name] = places
        return self._by_value[name]

    def _fitting(self, name: str, values: list[Any]) -> Mask:
        """Return the items with any of these values of a label."""
        places = self._places(name)
        fits, missing = np.zeros(self.data.n_items, np.bool_), set()
        for value in values:
            held = _as_held(value, places)
            fits[places.get(held, [])] = True
            if held not in places:
                missing.add(repr(value))
        if missing:
            shown = ", ".join(sorted(missing)[:5])
            logger.warning("no item has the %s %s, which the rules name", name, shown)
        return fits

    def numbers(self, given: Mapping[Any, Any] | None) -> Iterable[tuple[Mask | Positions, float]]:
        """Yield items and their number, of rules by id or by label."""
        for key, value in (given or {}).items():
            if isinstance(value, (Mapping, list)):
                for label, number in _number_pairs(str(key), value):
                    yield self._fitting(key, [label]), float(number)
            else:
                places = self.known([key])
                yield places[places < self.data.n_items], float(value)

    def codes(self, name: str) -> npt.NDArray[np.int32]:
        """Return a number for each value of a label, a row for each item, padded with -1."""
        numbers: dict[Any, int] = {}
        cells = _column(self.data, name).to_list()
        values = [[each for each in label_values(cell) if each is not None] for cell in cells]
        codes = np.full((len(cells), max(map(len, values), default=0)), -1, np.int32)
        for row, own in zip(codes, values, strict=True):
            row[: len(own)] = [numbers.setdefault(value, len(numbers)) for value in own]
        return codes


def _as_held(value: Any, held: Mapping[Any, Any]) -> Any:
    """Return a value as a column holds it: the keys of TOML and JSON are always text.

    A text stands for a value of another kind where no item has the text itself.
    """
    if not isinstance(value, str) or value in held:
        return value
    spelled = [each for each in held if value in _spellings(each)]
    return spelled[0] if len(spelled) == 1 else value


def _spellings(value: Any) -> tuple[str, ...]:
    """Return how a value that is no text is written as one."""
    if isinstance(value, bool):
        return str(value), str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(value), str(int(value))
    return () if value is None or isinstance(value, str) else (str(value),)


def _column(data: Interactions, name: str) -> pl.Series:
    held = [] if data.labels is None else data.labels.columns
    if data.labels is None or name not in held:
        known = (
            f"they have {', '.join(held)}" if held else "they have none: read them with labels="
        )
        raise DataError(f"the rules name the label {name!r}, which the items lack; {known}")
    return data.labels[name]


def _tested(data: Interactions, test: Any) -> Mask:
    """Return the items whose labels pass an expression or a function of one item's labels."""
    if data.labels is None:
        raise DataError("the rules look at labels, and the items have none; read with labels=")
    if isinstance(test, pl.Expr):
        check_polars()
        try:
            found = data.labels.select(test.alias("_")).to_series()
        except Exception as error:  # a function inside may raise anything
            raise DataError(f"an expression of the rules failed: {error}") from error
        if found.dtype != pl.Boolean or len(found) != data.n_items:
            raise DataError("an expression of the rules must be true or false for each item")
        return found.fill_null(False).to_numpy()
    passes = np.zeros(data.n_items, np.bool_)
    for place, row in enumerate(data.labels.iter_rows(named=True)):
        try:
            passes[place] = bool(test(row))
        except Exception as error:
            item = data.items[place : place + 1].tolist()[0]
            name = getattr(test, "__name__", repr(test))
            kind = type(error).__name__
            raise DataError(
                f"the function {name} of the rules failed on item {item!r}: {kind}: {error}; make "
                "it return True or False for the labels of every item"
            ) from error
    return passes


def _plain(value: Any) -> Any:
    """Return nested mappings, lists and values as plain ones; others as text."""
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
    if _is_test(value):
        name = getattr(value, "__name__", value)
        raise SettingError(
            f"a function cannot be written to a file; take labels instead of {name}"
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
    """Return numbers by value as pairs, unless all values are texts, as the keys of TOML are."""
    if not isinstance(numbers, Mapping) or all(isinstance(value, str) for value in numbers):
        return numbers
    return [[value, number] for value, number in numbers.items()]


def _quoted(text: str) -> str:
    # a JSON text is a TOML text, except that TOML escapes DEL as well
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
