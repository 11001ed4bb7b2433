"""Commands that make models: `plan`, `fit` and `update`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.cli.data import DATA, Reading, check_out, find_users
from equipoise.cli.framework import Json, declare
from equipoise.cli.output import add, emit, say, show, size_text, table, working
from equipoise.cli.settings import Recipe, Run, Where, describe
from equipoise.errors import SettingError

if TYPE_CHECKING:
    from equipoise.interactions import Interactions
    from equipoise.models import LinearAutoencoder, Recommender

app = typer.Typer()

MODEL = "Folder that `equipoise fit` wrote."


Saved = Annotated[Path, typer.Argument(metavar="MODEL", help=MODEL)]


@declare(app, "plan", "equipoise plan --users 100000 --items 20000 --interactions 5000000")
def plan(
    where: Where,
    reading: Reading,
    data: Annotated[str | None, typer.Argument(metavar="[DATA]", help=DATA)] = None,
    users: Annotated[int | None, typer.Option(help="Number of users.")] = None,
    items: Annotated[int | None, typer.Option(help="Number of items.")] = None,
    interactions: Annotated[int | None, typer.Option(help="Number of interactions.")] = None,
    as_json: Json = False,
) -> None:
    """Tell what a fit would cost before anything is allocated: memory, operations, time."""
    from equipoise.machine import duration
    from equipoise.solve.plan import plan as make_plan

    sizes = (users, items, interactions)
    if (data is None) == all(size is None for size in sizes):
        raise SettingError("give either DATA or --users, --items and --interactions")
    found = make_plan(
        reading.load(data) if data is not None else None,
        n_users=users,
        n_items=items,
        n_interactions=interactions,
        **where.where(),
    )
    if as_json:
        emit({**vars(found), "seconds": found.seconds, "fits": found.fits})
        return
    out = table("", "", left=(0, 1))
    add(out, "engine", f"{found.engine}, {found.dtype}, on {found.device}")
    add(out, "items", f"{found.n_items:,}")
    add(out, "memory", f"{size_text(found.peak_bytes)} of {size_text(found.budget_bytes)}")
    if found.disk_bytes:
        disk = f"{size_text(found.disk_bytes)} of {size_text(found.disk_free_bytes)}"
        add(out, "disk", disk)
    add(out, "operations", f"{found.flops / 1e9:,.4g} Gflop")
    add(out, "time", f"about {duration(found.seconds)} on this machine")
    add(out, "verdict", "fits" if found.fits else _remedy(found))
    show(out)


def _remedy(found: Any) -> str:
    from equipoise.errors import TooBigError

    try:
        found.require()
    except TooBigError as error:
        return f"does not fit: {error}"
    return "fits"


@declare(app, "fit", "equipoise fit split model --model ease --l2 100 --normalizer dan")
def fit(
    data: Annotated[str, typer.Argument(metavar="DATA", help=DATA)],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    recipe: Recipe,
    run: Run,
    reading: Reading,
    as_json: Json = False,
) -> None:
    """Fit a model and save it; of a saved split the train part is used."""
    from time import perf_counter

    check_out(out)
    model = recipe.build()
    interactions = reading.load(data)
    start = perf_counter()
    run.fit(model, interactions)
    seconds = perf_counter() - start
    with working(f"saving {out}"):
        model.save(out)
    report(model, out, seconds, as_json)


@declare(app, "update", "equipoise update model --add new.csv --out model-new")
def update(
    model: Saved,
    reading: Reading,
    add_file: Annotated[
        str | None, typer.Option("--add", help="DATA with interactions to add.")
    ] = None,
    remove: Annotated[str | None, typer.Option(help="DATA with interactions to take out.")] = None,
    forget: Annotated[list[str] | None, typer.Option(help="A user to forget; repeatable.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; MODEL if left out.")] = None,
    as_json: Json = False,
) -> None:
    """Add and remove interactions without a new fit; the result equals one."""
    from time import perf_counter

    if not (add_file or remove or forget):
        raise SettingError("nothing to do; give --add, --remove or --forget")
    check_out(out or model)
    fitted = updatable(model)
    added = reading.load_change(add_file) if add_file is not None else None
    removed = _removed(fitted, reading, remove, forget)
    start = perf_counter()
    with working(f"updating {describe(fitted)}"):
        fitted.update(added, removed)
    seconds = perf_counter() - start
    fitted.save(out or model)
    report(fitted, out or model, seconds, as_json)


def updatable(path: Path) -> LinearAutoencoder:
    """Return a saved model that can be updated."""
    from equipoise.models import LinearAutoencoder, load

    found = load(path)
    if not isinstance(found, LinearAutoencoder):
        kind = type(found).__name__
        raise SettingError(f"a {kind} has no update; fit it again on the new data")
    return found


def _removed(
    model: Recommender, reading: Reading, remove: str | None, forget: list[str] | None
) -> Interactions | None:
    """Return the pairs to take out: those of a file, and all of forgotten users."""
    train = model.interactions_
    gone = None
    if forget:
        gone = train.select(users=list(dict.fromkeys(find_users(train, forget))))
    if remove is not None:
        listed = reading.load_change(remove)
        gone = listed if gone is None else gone.union(listed)
    return gone


def report(model: Recommender, path: Path, seconds: float, as_json: bool) -> None:
    """Say what was made and where it is."""
    from equipoise.machine import duration

    data = model.interactions_
    if as_json:
        sizes = {"users": data.n_users, "items": data.n_items, "interactions": data.n_interactions}
        residual = getattr(model, "residual_", None)
        facts = {"settings": model.settings(), "seconds": seconds, "residual": residual}
        emit({"path": str(path), **facts, **sizes, "data_fingerprint": data.fingerprint})
        return
    size = f"{data.n_users:,} users, {data.n_items:,} items, {data.n_interactions:,} interactions"
    say(f"{describe(model)}\nfrom {size} in {duration(seconds)}\nsaved in {path}")
