"""`Split` and `Part`: training data, and users with a history and targets to evaluate on.

`from_parts` makes a split of published parts; helpers that the other splits share follow.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import ChainMap
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.checks import MADE_BY_READ, choice, fraction, instance
from equipoise.data.events import Events
from equipoise.data.ids import IdIndex, Unknown
from equipoise.data.interactions import Interactions, pack, unpack
from equipoise.data.matrix import cell_keys, entry_rows, in_ascending
from equipoise.data.storage import LARGEST_SEED, Stored, load_directory, write_directory
from equipoise.display.notebook import fragment, shares, table
from equipoise.errors import DataError, SettingError

Protocol = Literal["strong", "weak", "last", "time", "session", "items"]
Repeats = Literal["new", "all", "again"]
Pair = tuple[Interactions, Interactions]

PROTOCOLS = get_args(Protocol)
REPEATS = get_args(Repeats)
KIND = "equipoise-split"
VERSION = 1
LATER = "training may contain events later than held-out ones"


@dataclass(frozen=True, eq=False)
class Part:
    """Users (or steps of sessions) to evaluate on: their known history and the hidden targets.

    History and target have the same users and items, and no empty row. The name is "valid" (to
    tune on) or "test" (to report). `repeats` says which items are targets: those new to the user,
    "all", or only items used before ("again"); unless "new", `evaluate` also recommends items of
    the history.
    """

    history: Interactions
    target: Interactions
    protocol: str
    name: str
    repeats: str = "new"

    def __post_init__(self) -> None:
        choice("repeats", self.repeats, REPEATS)
        if self.protocol not in PROTOCOLS:
            known = ", ".join(PROTOCOLS)
            raise SettingError(f"protocol must be one of {known}, got {self.protocol!r}")
        choice("name", self.name, ("valid", "test"))
        for axis in ("user", "item"):
            index = f"{axis}_index"
            if not getattr(self.history, index).same_as(getattr(self.target, index)):
                raise DataError(
                    f"history and target of {self.name} have different {axis}s; "
                    "take both from the same data"
                )
        if not self.history.n_users:
            left = f"no user is left in {self.name} with a history and a target"
            raise DataError(f"{left}; use more data or other shares")
        for side in ("history", "target"):
            counts = getattr(self, side).user_counts
            if not counts.all():
                user = self.history.users.tolist()[int(np.argmin(counts))]
                raise DataError(
                    f"user {user!r} of {self.name} has no {side}; leave such users out"
                )

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that identify the histories and targets."""
        return _digest(self.history.fingerprint, self.target.fingerprint)

    @property
    def n_users(self) -> int:
        """Number of users (or revealed steps of sessions)."""
        return self.history.n_users

    @property
    def hides_seen(self) -> bool:
        """Whether recommendations for this part exclude the items of the history."""
        return self.repeats == "new" and self.protocol != "session"

    def __repr__(self) -> str:
        rows = "steps" if self.protocol == "session" else "users"
        known, hidden = self.history.n_interactions, self.target.n_interactions
        scope = {"new": "", "all": ", known items too", "again": ", known items only"}[
            self.repeats
        ]
        size = f"{self.n_users:,} {rows}, {known:,} history items, {hidden:,} held out"
        return f"Part {self.name}: {size}{scope}"


@dataclass(frozen=True, eq=False)
class Split:
    """Training data, a part to tune on (or None) and a part to report.

    The notes count what was left out and warn if training sees the future. `valid_data` holds
    every event that is in neither train nor test, including users and items that cannot be
    evaluated because train lacks them; it is None if only the parts are known (`from_parts`).
    """

    train: Interactions
    valid: Part | None
    test: Part
    protocol: str
    seed: int | None = None
    notes: tuple[str, ...] = ()
    valid_data: Interactions | None = None

    def __post_init__(self) -> None:
        if not self.train.n_interactions:
            raise DataError("nothing is left to train on; use smaller shares for valid and test")
        for part in self.parts:
            if not part.history.item_index.same_as(self.train.item_index):
                raise DataError(
                    f"the items of {part.name} differ from those of train; "
                    "take all parts from the same data"
                )

    @property
    def parts(self) -> tuple[Part, ...]:
        """The valid part, if any, and the test part."""
        return (self.test,) if self.valid is None else (self.valid, self.test)

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that identify all parts."""
        return _digest(self.train.fingerprint, *(part.fingerprint for part in self.parts))

    def train_and_valid(self) -> Interactions:
        """Return every event outside test once: the data for a final fit.

        If `valid_data` is None, that is the union of train, valid.history and valid.target.
        """
        if self.valid_data is not None:
            return self.train.union(self.valid_data)
        return self.train if self.valid is None else _union_of_parts(self.train, self.valid)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one directory (manifest, `.npy`, Parquet), atomically."""
        content = {"train": pack(self.train, "train_")}
        for part in self.parts:
            for side, data in (("history", part.history), ("target", part.target)):
                key = f"{part.name}_{side}"
                content[key] = pack(data, f"{key}_", like=self.train)
        if self.valid_data is not None:
            content["valid_data"] = pack(self.valid_data, "valid_data_", like=self.train)
        meta = {
            "protocol": self.protocol,
            "seed": self.seed,
            "notes": list(self.notes),
            "fingerprint": self.fingerprint,
            "repeats": self.test.repeats,
            "parts": {key: packed.meta for key, packed in content.items()},
        }
        arrays = dict(ChainMap(*(packed.arrays for packed in content.values())))
        frames = dict(ChainMap(*(packed.frames for packed in content.values())))
        write_directory(path, KIND, VERSION, meta, arrays, frames, _restored)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Split:
        """Read a directory written by `save`; a damaged or foreign one is an error."""
        return load_directory(path, KIND, VERSION, _restored)

    def __repr__(self) -> str:
        seed = "" if self.seed is None else f", seed {self.seed}"
        lines = [f"Split: {self.protocol}{seed}", f"  train {str(self.train).partition(': ')[2]}"]
        lines += [str(part).replace("Part ", "  ").replace(":", "", 1) for part in self.parts]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        sizes = [("train", self.train.n_interactions)]
        rows = [("train", self.train.n_users, self.train.n_interactions, "")]
        for part in self.parts:
            known, hidden = part.history.n_interactions, part.target.n_interactions
            sizes += [(f"{part.name}, held out", hidden)]
            rows += [(part.name, part.n_users, known, f"{hidden:,}")]
        rows_name = "steps" if self.protocol == "session" else "users"
        head = ["part", rows_name, "history items", "held out"]
        cells = [(name, f"{n_users:,}", f"{known:,}", find) for name, n_users, known, find in rows]
        title = f"Split: {self.protocol}" + ("" if self.seed is None else f", seed {self.seed}")
        picture = shares(f"Interactions of the split {self.fingerprint}", sizes)
        return fragment(title, table(head, cells), picture, notes=self.notes)


def _restored(stored: Stored) -> Split:
    meta = stored.meta
    protocol, packed = meta.text("protocol", PROTOCOLS), meta.group("parts")
    repeats = meta.text("repeats", REPEATS) if "repeats" in meta else "new"
    meta.text("fingerprint")
    train = unpack(stored, packed.group("train"), "train_")
    parts: dict[str, Part] = {}
    for name in ("valid", "test"):
        keys = [f"{name}_{side}" for side in ("history", "target")]
        saved = any(key.startswith(f"{name}_") for key in (*packed, *stored.arrays))
        if saved or name == "test":
            history, target = (
                unpack(stored, packed.group(key), f"{key}_", like=train) for key in keys
            )
            parts[name] = Part(history, target, protocol, name, repeats)
    seed = None if meta.get("seed", 0) is None else meta.whole_number("seed", most=LARGEST_SEED)
    notes = tuple(meta.texts("notes"))
    valid_data = None
    if "valid_data" in packed:  # older versions did not save it
        valid_data = unpack(stored, packed.group("valid_data"), "valid_data_", like=train)
    return Split(train, parts.get("valid"), parts["test"], protocol, seed, notes, valid_data)


def _union_of_parts(train: Interactions, valid: Part) -> Interactions:
    """Return train with the events of valid that are not in it."""
    if valid.protocol == "session":
        return train.union(_last_steps(valid))
    history, target = valid.history, valid.target
    if valid.protocol == "strong":  # users of valid are other users, even with equal ids
        users = _new_ids(history.user_index, train.user_index)
        history, target = (side._replace(users=users) for side in (history, target))
    united = train.union(_missing_events(history, train))
    if valid.repeats == "new":  # otherwise a repeated pair is a separate event
        target = _missing_events(target, united)
    return united.union(target)


def _missing_events(data: Interactions, known: Interactions) -> Interactions:
    """Return the events of `data` that are not in `known`, counting repeats."""
    frames = [side.to_frame(events=True) for side in (data, known)]
    columns = [name for name in frames[0].columns if name in frames[1].columns]
    columns.remove("weight")
    events, known_events = (
        frame.select(pl.col("user").cast(pl.String), pl.col(columns[1:])).with_columns(
            pl.int_range(pl.len()).over(columns).alias("repeat")
        )
        for frame in frames
    )
    marked = known_events.with_columns(held=True)
    is_known = events.join(marked, on=events.columns, how="left", maintain_order="left")["held"]
    missing = is_known.is_null().to_numpy()
    return data.entries(missing) if data.events is None else data._only_events(missing)


def _new_ids(users: IdIndex, used: IdIndex) -> IdIndex:
    """Return the user ids, with new ids in place of those already used."""
    known = used.positions(users.values, unknown="skip") >= 0
    if not known.any():
        return users
    values = users.values.tolist()
    if all(isinstance(value, int) for value in values):
        first = max(*values, *used.values.tolist()) + 1
        return IdIndex(np.where(known, first + np.arange(len(users)), users.values), "user")
    names = {*map(str, values), *map(str, used.values.tolist())}
    for place in np.flatnonzero(known):
        values[place] = f"{values[place]} of valid"
        while values[place] in names:
            values[place] += "'"
    return IdIndex(values, "user")


def _last_steps(part: Part) -> Interactions:
    """Return whole sessions: the last revealed step of each, with its target.

    A row whose id is not "session:step" is a separate session.
    """
    ids = part.history.user_index.to_series().cast(pl.String)
    frame = (
        ids.to_frame("id")
        .with_row_index("row")
        .with_columns(
            session=pl.col("id").str.extract(r"^(.*):\d+$").fill_null(pl.col("id")),
            step=pl.col("id").str.extract(r":(\d+)$").cast(pl.Int64, strict=False).fill_null(0),
        )
    )
    last = frame.sort("step", "row").group_by("session", maintain_order=True).last().sort("row")
    rows = last["row"].to_numpy().astype(np.int64)
    users = IdIndex(last["session"].to_list(), "user")
    history, target = (
        side.rows(rows)._replace(users=users) for side in (part.history, part.target)
    )
    if history._sequences is None or history._sequences.times is not None:
        return history.union(target)
    sides = history._sequences, target._own_events
    events = Events.collected(
        np.concatenate([side.rows for side in sides]),
        len(users),
        np.concatenate([side.items for side in sides]),
    )
    united = history.union(target)
    return Interactions(
        united.matrix, users, united.item_index, catalogue=united.known_items, events=events
    )


def identity(target: Interactions) -> str:
    """Return twelve hex digits that identify users, items and pairs, but not weights."""
    digest = hashlib.sha256(cell_keys(target.matrix).tobytes())
    for ids in (target.users, target.items):
        digest.update(repr(ids.tolist()).encode())
    return digest.hexdigest()[:12]


def _digest(*fingerprints: str) -> str:
    return hashlib.sha256(" ".join(fingerprints).encode()).hexdigest()[:12]


def from_parts(
    train: Interactions,
    *,
    test: Pair,
    valid: Pair | None = None,
    protocol: Protocol,
    unknown_items: Unknown = "error",
) -> Split:
    """Make a split of published parts, such as a paper's held-out users.

    ::

        test_in          test_target          test.history     test.target
            a b c            a b c d              a b c            a b c
        1   x x .        1   . . x .          1   x x .        1   . . x
        2   x . .        3   x . . x          (2 has no target, 3 no history: left out)

    Users are matched by id; those without a history or a target are left out. With
    ``unknown_items="skip"``, so is item d, which train lacks. `Split.notes` counts both.

    Parameters
    ----------
    train
        Training data; its items are the items of the split.
    test, valid
        Pairs (history, target). For a weak split the history is train itself.
    protocol
        "strong", "weak", "last", "time", "session" or "items"; the metrics follow its conventions.
    unknown_items
        Whether items that train lacks are an "error" or left out ("skip").

    Examples
    --------
    >>> import equipoise as eq
    >>> train = eq.Interactions([[1, 1, 0], [0, 1, 1]])
    >>> test = eq.Interactions([[0, 0, 1], [1, 0, 0]])
    >>> eq.split.from_parts(train, test=(train, test), protocol="weak")
    Split: weak
      train 2 users x 3 items, 4 interactions (density 66.7%)
      test 2 users, 4 history items, 2 held out
    """
    notes: list[str] = []
    parts = {
        name: _aligned(train, pair, name, protocol, unknown_items, notes)
        for name, pair in (("valid", valid), ("test", test))
        if pair is not None
    }
    return Split(train, parts.get("valid"), parts["test"], protocol, None, tuple(notes))


def _aligned(
    train: Interactions,
    pair: Pair,
    name: str,
    protocol: str,
    unknown_items: Unknown,
    notes: list[str],
) -> Part:
    """Return the part with the items of train and the users that both sides have."""
    history, target = (
        side.with_items(train.item_index, unknown_items=unknown_items) for side in pair
    )
    lost = sum(side.n_interactions for side in pair)
    lost -= history.n_interactions + target.n_interactions
    notes += counted(lost, "pair", f"of {name} left out: train lacks the item")
    shown, hidden = (
        side.user_index.take(np.flatnonzero(side.user_counts)) for side in (history, target)
    )
    common = shown.values[hidden.positions(shown.values, unknown="skip") >= 0]
    for side, index in (("target", shown), ("history", hidden)):
        missing = len(index) - len(common)
        if side == "history" or protocol != "weak":
            notes += counted(missing, "user", f"of {name} left out: no {side}")
    history, target = history.select(users=common), target.select(users=common)
    both = int(in_ascending(cell_keys(target.matrix), cell_keys(history.matrix)).sum())
    if protocol != "session":
        notes += counted(both, "pair", f"of {name} both in the history and held out")
    return Part(history, target, protocol, name)


def check_shares(valid: float, test: float) -> None:
    """Raise if the shares of valid and test leave nothing to train on."""
    fraction("valid", valid, one=False)
    fraction("test", test, zero=False, one=False)
    if valid + test >= 1:
        raise SettingError(f"valid and test must sum to less than 1, got {valid} + {test}")


def rounded(share: float, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return shares of many counts, rounded half up."""
    return np.asarray(np.floor(share * counts + 0.5), np.int64)


def groups(
    order: npt.NDArray[np.int64], valid: float, test: float, noun: str
) -> list[npt.NDArray[np.int64]]:
    """Divide positions in this order into train, valid and test; each list is sorted."""
    total = len(order)
    # With 2 / share positions, no group (train included) can be rounded to 0.
    least = min(share for share in (valid, test, 1 - valid - test) if share)
    enough = max(total, math.ceil(2 / least))
    # Sizes in between (at most a million) are tried to name the smallest in the message.
    sizes = np.unique(np.append(np.arange(total, min(enough, total + 1_000_000)), enough))
    n_valid, n_test = rounded(valid, sizes), rounded(test, sizes)
    fits = ((n_valid > 0) | (valid == 0)) & (n_test > 0) & (n_valid + n_test < sizes)
    if not fits[0]:
        requirement = f"valid={valid} and test={test} need at least {sizes[fits][0]:,} {noun}"
        raise DataError(f"{requirement}, the data have {total:,}; give more data or other shares")
    stop = total - n_test[0]
    return [np.sort(rows) for rows in np.split(order, [stop - n_valid[0], stop])]


def without_unused(data: Interactions) -> Interactions:
    """Drop users and items that have neither a pair nor an event."""
    items = data.item_counts > 0
    if data.events is not None:
        items |= np.bincount(data.events.items, minlength=data.n_items) > 0
    return data.rows(~data._empty_users).columns(items)


def ranks(data: Interactions, key: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
    """Rank the pairs of each user by ascending key; ties by item position."""
    row = entry_rows(data.matrix)
    order = np.lexsort((key, row))
    out = np.empty(len(row), np.int64)
    out[order] = np.arange(len(row)) - data.matrix.indptr[row]
    return out


def timed_events(data: Interactions, split: str) -> Events:
    """Return the events of data with times; raise on behalf of `split` if there are none."""
    instance("data", data, Interactions, MADE_BY_READ)
    if data.events is None or data.events.times is None:
        raise DataError(f"{split} needs times; name the column with eq.read(..., time=...)")
    return data.events


def first_events(data: Interactions, events: Events) -> npt.NDArray[np.bool_]:
    """Mark each user's first event on every item, ignoring returns."""
    first = np.zeros(events.n_events, bool)
    added = np.flatnonzero(events.positive)
    keys = events.keys(data.n_items)[added]
    first[added[np.unique(keys, return_index=True)[1]]] = True
    return first


def following(events: Events, counted: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return how many counted events of the same user follow each event."""
    running = np.concatenate([[0], np.cumsum(counted, dtype=np.int64)])
    return np.asarray(running[np.repeat(events.offsets[1:], events.lengths)] - running[1:])


def part_between(
    past: Interactions,
    future: Interactions,
    protocol: str,
    name: str,
    repeats: str,
    notes: list[str],
) -> Part:
    """Return the part of the users with a past, to find the future pairs of `repeats`."""
    known = in_ascending(cell_keys(future.matrix), cell_keys(past.matrix))
    if repeats == "new":
        why = f"of {name} left out: repeats of pairs in the history (repeats='all' keeps them)"
        notes += counted(int(known.sum()), "pair", why)
    if repeats != "all":
        future = future.entries(known if repeats == "again" else ~known)
    users = (past.user_counts > 0) & (future.user_counts > 0)
    return Part(past.rows(users), future.rows(users), protocol, name, repeats)


def leak_notes(data: Interactions, why: str = "this split ignores time") -> list[str]:
    """Return a warning that training may see the future, if the data have times."""
    timed = data.events is not None and data.events.times is not None
    return [f"{why}: {LATER}"] if timed else []


def unlearnable(train: Interactions, test: Part) -> list[str]:
    """Return a note on the pairs of test whose item has no interaction in train."""
    unseen = int(test.target.item_counts[train.item_counts == 0].sum())
    return counted(unseen, "pair", "of test cannot be predicted: train lacks the item")


def counted(number: int, noun: str, why: str) -> list[str]:
    """Return a note such as "3 users left out: ...", or none if the number is 0."""
    return [f"{number:,} {noun}{'' if number == 1 else 's'} {why}"] if number else []
