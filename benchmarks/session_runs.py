"""What the session benchmarks share: data, metrics, a search on validation, rows kept on disk."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

import equipoise as eq
from equipoise.interactions import Interactions
from equipoise.models.session_base import SessionModel

Pair = tuple[Interactions, Interactions]
Settings = dict[str, Any]
MODELS = {"SLIS": eq.SLIS, "SLIT": eq.SLIT, "SLIST": eq.SLIST}
METRICS = ["recall", "mrr", "tail_recall", "tail_mrr"]
ALPHAS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
INFERENCE = (1.0, 2.0, 4.0)
# Settings that are tried together; the best of a group is kept for the next one.
PLAIN: dict[str, list[dict[str, tuple[Any, ...]]]] = {
    "SLIT": [{"decay_position": (0.5, 1.0, 2.0), "l2": (3.0, 10.0, 30.0, 100.0)}],
    "SLIS": [{"row_norm": ("l1", "l2"), "l2": (3.0, 10.0, 30.0, 100.0)}],
    "SLIST": [{"row_norm": ("l1", "l2"), "mix": (0.2, 0.5, 0.8)}, {"l2": (3.0, 30.0, 100.0)}],
}
BETAS = (0.0, 0.25, 0.5, 1.0)


def train_sessions(folder: Path) -> Interactions:
    return eq.read(folder / "train_sessions.npz")


def all_sessions(folder: Path) -> Interactions:
    """Return the sessions of train and test together, to be split at random."""
    frames = []
    for part in ("train", "test"):
        stored = np.load(folder / f"{part}_sessions.npz")
        lengths = np.diff(stored["offsets"])
        names = [f"{part}{number}" for number in range(len(lengths))]
        session = pl.Series(names)[np.repeat(np.arange(len(lengths)), lengths)]
        frames.append(pl.DataFrame({"session": session, "item": stored["items"]}))
    return eq.read(pl.concat(frames), session="session", item="item")


def prepared_test(folder: Path, train: Interactions) -> Pair:
    """Return the steps of the prepared test sessions.

    Clicks on items that train lacks are removed first, then sessions shorter than two clicks.
    """
    sessions = eq.read(folder / "test_sessions.npz")
    known = sessions.with_items(train.item_index, unknown="skip")
    assert known.sequences is not None
    return eq.split.reveal(known.rows(known.sequences.lengths >= 2))


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


def measure(model: SessionModel, pair: Pair, alpha: float | None = None) -> dict[str, float]:
    """Return recall and MRR at 20 over events: all, tail and unbiased.

    Unbiased is the mean over events of hit / count^1.5 (and of that / rank), as in the code behind
    the published table; it is not divided by the sum of its weights.
    """
    asked = _WithAlpha(model, alpha)
    result = eq.evaluate(asked, pair, 20, metrics=METRICS, exclude_seen=False, bootstrap=0)
    weight = target_weights(model.interactions_)[pair[1].matrix.indices]
    values = {name: result[name] for name in result}
    for name in ("recall@20", "mrr@20"):
        values[f"unbiased_{name}"] = float((result.per_user[name].to_numpy() * weight).mean())
    return values


@dataclass(frozen=True)
class _WithAlpha:
    """A fitted model with the popularity dial turned."""

    model: SessionModel
    alpha: float | None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def rank(self, history: Interactions, k: int, *, exclude_seen: bool = False) -> Any:
        return self.model.rank(history, k, exclude_seen=exclude_seen, alpha=self.alpha)


def build(name: str, settings: Settings) -> SessionModel:
    """Return the unfitted model; `alpha` and `beta` make a DAN."""
    fields = dict(settings)
    alpha, beta = fields.pop("alpha", 0.0), fields.pop("beta", 0.0)
    norm = eq.DAN(alpha, beta) if alpha or beta else eq.NoNorm()
    return MODELS[name](normalizer=norm, **fields)


@dataclass
class Search:
    """Chooses settings by MRR@20 on validation; every fit is kept in a file.

    Parameters
    ----------
    name
        The model.
    train, valid
        What to fit on, and what to choose on.
    path
        File of the values seen so far; a search that was stopped goes on from there.
    """

    name: str
    train: Interactions
    valid: Pair
    path: Path
    seen: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path.exists():
            self.seen = json.loads(self.path.read_text())

    def plain(self, start: Settings) -> Settings:
        """Return the best settings without DAN."""
        best = dict(start)
        for group in PLAIN[self.name]:
            free = [{"decay_inference": value} for value in INFERENCE]
            best = self._best(best, list(_product(group)), free)
        return best

    def dan(self, plain: Settings) -> Settings:
        """Return the best settings with DAN, all else but the penalty and row norm the same."""
        free: list[Settings] = [{"alpha": alpha} for alpha in ALPHAS]
        norms = list(dict.fromkeys([plain.get("row_norm", "l1"), None]))
        if self.name == "SLIT":  # a past of one click has nothing to scale
            norms = norms[:1]
        best = {**plain, "beta": 0.0, "alpha": 0.0}
        best = self._best(best, list(_product({"row_norm": norms, "beta": BETAS})), free)
        l2 = best.get("l2", 10.0)
        best = self._best(best, [{"l2": l2 * factor} for factor in (0.3, 1.0, 3.0)], free)
        return self._best(best, [{"dropout": value} for value in (0.0, 0.2, 0.5)], free)

    def _best(self, base: Settings, changes: list[Settings], free: list[Settings]) -> Settings:
        tried = []
        for change in changes:
            fixed = {**base, **change}
            every = [{**fixed, **one} for one in free]
            self._fit(fixed, every)
            tried += every
        return max([base, *tried], key=lambda one: self.seen.get(_key(one), -1.0))

    def _fit(self, fixed: Settings, every: list[Settings]) -> None:
        """Fit once and measure every setting that needs no other fit."""
        if all(_key(one) in self.seen for one in every):
            return
        began = time.perf_counter()
        model = build(self.name, {**fixed, "alpha": 0.0}).fit(self.train)
        for one in every:
            model.decay_inference = one.get("decay_inference", model.decay_inference)
            alpha = one.get("alpha", 0.0)
            self.seen[_key(one)] = measure(model, self.valid, alpha)["mrr@20"]
        self.path.write_text(json.dumps(self.seen, indent=1))
        seconds = time.perf_counter() - began
        best = max(self.seen[_key(one)] for one in every)
        print(f"  {self.name} {fixed}: {best:.4f} ({seconds:.0f} s)", flush=True)


def _product(grid: dict[str, Any]) -> Iterator[Settings]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _key(settings: Settings) -> str:
    return json.dumps({name: value for name, value in sorted(settings.items()) if value != 0.0})


def row(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the row that a file holds, or make it and write the file."""
    if path.exists():
        stored: dict[str, Any] = json.loads(path.read_text())
        return stored
    made = make()
    path.write_text(json.dumps(made, indent=1))
    return made


def run(name: str, settings: Settings, train: Interactions, test: Pair) -> dict[str, Any]:
    """Fit and measure; return the row."""
    began = time.perf_counter()
    model = build(name, settings).fit(train)
    fitted = time.perf_counter()
    values = measure(model, test)
    done = time.perf_counter()
    print(f"  {name} {settings}: {values['recall@20']:.4f}/{values['mrr@20']:.4f}", flush=True)
    seconds = {"fit": fitted - began, "rank": done - fitted}
    return {"settings": settings, "events": test[0].n_users, "seconds": seconds, **values}
