"""The command `tune`: search hyper-parameters, save the model and all trials."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from equipoise.cli.data import Reading
from equipoise.cli.framework import (
    REMINDER,
    Json,
    console,
    declare,
    emit,
    note,
    option,
    say,
    show,
    show_periods,
    table,
    verdict_text,
)
from equipoise.cli.settings import RunOptions, SearchOptions
from equipoise.errors import DataError, SettingError

if TYPE_CHECKING:
    from equipoise.tuning import SearchProgress, Tuned
    from equipoise.tuning.criterion import Estimate
    from equipoise.tuning.slices import Forecast

app = typer.Typer()

SEARCH = "search.jsonl"
SHOWN = 8  # solves in the live table
FRONT = 10  # points of the frontier in the table at the end
FAMILIES = (
    "Model: one or more of ease, lae, rlae, edlae, dlae and rdlae, which share their solves; or "
    "one of item-knn, slis, slit, slist, vsknn, stan, vstan, gf-cf, bspm, turbo-cf, svd-ae, "
    "sgfcf. [ease]"
)


@declare(app, "tune", "equipoise tune split tuned --family ease --trials 5")
def tune(
    split: Annotated[
        str,
        typer.Argument(
            metavar="SPLIT",
            help="Saved split with a valid part; or DATA, measured on its last periods, or by "
            "leave-one-out where it has no times.",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    options: RunOptions,
    searching: SearchOptions,
    reading: Reading,
    family: Annotated[list[str] | None, option(FAMILIES)] = None,
    metric: Annotated[str, option("Metric to maximise.")] = "ndcg@20",
    objective: Annotated[list[str] | None, option("Second metric. [tail_ndcg@20]")] = None,
    paper: Annotated[bool, option("Search the grid of the DAN paper.", "--paper-grid")] = False,
    early_stop: Annotated[
        bool, option("Skip directions of a grid whose score keeps dropping.", "--early-stop")
    ] = False,
    resume: Annotated[bool, option("Resume the search in OUT.", "--resume")] = False,
    seed: Annotated[int, option("Random seed of the search.")] = 0,
    refit: Annotated[
        Literal["train", "all"], option("Part of a split to fit the best settings on.")
    ] = "train",
    as_json: Json = False,
) -> None:
    """Search hyper-parameters; writes the model and all trials.

    Settings are measured on the valid part of a split. On DATA with times they are measured on
    the periods after several cuts near its end, and on DATA without times, or with --criterion
    leave-one-out, on training users left out of the fit.
    """
    from equipoise.data.split import Split

    search: Any
    client: dict[str, Any] = {}
    if reading.cluster is None:
        from equipoise.tuning import tune as search
    else:
        from equipoise.cluster import tune as search

        client = {"client": reading.cluster}
    _check_out(out, resume)
    loaded = reading.open_split(split, "cluster") or reading.load(split)
    with show_search(metric) as progress:
        tuned = search(
            family or (["ease"] if isinstance(loaded, Split) else None),
            loaded,
            metric=metric,
            objectives=objective or ["tail_ndcg@20"],
            grid="paper" if paper else None,
            early_stop=early_stop,
            storage=out / SEARCH,
            seed=seed,
            refit=refit,
            progress=progress,
            **client,
            **vars(options),
            **vars(searching),
        )
    written = _write(out, tuned)
    if not as_json:
        _print_result(tuned, written)
        return
    names = ("best", "solves", "resumed", "complete", "seconds", "notes")
    emit(
        {
            **{name: getattr(tuned, name) for name in names},
            "points": tuned.trials.height - tuned.n_failed,
            "failed": tuned.n_failed,
            "front": tuned.frontier.to_dicts(),
            "settings": tuned.model.settings(),
            "chosen": tuned.sentence,
            "estimate": estimate_facts(tuned.estimate),
            **written,
        }
    )


def _check_out(out: Path, resume: bool) -> None:
    """Raise if OUT holds other files, or a search without `--resume`."""
    has_search = (out / SEARCH).exists()
    if has_search and not resume:
        raise SettingError(f"{out} holds a search; use --resume or choose another folder")
    if resume and not has_search:
        raise SettingError(f"{out} holds no search to resume; leave out --resume")
    if out.is_file():
        raise DataError(f"{out} is a file; give the path of a folder to write")
    if not has_search and out.is_dir() and any(out.iterdir()):
        raise DataError(f"{out} is not empty; choose another folder")


def _write(out: Path, tuned: Tuned) -> dict[str, str]:
    """Write the results and return their paths."""
    written = {"model": out / "model", "trials": out / "trials.parquet"}
    tuned.model.save(written["model"])
    tuned.trials.write_parquet(written["trials"])
    return {name: str(path) for name, path in written.items()}


def _print_result(tuned: Tuned, written: dict[str, str]) -> None:
    from equipoise.runtime.machine import duration
    from equipoise.tuning.slices import Forecast

    say(tuned.model.summary(), "bold")
    values = ", ".join(f"{name} {tuned.best[name]:.4f}" for name in tuned.objectives)
    earlier = f" and {tuned.resumed} earlier ones" if tuned.resumed else ""
    failed = f" ({tuned.n_failed} failed)" if tuned.n_failed else ""
    where = "leave-one-out users" if tuned.estimate else "the valid part"
    if isinstance(tuned.estimate, Forecast):
        where = "the last period"
    say(
        f"on {where}: {values}\n{tuned.trials.height - tuned.n_failed:,} settings from "
        f"{tuned.solves} solves{earlier}{failed} in {duration(tuned.seconds)}"
    )
    for sentence in tuned.notes:
        say(sentence)
    if tuned.estimate:
        say(f"chosen: {tuned.sentence}")
    show_estimate(tuned.estimate)
    if not tuned.complete:
        say("the budget ran out; continue with the same command and --resume", "yellow")
    if len(tuned.objectives) > 1:
        front = tuned.frontier.drop("solve").head(FRONT)
        title = f"frontier, {front.height} of {tuned.frontier.height}"
        show(front.rows(), *front.columns, title=title)
    say("\n" + "\n".join(f"{name:<9}{path}" for name, path in written.items()), "dim")


def estimate_facts(estimate: Estimate | Forecast | None) -> dict[str, Any] | None:
    """Return the estimate of a search as plain values, with its protocol."""
    from equipoise.tuning.slices import Forecast

    if estimate is None:
        return None
    if isinstance(estimate, Forecast):
        derived = {"yardsticks": estimate.yardsticks, "verdict": estimate.verdict}
        return {"protocol": "time", **vars(estimate), **derived}
    return {"protocol": "leave-one-out", **vars(estimate)}


def show_estimate(estimate: Estimate | Forecast | None) -> None:
    """Print the figure to expect: on new users, or after the last event beside the yardsticks."""
    from equipoise.tuning.slices import Forecast

    if estimate is None:
        return
    if not isinstance(estimate, Forecast):
        figure, *_ = str(estimate).split("\n")
        say(f"on new users: {figure}")
        means = {"this model": estimate.value, **estimate.yardsticks}
        show([means.values()], *means)
        say()
        say(verdict_text(estimate.verdict))
        return
    n_periods = len(estimate.periods)
    say(
        f"after the last event: {estimate.metric} {estimate.value:.4f} ± {estimate.error:.4f} "
        f"(standard error), from {'1 period' if n_periods == 1 else f'{n_periods} periods'} with "
        f"{estimate.n_users:,} users in all"
    )
    values = {"this model": estimate.periods, **estimate.of_yardsticks}
    show_periods(estimate.days, values, title=f"{estimate.metric} in each period")
    say()
    verdict = estimate.verdict
    say(verdict_text(verdict))
    if estimate.unknown_items >= 0.005:
        say(
            f"note: {estimate.unknown_items:.0%} of the pairs in these periods are on items that "
            "did not exist before; the figures leave them out",
            "yellow",
        )


@contextmanager
def show_search(metric: str) -> Iterator[Callable[[SearchProgress], None]]:
    """Show the latest solves and the best one: a live table, or lines without a terminal."""
    seen: list[SearchProgress] = []
    if not sys.stderr.isatty():
        last_note = time.monotonic()

        def print_summary(progress: SearchProgress) -> None:
            nonlocal last_note
            improved = not seen or progress.best_value != seen[-1].best_value
            seen.append(progress)
            if progress.failed is not None:
                return  # already logged by the library
            is_due = time.monotonic() > last_note + REMINDER
            if improved or progress.done >= progress.total or is_due:
                last_note = time.monotonic()
                note(_summary(progress, metric))

        yield print_summary
        return
    with Live(console=console(error=True), transient=True, refresh_per_second=4) as live:

        def update_table(progress: SearchProgress) -> None:
            seen.append(progress)
            rows = []
            for solve in seen[-SHOWN:]:
                style = "green" if solve.last_value == solve.best_value else ""
                value = "failed" if solve.failed is not None else solve.last_value
                rows.append((solve.done, Text(_settings(solve.last), style), value))
            solves = table(rows, "solve", "best of the solve", metric)
            live.update(Group(solves, Text(_summary(progress, metric), "bold")))

        yield update_table


def _summary(progress: SearchProgress, metric: str) -> str:
    from equipoise.runtime.machine import duration

    left = "" if progress.left is None else f", about {duration(progress.left)} left"
    return (
        f"{progress.done} of {progress.total} solves, best {metric} {progress.best_value:.4f} "
        f"({_settings(progress.best)}){left}"
    )


def _settings(point: dict[str, Any]) -> str:
    """Return the settings of a trial in words, without its metrics."""
    from equipoise.models.settings import in_words

    settings = {name: value for name, value in point.items() if "@" not in name}
    settings.pop("prototype", None)
    return in_words({"model": settings.pop("family", ""), **settings})
