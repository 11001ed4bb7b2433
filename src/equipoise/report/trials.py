"""The models of a report: how they are chosen, fitted, timed and judged."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from equipoise.evaluation import evaluate
from equipoise.interactions import Interactions
from equipoise.metrics import exposure
from equipoise.models import EASE, ItemKNN, LinearAutoencoder, Popularity, Recommender
from equipoise.normalize import NoNorm, Normalizer
from equipoise.ranking.ranker import Ranked
from equipoise.results import Result
from equipoise.solve.plan import plan
from equipoise.split import Part, Split

# Operations that a search over one of the grids below may take, half a minute on two cores; with
# more the first entry is taken. Not a time: the same data must give the same report anywhere.
EFFORT = 2e12
# Tried on the valid part: the automatic settings, and a step to either side of usual ones.
PLAIN: tuple[dict[str, Any], ...] = (
    {"dropout": 0.0},
    {"l2": 100.0, "dropout": 0.0},
    {"l2": 400.0, "dropout": 0.0},
)
BALANCED: tuple[dict[str, Any], ...] = (
    {},
    {"l2": 5.0, "dropout": 0.3},
    {"l2": 20.0, "dropout": 0.3},
)


class Clock:
    """Adds up the seconds of named steps."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        """Time a block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            passed = time.perf_counter() - start
            self.seconds[step] = self.seconds.get(step, 0.0) + passed


@dataclass
class Watched:
    """A model as `evaluate` sees it, at one position of the dial; counts what its lists show."""

    model: Recommender
    k: int
    alpha: float | None = None
    shown: npt.NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.item_index_ = self.model.item_index_
        self.item_counts_ = self.model.item_counts_
        self.data_fingerprint_ = self.model.data_fingerprint_
        self.shown = np.zeros(len(self.item_counts_), np.int64)

    def settings(self) -> dict[str, Any]:
        """Return those of the model."""
        return self.model.settings()

    def rank(self, history: Interactions, k: int, *, exclude_seen: bool = True) -> Ranked:
        """Rank with the dial in place and count the items of the lists."""
        found = self.model.rank(history, k, exclude_seen=exclude_seen, alpha=self.alpha)
        self.shown += exposure(found.items, self.k, len(self.shown))
        return found


@dataclass(frozen=True)
class Trial:
    """One fitted and judged model.

    Parameters
    ----------
    name
        For people, such as "EASE + DAN".
    settings
        In words.
    result
        Numbers on the test part.
    shown
        How many lists show each item.
    fit_seconds
        Of the fit that was kept.
    """

    name: str
    settings: str
    result: Result
    shown: npt.NDArray[np.int64]
    fit_seconds: float


def judged(
    name: str, model: Recommender, part: Part, k: int, seconds: float, bootstrap: int
) -> Trial:
    """Judge a fitted model on the test part."""
    watched = Watched(model, k)
    result = evaluate(watched, part, k, name=name, bootstrap=bootstrap)
    return Trial(name, settings_text(model), result, watched.shown, seconds)


def yardsticks(
    split: Split, k: int, clock: Clock, bootstrap: int, step: Callable[[], None]
) -> tuple[list[Trial], list[str]]:
    """Fit and judge popularity, item-kNN and plain EASE; only the numbers are kept."""
    trials = []
    models: list[tuple[str, Recommender]] = [
        ("Popularity", Popularity()),
        ("Item-kNN", ItemKNN(neighbours=20)),
    ]
    for name, model in models:
        with clock(f"fit {name}"):
            model.fit(split.train)
        with clock("judge"):
            seconds = clock.seconds[f"fit {name}"]
            trials.append(judged(name, model, split.test, k, seconds, bootstrap))
        step()
    plain, seconds, note = chosen("EASE", PLAIN, NoNorm(), split, k, clock)
    with clock("judge"):
        trials.append(judged("EASE", plain, split.test, k, seconds, bootstrap))
    step()
    return trials, [note]


def balanced(
    split: Split, normalizer: Normalizer, k: int, clock: Clock
) -> tuple[Recommender, float, str]:
    """Fit EASE with data-adaptive normalization, its penalty chosen on the valid part."""
    return chosen("EASE + DAN", BALANCED, normalizer, split, k, clock)


def chosen(
    name: str,
    grid: Sequence[dict[str, Any]],
    normalizer: Normalizer,
    split: Split,
    k: int,
    clock: Clock,
) -> tuple[EASE, float, str]:
    """Return the model that ranks the valid part best, the seconds of its fit, and a remark.

    Where there is no valid part, or the fits would take too long, the first settings are taken.
    """
    with clock("measure this machine"):
        flops = plan(split.train).flops
    if split.valid is None or flops * len(grid) > EFFORT:
        grid = grid[:1]
    best: tuple[float, EASE, float] | None = None
    for settings in grid:
        start = time.perf_counter()
        with clock(f"fit {name}" if len(grid) == 1 else f"fit and choose {name}"):
            model = EASE(**settings, normalizer=normalizer).fit(split.train)
            seconds = time.perf_counter() - start
            value = 0.0
            if split.valid is not None and len(grid) > 1:
                found = evaluate(model, split.valid, k, metrics="ndcg", bootstrap=0)
                value = found[f"ndcg@{k}"]
        if best is None or value > best[0]:
            best = (value, model, seconds)
    assert best is not None
    if len(grid) == 1:
        return best[1], best[2], f"{name}: the automatic settings, without a search"
    tried = f"{name}: the best of {len(grid)} settings by NDCG@{k} on the valid part"
    return best[1], best[2], tried


def own_model(model: Recommender, split: Split, clock: Clock) -> tuple[Recommender, float, str]:
    """Return a model fitted on the train part: the given one, or a new fit with its settings."""
    if model.data_fingerprint_ == split.train.fingerprint:
        return model, 0.0, "the given model, as it was fitted on the train part"
    start = time.perf_counter()
    with clock("fit your model"):
        again: Recommender = dataclasses.replace(cast(Any, model))
        again.fit(split.train)
    why = "the given model's settings, fitted anew on the train part: it had seen other people"
    return again, time.perf_counter() - start, why


def name_of(model: Recommender) -> str:
    """Return a name for people, such as "EASE + DAN"."""
    kind = type(model).__name__
    norm = getattr(model, "normalizer_", None)
    added = [] if norm is None or type(norm).__name__ == "NoNorm" else [type(norm).__name__]
    if getattr(model, "lowpass", None) is not None:
        added.append("LowPass")
    return " + ".join([kind, *added])


def settings_text(model: Recommender) -> str:
    """Return the settings in one line, a normalizer with the numbers it took from the data.

    >>> settings_text(EASE(l2=20.0, dropout=0.3))
    'EASE, l2 20, dropout 0.3'
    """
    settings = dict(model.settings())
    words = [str(settings.pop("model"))]
    settings.pop("normalizer", None)
    words += [
        f"{name} {_short(getattr(model, f'{name}_', value))}"
        for name, value in settings.items()
        if value
    ]
    norm = getattr(model, "normalizer_", None)
    if norm is not None and dataclasses.is_dataclass(norm) and type(norm).__name__ != "NoNorm":
        values = [
            f"{each.name} {_short(getattr(norm, each.name))}" for each in dataclasses.fields(norm)
        ]
        words.append(" ".join([type(norm).__name__, *values]))
    return ", ".join(words)


def own_alpha(model: Recommender) -> float | None:
    """Return the position of the dial that a model was fitted with; None if it has no dial."""
    if not isinstance(model, LinearAutoencoder):
        return None
    return model.normalizer_.exponents()[0]


def _short(value: Any) -> str:
    if isinstance(value, dict):
        inner = [f"{key} {_short(part)}" for key, part in value.items() if key != "name"]
        return f"({', '.join(inner)})"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
