"""How good a fitted model is on users it has not seen, told by the model itself.

The solve without one user follows from the solve with all of them, so every user of the training
data can stand in for a new one. docs/leave-one-out.md derives the formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from equipoise.checks import choice, count, fraction
from equipoise.data.interactions import Interactions
from equipoise.data.split.parts import Part
from equipoise.errors import DataError, SettingError
from equipoise.evaluation.evaluator import GivenPart, checked_part, evaluate
from equipoise.evaluation.results import Result
from equipoise.models import Recommender
from equipoise.models.leaving_out import Leave, check_model, drawn, lists_without
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

    A user is ranked by the model as a fit without this user would have made it, from some of the
    user's items, and the others are to be found. The numbers are those of refits to rounding, at a
    few times the cost of ranking. Settings that were "auto" keep their numbers. Where signals
    decay without a reference time, the user with the last event of all is left out by a new fit.

    Parameters
    ----------
    model
        `LAE`, `EASE`, `RLAE` or their denoising forms, with any normalizer; on any exact
        engine, and saved models too. Signals with the transform "bm25" are refused: one user less
        changes their numbers for all users.
    users
        How many users to leave out, drawn from those with at least two items.
    k
        One or more cut-offs.
    history
        Share of a user's items that the model is shown; at least one, and all but one at most.
    seed
        Of the users and of what they are shown: same data and seed, same part.
    part
        Training users with what they are shown and what is to be found, instead of a sample.
    leave
        "user" leaves out all of the user (a new user); "items" leaves what the user is shown in
        training and takes out the rest (the weak protocol).
    alpha
        The popularity dial, in place of the model's own.
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
    sample = left_out_part(model.data_, users, history, seed) if part is None else part
    checked = checked_part(sample)
    given = GivenPart(checked.history, checked.target, PROTOCOLS[leave], "train")
    return evaluate(
        left_out,
        given,
        k,
        metrics=metrics,
        bootstrap=bootstrap,
        seed=seed,
        threads=threads,
        name=model.label if name is None else name,
        progress=progress,
    )


class LeftOut:
    """A model as `evaluate` sees it, whose training users are ranked as if left out."""

    def __init__(self, model: Any, leave: Leave, alpha: float | None) -> None:
        check_model(model)
        self.model, self.leave, self.alpha = model, leave, alpha
        self.item_index_, self.item_counts_ = model.item_index_, model.item_counts_
        self.data_fingerprint_, self.settings = model.data_fingerprint_, model.settings

    def rank(self, history: Interactions, k: int, *, exclude_seen: bool = True) -> Ranked:
        """Rank items for these users, each by the model without it."""
        if not exclude_seen:
            raise SettingError("users that are left out are ranked without the items of a history")
        items, scores = lists_without([self.model], history, k, leave=self.leave, alpha=self.alpha)
        return Ranked(items[0], scores[0], (items[0] >= 0).sum(axis=1).astype(np.int32))


def left_out_part(data: Interactions, users: int, history: float, seed: int) -> GivenPart:
    """Draw users with at least two items, and what of theirs is shown and what is to be found."""
    count("users", users)
    fraction("history", history, zero=False, one=False)
    if not (data.user_counts >= 2).any():
        raise DataError(
            "no user has two items, one to show and one to find, which leave-one-out needs; fit "
            "with settings of your own instead"
        )
    return GivenPart(*drawn(data, users, history, seed), PROTOCOLS["user"], "train")


def summary_of(result: Result) -> dict[str, Any]:
    """Return the figures of a result that a model keeps: values, intervals, and on what."""
    values = {}
    for row in result.table.iter_rows(named=True):
        part = "" if row["slice"] == "all" else f"{row['slice']}_"
        figure = {name: row[name] for name in ("value", "low", "high")}
        values[f"{part}{row['metric']}@{row['k']}"] = {
            name: each for name, each in figure.items() if each is not None and math.isfinite(each)
        }
    facts = {name: getattr(result, name) for name in ("protocol", "n_users", "seed", "version")}
    facts |= {"part": result.fingerprint, "data": result.data_fingerprint}
    return {**facts, "values": {name: each for name, each in values.items() if each}}
