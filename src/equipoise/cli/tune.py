"""The command `tune`: search hyper-parameters, save the model, all trials and the frontier."""

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

from equipoise.cli.data import ReadOptions
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
    table,
)
from equipoise.cli.settings import PlanOptions
from equipoise.errors import DataError, SettingError

if TYPE_CHECKING:
    from equipoise.tuning import SearchProgress, Tuned

app = typer.Typer()

SEARCH = "search.jsonl"
SHOWN = 8  # solves in the live table
FRONT = 10  # points of the frontier in the table at the end
FAMILIES = (
    "Model: one or more of ease, lae, rlae, edlae, dlae and rdlae, which share their solves; or "
    "one of item-knn, slis, slit, slist, vsknn, gf-cf, bspm, turbo-cf, svd-ae, sgfcf. [ease]"
)


@declare(app, "tune", "equipoise tune split tuned --family ease --trials 5")
def tune(
    split: Annotated[
        str,
        typer.Argument(
            metavar="SPLIT", help="Saved split with a valid part, or DATA for leave-one-out."
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    options: PlanOptions,
    reading: ReadOptions,
    family: Annotated[list[str] | None, option(FAMILIES)] = None,
    metric: Annotated[str, option("Metric to maximise.")] = "ndcg@20",
    objective: Annotated[list[str] | None, option("Second metric. [tail_ndcg@20]")] = None,
    trials: Annotated[int | None, option("Number of solves. [50 on a split, 7 on DATA]")] = None,
    budget: Annotated[str | None, option("Time limit, such as 10m or 2h.")] = None,
    paper: Annotated[bool, option("Search the grid of the DAN paper.", "--paper-grid")] = False,
    early_stop: Annotated[
        bool, option("Skip directions of a grid whose score keeps dropping.", "--early-stop")
    ] = False,
    resume: Annotated[bool, option("Resume the search in OUT.", "--resume")] = False,
    seed: Annotated[int, option("Random seed of the search.")] = 0,
    refit: Annotated[
        Literal["train", "all"], option("Part of a split to fit the best settings on.")
    ] = "train",
    prefer: Annotated[
        Literal["tail", "balance", "accuracy"] | None,
        option("Goal of the choice on DATA. [balance]"),
    ] = None,
    threads: Annotated[int | None, option("Maximum number of threads.")] = None,
    as_json: Json = False,
) -> None:
    """Search hyper-parameters; writes model, trials and frontier plot.

    Settings are scored on the valid part of a split, or on DATA by leave-one-out over users.
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
            trials=trials,
            metric=metric,
            objectives=objective or ["tail_ndcg@20"],
            grid="paper" if paper else None,
            budget=budget,
            early_stop=early_stop,
            storage=out / SEARCH,
            seed=seed,
            refit=refit,
            prefer=prefer,
            threads=threads,
            progress=progress,
            **client,
            **vars(options),
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
            "estimate": tuned.estimate and vars(tuned.estimate),
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
    from equipoise.display.drawing import search_frontier

    written = {"model": out / "model", "trials": out / "trials.parquet"}
    tuned.model.save(written["model"])
    tuned.trials.write_parquet(written["trials"])
    if len(tuned.objectives) > 1:
        names = (tuned.objectives[0], tuned.objectives[1])
        picture = search_frontier(tuned.trials, tuned.frontier, names)
        written["frontier"] = out / "frontier.svg"
        written["frontier"].write_text(picture, encoding="utf-8")
    return {name: str(path) for name, path in written.items()}


def _print_result(tuned: Tuned, written: dict[str, str]) -> None:
    from equipoise.runtime.machine import duration

    say(tuned.model.summary(), "bold")
    values = ", ".join(f"{name} {tuned.best[name]:.4f}" for name in tuned.objectives)
    earlier = f" and {tuned.resumed} earlier ones" if tuned.resumed else ""
    failed = f" ({tuned.n_failed} failed)" if tuned.n_failed else ""
    where = "leave-one-out users" if tuned.estimate else "the valid part"
    say(
        f"on {where}: {values}\n{tuned.trials.height - tuned.n_failed:,} settings from "
        f"{tuned.solves} solves{earlier}{failed} in {duration(tuned.seconds)}"
    )
    for sentence in tuned.notes:
        say(sentence)
    if tuned.estimate:
        say(f"chosen: {tuned.sentence}\non new users: {tuned.estimate}")
    if not tuned.complete:
        say("the budget ran out; continue with the same command and --resume", "yellow")
    if len(tuned.objectives) > 1:
        front = tuned.frontier.drop("solve").head(FRONT)
        title = f"frontier, {front.height} of {tuned.frontier.height}"
        show(front.rows(), *front.columns, title=title)
    say("\n" + "\n".join(f"{name:<9}{path}" for name, path in written.items()), "dim")


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
