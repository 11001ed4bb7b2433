"""`fit` on this machine or the workers, and `tune` with solves in parallel on the workers."""

from __future__ import annotations

import copy
import inspect
import os
import secrets
from collections.abc import Sequence
from threading import Lock
from types import SimpleNamespace
from typing import Any

from equipoise.checks import choice
from equipoise.cluster.neighbours import NeighbourhoodSolver
from equipoise.cluster.partitioned import Partitioned
from equipoise.cluster.parts import PartitionedSplit
from equipoise.cluster.solving import WorkerSolver
from equipoise.cluster.spread import Spread
from equipoise.cluster.training import OnWorkers, WorkerBlocks
from equipoise.cluster.workers import connect, fetch, run_on_all, send, submit, task
from equipoise.data.interactions import Interactions
from equipoise.data.training import FORMS, NotInMemory, facts_of
from equipoise.errors import SettingError
from equipoise.models.base import Recommender
from equipoise.models.linear import LinearAutoencoder, fit_together, require_strength
from equipoise.normalize import CustomNorm
from equipoise.solve.planning import SolveOptions, plan
from equipoise.tuning import Tuned
from equipoise.tuning import tune as tune_here
from equipoise.tuning.search import Solve, Solves, search_with
from equipoise.tuning.space import Point, key_of

WHERE = ("auto", "here", "workers")


def fit(
    model: Recommender,
    interactions: Partitioned | Interactions,
    *,
    data: str | None = None,
    where: str = "auto",
    client: Any = None,
    dtype: str = "float32",
    tile_rows: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Recommender:
    """Fit a model on data of a cluster; return a regular model on this machine.

    The n x n system is solved on this machine or, equally exactly, by the workers in tiles that
    they hold in memory. Neighbourhoods are always solved by the workers, which use their own
    blocks of the data.

    Parameters
    ----------
    model
        Not changed.
    interactions
        `Partitioned` or regular interactions.
    data
        Where the training data of the model are; its weights do not depend on this. "with":
        gathered to this machine, into files if its memory is short. "beside": they stay with the
        workers, which write them beside the model when it is saved, as Parquet files. "none":
        nowhere; the model answers histories only. Default: "beside" where the workers solve,
        unless the model has signals, features or a low-pass companion, which need the data here;
        else "with".
    where
        "here", with an engine of the library; "workers", for linear autoencoders; "auto" chooses
        the workers for neighbourhoods, and where no engine fits into the memory of this machine.
    client
        For regular interactions, as for `equipoise.cluster.read`.
    dtype
        As for `fit`.
    tile_rows
        Rows of a tile on the workers; by default a twelfth of the items, from 256 to 4,096.
    scratch
        Folder for the inverse and the data where they do not fit into the memory of this machine.
    **options
        Other options of the model's `fit`, for a fit on this machine; the workers take
        ``engine="neighbourhood"`` and `neighbours`. With `memory`, "auto" uses this budget.
    """
    choice("where", where, WHERE)
    form = _checked_form(data, model, interactions)
    if isinstance(interactions, Partitioned):
        client = interactions.client
    elif client is None:
        raise SettingError("interactions of one machine need client=, such as client='local'")
    is_linear = isinstance(model, LinearAutoencoder)
    if where == "workers" and not is_linear:
        kind = type(model).__name__
        raise SettingError(f"where='workers' is for linear autoencoders, not {kind}; use 'here'")
    if where == "here" and tile_rows is not None:
        raise SettingError("tile_rows= is for a fit over the workers; leave it out")
    names = ("n_users", "n_items", "n_interactions")
    sizes = {name: getattr(interactions, name) for name in names}
    by_neighbourhood = options.get("engine") == "neighbourhood"
    if where == "auto":
        where = "workers" if is_linear and by_neighbourhood else "here"
        is_free = is_linear and not {"engine", "device"} & set(options)
        if is_free and plan(**sizes, dtype=dtype, memory=options.get("memory")).outgrown:
            where = "workers"
            options.pop("memory", None)
    fitted = copy.copy(model)
    if where == "here":
        options |= SolveOptions(dtype=dtype, scratch=scratch).keywords()
        fitted.fit(_here(interactions, scratch), **options)
        return _with_form(fitted, interactions, form or "with", scratch)
    planning = {}
    if by_neighbourhood:
        planning = {name: options.pop(name, None) for name in ("engine", "neighbours")}
    if options:
        name = next(iter(options))
        raise SettingError(
            f"{name}= is for a fit on this machine, and workers solve this one; leave it out"
        )
    assert isinstance(fitted, LinearAutoencoder)
    require_strength([fitted], "neighbourhood" if by_neighbourhood else "auto")
    if form is None:
        stays = isinstance(interactions, Partitioned) and not _needs_data_here(fitted)
        form = "beside" if stays else "with"
    if form == "with" or not isinstance(interactions, Partitioned):
        source = _here(interactions, scratch)
    else:
        source = OnWorkers(interactions, scratch)
    train = fitted._weighed(source)
    features = fitted._features_of(train)
    has_weight = features is not None and float(features.settings.strength) > 0
    rows = features.rows if features is not None and has_weight else None
    spread = Spread(connect(client), interactions if train is source else train, rows)
    solver: NeighbourhoodSolver | WorkerSolver
    if by_neighbourhood:
        neighbours = plan(**sizes, dtype=dtype, **planning).neighbours
        solver = NeighbourhoodSolver(spread, train, neighbours, dtype)
    else:
        solver = WorkerSolver(spread, train, dtype, tile_rows, scratch)
    fit_together([fitted], solver, source, features)
    fitted._list_new_items()
    return _with_form(fitted, interactions, form, scratch)


def _checked_form(
    form: Any, model: Recommender, interactions: Partitioned | Interactions
) -> str | None:
    """Return where the training data go, checked; None if the caller left it open."""
    if form is None:
        return None
    choice("data", form, FORMS)
    if form != "with" and model.signals is not None:
        raise SettingError(
            f"signals weigh all data together, so data={form!r} is for models without them; use "
            f"data='with', and save the model with data={form!r}"
        )
    if form == "beside" and not isinstance(interactions, Partitioned):
        raise SettingError(
            "data='beside' is for data that workers hold; save the model with data='beside'"
        )
    return str(form)


def _needs_data_here(model: LinearAutoencoder) -> bool:
    """Whether a part of a model is fitted on this machine and needs all users."""
    parts = (model.signals, model.features, model.lowpass)
    is_custom = isinstance(model.normalizer, CustomNorm)
    return is_custom or any(part is not None for part in parts)


def _here(data: Partitioned | Interactions, scratch: Any) -> Interactions:
    return data.gather(scratch) if isinstance(data, Partitioned) else data


def _with_form(model: Recommender, interactions: Any, form: str, scratch: Any) -> Recommender:
    """Return a fitted model whose training data are in this form."""
    present = model.data_
    if form == "with" or (form == "beside" and not present.in_memory):
        if isinstance(present, NotInMemory):
            present.forget()
        return model
    if isinstance(present, NotInMemory):
        away = present.without_blocks()
    else:
        blocks = WorkerBlocks(interactions, scratch) if form == "beside" else None
        away = facts_of(present, blocks)
    model._raw_data = model.interactions_ = away
    model._list_new_items()
    return model


def tune(model: Any = None, split: Any = None, *, client: Any = "local", **options: Any) -> Tuned:
    """Search good settings with solves on the workers; ledger and result are those of `tune`.

    The solves of a grid run in parallel, one per worker. With `early_stop`, and where Optuna
    proposes, the next settings depend on the last ones: solves run one after another.

    Parameters
    ----------
    model, split
        As for `equipoise.tune`; `Partitioned` data are gathered, and every solve uses all of them.
    client
        As for `equipoise.cluster.read`; that of `Partitioned` data.
    **options
        As for `equipoise.tune`. `device`, `memory` and `scratch` apply to each worker, and to
        this machine for the last fit; `threads` applies to the last fit.
    """
    if split is None and isinstance(model, Partitioned):
        model, split = None, model
    if isinstance(split, PartitionedSplit):
        raise SettingError("a search needs a split on this machine; make it with where='here'")
    if isinstance(split, Partitioned):
        client, split = split.client, split.gather()
    call = inspect.signature(tune_here).bind(model, split, **options)
    call.apply_defaults()
    connected = connect(client)
    arguments = SimpleNamespace(**call.arguments)
    return search_with(lambda *args: _WorkerSolves(connected, *args), arguments)


class _WorkerSolves(Solves):
    """Solves of a search on workers; expected ones run in parallel."""

    def __init__(self, client: Any, *args: Any) -> None:
        super().__init__(*args)
        self.client = client
        self.options = {name: value for name, value in self.options.items() if name != "threads"}
        solves = Solves(self.space, self.criterion, self.options)
        self._search = send(client, (solves, secrets.token_hex(8)))
        self._futures: dict[str, Any] = {}

    def expect(self, points: Sequence[Point]) -> None:
        """Start the solves of these points."""
        for outer in points:
            self._futures[key_of(outer)] = submit(self.client, solve_point, self._search, outer)

    def __call__(self, outer: Point) -> Solve:
        """Return a solve, which is started now unless it was expected."""
        if key_of(outer) not in self._futures:
            self.expect([outer])
        solve: Solve = fetch(self.client, self._futures.pop(key_of(outer)))
        return solve

    def release(self) -> None:
        """Cancel pending solves and free the memory that workers use for the search."""
        self.client.cancel(list(self._futures.values()), force=True)
        self._futures.clear()
        self._search = None
        run_on_all(self.client, end_search)
        super().release()


_lock = Lock()  # solves of a search share arrays, and a worker may have several threads
_searches: dict[str, Solves] = {}  # the current search by token; Gram matrices stay between tasks


@task
def solve_point(search: tuple[Solves, str], outer: Point) -> Solve:
    """Return one solve of a search."""
    sent, token = search
    with _lock:
        if token not in _searches:
            _release_searches()
            _searches[token] = copy.copy(sent)
            if sent.scratch is not None:  # workers may share the folder
                _searches[token].scratch = sent.scratch / secrets.token_hex(6)
        solves = _searches[token]
        try:
            return solves(outer)
        finally:
            if token not in _searches:  # the search has ended
                solves.release()


def end_search() -> None:
    """Free the memory of a search on this worker; a running solve does so when it ends."""
    if not _lock.acquire(blocking=False):
        _searches.clear()
        return
    try:
        _release_searches()
    finally:
        _lock.release()


def _release_searches() -> None:
    for solves in _searches.values():
        solves.release()
    _searches.clear()
