"""The command `tune`: search settings, watch it, keep the model, every trial and the frontier."""

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
    "What to tune: ease, lae, rlae, edlae, dlae and rdlae share their solves, so several may be "
    "given; or item-knn, slis, slit, slist, vsknn, gf-cf, bspm, turbo-cf, svd-ae, sgfcf. [ease]"
)


@declare(app, "tune", "equipoise tune split tuned --family ease --trials 5")
def tune(
    split: Annotated[
        str,
        typer.Argument(
            metavar="SPLIT",
            help="Saved split with a valid part, or DATA to choose by leave-one-out.",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    options: PlanOptions,
    reading: ReadOptions,
    family: Annotated[list[str] | None, option(FAMILIES)] = None,
    metric: Annotated[str, option("What to make large.")] = "ndcg@20",
    objective: Annotated[list[str] | None, option("Beside the metric. [tail_ndcg@20]")] = None,
    trials: Annotated[int | None, option("Number of solves. [50 on a split, 7 on DATA]")] = None,
    budget: Annotated[str | None, option("Time for all, such as 10m or 2h.")] = None,
    paper: Annotated[bool, option("The grid of the DAN paper.", "--paper-grid")] = False,
    early_stop: Annotated[
        bool, option("On a grid: leave what keeps falling.", "--early-stop")
    ] = False,
    resume: Annotated[bool, option("Go on with the same search in OUT.", "--resume")] = False,
    seed: Annotated[int, option("Of the search.")] = 0,
    refit: Annotated[
        Literal["train", "all"], option("On a split: fit the chosen settings on this.")
    ] = "train",
    prefer: Annotated[
        Literal["tail", "balance", "accuracy"] | None,
        option("On DATA: what to choose for. [balance]"),
    ] = None,
    threads: Annotated[int | None, option("At most this many.")] = None,
    as_json: Json = False,
) -> None:
    """Search hyper-parameters; writes model, trials and frontier plot.

    On a split its valid part decides. On DATA all of it stays in every fit, and users that are
    left out one by one decide.
    """
    from equipoise.data.split import Split

    search: Any
    there: dict[str, Any] = {}
    if reading.cluster is None:
        from equipoise.tuning import tune as search
    else:
        from equipoise.cluster import tune as search

        there = {"client": reading.cluster}
    _check_out(out, resume)
    loaded = reading.open_split(split, "cluster") or reading.load(split)
    with watching(metric) as watch:
        found = search(
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
            progress=watch,
            **there,
            **vars(options),
        )
    written = _write(out, found)
    if as_json:
        facts = {name: getattr(found, name) for name in ("best", "solves", "resumed", "complete")}
        points = {"points": found.trials.height - found.n_failed, "failed": found.n_failed}
        points |= {"front": found.frontier.to_dicts()}
        settings = {"settings": found.model.settings(), "seconds": found.seconds}
        settings |= {"chosen": found.sentence, "notes": found.notes}
        settings |= {"estimate": found.estimate and vars(found.estimate)}
        emit({**facts, **points, **settings, **written})
        return
    _show(found, written)


def _check_out(out: Path, resume: bool) -> None:
    """Refuse a folder that holds something else, or a search that was not asked to go on."""
    begun = (out / SEARCH).exists()
    if begun and not resume:
        raise SettingError(f"{out} holds a search; go on with --resume or choose another folder")
    if resume and not begun:
        raise SettingError(f"{out} holds no search to go on with; leave out --resume")
    if out.is_file():
        raise DataError(f"{out} is a file; give the path of a folder to write")
    if not begun and out.is_dir() and any(out.iterdir()):
        raise DataError(f"{out} is not empty; choose another folder")


def _write(out: Path, found: Tuned) -> dict[str, str]:
    """Write everything and return where it is."""
    from equipoise.display.drawing import search_frontier

    written = {"model": out / "model", "trials": out / "trials.parquet"}
    found.model.save(written["model"])
    found.trials.write_parquet(written["trials"])
    if len(found.objectives) > 1:
        names = (found.objectives[0], found.objectives[1])
        picture = search_frontier(found.trials, found.frontier, names)
        written["frontier"] = out / "frontier.svg"
        written["frontier"].write_text(picture, encoding="utf-8")
    return {what: str(path) for what, path in written.items()}


def _show(found: Tuned, written: dict[str, str]) -> None:
    from equipoise.runtime.machine import duration

    say(found.model.summary(), "bold")
    values = ", ".join(f"{name} {found.best[name]:.4f}" for name in found.objectives)
    before = f" and {found.resumed} from before" if found.resumed else ""
    failed = f" ({found.n_failed} failed)" if found.n_failed else ""
    where = "users left out one by one" if found.estimate else "the valid part"
    say(
        f"on {where}: {values}\n{found.trials.height - found.n_failed:,} settings from "
        f"{found.solves} solves{before}{failed} in {duration(found.seconds)}"
    )
    for each in found.notes:
        say(each)
    if found.estimate:
        say(f"chosen: {found.sentence}\non new users: {found.estimate}")
    if not found.complete:
        say("the budget ran out: the same command with --resume goes on", "yellow")
    if len(found.objectives) > 1:
        front = found.frontier.drop("solve").head(FRONT)
        title = f"frontier, {front.height} of {found.frontier.height}"
        show(front.rows(), *front.columns, title=title)
    say("\n" + "\n".join(f"{what:<9}{path}" for what, path in written.items()), "dim")


@contextmanager
def watching(metric: str) -> Iterator[Callable[[SearchProgress], None]]:
    """Show the last solves and the best so far: a live table, or lines without a terminal."""
    seen: list[SearchProgress] = []
    if not sys.stderr.isatty():
        spoken = time.monotonic()

        def line(progress: SearchProgress) -> None:  # for every improvement, and now and then
            nonlocal spoken
            better = not seen or progress.best_value != seen[-1].best_value
            seen.append(progress)
            if progress.failed is not None:
                return  # the library has said so
            if better or progress.done >= progress.total or time.monotonic() > spoken + REMINDER:
                spoken = time.monotonic()
                note(_line(progress, metric))

        yield line
        return
    with Live(console=console(error=True), transient=True, refresh_per_second=4) as live:

        def picture(progress: SearchProgress) -> None:
            seen.append(progress)
            rows = []
            for each in seen[-SHOWN:]:
                style = "green" if each.last_value == each.best_value else ""
                value = "failed" if each.failed is not None else each.last_value
                rows.append((each.done, Text(_settings(each.last), style), value))
            solves = table(rows, "solve", "best of the solve", metric)
            live.update(Group(solves, Text(_line(progress, metric), "bold")))

        yield picture


def _line(progress: SearchProgress, metric: str) -> str:
    from equipoise.runtime.machine import duration

    left = "" if progress.left is None else f", about {duration(progress.left)} left"
    return (
        f"{progress.done} of {progress.total} solves, best {metric} {progress.best_value:.4f} "
        f"({_settings(progress.best)}){left}"
    )


def _settings(point: dict[str, Any]) -> str:
    """Return the settings of a point in words, without its metrics."""
    from equipoise.models.settings import in_words

    settings = {name: value for name, value in point.items() if "@" not in name}
    settings.pop("prototype", None)
    return in_words({"model": settings.pop("family", ""), **settings})
