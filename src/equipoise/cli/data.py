"""Data on the command line: what DATA may be, ids and titles in texts, and `stats` and `split`."""

from __future__ import annotations

import difflib
import functools
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
SHOWN = 3  # items that a refused title may have meant
FILTERS = ("min_user", "min_item")  # reading options that any interactions can follow
ALWAYS = (*FILTERS, "cluster")  # and those that do not depend on how they are read
LEGEND = {
    "Gini": "how concentrated the interactions are: 0 all equal, near 1 a few have all",
    "homophily": "how alike items are that share users, 0 to 1, pairs with more users count more",
    "head share": "share of the interactions on the most used 20% of the items",
}

reads = functools.partial(option, panel="Reading")


def find_users(
    data: Interactions, texts: list[str], *, known: bool = True, hint: str = "check the id"
) -> list[Any]:
    """Return the ids of users, who must be `known`; no error names another user."""
    if not known:
        return [data.user_index.spelled(text) for text in texts]
    users = [raw_id(data.user_index, text) for text in texts]
    for user, text in zip(users, texts, strict=True):
        if user not in data.user_index:
            raise UnknownIdError(f"the model knows no user {text!r}; {hint}")
    return users


def raw_id(index: IdIndex, text: str) -> Any:
    """Return an id of the kind the data have; text that cannot be one is an error."""
    found = index.spelled(text)
    if isinstance(found, str) and index.values.dtype != object:
        raise UnknownIdError(
            f"{text!r} is no {index.axis} here; the {index.axis} ids of this model are integers"
        )
    return found


def find_items(data: Interactions, texts: list[str]) -> list[Any]:
    """Return item ids, each given as an id or, where the data have titles, as a title."""
    return [_find_item(data, text) for text in texts]


def _find_item(data: Interactions, text: str) -> Any:
    try:
        item = raw_id(data.item_index, text)
    except UnknownIdError:
        if data.labels is None:
            raise
        item = None
    if item is not None and item in data.item_index:
        return item
    names = data.items if data.labels is None else data.labels.to_series(0).to_list()
    # an item without a title goes by its id
    titles = [
        str(i if title is None else title) for title, i in zip(names, data.items, strict=True)
    ]
    lower = text.casefold()
    same = [place for place, title in enumerate(titles) if title.casefold() == lower]
    if len(same) == 1:
        return data.items[same[0]]
    near = same or [place for place, title in enumerate(titles) if lower in title.casefold()]
    if not near:
        ids = [str(each) for each in data.items]
        close = difflib.get_close_matches(text, [*ids, *titles], n=1, cutoff=0.5)
        near = [(ids if name in ids else titles).index(name) for name in close]
    shown = [(str(data.items[place]), titles[place]) for place in near[:SHOWN]]
    listed = [item if item == title else f"{item} ({title})" for item, title in shown]
    hint = f"did you mean {', '.join(listed)}?" if listed else "check the id"
    raise UnknownIdError(f"the model knows no item {text!r}; {hint}")


def item_list(data: Interactions, text: str, *, skip: bool = False) -> list[Any]:
    """Return the items in "a,b,c" or in the file of "@FILE"; unknown ones may be left out.

    A file holds an id on each line, or is a table with a column of items. A list of what is in
    stock has items that nobody used yet, so those of a file are always left out, and counted.
    """
    return item_lists(data, text, skip=skip)[0]


def item_lists(
    data: Interactions, text: str, *, skip: bool = False
) -> tuple[list[Any], list[str]]:
    """Return the items as `item_list` does, and the texts of those that are left out."""
    from_file = text.startswith("@")
    listed = _ids_of_file(Path(text[1:]), data.item_index) if from_file else split_list(text)
    if not (skip or from_file):
        return find_items(data, listed), []
    found, unknown = [], []
    for each in listed:
        try:
            item = raw_id(data.item_index, each) if from_file else find_items(data, [each])[0]
        except UnknownIdError:
            item = each
        if item in data.item_index:
            found.append(item)
        else:
            unknown.append(each)
    if unknown:
        note(f"{len(unknown):,} of {len(listed):,} items are unknown to the model")
    return found, unknown


def _ids_of_file(path: Path, index: IdIndex) -> list[str]:
    """Return the items of a file as texts: those of its item column, or of its only column."""
    import polars as pl

    from equipoise.data.readers.columns import spelled_like

    try:
        if path.suffix == ".parquet":
            frame = pl.read_parquet(path)
        else:
            separator = "\t" if path.suffix == ".tsv" else ","
            how: dict[str, Any] = {"infer_schema": False, "has_header": False}
            frame = pl.read_csv(path, separator=separator, **how)
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{path} is not a list of items: {error}") from error
    if path.suffix != ".parquet":
        # the first line is a header unless an item is called so
        names = tuple(str(cell) for cell in frame.row(0)) if frame.height else ()
        headed = bool(spelled_like(names, "item")) or frame.width > 1
        if headed and names[0] not in map(str, index.values):
            frame = frame[1:].rename(dict(zip(frame.columns, names, strict=True)))
    hits = spelled_like(tuple(frame.columns), "item") or frame.columns[:1]
    if frame.width > 1 and len(hits) != 1:
        raise DataError(f"{path} needs one column of items; it has {', '.join(frame.columns)}")
    return [str(each) for each in frame[hits[0]].drop_nulls()]


def split_list(text: str) -> list[str]:
    """Return the ids in "a,b,c"; a JSON list serves for ids that hold commas.

    >>> split_list("a, b"), split_list('["Godfather, The (1972)", 7]')
    (['a', 'b'], ['Godfather, The (1972)', '7'])
    """
    if text.lstrip().startswith("["):
        try:
            listed = json.loads(text)
        except ValueError:
            raise SettingError(f"not a JSON list of ids: {text!r}") from None
        return [str(each) for each in listed]
    return [part.strip() for part in text.split(",") if part.strip()]


@dataclass(frozen=True)
class ReadOptions:
    """How to read a table of interactions; as for `equipoise.read`."""

    user: Annotated[str | None, reads(f"Column of users ({COLUMN}).")] = None
    item: Annotated[str | None, reads(f"Column of items ({COLUMN}).")] = None
    time: Annotated[str | None, reads(f"Column of times ({COLUMN}; none: no times).")] = None
    time_unit: Annotated[str | None, reads("Of times in numbers: s, ms, us or ns.")] = None
    time_format: Annotated[str | None, reads("Of times in text: '%m/%d/%Y %H:%M'.")] = None
    rating: Annotated[str | None, reads("Column of ratings.")] = None
    weight: Annotated[str | None, reads("Column of weights.")] = None
    type: Annotated[str | None, reads("Column of kinds of events, such as view or buy.")] = None
    session: Annotated[str | None, reads("Column of sessions, for data in sessions.")] = None
    gap: Annotated[str | None, reads("Pause that ends a session, such as 30m.")] = None
    min_rating: Annotated[float | None, reads("Keep ratings of at least this.")] = None
    min_user: Annotated[int, reads("Keep users with this many items (k-core).")] = 0
    min_item: Annotated[int, reads("Keep items with this many users (k-core).")] = 0
    labels: Annotated[str | None, reads("File with item titles, for display.")] = None
    label_id: Annotated[str | None, reads("Column of the labels with the item ids.")] = None
    title: Annotated[
        str | None, reads("Column of the labels with the titles.", "--title-column")
    ] = None
    ids: Annotated[Literal["text"] | None, reads("text: ids of digits are text too.")] = None
    separator: Annotated[str | None, reads(r"Between columns, such as ';' or '\t'.")] = None
    header: Annotated[
        bool | None, reads("Whether the first line names the columns.", "--header/--no-header")
    ] = None
    quote: Annotated[str | None, reads("Mark around fields; '' for none.")] = None
    escape: Annotated[
        str | None, reads(r"Character before a mark within a field, such as '\'.")
    ] = None
    encoding: Annotated[str, reads("Of text files.")] = "utf-8"
    sheet: Annotated[str | None, reads("Of an Excel workbook.")] = None
    format: Annotated[str | None, reads("Of the file, such as csv or baskets.")] = None
    on_bad: Annotated[
        Literal["error", "skip"], reads("Stop at unusable rows, or skip and count them.")
    ] = "error"
    cluster: Annotated[
        str | None,
        reads("Let a Dask cluster read and work: its scheduler's address, or local."),
    ] = None

    def load(self, source: str) -> Interactions:
        """Return the interactions that DATA names; what a reader found or left out is noted."""
        return gather(self.open(source))

    def open(self, source: str) -> Interactions | Partitioned:
        """Return the interactions, on the cluster where one is named."""
        with working(f"reading {source}"):
            data = self._load(source)
            if self.min_user or self.min_item:
                data = data.filter(min_user=self.min_user, min_item=self.min_item)
        return data

    def open_split(self, source: str, *allowed: str) -> Split | None:
        """Return the split in a folder, or None; options that it would ignore are refused."""
        found = open_split(source)
        if found is not None:
            refuse_options(self, f"{source} is a saved split", *allowed)
        return found

    def _load(self, source: str) -> Interactions | Partitioned:
        """Return what DATA names; what the library saved or knows by name is read here."""
        if source == STANDARD_INPUT:
            return self._piped()
        from equipoise.data import datasets, readers
        from equipoise.data.interactions import KIND as SAVED
        from equipoise.data.storage import is_directory_of

        if (split := open_split(source)) is not None:
            refuse_options(self, f"{source} is a saved split", *ALWAYS)
            note(f"{source}: a split; its train part is used")
            return split.train
        if is_directory_of(source, SAVED):
            refuse_options(self, f"{source} is saved data", *ALWAYS)
            return readers.read(source)
        absent = not Path(source).exists() and not set(source) & set("*?[")
        data: Interactions | Partitioned
        if absent and (self.cluster is None or source in datasets.names()):
            data = self._named(source)
        elif self.cluster is not None:
            from equipoise import cluster

            data = cluster.read(source, client=self.cluster, **self._settings())
        else:
            data = readers.read(source, **self._settings())
        for sentence in data.notes:
            note(f"{source}: {translate_message(sentence)}")
        return data

    def _piped(self) -> Interactions:
        """Return the interactions in a table on standard input."""
        from equipoise.data import readers

        if self.cluster is not None:
            raise SettingError("a cluster cannot read standard input; give a file, or no cluster=")
        if sys.stdin.isatty():
            raise DataError(
                "- reads standard input, which is a terminal; pipe a table into the command, as "
                "in `cat events.csv | equipoise stats -`, or give the path of a file"
            )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "standard-input.csv")
            with path.open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
            if not path.stat().st_size:
                raise DataError(
                    "standard input is empty; check the command before the pipe, or give the "
                    "path of a file"
                )
            try:
                data = readers.read(path, **self._settings())
            except (DataError, SettingError) as error:
                raise type(error)(str(error).replace(str(path), "standard input")) from error
        for sentence in data.notes:
            note(f"standard input: {translate_message(sentence)}".replace(str(path), "the table"))
        return data

    def _named(self, source: str) -> Interactions:
        from equipoise.data import datasets

        if source not in datasets.names():
            raise DataError(
                f"there is no file or folder {source!r} and no data set of that name; "
                "check the path, or choose from `equipoise datasets`"
            )
        if not datasets.info(source).fetched:
            raise DataError(
                f"{source} has to be downloaded by hand; `equipoise datasets show {source}` tells "
                f"where, then `equipoise datasets fetch {source} --raw FOLDER --out {source}`"
            )
        why = f"{source} is a data set with its own reader"
        refuse_options(self, why, "min_rating", *ALWAYS)
        return datasets.load(source, min_rating=self.min_rating)

    def _settings(self) -> dict[str, Any]:
        """Return the arguments of `equipoise.read`."""
        settings = dict(vars(self))
        for name in (*FILTERS, "cluster"):
            del settings[name]
        columns = "user item time rating weight type session label_id title"
        for name in columns.split():
            text = settings[name]
            settings[name] = int(text) if text is not None and text.isdecimal() else text
        for name in ("time", "rating", "type"):  # none: leave such a column alone
            settings[name] = False if settings[name] == "none" else settings[name]
        settings["separator"] = "\t" if self.separator == r"\t" else self.separator
        return settings


def gather(data: Interactions | Partitioned) -> Interactions:
    """Return the interactions on this machine."""
    from equipoise.data.interactions import Interactions

    if isinstance(data, Interactions):
        return data
    with working(f"gathering {data.name}"):
        return data.gather()


def check_out(path: Path) -> None:
    """Refuse a folder that could not be saved to, before the work is done rather than after."""
    if path.is_file():
        raise DataError(f"{path} is a file; give the path of a folder to save to")
    if path.is_dir() and any(path.iterdir()) and not (path / "manifest.json").is_file():
        raise DataError(f"{path} exists and is not a saved folder; choose another path")
    parent = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise DataError(f"{parent} cannot be written to; choose another path than {path}")


def open_split(source: str) -> Split | None:
    """Return the split in a folder, or None where there is something else."""
    from equipoise.data.split import Split
    from equipoise.data.split.parts import KIND
    from equipoise.data.storage import is_directory_of

    return Split.load(source) if is_directory_of(source, KIND) else None


def require_split(source: str) -> Split:
    """Return the split in a folder; anything else is an error that says how to make one."""
    split = open_split(source)
    if split is None:
        raise DataError(
            f"{source} is not a saved split; make one with `equipoise split DATA {source}`"
        )
    return split


@declare(app, "stats", "equipoise stats events.csv")
def stats(
    data: Annotated[list[str], typer.Argument(metavar="DATA", help=DATA)],
    reading: ReadOptions,
    delta: Annotated[float, option("Exponent of the homophily weights.")] = 1.5,
    as_json: Json = False,
) -> None:
    """Describe data: size, density, Gini, homophily; one row per DATA."""
    from equipoise.data.interactions import Interactions
    from equipoise.data.statistics import describe

    found: list[tuple[str, Statistics]] = []
    for source in data:
        interactions = reading.open(source)
        with working(f"describing {source}"):
            if isinstance(interactions, Interactions):
                found.append((source, describe(interactions, delta=delta)))
            else:
                found.append((source, interactions.describe(delta=delta)))
    if as_json:
        emit([{"data": source, **each.to_dict()} for source, each in found])
        return
    if len(found) == 1:
        say(str(found[0][1]))
    else:  # as in Table 1 of the paper
        rows = []
        for source, each in found:
            sizes = (each.n_users, each.n_items, each.n_interactions, f"{each.density:.3%}")
            shape = (each.gini_items, each.homophily, f"{each.head_share:.1%}")
            rows.append((source, *sizes, *shape))
        names = ("data", "users", "items", "interactions", "density", "Gini", "homophily")
        show(rows, *names, "head share")
    legend(LEGEND)


Protocol = Literal["strong", "weak", "last", "time", "session", "given"]


@dataclass(frozen=True)
class SplitOptions:
    """Options of the split functions; None leaves a function's default."""

    valid: Annotated[float | None, option("Share to tune on; 0: none. (last: 0 or 1)")] = None
    test: Annotated[float | None, option("Share to report on.")] = None
    history: Annotated[float | None, option("strong: share of a user's items to show.")] = None
    order: Annotated[
        Literal["random", "time"] | None,
        option("strong, session: hold out at random or the latest."),
    ] = None
    n: Annotated[int | None, option("last: items to hide.", "-n", "--n")] = None
    test_from: Annotated[str | None, option("time: where test begins, a date or seconds.")] = None
    valid_from: Annotated[str | None, option("time: where valid begins, a date or seconds.")] = (
        None
    )
    repeats: Annotated[
        Literal["new", "all", "again"] | None,
        option("last, time: find items new to the user, all, or only known ones again."),
    ] = None
    seed: Annotated[int | None, option("Same data and seed, same split.")] = None

    def settings(self, protocol: Protocol) -> dict[str, Any]:
        """Return the arguments of the protocol's function; options of others are refused."""
        known = {
            "strong": ("valid", "test", "history", "order", "seed"),
            "weak": ("valid", "test", "seed"),
            "last": ("valid", "n", "repeats"),
            "time": ("valid", "test", "test_from", "valid_from", "repeats"),
            "session": ("valid", "test", "order", "seed"),
            "given": (),
        }[protocol]
        given = {name: value for name, value in vars(self).items() if value is not None}
        for name in given:
            if name not in known:
                option = name.replace("_", "-")
                raise SettingError(f"--protocol {protocol} has no --{option}; leave it out")
        for name in {"test_from", "valid_from"} & set(given):
            try:
                given[name] = float(given[name])
            except ValueError:
                continue  # a date
        if protocol == "last":  # as many items in valid as in test, or no such part
            n = given.get("n", 1)
            given |= {"test": n, "valid": n if given.get("valid", 1) else 0}
            given.pop("n", None)
        return given


@declare(app, "split", "equipoise split events.csv split --protocol strong --seed 0")
def split(
    data: Annotated[str, typer.Argument(metavar="DATA", help=DATA)],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    shares: SplitOptions,
    reading: ReadOptions,
    protocol: Annotated[
        Protocol, option("Who is evaluated, on what.", "--protocol", "-p")
    ] = "strong",
    as_json: Json = False,
) -> None:
    """Split data into train, valid and test.

    strong: users the model never saw; weak: a share of each user's items; last: each user's last
    items; time: what happened from a date on; session: the next item of new sessions; given: DATA
    is a folder with a published split (train, test_in, test_target, ... or train and test).
    """
    check_out(out)
    made = _cut(data, protocol, shares.settings(protocol), reading)
    made.save(out)
    if not as_json:
        say(f"{made}\nsaved in {out}")
        return
    facts = {"protocol": made.protocol, "seed": made.seed, "fingerprint": made.fingerprint}
    train = {"users": made.train.n_users, "interactions": made.train.n_interactions}
    items = {"items": made.train.n_items, "notes": list(made.notes), "path": str(out)}
    parts = {}
    for part in made.parts:
        known, hidden = part.history.n_interactions, part.target.n_interactions
        parts[part.name] = {"users": part.n_users, "known": known, "to_find": hidden}
    emit({**facts, **items, "train": train, **parts})


def _cut(data: str, protocol: Protocol, settings: dict[str, Any], reading: ReadOptions) -> Split:
    from equipoise.data import split as splits

    if protocol == "given":
        refuse_options(reading, "--protocol given takes a split as it was published")
        with working(f"reading {data}"):
            return _published(Path(data))
    names = {"last": "leave_last_out", "time": "time_cut", "session": "sessions"}
    cut = getattr(splits, names.get(protocol, protocol))
    made: Split = cut(reading.load(data), **settings)
    return made


def _published(folder: Path) -> Split:
    """Return the split that a folder holds part by part."""
    from equipoise.data.readers import read_multvae, read_strong, read_weak
    from equipoise.data.split import from_parts

    multvae = (folder / "unique_sid.txt").is_file()
    if multvae or (folder / "test_in.npz").is_file():
        read = read_multvae(folder) if multvae else read_strong(folder)
        valid, test = ((read[f"{name}_in"], read[f"{name}_target"]) for name in ("valid", "test"))
        return from_parts(read["train"], valid=valid, test=test, protocol="strong", unknown="skip")
    read = read_weak(folder)
    test = (read["train"], read["test"])
    return from_parts(read["train"], test=test, protocol="weak", unknown="skip")
