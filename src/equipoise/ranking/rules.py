"""Rules: what may be shown, and in what mixture; the same in every place that makes lists.

A rule speaks of items by id or by their labels. `Rules.on` looks both up in the data of a model:
filters become masks and boosts become vectors, which the ranker applies while it scores; what is
left (pins, at most n of a kind, diversity) is chosen from ranked lists (`mixture`).
"""

from __future__ import annotations

import json
import logging
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise import checks
from equipoise.errors import DataError, FileFormatError, SettingError
from equipoise.ids import as_list, is_id
from equipoise.interactions import Interactions
from equipoise.machine import check_polars
from equipoise.ranking.ranker import Boost

Seen = Literal["exclude", "include", "only"]
Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]
PER_USER = ("include", "exclude")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rules:
    """What lists may hold, and in what mixture.

    Items are chosen by id, by labels as in ``{"department": "produce"}`` (several columns: all
    must fit; a list of values: any of them), by a function of an item's labels (a dict) or a
    polars expression over them, or by a list of such choices, of which any must fit. Ids that a
    model does not know have no effect.

    Parameters
    ----------
    include
        Items that alone may be listed.
    exclude
        Items that may not.
    users
        More rules by user: ``{"ann": {"exclude": [...], "include": [...]}}``.
    boost
        Factors > 0 by id or label: ``{"tea": 2.0, "brand": {"own": 1.5}}``. A positive score is
        multiplied by the factor, a negative one divided by it, so above 1 always raises; several
        that fit an item are multiplied.
    bonus
        Numbers that are added to the score after the factors, in the same form.
    at_most
        The most items of a list that share a label: ``{"brand": 2}``. Items without the label
        count nowhere.
    pin
        Items at the front of every list in this order, where they may be listed at all; they
        count in `at_most` but are not held back by it.
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
        _check_choice("include", self.include)
        _check_choice("exclude", self.exclude)
        for user, rules in _mapping("users", self.users).items():
            for name, chosen in _mapping(f"users[{user!r}]", rules).items():
                _check_name(name, PER_USER, f"the rules of user {user!r}")
                _check_choice(name, chosen)
        for name, least in (("boost", 0.0), ("bonus", None)):
            for key, value in _mapping(name, getattr(self, name)).items():
                by_value = value if isinstance(value, Mapping) else {key: value}
                for inner, number in by_value.items():
                    checks.number(f"{name} of {inner!r}", number)
                    if least is not None and number <= least:
                        raise SettingError(f"{name} of {inner!r} must be > 0, got {number}")
        for column, most in _mapping("at_most", self.at_most).items():
            checks.count(f"at_most of {column!r}", most)
        if self.pin is not None and not all(is_id(item) for item in _listed(self.pin)):
            raise SettingError(f"pin must be item ids, got {self.pin!r}")
        checks.fraction("diversity", self.diversity, one=False)
        if self.seen is not None:
            checks.choice("seen", self.seen, get_args(Seen))

    def settings(self) -> dict[str, Any]:
        """Return what is set, as plain values; a function is shown by its name."""
        return {name: _plain(value, str) for name, value in self._given().items()}

    def _given(self) -> dict[str, Any]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values["diversity"] = self.diversity or None
        return {name: value for name, value in values.items() if value is not None}

    def to_toml(self) -> str:
        """Return the rules as the text of a TOML file; functions cannot be written."""
        lines = [f"{name} = {_toml(value)}" for name, value in self._given().items()]
        return "".join(f"{line}\n" for line in lines)

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
        allowed = None
        if self.include is not None or self.exclude is not None:
            allowed = _mask(data, self.include, True) & ~_mask(data, self.exclude, False)
        users = {
            str(user): {name: _mask(data, each, name == "include") for name, each in rules.items()}
            for user, rules in (self.users or {}).items()
        }
        quotas = [Quota(_codes(data, name), most) for name, most in (self.at_most or {}).items()]
        boost = None
        if self.boost or self.bonus:
            factor, bonus = np.ones(data.n_items), np.zeros(data.n_items)
            for mask, number in _numbers(data, self.boost):
                factor[mask] *= number
            for mask, number in _numbers(data, self.bonus):
                bonus[mask] += number
            boost = Boost(factor, bonus)
        pins = _known_ids(data, [] if self.pin is None else _listed(self.pin))
        pins = np.array(list(dict.fromkeys(pins.tolist())), np.int64)
        return ItemRules(allowed, users, boost, quotas, pins, float(self.diversity), self.seen)


@dataclass(frozen=True, eq=False)
class Quota:
    """The most items of a list with the same code; -1 is no code."""

    codes: npt.NDArray[np.int32]
    most: int


@dataclass(frozen=True, eq=False)
class ItemRules:
    """Rules over the positions of items; `users` has masks by the user's id as text."""

    allowed: Mask | None
    users: dict[str, dict[str, Mask]]
    boost: Boost | None
    quotas: list[Quota]
    pins: Positions
    diversity: float
    seen: Seen | None

    @property
    def mixes(self) -> bool:
        """Whether lists have to be chosen from longer ones."""
        return bool(self.quotas or len(self.pins) or self.diversity)

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


def _check_choice(name: str, given: Any) -> None:
    for each in [] if given is None else _listed(given):
        if isinstance(each, Mapping) and not all(isinstance(key, str) for key in each):
            raise SettingError(f"{name} takes labels by the name of their column, got {each!r}")
        if not (isinstance(each, (Mapping, pl.Expr)) or callable(each) or is_id(each)):
            raise SettingError(f"{name} takes item ids, labels or functions, got {each!r}")


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


def _mask(data: Interactions, chosen: Any, otherwise: bool) -> Mask:
    """Return the items that any of the choices fits; `otherwise` where there is no choice."""
    if chosen is None:
        return np.full(data.n_items, otherwise)
    listed = _listed(chosen)
    out = np.zeros(data.n_items, np.bool_)
    out[_known_ids(data, [each for each in listed if is_id(each) and not _is_test(each)])] = True
    for each in listed:
        if isinstance(each, Mapping):
            fits = [_fits(data, name, as_list(wanted)) for name, wanted in each.items()]
            out |= np.logical_and.reduce(fits) if fits else False
        elif _is_test(each):
            out |= _tested(data, each)
    return out


def _is_test(choice: Any) -> bool:
    return isinstance(choice, pl.Expr) or callable(choice)


def _known_ids(data: Interactions, ids: list[Any]) -> Positions:
    """Positions of the ids that the data have; text stands for a number where ids are numbers."""
    if data.items.dtype != object:
        ids = [int(each) if isinstance(each, str) and _is_whole(each) else each for each in ids]
    places = data.item_index.positions(ids, unknown="skip")
    if (places < 0).any():
        strange = [repr(each) for each, place in zip(ids, places, strict=True) if place < 0]
        logger.warning("rules name items the model does not know: %s", ", ".join(strange[:5]))
    return places[places >= 0]


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _column(data: Interactions, name: str) -> pl.Series:
    held = [] if data.labels is None else data.labels.columns
    if data.labels is None or name not in held:
        known = (
            f"they have {', '.join(held)}" if held else "they have none: read them with labels="
        )
        raise DataError(f"the rules name the label {name!r}, which the items lack; {known}")
    return data.labels[name]


def _fits(data: Interactions, name: str, wanted: list[Any]) -> Mask:
    """Return the items with one of these values of a label, or in a list of values."""
    values = set(wanted)
    found = [each if isinstance(each, list) else [each] for each in _column(data, name).to_list()]
    fits = np.array([not values.isdisjoint(each) for each in found], np.bool_)
    held = {value for each in found for value in each}
    if values - held:
        missing = ", ".join(sorted(map(repr, values - held))[:5])
        logger.warning("no item has the %s %s, which the rules name", name, missing)
    return fits


def _tested(data: Interactions, test: Any) -> Mask:
    """Return the items whose labels pass an expression or a function of one item's labels."""
    if data.labels is None:
        raise DataError("the rules look at labels, and the items have none; read with labels=")
    if isinstance(test, pl.Expr):
        check_polars()
        try:
            found = data.labels.select(test.alias("_")).to_series()
        except pl.exceptions.PolarsError as error:
            raise DataError(f"an expression of the rules failed: {error}") from error
        if found.dtype != pl.Boolean or len(found) != data.n_items:
            raise DataError("an expression of the rules must be true or false for each item")
        return found.fill_null(False).to_numpy()
    return np.array([bool(test(row)) for row in data.labels.iter_rows(named=True)], np.bool_)


def _numbers(
    data: Interactions, given: Mapping[Any, Any] | None
) -> Iterable[tuple[Mask | Positions, float]]:
    """Yield items and their number, of rules by id or by label."""
    for key, value in (given or {}).items():
        if not isinstance(value, Mapping):
            yield _known_ids(data, [key]), float(value)
            continue
        for label, number in value.items():
            yield _fits(data, key, [_of_kind(_column(data, key), label)]), float(number)


def _of_kind(column: pl.Series, label: Any) -> Any:
    """Return a label as its column has it: the keys of a TOML file are always text."""
    if isinstance(label, str) and column.dtype.is_integer() and _is_whole(label):
        return int(label)
    return label


def _codes(data: Interactions, name: str) -> npt.NDArray[np.int32]:
    """Return a number for each value of a label, -1 where there is none."""
    values = _column(data, name).to_list()
    if any(isinstance(value, list) for value in values):
        raise DataError(f"at_most needs one value per item, and the label {name!r} is a list")
    codes: dict[Any, int] = {None: -1}
    return np.array([codes.setdefault(value, len(codes)) for value in values], np.int32)


def _plain(value: Any, other: Callable[[Any], Any]) -> Any:
    """Return nested mappings, lists and values as plain ones; `other` is asked about the rest."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part, other) for key, part in value.items()}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (str, int, float)):
        return value
    if _is_test(value):
        return other(getattr(value, "__name__", value))
    return [_plain(part, other) for part in as_list(value)] if not is_id(value) else str(value)


def _unwritable(value: Any) -> Any:
    raise SettingError(f"a function cannot be written to a file; take labels instead of {value}")


def _toml(value: Any) -> str:
    value = _plain(value, _unwritable)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_quoted(key)} = {_toml(part)}" for key, part in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    # a JSON text is a TOML text, except that TOML escapes DEL as well
    return json.dumps(text).replace("\x7f", "\\u007f")
