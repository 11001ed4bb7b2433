"""Which column is what: names given by the caller, or the usual spellings."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from equipoise.errors import DataError
from equipoise.readers.options import Options, Source

# Spellings without case and punctuation, as words; an earlier group wins over a later one.
SPELLINGS: dict[str, tuple[str, ...]] = {
    "user": (
        "user userid users uid username visitor visitorid customer customerid client clientid "
        "reviewer reviewerid member memberid account accountid profileid buyerid personid",
        "session sessionid sessid basket basketid orderid transactionid",
    ),
    "item": (
        "item itemid items iid movie movieid product productid asin isbn sku business businessid "
        "track trackid song songid sid artist artistid book bookid article articleid newsid "
        "video videoid game gameid appid poi poiid location locationid venueid placeid showid "
        "animeid recipeid courseid itemsku productsku",
    ),
    "rating": ("rating ratings rate stars star score overall",),
    "time": (
        "timestamp timestamps ts time times unixtime unixreviewtime eventtime datetime createdat "
        "eventtimestamp ratedat checkintime",
        "date eventdate reviewtime reviewdate day",
    ),
    "title": ("title movietitle name itemname producttitle productname label",),
}
ORDER = ("user", "item", "rating", "time")  # of columns without names


@dataclass(frozen=True)
class Columns:
    """The column of each role, by name."""

    user: str
    item: str
    time: str | None = None
    rating: str | None = None
    weight: str | None = None
    notes: tuple[str, ...] = ()


def choose_columns(source: Source, options: Options) -> Columns:
    """Find the column of each role; what was guessed is said in the notes."""
    if not source.named:
        return _by_position(source, options)
    chosen: dict[str, str | None] = {}
    found: list[str] = []
    asked_user = options.session if options.session is not None else options.user
    wants_rating = options.min_rating is not None
    wants_time = options.gap is not None or options.time_unit is not None
    for role, asked, needed in (
        ("user", asked_user, True),
        ("item", options.item, True),
        ("time", options.time, wants_time),
        ("rating", options.rating, wants_rating),
    ):
        if asked is not None and asked is not False:
            chosen[role] = given_column(source, asked, role)
        elif asked is False or (role == "rating" and not wants_rating):
            chosen[role] = None
        else:
            chosen[role] = _spelled(source, role, set(chosen.values()), needed=needed)
            if chosen[role] is not None:
                found.append(f"{role} = {chosen[role]!r}")
    weight = None if options.weight is None else given_column(source, options.weight, "weight")
    notes = [f"columns found by name: {', '.join(found)}"] if found else []
    notes += _unused_rating(source, chosen, weight, options)
    return _checked(source, chosen, weight, notes)


def _unused_rating(
    source: Source, chosen: dict[str, str | None], weight: str | None, options: Options
) -> list[str]:
    if options.rating is False or chosen["rating"] is not None:
        return []
    unused = [
        n for n in spelled_like(source.columns, "rating") if n not in (weight, *chosen.values())
    ]
    if not unused:
        return []
    return [f"column {unused[0]!r} is not used; min_rating= filters by it, weight= keeps it"]


def _checked(
    source: Source, chosen: dict[str, str | None], weight: str | None, notes: list[str]
) -> Columns:
    user, item = chosen["user"], chosen["item"]
    assert user is not None
    assert item is not None
    if user == item:
        raise DataError(f"{source.name}: column {user!r} cannot be both the user and the item")
    return Columns(user, item, chosen["time"], chosen["rating"], weight, tuple(notes))


def given_column(source: Source, asked: str | int, role: str) -> str:
    """Return the name of a column given by name or by position from 0."""
    names = source.columns
    if isinstance(asked, int):
        if not 0 <= asked < len(names):
            raise DataError(f"{source.name} has {len(names)} columns, {role}={asked} is too large")
        return names[asked]
    if asked in names:
        if names.count(asked) > 1:
            raise DataError(f"{source.name} has {names.count(asked)} columns called {asked!r}")
        return asked
    plain = {simple(name): name for name in names}
    near = difflib.get_close_matches(simple(asked), plain, n=1, cutoff=0.5)
    hint = f"did you mean {plain[near[0]]!r}? " if near else ""
    raise DataError(f"{source.name} has no column {asked!r}; {hint}{_listed(names)}")


def simple(name: str) -> str:
    """Return the name without case and punctuation; a RecBole type suffix is not part of it."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r":(token|float)(_seq)?$", "", name).lower())


def spelled_like(names: tuple[str, ...], role: str) -> list[str]:
    """Return the columns whose name is a usual spelling of the role, best group only."""
    for group in SPELLINGS[role]:
        hits = [name for name in names if simple(name) in group.split()]
        if hits:
            return hits
    return []


def _spelled(source: Source, role: str, taken: set[str | None], *, needed: bool) -> str | None:
    hits = [name for name in spelled_like(source.columns, role) if name not in taken]
    if len(hits) > 1:
        several = " and ".join(repr(name) for name in hits)
        leave = "" if needed else f", or {role}=False to use neither"
        raise DataError(
            f"{source.name}: {several} could both be the {role}; pass {role}='...'{leave}"
        )
    if hits:
        return hits[0]
    if not needed:
        return None
    known = [word for group in SPELLINGS[role] for word in group.split()]
    near = [
        name
        for name in source.columns
        if name not in taken and difflib.get_close_matches(simple(name), known, n=1, cutoff=0.75)
    ]
    hint = f"; perhaps {role}={near[0]!r}" if near else ""
    raise DataError(
        f"{source.name}: no column looks like the {role}{hint}; pass {role}='...'; "
        f"{_listed(source.columns)}; header=False if the first line is data"
    )


def _by_position(source: Source, options: Options) -> Columns:
    asked = {
        "user": options.session if options.session is not None else options.user,
        "item": options.item,
        "rating": options.rating,
        "time": options.time,
    }
    chosen: dict[str, str | None] = dict.fromkeys(ORDER)
    for role, name in asked.items():
        if name is not None and name is not False:
            chosen[role] = given_column(source, name, role)
    weight = None if options.weight is None else given_column(source, options.weight, "weight")
    notes = []
    if chosen["user"] is None and chosen["item"] is None:
        if not 2 <= len(source.columns) <= len(ORDER):
            raise DataError(
                f"{source.name} has {len(source.columns)} columns and no header; "
                "say which are which by position from 0: user=0, item=1"
            )
        found = [r for r in ORDER[: len(source.columns)] if asked[r] is None]
        for role, name in zip(ORDER, source.columns, strict=False):
            chosen[role] = chosen[role] or (name if role in found else None)
        if options.min_rating is None and options.rating is None:
            chosen["rating"] = None
        notes.append(
            f"no header: columns taken in order as {', '.join(ORDER[: len(source.columns)])}"
        )
    elif chosen["user"] is None or chosen["item"] is None:
        raise DataError(f"{source.name} has no header; give both user= and item= by position")
    if options.min_rating is not None and chosen["rating"] is None:
        raise DataError(f"{source.name} has no rating column for min_rating; pass rating=")
    for name in ("gap", "time_unit"):
        if getattr(options, name) is not None and chosen["time"] is None:
            raise DataError(f"{source.name} has no time column for {name}; pass time=")
    return _checked(source, chosen, weight, notes)


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(repr(name) for name in names[:30])
    more = f" and {len(names) - 30} more" if len(names) > 30 else ""
    return f"the columns are {shown}{more}"
