"""Sessions to test on, and the definitions of the session models written with dense matrices."""

from __future__ import annotations

import numpy as np

from equipoise.data.events import Events
from equipoise.data.interactions import Interactions
from equipoise.models.sessions import SessionRegression


def as_data(
    sessions: list[list[int]], n_items: int, last_times: list[float] | None = None
) -> Interactions:
    """Sessions given as lists of item positions; all clicks of one have the same time."""
    X = np.zeros((len(sessions), n_items))
    for row, clicks in enumerate(sessions):
        X[row, clicks] = 1
    offsets = np.concatenate([[0], np.cumsum([len(clicks) for clicks in sessions])])
    items = np.array([item for clicks in sessions for item in clicks], np.int32)
    data = Interactions(X, events=Events(items, offsets.astype(np.int64)))
    if last_times is None:
        return data
    times = np.repeat(np.asarray(last_times, float), data.user_counts)
    return Interactions(data.matrix, times=times, events=data._sequences)


def drawn(n_sessions: int, n_items: int, seed: int = 0) -> Interactions:
    """Sessions of 1 to 12 clicks, with repeats and a long tail."""
    rng = np.random.default_rng(seed)
    popularity = 1 / np.arange(1, n_items + 1)
    lengths = rng.integers(1, 13, n_sessions)
    sessions = [
        rng.choice(n_items, size=length, p=popularity / popularity.sum()).tolist()
        for length in lengths
    ]
    return as_data(sessions, n_items)


def by_definition(
    model: SessionRegression, data: Interactions, mix: float
) -> tuple[np.ndarray, np.ndarray]:
    """M and R from the formulas, click by click."""
    _, beta, _ = model.normalizer_.exponents()
    decay = getattr(model, "decay_position", None)
    direction = getattr(model, "direction", "sr")
    n = data.n_items
    penalty = model.l2 + model.dropout / (1 - model.dropout) * data.item_counts
    M, R = np.diag(penalty.astype(float)), np.zeros((n, n))

    def fall(distance: int) -> float:
        return 1.0 if decay is None else float(np.exp(-distance / decay))

    def add(source: np.ndarray, target: np.ndarray, weight: float) -> None:
        order = {"l1": 1, "l2": 2, None: None}[model.row_norm]
        scaled = source if order is None else source / np.linalg.norm(source, order)
        M[:] += weight * np.outer(scaled, scaled)
        R[:] += weight * np.outer(scaled, target)

    for row in range(data.n_users):
        clicks = data._sequences[row].tolist()
        if len(clicks) < 2:
            continue
        weight = len(set(clicks)) ** -beta
        x = np.zeros(n)
        x[clicks] = 1
        add(x, x, mix * weight)
        for t in range(len(clicks) - 1):
            past, future = np.zeros(n), np.zeros(n)
            for q, item in enumerate(clicks):
                if direction == "all" or q == t or (direction == "part" and q < t):
                    past[item] += fall(abs(t - q))
                if direction == "all" or q > t:
                    future[item] += fall(abs(q - t - 1))
            add(past, future, (1 - mix) * weight)
    return M, R
