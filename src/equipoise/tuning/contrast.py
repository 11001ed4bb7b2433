"""Automatic, tuned and plain settings side by side, on data the settings were not chosen on."""

from __future__ import annotations

import time
from dataclasses import dataclass

from equipoise.evaluation import evaluate
from equipoise.models.linear import EASE, LinearAutoencoder
from equipoise.normalize import DAN
from equipoise.results import Result
from equipoise.split.parts import Split
from equipoise.tuning.search import tune
from equipoise.tuning.space import ALPHAS

PLAIN_L2 = 500.0  # the most common default of other libraries
L2_STEPS = (0.3, 1.0, 3.0)


@dataclass(frozen=True)
class Contrast:
    """One way to choose settings, and what came of it.

    Attributes
    ----------
    name
        "plain", "automatic" or "tuned".
    model
        Fitted on the train part.
    result
        On the test part.
    solves, seconds
        What choosing and fitting took.
    """

    name: str
    model: LinearAutoencoder
    result: Result
    solves: int
    seconds: float


def contrast(split: Split, *, k: int = 20, metric: str | None = None) -> list[Contrast]:
    """Fit EASE plainly, with all settings automatic, and tuned by 12 solves around these.

    Parameters
    ----------
    split
        With a valid part to tune on; the results are of its test part.
    k
        Cut-off of the results.
    metric
        What to tune; NDCG at k if left out.
    """
    out = []
    start = time.perf_counter()
    automatic = EASE(normalizer=DAN())
    for name, model in (("plain", EASE(l2=PLAIN_L2, dropout=0.0)), ("automatic", automatic)):
        start = time.perf_counter()
        model.fit(split.train)
        seconds = time.perf_counter() - start
        out.append(Contrast(name, model, evaluate(model, split.test, k=k), 1, seconds))
    beta = automatic.normalizer_.exponents()[1]
    grid = {
        "alpha": ALPHAS,
        "beta": [0.0, beta],
        "l2": [step * automatic.l2_ for step in L2_STEPS],
        "dropout": [automatic.dropout_, (1 + automatic.dropout_) / 2],
    }
    start = time.perf_counter()
    tuned = tune(EASE, split, grid=grid, metric=metric or f"ndcg@{k}", objectives=())
    seconds = time.perf_counter() - start
    result = evaluate(tuned.model, split.test, k=k)
    return [*out, Contrast("tuned", tuned.model, result, tuned.solves + 1, seconds)]
