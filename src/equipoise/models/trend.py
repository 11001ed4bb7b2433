"""Trend: recent popularity as a prior of every score.

A model predicts what suits a history; what is in demand today also depends on the date. The trend
of an item is the number of users who used it, each counted by the age of the last use. It changes
the scores of a model by a factor or a summand per item, so every model that ranks can have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any, Literal, NamedTuple, get_args
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from equipoise.checks import choice, number, period
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr
from equipoise.errors import DataError, SettingError
from equipoise.ranking.ranker import score
from equipoise.ranking.terms import Mixtures, Term, TrendShare

Form = Literal["multiply", "add"]
Floats = npt.NDArray[np.float64]

FORMS = get_args(Form)
SETTINGS = ("half_life", "power", "share", "form")  # that `tune` can vary
LEAST = 1e-3  # users added to every count, so that an item without recent use keeps a chance
SAMPLE = 64  # training users whose scores measure the spread
MOST_SCORES = 50_000_000  # scores of the sample
SPAN_SHARE = 0.1  # usual half-life as a share of the time span of the data


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Recent popularity as a prior of the scores.

    The trend of an item is the sum of 2^(-age / half_life) over the users who used it, with the
    age of each user's last use at the last event of the data. Repeats of one user do not count.
    With s the score of the model, d the spread of all its scores and t the trend divided by its
    mean over the items, the score becomes

    - "multiply": (s + share d) t^power. A share of 0 scales the model's scores; a large share
      ranks by recent popularity.
    - "add": s + share d log(t).

    Alpha of `DAN` scales by the number of all users; the trend by that of recent ones.

    Parameters
    ----------
    half_life
        Age at which a use counts half, as a number of seconds or as text with a unit: "7d".
    power
        Exponent of the trend in the form "multiply", 0 to about 1.5; 0 ignores it.
    share
        Weight of recent popularity beside the model, 0 to about 10; 0 for none.
    form
        "multiply" or "add".

    Examples
    --------
    >>> import equipoise as eq
    >>> log = [("ann", "tea", 1.0, 0), ("bob", "tea", 1.0, 0), ("eve", "tea", 1.0, 0),
    ...        ("bob", "jam", 1.0, 0), ("cleo", "milk", 1.0, 86400), ("dan", "milk", 1.0, 86400)]
    >>> data = eq.read(log)
    >>> eq.Popularity().fit(data).recommend([["jam"]], k=2).items
    [['tea', 'milk']]
    >>> model = eq.Popularity(trend=eq.Trend(half_life="6h", power=1.0)).fit(data)
    >>> model.recommend([["jam"]], k=2).items
    [['milk', 'tea']]
    """

    half_life: float | str = "7d"
    power: float = 0.5
    share: float = 0.3
    form: Form = "multiply"

    def __post_init__(self) -> None:
        period("half_life", self.half_life)
        choice("form", self.form, FORMS)
        for name in ("power", "share"):
            value = number(name, getattr(self, name))
            if value < 0:
                raise SettingError(f"{name} must be >= 0, got {value}")

    @property
    def is_neutral(self) -> bool:
        """Whether the scores stay those of the model."""
        return self.share == 0 and (self.power == 0 or self.form == "add")

    @property
    def seconds(self) -> float:
        """The half-life in seconds."""
        return period("half_life", self.half_life)

    def fit(self, data: Interactions, spread: float) -> FittedTrend:
        """Count the recent users of each item; `spread` is that of the model's scores."""
        counts = recent_users(data, self.seconds)
        level = float(counts.mean()) if len(counts) else 0.0
        return FittedTrend(self, counts, level, spread)


@dataclass(frozen=True, eq=False)
class FittedTrend:
    """A trend with the numbers that it took from the training data.

    Parameters
    ----------
    settings
        The settings.
    counts
        Recent users of each item, weighted by age.
    level
        Their mean at the fit.
    spread
        Standard deviation of the scores of the model.
    mixtures
        New items of the model: the trend of each is that of the items it is like.
    """

    settings: Trend
    counts: Floats
    level: float
    spread: float
    mixtures: Mixtures | None = None

    @property
    def all_counts(self) -> Floats:
        """Recent users of the items of the model, new items included."""
        return self.counts if self.mixtures is None else self.mixtures.means(self.counts)

    def with_counts(self, counts: Floats) -> FittedTrend:
        """Return the same trend for other counts, such as those of live events."""
        return replace(self, counts=counts)

    def fitted_to(self, data: Interactions) -> FittedTrend:
        """Return the same trend with the recent users of other data."""
        return self.with_counts(recent_users(data, self.settings.seconds))

    def lift(self, counts: Floats | None = None) -> Floats:
        """Return the trend of each item relative to the mean item of the fit."""
        counts = self.all_counts if counts is None else counts
        lift: Floats = (counts + LEAST) / (self.level + LEAST)
        return lift

    def scale_and_constant(self, counts: Floats | None = None) -> tuple[Floats | None, Floats]:
        """Return the factor of each item's score (None for 1) and what is added to it after."""
        settings, lift = self.settings, self.lift(counts)
        weight = settings.share * self.spread
        if settings.form == "add":
            return None, weight * np.log(lift)
        scale = lift**settings.power
        return scale, weight * scale

    def applied_to(self, terms: Sequence[Term]) -> list[Term]:
        """Return the terms of the scores with the trend."""
        if self.settings.is_neutral:
            return list(terms)
        scale, constant = self.scale_and_constant()
        dtype = np.result_type(*(term.dtype for term in terms))
        trended = list(terms) if scale is None else [term.scaled(scale) for term in terms]
        if constant.any():
            trended.append(TrendShare(constant.astype(dtype)))
        return trended


def recent_users(data: Interactions, half_life: float) -> Floats:
    """Return the number of users of each item, each counted by the age of the last use.

    Events that are returns, with a negative weight, are no use. Ages are relative to the last
    event of the data.
    """
    cached = _counts.setdefault(data, {})
    if half_life not in cached:
        cached[half_life] = count_recent_users(data, half_life, keep=True)
    return cached[half_life]


@singledispatch
def count_recent_users(data: Interactions, half_life: float, *, keep: bool) -> Floats:
    """Return the result of `recent_users`; `keep` the last uses for another half-life."""
    uses = last_uses(data) if keep or data in _uses else find_last_uses(data)
    counts = np.bincount(uses.items, uses.weights(half_life), data.n_items).astype(np.float64)
    counts.flags.writeable = False
    return counts


def usual_half_life(data: Interactions) -> float | None:
    """Return a tenth of the time span of the data in seconds; None if they have no times."""
    span = data.time_span
    return None if span is None else SPAN_SHARE * (span[1] - span[0]) or 1.0


def usual_recent_users(data: Interactions) -> Floats | None:
    """Return the recent users of each item with the usual half-life; None without times.

    They rank items for users without a history if a model has no trend.
    """
    half_life = usual_half_life(data)
    if half_life is None:
        return None
    cached = _counts.setdefault(data, {})
    if half_life not in cached:
        # the last uses are large and would stay as long as the data: a model keeps its data
        cached[half_life] = count_recent_users(data, half_life, keep=False)
    return cached[half_life]


class LastUses(NamedTuple):
    """The last use of each pair of user and item, in ascending order of the pairs."""

    keys: npt.NDArray[np.int64]  # row * n_items + item
    items: npt.NDArray[np.int32]
    ages: Floats

    def weights(self, half_life: float) -> Floats:
        """Return what each of them counts."""
        return np.exp2(-self.ages / half_life)


_uses: WeakKeyDictionary[Interactions, LastUses] = WeakKeyDictionary()
# counts of each half-life that was asked for; read-only, as models share them
_counts: WeakKeyDictionary[Interactions, dict[float, Floats]] = WeakKeyDictionary()


def last_uses(data: Interactions) -> LastUses:
    """Return the age of the last use of each pair; computed once for each data."""
    if data not in _uses:
        _uses[data] = find_last_uses(data)
    return _uses[data]


def find_last_uses(data: Interactions, latest: float | None = None) -> LastUses:
    """Return the age of the last use of each pair at a time, by default that of the last use."""
    events = data.events
    if events is None or events.times is None:
        raise DataError("a trend needs times; name the column with eq.read(..., time=...)")
    is_use = np.ones(events.n_events, bool) if events.weights is None else events.weights > 0
    rows, items, times = events.rows[is_use], events.items[is_use], events.times[is_use]
    keys = rows * np.int64(data.n_items) + items
    # the events of a user ascend in time, so the last one of each pair is the latest
    order = np.argsort(keys, kind="stable")
    last = order[np.append(np.diff(keys[order]) != 0, True)[: len(order)]]
    ages = (times.max(initial=-np.inf) if latest is None else latest) - times[last]
    return LastUses(keys[last], items[last], ages)


@singledispatch
def sample_of(data: Interactions) -> npt.NDArray[np.int64]:
    """Return the positions of training users whose scores measure the spread."""
    usable = np.flatnonzero(data.user_counts)
    return usable[places_of_sample(len(usable), data.n_items)]


def places_of_sample(n_users: int, n_items: int) -> npt.NDArray[np.int64]:
    """Return the places of sampled users among so many with items."""
    size = int(min(SAMPLE, n_users, max(MOST_SCORES // max(n_items, 1), 1)))
    return np.linspace(0, n_users - 1, size).astype(np.int64) if size else np.empty(0, np.int64)


def spread_of_scores(terms: Sequence[Term], histories: Csr, users: npt.NDArray[np.int64]) -> float:
    """Return the standard deviation of the scores of the histories of these training users."""
    if not len(users) or not terms:
        return 0.0
    scores: Any = score(terms, histories, users=users)
    finite = scores[np.isfinite(scores)]
    return float(finite.std(dtype=np.float64)) if len(finite) else 0.0
