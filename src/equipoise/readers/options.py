"""What a caller asks of a reader, checked once at the border."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from equipoise.errors import SettingError

OnBad = Literal["error", "skip"]
Column = str | int | None
OptionalColumn = str | int | bool | None  # False: leave the column alone even if it is there
TimeUnit = Literal["s", "ms", "us", "ns"]
TIME_UNITS: tuple[TimeUnit, ...] = ("s", "ms", "us", "ns")  # powers of a thousand
COLUMNS = ("user", "item", "time", "time_unit", "rating", "weight", "session", "gap")
FORMATS = (
    "csv",
    "tsv",
    "jsonl",
    "parquet",
    "npz",
    "lightgcn",
    "multvae",
    "recbole",
    "movielens",
    "strong",
    "weak",
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of one call of `equipoise.read`; its docstring explains each."""

    user: Column = None
    item: Column = None
    time: OptionalColumn = None
    time_unit: TimeUnit | None = None
    rating: OptionalColumn = None
    weight: Column = None
    session: Column = None
    gap: float | str | None = None
    min_rating: float | None = None
    labels: Any = None
    users: Any = None
    items: Any = None
    separator: str | None = None
    header: bool | None = None
    encoding: str = "utf-8"
    format: str | None = None
    on_bad: OnBad = "error"

    def __post_init__(self) -> None:
        """Refuse settings that mean nothing or contradict one another."""
        if self.on_bad not in ("error", "skip"):
            raise SettingError(f"on_bad must be 'error' or 'skip', got {self.on_bad!r}")
        if self.format is not None and self.format not in FORMATS:
            known = ", ".join(FORMATS)
            raise SettingError(f"format must be one of {known}, got {self.format!r}")
        if self.min_rating is not None and not np.isfinite(self.min_rating):
            raise SettingError(f"min_rating must be a finite number, got {self.min_rating}")
        if self.min_rating is not None and self.rating is False:
            raise SettingError("min_rating needs a rating column, but rating is False")
        if self.time_unit is not None and self.time_unit not in TIME_UNITS:
            known = ", ".join(TIME_UNITS)
            raise SettingError(f"time_unit must be one of {known}, got {self.time_unit!r}")
        for name in ("gap", "time_unit"):
            if getattr(self, name) is not None and self.time is False:
                raise SettingError(f"{name} needs a time column, but time is False")
        if self.session is not None and self.gap is not None:
            raise SettingError("session and gap exclude one another: give the column or the pause")
        if self.session is not None and self.user is not None:
            raise SettingError("session takes the place of user; give only one of the two")
        if self.separator not in (None, "::") and len(self.separator.encode()) != 1:
            raise SettingError(f"separator must be one character or '::', got {self.separator!r}")
        try:
            "".encode(self.encoding)
        except LookupError as error:
            raise SettingError(f"encoding {self.encoding!r} is unknown; try 'latin-1'") from error

    def refuse(self, names: tuple[str, ...], source: str) -> None:
        """Refuse settings that the source cannot follow, rather than ignore them."""
        for name in names:
            value = getattr(self, name)
            if value is not None and value is not False:
                raise SettingError(f"{name}= does not apply to {source}; leave it out")
