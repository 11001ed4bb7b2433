"""Settings of one call of `equipoise.read`. Importing this loads neither numpy nor polars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, get_args

from equipoise.checks import number, period
from equipoise.errors import SettingError

OnBad = Literal["error", "skip"]
TimeUnit = Literal["s", "ms", "us", "ns"]  # powers of a thousand
Column = str | int | None
OptionalColumn = str | int | bool | None  # False: leave the column alone even if it is there

TIME_UNITS: tuple[TimeUnit, ...] = get_args(TimeUnit)
TIMES = ("time", "time_unit", "time_format")
COLUMNS = ("user", "item", *TIMES, "rating", "weight", "type", "session", "gap", "ids")
TABLES = ("csv", "tsv", "jsonl", "parquet", "xlsx")
ROLES = ("user", "item", "time", "rating", "weight", "type", "session", "title", "catalogue_id")
TEXTS: tuple[str, ...] = (
    *("time_unit", "time_format", "ids", "separator", "quote", "escape", "encoding"),
    *("sheet", "format", "on_bad"),
)
NEEDED_BY = {"min_rating": "rating", "gap": "time", "time_unit": "time", "time_format": "time"}
RESEARCH = ("npz", "lightgcn", "multvae", "recbole", "movielens", "strong", "weak")
# What a column of a catalogue is. Models and rules treat each kind in their own way.
KINDS = {
    "category": "one of some values, such as a brand; text, or true and false",
    "list": "several of some values, such as genres",
    "text": "words, such as a title or a description",
    "number": "a quantity, such as a price",
    "date": "a date or a time, in UTC",
    "vector": "an embedding: as many numbers for each item",
    "other": "anything else, such as a duration; left alone",
}
SKIP = "skip"  # leaves a column of a catalogue out
FORMATS = (*TABLES, "baskets", *RESEARCH)


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The settings of one call of `equipoise.read`, whose docstring explains them.

    Readers get the options with `catalogue` opened, as a list of `Source`.
    """

    user: Column = None
    item: Column = None
    time: OptionalColumn = None
    time_unit: TimeUnit | None = None
    time_format: str | None = None
    rating: OptionalColumn = None
    weight: Column = None
    type: OptionalColumn = None
    session: Column = None
    gap: float | str | None = None
    min_rating: float | None = None
    catalogue: Any = None
    catalogue_id: Column = None
    catalogue_types: Mapping[str, str] | None = None
    title: Column = None
    ids: Literal["text"] | None = None
    users: Any = None
    items: Any = None
    separator: str | None = None
    header: bool | None = None
    quote: str | None = None
    escape: str | None = None
    encoding: str = "utf-8"
    sheet: str | None = None
    format: str | None = None
    on_bad: OnBad = "error"

    def __post_init__(self) -> None:
        """Raise on invalid or contradictory settings."""
        self._check_types()
        self._check_catalogue_types()
        if self.on_bad not in ("error", "skip"):
            raise SettingError(f"on_bad must be 'error' or 'skip', got {self.on_bad!r}")
        known_values = (("format", FORMATS), ("time_unit", TIME_UNITS), ("ids", ("text",)))
        for name, known in known_values:
            value = getattr(self, name)
            if value is not None and value not in known:
                raise SettingError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        if self.min_rating is not None:
            number("min_rating", self.min_rating)
        for name, column in NEEDED_BY.items():
            if getattr(self, name) is not None and getattr(self, column) is False:
                raise SettingError(f"{name} needs a {column} column, but {column} is False")
        if self.time_format is not None and self.time_unit is not None:
            raise SettingError(
                "time_format and time_unit cannot be combined: times are text or numbers"
            )
        if self.gap is not None:
            period("gap", self.gap)
        if self.session is not None and self.gap is not None:
            raise SettingError("session and gap cannot be combined: give the column or the pause")
        if self.session is not None and self.user is not None:
            raise SettingError("session replaces user; give only one of the two")
        if self.separator not in (None, "::") and len(self.separator.encode()) != 1:
            raise SettingError(f"separator must be one character or '::', got {self.separator!r}")
        for name in ("quote", "escape"):
            value = getattr(self, name)
            if value and (len(value) > 1 or not value.isascii() or value.isalnum()):
                raise SettingError(f"{name} must be one character or '' for none, got {value!r}")
        if self.escape and (self.quote == "" or self.escape == (self.quote or '"')):
            raise SettingError(
                "escape must differ from quote: it marks quotation marks within quoted fields; "
                "doubled marks need no escape"
            )
        try:
            "".encode(self.encoding)
        except LookupError as error:
            raise SettingError(f"encoding {self.encoding!r} is unknown; try 'latin-1'") from error

    def _check_types(self) -> None:
        """Raise on values of a wrong type; numpy integers become int."""
        for name in ROLES:
            value = getattr(self, name)
            # True and False would be taken as positions 1 and 0
            if isinstance(value, bool):
                if value or name not in ("time", "rating", "type"):
                    raise SettingError(f"{name} must be a column's name or position, got {value}")
            elif isinstance(value, Integral):  # of numpy
                object.__setattr__(self, name, int(value))
            elif value is not None and not isinstance(value, str):
                raise SettingError(f"{name} must be a column's name or position, got {value!r}")
        for name in TEXTS:
            value = getattr(self, name)
            needed = name in ("encoding", "on_bad")
            if not isinstance(value, str) and (value is not None or needed):
                raise SettingError(f"{name} must be text, got {value!r}")
        if self.header is not None and type(self.header).__name__ not in ("bool", "bool_"):
            raise SettingError(f"header must be True or False, got {self.header!r}")

    def _check_catalogue_types(self) -> None:
        """Raise unless the kind of each named column of the catalogue is known."""
        told = self.catalogue_types
        if told is not None and not isinstance(told, Mapping):
            raise SettingError(f"catalogue_types must map columns to kinds, got {told!r}")
        known = [*(kind for kind in KINDS if kind != "other"), SKIP]
        for name, kind in (told or {}).items():
            if not isinstance(kind, str) or (kind not in known and "%" not in kind):
                raise SettingError(
                    f"the type of {name!r} must be one of {', '.join(known)}, or the form of its "
                    f"dates, such as '%d/%m/%Y', got {kind!r}"
                )

    def refuse_text(self, source: str, *, catalogue_is_file: bool) -> None:
        """Raise if options of text files are set for another source.

        `quote` and `escape` may be meant for the file of a catalogue.
        """
        marks = () if catalogue_is_file else ("quote", "escape")
        self.refuse(("separator", *marks, "sheet", "format"), source)
        if self.header is not None:
            raise SettingError(f"header= does not apply to {source}; leave it out")

    def refuse(self, names: tuple[str, ...], source: str) -> None:
        """Raise if settings are given that do not apply to the source."""
        for name in names:
            value = getattr(self, name)
            if value is not None and value is not False:
                raise SettingError(f"{name}= does not apply to {source}; leave it out")
