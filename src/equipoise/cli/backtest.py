"""The command `backtest`: how good a model would have been after several cuts in time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from equipoise.cli.data import DATA, Reading
from equipoise.cli.framework import (
    Json,
    Yes,
    declare,
    emit,
    legend,
    note,
    option,
    say,
    show,
    show_periods,
    verdict_text,
    working,
)
from equipoise.cli.recommend import RulesFile
from equipoise.cli.settings import FitOptions, ModelOptions
from equipoise.errors import DataError, SettingError

if TYPE_CHECKING:
    from equipoise.evaluation.backtest import Backtest
    from equipoise.models import Recommender

app = typer.Typer()

METRIC = "ndcg@20"
REPEATED = f"repeated_{METRIC}"
YARDSTICKS = {
    "popular": "the items with most users of all time, the same list for every user",
    "popular lately": "the same, with old events counting less; half-life chosen before each cut",
    "item-kNN": "items that are often used by the same users as those of the history",
}


@declare(app, "backtest", "equipoise backtest events.csv --l2 5 --horizon 1d --folds 2")
def backtest(
    data: Annotated[str, typer.Argument(metavar="DATA", help=DATA)],
    chosen: ModelOptions,
    options: FitOptions,
    reading: Reading,
    saved: Annotated[
        Path | None,
        typer.Argument(metavar="[MODEL]", help="Saved model, whose settings are fitted again."),
    ] = None,
    horizon: Annotated[
        str | None, option("Length of each period, such as 7d. [a tenth of the events]")
    ] = None,
    folds: Annotated[int, option("Number of periods; the last one ends with the data.")] = 3,
    metric: Annotated[str, option("Metric to show.")] = METRIC,
    repeats: Annotated[
        Literal["new", "all", "again"],
        option("Items to predict: new to the user, all, or used before."),
    ] = "new",
    update: Annotated[
        bool, option("Update the model from period to period instead of refitting it.", "--update")
    ] = False,
    rules: RulesFile = None,
    bootstrap: Annotated[int, option("Resamples of the intervals; 0: none.")] = 1000,
    plot: Annotated[
        Path | None, option("Image to write, such as backtest.png: the metric over time.")
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Fit a model before several moments of the past and evaluate its lists on what came next.

    The log is cut at the start of each period. The model, popularity, recent popularity and
    item-kNN are fitted to the events before the cut and evaluated on those of the period. The
    settings are those of MODEL or of the options; nothing is searched.
    """
    from equipoise.evaluation.backtest import backtest as measure
    from equipoise.evaluation.metrics import at_cutoff

    _, cutoff = at_cutoff(metric)
    if plot is not None:
        _check_plot(plot)
    tested = _model(saved, chosen)
    interactions = reading.load(data)
    arguments = options.keywords(**chosen.fit_arguments(tested))
    options.confirm(tested, interactions, "the backtest", solves=folds, yes=yes)
    name = metric.partition("@")[0]
    periods = "1 period" if folds == 1 else f"{folds} periods"
    with working(f"testing {tested.label} on {periods}") as progress:
        result = measure(
            tested,
            interactions,
            horizon,
            folds,
            k=cutoff,
            metrics=None if name == "ndcg" else [name],
            repeats=repeats,
            update=update,
            rules=rules,
            bootstrap=bootstrap,
            progress=progress,
            **arguments,
        )
    if plot is not None:
        result.plot(metric).figure.savefig(plot, dpi=150, bbox_inches="tight")
        note(f"plot written to {plot}")
    if as_json:
        emit(result.to_dict())
        return
    _show(result, metric, repeats)
    if saved is not None and (tested.estimate_ or {}).get("protocol") == "time":
        say(
            "note: the settings of this model were chosen on the last periods of its data, so its "
            "figures on the same periods are too optimistic; `equipoise fit` prints the figure "
            "to expect",
            "yellow",
        )


def _check_plot(path: Path) -> None:
    """Raise early if an image cannot be written."""
    from equipoise.errors import MissingExtraError

    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        raise MissingExtraError(
            "--plot needs matplotlib; install it with `pip install 'equipoise[report]'`"
        ) from error
    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix.removeprefix(".") not in known:
        raise SettingError(f"--plot must end in .png, .svg or .pdf, got {path}")
    if not path.absolute().parent.is_dir():
        raise DataError(f"the folder {path.absolute().parent} does not exist; create it first")


def _model(path: Path | None, chosen: ModelOptions) -> Recommender:
    """Return the saved model, or the unfitted one that the options describe."""
    if path is None:
        return chosen.build()
    if chosen.is_used:
        raise SettingError("a saved model keeps its settings; leave out --model and its options")
    from equipoise.models import load

    return load(path)


def _show_contents(result: Backtest, days: list[str]) -> None:
    """Print what happened in each period, and the figure on repeated items where there are any."""
    names = ["period", "users", "pairs", "new\nitems", "new\nusers", "repeated"]
    rows = []
    for period, row in zip(days, result.periods().to_dicts(), strict=True):
        shares = [f"{row[n]:.0%}" for n in ("unknown_items", "unknown_users", "repeated")]
        figure = None if math.isnan(row[REPEATED]) else row[REPEATED]
        rows.append([period, row["users"], row["pairs"], *shares, figure])
    if any(result.again):
        names.append(f"repeated\n{METRIC}")
    show([row[: len(names)] for row in rows], *names, title="What happened in each period")


def _show(result: Backtest, metric: str, repeats: str) -> None:
    """Print the periods, the models beside each other, what the figures leave out, the verdict."""
    say(result.models[result.name], "bold")
    items = {"new": "items new to the user", "all": "all items", "again": "items used before"}
    days = [fold.cut.days for fold in result.folds]
    values = {
        "this model" if name == result.name else name: result.values(metric, name)
        for name in result.results
    }
    errors = [result.error(metric, name) for name in result.results]
    show_periods(days, values, errors, f"{metric} on {items[repeats]}, after each cut")
    _show_contents(result, days)
    say()
    verdict = result.verdict_of(metric)
    say(verdict_text(verdict))
    for sentence in result.notes:
        say(f"note: {sentence}", "yellow")
    legend(
        {
            **{name: YARDSTICKS[name] for name in result.results if name in YARDSTICKS},
            "± error": "standard error of the mean as a forecast of the next period",
            "pairs": "a user and an item of the period, counted once",
            "new items, new users": "shares of the pairs whose item or user did not exist before "
            "the cut",
            "repeated": "share of the pairs whose item the user had used before; --repeats again "
            "evaluates these",
        }
    )
