"""Statistics of interactions: sizes, concentration, homophily, popularity curve.

The definitions are those of "Why is Normalization Necessary for Linear Recommenders?" (SIGIR
2025), Table 1. They use only the pattern of the matrix; weights are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import singledispatch
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.checks import MADE_BY_READ, instance
from equipoise.data.catalogue import Catalogue
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import entry_rows
from equipoise.display.notebook import fragment, table
from equipoise.errors import SettingError
from equipoise.runtime.kernels import compiled
from equipoise.runtime.machine import run

HEAD = 0.2  # share of the items that counts as the head
BLOCK = 256  # items a thread takes at a time
CURVE_POINTS = 51
PAIRS = 5e8  # with more pairs of items within users, `describe` samples the homophily
SAMPLE = 20_000  # sampled items, a multiple of BATCHES
BATCHES = 20  # batches of the sample that give its standard error
SIZE_POWER = 1.5  # an item is sampled with probability proportional to count^SIZE_POWER
T_19 = 2.093  # 97.5% point of Student's t with 19 degrees of freedom


@dataclass(frozen=True)
class Statistics:
    """Statistics of a data set, from `describe`.

    A Gini index of 0 means equal counts, near 1 concentrated ones. `popularity` is a frame of 51
    points: the share of the items, most used first, and of the interactions on them.
    """

    n_users: int
    n_items: int
    n_interactions: int
    density: float  # share of the matrix that is filled
    gini_items: float  # of the number of users of each item
    gini_users: float  # of the number of items of each user
    homophily: float  # weighted homophily ratio
    head_share: float  # share of the interactions on the most used 20% of the items (rounded up)
    median_user: float  # items per user
    min_user: int
    max_user: int
    median_item: float  # users per item
    min_item: int
    max_item: int
    delta: float  # exponent of the homophily ratio
    homophily_low: float  # 95% interval of the homophily where it was sampled, else itself
    homophily_high: float
    popularity: pl.DataFrame = field(repr=False, compare=False)
    n_new_items: int = 0  # items of the catalogue without events
    attributes: dict[str, str] = field(default_factory=dict, compare=False)  # of items: their kind

    def to_dict(self) -> dict[str, Any]:
        """All statistics by name, ready for JSON; the curve as two lists."""
        curve = self.popularity.to_dict(as_series=False)
        return {**self._numbers(), "attributes": dict(self.attributes), "popularity": curve}

    def to_frame(self) -> pl.DataFrame:
        """One row, one column per statistic: the frames of several data sets stack."""
        return pl.DataFrame([self._numbers()])

    def _numbers(self) -> dict[str, Any]:
        names = [column.name for column in fields(self)]
        numbers = (name for name in names if name not in ("popularity", "attributes"))
        return {name: getattr(self, name) for name in numbers}

    @property
    def _sampled(self) -> str:
        if self.homophily_low == self.homophily_high:
            return ""
        return f"sampled, 95% interval {self.homophily_low:.4f} to {self.homophily_high:.4f}, "

    def __repr__(self) -> str:
        lines = (f"  {name:<16}{text}" for name, text in self._lines())
        return "\n".join(["Statistics", *lines])

    def _repr_html_(self) -> str:
        return fragment("Statistics", table(["", ""], self._lines(), words=2))

    def _lines(self) -> list[tuple[str, str]]:
        head = f"{self.head_share:.1%} of interactions on the top {HEAD:.0%} of items"
        lines = [
            ("users", f"{self.n_users:,}"),
            ("items", f"{self.n_items:,}"),
            ("interactions", f"{self.n_interactions:,} (density {100 * self.density:.3g}%)"),
            ("Gini of items", f"{self.gini_items:.4f}"),
            ("Gini of users", f"{self.gini_users:.4f}"),
            ("homophily", f"{self.homophily:.4f} ({self._sampled}delta {self.delta:g})"),
            ("head share", head),
            ("items per user", _spread(self.median_user, self.min_user, self.max_user)),
            ("users per item", _spread(self.median_item, self.min_item, self.max_item)),
        ]
        if self.attributes:
            kinds = ", ".join(f"{name} ({kind})" for name, kind in self.attributes.items())
            lines.append(("attributes", kinds))
            lines.append(("new items", f"{self.n_new_items:,} of the catalogue without events"))
        return lines


def describe(
    interactions: Interactions, *, delta: float = 1.5, exact: bool | None = None
) -> Statistics:
    """Return statistics of a data set: size, concentration and homophily.

    Parameters
    ----------
    interactions
        The data; weights are ignored.
    delta
        Exponent of the number of shared users in the weights of the homophily ratio.
    exact
        Whether to compute the homophily ratio from all pairs of items, or to estimate it from
        sampled items with an interval. By default it is estimated above 5e8 pairs within users.

    Examples
    --------
    >>> import equipoise as eq
    >>> eq.describe(eq.read([("ann", "tea"), ("ann", "milk"), ("bob", "tea"), ("cy", "tea")]))
    Statistics
      users           3
      items           2
      interactions    4 (density 66.7%)
      Gini of items   0.2500
      Gini of users   0.1667
      homophily       0.3333 (delta 1.5)
      head share      75.0% of interactions on the top 20% of items
      items per user  median 1, from 1 to 2
      users per item  median 2, from 1 to 3
    """
    instance("interactions", interactions, Interactions, MADE_BY_READ)
    if exact is None:
        exact = not many_pairs(interactions.user_counts)
    if exact:
        return statistics_of(interactions, homophily(interactions, delta=delta), delta)
    alike, *interval = sampled_homophily(interactions, delta=delta)
    return statistics_of(interactions, alike, delta, interval)


def many_pairs(user_counts: npt.NDArray[np.int64]) -> bool:
    """Whether there are so many pairs of items within users that homophily is sampled."""
    return float(user_counts @ (user_counts - 1)) / 2 > PAIRS


class Counted(Protocol):
    """Data with known sizes and counts."""

    @property
    def n_users(self) -> int:
        """Number of users."""

    @property
    def n_items(self) -> int:
        """Number of items."""

    @property
    def n_interactions(self) -> int:
        """Number of pairs."""

    @property
    def density(self) -> float:
        """Share of the matrix that is filled."""

    @property
    def item_counts(self) -> npt.NDArray[np.int64]:
        """Number of users of each item."""

    @property
    def user_counts(self) -> npt.NDArray[np.int64]:
        """Number of items of each user."""

    @property
    def known_items(self) -> Catalogue | None:
        """What is known about the items, and about new ones."""


def statistics_of(
    data: Counted, ratio: float, delta: float, interval: Sequence[float] | None = None
) -> Statistics:
    """Return the statistics of data, given the homophily ratio and its interval if sampled."""
    items, users = data.item_counts, data.user_counts
    ranked = np.sort(items)[::-1]
    n_head = math.ceil(HEAD * data.n_items)
    low, high = interval or (ratio, ratio)
    return Statistics(
        n_users=data.n_users,
        n_items=data.n_items,
        n_interactions=data.n_interactions,
        density=data.density,
        gini_items=gini(items),
        gini_users=gini(users),
        homophily=ratio,
        head_share=int(ranked[:n_head].sum()) / max(data.n_interactions, 1),
        **_lengths("user", users),
        **_lengths("item", items),
        delta=float(delta),
        homophily_low=low,
        homophily_high=high,
        popularity=popularity_curve(data),
        n_new_items=0 if data.known_items is None else len(data.known_items.new_index),
        attributes={} if data.known_items is None else dict(data.known_items.kinds),
    )


def gini(counts: npt.ArrayLike) -> float:
    """Gini index of non-negative counts: 0 when all are equal, (n - 1) / n when one has all.

    With the counts c_1 <= ... <= c_n in ascending order it is
    sum_k (2k - n - 1) c_k / (n sum_k c_k). Zeros count; no counts or only zeros give 0.
    """
    ordered = np.sort(np.asarray(counts, np.float64))
    n, total = len(ordered), float(ordered.sum())
    if total == 0:
        return 0.0
    return float((2 * np.arange(1, n + 1) - n - 1) @ ordered) / (n * total)


@singledispatch
def homophily(interactions: Interactions, *, delta: float = 1.5) -> float:
    """Weighted homophily ratio, 0 to 1: similarity of items that share users.

    The mean of the Jaccard similarity s_ij = c / (n_i + n_j - c) over all unordered pairs of
    items with c > 0 common users, weighted by w_ij = c^delta * c / min(n_i, n_j), where n_i users
    have item i. Without such a pair it is 0.

    `delta`, from 0 to 50, raises the weight of pairs with many common users. Exact, and the same
    for every number of threads; memory is a row of counts per thread.
    """
    data = _positive(interactions, delta)
    if not data.n_interactions:
        return 0.0
    sums = np.zeros((2, data.n_items))
    _add_all(data, delta, np.arange(data.n_items, dtype=np.int32), sums, all_pairs=False)
    return pair_ratio(sums)


def sampled_homophily(
    interactions: Interactions, *, delta: float = 1.5, seed: int = 0
) -> tuple[float, float, float]:
    """Return the homophily ratio estimated from sampled items, and its 95% interval.

    Items are drawn with replacement, popular ones more often because they carry most of the
    weight, and weighted by the inverse probability. The interval comes from twenty batches.
    """
    data = _positive(interactions, delta)
    if not data.n_interactions:
        return 0.0, 0.0, 0.0
    drawn, chance = draw_items(data.item_counts, seed)
    items, place = np.unique(drawn, return_inverse=True)
    sums = np.zeros((2, data.n_items))
    _add_all(data, delta, items.astype(np.int32), sums, all_pairs=True)
    return sampled_ratio(sums[:, items] / chance[items], place)


def draw_items(
    item_counts: npt.NDArray[np.int64], seed: int = 0
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return a sample of items, and the sampling probability of every item."""
    chance = item_counts.astype(np.float64) ** SIZE_POWER
    chance /= chance.sum()
    return np.random.default_rng(seed).choice(len(chance), SAMPLE, p=chance), chance


def sampled_ratio(
    sums: npt.NDArray[np.float64], place: npt.NDArray[np.int64]
) -> tuple[float, float, float]:
    """Return the ratio and its 95% interval.

    `sums` are the sums of w s and of w for each sampled item, divided by its probability; `place`
    is the column of each draw in them.
    """
    draws = sums[:, place]
    similar, total = draws.sum(axis=1)
    if not total > 0:
        return 0.0, 0.0, 0.0
    ratio = float(similar / total)
    # standard error of a ratio estimator, from the residuals of the numerator
    residuals = (draws[0] - ratio * draws[1]).reshape(BATCHES, -1).mean(axis=1)
    error = T_19 * float(residuals.std(ddof=1)) / BATCHES**0.5 / float(draws[1].mean())
    return ratio, max(ratio - error, 0.0), min(ratio + error, 1.0)


def _positive(interactions: Interactions, delta: float) -> Interactions:
    """Return the interactions with positive values, after checking the exponent."""
    check_delta(delta)
    if interactions.signed:
        return interactions.entries(interactions.matrix.data > 0)
    return interactions


def _add_all(
    data: Interactions,
    delta: float,
    chosen: npt.NDArray[np.int32],
    sums: npt.NDArray[np.float64],
    *,
    all_pairs: bool,
) -> None:
    """Write sums of w_ij s_ij and of w_ij over j != i (j > i unless `whole`) for items i."""
    matrix, counts = data.matrix, data.item_counts
    # users of each item, and the index of each of these pairs in the CSR arrays
    places = np.argsort(matrix.indices, kind="stable")
    users = entry_rows(matrix).astype(np.int32)[places]
    starts = np.concatenate([[0], np.cumsum(counts)])
    power = _powers(counts, delta)
    # a single dtype, so that the kernel is compiled once
    rows = matrix.indptr.astype(np.int64)
    items = matrix.indices.astype(np.int32, copy=False)

    def add_block(number: int) -> None:
        block = chosen[number * BLOCK : (number + 1) * BLOCK]
        _add_pairs(block, all_pairs, users, places, starts, rows, items, counts, power, sums)

    run(add_block, -(-len(chosen) // BLOCK))


def check_delta(delta: Any) -> None:
    """Raise if the exponent of homophily is invalid."""
    is_number = isinstance(delta, (int, float, np.number)) and not isinstance(delta, bool)
    if not is_number or not 0 <= delta <= 50:
        raise SettingError(f"delta must lie between 0 and 50, got {delta!r}")


def _powers(counts: npt.NDArray[np.int64], delta: float) -> npt.NDArray[np.float64]:
    # c^(delta + 1), divided by its maximum (which cancels) to stay finite
    return np.asarray((np.arange(counts.max() + 1) / counts.max()) ** (delta + 1))


def pair_ratio(sums: npt.NDArray[np.float64]) -> float:
    """Return the mean similarity from the sums of w s and of w for each item."""
    similar, total = math.fsum(sums[0]), math.fsum(sums[1])
    return similar / total if total > 0 else 0.0


def pair_sums(
    shared: npt.NDArray[np.int32],
    items: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    delta: float,
    *,
    all_pairs: bool,
) -> npt.NDArray[np.float64]:
    """Sum w_ij s_ij and w_ij for items i over all j != i, or over j > i unless `whole`.

    `shared` has a row for each of these items: its number of common users with every item.
    """
    power = _powers(counts, delta)
    sums = np.zeros((2, len(shared)))
    for row, (i, common) in enumerate(zip(items.tolist(), shared, strict=True)):
        j = np.flatnonzero(common)
        j = j[j != i] if all_pairs else j[j > i]
        both = common[j].astype(np.int64)
        weight = power[both] / np.minimum(counts[i], counts[j])
        sums[0, row] = (weight * both / (counts[i] + counts[j] - both)).sum()
        sums[1, row] = weight.sum()
    return sums


@compiled
def _add_pairs(
    chosen: npt.NDArray[np.int32],
    all_pairs: bool,
    users: npt.NDArray[np.int32],
    places: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    items: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int64],
    power: npt.NDArray[np.float64],
    sums: npt.NDArray[np.float64],
) -> None:
    """Sum w_ij s_ij and w_ij over j, for each item i of a block."""
    shared = np.zeros(len(counts), np.int32)
    touched = np.empty(len(counts), np.int32)
    for i in chosen:
        n_touched = 0
        for entry in range(starts[i], starts[i + 1]):
            user = users[entry]
            # The items of a row ascend, so the j > i follow this entry.
            first = rows[user] if all_pairs else places[entry] + 1
            for place in range(first, rows[user + 1]):
                j = items[place]
                if shared[j] == 0:
                    touched[n_touched] = j
                    n_touched += 1
                shared[j] += 1
        for k in range(n_touched):
            j = touched[k]
            common = shared[j]
            shared[j] = 0
            if j != i:
                weight = power[common] / min(counts[i], counts[j])
                sums[0, i] += weight * common / (counts[i] + counts[j] - common)
                sums[1, i] += weight


def _lengths(axis: str, counts: npt.NDArray[np.int64]) -> dict[str, Any]:
    present = counts if counts.size else np.zeros(1, np.int64)
    return {
        f"median_{axis}": float(np.median(present)),
        f"min_{axis}": int(present.min()),
        f"max_{axis}": int(present.max()),
    }


def popularity_curve(data: Counted) -> pl.DataFrame:
    """Return 51 points: the share of the items, most used first, and of the interactions on them.

    >>> popularity_curve(Interactions([[1, 1], [1, 0]]))[25].row(0)
    (0.5, 0.6666666666666666)
    """
    if not hasattr(data, "item_counts"):
        raise SettingError(f"data must be Interactions, got {type(data).__name__}; {MADE_BY_READ}")
    ranked = np.sort(data.item_counts)[::-1]
    share = np.linspace(0, 1, CURVE_POINTS)
    running = np.concatenate([[0], np.cumsum(ranked)]) / max(int(ranked.sum()), 1)
    covered = np.interp(share * len(ranked), np.arange(len(ranked) + 1), running)
    return pl.DataFrame({"items": share, "interactions": covered})


def _spread(median: float, least: int, most: int) -> str:
    return f"median {median:,g}, from {least:,} to {most:,}"
