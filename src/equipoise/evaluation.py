"""Evaluate a model on a part of a split: one pass over the users, all metrics at all cut-offs."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

import equipoise
from equipoise import metrics as formulas
from equipoise.evaluation_input import (
    PartLike,
    Rankable,
    align,
    as_count,
    as_cutoffs,
    as_groups,
    as_part,
    as_vectors,
    checked_lists,
    model_items,
)
from equipoise.interactions import Interactions
from equipoise.metrics.lists import Vectors
from equipoise.metrics.named import AGGREGATE, Named, Observed, parse, per_user
from equipoise.metrics.resampling import bootstrap_interval
from equipoise.results import SCHEMA, Result
from equipoise.threads import limited

__all__ = ["Rankable", "Result", "evaluate"]

Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
log = logging.getLogger(__name__)


def evaluate(
    model: Rankable,
    part: PartLike | tuple[Interactions, Interactions],
    k: int | Iterable[int] = 20,
    *,
    metrics: Sequence[str] | str | None = None,
    groups: Mapping[str, Any] | None = None,
    item_vectors: Any = None,
    exclude_seen: bool | None = None,
    batch_size: int = 4096,
    bootstrap: int = 1000,
    seed: int = 0,
    threads: int | None = None,
    tuned_on_test: bool = False,
    name: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Rank every user of a part once and compute all metrics at all cut-offs from the lists.

    "recall@k" divides hits by min(k, targets), in the weak protocol by the number of targets, as
    the numbers published under it do; "recall_capped" and "recall_full" name one form in any
    protocol. Every definition is in `Result.definitions` and in docs/metrics.md. A user with an
    empty history is judged by the list `recommend` would give, which is that of popularity.

    Parameters
    ----------
    model
        Fitted; anything with the few names of `Rankable`.
    part
        ``split.test``, ``split.valid``, or a pair (history, target) with the same users.
    k
        One or more cut-offs.
    metrics
        Names without cut-off; left out: recall, ndcg, mrr, map, precision and hit; recall and
        ndcg by slice; coverage, gini, popularity, novelty, lift. A name may carry a slice:
        "tail_mrr", "active_map". "diversity" needs `item_vectors`.
    groups
        More groups of items by name, each a mask over the items of the part or a list of ids.
    item_vectors
        For "diversity": the training `Interactions` (an item's vector is its column), or a row per
        item of the model.
    exclude_seen
        Keep items of the history out of the lists; left out: yes, except for sessions, where
        people come back to an item.
    batch_size
        Users ranked at a time; has no effect on the numbers.
    bootstrap
        Resamples behind the 95% intervals; 0 for none.
    seed
        Of the resamples.
    threads
        At most this many; all if left out.
    tuned_on_test
        Say so if settings were chosen on this part; the result is then labelled.
    name
        Of the model in tables; left out: its `label`, or the name of its class.
    progress
        Called with the number of users done and of all users after every batch.

    Examples
    --------
    >>> import equipoise as eq
    >>> data = eq.Interactions(np.random.default_rng(0).random((60, 20)) < 0.3)
    >>> split = eq.split.strong(data, valid=0, test=0.2)
    >>> result = eq.evaluate(eq.Popularity().fit(split.train), split.test, k=[5, 10])
    >>> result["recall@5"] < result["recall@10"] <= 1
    True
    >>> result.definitions["recall"]
    'hits among the first k / min(k, number of targets)'
    """
    ks = as_cutoffs(k)
    given = as_part(part)
    as_count(batch_size, "batch_size", 1)
    as_count(bootstrap, "bootstrap", 0)
    wanted = parse(metrics, groups or ())
    items = model_items(model)
    history, target = align(given, items)
    if exclude_seen is None:
        exclude_seen = given.protocol != "session"
    bases = {named.base for named in wanted}
    walk = _Pass(ks, model.item_counts_, bases, as_vectors(item_vectors, items, bases))
    recall_form = "recall_full" if given.protocol == "weak" else "recall_capped"
    with limited(threads):
        walk.run(model, history, target, exclude_seen, batch_size, progress)
        started = time.perf_counter()
        seen = walk.observed(history, target, as_groups(groups, given.target, items))
        values = per_user(seen, wanted, ks, recall_form)
        walk.seconds["metrics"] += time.perf_counter() - started
        started = time.perf_counter()
        intervals = _intervals(values, bootstrap, seed)
        walk.seconds["bootstrap"] = time.perf_counter() - started
    log.info("evaluated %d users in %.1f s", history.n_users, sum(walk.seconds.values()))
    settings = model.settings()
    return Result(
        name=name or str(getattr(model, "label", type(model).__name__)),
        table=_table(wanted, ks, values, intervals, walk.exposure, history.n_users),
        per_user=_per_user_frame(history, values),
        k=ks,
        protocol=given.protocol,
        part=given.name,
        fingerprint=given.fingerprint,
        data_fingerprint=model.data_fingerprint_,
        n_users=history.n_users,
        n_items=len(items),
        exclude_seen=exclude_seen,
        settings=settings,
        definitions={named.name: named.definition(recall_form) for named in wanted},
        tuned_on_test=tuned_on_test,
        bootstrap=bootstrap,
        seed=seed,
        seconds=walk.seconds,
        version=equipoise.__version__,
    )


@dataclass
class _Pass:
    """One pass over the users in batches; keeps what the metrics need and drops the lists."""

    ks: tuple[int, ...]
    counts: npt.NDArray[Any]
    bases: set[str]
    units: Vectors | None
    hits: list[formulas.Hits] = field(default_factory=list)
    means: dict[str, list[Floats]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"rank": 0.0, "metrics": 0.0})

    def __post_init__(self) -> None:
        self.exposure = np.zeros((len(self.ks), len(self.counts)), np.int64)
        self.surprise = formulas.self_information(self.counts)

    def run(
        self,
        model: Rankable,
        history: Interactions,
        target: Interactions,
        exclude_seen: bool,
        batch_size: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        depth = min(self.ks[-1], len(self.counts))
        for start in range(0, history.n_users, batch_size):
            stop = min(start + batch_size, history.n_users)
            whole = stop - start == history.n_users
            rows = history if whole else history.rows(np.arange(start, stop))
            began = time.perf_counter()
            ranked = model.rank(rows, depth, exclude_seen=exclude_seen)
            ended = time.perf_counter()
            lists = checked_lists(ranked, rows, depth, len(self.counts))
            self._add(lists, target.matrix[start:stop])
            self.seconds["rank"] += ended - began
            self.seconds["metrics"] += time.perf_counter() - ended
            if progress is not None:
                progress(stop, history.n_users)

    def _add(self, lists: npt.NDArray[np.int32], target: Any) -> None:
        self.hits.append(formulas.find_hits(lists, target))
        if self.bases & set(AGGREGATE):
            for place, k in enumerate(self.ks):
                self.exposure[place] += formulas.exposure(lists, k, len(self.counts))
        if self.bases & {"popularity", "lift"}:
            self._keep("popularity", formulas.list_mean(lists, self.counts, self.ks))
        if "novelty" in self.bases:
            self._keep("novelty", formulas.list_mean(lists, self.surprise, self.ks))
        if self.units is not None:
            columns = [formulas.diversity(lists, self.units, k) for k in self.ks]
            self._keep("diversity", np.stack(columns, axis=1))

    def _keep(self, name: str, values: Floats) -> None:
        self.means.setdefault(name, []).append(values)

    def observed(
        self, history: Interactions, target: Interactions, groups: dict[str, Flags]
    ) -> Observed:
        per_list = {name: np.concatenate(parts) for name, parts in self.means.items()}
        if "lift" in self.bases:
            chosen = formulas.row_mean(history.matrix, self.counts)
            listed = per_list["popularity"].T
            columns = [formulas.popularity_lift(column, chosen) for column in listed]
            per_list["lift"] = np.stack(columns, axis=1)
        head = formulas.head_items(self.counts)
        return Observed(
            hits=formulas.join_hits(self.hits, target.matrix),
            groups={"head": head, "tail": ~head, **groups},
            users=_activity(history),
            rho=formulas.propensities(self.counts),
            per_list=per_list,
        )


def _activity(history: Interactions) -> dict[str, Flags]:
    """Flags of the ceil(m / 5) users with the longest histories, and of the rest.

    Ties go to the smaller id, so that the order of the rows does not matter.
    """
    by_id = np.argsort(history.users, kind="stable")
    order = by_id[np.argsort(-history.user_counts[by_id], kind="stable")]
    active = np.zeros(history.n_users, bool)
    active[order[: -(-history.n_users // 5)]] = True
    return {"active": active, "inactive": ~active}


def _intervals(
    values: Mapping[str, Floats], bootstrap: int, seed: int
) -> dict[str, tuple[float, float]]:
    if not values or not bootstrap:
        return {}
    low, high = bootstrap_interval(np.stack(list(values.values()), axis=1), bootstrap, seed)
    pairs = zip(low.tolist(), high.tolist(), strict=True)
    return dict(zip(values, pairs, strict=True))


def _table(
    wanted: Sequence[Named],
    ks: Sequence[int],
    values: Mapping[str, Floats],
    intervals: Mapping[str, tuple[float, float]],
    exposure: npt.NDArray[np.int64],
    n_users: int,
) -> pl.DataFrame:
    rows = []
    for named in wanted:
        for place, k in enumerate(ks):
            name = named.at(k)
            low, high = intervals.get(name, (None, None))
            if named.base in AGGREGATE:
                summary = {"coverage": formulas.coverage, "gini": formulas.exposure_gini}
                value, size = summary[named.base](exposure[place]), n_users
            else:
                defined = values[name][~np.isnan(values[name])]
                size = len(defined)
                value = float(defined.mean()) if size else math.nan
            rows.append((named.base, k, named.slice, value, low, high, size))
    frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    return frame.with_columns(pl.col("value", "low", "high").fill_nan(None))


def _per_user_frame(history: Interactions, values: Mapping[str, Floats]) -> pl.DataFrame:
    users = history.user_index.to_series().alias("user")
    frame = pl.DataFrame([users, *(pl.Series(name, column) for name, column in values.items())])
    return frame.with_columns(pl.col(pl.Float64).fill_nan(None))
