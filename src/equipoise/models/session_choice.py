"""The automatic settings of the session models, by the next click in the last sessions."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.data.interactions import Interactions
from equipoise.data.split.session_split import reveal
from equipoise.models.session_neighbours import STAN, VSTAN
from equipoise.solve.planning import SolveOptions

logger = logging.getLogger(__name__)

Settings = dict[str, Any]

# `mix` 0 is SLIT and 1 is SLIS, so a search of SLIST also chooses the family.
STARTS: tuple[Settings, ...] = (
    {"l2": 3.0, "dropout": 0.5, "mix": 0.8, "decay_position": 2.0, "direction": "sr"},
    {"l2": 10.0, "dropout": 0.0, "mix": 0.2, "decay_position": 1.0, "direction": "sr"},
    {"l2": 10.0, "dropout": 0.0, "mix": 1.0, "decay_position": 1.0, "direction": "sr"},
    {"l2": 10.0, "dropout": 0.0, "mix": 0.0, "decay_position": 1.0, "direction": "sr"},
)
# Values of each setting, in the order in which steps are tried.
AXES: dict[str, tuple[Any, ...]] = {
    "l2": (1.0, 3.0, 10.0, 30.0, 100.0),
    "mix": (0.0, 0.2, 0.5, 0.8, 0.9, 1.0),
    "dropout": (0.0, 0.5, 0.8),
    "decay_position": (0.5, 1.0, 2.0, 4.0, 8.0),
    "direction": ("sr", "part", "all"),
}
ONLY_SPLITS: Settings = {"decay_position": 1.0, "direction": "sr"}  # no effect on SLIS
DECAYS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # of decay_inference: every fit serves all
CHOSEN = frozenset({*AXES, "decay_inference"})
MOST_FITS = 16
HELD_OUT = 300  # sessions, a tenth of the data at most
MOST_EVENTS = 3_000  # clicks of the held-out sessions that are predicted
MOST_CLICKS = 1_000_000  # the latest ones, which bounds the time of a fit
LISTED = 20


def choose(model: Any, data: Interactions, options: SolveOptions) -> Settings:
    """Return the settings with the best MRR@20 in the last sessions, which are held out.

    The search starts from the best of `STARTS` and changes one setting at a time. The normalizer
    stays: one that favours the long tail costs hits, a trade-off for the user.
    """
    names = CHOSEN & {field.name for field in dataclasses.fields(model)}
    trials = Trials.of(model, data, names, options)
    if not trials.history.n_users:
        return _only(names, {**STARTS[0], "decay_inference": 2.0})
    for start in STARTS:
        trials.visit(start)
    is_improved = True
    while is_improved and trials.has_room:
        is_improved = False
        for name in AXES:
            for settings in _steps(trials.best, name):
                is_improved |= trials.visit(settings)
    if logger.isEnabledFor(logging.INFO):
        trials.log_yardsticks()
    return _only(names, trials.best)


@dataclass
class Trials:
    """Fits of a model to all but the last sessions, measured in these."""

    model: Any
    train: Interactions
    history: Interactions
    target: npt.NDArray[Any]
    names: frozenset[str]
    options: SolveOptions
    n_sessions: int  # held out
    best: Settings = field(default_factory=dict)
    best_mrr: float = -np.inf
    _seen: list[Settings] = field(default_factory=list)

    @classmethod
    def of(
        cls, model: Any, data: Interactions, names: frozenset[str], options: SolveOptions
    ) -> Trials:
        """Hold out the last sessions of the data."""
        order = np.arange(data.n_users)
        if data.events is not None and data.events.times is not None:
            order = np.argsort(data.events.last_times, kind="stable")
        assert data._sequences is not None
        clicks_after = np.cumsum(data._sequences.lengths[order][::-1])[::-1]
        first = int(np.searchsorted(-clicks_after, -MOST_CLICKS))
        last = data.n_users - min(HELD_OUT, data.n_users // 10)
        train = data.rows(order[min(first, last) : last])
        known = train.item_counts > 0
        history, target = reveal(data.rows(order[last:]).columns(known))
        events = np.arange(history.n_users)
        if len(events) > MOST_EVENTS:
            events = events[np.linspace(0, len(events) - 1, MOST_EVENTS).astype(np.int64)]
        targets = target.matrix.indices[events, None]
        history, n_sessions = history.rows(events), data.n_users - last
        return cls(model, train.columns(known), history, targets, names, options, n_sessions)

    @property
    def has_room(self) -> bool:
        """Whether another fit is allowed."""
        return len(self._seen) < MOST_FITS

    def visit(self, settings: Settings) -> bool:
        """Measure settings that have not been measured; return whether they are the best."""
        solved = _only(self.names, settings)
        if solved.get("mix") == 1.0:  # SLIS, which has no splits
            solved |= ONLY_SPLITS
        if solved in self._seen or not self.has_room:
            return False
        self._seen.append(solved)
        fitted = self.model._vary(solved)._fit_model(self.train, self.options)
        fitted._solve_roughly()
        mrr = {decay: self._mrr(fitted, solved, decay) for decay in DECAYS}
        decay = max(DECAYS, key=mrr.__getitem__)
        best_variant = fitted._vary({"decay_inference": decay})
        logger.info("%s: MRR@20 %.4f", best_variant.summary(), mrr[decay])
        is_best = mrr[decay] > self.best_mrr
        if is_best:
            self.best, self.best_mrr = {**solved, "decay_inference": decay}, mrr[decay]
        return is_best

    def log_yardsticks(self) -> None:
        """Log the best MRR@20 beside those of the nearest-neighbour models."""
        figures = {type(self.model).__name__: self.best_mrr}
        for neighbours in (STAN(), VSTAN()):
            figures[type(neighbours).__name__] = self._mrr_of(neighbours.fit(self.train))
        listed = ", ".join(f"{name} {mrr:.4f}" for name, mrr in figures.items())
        logger.info("MRR@20 in the last %s sessions: %s", f"{self.n_sessions:,}", listed)

    def _mrr(self, fitted: Any, settings: Settings, decay: float) -> float:
        variant = fitted._vary({**settings, "decay_inference": decay}).reuse(fitted)
        return self._mrr_of(variant)

    def _mrr_of(self, fitted: Any) -> float:
        lists = fitted.rank(self.history, LISTED).items
        hits = lists == self.target
        return float((hits / np.arange(1, lists.shape[1] + 1)).sum() / len(hits))


def _steps(settings: Settings, name: str) -> Iterator[Settings]:
    """Yield the settings with the next smaller and the next larger value of one setting."""
    if name not in settings or (settings.get("mix") == 1.0 and name in ONLY_SPLITS):
        return
    values = AXES[name]
    place = values.index(settings[name])
    for other in (place - 1, place + 1):
        if 0 <= other < len(values):
            yield {**settings, name: values[other]}


def _only(names: frozenset[str], settings: Settings) -> Settings:
    return {name: value for name, value in settings.items() if name in names}
