"""Leave-one-out evaluation of a fitted model on its own training users.

The solution without one user follows from the solution with all users, so every training user can
stand in for a new one. docs/leave-one-out.md derives the formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from equipoise.checks import choice, count, fraction
from equipoise.data.interactions import Interactions
from equipoise.data.split.parts import Part
from equipoise.errors import DataError
from equipoise.evaluation.evaluator import GivenPart, checked_part, evaluate
from equipoise.evaluation.metrics import Named
from equipoise.evaluation.results import Result
from equipoise.models import Recommender
from equipoise.models.leaving_out import Leave, check_model, draw_users, lists_without
from equipoise.ranking.ranker import Ranked

PROTOCOLS = {"user": "leave-one-out", "items": "leave-items-out"}


def leave_one_out(
    model: Recommender,
    users: int = 2000,
    k: int | Iterable[int] = 20,
    *,
    history: float = 0.8,
    seed: int = 0,
    part: Part | tuple[Interactions, Interactions] | None = None,
    leave: Leave = "user",
    alpha: float | None = None,
    metrics: Sequence[str] | str | None = None,
    bootstrap: int = 1000,
    threads: int | None = None,
    name: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Evaluate a fitted linear autoencoder on its own training users, each left out in turn.

    Each user is ranked by the model of a fit without this user, from a share of the user's items;
    the remaining items are the targets. The numbers equal those of refits up to rounding, at a few
    times the cost of ranking. "auto" settings keep their resolved values. If signals decay without
    a reference time, the user with the last event of all is left out by a refit.

    Parameters
    ----------
    model
        `LAE`, `EASE`, `RLAE` or their denoising forms, with any normalizer and any exact engine;
        saved models too. Not with the transform "bm25", where each user changes the weights of
        all users.
    users
        Number of users to leave out, drawn from those with at least two items.
    k
        One or more cut-offs.
    history
        Share of a user's items in the history; at least one item, and at most all but one.
    seed
        Of the draw of users and histories.
    part
        Histories and targets of training users, instead of a sample.
    leave
        "user" leaves out the whole user (a new user); "items" leaves out the targets only (the
        weak protocol).
    alpha
        The popularity dial, in place of the model's value.
    metrics, bootstrap, threads, name, progress
        As for `evaluate`.

    Examples
    --------
    >>> import equipoise as eq
    >>> data = eq.Interactions(np.random.default_rng(0).random((60, 20)) < 0.3)
    >>> model = eq.EASE(l2=5.0).fit(data)
    >>> eq.leave_one_out(model, users=50, k=5).n_users
    50
    """
    choice("leave", leave, PROTOCOLS)
    left_out = LeftOut(model, leave, alpha)
    model.data_.loaded("leave-one-out")
    sample = left_out_part(model.data_, users, history, seed) if part is None else part
    checked = checked_part(sample)
    return evaluate(
        left_out,
        GivenPart(checked.history, checked.target, PROTOCOLS[leave], "train"),
        k,
        metrics=metrics,
        bootstrap=bootstrap,
        seed=seed,
        threads=threads,
        name=model.label if name is None else name,
        progress=progress,
    )


class LeftOut:
    """A model for `evaluate` that ranks each training user as if left out of the fit."""

    def __init__(self, model: Any, leave: Leave, alpha: float | None) -> None:
        check_model(model)
        self.model, self.leave, self.alpha = model, leave, alpha
        self.item_index_, self.item_counts_ = model.item_index_, model.item_counts_
        self.data_fingerprint_, self.settings = model.data_fingerprint_, model.settings

    def rank(self, history: Interactions, k: int, *, exclude_seen: bool = True) -> Ranked:
        """Rank new items for these users, each by the model without this user."""
        items, scores = lists_without([self.model], history, k, leave=self.leave, alpha=self.alpha)
        return Ranked(items[0], scores[0], (items[0] >= 0).sum(axis=1).astype(np.int32))


def left_out_part(data: Interactions, users: int, history: float, seed: int) -> GivenPart:
    """Draw users with at least two items, and split their items into history and target."""
    count("users", users)
    fraction("history", history, zero=False, one=False)
    if not (data.user_counts >= 2).any():
        raise DataError(
            "no user has two items, one for the history and one for the target, which "
            "leave-one-out needs; fit with chosen settings instead"
        )
    return GivenPart(*draw_users(data, users, history, seed), PROTOCOLS["user"], "train")


def summary_of(result: Result) -> dict[str, Any]:
    """Return the values and intervals of a result that are stored with a model."""
    values = {}
    for row in result.table.iter_rows(named=True):
        numbers = {
            name: row[name]
            for name in ("value", "low", "high")
            if row[name] is not None and math.isfinite(row[name])
        }
        if numbers:
            values[Named(row["slice"], row["metric"]).at(row["k"])] = numbers
    facts = {name: getattr(result, name) for name in ("protocol", "n_users", "seed", "version")}
    facts |= {"part": result.fingerprint, "data": result.data_fingerprint}
    return {**facts, "values": values}
