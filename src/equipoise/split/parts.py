"""What a split is: data to learn from, and people with a history and something to be found.

Checks and arithmetic that the splits share: how many, which ones, what to say about it.
"""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass
from datetime import UTC, date, datetime
from numbers import Real
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from equipoise.errors import DataError, SettingError
from equipoise.interactions import Interactions, Packed, pack, unpack
from equipoise.manifest import LARGEST_SEED
from equipoise.matrix import entry_rows
from equipoise.storage import Stored, load_directory, write_directory

Protocol = Literal["strong", "weak", "last", "time", "session"]


PROTOCOLS = ("strong", "weak", "last", "time", "session")


KIND = "equipoise-split"


VERSION = 1


@dataclass(frozen=True, eq=False)
class Part:
    """People to recommend to, and what is to be found.

    Parameters
    ----------
    history
        What is known of each person (or session up to a point); every row has an item.
    target
        What is to be found, for the same rows and the same items; every row has an item.
    protocol
        How the data were split: "strong", "weak", "last", "time" or "session".
    name
        "valid" (to tune on) or "test" (to report).
    """

    history: Interactions
    target: Interactions
    protocol: str
    name: str

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise SettingError(f"protocol must be one of {PROTOCOLS}, got {self.protocol!r}")
        if self.name not in ("valid", "test"):
            raise SettingError(f"name must be 'valid' or 'test', got {self.name!r}")
        for axis in ("user", "item"):
            mine, yours = (getattr(side, f"{axis}_index") for side in (self.history, self.target))
            if not mine.same_as(yours):
                raise DataError(f"history and target of {self.name} have different {axis}s")
        if not self.history.n_users:
            left = f"nobody is left in {self.name} with a history and a target"
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
        """Twelve hex digits that change when a history or a target does."""
        return _digest(self.history.fingerprint, self.target.fingerprint)

    @property
    def n_users(self) -> int:
        """Number of people (or revealed steps of sessions)."""
        return self.history.n_users

    def __repr__(self) -> str:
        rows = "steps" if self.protocol == "session" else "users"
        known, hidden = self.history.n_interactions, self.target.n_interactions
        return f"Part {self.name}: {self.n_users:,} {rows}, {known:,} known, {hidden:,} to find"


@dataclass(frozen=True, eq=False)
class Split:
    """Data to learn from, and parts to tune on and to report.

    Parameters
    ----------
    train
        What a model is fitted on.
    valid
        People to choose settings on; None where the split has no such part.
    test
        People to report results on.
    protocol
        How the data were split: "strong", "weak", "last", "time" or "session".
    seed
        The seed of a random split, None for others.
    notes
        Sentences on what was left out and whether training sees the future.
    """

    train: Interactions
    valid: Part | None
    test: Part
    protocol: str
    seed: int | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.train.n_interactions:
            raise DataError("nothing is left to train on; use smaller shares for valid and test")
        for part in self.parts:
            if not part.history.item_index.same_as(self.train.item_index):
                raise DataError(f"the items of {part.name} differ from those of train")

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts there are, valid before test."""
        return (self.test,) if self.valid is None else (self.valid, self.test)

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that change when any part does."""
        return _digest(self.train.fingerprint, *(part.fingerprint for part in self.parts))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one directory (manifest, `.npy`, Parquet), atomically."""
        content = {"train": pack(self.train, "train_")}
        for part in self.parts:
            for side, data in (("history", part.history), ("target", part.target)):
                key = f"{part.name}_{side}"
                content[key] = pack(data, f"{key}_", like=self.train)
        meta = {
            "protocol": self.protocol,
            "seed": self.seed,
            "notes": list(self.notes),
            "fingerprint": self.fingerprint,
            "parts": {key: packed.meta for key, packed in content.items()},
        }
        merged = Packed(meta, {}, {})
        for packed in content.values():
            merged.arrays.update(packed.arrays)
            merged.frames.update(packed.frames)
        write_directory(path, KIND, VERSION, meta, merged.arrays, merged.frames, _restored)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Split:
        """Read what `save` wrote; damaged or foreign directories are refused."""
        return load_directory(path, KIND, VERSION, _restored)

    def __repr__(self) -> str:
        seed = "" if self.seed is None else f", seed {self.seed}"
        lines = [f"Split: {self.protocol}{seed}", f"  train {str(self.train).partition(': ')[2]}"]
        lines += [
            f"  {str(part).removeprefix('Part ').replace(':', '', 1)}" for part in self.parts
        ]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def _restored(stored: Stored) -> Split:
    meta = stored.meta
    protocol, packed = meta.text("protocol", PROTOCOLS), meta.group("parts")
    meta.text("fingerprint")
    train = unpack(stored, packed.group("train"), "train_")
    parts: dict[str, Part] = {}
    for name in ("valid", "test"):
        keys = [f"{name}_{side}" for side in ("history", "target")]
        saved = any(each.startswith(f"{name}_") for each in (*packed, *stored.arrays))
        if saved or name == "test":
            history, target = (
                unpack(stored, packed.group(key), f"{key}_", like=train) for key in keys
            )
            parts[name] = Part(history, target, protocol, name)
    seed = None if meta.get("seed", 0) is None else meta.whole("seed", most=LARGEST_SEED)
    notes = tuple(meta.texts("notes"))
    return Split(train, parts.get("valid"), parts["test"], protocol, seed, notes)


def _digest(*fingerprints: str) -> str:
    return hashlib.sha256(" ".join(fingerprints).encode()).hexdigest()[:12]


LATER = "training may hold events later than those to be found"


def check_share(name: str, share: Any, *, zero: bool) -> None:
    """Refuse a share outside (0, 1), or outside [0, 1) where zero is allowed."""
    fine = isinstance(share, Real) and 0 <= float(share) < 1
    if not fine or (share == 0 and not zero):
        lower = ">= 0" if zero else "> 0"
        raise SettingError(f"{name} must be {lower} and < 1, got {share!r}")


def check_shares(valid: float, test: float) -> None:
    """Refuse shares of valid and test that leave nothing to train on."""
    check_share("valid", valid, zero=True)
    check_share("test", test, zero=False)
    if valid + test >= 1:
        raise SettingError(f"valid and test must sum to less than 1, got {valid} + {test}")


def rounded(share: float, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Shares of many counts, rounded half up."""
    half_up: npt.NDArray[np.int64] = np.floor(share * counts + 0.5).astype(np.int64)
    return half_up


def group_sizes(total: int, valid: float, test: float, what: str) -> tuple[int, int]:
    """How many of the users (or sessions) go to valid and to test; too few are an error."""
    # With 2 / share of each group, train included, rounding by 1/2 can leave no group empty.
    shares = [share for share in (valid, test, 1 - valid - test) if share]
    enough = max(total, math.ceil(2 / min(shares)))
    # Numbers in between are tried so that the message can name the least; no more than a million.
    sizes = np.unique(np.append(np.arange(total, min(enough, total + 1_000_000)), enough))
    n_valid, n_test = rounded(valid, sizes), rounded(test, sizes)
    fits = ((n_valid > 0) | (valid == 0)) & (n_test > 0) & (n_valid + n_test < sizes)
    if not fits[0]:
        needed = int(sizes[fits][0])
        asked = f"valid={valid} and test={test} need at least {needed:,} {what}"
        raise DataError(f"{asked}, the data have {total:,}; give more data or other shares")
    return int(n_valid[0]), int(n_test[0])


def draw(
    total: int, n_valid: int, n_test: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], ...]:
    """Positions of train, valid and test, drawn evenly; each list ascends."""
    order = rng.permutation(total)
    return tuple(np.sort(part) for part in np.split(order, [total - n_valid - n_test, -n_test]))


def ranks(data: Interactions, key: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
    """Rank of each pair among the pairs of its user by ascending key; ties by item position."""
    row = entry_rows(data.matrix)
    order = np.lexsort((key, row))
    out = np.empty(len(row), np.int64)
    out[order] = np.arange(len(row)) - data.matrix.indptr[row]
    return out


def times_of(data: Interactions, split: str) -> npt.NDArray[np.float64]:
    """Return the times of the data; an error names the split that needs them."""
    if data.times is None:
        raise DataError(f"{split} needs times; name the column with eq.read(..., time=...)")
    return data.times


def leak_notes(data: Interactions, why: str = "this split ignores time") -> list[str]:
    """Say that training may see the future, where the data have times."""
    return [f"{why}: {LATER}"] if data.times is not None else []


def seconds(moment: float | str | date, name: str) -> float:
    """Seconds since 1970 of a number, an ISO text or a date; UTC where no zone is given."""
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError as error:
            raise SettingError(f"{name} must be an ISO date or time, got {moment!r}") from error
    if isinstance(moment, date) and not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    if isinstance(moment, datetime):
        moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(moment):
        raise SettingError(f"{name} must be finite, got {moment}")
    return float(moment)


def counted(number: int, noun: str, why: str) -> list[str]:
    """Return a note such as "3 users left out: ...", or none where the number is 0."""
    return [f"{number:,} {noun}{'' if number == 1 else 's'} {why}"] if number else []
