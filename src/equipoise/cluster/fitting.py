"""`fit` and `tune` on a cluster: where the linear system is solved, and settings in parallel."""

from __future__ import annotations

import copy
import os
from typing import Any

from equipoise.checks import choice
from equipoise.cluster.partitioned import Partitioned
from equipoise.cluster.solving import WorkerSolver
from equipoise.cluster.workers import connect
from equipoise.errors import SettingError
from equipoise.interactions import Interactions
from equipoise.models.base import Recommender
from equipoise.models.linear import LinearAutoencoder, fit_together
from equipoise.solve.engine import plan

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

    The sparse matrix is gathered: a model carries its data, and they are small beside its inverse.
    The n x n system is solved on this machine or, exactly too, by the workers in tiles that they
    hold in memory.

    Parameters
    ----------
    model
        Not changed.
    data
        `Partitioned` or ordinary interactions.
    where
        "here", with an engine of the library; "workers", for linear autoencoders; "auto" takes
        the workers where the plan says that no engine in memory fits here.
    client
        Where the data are ordinary interactions; as for `equipoise.cluster.read`.
    dtype
        As for `fit`.
    tile_rows
        Rows of a tile on the workers; left out, a twelfth of the items, from 256 to 4,096.
    scratch
        Folder for the inverse where it does not fit into the memory of this machine.
    **options
        Other options of the model's `fit`, on this machine.
    """
    choice("where", where, WHERE)
    if isinstance(data, Partitioned):
        client, data = data.client, data.gather()
    elif client is None:
        raise SettingError("interactions of one machine need client=, such as client='local'")
    fitted = copy.copy(model)
    linear = isinstance(model, LinearAutoencoder)
    if where == "workers" and not linear:
        kind = type(model).__name__
        raise SettingError(f"where='workers' is for linear autoencoders, not {kind}; use 'here'")
    if where == "auto":
        sizes = {"n_users": data.n_users, "n_items": data.n_items}
        found = plan(n_interactions=data.n_interactions, dtype=dtype, **sizes)
        beyond = linear and found.engine == "tiled" and not {"engine", "device"} & set(options)
        where = "workers" if beyond else "here"
    if where == "here":
        chosen = {} if dtype == "float32" else {"dtype": dtype}
        chosen |= {} if scratch is None else {"scratch": scratch}
        return fitted.fit(data, **chosen, **options)
    if options:
        name = next(iter(options))
        raise SettingError(f"{name}= is for a fit on this machine; leave it out, or where='here'")
    assert isinstance(fitted, LinearAutoencoder)
    weighed = fitted._weighed(data)
    solver = WorkerSolver(connect(client), weighed, dtype, tile_rows, scratch)
    fit_together([fitted], solver, data)
    return fitted
