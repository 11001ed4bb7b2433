"""The command `datasets`: list, show and fetch named data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.cli.framework import CommandGroup, Json, declare, emit, option, say, show, working
from equipoise.errors import SettingError

if TYPE_CHECKING:
    from equipoise.data.datasets import DataSet

app = typer.Typer(
    cls=CommandGroup,
    help="List, show and fetch named data sets.",
    epilog="Example: equipoise datasets",
    invoke_without_command=True,
    no_args_is_help=False,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="As `equipoise datasets` lists it.")]


@app.callback()
def every(context: typer.Context, as_json: Json = False) -> None:
    """List, show and fetch named data sets."""
    if context.invoked_subcommand is None:
        listing(as_json)


@declare(app, "list", "equipoise datasets list")
def listing(as_json: Json = False) -> None:
    """List the data sets: size, licence, fetched or bring-your-own."""
    from equipoise.data.datasets import cache_folder, info, names

    entries = [info(name) for name in names()]
    if as_json:
        emit([_facts(entry) for entry in entries])
        return
    rows = []
    for entry in entries:
        how = "fetched" if entry.fetched else "bring your own"
        rows.append((entry.name, *(entry.published or [None] * 3), how, entry.licence))
    show(rows, "name", "users", "items", "interactions", "how", "licence")
    say(
        f"\nfetched: downloaded on first use and kept in {cache_folder()} (set EQUIPOISE_DATA)\n"
        "bring your own: `equipoise datasets show NAME` tells where from and how",
        "dim",
    )


@declare(app, "show", "equipoise datasets show movielens-100k")
def show_one(name: Name, as_json: Json = False) -> None:
    """Show where a data set comes from, its licence and how it is prepared."""
    from equipoise.data.datasets import info

    entry = info(name)
    if as_json:
        emit(_facts(entry))
        return
    use = f"stats {name}" if entry.fetched else f"datasets fetch {name} --raw FOLDER --out {name}"
    say(f"{entry}\n  use      equipoise {use}")


@declare(app, "fetch", "equipoise datasets fetch movielens-100k --out movies")
def fetch(
    name: Name,
    out: Annotated[Path | None, option("Folder to save the prepared data in.")] = None,
    raw: Annotated[Path | None, option("Folder with raw files you downloaded.")] = None,
    as_json: Json = False,
) -> None:
    """Fetch a data set, or prepare one from raw files you downloaded."""
    from equipoise.data.datasets import cache_folder, info, load

    entry = info(name)
    if not entry.fetched and raw is None:
        raise SettingError(
            f"{name} has to be downloaded by hand: get {entry.files} from {entry.home} and pass "
            "the folder with --raw"
        )
    if not entry.fetched and out is None:
        raise SettingError(f"say with --out where to save the prepared {name}")
    with working(f"fetching {name}" if raw is None else f"preparing {name}"):
        data = load(name, raw)
        if out is not None:
            data.save(out)
    place = str(out) if out is not None else str(cache_folder() / name)
    if as_json:
        sizes = {"users": data.n_users, "items": data.n_items, "interactions": data.n_interactions}
        emit({"name": name, "path": place, **sizes, "licence": entry.licence})
        return
    say(f"{data}\nin {place}\nlicence: {entry.licence}")


def _facts(entry: DataSet) -> dict[str, Any]:
    names = ("name", "title", "origin", "home", "licence", "files", "recipe", "fetched")
    sizes = dict(zip(("users", "items", "interactions"), entry.published or (), strict=False))
    return {**{name: getattr(entry, name) for name in names}, "published": sizes or None}
