"""Which solve to try next: a few around the automatic settings, then Optuna's advice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from equipoise.errors import MissingExtraError

L2_REACH = 100.0  # how far from the first l2, either way
STEP = 0.05
LARGEST = {"beta": 1.0, "dropout": 0.9}
ATTEMPTS = 20

Outer = dict[str, float]


class Sampler:
    """Proposes settings of solves; the same proposals for the same past, also after a kill.

    Parameters
    ----------
    first
        Where to begin: beta (where there is one), l2 and dropout.
    seed
        Same seed and same past, same proposal.
    """

    def __init__(self, first: Outer, seed: int) -> None:
        self.first = {**first, **{n: _stepped(first[n], n) for n in LARGEST if n in first}}
        self.first["l2"] = max(first["l2"], 1e-3)
        self.seed = seed
        self.bounds = self.first["l2"] / L2_REACH, self.first["l2"] * L2_REACH

    @property
    def starts(self) -> list[Outer]:
        """The first proposals: the automatic settings, and a step away in each direction."""
        first = self.first
        out = [first, {**first, "l2": first["l2"] * 5}, {**first, "l2": first["l2"] / 5}]
        for name in (name for name in LARGEST if name in first):
            steps = (_stepped(first[name] + move, name) for move in (0.25, -0.25))
            out += [{**first, name: value} for value in steps]
        return [each for place, each in enumerate(out) if each not in out[:place]]

    def propose(self, past: Sequence[tuple[Outer, float]]) -> Outer | None:
        """Return settings that were not tried, or None where nothing new comes to mind."""
        tried = [outer for outer, _ in past]
        for start in self.starts:
            if start not in tried:
                return start
        for attempt in range(ATTEMPTS):
            proposal = self._advice(past, self.seed + len(past) + 1_000_003 * attempt)
            if proposal not in tried:
                return proposal
        return None

    def _advice(self, past: Sequence[tuple[Outer, float]], seed: int) -> Outer:
        optuna = import_optuna()
        kinds = optuna.distributions
        ranges = {"l2": kinds.FloatDistribution(*self.bounds, log=True)}
        for name, high in LARGEST.items():
            if name in self.first:
                ranges[name] = kinds.FloatDistribution(0.0, high, step=STEP)
        with _quiet(optuna):
            # a study of its own for every proposal: nothing but the past decides
            sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=len(self.starts), multivariate=True
            )
            study = optuna.create_study(direction="maximize", sampler=sampler)
            for outer, value in past:
                if self._within(outer):
                    study.add_trial(
                        optuna.trial.create_trial(params=outer, distributions=ranges, value=value)
                    )
            params = study.ask(ranges).params
        return {name: _stepped(params[name], name) for name in self.first}

    def _within(self, outer: Outer) -> bool:
        """Whether settings could have been proposed; those of a grid need not."""
        low, high = self.bounds
        stepped = all(
            outer[name] == _stepped(outer[name], name) for name in LARGEST if name in outer
        )
        return low <= outer["l2"] <= high and stepped


def import_optuna() -> Any:
    """Return the module optuna, or say how to get it."""
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError(
            "a search needs optuna; install it with pip install 'equipoise[tune]', or give a grid"
        ) from error
    return optuna


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Keep optuna from logging every study; what the user set comes back."""
    import warnings

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def _stepped(value: float, name: str) -> float:
    """Return a value of the ranges: beta and dropout in steps, l2 with four digits."""
    if name not in LARGEST:
        return float(f"{value:.4g}")
    return round(min(max(round(value / STEP) * STEP, 0.0), LARGEST[name]), 10)
