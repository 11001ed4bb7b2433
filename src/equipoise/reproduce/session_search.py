"""Session models: what they score on held-out clicks, and settings chosen by it."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.errors import DataError
from equipoise.evaluation import evaluate
from equipoise.interactions import Interactions
from equipoise.models.sessions import SLIS, SLIST, SLIT, SessionModel
from equipoise.normalize import DAN, NoNorm
from equipoise.readers import read
from equipoise.reproduce.cells import read_kept, write_text

logger = logging.getLogger(__name__)

Pair = tuple[Interactions, Interactions]
Settings = dict[str, Any]
MODELS: dict[str, type[SessionModel]] = {"SLIS": SLIS, "SLIT": SLIT, "SLIST": SLIST}
METRICS = ["recall", "mrr", "tail_recall", "tail_mrr"]
BATCH = 16384  # events ranked at a time: a card is idle between batches
START: Settings = {"l2": 10.0, "decay_inference": 2.0}
# Settings of the model itself, chosen first and without DAN; SLIST takes SLIT's decay_position.
OWN: dict[str, dict[str, list[Any]]] = {
    "SLIT": {"decay_position": [0.5, 1.0, 2.0, 4.0], "decay_inference": [1.0, 2.0, 4.0, 8.0]},
    "SLIS": {"decay_inference": [1.0, 2.0, 4.0, 8.0]},
    "SLIST": {"mix": [0.2, 0.5, 0.8], "decay_inference": [1.0, 2.0, 4.0, 8.0]},
}
# Every combination is tried; without DAN alpha and beta are 0 and the rest is the same grid.
GRID: dict[str, list[Any]] = {
    "row_norm": ["l1", None],
    "l2": [10.0],
    "dropout": [0.0, 0.5],
    "beta": [0.0, 0.5, 1.0],
    "alpha": [0.0, 0.05, 0.1, 0.2, 0.3, 0.5],
}
NEARBY = (0.3, 3.0)  # factors of l2 that are tried last, around both choices
FREE = ("alpha", "decay_inference")  # need no other fit


def all_sessions(folder: Path) -> Interactions:
    """Return the sessions of `train_sessions.npz` and `test_sessions.npz` together."""
    frames = []
    for part in ("train", "test"):
        stored = np.load(folder / f"{part}_sessions.npz")
        lengths = np.diff(stored["offsets"])
        names = pl.Series([f"{part}{number}" for number in range(len(lengths))])
        session = names[np.repeat(np.arange(len(lengths)), lengths)]
        frames.append(pl.DataFrame({"session": session, "item": stored["items"]}))
    return read(pl.concat(frames), session="session", item="item")


def sample(pair: Pair, n_rows: int, seed: int = 0) -> Pair:
    """Return this many events, drawn evenly; all where there are fewer."""
    size = pair[0].n_users
    if n_rows >= size:
        return pair
    rows = np.sort(np.random.default_rng(seed).choice(size, n_rows, replace=False))
    return pair[0].rows(rows), pair[1].rows(rows)


def target_weights(train: Interactions) -> npt.NDArray[np.float64]:
    """Return count^-1.5 of each item, counted as a click after the first of a session."""
    events = train.sequences
    assert events is not None
    after_first = np.ones(len(events.items), bool)
    after_first[events.offsets[:-1][events.lengths > 0]] = False
    counts = np.bincount(events.items[after_first], minlength=train.n_items)
    return np.maximum(counts, 1).astype(np.float64) ** -1.5


@dataclass(frozen=True)
class Measured:
    """Recall and MRR at 20 over events: all, tail and unbiased.

    Unbiased is the mean over events of hit / count^1.5 (and of that / rank), the form that the
    size of the published numbers points to; it is not divided by the sum of its weights.

    Parameters
    ----------
    values
        The means by name.
    per_event
        What each event adds to "mrr@20", "tail_mrr@20" (null for other targets) and
        "unbiased_mrr@20".
    """

    values: dict[str, float]
    per_event: pl.DataFrame = field(repr=False)


def measure(model: SessionModel, pair: Pair, alpha: float | None = None) -> Measured:
    """Rank after every event; `alpha` turns the popularity dial."""
    asked = _Dialled(model, alpha)
    found = evaluate(
        asked, pair, 20, metrics=METRICS, exclude_seen=False, bootstrap=0, batch_size=BATCH
    )
    weight = target_weights(model.interactions_)[pair[1].matrix.indices]
    values = {name: float(found[name]) for name in found}
    columns = found.per_user.select("mrr@20", "tail_mrr@20")
    for name in ("recall@20", "mrr@20"):
        unbiased = found.per_user[name].to_numpy() * weight
        values[f"unbiased_{name}"] = float(unbiased.mean())
    return Measured(values, columns.with_columns(pl.Series("unbiased_mrr@20", unbiased)))


@dataclass(frozen=True)
class _Dialled:
    """A fitted model that ranks with another alpha."""

    model: SessionModel
    alpha: float | None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def rank(self, history: Interactions, k: int, *, exclude_seen: bool = False) -> Any:
        return self.model.rank(history, k, exclude_seen=exclude_seen, alpha=self.alpha)


def make(name: str, settings: Settings) -> SessionModel:
    """Return the unfitted model; `alpha` and `beta` make a DAN."""
    fields = dict(settings)
    alpha, beta = fields.pop("alpha", 0.0), fields.pop("beta", 0.0)
    norm = DAN(alpha, beta) if alpha or beta else NoNorm()
    return MODELS[name](normalizer=norm, **fields)


@dataclass
class Search:
    """Chooses settings by MRR@20 on validation; the values of every fit are kept in a file.

    Parameters
    ----------
    name
        The model: "SLIS", "SLIT" or "SLIST".
    train, valid
        What to fit on, and what to choose on.
    path
        File of the values seen so far; a search that was stopped goes on from there.
    device
        Where to fit.
    grid
        Names and values that take the place of those of `GRID`.
    """

    name: str
    train: Interactions
    valid: Pair
    path: Path
    device: str = "cpu"
    grid: Mapping[str, list[Any]] = field(default_factory=dict)
    seen: dict[str, dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = (self.train, *self.valid)
        self._data = "-".join(part.fingerprint for part in parts)
        kept = read_kept(self.path, ("data", "seen"))
        if kept is None:
            return
        if kept["data"] != self._data:
            raise DataError(
                f"{self.path} belongs to other data; move it away, or choose another path"
            )
        self.seen = kept["seen"]

    def own(self, start: Settings) -> Settings:
        """Return the settings of the model itself, chosen without DAN."""
        return self._best(self._tried([{**START, **start}], OWN[self.name]))

    def pair(self, own: Settings) -> tuple[Settings, Settings]:
        """Return the best settings without and with DAN, out of one grid.

        Those without DAN are the best of its points with alpha = beta = 0.
        """
        grid = {**GRID, **self.grid}
        if self.name == "SLIT":  # a past of one click has nothing to scale
            del grid["row_norm"]
        tried = self._tried([own], grid)
        plain, dan = self._best(filter(is_plain, tried)), self._best(tried)
        around = [{**one, "l2": one["l2"] * factor} for one in (plain, dan) for factor in NEARBY]
        tried += self._tried(around, {"alpha": grid["alpha"]})
        return self._best(filter(is_plain, tried)), self._best(tried)

    def _tried(self, bases: list[Settings], grid: Mapping[str, list[Any]]) -> list[Settings]:
        free = {name: values for name, values in grid.items() if name in FREE}
        fits = {name: values for name, values in grid.items() if name not in FREE}
        tried = []
        for base in bases:
            for change in _product(fits):
                every = [{**base, **change, **one} for one in _product(free)]
                self._fit(every)
                tried += every
        return tried

    def _best(self, tried: Iterable[Settings]) -> Settings:
        return max(tried, key=lambda one: self.seen[_key(one)]["mrr@20"])

    def _fit(self, every: list[Settings]) -> None:
        """Fit once and measure settings that differ in what needs no other fit."""
        missing = [one for one in every if _key(one) not in self.seen]
        if not missing:
            return
        began = time.perf_counter()
        model = make(self.name, {**missing[0], "alpha": 0.0}).fit(self.train, device=self.device)
        fitted = time.perf_counter()
        for one in missing:
            model.decay_inference = one["decay_inference"]
            self.seen[_key(one)] = measure(model, self.valid, one.get("alpha", 0.0)).values
        write_text(self.path, json.dumps({"data": self._data, "seen": self.seen}, indent=1))
        done = time.perf_counter()
        best = self._best(missing)
        logger.info(
            "%s: %.4f with %s, fit %.1f s, %d rankings %.1f s",
            self.path.stem,
            self.seen[_key(best)]["mrr@20"],
            best,
            fitted - began,
            len(missing),
            done - fitted,
        )


def is_plain(settings: Settings) -> bool:
    """Whether these settings are without DAN."""
    return not settings.get("alpha") and not settings.get("beta")


def _product(grid: Mapping[str, list[Any]]) -> Iterator[Settings]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _key(settings: Settings) -> str:
    return json.dumps({name: value for name, value in sorted(settings.items()) if value != 0.0})
