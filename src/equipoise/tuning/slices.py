"""Choose settings for the time after the last event.

The log is cut at several moments. The search fits on the events before the last cut and measures
lists on what came after it. How histories age and how strong the trend is need no solve of their
own, so each solve is measured under many of them. The best solve settings are then tried at the
earlier cuts too, and the mean over all cuts, later ones counting more, decides.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import equipoise
from equipoise.data.interactions import Interactions, generator
from equipoise.data.split.parts import Part
from equipoise.errors import DataError, SettingError
from equipoise.evaluation.backtest import (
    Fold,
    folds_of,
    forecast_error,
    half_lives,
    popular_lately,
    spread_between,
    verdict,
)
from equipoise.evaluation.evaluator import ListMetrics
from equipoise.evaluation.metrics import AGGREGATE, at_cutoff
from equipoise.models import ItemKNN, Popularity, Recommender
from equipoise.models.histories import cold_rows
from equipoise.models.trend import SETTINGS as TREND_SETTINGS
from equipoise.models.trend import Trend
from equipoise.ranking.kernels import select, sort_heaps
from equipoise.ranking.ranker import score
from equipoise.runtime import machine
from equipoise.runtime.kernels import compiled
from equipoise.tuning.criterion import Goals, rank_together
from equipoise.tuning.space import Point, Space

POWERS = (0.25, 0.5, 1.0)
SHARES = (0.0, 0.3, 1.0, 3.0, 10.0)  # in the form "multiply"
ADDED = (0.1, 0.3, 1.0, 3.0)  # shares in the form "add"
DAY = 86400.0
USERS = 1000  # of each fold
SWING_FOLDS = 6  # periods over which the spread of the yardsticks is measured
SHORTEST_DECAY = 60  # the decay in training is no shorter than this part of the time span
CLEAR = 0.05  # gain of the decay in training from which it is not tested at earlier cuts
BATCH = 64  # users whose scores are in memory at once
Floats = npt.NDArray[np.float64]


class Lately(NamedTuple):
    """Settings about time that need no solve: the decay of histories, and the trend."""

    history_decay: str | float | None = None
    trend: Trend | None = None


NEUTRAL = Lately()
NO_TREND = Trend(power=0.0, share=0.0)


@dataclass(frozen=True)
class Forecast:
    """Expected metric of the chosen model in the time after the last event.

    Attributes
    ----------
    metric
        Its name, such as "ndcg@20".
    value, error
        Mean over the periods, with the settings about time for each period chosen on the other
        periods; and how far the next period may be from it (one standard error): at least as much
        as the yardsticks differ between the last six periods.
    periods
        The value in each period.
    days
        First and last day of each period.
    of_yardsticks
        The metric of popularity, recent popularity and item-kNN in the same periods.
    unknown_items
        Share of the pairs in these periods on items that did not exist before; the metric leaves
        them out.
    n_users
        Users of all periods.
    name
        The model.
    """

    metric: str
    value: float
    error: float
    periods: tuple[float, ...]
    days: tuple[str, ...]
    of_yardsticks: Mapping[str, tuple[float, ...]]
    unknown_items: float
    n_users: int
    name: str

    @property
    def yardsticks(self) -> dict[str, float]:
        """Mean of each yardstick over the periods."""
        return {name: float(np.mean(values)) for name, values in self.of_yardsticks.items()}

    @property
    def verdict(self) -> str:
        """A sentence that compares the model with the yardsticks."""
        return verdict({self.name: self.periods, **self.of_yardsticks}, self.name, self.metric)

    def summary(self, data: Interactions, seed: int) -> dict[str, Any]:
        """Return plain values that are stored with a model fitted to these data."""
        interval = {
            "value": self.value,
            "low": max(self.value - 2 * self.error, 0.0),
            "high": self.value + 2 * self.error,
        }
        return {
            "protocol": "time",
            "version": equipoise.__version__,
            "part": ", ".join(self.days),
            "data": data.fingerprint,
            "n_users": self.n_users,
            "seed": seed,
            "values": {self.metric: interval},
            "yardsticks": self.yardsticks,
            "periods": dict(zip(self.days, self.periods, strict=True)),
            "yardstick_periods": {
                name: dict(zip(self.days, values, strict=True))
                for name, values in self.of_yardsticks.items()
            },
            "verdict": self.verdict,
        }

    def __str__(self) -> str:
        lines = [
            f"{self.metric} {self.value:.4f} ± {self.error:.4f} (standard error) in the next "
            f"period, from {len(self.periods)} periods of {self.n_users:,} users",
            *(f"  {day}: {value:.4f}" for day, value in zip(self.days, self.periods, strict=True)),
            *(f"  {name}: {value:.4f}" for name, value in self.yardsticks.items()),
            self.verdict,
        ]
        if self.unknown_items >= 0.005:
            lines.append(
                f"{self.unknown_items:.0%} of the items that users took in these periods did not "
                "exist before; the figures leave them out"
            )
        return "\n".join(lines)


class OnSlices:
    """Points are measured on the time after a cut; the best over all cuts is chosen."""

    def __init__(
        self,
        data: Interactions,
        goals: Goals,
        horizon: str | float | None,
        folds: int,
        users: int | None,
        seed: int,
    ) -> None:
        self.data, self.goals, self._horizon = data, goals, horizon
        self._metric = next(iter(goals))
        if at_cutoff(self._metric)[0].base in AGGREGATE:
            raise SettingError(f"{self._metric} has no value per user; tune it on a split")
        made = folds_of(data, horizon, folds)
        for fold in made:
            _metrics(fold, [self._metric])  # raises before the search if it has no value
        rng = generator(seed)
        self.folds = [
            replace(fold, part=_sampled(fold.part, users or USERS, rng)) for fold in made
        ]
        last = self.folds[-1]
        self.train = last.train
        self.columns: list[str] = []
        self.half_lives = half_lives(last.train)
        of_days = [name for name in self.half_lives if _seconds(name) >= DAY]
        self.history_decays: list[str | float | None] = [None, *of_days]
        events = last.train.events
        assert events is not None
        assert events.times is not None
        shortest = float(np.ptp(events.times)) / SHORTEST_DECAY
        self.decays = [name for name in of_days if _seconds(name) >= shortest]
        names = [self._metric, *(name for name in goals if _is_defined(last, name))]
        self.goals = {name: goals[name] for name in names}
        self._goal_metrics = _metrics(last, list(self.goals))
        self.n_later_fits = 2 * len(self.folds)  # at most, after the search
        self.searches_time = False  # whether the decay of histories and the trend are chosen
        self.searches_trend = False
        self.lately = self._unsearched = NEUTRAL
        self.forecast: Forecast | None = None
        self.identity = {
            "data": f"{data.fingerprint}-{last.part.fingerprint}",
            "protocol": "time",
            "horizon": horizon,
            "folds": folds,
        }

    def search_time(self, space: Space) -> None:
        """Choose the settings about time that the space searches; others stay as they are."""
        model = space.models[0]
        trend = None if model.trend is None or model.trend.is_neutral else model.trend
        self.searches_time = bool(space.half_lives)
        self.searches_trend = "trend" in space.time_settings
        if "history_decay" not in space.time_settings:
            self.history_decays = [model.signals.history_decay if model.signals else None]
        self.lately = self._unsearched = Lately(self.history_decays[0], trend)

    def trends(self, near: Trend | None = None) -> list[Trend | None]:
        """Return None and each half-life in both forms and all strengths.

        With a trend, only its half-life and those next to it. Where the trend is not searched, it
        is that of the model.
        """
        if not self.searches_trend:
            return [self._unsearched.trend]
        names = self.half_lives
        if near is not None and near.half_life in names:
            at = names.index(str(near.half_life))
            names = names[max(at - 1, 0) : at + 2]
        out: list[Trend | None] = [None]
        for half_life in names:
            out += [
                Trend(half_life=half_life, power=power, share=share)
                for power in POWERS
                for share in SHARES
            ]
            out += [Trend(half_life=half_life, share=share, form="add") for share in ADDED]
        return out

    def measure(self, models: Sequence[Any]) -> list[Point]:
        """Return the metrics of models that share a solve.

        The models are given the best decay of histories and the best trend.
        """
        points = self._measured(models, self.lately)
        sign, name = self.goals[self._metric], self._metric
        best = int(np.argmax([sign * point[name] for point in points]))
        if self.searches_time:
            is_first = self.lately == self._unsearched
            decays: list[str | float | None] = list(self.history_decays)
            if not is_first:
                decays = list(dict.fromkeys([decays[0], self.lately.history_decay]))
            trends = self.trends(self.lately.trend)
            options = [Lately(decay, trend) for decay in decays for trend in trends]
            values, _ = self.values_of(models[best], self.folds[-1], options)
            at = int(np.argmax(values))
            if values[at] > sign * points[best][name] and options[at] != self.lately:
                again = self._measured(models, options[at])
                if max(sign * point[name] for point in again) > sign * points[best][name]:
                    points, self.lately = again, options[at]
                else:
                    self._apply(models, self.lately)
        return points

    def continue_from(self, point: Point) -> None:
        """Take the settings about time of the last point of an earlier run."""
        if not self.searches_time:
            return
        trend = Trend(**{name: point[name] for name in TREND_SETTINGS})
        self.lately = Lately(point["history_decay"], None if trend.is_neutral else trend)

    def _near(self, decay: str | float | None) -> list[str | float | None]:
        """Return a decay of histories, its neighbours among the candidates, and the first one."""
        names = list(self.history_decays)
        at = names.index(decay) if decay in names else 0
        return list(dict.fromkeys([names[0], *names[max(at - 1, 0) : at + 2]]))

    def _apply(self, models: Sequence[Any], lately: Lately) -> None:
        for model in models if self.searches_time else ():
            model.signals = replace(model.signals, history_decay=lately.history_decay)
            model.trend = lately.trend or NO_TREND
            model._fit_trend()

    def _measured(self, models: Sequence[Any], lately: Lately) -> list[Point]:
        self._apply(models, lately)
        metrics = self._goal_metrics
        lists = rank_together(models, metrics.history, metrics.ks[-1])
        return [metrics.measure(model_lists) for model_lists in lists]

    def values_of(
        self, model: Any, fold: Fold, options: Sequence[Lately]
    ) -> tuple[Floats, Floats]:
        """Return the metric of a fitted model under each option, and its sampling error."""
        metrics = _metrics(fold, [self._metric])
        k, history = metrics.ks[-1], metrics.history
        sign = self.goals[self._metric]
        values, errors = np.empty(len(options)), np.empty(len(options))
        model = copy.copy(model)
        terms = model._terms() if self.searches_time else model._ranking_terms()
        trends = {option.trend for option in options if option.trend is not None}
        fitted = {trend: trend.fit(model.data_, 0.0) for trend in trends}
        for decay in dict.fromkeys(option.history_decay for option in options):
            places = [at for at, option in enumerate(options) if option.history_decay == decay]
            if self.searches_time:
                model.signals = replace(model.signals, history_decay=decay)
            rows = model._weigh(history)
            spread = model._spread_of_scores()
            scales = np.ones((len(places), len(model.item_index_)), np.float32)
            constants = np.zeros_like(scales)
            for row, at in enumerate(places):
                trend = options[at].trend
                if trend is not None:
                    scale, constant = replace(fitted[trend], spread=spread).scale_and_constant()
                    scales[row] = 1 if scale is None else scale
                    constants[row] = constant
            lists = _ranked_lists(terms, rows, scales, constants, k)
            cold = np.flatnonzero(cold_rows(rows, model.item_counts_))
            lists[cold] = model.rank(history.rows(cold), k).items[:, None]
            for row, at in enumerate(places):
                per_user = metrics.per_user([lists[:, row]])[0][self._metric]
                per_user = per_user[~np.isnan(per_user)]
                values[at] = sign * per_user.mean()
                errors[at] = per_user.std() / max(len(per_user), 1) ** 0.5
        return values, errors

    def choose(self, points: Sequence[Point]) -> int:
        """Return the position of the best point; the first one of equals."""
        sign = self.goals[self._metric]
        return int(np.argmax([sign * float(point[self._metric]) for point in points]))

    def settled(
        self,
        best: Point,
        points: Sequence[Point],
        build: Callable[[Point], Any],
        fit_options: Mapping[str, Any],
    ) -> Point:
        """Return the point to fit: the best over all cuts, by the settings about time.

        The solve settings of the best point are fitted before every cut; also those of the best
        point without decay in training, unless decay is clearly better.
        """
        candidates = [best]
        without = [point for point in points if point.get("decay") is None]
        if best.get("decay") is not None and without:
            steady = without[self.choose(without)]
            gain = abs(float(best[self._metric]) - float(steady[self._metric]))
            if gain <= CLEAR * abs(float(steady[self._metric])):
                candidates.append(steady)
        model = build(best)
        decays: list[Any] = [None]
        if self.searches_time:
            decays = self._near(best["history_decay"])
        trends = self.trends(self.lately.trend)
        options = [Lately(decay, trend) for decay in decays for trend in trends]
        shape = (len(self.folds), len(candidates), len(options))
        values, errors = np.empty(shape), np.empty(shape)
        for number, fold in enumerate(self.folds):
            for place, point in enumerate(candidates):
                model = build(point)
                model.fit(fold.train, **fit_options)
                values[number, place], errors[number, place] = self.values_of(model, fold, options)
        chosen = _best_place(values, range(len(self.folds)))
        place, at = chosen
        point = dict(candidates[place])
        self.forecast = self._forecast(values, errors, build(point).label, chosen)
        if self.searches_time:
            trend = options[at].trend or NO_TREND
            point |= {
                "history_decay": options[at].history_decay,
                **{name: getattr(trend, name) for name in TREND_SETTINGS},
            }
        sign = self.goals[self._metric]
        return point | {self._metric: float(sign * values[-1, place, at])}

    def _forecast(
        self, values: Floats, errors: Floats, name: str, chosen: tuple[int, ...]
    ) -> Forecast:
        """Return the expected metric, each period's settings chosen on the other periods."""
        sign = self.goals[self._metric]
        periods = [
            float(sign * values[(number, *place)]) for number, place in self._chosen_apart(values)
        ]
        sampling = [float(errors[(number, *chosen)]) for number in range(len(values))]
        return Forecast(
            self._metric,
            float(np.mean(periods)),
            forecast_error(periods, sampling, self._swing()),
            tuple(periods),
            tuple(fold.cut.days for fold in self.folds),
            self._yardsticks(),
            float(np.mean([fold.unknown_items for fold in self.folds])),
            sum(fold.part.n_users for fold in self.folds),
            name,
        )

    def _yardsticks(self) -> dict[str, tuple[float, ...]]:
        """Return popularity, recent popularity and item-kNN in each period."""
        values = self._values_of_yardstick
        sign = self.goals[self._metric]
        lately = np.array([values(popular_lately(name)) for name in self.half_lives])
        by_period = [
            float(lately[place[0], number])
            for number, place in self._chosen_apart(sign * lately.T)
        ]
        return {
            "popular": tuple(values(Popularity())),
            "popular lately": tuple(by_period),
            "item-kNN": tuple(values(ItemKNN())),
        }

    def _values_of_yardstick(
        self, model: Recommender, folds: Sequence[Fold] | None = None
    ) -> list[float]:
        """Return the metric of a model in each period."""
        of_folds = []
        for fold in self.folds if folds is None else folds:
            metrics = _metrics(fold, [self._metric])
            lists = model.clone().fit(fold.train).rank(metrics.history, metrics.ks[-1]).items
            of_folds.append(metrics.measure(lists)[self._metric])
        return of_folds

    def _swing(self) -> float:
        """Return the relative spread of the yardsticks over more periods than the search has.

        Their spreads are added before they are divided: a yardstick near 0 has few hits, and the
        ratio of its own spread to its own mean says little.
        """
        folds = [
            fold
            for fold in folds_of(self.data, self._horizon, SWING_FOLDS)
            if _is_defined(fold, self._metric)
        ]
        models = [Popularity(), popular_lately(self.half_lives[len(self.half_lives) // 2])]
        values = [self._values_of_yardstick(model, folds) for model in [*models, ItemKNN()]]
        total = float(np.sum([np.mean(of_model) for of_model in values]))
        return sum(map(spread_between, values)) / total if total else 0.0

    def _chosen_apart(self, values: Floats) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield each period, and the best place by the values of the other periods."""
        numbers = range(len(values))
        for number in numbers:
            others = [other for other in numbers if other != number] or [number]
            yield number, _best_place(values, others)

    def estimate(self, points: Sequence[Point]) -> Forecast | None:
        """Return the expected metric in the time after the last event."""
        return self.forecast


def _seconds(half_life: str) -> float:
    return Trend(half_life=half_life).seconds


def _sampled(part: Part, users: int, rng: np.random.Generator) -> Part:
    if part.n_users <= users:
        return part
    rows = np.sort(rng.choice(part.n_users, users, replace=False))
    return replace(part, history=part.history.rows(rows), target=part.target.rows(rows))


def _metrics(fold: Fold, names: Sequence[str]) -> ListMetrics:
    return ListMetrics.of(fold.part, fold.train.item_counts, names)


def _is_defined(fold: Fold, name: str) -> bool:
    """Whether any target is in the slice of a metric; small data may have no tail."""
    try:
        _metrics(fold, [name])
    except DataError:
        return False
    return True


def _best_place(values: Floats, folds: Sequence[int] | Iterator[int]) -> tuple[int, ...]:
    """Return the candidate and option with the best weighted mean; later folds count more."""
    listed = list(folds)
    weights = np.array([1.0 + number for number in listed])
    means = np.tensordot(weights, values[listed], axes=1) / weights.sum()
    return tuple(int(at) for at in np.unravel_index(int(np.argmax(means)), means.shape))


def _ranked_lists(
    terms: Sequence[Any], rows: Any, scales: Any, constants: Any, k: int
) -> npt.NDArray[np.int32]:
    """Return lists (user, option, rank) of scores that are scaled and shifted per option."""
    n_users, n_items = rows.shape
    depth = min(k, n_items)
    items = np.full((n_users, len(scales), depth), -1, np.int32)
    indptr, indices = rows.indptr.astype(np.int64), rows.indices.astype(np.int32)

    def rank_batch(number: int) -> None:
        users = np.arange(number * BATCH, min((number + 1) * BATCH, n_users))
        scores = np.asarray(score(terms, rows, users), np.float32)
        _rank_options(scores, users, indptr, indices, scales, constants, items)

    machine.run(rank_batch, -(-n_users // BATCH))
    return items


@compiled
def _rank_options(
    scores: Any,
    users: Any,
    indptr: Any,
    indices: Any,
    scales: Any,
    constants: Any,
    items: Any,
) -> None:
    """Fill the lists of these users under every option, without the items of their history."""
    n_options, n_items, k = scales.shape[0], scores.shape[1], items.shape[2]
    block = np.empty((1, n_items), np.float32)
    best = np.empty((n_options, k), np.float32)
    lengths, is_nan = np.zeros(n_options, np.int32), np.zeros(1, np.bool_)
    for row in range(len(users)):
        user = users[row]
        best[:] = np.nan
        lengths[:] = 0
        for option in range(n_options):
            for j in range(n_items):
                block[0, j] = scores[row, j] * scales[option, j] + constants[option, j]
            for at in range(indptr[user], indptr[user + 1]):
                block[0, indices[at]] = -np.inf
            one = slice(option, option + 1)
            select(block, 0, items[user, one], best[one], lengths[one], is_nan)
        sort_heaps(items[user], best, lengths)
