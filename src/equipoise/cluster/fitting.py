"""`fit` and `tune`: where a system is solved, and solves of a search side by side."""

from __future__ import annotations

import copy
import inspect
import os
import secrets
from collections.abc import Sequence
from threading import Lock
from typing import Any

from equipoise.checks import choice
from equipoise.cluster.neighbours import NeighbourhoodSolver
from equipoise.cluster.partitioned import Partitioned
from equipoise.cluster.parts import PartitionedSplit
from equipoise.cluster.solving import WorkerSolver
from equipoise.cluster.spread import Spread
from equipoise.cluster.workers import connect, forget, results, submit, task
from equipoise.data.interactions import Interactions
from equipoise.errors import SettingError
from equipoise.models.base import Recommender
from equipoise.models.linear import LinearAutoencoder, fit_together, require_strength
from equipoise.solve.planning import plan
from equipoise.tuning import Tuned
from equipoise.tuning import tune as tune_here
from equipoise.tuning.ledger import key_of
from equipoise.tuning.proposals import Point
from equipoise.tuning.search import Solve, Solves, search_with

WHERE = ("auto", "here", "workers")


def fit(
    model: Recommender,
    data: Partitioned | Interactions,
    *,
    where: str = "auto",
    client: Any = None,
    dtype: str = "float32",
    tile_rows: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Recommender:
    """Fit a model on data of a cluster; an ordinary model on this machine comes back.

    A model carries its data, and they are small beside its inverse: the sparse matrix is gathered,
    into a file where the memory of this machine is short. The n x n system is solved on this
    machine or, exactly too, by the workers in tiles that they hold in memory; neighbourhoods are
    solved for by the workers. These work on the blocks that they have.

    Parameters
    ----------
    model
        Not changed.
    data
        `Partitioned` or ordinary interactions.
    where
        "here", with an engine of the library; "workers", for linear autoencoders; "auto" takes
        the workers where the plan says that no engine in memory fits here, and for neighbourhoods.
    client
        Where the data are ordinary interactions; as for `equipoise.cluster.read`.
    dtype
        As for `fit`.
    tile_rows
        Rows of a tile on the workers; left out, a twelfth of the items, from 256 to 4,096.
    scratch
        Folder for the inverse and the data where they do not fit into the memory of this machine.
    **options
        Other options of the model's `fit`, for one on this machine; the workers take
        ``engine="neighbourhood"`` and `neighbours`. With `memory` the plan has this budget.
    """
    choice("where", where, WHERE)
    if isinstance(data, Partitioned):
        client = data.client
    elif client is None:
        raise SettingError("interactions of one machine need client=, such as client='local'")
    linear = isinstance(model, LinearAutoencoder)
    if where == "workers" and not linear:
        kind = type(model).__name__
        raise SettingError(f"where='workers' is for linear autoencoders, not {kind}; use 'here'")
    size = {name: getattr(data, name) for name in ("n_users", "n_items", "n_interactions")}
    near = options.get("engine") == "neighbourhood"
    if where == "here" and tile_rows is not None:
        raise SettingError("tile_rows= is for a fit over the workers; leave it out")
    if where == "auto":
        free = linear and not {"engine", "device"} & set(options)
        budget = options.get("memory")
        beyond = free and plan(**size, dtype=dtype, memory=budget).outgrown
        where = "workers" if beyond or (linear and near) else "here"
        if beyond:
            options.pop("memory", None)
    fitted = copy.copy(model)
    if where == "here":
        chosen: dict[str, Any] = {} if dtype == "float32" else {"dtype": dtype}
        chosen |= {} if scratch is None else {"scratch": scratch}
        return fitted.fit(_here(data, scratch), **chosen, **options)
    solving = {name: options.pop(name, None) for name in ("engine", "neighbours") if near}
    if options:
        name = next(iter(options))
        raise SettingError(
            f"{name}= is for a fit on this machine, and workers solve this one; leave it out"
        )
    assert isinstance(fitted, LinearAutoencoder)
    require_strength([fitted], "neighbourhood" if near else "auto")
    given = _here(data, scratch)
    train = fitted._weighed(given)
    spread = Spread.of(connect(client), data if train is given else train)
    solver: NeighbourhoodSolver | WorkerSolver
    if near:
        neighbours = plan(**size, dtype=dtype, **solving).neighbours
        solver = NeighbourhoodSolver(spread, train, neighbours, dtype)
    else:
        solver = WorkerSolver(spread, train, dtype, tile_rows, scratch)
    fit_together([fitted], solver, given)
    return fitted


def _here(
    data: Partitioned | Interactions, scratch: str | os.PathLike[str] | None
) -> Interactions:
    return data.gather(scratch) if isinstance(data, Partitioned) else data


def tune(model: Any = None, split: Any = None, *, client: Any = "local", **options: Any) -> Tuned:
    """Find good settings with solves on the workers; ledger and answer are those of `tune`.

    The solves of a grid run side by side, each on a worker. With `early_stop`, and where Optuna
    proposes, the next settings depend on the last ones: solves run one after another.

    Parameters
    ----------
    model, split
        As for `equipoise.tune`; `Partitioned` data are gathered, and every solve has all of them.
    client
        As for `equipoise.cluster.read`; that of `Partitioned` data.
    **options
        As for `equipoise.tune`. `device`, `memory` and `scratch` are those of a worker, and of
        this machine for the last fit, `threads` those of the last fit.
    """
    if split is None and isinstance(model, Partitioned):
        model, split = None, model
    if isinstance(split, PartitionedSplit):
        raise SettingError("a search needs a split on this machine; make it with where='here'")
    if isinstance(split, Partitioned):
        client, split = split.client, split.gather()
    asked = inspect.signature(tune_here).bind(model, split, **options)
    asked.apply_defaults()
    connected = connect(client)
    return search_with(lambda *given: _WorkerSolves(connected, *given), **asked.arguments)


class _WorkerSolves(Solves):
    """Makes solves on workers, those that are expected side by side."""

    def __init__(self, client: Any, *given: Any) -> None:
        super().__init__(*given)
        self.client = client
        self.options = {name: each for name, each in self.options.items() if name != "threads"}
        here = Solves(self.space, self.criterion, self.options)
        self._given = submit(client, held_solves, here, secrets.token_hex(8))
        self._under_way: dict[str, Any] = {}

    def expect(self, points: Sequence[Point]) -> None:
        """Begin with these solves."""
        for outer in points:
            self._under_way[key_of(outer)] = submit(self.client, solve_there, self._given, outer)

    def __call__(self, outer: Point) -> Solve:
        """Wait for a solve, which is begun now unless it was expected."""
        if key_of(outer) not in self._under_way:
            self.expect([outer])
        found: Solve = results(self.client, self._under_way.pop(key_of(outer)))
        return found

    def release(self) -> None:
        """Drop what workers hold for the search, and solves that nobody waits for."""
        self.client.cancel(list(self._under_way.values()), force=True)
        self._under_way.clear()
        self._given = None
        forget(self.client, drop_solves)
        super().release()


_alone = Lock()  # solves of a search share arrays, and a worker may have several threads
_kept: dict[str, Solves] = {}  # those of one search, whose Gram matrices stay between tasks


def held_solves(solves: Solves, token: str) -> tuple[Solves, str]:
    """Keep what a search needs on a worker."""
    return solves, token


@task
def solve_there(given: tuple[Solves, str], outer: Point) -> Solve:
    """Make one solve of a search."""
    held, token = given
    with _alone:
        if token not in _kept:
            _drop()
            _kept[token] = copy.copy(held)
            if held.scratch is not None:  # workers may share the folder
                _kept[token].scratch = held.scratch / secrets.token_hex(6)
        solves = _kept[token]
        try:
            return solves(outer)
        finally:
            if token not in _kept:  # the search has ended
                solves.release()


def drop_solves() -> None:
    """Give back what this worker keeps for a search; a solve under way does so at its end."""
    if not _alone.acquire(blocking=False):
        _kept.clear()
        return
    try:
        _drop()
    finally:
        _alone.release()


def _drop() -> None:
    for each in _kept.values():
        each.release()
    _kept.clear()
