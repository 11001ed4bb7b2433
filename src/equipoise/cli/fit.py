"""Commands that fit and update models: `plan`, `fit` and `update`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from equipoise.cli.data import DATA, ReadOptions, check_out, find_users, gather
from equipoise.cli.framework import (
    Json,
    Saved,
    Yes,
    declare,
    emit,
    note,
    option,
    refuse_options,
    say,
    translate_message,
    working,
)
from equipoise.cli.serve import NoTenant, require_extra
from equipoise.cli.settings import FitOptions, ModelOptions, PlanOptions, confirm_solve_time, parse
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
        str | None, option("Neighbours (--engine neighbourhood): a number, or a time such as 2m.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Estimate memory, operations and time of a fit without running it."""
    from equipoise.solve.planning import plan as make_plan

    sizes = (users, items, interactions)
    if (data is None) == all(size is None for size in sizes):
        raise SettingError("give either DATA or --users, --items and --interactions")
    cost = make_plan(
        reading.load(data) if data is not None else None,
        n_users=users,
        n_items=items,
        n_interactions=interactions,
        neighbours=None if neighbours is None else parse(neighbours),
        **vars(options),
    )
    if as_json:
        facts = {**vars(cost), "nearest": translate_message(cost.nearest)}
        emit({**facts, "seconds": cost.seconds, "fits": cost.fits})
        return
    say(str(cost))
    try:
        cost.require()
    except TooBigError as error:
        say(f"does not fit: {translate_message(str(error))}", "yellow")


@declare(app, "fit", "equipoise fit split model --model ease --l2 100 --normalizer dan")
def fit(
    data: Annotated[str, typer.Argument(metavar="DATA", help=DATA)],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    chosen: ModelOptions,
    options: FitOptions,
    reading: ReadOptions,
    prefer: Annotated[Preference | None, option("Goal of the search. [balance]")] = None,
    trials: Annotated[int | None, option("Number of solves of the search. [7]")] = None,
    budget: Annotated[str | None, option("Time for the search, such as 10m or 2h.")] = None,
    no_search: Annotated[
        bool, option("Fit once, with defaults for unset options.", "--no-search")
    ] = False,
    half: Annotated[
        bool, option("Save 16-bit weights: half the memory to serve, no updates.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Fit a model and save it; uses the train part of a saved split.

    The family and the hyper-parameters of a linear autoencoder are searched by leave-one-out with
    a few solves, and the model keeps an estimate of its accuracy on new users. Settings named by
    options are not searched; --l2 with --dropout means ease without a normalizer, unless --model
    or --normalizer is used. Interaction weights are compared with their logarithm and with no
    weights, unless --signals is used. --no-search fits once.
    """
    check_out(out)
    search_options: dict[str, Any] = {"prefer": prefer, "trials": trials, "budget": budget}
    model = chosen.build() if no_search else chosen.candidates()[0]
    if half and not hasattr(model, "halve"):
        raise SettingError(f"--half is for linear autoencoders, not {type(model).__name__}")
    reason = "--no-search" if no_search else _reason_not_to_search(chosen, options)
    if reason is not None:
        _refuse_search_options(search_options, reason)
        model = chosen.build()
    opened = reading.open(data)
    start = perf_counter()
    if reading.cluster is not None and options.needs_workers(model, opened):
        from equipoise.cluster import fit as fit_on_workers

        _refuse_search_options(search_options, "workers fit once what outgrew this machine")
        if reason is None:
            note("fitting once with automatic settings: a search needs solves on this machine")
        model = chosen.build()
        arguments = chosen.fit_arguments(model) | options.worker_arguments()
        with working(f"fitting {model.summary()} on the workers"):
            model = fit_on_workers(
                model, opened, where="workers", client=reading.cluster, **arguments
            )
        _save(model, out, perf_counter() - start, as_json, half=half)
        return
    interactions = gather(opened)
    if reason is None:
        if not _searched_settings(chosen, interactions):
            reason = "options set everything"
        elif chosen.is_used and not (interactions.user_counts >= 2).any():
            reason = "no user has two items, one to show and one to hold out"
        if reason is not None:
            _refuse_search_options(search_options, reason)
    if reason is None:
        best = _search(chosen, options, interactions, search_options, yes)
        _save(best.model, out, perf_counter() - start, as_json, best, half, chosen)
        return
    arguments = chosen.fit_arguments(model)
    options.confirm(model, interactions, yes, **arguments)
    options.fit(model, interactions, **arguments)
    _note_plain_fit(model, interactions, reason)
    _save(model, out, perf_counter() - start, as_json, half=half)


def _reason_not_to_search(chosen: ModelOptions, options: FitOptions) -> str | None:
    """Return why these options mean a single fit, or None if settings can be searched."""
    from equipoise.models.linear import LinearAutoencoder

    if not isinstance(chosen.candidates()[0], LinearAutoencoder):
        family = f"--family {chosen.model}"
        return f"this model needs a split to be tuned: equipoise tune SPLIT OUT {family}"
    if options.refine:
        return "--refine is for a single fit"
    if options.engine == "neighbourhood":
        return (
            "leave-one-out does not support --engine neighbourhood; on a split: "
            "equipoise tune SPLIT OUT --engine neighbourhood"
        )
    return None


def _refuse_search_options(search_options: dict[str, Any], reason: str) -> None:
    used = [f"--{name}" for name, value in search_options.items() if value is not None]
    if used:
        raise SettingError(
            f"{used[0]} is for a search, and nothing is searched: {reason}; leave it out "
            "(as --prefer, --trials and --budget)"
        )


def _searched_settings(chosen: ModelOptions, data: Interactions) -> list[str]:
    """Return the names of the settings that a search would choose."""
    from equipoise.data.signals import SETTINGS
    from equipoise.tuning.space import can_compare_weightings

    models = chosen.candidates()
    names = ["family"] if len(models) > 1 else []
    names += dict.fromkeys(name for model in models for name in model.tunable())
    names = [name for name in names if name not in (*chosen.fixed, *SETTINGS)]
    return [*names, "transform"] if can_compare_weightings(models, data) else names


def _note_plain_fit(model: Any, data: Interactions, reason: str) -> None:
    """Print why nothing was searched, and how weights were used."""
    from equipoise.tuning.space import can_compare_weightings

    if model.search_space:
        note(f"no search: {reason}")
    if can_compare_weightings([model], data):
        note("weights are used as they are; --signals log1p or binary may give better lists")


def _search(
    chosen: ModelOptions,
    options: FitOptions,
    data: Interactions,
    search_options: dict[str, Any],
    yes: bool,
) -> Tuned:
    """Search the settings that no option sets."""
    from equipoise.cli.tune import show_search
    from equipoise.tuning import tune
    from equipoise.tuning.search import FEW

    arguments = {name: value for name, value in vars(options).items() if name != "refine"}
    models = chosen.candidates()
    if search_options["budget"] is None:
        plan_options = {name: value for name, value in arguments.items() if name != "threads"}
        solves = search_options["trials"] or FEW
        confirm_solve_time(data, "choosing settings", plan_options, solves=solves, yes=yes)
    tunable = {name for model in models for name in model.tunable()}
    fixed = [name for name in chosen.fixed if name in tunable]
    arguments |= chosen.fit_arguments(models[0])
    with show_search("ndcg@20") as progress:
        return tune(models, data, fixed=fixed, progress=progress, **search_options, **arguments)


@declare(app, "update", "equipoise update model --add new.csv --out model-new")
def update(
    model: Saved,
    reading: ReadOptions,
    add: Annotated[str | None, option("DATA with interactions to add.")] = None,
    remove: Annotated[str | None, option("DATA with interactions to remove.")] = None,
    replace: Annotated[
        bool, option("Added weights replace those of the pair instead of adding up.")
    ] = False,
    forget: Annotated[list[str] | None, option("A user to forget; repeatable.")] = None,
    from_store: Annotated[
        str | None, option("URL of the service's event store; adds its new events.")
    ] = None,
    tenant: NoTenant = None,
    out: Annotated[Path | None, option("Folder to write. [MODEL]")] = None,
    as_json: Json = False,
) -> None:
    """Add and remove interactions; the result equals a full refit."""
    from equipoise.models import load

    if from_store is not None and (add or remove or forget):
        raise SettingError("--from-store excludes --add, --remove and --forget; leave them out")
    if not (add or remove or forget or from_store):
        raise SettingError("nothing to do; give --add, --remove, --forget or --from-store")
    if replace and not add:
        raise SettingError("--replace is for --add; leave it out")
    if not (add or remove):
        refuse_options(reading, "no table is read")
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
        table = reading.load(remove)
        removed = table if removed is None else removed.union(table)
    start = perf_counter()
    with working(f"updating {fitted.summary()}"):
        fitted.update(added, removed, replace=replace)
    _save(fitted, out or model, perf_counter() - start, as_json)


def _update_from_store(model: Path, out: Path | None, url: str, as_json: bool) -> None:
    """Add the new events of the service's store to a saved model."""
    require_extra()
    from equipoise.serve.folding import fold_saved
    from equipoise.serve.store import Store

    check_out(out or model)
    with closing(Store(url)) as store, working(f"updating {model}"):
        counts = fold_saved(str(model), store, None if out is None else str(out))
    if as_json:
        emit(counts)
        return
    events = counts["events"] - counts["left_out"]
    say(f"added {events:,} events, forgot {counts['forgotten']:,} users")
    if counts["left_out"]:
        say(f"ignored {counts['left_out']:,} events that have weight 0 for this model")
    sizes = "{users:,} users, {items:,} items, {interactions:,} interactions".format(**counts)
    verb = "saved in" if counts["changed"] or out else "no change to"
    say(f"{verb} {counts['path']}: {sizes}")


def _save(
    model: Any,
    path: Path,
    seconds: float,
    as_json: bool,
    tuned: Tuned | None = None,
    half: bool = False,
    chosen: ModelOptions | None = None,
) -> None:
    """Save a model and print its size, its settings and how they were found."""
    from equipoise.runtime.machine import duration

    model = model.halve() if half else model
    with working(f"saving {path}"):
        model.save(path)
    data = model.interactions_
    audit = getattr(model, "audit_", {})
    choices = {} if tuned is None else _choices(tuned, chosen or ModelOptions())
    if as_json:
        sizes = {"users": data.n_users, "items": data.n_items, "interactions": data.n_interactions}
        residual = getattr(model, "residual_", None)
        facts = {"settings": model.settings(), "seconds": seconds, "residual": residual}
        facts |= {"audit": audit} if audit else {}
        facts |= {"loss": model.loss_} if half else {}
        if tuned is not None:
            estimate = tuned.estimate and vars(tuned.estimate)
            facts |= {"chosen": tuned.sentence, "estimate": estimate, "solves": tuned.solves}
            facts |= {"notes": tuned.notes, **choices}
        emit({"path": str(path), **facts, **sizes, "data_fingerprint": model.data_fingerprint_})
        return
    size = f"{data.n_users:,} users, {data.n_items:,} items, {data.n_interactions:,} interactions"
    say(f"{model.summary()}\nfitted on {size} in {duration(seconds)}")
    if audit:
        agreement = ", ".join(f"{name} {audit[name]:.3f}" for name in audit if name != "targets")
        say(f"agreement with {audit['targets']:.0f} exact columns: {agreement}")
    say(f"saved in {path}")
    if half:
        say(f"16-bit weights: overlap@20 with the full model {model.loss_['overlap@20']:.4f}")
    if tuned is None:
        return
    solves = "1 solve" if tuned.solves == 1 else f"{tuned.solves} solves"
    say(f"searched with {solves}: {', '.join(choices['searched'])}")
    if choices["fixed"]:
        say(f"set by options: {', '.join(choices['fixed'].values())}")
    say("\n".join([*tuned.notes, f"chosen: {tuned.sentence}"]))
    if tuned.estimate is not None:
        say(f"on new users: {tuned.estimate}")


def _choices(tuned: Tuned, chosen: ModelOptions) -> dict[str, Any]:
    """Return the names of the searched settings, and the options that set others."""
    from equipoise.data.signals import SETTINGS

    fixed = chosen.fixed
    if chosen.model is not None:
        fixed["family"] = f"--model {chosen.model}"
    elif {"l2", "dropout"} <= fixed.keys() and "diag_bound" not in fixed:
        fixed["family"] = "ease (because of --l2 and --dropout)"
    if chosen.normalizer is not None:
        fixed["normalizer"] = f"--normalizer {chosen.normalizer}"
    skipped = {*fixed, *tuned.objectives, *SETTINGS, "solve", "failed"}
    if tuned.trials["family"].n_unique() == 1:
        skipped.add("family")
    names = [name for name in tuned.trials.columns if name not in skipped]
    if "transform" in tuned.trials.columns and tuned.trials["transform"].n_unique() > 1:
        names.append("weights (transform)")
    return {"searched": names, "fixed": fixed}
