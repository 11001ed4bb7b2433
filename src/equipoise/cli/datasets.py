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

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name in `equipoise datasets`.")]


@app.callback()
def root(context: typer.Context, as_json: Json = False) -> None:
    """List, show and fetch named data sets."""
    if context.invoked_subcommand is None:
        listing(as_json)


@declare(app, "list", "equipoise datasets list")
def listing(as_json: Json = False) -> None:
    """List the data sets with size, licence and origin."""
    from equipoise.data.datasets import cache_folder, info, names

    entries = [info(name) for name in names()]
    if as_json:
        emit([_facts(entry) for entry in entries])
        return
    rows = []
    for entry in entries:
        origin = "download" if entry.fetched else "manual"
        rows.append((entry.name, *(entry.published or [None] * 3), origin, entry.licence))
    show(rows, "name", "users", "items", "interactions", "origin", "licence")
    say(
        f"\ndownload: fetched on first use into {cache_folder()} (set by EQUIPOISE_DATA)\n"
        "manual: see `equipoise datasets show NAME` for the source and the steps",
        "dim",
    )


@declare(app, "show", "equipoise datasets show movielens-100k")
def show_one(name: Name, as_json: Json = False) -> None:
    """Show the source, licence and preparation of a data set."""
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
    raw: Annotated[Path | None, option("Folder of downloaded raw files.")] = None,
    as_json: Json = False,
) -> None:
    """Download a data set, or prepare one from downloaded raw files."""
    from equipoise.data.datasets import cache_folder, info, load

    entry = info(name)
    if not entry.fetched and raw is None:
        raise SettingError(
            f"{name} has to be downloaded by hand: get {entry.files} from {entry.home} and pass "
            "the folder with --raw"
        )
    if not entry.fetched and out is None:
        raise SettingError(f"pass --out FOLDER to save the prepared {name}")
    with working(f"fetching {name}" if raw is None else f"preparing {name}"):
        data = load(name, raw)
        if out is not None:
            data.save(out)
    path = str(out or cache_folder() / name)
    if as_json:
        sizes = {"users": data.n_users, "items": data.n_items, "interactions": data.n_interactions}
        emit({"name": name, "path": path, **sizes, "licence": entry.licence})
        return
    say(f"{data}\nsaved in {path}\nlicence: {entry.licence}")


def _facts(entry: DataSet) -> dict[str, Any]:
    names = ("name", "title", "origin", "home", "licence", "files", "recipe", "fetched")
    sizes = dict(zip(("users", "items", "interactions"), entry.published or (), strict=False))
    return {**{name: getattr(entry, name) for name in names}, "published": sizes or None}
