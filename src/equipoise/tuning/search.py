"""`tune`: propose settings, solve, fit and measure every model that shares the solve; `Tuned`."""

from __future__ import annotations

import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
import polars as pl

from equipoise.checks import choice, count, function, period
from equipoise.data.ids import as_list
from equipoise.data.interactions import Interactions
from equipoise.data.split.parts import Split
from equipoise.display.notebook import fragment, table
from equipoise.errors import DataError, SettingError, SolveError
from equipoise.evaluation.leave_one_out import leave_one_out, summary_of
from equipoise.evaluation.metrics import LOWER_IS_BETTER, USER_SLICES, at_cutoff
from equipoise.models import EASE, LAE, RLAE
from equipoise.models.base import Recommender
from equipoise.models.inverse import CANNOT_LEAVE_OUT
from equipoise.models.linear import LinearAutoencoder
from equipoise.models.settings import in_words
from equipoise.runtime.machine import Pace, duration, free_memory, limited
from equipoise.solve.planning import SolveOptions
from equipoise.tuning.criterion import REACH, USERS, Estimate, OnLeftOut, OnPart, Prefer
from equipoise.tuning.ledger import Ledger
from equipoise.tuning.slices import Forecast, OnSlices
from equipoise.tuning.space import (
    EVENT_WEIGHTS,
    GridProposals,
    Point,
    Space,
    import_optuna,
    key_of,
)

logger = logging.getLogger(__name__)

Refit = Literal["train", "all"]
Criterion = Literal["time", "leave-one-out"]
CRITERIA = (None, *get_args(Criterion))
FOLDS = 3  # periods at the end of the data that settings are measured on
FEWEST = 10  # users in all periods, from which settings are chosen for the time after the data
SPLIT_TRIALS = 50
FEW = 7  # solves by leave-one-out: the automatic settings, and a step in each direction
SHOWN = 10  # points of the frontier in a notebook
REASONS = 3  # different reasons of failed solves in a message
RUN_OPTIONS = ("device", "dtype", "engine", "memory", "scratch", "threads", "neighbours")


@dataclass(frozen=True)
class SearchProgress:
    """Progress of a search.

    Attributes
    ----------
    done, total
        Solves finished, including those of an earlier run, and planned.
    last, last_value
        Best settings of the last solve and their metric; NaN if it failed.
    best, best_value
        Settings with the best metric so far; leave-one-out may choose other ones at the end
        (`prefer`). Empty and NaN until a solve succeeds.
    seconds, left
        Time spent, and the expected remaining time: None after the first solve, which may include
        the compilation of kernels.
    failed
        Why the last solve failed; None if it did not.
    """

    done: int
    total: int
    last: dict[str, Any]
    last_value: float
    best: dict[str, Any]
    best_value: float
    seconds: float
    left: float | None
    failed: str | None = None


@dataclass(frozen=True, eq=False)
class Tuned:
    """Result of `tune`.

    Attributes
    ----------
    model
        The fitted model with the best settings.
    best
        Its settings, with their metrics on the valid part or on the users that were left out.
    trials
        Every measured point: family, settings, metrics, and the number of its solve. A failed
        solve is one row without metrics, with the reason in the column "failed".
    frontier
        The points that no other point beats in all objectives.
    objectives
        The metric first, then the other objectives of the frontier.
    solves, resumed
        Solves of this run, and solves read from the storage.
    complete
        Whether all planned solves were made; False if the budget ran out.
    fit_seconds, seconds
        Time of the last fit, and of the whole run.
    estimate
        By leave-one-out: the expected metric on new users, with its standard error and corrected
        for the choice; None on a split, whose test part measures that.
    sentence
        Which settings were chosen, why, and what they cost in the metric.
    notes
        How weights were chosen, and which solves failed.
    """

    model: Any
    best: dict[str, Any]
    trials: pl.DataFrame
    frontier: pl.DataFrame
    objectives: tuple[str, ...]
    solves: int
    resumed: int
    complete: bool
    fit_seconds: float
    seconds: float
    estimate: Estimate | Forecast | None = None
    sentence: str = ""
    notes: tuple[str, ...] = ()

    @property
    def n_failed(self) -> int:
        """Number of solves that failed."""
        return self.trials.height - self.trials["failed"].null_count()

    def plot_frontier(self, *, ax: Any = None) -> Any:
        """Plot every point by its first two objectives, and the frontier; needs matplotlib.

        Parameters
        ----------
        ax
            Axes to draw into (default: new ones). They are returned.
        """
        from equipoise.display.plot import frontier as draw

        return draw(self.trials, self.frontier, self.objectives, ax=ax)

    def __repr__(self) -> str:
        best = ", ".join(f"{name}={_text(value)}" for name, value in self.best.items())
        return f"Tuned: {best}\n  {self._cost}" + (f"\n  {self.estimate}" if self.estimate else "")

    def _repr_html_(self) -> str:
        settings = [(name, _text(value)) for name, value in self.best.items()]
        tables = [table(["setting", "value"], settings)]
        notes = [*filter(None, (self._cost, self.sentence, str(self.estimate or ""))), *self.notes]
        if len(self.objectives) > 1:
            front = self.frontier.drop("solve").head(SHOWN)
            tables.append(table(front.columns, [[*map(_text, row)] for row in front.rows()]))
            notes.append(f"second table: {front.height} of {self.frontier.height} frontier points")
        return fragment(f"Tuned: {self.model.summary()}", *tables, notes=notes)

    @property
    def _cost(self) -> str:
        solves = self.solves + self.resumed
        failed = f" ({self.n_failed} failed)" if self.n_failed else ""
        points = self.trials.height - self.n_failed
        return f"{points:,} settings from {solves} solves{failed} in {duration(self.seconds)}"


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
    criterion: Criterion | None = None,
    horizon: str | float | None = None,
    folds: int | None = None,
    prefer: Prefer | None = None,
    users: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    engine: str = "auto",
    memory: str | float | None = None,
    scratch: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    neighbours: int | str | None = None,
    progress: Callable[[SearchProgress], None] | None = None,
) -> Tuned:
    """Find good settings by time, by leave-one-out or on the valid part of a split; fit them.

    Each beta, l2 and dropout needs one solve, which every alpha, gamma, diag_bound and family
    shares. Session models share a fit between values of alpha and decay_inference; neural models
    use the valid part for early stopping. The test part is never used.

    ``eq.tune(data)`` needs no split. If the data have times, it chooses settings for the days
    after the last event: models are fitted to the events before a cut in time, and evaluated on
    those after it. The decay of old events, the weights of event types, the trend and all other
    settings are searched together, except for those that the model sets. The best ones are fitted
    to all data, and `Tuned.estimate` is the figure to expect in the next period. Without times
    every fit uses all data, settings are compared on training users that are left out exactly, as
    in `leave_one_out`, and `Tuned.estimate` is the metric to expect on new users.

    Parameters
    ----------
    model
        A class or its name (searches alpha, beta, l2 and dropout), a model (its normalizer
        decides which exponents are searched), or a list of either, which share their solves.
        Default: EASE, RLAE and LAE with a `DAN`.
    split
        Interactions, whose settings are compared as `criterion` says; or a split, whose valid
        part compares them.
    trials
        Number of solves without a grid. Default: 50 on a split, about 10 by time, and 7 by
        leave-one-out: the automatic settings and a step in each direction. Comparing weights
        takes 2 more, and each of l2, dropout and beta that is fixed 2 fewer.
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
        Names of settings that keep the model's value, such as "l2", "alpha", "transform",
        "event_weights" or "trend".
    budget
        Time limit for the complete call, such as "10m" or seconds: the search ends when the next
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
    criterion
        How ``eq.tune(data)`` compares settings. "time": by the lists of models fitted before
        several cuts in time, and what users took after them; the default where the data have
        times. "leave-one-out": on
        training users left out of the fit; the default elsewhere, and with `prefer`.
    horizon
        By time: the time after each cut, such as "7d"; None: a tenth of the events.
    folds
        By time: number of cuts, one horizon apart. Default: 3, or fewer if the data are short.
    prefer
        By leave-one-out: "accuracy" takes the best point; "balance" (default) the best in the
        second objective among those within one standard error of the best, user by user; "tail"
        among those within two.
    users
        By leave-one-out: number of users to leave out, default 2,000. By time: largest number of
        users per cut, default 1,000.
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
    return search_with(Solves, SimpleNamespace(**locals()))


def search_with(make_solves: Callable[..., Solves], call: SimpleNamespace) -> Tuned:
    """Search with the arguments of `tune`; `make_solves` returns the object that solves."""
    started = time.perf_counter()
    model, split, metric = call.model, call.split, call.metric
    if split is None and isinstance(model, (Split, Interactions)):
        model, split = None, model
    extra = [] if call.objectives is None else as_list(call.objectives)
    goals = {name: _sign(name) for name in [metric, *extra]}
    function("progress", call.progress)
    count("seed", call.seed, 0)
    run = SolveOptions(**{name: getattr(call, name) for name in RUN_OPTIONS})
    trials = SPLIT_TRIALS if call.trials is None and isinstance(split, Split) else call.trials
    if trials is not None:
        count("trials", trials)
    families = [EASE, RLAE, LAE] if model is None else model
    criterion = _criterion(split, goals, call)
    train = criterion.train
    half_lives = criterion.decays if isinstance(criterion, OnSlices) else ()
    space = Space.of(families, call.grid, train, as_list(call.fixed), half_lives)
    if isinstance(criterion, OnSlices):
        criterion.search_time(space)
    if isinstance(criterion, OnLeftOut):
        for prototype in space.models:
            if not isinstance(prototype, LinearAutoencoder):
                name = type(prototype).__name__
                how = "sessions" if prototype.ordered else "strong"
                remedy = f"make one with eq.split.{how}(data)"
                if hasattr(prototype, "chosen_"):
                    remedy += f", or fit {name}(l2='auto'), which chooses by the last sessions"
                raise SettingError(f"{name} is tuned on a split; {remedy}")
        if run.engine == "neighbourhood":
            raise SettingError(CANNOT_LEAVE_OUT)
    options = run.keywords()
    if "valid" in space.models[0]._fit_options():
        options["valid"] = cast(Split, split).valid  # for the early stopping of neural models
    limit = None if call.budget is None else period("budget", call.budget)
    header = {
        **criterion.identity,
        "metrics": [*criterion.goals, *criterion.columns],
        **space.identity(),
        "dtype": run.dtype,
        "seed": call.seed,
    }
    solves = make_solves(space, criterion, options)
    search = Search(criterion, space, options, solves, limit, started, call.progress)
    with ExitStack() as stack:
        if call.storage is not None:
            search.use(stack.enter_context(Ledger(call.storage, header, resume=call.resume)))
        stack.enter_context(limited(run.threads))
        complete = search.run(trials, call.early_stop, call.seed, grid=call.grid is not None)
        best = search.best()
        fitted = search.retained_model(best)
        solves.release()  # the last fit needs the memory
        if isinstance(criterion, OnSlices):
            best = criterion.settled(best, search.points(), space.model, options)
        before = time.perf_counter()
        if fitted is None:
            data = criterion.data if isinstance(criterion, OnSlices) else train
            if call.refit == "all":
                data = split.train_and_valid()
            fitted = space.model(best)
            if data is not train and "valid" in options:
                # valid is training data now: stop after the epochs that suited the train part
                trained: Any = space.model(best).fit(train, **options)
                fitted = fitted._vary({"epochs": trained.epoch_})
                options = {**options, "valid": None}
            fitted.fit(data, **options)
        seconds = time.perf_counter() - before
        if isinstance(criterion, OnSlices) and criterion.forecast is not None:
            fitted.estimate_ = criterion.forecast.summary(criterion.data, call.seed)
        if isinstance(criterion, OnLeftOut):
            part = criterion.part.history, criterion.part.target
            measured = leave_one_out(fitted, k=at_cutoff(metric)[1], part=part, seed=call.seed)
            fitted.estimate_ = summary_of(measured)
    return _tuned(search, fitted, best, complete, seconds)


def _criterion(
    split: Any, goals: dict[str, float], call: SimpleNamespace
) -> OnPart | OnLeftOut | OnSlices:
    """Return how the points are measured."""
    choice("refit", call.refit, ("train", "all"))
    choice("criterion", call.criterion, CRITERIA)
    if isinstance(split, Interactions):
        return _criterion_without_split(split, goals, call)
    if not isinstance(split, Split):
        raise SettingError(
            "tune needs a split or Interactions; make one with eq.split.strong(data, valid=0.1)"
        )
    if call.prefer not in (None, "accuracy"):
        raise SettingError("prefer is for leave-one-out; pass Interactions instead of a split")
    if call.criterion is not None or call.horizon is not None or call.folds is not None:
        raise SettingError(
            "criterion, horizon and folds are for Interactions; a split is measured on its valid "
            "part"
        )
    if split.valid is None:
        raise DataError(
            "the split has no valid part to tune on; make one with valid=0.1, as in "
            "eq.split.strong(data, valid=0.1)"
        )
    return OnPart(split, goals)


def _criterion_without_split(
    data: Interactions, goals: dict[str, float], call: SimpleNamespace
) -> OnLeftOut | OnSlices:
    """Return the time after the last cuts where the data have times, else leave-one-out."""
    if call.refit == "all":
        raise SettingError("without a split all data are in the fit; leave out refit")
    wants_left_out = call.criterion == "leave-one-out" or call.prefer is not None
    wants_time = call.criterion == "time" or call.horizon is not None or call.folds is not None
    if call.criterion == "time" and call.prefer is not None:
        raise SettingError("prefer is for criterion='leave-one-out'; leave out one of the two")
    if wants_left_out and (call.horizon is not None or call.folds is not None):
        raise SettingError(
            "horizon and folds are for criterion='time', not for leave-one-out; leave them out"
        )
    has_times = data.events is not None and data.events.times is not None
    if not wants_left_out and (wants_time or has_times):
        try:
            folds = FOLDS if call.folds is None else call.folds
            by_time = OnSlices(data, goals, call.horizon, folds, call.users, call.seed)
            n_users = sum(fold.part.n_users for fold in by_time.folds)
            if wants_time or n_users >= FEWEST:
                return by_time
            raise DataError(
                f"only {n_users} users of the last periods were active before them, too few to "
                "choose on; if most users come once, as visitors do, try a session model (SLIST)"
            )
        except DataError as error:
            if wants_time:
                raise
            logger.warning("settings are chosen by leave-one-out: %s", error)
    preference: Prefer = "balance" if call.prefer is None else call.prefer
    users = USERS if call.users is None else call.users
    return OnLeftOut(data, goals, choice("prefer", preference, REACH), users, call.seed)


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
        self, space: Space, criterion: OnPart | OnLeftOut | OnSlices, options: dict[str, Any]
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
            self._fit = models[0]._shared_fit(models, self.criterion.train, **options)
        self._fit(models)
        fit_seconds = time.perf_counter() - start
        measured = zip(numbers, models, self.criterion.measure(models), strict=True)
        points = [
            {**model._search_point(), **self.space.named(outer), **metrics, "prototype": number}
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
        criterion: OnPart | OnLeftOut | OnSlices,
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
        self.finished: dict[str, dict[str, Any]] = {}  # solves by `key_of` their settings
        self._ledger: Ledger | None = None
        # zero for most models: only a first fit shows how long they take
        self._fit_seconds = space.models[0]._fit_seconds(criterion.train, **options)
        self._longest = self._fit_seconds  # longest solve, including its lists
        self._pace, self._last_fit = Pace(), 0.0
        self._retained: tuple[Point, Any] | None = None  # best solve so far, with a fitted model
        self._places: dict[str, int] = {}  # position of every solve on the grid
        self._grid: GridProposals | None = None
        if limit is not None and limit < 2 * self._fit_seconds:
            raise self._too_small()

    def use(self, ledger: Ledger) -> None:
        """Continue from the solves of a ledger, and store further ones there."""
        self._ledger, self.finished, self.n_resumed = ledger, ledger.solves, len(ledger.solves)
        if isinstance(self.criterion, OnSlices) and self.points():
            self.criterion.continue_from(self.points()[-1])

    def run(self, trials: int | None, early_stop: bool, seed: int, *, grid: bool) -> bool:
        """Make the missing solves; return whether all of them were made.

        With `grid` every point is solved; without `trials`, only the first proposals are.
        """
        fits_trials = trials is None or self.space.size <= trials
        all_points = grid or (fits_trials and not self.space.in_ranges)
        if all_points:
            self._places = {key_of(outer): at for at, outer in enumerate(self.space.outer())}
            upcoming = self._grid_points(early_stop)
        else:
            proposals = self.space.proposals(self.criterion.train, seed)
            upcoming = self._proposed_points(proposals, trials)
        n_passed, outer = 0, next(upcoming, None)
        while outer is not None:
            is_new = key_of(outer) not in self.finished
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
                    done = len(self.finished)
                    total = max(proposals.n_starts if trials is None else trials, done)
                self._report(last, done, total)
        return True

    def best(self) -> Point:
        """Return the chosen point; the first one of equals, on a grid in the grid's order."""
        points = self.points()
        if not points:
            raise self._all_failed() if self.finished else self._too_small()
        best: Point = points[self.criterion.choose(points)]
        return best

    def points(self) -> list[Point]:
        """Return every measured point, on a grid in the grid's order."""
        solved = sorted(  # walks and resumed runs leave the grid's order
            self.finished.items(), key=lambda entry: self._places.get(entry[0], math.inf)
        )
        return [point for _, solve in solved for point in solve["points"]]

    def _all_failed(self) -> SolveError:
        reasons = list(dict.fromkeys(solve["failed"] for solve in self.finished.values()))
        shown = "; ".join(reasons[:REASONS]) + ("; ..." if len(reasons) > REASONS else "")
        return SolveError(f"all {len(self.finished):,} solves of the search failed: {shown}")

    def _grid_points(self, early_stop: bool) -> Iterator[Point]:
        if early_stop:
            self._grid = self.space.grid(self.criterion.train)
            return self._grid.walk(self._best_score)
        points = self.space.outer()
        self.solve.expect([outer for outer in points if key_of(outer) not in self.finished])
        return iter(points)

    def _proposed_points(self, proposals: Any, trials: int | None) -> Iterator[Point]:
        """Yield proposals until there are enough solves."""
        if trials is not None and trials > proposals.n_starts and proposals.free:
            import_optuna()  # report a missing package before the first solve, not after it
        past = []
        for solved in self.finished.values():
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
            logger.warning("the solve with%s failed; the search continues: %s", settings, error)
            seconds = time.perf_counter() - start
            failed = {"points": [], "seconds": seconds, "failed": str(error), "outer": outer}
            self._store(outer, failed)
            return
        self._fit_seconds = max(self._fit_seconds, solve.fit_seconds)
        self._longest, self._last_fit = max(self._longest, solve.seconds), solve.fit_seconds
        self._store(outer, {"points": solve.points, "seconds": solve.seconds})
        by_users = isinstance(self.criterion, OnLeftOut)
        if by_users and self.solve.last is not None and self.best() in solve.points:
            self._retain(outer, self.solve.last)

    def _store(self, outer: Point, solved: dict[str, Any]) -> None:
        self.finished[key_of(outer)] = solved
        if self._ledger is not None:
            self._ledger.add(outer, solved)

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
        if getattr(model, "features", None) is not None and model.features.strength == "auto":
            return None  # the last fit chooses it
        reused: Recommender = model.reuse(solved)
        return reused

    def _is_late(self) -> bool:
        """Whether another solve and the last fit would exceed the budget."""
        if self.limit is None:
            return False
        spent = time.perf_counter() - self.started
        n_fits = 1 + (self.criterion.n_later_fits if isinstance(self.criterion, OnSlices) else 0)
        return spent + self._longest + n_fits * self._fit_seconds > self.limit

    def _score(self, point: Point) -> float:
        """Return the metric of a point, negated if it should be small."""
        return self.goals[self.metric] * float(point[self.metric])

    def _best_score(self, outer: Point) -> float:
        """Return the best score of a solve, minus infinity if it failed."""
        points = self.finished[key_of(outer)]["points"]
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
        solved = self.finished[key_of(outer)]
        # by score, not by `best`: the metric of the chosen point may go down
        last: Point = max(solved["points"], key=self._score, default={})
        best: Point = max(self.points(), key=self._score, default={})
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
        raise SettingError(
            f"{name!r} cannot be the metric of a search; use one over all users and items"
        )
    return -1.0 if named.base in LOWER_IS_BETTER else 1.0


def _tuned(
    search: Search, fitted: Recommender, best: Point, complete: bool, fit_seconds: float
) -> Tuned:
    hidden = {"prototype", *search.criterion.columns}
    names = list(search.goals)
    points, rows = [], []
    for number, solved in enumerate(search.finished.values()):
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
    solves = search.finished.values()
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
    weights = search.space.event_weights
    if weights:
        chosen = weights[best[EVENT_WEIGHTS]] or {}
        listed = ", ".join(f"{name} {weight:g}" for name, weight in chosen.items())
        yield f"weights of the types of events: {best[EVENT_WEIGHTS]}{listed and f' ({listed})'}"
    reasons = [solved["failed"] for solved in solves if "failed" in solved]
    if reasons:
        shown = "; ".join(list(dict.fromkeys(reasons))[:REASONS])
        yield f"{len(reasons)} of {len(solves)} solves failed: {shown}"


def _sentence(search: Search, best: Point, points: Sequence[Point]) -> str:
    """Describe the chosen point, and what it gains and loses against the most accurate one."""
    names = list(search.goals)
    if isinstance(search.criterion, OnSlices):
        n_periods = len(search.criterion.folds)
        periods = "the last period" if n_periods == 1 else f"the last {n_periods} periods"
        return (
            f"of {len(points):,} settings, {best['family']} has the best {names[0]} in {periods}"
        )
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
        f"{chosen}: {names[0]} is {less} worse than the best, which may be chance, and "
        f"{names[1]} is {more} better"
    )


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def frontier(points: pl.DataFrame, names: Sequence[str], signs: Sequence[float]) -> pl.DataFrame:
    """Return the points that no other point equals or beats in every goal, best first.

    `names` are the columns of the goals, and the first one orders the result; `signs` has 1 for a
    goal to maximise, -1 for one to minimise.
    """
    goals = points.select(names).to_numpy() * np.asarray(signs)
    goals = np.where(np.isnan(goals), -np.inf, goals)
    order = np.lexsort(tuple(-goals[:, place] for place in reversed(range(len(names)))))
    front: list[int] = []
    for row in order:
        # sorted by the first goal, so only earlier rows can be as good in every goal
        if not any((goals[other] >= goals[row]).all() for other in front):
            front.append(int(row))
    return points[front]
