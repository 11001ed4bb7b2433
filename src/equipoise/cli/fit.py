"""Commands that make models: `plan`, `fit` and `update`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from equipoise.cli.data import DATA, ReadOptions, check_out, find_users, gathered
from equipoise.cli.framework import (
    Json,
    Saved,
    Yes,
    declare,
    emit,
    note,
    option,
    refuse_given,
    say,
    working,
)
from equipoise.cli.settings import (
    FitOptions,
    ModelOptions,
    PlanOptions,
    agree_to_solve,
    parse,
)
from equipoise.errors import SettingError, TooBigError

if TYPE_CHECKING:
    from equipoise.tuning import Tuned

Preference = Literal["tail", "balance", "accuracy"]

app = typer.Typer()


@declare(app, "plan", "equipoise plan --users 100000 --items 20000 --interactions 5000000")
def plan(
    options: PlanOptions,
    reading: ReadOptions,
    data: Annotated[str | None, typer.Argument(metavar="[DATA]", help=DATA)] = None,
    users: Annotated[int | None, option("Number of users.")] = None,
    items: Annotated[int | None, option("Number of items.")] = None,
    interactions: Annotated[int | None, option("Number of interactions.")] = None,
    neighbours: Annotated[
        str | None, option("Of --engine neighbourhood: a number, or a time such as 2m.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell what a fit would cost before anything is allocated: memory, operations, time."""
    from equipoise.solve.planning import plan as make_plan

    sizes = (users, items, interactions)
    if (data is None) == all(size is None for size in sizes):
        raise SettingError("give either DATA or --users, --items and --interactions")
    found = make_plan(
        reading.load(data) if data is not None else None,
        n_users=users,
        n_items=items,
        n_interactions=interactions,
        neighbours=None if neighbours is None else parse(neighbours),
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
    prefer: Annotated[
        Preference | None, option("Without settings: what to choose them for. [balance]")
    ] = None,
    trials: Annotated[int | None, option("Without settings: number of solves. [7]")] = None,
    budget: Annotated[
        str | None, option("Without settings: time for all, such as 10m or 2h.")
    ] = None,
    half: Annotated[
        bool, option("Save the weights in 16 bits, to serve with half the memory; cannot update.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Fit a model and save it; of a saved split the train part is used.

    With nothing set, the family and its settings are chosen by leave-one-out with a few solves,
    and the model keeps an estimate of how good it is on new users. Any setting makes it one plain
    fit.
    """
    check_out(out)
    searching: dict[str, Any] = {"prefer": prefer, "trials": trials, "budget": budget}
    plain = chosen.given or options.refine or options.engine == "neighbourhood"
    if plain and any(value is not None for value in searching.values()):
        raise SettingError(
            "--prefer, --trials and --budget are for a fit that chooses its settings; leave them "
            "out, or leave out the model's options, --refine and --engine neighbourhood"
        )
    model = chosen.build()
    if half and not hasattr(model, "halve"):
        raise SettingError(f"--half is for linear autoencoders, not {type(model).__name__}")
    found = reading.open(data)
    start = perf_counter()
    if reading.cluster is not None and options.on_workers(model, found):
        from equipoise.cluster import fit as fit_there

        if any(value is not None for value in searching.values()):
            raise SettingError(
                "--prefer, --trials and --budget are for solves that fit into the memory of this "
                "machine; leave them out for one fit by the workers"
            )
        if not plain:
            note("one fit with automatic settings: a search needs solves on this machine")
        near: dict[str, Any] = chosen.solving(model) | options.of_workers()
        with working(f"fitting {model.summary()} on the workers"):
            model = fit_there(model, found, where="workers", client=reading.cluster, **near)
        _save(model, out, perf_counter() - start, as_json, half=half)
        return
    interactions = gathered(found)
    if plain:
        near = chosen.solving(model)
        options.agree(model, interactions, yes, **near)
        options.fit(model, interactions, **near)
        _save(model, out, perf_counter() - start, as_json, half=half)
        return
    from equipoise.cli.tune import watching
    from equipoise.tuning import tune
    from equipoise.tuning.search import FEW

    how = {name: value for name, value in vars(options).items() if name != "refine"}
    solving = {name: value for name, value in how.items() if name != "threads"}
    if budget is None:
        solves = trials or FEW
        agree_to_solve(interactions, "choosing settings", solving, solves=solves, yes=yes)
    with watching("ndcg@20") as watch:
        best = tune(None, interactions, progress=watch, **searching, **how)
    _save(best.model, out, perf_counter() - start, as_json, best, half)


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
    from_store: Annotated[
        str | None, option("URL of the service's store, whose new events are added.")
    ] = None,
    tenant: Annotated[
        str | None, option("With --from-store: whose events, if not the default ones.")
    ] = None,
    out: Annotated[Path | None, option("Folder to write; MODEL if left out.")] = None,
    as_json: Json = False,
) -> None:
    """Add and remove interactions without a new fit; the result equals one."""
    from equipoise.models import load

    if from_store is not None and (add or remove or forget):
        raise SettingError("--from-store stands alone; leave out --add, --remove and --forget")
    if not (add or remove or forget or from_store):
        raise SettingError("nothing to do; give --add, --remove, --forget or --from-store")
    if replace and not add:
        raise SettingError("--replace is for --add; leave it out")
    if tenant is not None and from_store is None:
        raise SettingError("--tenant is for --from-store; leave it out")
    if not (add or remove):
        refuse_given(reading, "no table is read")
    if from_store is not None:
        _update_from_store(model, out, from_store, tenant or "default", as_json)
        return
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


def _update_from_store(
    model: Path, out: Path | None, url: str, tenant: str, as_json: bool
) -> None:
    """Fold what the service has taken since into a saved model."""
    from equipoise.cli.serve import require_extra

    require_extra()
    from equipoise.serve.folding import fold_saved
    from equipoise.serve.store import Store

    check_out(out or model)
    with closing(Store(url)) as store, working(f"updating {model}"):
        found = fold_saved(str(model), store, tenant, None if out is None else str(out))
    if as_json:
        emit(found)
        return
    events = found["events"] - found["left_out"]
    say(f"{events:,} events and {found['forgotten']:,} users to forget taken in")
    if found["left_out"]:
        say(f"{found['left_out']:,} events count 0 for this model and were left out")
    sizes = "{users:,} users, {items:,} items, {interactions:,} interactions".format(**found)
    say(f"{'saved' if found['changed'] or out else 'nothing new'} in {found['path']}: {sizes}")


def _save(
    model: Any,
    path: Path,
    seconds: float,
    as_json: bool,
    found: Tuned | None = None,
    half: bool = False,
) -> None:
    """Save a model and say what was made, and how its settings were found."""
    from equipoise.machine import duration

    model = model.halve() if half else model
    with working(f"saving {path}"):
        model.save(path)
    data = model.interactions_
    audit = getattr(model, "audit_", {})
    if as_json:
        sizes = {"users": data.n_users, "items": data.n_items, "interactions": data.n_interactions}
        residual = getattr(model, "residual_", None)
        facts = {"settings": model.settings(), "seconds": seconds, "residual": residual}
        facts |= {"audit": audit} if audit else {}
        facts |= {"loss": model.loss_} if half else {}
        if found is not None:
            estimate = found.estimate and vars(found.estimate)
            facts |= {"chosen": found.sentence, "estimate": estimate, "solves": found.solves}
        emit({"path": str(path), **facts, **sizes, "data_fingerprint": model.data_fingerprint_})
        return
    size = f"{data.n_users:,} users, {data.n_items:,} items, {data.n_interactions:,} interactions"
    say(f"{model.summary()}\nfrom {size} in {duration(seconds)}")
    if audit:
        agrees = ", ".join(f"{name} {audit[name]:.3f}" for name in audit if name != "targets")
        say(f"agreement with {audit['targets']:.0f} exact columns: {agrees}")
    say(f"saved in {path}")
    if half:
        say(f"in 16 bits; overlap@20 with the full model {model.loss_['overlap@20']:.4f}")
    if found is not None:
        say(f"chosen: {found.sentence}")
    if found is not None and found.estimate is not None:
        say(f"on new users: {found.estimate}")
