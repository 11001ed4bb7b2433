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
    told,
    working,
)
from equipoise.cli.serve import NoTenant, require_extra
from equipoise.cli.settings import (
    FitOptions,
    ModelOptions,
    PlanOptions,
    agree_to_solve,
    parse,
)
from equipoise.errors import SettingError, TooBigError

if TYPE_CHECKING:
    from equipoise.data.interactions import Interactions
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
        facts = {**vars(found), "nearest": told(found.nearest)}
        emit({**facts, "seconds": found.seconds, "fits": found.fits})
        return
    say(str(found))
    try:
        found.require()
    except TooBigError as error:
        say(f"does not fit: {told(str(error))}", "yellow")


@declare(app, "fit", "equipoise fit split model --model ease --l2 100 --normalizer dan")
def fit(
    data: Annotated[str, typer.Argument(metavar="DATA", help=DATA)],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    chosen: ModelOptions,
    options: FitOptions,
    reading: ReadOptions,
    prefer: Annotated[
        Preference | None, option("In a search: what to choose settings for. [balance]")
    ] = None,
    trials: Annotated[int | None, option("In a search: number of solves. [7]")] = None,
    budget: Annotated[str | None, option("In a search: time for all, such as 10m or 2h.")] = None,
    no_search: Annotated[
        bool,
        option("One fit: settings that no option names have their defaults.", "--no-search"),
    ] = False,
    half: Annotated[
        bool, option("Save the weights in 16 bits, to serve with half the memory; cannot update.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Fit a model and save it; of a saved split the train part is used.

    The family and the settings of a linear autoencoder are chosen by leave-one-out with a few
    solves, and the model keeps an estimate of how good it is on new users. Settings that options
    name stay as they are, and the others are searched; --l2 with --dropout means ease without a
    normalizer, unless --model or --normalizer is given. Weights of pairs are compared with their
    logarithm and with no weights, unless --signals says what they are worth. --no-search makes it
    one plain fit.
    """
    check_out(out)
    searching: dict[str, Any] = {"prefer": prefer, "trials": trials, "budget": budget}
    model = chosen.build() if no_search else chosen.candidates()[0]
    if half and not hasattr(model, "halve"):
        raise SettingError(f"--half is for linear autoencoders, not {type(model).__name__}")
    reason = "--no-search" if no_search else _why_no_search(chosen, options)
    if reason is not None:
        _refuse_search(searching, reason)
        model = chosen.build()
    found = reading.open(data)
    start = perf_counter()
    if reading.cluster is not None and options.on_workers(model, found):
        from equipoise.cluster import fit as fit_there

        _refuse_search(searching, "workers make one fit of what outgrew this machine")
        if reason is None:
            note("one fit with automatic settings: a search needs solves on this machine")
        model = chosen.build()
        near: dict[str, Any] = chosen.solving(model) | options.of_workers()
        with working(f"fitting {model.summary()} on the workers"):
            model = fit_there(model, found, where="workers", client=reading.cluster, **near)
        _save(model, out, perf_counter() - start, as_json, half=half)
        return
    interactions = gathered(found)
    if reason is None and not _searched(chosen, interactions):
        reason = "options name every setting"
        _refuse_search(searching, reason)
    if reason is None and chosen.given and not (interactions.user_counts >= 2).any():
        reason = "no user has two items, one to show and one to find"
        _refuse_search(searching, reason)
    if reason is not None:
        near = chosen.solving(model)
        options.agree(model, interactions, yes, **near)
        options.fit(model, interactions, **near)
        _tell_plain(model, interactions, reason)
        _save(model, out, perf_counter() - start, as_json, half=half)
        return
    best = _search(chosen, options, interactions, searching, yes)
    _save(best.model, out, perf_counter() - start, as_json, best, half, chosen)


def _why_no_search(chosen: ModelOptions, options: FitOptions) -> str | None:
    """Return why these options mean one fit, or None where settings can be searched."""
    from equipoise.models.linear import LinearAutoencoder

    if not isinstance(chosen.candidates()[0], LinearAutoencoder):
        family = f"--family {chosen.model}"
        return f"this model is searched on a split: equipoise tune SPLIT OUT {family}"
    if options.refine:
        return "--refine is for one fit"
    if options.engine == "neighbourhood":
        return (
            "no user can be left out of the approximate solve of --engine neighbourhood; on a "
            "split: equipoise tune SPLIT OUT --engine neighbourhood"
        )
    return None


def _refuse_search(searching: dict[str, Any], reason: str) -> None:
    """Refuse options of a search where there is none."""
    given = [f"--{name}" for name, value in searching.items() if value is not None]
    if given:
        raise SettingError(
            f"{given[0]} is for a search, and nothing is searched: {reason}; leave it out "
            "(as --prefer, --trials and --budget)"
        )


def _searched(chosen: ModelOptions, data: Interactions) -> list[str]:
    """Return the names of the settings that a search would choose."""
    from equipoise.data.signals import SETTINGS
    from equipoise.tuning.space import can_compare_weightings

    models = chosen.candidates()
    names = ["family"] if len(models) > 1 else []
    names += dict.fromkeys(name for model in models for name in model.tunable())
    names = [name for name in names if name not in (*chosen.fixed, *SETTINGS)]
    return [*names, "transform"] if can_compare_weightings(models, data) else names


def _tell_plain(model: Any, data: Interactions, reason: str) -> None:
    """Say why nothing was searched, and what was done about weights."""
    from equipoise.tuning.space import can_compare_weightings

    if model.search_space:
        note(f"nothing was searched: {reason}")
    if can_compare_weightings([model], data):
        note("weights count as they are; --signals log1p or binary may give better lists")


def _search(
    chosen: ModelOptions,
    options: FitOptions,
    data: Interactions,
    searching: dict[str, Any],
    yes: bool,
) -> Tuned:
    """Search the settings that no option names."""
    from equipoise.cli.tune import watching
    from equipoise.tuning import tune
    from equipoise.tuning.search import FEW

    how = {name: value for name, value in vars(options).items() if name != "refine"}
    solving = {name: value for name, value in how.items() if name != "threads"}
    models = chosen.candidates()
    if searching["budget"] is None:
        solves = searching["trials"] or FEW
        agree_to_solve(data, "choosing settings", solving, solves=solves, yes=yes)
    tunable = {name for model in models for name in model.tunable()}
    fixed = [name for name in chosen.fixed if name in tunable]
    how |= chosen.solving(models[0])
    with watching("ndcg@20") as watch:
        return tune(models, data, fixed=fixed, progress=watch, **searching, **how)


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
    tenant: NoTenant = None,
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
    if not (add or remove):
        refuse_given(reading, "no table is read")
    if from_store is not None:
        _update_from_store(model, out, from_store, as_json)
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


def _update_from_store(model: Path, out: Path | None, url: str, as_json: bool) -> None:
    """Fold what the service has taken since into a saved model."""
    require_extra()
    from equipoise.serve.folding import fold_saved
    from equipoise.serve.store import Store

    check_out(out or model)
    with closing(Store(url)) as store, working(f"updating {model}"):
        found = fold_saved(str(model), store, None if out is None else str(out))
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
    chosen: ModelOptions | None = None,
) -> None:
    """Save a model and say what was made, and how its settings were found."""
    from equipoise.runtime.machine import duration

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
            facts |= {"notes": found.notes, **_choices(found, chosen or ModelOptions())}
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
        choices = _choices(found, chosen or ModelOptions())
        solves = "1 solve" if found.solves == 1 else f"{found.solves} solves"
        say(f"searched with {solves}: {', '.join(choices['searched'])}")
        if choices["fixed"]:
            say(f"not searched, as options name them: {', '.join(choices['fixed'].values())}")
        say("\n".join([*found.notes, f"chosen: {found.sentence}"]))
    if found is not None and found.estimate is not None:
        say(f"on new users: {found.estimate}")


def _choices(found: Tuned, chosen: ModelOptions) -> dict[str, Any]:
    """Return the names of the settings that were searched, and the options that named others."""
    from equipoise.data.signals import SETTINGS

    fixed = chosen.fixed
    if chosen.model is not None:
        fixed["family"] = f"--model {chosen.model}"
    elif {"l2", "dropout"} <= fixed.keys() and "diag_bound" not in fixed:
        fixed["family"] = "ease (as --l2 and --dropout are given)"
    if chosen.normalizer is not None:
        fixed["normalizer"] = f"--normalizer {chosen.normalizer}"
    skipped = {*fixed, *found.objectives, *SETTINGS, "solve", "failed"}
    if len({*found.trials["family"]}) == 1:
        skipped.add("family")
    names = [name for name in found.trials.columns if name not in skipped]
    if "transform" in found.trials.columns and found.trials["transform"].n_unique() > 1:
        names.append("weights (transform)")
    return {"searched": names, "fixed": fixed}
