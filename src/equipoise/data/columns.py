"""Choose the columns of a table, and convert and check their cells: ids, numbers, times.

Columns are named by the caller or recognised by usual spellings. Times become seconds since 1970,
UTC.
"""

from __future__ import annotations

import datetime as dt
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.data.matrix import lost_in_single
from equipoise.data.read_options import NEEDED_BY, ROLES, TIME_UNITS, ReadOptions, TimeUnit
from equipoise.data.tables import BadRows, Source, check_one_schema
from equipoise.errors import DataError, SettingError

Floats = npt.NDArray[np.float64]


def _joined(stems: str, endings: str) -> str:
    """Return every stem with every ending, as words."""
    return " ".join(stem + ending for stem in stems.split() for ending in endings.split())


MOMENTS = (
    "transaction purchase purchased order ordered invoice sale sales event click view visit "
    "rating rated review checkin created bought sold played watched interaction"
)
# Spellings without case and punctuation, as words; an earlier group wins over a later one.
SPELLINGS: dict[str, tuple[str, ...]] = {
    "user": (
        "user userid users uid username visitor visitorid customer customerid client clientid "
        "reviewer reviewerid member memberid account accountid profileid buyerid personid "
        "household householdid shopper shopperid custid "
        + _joined("user customer client household member", "no number key code"),
        _joined("customer client member shopper buyer", "name"),
        "session sessionid sessid basket basketid "
        + _joined("order invoice transaction receipt visit basket", "id no number key"),
    ),
    "item": (
        "item itemid items iid movie movieid product productid asin isbn sku business businessid "
        "track trackid song songid sid artist artistid book bookid article articleid newsid "
        "video videoid game gameid appid poi poiid location locationid venueid placeid showid "
        "animeid recipeid courseid itemsku productsku",
        "upc ean gtin " + _joined("item product stock article", "code no number key"),
    ),
    "rating": ("rating ratings rate stars star score overall bookrating movierating",),
    "time": (
        "timestamp timestamps ts time times unixtime unixreviewtime datetime "
        + _joined(MOMENTS, "timestamp datetime time at"),
        "date day reviewtime " + _joined(MOMENTS, "date day on"),
    ),
    "title": (
        "title name label " + _joined("movie item product book song track", "title name"),
        "description itemdescription productdescription",
        "itemtype producttype",
    ),
    "type": (
        "event eventtype eventname action actiontype behavior behaviour behaviortype "
        "behaviourtype interactiontype",
        "type",
    ),
}
ORDER = ("user", "item", "rating", "time")  # of columns without names

EXACT = {"Float16": 11, "Float32": 24, "Float64": 53}  # floats hold integers below 2^bits exactly
NUMBER_WITH_COMMA = r"^[+-]?[0-9][0-9.,]*,[0-9.,]*$"
THOUSANDS = r"^[+-]?[1-9][0-9]{0,2}(,[0-9]{3})+$"
BLANK = r"^\s*$"
A = {"user": "a user", "item": "an item"}

# Times below the first bound are seconds, ...: 1e11 s is the year 5138, 1e11 ms is 1973.
BOUNDS = (1e11, 1e14, 1e17)
UNIT_NAMES = ("seconds", "milliseconds", "microseconds", "nanoseconds")
SAMPLE = 10_000
ISO = r"^\d{4}-\d{2}-\d{2}"
CLOCK = re.compile("%[HIMSTRXcs]")
SHORTHANDS = {"%T": "%H:%M:%S", "%R": "%H:%M", "%D": "%m/%d/%y", "%F": "%Y-%m-%d"}
DIGITS = {"%Y": 4, "%j": 3} | dict.fromkeys(["%y", "%m", "%d", "%H", "%I", "%M", "%S", "%C"], 2)
FIELD = re.compile(r"(%[-_0]?(?:\.?[0-9]*f|:*[A-Za-z+%]))")  # of a time format
DAYS = (
    "%m/%d/%Y|%d/%m/%Y|%Y/%m/%d|%d.%m.%Y|%d-%m-%Y|%m-%d-%Y|%d %b %Y|%d-%b-%Y|%b %d, %Y|%d %B %Y|"
    "%B %d, %Y|%m/%d/%y|%d/%m/%y|%d.%m.%y"
)
CLOCKS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p", ", %H:%M", "T%H:%M:%S")
FORMS = [day + clock for day in DAYS.split("|") for clock in CLOCKS]  # suggested in messages


@dataclass(frozen=True)
class Columns:
    """The column of each role, by name."""

    user: str
    item: str
    time: str | None
    rating: str | None
    weight: str | None
    type: str | None
    notes: list[str]

    def by_role(self) -> tuple[str | None, ...]:
        """Return the column of each role."""
        return (self.user, self.item, self.time, self.rating, self.weight, self.type)


def choose_columns(source: Source, options: ReadOptions) -> Columns:
    """Find the column of each role; the notes report guesses."""
    requested = {
        "user": options.user if options.session is None else options.session,
        "item": options.item,
        "time": options.time,
        "rating": options.rating,
    }
    needed = {"user", "item"}
    needed |= {role for name, role in NEEDED_BY.items() if getattr(options, name) is not None}
    choose = _by_name if source.named else _by_position
    chosen, notes = choose(source, requested, needed)
    weight = None if options.weight is None else given_column(source, options.weight, "weight")
    if source.named and options.rating is not False and chosen["rating"] is None:
        ratings = spelled_like(source.columns, "rating")
        for name in [name for name in ratings if name not in (weight, *chosen.values())][:1]:
            notes.append(
                f"column {name!r} is not used; min_rating= filters by it, weight= keeps it"
            )
    for setting, role in NEEDED_BY.items():
        if getattr(options, setting) is not None and chosen[role] is None:
            raise DataError(f"{source.name} has no {role} column for {setting}; pass {role}=")
    user, item = chosen["user"], chosen["item"]
    assert user is not None
    assert item is not None
    if user == item:
        raise DataError(
            f"{source.name}: column {user!r} cannot be both the user and the item; name two"
        )
    kind = _type_column(source, options, {*chosen.values(), weight}, notes)
    return Columns(user, item, chosen["time"], chosen["rating"], weight, kind, notes)


def _type_column(
    source: Source, options: ReadOptions, used: set[str | None], notes: list[str]
) -> str | None:
    """Return the column of event types: as requested, or the only one with a usual name."""
    if options.type is not None and not isinstance(options.type, bool):
        return given_column(source, options.type, "type")
    if options.type is False or not source.named:
        return None
    hits = [name for name in spelled_like(source.columns, "type") if name not in used]
    if len(hits) != 1:
        return None
    notes.append(f"column {hits[0]!r} is read as the event type; type=False ignores it")
    return hits[0]


Requested = dict[str, str | int | bool | None]
Chosen = dict[str, str | None]


def _by_name(source: Source, requested: Requested, needed: set[str]) -> tuple[Chosen, list[str]]:
    chosen: Chosen = {}
    guessed: list[str] = []
    for role, name in requested.items():
        if name is not None and name is not False:
            chosen[role] = given_column(source, name, role)
        elif name is False or (role == "rating" and role not in needed):
            chosen[role] = None
        else:
            chosen[role] = _spelled(source, role, set(chosen.values()), needed=role in needed)
            if chosen[role] is not None:
                guessed.append(role)
    if not guessed:
        return chosen, []
    alternatives = [
        f"{role}={name!r}"
        for role in guessed
        for name in source.columns
        if name not in chosen.values() and _simple(name) in " ".join(SPELLINGS[role]).split()
    ]
    also = f"; also possible: {', '.join(alternatives)}" if alternatives else ""
    guesses = ", ".join(f"{role} = {chosen[role]!r}" for role in guessed)
    return chosen, [f"columns found by name: {guesses}{also}"]


def _by_position(
    source: Source, requested: Requested, needed: set[str]
) -> tuple[Chosen, list[str]]:
    chosen: Chosen = dict.fromkeys(ORDER)
    for role, name in requested.items():
        if name is not None and name is not False:
            chosen[role] = given_column(source, name, role)
    if (chosen["user"] is None) != (chosen["item"] is None):
        raise DataError(f"{source.name} has no header; give both user= and item= by position")
    if chosen["user"] is not None:
        return chosen, []
    n_columns = len(source.columns)
    if not 2 <= n_columns <= len(ORDER):
        raise DataError(
            f"{source.name} has {n_columns} columns and no header; "
            "name them by position from 0: user=0, item=1"
        )
    order = list(ORDER[:n_columns])
    if [name in source.dated for name in source.columns[2:]] in ([True], [True, False]):
        order[2:] = ["time", "rating"][: n_columns - 2]
    for role, name in zip(order, source.columns, strict=True):
        if requested[role] is None and (role != "rating" or role in needed):
            chosen[role] = name
    return chosen, [f"no header: columns taken in order as {', '.join(order)}"]


def given_column(source: Source, requested: str | int, role: str) -> str:
    """Return the name of a column that is requested by name or by position from 0."""
    names = source.columns
    if isinstance(requested, int):
        if requested in source.numbers:
            return str(requested)
        if not 0 <= requested < len(names):
            raise DataError(
                f"{source.name} has {len(names)} columns, so there is no {role}={requested}; "
                "positions count from 0"
            )
        return names[requested]
    if requested in names:
        if names.count(requested) > 1:
            raise DataError(
                f"{source.name} has {names.count(requested)} columns called {requested!r}; "
                "rename all but one"
            )
        return requested
    plain = {_simple(name): name for name in names}
    near = difflib.get_close_matches(_simple(requested), plain, n=1, cutoff=0.5)
    hint = f"did you mean {plain[near[0]]!r}? " if near else ""
    raise DataError(f"{source.name} has no column {requested!r}; {hint}{_listed(names)}")


def catalogue_id_column(source: Source, options: ReadOptions) -> str:
    """Return the column of the table of a catalogue that holds the item ids."""
    names = source.columns
    if options.catalogue_id is not None:
        return given_column(source, options.catalogue_id, "catalogue_id")
    if isinstance(options.item, str) and options.item in names:
        return options.item
    hits = spelled_like(names, "item")
    if not source.named or (not hits and len(names) == 2):
        return names[0]
    if len(hits) == 1:
        return hits[0]
    if hits:
        choices = " or ".join(f"catalogue_id={name!r}" for name in hits)
        raise DataError(f"{source.name}: {_several(hits)} be the item ids; pass {choices}")
    likely = next((name for name in names if _simple(name).endswith(("id", "ids"))), names[0])
    raise DataError(
        f"{source.name}: no column looks like the item ids; pass catalogue_id={likely!r}, or the "
        f"column that holds them; {_listed(names)}"
    )


def _simple(name: str) -> str:
    """Return the name in lower case without punctuation and RecBole type suffix."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r":(token|float)(_seq)?$", "", name).lower())


def spelled_like(names: tuple[str, ...], role: str) -> list[str]:
    """Return the columns named by a usual spelling of the role, from the first group with any."""
    for group in SPELLINGS[role]:
        hits = [name for name in names if _simple(name) in group.split()]
        if hits:
            return hits
    return []


def _spelled(source: Source, role: str, used: set[str | None], *, needed: bool) -> str | None:
    hits = [name for name in spelled_like(source.columns, role) if name not in used]
    if len(hits) > 1:
        leave = "" if needed else f", or {role}=False to use none"
        raise DataError(f"{source.name}: {_several(hits)} be the {role}; pass {role}='...'{leave}")
    if hits or not needed:
        return hits[0] if hits else None
    known = [word for group in SPELLINGS[role] for word in group.split()]
    near = [
        name
        for name in source.columns
        if name not in used and difflib.get_close_matches(_simple(name), known, n=1, cutoff=0.75)
    ]
    hint = f"; perhaps {role}={near[0]!r}" if near else ""
    raise DataError(
        f"{source.name}: no column looks like the {role}{hint}; pass {role}='...'; "
        f"{_listed(source.columns)}; header=False if the first line is data"
    )


def common_columns(
    files: Sequence[str], columns: Sequence[tuple[str, ...]], options: ReadOptions
) -> tuple[str, ...]:
    """Return the columns that all files of a table have, in the order of the first.

    A column of only some files is left out, unless it may be needed: then raise.
    """
    kinds = dict.fromkeys(columns)
    if len(kinds) == 1:
        return columns[0]
    common = set.intersection(*map(set, kinds))
    if any(may_be_needed(tuple({*names} - common), options) for names in kinds):
        check_one_schema(files, columns)
    return tuple(name for name in columns[0] if name in common)


def may_be_needed(names: tuple[str, ...], options: ReadOptions) -> bool:
    """Whether one of the columns is requested, or has a usual name where none is requested."""
    requested = [getattr(options, role) for role in ROLES]
    automatic = ["item", "time", "type", *(["user"] if options.session is None else [])]
    if options.min_rating is not None:
        automatic.append("rating")
    return any(name in requested for name in names) or any(
        getattr(options, role) is None and spelled_like(names, role) for role in automatic
    )


def _several(names: list[str]) -> str:
    return f"{' and '.join(map(repr, names))} could {'both' if len(names) == 2 else 'all'}"


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(repr(name) for name in names[:30])
    more = f" and {len(names) - 30} more" if len(names) > 30 else ""
    return f"the columns are {shown}{more}"


def id_column(
    column: pl.Series, axis: str, bad: BadRows, *, text: bool = False
) -> tuple[pl.Series, list[str]]:
    """Return ids as Int64 or String and notes; nulls occur only in skipped rows.

    With `text` the ids are String, exactly as written in a text file.
    """
    if text and column.dtype != pl.String and bad.table.written is not None:
        column = bad.table.written(column.name)
    ids, notes = _checked_ids(column, axis, bad)
    return (ids.cast(pl.String), []) if text else (ids, notes)


def _checked_ids(column: pl.Series, axis: str, bad: BadRows) -> tuple[pl.Series, list[str]]:
    kind = column.dtype
    if isinstance(kind, (pl.Categorical, pl.Enum, pl.Null)):
        column, kind = column.cast(pl.String), pl.String()
    if isinstance(kind, pl.Decimal):  # databases return integers so
        kind = pl.Float64() if kind.scale else pl.Int128()
        column = column.cast(kind)
    if not (kind.is_integer() or kind.is_float() or kind == pl.String):
        raise DataError(
            f"column {column.name!r} holds {kind}, {axis} ids must be integers or text; convert it"
        )
    bits = EXACT.get(str(kind), 53)
    if kind.is_float():
        column = column.cast(pl.Float64).fill_nan(None)
    empty = _is_missing(column)
    bad.refuse(empty, column.name, f"is an empty {axis} id", "fill it")
    if kind == pl.String:
        return column, []
    if kind.is_float():
        return _from_floats(column, axis, bad, bits)
    numbers = column.cast(pl.Int64, strict=False)
    if numbers.null_count() > column.null_count():
        too_big = numbers.is_null().to_numpy() & ~empty
        bad.refuse(too_big, column.name, f"is {A[axis]} id beyond 2^63", "give the ids as text")
    return numbers, []


def _from_floats(
    column: pl.Series, axis: str, bad: BadRows, bits: int
) -> tuple[pl.Series, list[str]]:
    """Convert floats that are exact integers, as pandas stores integers with missing values."""
    values = column.fill_null(0.0).to_numpy()
    with np.errstate(invalid="ignore"):
        broken = ~(values == np.floor(values)) | np.isinf(values)
    text = "give the ids as integers or text"
    bad.refuse(broken, column.name, f"is not a whole number, so not {A[axis]} id", text)
    large = (np.abs(values) >= 2.0**bits) & ~broken
    reason = f"is {A[axis]} id in a float column beyond 2^{bits}, where floats are not exact"
    bad.refuse(large, column.name, reason, text)
    integers = pl.Series(column.name, np.where(broken | large, 0, values).astype(np.int64))
    return integers, [f"{axis} ids {column.name!r} were floats without fractions, now integers"]


def number_column(column: pl.Series, role: str, bad: BadRows) -> Floats:
    """Return ratings or weights; empty, NaN and infinite ones and negative ratings are bad rows.

    A negative weight is a return. The matrix has single precision, so the absolute value of a
    weight must lie between 1e-45 and 3e38 or be 0.
    """
    if column.dtype == pl.String:  # numbers, or true and false
        word = column.str.strip_chars().str.to_lowercase()
        flags = word.replace_strict(["true", "false"], [1.0, 0.0], default=None)
        values = _filled(_numbers_in_text(column, bad).fill_null(flags))
    elif column.dtype.is_numeric() or column.dtype in (pl.Null, pl.Boolean):
        values = _filled(column)
    else:
        raise DataError(
            f"column {column.name!r} holds {column.dtype}, a {role} must be a number; "
            f"pass {role}= with another column"
        )
    _refuse_unusable(values, column, role, f"finite {role}", bad, negative=role == "weight")
    if role == "weight":
        lost = lost_in_single(values)
        if lost.any():
            large, name = np.abs(values) > 1, column.name
            bad.refuse(lost & large, name, "is a weight beyond 3e38", "scale the weights down")
            bad.refuse(lost & ~large, name, "is a weight below 1e-45", "scale the weights up")
    return values


def _refuse_unusable(
    values: Floats,
    column: pl.Series,
    role: str,
    expected: str,
    bad: BadRows,
    fill: str = "fill it",
    remedy: str = "correct it",
    negative: bool = False,
) -> None:
    least = -np.inf if negative else 0
    if len(values) and least <= values.min() > -np.inf and values.max() < np.inf:
        return  # the common case, in two passes; NaN fails the first comparison
    missing = _is_missing(column)
    bad.refuse(missing, column.name, f"has no {role}", fill)
    bad.refuse(~np.isfinite(values) & ~missing, column.name, f"is not a {expected}", remedy)
    if not negative:
        bad.refuse(values < 0, column.name, f"is a negative {role}", remedy)


def _is_missing(column: pl.Series) -> npt.NDArray[np.bool_]:
    """Mark the cells that are null or blank text."""
    if column.dtype != pl.String:
        return column.is_null().to_numpy() if column.null_count() else np.zeros(len(column), bool)
    return column.str.contains(BLANK).fill_null(True).to_numpy()


def _filled(column: pl.Series) -> Floats:
    """Return a new array of floats, NaN for null."""
    if column.dtype != pl.Int64 or column.null_count():
        column = column.cast(pl.Float64).fill_null(float("nan"))
    pieces = [piece.to_numpy() for piece in column.get_chunks()]
    return np.concatenate(pieces, dtype=np.float64)  # copies and converts in one pass


def _numbers_in_text(column: pl.Series, bad: BadRows) -> pl.Series:
    """Parse numbers in text, decimal commas included; null where there is none.

    Commas are decimal if commas do not separate the fields, no number of the column has a point,
    and not all of them could be thousands separators as in 1,234.
    """
    text = column.str.strip_chars()
    numbers = text.cast(pl.Float64, strict=False)
    comma = numbers.is_null() & text.str.contains(NUMBER_WITH_COMMA).fill_null(False)
    if not comma.any():
        return numbers
    remedy = "write the numbers with a decimal point"
    if not bad.table.decimal_comma or text.str.contains(r"\d\.\d").any():
        bad.refuse(comma.to_numpy(), column.name, "is a number with a comma", remedy)
        return numbers
    if text.filter(comma).str.contains(THOUSANDS).all():
        reason = "is a number whose comma may mean thousands or decimals"
        bad.refuse(comma.to_numpy(), column.name, reason, remedy)
        return numbers
    bad.table.notes.append(f"commas in {column.name!r} are read as decimal commas")
    return text.str.replace(",", ".", literal=True).cast(pl.Float64, strict=False)


def time_column(
    column: pl.Series, bad: BadRows, unit: TimeUnit | None = None, form: str | None = None
) -> tuple[Floats, list[str]]:
    """Return times in seconds and a note on how they were parsed; invalid ones are bad rows.

    Text and integers are parsed by the format `form`, if given. Other numbers have the given unit,
    or the one that their size suggests (the same for all), or are dates such as 20240131.
    """
    kind = column.dtype
    dated = column.str.contains(ISO).fill_null(False) if kind == pl.String else None
    if form is not None and (kind == pl.String or kind.is_numeric()):
        values = formed(_text_of_times(column, form, bad), form)
        description = f"times of the form {form}"
    elif dated is not None and dated.any():
        values = iso_seconds(column, dated)
        description = "ISO dates, UTC where no zone is given"
    elif kind in (pl.String, pl.Null) or kind.is_numeric():
        values = _filled(_numbers_in_text(column, bad) if kind == pl.String else column)
        description = ""
    elif kind == pl.Date or isinstance(kind, pl.Datetime):
        moments = column.cast(pl.Datetime("us")) if kind == pl.Date else column
        values = _filled(moments.dt.epoch("us").cast(pl.Float64) / 1e6)
        zone = kind.time_zone if isinstance(kind, pl.Datetime) else None
        description = f"datetimes, {zone or 'taken as UTC'}"
    else:
        raise DataError(
            f"column {column.name!r} holds {kind}, not times; pass time= with another column "
            "or time=False"
        )
    if form is not None and kind.is_temporal():
        raise SettingError(
            f"column {column.name!r} holds {kind}, which needs no time_format; leave it out"
        )
    if not description and unit is None:
        digits = date_form(values if bad.mask is None else values[~bad.mask])
        if digits is not None:
            integers = pl.Series(values).fill_nan(None).cast(pl.Int64)
            values = formed(integers.cast(pl.String), digits)
            description = "dates in digits, such as 20240131; pass time_unit= if they are not"
    remedy = "use seconds since 1970 or ISO dates, or pass time=False"
    if form is not None:
        zeros = "" if _pattern(form) is None else ", with its zeros"
        remedy = f"write it in the form {form}{zeros}, or pass time=False"
    if kind == pl.String and np.isnan(values).all():
        remedy = _form_remedy(column)
    _refuse_unusable(values, column, "time", "time", bad, "fill it or pass time=False", remedy)
    if kind == pl.Null:
        return values, []
    if not description:
        power = _power(values, column, bad) if unit is None else TIME_UNITS.index(unit)
        if power:
            values /= 1000.0**power
        description = f"{UNIT_NAMES[power]} since 1970"
    return values, [f"times {column.name!r} read as {description}"]


def _text_of_times(column: pl.Series, form: str, bad: BadRows) -> pl.Series:
    """Return times as text; integers get back the leading zeros that the format needs."""
    kind = column.dtype
    if kind == pl.String:
        return column
    name = column.name
    text = column.cast(pl.String) if bad.table.written is None else bad.table.written(name)
    if kind.is_integer() and bad.table.written is not None:
        return text
    if not kind.is_integer():
        if bad.table.written is not None and "." in form:
            return text
        column = column.cast(pl.Float64).fill_nan(None)
        broken = ((column != column.floor()) | ~column.is_finite()).fill_null(False)
        reason = f"is not a whole number, so not a time of the form {form}"
        bad.refuse(broken.to_numpy(), name, reason, "give the times as text")
        text = column.set(broken, None).cast(pl.Int64, strict=False).cast(pl.String)
    if form == "%s":
        return text
    width = _width(form)
    if width is None:
        raise SettingError(
            f"column {name!r} holds {kind}, and numbers cannot be split by "
            f"time_format={form!r}; give the times as text, or a form of digits such as '%d%m%Y'"
        )
    return text.str.zfill(width)


def _width(form: str) -> int | None:
    """Return the number of digits of a format such as "%d%m%y"; None if it varies."""
    fields = FIELD.split(form)
    if any(fields[::2]) or not all(field in DIGITS for field in fields[1::2]):
        return None
    return sum(DIGITS[field] for field in fields[1::2])


def _pattern(form: str) -> str | None:
    r"""Return a pattern that text of a format must match; None if none is needed.

    Adjacent numbers must have all their digits: 10124 does not match %d%m%y, although a parser
    would take the missing digit from the next number.

    >>> _pattern("%d%m%y %H:%M")
    '^\\s*\\d{2}\\d{2}\\d{2}.*$'
    """
    for short, long in SHORTHANDS.items():
        form = form.replace(short, long)
    parts = [part for part in FIELD.split(form) if part]
    pattern, adjacent = "", False
    for place, part in enumerate(parts):
        beside = (*parts[max(place - 1, 0) : place], *parts[place + 1 : place + 2])
        if part in DIGITS and any(other in DIGITS for other in beside):
            pattern, adjacent = pattern + rf"\d{{{DIGITS[part]}}}", True
        elif not pattern.endswith(".*"):
            pattern += ".*"
    start = "" if pattern.startswith(".*") else r"\s*"
    end = "" if pattern.endswith(".*") else r"\s*"
    return f"^{start}{pattern}{end}$" if adjacent else None


def formed(text: pl.Series, form: str) -> Floats:
    """Parse text by a format such as "%d.%m.%Y %H:%M" into seconds; NaN if it does not match."""
    pattern = _pattern(form)
    if pattern is not None:
        text = text.set(~text.str.contains(pattern), None)
    try:
        if CLOCK.search(form):
            moments = text.str.to_datetime(form, strict=False, time_unit="us")
        else:
            moments = text.str.to_date(form, strict=False).cast(pl.Datetime("us"))
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise SettingError(
            f"time_format {form!r} is not valid: {reason}; a valid one is '%d.%m.%Y %H:%M'"
        ) from error
    return _filled(moments.dt.epoch("us").cast(pl.Float64) / 1e6)


def date_form(values: Floats) -> str | None:
    """Return the format of dates written as one number, or None if they are not such dates."""
    finite = np.isfinite(values)
    usable = values if finite.all() else values[finite]
    for form, size in (("%Y%m%d", 1), ("%Y%m%d%H%M", 10_000), ("%Y%m%d%H%M%S", 1_000_000)):
        low, high = 19700101 * size, 21000101 * size
        if not (len(usable) and low <= usable[0] < high):  # cheap test of the first value
            continue
        if low <= usable.min() and usable.max() < high and (usable == np.floor(usable)).all():
            return form
    return None


def _form_remedy(wrong: pl.Series) -> str:
    """Show three of the unparsed times, and the formats that parse all of them."""
    shown = wrong.drop_nulls().unique(maintain_order=True)[:1000].str.strip_chars()
    fit = [form for form in FORMS if len(shown) and not np.isnan(formed(shown, form)).any()]
    look = f"the times look like {', '.join(repr(text) for text in shown[:3])}"
    forms = " or ".join(f"time_format={form!r}" for form in fit[:3])
    return f"{look}: pass {forms or 'time_format= with their form'}, or time=False"


def _power(values: Floats, column: pl.Series, bad: BadRows) -> int:
    """Return the unit of the median time as a power of 1000; times of another unit are bad."""
    usable = values if bad.mask is None else values[~bad.mask]
    if len(usable) and usable.min() <= 0:
        usable = usable[usable > 0]  # 0 is the same moment in all units
    if not len(usable):
        return 0
    least, most = _powers([usable.min(), usable.max()])
    power = unit_power(usable)
    if least == most:
        return power
    powers = np.where(values > 0, _powers(values), power)
    remedy = f"bring all times to one unit, or pass time_unit={TIME_UNITS[power]!r} if they are"
    for other in set(range(len(UNIT_NAMES))) - {power}:
        reason = f"would be {UNIT_NAMES[other]} where most are {UNIT_NAMES[power]}"
        bad.refuse(powers == other, column.name, reason, remedy)
    return power


def unit_power(times: Floats) -> int:
    """Return the unit of the median time as a power of 1000: 0 for seconds."""
    sample = times[:: len(times) // SAMPLE + 1]  # spread over the column
    return int(_powers([np.median(sample)])[0])


def _powers(values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    return np.searchsorted(BOUNDS, values, side="right")


def iso_seconds(column: pl.Series, dated: pl.Series) -> Floats:
    """Parse ISO dates and times, those under the mask, into seconds; NaN for other text."""
    text = column.set(~dated, None)
    moments = text.str.to_datetime(strict=False, time_zone="UTC", time_unit="us")
    values = _filled(moments.dt.epoch("us").cast(pl.Float64) / 1e6)
    left = moments.is_null() & dated
    if left.any():
        values[np.flatnonzero(left.to_numpy())] = [
            _iso_moment(value) for value in text.filter(left)
        ]
    return values


def _iso_moment(text: str) -> float:
    try:
        moment = dt.datetime.fromisoformat(text.strip())
    except ValueError:
        return float("nan")
    return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp()
