"""Commands that make models: `plan`, `fit` and `update`."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli.data import DATA, ReadOptions, check_out, find_users
from equipoise.cli.framework import Json, Saved, Yes, declare, emit, option, say, working
from equipoise.cli.settings import FitOptions, ModelOptions, PlanOptions
from equipoise.errors import SettingError, TooBigError

if TYPE_CHECKING:
    from equipoise.models import Recommender

app = typer.Typer()


@declare(app, "plan", "equipoise plan --users 100000 --items 20000 --interactions 5000000")
def plan(
    options: PlanOptions,
    reading: ReadOptions,
    data: Annotated[str | None, typer.Argument(metavar="[DATA]", help=DATA)] = None,
    users: Annotated[int | None, option("Number of users.")] = None,
    items: Annotated[int | None, option("Number of items.")] = None,
    interactions: Annotated[int | None, option("Number of interactions.")] = None,
    as_json: Json = False,
) -> None:
    """Tell what a fit would cost before anything is allocated: memory, operations, time."""
    from equipoise.solve.engine import plan as make_plan

    sizes = (users, items, interactions)
    if (data is None) == all(size is None for size in sizes):
        raise SettingError("give either DATA or --users, --items and --interactions")
    found = make_plan(
        reading.load(data) if data is not None else None,
        n_users=users,
        n_items=items,
        n_interactions=interactions,
        **vars(options),
    )
    if as_json:
        emit({**vars(found), "seconds": found.seconds, "fits": found.fits})
        return
    say(str(found))
    try:
        found.require()
    except TooBigError as error:
        say(f"does not fit: {error}", "yellow")


@declare(app, "fit", "equipoise fit split model --model ease --l2 100 --normalizer dan")
def fit(
    data: Annotated[str, typer.Argument(metavar="DATA", help=DATA)],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    chosen: ModelOptions,
    options: FitOptions,
    reading: ReadOptions,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Fit a model and save it; of a saved split the train part is used."""
    check_out(out)
    model = chosen.build()
    interactions = reading.load(data)
    options.agree(model, interactions, yes)
    start = perf_counter()
    if reading.cluster is not None and options.outgrown(model, interactions):
        from equipoise.cluster import fit as fit_there

        with working(f"fitting {model.summary()} on the workers"):
            model = fit_there(
                model,
                interactions,
                where="workers",
                client=reading.cluster,
                dtype=options.dtype,
                scratch=options.scratch,
            )
    else:
        options.fit(model, interactions)
    _save(model, out, perf_counter() - start, as_json)


@declare(app, "update", "equipoise update model --add new.csv --out model-new")
def update(
    model: Saved,
    reading: ReadOptions,
    add: Annotated[str | None, option("DATA with interactions to add.")] = None,
    remove: Annotated[str | None, option("DATA with interactions to take out.")] = None,
    replace: Annotated[
        bool, option("Added weights take the place of those of the pair; else they add up.")
    ] = False,
    forget: Annotated[list[str] | None, option("A user to forget; repeatable.")] = None,
    out: Annotated[Path | None, option("Folder to write; MODEL if left out.")] = None,
    as_json: Json = False,
) -> None:
    """Add and remove interactions without a new fit; the result equals one."""
    from equipoise.models import load

    if not (add or remove or forget):
        raise SettingError("nothing to do; give --add, --remove or --forget")
    check_out(out or model)
    fitted = load(model)
    added = reading.load(add) if add is not None else None
    removed = None
    if forget:
        train = fitted.data_
        removed = train.select(users=list(dict.fromkeys(find_users(train, forget))))
    if remove is not None:
        listed = reading.load(remove)
        removed = listed if removed is None else removed.union(listed)
    start = perf_counter()
    with working(f"updating {fitted.summary()}"):
        fitted.update(added, removed, replace=replace)
    _save(fitted, out or model, perf_counter() - start, as_json)


def _save(model: Recommender, path: Path, seconds: float, as_json: bool) -> None:
    """Save a model and say what was made."""
    from equipoise.machine import duration

    with working(f"saving {path}"):
        model.save(path)
    data = model.interactions_
    if as_json:
        sizes = {"users": data.n_users, "items": data.n_items, "interactions": data.n_interactions}
        residual = getattr(model, "residual_", None)
        facts = {"settings": model.settings(), "seconds": seconds, "residual": residual}
        emit({"path": str(path), **facts, **sizes, "data_fingerprint": data.fingerprint})
        return
    size = f"{data.n_users:,} users, {data.n_items:,} items, {data.n_interactions:,} interactions"
    say(f"{model.summary()}\nfrom {size} in {duration(seconds)}\nsaved in {path}")
