"""Reading DATA, ids and titles on the command line, and the commands `stats` and `split`."""

from __future__ import annotations

import difflib
import functools
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

import typer

from equipoise.cli.framework import (
    Json,
    declare,
    emit,
    legend,
    note,
    option,
    refuse_options,
    say,
    show,
    translate_message,
    working,
)
from equipoise.data.read_options import ROLES, ReadOptions
from equipoise.errors import DataError, SettingError, UnknownIdError

if TYPE_CHECKING:
    from equipoise.cluster import Partitioned
    from equipoise.data.ids import IdIndex
    from equipoise.data.interactions import Interactions
    from equipoise.data.split import Split
    from equipoise.data.statistics import Statistics

app = typer.Typer()

DATA = (
    "A file (csv, tsv, jsonl, parquet, xlsx), folder, saved data or split, data set name, "
    "or - for CSV from standard input."
)
STANDARD_INPUT = "-"
COLUMN = "name, or number from 0"
SUGGESTIONS = 3  # similar items in the error for an unknown title
ALWAYS = ("min_user", "min_item", "cluster")  # options that do not depend on the source
LEGEND = {
    "Gini": "concentration of the interactions: 0 all items equal, near 1 a few items have all",
    "homophily": "mean similarity of items that share users, 0 to 1, weighted by common users",
    "head share": "share of the interactions on the most popular 20% of the items",
}

read_option = functools.partial(option, panel="Reading")


def find_users(
    data: Interactions, texts: list[str], *, known: bool = True, hint: str = "check the id"
) -> list[Any]:
    """Return the ids of users; errors never name other users, for privacy."""
    if not known:
        return [data.user_index.spelled(text) for text in texts]
    users = [raw_id(data.user_index, text) for text in texts]
    for user, text in zip(users, texts, strict=True):
        if user not in data.user_index:
            raise UnknownIdError(f"the model does not know the user {text!r}; {hint}")
    return users


def raw_id(index: IdIndex, text: str) -> Any:
    """Return an id in the type of the data's ids; raise if the text cannot be one."""
    converted = index.spelled(text)
    if isinstance(converted, str) and index.values.dtype != object:
        raise UnknownIdError(
            f"there is no {index.axis} {text!r}; the {index.axis} ids of this model are integers"
        )
    return converted


def find_items(data: Interactions, texts: list[str]) -> list[Any]:
    """Return item ids for texts that are ids or titles."""
    return [_find_item(data, text) for text in texts]


def _find_item(data: Interactions, text: str) -> Any:
    try:
        item = raw_id(data.item_index, text)
    except UnknownIdError:
        if data.catalogue is None:
            raise
        item = None
    if item is not None and item in data.item_index:
        return item
    names = data.items if data.catalogue is None else data.catalogue.to_series(0).to_list()
    # an item without a title goes by its id
    titles = [
        str(i if title is None else title) for title, i in zip(names, data.items, strict=True)
    ]
    lower = text.casefold()
    equal = [place for place, title in enumerate(titles) if title.casefold() == lower]
    if len(equal) == 1:
        return data.items[equal[0]]
    similar = equal or [place for place, title in enumerate(titles) if lower in title.casefold()]
    if not similar:
        ids = [str(item) for item in data.items]
        close = difflib.get_close_matches(text, [*ids, *titles], n=1, cutoff=0.5)
        similar = [(ids if name in ids else titles).index(name) for name in close]
    pairs = [(str(data.items[place]), titles[place]) for place in similar[:SUGGESTIONS]]
    listed = [item if item == title else f"{item} ({title})" for item, title in pairs]
    hint = f"did you mean {', '.join(listed)}?" if listed else "check the id"
    raise UnknownIdError(f"the model does not know the item {text!r}; {hint}")


def item_list(data: Interactions, text: str, *, skip: bool = False) -> list[Any]:
    """Return the known items of `item_lists`."""
    return item_lists(data, text, skip=skip)[0]


def item_lists(
    data: Interactions, text: str, *, skip: bool = False
) -> tuple[list[Any], list[str]]:
    """Return the known and the unknown items of "a,b,c" or of the file in "@FILE".

    A file has one id per line, or is a table with a column of items. Unknown items raise an error
    unless `skip`; those of a file never do, since a list of the stock has unused items.
    """
    from_file = text.startswith("@")
    listed = _ids_of_file(Path(text[1:]), data.item_index) if from_file else split_list(text)
    if not (skip or from_file):
        return find_items(data, listed), []
    known, unknown = [], []
    for entry in listed:
        try:
            item = raw_id(data.item_index, entry) if from_file else _find_item(data, entry)
        except UnknownIdError:
            item = entry
        if item in data.item_index:
            known.append(item)
        else:
            unknown.append(entry)
    if unknown:
        note(f"{len(unknown):,} of {len(listed):,} items are unknown to the model")
    return known, unknown


def _ids_of_file(path: Path, index: IdIndex) -> list[str]:
    """Return the ids in the item column, or in the only column, of a file."""
    import polars as pl

    from equipoise.data.columns import spelled_like

    try:
        if path.suffix == ".parquet":
            frame = pl.read_parquet(path)
        else:
            separator = "\t" if path.suffix == ".tsv" else ","
            frame = pl.read_csv(path, separator=separator, infer_schema=False, has_header=False)
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{path} is not a list of items: {error}") from error
    if path.suffix != ".parquet":
        # the first line is a header unless it is the id of an item
        names = tuple(str(cell) for cell in frame.row(0)) if frame.height else ()
        may_be_header = bool(spelled_like(names, "item")) or frame.width > 1
        if may_be_header and names[0] not in map(str, index.values):
            frame = frame[1:].rename(dict(zip(frame.columns, names, strict=True)))
    columns = spelled_like(tuple(frame.columns), "item") or frame.columns[:1]
    if frame.width > 1 and len(columns) != 1:
        raise DataError(f"{path} needs one column of items; it has {', '.join(frame.columns)}")
    return [str(item) for item in frame[columns[0]].drop_nulls()]


def split_list(text: str) -> list[str]:
    """Return the ids in "a,b,c", or in a JSON list for ids that contain commas.

    >>> split_list("a, b"), split_list('["Godfather, The (1972)", 7]')
    (['a', 'b'], ['Godfather, The (1972)', '7'])
    """
    if text.lstrip().startswith("["):
        try:
            listed = json.loads(text)
        except ValueError:
            raise SettingError(f"not a JSON list of ids: {text!r}") from None
        return [str(entry) for entry in listed]
    return [entry.strip() for entry in text.split(",") if entry.strip()]


# Help of the options of `equipoise.read` that the command line offers.
READ_HELP = {
    "user": f"Column of users ({COLUMN}).",
    "item": f"Column of items ({COLUMN}).",
    "time": f"Column of times ({COLUMN}; none: no times).",
    "time_unit": "Unit of numeric times.",
    "time_format": "Format of times in text: '%m/%d/%Y %H:%M'.",
    "rating": "Column of ratings.",
    "weight": "Column of weights.",
    "type": "Column of event types, such as view or buy.",
    "session": "Column of sessions.",
    "gap": "Pause that ends a session, such as 30m.",
    "min_rating": "Minimum rating to keep.",
    "catalogue": "File of item titles and other attributes; repeat it to join several.",
    "catalogue_id": "Column of item ids in --catalogue.",
    "catalogue_types": "What a column of --catalogue is, as in genres=list; may be repeated.",
    "title": "Column of titles in --catalogue.",
    "ids": "text: read numeric ids as text.",
    "separator": r"Column separator, such as ';' or '\t'.",
    "header": "Whether the first line names the columns.",
    "quote": "Quote character; '' for none.",
    "escape": r"Escape character before quotes, such as '\'.",
    "encoding": "Encoding of text files.",
    "sheet": "Sheet of an Excel workbook.",
    "format": "File format, such as csv or baskets.",
    "on_bad": "Unusable rows: stop, or skip and count.",
}
READ_FLAGS = {
    "title": "--title-column",
    "header": "--header/--no-header",
    "catalogue_types": "--catalogue-type",
}
REPEATED = ("catalogue", "catalogue_types")  # options that may be given several times


@dataclass(frozen=True, kw_only=True)
class Reading(ReadOptions):
    """Options for reading DATA: those of `equipoise.read`, a k-core filter and a cluster."""

    min_user: Annotated[int, read_option("Minimum items per user (k-core).")] = 0
    min_item: Annotated[int, read_option("Minimum users per item (k-core).")] = 0
    cluster: Annotated[
        str | None,
        read_option("Dask cluster to use: address of its scheduler, or local."),
    ] = None

    def __post_init__(self) -> None:
        r"""Translate text: digits are positions of columns, none means no column, \t a tab."""
        for name in ROLES:
            text = getattr(self, name)
            if isinstance(text, str) and text.isdecimal():
                object.__setattr__(self, name, int(text))
            elif text == "none" and name in ("time", "rating", "type"):
                object.__setattr__(self, name, False)
        tables = self.catalogue or None
        if isinstance(tables, list) and len(tables) == 1:
            (tables,) = tables
        object.__setattr__(self, "catalogue", tables)
        object.__setattr__(self, "catalogue_types", _told_types(self.catalogue_types))
        if self.separator == r"\t":
            object.__setattr__(self, "separator", "\t")
        super().__post_init__()

    @classmethod
    def command_options(cls) -> dict[str, tuple[Any, Any]]:
        """Return the type, with its help, and the default of each option of a command."""
        types = get_type_hints(cls, include_extras=True)
        options = {}
        for field in fields(cls):
            kind = types[field.name]
            if field.name in READ_HELP:
                if field.name in REPEATED:
                    kind = list[str] | None
                elif kind is Any or str in get_args(kind):
                    kind = str | None
                flags = [READ_FLAGS[field.name]] if field.name in READ_FLAGS else []
                kind = Annotated[kind, read_option(READ_HELP[field.name], *flags)]
            elif field.name not in ALWAYS:
                continue  # ids of the rows and columns of a matrix
            options[field.name] = (kind, field.default)
        return options

    def load(self, source: str) -> Interactions:
        """Return the interactions in DATA on this machine; print the reader's notes."""
        return gather(self.open(source))

    def open(self, source: str) -> Interactions | Partitioned:
        """Return the interactions in DATA, on the cluster if there is one."""
        with working(f"reading {source}"):
            data = self._load(source)
            if self.min_user or self.min_item:
                data = data.filter(min_user=self.min_user, min_item=self.min_item)
        return data

    def open_split(self, source: str, *allowed: str) -> Split | None:
        """Return the split in a folder, or None; raise on options that it would ignore."""
        split = open_split(source)
        if split is not None:
            refuse_options(self, f"{source} is a saved split", *allowed)
        return split

    def _load(self, source: str) -> Interactions | Partitioned:
        if source == STANDARD_INPUT:
            return self._read_standard_input()
        from equipoise.data import datasets, readers
        from equipoise.data.interactions import KIND as SAVED
        from equipoise.data.storage import is_directory_of

        if (split := self.open_split(source, *ALWAYS)) is not None:
            note(f"using the train part of the split {source}")
            return split.train
        if is_directory_of(source, SAVED):
            refuse_options(self, f"{source} is saved data", *ALWAYS)
            return readers.read(source)
        is_missing = not Path(source).exists() and not set(source) & set("*?[")
        data: Interactions | Partitioned
        if is_missing and (self.cluster is None or source in datasets.names()):
            data = self._load_data_set(source)
        elif self.cluster is not None:
            from equipoise import cluster

            data = cluster.read(source, client=self.cluster, **self._settings())
        else:
            data = readers.read(source, **self._settings())
        for sentence in data.notes:
            note(f"{source}: {translate_message(sentence)}")
        return data

    def _read_standard_input(self) -> Interactions:
        from equipoise.data import readers

        if self.cluster is not None:
            raise SettingError(
                "a cluster cannot read standard input; pass a file, or leave out cluster="
            )
        if sys.stdin.isatty():
            raise DataError(
                "- reads standard input, which is a terminal; pipe a table into it, as in "
                "`cat events.csv | equipoise stats -`, or pass the path of a file"
            )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "standard-input.csv")
            with path.open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
            if not path.stat().st_size:
                raise DataError("standard input is empty; check the command before the pipe")
            try:
                data = readers.read(path, **self._settings())
            except (DataError, SettingError) as error:
                raise type(error)(str(error).replace(str(path), "standard input")) from error
        for sentence in data.notes:
            note(f"standard input: {translate_message(sentence)}".replace(str(path), "the table"))
        return data

    def _load_data_set(self, source: str) -> Interactions:
        from equipoise.data import datasets

        if source not in datasets.names():
            raise DataError(
                f"there is no file or folder {source!r} and no data set of that name; "
                "check the path, or choose from `equipoise datasets`"
            )
        if not datasets.info(source).fetched:
            raise DataError(
                f"{source} has to be downloaded by hand; see `equipoise datasets show {source}`, "
                f"then `equipoise datasets fetch {source} --raw FOLDER --out {source}`"
            )
        refuse_options(self, f"{source} is a data set with its own reader", "min_rating", *ALWAYS)
        return datasets.load(source, min_rating=self.min_rating)

    def _settings(self) -> dict[str, Any]:
        """Return the arguments of `equipoise.read`."""
        return {field.name: getattr(self, field.name) for field in fields(ReadOptions)}


def _told_types(texts: Any) -> dict[str, str] | None:
    """Return the kinds of columns in texts such as "genres=list"."""
    types = {}
    for text in texts or ():
        name, equals, kind = text.partition("=")
        if not (name and equals and kind):
            raise SettingError(f"catalogue_types= must look like genres=list, got {text!r}")
        types[name] = kind
    return types or None


def gather(data: Interactions | Partitioned) -> Interactions:
    """Return the interactions in the memory of this machine."""
    from equipoise.data.interactions import Interactions

    if isinstance(data, Interactions):
        return data
    with working(f"gathering {data.name}"):
        return data.gather()


def check_out(path: Path) -> None:
    """Raise early if a folder cannot be saved to."""
    if path.is_file():
        raise DataError(f"{path} is a file; give the path of a folder to save to")
    if path.is_dir() and any(path.iterdir()) and not (path / "manifest.json").is_file():
        raise DataError(f"{path} exists and is not a saved folder; choose another path")
    folders = (path.absolute(), *path.absolute().parents)
    parent = next(folder for folder in folders if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise DataError(f"{parent} cannot be written to; choose another path than {path}")


def open_split(source: str) -> Split | None:
    """Return the split in a folder, or None if it holds none."""
    from equipoise.data.split import Split
    from equipoise.data.split.parts import KIND
    from equipoise.data.storage import is_directory_of

    return Split.load(source) if is_directory_of(source, KIND) else None


def require_split(source: str) -> Split:
    """Return the split in a folder; raise if it holds none."""
    split = open_split(source)
    if split is None:
        # where SOURCE is a table, it is what to split, not where to write
        names = f"{source} SPLIT" if Path(source).is_file() else f"DATA {source}"
        raise DataError(f"{source} is not a saved split; make one with `equipoise split {names}`")
    return split


@declare(app, "stats", "equipoise stats events.csv")
def stats(
    data: Annotated[list[str], typer.Argument(metavar="DATA", help=DATA)],
    reading: Reading,
    delta: Annotated[float, option("Exponent of the homophily weights.")] = 1.5,
    as_json: Json = False,
) -> None:
    """Describe data: size, density, Gini, homophily; one row per DATA."""
    from equipoise.data.interactions import Interactions
    from equipoise.data.statistics import describe

    described: list[tuple[str, Statistics]] = []
    for source in data:
        interactions = reading.open(source)
        with working(f"describing {source}"):
            if isinstance(interactions, Interactions):
                described.append((source, describe(interactions, delta=delta)))
            else:
                described.append((source, interactions.describe(delta=delta)))
    if as_json:
        emit([{"data": source, **statistics.to_dict()} for source, statistics in described])
        return
    if len(described) == 1:
        say(str(described[0][1]))
    else:  # as in Table 1 of the paper
        rows = []
        for source, s in described:
            sizes = (s.n_users, s.n_items, s.n_interactions, f"{s.density:.3%}")
            rows.append((source, *sizes, s.gini_items, s.homophily, f"{s.head_share:.1%}"))
        headings = ("data", "users", "items", "interactions", "density", "Gini", "homophily")
        show(rows, *headings, "head share")
    legend(LEGEND)


Protocol = Literal["strong", "weak", "last", "time", "session", "items", "given"]


@dataclass(frozen=True)
class SplitOptions:
    """Arguments of the split functions; None means the default."""

    valid: Annotated[float | None, option("Share for tuning, 0 for none (last: 0 or 1).")] = None
    test: Annotated[float | None, option("Share for testing.")] = None
    history: Annotated[
        float | None, option("strong, items: share of a user's items as history.")
    ] = None
    new_items: Annotated[
        float | None, option("Share of the items to hide (--protocol items). [0.15]")
    ] = None
    order: Annotated[
        Literal["random", "time"] | None,
        option("strong, session: hold out random or latest items."),
    ] = None
    n: Annotated[int | None, option("last: items to hold out.", "-n", "--n")] = None
    test_from: Annotated[str | None, option("time: start of test, a date or seconds.")] = None
    valid_from: Annotated[str | None, option("time: start of valid, a date or seconds.")] = None
    repeats: Annotated[
        Literal["new", "all", "again"] | None,
        option("last, time: targets new to the user, all, or only repeats."),
    ] = None
    seed: Annotated[int | None, option("Random seed of the split.")] = None

    def settings(self, protocol: Protocol) -> dict[str, Any]:
        """Return the arguments of the protocol's function; raise on those of other protocols."""
        known = {
            "strong": ("valid", "test", "history", "order", "seed"),
            "weak": ("valid", "test", "seed"),
            "last": ("valid", "n", "repeats"),
            "time": ("valid", "test", "test_from", "valid_from", "repeats"),
            "session": ("valid", "test", "order", "seed"),
            "items": ("valid", "new_items", "history", "seed"),
            "given": (),
        }[protocol]
        arguments = {name: value for name, value in vars(self).items() if value is not None}
        for name in arguments:
            if name not in known:
                option = name.replace("_", "-")
                raise SettingError(f"--protocol {protocol} has no --{option}; leave it out")
        for name in {"test_from", "valid_from"} & set(arguments):
            try:
                arguments[name] = float(arguments[name])
            except ValueError:
                continue  # a date
        if "new_items" in arguments:
            arguments["share"] = arguments.pop("new_items")
        if protocol == "last":  # as many items in valid as in test, or no valid part
            n = arguments.pop("n", 1)
            arguments |= {"test": n, "valid": n if arguments.get("valid", 1) else 0}
        return arguments


@declare(app, "split", "equipoise split events.csv split --protocol strong --seed 0")
def split(
    data: Annotated[str, typer.Argument(metavar="DATA", help=DATA)],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    shares: SplitOptions,
    reading: Reading,
    protocol: Annotated[Protocol, option("Split protocol.", "--protocol", "-p")] = "strong",
    folds: Annotated[
        int | None, option("strong, weak: splits for cross-validation, in OUT/1, OUT/2, ...")
    ] = None,
    as_json: Json = False,
) -> None:
    """Split data into train, valid and test.

    strong: new users; weak: a share of each user's items; last: each user's last items; time:
    events from a date on; session: next items of new sessions; items: all events of some items,
    which --new-items means too; given: DATA is a folder with a published split (train, test_in,
    test_target, ... or train and test).
    """
    check_out(out)
    if shares.new_items is not None and protocol == "strong":
        protocol = "items"
    arguments = shares.settings(protocol)
    if folds is None:
        parts = _split(data, protocol, arguments, reading)
        parts.save(out)
        emit(_sizes(parts, out)) if as_json else say(f"{parts}\nsaved in {out}")
        return
    if protocol not in ("strong", "weak") or "test" in arguments:
        raise SettingError("--folds is for --protocol strong and weak, without --test")
    from equipoise.data.split import folds as split_folds

    facts = []
    for number, parts in enumerate(
        split_folds(reading.load(data), folds, protocol=protocol, **arguments), 1
    ):
        parts.save(out / str(number))
        facts.append(_sizes(parts, out / str(number)))
        if not as_json:
            say(f"{parts}\nsaved in {out / str(number)}")
    if as_json:
        emit({"folds": facts})


def _sizes(parts: Split, path: Path) -> dict[str, Any]:
    train = parts.train
    facts = {name: getattr(parts, name) for name in ("protocol", "seed", "fingerprint")}
    facts |= {"items": train.n_items, "notes": list(parts.notes), "path": str(path)}
    facts["train"] = {"users": train.n_users, "interactions": train.n_interactions}
    for part in parts.parts:
        known, hidden = part.history.n_interactions, part.target.n_interactions
        facts[part.name] = {"users": part.n_users, "known": known, "to_find": hidden}
    return facts


def _split(data: str, protocol: Protocol, arguments: dict[str, Any], reading: Reading) -> Split:
    from equipoise.data import split as splits

    if protocol == "given":
        refuse_options(reading, "--protocol given uses a split as it was published")
        with working(f"reading {data}"):
            return _published(Path(data))
    names = {"last": "leave_last_out", "time": "time_cut", "session": "sessions"}
    names["items"] = "new_items"
    split_by = getattr(splits, names.get(protocol, protocol))
    result: Split = split_by(reading.load(data), **arguments)
    return result


def _published(folder: Path) -> Split:
    """Return the split in a folder with one file per part."""
    from equipoise.data.readers import read_multvae, read_strong, read_weak
    from equipoise.data.split import from_parts

    multvae = (folder / "unique_sid.txt").is_file()
    if multvae or (folder / "test_in.npz").is_file():
        parts = read_multvae(folder) if multvae else read_strong(folder)
        valid, test = ((parts[f"{n}_in"], parts[f"{n}_target"]) for n in ("valid", "test"))
        sets: dict[str, Any] = {"valid": valid, "test": test}
        return from_parts(parts["train"], **sets, protocol="strong", unknown_items="skip")
    parts = read_weak(folder)
    test = (parts["train"], parts["test"])
    return from_parts(parts["train"], test=test, protocol="weak", unknown_items="skip")
