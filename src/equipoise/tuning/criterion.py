"""How a search measures its points and chooses the best.

`OnPart` measures on the valid part of a split. `OnLeftOut` measures on training users, each left
out of the solve, and keeps means over blocks of users: these give the standard error of a
difference, and an estimate for new users that is corrected for the choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from equipoise.data.interactions import Interactions
from equipoise.data.split.parts import Split
from equipoise.errors import DataError, SettingError
from equipoise.evaluation.evaluator import GivenPart, ListMetrics
from equipoise.evaluation.leave_one_out import left_out_part
from equipoise.evaluation.metrics import AGGREGATE, at_cutoff
from equipoise.models.leaving_out import lists_without
from equipoise.tuning.proposals import Point
from equipoise.tuning.shared_ranking import rank_together

Prefer = Literal["tail", "balance", "accuracy"]
# standard errors below the best that a point may lie to be chosen for its second objective
REACH: dict[Prefer, float] = {"tail": 2.0, "balance": 1.0, "accuracy": 0.0}
BLOCKS = 20
USERS = 2000

Goals = Mapping[str, float]  # 1 for a metric that should be large, -1 for one that should be small
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """Expected metric of the chosen model on new users.

    Attributes
    ----------
    metric
        Its name, such as "ndcg@20".
    value, error
        Mean over users, with the settings for each twentieth of the users chosen on the other
        users, and its standard error.
    optimism
        By how much the chosen point looks better on the users it was chosen by.
    n_users
        Users that were left out and have a value; for "tail_ndcg@20" those with a tail target.
    """

    metric: str
    value: float
    error: float
    optimism: float
    n_users: int

    def __str__(self) -> str:
        return (
            f"{self.metric} {self.value:.4f} ± {self.error:.4f} (standard error) on "
            f"{self.n_users:,} users left out one by one, corrected by {self.optimism:.4f} for "
            "the choice among many settings"
        )


class OnPart:
    """Points are measured on the valid part of a split; the best by the first goal is chosen."""

    def __init__(self, split: Split, goals: Goals) -> None:
        assert split.valid is not None
        self.train, self.goals = split.train, goals
        self._hides_seen = split.valid.hides_seen
        self.columns: list[str] = []  # columns of a point besides its metrics
        self._metrics = ListMetrics.of(split.valid, split.train.item_counts, goals)
        self.identity = {
            "data": f"{split.train.fingerprint}-{split.valid.fingerprint}",
            "protocol": split.valid.protocol,
        }

    def measure(self, models: Sequence[Any]) -> list[Point]:
        """Return the metrics of models that share a solve."""
        metrics, hide = self._metrics, self._hides_seen
        lists = rank_together(models, metrics.history, metrics.ks[-1], exclude_seen=hide)
        return [metrics.measure(model_lists) for model_lists in lists]

    def choose(self, points: Sequence[Point]) -> int:
        """Return the position of the best point; the first one of equals."""
        name, sign = next(iter(self.goals.items()))
        return int(np.argmax([sign * float(point[name]) for point in points]))

    def estimate(self, points: Sequence[Point]) -> Estimate | None:
        """Return None: the valid part chose the point, so it is no evidence about new users."""
        return None


class OnLeftOut:
    """Points are measured on training users, each left out of the solve."""

    def __init__(
        self, train: Interactions, goals: Goals, prefer: Prefer, users: int, seed: int
    ) -> None:
        self.train, self.prefer = train, prefer
        self._metric, *objectives = goals
        if at_cutoff(self._metric)[0].base in AGGREGATE:
            raise SettingError(f"{self._metric} has no value per user; tune it on a split")
        self.part: GivenPart = left_out_part(train, users, 0.8, seed)
        names = [self._metric, *(name for name in objectives if self._has_targets(name))]
        self.goals: Goals = {name: goals[name] for name in names}
        self._metrics = ListMetrics.of(self.part, train.item_counts, names)
        # users without a target in the slice of the metric have no value, as in `evaluate`
        self._users = np.flatnonzero(self._has_value())
        self._block = np.arange(len(self._users)) % min(BLOCKS, len(self._users))
        self.columns = [f"{self._metric}/{number}" for number in range(self._block.max() + 1)]
        self.identity = {
            "data": f"{train.fingerprint}-{self.part.history.fingerprint}",
            "protocol": self.part.protocol,
        }

    def _has_targets(self, name: str) -> bool:
        """Whether any target is in the slice of a metric; small data may have no tail."""
        try:
            ListMetrics.of(self.part, self.train.item_counts, [name])
        except DataError:
            return False
        return True

    def _has_value(self) -> npt.NDArray[np.bool_]:
        """Mark the users for whom the metric is defined; this does not depend on their lists."""
        history = self.part.history
        depth = min(self._metrics.ks[-1], history.n_items)
        lists = np.tile(np.arange(depth, dtype=np.int32), (history.n_users, 1))
        return ~np.isnan(self._metrics.per_user([lists])[0][self._metric])

    def measure(self, models: Sequence[Any]) -> list[Point]:
        """Return the metrics of models that share a solve, with means over blocks of users."""
        lists, _ = lists_without(models, self._metrics.history, self._metrics.ks[-1])
        out = []
        for model_lists in lists:
            per_user, exposure = self._metrics.per_user([model_lists])
            summaries = self._metrics.summaries(per_user, exposure)
            point: Point = {named.at(k): value for (named, k), (value, _) in summaries}
            values = np.nan_to_num(per_user[self._metric][self._users])
            means = np.bincount(self._block, values) / np.bincount(self._block)
            out.append(point | dict(zip(self.columns, means.tolist(), strict=True)))
        return out

    def choose(self, points: Sequence[Point]) -> int:
        """Return the position of the point that `prefer` selects."""
        return self._best(self._block_means(points), self._second_objective(points))

    def estimate(self, points: Sequence[Point]) -> Estimate | None:
        """Return the metric of the chosen point on users that took no part in the choice."""
        blocks, second = self._block_means(points), self._second_objective(points)
        n_blocks = blocks.shape[1]
        if n_blocks < 2:
            return None
        held_out = [
            blocks[self._best(np.delete(blocks, block, axis=1), second), block]
            for block in range(n_blocks)
        ]
        value = float(np.mean(held_out))
        error = float(np.std(held_out, ddof=1)) / n_blocks**0.5
        optimism = float(blocks[self._best(blocks, second)].mean()) - value
        sign = self.goals[self._metric]
        return Estimate(self._metric, sign * value, error, sign * optimism, len(self._users))

    def _best(self, blocks: Floats, second: Floats | None) -> int:
        means = blocks.mean(axis=1)
        best = int(np.argmax(means))
        if second is None or blocks.shape[1] < 2:
            return best
        behind = blocks[best] - blocks
        error = behind.std(axis=1, ddof=1) / blocks.shape[1] ** 0.5
        near = behind.mean(axis=1) <= REACH[self.prefer] * error
        near[best] = True
        return int(np.lexsort((-means, -np.where(near, second, -np.inf)))[0])

    def _block_means(self, points: Sequence[Point]) -> Floats:
        rows = [[float(point[name]) for name in self.columns] for point in points]
        return self.goals[self._metric] * np.array(rows)

    def _second_objective(self, points: Sequence[Point]) -> Floats | None:
        if self.prefer == "accuracy" or len(self.goals) < 2:
            return None
        name, sign = [*self.goals.items()][1]
        return sign * np.array([float(point[name]) for point in points])
