"""The command `tune`: search settings, watch it, keep the model, every trial and the frontier."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from equipoise.cli.data import require_split
from equipoise.cli.framework import Json, declare
from equipoise.cli.output import REMINDER, add, clean, console, emit, note, say, show, table
from equipoise.cli.settings import DType, describe
from equipoise.errors import DataError, SettingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from equipoise.tuning import SearchProgress, Tuned

    Watch = Callable[[SearchProgress], None]

app = typer.Typer()

SEARCH, TRIALS, PICTURE, MODEL = "search.jsonl", "trials.parquet", "frontier.svg", "model"


SHOWN = 8  # solves in the live table


FRONT = 10  # points of the frontier in the table at the end


class Family(StrEnum):
    """The linear autoencoders, which share their solves, and models that are fitted apart."""

    ease = "ease"
    lae = "lae"
    rlae = "rlae"
    edlae = "edlae"
    dlae = "dlae"
    rdlae = "rdlae"
    gf_cf = "gf-cf"
    bspm = "bspm"
    turbo_cf = "turbo-cf"
    svd_ae = "svd-ae"
    sgfcf = "sgfcf"
    item_knn = "item-knn"
    slis = "slis"
    slit = "slit"
    slist = "slist"


@declare(app, "tune", "equipoise tune split tuned --family ease --trials 5")
def tune(
    split: Annotated[str, typer.Argument(metavar="SPLIT", help="Saved split with a valid part.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    family: Annotated[
        list[Family] | None,
        typer.Option(help="What to tune; ease to rdlae share solves. [ease]"),
    ] = None,
    metric: Annotated[str, typer.Option(help="What to make large on valid.")] = "ndcg@20",
    objective: Annotated[
        list[str] | None, typer.Option(help="Of the frontier, beside it. [tail_ndcg@20]")
    ] = None,
    trials: Annotated[int, typer.Option(help="Number of solves.")] = 50,
    budget: Annotated[str | None, typer.Option(help="Time for all, such as 10m or 2h.")] = None,
    paper: Annotated[
        bool, typer.Option("--paper-grid", help="The whole grid of the DAN paper instead.")
    ] = False,
    early_stop: Annotated[
        bool, typer.Option("--early-stop", help="On a grid: leave directions that keep falling.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the same search in OUT.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the search.")] = 0,
    dtype: Annotated[DType, typer.Option(help="Precision of the solves.")] = DType.float32,
    memory: Annotated[str | None, typer.Option(help="Budget, such as 6GB.")] = None,
    threads: Annotated[int | None, typer.Option(help="At most this many.")] = None,
    as_json: Json = False,
) -> None:
    """Search settings on the valid part of a split; OUT gets model, trials and frontier plot."""
    from equipoise.tuning import tune as search

    _check_out(out, resume)
    loaded = require_split(split)
    with watching(metric) as watch:
        found = search(
            [str(each) for each in family or [Family.ease]],
            loaded,
            trials=trials,
            metric=metric,
            objectives=objective or ["tail_ndcg@20"],
            grid="paper" if paper else None,
            budget=budget,
            early_stop=early_stop,
            storage=out / SEARCH,
            seed=seed,
            dtype=dtype.value,
            memory=memory,
            threads=threads,
            progress=watch,
        )
    written = _write(out, found)
    if as_json:
        emit({**_facts(found), **written})
        return
    _print(found, written)


def _check_out(out: Path, resume: bool) -> None:
    """Refuse a folder that holds something else, or a search that was not asked to go on."""
    if out.is_file():
        raise DataError(f"{out} is a file; give the path of a folder to write")
    begun = (out / SEARCH).exists()
    if begun and not resume:
        raise SettingError(f"{out} holds a search; go on with --resume or choose another folder")
    if resume and not begun:
        raise SettingError(f"{out} holds no search to go on with; leave out --resume")
    if not begun and out.is_dir() and any(out.iterdir()):
        raise DataError(f"{out} is not empty; choose another folder")


def _write(out: Path, found: Tuned) -> dict[str, str]:
    """Write everything and return where it is."""
    from equipoise.tuning import frontier_svg

    found.model.save(out / MODEL)
    found.trials.write_parquet(out / TRIALS)
    written = {"model": str(out / MODEL), "trials": str(out / TRIALS)}
    if len(found.objectives) > 1:
        names = (found.objectives[0], found.objectives[1])
        picture = frontier_svg(found.trials, found.frontier, names)
        (out / PICTURE).write_text(picture, encoding="utf-8")
        written["frontier"] = str(out / PICTURE)
    return written


def _facts(found: Tuned) -> dict[str, Any]:
    return {
        "best": found.best,
        "settings": found.model.settings(),
        "solves": found.solves,
        "resumed": found.resumed,
        "points": found.trials.height,
        "complete": found.complete,
        "seconds": found.seconds,
        "front": found.frontier.to_dicts(),
    }


def _print(found: Tuned, written: dict[str, str]) -> None:
    from equipoise.machine import duration

    say(describe(found.model), "bold")
    values = ", ".join(f"{name} {found.best[name]:.4f}" for name in found.objectives)
    say(f"on the valid part: {values}")
    before = f" and {found.resumed} from before" if found.resumed else ""
    say(
        f"{found.trials.height:,} settings from {found.solves} solves{before} in "
        f"{duration(found.seconds)}"
    )
    if not found.complete:
        say("the budget ran out: the same command with --resume goes on", "yellow")
    if len(found.objectives) > 1:
        columns = [name for name in found.frontier.columns if name != "solve"]
        rows = table(*columns)
        for row in found.frontier.head(FRONT).iter_rows(named=True):
            add(rows, *(_cell(row[name]) for name in columns))
        show(rows, f"frontier, {min(FRONT, found.frontier.height)} of {found.frontier.height}")
    say("\n" + "\n".join(f"{what:<9}{path}" for what, path in written.items()), "dim")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@contextmanager
def watching(metric: str) -> Iterator[Watch]:
    """Show the last solves and the best so far: a live table, or lines without a terminal."""
    if not sys.stderr.isatty():
        yield _Lines(metric)
        return
    with Live(console=console(error=True), transient=True, refresh_per_second=4) as live:
        seen: list[SearchProgress] = []

        def watch(progress: SearchProgress) -> None:
            seen.append(progress)
            live.update(_picture(seen[-SHOWN:], metric))

        yield watch


class _Lines:
    """A line for every improvement, and one now and then."""

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.best: float | None = None
        self.spoke = time.monotonic()

    def __call__(self, progress: SearchProgress) -> None:
        quiet = time.monotonic() - self.spoke < REMINDER
        if progress.best_value == self.best and quiet and progress.done < progress.total:
            return
        self.best, self.spoke = progress.best_value, time.monotonic()
        note(_line(progress, self.metric))


def _line(progress: SearchProgress, metric: str) -> str:
    from equipoise.machine import duration

    return (
        f"{progress.done} of {progress.total} solves, best {metric} {progress.best_value:.4f} "
        f"({settings_text(progress.best)}), about {duration(max(progress.left, 0))} left"
    )


def settings_text(point: dict[str, Any]) -> str:
    """Return the settings of a point, without its metrics."""
    parts = {name: value for name, value in point.items() if "@" not in name}
    family = parts.pop("family", "")
    parts.pop("prototype", None)
    inner = " ".join(f"{name}={_cell(value)}" for name, value in parts.items())
    return clean(f"{family} {inner}".strip())


def _picture(seen: list[SearchProgress], metric: str) -> Group:
    rows = table("solve", "best of the solve", metric, left=(1,))
    for progress in seen:
        leads = progress.last_value == progress.best_value
        style = "green" if leads else None
        cells = (progress.done, settings_text(progress.last), f"{progress.last_value:.4f}")
        add(rows, *cells, style=style)
    return Group(rows, Text(_line(seen[-1], metric), "bold"))
