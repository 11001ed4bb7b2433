"""What a split is: data to learn from, and people with a history and something to be found."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import Literal

import numpy as np

from equipoise.errors import DataError, SettingError
from equipoise.interactions import Interactions
from equipoise.manifest import LARGEST_SEED
from equipoise.persist import Packed, pack, unpack
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
