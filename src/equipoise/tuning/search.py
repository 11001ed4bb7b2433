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
from equipoise.data.ids import as_list
from equipoise.data.interactions import Interactions
from equipoise.data.split.parts import Split
from equipoise.errors import DataError, SettingError, SolveError
from equipoise.evaluation.leave_one_out import leave_one_out, summary_of
from equipoise.evaluation.metrics import USER_SLICES, at_cutoff
from equipoise.models import EASE, LAE, RLAE
from equipoise.models.base import FIT_DEFAULTS, Recommender
from equipoise.models.inverse import CANNOT_LEAVE_OUT
from equipoise.models.linear import LinearAutoencoder
from equipoise.models.settings import in_words
from equipoise.runtime.machine import Pace, duration, free_memory, limited
from equipoise.tuning.criterion import REACH, USERS, OnLeftOut, OnPart, Prefer
from equipoise.tuning.ledger import Ledger, key_of
from equipoise.tuning.proposals import CoordinateSearch, Point, import_optuna
from equipoise.tuning.result import SearchProgress, Tuned, frontier
from equipoise.tuning.space import Space

logger = logging.getLogger(__name__)

Refit = Literal["train", "all"]
SPLIT_TRIALS = 50
FEW = 7  # solves by leave-one-out: the automatic settings, and a step in each direction
REASONS = 3  # shown where all solves failed
LOWER_IS_BETTER = ("gini", "popularity", "lift")


def tune(
    model: Any = None,
    split: Split | Interactions | None = None,
    *,
    trials: int | None = None,
    metric: str = "ndcg@20",
    objectives: Sequence[str] = ("tail_ndcg@20",),
    grid: Any = None,
    fixed: Sequence[str] | str = (),
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
        Number of solves, unless a grid says which; left out: 50 on a split, by leave-one-out the
        automatic settings and a step in each direction: 7, 2 more where weights are compared,
        and 2 fewer for each of l2, dropout and beta that is fixed.
    metric
        What to make large on the valid part, such as "ndcg@20" or "recall@50".
    objectives
        More metrics to report; the frontier is between them and `metric`.
    grid
        Values per name, as in ``{"l2": [10, 100], "alpha": [0, 0.2]}``: every combination is
        tried. "paper" is the grid of the DAN paper. What is not named stays as the model has it.
        Left out: Optuna searches (needs the extra `tune`), linear autoencoders in ranges around
        the automatic settings, other models on a grid of their own, which is tried as a whole
        where it has no more points than `trials`. Where pairs have different weights and a linear
        autoencoder has no `Signals`, the transforms "binary", "log1p" and "sum" are compared at
        their automatic settings first, and the search goes on with the best.
    fixed
        Names of settings that keep the value of the model, such as "l2", "alpha" or "transform";
        what is neither fixed nor in a grid is searched.
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
        everything outside test (`Split.train_and_valid`), new users and items of valid included,
        which is what you would use.
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

    Raises
    ------
    SolveError
        If every solve fails. One that fails is a row of `Tuned.trials` with its reason, and the
        search goes on.

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
    fixed: Sequence[str] | str,
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
    if trials is None and isinstance(split, Split):
        trials = SPLIT_TRIALS
    if trials is not None:
        count("trials", trials)
    criterion = _criterion(split, goals, refit, prefer, users, seed)
    train = criterion.train
    names = [fixed] if isinstance(fixed, str) else list(fixed)
    space = Space.of([EASE, RLAE, LAE] if model is None else model, grid, train, names)
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
            whole = train
            if refit == "all" and isinstance(split, Split):
                whole = split.train_and_valid()
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
        """Make one solve; after one that fails the next begins from scratch."""
        try:
            return self._made(outer)
        except SolveError:
            self.release()
            raise

    def _made(self, outer: Point) -> Solve:
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
        self, ledger: Ledger, trials: int | None, early_stop: bool, seed: int, *, whole: bool
    ) -> bool:
        """Make the solves that are missing; return whether all were made.

        Without a number of trials, only the first proposals are solved.
        """
        self.ledger, self.resumed = ledger, len(ledger.solves)
        enough = trials is None or self.space.size <= trials
        whole = whole or (enough and not self.space.in_ranges)
        if whole:
            self._places = {key_of(each): at for at, each in enumerate(self.space.outer())}
            wanted = self._grid(early_stop)
        else:
            proposals = self.space.proposals(self.train, seed)
            wanted = self._proposals(proposals, trials)
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
                if whole:
                    done, total = passed, len(self._places) - left_out
                else:
                    done = len(ledger.solves)
                    total = max(proposals.n_starts if trials is None else trials, done)
                self._report(last, done, total)
        return True

    def best(self) -> Point:
        """Return the chosen point; of equal ones the first, on a grid the first of the grid."""
        points = self._points()
        if not points:
            raise self._all_failed() if self.ledger.solves else self._too_small()
        best: Point = points[self.criterion.choose(points)]
        return best

    def _points(self) -> list[Point]:
        """Return every point that was measured, on a grid in the order of the grid."""
        solved = sorted(  # a grid may have been walked in any order, and in several sittings
            self.ledger.solves.items(), key=lambda each: self._places.get(each[0], math.inf)
        )
        return [point for _, each in solved for point in each["points"]]

    def _all_failed(self) -> SolveError:
        reasons = list(dict.fromkeys(each["failed"] for each in self.ledger.solves.values()))
        shown = "; ".join(reasons[:REASONS]) + ("; ..." if len(reasons) > REASONS else "")
        return SolveError(f"all {len(self.ledger.solves):,} solves of the search failed: {shown}")

    def _grid(self, early_stop: bool) -> Iterator[Point]:
        if not early_stop:
            points = list(self.space.outer())
            self.made.expect([each for each in points if key_of(each) not in self.ledger.solves])
            return iter(points)
        start = self.space.start(self.train)
        self._walk = CoordinateSearch(self.space.axes, start, self._value_of)
        return self._walk.points()

    def _proposals(self, proposals: Any, trials: int | None) -> Iterator[Point]:
        """Yield what is proposed until there are enough solves."""
        starts_only = trials is None
        if trials is not None and trials > proposals.n_starts and not self._all_fixed:
            import_optuna()  # missing is better known before the first solve than after it
        past = []
        for solved in self.ledger.solves.values():
            settings = solved["points"][0] if solved["points"] else solved["outer"]
            outer = {name: settings[name] for name in self.space.solve_names}
            past.append((outer, max(map(self._value, solved["points"]), default=-math.inf)))
        while trials is None or len(past) < trials:
            outer = proposals.propose(past, starts_only=starts_only)
            if outer is None:
                if not starts_only:
                    logger.info("the search has run out of new settings")
                return
            yield outer
            past.append((outer, self._value_of(outer)))

    @property
    def _all_fixed(self) -> bool:
        """Whether nothing that a solve depends on is searched."""
        return self.space.in_ranges and {*self.space.solve_names} <= {*self.space.fixed}

    def _solve(self, outer: Point) -> None:
        """Make a solve and keep what it gave; of one that fails, the reason."""
        start = time.perf_counter()
        self.solves += 1
        try:
            found = self.made(outer)
        except SolveError as error:
            settings = in_words({"model": "", **outer})
            logger.warning("the solve with%s failed, and the search goes on: %s", settings, error)
            seconds = time.perf_counter() - start
            failed = {"points": [], "seconds": seconds, "failed": str(error)}
            self.ledger.add(outer, {**failed, "outer": outer})
            return
        self._fit_seconds = max(self._fit_seconds, found.fit_seconds)
        self._longest, self._last_fit = max(self._longest, found.seconds), found.fit_seconds
        self.ledger.add(outer, {"points": found.points, "seconds": found.seconds})
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

    def _value_of(self, outer: Point) -> float:
        """Return what the best point of a solve is worth; minus infinity of one that failed."""
        points = self.ledger.solves[key_of(outer)]["points"]
        return max(map(self._value, points), default=-math.inf)

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
        solved = self.ledger.solves[key_of(outer)]
        # not the chosen point, whose metric may be lower than that of one chosen before
        last: Point = max(solved["points"], key=self._value, default={})
        best: Point = max(self._points(), key=self._value, default={})
        spent = time.perf_counter() - self.started
        left = self._pace.left(done, total)
        if left is not None:
            left += self._last_fit
            left = left if self.limit is None else min(left, max(self.limit - spent, 0.0))
        self.progress(
            SearchProgress(
                done=done,
                total=total,
                last=last or outer,
                last_value=last.get(self.metric, math.nan),
                best=best,
                best_value=best.get(self.metric, math.nan),
                seconds=spent,
                left=left,
                failed=solved.get("failed"),
            )
        )


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
    points = [point for each in search.ledger.solves.values() for point in each["points"]]
    names = list(search.goals)
    rows = []
    for number, solved in enumerate(search.ledger.solves.values()):
        for point in solved["points"] or [solved["outer"]]:
            row = {name: value for name, value in point.items() if name not in hidden}
            rows.append({**row, "solve": number, "failed": solved.get("failed")})
    rows.sort(key=lambda row: row["failed"] is not None)  # points that failed have few columns
    trials = pl.DataFrame(
        rows, infer_schema_length=None, schema_overrides={"failed": pl.String}
    ).sort("solve", maintain_order=True)
    trials = trials.select(pl.exclude(*names, "solve", "failed"), *names, "solve", "failed")
    measured = trials.filter(pl.col("failed").is_null()).drop("failed")
    return Tuned(
        model=fitted,
        best={name: value for name, value in best.items() if name not in hidden},
        trials=trials,
        frontier=frontier(measured, names, list(search.goals.values())),
        objectives=tuple(names),
        solves=search.solves,
        resumed=search.resumed,
        complete=complete,
        fit_seconds=fit_seconds,
        seconds=time.perf_counter() - search.started,
        estimate=search.criterion.estimate(points),
        sentence=_sentence(search, best, points),
        notes=tuple(_notes(search, best)),
    )


def _notes(search: Search, best: Point) -> Iterator[str]:
    """Say how weights were chosen, and what failed."""
    if search.space.transforms:
        values: dict[str, float] = {}
        for solved in search.ledger.solves.values():
            if solved["points"]:  # the first solve of each is at its automatic settings
                point = max(solved["points"], key=search._value)
                values.setdefault(point["transform"], point[search.metric])
        compared = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
        yield (
            f"weights: {best['transform']} was chosen; {search.metric} at the automatic settings: "
            f"{compared}"
        )
    failed = [each["failed"] for each in search.ledger.solves.values() if "failed" in each]
    if failed:
        solves = f"{len(failed)} of {len(search.ledger.solves)} solves failed"
        yield f"{solves}: {'; '.join(list(dict.fromkeys(failed))[:REASONS])}"


def _sentence(search: Search, best: Point, points: Sequence[Point]) -> str:
    """Say what was chosen, why, and what was given for what."""
    names = list(search.goals)
    how = "users left out one by one" if search.criterion.columns else "the valid part"
    values = ", ".join(f"{name} {best[name]:.4f}" for name in names)
    weights = f" with {best['transform']} weights" if search.space.transforms else ""
    said = f"of {len(points):,} settings, {best['family']}{weights} has {values} on {how}"
    top = max(points, key=search._value)
    if top[names[0]] == best[names[0]] or len(names) < 2:
        return f"{said}: the best {names[0]}"
    given, gained = (
        100 * abs(top[name] - best[name]) / max(abs(top[name]), 1e-300) for name in names[:2]
    )
    less = f"{given:.1f}%" if given >= 0.05 else "less than 0.1%"
    more = f"{gained:.0f}%" if gained >= 0.5 else "less than 1%"
    return (
        f"{said}: {less} of {names[0]} below the best, which may be chance, was given "
        f"for {more} of {names[1]}"
    )
