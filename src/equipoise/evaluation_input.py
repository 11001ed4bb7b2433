"""What `evaluate` takes in, and the checks that refuse it with a reason."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from equipoise.errors import DataError, NotFittedError, SettingError, UnknownIdError
from equipoise.ids import SHOWN, IdIndex, as_list
from equipoise.interactions import Interactions
from equipoise.metrics.lists import Vectors, unit_rows
from equipoise.metrics.named import ITEM_SLICES, USER_SLICES, known


class RankedLists(Protocol):
    """Ranked lists of several users."""

    @property
    def items(self) -> npt.NDArray[np.int32]:
        """Item positions (m, k), best first, padded with -1 at the end."""

    @property
    def scores(self) -> npt.NDArray[Any]:
        """Score of each item, (m, k)."""


class Rankable(Protocol):
    """What `evaluate` asks of a fitted model."""

    @property
    def item_index_(self) -> IdIndex:
        """The model's items."""

    @property
    def item_counts_(self) -> npt.NDArray[Any]:
        """Training interactions of each item."""

    @property
    def data_fingerprint_(self) -> str:
        """Of the training data."""

    def rank(self, history: Interactions, k: int, *, exclude_seen: bool = True) -> RankedLists:
        """Return the k best items of each row, as positions in the model's items.

        An empty row is ranked as the model recommends to it.
        """

    def settings(self) -> dict[str, Any]:
        """Return "name" and the hyper-parameters as plain values."""


class PartLike(Protocol):
    """A part of a split."""

    @property
    def history(self) -> Interactions:
        """What the model may see."""

    @property
    def target(self) -> Interactions:
        """What is to be found, row by row for the same users."""

    @property
    def protocol(self) -> str:
        """How it was split off, such as "strong"."""

    @property
    def name(self) -> str:
        """Which part it is, "valid" or "test"."""

    @property
    def fingerprint(self) -> str:
        """Digits that change when any pair does."""


@dataclass(frozen=True)
class Pair:
    """A part that was given as (history, target)."""

    history: Interactions
    target: Interactions
    protocol: str = "given"
    name: str = "test"

    @property
    def fingerprint(self) -> str:
        """The same twelve hex digits as those of a part that holds this pair."""
        both = f"{self.history.fingerprint} {self.target.fingerprint}"
        return hashlib.sha256(both.encode()).hexdigest()[:12]


def as_part(part: PartLike | tuple[Interactions, Interactions]) -> PartLike:
    """Return a part whose histories and targets belong to the same users."""
    if isinstance(part, tuple):
        if len(part) != 2 or not all(isinstance(side, Interactions) for side in part):
            raise SettingError("a pair must be (history, target), both Interactions")
        part = Pair(*part)
    if not all(hasattr(part, name) for name in ("history", "target", "protocol", "fingerprint")):
        kind = type(part).__name__
        raise SettingError(f"evaluate needs split.test, split.valid or a pair, got {kind}")
    history, target = part.history, part.target
    if not history.user_index.same_as(target.user_index):
        raise DataError(
            f"history ({history.n_users} users) and target ({target.n_users} users) must hold the "
            "same users in the same order; select them from both by id"
        )
    if not history.n_users:
        raise DataError("the part has no users; split off a larger one")
    bare = target.users[target.user_counts == 0]
    if len(bare):
        raise DataError(
            f"{len(bare):,} of {target.n_users:,} users have no target ({_some(bare)}); keep the "
            "others with .rows(target.user_counts > 0) on history and target"
        )
    return part


def as_cutoffs(k: int | Iterable[int]) -> tuple[int, ...]:
    """Return the cut-offs in ascending order, each once."""
    listed = list(k) if isinstance(k, Iterable) and not isinstance(k, (str, bytes)) else [k]
    if not listed:
        raise SettingError("k is empty; give at least one cut-off")
    return tuple(sorted({as_count(one, "k", 1) for one in listed}))


def as_count(value: Any, name: str, least: int) -> int:
    """Return a whole number that is at least `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, (bool, np.bool_)):
        raise SettingError(f"{name} must be a whole number, got {value!r}")
    if number < least:
        raise SettingError(f"{name} must be >= {least}, got {number}")
    return number


def model_items(model: Rankable) -> IdIndex:
    """Return the model's items; a model that is not fitted has none."""
    try:
        items = model.item_index_
    except NotFittedError:
        raise
    except AttributeError as error:
        kind = type(model).__name__
        raise NotFittedError(
            f"{kind} has no item_index_; evaluate needs a fitted model"
        ) from error
    if len(model.item_counts_) != len(items):
        raise DataError(f"the model has {len(model.item_counts_)} counts for {len(items)} items")
    return items


def align(part: PartLike, items: IdIndex) -> tuple[Interactions, Interactions]:
    """Return history and target over the model's items; unknown ones are refused."""
    for side, data in (("targets", part.target), ("histories", part.history)):
        if data.item_index.same_as(items):
            continue
        used = data.items[data.item_counts > 0]
        missing = used[items.positions(used, unknown="skip") < 0]
        if not len(missing):
            continue
        if len(missing) == len(used):
            reason = "the model was fitted on other items"
        else:
            reason = f"the model does not know {len(missing):,} of {len(used):,} items"
        raise UnknownIdError(
            f"{reason} in the {side} ({_some(missing)}); fit it on the train part of the same "
            "split, or leave them out with .with_items(model.item_index_, unknown='skip')"
        )
    return part.history.with_items(items), part.target.with_items(items)


def as_groups(
    groups: Mapping[str, Any] | None, target: Interactions, items: IdIndex
) -> dict[str, npt.NDArray[np.bool_]]:
    """Return each group as flags over the model's items."""
    taken = {*known(), *ITEM_SLICES, *USER_SLICES, "all", "unbiased"}
    out: dict[str, npt.NDArray[np.bool_]] = {}
    for name, members in (groups or {}).items():
        if not isinstance(name, str) or not name.isidentifier() or name in taken:
            raise SettingError(f"a group cannot be called {name!r}; choose another word")
        listed = as_list(members)
        if listed and all(isinstance(each, (bool, np.bool_)) for each in listed):
            if len(listed) != target.n_items:
                sizes = f"{len(listed)} flags for {target.n_items} items"
                raise DataError(f"group {name!r} has {sizes}; give one flag per item of the part")
            places = items.positions(target.items[np.array(listed)], unknown="skip")
        else:
            places = items.positions(listed)
        out[name] = np.zeros(len(items), bool)
        out[name][places[places >= 0]] = True
    return out


def as_vectors(vectors: Any, items: IdIndex, bases: set[str]) -> Vectors | None:
    """Return item vectors of length 1 where diversity was asked for."""
    if "diversity" not in bases:
        return None
    if vectors is None:
        raise SettingError("diversity needs item_vectors, such as the training Interactions")
    if isinstance(vectors, Interactions):
        vectors = vectors.with_items(items, unknown="skip").matrix.T
    units = unit_rows(vectors)
    if units.shape[0] != len(items):
        raise DataError(f"item_vectors has {units.shape[0]} rows for {len(items)} items")
    return units


def checked_lists(
    ranked: RankedLists, rows: Interactions, depth: int, n_items: int
) -> npt.NDArray[np.int32]:
    """Return the first `depth` of each list; scores that are NaN have no order and are refused."""
    lists = np.asarray(ranked.items)[:, :depth]
    if len(lists) != rows.n_users:
        raise DataError(f"the model ranked {len(lists)} lists for {rows.n_users} users")
    wrong = np.isnan(np.asarray(ranked.scores)[:, :depth]) & (lists >= 0)
    if wrong.any():
        users = rows.users[wrong.any(axis=1)]
        raise DataError(
            f"the model scores NaN for {len(users):,} users ({_some(users)}), which has no order; "
            "look for NaN or infinite values in its weights"
        )
    ordered = np.sort(lists, axis=1)
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)
    if twice.any() or lists.max(initial=-1) >= n_items:
        fault = f"an item twice for {_some(rows.users[twice])}" if twice.any() else "unknown items"
        raise DataError(f"the model ranks {fault}; each position must occur once, below {n_items}")
    return lists


def _some(ids: npt.NDArray[Any]) -> str:
    named = ", ".join(repr(value) for value in ids[:SHOWN].tolist())
    return named + (", ..." if len(ids) > SHOWN else "")
