"""Ids given on the command line: text that may stand for integers, or for a title.

Options of commands that read data, and what DATA may be.

Commands on data: `stats` and `split`.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from equipoise.cli.framework import Json, declare
from equipoise.cli.output import add, emit, note, say, show, table, working
from equipoise.errors import DataError, SettingError, UnknownIdError

if TYPE_CHECKING:
    from equipoise.ids import IdIndex
    from equipoise.interactions import Interactions
    from equipoise.split import Split
    from equipoise.statistics import Statistics

SHOWN = 3


def find_users(data: Interactions, texts: list[str]) -> list[Any]:
    """Return the ids of training users."""
    users = [raw_id(data.user_index, text) for text in texts]
    for user, text in zip(users, texts, strict=True):
        if user not in data.user_index:
            near = difflib.get_close_matches(text, [str(each) for each in data.users], n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UnknownIdError(
                f"the model knows no user {text!r}; {hint}for somebody new give --history"
            )
    return users


def raw_id(index: IdIndex, text: str) -> Any:
    """Return an id of the kind the data have; text that cannot be one is an error."""
    if index.values.dtype == object:
        return text
    try:
        return int(text)
    except ValueError:
        raise UnknownIdError(
            f"{text!r} is no {index.axis} here; the {index.axis} ids of this model are integers"
        ) from None


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
    titles = [str(title) for title in names]
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


DATA = "A file (csv, tsv, jsonl, parquet; gz), folder, saved data or split, or data set name."


COLUMN = "name, or number from 0"


PANEL = "Reading"


class OnBad(StrEnum):
    """What to do with rows that cannot be used."""

    error = "error"
    skip = "skip"


def _option(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=PANEL)


@dataclass(frozen=True)
class Reading:
    """How to read a table of interactions; as for `equipoise.read`."""

    user: Annotated[str | None, _option(f"Column of users ({COLUMN}).", "--user")] = None
    item: Annotated[str | None, _option(f"Column of items ({COLUMN}).", "--item")] = None
    time: Annotated[str | None, _option(f"Column of times ({COLUMN}).", "--time")] = None
    time_unit: Annotated[str | None, _option("Of times in numbers: s, ms, us or ns.")] = None
    rating: Annotated[str | None, _option("Column of ratings.", "--rating")] = None
    weight: Annotated[str | None, _option("Column of weights.", "--weight")] = None
    session: Annotated[str | None, _option("Column of sessions, for data in sessions.")] = None
    gap: Annotated[str | None, _option("Pause that ends a session, such as 30m.")] = None
    min_rating: Annotated[float | None, _option("Keep ratings of at least this.")] = None
    min_user: Annotated[int, _option("Keep users with this many items (k-core).")] = 0
    min_item: Annotated[int, _option("Keep items with this many users (k-core).")] = 0
    labels: Annotated[str | None, _option("File with item titles, for display.")] = None
    separator: Annotated[str | None, _option(r"Between columns, such as ';' or '\t'.")] = None
    header: Annotated[
        bool | None, _option("Whether the first line names the columns.", "--header/--no-header")
    ] = None
    encoding: Annotated[str, _option("Of text files.")] = "utf-8"
    format: Annotated[str | None, _option("Of the file, if its name does not tell.")] = None
    on_bad: Annotated[OnBad, _option("Stop at unusable rows, or skip and count them.")] = (
        OnBad.error
    )

    def load(self, source: str) -> Interactions:
        """Return the interactions that DATA names; what a reader found or left out is noted."""
        with working(f"reading {source}"):
            data = self._load(source)
            if self.min_user or self.min_item:
                data = data.filter(min_user=self.min_user, min_item=self.min_item)
        return data

    def load_change(self, source: str) -> Interactions:
        """Return interactions to add or remove: unlike data to fit on, one user may be all."""
        try:
            return self.load(source)
        except DataError as error:
            # All rows have been checked by then, so there are none that would be skipped.
            if "there is only one" not in str(error):
                raise
            return dataclasses.replace(self, on_bad=OnBad.skip).load(source)

    def _load(self, source: str) -> Interactions:
        from equipoise import readers
        from equipoise.interactions import KIND as SAVED
        from equipoise.storage import is_directory_of

        if not Path(source).exists() and not set(source) & set("*?["):
            data = self._named(source)
        elif (split := open_split(source)) is not None:
            self._refuse_options(f"{source} is a saved split")
            note(f"{source}: a split; its train part is used")
            return split.train
        elif is_directory_of(source, SAVED):
            self._refuse_options(f"{source} is saved data")
            return readers.read(source)
        else:
            data = readers.read(source, **self._settings())
        for sentence in data.notes:
            note(f"{source}: {sentence}")
        return data

    def _named(self, source: str) -> Interactions:
        from equipoise import datasets

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
        self._refuse_options(f"{source} is a data set with a reader of its own", "min_rating")
        return datasets.load(source, min_rating=self.min_rating)

    def _refuse_options(self, why: str, *allowed: str) -> None:
        """Refuse reading options that would have no effect."""
        for field in dataclasses.fields(self):
            if field.name in ("min_user", "min_item", *allowed):
                continue
            if getattr(self, field.name) != field.default:
                option = field.name.replace("_", "-")
                raise SettingError(f"{why}: leave out --{option}")

    def _settings(self) -> dict[str, Any]:
        return {
            "user": _column(self.user),
            "item": _column(self.item),
            "time": _column(self.time),
            "time_unit": self.time_unit,
            "rating": _column(self.rating),
            "weight": _column(self.weight),
            "session": _column(self.session),
            "gap": self.gap,
            "min_rating": self.min_rating,
            "labels": self.labels,
            "separator": "\t" if self.separator == r"\t" else self.separator,
            "header": self.header,
            "encoding": self.encoding,
            "format": self.format,
            "on_bad": self.on_bad.value,
        }


def _column(text: str | None) -> str | int | None:
    return int(text) if text is not None and text.isdecimal() else text


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
    from equipoise.split import Split
    from equipoise.split.parts import KIND
    from equipoise.storage import is_directory_of

    return Split.load(source) if is_directory_of(source, KIND) else None


def require_split(source: str) -> Split:
    """Return the split in a folder; anything else is an error that says how to make one."""
    split = open_split(source)
    if split is None:
        raise DataError(
            f"{source} is not a saved split; make one with `equipoise split DATA {source}`"
        )
    return split


app = typer.Typer()

LEGEND = (
    ("Gini", "how concentrated the interactions are: 0 all equal, near 1 a few have all"),
    (
        "homophily",
        "how alike items are that share users, 0 to 1, pairs with more users count more",
    ),
    ("head share", "share of the interactions on the most used 20% of the items"),
)


@declare(app, "stats", "equipoise stats events.csv")
def stats(
    data: Annotated[list[str], typer.Argument(metavar="DATA", help=DATA)],
    reading: Reading,
    delta: Annotated[float, typer.Option(help="Exponent of the homophily weights.")] = 1.5,
    as_json: Json = False,
) -> None:
    """Describe data: size, density, Gini, homophily and more; one row for each DATA."""
    from equipoise.statistics import describe

    found: list[tuple[str, Statistics]] = []
    for source in data:
        interactions = reading.load(source)
        with working(f"describing {source}"):
            found.append((source, describe(interactions, delta=delta)))
    if as_json:
        emit([{"data": source, **each.to_dict()} for source, each in found])
    elif len(found) == 1:
        print_statistics(found[0][1])
    else:
        print_rows(found)


def print_statistics(found: Statistics) -> None:
    """Print one data set, a line for each statistic."""
    out = table("", "", "", left=(0, 2))
    add(out, "users", f"{found.n_users:,}", _spread("items each", found, "user"))
    add(out, "items", f"{found.n_items:,}", _spread("users each", found, "item"))
    add(out, "interactions", f"{found.n_interactions:,}", f"density {_percent(found.density)}")
    add(out, "Gini of items", f"{found.gini_items:.4f}", f"of users {found.gini_users:.4f}")
    add(out, "homophily", f"{found.homophily:.4f}", f"delta {found.delta:g}")
    add(out, "head share", f"{found.head_share:.1%}", "on the most used 20% of the items")
    show(out)
    print_legend(LEGEND[:2])


def print_rows(found: list[tuple[str, Statistics]]) -> None:
    """Print several data sets, a row for each, as in Table 1 of the paper."""
    names = ["data", "users", "items", "interactions", "density", "Gini", "homophily"]
    out = table(*names, "head share")
    for source, each in found:
        sizes = [f"{size:,}" for size in (each.n_users, each.n_items, each.n_interactions)]
        shape = [_percent(each.density), f"{each.gini_items:.4f}", f"{each.homophily:.4f}"]
        add(out, source, *sizes, *shape, f"{each.head_share:.1%}")
    show(out)
    print_legend(LEGEND)


def print_legend(lines: tuple[tuple[str, str], ...]) -> None:
    """Print what the words of a table mean, one line each."""
    say()
    for word, meaning in lines:
        say(Text.assemble((word, "italic"), f": {meaning}", style="dim"))


def _spread(what: str, found: Statistics, axis: str) -> str:
    median, least, most = (getattr(found, f"{kind}_{axis}") for kind in ("median", "min", "max"))
    return f"{what}: median {median:,g}, from {least:,} to {most:,}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


class Protocol(StrEnum):
    """Ways to split."""

    strong = "strong"
    weak = "weak"
    last = "last"
    time = "time"
    session = "session"
    given = "given"


class Order(StrEnum):
    """Which items or sessions are held out."""

    random = "random"
    time = "time"


@dataclass(frozen=True)
class Shares:
    """Options of the split functions; None leaves a function's own default."""

    valid: Annotated[
        float | None, typer.Option(help="Share to tune on; 0 for none. (last: 0 or 1)")
    ] = None
    test: Annotated[float | None, typer.Option(help="Share to report on.")] = None
    history: Annotated[
        float | None, typer.Option(help="strong: share of a held-out user's items to show.")
    ] = None
    order: Annotated[
        Order | None, typer.Option(help="strong, session: hold out at random or the latest.")
    ] = None
    n: Annotated[int | None, typer.Option("-n", "--n", help="last: items to hide.")] = None
    test_from: Annotated[
        str | None, typer.Option(help="time: first moment of test, a date or seconds.")
    ] = None
    valid_from: Annotated[
        str | None, typer.Option(help="time: first moment of valid, a date or seconds.")
    ] = None
    seed: Annotated[int | None, typer.Option(help="Same data and seed, same split.")] = None

    def settings(self, protocol: Protocol) -> dict[str, Any]:
        """Return the arguments of the protocol's function; options of others are refused."""
        known = {
            "strong": ("valid", "test", "history", "order", "seed"),
            "weak": ("valid", "test", "seed"),
            "last": ("valid", "n"),
            "time": ("valid", "test", "test_from", "valid_from"),
            "session": ("valid", "test", "order", "seed"),
            "given": (),
        }[protocol.value]
        given = {name: value for name, value in vars(self).items() if value is not None}
        for name in given:
            if name not in known:
                option = name.replace("_", "-")
                raise SettingError(f"--protocol {protocol.value} has no --{option}; leave it out")
        if "order" in given:
            given["order"] = str(given["order"])
        for name in ("test_from", "valid_from"):
            if name in given:
                given[name] = _moment(given[name])
        if protocol == "last":  # as many items in valid as in test, or no such part
            n = given.get("n", 1)
            given = {"test": n, "valid": n if given.get("valid", 1) else 0}
        return given


@declare(app, "split", "equipoise split events.csv split --protocol strong --seed 0")
def split(
    data: Annotated[str, typer.Argument(metavar="DATA", help=DATA)],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    shares: Shares,
    reading: Reading,
    protocol: Annotated[
        Protocol, typer.Option("--protocol", "-p", help="Who is judged, on what.")
    ] = Protocol.strong,
    as_json: Json = False,
) -> None:
    """Cut data into train, valid and test.

    strong: people the model never saw; weak: a share of everybody's items; last: everybody's last
    items; time: what happened from a date on; session: the next item of new sessions; given: DATA
    is a folder with a published split (train, test_in, test_target, ... or train and test).
    """
    check_out(out)
    settings = shares.settings(protocol)
    made = _cut(data, protocol, settings, reading)
    made.save(out)
    if as_json:
        parts = {part.name: _part_sizes(part) for part in made.parts}
        train = {"users": made.train.n_users, "interactions": made.train.n_interactions}
        facts = {"protocol": made.protocol, "seed": made.seed, "fingerprint": made.fingerprint}
        items = {"items": made.train.n_items, "notes": list(made.notes), "path": str(out)}
        emit({**facts, **items, "train": train, **parts})
        return
    rows = table("", "users", "known", "to find")
    add(rows, "train", f"{made.train.n_users:,}", f"{made.train.n_interactions:,}", "")
    for part in made.parts:
        sizes = _part_sizes(part)
        add(rows, part.name, *(f"{size:,}" for size in sizes.values()))
    show(rows)
    for sentence in made.notes:
        note(f"note: {sentence}")
    say(f"\n{made.protocol} split of {made.train.n_items:,} items saved in {out}")


def _cut(data: str, protocol: Protocol, settings: dict[str, Any], reading: Reading) -> Split:
    from equipoise import split as splits

    if protocol == "given":
        with working(f"reading {data}"):
            return _published(Path(data))
    cuts: dict[str, Any] = {
        "strong": splits.strong,
        "weak": splits.weak,
        "last": splits.leave_last_out,
        "time": splits.time_cut,
        "session": splits.sessions,
    }
    made: Split = cuts[protocol.value](reading.load(data), **settings)
    return made


def _published(folder: Path) -> Split:
    """Return the split that a folder holds part by part."""
    from equipoise.readers import read_multvae, read_strong, read_weak
    from equipoise.split import from_parts

    if (folder / "test_in.npz").is_file() or (folder / "unique_sid.txt").is_file():
        read = read_multvae if (folder / "unique_sid.txt").is_file() else read_strong
        parts = read(folder)
        return from_parts(
            parts["train"],
            valid=(parts["valid_in"], parts["valid_target"]),
            test=(parts["test_in"], parts["test_target"]),
            protocol="strong",
            unknown="skip",
        )
    parts = read_weak(folder)
    return from_parts(
        parts["train"], test=(parts["train"], parts["test"]), protocol="weak", unknown="skip"
    )


def _part_sizes(part: Any) -> dict[str, int]:
    return {
        "users": part.n_users,
        "known": part.history.n_interactions,
        "to_find": part.target.n_interactions,
    }


def _moment(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
