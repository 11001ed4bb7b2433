"""The catalogue: attributes of items, such as titles, genres and prices, a row for each item.

`read_catalogue` joins the tables of a catalogue, decides what each column is (`KINDS`) and matches
the rows to the items of the data. Rows of other items are new items: known by their attributes,
without any event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.data.attributes import kind_of, split_values, understood
from equipoise.data.columns import (
    catalogue_id_column,
    given_column,
    spelled_like,
)
from equipoise.data.ids import WHOLE, IdIndex
from equipoise.data.read_options import SKIP, ReadOptions
from equipoise.data.tables import Source, Table, is_frame, object_source
from equipoise.errors import DataError, FileFormatError, SettingError
from equipoise.runtime.machine import check_polars

Places = npt.NDArray[np.int64]

ITEM = "\x00item"  # no column of a catalogue has this name


@dataclass(frozen=True, eq=False)
class Catalogue:
    """What is known about the items of data, and about new ones.

    `frame` has a row for each item, its title first. `new_items` has the ids of items without
    events, then the same columns. `decided` has the kinds of columns that reading decided.
    """

    frame: pl.DataFrame
    new_items: pl.DataFrame | None = None
    decided: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def kinds(self) -> dict[str, str]:
        """What each column is: a name of `KINDS`."""
        return {
            name: self.decided.get(name) or kind_of(self.frame[name], is_title=place == 0)
            for place, name in enumerate(self.frame.columns)
        }

    @cached_property
    def new_index(self) -> IdIndex:
        """The ids of the new items."""
        ids = [] if self.new_items is None else self.new_items.to_series(0).to_list()
        return IdIndex(ids, "item")

    def check_new_items(self, index: IdIndex) -> None:
        """Raise unless new items have the columns of the items, and ids that are not theirs."""
        if self.new_items is None:
            return
        if self.new_items.columns != [id_name(self.frame.columns), *self.frame.columns]:
            raise FileFormatError("the table of new items must have the columns of the catalogue")
        ids = self.new_items.to_series(0)
        if ids.dtype != index.kind or ids.null_count():
            raise FileFormatError("the ids of new items must be of the type of the item ids")
        if (index.positions(self.new_index.values, unknown="skip") >= 0).any():
            raise FileFormatError("the table of new items names an item that is in the data")

    def gather(self, places: Places) -> Catalogue:
        """Return the rows at these places as those of the items; an empty one for -1."""
        return replace(self, frame=gathered_rows(self.frame, places))

    def over(self, old: IdIndex, new: IdIndex) -> Catalogue:
        """Return the catalogue for other items; new items among them become items."""
        places, rows = old.positions(new.values, unknown="skip"), self.frame
        if self.new_items is None:
            return self.gather(places)
        added = self.new_index.positions(new.values, unknown="skip")
        if (added < 0).all() and old.kind == new.kind:
            return self.gather(places)
        rows = pl.concat([rows, self.new_items.select(rows.columns)])
        places = np.where((places < 0) & (added >= 0), len(old) + added, places)
        left = np.ones(len(self.new_index), np.bool_)
        left[added[added >= 0]] = False
        left_items = _with_ids_of(self.new_items.filter(pl.Series(left)), new)
        return replace(self, frame=gathered_rows(rows, places), new_items=left_items)

    def hide(self, index: IdIndex, where: Places) -> Catalogue:
        """Return the catalogue without these items, which become new ones if it knows them."""
        left = np.delete(np.arange(len(index)), where)
        hidden = gathered_rows(self.frame, where)
        name = id_name(self.frame.columns)
        hidden.insert_column(0, index.to_series()[where].alias(name))
        hidden = hidden.filter(pl.any_horizontal(pl.all().exclude(name).is_not_null()))
        if self.new_items is not None:
            hidden = pl.concat([self.new_items, hidden])
        frame = gathered_rows(self.frame, left)
        return replace(self, frame=frame, new_items=hidden if hidden.height else None)

    def renamed(self, names: Mapping[str, str]) -> Catalogue:
        """Return these columns under other names, by the old ones."""
        tables = [self.frame.select(list(names)).rename(names)]
        if self.new_items is not None:
            ids = self.new_items.to_series(0).alias(id_name(names.values()))
            columns = self.new_items.select(list(names)).rename(names)
            tables.append(columns.insert_column(0, ids))
        decided = {names[old]: kind for old, kind in self.decided.items() if old in names}
        return Catalogue(tables[0], tables[1] if len(tables) > 1 else None, decided)

    def merged(self, other: Catalogue) -> Catalogue:
        """Combine the columns of two catalogues of the same items; the other's values win."""
        frame = _merged_columns(self.frame, other.frame)
        new_items = None
        if self.new_items is not None or other.new_items is not None:
            new_items = _merged_new_items(self, other, frame)
        return Catalogue(frame, new_items, {**self.decided, **other.decided})

    def describe(self) -> str:
        """Name the columns and what they are, in words."""
        return "; ".join(f"{name!r} {kind}" for name, kind in self.kinds.items())


def merged(first: Catalogue | None, second: Catalogue | None) -> Catalogue | None:
    """Combine the catalogues of two sides over the same items; the second's values win."""
    if first is None or second is None:
        return second if first is None else first
    return first.merged(second)


def gathered_rows(frame: pl.DataFrame, places: Places) -> pl.DataFrame:
    """Return the rows at these places, an empty row for -1."""
    where = pl.Series(places, dtype=pl.Int64)
    return frame.select(pl.all().gather(where.set(where < 0, None)))


def id_name(columns: Iterable[str]) -> str:
    """Return the name of the column of ids in a table of new items: item, if it is free."""
    name, used = "item", set(columns)
    while name in used:
        name += "_id"
    return name


def _with_ids_of(new_items: pl.DataFrame, index: IdIndex) -> pl.DataFrame | None:
    """Return new items with ids of the type of the index; those that cannot have it are lost."""
    ids = new_items.to_series(0)
    if ids.dtype != index.kind:
        new_items = new_items.with_columns(ids.cast(index.kind, strict=False))
        new_items = new_items.filter(new_items.to_series(0).is_not_null())
    return new_items if new_items.height else None


def _merged_columns(first: pl.DataFrame, second: pl.DataFrame) -> pl.DataFrame:
    check_polars()
    columns = {column.name: column for column in first}
    for column in second:
        old = columns.get(column.name)
        if old is not None:
            old, new = alike(old, column)
            column = pl.select(pl.coalesce(new, old).alias(column.name)).to_series()
        columns[column.name] = column
    return pl.DataFrame(list(columns.values()))


def _merged_new_items(first: Catalogue, second: Catalogue, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the new items of both; `frame` has the columns of the result."""
    name = id_name(frame.columns)
    sides = [side for side in (first, second) if side.new_items is not None]
    ids = list(dict.fromkeys(item for side in sides for item in side.new_index.values.tolist()))
    index = IdIndex(ids, "item")
    out = frame.clear()
    for side in sides:
        assert side.new_items is not None
        rows = side.new_items.drop(side.new_items.columns[0])
        places = side.new_index.positions(index.values, unknown="skip")
        aligned_rows = gathered_rows(rows, places)
        out = _merged_columns(out, aligned_rows) if out.height else aligned_rows
    schema = [
        out[column].cast(kind) if column in out.columns else pl.Series(column, [None] * len(index))
        for column, kind in frame.schema.items()
    ]
    columns = [series.cast(frame.schema[series.name]) for series in schema]
    return pl.DataFrame([index.to_series().alias(name), *columns])


def alike(first: pl.Series, second: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Return two columns of one attribute with one type; an error if they have none."""
    kinds = first.dtype, second.dtype
    if kinds[0] == kinds[1]:
        return first, second
    text = pl.List(pl.String)
    common: Any = None
    if pl.Null in kinds:
        common = kinds[1] if kinds[0] == pl.Null else kinds[0]
    elif all(kind.is_numeric() for kind in kinds):
        # 64 bits without a sign hold numbers that 64 bits with one do not
        fits = all(kind.is_integer() for kind in kinds) and pl.UInt64 not in kinds
        common = pl.Int64 if fits else pl.Float64
    elif {*kinds} == {text, pl.String}:
        return _as_lists(first), _as_lists(second)
    elif all(kind.is_temporal() for kind in kinds):
        common = pl.Datetime("us")
    if common is None:
        shown = f"{kinds[0]} on one side and {kinds[1]} on the other"
        raise DataError(f"column {first.name!r} of the catalogue is {shown}; make them the same")
    return first.cast(common), second.cast(common)


def _as_lists(column: pl.Series) -> pl.Series:
    return column if column.dtype != pl.String else split_values(column, "|")


def object_catalogue(catalogue: Any) -> list[Source]:
    """Open a catalogue in memory: a table or several, or a mapping from items to titles."""
    if isinstance(catalogue, Mapping) and not any(map(_is_column, catalogue.values())):
        catalogue = {"item": list(catalogue), "title": list(catalogue.values())}
    if is_several(catalogue):
        return [source for table in catalogue for source in object_catalogue(table)]
    if isinstance(catalogue, (list, tuple)):
        first = f" that starts with {catalogue[0]!r}" if catalogue else ""
        raise SettingError(
            "catalogue must be a table with a column of items, or a dictionary from items to "
            f"titles, got a {type(catalogue).__name__}{first}; make it one with dict(...)"
        )
    return [object_source(catalogue, "the catalogue")]


def is_several(catalogue: Any) -> bool:
    """Whether a catalogue is a list of tables: frames, mappings of columns or paths."""
    if not isinstance(catalogue, (list, tuple)) or not catalogue:
        return False
    kinds = (str, Mapping) if all(hasattr(part, "keys") for part in catalogue) else (str,)
    return all(
        is_frame(part) or hasattr(part, "__fspath__") or isinstance(part, kinds)
        for part in catalogue
    )


def _is_column(values: object) -> bool:
    return isinstance(values, Iterable) and not isinstance(values, str)


def read_catalogue(index: IdIndex, options: ReadOptions, notes: list[str]) -> Catalogue | None:
    """Return the catalogue of these items, if there are tables of it; add notes on it."""
    if options.catalogue is None:
        return None
    sources: Sequence[Source] = options.catalogue
    tables = [_keyed(source, index, options, notes) for source in sources]
    frame = tables[0].frame
    for table in tables[1:]:
        frame = _joined_tables(frame, table.frame)
    name = " and ".join(dict.fromkeys(source.name for source in sources))
    attributes, decided, title = _decide(frame.drop(ITEM), tables, sources, options)
    also = "" if options.title is not None or len(decided) == 1 else "; pass title= for another"
    titles = "without a column of titles" if title is None else f"titles from its column {title!r}"
    notes.append(f"catalogue from {name}, {titles}{also}")
    catalogue = _matched(frame[ITEM], attributes, decided, index, name, notes)
    notes.append(_attribute_note(catalogue))
    return catalogue


def _keyed(source: Source, index: IdIndex, options: ReadOptions, notes: list[str]) -> Table:
    """Load a table and give it the column `ITEM`, with one row for each item id."""
    key = catalogue_id_column(source, options)
    attribute_names = [name for name in source.columns if name != key]
    if not attribute_names:
        raise DataError(
            f"{source.name} has no column other than {key!r}; a catalogue needs attributes"
        )
    table = source.load([key], attribute_names)
    keys = _same_type(index, table.frame[key], table.written)
    declared = options.catalogue_types or {}
    frame = table.frame.select(
        _as_written(table, name, declared.get(name)) for name in attribute_names
    )
    frame = frame.with_columns(keys.alias(ITEM)).filter(keys.is_not_null())
    if frame.height < table.frame.height:
        lost = table.frame.height - frame.height
        notes.append(f"left out {lost:,} rows of {source.name} whose {key!r} is not an item id")
    unique = frame.unique(subset=[ITEM], keep="first", maintain_order=True)
    if unique.height < frame.height:
        repeats = frame.height - unique.height
        notes.append(f"ignored {repeats:,} repeated items of the catalogue; the first row counts")
    table.frame = unique
    return table


def _as_written(table: Table, name: str, declared: str | None) -> pl.Series:
    """Return a column; if it was declared not to hold numbers, the text as written."""
    column = table.frame[name]
    if (
        declared in ("category", "text")
        and table.written is not None
        and column.dtype.is_numeric()
    ):
        return table.written(name).alias(name)
    return column


def _joined_tables(first: pl.DataFrame, second: pl.DataFrame) -> pl.DataFrame:
    """Join two tables of a catalogue; where both have a value of a column, the first's stays."""
    both = pl.concat([first.select(ITEM), second.select(ITEM)]).unique(maintain_order=True)
    sides = [
        both.join(side, on=ITEM, how="left", maintain_order="left") for side in (first, second)
    ]
    joined = _merged_columns(sides[1].drop(ITEM), sides[0].drop(ITEM))
    order = dict.fromkeys([*first.columns, *second.columns])
    return joined.with_columns(both[ITEM]).select(list(order))


def _decide(
    frame: pl.DataFrame, tables: Sequence[Table], sources: Sequence[Source], options: ReadOptions
) -> tuple[pl.DataFrame, dict[str, str], str | None]:
    """Return the attributes, each with its kind, and the title, which comes first.

    The title is the declared column, else one with a usual name, else the text with the most
    different values; without any text it is an empty column.
    """
    declared = options.catalogue_types or {}
    title: str | None = next(iter(spelled_like(tuple(frame.columns), "title")), None)
    if options.title is not None:
        has_it = (source for source in sources if options.title in source.columns)
        title = given_column(next(has_it, sources[0]), options.title, "title")
    _check_types(declared, frame.columns, title)
    cells, kinds = {}, {}
    for name in frame.columns:
        if declared.get(name) != SKIP:
            cells[name], kinds[name] = understood(
                frame[name], declared.get(name), tables, is_title=name == title
            )
    if title is None:
        texts = [name for name, column in cells.items() if column.dtype == pl.String]
        title = max(texts, key=lambda name: cells[name].n_unique(), default=None)
        if title is not None and title not in declared:
            kinds[title] = "text"
    first = "title" if title is None else title
    columns = {first: cells.get(first, pl.Series(first, [None] * frame.height, dtype=pl.String))}
    columns |= cells
    return pl.DataFrame(list(columns.values())), {first: "text"} | kinds, title


def _same_type(
    index: IdIndex, keys: pl.Series, written: Callable[[str], pl.Series] | None
) -> pl.Series:
    """Convert the keys of a table to the type of the item ids; null if that fails."""
    if index.kind == pl.String:
        return keys.cast(pl.String) if written is None else written(keys.name)
    if keys.dtype.is_float():
        keys = keys.set((keys != keys.floor()) | ~keys.is_finite(), None)
    if keys.dtype == pl.String:  # "007" is not 7
        keys = keys.set(~keys.str.contains(f"^({WHOLE.pattern})$"), None)
    if keys.dtype.is_numeric() or keys.dtype == pl.String:
        return keys.cast(pl.Int64, strict=False)
    raise DataError(
        f"the catalogue has ids of type {keys.dtype} for items of type {index.values.dtype}; "
        "convert them"
    )


def _check_types(declared: Mapping[str, str], names: Sequence[str], title: str | None) -> None:
    """Raise unless the columns with a declared kind exist."""
    for name, kind in declared.items():
        if name not in names:
            near = get_close_matches(name, names, n=1)
            known = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names)}"
            raise DataError(
                f"catalogue_types names the column {name!r}, which the catalogue lacks; {known}"
            )
        if kind == SKIP and name == title:
            raise SettingError(f"{name!r} is the title; to leave it out, pass title= with another")


def _matched(
    keys: pl.Series,
    frame: pl.DataFrame,
    decided: dict[str, str],
    index: IdIndex,
    name: str,
    notes: list[str],
) -> Catalogue:
    """Divide the rows of a catalogue into those of the items and those of new items."""
    row_index = IdIndex(keys.to_numpy(), "item")
    places = row_index.positions(index.values, unknown="skip")
    missing = int((places < 0).sum())
    if len(index) and missing == len(index):
        raise DataError(
            f"{name} has none of the items; check that its id column holds ids such as "
            f"{index.values.tolist()[0]!r}, or pass catalogue_id= with another column"
        )
    if missing:
        notes.append(f"{missing:,} of {len(index):,} items are not in the catalogue")
    is_new = np.ones(len(row_index), np.bool_)
    is_new[places[places >= 0]] = False
    new_items = None
    if is_new.any():
        ids = keys.alias(id_name(frame.columns))
        new_items = frame.clone().insert_column(0, ids).filter(pl.Series(is_new))
        notes.append(f"items of the catalogue without events: {new_items.height:,}")
    return Catalogue(gathered_rows(frame, places), new_items, decided)


def _attribute_note(catalogue: Catalogue) -> str:
    """Return the note on what was understood: each column, its kind and its missing share."""
    tables = [catalogue.frame]
    if catalogue.new_items is not None:
        tables.append(catalogue.new_items)
    height = max(sum(table.height for table in tables), 1)
    parts = []
    for name, kind in catalogue.kinds.items():
        missing = sum(table[name].null_count() for table in tables) / height
        share = f", {missing:.0%} missing" if missing >= 0.005 else ""
        parts.append(f"{name!r} ({kind}{share})")
    return f"attributes: {', '.join(parts)}"
