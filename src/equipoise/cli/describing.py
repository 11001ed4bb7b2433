"""Commands on data: `stats` and `split`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from equipoise.cli.framework import Json, declare
from equipoise.cli.output import add, emit, note, say, show, table, working
from equipoise.cli.reading import DATA, Reading, check_out
from equipoise.errors import SettingError

if TYPE_CHECKING:
    from equipoise.split import Split
    from equipoise.statistics import Statistics

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
        if protocol == "session" and "order" in given:
            given["by"] = given.pop("order")
        if protocol == "last" and "valid" in given:
            given["valid"] = bool(given["valid"])
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
