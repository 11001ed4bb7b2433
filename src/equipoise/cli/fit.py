"""Commands that fit and update models: `plan`, `fit` and `update`."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.cli.data import DATA, Reading, check_out, find_users, gather, open_split
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
from equipoise.cli.settings import (
    FitOptions,
    ModelOptions,
    PlanOptions,
    SearchOptions,
    confirm_solve_time,
    parse,
)
from equipoise.cli.tune import estimate_facts, show_estimate, show_search
from equipoise.errors import SettingError, TooBigError

if TYPE_CHECKING:
    from equipoise.data.interactions import Interactions
    from equipoise.models import Recommender
    from equipoise.tuning import Tuned

app = typer.Typer()


@declare(app, "plan", "equipoise plan --users 100000 --items 20000 --interactions 5000000")
def plan(
    options: PlanOptions,
    reading: Reading,
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
    if (data is None) == all(size is None for size in sizes) or (data is None and None in sizes):
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
    reading: Reading,
    searching: SearchOptions,
    no_search: Annotated[
        bool, option("Fit once, with defaults for all other settings.", "--no-search")
    ] = False,
    half: Annotated[
        bool, option("Save 16-bit weights: half the memory to serve, no updates.")
    ] = False,
    training_data: Annotated[
        str | None,
        option(
            "Training data of the saved model: with (in it), beside (in Parquet files that are "
            "read when needed), none (answers histories only). [with; beside where workers solve]",
            "--data",
        ),
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Choose the settings of a model, fit it and save it.

    The family and the hyper-parameters of a linear autoencoder are searched with a few solves. If
    DATA has times, they are chosen for the days after the last event: several cuts are made near
    the end, and the lists of a model fitted before each cut are compared with what users took
    next. The weight of recent popularity (the trend) and the decay of old events are searched,
    too. The output has the figure to expect in the next period, and those of popularity, recent
    popularity and item-kNN. Without times, with --criterion leave-one-out, and for the train part
    of a split that is not by time, settings are compared on users left out of the fit, and the
    output has the figure to expect on new users. Of a saved split, only the train part is used.

    Settings named by options are not searched; --l2 with --dropout means ease without a
    normalizer, unless --model or --normalizer is used. Interaction weights are compared with
    their logarithm and with no weights, unless --signals is used. The settings of slis, slit and
    slist are chosen by the next click in the last sessions, unless one of them is set.
    --no-search fits once.

    A catalogue with more than titles describes the items to the model, so that new ones can be
    recommended. It takes part in the solve if lists of users left out of the fit get clearly
    better.
    """
    check_out(out)
    if training_data is not None:
        from equipoise.checks import choice
        from equipoise.data.training import FORMS

        choice("--data", training_data, FORMS)
    saved: dict[str, Any] = {"half": half, "form": training_data}
    model = chosen.build() if no_search else chosen.candidates()[0]
    if half and not hasattr(model, "halve"):
        raise SettingError(f"--half is for linear autoencoders, not {type(model).__name__}")
    reason = "--no-search" if no_search else _reason_not_to_search(chosen, options, searching)
    if reason is not None:
        searching.refuse(reason)
        model = chosen.build() if no_search else _with_automatic_settings(chosen)
    opened = reading.open(data)
    start = perf_counter()
    if reading.cluster is not None and options.needs_workers(model, opened):
        from equipoise.cluster import fit as fit_on_workers

        searching.refuse("the data outgrew this machine, and workers fit a model only once")
        if reason is None:
            note("fitting once with automatic settings: a search needs solves on this machine")
        model = chosen.build()
        arguments = chosen.fit_arguments(model) | options.worker_arguments()
        with working(f"fitting {model.label} on the workers"):
            # what the model is saved without may be needed before, as for --half
            data_form = "with" if training_data == "with" else None
            model = fit_on_workers(
                model, opened, data=data_form, where="workers", client=reading.cluster, **arguments
            )
        _save(model, out, perf_counter() - start, as_json, **saved)
        return
    interactions = gather(opened)
    if reason is None:
        if not _searched_settings(chosen, interactions):
            reason = "options set every setting"
        elif chosen.is_used and not (interactions.user_counts >= 2).any():
            reason = "no user has two items, one for the history and one to hold out"
        if reason is not None:
            searching.refuse(reason)
    if reason is None:
        searching = _with_criterion(searching, data, interactions)
        best = _search(chosen, options, interactions, searching, yes)
        _save(best.model, out, perf_counter() - start, as_json, best, chosen=chosen, **saved)
        return
    arguments = chosen.fit_arguments(model)
    activity = f"fitting {type(model).__name__}"
    options.confirm(model, interactions, activity, yes=yes, **arguments)
    options.fit(model, interactions, **arguments)
    _note_plain_fit(model, interactions, reason)
    _save(model, out, perf_counter() - start, as_json, **saved)


def _with_criterion(searching: SearchOptions, source: str, data: Interactions) -> SearchOptions:
    """Return the options with the criterion of a split; print why not by time."""
    split = open_split(source)
    is_default = searching.by_time(data) and (
        (searching.criterion, searching.horizon, searching.folds) == (None, None, None)
    )
    if is_default and split is not None and split.protocol != "time":
        note(
            f"the {split.protocol} split hides items at random, so settings are chosen by "
            "leave-one-out; --criterion time chooses them for the time after the last event"
        )
        return dataclasses.replace(searching, criterion="leave-one-out")
    if not searching.by_time(data) and (searching.criterion, searching.prefer) == (None, None):
        note("the data have no times, so settings are chosen by leave-one-out")
    return searching


def _reason_not_to_search(
    chosen: ModelOptions, options: FitOptions, searching: SearchOptions
) -> str | None:
    """Return why these options mean a single fit, or None if settings can be searched."""
    from equipoise.models.linear import LinearAutoencoder

    if not isinstance(chosen.candidates()[0], LinearAutoencoder):
        family = f"--family {chosen.model}"
        return f"this model needs a split to be tuned: equipoise tune SPLIT OUT {family}"
    if options.refine:
        return "--refine is for a single fit"
    if options.engine == "neighbourhood" and searching.criterion != "time":
        return (
            "leave-one-out does not support --engine neighbourhood; on a split: "
            "equipoise tune SPLIT OUT --engine neighbourhood"
        )
    return None


def _with_automatic_settings(chosen: ModelOptions) -> Any:
    """Return the model; one of sessions with automatic settings, unless an option sets one."""
    from equipoise.models.session_choice import CHOSEN
    from equipoise.models.sessions import SessionRegression

    model = chosen.build()
    if isinstance(model, SessionRegression) and not CHOSEN & chosen.fixed.keys():
        return model._vary({"l2": "auto"})
    return model


def _searched_settings(chosen: ModelOptions, data: Interactions) -> list[str]:
    """Return the names of the settings that a search would choose."""
    from equipoise.data.signals import SETTINGS
    from equipoise.tuning.space import can_compare_weightings

    models = chosen.candidates()
    names = ["family"] if len(models) > 1 else []
    names += dict.fromkeys(name for model in models for name in model._tunable())
    names = [name for name in names if name not in (*chosen.fixed, *SETTINGS)]
    return [*names, "transform"] if can_compare_weightings(models, data) else names


def _note_plain_fit(model: Any, data: Interactions, reason: str) -> None:
    """Print why nothing was searched, and how weights were used."""
    from equipoise.tuning.space import can_compare_weightings

    if getattr(model, "chosen_", None):
        note("settings were chosen by MRR@20 on the last sessions; --no-search uses the defaults")
    elif model.search_space:
        note(f"no search: {reason}")
    if can_compare_weightings([model], data):
        note("weights are used as they are; --signals log1p or binary may give better lists")


def _search(
    chosen: ModelOptions,
    options: FitOptions,
    data: Interactions,
    searching: SearchOptions,
    yes: bool,
) -> Tuned:
    """Search the settings that no option sets."""
    from equipoise.tuning import tune
    from equipoise.tuning.space import TIME_SETTINGS

    arguments = options.plan_arguments() | {"threads": options.threads}
    models = _described(chosen.candidates(), chosen, data)
    if searching.budget is None:
        plan_options, solves = options.plan_arguments(), searching.n_solves(data)
        confirm_solve_time(data, "choosing settings", plan_options, solves=solves, yes=yes)
    tunable = {*TIME_SETTINGS, *(name for model in models for name in model._tunable())}
    fixed = [name for name in chosen.fixed if name in tunable]
    arguments |= chosen.fit_arguments(models[0])
    with show_search("ndcg@20") as progress:
        return tune(models, data, fixed=fixed, progress=progress, **vars(searching), **arguments)


def _described(
    models: list[Recommender], chosen: ModelOptions, data: Interactions
) -> list[Recommender]:
    """Return the models with features, if no option says otherwise and the catalogue has some."""
    from equipoise.models.features import Features, usable
    from equipoise.runtime.machine import free_memory

    features = Features()
    needed = 3 * 4 * data.n_items * features.limit  # of a column for each feature
    if chosen.features is not None or needed > free_memory() / 4 or not usable(features, data):
        return models
    note("the catalogue describes the items to the model; --features none ignores it")
    return [model._vary({"features": features}) for model in models]


@declare(app, "update", "equipoise update model --add new.csv --out model-new")
def update(
    model: Saved,
    reading: Reading,
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
        raise SettingError(
            "--from-store cannot be combined with --add, --remove or --forget; leave them out"
        )
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
    with working(f"updating {fitted.label}"):
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
    form: str | None = None,
    chosen: ModelOptions | None = None,
) -> None:
    """Save a model and print its size, its settings and how they were found."""
    from equipoise.runtime.machine import duration

    model = model.halve() if half else model
    with working(f"saving {path}"):
        model.save(path, data=form)
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
            estimate = estimate_facts(tuned.estimate)
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
    show_estimate(tuned.estimate)


def _choices(tuned: Tuned, chosen: ModelOptions) -> dict[str, Any]:
    """Return the names of the searched settings, and the options that set others."""
    from equipoise.data.signals import SETTINGS
    from equipoise.models.trend import SETTINGS as TREND_SETTINGS
    from equipoise.tuning.slices import Forecast
    from equipoise.tuning.space import TIME_SETTINGS

    fixed = chosen.fixed
    if chosen.model is not None:
        fixed["family"] = f"--model {chosen.model}"
    elif {"l2", "dropout"} <= fixed.keys() and "diag_bound" not in fixed:
        fixed["family"] = "ease (because of --l2 and --dropout)"
    if chosen.normalizer is not None:
        fixed["normalizer"] = f"--normalizer {chosen.normalizer}"
    skipped = {*fixed, *tuned.objectives, *SETTINGS, *TREND_SETTINGS, "solve", "failed"}
    if tuned.trials["family"].n_unique() == 1:
        skipped.add("family")
    if (
        "feature_strength" in tuned.trials.columns
        and tuned.trials["feature_strength"].n_unique() == 1
    ):
        skipped.add("feature_strength")  # of features; the last fit chooses it
    names = [name for name in tuned.trials.columns if name not in skipped]
    if isinstance(tuned.estimate, Forecast):
        names += [name for name in TIME_SETTINGS if name not in fixed]
    if "transform" in tuned.trials.columns and tuned.trials["transform"].n_unique() > 1:
        names.append("weights (transform)")
    return {"searched": names, "fixed": fixed}
