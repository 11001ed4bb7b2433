"""A model and parts small enough to evaluate by hand, shared by several test files."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.data.interactions import Interactions


@dataclass
class Lists:
    items: np.ndarray
    scores: np.ndarray


class Popular:
    """Ranks by training counts plus a taste for what stands near the history."""

    def __init__(self, train: Interactions, taste: float = 0.0, name: str = "popular") -> None:
        self.item_index_ = train.item_index
        self.item_counts_ = train.item_counts
        self.data_fingerprint_ = train.fingerprint
        self.taste = taste
        self.name = self.label = name
        self.asked: list[tuple[int, int, bool]] = []

    def settings(self) -> dict[str, object]:
        return {"name": self.name, "taste": self.taste}

    def rank(self, history: Interactions, k: int, *, exclude_seen: bool = True) -> Lists:
        self.asked.append((history.n_users, k, exclude_seen))
        dense = history.matrix.toarray().astype(float)
        near = np.roll(dense, 1, axis=1) + np.roll(dense, -1, axis=1)
        scores = self.item_counts_ + self.taste * near
        if exclude_seen:
            scores[dense > 0] = -np.inf
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        scores = np.take_along_axis(scores, order, axis=1)
        return Lists(np.where(np.isinf(scores), -1, order).astype(np.int32), scores)


@dataclass(frozen=True)
class Part:
    history: Interactions
    target: Interactions
    protocol: str = "strong"
    name: str = "test"
    fingerprint: str = "feedc0ffee00"


def halves(data: Interactions, protocol: str = "strong") -> tuple[Interactions, Part]:
    """First two thirds of the users to train; a fourth of the others' items to be found."""
    cut = 2 * data.n_users // 3
    tested = data.rows(np.arange(cut, data.n_users))
    places = (
        np.arange(tested.n_interactions)
        - tested.matrix.indptr[np.repeat(np.arange(tested.n_users), tested.user_counts)]
    )
    hidden = places % 4 == 1
    part = Part(tested.entries(~hidden), tested.entries(hidden), protocol)
    return data.rows(np.arange(cut)), part


def make_drinks() -> tuple[Popular, Part]:
    """Six items with counts 6 5 4 3 2 1, so head is the first two; three users to be served."""
    train = np.triu(np.ones((6, 6)))[:, ::-1]
    items = ["tea", "milk", "salt", "rice", "soap", "wine"]
    users = ["ann", "bob", "cleo"]
    history = Interactions(
        [[1, 0, 0, 0, 0, 0], [0, 1, 1, 0, 0, 1], [1, 1, 0, 0, 0, 0]], users, items
    )
    target = Interactions(
        [[0, 1, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0], [0, 0, 1, 0, 1, 1]], users, items
    )
    return Popular(Interactions(train, None, items)), Part(history, target)
