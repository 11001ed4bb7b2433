"""Backtest: how good a model would have been on the days after it was fitted.

The log is cut at several moments. The model is fitted to the events before each cut, and its lists
are compared with what users took after it. `folds_of` makes the cuts, `tune` chooses settings on
them, and `backtest` reports them with the yardsticks popularity, recent popularity and item-kNN.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.checks import choice, count, flag, function, period
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import cell_keys, in_ascending
from equipoise.data.signals import Signals
from equipoise.data.split.parts import REPEATS, Part, Repeats, timed_events
from equipoise.data.split.temporal import time_cut
from equipoise.display.notebook import fragment, table
from equipoise.errors import DataError, SettingError, UnknownIdError
from equipoise.evaluation.evaluator import as_cutoffs, evaluate
from equipoise.evaluation.metrics import LOWER_IS_BETTER, at_cutoff, look_up, nearest
from equipoise.evaluation.results import Result
from equipoise.models import ItemKNN, Popularity, Recommender
from equipoise.runtime.machine import duration

SHARE = 0.1  # of all events, in each fold without a horizon
HALF_LIVES = (
    *("1h", "3h", "12h", "1d", "3d", "7d", "30d", "90d", "365d"),
)  # that recent popularity and a search choose from
LONGEST, SHORTEST = 2, 1000  # a half-life is at most 1/2 and at least 1/1000 of the time span
METRIC = "ndcg@20"
DAY, HOUR = 86400.0, 3600.0
ITEM_IDS = "item ids"  # column that joins the catalogue of a model with other data

Floats = npt.NDArray[np.float64]


class Cut(NamedTuple):
    """A moment and the end of the time after it; events before `start` are for training."""

    start: float
    end: float  # exclusive

    @property
    def days(self) -> str:
        """First and last day, as text; with the time of day if they are less than two days."""
        first, last = (datetime.fromtimestamp(t, UTC) for t in (self.start, self.end))
        if self.end - self.start >= 2 * DAY:
            return f"{first.date()} to {last.date()}"
        clock = "%H:%M" if self.end - self.start >= 2 * HOUR else "%H:%M:%S"
        day = "" if first.date() == last.date() else "%m-%d "
        return f"{first:%Y-%m-%d {clock}} to {last:{day}{clock}}"


@dataclass(frozen=True, eq=False)
class Fold:
    """Training data before a cut, and what happened after it.

    `unknown_items` and `unknown_users` are the shares of the pairs after the cut whose item, or
    user, did not exist before it: no list of this fold can contain them, but for the items if they
    are targets (`new_items`). `repeated` is the share of pairs that the user had before.
    """

    cut: Cut
    train: Interactions
    part: Part
    repeats: Part | None
    n_pairs: int
    unknown_items: float
    unknown_users: float
    repeated: float
    new_items: bool
    notes: tuple[str, ...]


def folds_of(
    data: Interactions,
    horizon: str | float | None = None,
    folds: int = 3,
    *,
    repeats: Repeats = "new",
    again: bool = False,
    new_items: bool = False,
) -> list[Fold]:
    """Return the folds of a backtest, the earliest first.

    Parameters
    ----------
    data
        Interactions with times.
    horizon
        Time after each cut, in seconds or as text such as "7d". None: a tenth of the events.
    folds
        Number of cuts, one horizon apart; the last horizon ends with the data. Fewer are made
        where the data do not reach back far enough.
    repeats
        Which items are targets, as for `eq.split.time_cut`.
    again
        Whether folds also have a part whose targets are the repeated items.
    new_items
        Whether items that appear after a cut are targets.
    """
    events = timed_events(data, "a backtest")
    choice("repeats", repeats, REPEATS)
    fold_list, problem = [], None
    for cut in _cuts(events.times, horizon, folds):
        try:
            fold_list.append(_fold(data, events.times, cut, repeats, again, new_items))
        except DataError as error:
            problem = error
    if not fold_list:
        raise DataError(f"there is no period to test on: {problem}; use a longer horizon")
    return fold_list


def _cuts(times: Any, horizon: str | float | None, folds: int) -> list[Cut]:
    count("folds", folds)
    ordered = np.sort(times)
    if len(ordered) < 2 or ordered[0] == ordered[-1]:
        raise DataError("all events have the same time, so there is nothing to test on")
    end = float(np.nextafter(ordered[-1], math.inf))
    if horizon is None:
        size = max(round(SHARE * len(ordered)), 1)
        folds = min(folds, len(ordered) // size)
        places = [len(ordered) - number * size for number in range(folds, 0, -1)]
        starts = sorted({float(ordered[place]) for place in places if place > 0})
    else:
        length = period("horizon", horizon)
        if end - length <= ordered[0]:
            seconds = float(ordered[-1] - ordered[0])
            days = seconds / DAY
            span = f"{days:.0f} days" if days >= 2 else duration(seconds)
            raise DataError(f"the data span {span}, no longer than the horizon; use a shorter one")
        folds = int(min(folds, (end - ordered[0]) // length + 1))
        starts = [end - number * length for number in range(folds, 0, -1)]
    starts = [start for start in starts if start > ordered[0]]
    return [Cut(*pair) for pair in zip(starts, [*starts[1:], end], strict=True)]


def _fold(
    data: Interactions, times: Any, cut: Cut, repeats: Repeats, again: bool, new_items: bool
) -> Fold:
    until_end = data._only_events(times < cut.end)
    split = time_cut(until_end, test_from=cut.start, valid=0, repeats=repeats, new_items=new_items)
    after = data._only_events((times >= cut.start) & (times < cut.end))
    before = data._only_events(times < cut.start)
    n_pairs = max(after.n_interactions, 1)
    is_known_item = (before.item_counts > 0)[after.matrix.indices]
    pairs_of_user = np.diff(after.matrix.indptr)
    repeated = in_ascending(cell_keys(after.matrix), cell_keys(before.matrix))
    part_again = None
    if again and repeated.any():
        part_again = time_cut(
            until_end, test_from=cut.start, valid=0, repeats="again", new_items=new_items
        ).test
    return Fold(
        cut,
        split.train,
        split.test,
        part_again,
        after.n_interactions,
        float(1 - is_known_item.sum() / n_pairs),
        float(pairs_of_user[before.user_counts == 0].sum() / n_pairs),
        float(repeated.sum() / n_pairs),
        new_items,
        split.notes,
    )


def half_lives(data: Interactions, least: float = 0.0) -> list[str]:
    """Return the half-lives that suit the time span of the data, in ascending order.

    >>> import equipoise as eq
    >>> data = eq.Interactions([[1, 1]], times=[0, 60 * 86400])
    >>> half_lives(data, least=86400)
    ['3d', '7d', '30d']
    """
    times = timed_events(data, "a half-life").times
    assert times is not None
    span = float(times.max() - times.min()) if len(times) else 0.0
    suited = [
        text
        for text in HALF_LIVES
        if max(span / SHORTEST, least) < period("half-life", text) <= span / LONGEST
    ]
    return suited or [f"{max(span / 10, 1.0):.0f}s"]


def popular_lately(half_life: str | float) -> Popularity:
    """Return the model that lists what most users used lately."""
    return Popularity(signals=Signals(decay=half_life, floor=0.0))


def best_half_life(train: Interactions, part: Part, candidates: Sequence[str]) -> str:
    """Return the half-life with which recent popularity ranks a part best."""

    def value(half_life: str) -> float:
        model = popular_lately(half_life).fit(train)
        return evaluate(model, part, metrics="ndcg", bootstrap=0)[METRIC]

    return max(candidates, key=value)


@dataclass(frozen=True, eq=False)
class Backtest:
    """The results of models on each period of a backtest. Made by `backtest`.

    ``backtest["ndcg@20"]`` is the mean over the periods, ``backtest.error("ndcg@20")`` how far the
    figure of the next period may be from it (one standard error).
    """

    name: str  # of the model
    folds: tuple[Fold, ...]
    results: Mapping[str, tuple[Result, ...]]  # by model, one per period; the model's own first
    again: tuple[Result | None, ...]  # of the model on repeated items
    models: Mapping[str, str]  # each model and its settings in words

    def __getitem__(self, metric: str) -> float:
        return self.value(metric)

    def value(self, metric: str = METRIC, model: str | None = None) -> float:
        """Return the mean of a metric over the periods that have a value of it."""
        return _mean(self.values(metric, model))

    def values(self, metric: str = METRIC, model: str | None = None) -> list[float]:
        """Return a metric in each period."""
        return [result[metric] for result in self._results(model)]

    def error(self, metric: str = METRIC, model: str | None = None) -> float:
        """Return the standard error of the mean as a forecast of the next period.

        Periods differ by more than chance among their users: the error has both the spread
        between the periods and the sampling error of the next one, whichever is larger.
        """
        results = [r for r in self._results(model) if not math.isnan(r[metric])]
        if not results:
            return math.nan
        return forecast_error(
            [r[metric] for r in results], [_sampling(r, metric) for r in results]
        )

    def _results(self, model: str | None) -> tuple[Result, ...]:
        name = self.name if model is None else model
        if not isinstance(name, str) or name not in self.results:
            raise UnknownIdError(f"the backtest has no {name!r}; {nearest(name, self.results)}")
        return self.results[name]

    @property
    def verdict(self) -> str:
        """A sentence that compares the model with the yardsticks."""
        return self.verdict_of(METRIC)

    def verdict_of(self, metric: str) -> str:
        """Return a sentence that compares model and yardsticks by a metric."""
        periods = {name: self.values(metric, name) for name in self.results}
        return verdict(periods, self.name, metric)

    @property
    def notes(self) -> tuple[str, ...]:
        """Caveats: what lists of these periods could hardly contain, or not at all."""
        lines = []
        items = np.mean([fold.unknown_items for fold in self.folds])
        users = np.mean([fold.unknown_users for fold in self.folds])
        if items >= 0.005:
            counted = (
                "no list of a model fitted before it contains them, and the figures leave them out"
            )
            if self.folds[0].new_items:
                counted = (
                    "the figures count them: the model knows them by their description alone, and "
                    "the yardsticks not at all"
                )
            lines.append(
                f"{items:.0%} of the pairs after a cut are on items that did not exist before it; "
                f"{counted}"
            )
        if users >= 0.005:
            lines.append(
                f"{users:.0%} are of users without any event before it, whom the figures leave out"
            )
        return tuple(lines)

    def to_frame(self) -> pl.DataFrame:
        """Return one row per model, period and metric, as `Result.to_frame`, with the dates."""
        frames = []
        for name, results in self.results.items():
            for number, (fold, result) in enumerate(zip(self.folds, results, strict=True)):
                start, end = (datetime.fromtimestamp(t, UTC) for t in fold.cut)
                frames.append(
                    result.to_frame().with_columns(
                        pl.lit(name).alias("model"),
                        pl.lit(number + 1).alias("period"),
                        pl.lit(start).alias("start"),
                        pl.lit(end).alias("end"),
                    )
                )
        first = ["model", "period", "start", "end"]
        return pl.concat(frames).select(*first, pl.exclude(first))

    def periods(self) -> pl.DataFrame:
        """Return one row per period: its dates, users, and what happened after the cut."""
        rows = []
        for fold, result, again in zip(
            self.folds, self.results[self.name], self.again, strict=True
        ):
            start, end = (datetime.fromtimestamp(t, UTC) for t in fold.cut)
            rows.append(
                {
                    "start": start,
                    "end": end,
                    "users": fold.part.n_users,
                    "pairs": fold.n_pairs,
                    "unknown_items": fold.unknown_items,
                    "unknown_users": fold.unknown_users,
                    "repeated": fold.repeated,
                    METRIC: result[METRIC],
                    f"repeated_{METRIC}": math.nan if again is None else again[METRIC],
                }
            )
        return pl.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return means, errors and periods as plain values."""
        metrics = list(self.results[self.name][0].values)
        return {
            "model": self.name,
            "settings": dict(self.models),
            "values": {
                name: {metric: _plain(self.value(metric, name)) for metric in metrics}
                for name in self.results
            },
            "errors": {metric: _plain(self.error(metric)) for metric in metrics},
            "periods": [
                {
                    key: value.isoformat() if isinstance(value, datetime) else _plain(value)
                    for key, value in row.items()
                }
                for row in self.periods().to_dicts()
            ],
            "verdict": self.verdict,
            "notes": list(self.notes),
        }

    def plot(self, metric: str = METRIC, *, ax: Any = None) -> Any:
        """Plot a metric of all models over the periods; needs matplotlib."""
        from equipoise.display.plot import over_time

        middles = [datetime.fromtimestamp(sum(fold.cut) / 2, UTC) for fold in self.folds]
        lines = {name: self.values(metric, name) for name in self.results}
        return over_time(middles, lines, metric, ax=ax)

    def _rows(self) -> list[list[str]]:
        """Return the cells of a table over models and periods, its head first."""
        head = ["model", "mean", "± error", *(fold.cut.days for fold in self.folds)]
        rows = [head]
        for name in self.results:
            values = [f"{value:.4f}" for value in self.values(METRIC, name)]
            mean, error = self.value(METRIC, name), self.error(METRIC, name)
            rows.append([name, f"{mean:.4f}", f"{error:.4f}", *values])
        return rows

    @property
    def _title(self) -> str:
        pairs = {"new": "new", "all": "all", "again": "repeated"}[self.folds[0].part.repeats]
        return f"Backtest of {self.name}: {METRIC} of {pairs} pairs"

    def __repr__(self) -> str:
        rows = self._rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        title = f"{self._title} in {len(self.folds)} period{'s' * (len(self.folds) > 1)}"
        return "\n".join([title, *lines, self.verdict, *self.notes])

    def _repr_html_(self) -> str:
        head, *rows = self._rows()
        return fragment(self._title, table(head, rows), notes=[self.verdict, *self.notes])


def backtest(
    model: Any,
    data: Interactions,
    horizon: str | float | None = None,
    folds: int = 3,
    *,
    k: int | Iterable[int] = 20,
    metrics: Sequence[str] | str | None = None,
    repeats: Repeats = "new",
    update: bool = False,
    yardsticks: bool = True,
    rules: Any = None,
    bootstrap: int = 1000,
    seed: int = 0,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    **fit_options: Any,
) -> Backtest:
    """Fit a model before several cuts in time and evaluate its lists on what came after each.

    Parameters
    ----------
    model
        A model, fitted or not: its settings count. It is not changed. One with `Features` is also
        measured on items that appear after a cut.
    data
        Interactions with times.
    horizon
        Time after each cut, such as "7d"; None: a tenth of the events.
    folds
        Number of cuts, one horizon apart; the last horizon ends with the data.
    k, metrics, rules, bootstrap, seed
        As for `evaluate`. "ndcg@20" is always measured.
    repeats
        Which items are targets: new to the user ("new"), "all", or only items used before
        ("again"). With "new", repeated items are also reported apart.
    update
        Update the model of the previous cut instead of fitting a new one.
    yardsticks
        Also evaluate popularity, recent popularity (its half-life chosen before the cut) and
        item-kNN.
    threads
        Maximum number of threads.
    progress
        Called after each fit with the number of finished and of all fits.
    fit_options
        Options of the model's `fit`, such as ``engine="dense"``.

    Examples
    --------
    >>> import equipoise as eq
    >>> rng = np.random.default_rng(0)
    >>> log = [(int(rng.integers(40)), int(rng.integers(15)), 1.0, t) for t in range(800)]
    >>> tested = eq.backtest(eq.EASE(l2=5.0), eq.read(log), horizon="80s", folds=2)
    >>> len(tested.folds), list(tested.results)
    (2, ['EASE', 'popular', 'popular lately', 'item-kNN'])
    """
    if not isinstance(model, Recommender):
        raise SettingError(f"backtest needs a model, such as eq.EASE(), got {model!r}")
    if not isinstance(data, Interactions):
        raise DataError("backtest needs Interactions with times; read them with eq.read(...)")
    if model.ordered:
        raise SettingError(
            f"{type(model).__name__} ranks the next click of a session; evaluate it on "
            "eq.split.sessions(data)"
        )
    function("progress", progress)
    flag("update", update)
    flag("yardsticks", yardsticks)
    new_items = getattr(model, "features", None) is not None
    if new_items:
        data = _described(data, model)
    fold_list = folds_of(
        data, horizon, folds, repeats=repeats, again=repeats == "new", new_items=new_items
    )
    options: dict[str, Any] = {"k": k, "seed": seed, "threads": threads, "bootstrap": bootstrap}
    if metrics is not None:
        names = [named.name for named in look_up(metrics)]
        options["metrics"] = [*names, *({"ndcg"} - {*names})]
    options["k"] = sorted({*as_cutoffs(k), 20})
    name = model.label
    results: dict[str, list[Result]] = {name: []}
    again: list[Result | None] = []
    words = {name: model.clone().summary()}
    fitted: Any = None
    n_fits = len(fold_list) * (4 if yardsticks else 1)
    for number, fold in enumerate(fold_list):
        fitted = _fitted_before(model, fitted if update else None, fold, fit_options, threads)
        if rules is not None:
            options["rules"] = rules
        results[name].append(evaluate(fitted, fold.part, name=name, **options))
        again.append(_on_repeats(fitted, fold, name, options))
        steps = 4 if yardsticks else 1
        if progress is not None:
            progress(number * steps + 1, n_fits)
        for offset, (label, yardstick) in enumerate(_yardsticks(fold) if yardsticks else ()):
            words.setdefault(label, yardstick.summary())
            yardstick.fit(fold.train)
            result = evaluate(yardstick, fold.part, name=label, **options)
            results.setdefault(label, []).append(result)
            if progress is not None:
                progress(number * steps + offset + 2, n_fits)
    return Backtest(
        name,
        tuple(fold_list),
        {label: tuple(values) for label, values in results.items()},
        tuple(again),
        words,
    )


def _fitted_before(
    model: Recommender, earlier: Any, fold: Fold, fit_options: dict[str, Any], threads: int | None
) -> Recommender:
    """Return the model fitted on the training data of a fold."""
    fitted: Recommender
    if earlier is None:
        fitted = model.clone().fit(fold.train, threads=threads, **fit_options)
        return fitted
    times = fold.train.events.times if fold.train.events is not None else None
    last = earlier.data_.events.times.max()
    assert times is not None
    added = fold.train._only_events(times > last)
    fitted = copy.copy(earlier).update(added)
    return fitted


def _on_repeats(
    fitted: Recommender, fold: Fold, name: str, options: dict[str, Any]
) -> Result | None:
    """Return the result on items that users had before, None where nobody repeats."""
    return None if fold.repeats is None else evaluate(fitted, fold.repeats, name=name, **options)


def _yardsticks(fold: Fold) -> list[tuple[str, Recommender]]:
    """Return popularity, recent popularity and item-kNN for a fold."""
    candidates = half_lives(fold.train)
    half_life = candidates[-1]
    if len(candidates) > 1:
        try:
            (before,) = folds_of(fold.train, fold.cut.end - fold.cut.start, 1)
            half_life = best_half_life(before.train, before.part, candidates)
        except DataError:
            pass  # the data before the cut are too few to choose on
    return [
        ("popular", Popularity()),
        ("popular lately", popular_lately(half_life)),
        ("item-kNN", ItemKNN()),
    ]


def forecast_error(
    values: Sequence[float], sampling: Sequence[float], swing: float = 0.0
) -> float:
    """Return the standard error of the mean of past periods as a forecast of the next one.

    It is the largest of the spread between periods, whose estimate from few periods is corrected
    for its bias, the sampling error, and `swing`, the relative spread of yardsticks over more
    periods; each with the error of the mean.

    >>> round(forecast_error([0.1, 0.2, 0.3], [0.01, 0.01, 0.01]), 4)
    0.1303
    """
    n = len(values)
    between = spread_between(values)
    within = float(np.sqrt(np.mean(np.square(sampling))))
    swing *= abs(float(np.mean(values)))
    return max(between, within, swing) * math.sqrt(1 + 1 / n)


def spread_between(values: Sequence[float]) -> float:
    """Return the standard deviation of few numbers, without bias if they are normal."""
    n = len(values)
    if n < 2:
        return 0.0
    log_ratio = math.lgamma(n / 2) - math.lgamma((n - 1) / 2)
    mean_for_normal = math.sqrt(2 / (n - 1)) * math.exp(log_ratio)
    return float(np.std(values, ddof=1)) / mean_for_normal


def _sampling(result: Result, metric: str) -> float:
    """Return the standard error of a mean over the users of a period."""
    if metric not in result.per_user.columns:
        return 0.0
    column = result.per_user[metric].drop_nulls()
    if len(column) < 2:
        return 0.0
    return float(column.std() or 0.0) / math.sqrt(len(column))  # type: ignore[arg-type]


def verdict(periods: Mapping[str, Sequence[float]], name: str, metric: str = METRIC) -> str:
    """Return a sentence that compares a model with the best yardstick.

    `periods` has the metric of each model in each period. A difference of their means counts if it
    is larger than its standard error over the periods.

    >>> verdict({"EASE": [0.20, 0.22], "popular": [0.10, 0.11]}, "EASE")
    'EASE (ndcg@20 0.2100) is ahead of popular (0.1050) by 100%'
    """
    sign = -1.0 if at_cutoff(metric)[0].base in LOWER_IS_BETTER else 1.0
    means = {label: _mean(values) for label, values in periods.items()}
    rivals = {label: value for label, value in means.items() if label != name}
    if not rivals:
        return f"{name} has {metric} {means[name]:.4f}"
    best = max(rivals, key=lambda label: sign * rivals[label])
    figure, rival = means[name], rivals[best]
    gaps = np.subtract(periods[name], periods[best])
    gaps = gaps[~np.isnan(gaps)]
    error = spread_between(gaps.tolist()) / math.sqrt(max(len(gaps), 1))
    if not abs(figure - rival) > error:
        return (
            f"{name} ({metric} {figure:.4f}) and {best} ({rival:.4f}) differ no more than by "
            f"chance: {best} alone would do"
        )
    gap = f" by {abs(figure / rival - 1):.0%}" if rival > 0 else ""
    if sign * (figure - rival) > 0:
        return f"{name} ({metric} {figure:.4f}) is ahead of {best} ({rival:.4f}){gap}"
    return (
        f"do not deploy {name} as it is: {best} ({metric} {rival:.4f}) is ahead of it "
        f"({figure:.4f}){gap}"
    )


def _mean(values: Sequence[float]) -> float:
    """Return the mean of the numbers that are not NaN; NaN if there are none."""
    numbers = [value for value in values if not math.isnan(value)]
    return float(np.mean(numbers)) if numbers else math.nan


def _described(data: Interactions, model: Recommender) -> Interactions:
    """Return the data with the catalogue of a fitted model, if they have none of their own."""
    known = vars(model).get("interactions_")
    if data.catalogue is not None or known is None or known.catalogue is None:
        return data
    frame, ids = known.catalogue, pl.Series(ITEM_IDS, known.items.tolist())
    title = frame.columns[0] if frame.width else None
    kinds = {
        name: kind for name, kind in known.attributes.items() if name != title and kind != "other"
    }
    return data.with_catalogue(
        frame.select(ids, pl.all()), id=ITEM_IDS, title=title, types=kinds or None
    )


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
