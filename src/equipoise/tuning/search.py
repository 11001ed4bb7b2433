"""`tune`: propose settings, solve, fit and measure every model that shares the solve."""

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
from equipoise.tuning.proposals import GridProposals, Point, import_optuna
from equipoise.tuning.result import SearchProgress, Tuned, frontier
from equipoise.tuning.space import Space

logger = logging.getLogger(__name__)

Refit = Literal["train", "all"]
SPLIT_TRIALS = 50
FEW = 7  # solves by leave-one-out: the automatic settings, and a step in each direction
REASONS = 3  # different reasons of failed solves in a message
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

    Each beta, l2 and dropout needs one solve, which every alpha, gamma, diag_bound and family
    shares. Session models share a fit between values of alpha and decay_inference; neural models
    use the valid part for early stopping. The test part is never used.

    ``eq.tune(data)`` needs no split: every fit uses all data, and settings are measured on
    training users that are left out exactly, as in `leave_one_out`. `Tuned.estimate` is the
    expected metric on new users.

    Parameters
    ----------
    model
        A class or its name (searches alpha, beta, l2 and dropout), a model (its normalizer
        decides which exponents are searched), or a list of either, which share their solves.
        Default: EASE, RLAE and LAE with a `DAN`.
    split
        A split with a valid part; or Interactions, to tune linear autoencoders by leave-one-out.
    trials
        Number of solves without a grid. Default: 50 on a split; by leave-one-out the automatic
        settings and a step in each direction: 7, 2 more if weights are compared, and 2 fewer for
        each of l2, dropout and beta that is fixed.
    metric
        Metric to maximise, such as "ndcg@20" or "recall@50".
    objectives
        More metrics to report; the frontier is between them and `metric`.
    grid
        Values per name, as in ``{"l2": [10, 100], "alpha": [0, 0.2]}``: every combination is
        tried, and other settings stay as the model has them. "paper" is the grid of the DAN
        paper. Default: search with Optuna (needs the extra `tune`), linear autoencoders in ranges
        around the automatic settings, other models on their default grid, which is tried
        completely if it has at most `trials` points. If interactions have different weights and
        a linear autoencoder has no `Signals`, the transforms "binary", "log1p" and "sum" are
        first compared at their automatic settings, and the search continues with the best.
    fixed
        Names of settings that keep the model's value, such as "l2", "alpha" or "transform".
    budget
        Time limit for the whole call, such as "10m" or seconds: the search ends when the next
        solve and the last fit would exceed it. The time of a solve is taken from `plan`, that of
        other models from their longest fit so far.
    early_stop
        Walk a grid outwards from the automatic settings, and stop exploring a direction of beta,
        dropout or l2 whose best score dropped twice in a row, to at least 0.3% below the best of
        its line. False tries the complete grid.
    storage
        A file for finished solves: after an interruption the same search continues from it, also
        with more trials. Any other file is refused and not changed. One process at a time may
        use it.
    resume
        Whether to continue the search in the storage; False raises an error if there is one.
    seed
        For Optuna and for the choice of users to leave out. The same seed gives the same search,
        interrupted or not.
    refit
        On a split: "train" fits the best settings on the train part, as papers do; "all" on
        everything but the test part (`Split.train_and_valid`), including new users and items of
        the valid part, as for production.
    prefer
        By leave-one-out: "accuracy" takes the best point; "balance" (default) the best in the
        second objective among those within one standard error of the best, user by user; "tail"
        among those within two.
    users
        By leave-one-out: number of users to leave out.
    device, dtype, engine, memory, scratch, threads, neighbours
        As for `fit`, for every fit of the search. On a GPU the Gram matrix stays there between
        penalties. Options that the model's `fit` does not have raise an error.
    progress
        Called with a `SearchProgress` after every solve.

    Raises
    ------
    SolveError
        If every solve fails. A single failure is a row of `Tuned.trials` with its reason.

    Examples
    --------
    >>> import equipoise as eq, numpy as np
    >>> data = eq.Interactions(np.random.default_rng(0).random((80, 20)) < 0.3)
    >>> split = eq.split.strong(data, valid=0.2, test=0.2)
    >>> tuned = eq.tune([eq.EASE, eq.LAE], split, grid={"l2": [1, 10], "alpha": [0, 0.3]})
    >>> tuned.solves, tuned.trials.height
    (2, 8)
    >>> tuned = eq.tune(data, metric="ndcg@5", objectives="tail_ndcg@5")
    >>> tuned.solves, tuned.model.data_fingerprint_ == data.fingerprint
    (7, True)
    """
    return search_with(Solves, **locals())


def search_with(
    make_solves: Callable[..., Solves],
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
    progress: Callable[[SearchProgress], None] | None,
    **run_options: Any,
) -> Tuned:
    """Search as `tune` does; `make_solves` returns the object that makes the solves."""
    started = time.perf_counter()
    if split is None and isinstance(model, (Split, Interactions)):
        model, split = None, model
    extra = [] if objectives is None else as_list(objectives)
    goals = {name: _sign(name) for name in [metric, *extra]}
    function("progress", progress)
    count("seed", seed, 0)
    if run_options.get("scratch") is not None:
        checked_path("scratch", run_options["scratch"])
    if trials is None and isinstance(split, Split):
        trials = SPLIT_TRIALS
    if trials is not None:
        count("trials", trials)
    criterion = _criterion(split, goals, refit, prefer, users, seed)
    train = criterion.train
    space = Space.of([EASE, RLAE, LAE] if model is None else model, grid, train, as_list(fixed))
    if isinstance(criterion, OnLeftOut):
        for prototype in space.models:
            if not isinstance(prototype, LinearAutoencoder):
                raise SettingError(
                    f"{type(prototype).__name__} is tuned on a split; make one with "
                    "eq.split.strong(data)"
                )
        if run_options.get("engine") == "neighbourhood":
            raise SettingError(CANNOT_LEAVE_OUT)
    options = {
        name: value for name, value in run_options.items() if value != FIT_DEFAULTS.get(name)
    }
    if "valid" in space.models[0].fit_options:
        options["valid"] = cast(Split, split).valid  # for the early stopping of neural models
    limit = None if budget is None else period("budget", budget)
    header = {
        **criterion.identity,
        "metrics": [*criterion.goals, *criterion.columns],
        **space.identity(),
        "dtype": run_options.get("dtype", FIT_DEFAULTS["dtype"]),
        "seed": seed,
    }
    solves = make_solves(space, criterion, options)
    search = Search(criterion, space, options, solves, limit, started, progress)
    with Ledger(storage, header, resume=resume) as ledger, limited(run_options.get("threads")):
        complete = search.run(ledger, trials, early_stop, seed, all_points=grid is not None)
        best = search.best()
        fitted = search.retained_model(best)
        solves.release()  # the last fit needs the memory
        before = time.perf_counter()
        if fitted is None:
            data = split.train_and_valid() if refit == "all" else train
            fitted = space.model(best)
            if data is not train and "valid" in options:
                # valid is training data now: stop after the epochs that suited the train part
                trained: Any = space.model(best).fit(train, **options)
                fitted = fitted.vary({"epochs": trained.epoch_})
                options = {**options, "valid": None}
            fitted.fit(data, **options)
        seconds = time.perf_counter() - before
        if isinstance(criterion, OnLeftOut):
            part = criterion.part.history, criterion.part.target
            measured = leave_one_out(fitted, k=at_cutoff(metric)[1], part=part, seed=seed)
            fitted.estimate_ = summary_of(measured)
    return _tuned(search, fitted, best, complete, seconds)


def _criterion(
    split: Any, goals: dict[str, float], refit: Refit, prefer: Prefer | None, users: int, seed: int
) -> OnPart | OnLeftOut:
    choice("refit", refit, ("train", "all"))
    if isinstance(split, Interactions):
        if refit == "all":
            raise SettingError("without a split all data are in the fit; leave out refit")
        preference: Prefer = "balance" if prefer is None else prefer
        return OnLeftOut(split, goals, choice("prefer", preference, REACH), users, seed)
    if not isinstance(split, Split):
        raise SettingError(
            "tune needs a split or Interactions; make one with eq.split.strong(data, valid=0.1)"
        )
    if prefer not in (None, "accuracy"):
        raise SettingError("prefer is for leave-one-out; pass Interactions instead of a split")
    if split.valid is None:
        raise DataError(
            "the split has no valid part to tune on; make one with valid=0.1, as in "
            "eq.split.strong(data, valid=0.1)"
        )
    return OnPart(split, goals)


class Solve(NamedTuple):
    """The points of one solve, the time of its fit and its total time."""

    points: list[Point]
    fit_seconds: float
    seconds: float


class Solves:
    """Makes solves: fits and measures every model that shares the settings of a solve.

    `options` are passed to every fit.
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
        """Announce solves that will all be requested, in this order."""

    def __call__(self, outer: Point) -> Solve:
        """Make one solve; after a failure the next one starts from scratch."""
        try:
            return self._solve(outer)
        except SolveError:
            self.release()
            raise

    def _solve(self, outer: Point) -> Solve:
        start = time.perf_counter()
        numbers, models = zip(*self.space.variants(outer), strict=True)
        if self._fit is None:
            options = dict(self.options)
            if self.scratch is not None:
                options["scratch"] = self.scratch
            self._fit = models[0].shared_fit(models, self.criterion.train, **options)
        self._fit(models)
        fit_seconds = time.perf_counter() - start
        measured = zip(numbers, models, self.criterion.measure(models), strict=True)
        points = [
            {**model.search_point(), **metrics, "prototype": number}
            for number, model, metrics in measured
        ]
        self.last = models[0]
        return Solve(points, fit_seconds, time.perf_counter() - start)

    def release(self) -> None:
        """Free the memory and the disk space of the solves."""
        self._fit = self.last = None
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)


class Search:
    """State of one search: its solves so far, and when to stop.

    `options` are passed to every fit. `limit` is in seconds since `started`.
    """

    def __init__(
        self,
        criterion: OnPart | OnLeftOut,
        space: Space,
        options: dict[str, Any],
        solve: Solves,
        limit: float | None,
        started: float,
        progress: Callable[[SearchProgress], None] | None,
    ) -> None:
        self.criterion, self.space, self.goals = criterion, space, criterion.goals
        self.solve, self.limit, self.started, self.progress = solve, limit, started, progress
        self.metric = next(iter(self.goals))
        self.n_solves = self.n_resumed = 0
        # zero for most models: only a first fit shows how long they take
        self._fit_seconds = space.models[0].fit_seconds(criterion.train, **options)
        self._longest = self._fit_seconds  # longest solve, including its lists
        self._pace, self._last_fit = Pace(), 0.0
        self._retained: tuple[Point, Any] | None = None  # best solve so far, with a fitted model
        self._places: dict[str, int] = {}  # position of every solve on the grid
        self._grid: GridProposals | None = None
        if limit is not None and limit < 2 * self._fit_seconds:
            raise self._too_small()

    def run(
        self, ledger: Ledger, trials: int | None, early_stop: bool, seed: int, *, all_points: bool
    ) -> bool:
        """Make the missing solves; return whether all of them were made.

        Without `trials`, only the first proposals are solved.
        """
        self.ledger, self.n_resumed = ledger, len(ledger.solves)
        fits_trials = trials is None or self.space.size <= trials
        all_points = all_points or (fits_trials and not self.space.in_ranges)
        if all_points:
            self._places = {key_of(outer): at for at, outer in enumerate(self.space.outer())}
            upcoming = self._grid_points(early_stop)
        else:
            proposals = self.space.proposals(self.criterion.train, seed)
            upcoming = self._proposed_points(proposals, trials)
        n_passed, outer = 0, next(upcoming, None)
        while outer is not None:
            is_new = key_of(outer) not in ledger.solves
            if is_new and self._is_late():
                logger.info("the budget is used up after %d solves", self.n_solves)
                return False
            if is_new:
                self._solve(outer)
            n_passed += 1
            # advance before reporting: only then is the number of skipped points known
            last, outer = outer, next(upcoming, None)
            if is_new and self.progress is not None:
                if all_points:
                    n_skipped = self._grid.n_skipped if self._grid else 0
                    done, total = n_passed, len(self._places) - n_skipped
                else:
                    done = len(ledger.solves)
                    total = max(proposals.n_starts if trials is None else trials, done)
                self._report(last, done, total)
        return True

    def best(self) -> Point:
        """Return the chosen point; the first one of equals, on a grid in the grid's order."""
        points = self._points()
        if not points:
            raise self._all_failed() if self.ledger.solves else self._too_small()
        best: Point = points[self.criterion.choose(points)]
        return best

    def _points(self) -> list[Point]:
        """Return every measured point, on a grid in the grid's order."""
        solved = sorted(  # walks and resumed runs leave the grid's order
            self.ledger.solves.items(), key=lambda entry: self._places.get(entry[0], math.inf)
        )
        return [point for _, solve in solved for point in solve["points"]]

    def _all_failed(self) -> SolveError:
        reasons = list(dict.fromkeys(solve["failed"] for solve in self.ledger.solves.values()))
        shown = "; ".join(reasons[:REASONS]) + ("; ..." if len(reasons) > REASONS else "")
        return SolveError(f"all {len(self.ledger.solves):,} solves of the search failed: {shown}")

    def _grid_points(self, early_stop: bool) -> Iterator[Point]:
        if early_stop:
            self._grid = self.space.grid(self.criterion.train)
            return self._grid.walk(self._best_score)
        points = self.space.outer()
        self.solve.expect([outer for outer in points if key_of(outer) not in self.ledger.solves])
        return iter(points)

    def _proposed_points(self, proposals: Any, trials: int | None) -> Iterator[Point]:
        """Yield proposals until there are enough solves."""
        if trials is not None and trials > proposals.n_starts and proposals.free:
            import_optuna()  # report a missing package before the first solve, not after it
        past = []
        for solved in self.ledger.solves.values():
            settings = solved["points"][0] if solved["points"] else solved["outer"]
            outer = {name: settings[name] for name in self.space.solve_names}
            past.append((outer, max(map(self._score, solved["points"]), default=-math.inf)))
        while trials is None or len(past) < trials:
            outer = proposals.propose(past, starts_only=trials is None)
            if outer is None:
                if trials is not None:
                    logger.info("the search has run out of new settings")
                return
            yield outer
            past.append((outer, self._best_score(outer)))

    def _solve(self, outer: Point) -> None:
        """Make a solve and store its points, or the reason why it failed."""
        start = time.perf_counter()
        self.n_solves += 1
        try:
            solve = self.solve(outer)
        except SolveError as error:
            settings = in_words({"model": "", **outer})
            logger.warning("the solve with%s failed, and the search goes on: %s", settings, error)
            seconds = time.perf_counter() - start
            failed = {"points": [], "seconds": seconds, "failed": str(error), "outer": outer}
            self.ledger.add(outer, failed)
            return
        self._fit_seconds = max(self._fit_seconds, solve.fit_seconds)
        self._longest, self._last_fit = max(self._longest, solve.seconds), solve.fit_seconds
        self.ledger.add(outer, {"points": solve.points, "seconds": solve.seconds})
        by_users = isinstance(self.criterion, OnLeftOut)
        if by_users and self.solve.last is not None and self.best() in solve.points:
            self._retain(outer, self.solve.last)

    def _retain(self, outer: Point, model: Any) -> None:
        """Retain the solve of the best point so far if there is memory for a second one."""
        self._retained = None
        P = model.inverse_
        if type(P) is np.ndarray and P.nbytes < free_memory() / 2:
            model.inverse_ = P.copy()
            self._retained = outer, model

    def retained_model(self, point: Point) -> Recommender | None:
        """Return the fitted model of a point if its solve was retained, else None."""
        if self._retained is None:
            return None
        outer, solved = self._retained
        if any(point[name] != value for name, value in outer.items()):
            return None
        model: Any = self.space.model(point)
        reused: Recommender = model.reuse(solved)
        return reused

    def _is_late(self) -> bool:
        """Whether another solve and the last fit would exceed the budget."""
        if self.limit is None:
            return False
        spent = time.perf_counter() - self.started
        return spent + self._longest + self._fit_seconds > self.limit

    def _score(self, point: Point) -> float:
        """Return the metric of a point, negated if it should be small."""
        return self.goals[self.metric] * float(point[self.metric])

    def _best_score(self, outer: Point) -> float:
        """Return the best score of a solve, minus infinity if it failed."""
        points = self.ledger.solves[key_of(outer)]["points"]
        return max(map(self._score, points), default=-math.inf)

    def _too_small(self) -> SettingError:
        problem = f"a budget of {duration(self.limit or 0.0)} is too small"
        if not self._longest:
            return SettingError(f"{problem}: it was spent before the first fit")
        return SettingError(
            f"{problem}: one fit takes about {duration(self._longest)}, and there must be time "
            "for a solve and the last fit"
        )

    def _report(self, outer: Point, done: int, total: int) -> None:
        assert self.progress is not None
        solved = self.ledger.solves[key_of(outer)]
        # by score, not by `best`: the metric of the chosen point may go down
        last: Point = max(solved["points"], key=self._score, default={})
        best: Point = max(self._points(), key=self._score, default={})
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
    """Return 1 for a metric to maximise, -1 for one to minimise."""
    named, _ = at_cutoff(name)
    if named.base == "diversity" or named.slice in USER_SLICES:
        raise SettingError(f"{name!r} cannot be tuned for; use one over all users and items")
    return -1.0 if named.base in LOWER_IS_BETTER else 1.0


def _tuned(
    search: Search, fitted: Recommender, best: Point, complete: bool, fit_seconds: float
) -> Tuned:
    hidden = {"prototype", *search.criterion.columns}
    names = list(search.goals)
    points, rows = [], []
    for number, solved in enumerate(search.ledger.solves.values()):
        points += solved["points"]
        for point in solved["points"] or [solved["outer"]]:
            row = {name: value for name, value in point.items() if name not in hidden}
            rows.append({**row, "solve": number, "failed": solved.get("failed")})
    rows.sort(key=lambda row: row["failed"] is not None)  # failed solves have fewer columns
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
        solves=search.n_solves,
        resumed=search.n_resumed,
        complete=complete,
        fit_seconds=fit_seconds,
        seconds=time.perf_counter() - search.started,
        estimate=search.criterion.estimate(points),
        sentence=_sentence(search, best, points),
        notes=tuple(_notes(search, best)),
    )


def _notes(search: Search, best: Point) -> Iterator[str]:
    """Yield sentences on the choice of weights and on failed solves."""
    solves = search.ledger.solves.values()
    if search.space.transforms:
        values: dict[str, float] = {}
        for solved in solves:
            if solved["points"]:  # the first solve of each transform has its automatic settings
                point = max(solved["points"], key=search._score)
                values.setdefault(point["transform"], point[search.metric])
        compared = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
        yield (
            f"weights: {best['transform']} was chosen; {search.metric} at the automatic settings: "
            f"{compared}"
        )
    reasons = [solved["failed"] for solved in solves if "failed" in solved]
    if reasons:
        shown = "; ".join(list(dict.fromkeys(reasons))[:REASONS])
        yield f"{len(reasons)} of {len(solves)} solves failed: {shown}"


def _sentence(search: Search, best: Point, points: Sequence[Point]) -> str:
    """Describe the chosen point, and what it gains and loses against the most accurate one."""
    names = list(search.goals)
    users = "users left out one by one" if search.criterion.columns else "the valid part"
    values = ", ".join(f"{name} {best[name]:.4f}" for name in names)
    weights = f" with {best['transform']} weights" if search.space.transforms else ""
    chosen = f"of {len(points):,} settings, {best['family']}{weights} has {values} on {users}"
    top = max(points, key=search._score)
    if top[names[0]] == best[names[0]] or len(names) < 2:
        return f"{chosen}: the best {names[0]}"
    loss, gain = (
        100 * abs(top[name] - best[name]) / max(abs(top[name]), 1e-300) for name in names[:2]
    )
    less = f"{loss:.1f}%" if loss >= 0.05 else "less than 0.1%"
    more = f"{gain:.0f}%" if gain >= 0.5 else "less than 1%"
    return (
        f"{chosen}: {less} of {names[0]} below the best, which may be chance, was given "
        f"for {more} of {names[1]}"
    )
