"""`tune`: propose settings, solve, read off every model the solve serves, measure, keep."""

from __future__ import annotations

import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import polars as pl

from equipoise.checks import choice, count, function, period
from equipoise.checks import path as checked_path
from equipoise.errors import DataError, SettingError
from equipoise.estimation import leave_one_out, summary_of
from equipoise.ids import as_list
from equipoise.interactions import Interactions
from equipoise.machine import Pace, duration, free_memory, limited
from equipoise.metrics import USER_SLICES, at_cutoff
from equipoise.models import EASE, LAE, RLAE
from equipoise.models.base import FIT_DEFAULTS, Recommender
from equipoise.models.inverse import CANNOT_LEAVE_OUT
from equipoise.models.linear import LinearAutoencoder
from equipoise.split.parts import Split
from equipoise.tuning.criterion import REACH, USERS, OnLeftOut, OnPart, Prefer
from equipoise.tuning.ledger import Ledger, key_of
from equipoise.tuning.proposals import (
    CoordinateSearch,
    GridProposals,
    Point,
    RangeProposals,
    import_optuna,
)
from equipoise.tuning.result import SearchProgress, Tuned, frontier
from equipoise.tuning.space import Space

logger = logging.getLogger(__name__)

Refit = Literal["train", "all"]
FEW = 7  # solves by leave-one-out: the automatic settings, and a step in each direction
LOWER_IS_BETTER = ("gini", "popularity", "lift")


def tune(
    model: Any = None,
    split: Split | Interactions | None = None,
    *,
    trials: int | None = None,
    metric: str = "ndcg@20",
    objectives: Sequence[str] = ("tail_ndcg@20",),
    grid: Any = None,
    budget: str | float | None = None,
    early_stop: bool = False,
    storage: Any = None,
    resume: bool = True,
    seed: int = 0,
    refit: Refit = "train",
    prefer: Prefer | None = None,
    users: int = USERS,
    device: str = "cpu",
    dtype: str = "float32",
    engine: str = "auto",
    memory: str | float | None = None,
    scratch: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    neighbours: int | str | None = None,
    progress: Callable[[SearchProgress], None] | None = None,
) -> Tuned:
    """Find good settings, on the valid part of a split or by leave-one-out, and fit them.

    One solve is made for each beta, l2 and dropout; every alpha, gamma, diag_bound and family is
    read off it. Of session models every alpha and decay_inference is read off one fit; neural
    models stop on the valid part. The test part is not looked at.

    ``eq.tune(data)`` needs no split: all data stay in every fit, and points are measured on
    training users that are left out of it exactly, as in `leave_one_out`. The solve of the chosen
    point is the model, and `Tuned.estimate` says what it is worth on new users.

    Parameters
    ----------
    model
        A class or its name (alpha, beta, l2 and dropout are searched), a model (its normalizer
        decides which exponents there are), or a list of either, which share their solves. Left
        out: EASE, RLAE and LAE with a `DAN`.
    split
        A split with a valid part; or Interactions, to tune linear autoencoders by leave-one-out.
    trials
        Number of solves, unless a grid says which; left out: 50 on a split, 7 by leave-one-out.
    metric
        What to make large on the valid part, such as "ndcg@20" or "recall@50".
    objectives
        More metrics to report; the frontier is between them and `metric`.
    grid
        Values per name, as in ``{"l2": [10, 100], "alpha": [0, 0.2]}``: every combination is
        tried. "paper" is the grid of the DAN paper. What is not named stays as the model has it.
        Left out: Optuna searches (needs the extra `tune`), linear autoencoders in ranges around
        the automatic settings, other models on a grid of their own, which is tried as a whole
        where it has no more points than `trials`.
    budget
        Time for everything, such as "10m" or seconds: the search ends when the next solve and the
        last fit would not fit in. A solve is expected to take what `plan` says, a fit of any
        other model what the longest one so far took.
    early_stop
        Walk a grid outwards from the automatic settings (of other models: their own), and leave a
        direction of beta, of dropout or of l2 once the best behind it fell twice in a row, to
        0.3% below the best of its line or more. Off, a grid is exact.
    storage
        A file for finished solves: after an interruption the same search continues from it, also
        with more trials. Any other file is refused and not changed. One process at a time may
        use it.
    resume
        Whether to continue a search that the storage holds; False refuses it.
    seed
        For Optuna, and for the users that are left out. The same seed gives the same search,
        interrupted or not.
    refit
        On a split: "train" fits the chosen settings on the train part, as papers do; "all" on
        the train and valid parts together, which is what you would use.
    prefer
        By leave-one-out: "accuracy" takes the best point; "balance" (left out: this one) the best
        in the second objective among those within one standard error of the best, user by user;
        "tail" among those within two.
    users
        By leave-one-out: how many users to leave out.
    device, dtype, engine, memory, scratch, threads, neighbours
        As for `fit`, for every solve or fit of the search and for the last one. On a card the Gram
        matrix stays there between penalties. What the model's `fit` does not take is refused.
    progress
        Called with a `SearchProgress` after every solve.

    Examples
    --------
    >>> import equipoise as eq, numpy as np
    >>> data = eq.Interactions(np.random.default_rng(0).random((80, 20)) < 0.3)
    >>> split = eq.split.strong(data, valid=0.2, test=0.2)
    >>> found = eq.tune([eq.EASE, eq.LAE], split, grid={"l2": [1, 10], "alpha": [0, 0.3]})
    >>> found.solves, found.trials.height
    (2, 8)
    >>> found = eq.tune(data, metric="ndcg@5", objectives="tail_ndcg@5")
    >>> found.solves, found.model.data_fingerprint_ == data.fingerprint
    (7, True)
    """
    return search_with(Solves, **locals())


def search_with(
    solves: Callable[..., Solves],
    *,
    model: Any,
    split: Any,
    trials: int | None,
    metric: str,
    objectives: Sequence[str],
    grid: Any,
    budget: str | float | None,
    early_stop: bool,
    storage: Any,
    resume: bool,
    seed: int,
    refit: Refit,
    prefer: Prefer | None,
    users: int,
    threads: int | None,
    progress: Callable[[SearchProgress], None] | None,
    **how: Any,
) -> Tuned:
    """Search as `tune` does; `solves` says who makes the solves."""
    started = time.perf_counter()
    if split is None and isinstance(model, (Split, Interactions)):
        model, split = None, model
    extra = [] if objectives is None else as_list(objectives)
    goals = {name: _sign(name) for name in [metric, *extra]}
    function("progress", progress)
    count("seed", seed, 0)
    if how.get("scratch") is not None:
        checked_path("scratch", how["scratch"])
    trials = count("trials", _default_trials(split) if trials is None else trials)
    criterion = _criterion(split, goals, refit, prefer, users, seed)
    train = criterion.train
    space = Space.of([EASE, RLAE, LAE] if model is None else model, grid, train)
    for each in space.models:
        if isinstance(criterion, OnLeftOut) and not isinstance(each, LinearAutoencoder):
            kind = type(each).__name__
            raise SettingError(f"{kind} is tuned on a split; make one with eq.split.strong(data)")
    if isinstance(criterion, OnLeftOut) and how.get("engine") == "neighbourhood":
        raise SettingError(CANNOT_LEAVE_OUT)
    options = {**how, "threads": threads}
    options = {name: value for name, value in options.items() if value != FIT_DEFAULTS.get(name)}
    if "valid" in space.models[0].fit_options:
        options["valid"] = cast(Split, split).valid  # a neural model stops where it is best there
    limit = None if budget is None else period("budget", budget)
    header = {
        **criterion.identity,
        "metrics": [*criterion.goals, *criterion.columns],
        **space.identity(),
        "dtype": how.get("dtype", FIT_DEFAULTS["dtype"]),
        "seed": seed,
    }
    made = solves(space, criterion, options)
    search = Search(criterion, space, options, made, limit, started, progress)
    with Ledger(storage, header, resume=resume) as ledger, limited(threads):
        complete = search.run(ledger, trials, early_stop, seed, whole=grid is not None)
        best = search.best()
        fitted = search.kept(best)
        made.release()  # the last fit needs the memory
        before = time.perf_counter()
        if fitted is None:
            fitted = space.model(best)
            whole = _whole(split) if refit == "all" and isinstance(split, Split) else train
            if whole is not train and "valid" in options:
                # what it learns from cannot tell it when to stop; the train part can
                trained: Any = space.model(best).fit(train, **options)
                fitted = fitted.vary({"epochs": trained.epoch_})
                options = {**options, "valid": None}
            fitted.fit(whole, **options)
        seconds = time.perf_counter() - before
        if isinstance(criterion, OnLeftOut):
            part = criterion.part.history, criterion.part.target
            cutoff = at_cutoff(metric)[1]
            measured = leave_one_out(fitted, k=cutoff, part=part, seed=seed)
            fitted.estimate_ = summary_of(measured)
    return _tuned(search, fitted, best, complete, seconds)


def _default_trials(split: Any) -> int:
    return 50 if isinstance(split, Split) else FEW


def _criterion(
    split: Any, goals: dict[str, float], refit: Refit, prefer: Prefer | None, users: int, seed: int
) -> OnPart | OnLeftOut:
    choice("refit", refit, ("train", "all"))
    if isinstance(split, Interactions):
        if refit == "all":
            raise SettingError("without a split all data are in the fit; leave out refit")
        chosen: Prefer = "balance" if prefer is None else prefer
        return OnLeftOut(split, goals, choice("prefer", chosen, REACH), users, seed)
    if not isinstance(split, Split):
        raise SettingError(
            "tune needs a split or Interactions; make one with eq.split.strong(data, valid=0.1)"
        )
    if prefer not in (None, "accuracy"):
        raise SettingError("prefer is for leave-one-out; give Interactions instead of a split")
    if split.valid is None:
        raise DataError(
            "the split has no valid part to tune on; make one with valid=0.1, as in "
            "eq.split.strong(data, valid=0.1)"
        )
    return OnPart(split, goals)


def _whole(split: Split) -> Interactions:
    """Return all that may be learnt from once settings are chosen: train and valid."""
    assert split.valid is not None
    whole = split.train
    for side in (split.valid.history, split.valid.target):
        whole = whole.union(side.difference(whole))
    return whole


class Solve(NamedTuple):
    """The points that one solve served, and the time of the fit and of everything."""

    points: list[Point]
    fit_seconds: float
    seconds: float


class Solves:
    """Makes solves: fits every model that the settings of one serve, and measures them.

    Parameters
    ----------
    space
        What is searched.
    criterion
        What models are measured on.
    options
        Of every fit.
    """

    def __init__(
        self, space: Space, criterion: OnPart | OnLeftOut, options: dict[str, Any]
    ) -> None:
        self.space, self.criterion, self.options = space, criterion, options
        # for the tiles of the search; those of the last fit are beside it
        self.scratch = Path(options["scratch"]) / "search" if "scratch" in options else None
        self.last: Any = None  # a model of the last solve, valid until the next one
        self._fit: Callable[[Sequence[Any]], None] | None = None

    def expect(self, points: Sequence[Point]) -> None:
        """Hear of solves that will all be asked for, in this order."""

    def __call__(self, outer: Point) -> Solve:
        """Make one solve."""
        start = time.perf_counter()
        numbers, models = zip(*self.space.variants(outer), strict=True)
        if self._fit is None:
            options = dict(self.options)
            if self.scratch is not None:
                options["scratch"] = self.scratch
            self._fit = models[0].shared_fit(models, self.criterion.train, **options)
        self._fit(models)
        fit_seconds = time.perf_counter() - start
        points = [
            {**model.search_point(), **found, "prototype": number}
            for number, model, found in zip(
                numbers, models, self.criterion.measure(models), strict=True
            )
        ]
        self.last = models[0]
        return Solve(points, fit_seconds, time.perf_counter() - start)

    def release(self) -> None:
        """Give back the memory and the disk of the solves."""
        self._fit = self.last = None
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)


class Search:
    """One search: what is solved, what came of it and when to stop.

    `options` go to every solve and fit. `limit` is in seconds since `started`.
    """

    def __init__(
        self,
        criterion: OnPart | OnLeftOut,
        space: Space,
        options: dict[str, Any],
        solves: Solves,
        limit: float | None,
        started: float,
        progress: Callable[[SearchProgress], None] | None,
    ) -> None:
        self.criterion, self.space, self.train = criterion, space, criterion.train
        self.goals, self.made = criterion.goals, solves
        self.options, self.limit, self.started, self.progress = options, limit, started, progress
        self.metric = next(iter(self.goals))
        self.solves = self.resumed = 0
        # of most models only a first fit can tell how long they take
        self._fit_seconds = space.models[0].fit_seconds(self.train, **options)
        self._longest = self._fit_seconds  # solve or fit, with the lists read off it
        self._pace, self._last_fit = Pace(), 0.0
        self._kept: tuple[Point, Any] | None = None  # a fitted model of the chosen solve so far
        self._places: dict[str, int] = {}  # of every solve on the grid
        self._walk: CoordinateSearch | None = None
        if limit is not None and limit < 2 * self._fit_seconds:
            raise self._too_small()

    def run(
        self, ledger: Ledger, trials: int, early_stop: bool, seed: int, *, whole: bool
    ) -> bool:
        """Make the solves that are missing; return whether all were made."""
        self.ledger, self.resumed = ledger, len(ledger.solves)
        whole = whole or not (self.space.in_ranges or self.space.size > trials)
        if whole:
            self._places = {key_of(each): at for at, each in enumerate(self.space.outer())}
            wanted = self._grid(early_stop)
        else:
            wanted = self._proposals(trials, seed)
        passed, outer = 0, next(wanted, None)
        while outer is not None:
            fresh = key_of(outer) not in ledger.solves
            if fresh and self._late():
                logger.info("the budget is used up after %d solves", self.solves)
                return False
            if fresh:
                self._solve(outer)
            passed += 1
            # what comes next is asked for first: by then it is known what is left out
            last, outer = outer, next(wanted, None)
            if fresh and self.progress is not None:
                left_out = self._walk.skipped if self._walk else 0
                done, total = len(ledger.solves), trials
                if whole:
                    done, total = passed, len(self._places) - left_out
                self._report(last, done, total)
        return True

    def best(self) -> Point:
        """Return the best point; of equal ones the first, on a grid the first of the grid."""
        if not self.ledger.solves:
            raise self._too_small()
        solved = sorted(  # a grid may have been walked in any order, and in several sittings
            self.ledger.solves.items(), key=lambda each: self._places.get(each[0], math.inf)
        )
        points = [point for _, each in solved for point in each["points"]]
        best: Point = points[self.criterion.choose(points)]
        return best

    def _grid(self, early_stop: bool) -> Iterator[Point]:
        if not early_stop:
            points = list(self.space.outer())
            self.made.expect([each for each in points if key_of(each) not in self.ledger.solves])
            return iter(points)
        start = self.space.start(self.train)
        self._walk = CoordinateSearch(
            self.space.axes, start, lambda outer: self._value(self._best_of(outer))
        )
        return self._walk.points()

    def _proposals(self, trials: int, seed: int) -> Iterator[Point]:
        """Yield what is proposed until there are enough solves."""
        first = self.space.start(self.train)
        proposals: RangeProposals | GridProposals
        if self.space.in_ranges:
            proposals = RangeProposals(first, seed)
        else:
            proposals = GridProposals(self.space.axes, first, seed)
        if trials > len(proposals.starts):
            import_optuna()  # missing is better known before the first solve than after it
        past = [
            ({name: points[0][name] for name in first}, max(map(self._value, points)))
            for points in (solved["points"] for solved in self.ledger.solves.values())
        ]
        while len(past) < trials:
            outer = proposals.propose(past)
            if outer is None:
                logger.info("the search has run out of new settings")
                return
            yield outer
            past.append((outer, self._value(self._best_of(outer))))

    def _solve(self, outer: Point) -> None:
        """Make a solve and keep what it gave."""
        found = self.made(outer)
        self._fit_seconds = max(self._fit_seconds, found.fit_seconds)
        self._longest, self._last_fit = max(self._longest, found.seconds), found.fit_seconds
        self.ledger.add(outer, {"points": found.points, "seconds": found.seconds})
        self.solves += 1
        by_users = isinstance(self.criterion, OnLeftOut)
        if by_users and self.made.last is not None and self.best() in found.points:
            self._keep(outer, self.made.last)

    def _keep(self, outer: Point, model: Any) -> None:
        """Keep the solve of the best point so far, where the memory has room for a second one."""
        self._kept = None
        P = model.inverse_
        if type(P) is np.ndarray and P.nbytes < free_memory() / 2:
            model.inverse_ = P.copy()
            self._kept = outer, model

    def kept(self, point: Point) -> Recommender | None:
        """Return the model of a point if its solve was kept; it needs no other fit."""
        if self._kept is None or any(point[n] != v for n, v in self._kept[0].items()):
            return None
        model: Any = self.space.model(point)
        found: Recommender = model.reuse(self._kept[1])
        return found

    def _late(self) -> bool:
        if self.limit is None:
            return False
        spent = time.perf_counter() - self.started
        return spent + self._longest + self._fit_seconds > self.limit

    def _value(self, point: Point) -> float:
        return self.goals[self.metric] * float(point[self.metric])

    def _best_of(self, outer: Point) -> Point:
        """Return the best point of a solve."""
        return max(self.ledger.solves[key_of(outer)]["points"], key=self._value)

    def _too_small(self) -> SettingError:
        what = f"a budget of {duration(self.limit or 0.0)} is too small"
        if not self._longest:
            return SettingError(f"{what}: it was spent before the first fit")
        return SettingError(
            f"{what}: one fit takes about {duration(self._longest)}, and there must be time for a "
            "solve and the last fit"
        )

    def _report(self, outer: Point, done: int, total: int) -> None:
        assert self.progress is not None
        last, best = self._best_of(outer), self.best()
        spent = time.perf_counter() - self.started
        left = self._pace.left(done, total)
        if left is not None:
            left += self._last_fit
            left = left if self.limit is None else min(left, max(self.limit - spent, 0.0))
        values = last[self.metric], best[self.metric]
        self.progress(SearchProgress(done, total, last, values[0], best, values[1], spent, left))


def _sign(name: str) -> float:
    """Return 1 for a metric that should be large, -1 for one that should be small."""
    named, _ = at_cutoff(name)
    if named.base == "diversity" or named.slice in USER_SLICES:
        raise SettingError(f"{name!r} cannot be tuned for; use one over all users and items")
    return -1.0 if named.base in LOWER_IS_BETTER else 1.0


def _tuned(
    search: Search, fitted: Recommender, best: Point, complete: bool, fit_seconds: float
) -> Tuned:
    hidden = {"prototype", *search.criterion.columns}
    rows = [
        {**{name: value for name, value in point.items() if name not in hidden}, "solve": number}
        for number, solved in enumerate(search.ledger.solves.values())
        for point in solved["points"]
    ]
    points = [point for each in search.ledger.solves.values() for point in each["points"]]
    names = list(search.goals)
    trials = pl.DataFrame(rows, infer_schema_length=None)
    trials = trials.select(pl.exclude(*names, "solve"), *names, "solve")
    return Tuned(
        model=fitted,
        best={name: value for name, value in best.items() if name not in hidden},
        trials=trials,
        frontier=frontier(trials, names, list(search.goals.values())),
        objectives=tuple(names),
        solves=search.solves,
        resumed=search.resumed,
        complete=complete,
        fit_seconds=fit_seconds,
        seconds=time.perf_counter() - search.started,
        estimate=search.criterion.estimate(points),
        sentence=_sentence(search, best, points),
    )


def _sentence(search: Search, best: Point, points: Sequence[Point]) -> str:
    """Say what was chosen, why, and what was given for what."""
    names = list(search.goals)
    how = "users left out one by one" if search.criterion.columns else "the valid part"
    values = ", ".join(f"{name} {best[name]:.4f}" for name in names)
    said = f"of {len(points):,} settings, {best['family']} has {values} on {how}"
    top = max(points, key=search._value)
    if best is top or len(names) < 2:
        return f"{said}: the best {names[0]}"
    given = abs(top[names[0]] - best[names[0]]) / max(abs(top[names[0]]), 1e-300)
    gained = abs(best[names[1]] - top[names[1]]) / max(abs(top[names[1]]), 1e-300)
    return (
        f"{said}: {100 * given:.1f}% of {names[0]} below the best, which may be chance, was given "
        f"for {100 * gained:.0f}% of {names[1]}"
    )
