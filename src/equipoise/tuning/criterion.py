"""How a search measures its points and chooses the best.

`OnPart` measures on the valid part of a split. `OnLeftOut` measures on training users, each left
out of the solve, and keeps means over blocks of users: these give the standard error of a
difference, and an estimate for new users that is corrected for the choice.

`rank_together` makes the lists of models that share a solve, for little more than the cost of one
model. They differ in two vectors only: scores = (x * source) @ P * target. A row of P is read from
memory once and added to the sums of every source (alpha); each target (family, diag_bound, gamma)
is then one multiplication. If P is not an array, the term computes the sums of each source. Every
sum runs in the order of `ranker.top_k`, so the scores and lists of a model are bit for bit those
it gets when it is ranked alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr
from equipoise.data.split.parts import Split
from equipoise.errors import DataError, SettingError, SolveError
from equipoise.evaluation.backtest import verdict
from equipoise.evaluation.evaluator import GivenPart, ListMetrics
from equipoise.evaluation.leave_one_out import left_out_part
from equipoise.evaluation.metrics import AGGREGATE, at_cutoff
from equipoise.models.base import Recommender
from equipoise.models.baselines import ItemKNN, Popularity
from equipoise.models.histories import cold_rows
from equipoise.models.leaving_out import lists_without
from equipoise.ranking.kernels import add_to_sums, mask_items, select, sort_heaps
from equipoise.ranking.ranker import BLOCK, TILE, adders
from equipoise.ranking.terms import Constant, Dense, ScaledTerm
from equipoise.runtime import machine
from equipoise.runtime.kernels import compiled
from equipoise.tuning.space import Point

Prefer = Literal["tail", "balance", "accuracy"]
# standard errors below the best that a point may lie to be chosen for its second objective
REACH: dict[Prefer, float] = {"tail": 2.0, "balance": 1.0, "accuracy": 0.0}
BLOCKS = 20
USERS = 2000

BATCH = 4096  # users per batch for models that are ranked one by one
CHUNKS = 4  # per thread, so that no thread waits long for the last chunk
WIDTH = 512  # columns: the sums of six sources stay in the first-level cache

Lists = npt.NDArray[np.int32]
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
    yardsticks
        The same metric of popularity and item-kNN, fitted without groups of these users.
    verdict
        A sentence on the model beside them.
    """

    metric: str
    value: float
    error: float
    optimism: float
    n_users: int
    yardsticks: Mapping[str, float]
    verdict: str

    def __str__(self) -> str:
        return (
            f"{self.metric} {self.value:.4f} ± {self.error:.4f} (standard error) on "
            f"{self.n_users:,} users left out one by one, corrected by {self.optimism:.4f} for "
            "the choice among many settings\n"
            + "".join(f"  {name}: {value:.4f}\n" for name, value in self.yardsticks.items())
            + self.verdict
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
        """Return None: the valid part chose the point, so it cannot give an estimate."""
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
            point: Point = dict(self._metrics.means(per_user, exposure))
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
        name = str(points[self._best(blocks, second)].get("family", "this model"))
        yardsticks = self._yardsticks()
        of_blocks = {name: (sign * np.array(held_out)).tolist(), **yardsticks}
        return Estimate(
            self._metric,
            sign * value,
            error,
            sign * optimism,
            len(self._users),
            {label: float(np.mean(values)) for label, values in yardsticks.items()},
            verdict(of_blocks, name, self._metric),
        )

    def _yardsticks(self) -> dict[str, list[float]]:
        """Return the metric of popularity and item-kNN in each block of users.

        Each is fitted without at most a twentieth of all users at a time, who are among those
        left out, and makes the lists of these.
        """
        history, k = self.part.history, self._metrics.ks[-1]
        n_groups = min(BLOCKS, math.ceil(BLOCKS * history.n_users / self.train.n_users))
        group = np.arange(history.n_users) % n_groups
        out = {}
        for label, model in (("popular", Popularity()), ("item-kNN", ItemKNN())):
            lists = np.full((history.n_users, min(k, history.n_items)), -1, np.int32)
            for number in range(n_groups):
                left_out = history.rows(group == number)
                is_kept = np.ones(self.train.n_users, bool)
                is_kept[self.train.user_index.positions(left_out.users)] = False
                fitted = model.clone().fit(self.train.rows(is_kept))
                lists[group == number] = fitted.rank(left_out, k).items
            values = np.nan_to_num(self._metrics.per_user([lists])[0][self._metric][self._users])
            means = np.bincount(self._block, values) / np.bincount(self._block)
            out[label] = means.tolist()
        return out

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


def rank_together(
    models: Sequence[Recommender], history: Interactions, k: int, *, exclude_seen: bool = True
) -> list[Lists]:
    """Return the lists of each model, item positions padded with -1.

    Models whose terms differ in scales and constants alone are ranked together. Other models,
    such as those on a GPU, are ranked one by one, and so are all models if seen items may be
    listed.
    """
    depth = min(k, history.n_items)
    out: dict[int, Lists] = {}
    groups: dict[Any, list[tuple[int, ScaledTerm, Any]]] = {}
    for number, model in enumerate(models):
        term, *more = model._ranking_terms()
        constants = [other.scores for other in more if isinstance(other, Constant)]
        can_share = exclude_seen and len(constants) == len(more) <= 1 and term.rank_job is None
        if can_share and isinstance(term, ScaledTerm):
            constant = constants[0] if constants else np.zeros(term.n_items, term.dtype)
            key = (type(term), *term.common, model.signals)
            groups.setdefault(key, []).append((number, term, constant))
    together = [
        group for group in groups.values() if len(group) > 1 or isinstance(group[0][1], Dense)
    ]
    alone = {*range(len(models))} - {number for group in together for number, *_ in group}
    parts: dict[int, list[Lists]] = {number: [] for number in sorted(alone)}
    for start in range(0, history.n_users if alone else 0, BATCH):
        # models that solve for rows on demand share them: all rank a batch before the next one
        batch = history.rows(np.arange(start, min(start + BATCH, history.n_users)))
        for number, batches in parts.items():
            batches.append(models[number].rank(batch, depth, exclude_seen=exclude_seen).items)
    out |= {number: np.concatenate(batches) for number, batches in parts.items()}
    for group in together:
        numbers, terms, constants_of_group = zip(*group, strict=True)
        first = models[numbers[0]]
        rank: Callable[..., Lists] = _rank_dense if isinstance(terms[0], Dense) else _rank_terms
        rows = first._weigh(history)
        lists = rank(terms, np.stack(constants_of_group), rows, depth)
        cold = np.flatnonzero(cold_rows(rows, first.item_counts_))
        fallbacks: dict[Any, Lists] = {}  # popularity, which is not part of the term
        for place, number in enumerate(numbers if len(cold) else ()):
            trend = models[number].trend
            if trend not in fallbacks:
                fallbacks[trend] = models[number].rank(history.rows(cold), depth).items
            lists[place, cold] = fallbacks[trend]
        out |= dict(zip(numbers, lists, strict=True))
    return [out[number] for number in range(len(models))]


class _Heaps:
    """The k best items so far of each term and each of these users, while blocks are scored."""

    def __init__(self, n_terms: int, users: npt.NDArray[np.int64], k: int, dtype: Any) -> None:
        shape = (n_terms, len(users), k)
        self.items, self.scores = np.full(shape, -1, np.int32), np.full(shape, np.nan, dtype)
        self.lengths, self.is_nan = np.zeros(shape[:2], np.int32), np.zeros(len(users), np.bool_)

    def lists(self) -> Lists:
        """Return the items, best first."""
        if self.is_nan.any():
            raise SolveError("a model scores NaN; raise l2 or dropout")
        for heap in zip(self.items, self.scores, self.lengths, strict=True):
            sort_heaps(*heap)
        return self.items


def _rank_terms(terms: Sequence[ScaledTerm], constants: Any, history: Csr, k: int) -> Lists:
    """Return lists (term, user, rank) of terms that differ in their scales alone."""
    n_users, n_items = history.shape
    dtype = terms[0].dtype
    items = np.empty((len(terms), n_users, k), np.int32)
    by_source: dict[bytes, list[int]] = {}
    for number, term in enumerate(terms):
        by_source.setdefault(term.source.tobytes(), []).append(number)
    step = max(1, TILE // (dtype.itemsize * BLOCK))
    indptr, indices = history.indptr.astype(np.int64), history.indices.astype(np.int32, copy=False)

    def rank_chunk(chunk: int) -> None:
        users = np.arange(chunk * step, min((chunk + 1) * step, n_users))
        seen = indptr[users], indptr[users + 1], indices
        heaps = _Heaps(len(terms), users, k, dtype)
        for numbers in by_source.values():
            unscaled: Any = dataclasses.replace(
                terms[numbers[0]],  # type: ignore[type-var]
                target=np.ones(n_items, dtype),
            )
            (add,) = adders([unscaled], history, users)
            for low in range(0, n_items, BLOCK):
                sums = np.zeros((len(users), min(BLOCK, n_items - low)), dtype)
                add(sums, low)
                for n in numbers:
                    block = sums * terms[n].target[low : low + BLOCK].astype(dtype)
                    block += constants[n, low : low + BLOCK]
                    mask_items(block, low, *seen)
                    heap = heaps.items[n], heaps.scores[n], heaps.lengths[n]
                    select(block, low, *heap, heaps.is_nan)
        items[:, users] = heaps.lists()

    machine.run(rank_chunk, -(-n_users // step))
    return items


def _rank_dense(terms: Sequence[Dense], constants: Any, history: Csr, k: int) -> Lists:
    """Return lists (term, user, rank) of dense terms on one matrix."""
    matrix, dtype = np.asarray(terms[0].matrix), terms[0].dtype
    sources: dict[bytes, int] = {}
    source_of = np.array([sources.setdefault(t.source.tobytes(), len(sources)) for t in terms])
    scale = np.stack([np.frombuffer(source, terms[0].source.dtype) for source in sources])
    indptr, indices = history.indptr.astype(np.int64), history.indices.astype(np.int32, copy=False)
    # the product is rounded to the precision of the sums, as in `terms.Rows.weights`
    weights = history.data.astype(dtype)[None] * scale.astype(dtype)[:, indices]
    targets = np.stack([term.target.astype(dtype) for term in terms])
    added = np.ascontiguousarray(constants, dtype)
    rows = indptr, indices, weights
    n_users = history.shape[0]
    items = np.empty((len(terms), n_users, k), np.int32)
    order = np.argsort(-np.diff(history.indptr), kind="stable")
    n_chunks = min(n_users, CHUNKS * machine.count())

    def rank_chunk(chunk: int) -> None:
        users = np.sort(order[chunk::n_chunks]).astype(np.int64)
        heaps = _Heaps(len(terms), users, k, dtype)
        heap = heaps.items, heaps.scores, heaps.lengths, heaps.is_nan
        _select_best(matrix, *rows, users, targets, added, source_of, *heap)
        items[:, users] = heaps.lists()

    machine.run(rank_chunk, n_chunks)
    return items


@compiled
def _select_best(
    matrix: Any,
    indptr: Any,
    indices: Any,
    weights: Any,
    users: Any,
    targets: Any,
    constants: Any,
    source_of: Any,
    items: Any,
    scores: Any,
    lengths: Any,
    is_nan: Any,
) -> None:
    """Fill the heaps of these users under every target, one block of columns at a time."""
    n_items = matrix.shape[0]
    sums = np.empty((len(weights), WIDTH), matrix.dtype)
    block = np.empty((1, WIDTH), matrix.dtype)
    for low in range(0, n_items, WIDTH):
        size = min(WIDTH, n_items - low)
        for user in range(len(users)):
            start, stop = indptr[users[user]], indptr[users[user] + 1]
            sums[:, :size] = 0
            add_to_sums(sums, size, matrix, low, indices, weights, start, stop)
            first = start
            while first < stop and indices[first] < low:
                first += 1
            one = slice(user, user + 1)
            for t in range(len(targets)):
                total, scale, constant = sums[source_of[t]], targets[t], constants[t]
                for j in range(size):
                    block[0, j] = total[j] * scale[low + j] + constant[low + j]
                place = first
                while place < stop and indices[place] < low + size:
                    block[0, indices[place] - low] = -np.inf
                    place += 1
                heap = items[t, one], scores[t, one], lengths[t, one]
                select(block[:, :size], low, *heap, is_nan[one])
